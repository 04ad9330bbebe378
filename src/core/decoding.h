/* What a backend can do for decoding beyond running operations; core/exec.h's weft_backend points to both.
 *
 * weft_step_backend: a step of generation in one launch, for the models whose layers are queries, keys and
 * values by one product, attention over pages (ops/cache.h), and three products around the residual
 * stream. Rows of tokens go through all layers without coming back to the host. Weights are bf16 and
 * inputs of products are rounded to bf16; sums, norms and the residual stream are f32. A row's bits
 * depend on its sequence alone.
 *
 * weft_sampler_backend: for every other model, runs of a decode graph that follow each other without the
 * host. The rows of a run are written on the device, the graph is repeated there, and the token of each row
 * is sampled there, where the next run finds it. The sums are those of weft_exec_run, bit for bit.
 *
 * Tokens are drawn as core/draw.h says. What a row's sequence has seen is what weft_draw.seen lists, and the
 * tokens of its rows in this step, up to this one: the host may not know them yet. */
#pragma once

#include "core/draw.h"
#include "core/exec.h"
#include "core/rope_law.h"

enum {
    WEFT_STEP_ROWS = 64, /* of a step of one launch, at most */
    WEFT_RUN_ROWS = 128, /* of a run of a graph that follows another */
    WEFT_STEP_COLUMNS = 8,
    WEFT_STEP_CHUNK = 32
};

/* y = x wᵀ (+ bias): w [columns, depth] in the order in which it is multiplied (weft_step_pack). */
typedef struct {
    int64_t columns, depth; /* depth: a multiple of WEFT_STEP_CHUNK */
    uint16_t *weights;      /* bf16 */
    float *bias;            /* [columns] or NULL */
} weft_step_matrix;

/* What does not change from layer to layer. */
typedef struct {
    int64_t layers, width, hidden, vocab;
    int64_t heads, kv_heads, dqk, dv;
    bool gaussian; /* the second half of a query and of a key is σ = softplus(ρ), and keys have a
                      number n = ‖k‖² in their pages */
    bool joint;    /* values are the keys */
    bool rotated;  /* queries and keys are rotated by their position: columns 2 i and 2 i + 1 of a
                      head are its numbers i and i + dqk/2, a pair */
    weft_rope_law law;
    bool gated; /* the feed-forward's `in` has 2 hidden columns: SiLU of 2 i times 2 i + 1 */
    bool rms;   /* RMSNorm in place of LayerNorm */
    double eps;
    int64_t slots, context, table_pages; /* as in weft_cached_shape */
} weft_step_form;

/* Host memory, all of it malloc'd, but for keys and values. A norm's gain and offset are part of the
 * product behind it: w diag(gain), and w offset in its bias. */
typedef struct {
    weft_step_matrix heads;    /* queries [H dqk], keys [KV dqk], values [KV dv, unless joint] */
    weft_step_matrix out;      /* of what is found, [H dv] */
    weft_step_matrix in, back; /* of the feed-forward, between them a GELU, or what gated says */
    float *scale, *beta;       /* [H]: score = scale ⟨q, k⟩ + beta n; beta NULL: none */
    void *keys, *values;       /* the backend's memory: pages */
} weft_step_layer;

typedef struct {
    weft_step_form form;
    weft_step_layer *layer;
    weft_step_matrix head;
    /* The backend's memory, f32 or bf16: embeddings [V, E], and those of positions or NULL. */
    const void *table, *place;
    weft_dtype table_dtype, place_dtype;
} weft_step_model;

/* Rows of a step, in the order that ops/cache.h asks for. */
typedef struct {
    int64_t count;
    int32_t token[WEFT_RUN_ROWS]; /* -1 - i: the one that the step before sampled in its row i */
    int32_t position[WEFT_RUN_ROWS], slot[WEFT_RUN_ROWS];
    const weft_draw
        *draws; /* [count], until `start` returns; NULL: the likeliest token of each row */
} weft_step_rows;

