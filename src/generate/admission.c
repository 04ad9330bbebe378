/* Which sequences run, and on which pages. Sequences are kept in the order they were added: the oldest is
 * served first, the youngest gives its pages back first. A sequence that begins takes over the pages of
 * others that begin alike; pages that it fills are sealed, for others to take over. */
#include "generate/generator_internal.h"

/* Pages: by place in the table, which wraps around where the context slides. */
static int64_t held_pages(const weft_generator *g, const sequence *s) {
    return s->n_pages < g->table_pages ? s->n_pages : g->table_pages;
}

static void set_page(weft_generator *g, sequence *s, int32_t page) {
    int64_t at = s->n_pages++ % g->table_pages;
    s->pages[at] = page;
    weft_decoder_table(g->decoder, s->slot)[at] = page;
}

void generator_give_back(weft_generator *g, sequence *s) {
    /* From the last on, so that of pages to be shared the first are kept longest. */
    int64_t held = held_pages(g, s);
    for (int64_t i = held - 1; i >= 0; i--)
        weft_pages_release(g->pages, s->pages[i]);
    if (s->slot >= 0) g->slot_used[s->slot] = false;
    s->slot = -1;
    s->n_pages = s->n_sealed = s->n_computed = s->again = 0;
    s->draft.n = s->draft.n_computed = s->draft.n_known = s->draft.n_right = 0;
    s->epoch++;
}

void generator_set_back(weft_generator *g, sequence *s) {
    generator_give_back(g, s);
    if (s->state == SEQUENCE_RUNNING) {
        s->state = SEQUENCE_WAITING;
        g->stats.set_back++;
    }
}

/* The youngest sequence that holds pages; one that has ended before one that runs. */
static sequence *find_victim(const weft_generator *g, const sequence *asking) {
    sequence *victim = NULL;
    for (int64_t i = 0; i < g->n_list; i++) {
        sequence *s = g->list[i];
        if (s->slot < 0 || s == asking) continue;
        if (s->state == SEQUENCE_DONE) return s;
        victim = s;
    }
    return victim && (!asking || victim->id > asking->id) ? victim : NULL;
}

bool generator_find_pages(weft_generator *g, sequence *s, int64_t end, bool free_only) {
    while (s->n_pages * PAGE < end) {
        if (s->n_pages >= g->table_pages) { /* the page that slid out of sight */
            set_page(g, s, s->pages[s->n_pages % g->table_pages]);
            continue;
        }
        int32_t page = weft_pages_take(g->pages);
        for (sequence *victim; page < 0 && !free_only && (victim = find_victim(g, s));
             page = weft_pages_take(g->pages))
            generator_set_back(g, victim);
        if (page < 0 && !free_only) generator_set_back(g, s);
        if (page < 0) return false;
        set_page(g, s, page);
    }
    return true;
}

int64_t generator_block_end(const weft_generator *g, const sequence *s) {
    return g->reads ? 0 : s->n_prompt / WEFT_DECODER_BLOCK * WEFT_DECODER_BLOCK;
}

static int page_kind(const weft_generator *g, const sequence *s, int64_t page) {
    return page * PAGE < generator_block_end(g, s);
}

/* Takes over pages of others that begin alike. The last token is always computed, for its logits. */
static weft_status share_beginning(weft_generator *g, sequence *s) {
    int64_t most = (s->n_tokens - 1) / PAGE, found = 0, usable = 0;
    int32_t pages[1024], before = -1;
    if (g->limits.no_sharing || s->n_tokens > g->limits.context) return WEFT_OK;
    if (generator_tells_prompt(s, s->n_made - 1)) return WEFT_OK; /* by what is computed */
    most = most < 1024 ? most : 1024;
    while (found < most) {
        int32_t page =
            weft_pages_find(g->pages, before, s->tokens + found * PAGE, page_kind(g, s, found));
        if (page < 0) break;
        pages[found++] = before = page;
        /* A block is computed as a whole or not at all. */
        bool whole =
            found * PAGE >= generator_block_end(g, s) || found * PAGE % WEFT_DECODER_BLOCK == 0;
        if (whole && (!g->state_bytes || weft_pages_state(g->pages, page))) usable = found;
    }
    for (int64_t i = 0; i < usable; i++) {
        weft_pages_hold(g->pages, pages[i]);
        set_page(g, s, pages[i]);
    }
    if (usable && g->state_bytes)
        WEFT_TRY(
            weft_decoder_load(g->decoder, s->slot, weft_pages_state(g->pages, pages[usable - 1])));
    s->n_sealed = usable;
    s->n_computed = s->shared = usable * PAGE;
    g->stats.shared_tokens += usable * PAGE;
    return WEFT_OK;
}

