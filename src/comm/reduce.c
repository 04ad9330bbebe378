/* Buckets are a pipeline: while one is added, others are on their way in or out. A bucket's messages are
 * told apart by its number, which is the same on every rank, so that ranks need not be equally far.
 * Whoever has to wait waits for the oldest bucket: that one every rank has begun, or is about
 * to, so it comes to an end.
 *
 * On a device all of a bucket is put into its queue when it is sent, and only the end waits. */
#include "comm/reduce.h"

#include "core/rows.h"

enum {
    SLOTS = 4,      /* buckets under way */
    CHUNK = 1 << 14 /* numbers a task adds */
};

typedef enum { FREE, COMING, GOING } phase;

struct weft_reduce_bucket {
    const weft_reduce *r;
    phase phase;
    int64_t bucket, number; /* `number` counts those that were sent */
    weft_transfer *transfers;
    weft_comm_job job;
    unsigned char *received; /* [nodes, piece]; unused for the own nodes */
    unsigned char *packed;   /* the bucket of the own node, where there are no rows */
};

struct weft_reduce {
    weft_reduce_options o;
    int rank, own_first, own_nodes, n_rows;
    int64_t buckets, largest; /* numbers of the largest piece */
    int64_t received;         /* bytes of a slot's */
    size_t width;             /* bytes of a number */
    void **rows;              /* [own nodes] */
    void **copied; /* [own nodes]: the backend's, which rows are copies of; NULL: no copies */
    const weft_row_backend *pins;
    const weft_row_backend *device; /* that has the rows, */
    void *queue;                    /* and its queue; NULL: the host has them */
    bool *sent;                     /* [buckets] */
    int64_t *order;                 /* [buckets]: as they were sent the last time */
    int64_t n_sent;
    double factor;
    weft_reduce_bucket slots[SLOTS];
};

static weft_span piece_of(const weft_reduce *r, int64_t bucket, int rank) {
    return weft_cut_numbers(r->o.cut, weft_cut_piece(r->o.cut, bucket, rank));
}

static weft_span bucket_of(const weft_reduce *r, int64_t bucket) {
    return weft_cut_numbers(r->o.cut, weft_cut_bucket(r->o.cut, bucket));
}

static bool make_slots(weft_reduce *r) {
    size_t nodes = (size_t)r->o.tree->n_nodes, ranks = (size_t)r->o.cut->size, most = 0;
    r->received = (int64_t)(nodes * (size_t)r->largest * r->width) + 64;
    for (int64_t b = 0; b < r->buckets; b++)
        if ((size_t)bucket_of(r, b).count > most) most = (size_t)bucket_of(r, b).count;
    most = most * r->width + 1;
    for (int i = 0; i < (r->device ? 1 : SLOTS); i++) {
        weft_reduce_bucket *s = &r->slots[i];
        s->r = r;
        s->transfers = calloc((ranks * nodes + 1) * 2, sizeof *s->transfers);
        if (!r->o.plain)
            s->received =
                r->device ? r->o.backend->alloc(r->received) : malloc((size_t)r->received);
        if (r->o.pack) s->packed = r->pins ? r->pins->pin((int64_t)most) : calloc(1, most);
        if (!s->transfers || (!r->o.plain && !s->received) || (r->o.pack && !s->packed))
            return false;
    }
    return true;
}

static bool take_rows(weft_reduce *r) {
    int64_t bytes = r->o.cut->borders[r->o.cut->n_blocks] * (int64_t)r->width;
    bool copies = r->pins && !r->device && r->o.rows, ok = true;
    if (copies) ok = (r->copied = calloc((size_t)r->own_nodes + 1, sizeof *r->copied)) != NULL;
    for (int k = 0; ok && r->o.rows && k < r->own_nodes; k++) {
        if (copies) r->copied[k] = r->o.rows[k];
        r->rows[k] = copies ? r->pins->pin(bytes) : r->o.rows[k];
        ok = r->rows[k] != NULL;
    }
    return ok;
}

