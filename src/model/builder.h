/* What the files that build one model share: the graph, the sizes, the parameters made so far, and
 * what one layer hands to the next.
 *
 * The seam between a description and its graph. The kinds (kinds.h) and reciprocal.c describe a
 * layer for rows of tokens x [B, T, E]. Most of what they do concerns each row alone. What concerns
 * other tokens goes through weft_attend below and nowhere else:
 *
 *   where a row stands       builder.start, given to rotations and to the embedding
 *   attending                builder_attend
 *   cross-token routing      weft_attend.route, weft_attend.gather
 *   running sums             weft_attend.running_mean
 *
 * weft_attend_whole builds these for whole sequences: training and evaluation. A graph of generation,
 * whose rows find the tokens before them in a cache, gives another weft_attend to weft_model_build
 * (weft_build.attend) and has every kind and every mechanism from the same description. */
#pragma once

#include "model/kinds.h"
#include "model/transformer.h"
#include "ops/all.h"

/* What a token leaves for later ones, and what is done to it when it is read. The rest of the score
 * (q, scale, positions) is in builder.score. */
typedef struct {
    /* Either of these: q, k and v in one tensor [B, T, (H + 2 KV) D], rotated as they must be; */
    weft_tensor *packed;
    int64_t kv_heads; /* with packed */
    /* or k [B, T, KV, dqk] and v [B, T, KV, dv]. */
    weft_tensor *k;
    weft_tensor *v; /* may be k itself: as it is kept, before the following is done to it */
    /* Columns of each key that are rotated when it is read; 0: none, or it was done before. */
    int64_t rotated;
    /* Where score.n is set, it is the square of a key as it is kept, plus this [B, KV, T]; NULL:
     * nothing. */
    weft_tensor *n_extra;
    /* When a key is read, its second half becomes softplus of it, and score.n its square. */
    bool gaussian;
    /* Columns [B, T, 1, R] that every key has before the first `scored` ones of k, and that are kept
     * once for all heads; NULL: keys are k. */
    weft_tensor *common;
    int64_t scored;
} builder_keys;

typedef struct builder {
    weft_graph *g;
    const weft_config *c;
    weft_model_graph *out;
    const weft_attention_kind *attention;
    const weft_ffn_kind *ffn_kind;
    const weft_position_kind *position;
    const struct weft_attend *attend;
    const weft_build *build; /* what it is built for */
    weft_dtype dtype;        /* of activations and matrices */
    weft_dtype stat;         /* of statistics and of parameters that are few */
    int64_t batch, time;
    int64_t width, heads, head_dim, ffn; /* E, H, D, F */
    int64_t inner;                       /* H D, the width of all heads */
    weft_rope_law law;                   /* of this layer's rotations */
    int layer;
    bool positioned;  /* the score has the position's share */
    const char *part; /* of the parameters being made, for plans: "attention" */

    /* [B] i32: the position of each sequence's first row; NULL: 0. weft_attend.begin sets it. */
    weft_tensor *start;
    /* Of each row's document, with DOCUMENT_MASK; NULL otherwise. */
    weft_documents documents;

    /* From the layer before: NULL in the first. */
    weft_tensor *gate;     /* [B, T, H] or [B, 1, H], before the sigmoid */
    weft_tensor *received; /* α_l u: [B, T, L], for this layer's c^K */

    /* With KV_SHARE: this layer makes no keys and values and reads those that another one before it
     * left in `kept`, with their numbers; latent and latent_v are that one's too. */
    bool shares;
    builder_keys kept;
    weft_tensor *kept_n;

    /* Of this layer's attention, for its feed-forward. */
    weft_score score; /* what rebuilds the weights */
    /* The score is a distance: the query's own norm, which drops out of the softmax, belongs to the raw
     * scores. */
    bool distance;
    /* Of Gaussians: a query's columns behind these are its deviations; 0: it has none. */
    int64_t means;
    weft_tensor *lse;      /* [B, H, T] */
    weft_tensor *latent;   /* c^K [B, T, L] after u, before rotation; where the kind has one */
    weft_tensor *latent_v; /* c^V [B, T, L], where it is another */
    /* [B, T, H, 2D] raw means and deviations, where q and k hold none. */
    weft_tensor *rho_q, *rho_k;
    weft_tensor *normed; /* what the feed-forward reads: [B, T, E] */
    weft_routes routes;  /* of weft_attend.route, or from an attention elsewhere */

    /* Sums over layers so far; NULL: none yet. */
    weft_tensor *aux_z, *aux_contrastive;
    weft_tensor *z_read; /* [B, T, E]: what WSFFN_Z_LOGITS makes logits of; NULL: nothing */
    /* Of each layer [N], for the losses that are made of all layers at once; NULL: none are. */
    struct wsffn_layer *wsffn;
    weft_tensor **contexts; /* of each layer [N], where they are made one by one; NULL: not so */

    /* per_head_scalar's numbers, one pair for the whole model. */
    weft_tensor *couple_a, *couple_b;
} builder;

