/* Reading pages of a cache (ops/cache.h) on the GPU: where a token lies, and its numbers as floats,
 * whatever they are stored as. Of i8 the scale is left to the reader, who puts it on a sum once. */
#pragma once

#include "cuda/kernel.cuh"

extern "C" {
#include "core/decoding.h"
#include "ops/cache.h"
}

enum cached_kind { CACHED_F32, CACHED_BF16, CACHED_I8 };

/* The rows of a run. */
struct row_places {
    const int32_t *position, *slot, *table;
    int rows, pages; /* R; width of the table */
};

static inline row_places places_of(const weft_exec *x, const weft_node *n) {
    return {data_of<int32_t>(x, n->in[WEFT_CACHE_POSITION]),
            data_of<int32_t>(x, n->in[WEFT_CACHE_SLOT]),
            data_of<int32_t>(x, n->in[WEFT_CACHE_TABLE]), (int)n->in[WEFT_CACHE_SLOT]->shape[0],
            (int)n->in[WEFT_CACHE_TABLE]->shape[1]};
}

/* A part's pages. */
struct cached_pages {
    char *data;
    cached_kind kind;
    bool number;
    int heads, width;
    int64_t page_bytes, head_bytes; /* head_bytes: of a head's numbers in a page */
    int64_t token_bytes;            /* of a head */
    int64_t scales, numbers;        /* where they begin in a page */
};

static inline cached_pages pages_of(void *data, const weft_cache_part *part) {
    cached_pages c = {};
    c.data = (char *)data;
    c.kind = part->dtype == WEFT_I8     ? CACHED_I8
             : part->dtype == WEFT_BF16 ? CACHED_BF16
                                        : CACHED_F32;
    c.number = part->number;
    c.heads = (int)part->heads;
    c.width = (int)part->width;
    c.page_bytes = weft_cache_page_bytes(part);
    c.token_bytes = part->width * (int64_t)weft_dtype_size(part->dtype);
    c.head_bytes = WEFT_PAGE_TOKENS * c.token_bytes;
    c.scales = part->heads * c.head_bytes;
    int64_t scale_bytes = part->heads * WEFT_PAGE_TOKENS * (int64_t)sizeof(float);
    c.numbers = c.scales + (part->dtype == WEFT_I8 ? scale_bytes : 0);
    return c;
}

/* What is written, and where to. */
struct cached_write {
    cached_pages c;
    any_tensor x, extra;
    int64_t columns, offset; /* of x */
    int32_t *done;           /* NULL: nothing is written */
};

static inline cached_write describe_write(const weft_exec *x, const weft_node *n) {
    const weft_cache_write_attr *attr = ATTR(n, weft_cache_write_attr);
    const weft_tensor *from = n->in[WEFT_CACHE_X];
    cached_write w = {};
    w.c = pages_of(weft_data(x, n->in[WEFT_CACHE_PAGES]), &attr->part);
    w.x = any_of(x, from);
    w.extra = any_of(x, n->in[WEFT_CACHE_EXTRA]);
    w.columns = weft_tensor_count(from) / weft_tensor_count(n->in[WEFT_CACHE_SLOT]);
    w.offset = attr->offset;
    w.done = data_of<int32_t>(x, n->out[0]);
    return w;
}

/* Whether inputs first .. last of two nodes are the same. */
static inline bool share_inputs(const weft_node *a, const weft_node *b, int first, int last) {
    for (int i = first; i <= last; i++)
        if (a->in[i] != b->in[i]) return false;
    return true;
}

/* Whether the attention behind a write does it (cache_attention.cu). */
bool is_written_later(const weft_exec *x, const weft_node *write);

/* The gathering that is launched next behind a node, doing all writes between (cache.cu); NULL: another kernel is. */
const weft_node *gathering_behind(const weft_exec *x, const weft_node *last);

/* The page of position j of row r's sequence. */
__device__ static inline char *page_at(const cached_pages &c, const row_places &p, int r, int j) {
    int page = p.table[(int64_t)p.slot[r] * p.pages + j / WEFT_PAGE_TOKENS % p.pages];
    return c.data + page * c.page_bytes;
}

__device__ static inline char *token_at(const cached_pages &c, char *page, int head, int token) {
    return page + head * c.head_bytes + token * c.token_bytes;
}

__device__ static inline float *scale_at(const cached_pages &c, char *page, int head, int token) {
    return (float *)(page + c.scales) + head * WEFT_PAGE_TOKENS + token;
}

__device__ static inline float *number_at(const cached_pages &c, char *page, int head, int token) {
    return (float *)(page + c.numbers) + head * WEFT_PAGE_TOKENS + token;
}

template <int KIND> __device__ static inline float load_cached(const char *from, int i) {
    if (KIND == CACHED_BF16) return to_float(((const bf16 *)from)[i]);
    if (KIND == CACHED_I8) return (float)((const int8_t *)from)[i];
    return ((const float *)from)[i];
}

/* Eight numbers from element i, which is a multiple of eight; zeros behind `width`. ALIGNED: width is
 * a multiple of eight, and so is every vector aligned to them. */
template <int KIND, bool ALIGNED>
__device__ static inline void load_eight(const char *from, int i, int width, float (&v)[VECTOR]) {
    if (!ALIGNED || i >= width) {
#pragma unroll
        for (int e = 0; e < VECTOR; e++)
            v[e] = i + e < width ? load_cached<KIND>(from, i + e) : 0.0f;
        return;
    }
    if (KIND == CACHED_BF16) {
        widen_words(*(const uint4 *)((const bf16 *)from + i), v);
    } else if (KIND == CACHED_I8) {
        uint2 words = *(const uint2 *)(from + i);
#pragma unroll
        for (int e = 0; e < VECTOR; e++)
            v[e] = (float)(int8_t)((e < 4 ? words.x : words.y) >> (8 * (e % 4)));
    } else {
        load_vector((const float *)from + i, v);
    }
}

/* Calls f with the kind as a constant: f(constant<CACHED_I8>()). */
template <typename F> static inline void with_kind(cached_kind k, F f) {
    with_constant<CACHED_F32, CACHED_BF16, CACHED_I8>(k, f);
}
