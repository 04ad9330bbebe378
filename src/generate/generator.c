/* A generator: what it is opened with and refuses, and the lives of its sequences. What a step does with
 * them is in token.c. */
#include "base/text.h"
#include "data/tokenizer.h"
#include "generate/generator_internal.h"

#include "model/kinds.h"

enum { DEFAULT_SEQUENCES = 8 };

weft_status weft_generator_open(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                                const weft_generator_limits *limits, weft_generator **out) {
    *out = NULL;
    weft_generator_limits l = limits ? *limits : (weft_generator_limits){0};
    /* Fills in what was left 0, and refuses what the config's positions do not allow. */
    bool ends = weft_position_of(&m->config)->ends;
    if (!l.sequences) l.sequences = DEFAULT_SEQUENCES;
    if (!l.context) l.context = m->config.context;
    if (l.sequences < 1 || l.sequences > 65536 || l.context < 1 || l.context > INT32_MAX / 2)
        return WEFT_BAD_INPUT("%lld sequences of %lld tokens cannot be generated",
                              (long long)l.sequences, (long long)l.context);
    if (ends && l.context > m->config.context)
        return WEFT_BAD_INPUT(
            "a context of %lld tokens is too long: the model's positions (%s) end at "
            "CONFIG_CONTEXT=%lld",
            (long long)l.context, weft_config_word(&m->config, WEFT_OPTION(position)),
            (long long)m->config.context);
    if (ends && l.slide)
        return WEFT_BAD_INPUT("a sliding context needs positions without an end: "
                              "CONFIG_POSITION=\"rope\", \"alibi\" or \"none\"");
    WEFT_NEW(weft_generator, g, weft_generator_close, "generate: no memory");
    l.no_sharing |= l.slide; /* pages are written again */
    g->config = m->config;
    g->stats.cache_bytes_per_token = weft_cached_token_bytes(&m->config, m->dtype);
    g->page_bytes = PAGE * g->stats.cache_bytes_per_token;
    /* A pool that is smaller than one context: texts end where it is full. */
    int64_t tokens = l.cache_bytes / g->page_bytes * PAGE;
    if (l.cache_bytes && !l.slide && tokens > 0 && tokens < l.context) l.context = tokens;
    g->limits = l;
    g->table_pages = weft_cached_table_pages(l.context);
    /* Where the context slides, rows of one run must not overwrite what its first one sees. */
    if (l.slide) g->table_pages += WEFT_DECODER_BLOCK / PAGE + 1;
    g->n_pages = l.cache_bytes ? l.cache_bytes / g->page_bytes : l.sequences * g->table_pages;
    if (g->n_pages < 1)
        return WEFT_BAD_INPUT(
            "a cache of %lld bytes does not hold a page of %d tokens, which takes %lld; "
            "make it larger",
            (long long)l.cache_bytes, PAGE, (long long)g->page_bytes);
    weft_decoder_limits decoder = {l.sequences, g->n_pages, l.context, g->table_pages};
    WEFT_TRY(weft_decoder_open(m, backend, pool, &decoder, &g->decoder));
    WEFT_TRY(weft_pages_create(g->n_pages, &g->pages));
    g->state_bytes = weft_decoder_state_bytes(g->decoder);
    g->slot_used = calloc((size_t)l.sequences, sizeof *g->slot_used);
    g->rows = weft_decoder_rows(g->decoder);
    /* Not where pages are written again, or what is kept beside them has to be looked at. */
    g->reads = l.slide || g->state_bytes ? 0 : weft_decoder_reads(g->decoder);
    g->logit_rows = g->rows;
    g->logits = malloc((size_t)(g->rows * m->config.vocab_size) * sizeof *g->logits);
    g->scratch = malloc(weft_sample_room(m->config.vocab_size));
    g->state = malloc((size_t)g->state_bytes + 1);
    if (l.ngram || l.draft) g->states = malloc((size_t)(l.sequences * g->state_bytes) + 1);
    if (!g->slot_used || !g->logits || !g->scratch || !g->state ||
        (!g->states && (l.ngram || l.draft)))
        return weft_no_memory("generate");
    if (g->states) WEFT_TRY(generator_open_drafts(g, backend, pool));
    return weft_hand(&g, out);
}

static void free_sequence(sequence *s) {
    if (!s) return;
    WEFT_FREE(s->tokens, s->pages, s->made, s);
}

void weft_generator_close(weft_generator *g) {
    if (!g) return;
    for (int64_t i = 0; i < g->n_list; i++)
        free_sequence(g->list[i]);
    draft_model_close(g->drafts);
    weft_pages_destroy(g->pages);
    weft_decoder_close(g->decoder);
    WEFT_FREE(g->list, g->slot_used, g->logits, g->scratch, g->state, g->states, g);
}

