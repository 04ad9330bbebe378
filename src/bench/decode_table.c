/* Decoding, measured. A row is one variant with its caches filled up to a context, and `batch`
 * sequences that each make the token behind it, again and again. Beside it stands the floor: the
 * bytes that a step must read (every weight once, and every sequence's cache) over the rate at which
 * this machine reads a large buffer, measured between the rows of the same run.
 *
 * Caches are filled with a constant: what is read is what counts, and filling 32k tokens by computing
 * them would take longer than all the rest. Time to the first token of a prompt stands beside the
 * training forward pass over as many tokens. */
#include "base/clock.h"
#include "base/json.h"
#include "bench/tables.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "generate/decoder.h"
#include "generate/generator.h"
#include "model/session.h"

enum { STEPS_MAX = 200, SAMPLED_MAX = 2000 };

typedef struct {
    const bench_options *opt;
    double row_seconds;
    weft_pool *pool;
    const weft_backend *backend;
    bench_peer *peer;
    char peer_name[256];
    bench_table table;
    json_t *rows, *left_out;
    char *buffer; /* that is read for the floor, in memory as the weights have */
    bench_decode_row *list;
    int n, *failed;
    double began, longest; /* when the run did, and what a row took */
    weft_model *model;     /* of the row that is measured */
} bench;

/* A read of one stream, of eight far from each other, and of eight that are near, as products read weights:
 * how far apart they lie decides which banks of memory they meet in. The last also asks for what comes,
 * where the processor itself does not look far enough ahead. */
enum {
    READ_TASKS = 64,
    READ_STREAMS = 8,
    NEAR = 36 << 10, /* twelve rows of 768 floats */
    AHEAD = 512,
    READ_BYTES = 28 * READ_STREAMS * NEAR,
    BUFFER_BYTES = READ_TASKS * READ_BYTES
};

typedef struct {
    const char *buffer;
    int64_t apart; /* of the streams that a task reads side by side; 0: it reads one */
    bool asks;
    uint64_t sums[READ_TASKS];
} reading;

typedef uint64_t words __attribute__((vector_size(64), aligned(8), may_alias));

/* Two sums, which every machine has registers for. */
WEFT_TASK(read_part) {
    reading *r = context;
    const char *at = r->buffer + task * READ_BYTES, *end = at + READ_BYTES;
    words sum[2] = {{0}, {0}};
    if (r->apart)
        for (; at < end; at += READ_STREAMS * r->apart)
            for (int64_t i = 0; i < r->apart; i += 64)
                for (int k = 0; k < READ_STREAMS; k++) {
                    const char *line = at + i + k * r->apart;
                    if (r->asks) __builtin_prefetch(line + AHEAD);
                    sum[k % 2] += *(const words *)line;
                }
    else
        for (; at < end; at += 128)
            for (int k = 0; k < 2; k++)
                sum[k] += *(const words *)(at + 64 * k);
    sum[0] += sum[1];
    for (int k = 0; k < 8; k++)
        r->sums[task] += sum[0][k];
}

/* Bytes a second, the best of a few reads in all ways. */
static double read_rate(bench *b) {
    if (b->backend->remote) return weft_cuda_read_rate();
    static const int64_t apart[] = {0, READ_BYTES / READ_STREAMS, NEAR, NEAR};
    double best = 0;
    reading r = {.buffer = b->buffer};
    for (int i = 0; i < 12; i++) {
        r.apart = apart[i % 4];
        r.asks = i % 4 == 3;
        double start = weft_clock();
        weft_pool_run(b->pool, READ_TASKS, read_part, &r);
        double rate = BUFFER_BYTES / (weft_clock() - start);
        best = rate > best ? rate : best;
    }
    volatile uint64_t used = r.sums[0]; /* so that the sums are made */
    (void)used;
    return best;
}

typedef struct {
    double step, spread, first, whole, floor, rate; /* seconds; bytes per second */
    double peer;
    int64_t bytes, weights, token_bytes;
    char form[16]; /* of the peer's, the one that was the fastest */
} result;

