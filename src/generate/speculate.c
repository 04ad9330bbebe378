/* Speculation: a draft of the next tokens is run through the model in one step, a row for each, which costs
 * little more than a row alone: the weights are read once.
 *
 * From each row the token is drawn as it is without a draft, by the same random number, and the next row
 * counts only if this is the token that was drafted. So the text, and every bit of it, is what it is
 * without speculation, whatever the draft; a draft that is wrong costs time. A draft model draws by the
 * same random numbers, too: where it finds the tokens as likely as the model does, it draws the same one.
 *
 * A row that does not count leaves nothing behind: in pages, later rows take its place before anyone sees
 * it, and what a sequence keeps beside its pages is put back (token.c). The draft model has a cache of its
 * own, in which a sequence has a fixed place.
 *
 * How much is drafted follows from how much was right. With a share p of right ones, L tokens are expected to
 * give 1 + p + ... + p^L; each costs a row, which on a CPU is taken for a quarter of a step of one row and on a
 * GPU for a thirty-second, and what the draft model reads beside the model. Of 0, 1, 3, 7 and 15 tokens (rows
 * are run in powers of two) what promises most for its time is drafted. p is 0.5 at first and moves by an
 * eighth with each token that is seen to be right or wrong; where nothing pays, one is tried in each sixteenth
 * step. */
#include "generate/generator_internal.h"
#include "model/kinds.h"

enum {
    REST_MOST = 15,  /* steps until one is drafted where it does not pay */
    MATCH_LEAST = 2, /* tokens that have been there before */
    MATCH_MOST = 32
};
static const double SHARE_FIRST = 0.5, SHARE_STEP = 0.125;
static const double ROW_COST_CPU = 1.0 / 4, ROW_COST_GPU = 1.0 / 32;

struct draft_model {
    weft_decoder *decoder;
    int64_t rows, state_bytes;
    int64_t end;  /* of its positions */
    char *states; /* [sequences]: as they were before what was drafted */
};

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

void draft_model_close(draft_model *d) {
    if (!d) return;
    weft_decoder_close(d->decoder);
    WEFT_FREE(d->states, d);
}

weft_status generator_open_drafts(weft_generator *g, const weft_backend *backend, weft_pool *pool) {
    const weft_generator_limits *l = &g->limits;
    g->row_cost = backend->remote ? ROW_COST_GPU : ROW_COST_CPU;
    if (!l->draft) return WEFT_OK;
    const weft_config *c = &l->draft->config;
    if (c->vocab_size != g->config.vocab_size)
        return WEFT_BAD_INPUT(
            "the draft model knows %lld tokens and the model %lld; a draft model must "
            "have the model's vocabulary",
            (long long)c->vocab_size, (long long)g->config.vocab_size);
    WEFT_NEW(draft_model, d, draft_model_close, "generate: no memory");
    bool ends = weft_position_of(c)->ends;
    int64_t context = ends ? least(c->context, l->context) : l->context;
    /* As wide as the generator's, a sliding context's too: places are taken in turn. */
    int64_t table = ends ? weft_cached_table_pages(context) : g->table_pages;
    weft_decoder_limits limits = {l->sequences, l->sequences * table, context, table};
    weft_status status = weft_decoder_open(l->draft, backend, pool, &limits, &d->decoder);
    if (status != WEFT_OK) return weft_fail(status, "the draft model: %s", weft_error_message());
    for (int64_t i = 0; i < limits.pages; i++)
        weft_decoder_table(d->decoder, (int32_t)(i / table))[i % table] = (int32_t)i;
    d->end = ends ? context : INT64_MAX;
    d->rows = least(weft_decoder_rows(d->decoder), g->rows);
    d->state_bytes = weft_decoder_state_bytes(d->decoder);
    d->states = malloc((size_t)(l->sequences * d->state_bytes) + 1);
    if (!d->states) return weft_no_memory("generate");
    g->draft_cost = (double)weft_decoder_weight_bytes(d->decoder) /
                    (double)weft_decoder_weight_bytes(g->decoder);
    return weft_hand(&d, &g->drafts);
}

/* What came behind the match, and where that ends, what it was taken for. */
static void draft_by_match(sequence *s) {
    draft *d = &s->draft;
    /* Where the text goes on behind the longest match of its end before, of equally long ones
     * the last; 0: there is none. */
    int64_t at = 0, longest = MATCH_LEAST - 1;
    for (int64_t end = s->n_tokens - 1; end > longest && longest < MATCH_MOST; end--) {
        int64_t same = 0;
        while (same < least(end, MATCH_MOST) &&
               s->tokens[end - 1 - same] == s->tokens[s->n_tokens - 1 - same])
            same++;
        if (same <= longest) continue;
        longest = same;
        at = end;
    }
    for (; at && d->n < d->wanted; at++, d->n++)
        d->tokens[d->n] = at < s->n_tokens ? s->tokens[at] : d->tokens[at - s->n_tokens];
}

static char *state_of(const draft_model *m, const sequence *s) {
    return m->states + s->slot * m->state_bytes;
}

/* Forgets what was drafted last and did not come. */
static weft_status rewind_model(const draft_model *m, const sequence *s, draft *d) {
    int64_t right = m->state_bytes ? d->n_known : d->n_right;
    bool ahead = d->n_computed > right;
    d->n_computed = least(d->n_computed, right);
    d->n_known = d->n_right = s->n_tokens;
    if (!ahead || !m->state_bytes) return WEFT_OK;
    weft_status status = weft_decoder_load(m->decoder, s->slot, state_of(m, s));
    if (status != WEFT_OK) d->n_computed = 0;
    return status;
}

