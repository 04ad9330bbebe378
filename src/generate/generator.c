/* The scheduler. Sequences are kept in the order they were added: the oldest is served first, the
 * youngest gives its pages back first.
 *
 * What a sequence's tokens leave behind does not depend on the batch, but there are two ways to
 * compute it (decoder.h): whole blocks of a prompt by the products of training, everything else row
 * by row. Which tokens go which way follows from the prompt's length alone, so it is the same when a
 * sequence is set back and computed again, and pages are shared only between equal ways. */
#include "generate/generator_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static weft_status no_memory(void) {
    return weft_fail(WEFT_ENOMEM, "generate: no memory");
}

weft_status weft_generator_open(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                                const weft_generator_limits *limits, weft_generator **out) {
    *out = NULL;
    weft_generator_limits l = limits ? *limits : (weft_generator_limits){0};
    WEFT_TRY(generator_complete_limits(&m->config, &l));
    weft_generator *g = calloc(1, sizeof *g);
    if (!g) return no_memory();
    l.no_sharing |= l.slide; /* pages are written again */
    g->config = m->config;
    g->stats.cache_bytes_per_token = weft_cached_token_bytes(&m->config, m->dtype);
    g->page_bytes = PAGE * g->stats.cache_bytes_per_token;
    generator_fit_context(&l, g->page_bytes);
    g->limits = l;
    g->table_pages = weft_cached_table_pages(l.context);
    /* Where the context slides, rows of one run must not overwrite what its first one sees. */
    if (l.slide) g->table_pages += WEFT_DECODER_BLOCK / PAGE + 1;
    g->n_pages = l.cache_bytes ? l.cache_bytes / g->page_bytes : l.sequences * g->table_pages;
    weft_status status = WEFT_OK;
    if (g->n_pages < 1)
        status =
            weft_fail(WEFT_EINPUT,
                      "a cache of %lld bytes does not hold a page of %d tokens, which takes %lld; "
                      "make it larger",
                      (long long)l.cache_bytes, PAGE, (long long)g->page_bytes);
    weft_decoder_limits decoder = {l.sequences, g->n_pages, l.context, g->table_pages};
    if (status == WEFT_OK) status = weft_decoder_open(m, backend, pool, &decoder, &g->decoder);
    if (status == WEFT_OK) status = weft_pages_create(g->n_pages, &g->pages);
    if (status == WEFT_OK) {
        g->state_bytes = weft_decoder_state_bytes(g->decoder);
        g->slot_used = calloc((size_t)l.sequences, sizeof *g->slot_used);
        g->rows = weft_decoder_rows(g->decoder);
        g->logits = malloc((size_t)(g->rows * m->config.vocab_size) * sizeof *g->logits);
        g->scratch = malloc(weft_sample_room(m->config.vocab_size));
        g->state = malloc((size_t)g->state_bytes + 1);
        if (!g->slot_used || !g->logits || !g->scratch || !g->state) status = no_memory();
    }
    if (status != WEFT_OK) {
        weft_generator_close(g);
        return status;
    }
    *out = g;
    return WEFT_OK;
}

static void free_sequence(sequence *s) {
    if (!s) return;
    free(s->tokens);
    free(s->pages);
    free(s->made);
    free(s);
}

void weft_generator_close(weft_generator *g) {
    if (!g) return;
    for (int64_t i = 0; i < g->n_list; i++)
        free_sequence(g->list[i]);
    free(g->list);
    free(g->slot_used);
    free(g->logits);
    free(g->scratch);
    free(g->state);
    weft_pages_destroy(g->pages);
    weft_decoder_close(g->decoder);
    free(g);
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
    if (s->n_tokens + count > s->room) {
        int64_t room = 2 * (s->n_tokens + count);
        int32_t *grown = realloc(s->tokens, (size_t)room * sizeof *grown);
        if (!grown) return no_memory();
        s->tokens = grown;
        s->room = room;
    }
    if (count > 0) memcpy(s->tokens + s->n_tokens, tokens, (size_t)count * sizeof *tokens);
    s->n_tokens += count;
    return WEFT_OK;
}

static void set_goal(const weft_generator *g, sequence *s, const weft_sampling *sampling) {
    s->sampling = *sampling;
    s->stop_at = s->n_tokens + sampling->max_tokens;
    if (!g->limits.slide && s->stop_at > g->limits.context) s->stop_at = g->limits.context;
    s->state = SEQUENCE_WAITING;
}