typedef struct weft_step_backend {
    /* Whether the sizes are such that it can. */
    bool (*suits)(const weft_step_form *form);
    /* Copies the weights; the model may be freed afterwards. */
    weft_status (*open)(const weft_step_model *m, void **step);
    void (*close)(void *step);
    /* Row `slot` of the table of pages. */
    weft_status (*set_pages)(void *step, int64_t slot, const int32_t *pages);
    /* Starts a step; at most two may be under way. */
    weft_status (*start)(void *step, const weft_step_rows *rows);
    /* Waits for the oldest step under way: the token of each row; -1 where its logits are not numbers. */
    weft_status (*finish)(void *step, int32_t *tokens);
    /* The logits of rows `first` to `first + count - 1` of the step that was finished last, none
     * being under way. */
    weft_status (*logits)(void *step, int64_t first, int64_t count, float *out);
    /* Phases that the step went through that was started last: how many follows from its rows. What
     * one makes the next may need from the whole device. */
    int64_t (*phases)(const void *step);
    /* Seconds of a phase in which nothing is done, measured now, no step being under way; 0: it
     * could not be. */
    double (*phase_seconds)(void *step);
    int64_t (*weight_bytes)(const void *step);
    /* Whether it draws tokens (rows->draws), and not the likeliest ones alone. */
    bool (*draws)(void);
} weft_step_backend;

/* Where the rows of a graph go, and what comes out of it. */
typedef struct {
    weft_exec *exec;
    const weft_tensor *tokens, *position, *slot; /* i32, [rows] each */
    const weft_tensor *wanted;                   /* i32 [rows]: all of them, in order */
    const weft_tensor *logits;                   /* [rows, 1, V], f32 or bf16 */
} weft_sampler_graph;

/* What a backend wants to have folded into products (generate/fold.h). */
typedef struct {
    int64_t
        width; /* columns of a row up to which products make moments and take them (ops/linear.h) */
    int64_t bytes; /* that matrices may have more for a launch less */
} weft_foldable;

typedef struct weft_sampler_backend {
    /* Rows of a run, at most WEFT_RUN_ROWS: a row's bits do not depend on how many there are. */
    int64_t rows;
    /* For graphs like `x`, whose table of pages [slots, table_pages] lies at `table`, in the backend's
     * memory. *sampler NULL: runs are better waited for. */
    weft_status (*open)(const weft_exec *x, int32_t *table, int64_t table_pages, void **sampler);
    void (*close)(void *sampler);
    /* Row `slot` of the table of pages. */
    weft_status (*set_pages)(void *sampler, int64_t slot, const int32_t *pages);
    /* Starts a run of a graph that has as many rows or more; at most two may be under way. */
    weft_status (*start)(void *sampler, const weft_sampler_graph *g, const weft_step_rows *rows);
    /* Waits for the oldest run under way: the token of each row; -1 where its logits are not numbers. */
    weft_status (*finish)(void *sampler, int32_t *tokens);
    /* The logits of rows `first` to `first + count - 1` of the run that was finished last, none being
     * under way. */
    weft_status (*logits)(void *sampler, int64_t first, int64_t count, float *out);
    bool (*draws)(void);          /* as above */
    weft_foldable (*folds)(void); /* NULL: nothing */
} weft_sampler_backend;

/* Numbers of a packed matrix, and w [columns, depth] as one: tiles of 8 columns; of each the chunks of
 * 32 numbers; of each the eight numbers that lane 4 c + q of a warp multiplies, 8 q to 8 q + 7 of
 * column c. Behind the last column zeros. */
int64_t weft_step_packed(int64_t columns, int64_t depth);
void weft_step_pack(const float *w, int64_t columns, int64_t depth, uint16_t *out);

/* Reads "A,B,N", keys of a run up to position N and beyond: three whole numbers from 1 on. */
weft_status weft_step_runs_read(const char *text, int runs[2], int *positions);

void weft_step_model_free(weft_step_model *m);
