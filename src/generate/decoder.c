/* Rows over caches. Graphs for different numbers of rows are built when they are first needed; all
 * of them are bound to the same weights and the same states. Where the backend can let graphs follow each
 * other without the host, they do. */
#include "generate/decoder.h"
#include "base/clock.h"

#include "ops/fuse.h"

enum { GRAPHS_MAX = 32 };

/* What a graph is for. */
typedef struct {
    int64_t rows, wanted;
    bool block; /* of a prompt */
    bool apart; /* for runs in pieces, between which others run */
} graph_use;

typedef struct {
    graph_use use;
    weft_cached_graph graph;
    weft_exec *exec;
    weft_binding *bindings;
    double *taken; /* seconds of each operation in its last run, of one that is apart */
} row_graph;

/* A state that all graphs share. */
typedef struct {
    char name[96];
    char *data;
    int64_t bytes, slot_bytes; /* slot_bytes: 0 for pages */
} shared_state;

struct weft_decoder {
    const weft_model *model;
    const weft_backend *backend;
    weft_pool *pool;
    weft_decoder_limits limits;
    weft_generation_weights *weights;
    shared_state *states;
    int64_t n_states, state_bytes, page_bytes;
    row_graph *graphs[GRAPHS_MAX];
    int n_graphs;
    row_graph *begun; /* in pieces, up to operation begun_at; NULL: none */
    int64_t begun_at, begun_wanted;
    int32_t *table; /* [slots, table_pages] */
    int64_t reads;
    int32_t *ints;                        /* tokens, positions, slots, wanted: of a run */
    const weft_sampler_backend *samplers; /* NULL: runs are waited for */
    void *sampler;
    int32_t *there; /* the table in the backend's memory; NULL: every graph has its own */
    bool *changed;  /* [slots]: rows of the table that `there` has not seen */
};

static void close_graph(row_graph *g) {
    if (!g) return;
    weft_exec_destroy(g->exec);
    weft_cached_destroy(&g->graph);
    WEFT_FREE(g->taken, g->bindings, g);
}

WEFT_ENDED_BY(close_graph, row_graph)

static int64_t table_bytes(const weft_decoder *d) {
    return d->limits.slots * d->limits.table_pages * (int64_t)sizeof *d->table;
}

void weft_decoder_close(weft_decoder *d) {
    if (!d) return;
    if (d->sampler) d->samplers->close(d->sampler);
    for (int i = 0; i < d->n_graphs; i++)
        close_graph(d->graphs[i]);
    for (int64_t i = 0; i < d->n_states; i++)
        if (d->states[i].data) d->backend->release(d->states[i].data, d->states[i].bytes);
    if (d->there) d->backend->release(d->there, table_bytes(d));
    weft_generation_weights_destroy(d->weights);
    WEFT_FREE(d->states, d->table, d->ints, d->changed, d);
}

static weft_status refuse_cache(const weft_decoder *d) {
    double tokens = (double)d->limits.pages * WEFT_PAGE_TOKENS;
    double bytes = tokens * (double)weft_cached_token_bytes(&d->model->config, d->model->dtype);
    return weft_fail(WEFT_ENOMEM,
                     "no memory for a cache of %.0f tokens, %.1f GiB; ask for fewer sequences, a "
                     "shorter context or a smaller cache",
                     tokens, bytes / 0x1p30);
}

/* Makes room for the states that a graph has; every graph has the same. */
static weft_status make_states(weft_decoder *d, const weft_graph *g) {
    int64_t tensors = weft_graph_tensor_count(g);
    WEFT_ROOM_AT(d->states, tensors + 1, "generate: no memory");
    for (int64_t i = 0; i < tensors; i++) {
        const weft_tensor *t = weft_graph_tensor_at(g, i);
        if (t->role != WEFT_ROLE_STATE) continue;
        shared_state *s = d->states + d->n_states;
        snprintf(s->name, sizeof s->name, "%s", t->name);
        s->bytes = weft_tensor_bytes(t);
        s->data = d->backend->alloc(s->bytes);
        if (!s->data) return refuse_cache(d);
        d->n_states++;
        if (strstr(t->name, ".cache.")) {
            d->page_bytes += s->bytes;
        } else {
            s->slot_bytes = s->bytes / d->limits.slots;
            d->state_bytes += s->slot_bytes;
        }
    }
    return WEFT_OK;
}

