/* Speculation, measured. One text at a time is continued plainly and by drafts, in turns, and must be the same;
 * a row has the share of drafted tokens that were right, the tokens that a step made, and both speeds. Prompts
 * are taken from what the model was trained on (CONFIG_DATASET) and from another text. Above the table stands
 * what speculation lives on: what a step of several rows costs beside one of a single row. */
#include "base/clock.h"
#include "base/json.h"
#include "bench/tables.h"
#include "data/dataset.h"
#include "generate/decoder.h"
#include "generate/generator.h"

enum { PROMPTS = 4, PROMPT_MOST = 128, TEXT_MOST = 256, ROWS_MOST = 16, STEPS = 15 };

typedef struct {
    const bench_drafting *with;
    weft_generator *plain, *drafted;
    int64_t prompt, text; /* tokens */
    double cost[ROWS_MOST + 1];
    bench_table table;
    json_t *rows;
} bench_run;

/* Seconds of a step with 1, 2, 4, 8 and 16 rows of one sequence. */
static weft_status measure_costs(bench_run *b) {
    const bench_drafting *o = b->with;
    int64_t table = weft_cached_table_pages(b->prompt + ROWS_MOST);
    weft_decoder_limits limits = {1, table, b->prompt + ROWS_MOST, table};
    WEFT_AUTO(weft_decoder_close_at) weft_decoder *d = NULL;
    WEFT_TRY(weft_decoder_open(o->model, o->backend, o->pool, &limits, &d));
    WEFT_TRY(weft_decoder_fill(d));
    WEFT_ROOM(float, logits, ROWS_MOST * o->model->config.vocab_size, "bench: no memory");
    for (int64_t p = 0; p < table; p++)
        weft_decoder_table(d, 0)[p] = (int32_t)p;
    bench_samples samples[ROWS_MOST + 1] = {0};
    weft_status status = WEFT_OK;
    for (int step = -2; step < STEPS; step++)
        for (int n = 1; n <= ROWS_MOST && status == WEFT_OK; n *= 2) {
            weft_decoder_row rows[ROWS_MOST];
            for (int i = 0; i < n; i++)
                rows[i] = (weft_decoder_row){1, (int32_t)b->prompt + i, 0, true};
            double start = weft_clock();
            status = weft_decoder_run(d, rows, n, logits);
            if (step >= 0) bench_samples_add(samples + n, weft_clock() - start);
        }
    for (int n = 1; n <= ROWS_MOST; n *= 2) {
        b->cost[n] = bench_median(samples + n);
        bench_samples_free(samples + n);
    }
    return status;
}

typedef struct {
    int32_t tokens[TEXT_MOST];
    int64_t n;
    double seconds; /* from the first token to the last */
} continuation;

static weft_status continue_text(weft_generator *g, const int32_t *prompt, int64_t count,
                                 const weft_sampling *how, continuation *out) {
    int64_t id;
    weft_sampled token;
    *out = (continuation){.n = 0};
    WEFT_TRY(weft_generator_add(g, prompt, count, how, &id));
    double first = 0;
    while (weft_generator_busy(g)) {
        WEFT_TRY(weft_generator_step(g));
        while (weft_generator_take(g, id, &token) == WEFT_TAKE_TOKEN)
            out->tokens[out->n++] = token.token;
        if (!first && out->n) first = weft_clock();
    }
    out->seconds = weft_clock() - first;
    weft_generator_remove(g, id);
    return WEFT_OK;
}

typedef struct {
    int64_t drafted, accepted, made;
    double plain, seconds;
} speculated;

static weft_status measure_text(bench_run *b, const char *name, const int32_t *prompts) {
    for (int hot = 0; hot < 2; hot++) {
        speculated r = {0};
        weft_generator_stats before, after;
        continuation want, got;
        for (int i = -1; i < PROMPTS; i++) { /* the first is made once more: it builds the graphs */
            weft_sampling how = weft_sampling_default();
            how.temperature = hot;
            how.seed = (uint64_t)i + 2;
            how.max_tokens = b->text;
            how.token_only = true;
            const int32_t *prompt = prompts + (i < 0 ? 0 : i) * b->prompt;
            WEFT_TRY(continue_text(b->plain, prompt, b->prompt, &how, &want));
            weft_generator_count(b->drafted, &before);
            WEFT_TRY(continue_text(b->drafted, prompt, b->prompt, &how, &got));
            weft_generator_count(b->drafted, &after);
            if (got.n != want.n ||
                memcmp(got.tokens, want.tokens, (size_t)got.n * sizeof *got.tokens))
                return weft_fail(WEFT_EBUG, "bench: a text with speculation is not the plain one");
            if (i < 0) continue;
            r.drafted += after.drafted_tokens - before.drafted_tokens;
            r.accepted += after.accepted_tokens - before.accepted_tokens;
            r.made += got.n - 1;
            r.plain += want.seconds;
            r.seconds += got.seconds;
        }
        double made = (double)r.made, steps = made - (double)r.accepted,
               share = r.drafted ? (double)r.accepted / (double)r.drafted : NAN;
        bench_cells(&b->table, "%s|%d|%lld|%.0f%%|%.2f|%.1f|%.1f|%.2f", name, hot,
                    (long long)r.drafted, 100 * share, made / steps, made / r.plain,
                    made / r.seconds, r.plain / r.seconds);
        weft_json_append(b->rows,
                         "text:s temperature:i drafted_tokens:I accepted_tokens:I "
                         "tokens_per_step:f plain_tokens_per_s:f tokens_per_s:f gain:f",
                         name, hot, r.drafted, r.accepted, made / steps, made / r.plain,
                         made / r.seconds, r.plain / r.seconds);
    }
    return WEFT_OK;
}

