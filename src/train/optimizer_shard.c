/* How ranks share a row of weights, and what is more to do where they share the optimizer's state.
 *
 * A step: each rank adds up its chunks' part of the norm; the parts are gathered and joined by all in
 * the order of the row, so that all decide alike; each updates its stretches, and its new weights go
 * to the others, bucket by bucket.
 *
 * A checkpoint is written and read by rank 0, tensor after tensor: it says which one is next, and the
 * owners send or get their stretches of it. So no rank ever has the whole state. */
#include "train/optimizer_internal.h"

enum { UNDER_WAY = 4 }; /* buckets of weights */

/* The chunks that a norm is added up in, of so many numbers. */
static int64_t norm_chunks(int64_t count) {
    return (count + WEFT_NORM_CHUNK - 1) / WEFT_NORM_CHUNK;
}

weft_status weft_partition_make(const weft_model *m, const weft_comm *comm, weft_partition *out) {
    int64_t n = 0;
    for (int64_t w = 0; w < m->n_weights; w++)
        n += norm_chunks(m->weights[w].count);
    *out = (weft_partition){.model = m,
                            .n_norms = n,
                            .rank = weft_comm_rank(comm),
                            .dtype = m->dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32};
    WEFT_ROOM_AT(out->chunks, n + 1, "training: no memory");
    WEFT_ROOM_AT(out->borders, n + 1, "training: no memory");
    WEFT_ROOM_AT(out->first, m->n_weights + 1, "training: no memory");
    out->cut = (weft_cut){.borders = out->borders, .size = weft_comm_size(comm)};
    int64_t blocks = 0, at = 0, size = (int64_t)weft_dtype_size(out->dtype);
    for (int64_t w = 0; w < m->n_weights; w++) {
        const weft_weight *of = &m->weights[w];
        /* All of it is one block where ranks share Muon's state, which has matrices whole. */
        bool whole = m->config.shard != WEFT_SHARD_NONE &&
                     weft_muon_matrices(&m->config, of->name, of->ndim, of->shape).n > 0;
        int64_t count = of->count, length = whole ? count : WEFT_NORM_CHUNK;
        out->first[w] = blocks;
        for (int64_t first = 0; first < count; first += length) {
            int64_t left = count - first;
            out->borders[blocks] = at + first;
            out->chunks[blocks++] = (weft_stretch){w, first, left < length ? left : length, 0};
        }
        at += weft_arena_bytes(count * size) / size;
    }
    out->first[m->n_weights] = out->cut.n_blocks = blocks;
    out->borders[blocks] = at;
    int64_t largest = weft_cut_largest(&out->cut) * size;
    if (largest <= INT32_MAX) return WEFT_OK;
    return WEFT_BAD_INPUT("training: a rank's matrices make a message of %lld bytes, past 2^31 - "
                          "1; take CONFIG_SHARD=\"none\", or CONFIG_OPTIMIZER=\"adamw\"",
                          (long long)largest);
}

void weft_partition_free(weft_partition *s) {
    WEFT_FREE(s->chunks, s->borders, s->first);
    *s = (weft_partition){0};
}

int64_t weft_partition_offset(const weft_partition *s, int64_t weight) {
    return s->borders[s->first[weight]] * (int64_t)weft_dtype_size(s->dtype);
}

int64_t weft_partition_owned(const weft_partition *s, int rank, weft_stretch *out) {
    int64_t n = 0, at = 0;
    weft_stretch last = {.weight = -1};
    for (int64_t b = 0; b < weft_cut_buckets(&s->cut); b++) {
        weft_span p = weft_cut_piece(&s->cut, b, rank);
        for (int64_t i = p.first; i < p.first + p.count; i++) {
            weft_stretch c = s->chunks[i];
            if (c.weight == last.weight && c.first == last.first + last.count) {
                last.count += c.count;
            } else {
                last = c;
                last.at = at + s->borders[i] - s->borders[p.first];
                n++;
            }
            if (out) out[n - 1] = last;
        }
        at += weft_cut_numbers(&s->cut, p).count;
    }
    return n;
}

