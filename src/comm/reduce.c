/* Buckets are a pipeline: while one is added, others are on their way in or out. A bucket's messages are
 * told apart by its number, which is the same on every rank, so that ranks need not be equally far.
 * Whoever has to wait waits for the oldest bucket: that one every rank has begun, or is about
 * to, so it comes to an end. */
#include "comm/reduce.h"

#include <stdlib.h>
#include <string.h>

enum {
    SLOTS = 4,      /* buckets under way */
    CHUNK = 1 << 14 /* numbers a task adds */
};

typedef enum { FREE, COMING, GOING } phase;

/* One bucket under way. */
typedef struct {
    phase phase;
    int64_t bucket, number; /* `number` counts those that were sent */
    weft_transfer *transfers;
    weft_comm_job job;
    unsigned char *received; /* [nodes, piece]; unused for the own nodes */
} bucket_slot;

struct weft_reduce {
    weft_reduce_options o;
    int rank;
    int own_first, own_nodes;
    int64_t buckets, largest; /* numbers of the largest piece */
    size_t width;             /* bytes of a number */
    void **rows;              /* [own nodes] */
    bool *sent;               /* [buckets] */
    int64_t n_sent;
    double factor;
    bucket_slot slots[SLOTS];
};

/* Numbers of the row. */
typedef struct {
    int64_t first, count;
} piece;

static piece numbers_of(const weft_reduce *r, weft_blocks b) {
    const int64_t *borders = r->o.cut->borders;
    return (piece){borders[b.first], borders[b.first + b.count] - borders[b.first]};
}

/* A rank's piece of a bucket. */
static piece piece_of(const weft_reduce *r, int64_t bucket, int rank) {
    return numbers_of(r, weft_cut_piece(r->o.cut, bucket, rank));
}

static bool make_slots(weft_reduce *r) {
    size_t nodes = (size_t)r->o.tree->n_nodes, ranks = (size_t)r->o.cut->size;
    size_t bytes = nodes * (size_t)r->largest * r->width;
    for (int i = 0; i < SLOTS; i++) {
        bucket_slot *s = &r->slots[i];
        s->transfers = calloc((ranks * nodes + 1) * 2, sizeof *s->transfers);
        s->received = r->o.plain ? NULL : malloc(bytes + 1);
        if (!s->transfers || (!r->o.plain && !s->received)) return false;
    }
    return true;
}

weft_status weft_reduce_create(const weft_reduce_options *options, weft_reduce **out) {
    *out = NULL;
    weft_reduce *r = calloc(1, sizeof *r);
    if (!r) return weft_fail(WEFT_ENOMEM, "no memory for the sum over ranks");
    r->o = *options;
    r->rank = weft_comm_rank(options->comm);
    r->own_nodes = weft_tree_of_rank(options->tree, r->rank, &r->own_first);
    r->buckets = weft_cut_buckets(options->cut);
    r->largest = weft_cut_largest(options->cut);
    r->width = options->is_double ? sizeof(double) : sizeof(float);
    r->rows = calloc((size_t)r->own_nodes, sizeof *r->rows);
    r->sent = calloc((size_t)r->buckets, sizeof *r->sent);
    if (!r->rows || !r->sent || !make_slots(r)) {
        weft_reduce_destroy(r);
        return weft_fail(WEFT_ENOMEM, "no memory for the sum over ranks");
    }
    memcpy(r->rows, options->rows, (size_t)r->own_nodes * sizeof *r->rows);
    *out = r;
    return WEFT_OK;
}

void weft_reduce_destroy(weft_reduce *r) {
    if (!r) return;
    for (int i = 0; i < SLOTS; i++) {
        free(r->slots[i].transfers);
        free(r->slots[i].received);
    }
    free(r->rows);
    free(r->sent);
    free(r);
}

static unsigned char *at_row(const weft_reduce *r, int own_node, int64_t place) {
    return (unsigned char *)r->rows[own_node] + (size_t)place * r->width;
}

/* Where this rank has a node's values of its own piece. */
static unsigned char *at_node(const weft_reduce *r, const bucket_slot *s, int node, piece p) {
    if (node >= r->own_first && node < r->own_first + r->own_nodes)
        return at_row(r, node - r->own_first, p.first);
    return s->received + (size_t)node * (size_t)r->largest * r->width;
}

static weft_status begin_exchange(weft_reduce *r, bucket_slot *s, int64_t n, phase next) {
    s->phase = next;
    s->job = (weft_comm_job){.kind = WEFT_JOB_EXCHANGE,
                             .transfers = s->transfers,
                             .count = n,
                             .tag = 2 * s->number + (next == GOING)};
    return weft_comm_begin(r->o.comm, &s->job);
}

/* Own nodes' values to the ranks whose pieces they are, others' values of the own piece to here. */
static weft_status begin_scatter(weft_reduce *r, bucket_slot *s) {
    int64_t n = 0;
    piece own = piece_of(r, s->bucket, r->rank);
    for (int q = 0; q < r->o.cut->size; q++) {
        piece p = piece_of(r, s->bucket, q);
        for (int k = 0; q != r->rank && p.count && k < r->own_nodes; k++)
            s->transfers[n++] =
                (weft_transfer){q, true, at_row(r, k, p.first), p.count * (int64_t)r->width};
    }
    for (int i = 0; own.count && i < r->o.tree->n_nodes; i++) {
        int from = r->o.tree->nodes[i].rank;
        if (from == r->rank) continue;
        s->transfers[n++] =
            (weft_transfer){from, false, at_node(r, s, i, own), own.count * (int64_t)r->width};
    }
    return begin_exchange(r, s, n, COMING);
}

