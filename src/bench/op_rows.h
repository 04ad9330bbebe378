/* The rows of the operations' table: what is built, with which sizes, and what the peer calls it. */
#pragma once

#include "core/exec.h"

#include <jansson.h>

enum { BENCH_MAX_LEAVES = 64, BENCH_MAX_OUTPUTS = 2 };

/* Sizes by the names that peer.py reads; 0: the row has none of that name. */
typedef struct {
    int64_t m, n, k;     /* rows; columns of the result; length of the sums */
    int64_t b, t, h, kv; /* batch, tokens, query heads, key heads */
    int64_t dqk, dv;
    int64_t e, v; /* width, vocabulary */
    int64_t copies;
    int64_t bf16; /* 1: operands and result are bf16, not f32 */
} bench_sizes;

/* A tensor that the caller fills: the hash of `salt`, times scale, plus shift. */
typedef struct {
    weft_tensor *tensor;
    uint32_t salt;
    float scale, shift;
} bench_leaf;

typedef struct {
    weft_graph *graph;
    bool backward;
    bench_leaf leaf[BENCH_MAX_LEAVES];
    int leaves;
    int wanted; /* the first leaves have gradients, in the peer's order */
    weft_tensor *output[BENCH_MAX_OUTPUTS];
    int outputs;
} bench_graph;

typedef struct bench_row bench_row;
struct bench_row {
    const char *group; /* product, linear, decode, attention, norm, optimizer, cross-entropy */
    const char *label;
    const char *op; /* the peer's name for it */
    bench_sizes sizes;
    void (*build)(bench_graph *g, const bench_row *row);
    bool forward_only;
    bool quick;         /* measured in the quick mode too */
    bool longer;        /* measured for longer: a row that others are judged by */
    int64_t traffic[2]; /* bytes moved, forward and with backward; 0: compute counts */
};

/* A product as large as any model's, by which a device's limit is measured: f32, bf16. */
extern const bench_row bench_limit_rows[2];

extern const bench_row bench_op_rows[];
extern const int bench_op_row_count;

/* The graph of a row. Errors are in weft_graph_status(g->graph). */
weft_status bench_graph_build(const bench_row *row, bool backward, bench_graph *g);

static inline void bench_graph_free(bench_graph *g) {
    weft_graph_destroy(g->graph);
}

json_t *bench_row_sizes(const bench_row *row);

/* Floating-point operations of one run of all nodes, what backward computes again included. */
double bench_graph_flops(const weft_graph *g);

weft_status bench_graph_fill(const bench_graph *g, weft_exec *x);

/* The root mean squares of the outputs, then of the gradients; returns how many. */
int bench_graph_rms(const bench_graph *g, weft_exec *x, double *rms);
