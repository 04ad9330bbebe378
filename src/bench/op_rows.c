/* Every row goes through a graph and the executor, as a model does; no kernel is called by hand. The
 * sizes are those of a GPT-2 of 124 M parameters. Attention has the same number of tokens, in fewer
 * and longer sequences. A row of decoding runs through as many weights as no cache holds, since a
 * model's next token finds none of them there either. */
#include "bench/tables.h"

#include "ops/arith.h"
#include "ops/attention.h"
#include "ops/linear.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "ops/optimizer.h"

#include <math.h>

/* log(2√64): where τ starts. Heads differ by an eighth around it. */
#define LOG_TAU 2.7725887f

enum { SALT_DOUT = 9, SALT_TARGETS = 3 };

static weft_tensor *add_leaf(bench_graph *g, uint32_t salt, weft_dtype dtype, int ndim,
                             const int64_t *shape) {
    char name[16];
    snprintf(name, sizeof name, "leaf%d", g->leaves);
    bool grad = g->backward && dtype != WEFT_I32;
    weft_tensor *t = weft_graph_tensor(g->graph, grad ? WEFT_ROLE_PARAM : WEFT_ROLE_INPUT, name,
                                       dtype, ndim, shape);
    g->leaf[g->leaves++] = (bench_leaf){t, salt, 1, 0};
    return t;
}

#define LEAF_OF(g, salt, dtype, ...) add_leaf((g), (salt), (dtype), WEFT_DIMS(__VA_ARGS__))
#define LEAF(g, salt, ...) LEAF_OF(g, salt, WEFT_F32, __VA_ARGS__)

static weft_dtype operands_of(const bench_row *row) {
    return row->sizes.bf16 ? WEFT_BF16 : WEFT_F32;
}

static void scale_last(bench_graph *g, float scale, float shift) {
    g->leaf[g->leaves - 1].scale = scale;
    g->leaf[g->leaves - 1].shift = shift;
}

static void add_output(bench_graph *g, weft_tensor *t) {
    g->output[g->outputs++] = weft_keep(t);
}

static void build_linear(bench_graph *g, const bench_row *row) {
    const bench_sizes *s = &row->sizes;
    weft_tensor *x = LEAF(g, 1, s->m, s->k), *w = LEAF(g, 2, s->n, s->k), *b = LEAF(g, 3, s->n);
    add_output(g, weft_linear(g->graph, x, w, b, WEFT_ACT_NONE));
}

/* Operands whose numbers a model has: a sum of k products is about 1. */
static void build_product(bench_graph *g, const bench_row *row) {
    const bench_sizes *s = &row->sizes;
    weft_dtype dtype = operands_of(row);
    weft_tensor *x = LEAF_OF(g, 1, dtype, s->m, s->k), *w = LEAF_OF(g, 2, dtype, s->n, s->k);
    scale_last(g, 1 / sqrtf((float)s->k), 0);
    add_output(g, weft_linear(g->graph, x, w, NULL, WEFT_ACT_NONE));
}

static void build_decode(bench_graph *g, const bench_row *row) {
    const bench_sizes *s = &row->sizes;
    weft_tensor *x = LEAF(g, 1, s->m, s->k), *y = NULL;
    for (int64_t i = 0; i < s->copies; i++) {
        y = weft_linear(g->graph, x, LEAF(g, (uint32_t)(2 + i), s->n, s->k), NULL, WEFT_ACT_NONE);
        weft_keep(y);
    }
    add_output(g, y);
}

static bool is_w2(const bench_row *row) {
    return strncmp(row->op, "attention_w2", 12) == 0;
}

/* q, k, v, then what the variant has. */
static void build_attention(bench_graph *g, const bench_row *row) {
    const bench_sizes *s = &row->sizes;
    weft_dtype dtype = operands_of(row);
    weft_score score = {.causal = true};
    score.q = LEAF_OF(g, 1, dtype, s->b, s->t, s->h, s->dqk);
    score.k = LEAF_OF(g, 2, dtype, s->b, s->t, s->kv, s->dqk);
    weft_tensor *v = LEAF_OF(g, 3, dtype, s->b, s->t, s->kv, s->dv);
    if (is_w2(row)) {
        score.log_tau = LEAF(g, 4, s->h);
        scale_last(g, 0.125f, LOG_TAU);
        score.n = weft_row_squares(g->graph, score.k, 0);
    } else {
        score.scale_value = 1 / sqrt((double)s->dqk);
    }
    add_output(g, weft_attention(g->graph, &score, v).o);
}

