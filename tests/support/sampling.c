/* Runs that sample tokens, one after the other. */
#include "support/sampling.h"

#include "core/decoding.h"
#include "cpu/backend.h"
#include "ops/linear.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

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

static weft_status start(void *sampler, const weft_sampler_graph *g, const weft_step_rows *rows) {
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
    for (int64_t r = 0; r < rows->count; r++) {
        int32_t best = 0;
        bool numbers = true;
        for (int32_t i = 0; i < vocab; i++) {
            if (logit(g, r * vocab + i) > logit(g, r * vocab + best)) best = i;
            numbers &= !isnan(logit(g, r * vocab + i));
        }
        s->sampled[buffer][r] = numbers && isfinite(logit(g, r * vocab + best)) ? best : -1;
    }
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

const weft_backend *sampling_backend(void) {
    static const weft_sampler_backend samplers = {
        WEFT_FEW_ROWS, open_sampler, free, set_pages, start, finish, read_logits};
    static weft_backend backend;
    backend = *weft_cpu_backend();
    backend.samplers = &samplers;
    return &backend;
}
