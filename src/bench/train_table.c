/* Every row's config is made and planned before the first one runs, so that a wrong one costs
 * nothing; then each row runs in a process of its own (bench/train_row.h). */
#include "base/json.h"
#include "bench/train_row.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "model/account.h"

#include <math.h>

enum { ROWS_MAX = 32, NAME_ROOM = 320 };

typedef struct {
    const bench_variant *variant;
    weft_config config;
    weft_account account;
    json_t *result; /* NULL: it failed */
} row;

typedef struct {
    const bench_options *opt;
    int threads, steps;
    bench_peer *peer;
    char peer_name[NAME_ROOM];
    bench_table table;
    row *rows; /* [ROWS_MAX] */
    int count, *failed;
} bench;

static double step_tokens(const row *r) {
    return (double)(weft_config_micro_batch(&r->config) * r->config.context);
}

static weft_status unknown_variant(const char *name) {
    char all[256] = "";
    for (int i = 0; i < bench_variant_count; i++) {
        strncat(all, i ? ", " : "", sizeof all - strlen(all) - 1);
        strncat(all, bench_variants[i].name, sizeof all - strlen(all) - 1);
    }
    return WEFT_BAD_INPUT("--variants: there is no '%.*s'; there are %s", (int)strcspn(name, ","),
                          name, all);
}

static weft_status add_row(bench *b, const bench_variant *v) {
    if (b->count == ROWS_MAX) return WEFT_BAD_INPUT("--variants: more than %d of them", ROWS_MAX);
    row *r = &b->rows[b->count++];
    r->variant = v;
    WEFT_TRY(bench_variant_config(v, &b->opt->source, &r->config));
    /* A row has a process of its own, which a driver that was used before it would not survive. */
    bool cuda = r->config.device == WEFT_DEVICE_CUDA;
    const weft_backend *backend = cuda ? weft_cuda_planner() : weft_cpu_backend();
    if (!backend) return WEFT_EMISSING;
    if (cuda && b->opt->peer)
        return WEFT_BAD_INPUT("device cuda: --peer is measured on the CPU only");
    return weft_account_make(&r->config, backend, b->threads, &r->account);
}

static weft_status list_rows(bench *b) {
    const char *names = b->opt->variants ? b->opt->variants : b->opt->source.shape->variants;
    if (b->opt->source.file && !b->opt->variants) names = NULL;
    for (int i = 0; !names && i < bench_variant_count; i++)
        WEFT_TRY(add_row(b, &bench_variants[i]));
    while (names) {
        const bench_variant *v = bench_variant_find(names);
        if (!v) return unknown_variant(names);
        WEFT_TRY(add_row(b, v));
        names = strchr(names, ',');
        if (names) names++;
    }
    return WEFT_OK;
}

static void print_head(const bench *b) {
    FILE *to = b->opt->table;
    const weft_config *c = &b->rows[0].config;
    if (!to) return;
    fprintf(to, "weft %s, %s, threads: %d\n", weft_version(), weft_cpu_isa(), b->threads);
    fprintf(to,
            "a training step: %lld layers, %lld wide, %lld heads, %lld tokens × %lld, vocabulary "
            "%lld, %s\n",
            (long long)c->n_layer, (long long)c->n_embd, (long long)c->n_head,
            (long long)c->context, (long long)weft_config_micro_batch(c), (long long)c->vocab_size,
            weft_dtype_name(weft_config_dtype(c)));
    fprintf(to, "peer: %s%s\n\n", b->peer_name,
            b->peer ? ", as many threads, in turns" : "; its columns say -");
}

static double number(const row *r, const char *key) {
    return json_number_value(json_object_get(r->result, key));
}

static double peer_ratio(const row *r) {
    double peer = number(r, "peer_seconds"), ours = number(r, "seconds");
    return ours > 0 ? peer / ours : 0;
}

static void print_row(bench *b, const row *r) {
    double seconds = number(r, "seconds"), limit = number(r, "of_limit");
    double plan = (double)r->account.training_bytes, ratio = peer_ratio(r);
    double peak = number(r, "peak_bytes") > 0 ? number(r, "peak_bytes") : NAN;
    const char *form = json_string_value(json_object_get(r->result, "peer_form"));
    bench_cells(&b->table, "%s|%.2f|%.0f|%.0f%%|%.1f|%.0f%%|%.1f|%.1f|%.3f|%.0f|%.0f%%|%s|%.2f",
                r->variant->label, 1e-6 * (double)r->account.parameters, step_tokens(r) / seconds,
                100 * number(r, "spread"), 1e-9 * r->account.built_flops * step_tokens(r) / seconds,
                limit > 0 ? 100 * limit : NAN, 1e-6 * plan, 1e-6 * peak, peak / plan,
                ratio > 0 ? step_tokens(r) / number(r, "peer_seconds") : NAN,
                ratio > 0 ? 100 * number(r, "peer_spread") : NAN, ratio > 0 && form ? form : "-",
                ratio > 0 ? ratio : NAN);
}

static void check_row(bench *b, const row *r) {
    const char *error = json_string_value(json_object_get(r->result, "peer_error"));
    if (error) fprintf(stderr, "%s: no peer: %s\n", r->variant->name, error);
    if (!json_is_true(json_object_get(r->result, "differs"))) return;
    const json_t *ours = json_object_get(r->result, "losses");
    const json_t *theirs = json_object_get(r->result, "peer_losses");
    fprintf(stderr, "%s: the peer computes another function: losses", r->variant->name);
    for (size_t i = 0; i < json_array_size(ours); i++)
        fprintf(stderr, "%s %.6f here and %.6f there", i ? "," : "",
                json_number_value(json_array_get(ours, i)),
                json_number_value(json_array_get(theirs, i)));
    fputc('\n', stderr);
    ++*b->failed;
}

