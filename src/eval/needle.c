/* Prompts are made one after the other from the random seed, and a few of them are answered at a time. */
#include "eval/eval.h"

#include "base/json.h"
#include "base/progress.h"
#include "data/corpus.h"
#include "data/tasks.h"
#include "generate/generator.h"
#include "ops/cache.h"

enum { TOGETHER = 8, TOKENS_TOGETHER = 16384 };
static const size_t TEXT_MOST = (size_t)1 << 30;

typedef struct {
    int32_t *tokens, *answer, *said; /* of the prompt, the right answer, and the model's */
    int64_t n, n_answer, n_said;
    int32_t key;
    int64_t id; /* of the generator */
} needle_trial;

typedef struct {
    const weft_model *model;
    const weft_tokenizer *tokenizer;
    const weft_backend *backend;
    weft_pool *pool;
    const weft_needle_options *options;
    weft_encoder *encoder;
    int32_t *hay; /* the text's tokens; NULL: embedded text */
    int64_t n_hay;
    weft_new_file *details; /* NULL: none */
    weft_progress *progress;
    int64_t done;
} needle_run;

static void end_trials(needle_trial (*trials)[TOGETHER]) {
    for (int i = 0; i < TOGETHER; i++) {
        const needle_trial *t = &(*trials)[i];
        WEFT_FREE(t->tokens, t->answer, t->said);
    }
}

/* The tokens of a text; malloc'd. */
static weft_status encode(const needle_run *r, const char *text, size_t bytes, int32_t **out,
                          int64_t *n) {
    const int32_t *tokens;
    *out = NULL;
    WEFT_TRY(weft_encode(r->encoder, text, bytes, false, &tokens, n));
    WEFT_ROOM_AT(*out, *n + 1, "needle: no memory");
    memcpy(*out, tokens, (size_t)*n * sizeof **out);
    return WEFT_OK;
}

/* So many tokens of text, from a random place of it on; embedded text is new for each trial. */
static weft_status cut_hay(const needle_run *r, weft_random_stream *random,
                           const weft_sequence_place *p, int64_t n, int32_t *out) {
    if (!r->hay) {
        WEFT_ROOM(int32_t, targets, n + 1, "needle: no memory");
        if (n > 0) weft_corpus_fill(p, n, out, targets);
        return WEFT_OK;
    }
    if (r->n_hay < n)
        return WEFT_BAD_INPUT("%s: has %lld tokens, and a prompt needs %lld of it; give a longer "
                              "text or smaller --lengths",
                              r->options->text, (long long)r->n_hay, (long long)n);
    int64_t at = weft_random_stream_below(random, (uint32_t)(r->n_hay - n + 1));
    memcpy(out, r->hay + at, (size_t)n * sizeof *out);
    return WEFT_OK;
}

