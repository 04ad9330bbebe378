/* A bucket on its way is packed as numbers of the row, so that a piece is one message. Sums are made in
 * the host's memory, and copied to a backend that has its own when the step is over. */
#include "train/scatter.h"

#include "core/rows.h"

#include <stdlib.h>
#include <string.h>

enum {
    UNDER_WAY = 3, /* buckets */
    LEVELS = 40,
    TASK = 1 << 14 /* numbers */
};

/* One addition: a leaf of this round, or the level above, into a level. */
typedef struct {
    int to, leaf; /* leaf -1: from level to + 1 */
    bool add;
} addition;

typedef struct {
    bool busy;
    int64_t bucket, number;
    unsigned char *packed;   /* the bucket of the own micro-batch */
    unsigned char *received; /* [ranks, piece] */
    weft_transfer *transfers;
    weft_comm_job job;
} bucket_slot;

struct weft_scatter {
    weft_scatter_options o;
    int rank, ranks;
    size_t width; /* bytes of a number */
    int64_t buckets, largest;
    int64_t *own_at;               /* [buckets + 1]: where the own pieces begin in a level */
    unsigned char *levels[LEVELS]; /* [own numbers] */
    int n_levels;
    unsigned char *device; /* the backend's copy of level 0; NULL: it reads the host's */
    int64_t *mean_at;      /* [own stretches]: in level 0 */
    int64_t taken;         /* micro-batches of the rounds before */
    int depth;
    addition *list; /* of this round */
    int n_list;
    bool own, last; /* this rank has a micro-batch in the round; it is the last round */
    const weft_row_backend *rows; /* of a backend that has its own memory, and a queue beside its */
    void *queue;                  /* runs; NULL: it copies only when asked to */
    bool *sent;                   /* [buckets] */
    int64_t *
        order; /* [buckets]: as they were sent in the round before; for a rank that has none to make */
    int64_t n_sent; /* buckets sent */
    bucket_slot slots[UNDER_WAY];
};

static int count_levels(int64_t count) {
    int most = 1;
    for (int64_t i = 0; i < count; i += 2) {
        int depth = __builtin_popcountll((unsigned long long)i) + 1;
        if (depth > most) most = depth;
    }
    return most;
}

static int64_t numbers_of(const weft_scatter *s, weft_blocks b) {
    const int64_t *borders = s->o.shards->borders;
    return borders[b.first + b.count] - borders[b.first];
}

static weft_blocks own_piece(const weft_scatter *s, int64_t bucket) {
    return weft_cut_piece(&s->o.shards->cut, bucket, s->rank);
}

/* Where the own stretches lie in a level: in the order of the row, as the pieces do. */
static void place_means(weft_scatter *s, const weft_stretch *own) {
    const weft_partition *h = s->o.shards;
    int64_t n = 0;
    for (int64_t b = 0; b < s->buckets; b++) {
        weft_blocks p = own_piece(s, b);
        for (int64_t i = p.first; i < p.first + p.count; i++) {
            const weft_stretch *c = &h->chunks[i];
            if (c->weight == own[n].weight && c->first == own[n].first)
                s->mean_at[n++] = s->own_at[b] + h->borders[i] - h->borders[p.first];
        }
    }
}

static weft_status place_own(weft_scatter *s) {
    const weft_partition *h = s->o.shards;
    int64_t n = weft_partition_owned(h, s->rank, NULL);
    weft_stretch *own = calloc((size_t)n + 1, sizeof *own);
    s->own_at = calloc((size_t)s->buckets + 1, sizeof *s->own_at);
    s->mean_at = calloc((size_t)n + 1, sizeof *s->mean_at);
    if (!own || !s->own_at || !s->mean_at) {
        free(own);
        return weft_fail(WEFT_ENOMEM, "gradients: no memory");
    }
    for (int64_t b = 0; b < s->buckets; b++)
        s->own_at[b + 1] = s->own_at[b] + numbers_of(s, own_piece(s, b));
    weft_partition_owned(h, s->rank, own);
    own[n].weight = -1;
    place_means(s, own);
    free(own);
    return WEFT_OK;
}

static void *aligned_zeros(size_t bytes) {
    size_t whole = (bytes / WEFT_ARENA_ALIGN + 1) * WEFT_ARENA_ALIGN;
    void *memory = aligned_alloc(WEFT_ARENA_ALIGN, whole);
    if (memory) memset(memory, 0, whole);
    return memory;
}

/* Memory that a device copies to at full speed. */
static void *packing_room(const weft_scatter *s, size_t bytes) {
    return s->rows ? s->rows->pin((int64_t)bytes + 1) : aligned_zeros(bytes);
}

