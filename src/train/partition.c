/* Listing the chunks, and who has which. */
#include "train/partition.h"

#include "core/plan.h"
#include "ops/optimizer.h"

#include <stdlib.h>

static void list_chunks(weft_partition *s) {
    const weft_model *m = s->model;
    int64_t n = 0, at = 0, size = (int64_t)weft_dtype_size(s->dtype);
    for (int64_t w = 0; w < m->n_weights; w++) {
        int64_t count = m->weights[w].count;
        s->first[w] = n;
        for (int64_t first = 0; first < count; first += WEFT_NORM_CHUNK) {
            int64_t left = count - first;
            s->borders[n] = at + first;
            s->chunks[n++] =
                (weft_stretch){w, first, left < WEFT_NORM_CHUNK ? left : WEFT_NORM_CHUNK};
        }
        at += weft_arena_bytes(count * size) / size;
    }
    s->first[m->n_weights] = n;
    s->borders[n] = at;
    s->cut.n_blocks = n;
}

weft_status weft_partition_make(const weft_model *m, const weft_comm *comm, weft_partition *out) {
    int64_t n = 0;
    for (int64_t w = 0; w < m->n_weights; w++)
        n += (m->weights[w].count + WEFT_NORM_CHUNK - 1) / WEFT_NORM_CHUNK;
    *out = (weft_partition){.model = m,
                            .rank = weft_comm_rank(comm),
                            .dtype = m->dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32};
    out->chunks = calloc((size_t)n + 1, sizeof *out->chunks);
    out->borders = calloc((size_t)n + 1, sizeof *out->borders);
    out->first = calloc((size_t)m->n_weights + 1, sizeof *out->first);
    if (!out->chunks || !out->borders || !out->first) {
        weft_partition_free(out);
        return weft_fail(WEFT_ENOMEM, "training: no memory");
    }
    out->cut = (weft_cut){.borders = out->borders, .size = weft_comm_size(comm)};
    list_chunks(out);
    return WEFT_OK;
}

void weft_partition_free(weft_partition *s) {
    free(s->chunks);
    free(s->borders);
    free(s->first);
    *s = (weft_partition){0};
}

int64_t weft_partition_bytes(const weft_partition *s) {
    return s->borders[s->cut.n_blocks] * (int64_t)weft_dtype_size(s->dtype);
}

int64_t weft_partition_offset(const weft_partition *s, int64_t weight) {
    return s->borders[s->first[weight]] * (int64_t)weft_dtype_size(s->dtype);
}

int64_t weft_partition_owned(const weft_partition *s, int rank, weft_stretch *out) {
    int64_t n = 0;
    weft_stretch last = {.weight = -1};
    for (int64_t b = 0; b < weft_cut_buckets(&s->cut); b++) {
        weft_blocks p = weft_cut_piece(&s->cut, b, rank);
        for (int64_t i = p.first; i < p.first + p.count; i++) {
            weft_stretch c = s->chunks[i];
            if (c.weight == last.weight && c.first == last.first + last.count) {
                last.count += c.count;
            } else {
                last = c;
                n++;
            }
            if (out) out[n - 1] = last;
        }
    }
    return n;
}

void *weft_partition_weights(const weft_partition *s, weft_blocks blocks, int64_t *bytes) {
    *bytes = 0;
    if (blocks.count == 0) return NULL;
    const weft_stretch *a = &s->chunks[blocks.first], *b = a + blocks.count - 1;
    const weft_weight *first = &s->model->weights[a->weight], *last = &s->model->weights[b->weight];
    unsigned char *begin =
        (unsigned char *)first->data + (size_t)a->first * weft_dtype_size(first->dtype);
    unsigned char *end =
        (unsigned char *)last->data + (size_t)(b->first + b->count) * weft_dtype_size(last->dtype);
    *bytes = end - begin;
    return begin;
}