/* The next token of a draft, where all before it have been run: what the device drew, or by the next
 * logits. */
static weft_status draft_token(weft_generator *g, sequence *s, const int32_t *sampled,
                               const float **logits) {
    draft *d = &s->draft;
    if (d->n_computed < s->n_tokens + d->n) return WEFT_OK;
    if (d->n == 0 && g->drafts->state_bytes)
        WEFT_TRY(weft_decoder_save(g->drafts->decoder, s->slot, state_of(g->drafts, s)));
    weft_draw how = generator_draw(s, d->n);
    int32_t token =
        sampled ? *sampled : weft_draw_token(*logits, g->config.vocab_size, &how, g->scratch);
    d->tokens[d->n++] = token < 0 ? 0 : token; /* logits that are not numbers draft anything */
    if (!sampled) *logits += g->config.vocab_size;
    return WEFT_OK;
}

/* In each run known tokens, and one behind those drafted so far. After an error whoever was in the run is read
 * anew. */
static weft_status draft_by_model(weft_generator *g) {
    for (;;) {
        batch b = {.n = 0};
        const float *logits = g->logits;
        int32_t sampled[WEFT_DECODER_ROWS_MAX];
        for (int64_t i = 0; i < g->n_list && b.n < g->drafts->rows; i++) {
            sequence *s = g->list[i];
            draft *d = &s->draft;
            int64_t end = s->n_tokens + d->n, left = end - d->n_computed;
            if (d->n >= d->wanted) continue;
            bool block = left >= WEFT_DECODER_BLOCK;
            if (block && b.n > 0) continue;
            b.block = block;
            int64_t rows = block ? WEFT_DECODER_BLOCK : least(left, g->drafts->rows - b.n);
            generator_put_rows(&b, s, d->n_computed, rows, end - 1);
            d->n_computed += rows;
        }
        if (b.n == 0) return WEFT_OK;
        bool samples = weft_decoder_draws(g->drafts->decoder) && !b.block;
        weft_status status = generator_run_rows(g, g->drafts->decoder, &b, samples, sampled);
        for (int64_t i = 0, end = 0; i < b.n_of && status == WEFT_OK; i++) {
            end += b.count[i];
            status = draft_token(g, b.of[i], samples ? sampled + end - 1 : NULL, &logits);
        }
        for (int i = 0; i < b.n_of && status != WEFT_OK; i++)
            b.of[i]->draft.n_computed = 0;
        WEFT_TRY(status);
    }
}

weft_status generator_draft(weft_generator *g) {
    int64_t running = 0;
    if (!g->states) return WEFT_OK;
    for (int64_t i = 0; i < g->n_list; i++) {
        g->list[i]->draft.n = g->list[i]->draft.wanted = 0;
        running += generator_wants_token(g->list[i]);
    }
    for (int64_t i = 0; i < g->n_list; i++) {
        sequence *s = g->list[i];
        draft *d = &s->draft;
        if (!generator_wants_token(s)) continue;
        if (!d->begun) d->share = SHARE_FIRST;
        d->begun = true;
        int64_t most = least(g->rows / running - 1, DRAFT_MOST);
        /* How many tokens to draft, `most` at most, where `running` sequences have a row in the
         * step anyway. */
        double step = 1 + g->row_cost * (double)(running - 1), best = 1 / step;
        double each = g->row_cost * (double)running + g->draft_cost * step, made = 1, chance = 1;
        int64_t length = 0;
        for (int64_t n = 1; n <= most; n++) {
            chance *= d->share;
            made += chance;
            double rate = made / (step + (double)n * each);
            if ((n & (n + 1)) != 0 || rate <= best) continue;
            best = rate;
            length = n;
        }
        if (!length && d->rest++ < REST_MOST) continue;
        if (!length) length = least(1, most);
        d->rest = 0;
        /* The last token has no row. */
        int64_t end = least(s->stop_at - 1, g->drafts ? g->drafts->end : INT64_MAX);
        length = least(length, end - s->n_tokens);
        if (length < 1) continue;
        if (g->drafts) WEFT_TRY(rewind_model(g->drafts, s, d));
        d->wanted = length;
        if (!g->drafts) draft_by_match(s);
    }
    return g->drafts ? draft_by_model(g) : WEFT_OK;
}

void generator_fit_draft(weft_generator *g, sequence *s, int64_t rows) {
    int64_t known = s->n_tokens - s->n_computed;
    int64_t n = least(least(s->draft.n, rows), DRAFT_MOST + 1 - known);
    if (n > 0) {
        generator_find_pages(g, s, s->n_tokens + n, true);
        n = least(n, s->n_pages * PAGE - s->n_tokens);
        n = generator_rows_until_kept(g, s, known + n) - known;
    }
    s->draft.n = n > 0 ? n : 0;
}

void generator_settle_draft(weft_generator *g, sequence *s, int64_t right) {
    draft *d = &s->draft;
    g->stats.drafted_tokens += d->n;
    g->stats.accepted_tokens += right;
    d->n_right = d->n_known + right;
    for (int64_t i = 0; i < d->n && i <= right; i++)
        d->share += SHARE_STEP * ((i < right) - d->share);
    d->n = 0;
}
