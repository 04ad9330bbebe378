/* What a generator takes, and what it refuses and why. */
#include "generate/generator_internal.h"

#include "model/kinds.h"

enum { DEFAULT_SEQUENCES = 8 };

static bool positions_end(const weft_config *c) {
    return weft_position_of(c)->ends;
}

weft_status generator_complete_limits(const weft_config *c, weft_generator_limits *l) {
    if (!l->sequences) l->sequences = DEFAULT_SEQUENCES;
    if (!l->context) l->context = c->context;
    if (l->sequences < 1 || l->sequences > 65536 || l->context < 1 || l->context > INT32_MAX / 2)
        return weft_fail(WEFT_EINPUT, "%lld sequences of %lld tokens cannot be generated",
                         (long long)l->sequences, (long long)l->context);
    if (positions_end(c) && l->context > c->context)
        return weft_fail(WEFT_EINPUT,
                         "a context of %lld tokens is too long: the model's positions (%s) end at "
                         "CONFIG_CONTEXT=%lld",
                         (long long)l->context, weft_config_word(c, WEFT_OPTION(position)),
                         (long long)c->context);
    if (positions_end(c) && l->slide)
        return weft_fail(WEFT_EINPUT, "a sliding context needs positions without an end: "
                                      "CONFIG_POSITION=\"rope\", \"alibi\" or \"none\"");
    return WEFT_OK;
}

void generator_fit_context(weft_generator_limits *l, int64_t page_bytes) {
    int64_t tokens = l->cache_bytes / page_bytes * PAGE;
    if (l->cache_bytes && !l->slide && tokens > 0 && tokens < l->context) l->context = tokens;
}

static weft_status refuse_long(const weft_generator *g, int64_t count, int64_t total) {
    bool goes_on = total > count;
    return weft_fail(WEFT_EINPUT, "%s %lld tokens, too many for a context of %lld; %s%s",
                     goes_on ? "with this the conversation has" : "the prompt has",
                     (long long)total, (long long)g->limits.context,
                     goes_on ? "begin a new one" : "shorten it",
                     positions_end(&g->config) ? "" : ", or let the context slide");
}

/* Pages of a sequence that is to have so many tokens, the last of which leaves nothing behind. */
static int64_t most_pages(const weft_generator *g, int64_t tokens) {
    if (!g->limits.slide && tokens > g->limits.context) tokens = g->limits.context;
    int64_t pages = (tokens - 1 + PAGE - 1) / PAGE;
    return pages < g->table_pages ? pages : g->table_pages;
}

weft_status generator_check_request(const weft_generator *g, const int32_t *tokens, int64_t count,
                                    int64_t total, const weft_sampling *sampling) {
    WEFT_TRY(weft_sampling_check(sampling));
    if (count < 1) return weft_fail(WEFT_EINPUT, "the prompt is empty; give one token at least");
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= g->config.vocab_size)
            return weft_fail(WEFT_EINPUT,
                             "token %lld of the prompt is %d, but the model knows 0 to %lld",
                             (long long)i, (int)tokens[i], (long long)g->config.vocab_size - 1);
    if (total >= g->limits.context && !g->limits.slide) return refuse_long(g, count, total);
    int64_t most = most_pages(g, total + sampling->max_tokens);
    if (most > g->n_pages)
        return weft_fail(
            WEFT_EINPUT,
            "%lld tokens need %lld pages, but the cache has %lld; give fewer tokens or a larger "
            "cache",
            (long long)(total + sampling->max_tokens), (long long)most, (long long)g->n_pages);
    return WEFT_OK;
}
