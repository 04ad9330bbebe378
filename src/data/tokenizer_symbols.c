/* Bytes as printable characters. Byte-level vocabularies are text files, so each of the 256 bytes
 * is written as a character that survives in one: those of Latin-1 that can be seen stand for
 * themselves, the others, in order, for U+0100 and up (a space is Ġ). */
#include "data/tokenizer_internal.h"

static bool is_itself(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

uint32_t weft_byte_symbol(uint8_t byte) {
    if (is_itself(byte)) return byte;
    uint32_t symbol = 0x100;
    for (int b = 0; b < byte; b++)
        symbol += !is_itself(b);
    return symbol;
}

uint8_t weft_symbol_order(int place) {
    for (int pass = 1; pass >= 0; pass--)
        for (int b = 0; b < 256; b++)
            if (is_itself(b) == pass && place-- == 0) return (uint8_t)b;
    return 0;
}

/* All symbols are below U+0200: one or two bytes of UTF-8. */
int64_t weft_symbols_to_bytes(const char *text, size_t length, char *out) {
    static const uint8_t hidden[] = {
        /* the bytes that are not themselves, in order: 0..32, 127..160, 173 */
        0,   1,   2,   3,   4,   5,   6,   7,   8,   9,   10,  11,  12,  13,  14,  15,  16,
        17,  18,  19,  20,  21,  22,  23,  24,  25,  26,  27,  28,  29,  30,  31,  32,  127,
        128, 129, 130, 131, 132, 133, 134, 135, 136, 137, 138, 139, 140, 141, 142, 143, 144,
        145, 146, 147, 148, 149, 150, 151, 152, 153, 154, 155, 156, 157, 158, 159, 160, 173};
    int64_t n = 0;
    for (size_t i = 0; i < length; i++) {
        uint32_t c = (uint8_t)text[i];
        if (c >= 0xC2 && c < 0xC8 && i + 1 < length && (text[i + 1] & 0xC0) == 0x80)
            c = (c & 0x1F) << 6 | ((uint8_t)text[++i] & 0x3F);
        else if (c >= 0x80)
            return -1;
        if (c < 0x100 && is_itself((int)c))
            out[n++] = (char)c;
        else if (c >= 0x100 && c - 0x100 < sizeof hidden)
            out[n++] = (char)hidden[c - 0x100];
        else
            return -1;
    }
    return n;
}

void weft_bytes_to_symbols(const char *bytes, int64_t length, char *out) {
    for (int64_t i = 0; i < length; i++) {
        uint32_t c = weft_byte_symbol((uint8_t)bytes[i]);
        if (c < 0x80) {
            *out++ = (char)c;
        } else {
            *out++ = (char)(0xC0 | c >> 6);
            *out++ = (char)(0x80 | (c & 0x3F));
        }
    }
    *out = 0;
}
