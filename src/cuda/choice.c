/* The GPU's kernels by operation, and the choice between tensor cores and plain kernels. */
#include "cuda/choice.h"

#include "base/log.h"
#include "cuda/device.h"
#include "ops/linear.h"
#include "ops/list.h"

#include <stdatomic.h>

/* Every operation of ops/list.h has a kernel: CUDA_KERNEL (kernel.cuh) makes it. An operation that the
 * GPU does not do has CUDA_KERNEL(name, NULL). */
#ifdef WEFT_HAVE_CUDA
#define KERNEL_DECLARE(name) extern const weft_kernel weft_cuda_##name;
WEFT_OPS(KERNEL_DECLARE)

#define KERNEL_ENTRY(name) [WEFT_OP_##name] = &weft_cuda_##name,
static const weft_kernel *const table[WEFT_OP_COUNT] = {WEFT_OPS(KERNEL_ENTRY)};

const weft_kernel *weft_cuda_kernel(int op) {
    return table[op]->run ? table[op] : NULL;
}
#else
const weft_kernel *weft_cuda_kernel(int op) {
    (void)op;
    return NULL;
}
#endif

/* What a launch of attention can count, and the tiles of route_topk that one can. */
static const int64_t MOST_HEADS = 1 << 30, MOST_ROWS = 65535 * 64, MOST_ROUTED = 65535 * 128;

/* Whether the tensor cores' attention is compiled for the widths, and its tiles fit the GPU. Widths that
 * are no multiples of 8 take the next ones that are, over copies of their rows. */
static bool has_widths(int64_t dqk, int64_t dv) {
    if (dqk < 1 || dv < 1) return false;
    dqk = (dqk + 7) / 8 * 8, dv = (dv + 7) / 8 * 8;
#define FIRST_THAT_HOLDS(DQK, DV, BYTES)                                                           \
    if (dqk <= DQK && dv <= DV) return BYTES <= weft_cuda_device()->shared_memory;
    WEFT_CUDA_ATTENTION_WIDTHS(FIRST_THAT_HOLDS)
#undef FIRST_THAT_HOLDS
    return false;
}

/* What keeps a node from the fast kernel, the first that does. */
typedef enum {
    FAST,
    BY_DTYPE,
    BY_BAND,
    BY_POSITION,
    BY_SOFTCAP,
    BY_SIGHT,
    BY_WIDTH,
    BY_LENGTH,
    BY_K,
    BY_HEADS,
    BY_CODE /* compiled for another GPU than 9.0a */
} obstacle;

static obstacle attention_obstacle(const weft_attention_attr *a, weft_dtype dtype) {
    if (dtype != WEFT_BF16) return BY_DTYPE;
    if (a->band) return BY_BAND;
    if (a->pos != WEFT_POS_NONE && !a->causal) return BY_POSITION;
    if (a->softcap > 0 && (a->pos != WEFT_POS_NONE || a->dqk != a->dv)) return BY_SOFTCAP;
    if (!has_widths(a->dqk, a->dv)) return BY_WIDTH;
    bool long_rows = a->queries > MOST_ROWS || a->keys > MOST_ROWS;
    if (long_rows || a->batch * a->heads > MOST_HEADS) return BY_LENGTH;
    return FAST;
}

static bool routes_width(int64_t width) {
    return width > 0 && width % 8 == 0 && width <= WEFT_CUDA_TOPK_WIDTH;
}

static bool routes_k(int64_t k) {
    return k <= WEFT_CUDA_TOPK_MAX;
}

static obstacle topk_obstacle(const weft_node *n) {
    const weft_route_attr *a = n->attr;
    if (!weft_cuda_device()->wgmma) return BY_CODE;
    if (n->in[WEFT_ATTN_Q]->dtype != WEFT_BF16) return BY_DTYPE;
    if (a->score.band) return BY_BAND;
    if (a->score.reach || a->score.softcap > 0 || n->in[WEFT_ATTN_FIRST]) return BY_SIGHT;
    if (!routes_k(a->k)) return BY_K;
    if (!routes_width(a->score.dqk)) return BY_WIDTH;
    if (a->score.heads > WEFT_CUDA_TOPK_HEADS) return BY_HEADS;
    return a->score.queries > MOST_ROUTED ? BY_LENGTH : FAST;
}

