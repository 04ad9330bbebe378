/* Generation for the library's users: the scheduler of generate/generator.h behind plain numbers. */
#include "api/api.h"
#include "data/tokenizer.h"
#include "generate/generator.h"

#include <math.h>

weft_status weft_generation_open(weft_engine *engine, weft_model *model, int64_t sequences,
                                 int64_t context, weft_generation **out) {
    API_OPEN(out, engine, model);
    if (sequences < 0 || context < 0)
        return API_REFUSE("%lld sequences of %lld tokens", (long long)sequences,
                          (long long)context);
    weft_generator_limits limits = {.sequences = sequences, .context = context};
    return weft_generator_open(model, engine->backend, engine->pool, &limits, out);
}

void weft_generation_close(weft_generation *generation) {
    weft_generator_close(generation);
}

weft_status weft_generation_add(weft_generation *generation, const int32_t *prompt, int64_t count,
                                const char *const *options, int64_t *id) {
    API_NEED(generation, prompt, id);
    weft_sampling sampling = weft_sampling_default(), *s = &sampling;
    double top_k = (double)s->top_k, seed = (double)s->seed, sample = (double)s->sample;
    double max_tokens = (double)s->max_tokens, end_token = (double)s->end_token;
    const struct {
        const char *key;
        double *value, least, below; /* of a whole number; below 0: any number */
    } keys[] = {{"temperature", &s->temperature, 0, 0},
                {"top_k", &top_k, 0, 0x1p31},
                {"top_p", &s->top_p, 0, 0},
                {"min_p", &s->min_p, 0, 0},
                {"seed", &seed, 0, 0x1p53},
                {"repetition_penalty", &s->repetition_penalty, 0, 0},
                {"sample", &sample, 0, 0x1p31},
                {"max_tokens", &max_tokens, 1, 0x1p31},
                {"end_token", &end_token, -1, 0x1p31}};
    for (; options && *options; options++) {
        const char *option = *options;
        size_t k = 0, length = strcspn(option, "=");
        while (k < WEFT_COUNT(keys) &&
               (strlen(keys[k].key) != length || memcmp(option, keys[k].key, length) != 0))
            k++;
        if (k == WEFT_COUNT(keys) || !option[length])
            return WEFT_BAD_INPUT("weft_generation_add: unknown option '%s'", option);
        const char *text = option + length + 1;
        char *end;
        double value = *keys[k].value = strtod(text, &end);
        bool fits = keys[k].below == 0 ||
                    (value >= keys[k].least && value < keys[k].below && value == trunc(value));
        if (end == text || *end || !fits)
            return WEFT_BAD_INPUT(
                "weft_generation_add: '%s' is out of range, or no whole number where one is wanted",
                option);
    }
    s->top_k = (int64_t)top_k;
    s->seed = (uint64_t)seed;
    s->sample = (uint32_t)sample;
    s->max_tokens = (int64_t)max_tokens;
    s->end_token = (int32_t)end_token;
    return weft_generator_add(generation, prompt, count, &sampling, id);
}

weft_status weft_generation_step(weft_generation *generation, int *busy) {
    API_NEED(generation);
    weft_status status = weft_generator_step(generation);
    if (busy) *busy = weft_generator_busy(generation);
    return status;
}

int64_t weft_generation_take(weft_generation *generation, int64_t id, int32_t *tokens,
                             float *logprobs, int64_t room, int *ended) {
    if (ended) *ended = 0;
    if (!generation || (!tokens && room > 0)) return 0;
    for (int64_t n = 0; n < room; n++) {
        weft_sampled token;
        weft_take take = weft_generator_take(generation, id, &token);
        if (take != WEFT_TAKE_TOKEN) {
            bool broken = take == WEFT_TAKE_BROKEN;
            if (broken) weft_generator_broken();
            if (ended) *ended = broken ? -1 : take != WEFT_TAKE_WAIT;
            return n;
        }
        tokens[n] = token.token;
        if (logprobs) logprobs[n] = token.logprob;
    }
    return room > 0 ? room : 0;
}

void weft_generation_remove(weft_generation *generation, int64_t id) {
    if (generation) weft_generator_remove(generation, id);
}

/* Tokenizers for the library's users: data/tokenizer.h behind plain arrays. */

struct weft_text {
    weft_tokenizer *tokenizer;
    weft_encoder *encoder;
};

WEFT_ENDED_BY(weft_text_close, weft_text)

weft_status weft_text_open(const char *name, weft_text **out) {
    API_OPEN(out, name);
    WEFT_NEW(weft_text, t, weft_text_close, "%s: no memory", __func__);
    WEFT_TRY(weft_tokenizer_open(name, &t->tokenizer));
    WEFT_TRY(weft_encoder_open(t->tokenizer, &t->encoder));
    return weft_hand(&t, out);
}

void weft_text_close(weft_text *text) {
    if (!text) return;
    weft_encoder_close(text->encoder);
    weft_tokenizer_close(text->tokenizer);
    free(text);
}

int64_t weft_text_vocabulary(const weft_text *text) {
    return text ? weft_tokenizer_vocab(text->tokenizer) : 0;
}

int32_t weft_text_end(const weft_text *text) {
    return text ? weft_tokenizer_end(text->tokenizer) : -1;
}

weft_status weft_text_encode(weft_text *text, const char *bytes, size_t length, int specials,
                             int32_t *tokens, int64_t room, int64_t *count) {
    API_NEED(text, bytes, count);
    if (room > 0) API_NEED(tokens);
    const int32_t *found;
    WEFT_TRY(weft_encode(text->encoder, bytes, length, specials != 0, &found, count));
    int64_t n = *count < room ? *count : room;
    if (n > 0) memcpy(tokens, found, (size_t)n * sizeof *tokens);
    return WEFT_OK;
}

weft_status weft_text_decode(const weft_text *text, const int32_t *tokens, int64_t count,
                             char *bytes, size_t room, size_t *length) {
    API_NEED(text, length);
    if (count > 0) API_NEED(tokens);
    if (count < 0) return API_REFUSE("%lld tokens", (long long)count);
    if (room > 0) API_NEED(bytes);
    WEFT_AUTO_FREE char *found = NULL;
    WEFT_TRY(weft_tokenizer_decode(text->tokenizer, tokens, count, &found, length));
    size_t n = *length < room ? *length : room;
    if (n > 0) memcpy(bytes, found, n);
    return WEFT_OK;
}