/* Which text and which key belong to a trial, by the random seed alone. */
static weft_status make_trial(const needle_run *r, int64_t length, double depth, int64_t number,
                              needle_trial *t) {
    weft_sequence_place p = {.split = WEFT_SPLIT_VAL,
                             .iteration =
                                 (uint32_t)(r->options->seed * 2654435761u + (uint64_t)length),
                             .sequence = (uint32_t)number};
    weft_random_stream random =
        weft_random_stream_at(&p, "needle.prompt.train", "needle.prompt", 0);
    char line[WEFT_NEEDLE_ROOM], answer[WEFT_NEEDLE_ROOM];
    WEFT_AUTO_FREE int32_t *needle = NULL, *question = NULL, *hay = NULL;
    int64_t n_needle = 0, n_question = 0;
    *t = (needle_trial){.key = (int32_t)weft_random_stream_below(&random, WEFT_NEEDLE_KEYS)};
    int long_line = weft_needle_write(t->key, line),
        long_answer = weft_needle_answer(t->key, answer);
    WEFT_TRY(encode(r, line, (size_t)long_line, &needle, &n_needle));
    WEFT_TRY(encode(r, weft_needle_question, strlen(weft_needle_question), &question, &n_question));
    WEFT_TRY(encode(r, answer, (size_t)long_answer, &t->answer, &t->n_answer));
    int64_t n_hay = length - n_needle - n_question - t->n_answer;
    if (n_hay < 0)
        return WEFT_BAD_INPUT(
            "--lengths %lld: the key, the question and the answer alone have %lld tokens",
            (long long)length, (long long)(length - n_hay));
    t->n = length - t->n_answer;
    WEFT_ROOM_AT(t->tokens, t->n, "needle: no memory");
    WEFT_ROOM_AT(t->said, t->n_answer, "needle: no memory");
    WEFT_ROOM_AT(hay, n_hay + 1, "needle: no memory");
    WEFT_TRY(cut_hay(r, &random, &p, n_hay, hay));
    /* Hay up to the depth, the needle, the rest of the hay, the question. */
    int64_t at = llround(depth * (double)n_hay);
    memcpy(t->tokens, hay, (size_t)at * sizeof *hay);
    memcpy(t->tokens + at, needle, (size_t)n_needle * sizeof *needle);
    memcpy(t->tokens + at + n_needle, hay + at, (size_t)(n_hay - at) * sizeof *hay);
    memcpy(t->tokens + n_hay + n_needle, question, (size_t)n_question * sizeof *question);
    return WEFT_OK;
}

/* Answers a few trials together; *pages is the most that were in use. */
static weft_status answer(weft_generator *g, needle_trial *trials, int n, int64_t *pages) {
    weft_generator_stats stats;
    weft_sampling sampling = weft_sampling_default();
    sampling.temperature = 0;
    sampling.end_token = -1;
    sampling.token_only = true;
    for (int i = 0; i < n; i++) {
        needle_trial *t = &trials[i];
        sampling.max_tokens = t->n_answer;
        WEFT_TRY(weft_generator_add(g, t->tokens, t->n, &sampling, &t->id));
    }
    while (weft_generator_busy(g)) {
        WEFT_TRY(weft_generator_step(g));
        weft_generator_count(g, &stats);
        if (stats.pages_used > *pages) *pages = stats.pages_used;
    }
    for (int i = 0; i < n; i++) {
        needle_trial *t = &trials[i];
        weft_sampled token;
        weft_take took;
        while ((took = weft_generator_take(g, t->id, &token)) == WEFT_TAKE_TOKEN)
            if (t->n_said < t->n_answer) t->said[t->n_said++] = token.token;
        weft_generator_remove(g, t->id);
        if (took == WEFT_TAKE_BROKEN) return weft_generator_broken();
    }
    return WEFT_OK;
}

weft_status weft_eval_put(weft_new_file *f, json_t *line, size_t flags) {
    WEFT_AUTO_FREE char *text = line ? json_dumps(line, flags) : NULL;
    json_decref(line);
    if (!text) return weft_fail(WEFT_ENOMEM, "%s: no memory for a line", f->path);
    weft_new_file_put(f, text, (int64_t)strlen(text));
    return weft_new_file_put(f, "\n", 1);
}

static json_t *text_json(const weft_tokenizer *t, const int32_t *tokens, int64_t n) {
    WEFT_AUTO_FREE char *text = NULL;
    size_t bytes;
    if (weft_tokenizer_decode(t, tokens, n, &text, &bytes) != WEFT_OK) return json_null();
    return weft_json_text(text);
}

static weft_status score_trial(const needle_run *r, int64_t length, double depth,
                               const needle_trial *t, weft_needle_cell *cell) {
    double good = 0;
    for (int64_t i = 0; i < t->n_said; i++)
        good += t->said[i] == t->answer[i];
    bool right = t->n_said == t->n_answer && good >= (double)t->n_answer;
    cell->right += right;
    cell->tokens += good / (double)t->n_answer;
    if (!r->details) return WEFT_OK;
    char key[16];
    snprintf(key, sizeof key, "%05d", (int)t->key);
    json_t *line = weft_json_make("length:I depth:f key:s right:b answer:o prompt:o", length, depth,
                                  key, right, text_json(r->tokenizer, t->said, t->n_said),
                                  text_json(r->tokenizer, t->tokens, t->n));
    return weft_eval_put(r->details, line, JSON_COMPACT | JSON_PRESERVE_ORDER);
}

