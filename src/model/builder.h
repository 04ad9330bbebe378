/* What the files that build one model share: the graph, the sizes, the parameters made so far, and
 * what one layer hands to the next. */
#ifndef WEFT_MODEL_BUILDER_H
#define WEFT_MODEL_BUILDER_H

#include "config/config.h"
#include "model/transformer.h"
#include "ops/attention.h"

typedef struct {
    weft_graph *g;
    const weft_config *c;
    weft_model_graph *out;
    weft_dtype dtype; /* of activations and matrices */
    weft_dtype stat;  /* of statistics and of parameters that are few */
    bool train;
    bool recompute; /* each layer is a segment to make again */
    weft_form form;
    bool given_routes;
    int64_t batch, time;
    int64_t width, heads, head_dim, ffn; /* E, H, D, F */
    int layer;

    /* From the layer before: NULL in the first. */
    weft_tensor *gate;     /* [B, T, H] or [B, 1, H], before the sigmoid */
    weft_tensor *received; /* α_l u: [B, T, L], for this layer's c^K */

    /* Of this layer's attention, for its feed-forward. */
    weft_score score;    /* what rebuilds the weights; q and k NULL if packed */
    weft_tensor *packed; /* qkv, if it is the dot attention's */
    weft_tensor *lse;    /* [B, H, T] */
    weft_tensor *latent; /* c^K [B, T, L] after u, before rotation; mla only */
    weft_tensor *normed; /* what the feed-forward reads: [B, T, E] */

    /* Sums over layers so far; NULL: none yet. */
    weft_tensor *aux_z, *aux_contrastive;
    /* Of each layer [N], for the losses that are made of all layers at once; NULL: none are. */
    struct wsffn_layer *wsffn;

    /* per_head_scalar's numbers, one pair for the whole model. */
    weft_tensor *couple_a, *couple_b;
} builder;

/* A parameter "h.<layer>.<name>" (or `name` itself with layer < 0) and how it starts. `few` ones
 * (gains, biases, temperatures) have the statistics' type. */
weft_tensor *builder_matrix(builder *b, const char *name, weft_init init, int ndim,
                            const int64_t *shape);
weft_tensor *builder_vector(builder *b, const char *name, weft_init init, int64_t size);
#define matrix(b, name, init, ...)                                                                 \
    builder_matrix((b), (name), (init), (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), \
                   (int64_t[]){__VA_ARGS__})

/* Starts: see weft_init. */
weft_init init_normal(double std);
weft_init init_residual(const builder *b); /* std 0.02/√(2N): maps into the residual stream */
weft_init init_constant(double value);
weft_init init_uniform(int64_t in, int64_t out); /* bound √(6/(in+out)) */

/* a + b where either may be NULL. */
weft_tensor *add_optional(builder *b, weft_tensor *x, weft_tensor *y);

/* Attention of one layer: heads' outputs o [B, T, H, D] from x [B, T, E], before gate and output
 * projection. Each also sets the builder's fields of this layer. */
weft_tensor *build_dot(builder *b, weft_tensor *x);
weft_tensor *build_w2(builder *b, weft_tensor *x);
weft_tensor *build_mla(builder *b, weft_tensor *x);
/* The temperatures of w2, in the latent or not: sets the score's log_tau, or scale and beta where
 * they are fixed. `width` is that of a mean. */
void build_temperature(builder *b, weft_score *score, int64_t width);
/* Turns the first `width` columns of the first `heads` heads of x [B, T, *, *] by their position. */
weft_tensor *rotate_heads(builder *b, weft_tensor *x, int64_t width, int64_t heads);
/* Position's share of the score: slopes or learned biases. */
void build_score_position(builder *b, weft_score *score);

/* Hidden activations h [B, T, F] from x [B, T, E]; with wsffn in training also adds its losses. */
weft_tensor *build_gelu_hidden(builder *b, weft_tensor *x);
weft_tensor *build_gated_hidden(builder *b, weft_tensor *x);
/* Whether the latent mechanism's h + α e is formed; if not, the maps that read it take e's share
 * from c^K. */
bool forms_latent_sum(const builder *b);
/* Where it is, h is read before and after e is added. The first is cheap to make again from what
 * the activation read, so it is not stored: the activation opens a segment to recompute, which ends
 * when u is made. */
bool makes_hidden_again(const builder *b);
void build_wsffn_losses(builder *b, weft_tensor *x, weft_tensor *h1, weft_tensor *w1);
/* What of those losses is made once for all layers, behind the last. */
void build_wsffn_sums(builder *b);

/* The feed-forward's output [B, T, E] from its hidden activations, with the reciprocal mechanisms
 * that the config asks for between them. */
weft_tensor *build_reciprocal(builder *b, weft_tensor *hidden, weft_tensor *w_out,
                              weft_tensor *bias);
/* Adds what the layer before sent to c^K. */
weft_tensor *build_receive(builder *b, weft_tensor *latent);

#endif
