/* From the cache to the sampled token: weft_generator_step, at the end of this file, stage by stage.
 *
 *   admission   a sequence that waits gets a slot, and the pages of others that begin   admission.c
 *               alike: what is in them is not computed again
 *   pages       each row of the step leaves keys and values behind, in a page of the    admission.c,
 *               pool; where the pool is full the youngest sequence gives its own back   pages.c
 *   draft       with speculation: tokens that may come next, of each sequence whose     speculate.c
 *               prompt is read
 *   rows        of this step: the last token of each such sequence and its draft, then  here
 *               rows of prompts, a whole block or as many as fit a run, as far as their
 *               share of the step's time goes: the next step goes on there
 *   model       rows through all layers, over the pages: by the graph for so many rows  decoder.c
 *               (model/cached.h; its attention: ops/cache.h)
 *   logits      of the last row of each sequence and of drafted ones, where more is     decoder.c
 *               asked than a token or the device does not sample
 *   sampling    from the logits, or what the device drew, by one arithmetic             sample.c,
 *               (core/draw.h); as long as that is what was drafted, from the next row   cuda/decode
 *               too
 *   text        the token joins its sequence; weft_generator_take gives it to the       generator.c,
 *               caller, who makes text of it                                            text.c
 *
 * What a sequence's tokens leave behind does not depend on the batch. Where rows of long prompts are not read
 * with the bits that they have alone, there are two ways to compute it (decoder.h): whole blocks of a prompt
 * by the products of training, everything else row by row. Which tokens go which way follows from the prompt's
 * length alone, so it is the same when a sequence is set back and computed again, and pages are shared only
 * between equal ways.
 *
 * Where all that is to be done is the next token of sequences that run, and the decoder samples it itself,
 * a step runs ahead of the host: it begins before the tokens of the last one are here, takes
 * them from the device's memory, and the host is never what it waits for. A sequence that ends meanwhile
 * has one row for nothing. */
#include "base/clock.h"
#include "generate/generator_internal.h"

/* Whether more is told of the sequence than its tokens, or the host draws them. */
static bool needs_logits(const weft_generator *g, const sequence *s) {
    const weft_sampling *how = &s->sampling;
    bool drawn = how->temperature > 0 || how->repetition_penalty != 1;
    return !how->token_only || how->top_logprobs > 0 || how->prompt_logprobs ||
           (drawn && !weft_decoder_draws(g->decoder));
}

static int64_t known_rows(const sequence *s) {
    return s->n_tokens - s->n_computed;
}

bool generator_wants_token(const sequence *s) {
    return s->state == SEQUENCE_RUNNING && known_rows(s) == 1 + s->again;
}

bool generator_tells_prompt(const sequence *s, int64_t row) {
    return s->sampling.prompt_logprobs && row + 1 < s->n_prompt && row + 1 >= s->n_made;
}

static void put_sequence(batch *b, sequence *s, int64_t rows) {
    b->of[b->n_of] = s;
    b->id[b->n_of] = s->id;
    b->epoch[b->n_of] = s->epoch;
    b->count[b->n_of++] = rows;
}

void generator_put_rows(batch *b, sequence *s, int64_t from, int64_t rows, int64_t wanted) {
    put_sequence(b, s, rows);
    for (int64_t at = from; at < from + rows; at++) {
        int64_t drafted = at - s->n_tokens;
        b->rows[b->n++] =
            (weft_decoder_row){.token = drafted < 0 ? s->tokens[at] : s->draft.tokens[drafted],
                               .position = (int32_t)at,
                               .slot = s->slot,
                               .wanted = at >= wanted};
    }
}

static void put_rows(batch *b, sequence *s, int64_t rows) {
    int64_t first = b->n;
    generator_put_rows(b, s, s->n_computed, rows, s->n_tokens - 1);
    for (int64_t i = 0; i < rows; i++)
        b->rows[first + i].wanted |= generator_tells_prompt(s, s->n_computed + i);
}