/* Run number `at` of those that a step of `batch` rows takes, of up to `room` each; without `logits` it is begun alone. */
static weft_status run_rows(weft_decoder *d, int64_t context, int64_t batch, int64_t room,
                            int64_t at, float *logits) {
    weft_decoder_row rows[WEFT_DECODER_ROWS_MAX] = {{0}};
    int64_t runs = (batch + room - 1) / room, first = at % runs * room;
    int64_t n = batch - first < room ? batch - first : room;
    bool follows = !logits && runs == 1 && at > 0; /* reads what the run before has made */
    for (int64_t k = 0; k < n; k++)
        rows[k] = (weft_decoder_row){follows ? -1 - (int32_t)k : 1, (int32_t)(context - 1),
                                     (int32_t)(first + k), true};
    return logits ? weft_decoder_run(d, rows, n, logits) : weft_decoder_begin(d, rows, n, NULL);
}

/* Seconds to the first token of a prompt, the better of two. */
static weft_status measure_first(const bench *b, const weft_model *m, int64_t prompt,
                                 double *seconds) {
    WEFT_AUTO(weft_generator_close_at) weft_generator *g = NULL;
    weft_generator_limits limits = {.sequences = 1, .context = prompt + 1, .no_sharing = true};
    WEFT_TRY(weft_generator_open(m, b->backend, b->pool, &limits, &g));
    WEFT_ROOM(int32_t, tokens, prompt, "bench: no memory");
    weft_sampling sampling = weft_sampling_default();
    sampling.temperature = 0;
    sampling.max_tokens = 1;
    for (int i = 0; i < 3; i++) { /* the first builds the graphs */
        int64_t id;
        double start = weft_clock();
        WEFT_TRY(weft_generator_add(g, tokens, prompt, &sampling, &id));
        while (weft_generator_busy(g))
            WEFT_TRY(weft_generator_step(g));
        double taken = weft_clock() - start;
        if (i < 2 || taken < *seconds) *seconds = taken;
        weft_generator_remove(g, id);
    }
    return WEFT_OK;
}

static weft_status measure_whole(const bench *b, const weft_model *m, int64_t time,
                                 double *seconds) {
    WEFT_AUTO(weft_session_close) weft_session s = {0};
    weft_build build = {.batch = 1, .time = time, .dtype = m->dtype};
    WEFT_TRY(weft_session_open(m, b->backend, b->pool, &build, false, false, &s));
    WEFT_ROOM(int32_t, tokens, time, "bench: no memory");
    for (int i = 0; i < 3; i++) {
        double start = weft_clock();
        WEFT_TRY(weft_session_run(&s, tokens, tokens, &(weft_run){0}));
        double taken = weft_clock() - start;
        if (i < 2 || taken < *seconds) *seconds = taken;
    }
    return WEFT_OK;
}

static json_t *make_request(const bench *b, const bench_decode_row *row) {
    const weft_config *c = &row->config;
    bool narrow = weft_config_dtype(c) == WEFT_BF16 || c->weight_dtype == WEFT_WEIGHT_BF16;
    return weft_json_make("do:s config:o context:I batch:I dtype:s device:s", "decode",
                          weft_config_to_json(c), row->context, row->batch, narrow ? "bf16" : "f32",
                          b->opt->cuda ? "cuda" : "cpu");
}