/* The own piece's result to all, and theirs to here. */
static weft_status begin_gather(weft_reduce *r, bucket_slot *s) {
    int64_t n = 0;
    piece own = piece_of(r, s->bucket, r->rank);
    for (int q = 0; q < r->o.cut->size; q++) {
        piece p = piece_of(r, s->bucket, q);
        if (q == r->rank) continue;
        if (own.count)
            s->transfers[n++] =
                (weft_transfer){q, true, at_row(r, 0, own.first), own.count * (int64_t)r->width};
        if (p.count)
            s->transfers[n++] =
                (weft_transfer){q, false, at_row(r, 0, p.first), p.count * (int64_t)r->width};
    }
    return begin_exchange(r, s, n, GOING);
}

/* The merges of one piece, some numbers at a time. */
typedef struct {
    const weft_reduce *r;
    const bucket_slot *slot;
    piece own;
} addition;

static void add_f64(double *to, const double *from, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

static void add_f32(float *to, const float *from, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

static void add_numbers(const weft_reduce *r, void *to, const void *from, int64_t n) {
    if (r->o.is_double)
        add_f64(to, from, n);
    else
        add_f32(to, from, n);
}

static void scale_numbers(const weft_reduce *r, void *data, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        if (r->o.is_double)
            ((double *)data)[i] *= r->factor;
        else
            ((float *)data)[i] *= (float)r->factor;
    }
}

/* Node 0 may be another rank's: the result goes to row 0 in any case. */
static void add_chunk(void *context, int64_t task, int thread) {
    (void)thread;
    const addition *a = context;
    const weft_reduce *r = a->r;
    const weft_tree *t = r->o.tree;
    int64_t first = task * CHUNK, n = a->own.count - first;
    size_t skip = (size_t)first * r->width;
    if (n > CHUNK) n = CHUNK;
    for (int i = 0; i < t->n_merges; i++) {
        void *to = at_node(r, a->slot, t->merges[i].to, a->own) + skip;
        add_numbers(r, to, at_node(r, a->slot, t->merges[i].from, a->own) + skip, n);
    }
    unsigned char *sum = at_node(r, a->slot, 0, a->own) + skip;
    unsigned char *result = at_row(r, 0, a->own.first) + skip;
    if (sum != result) memcpy(result, sum, (size_t)n * r->width);
    scale_numbers(r, result, n);
}

static void add_piece(weft_reduce *r, const bucket_slot *s) {
    addition a = {r, s, piece_of(r, s->bucket, r->rank)};
    weft_pool_run(r->o.pool, (a.own.count + CHUNK - 1) / CHUNK, add_chunk, &a);
}

/* A plain all-reduce of a bucket; the own nodes go into row 0 first, in an order as good as any. */
static weft_status begin_plain(weft_reduce *r, bucket_slot *s) {
    piece all = numbers_of(r, weft_cut_bucket(r->o.cut, s->bucket));
    for (int k = 1; k < r->own_nodes; k++)
        add_numbers(r, at_row(r, 0, all.first), at_row(r, k, all.first), all.count);
    s->phase = GOING;
    s->job = (weft_comm_job){.kind = WEFT_JOB_SUM,
                             .data = at_row(r, 0, all.first),
                             .count = all.count,
                             .is_double = r->o.is_double};
    return weft_comm_begin(r->o.comm, &s->job);
}

/* What comes after a bucket's messages of a phase are there. */
static weft_status go_on(weft_reduce *r, bucket_slot *s) {
    WEFT_TRY(weft_comm_wait(r->o.comm, &s->job));
    if (s->phase == COMING) {
        add_piece(r, s);
        if (!r->o.scatter) return begin_gather(r, s);
    }
    if (r->o.plain) {
        piece all = numbers_of(r, weft_cut_bucket(r->o.cut, s->bucket));
        scale_numbers(r, at_row(r, 0, all.first), all.count);
    }
    s->phase = FREE;
    return r->o.done ? r->o.done(r->o.context, s->bucket) : WEFT_OK;
}

static bucket_slot *oldest(weft_reduce *r) {
    bucket_slot *found = NULL;
    for (int i = 0; i < SLOTS; i++) {
        bucket_slot *s = &r->slots[i];
        if (s->phase != FREE && (!found || s->number < found->number)) found = s;
    }
    return found;
}

weft_status weft_reduce_look(weft_reduce *r) {
    for (int i = 0; i < SLOTS; i++) {
        bucket_slot *s = &r->slots[i];
        if (s->phase != FREE && weft_comm_is_done(r->o.comm, &s->job)) WEFT_TRY(go_on(r, s));
    }
    return WEFT_OK;
}

static bucket_slot *find_free(weft_reduce *r) {
    for (int i = 0; i < SLOTS; i++)
        if (r->slots[i].phase == FREE) return &r->slots[i];
    return NULL;
}

void weft_reduce_begin(weft_reduce *r, double factor) {
    memset(r->sent, 0, (size_t)r->buckets * sizeof *r->sent);
    r->factor = factor;
    r->n_sent = 0;
}

weft_status weft_reduce_send(weft_reduce *r, int64_t bucket) {
    bucket_slot *s;
    WEFT_TRY(weft_reduce_look(r));
    while (!(s = find_free(r)))
        WEFT_TRY(go_on(r, oldest(r)));
    r->sent[bucket] = true;
    s->bucket = bucket;
    s->number = r->n_sent++;
    return r->o.plain ? begin_plain(r, s) : begin_scatter(r, s);
}

weft_status weft_reduce_end(weft_reduce *r) {
    for (int64_t b = 0; b < r->buckets; b++)
        if (!r->sent[b]) WEFT_TRY(weft_reduce_send(r, b));
    for (bucket_slot *s; (s = oldest(r));)
        WEFT_TRY(go_on(r, s));
    return WEFT_OK;
}