weft_draw generator_draw(const sequence *s, int64_t later) {
    return weft_sampling_draw(&s->sampling, s->number + (uint32_t)later, s->tokens, s->n_tokens);
}

weft_status generator_run_rows(weft_generator *g, weft_decoder *d, batch *b, bool samples,
                               int32_t *sampled) {
    if (b->block) return weft_decoder_run_block(d, b->rows, g->logits);
    if (b->read) {
        const sequence *s = b->of[0];
        return weft_decoder_read(d, s->slot, s->tokens + s->n_computed, s->n_computed, b->n);
    }
    if (!samples) return weft_decoder_run(d, b->rows, b->n, g->logits);
    weft_draw draws[WEFT_DECODER_ROWS_MAX];
    for (int64_t i = 0, r = 0; i < b->n_of; i++)
        for (int64_t end = r + b->count[i]; r < end; r++) {
            int64_t later = b->rows[r].position + 1 - b->of[i]->n_tokens;
            bool told = d == g->decoder && needs_logits(g, b->of[i]);
            bool drawn = b->rows[r].wanted && !told && later >= 0;
            draws[r] = drawn ? generator_draw(b->of[i], later) : (weft_draw){.penalty = 1};
            b->rows[r].wanted &= told;
        }
    return weft_decoder_run_sampling(d, b->rows, b->n, draws, g->logits, sampled);
}

/* A token that the device sampled; -1: its logits are not numbers. */
static weft_status take_sampled(weft_generator *g, sequence *s, int32_t token) {
    if (token >= 0) return generator_keep_token(g, s, (weft_sampled){.token = token});
    generator_finish(s, WEFT_TAKE_BROKEN);
    return WEFT_OK;
}

/* The token behind a row: what was sampled in it (NULL: nothing was), or drawn from the next logits, of which one
 * that is not a number makes every probability none. */
static weft_status take_row(weft_generator *g, sequence *s, const int32_t *sampled,
                            const float *logits) {
    weft_sampled made;
    if (sampled && !needs_logits(g, s)) return take_sampled(g, s, *sampled);
    if (s->state == SEQUENCE_DONE) return WEFT_OK; /* its prompt's logits are not numbers */
    if (s->n_tokens >= s->stop_at) {
        generator_finish(s, WEFT_TAKE_LENGTH);
        return WEFT_OK;
    }
    weft_sample(logits, g->config.vocab_size, &s->sampling, s->number, s->tokens, s->n_tokens,
                g->scratch, &made);
    if (!isnan(made.logprob)) return generator_keep_token(g, s, made);
    generator_finish(s, WEFT_TAKE_BROKEN);
    return WEFT_OK;
}

/* Of a draft, `right` tokens were what came; what a sequence keeps beside its pages is put back where the
 * rest has left a trace in it, and the right ones are run again. */
static weft_status undo_rest(weft_generator *g, sequence *s, int64_t from, int64_t right) {
    bool whole = right == s->draft.n;
    generator_settle_draft(g, s, right);
    if (whole || !g->state_bytes) return WEFT_OK;
    s->again = s->n_computed - from;
    s->n_computed = from;
    return weft_decoder_load(g->decoder, s->slot,
                             (const char *)g->states + s->slot * g->state_bytes);
}

/* What a run made for a sequence: tokens, by what was sampled in its rows (NULL: nothing was) or by the
 * next logits, and full pages. */