static weft_status bind_graph(weft_decoder *d, row_graph *g) {
    const weft_graph *graph = g->graph.model.graph;
    int64_t tensors = weft_graph_tensor_count(graph), n = 0;
    WEFT_ROOM_AT(g->bindings, tensors + 1, "generate: no memory");
    for (int64_t i = 0; i < tensors; i++) {
        const weft_tensor *t = weft_graph_tensor_at(graph, i);
        if (t->view_of) continue;
        void *data = NULL;
        if (t->role == WEFT_ROLE_STATE) {
            const shared_state *s = d->states, *end = s + d->n_states;
            while (s < end && strcmp(s->name, t->name) != 0)
                s++;
            if (s == end || s->bytes != weft_tensor_bytes(t))
                return weft_fail(WEFT_EBUG, "generate: state '%s' differs between graphs", t->name);
            data = s->data;
        } else if (t == g->graph.rows.table) {
            data = d->there;
        } else if (t->role != WEFT_ROLE_TEMP) {
            data = weft_generation_weights_at(d->weights, t->name);
            if (!data && t->role == WEFT_ROLE_PARAM)
                return weft_fail(WEFT_EBUG, "generate: no weight '%s'", t->name);
        }
        if (data) g->bindings[n++] = (weft_binding){t, data};
    }
    return WEFT_OK;
}

static weft_status open_graph(weft_decoder *d, const graph_use *use, row_graph **out) {
    *out = NULL;
    WEFT_NEW(row_graph, g, close_graph, "generate: no memory");
    const weft_config *c = &d->model->config;
    weft_cached_shape shape = {
        .rows = use->rows,
        .wanted = use->wanted,
        .block = use->block,
        .slots = d->limits.slots,
        .pages = d->limits.pages,
        .context = d->limits.context,
        .table_pages = d->limits.table_pages,
        .dtype = d->model->dtype,
        .cache_dtype = weft_cached_dtype(c, d->model->dtype),
        .head_copy = d->model->dtype == WEFT_F32 &&
                     (c->weight_dtype == WEFT_WEIGHT_BF16 || c->weight_dtype == WEFT_WEIGHT_INT8)};
    WEFT_TRY(weft_cached_build(c, &shape, &g->graph));
    WEFT_TRY(weft_fuse(g->graph.model.graph));
    const weft_sampler_backend *samplers = d->backend->samplers;
    weft_foldable foldable = samplers && samplers->folds ? samplers->folds() : (weft_foldable){0};
    WEFT_AUTO_FREE weft_fold *folds = NULL;
    int64_t n_folds = 0;
    WEFT_TRY(
        weft_fold_products(g->graph.model.graph, foldable.width, foldable.bytes, &folds, &n_folds));
    if (!d->weights)
        WEFT_TRY(weft_generation_weights_make(d->model, d->backend, d->pool, &g->graph, folds,
                                              n_folds, &d->weights));
    if (!d->states) WEFT_TRY(make_states(d, g->graph.model.graph));
    weft_generation_weights_apply(d->weights, g->graph.model.graph);
    WEFT_TRY(bind_graph(d, g));
    weft_exec_options options = {.bindings = g->bindings, .plan = {.linger = samplers ? 3 : 0}};
    WEFT_TRY(weft_exec_create(g->graph.model.graph, d->backend, d->pool, &options, &g->exec));
    const weft_tensor *rotations = g->graph.rotations;
    if (rotations) {
        int64_t count = weft_tensor_count(rotations);
        WEFT_ROOM(double, values, count, "generate: no memory");
        WEFT_ROOM(unsigned char, data, weft_tensor_bytes(rotations), "generate: no memory");
        weft_cached_rotations(&g->graph, values);
        weft_weight to = {.dtype = rotations->dtype, .count = count, .data = data};
        weft_weight_write(&to, values);
        WEFT_TRY(weft_exec_write(g->exec, rotations, data));
    }
    g->use = *use;
    if (use->apart)
        WEFT_ROOM_AT(g->taken, weft_graph_node_count(g->graph.model.graph), "generate: no memory");
    *out = d->graphs[d->n_graphs++] = weft_steal(&g);
    return WEFT_OK;
}

/* Numbers of rows for which there are graphs: powers of two. */
static int64_t round_rows(int64_t rows) {
    int64_t n = 1;
    while (n < rows)
        n *= 2;
    return n;
}

