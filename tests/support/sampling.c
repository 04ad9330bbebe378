/* Runs that sample tokens, one after the other. */
#include "support/sampling.h"

#include "cpu/backend.h"
#include "generate/sample.h"
#include "ops/linear.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    int32_t *table;
    int64_t table_pages;
    int32_t sampled[2][WEFT_RUN_ROWS];
    weft_sampler_graph graph[2];
    int64_t rows[2];
    unsigned started, finished;
} fake_sampler;

static weft_status open_sampler(const weft_exec *x, int32_t *table, int64_t table_pages,
                                void **sampler) {
    (void)x;
    fake_sampler *s = calloc(1, sizeof *s);
    if (!s) return weft_fail(WEFT_ENOMEM, "no memory");
    s->table = table;
    s->table_pages = table_pages;
    *sampler = s;
    return WEFT_OK;
}

static weft_status set_pages(void *sampler, int64_t slot, const int32_t *pages) {
    fake_sampler *s = sampler;
    memcpy(s->table + slot * s->table_pages, pages, (size_t)s->table_pages * sizeof *pages);
    return WEFT_OK;
}

static float logit(const weft_sampler_graph *g, int64_t i) {
    const void *data = weft_data(g->exec, g->logits);
    return g->logits->dtype == WEFT_BF16 ? weft_bf16_to_float(((const uint16_t *)data)[i])
                                         : ((const float *)data)[i];
}

/* The token of row r of a run whose rows are for `tokens`; -1: its logits are not numbers. */
static int32_t draw_token(const float *logits, int64_t vocab, const weft_run_rows *rows, int64_t r,
                          const int32_t *tokens) {
    bool numbers = true;
    float most = -INFINITY;
    for (int64_t i = 0; i < vocab; i++) {
        numbers &= !isnan(logits[i]);
        most = fmaxf(most, logits[i]);
    }
    if (!numbers || !isfinite(most)) return -1;
    weft_draw d = rows->draws ? rows->draws[r] : (weft_draw){.penalty = 1};
    int32_t *seen = malloc((size_t)(d.n_seen + rows->count) * sizeof *seen);
    void *scratch = malloc(weft_sample_room(vocab));
    if (d.n_seen) memcpy(seen, d.seen, (size_t)d.n_seen * sizeof *seen);
    for (int64_t k = 0; k <= r; k++)
        if (rows->slot[k] == rows->slot[r]) seen[d.n_seen++] = tokens[k];
    d.seen = seen;
    int32_t token = weft_draw_token(logits, vocab, &d, scratch);
    free(seen);
    free(scratch);
    return token;
}

static bool draws_off;

void sampling_leave_draws(bool off) {
    draws_off = off;
}

static weft_status start(void *sampler, const weft_sampler_graph *g, const weft_run_rows *rows) {
    assert_false(draws_off && rows->draws);
    fake_sampler *s = sampler;
    unsigned buffer = s->started % 2;
    int64_t room = weft_tensor_count(g->slot), vocab = weft_tensor_width(g->logits);
    int32_t *token = weft_data(g->exec, g->tokens), *position = weft_data(g->exec, g->position);
    int32_t *slot = weft_data(g->exec, g->slot), *wanted = weft_data(g->exec, g->wanted);
    if (s->started - s->finished >= 2) return weft_fail(WEFT_EBUG, "two runs are under way");
    for (int64_t r = 0; r < room; r++) {
        bool there = r < rows->count;
        int32_t from = there ? rows->token[r] : 0;
        int32_t before = from < 0 ? s->sampled[1 - buffer][-1 - from] : from;
        token[r] = before < 0 ? 0 : before;
        position[r] = there ? rows->position[r] : 0;
        slot[r] = there ? rows->slot[r] : -1;
        wanted[r] = (int32_t)r;
    }
    WEFT_TRY(weft_exec_run(g->exec, NULL));
    float *logits = malloc((size_t)vocab * sizeof *logits);
    for (int64_t r = 0; r < rows->count; r++) {
        for (int64_t i = 0; i < vocab; i++)
            logits[i] = logit(g, r * vocab + i);
        s->sampled[buffer][r] = draw_token(logits, vocab, rows, r, token);
    }
    free(logits);
    s->graph[buffer] = *g;
    s->rows[buffer] = rows->count;
    s->started++;
    return WEFT_OK;
}

static int until_failure;

void sampling_fail(int nth) {
    until_failure = nth;
}