sequence *generator_find(const weft_generator *g, int64_t id) {
    int64_t low = 0, high = g->n_list;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (g->list[middle]->id == id) return g->list[middle];
        if (g->list[middle]->id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

static weft_status append_tokens(sequence *s, const int32_t *tokens, int64_t count) {
    if (!weft_grow_list(&s->tokens, &s->room, s->n_tokens + count, sizeof *s->tokens))
        return weft_no_memory("generate");
    if (count > 0) memcpy(s->tokens + s->n_tokens, tokens, (size_t)count * sizeof *tokens);
    s->n_tokens += count;
    return WEFT_OK;
}

static void set_goal(const weft_generator *g, sequence *s, const weft_sampling *sampling) {
    s->sampling = *sampling;
    s->stop_at = s->n_tokens + sampling->max_tokens;
    if (!g->limits.slide && s->stop_at > g->limits.context) s->stop_at = g->limits.context;
    s->state = SEQUENCE_WAITING;
    s->again = 0;
}

/* Whether `count` new tokens, which make `total` with those of the sequence, can be gone on from. */
static weft_status check_request(const weft_generator *g, const int32_t *tokens, int64_t count,
                                 int64_t total, const weft_sampling *sampling) {
    WEFT_TRY(weft_sampling_check(sampling));
    if (count < 1) return WEFT_BAD_INPUT("the prompt is empty; give one token at least");
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= g->config.vocab_size)
            return WEFT_BAD_INPUT("token %lld of the prompt is %d, but the model knows 0 to %lld",
                                  (long long)i, (int)tokens[i],
                                  (long long)g->config.vocab_size - 1);
    bool slides = g->limits.slide, goes_on = total > count;
    if (total + (sampling->max_tokens > 0) > g->limits.context && !slides)
        return WEFT_BAD_INPUT(
            "%s %lld tokens, too many for a context of %lld; %s%s",
            goes_on ? "with this the conversation has" : "the prompt has", (long long)total,
            (long long)g->limits.context, goes_on ? "begin a new one" : "shorten it",
            weft_position_of(&g->config)->ends ? "" : ", or let the context slide");
    int64_t end = total + sampling->max_tokens;
    if (!slides && end > g->limits.context) end = g->limits.context;
    int64_t most = (end - 1 + PAGE - 1) / PAGE; /* the last token leaves nothing behind */
    if (most > g->table_pages) most = g->table_pages;
    if (most > g->n_pages)
        return WEFT_BAD_INPUT(
            "%lld tokens need %lld pages, but the cache has %lld; give fewer tokens or a larger "
            "cache",
            (long long)(total + sampling->max_tokens), (long long)most, (long long)g->n_pages);
    return WEFT_OK;
}

WEFT_ENDED_BY(free_sequence, sequence)
weft_status weft_generator_add(weft_generator *g, const int32_t *prompt, int64_t count,
                               const weft_sampling *sampling, int64_t *id) {
    WEFT_TRY(check_request(g, prompt, count, count, sampling));
    if (!weft_grow_list(&g->list, &g->list_room, g->n_list + 1, sizeof *g->list))
        return weft_no_memory("generate");
    WEFT_NEW(sequence, s, free_sequence, "generate: no memory");
    WEFT_ROOM_AT(s->pages, g->table_pages, "generate: no memory");
    WEFT_TRY(append_tokens(s, prompt, count));
    if (sampling->prompt_logprobs) {
        WEFT_TRY(generator_tell(s, &(weft_sampled){.token = prompt[0], .logprob = NAN}));
        /* Logits of each row of a block, where a prompt has one. */
        if (count >= WEFT_DECODER_BLOCK && g->logit_rows != WEFT_DECODER_BLOCK) {
            size_t bytes = (size_t)(WEFT_DECODER_BLOCK * g->config.vocab_size) * sizeof *g->logits;
            float *grown = realloc(g->logits, bytes);
            if (!grown) return weft_no_memory("generate");
            g->logits = grown;
            g->logit_rows = WEFT_DECODER_BLOCK;
        }
    }
    *id = s->id = g->next_id++;
    s->slot = -1;
    s->n_prompt = count;
    set_goal(g, s, sampling);
    return weft_hand(&s, &g->list[g->n_list++]);
}

bool weft_generator_busy(const weft_generator *g) {
    for (int64_t i = 0; i < g->n_list; i++)
        if (g->list[i]->state != SEQUENCE_DONE) return true;
    return false;
}

weft_status weft_generator_extend(weft_generator *g, int64_t id, const int32_t *tokens,
                                  int64_t count, const weft_sampling *sampling) {
    sequence *s = generator_find(g, id);
    if (!s || s->state != SEQUENCE_DONE)
        return WEFT_BAD_INPUT("generate: sequence %lld is not there or has not ended",
                              (long long)id);
    WEFT_TRY(check_request(g, tokens, count, s->n_tokens + count, sampling));
    WEFT_TRY(append_tokens(s, tokens, count));
    set_goal(g, s, sampling);
    /* A run that was ahead of the text's end has changed what the sequence keeps: it begins anew. */
    if (g->state_bytes && g->limits.no_sharing && weft_decoder_samples(g->decoder))
        generator_give_back(g, s);
    if (s->slot >= 0) s->state = SEQUENCE_RUNNING;
    return WEFT_OK;
}

void generator_finish(sequence *s, weft_take how) {
    s->state = SEQUENCE_DONE;
    s->end = how;
    s->epoch++;
}

weft_status generator_tell(sequence *s, const weft_sampled *token) {
    if (!weft_grow_list(&s->made, &s->made_room, s->n_made + 1, sizeof *s->made))
        return weft_no_memory("generate");
    s->made[s->n_made++] = *token;
    return WEFT_OK;
}

weft_status generator_keep_token(weft_generator *g, sequence *s, weft_sampled made) {
    const weft_tokenizer *ends = s->sampling.ends;
    WEFT_TRY(generator_tell(s, &made));
    s->n_made--; /* one that ends the text lies behind what is told */
    if (made.token == s->sampling.end_token || (ends && weft_tokenizer_ends(ends, made.token))) {
        generator_finish(s, WEFT_TAKE_END);
        return WEFT_OK;
    }
    WEFT_TRY(append_tokens(s, &made.token, 1));
    s->n_made++;
    s->number++;
    g->stats.sampled_tokens++;
    if (s->n_tokens >= s->stop_at) generator_finish(s, WEFT_TAKE_LENGTH);
    return WEFT_OK;
}

weft_take weft_generator_take(weft_generator *g, int64_t id, weft_sampled *token) {
    sequence *s = generator_find(g, id);
    if (!s) return WEFT_TAKE_WAIT;
    if (s->n_taken < s->n_made) {
        *token = s->made[s->n_taken++];
        return WEFT_TAKE_TOKEN;
    }
    if (s->state != SEQUENCE_DONE) return WEFT_TAKE_WAIT;
    if (s->end == WEFT_TAKE_END) *token = s->made[s->n_made];
    return s->end;
}

weft_status weft_generator_broken(void) {
    return WEFT_BAD_INPUT(
        "the model's logits are not numbers: its weights are broken, or too large for "
        "their type; DTYPE=f32 or an earlier checkpoint may help");
}

void weft_generator_remove(weft_generator *g, int64_t id) {
    for (int64_t i = 0; i < g->n_list; i++) {
        if (g->list[i]->id != id) continue;
        generator_give_back(g, g->list[i]);
        free_sequence(g->list[i]);
        memmove(g->list + i, g->list + i + 1, (size_t)(g->n_list - i - 1) * sizeof *g->list);
        g->n_list--;
        return;
    }
}

void weft_generator_stop(weft_generator *g, int64_t id) {
    sequence *s = generator_find(g, id);
    if (!s) return;
    /* With tokens of the same step that are not wanted any more, what they left behind goes, too; what is told
     * of the prompt is no token of the text. */
    int64_t lost = s->n_made - s->n_taken;
    if (lost > s->number) lost = s->number;
    s->n_made -= lost;
    s->n_tokens -= lost;
    s->number -= (uint32_t)lost;
    if (s->state == SEQUENCE_DONE && !lost) return;
    /* Half of a prompt's run may have changed what it keeps. */
    bool halfway = false;
    for (int i = 0; i < g->prompts.n_of; i++)
        halfway |= g->prompts.id[i] == id;
    if (lost || halfway) generator_give_back(g, s);
    if (s->slot < 0) s->n_computed = 0;
    generator_finish(s, WEFT_TAKE_LENGTH);
}

int64_t weft_generator_shared(const weft_generator *g, int64_t id) {
    const sequence *s = generator_find(g, id);
    return s ? s->shared : 0;
}

void weft_generator_count(const weft_generator *g, weft_generator_stats *out) {
    *out = g->stats;
    weft_pages_counts pages = weft_pages_count(g->pages);
    for (int64_t i = 0; i < g->n_list; i++) {
        out->running += g->list[i]->state == SEQUENCE_RUNNING;
        out->waiting += g->list[i]->state == SEQUENCE_WAITING;
    }
    out->pages = pages.count;
    out->pages_used = pages.held;
    out->pages_kept = pages.kept;
    out->cache_bytes_per_sequence = g->state_bytes;
    out->cache_bytes = weft_decoder_page_bytes(g->decoder) + g->state_bytes * g->limits.sequences;
    out->weight_bytes = weft_decoder_weight_bytes(g->decoder);
    out->vocab = g->config.vocab_size;
    out->context = g->limits.context;
}