static weft_status find_graph(weft_decoder *d, const graph_use *use, row_graph **out) {
    for (int i = 0; i < d->n_graphs; i++) {
        const graph_use *has = &d->graphs[i]->use;
        *out = d->graphs[i];
        if (has->rows == use->rows && has->wanted == use->wanted && has->block == use->block &&
            has->apart == use->apart)
            return WEFT_OK;
    }
    return open_graph(d, use, out);
}

weft_status weft_decoder_open(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                              const weft_decoder_limits *limits, weft_decoder **out) {
    *out = NULL;
    WEFT_TRY(weft_cached_check(&m->config));
    WEFT_NEW(weft_decoder, d, weft_decoder_close, "generate: no memory");
    *d = (weft_decoder){.model = m, .backend = backend, .pool = pool, .limits = *limits};
    d->table = calloc((size_t)(limits->slots * d->limits.table_pages), sizeof *d->table);
    /* In f32 the products of training are faster. */
    if (backend->samplers && backend->samplers->reads && m->dtype == WEFT_BF16)
        d->reads = backend->samplers->reads();
    int64_t rows = d->reads > WEFT_DECODER_BLOCK ? d->reads : WEFT_DECODER_BLOCK;
    d->ints = calloc((size_t)(4 * rows), sizeof *d->ints);
    d->changed = calloc((size_t)limits->slots, sizeof *d->changed);
    row_graph *first;
    if (d->backend->samplers) d->there = backend->alloc(table_bytes(d));
    if (!d->table || !d->ints || !d->changed || (!d->there && backend->samplers))
        return refuse_cache(d);
    WEFT_TRY(open_graph(d, &(graph_use){.rows = 1, .wanted = 1}, &first));
    if (d->there)
        WEFT_TRY(
            backend->samplers->open(first->exec, d->there, d->limits.table_pages, &d->sampler));
    if (d->sampler) d->samplers = backend->samplers;
    return weft_hand(&d, out);
}

int32_t *weft_decoder_table(weft_decoder *d, int32_t slot) {
    d->changed[slot] = true;
    return d->table + slot * d->limits.table_pages;
}

static weft_status read_logits(const row_graph *g, int64_t count, float *logits) {
    const weft_tensor *t = g->graph.logits;
    int64_t wanted = count * weft_tensor_width(t), all = weft_tensor_count(t);
    WEFT_AUTO_FREE void *values = malloc((size_t)weft_tensor_bytes(t));
    if (!values) return weft_fail(WEFT_ENOMEM, "generate: no memory for logits");
    WEFT_TRY(weft_exec_read(g->exec, t, values));
    weft_weight read = {.dtype = t->dtype, .count = wanted < all ? wanted : all, .data = values};
    weft_weight_floats(&read, logits);
    return WEFT_OK;
}

int64_t weft_decoder_rows(const weft_decoder *d) {
    return d->sampler ? d->samplers->rows : WEFT_DECODER_ROWS;
}

bool weft_decoder_samples(const weft_decoder *d) {
    return d->sampler != NULL;
}

bool weft_decoder_draws(const weft_decoder *d) {
    return d->sampler && d->samplers->draws();
}

weft_status weft_decoder_begin(weft_decoder *d, const weft_decoder_row *rows, int64_t n,
                               const weft_draw *draws) {
    weft_run_rows run = {.count = n};
    for (int64_t r = 0; r < n; r++) {
        int32_t slot = rows[r].slot, token = rows[r].token;
        if (token < -WEFT_RUN_ROWS || token >= d->model->config.vocab_size)
            return WEFT_BAD_INPUT("generate: token %d, but the model knows 0 to %lld", (int)token,
                                  (long long)d->model->config.vocab_size - 1);
        run.token[r] = token;
        run.position[r] = rows[r].position;
        run.slot[r] = slot;
        if (draws && !weft_draw_is_plain(draws + r)) run.draws = draws;
        if (!d->changed[slot]) continue;
        const int32_t *pages = d->table + slot * d->limits.table_pages;
        WEFT_TRY(d->samplers->set_pages(d->sampler, slot, pages));
        d->changed[slot] = false;
    }
    row_graph *g;
    int64_t room = round_rows(run.count);
    WEFT_TRY(find_graph(d, &(graph_use){.rows = room, .wanted = room}, &g));
    weft_sampler_graph graph = {.exec = g->exec,
                                .tokens = g->graph.model.tokens,
                                .position = g->graph.rows.position,
                                .slot = g->graph.rows.slot,
                                .wanted = g->graph.wanted,
                                .logits = g->graph.logits};
    WEFT_TRY(weft_mirror_use(d->model->mirror, d->backend));
    return d->samplers->start(d->sampler, &graph, &run);
}