/* The weights' own bytes of neighbouring chunks: they lie together. */
static void *weights_of(const weft_partition *s, weft_span blocks, int64_t *bytes) {
    *bytes = 0;
    if (blocks.count == 0) return NULL;
    const weft_stretch *a = &s->chunks[blocks.first], *b = a + blocks.count - 1;
    const weft_weight *first = &s->model->weights[a->weight], *last = &s->model->weights[b->weight];
    unsigned char *begin =
        (unsigned char *)first->data + (size_t)a->first * weft_dtype_size(first->dtype);
    unsigned char *end =
        (unsigned char *)last->data + (size_t)(b->first + b->count) * weft_dtype_size(last->dtype);
    *bytes = end - begin;
    return begin;
}

weft_status weft_optimizer_shard_open(weft_optimizer *o) {
    WEFT_TRY(weft_partition_make(o->model, o->comm, &o->shards));
    size_t most = (size_t)o->shards.n_norms + 1, ranks = (size_t)o->shards.cut.size;
    WEFT_ROOM_AT(o->parts, most, "optimizer: no memory");
    WEFT_ROOM_AT(o->ordered, most, "optimizer: no memory");
    WEFT_ROOM_AT(o->order, most, "optimizer: no memory");
    WEFT_ROOM_AT(o->counts, ranks, "optimizer: no memory");
    WEFT_ROOM_AT(o->begins, ranks, "optimizer: no memory");
    return WEFT_OK;
}

const weft_partition *weft_optimizer_shards(const weft_optimizer *o) {
    return o->comm ? &o->shards : NULL;
}

weft_status weft_optimizer_shard_bind(weft_optimizer *o, const weft_gradient *gradients) {
    int64_t n = o->n_slots;
    /* Where the parts of the norm, in the order of the row, come among the gathered ones: rank
     * after rank, each in that order. */
    const weft_partition *s = &o->shards;
    int at = 0, bytes = (int)sizeof *o->parts;
    memset(o->counts, 0, (size_t)s->cut.size * sizeof *o->counts);
    for (int64_t i = 0; i < s->cut.n_blocks; i++)
        if (gradients[s->chunks[i].weight].data)
            o->counts[weft_cut_owner(&s->cut, i)] += bytes * (int)norm_chunks(s->chunks[i].count);
    for (int r = 0; r < s->cut.size; r++) {
        o->begins[r] = at;
        at += o->counts[r];
        o->counts[r] = 0;
    }
    o->n_ordered = 0;
    for (int64_t i = 0; i < s->cut.n_blocks; i++) {
        int r = weft_cut_owner(&s->cut, i);
        if (!gradients[s->chunks[i].weight].data) continue;
        for (int64_t k = 0; k < norm_chunks(s->chunks[i].count); k++, o->counts[r] += bytes)
            o->order[o->n_ordered++] = (o->begins[r] + o->counts[r]) / bytes;
    }
    if (o->n_ordered == 0) return WEFT_BAD_INPUT("optimizer: no weight has a gradient");
    WEFT_ROOM(weft_binding, bindings, n + 1, "optimizer: no memory");
    WEFT_ROOM(weft_tensor *, grads, n + 1, "optimizer: no memory");
    weft_optimizer_binder b = {.o = o, .bindings = bindings};
    int given = 0;
    WEFT_TRY(weft_graph_create(&o->norm_graph));
    b.graph = o->norm_graph;
    for (int64_t i = 0; i < o->n_slots; i++) {
        const weft_gradient *g = &o->bound[i];
        if (g->data)
            grads[given++] = weft_optimizer_tensor(&b, WEFT_ROLE_INPUT, "grad", &o->slots[i].part,
                                                   g->dtype, g->data);
    }
    if (given == 0) return WEFT_OK;
    o->norm_parts = weft_keep(weft_norm_parts(o->norm_graph, grads, given));
    WEFT_TRY(weft_graph_status(o->norm_graph));
    weft_exec_options options = {.bindings = bindings};
    return weft_exec_create(o->norm_graph, o->backend, o->pool, &options, &o->norm_exec);
}

weft_status weft_optimizer_shard_before(weft_optimizer *o) {
    int rank = o->shards.rank;
    if (o->norm_exec) {
        WEFT_TRY(weft_exec_run(o->norm_exec, NULL));
        WEFT_TRY(weft_exec_read(o->norm_exec, o->norm_parts,
                                (unsigned char *)o->parts + o->begins[rank]));
    }
    WEFT_TRY(weft_comm_gather_parts(o->comm, o->parts, o->counts, o->begins));
    for (int64_t i = 0; i < o->n_ordered; i++)
        o->ordered[i] = o->parts[o->order[i]];
    return weft_exec_write(o->exec, o->all_parts, o->ordered);
}

