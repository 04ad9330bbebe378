/* i8_rows.c's sums of products by one of the instructions of bytes.h: BYTES(sum). */

/* `columns`, a multiple of four, of w, `apart` from each other, and some rows. */
BYTES_TARGET static ALWAYS_INLINE void BYTES(block)(const i8_run *r, int64_t row, const int8_t *w,
                                                    const float *w_scale, int64_t apart, real *sums,
                                                    const int rows, const int columns) {
    int64_t blocks = r->ld / BLOCK, ld = r->ld, step = apart * ld;
    real_four total[4][ALONE / 4];
    for (int k = 0; k < rows; k++)
        for (int c = 0; c < columns / 4; c++)
            total[k][c] = (real_four){0};
    for (int64_t b = 0; b < blocks; b++) {
        const int8_t *x = r->x + row * ld + b * BLOCK;
        BYTES(sums) acc[4][ALONE];
        for (int c = 0; ASKS_AHEAD && rows == 1 && c < columns; c++)
            ask_for((const char *)w + c * step + b * BLOCK);
        for (int k = 0; k < rows; k++)
            for (int c = 0; c < columns; c++)
                acc[k][c] =
                    BYTES(add)(BYTES(start)(x + k * ld), x + k * ld, w + c * step + b * BLOCK);
        for (int k = 0; k < rows; k++)
            for (int c = 0; c < columns / 4; c++)
                total[k][c] = scale_four(total[k][c], BYTES(four)(acc[k] + 4 * c),
                                         r->scales[(row + k) * blocks + b]);
    }
    for (int k = 0; k < rows; k++)
        for (int c = 0; c < columns; c++)
            sums[(row + k) * TASK_COLUMNS + c * apart] =
                total[k][c / 4][c % 4] * w_scale[c * apart];
}

/* Few rows wait for memory: the columns of a block are each the next of its own part of w. Parts of
 * several columns are streams long enough for the processor to fetch ahead in all of them. Returns how
 * many columns are done. */
BYTES_TARGET static int64_t BYTES(sum)(const i8_run *r, int64_t m, const int8_t *w,
                                       const float *w_scale, int64_t n, real *sums) {
    int64_t part = n / (m == 1 ? ALONE : COLUMNS);
    for (int64_t c = 0; m == 1 && c < part; c++)
        BYTES(block)(r, 0, w + c * r->ld, w_scale + c, part, sums + c, 1, ALONE);
    for (int64_t c = 0; m > 1 && c < part; c++)
        EACH_TILES(row, rows, m, 4,
                   BYTES(block)(r, row, w + c * r->ld, w_scale + c, part, sums + c, rows, COLUMNS));
    return part * (m == 1 ? ALONE : COLUMNS);
}

#undef BYTES
#undef BYTES_TARGET