/* A row without the floor. */
static weft_status measure_decoder(bench *b, const weft_model *m, int64_t context, int64_t batch,
                                   result *r) {
    WEFT_AUTO(weft_decoder_close_at) weft_decoder *d = NULL;
    r->token_bytes = weft_cached_token_bytes(&m->config, m->dtype);
    r->bytes = batch * context * r->token_bytes;
    int64_t memory = b->backend->memory ? b->backend->memory() : 0;
    if (memory && r->bytes > memory - memory / 4)
        return weft_fail(WEFT_ENOMEM, "caches of %.1f GiB do not fit", (double)r->bytes / 0x1p30);
    int64_t table = weft_cached_table_pages(context);
    weft_decoder_limits limits = {batch, batch * table, context, table};
    WEFT_TRY(weft_decoder_open(m, b->backend, b->pool, &limits, &d));
    WEFT_TRY(weft_decoder_fill(d));
    for (int64_t s = 0; s < batch; s++)
        for (int64_t p = 0; p < table; p++)
            weft_decoder_table(d, (int32_t)s)[p] = (int32_t)(s * table + p);
    r->weights = weft_decoder_weight_bytes(d);
    /* Where tokens are sampled on the device the next run begins before the last one's are here,
     * as in generation. */
    bool samples = weft_decoder_samples(d);
    int64_t room = samples ? weft_decoder_rows(d) : WEFT_DECODER_ROWS, at = 0;
    int unmeasured = samples ? 10 : 2, least = samples ? 1 : 5,
        most = samples ? SAMPLED_MAX : STEPS_MAX;
    int32_t tokens[WEFT_DECODER_ROWS_MAX];
    WEFT_AUTO(bench_samples_free) bench_samples taken = {0};
    WEFT_AUTO_FREE float *logits = NULL;
    if (!samples)
        WEFT_ROOM_AT(logits, WEFT_DECODER_ROWS * m->config.vocab_size, "bench: no memory");
    if (samples) WEFT_TRY(run_rows(d, context, batch, room, at++, NULL));
    double begin = weft_clock(), last = begin;
    for (int i = -unmeasured; i < most; i++) {
        for (int64_t done = 0; done < batch; done += room) {
            WEFT_TRY(run_rows(d, context, batch, room, at++, logits));
            if (samples) WEFT_TRY(weft_decoder_end(d, tokens));
        }
        double now = weft_clock();
        if (i >= 0) bench_samples_add(&taken, now - last);
        last = now;
        if (i + 1 >= (b->opt->steps ? b->opt->steps : least) &&
            (b->opt->steps || now - begin > b->row_seconds))
            break;
    }
    if (samples) WEFT_TRY(weft_decoder_end(d, tokens));
    r->step = bench_median(&taken);
    r->spread = bench_spread(&taken);
    return WEFT_OK;
}

weft_status bench_decode_model(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                               int64_t batch, double *tokens_per_s) {
    const bench_options by_time = {0};
    bench b = {.opt = &by_time, .row_seconds = 1.5, .backend = backend, .pool = pool};
    result r = {0};
    WEFT_TRY(measure_decoder(&b, m, m->config.context, batch, &r));
    *tokens_per_s = (double)batch / r.step;
    return WEFT_OK;
}

static void leave_out(bench *b, const bench_decode_row *row, const char *why) {
    char name[BENCH_ROW_NAME];
    fprintf(stderr, "%s: left out, %s\n", bench_row_name(row, name), why);
    weft_json_append(b->left_out, "name:s why:s", name, why);
}

