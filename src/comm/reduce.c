/* Buckets are a pipeline: while one is added, the next is on its way in and the one before on its way
 * out. */
#include "comm/reduce.h"

#include <stdlib.h>
#include <string.h>

enum {
    PIECE =
        1 << 17, /* numbers of a rank's piece of a bucket: messages that are worth their latency */
    SLOTS = 3,   /* buckets under way */
    CHUNK = 1 << 14, /* numbers a task adds */
    ALIGN = 16       /* pieces begin at multiples of this many numbers */
};

/* One bucket under way. */
typedef struct {
    int64_t first, count; /* of the row */
    weft_transfer *transfers;
    weft_comm_job job;
    unsigned char *received; /* [nodes, piece]; unused for the own nodes */
} bucket_slot;

struct weft_reduce {
    weft_reduce_options o;
    int rank, size;
    int own_first, own_nodes;
    int64_t bucket; /* numbers */
    size_t width;   /* bytes of a number */
    void **rows;    /* [own nodes] */
    bucket_slot slots[SLOTS];
};

typedef struct {
    int64_t first, count;
} piece;

/* A rank's piece of a bucket, within the row. */
static piece piece_of(const weft_reduce *r, const bucket_slot *s, int rank) {
    int64_t blocks = (s->count + ALIGN - 1) / ALIGN;
    int64_t begin = blocks * rank / r->size * ALIGN, end = blocks * (rank + 1) / r->size * ALIGN;
    if (end > s->count) end = s->count;
    if (begin > end) begin = end;
    return (piece){s->first + begin, end - begin};
}

static int64_t largest_piece(const weft_reduce *r) {
    int64_t bucket = r->o.count < r->bucket ? r->o.count : r->bucket;
    int64_t blocks = (bucket + ALIGN - 1) / ALIGN;
    return ((blocks + r->size - 1) / r->size + 1) * ALIGN;
}

weft_status weft_reduce_create(const weft_reduce_options *options, weft_reduce **out) {
    *out = NULL;
    weft_reduce *r = calloc(1, sizeof *r);
    if (!r) return weft_fail(WEFT_ENOMEM, "no memory for the sum over ranks");
    r->o = *options;
    r->rank = weft_comm_rank(options->comm);
    r->size = weft_comm_size(options->comm);
    r->bucket = (int64_t)r->size * PIECE;
    r->own_nodes = weft_tree_of_rank(options->tree, r->rank, &r->own_first);
    r->width = options->is_double ? sizeof(double) : sizeof(float);
    r->rows = calloc((size_t)r->own_nodes, sizeof *r->rows);
    bool there = r->rows != NULL;
    if (there) memcpy(r->rows, options->rows, (size_t)r->own_nodes * sizeof *r->rows);
    size_t nodes = (size_t)options->tree->n_nodes, most = (size_t)r->size * nodes + 1;
    for (int i = 0; i < SLOTS; i++) {
        bucket_slot *s = &r->slots[i];
        s->transfers = calloc(most * 2, sizeof *s->transfers);
        s->received = options->plain ? NULL : malloc(nodes * (size_t)largest_piece(r) * r->width);
        there = there && s->transfers && (options->plain || s->received);
    }
    if (!there) {
        weft_reduce_destroy(r);
        return weft_fail(WEFT_ENOMEM, "no memory for the sum over ranks");
    }
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
    free(r);
}

static unsigned char *at_row(const weft_reduce *r, int own_node, int64_t place) {
    return (unsigned char *)r->rows[own_node] + (size_t)place * r->width;
}

/* Where this rank has a node's values of its own piece. */
static unsigned char *at_node(const weft_reduce *r, const bucket_slot *s, int node, piece p) {
    if (node >= r->own_first && node < r->own_first + r->own_nodes)
        return at_row(r, node - r->own_first, p.first);
    return s->received + (size_t)node * (size_t)largest_piece(r) * r->width;
}

