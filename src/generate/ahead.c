/* Runs ahead of the host, where a decoder samples the likeliest tokens itself. */
#include "generate/generator_internal.h"

static bool is_ahead(const weft_generator *g, const sequence *s) {
    for (int i = 0; i < g->ahead.n; i++)
        if (g->ahead.id[i] == s->id) return g->ahead.epoch[i] == s->epoch;
    return false;
}

bool generator_may_go_ahead(const weft_generator *g) {
    int64_t running = 0;
    if (!weft_decoder_samples(g->decoder) || g->limits.slide) return false;
    /* What a sequence keeps is looked at where a page ends, before the next token changes it. */
    if (g->state_bytes && !g->limits.no_sharing) return false;
    for (int64_t i = 0; i < g->n_list; i++) {
        const sequence *s = g->list[i];
        if (s->state == SEQUENCE_DONE) continue;
        if (!generator_wants_token(s) || generator_needs_logits(s) ||
            (g->ahead.n && !is_ahead(g, s)))
            return false;
        running++;
    }
    return running > 0 && running <= g->rows;
}

/* Pages up to `end`, if there are free ones. */
static bool has_pages(weft_generator *g, sequence *s, int64_t end) {
    while (s->n_pages * PAGE < end) {
        int32_t page = s->n_pages < g->table_pages ? weft_pages_take(g->pages) : -1;
        if (page < 0) return false;
        generator_set_page(g, s, page);
    }
    return true;
}

weft_status generator_begin_ahead(weft_generator *g, flight *out) {
    const flight *now = &g->ahead;
    weft_decoder_row rows[WEFT_DECODER_ROWS_MAX];
    int64_t later = now->n ? 1 : 0, count = now->n ? now->n : g->n_list;
    out->n = 0;
    for (int64_t i = 0; i < count; i++) {
        sequence *s = now->n ? generator_find(g, now->id[i]) : g->list[i];
        if (!s || s->state != SEQUENCE_RUNNING || (now->n && s->epoch != now->epoch[i])) continue;
        if (s->n_tokens + later >= s->stop_at) continue;
        if (!has_pages(g, s, s->n_computed + later + 1)) {
            out->n = 0;
            return WEFT_OK;
        }
        rows[out->n] =
            (weft_decoder_row){.token = now->n ? -1 - (int32_t)i : s->tokens[s->n_computed],
                               .position = (int32_t)(s->n_computed + later),
                               .slot = s->slot};
        out->id[out->n] = s->id;
        out->epoch[out->n++] = s->epoch;
    }
    return out->n ? weft_decoder_begin(g->decoder, rows, out->n) : WEFT_OK;
}

weft_status generator_end_ahead(weft_generator *g) {
    int32_t tokens[WEFT_DECODER_ROWS_MAX];
    flight now = g->ahead;
    g->ahead.n = 0;
    weft_status status = weft_decoder_end(g->decoder, tokens);
    for (int i = 0; i < now.n; i++) {
        sequence *s = generator_find(g, now.id[i]);
        if (!s || s->state != SEQUENCE_RUNNING || s->epoch != now.epoch[i]) continue;
        s->n_computed++;
        if (status == WEFT_OK) status = generator_seal_pages(g, s);
        if (status == WEFT_OK) status = generator_take_sampled(g, s, tokens[i]);
        if (status != WEFT_OK) generator_set_back(g, s);
    }
    return status;
}