weft_status weft_decoder_end(weft_decoder *d, int32_t *tokens) {
    return d->samplers->finish(d->sampler, tokens);
}

/* Rows that are wanted beside each other are copied at once. */
weft_status weft_decoder_run_sampling(weft_decoder *d, const weft_decoder_row *rows, int64_t n,
                                      const weft_draw *draws, float *logits, int32_t *sampled) {
    WEFT_TRY(weft_decoder_begin(d, rows, n, draws));
    WEFT_TRY(weft_decoder_end(d, sampled));
    for (int64_t r = 0; r < n;) {
        int64_t first = r;
        while (r < n && rows[r].wanted)
            r++;
        if (r > first) WEFT_TRY(d->samplers->logits(d->sampler, first, r - first, logits));
        logits += (r - first) * d->model->config.vocab_size;
        r += r == first;
    }
    return WEFT_OK;
}

/* What is in d->ints, of so many rows, to a graph's inputs. */
static weft_status write_inputs(weft_decoder *d, const row_graph *g, int64_t rows) {
    WEFT_TRY(weft_exec_write(g->exec, g->graph.model.tokens, d->ints));
    WEFT_TRY(weft_exec_write(g->exec, g->graph.rows.position, d->ints + rows));
    WEFT_TRY(weft_exec_write(g->exec, g->graph.rows.slot, d->ints + 2 * rows));
    WEFT_TRY(weft_exec_write(g->exec, g->graph.wanted, d->ints + 3 * rows));
    WEFT_TRY(weft_exec_write(g->exec, g->graph.rows.table, d->table));
    return weft_mirror_use(d->model->mirror, d->backend);
}

/* Puts rows into a graph for as many, for blocks and apart as `use` says; *wanted: how many of them are. */
static weft_status place_rows(weft_decoder *d, const weft_decoder_row *rows, int64_t n,
                              graph_use use, row_graph **out, int64_t *n_wanted) {
    if (use.block ? n != WEFT_DECODER_BLOCK : n < 1 || n > weft_decoder_rows(d))
        return weft_fail(WEFT_EBUG, "generate: a run of %lld rows", (long long)n);
    int64_t room = round_rows(n), count = 0;
    int32_t *tokens = d->ints, *position = tokens + room, *slot = position + room;
    int32_t *wanted = slot + room;
    memset(d->ints, 0, (size_t)(4 * room) * sizeof *d->ints);
    for (int64_t r = 0; r < room; r++)
        slot[r] = -1;
    for (int64_t r = 0; r < n; r++) {
        tokens[r] = rows[r].token;
        position[r] = rows[r].position;
        slot[r] = rows[r].slot;
        if (rows[r].wanted) wanted[count++] = (int32_t)r;
    }
    use.rows = room;
    use.wanted = count <= 1 ? 1 : room;
    WEFT_TRY(find_graph(d, &use, out));
    *n_wanted = count;
    return write_inputs(d, *out, room);
}

weft_status weft_decoder_read(weft_decoder *d, int32_t slot, const int32_t *tokens, int64_t first,
                              int64_t n) {
    if (n < 1 || n > d->reads)
        return weft_fail(WEFT_EBUG, "generate: %lld rows of a prompt", (long long)n);
    row_graph *g;
    int64_t room = round_rows(n);
    WEFT_TRY(find_graph(d, &(graph_use){.rows = room, .wanted = 1}, &g));
    memset(d->ints, 0, (size_t)(4 * room) * sizeof *d->ints);
    memcpy(d->ints, tokens, (size_t)n * sizeof *tokens);
    for (int64_t r = 0; r < room; r++) {
        d->ints[room + r] = r < n ? (int32_t)(first + r) : 0;
        d->ints[2 * room + r] = r < n ? slot : -1;
    }
    WEFT_TRY(write_inputs(d, g, room));
    return weft_exec_run(g->exec, &(weft_run){.alone = true});
}

