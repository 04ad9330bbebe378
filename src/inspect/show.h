/* An inspection for people and for programs. */
#ifndef WEFT_INSPECT_SHOW_H
#define WEFT_INSPECT_SHOW_H

#include "inspect/inspect.h"

#include <jansson.h>
#include <stdio.h>

/* Tables of text: what a model does not have is left out. */
void weft_inspection_print(const weft_inspection *i, FILE *out);
/* One object; numbers that there are none of are null. */
json_t *weft_inspection_json(const weft_inspection *i);
/* A page with pictures: heads by layers as grids, the latents' directions as curves, and the weights over
 * the first tokens of the text as maps. */
weft_status weft_inspection_page(const weft_inspection *i, const weft_model *m, weft_backing place,
                                 const weft_windows *text, const weft_tokenizer *t,
                                 const char *title, const char *path, bool force);

/* The number of weft_inside_heads' place `number`; NaN: the head has none. And whether any head has it. */
double weft_head_value(const weft_head_look *h, int number);
bool weft_inspection_has(const weft_inspection *i, int number);

#endif