static weft_status take_rows(weft_generator *g, sequence *s, int64_t rows, const int32_t *sampled,
                             const float **logits) {
    int64_t from = s->n_computed, known = known_rows(s), right = 0, vocab = g->config.vocab_size;
    /* Tells of the prompt's tokens behind the rows of a run, by the next logits. */
    weft_sampled told;
    for (int64_t at = s->n_computed; at < s->n_computed + (rows < known ? rows : known); at++) {
        if (!generator_tells_prompt(s, at)) continue;
        weft_sample_tell(*logits, g->config.vocab_size, s->tokens[at + 1], s->sampling.top_logprobs,
                         g->scratch, &told);
        WEFT_TRY(generator_tell(s, &told));
        if (isnan(told.logprob)) generator_finish(s, WEFT_TAKE_BROKEN);
        *logits += g->config.vocab_size;
    }
    g->stats.prompt_tokens += rows < known ? rows : known - 1 - s->again;
    s->n_computed += rows < known ? rows : known;
    if (rows >= known) {
        s->again = 0;
        const int32_t *own = sampled ? sampled + known - 1 : NULL;
        int64_t drafted = rows - known;
        WEFT_TRY(take_row(g, s, own, *logits));
        while (right < drafted && s->state == SEQUENCE_RUNNING &&
               s->tokens[s->n_tokens - 1] == s->draft.tokens[right]) {
            s->n_computed++;
            right++;
            WEFT_TRY(take_row(g, s, own ? own + right : NULL, *logits + right * vocab));
        }
        if (!sampled || needs_logits(g, s)) *logits += (drafted + 1) * vocab;
        if (drafted) WEFT_TRY(undo_rest(g, s, from, right));
    }
    return generator_seal_pages(g, s);
}

/* After an error, whoever has not got what was computed for it begins anew. */
static weft_status run_batch(weft_generator *g, batch *b) {
    if (b->n == 0) return WEFT_OK;
    int32_t sampled[WEFT_DECODER_ROWS_MAX];
    const float *logits = g->logits;
    bool whole = b->block || b->read, done = true;
    bool samples = weft_decoder_samples(g->decoder) && !whole;
    bool in_pieces = !samples && !b->read && b == &g->prompts && g->limits.prompt_share > 0;
    /* What sequences keep beside their pages, before drafted rows change it. */
    weft_status status = WEFT_OK;
    for (int i = 0; g->state_bytes && status == WEFT_OK && i < b->n_of; i++) {
        int32_t slot = b->of[i]->slot;
        if (b->of[i]->draft.n)
            status = weft_decoder_save(g->decoder, slot, (char *)g->states + slot * g->state_bytes);
    }
    if (status == WEFT_OK)
        status = in_pieces ? weft_decoder_run_piece(g->decoder, b->rows, b->n, b->block, g->credit,
                                                    g->logits, &done)
                           : generator_run_rows(g, g->decoder, b, samples, sampled);
    if (!done && status == WEFT_OK) return WEFT_OK;
    for (int64_t i = 0, first = 0; i < b->n_of; first += b->count[i++]) {
        if (status == WEFT_OK)
            status = take_rows(g, b->of[i], b->count[i], samples ? sampled + first : NULL, &logits);
        if (status != WEFT_OK) generator_set_back(g, b->of[i]);
    }
    b->n = b->n_of = b->block = b->read = 0;
    return status;
}

/* A token or more for every sequence whose prompt is read, as many sequences in a run as may be. */
static weft_status run_decoding(weft_generator *g) {
    WEFT_TRY(generator_draft(g));
    for (int64_t i = 0; i < g->n_list;) {
        int64_t first = i, chosen = 0;
        for (; i < g->n_list; i++) {
            sequence *s = g->list[i];
            if (!generator_wants_token(s)) continue;
            if (chosen + known_rows(s) > g->rows) break;
            if (!generator_find_pages(g, s, s->n_tokens, false)) continue;
            generator_fit_draft(g, s, g->rows - chosen - known_rows(s));
            chosen += known_rows(s) + s->draft.n;
        }
        /* Finding pages for one may have set another back. */
        batch b = {0};
        for (int64_t k = first; k < i; k++)
            if (generator_wants_token(g->list[k]) &&
                g->list[k]->n_pages * PAGE > g->list[k]->n_computed)
                put_rows(&b, g->list[k], known_rows(g->list[k]) + g->list[k]->draft.n);
        WEFT_TRY(run_batch(g, &b));
    }
    return WEFT_OK;
}

