/* Static pictures as SVG: what a report shows where scripts are off, and in Markdown. */
#ifndef WEFT_REPORT_PLOT_H
#define WEFT_REPORT_PLOT_H

#include "base/error.h"
#include "report/axis.h"

#include <jansson.h>
#include <stdbool.h>

typedef struct {
    double x, y;
    double low, high; /* the band or the bar around y; NaN: none */
} weft_plot_point;

/* Colours, markers and dashes repeat only together, after 280 styles. */
typedef struct {
    const char *label;
    int style; /* any number >= 0: the variant's place */
    weft_plot_point *points;
    int n;
} weft_plot_series;

typedef enum {
    WEFT_PLOT_CURVES,  /* lines with a band */
    WEFT_PLOT_POINTS,  /* markers with a bar */
    WEFT_PLOT_MEASURED /* markers with a bar, joined by lines */
} weft_plot_kind;

typedef struct {
    weft_plot_kind kind;
    const char *title; /* for readers who do not see it */
    const char *x_label, *y_label, *y_unit;
    weft_unit x_unit;
    bool log_x;
    bool zero; /* 0 is shown, with a line */
    const weft_plot_series *series;
    int n_series;
    const weft_plot_point *front; /* the Pareto front, by growing x */
    int n_front;
    double top; /* y beyond this is cut off; NaN: all is shown */

    const char *caption; /* of the static picture */
    const char *note;    /* and what charts.js says below its own */
    json_t *lines; /* of curves: every run, as charts.js takes it; NULL: the series are drawn */
    bool rises;    /* better when higher: nothing is cut off above */
} weft_plot;

/* How many points it has. */
int weft_plot_count(const weft_plot *plot);
/* The same picture as charts.js takes it. The caller owns it. */
json_t *weft_plot_json(const weft_plot *plot);
/* Draws. `id` makes the names inside unlike those of other pictures on the page. *svg is the
 * caller's to free. */
weft_status weft_plot_svg(const weft_plot *plot, int id, char **svg);

/* "12", "3.4k", "115M", "2.5G": a number for people, with `digits` that count. */
const char *weft_plot_short(double value, int digits, char room[32]);

/* The colour of a style, as charts.css has it for a light page: "#0072B2". */
const char *weft_plot_colour(int style);

#endif