static weft_status fill_length(needle_run *r, int i, weft_needle_score *out) {
    const weft_needle_options *o = r->options;
    int64_t length = o->lengths[i], together = TOKENS_TOGETHER / length, pages = 0;
    if (together > TOGETHER) together = TOGETHER;
    if (together < 1) together = 1;
    weft_generator_limits limits = {.sequences = together, .context = length, .no_sharing = true};
    WEFT_AUTO(weft_generator_close_at) weft_generator *g = NULL;
    WEFT_TRY(weft_generator_open(r->model, r->backend, r->pool, &limits, &g));
    /* One trial alone: what its cache takes. */
    WEFT_AUTO(end_trials) needle_trial one[TOGETHER] = {0};
    weft_generator_stats stats;
    WEFT_TRY(make_trial(r, length, o->depths[0], 0, one));
    WEFT_TRY(answer(g, one, 1, &pages));
    weft_generator_count(g, &stats);
    out->cache_bytes[i] =
        pages * WEFT_PAGE_TOKENS * stats.cache_bytes_per_token + stats.cache_bytes_per_sequence;
    for (int d = 0; d < o->n_depths; d++) {
        weft_needle_cell *cell = &out->cells[i][d];
        for (int64_t at = 0; at < o->trials; at += together) {
            WEFT_AUTO(end_trials) needle_trial trials[TOGETHER] = {0};
            int n = (int)(o->trials - at < together ? o->trials - at : together);
            for (int k = 0; k < n; k++)
                WEFT_TRY(make_trial(r, length, o->depths[d], at + k, &trials[k]));
            WEFT_TRY(answer(g, trials, n, &pages));
            for (int k = 0; k < n; k++)
                WEFT_TRY(score_trial(r, length, o->depths[d], &trials[k], cell));
            r->done += n;
            weft_progress_update(r->progress, r->done, NULL);
        }
        cell->right /= (double)o->trials;
        cell->tokens /= (double)o->trials;
    }
    return WEFT_OK;
}

static weft_status run(needle_run *r, weft_needle_score *out) {
    const weft_needle_options *o = r->options;
    WEFT_AUTO_FREE char *text = NULL;
    size_t bytes = 0;
    WEFT_TRY(weft_encoder_open(r->tokenizer, &r->encoder));
    if (!o->text && weft_tokenizer_vocab(r->tokenizer) != WEFT_CORPUS_VOCAB)
        return WEFT_BAD_INPUT("--needle: embedded text is for tokenizers of bytes; --text "
                              "FILE gives another to hide keys in");
    if (o->text) WEFT_TRY(weft_file_read(o->text, TEXT_MOST, &text, &bytes));
    if (text) WEFT_TRY(encode(r, text, bytes, &r->hay, &r->n_hay));
    weft_progress_options bar = {
        .label = "needle", .unit = "answers", .total = o->n_lengths * o->n_depths * o->trials};
    if (!o->quiet) r->progress = weft_progress_begin(&bar);
    weft_status status = WEFT_OK;
    for (int i = 0; status == WEFT_OK && i < o->n_lengths; i++)
        status = fill_length(r, i, out);
    weft_progress_end(r->progress, false);
    return status;
}

weft_status weft_needle(const weft_model *m, const weft_tokenizer *t, const weft_backend *backend,
                        weft_pool *pool, const weft_needle_options *options,
                        weft_needle_score *out) {
    needle_run r = {
        .model = m, .tokenizer = t, .backend = backend, .pool = pool, .options = options};
    weft_new_file file;
    *out = (weft_needle_score){0};
    if (options->details) {
        WEFT_TRY(weft_new_file_begin(&file, options->details));
        r.details = &file;
    }
    weft_status status = run(&r, out);
    if (r.details) status = weft_new_file_end(&file, status);
    weft_encoder_close(r.encoder);
    free(r.hay);
    return status;
}