static weft_status finish(void *sampler, int32_t *tokens) {
    fake_sampler *s = sampler;
    unsigned buffer = s->finished % 2;
    if (s->finished == s->started) return weft_fail(WEFT_EBUG, "no run is under way");
    s->finished++;
    if (until_failure > 0 && --until_failure == 0) return weft_fail(WEFT_EIO, "a run failed");
    memcpy(tokens, s->sampled[buffer], (size_t)s->rows[buffer] * sizeof *tokens);
    return WEFT_OK;
}

static weft_status read_logits(void *sampler, int64_t first, int64_t count, float *out) {
    const fake_sampler *s = sampler;
    const weft_sampler_graph *g = &s->graph[(s->finished + 1) % 2];
    int64_t vocab = weft_tensor_width(g->logits);
    for (int64_t i = 0; i < count * vocab; i++)
        out[i] = logit(g, first * vocab + i);
    return WEFT_OK;
}

static bool draws(void) {
    return !draws_off;
}

static int64_t reads(void);

static weft_sampler_backend samplers = {WEFT_FEW_ROWS, open_sampler, free,  set_pages, start,
                                        finish,        read_logits,  draws, NULL,      reads};

static int64_t reads(void) {
    return samplers.rows > WEFT_FEW_ROWS ? 0 : WEFT_FEW_ROWS;
}

void sampling_set_rows(int64_t rows) {
    samplers.rows = rows;
}

const weft_backend *sampling_backend(void) {
    static weft_backend backend;
    backend = *weft_cpu_backend();
    backend.samplers = &samplers;
    return &backend;
}

static const struct {
    double temperature, top_p, min_p, penalty;
    int64_t top_k;
} rules[SAMPLING_RULES] = {{0, 1, 0, 1, 0},
                           {1, 1, 0, 1, 0},
                           {1e-9, 1, 0, 1, 0},
                           {100, 1, 0, 1, 0},
                           {1, 1, 0, 1, 1},
                           {1, 1, 0, 1, 40},
                           {0.05, 1, 0, 1, 1 << 30},
                           {1, 0, 0, 1, 0},
                           {0.1, 0.9, 0, 1, 0},
                           {1, 0.5, 0, 1, 0},
                           {0.3, 1, 0.05, 1, 0},
                           {1, 1, 1, 1, 0},
                           {0.5, 0.95, 0.01, 1.3, 50},
                           {0, 1, 0, 1.5, 0},
                           {2, 1, 0, 0.5, 0}};

void sampling_check_draws(const char *name, weft_decoder *d, int64_t vocab) {
    enum { ROWS = 2 * SAMPLING_RULES, SEEN = 5 };
    int32_t seen[SEEN], sampled[WEFT_DECODER_ROWS_MAX];
    weft_decoder_row rows[ROWS];
    weft_draw draws[ROWS];
    float *logits = malloc((size_t)(ROWS * vocab) * sizeof *logits);
    void *scratch = malloc(weft_sample_room(vocab));
    assert_true(logits && scratch);
    for (int32_t t = 0; t < (vocab > 10000 ? 2 : 8); t++) {
        for (int i = 0; i < SEEN; i++)
            seen[i] = (int32_t)((i * i + 7 * t) % vocab);
        for (int32_t r = 0; r < ROWS; r++) {
            int k = r / 2;
            weft_sampling s = weft_sampling_default();
            s.temperature = rules[k].temperature;
            s.top_p = rules[k].top_p;
            s.min_p = rules[k].min_p;
            s.top_k = rules[k].top_k;
            s.repetition_penalty = rules[k].penalty;
            rows[r] =
                (weft_decoder_row){(int32_t)((3 * r + 5 * t + 1) % vocab), 2 * t + r % 2, k, true};
            draws[r] = weft_sampling_draw(&s, (uint32_t)(t * ROWS + r), seen, SEEN - k % 2);
        }
        if (weft_decoder_run_sampling(d, rows, ROWS, draws, logits, sampled) != WEFT_OK)
            fail_msg("%s: %s", name, weft_error_message());
        for (int32_t r = 0; r < ROWS; r++) {
            int32_t known[SEEN + 2], n = (int32_t)draws[r].n_seen;
            memcpy(known, seen, sizeof seen);
            for (int32_t k = r / 2 * 2; n && k <= r; k++)
                known[n++] = rows[k].token;
            weft_draw how = draws[r];
            how.seen = known;
            how.n_seen = n;
            int32_t want = weft_draw_token(logits + r * vocab, vocab, &how, scratch);
            if (sampled[r] != want)
                fail_msg("%s: run %d, rule %d, row %d: token %d, the host draws %d", name, (int)t,
                         (int)(r / 2), (int)r, (int)sampled[r], (int)want);
        }
    }
    free(logits);
    free(scratch);
}
