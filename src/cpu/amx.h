/* AMX's eight tiles, all of one shape: 16 rows of 64 bytes. For files that are compiled for AVX-512; who
 * calls these has asked weft_cpu_matrix() for WEFT_MATRIX_AMX. */
#pragma once

#include "cpu/vec.h"

enum {
    TILE = 16,       /* rows of a tile, and 32-bit numbers in one of its rows */
    TILE_STRIDE = 64 /* bytes of a tile's row */
};

/* Constant, and so in memory as a whole: gcc before 12.4 takes _tile_loadconfig to read eight bytes of what it
 * is given, and leaves out the stores to the rest of a variable. */
static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} AMX_SHAPE = {
    .palette = 1,
    .row_bytes = {TILE_STRIDE, TILE_STRIDE, TILE_STRIDE, TILE_STRIDE, TILE_STRIDE, TILE_STRIDE,
                  TILE_STRIDE, TILE_STRIDE},
    .rows = {TILE, TILE, TILE, TILE, TILE, TILE, TILE, TILE},
};

__attribute__((target("amx-tile"))) static void amx_begin(void) {
    _tile_loadconfig(&AMX_SHAPE);
}

__attribute__((target("amx-tile"))) static void amx_end(void) {
    _tile_release();
}