static void build_norm(bench_graph *g, const bench_row *row) {
    const bench_sizes *s = &row->sizes;
    weft_norm_kind kind = strcmp(row->op, "layernorm") == 0 ? WEFT_LAYERNORM : WEFT_RMSNORM;
    weft_tensor *x = LEAF(g, 1, s->m, s->e), *r = LEAF(g, 2, s->m, s->e), *w = LEAF(g, 3, s->e);
    weft_tensor *b = kind == WEFT_LAYERNORM ? LEAF(g, 4, s->e) : NULL;
    weft_normed y = weft_norm(g->graph, x, r, w, b, kind, 0);
    add_output(g, y.y);
    add_output(g, y.s);
}

/* The weights are updated in place: a run is a step. */
static void build_adamw(bench_graph *g, const bench_row *row) {
    const bench_sizes *s = &row->sizes;
    const int64_t shape[] = {s->m, s->e};
    weft_adam_slot slot = {.param = LEAF(g, 1, s->m, s->e), .grad = LEAF(g, 2, s->m, s->e)};
    slot.m = weft_graph_tensor(g->graph, WEFT_ROLE_STATE, "m", WEFT_F32, 2, shape);
    slot.v = weft_graph_tensor(g->graph, WEFT_ROLE_STATE, "v", WEFT_F32, 2, shape);
    weft_tensor *state =
        weft_new_tensor(g->graph, WEFT_ROLE_STATE, "state", WEFT_F32, WEFT_ADAM_STATE);
    weft_tensor *norm = LEAF(g, 3, 1);
    scale_last(g, 0, 1);
    weft_tensor *lr = LEAF(g, 4, 1);
    scale_last(g, 0, 1e-3f);
    weft_adam_options options = {
        .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.01, .clip = 0};
    weft_adamw(g->graph, weft_adam_control(g->graph, norm, lr, state, &options), &slot, 1);
    add_output(g, slot.param);
}

static void build_cross_entropy(bench_graph *g, const bench_row *row) {
    const bench_sizes *s = &row->sizes;
    weft_tensor *x = LEAF(g, 1, s->m, s->e), *w = LEAF(g, 2, s->v, s->e);
    scale_last(g, 0.0625f, 0);
    weft_tensor *targets = add_leaf(g, SALT_TARGETS, WEFT_I32, 1, &s->m);
    scale_last(g, (float)s->v, 0);
    add_output(g, weft_cross_entropy(g->graph, x, w, targets, NULL, 0, false, 0).ce);
}

#define PRODUCT(M, N, K, NAME, BF16, QUICK)                                                        \
    {                                                                                              \
        .group = "product", .label = #M "×" #N "×" #K NAME, .op = "product",                       \
        .build = build_product, .sizes = {.m = M, .n = N, .k = K, .bf16 = BF16},                   \
        .forward_only = true, .quick = QUICK                                                       \
    }
#define PRODUCTS(M, N, K, QUICK)                                                                   \
    PRODUCT(M, N, K, " f32", 0, QUICK), PRODUCT(M, N, K, " bf16", 1, QUICK)

#define LINEAR(K, N)                                                                               \
    {                                                                                              \
        .group = "linear", .label = #K "→" #N " M=2048", .op = "linear", .build = build_linear,    \
        .sizes = {.m = 2048, .k = K, .n = N}, .quick = (K) == 768 && (N) == 3072                   \
    }

/* 256 MB of weights. Every row of x and of the result is small beside them. */
#define COPIES(K, N) (268435456 / ((K) * (N)*4))
#define DECODE(K, N, M, QUICK)                                                                     \
    {                                                                                              \
        .group = "decode", .label = #K "→" #N " M=" #M, .op = "decode", .build = build_decode,     \
        .sizes = {.m = M, .k = K, .n = N, .copies = COPIES(K, N)}, .forward_only = true,           \
        .quick = QUICK, .traffic[0] = (int64_t)4 * ((K) * (N) + (M) * ((K) + (N))) * COPIES(K, N)  \
    }

/* 4096 tokens of 12 heads; q, k and v bf16 as a model with weights in bf16 has them. */
#define ATTENTION(NAME, OP, KV, DQK, DV, BF16, T, QUICK, LONGER)                                   \
    {                                                                                              \
        .group = "attention", .label = NAME " T=" #T, .op = "attention_" OP,                       \
        .build = build_attention,                                                                  \
        .sizes = {.b = 4096 / (T), .t = T, .h = 12, .kv = KV, .dqk = DQK, .dv = DV, .bf16 = BF16}, \
        .quick = QUICK, .longer = LONGER                                                           \
    }
