/* A model case (model_case.h) as one optimizer step, its batch cut into micro-batches. */
#ifndef WEFT_TESTS_OBJECTIVE_CASE_H
#define WEFT_TESTS_OBJECTIVE_CASE_H

#include "core/exec.h"
#include "model/session.h"

typedef struct {
    const char *config; /* of tests/model/configs */
    weft_dtype dtype;
    int64_t micro;        /* sequences of a micro-batch */
    int64_t accumulation; /* the batch is so many BATCH_SIZEs; 0: 1 */
    weft_form form;
    double dropout;
    const weft_backend *backend; /* NULL: the CPU */
} objective_case;

typedef struct {
    weft_loss_parts parts;
    double *gradients; /* of all weights, one after the other in the model's order */
    int64_t count;
} objective_result;

/* Runs it twice, and fails the running test where the second run differs. */
objective_result objective_case_run(const objective_case *c);
void objective_result_free(objective_result *r);

/* Fails the running test where a part of the loss or a weight's gradient is further from the kept
 * reference, the whole batch at once in float64, than `tolerance` of its size. */
void objective_case_compare(const objective_case *c, const objective_result *r, double tolerance);
/* The same between two results. */
void objective_results_compare(const objective_case *c, const objective_result *a,
                               const objective_result *b, double tolerance);

#endif