/* How rows attend to other tokens. */
typedef struct weft_attend {
    bool in_pages; /* keys and values are read where they are kept */
    /* Before the first node: inputs and states; sets builder.start. NULL: nothing to do. */
    void (*begin)(builder *b);
    weft_documents (*documents)(builder *b, weft_tensor *tokens, int32_t end);
    weft_tensor *(*attention)(builder *b, const builder_keys *keys);
    /* Chooses the routes of this layer's attention, once, before anything is gathered by them. NULL: attention has
     * left its weights. */
    void (*route)(builder *b);
    /* *x [B, T, N] becomes Σ_j R_tj x_j, R being this layer's weights as SPARSE_MODE keeps them; so does
     * *second where that is not NULL. */
    void (*gather)(builder *b, weft_tensor **x, weft_tensor **second);
    /* y_t [B, T, N]: the mean of x over a sequence's tokens up to t. */
    weft_tensor *(*running_mean)(builder *b, weft_tensor *x);
    /* Where weights do not change from run to run: factor × maps[0] · maps[1] · ..., a matrix that is formed
     * once, of up to WEFT_DERIVED_OF; those that are NULL are left out. NULL: products of weights are formed
     * where the shape says that it pays. */
    weft_tensor *(*joined)(builder *b, weft_tensor *const *maps, int n, double factor);
    /* In place of the loss: what is made of the last norm's output x and the head's matrix. NULL: the
     * loss. */
    void (*finish)(builder *b, weft_tensor *x, weft_tensor *head);
} weft_attend;

extern const weft_attend weft_attend_whole;

/* Adds the position's share to the score, once. builder_attend does so; a kind that makes parameters
 * which must come after it asks for it before. */
void builder_score_position(builder *b);
/* o [B, T, H, dv], what the rows' queries in builder.score find. In a layer that shares, keys without k
 * are those that are kept. */
weft_tensor *builder_attend(builder *b, const builder_keys *keys);
/* Whether each gathering rebuilds all the weights, so that there should be one alone. */
bool gathers_once(const builder *b);

/* A parameter "h.<layer>.<name>" (or `name` itself with layer < 0) and how it starts. `few` ones
 * (gains, biases, temperatures) have the statistics' type. */
weft_tensor *builder_matrix(builder *b, const char *name, weft_init init, int ndim,
                            const int64_t *shape);
weft_tensor *builder_vector(builder *b, const char *name, weft_init init, int64_t size);
/* Operations of the nodes from `first` on, of all or of those that read a tensor. */
double flops_of(const weft_graph *g, int64_t first, const weft_tensor *read);
#define matrix(b, name, init, ...) builder_matrix((b), (name), (init), WEFT_DIMS(__VA_ARGS__))

/* Starts: see weft_init. */
weft_init init_normal(double std);
weft_init init_residual(const builder *b); /* std 0.02/√(2N): maps into the residual stream */
weft_init init_constant(double value);
weft_init init_uniform(int64_t in, int64_t out); /* bound √(6/(in+out)) */

/* a + b where either may be NULL. */
weft_tensor *add_optional(builder *b, weft_tensor *x, weft_tensor *y);

