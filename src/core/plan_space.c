/* A tree over time: each half of a part of it is a node. What is taken from `first` to `last` is
 * written into the few nodes whose parts make up that time. A node knows the places taken for all of
 * its part (`whole`) and those taken in any moment of it (`any`), each as spans in ascending order
 * which do not touch. What is in the way of a time are `any` of the nodes that make it up and `whole`
 * of those above them: some dozens of lists, and short ones, since places that are close grow
 * together. */
#include "core/plan_space.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { LISTS_MOST = 4 * 64 };

typedef struct {
    int64_t from, to; /* bytes, `to` is free */
} span;

typedef struct {
    span *list;
    int64_t n, room;
} spans;

typedef struct {
    spans whole, any;
} part;

struct weft_space {
    int64_t moments, n_parts;
    part *parts; /* [n_parts]: 1 is all of it, 2 i and 2 i + 1 are the halves of i */
};

/* A list and how far it was gone through. */
typedef struct {
    const spans *spans;
    int64_t at;
} reader;

typedef struct {
    int64_t first, last;
    span taken;
    reader readers[LISTS_MOST];
    int n;
} request;

weft_status weft_space_open(int64_t moments, weft_space **out) {
    weft_space *s = calloc(1, sizeof *s);
    *out = NULL;
    if (s) {
        s->moments = moments;
        s->n_parts = 2;
        while (s->n_parts < 2 * moments)
            s->n_parts *= 2;
        s->parts = calloc((size_t)s->n_parts, sizeof *s->parts);
    }
    if (!s || !s->parts) {
        free(s);
        return weft_fail(WEFT_ENOMEM, "plan: no memory");
    }
    *out = s;
    return WEFT_OK;
}

void weft_space_close(weft_space *s) {
    if (!s) return;
    for (int64_t i = 0; i < s->n_parts; i++) {
        free(s->parts[i].whole.list);
        free(s->parts[i].any.list);
    }
    free(s->parts);
    free(s);
}

/* The first span from `low` on that ends behind `at`. */
static int64_t find_span(const spans *s, int64_t low, int64_t at) {
    int64_t high = s->n;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (s->list[middle].to > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static bool add_span(spans *s, span new) {
    int64_t from = find_span(s, 0, new.from - 1), to = from; /* those that it touches */
    while (to < s->n && s->list[to].from <= new.to) {
        if (s->list[to].from < new.from) new.from = s->list[to].from;
        if (s->list[to].to > new.to) new.to = s->list[to].to;
        to++;
    }
    if (to == from && s->n == s->room) {
        int64_t room = s->room ? 2 * s->room : 4;
        span *list = realloc(s->list, (size_t)room * sizeof *list);
        if (!list) return false;
        s->list = list;
        s->room = room;
    }
    if (from + 1 != to && to < s->n)
        memmove(s->list + from + 1, s->list + to, (size_t)(s->n - to) * sizeof *s->list);
    s->n += from + 1 - to;
    s->list[from] = new;
    return true;
}

static void add_reader(request *r, const spans *list) {
    if (list->n > 0) r->readers[r->n++] = (reader){list, 0};
}

/* Lists what is in the way, below part i, which is `count` moments from `start` on. */
static void find_in_way(const weft_space *s, request *r, int64_t i, int64_t start, int64_t count) {
    if (start > r->last || start + count <= r->first || s->parts[i].any.n == 0) return;
    if (start >= r->first && start + count - 1 <= r->last) {
        add_reader(r, &s->parts[i].any);
        return;
    }
    add_reader(r, &s->parts[i].whole);
    int64_t half = count / 2;
    find_in_way(s, r, 2 * i, start, half);
    find_in_way(s, r, 2 * i + 1, start + half, count - half);
}

/* Moves on from one that is in the way to the next, until none is. */
static int64_t find_place(request *r, int64_t bytes) {
    int64_t at = 0;
    bool moved = true;
    while (moved) {
        moved = false;
        for (int i = 0; i < r->n; i++) {
            reader *one = &r->readers[i];
            one->at = find_span(one->spans, one->at, at);
            if (one->at == one->spans->n || one->spans->list[one->at].from >= at + bytes) continue;
            at = one->spans->list[one->at].to;
            moved = true;
        }
    }
    return at;
}

static bool write_taken(weft_space *s, const request *r, int64_t i, int64_t start, int64_t count) {
    if (start > r->last || start + count <= r->first) return true;
    if (!add_span(&s->parts[i].any, r->taken)) return false;
    if (start >= r->first && start + count - 1 <= r->last)
        return add_span(&s->parts[i].whole, r->taken);
    int64_t half = count / 2;
    return write_taken(s, r, 2 * i, start, half) &&
           write_taken(s, r, 2 * i + 1, start + half, count - half);
}

weft_status weft_space_take(weft_space *s, int64_t first, int64_t last, int64_t bytes,
                            int64_t *offset) {
    request r = {.first = first, .last = last};
    find_in_way(s, &r, 1, 0, s->moments);
    *offset = find_place(&r, bytes);
    r.taken = (span){*offset, *offset + bytes};
    if (bytes == 0 || write_taken(s, &r, 1, 0, s->moments)) return WEFT_OK;
    return weft_fail(WEFT_ENOMEM, "plan: no memory");
}
