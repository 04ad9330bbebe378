/* Reading pages of a cache: where a token lies, and its numbers as vectors of `real`, whatever they
 * are stored as. Of i8 the scale is left to the reader, who puts it on a sum once. */
#pragma once

#include "cpu/vec.h"
#include "ops/cache.h"

typedef enum { CACHED_REAL, CACHED_BF16, CACHED_I8 } cached_kind;

/* The rows of a run. */
typedef struct {
    const int32_t *position, *slot, *table;
    int64_t rows, pages; /* R; width of the table */
} row_places;

static inline row_places places_of(const weft_exec *x, const weft_node *n) {
    return (row_places){.position = weft_data(x, n->in[WEFT_CACHE_POSITION]),
                        .slot = weft_data(x, n->in[WEFT_CACHE_SLOT]),
                        .table = weft_data(x, n->in[WEFT_CACHE_TABLE]),
                        .rows = n->in[WEFT_CACHE_SLOT]->shape[0],
                        .pages = n->in[WEFT_CACHE_TABLE]->shape[1]};
}

/* A part's pages. */
typedef struct {
    char *data;
    weft_cache_part part;
    cached_kind kind;
    int64_t page_bytes, head_bytes; /* head_bytes: of a head's numbers in a page */
    int64_t token_bytes;            /* of a head */
    int64_t scales, numbers;        /* where they begin in a page */
} cached_pages;

static inline cached_pages pages_of(void *data, const weft_cache_part *part) {
    cached_pages c = {.data = data, .part = *part, .kind = CACHED_REAL};
    if (part->dtype == WEFT_BF16) c.kind = CACHED_BF16;
    if (part->dtype == WEFT_I8) c.kind = CACHED_I8;
    c.page_bytes = weft_cache_page_bytes(part);
    c.token_bytes = part->width * (int64_t)weft_dtype_size(part->dtype);
    c.head_bytes = WEFT_PAGE_TOKENS * c.token_bytes;
    c.scales = part->heads * c.head_bytes;
    int64_t scale_bytes = part->heads * WEFT_PAGE_TOKENS * (int64_t)sizeof(float);
    c.numbers = c.scales + (part->dtype == WEFT_I8 ? scale_bytes : 0);
    return c;
}

/* The page of position j of row r's sequence. */
static inline char *page_at(const cached_pages *c, const row_places *p, int64_t r, int64_t j) {
    int64_t page = p->table[p->slot[r] * p->pages + j / WEFT_PAGE_TOKENS % p->pages];
    return c->data + page * c->page_bytes;
}

static inline char *head_at(const cached_pages *c, char *page, int64_t head) {
    return page + head * c->head_bytes;
}

static inline float *scale_at(const cached_pages *c, char *page, int64_t head, int64_t token) {
    return (float *)(page + c->scales) + head * WEFT_PAGE_TOKENS + token;
}

/* A `real` beside reals, else a float. */
static inline void *number_at(const cached_pages *c, char *page, int64_t head, int64_t token) {
    size_t bytes = c->kind == CACHED_REAL ? sizeof(real) : sizeof(float);
    return page + c->numbers + (head * WEFT_PAGE_TOKENS + token) * (int64_t)bytes;
}

/* VLEN numbers from element i, or the first n of them and zeros. */
static ALWAYS_INLINE vreal load_cached(const void *data, int64_t i, int64_t n,
                                       const cached_kind kind) {
    if (kind != CACHED_I8) return vload_narrow(data, i, n, kind == CACHED_BF16);
    const int8_t *from = (const int8_t *)data + i;
    if (n >= VLEN) return vload_i8(from);
    int8_t part[VBYTES / sizeof(real)] = {0};
    memcpy(part, from, (size_t)n);
    return vload_i8(part);
}

/* f(..., kind), compiled for each of them. */
#define BY_KIND(kind, f, ...)                                                                      \
    ((kind) == CACHED_REAL   ? f(__VA_ARGS__, CACHED_REAL)                                         \
     : (kind) == CACHED_BF16 ? f(__VA_ARGS__, CACHED_BF16)                                         \
                             : f(__VA_ARGS__, CACHED_I8))

static inline int64_t kind_bytes(cached_kind kind) {
    return kind == CACHED_I8 ? 1 : kind == CACHED_BF16 ? 2 : (int64_t)sizeof(real);
}
