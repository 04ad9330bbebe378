/* The harness's side of a case: a line becomes a graph with values, is run, and gives results.
 * Builders see only cases.h. */
#ifndef WEFT_TESTS_CASE_RUN_H
#define WEFT_TESTS_CASE_RUN_H

#include "cases.h"
#include "table.h"

enum { CASE_MOST = 16 };

/* A tensor the harness writes, or reads and compares. */
typedef struct {
    char name[32];
    weft_tensor *tensor;
    bool diff;
    double *values; /* of inputs and upstream gradients: as the tensor's type holds them */
    const weft_tensor *index; /* scattered outputs: column numbers, beside tensor's values */
    int64_t columns;
} case_slot;

struct test_case {
    const case_line *line;
    weft_graph *graph;
    weft_exec *exec;
    weft_dtype dtype;
    double loosen;
    bool forward_only;
    uint32_t salt;
    int only_input, only_output;   /* see case_setup; 0: all */
    int diff_inputs, diff_outputs; /* how many the builder marked */
    int n_inputs, n_outputs, n_upstream;
    case_slot input[CASE_MOST];
    case_slot output[CASE_MOST];
    case_slot upstream[CASE_MOST]; /* the gradient of each differentiable output */
    char error[256];               /* what was wrong with the line; empty: nothing */
};

typedef struct {
    weft_dtype dtype;
    int threads;       /* 0: one */
    bool forward_only; /* no gradient nodes */
    bool no_reuse;     /* every tensor its own memory */
    int only_input;    /* 1, 2, ...: only that one of the differentiable inputs gets a gradient */
    int only_output;   /* 1, 2, ...: only that one of the differentiable outputs has one */
    bool graph_only;   /* nothing to run: for counting operations */
    uint32_t salt;     /* draws other values than the kept ones; 0: those */
    const weft_backend *backend; /* NULL: the CPU */
    const test_case *values_of;  /* take the values of this case in place of drawing them */
} case_setup;

/* Builds, plans and writes the inputs. NULL when it failed: weft_error_message() says why. */
test_case *case_open(const case_line *line, const case_builder *builder, const case_setup *setup);
void case_close(test_case *c);
weft_status case_run(test_case *c);
/* Writes an input's (changed) values again. */
weft_status case_write(test_case *c, const case_slot *slot);
/* The pools are shared by all cases; this ends them. */
void case_end(void);

/* Results: the outputs, then the gradients of the differentiable inputs. */
int case_result_count(const test_case *c);
typedef struct {
    char name[40]; /* "y", "grad.x" */
    bool is_grad;
    const weft_tensor *tensor; /* NULL: a gradient of zero */
    const weft_tensor *like;   /* has the result's shape (but for scattered ones) */
    const case_slot *slot;
    int64_t count;
} case_result;
case_result case_result_at(const test_case *c, int i);
/* Its values after a run as doubles, and as they are in memory; the caller frees them. */
double *case_result_values(test_case *c, const case_result *r);
void *case_result_bytes(test_case *c, const case_result *r, int64_t *bytes);

/* Σ ⟨y, d_y⟩ over the differentiable outputs, and Σ |y d_y|. */
double case_loss(test_case *c, double *magnitude);

/* A value as the type holds it. */
double case_round(weft_dtype dtype, double value);

#endif