static weft_status make_sequence(weft_generator *g, const int32_t *prompt, int64_t count,
                                 sequence **out) {
    sequence *s = calloc(1, sizeof *s);
    if (s) s->pages = malloc((size_t)g->table_pages * sizeof *s->pages);
    weft_status status = s && s->pages ? append_tokens(s, prompt, count) : no_memory();
    if (status != WEFT_OK) {
        free_sequence(s);
        return status;
    }
    s->id = g->next_id++;
    s->slot = -1;
    s->n_prompt = count;
    *out = s;
    return WEFT_OK;
}

weft_status weft_generator_add(weft_generator *g, const int32_t *prompt, int64_t count,
                               const weft_sampling *sampling, int64_t *id) {
    WEFT_TRY(generator_check_request(g, prompt, count, count, sampling));
    if (g->n_list == g->list_room) {
        int64_t room = g->list_room ? 2 * g->list_room : 16;
        sequence **grown = realloc(g->list, (size_t)room * sizeof *grown);
        if (!grown) return no_memory();
        g->list = grown;
        g->list_room = room;
    }
    sequence *s;
    WEFT_TRY(make_sequence(g, prompt, count, &s));
    set_goal(g, s, sampling);
    g->list[g->n_list++] = s;
    *id = s->id;
    return WEFT_OK;
}

bool weft_generator_busy(const weft_generator *g) {
    for (int64_t i = 0; i < g->n_list; i++)
        if (g->list[i]->state != SEQUENCE_DONE) return true;
    return false;
}

/* Pages: by place in the table, which wraps around where the context slides. */
static int64_t held_pages(const weft_generator *g, const sequence *s) {
    return s->n_pages < g->table_pages ? s->n_pages : g->table_pages;
}

void generator_set_page(weft_generator *g, sequence *s, int32_t page) {
    int64_t at = s->n_pages++ % g->table_pages;
    s->pages[at] = page;
    weft_decoder_table(g->decoder, s->slot)[at] = page;
}

static void give_back(weft_generator *g, sequence *s) {
    /* From the last on, so that of pages to be shared the first are kept longest. */
    int64_t held = held_pages(g, s);
    for (int64_t i = held - 1; i >= 0; i--)
        weft_pages_release(g->pages, s->pages[i]);
    if (s->slot >= 0) g->slot_used[s->slot] = false;
    s->slot = -1;
    s->n_pages = s->n_sealed = s->n_computed = 0;
    s->epoch++;
}

weft_status weft_generator_extend(weft_generator *g, int64_t id, const int32_t *tokens,
                                  int64_t count, const weft_sampling *sampling) {
    sequence *s = generator_find(g, id);
    if (!s || s->state != SEQUENCE_DONE)
        return weft_fail(WEFT_EINPUT, "generate: sequence %lld is not there or has not ended",
                         (long long)id);
    WEFT_TRY(generator_check_request(g, tokens, count, s->n_tokens + count, sampling));
    WEFT_TRY(append_tokens(s, tokens, count));
    set_goal(g, s, sampling);
    /* A run that was ahead of the text's end has changed what the sequence keeps: it begins anew. */
    if (g->state_bytes && g->limits.no_sharing && weft_decoder_samples(g->decoder)) give_back(g, s);
    if (s->slot >= 0) s->state = SEQUENCE_RUNNING;
    return WEFT_OK;
}

