/* What a backend can do for decoding beyond running operations: runs of a decode graph that follow each other
 * without the host (core/exec.h's weft_backend points to it). The rows of a run are written on the device, the
 * graph is repeated there, and the token of each row is sampled there, where the next run finds it. The sums
 * are those of weft_exec_run, bit for bit.
 *
 * Tokens are drawn as core/draw.h says. What a row's sequence has seen is what weft_draw.seen lists, and the
 * tokens of its rows in this run, up to this one: the host may not know them yet. */
#pragma once

#include "core/draw.h"
#include "core/exec.h"

enum { WEFT_RUN_ROWS = 256 }; /* of a run, at most */

/* Rows of a run, in the order that ops/cache.h asks for. */
typedef struct {
    int64_t count;
    int32_t token[WEFT_RUN_ROWS]; /* -1 - i: the one that the run before sampled in its row i */
    int32_t position[WEFT_RUN_ROWS], slot[WEFT_RUN_ROWS];
    const weft_draw
        *draws; /* [count], until `start` returns; NULL: the likeliest token of each row */
} weft_run_rows;

/* Where the rows of a graph go, and what comes out of it. */
typedef struct {
    weft_exec *exec;
    const weft_tensor *tokens, *position, *slot; /* i32, [rows] each */
    const weft_tensor *wanted;                   /* i32 [rows]: all of them, in order */
    const weft_tensor *logits;                   /* [rows, 1, V], f32 or bf16 */
} weft_sampler_graph;

/* What a backend wants to have folded into products (generate/fold.h). */
typedef struct {
    int64_t width; /* columns of a row up to which products make and take moments (ops/linear.h) */
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
    weft_status (*start)(void *sampler, const weft_sampler_graph *g, const weft_run_rows *rows);
    /* Waits for the oldest run under way: the token of each row; -1 where its logits are not numbers. */
    weft_status (*finish)(void *sampler, int32_t *tokens);
    /* The logits of rows `first` to `first + count - 1` of the run that was finished last, none being
     * under way. */
    weft_status (*logits)(void *sampler, int64_t first, int64_t count, float *out);
    /* Whether it draws tokens (rows->draws), and not the likeliest ones alone. */
    bool (*draws)(void);
    weft_foldable (*folds)(void); /* NULL: nothing */
    /* Rows of a prompt, one behind the other, that one run (weft_run.alone) is best for, none of them sampled; 0: no
     * more than others. */
    int64_t (*reads)(void);
} weft_sampler_backend;
