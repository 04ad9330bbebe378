/* A generator's own state, for the files that it is written in: generator.c, admission.c, token.c and
 * speculate.c. */
#pragma once

#include "generate/decoder.h"
#include "generate/generator.h"
#include "ops/cache.h"

/* The pages of a pool: which are free, who holds which, and which may be shared.
 *
 * A page holds WEFT_PAGE_TOKENS tokens of a sequence in every layer; here it is only a number. A full
 * page of a prompt can be sealed: it is then found again by the page before it and its tokens, and
 * sequences that begin alike hold the same pages. A sealed page that nobody holds is kept until the
 * pool needs it; the one unused for longest goes first, and never one that another sealed page
 * follows.
 *
 * What a sequence keeps beside its pages (running sums, last queries) is a function of all its tokens
 * so far, so a sealed page may carry a copy of it as it was at the page's end. */
typedef struct weft_pages weft_pages;

weft_status weft_pages_create(int64_t count, weft_pages **out);
void weft_pages_destroy(weft_pages *p);
WEFT_ENDED_BY(weft_pages_destroy, weft_pages)

/* A page that nobody else holds, held once; -1: every page is held. */
int32_t weft_pages_take(weft_pages *p);
/* One more holder, one less. */
void weft_pages_hold(weft_pages *p, int32_t page);
void weft_pages_release(weft_pages *p, int32_t page);

/* Seals a held page that follows `before` (-1: the first of a sequence) and holds these
 * WEFT_PAGE_TOKENS tokens. `kind` keeps apart pages that were computed in different ways. `state`
 * (`bytes` of it) is copied; NULL: none. Where an equal page is sealed already nothing happens. */
weft_status weft_pages_seal(weft_pages *p, int32_t page, int32_t before, const int32_t *tokens,
                            int kind, const void *state, size_t bytes);
/* The sealed page with these tokens behind `before`, not yet held; -1: none. */
int32_t weft_pages_find(const weft_pages *p, int32_t before, const int32_t *tokens, int kind);
/* The state that a sealed page carries; NULL: none. */
const void *weft_pages_state(const weft_pages *p, int32_t page);

typedef struct {
    int64_t count, held, kept; /* kept: sealed, held by none */
} weft_pages_counts;
weft_pages_counts weft_pages_count(const weft_pages *p);

enum { PAGE = WEFT_PAGE_TOKENS, DRAFT_MOST = 15 /* tokens */ };

/* What a sequence is expected to say next (speculate.c). */
typedef struct {
    int32_t tokens[DRAFT_MOST];
    int64_t n, wanted;  /* of this step */
    double share;       /* of drafted tokens that were right, late ones counting more */
    bool begun;         /* there was one */
    int64_t rest;       /* steps without since the last */
    int64_t n_computed; /* tokens, known and drafted, that the draft model has run */
    int64_t n_known;    /* of them, those that were known then, */
    int64_t n_right;    /* and those that are what came */
} draft;

typedef struct draft_model draft_model;

typedef enum { SEQUENCE_WAITING, SEQUENCE_RUNNING, SEQUENCE_DONE } sequence_state;

typedef struct {
    int64_t id;
    sequence_state state;
    weft_take end; /* of one that is done */
    int32_t *tokens;
    int64_t n_tokens, room;
    int64_t n_prompt; /* of the first prompt */
    int64_t n_computed;
    int64_t again;    /* tokens behind them that were run, and set back with the sequence's state */
    int64_t stop_at;  /* tokens at which it ends */
    int32_t *pages;   /* [table pages], by place in the table; -1: none */
    int64_t n_pages;  /* taken so far; with a sliding context more than are held */
    int64_t n_sealed; /* of them, offered to others */
    int32_t slot;
    weft_sampling sampling;
    uint32_t number;    /* tokens sampled */
    weft_sampled *made; /* what is told: where it is asked for, of the prompt too */
    int64_t n_made, n_taken, made_room, shared;
    draft draft;
    uint32_t epoch; /* counts its ends and set-backs: what was begun before is not its own */
} sequence;

/* Rows of one run, and whose they are. */
typedef struct {
    weft_decoder_row rows[WEFT_DECODER_BLOCK];
    int64_t n;
    bool block; /* of a prompt, by itself */
    bool read;  /* the same, of tokens that need no logits: not in `rows` */
    sequence *of[WEFT_DECODER_ROWS_MAX]; /* sequences of the run, in order */
    int64_t count[WEFT_DECODER_ROWS_MAX], id[WEFT_DECODER_ROWS_MAX];
    uint32_t epoch[WEFT_DECODER_ROWS_MAX]; /* theirs when it began */
    int n_of;
} batch;