static int32_t free_slot(weft_generator *g) {
    for (int64_t i = 0; i < g->limits.sequences; i++)
        if (!g->slot_used[i]) return (int32_t)i;
    /* One that has ended and is kept to be gone on with makes room. */
    for (int64_t i = 0; i < g->n_list; i++) {
        sequence *s = g->list[i];
        if (s->state != SEQUENCE_DONE || s->slot < 0) continue;
        int32_t slot = s->slot;
        generator_give_back(g, s);
        return slot;
    }
    return -1;
}

weft_status generator_admit(weft_generator *g) {
    int64_t running = 0;
    for (int64_t i = 0; i < g->n_list; i++)
        running += g->list[i]->state == SEQUENCE_RUNNING;
    for (int64_t i = 0; i < g->n_list; i++) {
        sequence *s = g->list[i];
        if (s->state != SEQUENCE_WAITING) continue;
        /* It needs a place, and pages for all its tokens so far, unless nothing else runs. */
        if (running >= g->limits.sequences) return WEFT_OK;
        weft_pages_counts count = weft_pages_count(g->pages);
        int64_t tokens = s->n_tokens < g->limits.context ? s->n_tokens : g->limits.context;
        int64_t there = count.count - count.held;
        for (int64_t k = 0; k < g->n_list; k++)
            if (g->list[k]->state == SEQUENCE_DONE && g->list[k]->slot >= 0)
                there += held_pages(g, g->list[k]);
        if (running > 0 && there < weft_cached_table_pages(tokens + 1)) return WEFT_OK;
        s->slot = free_slot(g);
        if (s->slot < 0) return WEFT_OK;
        g->slot_used[s->slot] = true;
        s->state = SEQUENCE_RUNNING;
        WEFT_TRY(share_beginning(g, s));
        running++;
    }
    return WEFT_OK;
}

/* Whether the state at the end of a page is kept for others: always where it is small, else at the
 * ends of blocks and of prompts. */
static bool keeps_state(const weft_generator *g, const sequence *s, int64_t end) {
    return g->state_bytes <= g->page_bytes || end % WEFT_DECODER_BLOCK == 0 ||
           end == s->n_prompt / PAGE * PAGE;
}

int64_t generator_rows_until_kept(const weft_generator *g, const sequence *s, int64_t rows) {
    if (!g->state_bytes || g->limits.no_sharing) return rows;
    int64_t from = s->n_computed;
    for (int64_t end = (from / PAGE + 1) * PAGE; end < from + rows; end += PAGE)
        if (keeps_state(g, s, end)) return end - from;
    return rows;
}

weft_status generator_seal_pages(weft_generator *g, sequence *s) {
    if (g->limits.no_sharing || s->n_computed > g->limits.context) return WEFT_OK;
    while ((s->n_sealed + 1) * PAGE <= s->n_computed) {
        int64_t page = s->n_sealed++, end = (page + 1) * PAGE;
        const void *state = NULL;
        if (g->state_bytes && end == s->n_computed && keeps_state(g, s, end)) {
            WEFT_TRY(weft_decoder_save(g->decoder, s->slot, g->state));
            state = g->state;
        }
        WEFT_TRY(weft_pages_seal(g->pages, s->pages[page], page ? s->pages[page - 1] : -1,
                                 s->tokens + page * PAGE, page_kind(g, s, page), state,
                                 (size_t)g->state_bytes));
    }
    return WEFT_OK;
}
