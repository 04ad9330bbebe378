/* A generator of a small model on the CPU, and the texts that it makes. */
#ifndef WEFT_TESTS_GENERATION_H
#define WEFT_TESTS_GENERATION_H

#include "generate/generator.h"
#include "support/model_case.h"

enum { MADE_MOST = 64 /* tokens of a text */ };

typedef struct {
    int64_t n;
    weft_sampled tokens[MADE_MOST];
    weft_take end; /* what came behind them */
} made_text;

typedef struct {
    model_case c;
    weft_model *model;
    weft_pool *pool;
    weft_generator *g;
} generation;

/* A config of tests/model/configs with so long a context and these settings (KEY=VALUE, ended by NULL; NULL: none),
 * with its weights in f32. */
void generation_open(generation *f, const char *name, int64_t context, int threads,
                     const char *const *settings);
/* Its generator; NULL for the backend: the CPU's. */
void generation_start(generation *f, const weft_backend *backend,
                      const weft_generator_limits *limits);
void generation_close(generation *f);
/* Bytes of one page of its cache in f32. */
int64_t generation_page_bytes(const generation *f);

/* A step, which must not fail. */
void generation_step(weft_generator *g);
/* Adds what a sequence has made to its text. */
void text_take(weft_generator *g, int64_t id, made_text *text);
/* Fails unless both have the same tokens with the same bits in their log-probabilities, and the same end. */
void text_compare(const char *name, int i, const made_text *got, const made_text *want);

#endif