WEFT_ENDED_BY(weft_reduce_destroy, weft_reduce)
weft_status weft_reduce_create(const weft_reduce_options *options, weft_reduce **out) {
    *out = NULL;
    WEFT_NEW(weft_reduce, r, weft_reduce_destroy, "no memory for the sum over ranks");
    r->o = *options;
    r->rank = weft_comm_rank(options->comm);
    r->own_nodes = r->n_rows = weft_tree_of_rank(options->tree, r->rank, &r->own_first);
    r->buckets = weft_cut_buckets(options->cut);
    r->largest = weft_cut_largest(options->cut);
    r->width = options->is_double ? sizeof(double) : sizeof(float);
    r->pins = options->backend->remote ? options->backend->rows : NULL;
    r->device = options->link ? options->backend->rows : NULL;
    r->queue = options->link ? weft_device_link_queue(options->link) : options->queue;
    r->rows = calloc((size_t)r->own_nodes + 1, sizeof *r->rows);
    r->sent = calloc((size_t)r->buckets, sizeof *r->sent);
    r->order = calloc((size_t)r->buckets, sizeof *r->order);
    if (!r->rows || !r->sent || !r->order || !take_rows(r) || !make_slots(r))
        return weft_fail(WEFT_ENOMEM, "no memory for the sum over ranks");
    return weft_hand(&r, out);
}

void weft_reduce_destroy(weft_reduce *r) {
    if (!r) return;
    for (int i = 0; i < SLOTS; i++) {
        weft_reduce_bucket *s = &r->slots[i];
        free(s->transfers);
        if (r->device && s->received)
            r->o.backend->release(s->received, r->received);
        else
            free(s->received);
        if (r->pins && s->packed)
            r->pins->unpin(s->packed);
        else
            free(s->packed);
    }
    for (int k = 0; r->copied && k < r->n_rows; k++)
        if (r->rows[k]) r->pins->unpin(r->rows[k]);
    WEFT_FREE(r->rows, r->copied, r->sent, r->order, r);
}

static unsigned char *at_row(const weft_reduce *r, const weft_reduce_bucket *s, int own_node,
                             int64_t place) {
    if (s->packed) return s->packed + (size_t)(place - bucket_of(r, s->bucket).first) * r->width;
    return (unsigned char *)r->rows[own_node] + (size_t)place * r->width;
}

/* Where this rank has a node's values of its own piece. */
static unsigned char *at_node(const weft_reduce *r, const weft_reduce_bucket *s, int node,
                              weft_span p) {
    if (node >= r->own_first && node < r->own_first + r->own_nodes)
        return at_row(r, s, node - r->own_first, p.first);
    return s->received + (size_t)node * (size_t)r->largest * r->width;
}

const unsigned char *weft_reduce_values(const weft_reduce_bucket *b, int node) {
    return at_node(b->r, b, node, piece_of(b->r, b->bucket, b->r->rank));
}

static weft_status begin_exchange(weft_reduce *r, weft_reduce_bucket *s, int64_t n, phase next) {
    s->phase = next;
    if (r->device) return weft_device_link_exchange(r->o.link, s->transfers, n);
    s->job = (weft_comm_job){.kind = WEFT_JOB_EXCHANGE,
                             .transfers = s->transfers,
                             .count = n,
                             .tag = 2 * s->number + (next == GOING)};
    return weft_comm_begin(r->o.comm, &s->job);
}

/* So many numbers to or from another rank. */
static void put_transfer(const weft_reduce *r, const weft_reduce_bucket *s, int64_t *n, int rank,
                         bool send, void *data, int64_t count) {
    if (rank != r->rank && count)
        s->transfers[(*n)++] = (weft_transfer){rank, send, data, count * (int64_t)r->width};
}