void generator_set_back(weft_generator *g, sequence *s) {
    give_back(g, s);
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

/* Sees to it that a running sequence has pages for its tokens up to `end`. False: it was set back
 * itself, there being only older ones. */
static bool find_pages(weft_generator *g, sequence *s, int64_t end) {
    while (s->n_pages * PAGE < end) {
        if (s->n_pages >= g->table_pages) { /* the page that slid out of sight */
            generator_set_page(g, s, s->pages[s->n_pages % g->table_pages]);
            continue;
        }
        int32_t page = weft_pages_take(g->pages);
        for (sequence *victim; page < 0 && (victim = find_victim(g, s));
             page = weft_pages_take(g->pages))
            generator_set_back(g, victim);
        if (page < 0) {
            generator_set_back(g, s);
            return false;
        }
        generator_set_page(g, s, page);
    }
    return true;
}

/* The end of the part of a prompt that is computed in whole blocks. */
static int64_t block_end(const sequence *s) {
    return s->n_prompt / WEFT_DECODER_BLOCK * WEFT_DECODER_BLOCK;
}

static int page_kind(const sequence *s, int64_t page) {
    return page * PAGE < block_end(s);
}

/* Takes over pages of others that begin alike. The last token is always computed, for its logits. */
static weft_status share_beginning(weft_generator *g, sequence *s) {
    int64_t most = (s->n_tokens - 1) / PAGE, found = 0, usable = 0;
    int32_t pages[1024], before = -1;
    if (g->limits.no_sharing || s->n_tokens > g->limits.context) return WEFT_OK;
    most = most < 1024 ? most : 1024;
    while (found < most) {
        int32_t page =
            weft_pages_find(g->pages, before, s->tokens + found * PAGE, page_kind(s, found));
        if (page < 0) break;
        pages[found++] = before = page;
        /* A block is computed as a whole or not at all. */
        bool whole = found * PAGE >= block_end(s) || found * PAGE % WEFT_DECODER_BLOCK == 0;
        if (whole && (!g->state_bytes || weft_pages_state(g->pages, page))) usable = found;
    }
    for (int64_t i = 0; i < usable; i++) {
        weft_pages_hold(g->pages, pages[i]);
        generator_set_page(g, s, pages[i]);
    }
    if (usable && g->state_bytes)
        WEFT_TRY(
            weft_decoder_load(g->decoder, s->slot, weft_pages_state(g->pages, pages[usable - 1])));
    s->n_sealed = usable;
    s->n_computed = usable * PAGE;
    s->shared = usable * PAGE;
    g->stats.shared_tokens += usable * PAGE;
    return WEFT_OK;
}

/* Whether a waiting sequence may begin: a place, and pages for all its tokens so far, unless nothing
 * else runs. */
static bool may_begin(const weft_generator *g, const sequence *s, int64_t running) {
    weft_pages_counts count = weft_pages_count(g->pages);
    int64_t tokens = s->n_tokens < g->limits.context ? s->n_tokens : g->limits.context;
    int64_t there = count.count - count.held;
    for (int64_t i = 0; i < g->n_list; i++)
        if (g->list[i]->state == SEQUENCE_DONE && g->list[i]->slot >= 0)
            there += held_pages(g, g->list[i]);
    return running == 0 || there >= weft_cached_table_pages(tokens + 1);
}

static int32_t free_slot(weft_generator *g) {
    for (int64_t i = 0; i < g->limits.sequences; i++)
        if (!g->slot_used[i]) return (int32_t)i;
    /* One that has ended and is kept to be gone on with makes room. */
    for (int64_t i = 0; i < g->n_list; i++) {
        sequence *s = g->list[i];
        if (s->state != SEQUENCE_DONE || s->slot < 0) continue;
        int32_t slot = s->slot;
        give_back(g, s);
        return slot;
    }
    return -1;
}

static weft_status admit(weft_generator *g) {
    int64_t running = 0;
    for (int64_t i = 0; i < g->n_list; i++)
        running += g->list[i]->state == SEQUENCE_RUNNING;
    for (int64_t i = 0; i < g->n_list; i++) {
        sequence *s = g->list[i];
        if (s->state != SEQUENCE_WAITING) continue;
        if (running >= g->limits.sequences || !may_begin(g, s, running)) return WEFT_OK;
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

/* Rows until the state has to be looked at. */
static int64_t rows_until_kept(const weft_generator *g, const sequence *s, int64_t rows) {
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
                                 s->tokens + page * PAGE, page_kind(s, page), state,
                                 (size_t)g->state_bytes));
    }
    return WEFT_OK;
}

static void finish_sequence(weft_generator *g, sequence *s, weft_take how) {
    (void)g;
    s->state = SEQUENCE_DONE;
    s->end = how;
    s->epoch++;
}

bool generator_needs_logits(const sequence *s) {
    const weft_sampling *how = &s->sampling;
    return !how->token_only || how->temperature > 0 || how->repetition_penalty != 1 ||
           how->top_logprobs > 0;
}

