/* A page that is written twice at once, as HTML and as Markdown: headings, paragraphs, lists, tables,
 * pictures. Callers give plain text; whatever is in it, it comes out as text in both. A list, a table or a group of
 * pictures ends where something else begins. */
#pragma once

#include "base/error.h"

#include <jansson.h>

/* Static pictures as SVG: what a page shows where scripts are off, and in Markdown. Colours, markers, ticks and units
 * are those of charts.js. */

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
/* Draws. `id` makes the names inside unlike those of other pictures on the page. WEFT_EINPUT: there is nothing to draw. */
weft_status weft_plot_svg(const weft_plot *plot, int id, FILE *out);

/* "12", "3.4k", "115M", "2.5G": a number for people, with `digits` that count. */
const char *weft_plot_short(double value, int digits, char room[32]);

/* The colour of a style, as charts.css has it for a light page: "#0072B2". */
const char *weft_plot_colour(int style);

/* A text, escaped, and a line, in colours of SVG's or the page's own `ink` and `faint`. */
void weft_svg_text(FILE *out, double x, double y, const char *anchor, const char *text);
void weft_svg_line(FILE *out, double x1, double y1, double x2, double y2, const char *stroke,
                   double width);

/* The script and the style of pages with charts, as they are in charts.js and charts.css, for a page to
 * hold whole: this one, and the live page of runs. charts.js tells how a page calls it. */
extern const char weft_charts_script[], weft_charts_style[];
extern const char weft_report_script[]; /* page.js: what is a report's alone */

typedef struct {
    FILE *html, *md;
    FILE *words; /* to put a text or a picture together in; see weft_page_words */
    FILE *names; /* of the parts, as links to them */
    char *html_text, *md_text, *words_text, *names_text;
    size_t html_size, md_size, words_size, names_size;
    int level;           /* of a section's heading: 2, or 3 where each study is a section */
    char section[160];   /* its heading, by which a screen reader names the tables in it */
    int tables;          /* so far */
    int columns, column; /* of the open table */
    char *kinds;         /* of its columns: '>', '=' or ' ' */
    size_t kinds_room;
    const char *end; /* of the list, table or group that is open, in HTML; NULL: none is */
    bool heading;    /* its heads are not all there */
    bool cut;        /* memory ran out in `words` */
    bool folded;     /* a section that begins folded is open */
    bool answers;    /* it has an answer, and no second one */
    bool asks;       /* and a question */
    size_t contents; /* where they stand in the HTML, once it is whole */
    int pictures;    /* so far: makes the ids in them unlike */
    json_t *svgs;    /* the pictures, for files beside the Markdown */
    json_t *charts;  /* what charts.js draws: one object for each group of pictures */
    struct weft_page_room *rooms;
} weft_page;

#define PRINTF(a, b) __attribute__((format(printf, a, b)))

/* Zeroed memory, and a text, that last as long as the page. NULL: no memory. */
void *weft_page_room(weft_page *p, size_t bytes);
char *weft_page_keep(weft_page *p, const char *format, ...) PRINTF(2, 3);

weft_status weft_page_open(weft_page *p, const char *title);
/* Writes folder/report.html, folder/report.md and its pictures, folder/report-1.svg and so on, making
 * the folder where it is missing. */
weft_status weft_page_write(weft_page *p, const char *folder, bool force);
/* An error where one of the two is there and no report of weft's, unless `force`. */
weft_status weft_page_vacant(const char *folder, bool force);
/* Writes the HTML alone, as a file of that name; as above, nothing but a page of weft's is written over unless `force`. */
weft_status weft_page_write_html(weft_page *p, const char *path, bool force);
void weft_page_free(weft_page *p);

/* The one plain sentence under a heading is what `about` is for; NULL: none. */
void weft_page_title(weft_page *p, int level, const char *text);
void weft_page_heading(weft_page *p, const char *text, const char *about);
/* A heading whose section is folded until the reader opens it. */
void weft_page_fold(weft_page *p, const char *text, const char *about);
/* A title within a section. */
void weft_page_subtitle(weft_page *p, const char *text);
/* What was written to `words` since the last call, to be used before the next is written. */
const char *weft_page_words(weft_page *p);
/* A paragraph; one of another kind: "facts", "question", "answer" (bold in Markdown), "caveat" or "about". */
#define weft_page_say(p, ...) weft_page_line(p, "", __VA_ARGS__)
void weft_page_line(weft_page *p, const char *kind, const char *format, ...) PRINTF(3, 4);

/* An item of a list that begins with a word that stands out, for the Markdown alone. */
void weft_page_item_md(weft_page *p, const char *word, const char *text);

/* A command, with a button that copies it. */
void weft_page_command(weft_page *p, const char *format, ...) PRINTF(2, 3);

/* A table: heads, of which the first are given with '|' between them, then cells, row by row. A head that begins
 * with '>' is of numbers, with '=' of words that stay on one line. */
void weft_page_table_open(weft_page *p, const char *heads);
void weft_page_head(weft_page *p, const char *format, ...) PRINTF(2, 3);
void weft_page_cell(weft_page *p, const char *format, ...) PRINTF(2, 3);
/* Several at once, as they are. */
#define weft_page_cells(p, ...) weft_page_cells_of(p, (const char *const[]){__VA_ARGS__, NULL})
void weft_page_cells_of(weft_page *p, const char *const *texts);

/* Pictures of one section, beside each other where there is room. `spec` is what charts.js draws in
 * their place where scripts run (the page takes it over); NULL: they stay as they are. */
void weft_page_pictures_open(weft_page *p, json_t *spec);
/* A picture for the HTML; where `svg` is NULL the caption follows what weft_error_message() says of it. */
void weft_page_picture(weft_page *p, const char *svg, const char *caption);
/* One for the Markdown, which shows it from a file. */
void weft_page_picture_md(weft_page *p, const char *svg, const char *caption);

/* Texts side by side, each with its title; what was given to the model stands out from what it wrote. */
void weft_page_text(weft_page *p, const char *title, const char *given, const char *text);

/* Text as it is, folded away. */
void weft_page_folded(weft_page *p, const char *summary, const char *text);

/* Data for a script, which finds it by this id: seven digits of a number. */
weft_status weft_page_put_json(weft_page *p, const char *id, const json_t *data);

/* Markup and text in turn; the text comes out as HTML shows it. */
#define weft_html(out, ...) weft_html_parts(out, (const char *const[]){__VA_ARGS__, NULL})
void weft_html_parts(FILE *out, const char *const *parts);
/* The text in JSON, without what HTML would show as a blank or U+FFFD. */
json_t *weft_page_json(const char *text);

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

/* Grids of heads by layers, and the histogram of the gates; behind weft_page_pictures_open. */
void weft_inside_put_heads(weft_page *p, const json_t *inside, int style);
/* A curve for each latent, of a few layers. */
void weft_inside_put_latents(weft_page *p, const json_t *inside);