/* Prompts one behind the other in a text, as far apart as it allows. */
static weft_status cut_text(const bench_run *b, const char *name, const char *text, size_t bytes,
                            int32_t *prompts) {
    const int32_t *tokens;
    int64_t count;
    WEFT_TRY(weft_encode(b->with->encoder, text, bytes, false, &tokens, &count));
    if (count < b->prompt)
        return WEFT_BAD_INPUT("%s: %lld tokens, but a prompt has %lld; give a longer text", name,
                              (long long)count, (long long)b->prompt);
    for (int64_t i = 0; i < PROMPTS; i++)
        memcpy(prompts + i * b->prompt, tokens + i * (count - b->prompt) / PROMPTS,
               (size_t)b->prompt * sizeof *prompts);
    return WEFT_OK;
}

/* The embedded text is bytes, whatever the model's tokens are. */
static weft_status read_trained(const bench_run *b, int32_t *prompts) {
    enum { EMBEDDED = 8192 };
    const weft_config *c = &b->with->model->config;
    WEFT_AUTO(weft_dataset_close_at) weft_dataset *d = NULL;
    WEFT_TRY(weft_dataset_open(c, &d));
    if (strcmp(c->dataset, "embedded") == 0 && b->with->encoder) {
        int32_t tokens[EMBEDDED], targets[EMBEDDED];
        char text[EMBEDDED];
        WEFT_TRY(weft_dataset_fill(d, WEFT_SPLIT_TRAIN, (uint64_t)c->seed, 0, 0, EMBEDDED, tokens,
                                   targets, NULL));
        for (int i = 0; i < EMBEDDED; i++)
            text[i] = (char)tokens[i];
        return cut_text(b, c->dataset, text, EMBEDDED, prompts);
    }
    if (weft_dataset_vocab(d) > c->vocab_size)
        return WEFT_BAD_INPUT("%s has %lld tokens and the model knows %lld; -o DATASET=... "
                              "names what it was trained on",
                              c->dataset, (long long)weft_dataset_vocab(d),
                              (long long)c->vocab_size);
    int32_t targets[PROMPT_MOST];
    for (uint32_t i = 0; i < PROMPTS; i++)
        WEFT_TRY(weft_dataset_fill(d, WEFT_SPLIT_TRAIN, (uint64_t)c->seed, 0, i, b->prompt,
                                   prompts + i * b->prompt, targets, NULL));
    return WEFT_OK;
}

static void end_run(bench_run *b) {
    weft_generator_close(b->plain);
    weft_generator_close(b->drafted);
    json_decref(b->rows);
}

weft_status bench_speculate_table(const bench_options *o, const bench_drafting *d) {
    WEFT_AUTO(end_run) bench_run run = {.with = d};
    bench_run *b = &run;
    const weft_config *c = &d->model->config;
    b->rows = json_array();
    b->prompt = c->context / 3 < PROMPT_MOST ? c->context / 3 : PROMPT_MOST;
    b->text = c->context - b->prompt < TEXT_MOST ? c->context - b->prompt : TEXT_MOST;
    if (b->prompt < 1 || b->text < 2)
        return WEFT_BAD_INPUT("a context of %lld tokens is too short to measure",
                              (long long)c->context);
    WEFT_AUTO_FREE int32_t *prompts = malloc((size_t)(PROMPTS * b->prompt) * sizeof *prompts);
    if (!b->rows || !prompts) return weft_fail(WEFT_ENOMEM, "bench: no memory");
    weft_generator_limits limits = {.sequences = 1, .no_sharing = true};
    WEFT_TRY(weft_generator_open(d->model, d->backend, d->pool, &limits, &b->plain));
    limits.ngram = !d->draft;
    limits.draft = d->draft;
    WEFT_TRY(weft_generator_open(d->model, d->backend, d->pool, &limits, &b->drafted));
    WEFT_TRY(measure_costs(b));
    if (o->table)
        fprintf(
            o->table,
            "decode with drafts by %s on %s, %d threads; texts of %lld tokens behind %lld. A "
            "step of 2, 4, 8, 16 rows takes %.2f, %.2f, %.2f, %.2f times the %.3f ms of one\n\n",
            o->speculate, d->backend->name, weft_pool_size(d->pool), (long long)b->text,
            (long long)b->prompt, b->cost[2] / b->cost[1], b->cost[4] / b->cost[1],
            b->cost[8] / b->cost[1], b->cost[16] / b->cost[1], 1e3 * b->cost[1]);
    bench_table_start(&b->table, o->table,
                      "text:-12|temperature:11|drafted:7|accepted:8|tokens/step:11|plain tok/s:11|"
                      "tok/s:9|gain:5");
    WEFT_TRY(read_trained(b, prompts));
    WEFT_TRY(measure_text(b, "trained on", prompts));
    if (d->encoder) {
        WEFT_TRY(cut_text(b, d->other_name, d->other, strlen(d->other), prompts));
        WEFT_TRY(measure_text(b, "other", prompts));
    }
    if (!o->json) return WEFT_OK;
    json_t *costs = json_object();
    for (int n = 1; n <= ROWS_MOST; n *= 2) {
        char rows[8];
        snprintf(rows, sizeof rows, "%d", n);
        json_object_set_new(costs, rows, json_real(b->cost[n]));
    }
    return bench_write_json(
        o->json, weft_json_make("version:s device:s speculate:s threads:i step_seconds:o rows:O",
                                weft_version(), d->backend->name, o->speculate,
                                weft_pool_size(d->pool), costs, b->rows));
}