#define DOT(T, QUICK, LONGER) ATTENTION("dot 64/64", "dot", 12, 64, 64, 0, T, QUICK, LONGER)
#define W2(T, QUICK, LONGER) ATTENTION("w2 128/64", "w2", 12, 128, 64, 0, T, QUICK, LONGER)
#define MLA(T, QUICK) ATTENTION("mla 128/128", "mla", 1, 128, 128, 0, T, QUICK, false)

/* Forward reads x and r and writes s and y; backward reads the two gradients and s and writes one. */
#define NORM(NAME)                                                                                 \
    {                                                                                              \
        .group = "norm", .label = #NAME " 8192×768", .op = #NAME, .build = build_norm,             \
        .sizes = {.m = 8192, .e = 768}, .quick = true, .traffic[0] = 4 * 4 * 8192 * 768,           \
        .traffic[1] = 8 * 4 * 8192 * 768                                                           \
    }

/* Reads a weight, its gradient and its two moments; writes all but the gradient. */
#define ADAMW(M, E)                                                                                \
    {                                                                                              \
        .group = "optimizer", .label = "adamw " #M "×" #E, .op = "adamw", .build = build_adamw,    \
        .sizes = {.m = M, .e = E}, .forward_only = true, .quick = true,                            \
        .traffic[0] = (int64_t)7 * 4 * (M) * (E)                                                   \
    }

#define CROSS_ENTROPY(M, V, QUICK)                                                                 \
    {                                                                                              \
        .group = "cross-entropy", .label = "768→" #V " M=" #M, .op = "cross_entropy",              \
        .build = build_cross_entropy, .sizes = {.m = M, .e = 768, .v = V}, .quick = QUICK          \
    }

const bench_row bench_limit_rows[2] = {PRODUCTS(8192, 8192, 4096, false)};

const bench_row bench_op_rows[] = {
    PRODUCTS(256, 256, 256, false),
    PRODUCTS(512, 512, 512, false),
    PRODUCTS(1024, 768, 3072, true),
    PRODUCTS(1024, 1024, 1024, false),
    PRODUCTS(2048, 2048, 2048, false),
    PRODUCTS(3072, 3072, 3072, false),
    LINEAR(768, 2304),
    LINEAR(768, 3072),
    LINEAR(3072, 768),
    DECODE(768, 2304, 1, false),
    DECODE(768, 2304, 4, false),
    DECODE(768, 3072, 1, true),
    DECODE(768, 3072, 4, true),
    DECODE(3072, 768, 1, false),
    DECODE(3072, 768, 4, false),
    DOT(256, false, false),
    DOT(1024, true, true),
    DOT(4096, false, false),
    W2(256, false, false),
    W2(1024, true, true),
    /* The peer's as the formula stands, ‖q‖² + ‖k‖² − 2⟨q, k⟩; beside it the fastest way to write it. */
    ATTENTION("w2 formula", "w2_formula", 12, 128, 64, 0, 1024, true, true),
    W2(4096, false, false),
    MLA(256, false),
    MLA(1024, true),
    MLA(4096, false),
    ATTENTION("dot 64/64 bf16", "dot", 12, 64, 64, 1, 1024, true, false),
    ATTENTION("w2 128/64 bf16", "w2", 12, 128, 64, 1, 1024, true, false),
    ATTENTION("mla 128/128 bf16", "mla", 1, 128, 128, 1, 1024, false, false),
    NORM(layernorm),
    NORM(rmsnorm),
    ADAMW(8192, 4096),
    CROSS_ENTROPY(512, 50304, false),
    CROSS_ENTROPY(1024, 4096, true),
};
const int bench_op_row_count = WEFT_COUNT(bench_op_rows);

