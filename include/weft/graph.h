/* weft/graph.h: blocks and operations of one's own, over one's own memory.
 *
 * weft.h runs whole models. This header is for whoever needs a part of one, or something else made of
 * the same operations: a module of another framework (python/ has them for PyTorch), an experiment, an
 * engine of another kind.
 *
 *   weft_graph    a description: inputs, weights, operations on tensors, outputs.
 *   weft_tensor   a handle for values in a graph. It holds none.
 *   weft_block    a graph with fixed shapes, differentiated and planned: two functions, forward and
 *                 backward, ready to be called. It owns no memory that a call uses.
 *
 * A block of one's own, y = gelu(x wᵀ), and its gradient:
 *
 *     static weft_status describe(void *context, weft_graph *g) {
 *         weft_tensor *x = weft_graph_input(g, "x", "f32", 2, (int64_t[]){8, 64}, 1);
 *         weft_tensor *w = weft_graph_weight(g, "w", "f32", 2, (int64_t[]){32, 64});
 *         weft_graph_output(g, "y", weft_graph_linear(g, x, w, NULL, "gelu"));
 *         return WEFT_OK;
 *     }
 *
 *     weft_block_open(engine, "my block 8 64 32", describe, NULL, WEFT_BLOCK_GRADIENT, &block);
 *     ... allocate weft_block_bytes(block, WEFT_BYTES_SAVED) and so on ...
 *     weft_call call = {.size = sizeof call, .inputs = (void *[]){x}, .weights = (void *[]){w},
 *                       .outputs = (void *[]){y}, .saved = saved, .workspace = workspace};
 *     weft_block_forward(block, &call);
 *     call.grad_outputs = (void *[]){dy};
 *     call.grad_inputs = (void *[]){dx};
 *     call.grad_weights = (void *[]){dw};
 *     weft_block_backward(block, &call);
 *
 * Or one of weft's own, by the options of a model:
 *
 *     weft_block_open_part(engine, "attention", (const char *[]){"ATTENTION=w2", "N_EMBD=512",
 *                          "N_HEAD=8", NULL}, batch, time, 1, WEFT_BLOCK_GRADIENT, &block);
 *
 * Building: no call needs a check. A failed one returns NULL, a NULL makes the next one fail, and
 * opening the block reports the first error. Types are "f32", "bf16", "f64" (CPU only) and "i32"; in
 * one graph either f64 or the others. "The statistics' type" is f64 in an f64 graph, else f32: biases,
 * gains and sums may be of it in a bf16 graph too. Shapes are outermost first, up to four dimensions,
 * values row-major and dense.
 *
 * Memory: all of it is the caller's, on the engine's device, and begins at a multiple of
 * WEFT_ALIGNMENT bytes. Addresses may be others at every call; nothing is planned anew. What a forward
 * call saved belongs to that call: any number may be pending, each with memory of its own, and
 * backward calls may come in any order, more than once for one forward. Backward only reads `saved`.
 * The workspace is free again when the call's work is done.
 *
 * Calls: one allocates nothing. On a GPU it puts its kernels on `stream` and returns: it neither waits
 * nor captures, so the caller may capture it in a CUDA graph (the numbers of dropout are then those of
 * the capture). The engine's GPU must be the calling thread's current one. On the CPU the work is done
 * when the call returns, and calls of several threads on one engine take turns.
 *
 * Threads: blocks may be opened, called and closed from any thread. A graph is one thread's. */
#ifndef WEFT_GRAPH_H
#define WEFT_GRAPH_H

#include <weft/weft.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { WEFT_ALIGNMENT = 64 };

typedef struct weft_graph weft_graph;
typedef struct weft_tensor weft_tensor;
typedef struct weft_block weft_block;

/* Describing: what comes in and what goes out. Names are unique in a graph, and are what
 * weft_block_tensor gives back. */

/* `gradient` 1: backward makes its gradient. An "i32" input has none. */
WEFT_API weft_tensor *weft_graph_input(weft_graph *g, const char *name, const char *type, int ndim,
                                       const int64_t *shape, int gradient);
/* Backward makes its gradient. A weight that is not to be trained is an input without one. */
WEFT_API weft_tensor *weft_graph_weight(weft_graph *g, const char *name, const char *type, int ndim,
                                        const int64_t *shape);