/* Own nodes' values to the ranks whose pieces they are, others' values of the own piece to here. */
static weft_status begin_scatter(weft_reduce *r, weft_reduce_bucket *s) {
    int64_t n = 0;
    weft_span own = piece_of(r, s->bucket, r->rank);
    for (int q = 0; q < r->o.cut->size; q++) {
        weft_span p = piece_of(r, s->bucket, q);
        for (int k = 0; k < r->own_nodes; k++)
            put_transfer(r, s, &n, q, true, at_row(r, s, k, p.first), p.count);
    }
    for (int i = 0; i < r->o.tree->n_nodes; i++)
        put_transfer(r, s, &n, r->o.tree->nodes[i].rank, false, at_node(r, s, i, own), own.count);
    return begin_exchange(r, s, n, COMING);
}

/* Where the rows are: to = or += from, and data *= factor. */
static void put_sum(const weft_reduce *r, void *to, const void *from, int64_t n, bool add) {
    if (!r->device)
        weft_numbers_add(to, from, n, r->o.is_double, add);
    else if (n)
        (add ? r->device->add : r->device->copy)(r->queue, to, from, n);
}

static void put_mean(const weft_reduce *r, void *data, int64_t n) {
    if (!r->device)
        weft_numbers_scale(data, r->factor, n, r->o.is_double);
    else if (n)
        r->device->scale(r->queue, data, (float)r->factor, n);
}

/* n numbers of a bucket's own piece. Node 0 may be another rank's: the result goes to row 0 in any case. */
static void add_piece(const weft_reduce *r, const weft_reduce_bucket *s, weft_span own,
                      int64_t first, int64_t n) {
    const weft_tree *t = r->o.tree;
    size_t skip = (size_t)first * r->width;
    for (int i = 0; i < t->n_merges; i++)
        put_sum(r, at_node(r, s, t->merges[i].to, own) + skip,
                at_node(r, s, t->merges[i].from, own) + skip, n, true);
    unsigned char *sum = at_node(r, s, 0, own) + skip, *result = at_row(r, s, 0, own.first) + skip;
    if (sum != result) put_sum(r, result, sum, n, false);
    put_mean(r, result, n);
}

WEFT_TASK(add_chunk, const weft_reduce_bucket *s) {
    const weft_reduce *r = s->r;
    weft_span own = piece_of(r, s->bucket, r->rank);
    int64_t first = task * CHUNK, n = own.count - first < CHUNK ? own.count - first : CHUNK;
    if (r->o.add)
        r->o.add(r->o.context, s, s->bucket, (weft_span){first, n});
    else
        add_piece(r, s, own, first, n);
}

/* A plain all-reduce of a bucket; the own nodes go into row 0 first, in an order as good as any. */
static weft_status begin_plain(weft_reduce *r, weft_reduce_bucket *s) {
    weft_span all = bucket_of(r, s->bucket);
    unsigned char *row = at_row(r, s, 0, all.first);
    for (int k = 1; k < r->own_nodes; k++)
        put_sum(r, row, at_row(r, s, k, all.first), all.count, true);
    s->phase = GOING;
    if (r->device) return weft_device_link_sum(r->o.link, (float *)(void *)row, all.count);
    s->job = (weft_comm_job){
        .kind = WEFT_JOB_SUM, .data = row, .count = all.count, .is_double = r->o.is_double};
    return weft_comm_begin(r->o.comm, &s->job);
}

/* A bucket of the backend's rows to where the host reads it, or of the result back. */
static void copy_bucket(const weft_reduce *r, int64_t bucket, bool back) {
    weft_span all = bucket_of(r, bucket);
    int64_t bytes = all.count * (int64_t)r->width, at = all.first * (int64_t)r->width;
    for (int k = 0; k < (back ? 1 : r->n_rows); k++) {
        unsigned char *host = (unsigned char *)r->rows[k] + at;
        unsigned char *there = (unsigned char *)r->copied[k] + at;
        if (back)
            r->pins->put(r->queue, there, host, bytes);
        else
            r->pins->fetch(r->queue, host, there, bytes);
    }
}