static bool allocate(weft_scatter *s) {
    size_t own = (size_t)s->own_at[s->buckets] * s->width, ranks = (size_t)s->ranks;
    size_t piece = (size_t)s->largest * s->width, bucket = 0;
    for (int64_t b = 0; b < s->buckets; b++) {
        size_t bytes = (size_t)numbers_of(s, weft_cut_bucket(&s->o.shards->cut, b)) * s->width;
        if (bytes > bucket) bucket = bytes;
    }
    for (int i = 0; i < s->n_levels; i++)
        if (!(s->levels[i] = aligned_zeros(own))) return false;
    for (int i = 0; i < UNDER_WAY; i++) {
        bucket_slot *slot = &s->slots[i];
        slot->packed = packing_room(s, bucket);
        slot->received = aligned_zeros(piece * ranks);
        slot->transfers = calloc(2 * ranks, sizeof *slot->transfers);
        if (!slot->packed || !slot->received || !slot->transfers) return false;
    }
    if (s->o.backend->remote && own > 0 && !(s->device = s->o.backend->alloc((int64_t)own)))
        return false;
    s->list = calloc(ranks + LEVELS * 2 + (size_t)s->n_levels * ranks, sizeof *s->list);
    s->sent = calloc((size_t)s->buckets, sizeof *s->sent);
    s->order = calloc((size_t)s->buckets, sizeof *s->order);
    return s->list && s->sent && s->order;
}

weft_status weft_scatter_create(const weft_scatter_options *options, weft_scatter **out) {
    *out = NULL;
    weft_scatter *s = calloc(1, sizeof *s);
    if (!s) return weft_fail(WEFT_ENOMEM, "gradients: no memory");
    s->o = *options;
    s->rank = weft_comm_rank(options->comm);
    s->ranks = weft_comm_size(options->comm);
    s->width = weft_dtype_size(options->shards->dtype);
    s->buckets = weft_cut_buckets(&options->shards->cut);
    s->largest = weft_cut_largest(&options->shards->cut);
    s->n_levels = count_levels(options->count);
    s->rows = options->backend->remote ? options->backend->rows : NULL;
    weft_status status = place_own(s);
    if (status == WEFT_OK && s->rows) status = s->rows->open(&s->queue);
    if (status == WEFT_OK && !allocate(s))
        status = weft_fail(WEFT_ENOMEM, "gradients: no memory for a rank's part of %d sums",
                           s->n_levels);
    if (status != WEFT_OK) {
        weft_scatter_destroy(s);
        return status;
    }
    *out = s;
    return WEFT_OK;
}

void weft_scatter_destroy(weft_scatter *s) {
    if (!s) return;
    if (s->device) s->o.backend->release(s->device, s->own_at[s->buckets] * (int64_t)s->width);
    for (int i = 0; i < LEVELS; i++)
        free(s->levels[i]);
    for (int i = 0; i < UNDER_WAY; i++) {
        if (s->rows && s->slots[i].packed) s->rows->unpin(s->slots[i].packed);
        if (!s->rows) free(s->slots[i].packed);
        free(s->slots[i].received);
        free(s->slots[i].transfers);
    }
    if (s->queue) s->rows->close(s->queue);
    free(s->own_at);
    free(s->mean_at);
    free(s->list);
    free(s->sent);
    free(s->order);
    free(s);
}

void weft_scatter_restart(weft_scatter *s) {
    s->taken = 0;
    s->depth = 0;
}

bool weft_scatter_is_over(const weft_scatter *s) {
    return s->taken >= s->o.count;
}

static void list_merge(weft_scatter *s) {
    s->depth--;
    s->list[s->n_list++] = (addition){s->depth - 1, -1, true};
}

/* As a binary counter adds ones (gradients.c): the round's micro-batches from left to right. */
void weft_scatter_begin(weft_scatter *s, bool own) {
    s->own = own;
    s->n_list = 0;
    s->n_sent = 0;
    memset(s->sent, 0, (size_t)s->buckets * sizeof *s->sent);
    for (int q = 0; q < s->ranks && s->taken < s->o.count; q++) {
        int64_t i = s->taken++;
        bool over = s->taken == s->o.count;
        if (i % 2 == 0) s->depth++;
        s->list[s->n_list++] = (addition){s->depth - 1, q, i % 2 != 0};
        for (int64_t pairs = i >> 1; i % 2 && pairs % 2; pairs >>= 1)
            list_merge(s);
        while (over && s->depth > 1)
            list_merge(s);
    }
    s->last = s->taken == s->o.count;
}

