/* A rank's own pieces of the sums, one row of them for each level of the tree. A bucket is packed as
 * numbers of the row, so that a piece is one message; reduce.c carries it. Sums are made in the host's
 * memory, and copied to a backend that has its own when the step is over. */
#include "train/scatter.h"

#include "base/scope.h"
#include "core/plan.h"
#include "core/rows.h"

struct weft_scatter {
    weft_scatter_options o;
    weft_tree round; /* its leaves: rank q has the q-th */
    weft_reduce *reduce;
    int rank, ranks;
    size_t width; /* bytes of a number */
    int64_t buckets;
    int64_t *own_at; /* [buckets + 1]: where the own pieces begin in a level */
    unsigned char *levels[WEFT_TREE_LEVELS]; /* [own numbers] */
    unsigned char *device; /* the backend's copy of level 0; NULL: it reads the host's */
    int64_t taken;         /* micro-batches of the rounds before and of this one */
    int depth;
    weft_tree_addition *list; /* of this round */
    int n_list;
    const weft_row_backend *rows; /* of a backend that has its own memory, */
    void *queue;                  /* beside its runs */
};

static int64_t own_bytes(const weft_scatter *s) {
    return s->own_at[s->buckets] * (int64_t)s->width;
}

static bool allocate(weft_scatter *s) {
    int n_levels = weft_tree_depth(s->o.count);
    size_t whole = (size_t)weft_arena_bytes(own_bytes(s) + 1), ranks = (size_t)s->ranks;
    for (int i = 0; i < n_levels; i++) {
        if (!(s->levels[i] = aligned_alloc(WEFT_ARENA_ALIGN, whole))) return false;
        memset(s->levels[i], 0, whole);
    }
    if (s->rows && own_bytes(s) > 0 && !(s->device = s->o.backend->alloc(own_bytes(s))))
        return false;
    s->list = calloc(ranks * (WEFT_TREE_LEVELS + 1), sizeof *s->list);
    s->round.nodes = calloc(ranks, sizeof *s->round.nodes);
    return s->list && s->round.nodes;
}

/* A weight's numbers are copied to the upper end of their place in the row, which has room for what is
 * narrower; what is, is widened from there. */
static unsigned char *raw_place(const weft_scatter *s, const weft_gradient *from, int64_t count,
                                unsigned char *to) {
    return to + (s->width - weft_dtype_size(from->dtype)) * (size_t)count;
}

static const unsigned char *raw_data(const weft_gradient *from, const weft_stretch *c,
                                     int64_t *bytes) {
    int64_t size = (int64_t)weft_dtype_size(from->dtype);
    *bytes = c->count * size;
    return (const unsigned char *)from->data + c->first * size;
}

static void widen(const unsigned char *raw, int64_t count, unsigned char *to) {
    for (int64_t i = 0; i < count; i++) {
        uint16_t bits;
        memcpy(&bits, raw + 2 * i, sizeof bits);
        ((float *)(void *)to)[i] = weft_bf16_to_float(bits);
    }
}

/* A bucket that is being packed. */
typedef struct {
    const weft_scatter *s;
    int64_t first; /* chunk */
    unsigned char *to;
} bucket_pack;

/* The i-th chunk of a bucket, and its place among the packed ones. */
static const weft_stretch *chunk_of(const bucket_pack *t, int64_t i, unsigned char **to) {
    const weft_partition *h = t->s->o.shards;
    *to = t->to + (size_t)(h->borders[t->first + i] - h->borders[t->first]) * t->s->width;
    return &h->chunks[t->first + i];
}

WEFT_TASK(pack_chunk) {
    const bucket_pack *t = context;
    unsigned char *to;
    int64_t bytes;
    const weft_stretch *c = chunk_of(t, task, &to);
    const weft_gradient *from = &t->s->o.from[c->weight];
    unsigned char *raw = raw_place(t->s, from, c->count, to);
    const unsigned char *data = raw_data(from, c, &bytes);
    if (!from->data)
        memset(to, 0, (size_t)c->count * t->s->width);
    else if (!t->s->rows)
        memcpy(raw, data, (size_t)bytes);
    if (from->data && from->dtype == WEFT_BF16) widen(raw, c->count, to);
}

static weft_status pack(void *context, int64_t bucket, unsigned char *packed) {
    weft_scatter *s = context;
    weft_span blocks = weft_cut_bucket(&s->o.shards->cut, bucket);
    bucket_pack t = {s, blocks.first, packed};
    for (int64_t i = 0; s->rows && i < blocks.count; i++) {
        unsigned char *to;
        int64_t bytes;
        const weft_stretch *c = chunk_of(&t, i, &to);
        const weft_gradient *from = &s->o.from[c->weight];
        const unsigned char *data = raw_data(from, c, &bytes);
        if (from->data) s->rows->fetch(s->queue, raw_place(s, from, c->count, to), data, bytes);
    }
    if (s->rows) WEFT_TRY(s->rows->wait(s->queue));
    weft_pool_run(s->o.pool, blocks.count, pack_chunk, &t);
    return WEFT_OK;
}