bool weft_cuda_attention_is_fast(const weft_attention_attr *a, weft_dtype dtype) {
    return attention_obstacle(a, dtype) == FAST;
}

bool weft_cuda_topk_is_fast(const weft_node *n) {
    return topk_obstacle(n) == FAST;
}

/* The width of a row that is no multiple of 16 bytes; 0: all are. */
static int64_t unaligned_width(const weft_node *n) {
    for (int i = 0; i < 2 && weft_gather_input(n, i); i++) {
        const weft_tensor *t = weft_gather_input(n, i);
        if (t->shape[2] * (int64_t)weft_dtype_size(t->dtype) % 16 != 0) return t->shape[2];
    }
    return 0;
}

bool weft_cuda_gather_is_aligned(const weft_node *n) {
    return unaligned_width(n) == 0;
}

/* A width of a product of many rows whose rows begin at no multiple of 16 bytes; 0: none does, or the
 * matrix is too small to matter. */
static int64_t odd_width(const weft_node *n) {
    enum { FEW_ROWS = 64, SMALL = 64 };
    const weft_matmul_attr *attr = n->attr;
    const weft_tensor *a = n->in[WEFT_MATMUL_A], *b = n->in[WEFT_MATMUL_B];
    if (attr->form != WEFT_MATMUL_ROWS || a->dtype != WEFT_BF16 || b->dtype != WEFT_BF16) return 0;
    weft_matmul_sizes s = weft_matmul_measure(attr, a, b);
    if (s.m <= FEW_ROWS || s.n < SMALL || s.k < SMALL) return 0;
    return s.n % 8 != 0 ? s.n : s.k % 8 != 0 ? s.k : 0;
}

static bool is_multiple_of_8(int64_t width) {
    return width % 8 == 0;
}

/* Heads that are `value` wide, with rows of scores as dot products (1) or W2 (2) have them. */
static bool has_dot_width(int64_t value) {
    return has_widths(value, value);
}

static bool has_w2_width(int64_t value) {
    return has_widths(2 * value, value);
}

/* With `is_fast`, the nearest values on either side that are fast are named too. */
static void name_value(weft_cuda_choice *c, const char *option, int64_t value,
                       bool (*is_fast)(int64_t)) {
    enum { FAR = 16 };
    snprintf(c->option, sizeof c->option, "%s %lld", option, (long long)value);
    if (!is_fast) return;
    int64_t below = value - 1, above = value + 1;
    while (below > 0 && !is_fast(below))
        below--;
    while (above < value + FAR && !is_fast(above))
        above++;
    bool has_above = above < value + FAR;
    if (below > 0 && has_above)
        snprintf(c->nearest, sizeof c->nearest, "%lld and %lld are fast", (long long)below,
                 (long long)above);
    else if (below > 0 || has_above)
        snprintf(c->nearest, sizeof c->nearest, "%lld is fast",
                 (long long)(below > 0 ? below : above));
}

static void name_option(weft_cuda_choice *c, const char *option, const char *nearest) {
    snprintf(c->option, sizeof c->option, "%s", option);
    snprintf(c->nearest, sizeof c->nearest, "%s", nearest);
}

/* The obstacles that attention and routing share. */
static void name_obstacle(weft_cuda_choice *c, obstacle o, const weft_attention_attr *a) {
    c->fast = o == FAST;
    if (o == BY_DTYPE) name_option(c, "DTYPE f32", "bf16 is fast");
    if (o == BY_BAND) name_option(c, "RA_MLA_RA_ALPHA above 0", "0 is fast");
    if (o == BY_POSITION) name_option(c, "POSITION alibi with CAUSAL=n", "CAUSAL=y is fast");
    if (o == BY_SOFTCAP)
        name_option(c, "SOFTCAP_ATTENTION beside biases of distances", "rope and learned are fast");
    if (o == BY_SIGHT)
        name_option(c, "WINDOW, DOCUMENT_MASK or SOFTCAP_ATTENTION", "none of them is fast");
    if (o == BY_LENGTH) name_value(c, "CONTEXT", a->queries > a->keys ? a->queries : a->keys, NULL);
    if (o == BY_HEADS) name_value(c, "N_HEAD", a->heads, NULL);
    if (o == BY_CODE) name_option(c, "code for another GPU than 9.0a", "");
}