/* Numbers of one weight, as the row has them. */
static void widen(const weft_scatter *s, const weft_gradient *from, int64_t first, int64_t count,
                  void *to) {
    if (from->dtype == WEFT_BF16) {
        const uint16_t *bits = (const uint16_t *)from->data + first;
        for (int64_t i = 0; i < count; i++)
            ((float *)to)[i] = weft_bf16_to_float(bits[i]);
    } else {
        memcpy(to, (const unsigned char *)from->data + (size_t)first * s->width,
               (size_t)count * s->width);
    }
}

/* Memory that the host cannot read is copied to the place itself: its upper half has room for what is
 * narrower. */
static unsigned char *raw_place(const weft_scatter *s, const weft_gradient *from, int64_t count,
                                unsigned char *to) {
    return to + (s->width - weft_dtype_size(from->dtype)) * (size_t)count;
}

static weft_status fetch(const weft_scatter *s, const weft_gradient *from, int64_t first,
                         int64_t count, unsigned char *to) {
    size_t size = weft_dtype_size(from->dtype);
    const unsigned char *data = (const unsigned char *)from->data + (size_t)first * size;
    unsigned char *raw = raw_place(s, from, count, to);
    if (!s->rows) return s->o.backend->download(raw, data, count * (int64_t)size);
    s->rows->fetch(s->queue, raw, data, count * (int64_t)size);
    return WEFT_OK;
}

static void widen_in_place(const weft_scatter *s, const weft_gradient *from, int64_t count,
                           unsigned char *to) {
    const unsigned char *raw = raw_place(s, from, count, to);
    if (from->dtype != WEFT_BF16) return;
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, raw + 2 * i, sizeof bits);
        ((float *)(void *)to)[i] = weft_bf16_to_float(bits);
    }
}

typedef struct {
    const weft_scatter *s;
    const bucket_slot *slot;
} bucket_task;

/* The i-th chunk of a bucket, and its place among the packed ones. */
static const weft_stretch *chunk_of(const bucket_task *t, int64_t i, unsigned char **to) {
    const weft_partition *h = t->s->o.shards;
    int64_t first = weft_cut_bucket(&h->cut, t->slot->bucket).first;
    *to = t->slot->packed + (size_t)(h->borders[first + i] - h->borders[first]) * t->s->width;
    return &h->chunks[first + i];
}

static void pack_chunk(void *context, int64_t task, int thread) {
    (void)thread;
    const bucket_task *t = context;
    unsigned char *to;
    const weft_stretch *c = chunk_of(t, task, &to);
    const weft_gradient *from = &t->s->o.from[c->weight];
    if (!from->data)
        memset(to, 0, (size_t)c->count * t->s->width);
    else if (t->s->o.backend->remote)
        widen_in_place(t->s, from, c->count, to);
    else
        widen(t->s, from, c->first, c->count, to);
}

static weft_status pack(weft_scatter *s, const bucket_slot *slot) {
    bucket_task t = {s, slot};
    int64_t n = weft_cut_bucket(&s->o.shards->cut, slot->bucket).count;
    for (int64_t i = 0; s->o.backend->remote && i < n; i++) {
        unsigned char *to;
        const weft_stretch *c = chunk_of(&t, i, &to);
        const weft_gradient *from = &s->o.from[c->weight];
        if (from->data) WEFT_TRY(fetch(s, from, c->first, c->count, to));
    }
    if (s->rows) WEFT_TRY(s->rows->wait(s->queue));
    weft_pool_run(s->o.pool, n, pack_chunk, &t);
    return WEFT_OK;
}

static unsigned char *packed_piece(const weft_scatter *s, const bucket_slot *slot,
                                   weft_blocks piece) {
    const int64_t *borders = s->o.shards->borders;
    int64_t first = weft_cut_bucket(&s->o.shards->cut, slot->bucket).first;
    return slot->packed + (size_t)(borders[piece.first] - borders[first]) * s->width;
}

/* Whether a rank has a micro-batch in this round: its leaf is in the list. */
static bool has_leaf(const weft_scatter *s, int rank) {
    for (int i = 0; i < s->n_list; i++)
        if (s->list[i].leaf == rank) return true;
    return false;
}

static weft_status begin_bucket(weft_scatter *s, bucket_slot *slot) {
    const weft_cut *cut = &s->o.shards->cut;
    int64_t n = 0, own = numbers_of(s, own_piece(s, slot->bucket)) * (int64_t)s->width;
    for (int q = 0; q < s->ranks; q++) {
        weft_blocks piece = weft_cut_piece(cut, slot->bucket, q);
        int64_t bytes = numbers_of(s, piece) * (int64_t)s->width;
        if (q == s->rank) continue;
        if (s->own && bytes)
            slot->transfers[n++] = (weft_transfer){q, true, packed_piece(s, slot, piece), bytes};
        if (own && has_leaf(s, q))
            slot->transfers[n++] = (weft_transfer){
                q, false, slot->received + (size_t)q * (size_t)s->largest * s->width, own};
    }
    slot->busy = true;
    slot->job = (weft_comm_job){
        .kind = WEFT_JOB_EXCHANGE, .transfers = slot->transfers, .count = n, .tag = slot->number};
    return weft_comm_begin(s->o.comm, &slot->job);
}