/* Returns t. The order of these calls is the order of the outputs. */
WEFT_API weft_tensor *weft_graph_output(weft_graph *g, const char *name, weft_tensor *t);
/* A tensor's shape: *ndim of the 4 numbers are set, the others are 1. */
WEFT_API weft_status weft_graph_shape(const weft_tensor *t, int64_t shape[4], int *ndim);
/* Between begin and end, what is made is not saved for the backward pass but made again there. */
WEFT_API void weft_graph_again_begin(weft_graph *g);
WEFT_API void weft_graph_again_end(weft_graph *g);

/* Operations. [...] is any leading dimensions; a tensor that is said to be optional may be NULL. */

/* The same values under another shape. */
WEFT_API weft_tensor *weft_graph_view(weft_graph *g, weft_tensor *t, int ndim,
                                      const int64_t *shape);
/* a + alpha·b: b of a's shape, or of its last dimensions. */
WEFT_API weft_tensor *weft_graph_add(weft_graph *g, weft_tensor *a, weft_tensor *b, double alpha);
/* alpha·a. */
WEFT_API weft_tensor *weft_graph_scale(weft_graph *g, weft_tensor *a, double alpha);
/* As "f32" or "bf16". */
WEFT_API weft_tensor *weft_graph_cast(weft_graph *g, weft_tensor *a, const char *type);
/* Every element `value`. */
WEFT_API weft_tensor *weft_graph_fill(weft_graph *g, const char *type, int ndim,
                                      const int64_t *shape, double value);
/* Σ a·b, and factor · Σ a², over all elements: one number, ndim 0, of the statistics' type. */
WEFT_API weft_tensor *weft_graph_dot(weft_graph *g, weft_tensor *a, weft_tensor *b);
WEFT_API weft_tensor *weft_graph_sum_squares(weft_graph *g, weft_tensor *a, double factor);

/* y [..., N] = act(x wᵀ + bias): x [..., K], w [N, K], bias [N] optional; act "none" or "gelu". */
WEFT_API weft_tensor *weft_graph_linear(weft_graph *g, weft_tensor *x, weft_tensor *w,
                                        weft_tensor *bias, const char *act);
/* op(a) op(b) of matrices [M, K], [K, N], or of G pairs [G, M, K], [G, K, N];
 * transpose_a, transpose_b 1: that one is transposed. */
WEFT_API weft_tensor *weft_graph_matmul(weft_graph *g, weft_tensor *a, weft_tensor *b,
                                        int transpose_a, int transpose_b);
/* A weight for each group: y[..., g, :] = x[..., g, :] w[g]; x [..., G, K], w [G, K, N], or [G, N, K]
 * with transpose_w. */
WEFT_API weft_tensor *weft_graph_grouped_linear(weft_graph *g, weft_tensor *x, weft_tensor *w,
                                                int transpose_w);
/* aᵀ a [E, E] of a [M, E]. What reads it must be a function of symmetric matrices. */
WEFT_API weft_tensor *weft_graph_gram(weft_graph *g, weft_tensor *a);

/* kind "layernorm" (w, bias [E], bias optional; ε 1e-5) or "rmsnorm" (w [E]; ε 1e-6), of s = x + r; r
 * is optional. *sum, where it is not NULL, is set to s. */
WEFT_API weft_tensor *weft_graph_norm(weft_graph *g, const char *kind, weft_tensor *x,
                                      weft_tensor *r, weft_tensor *w, weft_tensor *bias,
                                      weft_tensor **sum);
/* The same with another ε, above 0. */
WEFT_API weft_tensor *weft_graph_norm_eps(weft_graph *g, const char *kind, weft_tensor *x,
                                          weft_tensor *r, weft_tensor *w, weft_tensor *bias,
                                          double eps, weft_tensor **sum);
/* A function of each element, by its name: "gelu", in its tanh form, or "exp". The error for another
 * name lists all that there are. */
WEFT_API weft_tensor *weft_graph_unary(weft_graph *g, const char *name, weft_tensor *x);
/* GELU again. SwiGLU's gate, silu(b) ⊙ a. log(1 + e^x) + floor in the columns from `start` on. */
WEFT_API weft_tensor *weft_graph_gelu(weft_graph *g, weft_tensor *x);
WEFT_API weft_tensor *weft_graph_silu_mul(weft_graph *g, weft_tensor *a, weft_tensor *b);
WEFT_API weft_tensor *weft_graph_softplus(weft_graph *g, weft_tensor *x, int64_t start,
                                          double floor);
