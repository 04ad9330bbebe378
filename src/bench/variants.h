/* The variants that training and generation are measured for, and the shapes they are measured at. */
#pragma once

#include "config/config.h"

/* A mix of attention, feed-forward and mechanisms: what it sets over a shape. */
typedef struct {
    const char *name;     /* for --variants */
    const char *label;    /* in the table */
    int step;             /* of the ablation: sets the three mechanisms */
    const char *settings; /* KEY=VALUE with blanks between */
} bench_variant;

typedef struct {
    const char *name;
    const char *variants; /* those measured when none are named; NULL: all */
    int steps;            /* measured when no number is given */
    const char *settings;
} bench_shape;

extern const bench_variant bench_variants[];
extern const int bench_variant_count;

/* NULL where there is none of that name. The name ends at a comma or at the end of the text. */
const bench_variant *bench_variant_find(const char *name);
const bench_shape *bench_shape_find(const char *name);

/* Where a row's config comes from, lowest first: the shape or else a file, what is set over it, the
 * variant, settings. */
typedef struct {
    const bench_shape *shape;
    const char *file; /* NULL: the shape */
    const char *over; /* KEY=VALUE with blanks between; NULL: nothing */
    const weft_override *settings;
    int n_settings;
} bench_config_source;

weft_status bench_variant_config(const bench_variant *v, const bench_config_source *from,
                                 weft_config *c);
