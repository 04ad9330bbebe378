/* A generator's own state, for the files that it is written in: generator.c, the scheduler, and ahead.c. */
#ifndef WEFT_GENERATE_GENERATOR_INTERNAL_H
#define WEFT_GENERATE_GENERATOR_INTERNAL_H

#include "generate/decoder.h"
#include "generate/generator.h"
#include "generate/pages.h"

enum { PAGE = WEFT_PAGE_TOKENS };

typedef enum { SEQUENCE_WAITING, SEQUENCE_RUNNING, SEQUENCE_DONE } sequence_state;

typedef struct {
    int64_t id;
    sequence_state state;
    weft_take end; /* of one that is done */
    int32_t *tokens;
    int64_t n_tokens, room;
    int64_t n_prompt; /* of the first prompt */
    int64_t n_computed;
    int64_t stop_at;  /* tokens at which it ends */
    int32_t *pages;   /* [table pages], by place in the table; -1: none */
    int64_t n_pages;  /* taken so far; with a sliding context more than are held */
    int64_t n_sealed; /* of them, offered to others */
    int32_t slot;
    weft_sampling sampling;
    uint32_t number; /* tokens sampled */
    weft_sampled *made;
    int64_t n_made, n_taken, made_room;
    int64_t shared;
    uint32_t epoch; /* counts its ends and set-backs: what was begun before is not its own */
} sequence;

/* A run under way, whose tokens are sampled on the device: whose its rows are. */
typedef struct {
    int n;
    int64_t id[WEFT_DECODER_ROWS_MAX];
    uint32_t epoch[WEFT_DECODER_ROWS_MAX];
} flight;

struct weft_generator {
    weft_decoder *decoder;
    weft_pages *pages;
    weft_generator_limits limits;
    weft_config config;
    int64_t n_pages, table_pages, state_bytes, page_bytes;
    sequence **list; /* by id */
    int64_t n_list, list_room, next_id;
    bool *slot_used;
    int64_t rows;  /* of a run, at most: weft_decoder_rows */
    float *logits; /* [rows, V] */
    void *scratch; /* for sampling */
    void *state;   /* of a sequence */
    flight ahead;  /* n = 0: none */
    weft_generator_stats stats;
};

/* Fills in what was left 0, and refuses what the config's positions do not allow. */
weft_status generator_complete_limits(const weft_config *c, weft_generator_limits *l);
/* Shortens the context to what a pool holds that is smaller than one: texts end where it is full. */
void generator_fit_context(weft_generator_limits *l, int64_t page_bytes);
/* Whether `count` new tokens, which make `total` with those of the sequence, can be gone on from. */
weft_status generator_check_request(const weft_generator *g, const int32_t *tokens, int64_t count,
                                    int64_t total, const weft_sampling *sampling);

sequence *generator_find(const weft_generator *g, int64_t id); /* NULL: there is none */
/* Puts a page behind those that a sequence has. */
void generator_set_page(weft_generator *g, sequence *s, int32_t page);
/* Takes a sequence's pages and place: it waits, and is computed anew. */
void generator_set_back(weft_generator *g, sequence *s);
/* Offers the pages that are full now to others. */
weft_status generator_seal_pages(weft_generator *g, sequence *s);
/* Whether a token of the sequence is more than the likeliest. */
bool generator_needs_logits(const sequence *s);
/* Whether all that it waits for is the next token. */
bool generator_wants_token(const sequence *s);
/* Adds a token, or ends the sequence by it. */
weft_status generator_take_token(weft_generator *g, sequence *s, weft_sampled made);
/* The same of one that the decoder sampled; -1 ends the sequence, for its logits are not numbers. */
weft_status generator_take_sampled(weft_generator *g, sequence *s, int32_t token);

/* Where all that is to be done is the likeliest next token of sequences that run, the next run begins
 * before the tokens of the last one are here: it takes them from the device's memory, and the host is
 * never what a step waits for. A sequence that ends meanwhile has one row for nothing. */
bool generator_may_go_ahead(const weft_generator *g);
/* Begins the run that makes the token behind the next one of each sequence in g->ahead, or, without
 * one under way, the next of all that run. out->n = 0: there is nothing to begin. */
weft_status generator_begin_ahead(weft_generator *g, flight *out);
/* Takes the tokens of the run under way. After an error, whoever has not got its token begins anew, and
 * what the next run, if it has begun, makes for it is not taken: its epoch is another. */
weft_status generator_end_ahead(weft_generator *g);

#endif
