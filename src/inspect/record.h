/* An inspection as facts of a run's record (record/facts.h): what EVAL_INSIDE adds to them. */
#ifndef WEFT_INSPECT_RECORD_H
#define WEFT_INSPECT_RECORD_H

#include "inspect/inspect.h"

#include <jansson.h>

/* The object that report/inside.h draws. NULL: no memory. */
json_t *weft_inspection_inside(const weft_inspection *i);

/* Adds `inside`, that object as text with four digits a number, and by name as numbers: inside_NAME, the mean
 * over heads and layers; inside_gradient PART and inside_weight PART, the norms of a mechanism. */
void weft_inspection_facts(const weft_inspection *i, json_t *facts);

/* Inspects a model on the first held-out sequences of its dataset, and adds what is found. */
weft_status weft_inspect_held_out(const weft_model *m, weft_backing place, json_t *facts);

#endif