typedef struct {
    weft_transfer *transfers; /* [2 ranks] */
    weft_comm_job job;
} weights_job;

/* The own piece to all, theirs to here. Where the backend's memory is not the host's, the host's side
 * of the weights is the way through. */
static weft_status begin_weights(weft_optimizer *o, int64_t bucket, weights_job *w) {
    const weft_partition *s = &o->shards;
    int64_t n = 0, own_bytes, bytes;
    void *own = weights_of(s, weft_cut_piece(&s->cut, bucket, s->rank), &own_bytes);
    if (o->backend->remote && own_bytes)
        WEFT_TRY(o->backend->download(own, weft_mirror_at(o->model->mirror, o->backend, own),
                                      own_bytes));
    for (int r = 0; r < s->cut.size; r++) {
        if (r == s->rank) continue;
        void *theirs = weights_of(s, weft_cut_piece(&s->cut, bucket, r), &bytes);
        if (own_bytes) w->transfers[n++] = (weft_transfer){r, true, own, own_bytes};
        if (bytes) w->transfers[n++] = (weft_transfer){r, false, theirs, bytes};
    }
    w->job = (weft_comm_job){
        .kind = WEFT_JOB_EXCHANGE, .transfers = w->transfers, .count = n, .tag = bucket};
    return weft_comm_begin(o->comm, &w->job);
}

static weft_status give_weights(weft_optimizer *o, weights_job *jobs) {
    int64_t n = weft_cut_buckets(&o->shards.cut);
    for (int64_t b = 0; b < n + UNDER_WAY; b++) {
        weights_job *w = &jobs[b % UNDER_WAY];
        if (b >= UNDER_WAY) WEFT_TRY(weft_comm_wait(o->comm, &w->job));
        for (int64_t i = 0; o->backend->remote && i < w->job.count; i++) {
            const weft_transfer *t = &w->transfers[i];
            if (!t->send)
                WEFT_TRY(o->backend->upload(weft_mirror_at(o->model->mirror, o->backend, t->data),
                                            t->data, t->bytes));
        }
        if (b < n) WEFT_TRY(begin_weights(o, b, w));
    }
    return WEFT_OK;
}

/* How many elements spike clipping cut, of all ranks. */
static weft_status count_cuts(weft_optimizer *o) {
    int ranks = o->shards.cut.size;
    int32_t own = 0, *all = weft_message_memory((size_t)ranks, sizeof *all);
    if (!all) return weft_no_memory("optimizer");
    weft_status status = o->cut ? weft_exec_read(o->exec, o->cut, &own) : WEFT_OK;
    if (status == WEFT_OK) status = weft_comm_gather(o->comm, &own, sizeof own, all);
    o->cut_of_all = 0;
    for (int r = 0; r < ranks; r++)
        o->cut_of_all += all[r];
    if (o->cut_of_all > INT32_MAX) o->cut_of_all = INT32_MAX;
    weft_message_done(all, status);
    return status;
}

weft_status weft_optimizer_shard_after(weft_optimizer *o) {
    weights_job jobs[UNDER_WAY] = {{0}};
    size_t most = 2 * (size_t)o->shards.cut.size;
    weft_transfer *transfers = weft_message_memory(UNDER_WAY * most, sizeof *transfers);
    if (!transfers) return weft_no_memory("optimizer");
    for (size_t i = 0; i < UNDER_WAY; i++)
        jobs[i].transfers = transfers + i * most;
    weft_status status = give_weights(o, jobs);
    if (status == WEFT_OK && o->options.theta > 0) status = count_cuts(o);
    weft_message_done(transfers, status);
    return status;
}

