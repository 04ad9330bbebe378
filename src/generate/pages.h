/* The pages of a pool: which are free, who holds which, and which may be shared.
 *
 * A page holds WEFT_PAGE_TOKENS tokens of a sequence in every layer; here it is only a number. A full
 * page of a prompt can be sealed: it is then found again by the page before it and its tokens, and
 * sequences that begin alike hold the same pages. A sealed page that nobody holds is kept until the
 * pool needs it; the one unused for longest goes first, and never one that another sealed page
 * follows.
 *
 * What a sequence keeps beside its pages (running sums, last queries) is a function of all its tokens
 * so far, so a sealed page may carry a copy of it as it was at the page's end. */
#pragma once

#include "ops/cache.h"

typedef struct weft_pages weft_pages;

weft_status weft_pages_create(int64_t count, weft_pages **out);
void weft_pages_destroy(weft_pages *p);

/* A page that nobody else holds, held once; -1: every page is held. */
int32_t weft_pages_take(weft_pages *p);
/* One more holder, one less. */
void weft_pages_hold(weft_pages *p, int32_t page);
void weft_pages_release(weft_pages *p, int32_t page);

/* Seals a held page that follows `before` (-1: the first of a sequence) and holds these
 * WEFT_PAGE_TOKENS tokens. `kind` keeps apart pages that were computed in different ways. `state`
 * (`bytes` of it) is copied; NULL: none. Where an equal page is sealed already nothing happens. */
weft_status weft_pages_seal(weft_pages *p, int32_t page, int32_t before, const int32_t *tokens,
                            int kind, const void *state, size_t bytes);
/* The sealed page with these tokens behind `before`, not yet held; -1: none. */
int32_t weft_pages_find(const weft_pages *p, int32_t before, const int32_t *tokens, int kind);
/* The state that a sealed page carries; NULL: none. */
const void *weft_pages_state(const weft_pages *p, int32_t page);

typedef struct {
    int64_t count, held, kept; /* kept: sealed, held by none */
} weft_pages_counts;
weft_pages_counts weft_pages_count(const weft_pages *p);
