/* What tests of generation have in common. */
#include "generation.h"

#include "cpu/backend.h"
#include "model/cached.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

void generation_open(generation *f, const char *name, int64_t context, int threads,
                     const char *const *settings) {
    model_case_open(&f->c, name);
    f->c.config.context = context;
    for (; settings && *settings; settings++)
        assert_int_equal(weft_config_override(&f->c.config, *settings, "test"), WEFT_OK);
    f->model = model_case_weights(&f->c, WEFT_F32);
    assert_int_equal(weft_pool_create(threads, &f->pool), WEFT_OK);
    f->g = NULL;
}

void generation_start(generation *f, const weft_backend *backend,
                      const weft_generator_limits *limits) {
    if (!backend) backend = weft_cpu_backend();
    if (weft_generator_open(f->model, backend, f->pool, limits, &f->g) != WEFT_OK)
        fail_msg("%s: %s", f->c.name, weft_error_message());
}

void generation_close(generation *f) {
    weft_generator_close(f->g);
    weft_pool_destroy(f->pool);
    weft_model_destroy(f->model);
    model_case_close(&f->c);
}

int64_t generation_page_bytes(const generation *f) {
    return WEFT_PAGE_TOKENS * weft_cached_token_bytes(&f->c.config, WEFT_F32);
}

void generation_step(weft_generator *g) {
    if (weft_generator_step(g) != WEFT_OK) fail_msg("%s", weft_error_message());
}

void text_take(weft_generator *g, int64_t id, made_text *text) {
    weft_sampled token;
    while ((text->end = weft_generator_take(g, id, &token)) == WEFT_TAKE_TOKEN) {
        assert_in_range(text->n, 0, MADE_MOST - 1);
        text->tokens[text->n++] = token;
    }
}

void text_compare(const char *name, int i, const made_text *got, const made_text *want) {
    if (got->n != want->n || got->end != want->end)
        fail_msg("%s, text %d: %lld tokens, end %d; expected %lld and %d", name, i,
                 (long long)got->n, (int)got->end, (long long)want->n, (int)want->end);
    for (int64_t t = 0; t < got->n; t++) {
        const weft_sampled *a = got->tokens + t, *b = want->tokens + t;
        if (a->token != b->token || memcmp(&a->logprob, &b->logprob, sizeof a->logprob) != 0)
            fail_msg("%s, text %d, token %lld: %d (%.9g), expected %d (%.9g)", name, i,
                     (long long)t, (int)a->token, (double)a->logprob, (int)b->token,
                     (double)b->logprob);
    }
}