/* Kinds of work that have a fast and a slow kernel, and what is said of them. */
enum { NONE, ATTENTION, ROUTING, SUMS, PRODUCTS, KINDS };
static const struct {
    const char *what, *fast, *slow;
} kinds[KINDS] = {
    [ATTENTION] = {"attention", "runs on the tensor cores",
                   "runs by the plain kernel, ten to twenty times slower"},
    [ROUTING] = {"routing", "runs on the tensor cores",
                 "runs by the plain kernel, many times slower"},
    [SUMS] = {"sums of routing", "are read 16 bytes at a time",
              "are read element by element, which is slower"},
    [PRODUCTS] = {"matrix products", "have aligned rows",
                  "of rows that begin at no multiple of 16 bytes are slower, by a copy of each"},
};

static const unsigned char kind_of[WEFT_OP_COUNT] = {
    [WEFT_OP_attention] = ATTENTION,      [WEFT_OP_attention_back] = ATTENTION,
    [WEFT_OP_route_topk] = ROUTING,       [WEFT_OP_route_dense] = ROUTING,
    [WEFT_OP_route_dense_back] = ROUTING, [WEFT_OP_route_gather] = SUMS,
    [WEFT_OP_route_gather_back] = SUMS,   [WEFT_OP_matmul] = PRODUCTS,
};

bool weft_cuda_choose(const weft_node *n, weft_cuda_choice *out) {
    int kind = kind_of[n->op->id];
    if (kind == NONE) return false;
    *out = (weft_cuda_choice){.what = kinds[kind].what};
    if (kind == ATTENTION) {
        const weft_attention_attr *a = n->attr;
        bool back = n->op->id == WEFT_OP_attention_back, w2 = a->dqk == 2 * a->dv;
        bool latent = a->kv_heads == 1 && a->heads > 1 && !a->packed && !w2;
        const weft_tensor *q = n->in[back ? WEFT_ATTN_BACK_FIRST + WEFT_ATTN_Q : WEFT_ATTN_Q];
        obstacle o = attention_obstacle(a, q->dtype);
        name_obstacle(out, o, a);
        if (o == BY_WIDTH)
            name_value(out, latent ? "RA_MLA_LATENT_DIM" : "HEAD_DIM", a->dv,
                       w2 ? has_w2_width : has_dot_width);
    } else if (n->op->id == WEFT_OP_route_topk) {
        const weft_route_attr *a = n->attr;
        obstacle o = topk_obstacle(n);
        name_obstacle(out, o, &a->score);
        if (o == BY_K) name_value(out, "RA_MLA_MLP_SPARSE_K", a->k, routes_k);
        if (o == BY_WIDTH) name_value(out, "query heads of width", a->score.dqk, routes_width);
    } else if (kind == ROUTING) {
        bool rms = ((const weft_route_attr *)n->attr)->mode == WEFT_ROUTE_RMS;
        name_option(out, rms ? "RA_MLA_MLP_SPARSE_MODE rms" : "RA_MLA_MLP_SPARSE_MODE none",
                    "topk is fast");
    } else {
        int64_t width = kind == SUMS ? unaligned_width(n) : odd_width(n);
        out->fast = width == 0;
        if (width) name_value(out, "rows of width", width, is_multiple_of_8);
    }
    out->how = out->fast ? kinds[kind].fast : kinds[kind].slow;
    return true;
}

void weft_cuda_warn_slow(const weft_graph *g) {
    static atomic_bool said[KINDS];
    for (int64_t i = 0; i < weft_graph_node_count(g); i++) {
        const weft_node *n = weft_graph_node(g, i);
        weft_cuda_choice c;
        if (!weft_cuda_choose(n, &c) || c.fast || !*c.option) continue;
        if (atomic_exchange(&said[kind_of[n->op->id]], true)) continue;
        weft_log(WEFT_LOG_WARN, "cuda: %s: %s %s%s%s", c.option, c.what, c.how,
                 *c.nearest ? "; " : "", c.nearest);
    }
}
