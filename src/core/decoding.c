/* What backends and models share for decoding: weights of a step in the order of their use. */
#include "core/decoding.h"

int64_t weft_step_packed(int64_t columns, int64_t depth) {
    int64_t tiles = (columns + WEFT_STEP_COLUMNS - 1) / WEFT_STEP_COLUMNS;
    return tiles * WEFT_STEP_COLUMNS * depth;
}

void weft_step_pack(const float *w, int64_t columns, int64_t depth, uint16_t *out) {
    int64_t chunks = depth / WEFT_STEP_CHUNK, count = weft_step_packed(columns, depth);
    for (int64_t e = 0; e < count; e += 8) {
        int64_t lane = e / 8 % 32, chunk = e / 256 % chunks, tile = e / 256 / chunks;
        int64_t column = tile * WEFT_STEP_COLUMNS + lane / 4;
        const float *from = w + column * depth + chunk * WEFT_STEP_CHUNK + lane % 4 * 8;
        for (int64_t i = 0; i < 8; i++)
            out[e + i] = column < columns ? weft_float_to_bf16(from[i]) : 0;
    }
}

weft_status weft_step_runs_read(const char *text, int runs[2], int *positions) {
    int a, b, n, end = -1;
    if (sscanf(text, "%9d,%9d,%9d%n", &a, &b, &n, &end) < 3 || end < 0 || text[end] || a < 1 ||
        b < 1 || n < 1)
        return WEFT_BAD_INPUT(
            "WEFT_CUDA_STEP_RUNS='%.40s' must be three whole numbers from 1 on with "
            "commas: keys of a run up to a position, keys beyond, the position",
            text);
    runs[0] = a;
    runs[1] = b;
    *positions = n;
    return WEFT_OK;
}

static void free_matrix(weft_step_matrix *m) {
    free(m->weights);
    free(m->bias);
}

void weft_step_model_free(weft_step_model *m) {
    for (int64_t i = 0; m->layer && i < m->form.layers; i++) {
        weft_step_layer *l = m->layer + i;
        free_matrix(&l->heads);
        free_matrix(&l->out);
        free_matrix(&l->in);
        free_matrix(&l->back);
        free(l->scale);
        free(l->beta);
    }
    free(m->layer);
    free_matrix(&m->head);
    *m = (weft_step_model){0};
}