/* The peer anew: a row that broke off may have left it in the middle of an answer. */
static void start_peer(bench *b) {
    bench_peer_stop(b->peer);
    b->peer = bench_peer_start(b->opt->peer, b->threads, b->peer_name, sizeof b->peer_name);
    if (!b->peer) fprintf(stderr, "no peer: %s\n", b->peer_name);
}

static json_t *run_row(bench *b, const row *r, bool eager) {
    bench_train_job job = {.config = &r->config,
                           .threads = b->threads,
                           .steps = b->steps,
                           .settle = fmax(b->opt->settle, 0),
                           .step_flops = r->account.built_flops * step_tokens(r),
                           .profile = b->opt->profile,
                           .peer = b->peer,
                           .eager = eager};
    json_t *result = bench_train_run(&job);
    if (b->peer && (!result || json_is_true(json_object_get(result, "peer_gone")))) start_peer(b);
    return result;
}

/* A row in which the peer's process ends is measured once more, with a new one that compiles nothing:
 * code that a compiler made is what such a process has died of. */
static json_t *measure_row(bench *b, const row *r) {
    json_t *result = run_row(b, r, false);
    if (!b->peer || !json_is_string(json_object_get(result, "peer_error")) ||
        !json_is_true(json_object_get(result, "peer_gone")))
        return result;
    fprintf(stderr, "%s: the peer is gone; once more, with nothing compiled\n", r->variant->name);
    json_decref(result);
    return run_row(b, r, true);
}

static void measure_rows(bench *b) {
    bench_table_start(&b->table, b->opt->table,
                      "variant:-20|params M:8|tokens/s:9|±:4|GFLOP/s:8|of limit:8|plan MB:9|"
                      "peak MB:9|peak/plan:9|PyTorch tok/s:13|±:4|form:-17|ratio:6");
    for (int i = 0; i < b->count; i++) {
        row *r = &b->rows[i];
        if (b->opt->profile) fprintf(stderr, "%s\n", r->variant->label);
        r->result = measure_row(b, r);
        if (r->result) {
            check_row(b, r);
            print_row(b, r);
        } else {
            fprintf(stderr, "%s: %s\n", r->variant->name, weft_error_message());
            ++*b->failed;
        }
    }
}

static json_t *row_json(const row *r) {
    double seconds = number(r, "seconds"), ratio = peer_ratio(r);
    double plan = (double)r->account.training_bytes, peak = number(r, "peak_bytes");
    json_t *j = weft_json_make("variant:s label:s parameters:I plan_bytes:I flops_per_token:f",
                               r->variant->name, r->variant->label, r->account.parameters,
                               r->account.training_bytes, r->account.built_flops);
    if (!r->result) {
        weft_json_add(j, "failed:b", true);
        return j;
    }
    json_object_update(j, r->result);
    weft_json_add(j, "tokens_per_s:f gflops:f peak_of_plan:f", step_tokens(r) / seconds,
                  1e-9 * r->account.built_flops * step_tokens(r) / seconds,
                  peak > 0 ? peak / plan : NAN);
    if (ratio > 0)
        weft_json_add(j, "peer_tokens_per_s:f ratio:f", step_tokens(r) / number(r, "peer_seconds"),
                      ratio);
    return j;
}

static weft_status write_json(const bench *b) {
    const weft_config *c = &b->rows[0].config;
    WEFT_JSON_LIST(rows, i, b->count, row_json(&b->rows[i]));
    json_t *shape =
        weft_json_make("layers:I width:I heads:I tokens:I batch:I vocabulary:I dtype:s", c->n_layer,
                       c->n_embd, c->n_head, c->context, weft_config_micro_batch(c), c->vocab_size,
                       weft_dtype_name(weft_config_dtype(c)));
    json_t *all = weft_json_make("version:s isa:s threads:i steps:i peer:s shape:o rows:o",
                                 weft_version(), weft_cpu_isa(), b->threads, b->steps,
                                 b->peer ? b->peer_name : NULL, shape, rows);
    return bench_write_json(b->opt->json, all);
}

static void end_bench(bench *b) {
    bench_peer_stop(b->peer);
    for (int i = 0; i < b->count; i++)
        json_decref(b->rows[i].result);
    free(b->rows);
}

weft_status bench_train_table(const bench_options *o, int *failed) {
    WEFT_AUTO(end_bench) bench run = {.opt = o, .failed = failed};
    bench *b = &run;
    weft_pool *pool;
    *failed = 0;
    b->rows = calloc(ROWS_MAX, sizeof *b->rows);
    if (!b->rows) return weft_fail(WEFT_ENOMEM, "bench: no memory");
    if (!weft_cpu_backend()) return WEFT_EMISSING;
    WEFT_TRY(weft_pool_create(o->threads, &pool));
    b->threads = weft_pool_size(pool);
    weft_pool_destroy(pool); /* rows are forked, and threads do not follow */
    b->steps = (int)(o->steps ? o->steps : o->source.shape->steps);
    WEFT_TRY(list_rows(b));
    snprintf(b->peer_name, sizeof b->peer_name, "none");
    if (o->peer) start_peer(b);
    print_head(b);
    measure_rows(b);
    return o->json ? write_json(b) : WEFT_OK;
}