struct weft_generation {
    weft_decoder *decoder;
    weft_pages *pages;
    weft_generator_limits limits;
    weft_config config;
    int64_t n_pages, table_pages, state_bytes, page_bytes;
    sequence **list; /* by id */
    int64_t n_list, list_room, next_id;
    bool *slot_used;
    int64_t rows;  /* of a run, at most: weft_decoder_rows */
    int64_t reads; /* of a prompt, at once: weft_decoder_reads; 0: blocks are */
    float *logits; /* [logit_rows, V] */
    int64_t logit_rows;
    void *scratch; /* for sampling */
    void *state;   /* of a sequence */
    void *states;  /* [sequences]: as they were before drafted tokens */
    draft_model *drafts;
    double row_cost;   /* of a row more, beside a step of one row; */
    double draft_cost; /* of a token by the draft model */
    batch ahead;       /* under way, tokens being sampled on the device, one of each; n = 0: none */
    batch prompts;     /* read in pieces; n = 0: none */
    double credit;     /* seconds that prompts may take in this step; below 0: they took too long */
    bool oldest;       /* whose prompt was read last; false: a short one's */
    weft_generator_stats stats;
};

sequence *generator_find(const weft_generator *g, int64_t id); /* NULL: there is none */
/* Tells of a token; adds a token, or ends the sequence by it. */
weft_status generator_tell(sequence *s, const weft_sampled *token);
weft_status generator_keep_token(weft_generator *g, sequence *s, weft_sampled made);
void generator_finish(sequence *s, weft_take how);
/* Whether a row's logits tell of the next token of the prompt, for the first time. */
bool generator_tells_prompt(const sequence *s, int64_t row);

/* Gives slots to sequences that wait, while there are slots and pages. */
weft_status generator_admit(weft_generator *g);
/* Sees to it that a running sequence has pages for its tokens up to `end`; with `free_only` no other gives
 * any back. False: it has not, and without `free_only` it was set back itself, there being only older
 * ones. */
bool generator_find_pages(weft_generator *g, sequence *s, int64_t end, bool free_only);
/* Offers the pages that are full now to others. */
weft_status generator_seal_pages(weft_generator *g, sequence *s);
/* Rows until the state of a sequence has to be looked at, `rows` at most. */
int64_t generator_rows_until_kept(const weft_generator *g, const sequence *s, int64_t rows);
/* Takes a sequence's pages and place: */
void generator_give_back(weft_generator *g, sequence *s);
/* it then waits, and is computed anew. */
void generator_set_back(weft_generator *g, sequence *s);
/* The end of the part of a prompt that is computed in whole blocks. */
int64_t generator_block_end(const weft_generator *g, const sequence *s);

/* Opens limits.draft, if there is one. */
weft_status generator_open_drafts(weft_generator *g, const weft_backend *backend, weft_pool *pool);
void draft_model_close(draft_model *d);
WEFT_ENDED_BY(draft_model_close, draft_model)
/* Makes a draft for each sequence that wants a token, where one may pay. */
weft_status generator_draft(weft_generator *g);
/* What of its draft a sequence can run beside the tokens that are known: in `rows`, and on pages that
 * nobody else has to give back. */
void generator_fit_draft(weft_generator *g, sequence *s, int64_t rows);
/* That so many of the drafted tokens were what came. */
void generator_settle_draft(weft_generator *g, sequence *s, int64_t right);
/* Whether all that it waits for is the next token. */
bool generator_wants_token(const sequence *s);
/* Puts rows of a sequence's tokens from one on into a run, and behind the last of them rows of its draft. The
 * logits of token `wanted` and of those behind it are. */
void generator_put_rows(batch *b, sequence *s, int64_t from, int64_t rows, int64_t wanted);
/* A run of the model or the draft model: g->logits of the rows that are wanted. With `samples` the decoder
 * draws what follows each, and only logits that are needed beside that are wanted. */
weft_status generator_run_rows(weft_generator *g, weft_decoder *d, batch *b, bool samples,
                               int32_t *sampled);
/* How the token `later` behind the next one is drawn. */
weft_draw generator_draw(const sequence *s, int64_t later);