static int64_t prompt_left(const sequence *s) {
    return s->state == SEQUENCE_RUNNING && !generator_wants_token(s) ? known_rows(s) : 0;
}

/* A block of the oldest prompt that has one, or up to `reads` rows of it, or rows of as many prompts as fit. */
static void gather_prompts(weft_generator *g, batch *b, int64_t reads) {
    /* How much may be left of a prompt that is read now. Where prompts are read in pieces, every other time only
     * those without a whole block or, where there are none, the shortest, so that they do not wait for the end of
     * a long one. */
    int64_t least = INT64_MAX;
    g->oldest = !g->oldest || g->limits.prompt_share == 0;
    for (int64_t i = 0; !g->oldest && i < g->n_list; i++) {
        int64_t left = prompt_left(g->list[i]);
        if (left && left < least) least = left;
    }
    int64_t longest = least < WEFT_DECODER_BLOCK ? WEFT_DECODER_BLOCK - 1 : least;
    for (int64_t i = 0; i < g->n_list && b->n < g->rows; i++) {
        sequence *s = g->list[i];
        int64_t left = prompt_left(s);
        if (!left || left > longest) continue;
        bool block = s->n_computed + WEFT_DECODER_BLOCK <= generator_block_end(g, s);
        bool read = g->reads && left > g->rows && !s->sampling.prompt_logprobs;
        if ((block || read) && b->n > 0) break;
        int64_t rows = block ? WEFT_DECODER_BLOCK : read ? reads : g->rows - b->n;
        int64_t most = read ? left - 1 : left; /* the last one's logits are needed */
        rows = rows < most ? rows : most;
        if (!block) rows = generator_rows_until_kept(g, s, rows);
        if (!generator_find_pages(g, s, s->n_computed + rows, false)) continue;
        /* Whoever was set back for these pages is younger, and in no batch yet. */
        if (read)
            put_sequence(b, s, b->n = rows);
        else
            put_rows(b, s, rows);
        b->block = block;
        b->read = read;
        if (block || read) break;
    }
}

/* The sequence whose row a run has; NULL: it has ended or was set back since. */
static sequence *find_running(const weft_generator *g, int64_t id, uint32_t epoch) {
    sequence *s = generator_find(g, id);
    return s && s->state == SEQUENCE_RUNNING && s->epoch == epoch ? s : NULL;
}

/* Prompts, for as long as `decoding`, the seconds that tokens took in this step, allows. */
static weft_status run_prompts(weft_generator *g, double decoding) {
    double share = g->limits.prompt_share, start = weft_clock();
    /* Gives up a run in pieces of which a sequence is gone: its pages are not its own any more.
     * What the others keep beside theirs has changed, so they begin anew. */
    int gone = 0;
    for (int i = 0; i < g->prompts.n_of; i++)
        gone += !find_running(g, g->prompts.id[i], g->prompts.epoch[i]);
    for (int i = 0; gone && i < g->prompts.n_of; i++)
        if (find_running(g, g->prompts.id[i], g->prompts.epoch[i]))
            generator_set_back(g, g->prompts.of[i]);
    if (gone) {
        weft_decoder_drop(g->decoder);
        g->prompts.n = g->prompts.n_of = g->prompts.block = 0;
    }
    g->credit = share > 0 && decoding > 0 ? fmin(g->credit, 0) + share * decoding : INFINITY;
    if (g->credit <= 0) return WEFT_OK;
    /* Fewer rows at once where others wait for their tokens. */
    if (!g->prompts.n) gather_prompts(g, &g->prompts, decoding > 0 ? g->reads / 4 : g->reads);
    if (!g->prompts.n) return WEFT_OK;
    WEFT_TRY(run_batch(g, &g->prompts));
    g->credit -= weft_clock() - start;
    return WEFT_OK;
}