static weft_status measure_next(bench *b, const bench_decode_row *row) {
    const weft_config *c = &row->config;
    int64_t prompt = b->opt->prompt;
    result r = {0};
    char name[BENCH_ROW_NAME];
    if (!b->model) { /* of this row, and of the rows behind it that have the same */
        WEFT_TRY(weft_model_create(c, weft_config_dtype(c), NULL, &b->model));
        WEFT_TRY(weft_model_start(b->model, 1, b->pool));
        if (prompt) WEFT_TRY(measure_first(b, b->model, prompt, &r.first));
        if (prompt) WEFT_TRY(measure_whole(b, b->model, prompt, &r.whole));
    }
    double before = read_rate(b);
    weft_status status = measure_decoder(b, b->model, row->context, row->batch, &r);
    if (status == WEFT_ENOMEM) {
        leave_out(b, row, weft_error_message());
        return WEFT_OK;
    }
    WEFT_TRY(status);
    r.rate = fmax(before, read_rate(b));
    r.floor = ((double)r.weights + (double)r.bytes) / r.rate;
    if (b->peer) {
        WEFT_AUTO_DECREF json_t *reply = bench_peer_ask(b->peer, make_request(b, row));
        if (!reply)
            fprintf(stderr, "%s: %s\n", bench_row_name(row, name), bench_peer_error(b->peer));
        r.peer = json_number_value(json_object_get(reply, "seconds"));
        snprintf(r.form, sizeof r.form, "%s", weft_json_text_of(reply, "form"));
    }
    int digits = b->opt->cuda ? 3 : 1;
    double tokens = (double)row->batch, first = r.first > 0 ? r.first : NAN,
           peer = r.peer > 0 ? r.peer : NAN;
    if (row->model) bench_cells(&b->table, "%s", row->model);
    bench_cells(&b->table, "%s|%lld|%lld|%.1f|%.0f%%|%.*f|%.*f|%.0f%%|%lld|%.1f|%.1f|%.0f",
                row->variant->name, (long long)row->context, (long long)row->batch, tokens / r.step,
                100 * r.spread, digits, 1e3 * r.step, digits, 1e3 * r.floor, 100 * r.floor / r.step,
                (long long)r.token_bytes, (double)r.bytes / 0x1p20, (double)r.weights / 0x1p20,
                1e-9 * r.rate);
    if (!row->model)
        bench_cells(&b->table, "%.1f|%.2f", 1e3 * first, r.whole > 0 ? r.whole / first : NAN);
    bench_cells(&b->table, "%.1f|%.2f", tokens / peer, peer / r.step);
    json_t *object = weft_json_make(
        "variant:s context:I batch:I tokens_per_s:f seconds:f spread:f floor_seconds:f of_floor:f "
        "cache_bytes_per_token:I cache_bytes:I weight_bytes:I read_bytes_per_s:f dtype:s "
        "weight_dtype:s cache_dtype:s",
        row->variant->name, row->context, row->batch, (double)row->batch / r.step, r.step, r.spread,
        r.floor, r.floor / r.step, r.token_bytes, r.bytes, r.weights, r.rate,
        weft_config_word(c, WEFT_OPTION(dtype)), weft_config_word(c, WEFT_OPTION(weight_dtype)),
        weft_config_word(c, WEFT_OPTION(cache_dtype)));
    if (row->model) weft_json_add(object, "model:s name:s", row->model, bench_row_name(row, name));
    if (r.first > 0)
        weft_json_add(object, "first_token_seconds:f training_forward_seconds:f", r.first, r.whole);
    if (r.peer > 0)
        weft_json_add(object, "peer_seconds:f ratio:f peer_form:s*", r.peer, r.peer / r.step,
                      *r.form ? r.form : NULL);
    json_array_append_new(b->rows, object);
    return WEFT_OK;
}

static void measure_all(bench *b) {
    char columns[400];
    snprintf(columns, sizeof columns,
             "%svariant:-%d|context:7|batch:5|tokens/s:9|±:4|ms/step:8|floor ms:8|of floor:8|"
             "cache B/tok:11|cache MiB:9|weights MiB:11|read GB/s:9%s|PyTorch:8|ratio:6",
             b->opt->grid ? "model:-18|" : "", b->opt->grid ? 16 : 14,
             b->opt->grid ? "" : "|first ms:8|of forward:10");
    bench_table_start(&b->table, b->opt->table, columns);
    for (int i = 0; i < b->n; i++) {
        const bench_decode_row *row = b->list + i;
        double start = weft_clock();
        if (i && !bench_row_same_model(row - 1, row)) weft_model_destroy(weft_steal(&b->model));
        if (b->opt->minutes > 0 && start - b->began + b->longest > 60 * b->opt->minutes) {
            leave_out(b, row, "the minutes are over");
            continue;
        }
        if (measure_next(b, row) != WEFT_OK) {
            fprintf(stderr, "%s: %s\n", row->variant->name, weft_error_message());
            ++*b->failed;
            while (i + 1 < b->n && bench_row_same_model(row, b->list + i + 1))
                i++; /* they have the same fault */
            weft_model_destroy(weft_steal(&b->model));
        }
        b->longest = fmax(b->longest, weft_clock() - start);
    }
    weft_model_destroy(weft_steal(&b->model));
}

