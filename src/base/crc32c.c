/* CRC-32C by the processor's own instruction where it has one: eight bytes at a time. Elsewhere by
 * tables, eight bytes at a time too: table k says what a byte does to the checksum when k more bytes
 * follow it, so eight look-ups that do not wait for each other take eight bytes. */
#include "base/crc32c.h"

#include <pthread.h>
#include <stdbool.h>
#include <string.h>
#if defined(__aarch64__) && defined(__linux__) && !defined(__AARCH64EB__)
#include <sys/auxv.h>
#define HAS_OWN
#elif defined(__x86_64__)
#include <nmmintrin.h>
#define HAS_OWN
#endif

enum { SLICES = 8 };

static uint32_t tables[SLICES][256];
static bool has_instruction;

static uint32_t sum_by_tables(uint32_t crc, const unsigned char *at, size_t bytes) {
    for (; bytes >= SLICES; bytes -= SLICES, at += SLICES) {
        uint32_t low = crc ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 |
                              (uint32_t)at[3] << 24);
        crc = tables[7][low & 255] ^ tables[6][low >> 8 & 255] ^ tables[5][low >> 16 & 255] ^
              tables[4][low >> 24] ^ tables[3][at[4]] ^ tables[2][at[5]] ^ tables[1][at[6]] ^
              tables[0][at[7]];
    }
    for (; bytes; bytes--, at++)
        crc = (crc >> 8) ^ tables[0][(crc ^ *at) & 255];
    return crc;
}

#ifdef HAS_OWN
#ifdef __aarch64__
/* HWCAP_CRC32 of the kernel's hwcap.h. */
static bool find_instruction(void) {
    return (getauxval(AT_HWCAP) & 1 << 7) != 0;
}

/* In assembly, as compilers differ in how a function may use it that others must not. */
static uint32_t sum_by_instruction(uint32_t crc, const unsigned char *at, size_t bytes) {
    for (uint64_t word; bytes >= sizeof word; bytes -= sizeof word, at += sizeof word) {
        memcpy(&word, at, sizeof word);
        __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    }
    for (; bytes; bytes--, at++)
        __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)*at));
    return crc;
}
#else
static bool find_instruction(void) {
    return __builtin_cpu_supports("sse4.2");
}

__attribute__((target("sse4.2"))) static uint32_t
sum_by_instruction(uint32_t crc, const unsigned char *at, size_t bytes) {
    for (uint64_t word; bytes >= sizeof word; bytes -= sizeof word, at += sizeof word) {
        memcpy(&word, at, sizeof word);
        crc = (uint32_t)_mm_crc32_u64(crc, word);
    }
    for (; bytes; bytes--, at++)
        crc = _mm_crc32_u8(crc, *at);
    return crc;
}
#endif
#else
static bool find_instruction(void) {
    return false;
}

static uint32_t sum_by_instruction(uint32_t crc, const unsigned char *at, size_t bytes) {
    return sum_by_tables(crc, at, bytes);
}
#endif

static void prepare(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = (crc >> 1) ^ (crc & 1 ? 0x82F63B78u : 0);
        tables[0][i] = crc;
    }
    for (int k = 1; k < SLICES; k++)
        for (uint32_t i = 0; i < 256; i++)
            tables[k][i] = (tables[k - 1][i] >> 8) ^ tables[0][tables[k - 1][i] & 255];
    has_instruction = find_instruction();
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

uint32_t weft_crc32c(uint32_t crc, const void *data, size_t bytes) {
    pthread_once(&once, prepare);
    return ~(has_instruction ? sum_by_instruction(~crc, data, bytes)
                             : sum_by_tables(~crc, data, bytes));
}

uint32_t weft_crc32c_plain(uint32_t crc, const void *data, size_t bytes) {
    pthread_once(&once, prepare);
    return ~sum_by_tables(~crc, data, bytes);
}