weft_status bench_graph_build(const bench_row *row, bool backward, bench_graph *g) {
    *g = (bench_graph){.backward = backward};
    WEFT_TRY(weft_graph_create(&g->graph));
    row->build(g, row);
    WEFT_TRY(weft_graph_status(g->graph));
    for (g->wanted = 0; g->wanted < g->leaves; g->wanted++)
        if (g->leaf[g->wanted].tensor->dtype == WEFT_I32) break;
    if (backward && g->output[0]->ndim == 0) { /* a loss, whose gradient is 1 */
        WEFT_TRY(weft_graph_backward(g->graph, g->output[0], NULL));
    } else if (backward) { /* the gradients of the outputs are inputs */
        weft_tensor *dout[BENCH_MAX_OUTPUTS];
        for (int i = 0; i < g->outputs; i++) {
            char name[16];
            snprintf(name, sizeof name, "dout%d", i);
            dout[i] = weft_graph_tensor(g->graph, WEFT_ROLE_INPUT, name, g->output[i]->dtype,
                                        g->output[i]->ndim, g->output[i]->shape);
            g->leaf[g->leaves++] = (bench_leaf){dout[i], SALT_DOUT + (uint32_t)i, 1, 0};
        }
        WEFT_TRY(weft_graph_backward_many(g->graph, g->outputs, g->output, dout));
    }
    return weft_graph_status(g->graph);
}

json_t *bench_row_sizes(const bench_row *row) {
    const bench_sizes *s = &row->sizes;
    const struct {
        const char *name;
        int64_t value;
    } all[] = {{"m", s->m}, {"n", s->n},           {"k", s->k},      {"b", s->b},   {"t", s->t},
               {"h", s->h}, {"kv", s->kv},         {"dqk", s->dqk},  {"dv", s->dv}, {"e", s->e},
               {"v", s->v}, {"copies", s->copies}, {"bf16", s->bf16}};
    json_t *sizes = json_object();
    for (int i = 0; i < WEFT_COUNT(all); i++)
        if (all[i].value) json_object_set_new(sizes, all[i].name, json_integer(all[i].value));
    if (is_w2(row)) json_object_set_new(sizes, "log_tau", json_real(LOG_TAU));
    return sizes;
}

/* A number in [-1, 1) from a hash of the index: the same as peer.py's noise(). */
static float noise(uint32_t salt, uint32_t index) {
    uint32_t h = index + salt * 0x9E3779B9u;
    h = (h ^ h >> 16) * 0x7FEB352Du;
    h = (h ^ h >> 15) * 0x846CA68Bu;
    h ^= h >> 16;
    return (float)(h >> 8) * 0x1p-23f - 1;
}

static float leaf_value(const bench_leaf *leaf, int64_t i) {
    return noise(leaf->salt, (uint32_t)i) * leaf->scale + leaf->shift;
}

weft_status bench_graph_fill(const bench_graph *g, weft_exec *x) {
    for (int i = 0; i < g->leaves; i++) {
        const bench_leaf *leaf = &g->leaf[i];
        int64_t count = weft_tensor_count(leaf->tensor);
        WEFT_AUTO_FREE void *values = malloc((size_t)weft_tensor_bytes(leaf->tensor));
        if (!values) return weft_fail(WEFT_ENOMEM, "no memory for the values of a row");
        for (int64_t k = 0; k < count; k++) {
            if (leaf->tensor->dtype == WEFT_I32) { /* from 0 to below the leaf's scale */
                int32_t value =
                    (int32_t)((noise(leaf->salt, (uint32_t)k) + 1) * (0.5f * leaf->scale));
                ((int32_t *)values)[k] =
                    (float)value < leaf->scale ? value : (int32_t)leaf->scale - 1;
            } else if (leaf->tensor->dtype == WEFT_BF16) {
                ((uint16_t *)values)[k] = weft_float_to_bf16(leaf_value(leaf, k));
            } else {
                ((float *)values)[k] = leaf_value(leaf, k);
            }
        }
        WEFT_TRY(weft_exec_write(x, leaf->tensor, values));
    }
    return WEFT_OK;
}

static double rms_of(weft_exec *x, const weft_tensor *t) {
    int64_t count = weft_tensor_count(t);
    WEFT_AUTO_FREE void *values = malloc((size_t)weft_tensor_bytes(t));
    if (!values || weft_exec_read(x, t, values)) return NAN;
    const float *reals = values;
    const uint16_t *halves = values;
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        double value = (double)(t->dtype == WEFT_BF16 ? weft_bf16_to_float(halves[i]) : reals[i]);
        sum += value * value;
    }
    return sqrt(sum / (double)count);
}

int bench_graph_rms(const bench_graph *g, weft_exec *x, double *rms) {
    int n = 0;
    for (int i = 0; i < g->outputs; i++)
        rms[n++] = rms_of(x, g->output[i]);
    for (int i = 0; g->backward && i < g->wanted; i++)
        rms[n++] = rms_of(x, g->leaf[i].tensor->grad);
    return n;
}