weft_status generator_take_token(weft_generator *g, sequence *s, weft_sampled made) {
    if (made.token == s->sampling.end_token) {
        finish_sequence(g, s, WEFT_TAKE_END);
        return WEFT_OK;
    }
    if (s->n_made == s->made_room) {
        int64_t room = s->made_room ? 2 * s->made_room : 32;
        weft_sampled *grown = realloc(s->made, (size_t)room * sizeof *grown);
        if (!grown) return no_memory();
        s->made = grown;
        s->made_room = room;
    }
    WEFT_TRY(append_tokens(s, &made.token, 1));
    s->made[s->n_made++] = made;
    s->number++;
    g->stats.sampled_tokens++;
    if (s->n_tokens >= s->stop_at) finish_sequence(g, s, WEFT_TAKE_LENGTH);
    return WEFT_OK;
}

/* Draws the next token from a row's logits; one that is not a number makes every probability none. */
static weft_status take_logits(weft_generator *g, sequence *s, const float *logits) {
    weft_sampled made;
    weft_sample(logits, g->config.vocab_size, &s->sampling, s->number, s->tokens, s->n_tokens,
                g->scratch, &made);
    if (!isnan(made.logprob)) return generator_take_token(g, s, made);
    finish_sequence(g, s, WEFT_TAKE_BROKEN);
    return WEFT_OK;
}

weft_status generator_take_sampled(weft_generator *g, sequence *s, int32_t token) {
    if (token >= 0) return generator_take_token(g, s, (weft_sampled){.token = token});
    finish_sequence(g, s, WEFT_TAKE_BROKEN);
    return WEFT_OK;
}

/* Rows of one run, and whose they are. */
typedef struct {
    weft_decoder_row rows[WEFT_DECODER_BLOCK];
    int64_t n;
    sequence *of[WEFT_DECODER_ROWS_MAX]; /* sequences of the run, in order */
    int64_t count[WEFT_DECODER_ROWS_MAX];
    int n_of;
} batch;

static void put_rows(batch *b, sequence *s, int64_t rows) {
    b->of[b->n_of] = s;
    b->count[b->n_of++] = rows;
    for (int64_t i = 0; i < rows; i++) {
        int64_t at = s->n_computed + i;
        b->rows[b->n++] = (weft_decoder_row){.token = s->tokens[at],
                                             .position = (int32_t)at,
                                             .slot = s->slot,
                                             .wanted = at + 1 == s->n_tokens};
    }
}

/* Where the decoder samples the likeliest tokens itself, only the logits that are needed are wanted. */
static weft_status run_rows(weft_generator *g, batch *b, int32_t *sampled, bool *samples) {
    *samples = weft_decoder_samples(g->decoder) && b->n != WEFT_DECODER_BLOCK;
    if (!*samples) return weft_decoder_run(g->decoder, b->rows, b->n, g->logits);
    int64_t last = -1;
    for (int i = 0; i < b->n_of; i++) {
        last += b->count[i];
        b->rows[last].wanted &= generator_needs_logits(b->of[i]);
    }
    return weft_decoder_run_sampling(g->decoder, b->rows, b->n, g->logits, sampled);
}

/* What a run made for a sequence: the token sampled in its last row (NULL: none is), or the next logits. */
static weft_status take_rows(weft_generator *g, sequence *s, int64_t rows, const int32_t *sampled,
                             const float **logits) {
    s->n_computed += rows;
    g->stats.prompt_tokens += rows - 1;
    WEFT_TRY(generator_seal_pages(g, s));
    if (s->n_computed < s->n_tokens) {
        g->stats.prompt_tokens++;
        return WEFT_OK;
    }
    if (sampled && !generator_needs_logits(s)) return generator_take_sampled(g, s, *sampled);
    *logits += g->config.vocab_size;
    return take_logits(g, s, *logits - g->config.vocab_size);
}

/* After an error, whoever has not got what was computed for it begins anew. */
static weft_status run_batch(weft_generator *g, batch *b) {
    if (b->n == 0) return WEFT_OK;
    int32_t sampled[WEFT_DECODER_ROWS_MAX];
    const float *logits = g->logits;
    bool samples;
    int64_t last = -1;
    weft_status status = run_rows(g, b, sampled, &samples);
    for (int i = 0; i < b->n_of; i++) {
        last += b->count[i];
        if (status == WEFT_OK)
            status = take_rows(g, b->of[i], b->count[i], samples ? sampled + last : NULL, &logits);
        if (status != WEFT_OK) generator_set_back(g, b->of[i]);
    }
    return status;
}