weft_status weft_optimizer_move(const weft_optimizer *o, int64_t index, unsigned char *tensor,
                                bool collect) {
    const weft_partition *s = &o->shards;
    const weft_state_key *key = &o->keys[index];
    int64_t size = (int64_t)weft_dtype_size(o->state[index].dtype), n = 0;
    if (key->kind == WEFT_STATE_CONTROL) { /* every rank has it */
        if (!collect) return weft_comm_broadcast(o->comm, o->control_state, o->state[index].bytes);
        if (s->rank == 0) memcpy(tensor, o->control_state, (size_t)o->state[index].bytes);
        return WEFT_OK;
    }
    int64_t chunk = s->first[key->weight], end = s->first[key->weight + 1];
    weft_transfer *transfers = weft_message_memory((size_t)(end - chunk) + 1, sizeof *transfers);
    if (!transfers) return weft_no_memory("optimizer");
    while (chunk < end) {
        weft_stretch part = s->chunks[chunk]; /* and what follows it that the same rank owns */
        int owner = weft_cut_owner(&s->cut, chunk);
        while (++chunk < end && weft_cut_owner(&s->cut, chunk) == owner)
            part.count += s->chunks[chunk].count;
        unsigned char *place = tensor ? tensor + part.first * size : NULL;
        unsigned char *own = NULL;
        for (int64_t i = 0; owner == s->rank && i < o->n_slots; i++)
            if (o->slots[i].part.weight == part.weight && o->slots[i].part.first == part.first)
                own = o->slots[i].of[key->kind];
        if (s->rank == 0 && owner == 0)
            memcpy(collect ? place : own, collect ? own : place, (size_t)(part.count * size));
        else if (s->rank == 0)
            transfers[n++] = (weft_transfer){owner, !collect, place, part.count * size};
        else if (owner == s->rank)
            transfers[n++] = (weft_transfer){0, collect, own, part.count * size};
    }
    weft_status status = weft_comm_exchange(o->comm, transfers, n);
    weft_message_done(transfers, status);
    return status;
}

weft_status weft_optimizer_collect(void *context, const weft_safetensor *t, const void **data) {
    weft_optimizer_collector *c = context;
    int64_t index = 0;
    while (strcmp(c->o->state[index].name, t->name) != 0)
        index++;
    free(c->tensor);
    c->tensor = malloc((size_t)c->o->state[index].bytes);
    if (!c->tensor) return weft_fail(WEFT_ENOMEM, "optimizer: no memory for '%s'", t->name);
    WEFT_TRY(weft_comm_broadcast(c->o->comm, &index, sizeof index));
    WEFT_TRY(weft_optimizer_move(c->o, index, c->tensor, true));
    *data = c->tensor;
    return WEFT_OK;
}

weft_status weft_optimizer_serve(weft_optimizer *o) {
    if (!o->comm) return WEFT_OK;
    WEFT_TRY(weft_mirror_use(o->mirror, NULL));
    for (;;) {
        int64_t index;
        WEFT_TRY(weft_comm_broadcast(o->comm, &index, sizeof index));
        if (index < 0) return WEFT_OK;
        WEFT_TRY(weft_optimizer_move(o, index, NULL, true));
    }
}

weft_status weft_optimizer_served(weft_optimizer *o) {
    int64_t over = -1;
    return weft_comm_broadcast(o->comm, &over, sizeof over);
}

/* Rank 0's tensor out of the file, aligned. */
static weft_status read_state(const weft_optimizer *o, int64_t index, unsigned char **tensor) {
    const weft_weight *w = &o->state[index];
    weft_message_done(*tensor, WEFT_OK);
    *tensor = weft_message_memory((size_t)w->bytes, 1);
    if (!*tensor) return weft_fail(WEFT_ENOMEM, "optimizer: no memory for '%s'", w->name);
    memcpy(*tensor, weft_safetensors_find(o->file, w->name)->data, (size_t)w->bytes);
    if (o->keys[index].kind == WEFT_STATE_CONTROL)
        memcpy(o->control_state, *tensor, (size_t)w->bytes);
    return WEFT_OK;
}

weft_status weft_optimizer_give_out(weft_optimizer *o) {
    bool has = o->file != NULL;
    unsigned char *tensor = NULL;
    if (!o->comm) return WEFT_OK;
    WEFT_TRY(weft_comm_broadcast(o->comm, &has, sizeof has));
    weft_status status = weft_mirror_use(o->mirror, NULL);
    for (int64_t i = 0; has && status == WEFT_OK && i < o->n_state; i++) {
        if (o->shards.rank == 0) status = read_state(o, i, &tensor);
        if (status == WEFT_OK) status = weft_optimizer_move(o, i, tensor, false);
    }
    weft_message_done(tensor, status);
    weft_mirror_wrote(o->mirror, NULL);
    weft_safetensors_close(weft_steal(&o->file));
    return status;
}
