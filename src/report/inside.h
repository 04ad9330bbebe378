/* What was found inside a model, as pictures: of the object that a run's record keeps as its fact `inside`
 * and that `weft inspect` makes of what it finds.
 *
 *   heads   {NAME: [[number of each head] of each layer]}, NAME being one of weft_inside_heads
 *   gates   [[the share of the gates in each tenth of 0 to 1] of each layer]
 *   keys, values   {width, held: [[the share of the variance in the first k directions] of each layer]},
 *           for at most WEFT_INSIDE_POINTS values of k, evenly up to the width
 *
 * What a model does not have is missing, or null in its place. The object may be of another's making: what is
 * not of this form is not drawn. */
#pragma once

#include "report/page.h"

enum { WEFT_INSIDE_POINTS = 32 };

/* A number that each head has: its name, what it is, and the value of the darkest square, NaN being the
 * largest there is. The list ends on a NULL name. */
typedef struct {
    const char *name, *title;
    double high;
} weft_inside_number;
extern const weft_inside_number weft_inside_heads[];
/* The same of numbers that each layer has. */
extern const weft_inside_number weft_inside_layers[];

/* The k of point i of n in a latent's curve. */
int weft_inside_direction(int width, int i, int n);

/* Grids of heads by layers, and the histogram of the gates; between weft_page_pictures_open and _close. */
void weft_inside_put_heads(weft_page *p, const json_t *inside, int style);
/* A curve for each latent, of a few layers. */
void weft_inside_put_latents(weft_page *p, const json_t *inside);
/* Whether there is such a latent, "keys" or "values". */
bool weft_inside_has_latent(const json_t *inside, const char *name);