/* What comes after a bucket's messages of a phase are there. */
static weft_status go_on(weft_reduce *r, weft_reduce_bucket *s) {
    if (!r->device) WEFT_TRY(weft_comm_wait(r->o.comm, &s->job));
    if (s->phase == COMING) {
        weft_span own = piece_of(r, s->bucket, r->rank);
        if (r->device)
            add_piece(r, s, own, 0, own.count);
        else
            weft_pool_run(r->o.pool, (own.count + CHUNK - 1) / CHUNK, add_chunk, s);
        /* The own piece's result to all, and theirs to here. */
        if (!r->o.scatter) {
            int64_t n = 0;
            for (int q = 0; q < r->o.cut->size; q++) {
                weft_span p = piece_of(r, s->bucket, q);
                put_transfer(r, s, &n, q, true, at_row(r, s, 0, own.first), own.count);
                put_transfer(r, s, &n, q, false, at_row(r, s, 0, p.first), p.count);
            }
            return begin_exchange(r, s, n, GOING);
        }
    }
    if (r->o.plain) {
        weft_span all = bucket_of(r, s->bucket);
        put_mean(r, at_row(r, s, 0, all.first), all.count);
    }
    s->phase = FREE;
    if (r->copied) copy_bucket(r, s->bucket, true);
    return WEFT_OK;
}

static weft_reduce_bucket *oldest(weft_reduce *r) {
    weft_reduce_bucket *found = NULL;
    for (int i = 0; i < SLOTS; i++) {
        weft_reduce_bucket *s = &r->slots[i];
        if (s->phase != FREE && (!found || s->number < found->number)) found = s;
    }
    return found;
}

weft_status weft_reduce_look(weft_reduce *r) {
    for (int i = 0; i < SLOTS; i++) {
        weft_reduce_bucket *s = &r->slots[i];
        if (s->phase != FREE && atomic_load(&s->job.done)) WEFT_TRY(go_on(r, s));
    }
    return WEFT_OK;
}

void weft_reduce_begin(weft_reduce *r, double factor) {
    memset(r->sent, 0, (size_t)r->buckets * sizeof *r->sent);
    r->own_nodes = weft_tree_of_rank(r->o.tree, r->rank, &r->own_first);
    r->factor = factor;
    r->n_sent = 0;
}

weft_status weft_reduce_send(weft_reduce *r, int64_t bucket) {
    WEFT_TRY(weft_reduce_look(r));
    weft_reduce_bucket *s = r->slots;
    while (s->phase != FREE) {
        if (++s < r->slots + SLOTS) continue;
        WEFT_TRY(go_on(r, oldest(r)));
        s = r->slots;
    }
    r->sent[bucket] = true;
    s->bucket = bucket;
    r->order[r->n_sent] = bucket;
    s->number = r->n_sent++;
    if (r->copied) {
        copy_bucket(r, bucket, false);
        WEFT_TRY(r->pins->wait(r->queue)); /* it is there */
    }
    if (r->o.pack && r->own_nodes) WEFT_TRY(r->o.pack(r->o.context, bucket, s->packed));
    WEFT_TRY(r->o.plain ? begin_plain(r, s) : begin_scatter(r, s));
    while (r->device && s->phase != FREE)
        WEFT_TRY(go_on(r, s));
    return WEFT_OK;
}

/* A rank that has made nothing sends in the order of the last time: so do those that have. */
weft_status weft_reduce_end(weft_reduce *r) {
    for (int64_t i = 0; i < r->buckets; i++) {
        int64_t b = r->own_nodes ? i : r->order[i];
        if (!r->sent[b]) WEFT_TRY(weft_reduce_send(r, b));
    }
    for (weft_reduce_bucket *s; (s = oldest(r));)
        WEFT_TRY(go_on(r, s));
    return r->device ? weft_device_link_wait(r->o.link) : WEFT_OK;
}