static bool is_ahead(const weft_generator *g, const sequence *s) {
    for (int64_t i = 0; i < g->ahead.n; i++)
        if (g->ahead.id[i] == s->id) return g->ahead.epoch[i] == s->epoch;
    return false;
}

static bool may_go_ahead(const weft_generator *g) {
    int64_t running = 0;
    if (!weft_decoder_samples(g->decoder) || g->limits.slide || g->states) return false;
    /* What a sequence keeps is looked at where a page ends, before the next token changes it. */
    if (g->state_bytes && !g->limits.no_sharing) return false;
    for (int64_t i = 0; i < g->n_list; i++) {
        const sequence *s = g->list[i];
        if (s->state == SEQUENCE_DONE) continue;
        if (!generator_wants_token(s) || needs_logits(g, s) || (g->ahead.n && !is_ahead(g, s)))
            return false;
        running++;
    }
    return running > 0 && running <= g->rows;
}

/* Begins the run that makes the token behind the next one of each sequence in g->ahead, or, without one
 * under way, the next of all that run. out->n = 0: there is nothing to begin, or no page free. */
static weft_status begin_ahead(weft_generator *g, batch *out) {
    const batch *now = &g->ahead;
    weft_draw draws[WEFT_DECODER_ROWS_MAX];
    int64_t later = now->n ? 1 : 0, count = now->n ? now->n : g->n_list;
    out->n = 0;
    for (int64_t i = 0; i < count; i++) {
        sequence *s = now->n ? find_running(g, now->id[i], now->epoch[i]) : g->list[i];
        if (!s || s->state != SEQUENCE_RUNNING) continue;
        if (s->n_tokens + later >= s->stop_at) continue;
        if (!generator_find_pages(g, s, s->n_computed + later + 1, true)) {
            out->n = 0;
            return WEFT_OK;
        }
        draws[out->n] = generator_draw(s, later);
        put_sequence(out, s, 1);
        out->rows[out->n++] =
            (weft_decoder_row){.token = now->n ? -1 - (int32_t)i : s->tokens[s->n_computed],
                               .position = (int32_t)(s->n_computed + later),
                               .slot = s->slot};
    }
    return out->n ? weft_decoder_begin(g->decoder, out->rows, out->n, draws) : WEFT_OK;
}

weft_status weft_generator_step(weft_generator *g) {
    batch next = {0};
    bool ahead = g->ahead.n > 0;
    if (ahead) {
        if (may_go_ahead(g)) WEFT_TRY(begin_ahead(g, &next));
        /* Takes the tokens of the run under way. After an error, whoever has not got its token
         * begins anew, and what the next run, if it has begun, makes for it is not taken: its epoch
         * is another. */
        int32_t tokens[WEFT_DECODER_ROWS_MAX];
        batch now = g->ahead;
        g->ahead.n = 0;
        weft_status status = weft_decoder_end(g->decoder, tokens);
        for (int i = 0; i < now.n; i++) {
            sequence *s = find_running(g, now.id[i], now.epoch[i]);
            if (!s) continue;
            s->n_computed++;
            if (status == WEFT_OK) status = generator_seal_pages(g, s);
            if (status == WEFT_OK) status = take_sampled(g, s, tokens[i]);
            if (status != WEFT_OK) generator_set_back(g, s);
        }
        g->ahead = next;
        if (next.n || status != WEFT_OK) return status;
    }
    WEFT_TRY(generator_admit(g));
    int64_t made = g->stats.sampled_tokens;
    double start = weft_clock();
    if (!ahead) WEFT_TRY(run_decoding(g));
    WEFT_TRY(run_prompts(g, g->stats.sampled_tokens > made ? weft_clock() - start : 0));
    if (!ahead && may_go_ahead(g)) WEFT_TRY(begin_ahead(g, &next));
    g->ahead = next;
    return WEFT_OK;
}