/* The round's additions, of some numbers of the own piece. */
static void add_round(void *context, const weft_reduce_bucket *b, int64_t bucket, weft_span own) {
    const weft_scatter *s = context;
    bool is_double = s->width == sizeof(double);
    size_t skip = (size_t)own.first * s->width, at = (size_t)s->own_at[bucket] * s->width + skip;
    for (int i = 0; i < s->n_list; i++) {
        const weft_tree_addition *a = &s->list[i];
        const unsigned char *from =
            a->leaf < 0 ? s->levels[a->to + 1] + at : weft_reduce_values(b, a->leaf) + skip;
        weft_numbers_add(s->levels[a->to] + at, from, own.count, is_double, a->add);
    }
    if (weft_scatter_is_over(s))
        weft_numbers_scale(s->levels[0] + at, 1.0 / (double)s->o.count, own.count, is_double);
}

WEFT_ENDED_BY(weft_scatter_destroy, weft_scatter)
weft_status weft_scatter_create(const weft_scatter_options *options, weft_scatter **out,
                                weft_reduce **reduce) {
    *out = NULL;
    WEFT_AUTO(weft_scatter_destroy_at) weft_scatter *s = calloc(1, sizeof *s);
    if (!s) return weft_fail(WEFT_ENOMEM, "gradients: no memory");
    s->o = *options;
    s->rank = weft_comm_rank(options->comm);
    s->ranks = weft_comm_size(options->comm);
    s->width = weft_dtype_size(options->shards->dtype);
    s->buckets = weft_cut_buckets(&options->shards->cut);
    s->rows = options->backend->remote ? options->backend->rows : NULL;
    s->own_at = calloc((size_t)s->buckets + 1, sizeof *s->own_at);
    if (!s->own_at) return weft_fail(WEFT_ENOMEM, "gradients: no memory");
    const weft_cut *cut = &options->shards->cut;
    for (int64_t b = 0; b < s->buckets; b++)
        s->own_at[b + 1] =
            s->own_at[b] + weft_cut_numbers(cut, weft_cut_piece(cut, b, s->rank)).count;
    if (s->rows) WEFT_TRY(s->rows->open(&s->queue));
    if (!allocate(s)) return weft_fail(WEFT_ENOMEM, "gradients: no memory for a rank's part");
    for (int q = 0; q < s->ranks; q++)
        s->round.nodes[q] = (weft_tree_node){q, 1, q};
    s->round.n_nodes = s->ranks;
    weft_reduce_options sum = {.comm = options->comm,
                               .backend = options->backend,
                               .pool = options->pool,
                               .tree = &s->round,
                               .cut = cut,
                               .is_double = s->width == sizeof(double),
                               .scatter = true,
                               .pack = pack,
                               .add = add_round,
                               .context = s};
    WEFT_TRY(weft_reduce_create(&sum, &s->reduce));
    *reduce = s->reduce;
    *out = weft_steal(&s);
    return WEFT_OK;
}

void weft_scatter_destroy(weft_scatter *s) {
    if (!s) return;
    weft_reduce_destroy(s->reduce);
    if (s->device) s->o.backend->release(s->device, own_bytes(s));
    for (int i = 0; i < WEFT_TREE_LEVELS; i++)
        free(s->levels[i]);
    if (s->queue) s->rows->close(s->queue);
    weft_tree_free(&s->round);
    WEFT_FREE(s->own_at, s->list, s);
}

void weft_scatter_restart(weft_scatter *s) {
    s->taken = 0;
    s->depth = 0;
}

bool weft_scatter_is_over(const weft_scatter *s) {
    return s->taken >= s->o.count;
}

/* The round's micro-batches from left to right; the last round may have fewer. */
void weft_scatter_begin(weft_scatter *s) {
    s->n_list = 0;
    s->round.n_nodes = 0;
    for (int q = 0; q < s->ranks && s->taken < s->o.count; q++) {
        int64_t i = s->taken++;
        s->n_list +=
            weft_tree_push(i, s->taken == s->o.count, q, 0, &s->depth, s->list + s->n_list);
        s->round.n_nodes++;
    }
    weft_reduce_begin(s->reduce, 1);
}

weft_status weft_scatter_end(weft_scatter *s) {
    WEFT_TRY(weft_reduce_end(s->reduce));
    if (!weft_scatter_is_over(s) || !s->device) return WEFT_OK;
    return s->o.backend->upload(s->device, s->levels[0], own_bytes(s));
}

void *weft_scatter_mean(const weft_scatter *s) {
    return s->device ? s->device : s->levels[0];
}