static weft_status run_and_wait(weft_decoder *d, const weft_decoder_row *rows, int64_t n,
                                bool block, float *logits) {
    row_graph *g;
    int64_t wanted;
    WEFT_TRY(place_rows(d, rows, n, (graph_use){.block = block}, &g, &wanted));
    WEFT_TRY(weft_exec_run(g->exec, &(weft_run){0}));
    return wanted ? read_logits(g, wanted, logits) : WEFT_OK;
}

weft_status weft_decoder_run(weft_decoder *d, const weft_decoder_row *rows, int64_t n,
                             float *logits) {
    int32_t sampled[WEFT_DECODER_ROWS_MAX];
    if (weft_decoder_samples(d) && n >= 1 && n <= weft_decoder_rows(d))
        return weft_decoder_run_sampling(d, rows, n, NULL, logits, sampled);
    return run_and_wait(d, rows, n, false, logits);
}

weft_status weft_decoder_run_block(weft_decoder *d, const weft_decoder_row *rows, float *logits) {
    return run_and_wait(d, rows, WEFT_DECODER_BLOCK, true, logits);
}

weft_status weft_decoder_run_piece(weft_decoder *d, const weft_decoder_row *rows, int64_t n,
                                   bool block, double seconds, float *logits, bool *done) {
    *done = true;
    if (d->backend->run || weft_decoder_samples(d))
        return block ? weft_decoder_run_block(d, rows, logits)
                     : weft_decoder_run(d, rows, n, logits);
    row_graph *g = d->begun;
    graph_use use = {.block = block, .apart = true};
    if (!g) WEFT_TRY(place_rows(d, rows, n, use, &g, &d->begun_wanted));
    if (!d->begun) d->begun_at = 0;
    d->begun = NULL;
    /* Operations from where it stopped on, for so long. */
    double start = weft_clock(), now = start, end = start + seconds;
    int64_t count = weft_graph_node_count(g->graph.model.graph);
    for (; d->begun_at < count && (now == start || now + g->taken[d->begun_at] <= end);
         ++d->begun_at) {
        double before = now;
        WEFT_TRY(weft_exec_walk_part(g->exec, d->begun_at, d->begun_at + 1));
        now = weft_clock();
        g->taken[d->begun_at] = now - before;
    }
    *done = d->begun_at == weft_graph_node_count(g->graph.model.graph);
    if (!*done) d->begun = g;
    return *done && d->begun_wanted ? read_logits(g, d->begun_wanted, logits) : WEFT_OK;
}

void weft_decoder_drop(weft_decoder *d) {
    d->begun = NULL;
}

WEFT_GETTER(int64_t, weft_decoder_reads, weft_decoder, reads)
WEFT_GETTER(int64_t, weft_decoder_state_bytes, weft_decoder, state_bytes)
WEFT_GETTER(int64_t, weft_decoder_page_bytes, weft_decoder, page_bytes)

/* A slot's states to the host's memory, or from there. */
static weft_status move_states(const weft_decoder *d, int32_t slot, char *to, const char *from) {
    for (int64_t i = 0, at = 0; i < d->n_states; at += d->states[i++].slot_bytes) {
        int64_t bytes = d->states[i].slot_bytes;
        char *state = d->states[i].data + slot * bytes;
        if (!bytes) continue;
        WEFT_TRY(to ? d->backend->download(to + at, state, bytes)
                    : d->backend->upload(state, from + at, bytes));
    }
    return WEFT_OK;
}

weft_status weft_decoder_save(const weft_decoder *d, int32_t slot, void *to) {
    return move_states(d, slot, to, NULL);
}

weft_status weft_decoder_load(weft_decoder *d, int32_t slot, const void *from) {
    return move_states(d, slot, NULL, from);
}

/* Four bytes of 0x3c are 0.0115 in f32, two of them the same in bf16, one is 60 in i8. */
weft_status weft_decoder_fill(weft_decoder *d) {
    for (int64_t i = 0; i < d->n_states; i++) {
        if (d->states[i].slot_bytes) continue;
        if (d->backend->fill)
            WEFT_TRY(d->backend->fill(d->states[i].data, 0x3c, d->states[i].bytes));
        else
            memset(d->states[i].data, 0x3c, (size_t)d->states[i].bytes);
    }
    return WEFT_OK;
}

int64_t weft_decoder_weight_bytes(const weft_decoder *d) {
    return weft_generation_weights_bytes(d->weights);
}
