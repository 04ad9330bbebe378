/* A server under load, measured from the outside. Latency is counted from when a request was due, not from when
 * it was sent, so that a client that is late itself does not make the server look quick; and requests come at
 * their rate whatever the server does, so that a rate which it cannot keep up with shows as a queue that grows.
 *
 * The long prompt: texts are being written, and the time between their tokens is taken for a while; then the
 * prompt is sent, and it is taken until its first token has come; then as usual again. */
#include "base/clock.h"
#include "base/json.h"
#include "base/random.h"
#include "bench/load.h"

#include <math.h>

enum { QUIET = 64 /* tokens of each text before the long prompt */, SHORT = 16 /* theirs */ };
static const double MILLI = 0.001;

typedef struct {
    const bench_serve_options *opt;
    int64_t rates[BENCH_LIST_MAX], prompts[BENCH_LIST_MAX], most[BENCH_LIST_MAX];
    int n_rates, n_prompts, n_most;
    bench_load load;
    json_t *rows, *long_row;
    int failed;
} bench;

static weft_status open_load(bench *b, int64_t count, bench_samples *between) {
    const bench_serve_options *o = b->opt;
    for (int64_t i = 0; i < b->load.count; i++)
        bench_request_end(b->load.requests + i);
    free(b->load.requests);
    b->load =
        (bench_load){o->host, o->port, o->vocab, o->seed, b->load.round + 1, NULL, count, between};
    b->load.requests = calloc((size_t)count, sizeof *b->load.requests);
    if (b->load.requests) return WEFT_OK;
    b->load.count = 0;
    return weft_fail(WEFT_ENOMEM, "bench: no memory");
}

static weft_status run_to_end(bench_load *l) {
    for (int64_t i = 0; i < l->count; i++)
        while (!l->requests[i].ended)
            WEFT_TRY(bench_load_turn(l));
    return WEFT_OK;
}

/* One request of each length of prompt: what a server makes when it first meets one is no part of the rows. */
static weft_status warm_up(bench *b) {
    for (int i = 0; i < b->n_prompts; i++) {
        WEFT_TRY(open_load(b, 1, NULL));
        *b->load.requests = (bench_request){.prompt = b->prompts[i], .most = 2};
        WEFT_TRY(run_to_end(&b->load));
        if (b->load.requests->status != 200)
            return WEFT_BAD_INPUT(
                "the server answers a prompt of %lld tokens with status %d; --prompts "
                "and --tokens must fit its context",
                (long long)b->prompts[i], b->load.requests->status);
    }
    return WEFT_OK;
}

/* Arrivals: the times between them are exponential. */
static weft_status draw_requests(bench *b, double rate, uint32_t row) {
    int64_t n = b->load.count;
    WEFT_AUTO_FREE double *drawn = malloc((size_t)(3 * n) * sizeof *drawn);
    if (!drawn) return weft_fail(WEFT_ENOMEM, "bench: no memory");
    weft_random_uniform(b->opt->seed, row, weft_random_site("bench.serve"), 0, 3 * n, drawn);
    double due = weft_clock();
    for (int64_t i = 0; i < n; i++) {
        due -= log(1 - drawn[3 * i]) / rate;
        b->load.requests[i] =
            (bench_request){.due = due,
                            .prompt = b->prompts[(int)(drawn[3 * i + 1] * b->n_prompts)],
                            .most = b->most[(int)(drawn[3 * i + 2] * b->n_most)]};
    }
    return WEFT_OK;
}

static json_t *quantiles(const bench_samples *s) {
    return weft_json_make("p50:f p95:f p99:f", bench_quantile(s, 0.5), bench_quantile(s, 0.95),
                          bench_quantile(s, 0.99));
}

static void print_quantiles(bench_table *t, const bench_samples *s) {
    bench_cells(t, "%.2f|%.2f|%.2f", 1e3 * bench_quantile(s, 0.5), 1e3 * bench_quantile(s, 0.95),
                1e3 * bench_quantile(s, 0.99));
}

static weft_status measure_rate(bench *b, bench_table *t, int row) {
    const bench_serve_options *o = b->opt;
    WEFT_AUTO(bench_samples_free) bench_samples first = {0}, between = {0};
    double rate = MILLI * (double)b->rates[row], end = 0;
    int64_t done = 0, refused = 0, good = 0, tokens = 0;
    WEFT_TRY(open_load(b, o->requests, &between));
    WEFT_TRY(draw_requests(b, rate, (uint32_t)row));
    WEFT_TRY(run_to_end(&b->load));
    for (int64_t i = 0; i < o->requests; i++) {
        const bench_request *r = b->load.requests + i;
        refused += r->status == 429;
        if (r->status != 200) continue;
        double wait = r->first - r->due, rest = r->last - r->first;
        done++;
        tokens += r->tokens;
        end = fmax(end, r->last);
        if (r->tokens) bench_samples_add(&first, wait);
        good += r->tokens && wait <= o->first_seconds &&
                rest <= o->between_seconds * (double)(r->tokens - 1);
    }
    b->failed += (int)(o->requests - done - refused);
    double seconds = fmax(end - b->load.requests[0].due, 1e-9);
    double goodput = (double)good / (double)o->requests;
    bench_cells(t, "%g|%lld|%lld|%.1f|%.2f", rate, (long long)done, (long long)refused,
                (double)tokens / seconds, (double)done / seconds);
    print_quantiles(t, &first);
    print_quantiles(t, &between);
    bench_cells(t, "%.0f%%", 100 * goodput);
    json_array_append_new(
        b->rows,
        weft_json_make("rate:f requests:I done:I refused:I tokens:I seconds:f tokens_per_s:f "
                       "requests_per_s:f first_token_seconds:o between_tokens_seconds:o goodput:f",
                       rate, o->requests, done, refused, tokens, seconds, (double)tokens / seconds,
                       (double)done / seconds, quantiles(&first), quantiles(&between), goodput));
    return WEFT_OK;
}

