/* What the two backward passes of attention share: the node's tensors, how the work is divided, and the
 * numbers of the heads. attention_walk.h goes through it. */
#pragma once

#include "cpu/attention_tile.h"

/* How the backward pass is divided into tasks. */
typedef struct {
    int64_t head_parts; /* tasks that share a key head's keys, each with some of its query heads */
    int64_t key_parts;  /* ranges of keys */
    int64_t part_keys;  /* keys in a range, a multiple of `step` */
    int64_t tasks;
} division;

/* First head parts, which cost no more than a sum at the end; then ranges of keys, for which the queries
 * are packed anew. The band writes to keys outside of a range, so there is one range. */
static inline division divide_work(const weft_attention_attr *a, int64_t step) {
    enum { TASKS_WANTED = 32, KEYS_A_TASK = 256 };
    int64_t key_heads = a->batch * a->kv_heads;
    division d = {.key_parts = 1};
    d.head_parts = min_i64(ceil_div(a->heads, a->kv_heads), ceil_div(TASKS_WANTED, key_heads));
    if (!a->band)
        d.key_parts = max_i64(
            1, min_i64(ceil_div(TASKS_WANTED, key_heads * d.head_parts), a->keys / KEYS_A_TASK));
    d.part_keys = round_up(ceil_div(a->keys, d.key_parts), step);
    d.key_parts = ceil_div(a->keys, d.part_keys);
    d.tasks = key_heads * d.head_parts * d.key_parts;
    return d;
}

static inline real inner_product(const real *x, const real *y, int64_t n) {
    vreal sum = vset(0);
    int64_t i = 0;
    for (; i + VLEN <= n; i += VLEN)
        sum += vload(x + i) * vload(y + i);
    if (i < n) sum += vload_part(x + i, n - i) * vload_part(y + i, n - i);
    return vsum(sum);
}

/* parts[0] += parts[1] + ...: `n` reals of each, `stride` apart. */
static inline void sum_parts(real *parts, int64_t count, int64_t stride, int64_t n) {
    for (int64_t c = 1; c < count; c++)
        for (int64_t i = 0; i < n; i++)
            parts[i] += parts[c * stride + i];
}

enum {
    HEAD_NUMBERS = 3, /* dscale, dbeta, dlog_tau */
    ROWS_AHEAD = 16   /* that are asked for before they are read */
};

/* Sums that grow: panels of `rows` rows of `columns` columns. */
typedef struct {
    real *at;
    int64_t rows, columns;
} sum_panels;

/* Where dK, dV and dn of a range of keys grow. */
typedef struct {
    sum_panels dk, dv;
    real *dn; /* [keys] */
} key_sums;

typedef struct {
    attention_problem p;
    division split;
    head_rows d_o, o, dq, dk, dv; /* t NULL: not wanted */
    const real *lse;
    real *dn, *dscale, *dbeta, *dlog_tau, *drel;
    int64_t columns; /* a row of sums is one panel, as wide as a multiple of this; 0: of TILE_N */
    void (*begin)(void), (*end)(void); /* around a task; NULL: nothing to do */
    /* The workspace. */
    real *own;         /* [own_size]: of the pass */
    double *numbers;   /* [B][H][key_parts][HEAD_NUMBERS] */
    real *query_parts; /* [B][H][key_parts] panels [q][dqk], where dQ has several parts */
    real *key_parts;   /* [tasks] key_sums, where dK and dV have several */
    real *scratch;     /* [threads] */
    int64_t own_size, query_size, key_size, scratch_size; /* reals of one of each */
} back_problem;

static inline back_problem make_back_problem(weft_exec *x, const weft_node *n, int64_t step) {
    back_problem g = {.p = make_problem(x, n, n->in + WEFT_ATTN_BACK_FIRST)};
    const weft_attention_attr *a = g.p.a;
    make_projections(a, n->out, &g.dq, &g.dk, &g.dv);
    g.d_o = make_head_rows(n->in[0], a->heads, a->dv, a->queries);
    g.o = make_head_rows(n->in[1], a->heads, a->dv, a->queries);
    g.lse = weft_data(x, n->in[2]);
    g.dn = weft_data(x, n->out[WEFT_ATTN_N]);
    g.dscale = weft_data(x, n->out[WEFT_ATTN_SCALE]);
    g.dbeta = weft_data(x, n->out[WEFT_ATTN_BETA]);
    g.dlog_tau = weft_data(x, n->out[WEFT_ATTN_LOG_TAU]);
    g.drel = weft_data(x, n->out[WEFT_ATTN_REL]);
    g.split = divide_work(a, step);
    return g;
}