/* Each element is 0 with probability p, else divided by 1 - p. `site` names the place: equal seeds,
 * iterations and sites drop the same. */
WEFT_API weft_tensor *weft_graph_dropout(weft_graph *g, weft_tensor *x, double p, const char *site);

/* Rotary positions: the first `width` columns of the first `heads` heads of x [B, T, H, D] are rotated,
 * column i with column i + width/2, by 10000^(−2i/width) per position. */
WEFT_API weft_tensor *weft_graph_rope(weft_graph *g, weft_tensor *x, int64_t width, int64_t heads);

/* Other angles: base^(−2i/width), changed by a scaling for sequences longer than those of the first
 * training. Only size and base must be set. The formulas are those of a model's options ROPE_*. */
typedef struct {
    size_t size;         /* sizeof(weft_rotation) */
    double base;         /* above 1 */
    const char *scaling; /* "none" (also NULL), "linear", "llama3", "yarn" */
    double factor;       /* every scaling: at least 1 */
    double context;      /* llama3 and yarn: tokens of the first training; with it 0 < low < high */
    double low, high;
    double amplitude; /* of rotated columns; 0 means 1 */
} weft_rotation;
WEFT_API weft_tensor *weft_graph_rotate(weft_graph *g, weft_tensor *x, int64_t width, int64_t heads,
                                        const weft_rotation *by);

/* Tokens as Gaussians, x [B, T, H, 2D] with D means and D raw deviations ρ in each head. For the
 * Wasserstein-2 distance: [means, softplus(ρ)], and for keys their squares *n [B, H, T]. For the
 * overlap: means over √σ, [B, T, H, D], and *log_sigma [B, H, T]. */
WEFT_API weft_tensor *weft_graph_gaussian_query(weft_graph *g, weft_tensor *x);
WEFT_API weft_tensor *weft_graph_gaussian_key(weft_graph *g, weft_tensor *x, weft_tensor **n);
WEFT_API weft_tensor *weft_graph_overlap(weft_graph *g, weft_tensor *x, weft_tensor **log_sigma);
/* n [B, H, T] = Σ x[b, t, h, d]² over d ≥ start, of the statistics' type. */
WEFT_API weft_tensor *weft_graph_row_squares(weft_graph *g, weft_tensor *x, int64_t start);

/* The scores of attention. What is not wanted is NULL or 0.
 *
 *     s_ij = scale_h ⟨q_i, k_j⟩ + beta_h n_j + position(i, j)
 *            + [window > 0 and i − j ≤ window] · band · scale_h ⟨q_j, k_i⟩      j ≤ i if causal */
typedef struct {
    size_t size;    /* sizeof(weft_scores) */
    weft_tensor *q; /* [B, T, H, Dqk] */
    weft_tensor *k; /* [B, T, KV, Dqk]; query head h reads key head ⌊h·KV/H⌋ */
    weft_tensor
        *packed; /* in place of both and of v: [B, T, (H + 2·KV)·D], heads and kv_heads set */
    int64_t heads, kv_heads;
    weft_tensor *n;       /* [B, KV, T], of the statistics' type: one number for each key */
    weft_tensor *scale;   /* [H] of the statistics' type; NULL: scale_value for every head */
    weft_tensor *beta;    /* [H] of the statistics' type; needs n */
    weft_tensor *log_tau; /* [H] of the statistics' type, in place of scale and beta; needs n:
                             scale = 2/τ, beta = −1/τ, τ = exp(log_tau) + 1e-6 */
    double scale_value;
    const char *position; /* "none" (also NULL), "alibi", "relative" */
    weft_tensor *rel; /* [R ≥ T] of the statistics' type, position "relative": adds rel[i − j] */
    int causal;
    int64_t window; /* of the reciprocal band; 0: none */
    double band;
} weft_scores;

/* o [B, T, H, Dv] = softmax(s) v, v [B, T, KV, Dv] (NULL where packed). *lse, where it is not NULL, is
 * set to the rows' logsumexp [B, H, T], which routing reads. */
WEFT_API weft_tensor *weft_graph_attention(weft_graph *g, const weft_scores *scores, weft_tensor *v,
                                           weft_tensor **lse);