/* A turn in which texts that have ended begin again. */
static weft_status turn_streams(bench *b) {
    const bench_serve_options *o = b->opt;
    for (int64_t i = 0; i < o->streams; i++) {
        bench_request *r = b->load.requests + i;
        if (!r->ended) continue;
        if (r->status != 200)
            return WEFT_BAD_INPUT(
                "a text beside the long prompt ended with status %d; the server must "
                "take --streams texts and one more at once",
                r->status);
        *r = (bench_request){.prompt = r->prompt, .most = r->most};
    }
    return bench_load_turn(&b->load);
}

static weft_status measure_long(bench *b) {
    const bench_serve_options *o = b->opt;
    WEFT_AUTO(bench_samples_free) bench_samples usual = {0}, during = {0};
    double sums[2] = {0};
    WEFT_TRY(open_load(b, o->streams + 1, NULL));
    bench_request *last = b->load.requests + o->streams;
    for (int64_t i = 0; i < o->streams; i++)
        b->load.requests[i] = (bench_request){.prompt = SHORT, .most = 1 << 20};
    *last = (bench_request){.due = INFINITY, .prompt = o->long_prompt, .most = 1};
    for (int64_t i = 0; i < o->streams; i++)
        while (!b->load.requests[i].tokens)
            WEFT_TRY(turn_streams(b));
    b->load.between = &usual;
    while (usual.count < (size_t)(QUIET * o->streams))
        WEFT_TRY(turn_streams(b));
    b->load.between = &during;
    last->due = weft_clock();
    while (!last->ended || during.count == 0) /* all texts may just have begun again */
        WEFT_TRY(turn_streams(b));
    if (last->status != 200)
        return WEFT_BAD_INPUT("the server answers a prompt of %lld tokens with status %d; --long 0 "
                              "leaves it out, fewer may fit its context",
                              (long long)o->long_prompt, last->status);
    /* As usual before it and after it, as often: a machine's pace changes. */
    b->load.between = &usual;
    while (usual.count < during.count)
        WEFT_TRY(turn_streams(b));
    for (size_t i = 0; i < usual.count; i++)
        sums[0] += usual.value[i] / (double)usual.count;
    for (size_t i = 0; i < during.count; i++)
        sums[1] += during.value[i] / (double)during.count;
    bench_table t;
    if (o->setup.table) fputc('\n', o->setup.table);
    bench_table_start(&t, o->setup.table,
                      "long prompt:11|streams:7|first ms:9|usual p50:9|p95:8|p99:8|"
                      "meanwhile p50:13|p95:8|p99:8|ratio:6");
    bench_cells(&t, "%lld|%lld|%.1f", (long long)o->long_prompt, (long long)o->streams,
                1e3 * (last->first - last->due));
    print_quantiles(&t, &usual);
    print_quantiles(&t, &during);
    bench_cells(&t, "%.2f", sums[1] / sums[0]);
    b->long_row = weft_json_make("prompt:I streams:I first_token_seconds:f usual_seconds:o "
                                 "meanwhile_seconds:o ratio:f",
                                 o->long_prompt, o->streams, last->first - last->due,
                                 quantiles(&usual), quantiles(&during), sums[1] / sums[0]);
    return WEFT_OK;
}

static weft_status measure_all(bench *b) {
    const bench_serve_options *o = b->opt;
    WEFT_TRY(bench_list_read(o->rates, "rates", MILLI, b->rates, &b->n_rates));
    WEFT_TRY(bench_list_read(o->prompts, "prompts", 1, b->prompts, &b->n_prompts));
    WEFT_TRY(bench_list_read(o->most, "tokens", 1, b->most, &b->n_most));
    WEFT_TRY(warm_up(b));
    if (o->setup.table)
        fprintf(
            o->setup.table,
            "serve: %s, %lld requests a row, prompts of %s tokens, texts of %s, seed %llu; times "
            "in ms; good: the first token within %g ms, then one in %g on average\n\n",
            o->model, (long long)o->requests, o->prompts, o->most, (unsigned long long)o->seed,
            1e3 * o->first_seconds, 1e3 * o->between_seconds);
    bench_table t;
    bench_table_start(&t, o->setup.table,
                      "rate:6|done:5|refused:7|tokens/s:9|done/s:7|first p50:9|p95:8|p99:8|"
                      "between p50:11|p95:8|p99:8|good:5");
    for (int i = 0; i < b->n_rates; i++)
        WEFT_TRY(measure_rate(b, &t, i));
    if (o->long_prompt) WEFT_TRY(measure_long(b));
    if (!o->setup.json) return WEFT_OK;
    json_t *all = weft_json_make(
        "version:s model:s seed:I prompts:s tokens:s good_first_seconds:f good_between_seconds:f "
        "rows:O long_prompt:O",
        weft_version(), o->model, o->seed, o->prompts, o->most, o->first_seconds,
        o->between_seconds, b->rows, b->long_row);
    return bench_write_json(o->setup.json, all);
}

weft_status bench_serve_table(const bench_serve_options *options, int *failed) {
    bench b = {.opt = options, .rows = json_array()};
    weft_status status = measure_all(&b);
    for (int64_t i = 0; i < b.load.count; i++)
        bench_request_end(b.load.requests + i);
    free(b.load.requests);
    json_decref(b.rows);
    json_decref(b.long_row);
    *failed = b.failed;
    if (b.failed)
        fprintf(stderr, "requests that were neither answered nor refused: %d\n", b.failed);
    return status;
}