/* Own nodes' values to the ranks whose pieces they are, others' values of the own piece to here. */
static weft_status begin_scatter(weft_reduce *r, bucket_slot *s) {
    int64_t n = 0;
    piece own = piece_of(r, s, r->rank);
    for (int q = 0; q < r->size; q++) {
        piece p = piece_of(r, s, q);
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
    s->job = (weft_comm_job){.kind = WEFT_JOB_EXCHANGE, .transfers = s->transfers, .count = n};
    return weft_comm_begin(r->o.comm, &s->job);
}

/* The own piece's result to all, and theirs to here. */
static weft_status begin_gather(weft_reduce *r, bucket_slot *s) {
    int64_t n = 0;
    piece own = piece_of(r, s, r->rank);
    for (int q = 0; q < r->size; q++) {
        piece p = piece_of(r, s, q);
        if (q == r->rank) continue;
        if (own.count)
            s->transfers[n++] =
                (weft_transfer){q, true, at_row(r, 0, own.first), own.count * (int64_t)r->width};
        if (p.count)
            s->transfers[n++] =
                (weft_transfer){q, false, at_row(r, 0, p.first), p.count * (int64_t)r->width};
    }
    s->job = (weft_comm_job){.kind = WEFT_JOB_EXCHANGE, .transfers = s->transfers, .count = n};
    return weft_comm_begin(r->o.comm, &s->job);
}

/* The merges of one piece, some numbers at a time. */
typedef struct {
    const weft_reduce *r;
    const bucket_slot *slot;
    piece own;
    double factor;
} addition;

static void add_f64(double *to, const double *from, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

static void add_f32(float *to, const float *from, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        to[i] += from[i];
}

static void scale_numbers(void *data, int64_t n, bool is_double, double factor) {
    for (int64_t i = 0; i < n; i++) {
        if (is_double)
            ((double *)data)[i] *= factor;
        else
            ((float *)data)[i] *= (float)factor;
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
        const void *from = at_node(r, a->slot, t->merges[i].from, a->own) + skip;
        if (r->o.is_double)
            add_f64(to, from, n);
        else
            add_f32(to, from, n);
    }
    unsigned char *sum = at_node(r, a->slot, 0, a->own) + skip;
    unsigned char *result = at_row(r, 0, a->own.first) + skip;
    if (sum != result) memcpy(result, sum, (size_t)n * r->width);
    scale_numbers(result, n, r->o.is_double, a->factor);
}

static void add_piece(weft_reduce *r, const bucket_slot *s, double factor) {
    addition a = {r, s, piece_of(r, s, r->rank), factor};
    weft_pool_run(r->o.pool, (a.own.count + CHUNK - 1) / CHUNK, add_chunk, &a);
}

static int64_t count_buckets(const weft_reduce *r) {
    return (r->o.count + r->bucket - 1) / r->bucket;
}

static bucket_slot *slot_of(weft_reduce *r, int64_t bucket) {
    bucket_slot *s = &r->slots[bucket % SLOTS];
    s->first = bucket * r->bucket;
    s->count = r->o.count - s->first < r->bucket ? r->o.count - s->first : r->bucket;
    return s;
}

static weft_status run_tree(weft_reduce *r, double factor) {
    int64_t n = count_buckets(r);
    for (int64_t i = 0; i < n + 2; i++) {
        /* Bucket i begins, i - 1 is added and given, i - 2 is over. */
        if (i < n) WEFT_TRY(begin_scatter(r, slot_of(r, i)));
        if (i >= 1 && i <= n) {
            bucket_slot *s = slot_of(r, i - 1);
            WEFT_TRY(weft_comm_wait(r->o.comm, &s->job));
            add_piece(r, s, factor);
            WEFT_TRY(begin_gather(r, s));
        }
        if (i >= 2) WEFT_TRY(weft_comm_wait(r->o.comm, &slot_of(r, i - 2)->job));
    }
    return WEFT_OK;
}

/* The own nodes into row 0; the order is as good as any. */
static void merge_own(weft_reduce *r) {
    for (int k = 1; k < r->own_nodes; k++) {
        if (r->o.is_double)
            add_f64(r->rows[0], r->rows[k], r->o.count);
        else
            add_f32(r->rows[0], r->rows[k], r->o.count);
    }
}

static weft_status run_plain(weft_reduce *r, double factor) {
    int64_t n = count_buckets(r);
    merge_own(r);
    for (int64_t i = 0; i < n + 1; i++) {
        if (i < n) {
            bucket_slot *s = slot_of(r, i);
            s->job = (weft_comm_job){.kind = WEFT_JOB_SUM,
                                     .data = at_row(r, 0, s->first),
                                     .count = s->count,
                                     .is_double = r->o.is_double};
            WEFT_TRY(weft_comm_begin(r->o.comm, &s->job));
        }
        if (i == 0) continue;
        bucket_slot *s = slot_of(r, i - 1);
        WEFT_TRY(weft_comm_wait(r->o.comm, &s->job));
        scale_numbers(at_row(r, 0, s->first), s->count, r->o.is_double, factor);
    }
    return WEFT_OK;
}

weft_status weft_reduce_run(weft_reduce *r, double factor) {
    return r->o.plain ? run_plain(r, factor) : run_tree(r, factor);
}
