/* Static pictures as SVG: what a page shows where scripts are off, and in Markdown. Colours, markers, ticks and units
 * are those of charts.js. */
#pragma once

#include "base/error.h"

#include <jansson.h>

/* The numbers on an axis: round ones, few enough not to touch, in one unit. charts.js chooses the same. */
enum { WEFT_TICKS_MOST = 32, WEFT_TICK_ROOM = 24 };

typedef struct {
    int n;
    double at[WEFT_TICKS_MOST];
    char text[WEFT_TICKS_MOST][WEFT_TICK_ROOM];
} weft_ticks;

/* At most `most` multiples of 1, 2 or 5 times a power of ten within [low, high]. Their texts have one
 * unit, of k, M, G and so on where a number reaches 10,000, and as many decimals as the step between
 * them. None where the range is empty or not finite. */
void weft_axis_ticks(double low, double high, int most, weft_ticks *out);
/* The same for a logarithmic axis, low > 0: powers of ten, with 2 and 5 between them where they fit. */
void weft_axis_log_ticks(double low, double high, int most, weft_ticks *out);

typedef enum { WEFT_UNIT_COUNT, WEFT_UNIT_SECONDS, WEFT_UNIT_BYTES } weft_unit;

/* What a quantity up to `most` is counted in: {60, "min"}, {1024, "KiB"}; {1, ""} for a count. */
typedef struct {
    double by;
    const char *name;
} weft_scale;
weft_scale weft_axis_scale(weft_unit unit, double most);

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
    const weft_plot_point *fit; /* a curve fitted through the points; 0: none */
    int n_fit;
    weft_plot_point least; /* its minimum, which is marked */
    double size;           /* of its markers, as a share of the usual one; 0: 1 */
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
/* Draws. `id` makes the names inside unlike those of other pictures on the page. WEFT_EINPUT: there is nothing to
 * draw. */
weft_status weft_plot_svg(const weft_plot *plot, int id, FILE *out);

/* "12", "3.4k", "115M", "2.5G": a number for people, with `digits` that count. */
const char *weft_plot_short(double value, int digits, char room[32]);

/* The colour of a style, as charts.css has it for a light page: "#0072B2". */
const char *weft_plot_colour(int style);

/* A text, escaped, and a line, in colours of SVG's or the page's own `ink` and `faint`. */
void weft_svg_text(FILE *out, double x, double y, const char *anchor, const char *text);
void weft_svg_line(FILE *out, double x1, double y1, double x2, double y2, const char *stroke,
                   double width);
