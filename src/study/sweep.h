/* A sweep: options that take several values each, as CONFIG_STUDY_SWEEP writes them.
 *
 *   KEY=0.1,0.3,1 × KEY=8,32      every pair: a grid
 *   KEY=log(1e-4..1e-2)           a range, uniform in the logarithm; 0..1 is uniform
 *
 * The parts are separated by ×, x or *, between blanks. A range is drawn from, so it needs a number of
 * points (STUDY_SWEEP_POINTS); with one, a grid is drawn from too. Draws follow from the study's seed
 * alone. */
#ifndef WEFT_STUDY_SWEEP_H
#define WEFT_STUDY_SWEEP_H

#include "config/config.h"

enum { WEFT_SWEEP_AXES = 8, WEFT_SWEEP_VALUE = 128 };

typedef struct {
    char text[WEFT_SWEEP_AXES][WEFT_SWEEP_VALUE]; /* the value on each axis */
} weft_sweep_point;

typedef struct {
    const weft_option *option[WEFT_SWEEP_AXES];
    int axes;
    weft_sweep_point *points;
    int n;
} weft_sweep;

/* `points`: how many to draw; 0: the whole grid, of at most `most`. `where` is for messages. */
weft_status weft_sweep_read(const char *text, int points, int most, uint64_t seed,
                            const char *where, weft_sweep *out);
void weft_sweep_free(weft_sweep *s);

#endif
