/* Generation: many sequences at once over one model, each with its own prompt, sampling and length.
 *
 *     weft_generator_open(model, backend, pool, &limits, &g);
 *     weft_generator_add(g, prompt, n, &sampling, &id);      as many as there are, at any time
 *     while (weft_generator_busy(g)) {
 *         weft_generator_step(g);                            every running sequence moves on
 *         while (weft_generator_take(g, id, &token) == WEFT_TAKE_TOKEN) ...
 *     }
 *     weft_generator_remove(g, id);
 *
 * Sequences join and leave between steps. One that is added waits until there is a place; in a step
 * every running one makes a token, and prompts are read piece by piece beside them, as large as
 * prompt_share says, so that a long prompt does not hold the others up. What tokens leave behind lies in pages of one pool; sequences
 * that begin alike share the pages of their common beginning. When the pool is full the sequence
 * that was added last gives its pages back and waits; it is computed again later and goes on where
 * it was.
 *
 * A sequence makes the same tokens, from the same bits, alone or among others, whether its prompt's
 * pages were shared or not, in whatever pieces, whether it was set back or not, with speculation or
 * without, at any number of threads.
 *
 * Not for several threads at a time: who has several holds a lock around each call. */
#pragma once

#include "generate/sample.h"
#include "model/model.h"

typedef struct weft_generation weft_generator; /* as include/weft has it */

/* 0 stands for what is said. */
typedef struct {
    int64_t sequences;   /* most that run at once: 8 */
    int64_t context;     /* most tokens of a sequence, prompt and text: CONTEXT. More only where
                            positions have no end (rope, alibi, none) */
    int64_t cache_bytes; /* of the pool: what `sequences` of `context` tokens take. One that does
                            not hold `context` tokens shortens the context, unless it slides */
    bool slide;          /* at the end of the context go on, and see the last `context` tokens; only
                            where positions have no end. Otherwise a sequence ends there */
    bool no_sharing;     /* pages of common beginnings are not shared */
    /* Speculation: the next tokens are those that came behind the same ones before, */
    bool ngram;
    /* or what this model says; NULL: not. It has the same vocabulary, and outlives the generator; its
     * cache comes on top of cache_bytes. */
    const weft_model *draft;
    /* While tokens are made, a step's time for prompts is at most this many times that for the tokens, or one
     * operation's; 0: a whole block of a prompt, or on a GPU a quarter of what is read at once. */
    double prompt_share;
} weft_generator_limits;

/* Fails where the config cannot generate (CAUSAL=n, a gate that is pooled over the sequence), and
 * where the pool does not hold even one page for each sequence. The model must outlive the
 * generator, and its weights must not change meanwhile: those of WEIGHT_DTYPE are made here. */
weft_status weft_generator_open(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                                const weft_generator_limits *limits, weft_generator **out);
void weft_generator_close(weft_generator *g);
WEFT_ENDED_BY(weft_generator_close, weft_generator)

/* Adds a sequence that begins with these tokens, one at least. It fails if a token is not the
 * model's, if the prompt leaves no room for max_tokens of 1, or if the whole pool could not hold it. */
weft_status weft_generator_add(weft_generator *g, const int32_t *prompt, int64_t count,
                               const weft_sampling *sampling, int64_t *id);

/* Goes on with a sequence that has ended: its tokens, then these, then up to sampling->max_tokens
 * new ones. Its cache is kept where it still is. */
weft_status weft_generator_extend(weft_generator *g, int64_t id, const int32_t *tokens,
                                  int64_t count, const weft_sampling *sampling);

/* Whether a sequence waits or runs. */
bool weft_generator_busy(const weft_generator *g);

/* One step: a token, with speculation perhaps several, for each sequence that runs, and a piece of a prompt. Nothing to do is no error.
 * On an error no sequence is lost; the same step may be tried again. A sequence whose logits are not
 * numbers ends by itself (WEFT_TAKE_BROKEN); the others go on. */
weft_status weft_generator_step(weft_generator *g);

typedef enum {
    WEFT_TAKE_WAIT,   /* nothing yet */
    WEFT_TAKE_TOKEN,  /* a token was given */
    WEFT_TAKE_END,    /* there are no more: the token that was given came, which ends the text */
    WEFT_TAKE_LENGTH, /* there are no more: max_tokens, or the end of the context */
    WEFT_TAKE_BROKEN  /* there are no more: the logits behind the last token are not numbers */
} weft_take;

/* The next token of a sequence that was not taken yet. WEFT_TAKE_WAIT also for an unknown id. */
weft_take weft_generator_take(weft_generator *g, int64_t id, weft_sampled *token);
/* WEFT_TAKE_BROKEN as an error. */
weft_status weft_generator_broken(void);

/* Ends a sequence, wherever it is, and frees what it holds at once; what was not taken is lost.
 * Pages that others may share stay until the pool needs them. An unknown id is ignored. */
void weft_generator_remove(weft_generator *g, int64_t id);

/* Ends a sequence behind the tokens that were taken, as at WEFT_TAKE_LENGTH: it can be gone on with. */
void weft_generator_stop(weft_generator *g, int64_t id);

/* Tokens of a sequence that came from pages of another with the same beginning. */
int64_t weft_generator_shared(const weft_generator *g, int64_t id);

typedef struct {
    int64_t running, waiting;      /* sequences */
    int64_t pages, pages_used;     /* of the pool; used: held by a sequence */
    int64_t pages_kept;            /* held by none, kept to be shared */
    int64_t cache_bytes;           /* of the pool: pages and what a sequence keeps beside them */
    int64_t cache_bytes_per_token; /* as `weft plan` tells them */
    int64_t cache_bytes_per_sequence;
    int64_t weight_bytes;    /* read for a token of one sequence */
    int64_t prompt_tokens;   /* computed since opening */
    int64_t shared_tokens;   /* of prompts, not computed */
    int64_t sampled_tokens;  /* made */
    int64_t drafted_tokens;  /* run to see whether they are what is made */
    int64_t accepted_tokens; /* which were: made without a step of their own */
    int64_t set_back;        /* times that a sequence gave its pages back */
    int64_t vocab, context;  /* the model's tokens; the context as it is used */
} weft_generator_stats;

void weft_generator_count(const weft_generator *g, weft_generator_stats *out);
