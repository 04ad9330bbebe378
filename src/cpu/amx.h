/* AMX's eight tiles, all of one shape: 16 rows of 64 bytes. For files that are compiled for AVX-512; who
 * calls these has asked weft_cpu_matrix() for WEFT_MATRIX_AMX. */
#pragma once

#include "cpu/vec.h"

enum {
    TILE = 16,       /* rows of a tile, and 32-bit numbers in one of its rows */
    TILE_STRIDE = 64 /* bytes of a tile's row */
};

__attribute__((target("amx-tile"))) static void amx_begin(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shape.row_bytes[i] = TILE_STRIDE;
        shape.rows[i] = TILE;
    }
    /* GCC up to 12 takes it that only the first eight bytes are read, and leaves out what sets the others. */
    __asm__ volatile("" ::"m"(shape));
    _tile_loadconfig(&shape);
}

__attribute__((target("amx-tile"))) static void amx_end(void) {
    _tile_release();
}