static void add_numbers(const weft_scatter *s, void *to, const void *from, int64_t n, bool add) {
    if (!add) {
        memcpy(to, from, (size_t)n * s->width);
    } else if (s->width == sizeof(double)) {
        for (int64_t i = 0; i < n; i++)
            ((double *)to)[i] += ((const double *)from)[i];
    } else {
        for (int64_t i = 0; i < n; i++)
            ((float *)to)[i] += ((const float *)from)[i];
    }
}

static void scale_numbers(const weft_scatter *s, void *data, int64_t n) {
    double factor = 1.0 / (double)s->o.count;
    for (int64_t i = 0; i < n; i++) {
        if (s->width == sizeof(double))
            ((double *)data)[i] *= factor;
        else
            ((float *)data)[i] *= (float)factor;
    }
}

static void add_task(void *context, int64_t task, int thread) {
    (void)thread;
    const bucket_task *t = context;
    const weft_scatter *s = t->s;
    weft_blocks piece = own_piece(s, t->slot->bucket);
    int64_t first = task * TASK, n = numbers_of(s, piece) - first;
    size_t at = (size_t)(s->own_at[t->slot->bucket] + first) * s->width;
    size_t skip = (size_t)first * s->width;
    if (n > TASK) n = TASK;
    for (int i = 0; i < s->n_list; i++) {
        const addition *a = &s->list[i];
        const unsigned char *from;
        if (a->leaf < 0)
            from = s->levels[a->to + 1] + at;
        else if (a->leaf == s->rank)
            from = packed_piece(s, t->slot, piece) + skip;
        else
            from = t->slot->received + (size_t)a->leaf * (size_t)s->largest * s->width + skip;
        add_numbers(s, s->levels[a->to] + at, from, n, a->add);
    }
    if (s->last) scale_numbers(s, s->levels[0] + at, n);
}

static weft_status end_bucket(weft_scatter *s, bucket_slot *slot) {
    bucket_task t = {s, slot};
    WEFT_TRY(weft_comm_wait(s->o.comm, &slot->job));
    int64_t n = numbers_of(s, own_piece(s, slot->bucket));
    weft_pool_run(s->o.pool, (n + TASK - 1) / TASK, add_task, &t);
    slot->busy = false;
    return WEFT_OK;
}

static bucket_slot *oldest(weft_scatter *s) {
    bucket_slot *found = NULL;
    for (int i = 0; i < UNDER_WAY; i++) {
        bucket_slot *slot = &s->slots[i];
        if (slot->busy && (!found || slot->number < found->number)) found = slot;
    }
    return found;
}

static bucket_slot *find_free(weft_scatter *s) {
    for (int i = 0; i < UNDER_WAY; i++)
        if (!s->slots[i].busy) return &s->slots[i];
    return NULL;
}

weft_status weft_scatter_send(weft_scatter *s, int64_t bucket) {
    bucket_slot *slot = find_free(s);
    if (!slot) {
        WEFT_TRY(end_bucket(s, oldest(s)));
        slot = find_free(s);
    }
    s->sent[bucket] = true;
    slot->bucket = bucket;
    s->order[s->n_sent] = bucket;
    slot->number = s->n_sent++;
    if (s->own) WEFT_TRY(pack(s, slot));
    return begin_bucket(s, slot);
}

weft_status weft_scatter_end(weft_scatter *s) {
    for (int64_t i = 0; i < s->buckets; i++) {
        int64_t b = s->own ? i : s->order[i];
        if (!s->sent[b]) WEFT_TRY(weft_scatter_send(s, b));
    }
    for (bucket_slot *slot; (slot = oldest(s));)
        WEFT_TRY(end_bucket(s, slot));
    if (s->last && s->device)
        return s->o.backend->upload(s->device, s->levels[0],
                                    s->own_at[s->buckets] * (int64_t)s->width);
    return WEFT_OK;
}

weft_gradient weft_scatter_mean(const weft_scatter *s, int64_t i) {
    unsigned char *sums = s->device ? s->device : s->levels[0];
    return (weft_gradient){s->o.shards->dtype, sums + (size_t)s->mean_at[i] * s->width};
}