/* Routing: the weights of an attention, averaged over heads (use_max: their maximum), carry something
 * else than its values. They are constants: no gradient flows into the scores. normalize 1: a row's
 * kept weights are divided by their sum.
 *
 * The k largest of each row: *index [B, T, k] i32, −1 where there are fewer, and *weight [B, T, k]. */
WEFT_API weft_status weft_graph_route(weft_graph *g, const weft_scores *scores, weft_tensor *lse,
                                      int64_t k, int normalize, int use_max, weft_tensor **index,
                                      weft_tensor **weight);
/* c [B, T, F], c_t = Σ_m weight[t, m] · h[index[t, m]]. */
WEFT_API weft_tensor *weft_graph_gather(weft_graph *g, weft_tensor *h, weft_tensor *index,
                                        weft_tensor *weight);
/* The same with all weights of a row, or those at least `threshold` times its root mean square
 * (threshold > 0). */
WEFT_API weft_tensor *weft_graph_gather_all(weft_graph *g, const weft_scores *scores,
                                            weft_tensor *lse, weft_tensor *h, double threshold,
                                            int normalize, int use_max);

/* o·(1 − α + α·sigmoid(gate)): o [B, T, H, D], gate [B, T, H] or [B, 1, H]. */
WEFT_API weft_tensor *weft_graph_gate(weft_graph *g, weft_tensor *o, weft_tensor *gate,
                                      double alpha);
/* Means of x [B, T, N]: over s ≤ t, [B, T, N]; over all t, [B, 1, N]. */
WEFT_API weft_tensor *weft_graph_running_mean(weft_graph *g, weft_tensor *x);
WEFT_API weft_tensor *weft_graph_time_mean(weft_graph *g, weft_tensor *x);
/* The sum of x [B, T, E] over t, *sum [B, 1, E], and its Gram matrix over all rows, [E, E]. */
WEFT_API weft_tensor *weft_graph_moments(weft_graph *g, weft_tensor *x, weft_tensor **sum);
/* [B, T, 1, L] → [B, T, heads, L]. [H, M, N] → [H, N, M]. Rows pooled to `width`, or spread to it, head
 * by head, times scale [H]: heads.h of weft's sources has the formula. */
WEFT_API weft_tensor *weft_graph_head_repeat(weft_graph *g, weft_tensor *x, int64_t heads);
WEFT_API weft_tensor *weft_graph_head_transpose(weft_graph *g, weft_tensor *x);
WEFT_API weft_tensor *weft_graph_head_pool(weft_graph *g, weft_tensor *x, weft_tensor *scale,
                                           int64_t width);
WEFT_API weft_tensor *weft_graph_head_spread(weft_graph *g, weft_tensor *x, weft_tensor *scale,
                                             int64_t width);

/* y [B, T, E] = table[ids] + positions[t]: table [V, E], ids [B, T] i32, positions [P, E] optional. */
WEFT_API weft_tensor *weft_graph_embed(weft_graph *g, weft_tensor *table, weft_tensor *ids,
                                       weft_tensor *positions);
/* The mean cross-entropy of logits x wᵀ, which are never held: x [..., E], w [V, E], targets [...] i32,
 * −1: does not count. One number. z > 0: *z_loss is set to z · mean of the rows' squared logsumexp. */
WEFT_API weft_tensor *weft_graph_cross_entropy(weft_graph *g, weft_tensor *x, weft_tensor *w,
                                               weft_tensor *targets, double z,
                                               weft_tensor **z_loss);
/* Cosine InfoNCE over the rows of x [N, D], each its own positive, times factor: one number. */
WEFT_API weft_tensor *weft_graph_contrastive(weft_graph *g, weft_tensor *x, double tau,
                                             double factor);

/* Blocks. */

/* Purposes, added up. */
enum {
    WEFT_BLOCK_GRADIENT = 1, /* there will be backward calls; without it nothing is saved */
    WEFT_BLOCK_TRAIN = 2,    /* open_part: dropout and auxiliary losses */
    WEFT_BLOCK_RECOMPUTE =
        4, /* open_part: a layer saves its inputs alone, and is made again backward */
    WEFT_BLOCK_ONE_LOSS = 8 /* open_part: the auxiliary losses are one output, "aux", their sum */
};

/* Describes what the block computes; `context` is the caller's. WEFT_OK, or what is wrong. */
typedef weft_status (*weft_describe)(void *context, weft_graph *g);