static weft_status list_rows(bench *b) {
    const bench_options *o = b->opt;
    int64_t contexts[BENCH_LIST_MAX], batches[BENCH_LIST_MAX], most = o->prompt + 1;
    int n_contexts, n_batches, n_names = 1;
    WEFT_TRY(bench_list_read(o->contexts ? o->contexts : "256,2048,8192,32768", "contexts", 1,
                             contexts, &n_contexts));
    WEFT_TRY(
        bench_list_read(o->batches ? o->batches : "1,8,64", "batches", 1, batches, &n_batches));
    for (int i = 0; i < n_contexts; i++)
        most = contexts[i] > most ? contexts[i] : most;
    const char *names = o->variants ? o->variants : "dot,w2,mla,mla+gate,mla+gate+cross,mla+all";
    for (const char *at = names; (at = strchr(at, ',')); at++)
        n_names++;
    WEFT_ROOM_AT(b->list, n_names * n_contexts * n_batches, "bench: no memory");
    for (; *names; names += strcspn(names, ","), names += *names == ',') {
        bench_decode_row row = {.variant = bench_variant_find(names)};
        if (!row.variant) return WEFT_BAD_INPUT("--variants: there is no '%s'", names);
        WEFT_TRY(bench_variant_config(row.variant, &o->source, &row.config));
        /* Positions without an end need no table; a learned one is as long as the longest context. */
        row.config.context = most;
        for (int i = 0; i < n_contexts * n_batches; i++) {
            b->list[b->n] = row;
            b->list[b->n].context = contexts[i / n_batches];
            b->list[b->n++].batch = batches[i % n_batches];
        }
    }
    return WEFT_OK;
}

static void end_bench(bench *b) {
    bench_peer_stop(b->peer);
    json_decref(b->rows);
    json_decref(b->left_out);
    free(b->list);
    if (b->buffer) weft_cpu_backend()->release(b->buffer, BUFFER_BYTES);
    weft_pool_destroy(b->pool);
}

weft_status bench_decode_table(const bench_options *o, int *failed) {
    WEFT_AUTO(end_bench)
    bench run = {
        .opt = o, .row_seconds = o->grid ? 0.6 : 1.5, .began = weft_clock(), .failed = failed};
    bench *b = &run;
    *failed = 0;
    b->backend = o->cuda ? weft_cuda_backend() : weft_cpu_backend();
    if (!b->backend) return WEFT_EMISSING;
    WEFT_TRY(weft_pool_create(o->threads, &b->pool));
    if (o->grid) WEFT_ROOM_AT(b->list, BENCH_GRID_MAX, "bench: no memory");
    WEFT_TRY(o->grid ? bench_grid_list(o, b->list, &b->n) : list_rows(b));
    for (int i = 0; i < b->n; i++)
        weft_generation_set_dtype(&b->list[i].config, b->backend);
    b->rows = json_array();
    b->left_out = json_array();
    b->buffer = weft_cpu_backend() ? weft_cpu_backend()->alloc(BUFFER_BYTES) : NULL;
    if (!b->buffer || !b->rows || !b->left_out) return weft_fail(WEFT_ENOMEM, "bench: no memory");
    memset(b->buffer, 1, BUFFER_BYTES);
    if (o->peer) {
        b->peer =
            bench_peer_start(o->peer, weft_pool_size(b->pool), b->peer_name, sizeof b->peer_name);
        if (!b->peer) fprintf(stderr, "no peer: %s\n", b->peer_name);
    }
    if (o->table)
        fprintf(o->table,
                "decode on %s, %d threads; the floor is a read of every weight and of "
                "every sequence's cache\n\n",
                o->cuda ? weft_cuda_device_name() : weft_cpu_isa(), weft_pool_size(b->pool));
    if (b->peer) { /* hears of all rows first, so that it compiles what it will be asked for; it may refuse */
        WEFT_JSON_LIST(requests, i, b->n, make_request(b, b->list + i));
        json_decref(bench_peer_ask(b->peer, weft_json_make("do:s rows:o", "prepare", requests)));
    }
    measure_all(b);
    WEFT_AUTO_DECREF json_t *summary = o->grid ? bench_grid_summary(b->rows, o->table) : NULL;
    if (!o->json) return WEFT_OK;
    json_t *all = weft_json_make(
        "version:s device:s isa:s threads:i peer:s rows:O left_out:O summary:O* seconds:f",
        weft_version(), o->cuda ? weft_cuda_device_name() : "CPU", weft_cpu_isa(),
        weft_pool_size(b->pool), b->peer ? b->peer_name : NULL, b->rows, b->left_out, summary,
        weft_clock() - b->began);
    return bench_write_json(o->json, all);
}