bool generator_wants_token(const sequence *s) {
    return s->state == SEQUENCE_RUNNING && s->n_computed + 1 == s->n_tokens;
}

/* A token for every sequence whose prompt is read, as many in a run as may be. */
static weft_status run_decoding(weft_generator *g) {
    for (int64_t i = 0; i < g->n_list;) {
        int64_t first = i, chosen = 0;
        for (; i < g->n_list && chosen < g->rows; i++)
            if (generator_wants_token(g->list[i]))
                chosen += find_pages(g, g->list[i], g->list[i]->n_computed + 1);
        /* Finding pages for one may have set another back. */
        batch b = {0};
        for (int64_t k = first; k < i; k++)
            if (generator_wants_token(g->list[k]) &&
                g->list[k]->n_pages * PAGE > g->list[k]->n_computed)
                put_rows(&b, g->list[k], 1);
        WEFT_TRY(run_batch(g, &b));
    }
    return WEFT_OK;
}

/* A block of the oldest prompt that has one, or rows of as many prompts as fit. */
static weft_status run_prompts(weft_generator *g) {
    batch b = {0};
    for (int64_t i = 0; i < g->n_list && b.n < g->rows; i++) {
        sequence *s = g->list[i];
        int64_t left = s->n_tokens - s->n_computed;
        if (s->state != SEQUENCE_RUNNING || left < 2) continue;
        bool block = s->n_computed + WEFT_DECODER_BLOCK <= block_end(s);
        if (block && b.n > 0) break;
        int64_t rows = block ? WEFT_DECODER_BLOCK : g->rows - b.n;
        rows = rows < left ? rows : left;
        if (!block) rows = rows_until_kept(g, s, rows);
        if (!find_pages(g, s, s->n_computed + rows)) continue;
        /* Whoever was set back for these pages is younger, and in no batch yet. */
        put_rows(&b, s, rows);
        if (block) break;
    }
    return run_batch(g, &b);
}

weft_status weft_generator_step(weft_generator *g) {
    flight next = {0};
    if (g->ahead.n) {
        if (generator_may_go_ahead(g)) WEFT_TRY(generator_begin_ahead(g, &next));
        weft_status status = generator_end_ahead(g);
        g->ahead = next;
        if (next.n || status != WEFT_OK) return status;
        WEFT_TRY(admit(g));
        return run_prompts(g);
    }
    WEFT_TRY(admit(g));
    WEFT_TRY(run_decoding(g));
    WEFT_TRY(run_prompts(g));
    if (generator_may_go_ahead(g)) WEFT_TRY(generator_begin_ahead(g, &next));
    g->ahead = next;
    return WEFT_OK;
}

weft_take weft_generator_take(weft_generator *g, int64_t id, weft_sampled *token) {
    sequence *s = generator_find(g, id);
    if (!s) return WEFT_TAKE_WAIT;
    if (s->n_taken < s->n_made) {
        *token = s->made[s->n_taken++];
        return WEFT_TAKE_TOKEN;
    }
    return s->state == SEQUENCE_DONE ? s->end : WEFT_TAKE_WAIT;
}

weft_status weft_generator_broken(void) {
    return weft_fail(WEFT_EINPUT,
                     "the model's logits are not numbers: its weights are broken, or too large for "
                     "their type; DTYPE=f32 or an earlier checkpoint may help");
}

void weft_generator_remove(weft_generator *g, int64_t id) {
    for (int64_t i = 0; i < g->n_list; i++) {
        if (g->list[i]->id != id) continue;
        give_back(g, g->list[i]);
        free_sequence(g->list[i]);
        memmove(g->list + i, g->list + i + 1, (size_t)(g->n_list - i - 1) * sizeof *g->list);
        g->n_list--;
        return;
    }
}

void weft_generator_stop(weft_generator *g, int64_t id) {
    sequence *s = generator_find(g, id);
    if (!s || s->state == SEQUENCE_DONE) return;
    if (s->slot < 0) s->n_computed = 0;
    finish_sequence(g, s, WEFT_TAKE_LENGTH);
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