/* The block of that key, for this purpose: an engine keeps what it has planned, and `describe` is
 * called only for a key that it does not have. So the key names all that the description depends on:
 * what it is, shapes, types. NULL: a block that is not kept. On a GPU a new block runs once on memory
 * of its own, so that what is chosen by measuring is. An engine keeps the WEFT_BLOCKS_KEPT that were
 * opened last. */
WEFT_API weft_status weft_block_open(weft_engine *engine, const char *key, weft_describe describe,
                                     void *context, int purpose, weft_block **out);
enum { WEFT_BLOCKS_KEPT = 256 };

/* A part of a model with these options (weft_model_open's overrides), for x [batch, time, N_EMBD] in
 * DTYPE. Kept by its arguments, as by a key.
 *
 *   "attention"  attention and its output projection:       x → y
 *   "ffn"        the feed-forward:                           x → y
 *   "layer"      both, with their norms and residual sums:   x → y
 *
 * Other outputs, where the options make them: "aux_z" and "aux_contrastive" of WsFFN with TRAIN, one
 * number each, to be added to the loss, or with ONE_LOSS their sum "aux"; "gate" and "sent" of the
 * reciprocal mechanisms, for the next layer's attention. `first` 0: that layer takes them, as inputs
 * "gate" and "received". Between an "attention" and an "ffn" of their own go "latent", "routes.index"
 * and "routes.weight", outputs of the first and inputs of the second. Weights have the names of a
 * checkpoint without "h.I.". A learned position is no part of a layer; CONTEXT counts for
 * POSITION=relative only. */
WEFT_API weft_status weft_block_open_part(weft_engine *engine, const char *part,
                                          const char *const *options, int64_t batch, int64_t time,
                                          int first, int purpose, weft_block **out);
/* Every block that was opened is closed, before its engine is. */
WEFT_API void weft_block_close(weft_block *block);

/* What a block wants and gives. */
typedef enum { WEFT_BLOCK_INPUTS, WEFT_BLOCK_WEIGHTS, WEFT_BLOCK_OUTPUTS } weft_block_list;

typedef struct {
    const char *name; /* valid while the block is open */
    const char *type;
    int ndim;
    int64_t shape[4], count, bytes;
    int gradient;  /* backward makes its gradient (an output: reads it) */
    int read_back; /* backward reads its values: bring them again, unchanged. 0: may be NULL then */
} weft_block_info;

/* How many; 0 for NULL. */
WEFT_API int weft_block_count(const weft_block *block, weft_block_list list);
/* `size` is sizeof(weft_block_info): no more than that is written. */
WEFT_API weft_status weft_block_tensor(const weft_block *block, weft_block_list list, int i,
                                       weft_block_info *out, size_t size);

/* Bytes that a call needs beside them; 0 for NULL. */
typedef enum { WEFT_BYTES_SAVED, WEFT_BYTES_FORWARD, WEFT_BYTES_BACKWARD } weft_block_memory;
WEFT_API int64_t weft_block_bytes(const weft_block *block, weft_block_memory what);

/* The memory of a call, in the order of the lists above. Gradients are written, not added to; those of
 * tensors without one are NULL. */
typedef struct {
    size_t size; /* sizeof(weft_call) */
    void *const *inputs;
    void *const *weights;
    void *const *outputs;
    void *saved;     /* WEFT_BYTES_SAVED: written by forward, read by backward */
    void *workspace; /* WEFT_BYTES_FORWARD or WEFT_BYTES_BACKWARD */
    void *stream;    /* a cudaStream_t; NULL: the default stream. The CPU has none */
    uint64_t seed;   /* of dropout, as are the next two; backward brings what forward had */
    uint32_t iteration, sequence;
    void *const *grad_outputs; /* backward only: */
    void *const *grad_inputs;
    void *const *grad_weights;
} weft_call;

WEFT_API weft_status weft_block_forward(weft_block *block, const weft_call *call);
WEFT_API weft_status weft_block_backward(weft_block *block, const weft_call *call);

/* The first value that a call since the last check could not use (a token outside the vocabulary), as
 * far as it is known: on a GPU, when the call's work is done. On the CPU the call itself says so too. */
WEFT_API weft_status weft_block_check(weft_block *block);

#ifdef __cplusplus
}
#endif
#endif
