/* Samples while training. The generator is opened for each of them and closed again: between samples
 * nothing of it takes memory. */
#include "train/samples.h"

#include "base/json.h"
#include "base/log.h"
#include "generate/generator.h"
#include "generate/text.h"
#include "ops/cache.h"
#include "train/metrics.h"

static const double TEMPERATURE = 0.8;

struct weft_samples {
    const weft_config *config;
    const weft_tokenizer *tokenizer;
    int32_t *prompt;
    int64_t count;
    int32_t map[WEFT_MAP_TOKENS]; /* the first tokens of prompt and text */
    int64_t mapped;
    char path[WEFT_PATH_MAX], run[WEFT_PATH_MAX];
    FILE *file;
    weft_stream *stream; /* of the last text */
    bool off;            /* the model cannot generate: said once */
};

WEFT_ENDED_BY(weft_samples_close, weft_samples)
weft_status weft_samples_open(const char *run, int64_t step, const weft_config *c,
                              const weft_tokenizer *t, weft_samples **out) {
    *out = NULL;
    if (!*c->sample_prompt) return WEFT_OK;
    if (!t)
        return WEFT_BAD_INPUT(
            "CONFIG_SAMPLE_PROMPT=\"%s\": the tokens of CONFIG_DATASET=\"%s\" are no "
            "text, or its tokenizer is not known; leave it empty",
            c->sample_prompt, c->dataset);
    WEFT_NEW(weft_samples, s, weft_samples_close, "samples: no memory");
    *s = (weft_samples){.config = c, .tokenizer = t};
    WEFT_TRY(weft_path(s->run, "%s", run));
    WEFT_TRY(weft_path(s->path, "%s/samples.jsonl", run));
    WEFT_AUTO(weft_encoder_close_at) weft_encoder *e = NULL;
    const int32_t *tokens;
    WEFT_TRY(weft_encoder_open(t, &e));
    WEFT_TRY(weft_encode_text(e, c->sample_prompt, strlen(c->sample_prompt), &tokens, &s->count));
    if (s->count >= c->context)
        return WEFT_BAD_INPUT("CONFIG_SAMPLE_PROMPT has %lld tokens, which leave no room in "
                              "CONFIG_CONTEXT=%lld; make it shorter",
                              (long long)s->count, (long long)c->context);
    WEFT_ROOM_AT(s->prompt, s->count, "samples: no memory");
    memcpy(s->prompt, tokens, (size_t)s->count * sizeof *s->prompt);
    WEFT_TRY(weft_lines_open(s->path, &s->file));
    WEFT_TRY(weft_lines_start(&s->file, s->path, step, 0));
    return weft_hand(&s, out);
}

void weft_samples_close(weft_samples *s) {
    if (!s) return;
    if (s->file) fclose(s->file);
    weft_stream_close(s->stream);
    WEFT_FREE(s->prompt, s);
}

static void map_token(weft_samples *s, int32_t token) {
    if (s->mapped < WEFT_MAP_TOKENS) s->map[s->mapped++] = token;
}

static weft_status generate(weft_samples *s, weft_generator *g) {
    weft_sampling sampling = weft_sampling_default();
    sampling.temperature = TEMPERATURE;
    sampling.seed = (uint64_t)s->config->seed;
    sampling.max_tokens = s->config->sample_tokens;
    sampling.ends = s->tokenizer;
    sampling.token_only = true;
    int64_t id;
    bool stopped;
    weft_sampled token;
    s->mapped = 0;
    for (int64_t i = 0; i < s->count; i++)
        map_token(s, s->prompt[i]);
    weft_stream_close(weft_steal(&s->stream));
    WEFT_TRY(weft_stream_open(s->tokenizer, NULL, 0, &s->stream));
    WEFT_TRY(weft_generator_add(g, s->prompt, s->count, &sampling, &id));
    while (weft_generator_busy(g))
        WEFT_TRY(weft_generator_step(g));
    weft_take take;
    while ((take = weft_generator_take(g, id, &token)) == WEFT_TAKE_TOKEN) {
        map_token(s, token.token);
        WEFT_TRY(weft_stream_put(s->stream, token.token, &stopped));
    }
    return take == WEFT_TAKE_BROKEN ? weft_generator_broken() : weft_stream_end(s->stream);
}

weft_status weft_samples_make(weft_samples *s, const weft_model *m, const weft_backend *backend,
                              weft_pool *pool, int64_t step, bool last) {
    if (!s || s->off || (!last && step % s->config->sample_interval != 0)) return WEFT_OK;
    weft_generator *g;
    weft_generator_stats stats;
    weft_generator_limits limits = {.sequences = 1, .no_sharing = true};
    if (weft_generator_open(m, backend, pool, &limits, &g) != WEFT_OK) {
        weft_log(WEFT_LOG_WARN, "no samples: %s", weft_error_message());
        s->off = true;
        return WEFT_OK;
    }
    weft_status status = generate(s, g);
    weft_generator_count(g, &stats);
    weft_generator_close(g);
    if (status == WEFT_EINPUT) { /* weights that diverged are for the training to tell of */
        weft_log(WEFT_LOG_WARN, "step %lld: no sample: %s", (long long)step, weft_error_message());
        return WEFT_OK;
    }
    WEFT_TRY(status);
    size_t bytes;
    const char *text = weft_stream_text(s->stream, &bytes);
    WEFT_AUTO_FREE char *whole = NULL;
    if (asprintf(&whole, "%s%.*s", s->config->sample_prompt, (int)bytes, text) >= 0) {
        char *rest = whole;
        weft_log(WEFT_LOG_INFO, "step %lld: %s", (long long)step, strsep(&rest, "\n"));
        for (char *line; (line = strsep(&rest, "\n"));)
            weft_log(WEFT_LOG_INFO, "    %s", line);
    }
    int64_t of_pages = stats.cache_bytes - stats.cache_bytes_per_sequence;
    int64_t cache_bytes = of_pages / (stats.pages * WEFT_PAGE_TOKENS);
    json_t *row = json_pack("{s:I, s:s, s:s%, s:I}", "step", (json_int_t)step, "prompt",
                            s->config->sample_prompt, "text", text, bytes, "cache_bytes_per_token",
                            (json_int_t)cache_bytes);
    WEFT_TRY(weft_lines_add(s->file, s->path, row));
    if (!last) return WEFT_OK;
    return weft_attention_map_write(s->run, m, backend, pool, s->tokenizer, s->map, s->mapped,
                                    step);
}
