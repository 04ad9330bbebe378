/* CRC-32C eight bytes at a time: table k says what a byte does to the checksum when k more bytes
 * follow it, so eight look-ups that do not wait for each other take eight bytes. */
#include "core/crc32c.h"

#include <pthread.h>

enum { SLICES = 8 };

static uint32_t tables[SLICES][256];

static void fill_tables(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0);
        tables[0][i] = crc;
    }
    for (int k = 1; k < SLICES; k++)
        for (uint32_t i = 0; i < 256; i++)
            tables[k][i] = (tables[k - 1][i] >> 8) ^ tables[0][tables[k - 1][i] & 255];
}

uint32_t weft_crc32c(uint32_t crc, const void *data, size_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, fill_tables);
    const unsigned char *at = data;
    crc = ~crc;
    for (; bytes >= SLICES; bytes -= SLICES, at += SLICES) {
        uint32_t low = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
                              (uint32_t)at[3] << 24);
        crc = tables[7][low & 255] ^ tables[6][low >> 8 & 255] ^ tables[5][low >> 16 & 255] ^
              tables[4][low >> 24] ^ tables[3][at[4]] ^ tables[2][at[5]] ^ tables[1][at[6]] ^
              tables[0][at[7]];
    }
    for (; bytes; bytes--, at++)
        crc = (crc >> 8) ^ tables[0][(crc ^ *at) & 255];
    return ~crc;
}