/* x as heads: [B, T, heads, width]. */
weft_tensor *as_heads(builder *b, weft_tensor *x, int64_t heads, int64_t width);
/* x [B, T, *] by the map "attn.NAME.weight" [rows, *], and its bias where the config has one; as heads. */
weft_tensor *attention_map(builder *b, weft_tensor *x, const char *name, int64_t rows);
weft_tensor *map_to_heads(builder *b, weft_tensor *x, const char *name, int64_t heads,
                          int64_t width);
/* [common, the first `count` columns of x] of each of x's heads [B, T, heads, *], common being [B, T,
 * heads or 1, *]; x itself where there is none. */
weft_tensor *join_heads(builder *b, weft_tensor *common, weft_tensor *x, int64_t count);
/* With QK_NORM, RMSNorm of the first `queries` heads of x [B, T, *, *] by the gain of queries, and of the
 * `keys` behind them by that of keys; x itself otherwise. norm_means: of the first `means` columns of each
 * of x's heads, all of which are queries or all keys. */
weft_tensor *norm_heads(builder *b, weft_tensor *x, int64_t queries, int64_t keys);
weft_tensor *norm_means(builder *b, weft_tensor *x, int64_t means, bool queries);
/* Rotates the first `width` columns of the first `heads` heads of x [B, T, *, *] by their rows'
 * positions: where the position's kind does so, or whatever it is. */
weft_tensor *apply_rope(builder *b, weft_tensor *x, int64_t width, int64_t heads);
weft_tensor *rotate_heads(builder *b, weft_tensor *x, int64_t width, int64_t heads);
/* How many of `width` columns rope rotates. */
int64_t rotated_width(const weft_config *c, int64_t width);
/* c · tanh(x / c); x itself where c is 0. */
weft_tensor *apply_softcap(builder *b, weft_tensor *x, double cap);
/* Refuses SOFTCAP_ATTENTION where scores are distances. */
weft_status check_distance_uncapped(const weft_config *c, const char *where);
/* The law of angles that the config asks for in a layer. */
weft_rope_law rope_law_of(const weft_config *c, int64_t layer);
/* Refuses one that layers or single pairs do not have in common, for what rotates other columns than a head's. */
weft_status check_common_law(const weft_config *c, const char *where);
/* Refuses a ROPE_DIM of more columns than there are. */
weft_status check_rotated(const weft_config *c, const char *where, int64_t width);
/* A bias [size] of one of attention's projections into queries, keys and values; NULL: the config has
 * none. */
weft_tensor *attention_bias(builder *b, const char *name, int64_t size);
/* The same of a map of the feed-forward. */
weft_tensor *ffn_bias(builder *b, const char *name, int64_t size);
/* The temperatures of w2, in the latent or not: sets the score's log_tau, or scale and beta where
 * they are fixed. `width` is that of a mean. */
void build_temperature(builder *b, weft_score *score, int64_t width);
/* For positions that count distances back: refuses CAUSAL=n. */
weft_status check_distances(const weft_config *c, const char *where);

/* The gated feed-forwards: W_1 x and W_3 x, then h from them. */
typedef struct {
    weft_tensor *w1, *h1, *h2;
} gated_maps;
gated_maps build_gated_maps(builder *b, weft_tensor *x);
weft_tensor *build_gated_hidden(builder *b, gated_maps maps);
/* x times a number that is learned, factor [1]. */
weft_tensor *scale_learned(builder *b, weft_tensor *x, weft_tensor *factor);
/* Where the latent mechanism's h + α e is formed, h is read before and after e is added. The first is cheap
 * to make again from what the activation read, so it is not stored: the activation opens a segment to
 * recompute, which ends when u is made. */
bool makes_hidden_again(const builder *b);
/* Numbers of a token that its gates are made of; `joined`: where products of weights are formed once. */
int64_t gate_columns(const weft_config *c, bool joined);

/* What the mechanisms have once for the whole model: before the first layer. */
void begin_reciprocal(builder *b);
/* The feed-forward's output [B, T, E] from its hidden activations, with the reciprocal mechanisms
 * that the config asks for between them. */
weft_tensor *build_reciprocal(builder *b, weft_tensor *hidden, weft_tensor *w_out,
                              weft_tensor *bias);
