/* CRC-32C eight bytes at a time: table k says what a byte does to the checksum when k more bytes
 * follow it, so eight look-ups that do not wait for each other take eight bytes. */
#include "train/crc32c.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLICES = 8, FILE_BLOCK = 1 << 20 };

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

weft_status weft_crc32c_file(const char *path, int64_t *bytes, uint32_t *crc) {
    unsigned char *block = malloc(FILE_BLOCK);
    FILE *file = block ? fopen(path, "rb") : NULL;
    size_t n;
    bool ok = file != NULL;
    *bytes = 0;
    *crc = 0;
    while (ok && (n = fread(block, 1, FILE_BLOCK, file)) > 0) {
        *crc = weft_crc32c(*crc, block, n);
        *bytes += (int64_t)n;
    }
    if (file && ferror(file)) ok = false;
    weft_status status = ok ? WEFT_OK : weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno));
    if (file) fclose(file);
    free(block);
    return status;
}
