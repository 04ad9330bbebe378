/* Runs of a decode graph that follow each other without the host, for models that have no step of one
 * launch (ops/step.h). The rows of a run are written on the device, the graph is repeated there, and
 * the likeliest token of each row is sampled there, where the next run finds it. The sums are those of
 * weft_exec_run, bit for bit. */
#ifndef WEFT_OPS_SAMPLER_H
#define WEFT_OPS_SAMPLER_H

#include "ops/step.h"

/* Where the rows of a graph go, and what comes out of it. */
typedef struct {
    weft_exec *exec;
    const weft_tensor *tokens, *position, *slot; /* i32, [rows] each */
    const weft_tensor *wanted;                   /* i32 [rows]: all of them, in order */
    const weft_tensor *logits;                   /* [rows, 1, V], f32 or bf16 */
} weft_sampler_graph;

typedef struct weft_sampler_backend {
    /* Rows of a run, at most WEFT_STEP_ROWS: a row's bits do not depend on how many there are. */
    int64_t rows;
    /* For graphs like `x`, whose table of pages [slots, table_pages] lies at `table`, in the backend's
     * memory. *sampler NULL: runs are better waited for. */
    weft_status (*open)(const weft_exec *x, int32_t *table, int64_t table_pages, void **sampler);
    void (*close)(void *sampler);
    /* Row `slot` of the table of pages. */
    weft_status (*set_pages)(void *sampler, int64_t slot, const int32_t *pages);
    /* Starts a run of a graph that has as many rows or more; at most two may be under way. */
    weft_status (*start)(void *sampler, const weft_sampler_graph *g, const weft_step_rows *rows);
    /* Waits for the oldest run under way: the likeliest token of each row, of equal ones the lowest; -1
     * where its logits are not numbers. */
    weft_status (*finish)(void *sampler, int32_t *tokens);
    /* The logits of rows `first` to `first + count - 1` of the run that was finished last, none being
     * under way. */
    weft_status (*logits)(void *sampler, int64_t first, int64_t count, float *out);
} weft_sampler_backend;

#endif
