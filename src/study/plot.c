/* A plot as a gnuplot script, and gnuplot's answer made fit for a page.
 *
 * gnuplot is a process of its own: script on its standard input, SVG on its standard output, both
 * files, so that neither side waits for the other. Only numbers go into the script. Texts are
 * written as @0@, @1@, ... and put in afterwards, escaped, so that no name can be taken for a
 * command. In the answer ids get a prefix, since several pictures share a page; what was drawn in
 * the two colours INK and FAINT is marked by those words, which the page's style gives the reader's
 * colours; titles that would pop up under the mouse go.
 *
 * Each series is named at the right edge, beside its last point as far as its neighbours let it,
 * with its marker: nobody has to hunt through a legend. Ranges and ticks are chosen here, few
 * and short enough for a telephone. */
#include "study/plot.h"

#include "study/plot_process.h"
#include "study/report_page.h"

#include <ctype.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    WIDTH = 560,
    HEIGHT = 400,
    FONT = 17,
    LETTER = 9, /* pixels a letter of a label, about */
    LABEL_LETTERS = 13,
    LABEL_HEIGHT = 22,
    LEFT = 70,
    TOP = 40,
    BOTTOM = 62,
    TICKS = 5,
    MARKERS = 6 /* on a curve */
};

#define INK "#010203"
#define FAINT "#010204"

/* Okabe and Ito's colours, in an order that keeps neighbours apart; their black, which a dark page
 * would hide, is a grey here, and their yellow, which a light one would, is darker. */
static const char *const colours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                      "#E69F00", "#56B4E9", "#8A8A8A", "#C9B800"};
static const int markers[] = {7, 5, 9, 13, 11, 15, 4};
static const char *const dashes[] = {"1", "(14,4)", "(6,3)", "(14,4,3,4)", "(3,3)"};

#define COUNT(list) ((int)(sizeof(list) / sizeof(list)[0]))

static const char *colour_of(int style) {
    return colours[style % COUNT(colours)];
}

static int marker_of(int style) {
    return markers[style % COUNT(markers)];
}

static const char *dash_of(int style) {
    return dashes[style % COUNT(dashes)];
}

const char *weft_plot_short(double value, int digits, char room[32]) {
    static const char *const units[] = {"", "k", "M", "G", "T", "P"};
    int unit = 0;
    if (!isfinite(value)) return "";
    while (fabs(value) >= 999.5 && unit < COUNT(units) - 1) {
        value /= 1000;
        unit++;
    }
    /* Digits before the point are all written, whatever `digits` is: "120k", not "1.2e+02k". */
    int whole = fabs(value) >= 100 ? 3 : fabs(value) >= 10 ? 2 : 1;
    snprintf(room, 32, "%.*g%s", digits > whole ? digits : whole, value, units[unit]);
    return room;
}

typedef struct {
    double low, high;
} range;

static void take_in(range *r, double value) {
    if (!isfinite(value)) return;
    r->low = fmin(r->low, value);
    r->high = fmax(r->high, value);
}

/* A little room at both ends; a range of one number gets some around it. */
static void widen(range *r, double share) {
    double room = (r->high - r->low) * share;
    if (!(room > 1e-12 * fabs(r->high))) room = fmax(fabs(r->high) * 0.05, 1e-6);
    r->low -= room;
    r->high += room;
}

static void find_ranges(const weft_plot *p, range *x, range *y) {
    *x = *y = (range){NAN, NAN};
    for (int s = 0; s < p->n_series; s++) {
        for (int i = 0; i < p->series[s].n; i++) {
            weft_plot_point at = p->series[s].points[i];
            take_in(x, p->log_x ? log10(at.x) : at.x);
            take_in(y, at.y);
            take_in(y, at.low);
            take_in(y, at.high);
        }
    }
    if (p->top < y->high && p->top > y->low) y->high = p->top;
    bool curves = p->kind == WEFT_PLOT_CURVES;
    if (!curves || !(x->high > x->low)) widen(x, 0.08);
    widen(y, 0.06);
}

/* The step between ticks: 1, 2 or 5 times a power of ten, so that there are about TICKS of them. */
static double tick_step(range r) {
    double rough = (r.high - r.low) / TICKS, power = pow(10, floor(log10(rough)));
    double times = rough / power;
    return power * (times < 1.5 ? 1 : times < 3.5 ? 2 : times < 7.5 ? 5 : 10);
}

static void write_ticks(FILE *out, char axis, range r) {
    double step = tick_step(r), first = ceil(r.low / step);
    fprintf(out, "set %ctics (", axis);
    for (int n = 0; (first + n) * step <= r.high && n < 4 * TICKS; n++) {
        double value = (first + n) * step;
        char room[32];
        int digits = (int)fmin(ceil(log10(fmax(fabs(value) / step, 1)) + 1e-9), 16) + 1;
        if (fabs(value) >= 999.95)
            weft_plot_short(value, digits, room);
        else
            snprintf(room, sizeof room, "%.*f", (int)fmax(0, -floor(log10(step) + 1e-9)), value);
        fprintf(out, "%s'%s' %.12g", n ? "," : "", room, value);
    }
    fputs(")\n", out);
}

/* On a logarithmic axis, a tick at each place where there is a point. */
static void write_own_ticks(FILE *out, const weft_plot *p) {
    double seen[TICKS * 2];
    int n = 0;
    fputs("set xtics (", out);
    for (int s = 0; s < p->n_series; s++) {
        for (int i = 0; i < p->series[s].n && n < COUNT(seen); i++) {
            double x = log10(p->series[s].points[i].x);
            bool known = !isfinite(x);
            for (int k = 0; k < n && !known; k++)
                known = fabs(seen[k] - x) < 0.05;
            if (known) continue;
            fprintf(out, "%s'%g' %.12g", n ? "," : "", p->series[s].points[i].x, x);
            seen[n++] = x;
        }
    }
    fputs(")\n", out);
}

typedef struct {
    int series;
    double y; /* of the label, as a share of the plot's height */
} label_place;

static int by_height(const void *a, const void *b) {
    const label_place *left = a, *right = b;
    if (left->y != right->y) return left->y < right->y ? -1 : 1;
    return right->series - left->series; /* the first of equals is the higher */
}

/* Pushes labels apart from the bottom up, then back down from the top. */
static void spread_labels(label_place *places, int n, double gap) {
    if (n < 1) return;
    qsort(places, (size_t)n, sizeof *places, by_height);
    if (gap * n > 1.05) gap = 1.05 / n;
    places[0].y = fmax(places[0].y, 0);
    for (int i = 1; i < n; i++)
        places[i].y = fmax(places[i].y, places[i - 1].y + gap);
    places[n - 1].y = fmin(places[n - 1].y, 1);
    for (int i = n - 1; i-- > 0;)
        places[i].y = fmin(places[i].y, places[i + 1].y - gap);
}

static int letters(const char *text) {
    int n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n < LABEL_LETTERS ? n : LABEL_LETTERS;
}

static int plot_height(const weft_plot *p) {
    int needed = TOP + BOTTOM + LABEL_HEIGHT * p->n_series;
    return needed > HEIGHT ? needed : HEIGHT;
}

/* The number of the texts that are put in later: labels by series, then the two axes. */
static int text_x(const weft_plot *p) {
    return p->n_series;
}

static int text_y(const weft_plot *p) {
    return p->n_series + 1;
}

static weft_status write_labels(FILE *out, const weft_plot *p, range y) {
    label_place *places = calloc((size_t)p->n_series + 1, sizeof *places);
    if (!places) return weft_fail(WEFT_ENOMEM, "plot: no memory for its labels");
    int n = 0;
    for (int s = 0; s < p->n_series; s++) {
        const weft_plot_series *series = &p->series[s];
        if (!series->n) continue;
        double at = (series->points[series->n - 1].y - y.low) / (y.high - y.low);
        places[n++] = (label_place){s, fmin(fmax(at, 0), 1)};
    }
    spread_labels(places, n, (double)LABEL_HEIGHT / (plot_height(p) - TOP - BOTTOM));
    for (int i = 0; i < n; i++) {
        const weft_plot_series *series = &p->series[places[i].series];
        fprintf(out,
                "set label '@%d@' at graph 1.05, graph %.4f left point pt %d ps 1.1 lc rgb '%s' "
                "textcolor rgb '" INK "' offset 1.1,-0.3\n",
                places[i].series, places[i].y, marker_of(series->style), colour_of(series->style));
    }
    free(places);
    return WEFT_OK;
}

static void write_frame(FILE *out, const weft_plot *p, range x, range y) {
    int longest = 1, height = plot_height(p);
    for (int s = 0; s < p->n_series; s++)
        longest = letters(p->series[s].label) > longest ? letters(p->series[s].label) : longest;
    int right = 50 + LETTER * longest;
    fprintf(out, "set terminal svg size %d,%d dynamic noenhanced font 'sans-serif,%d'\n", WIDTH,
            height, FONT);
    fprintf(out,
            "set lmargin at screen %.4f\nset rmargin at screen %.4f\n"
            "set tmargin at screen %.4f\nset bmargin at screen %.4f\n",
            (double)LEFT / WIDTH, 1 - (double)right / WIDTH, 1 - (double)TOP / height,
            (double)BOTTOM / height);
    fputs("set encoding utf8\nunset key\nset border 3 linecolor rgb '" INK "'\n"
          "set tics nomirror out scale 0.5 textcolor rgb '" INK "'\n"
          "set xtics offset 0,0.35\n"
          "set grid linetype 1 linecolor rgb '" FAINT "' linewidth 0.7\n",
          out);
    fprintf(out, "set xrange [%.12g:%.12g]\nset yrange [%.12g:%.12g]\n", x.low, x.high, y.low,
            y.high);
    if (p->log_x)
        write_own_ticks(out, p);
    else
        write_ticks(out, 'x', x);
    write_ticks(out, 'y', y);
    fprintf(out, "set label '@%d@' at graph 0.5, screen %.4f center textcolor rgb '" INK "'\n",
            text_x(p), 14.0 / height);
    fprintf(out, "set label '@%d@' at screen 0.012, screen %.4f left textcolor rgb '" INK "'\n",
            text_y(p), 1 - 16.0 / height);
}

/* One block of data a series: x y low high. The front goes on to the right edge: whoever may spend
 * more gets no better than its last step. */
static void write_data(FILE *out, const weft_plot *p, range x) {
    for (int s = 0; s < p->n_series; s++) {
        fprintf(out, "$d%d << END\n", s);
        for (int i = 0; i < p->series[s].n; i++) {
            weft_plot_point at = p->series[s].points[i];
            bool band = isfinite(at.low) && isfinite(at.high);
            fprintf(out, "%.8g %.8g %.8g %.8g\n", p->log_x ? log10(at.x) : at.x, at.y,
                    band ? at.low : at.y, band ? at.high : at.y);
        }
        fputs("END\n", out);
    }
    if (!p->n_front) return;
    fputs("$front << END\n", out);
    for (int i = 0; i < p->n_front; i++)
        fprintf(out, "%.8g %.8g\n", p->front[i].x, p->front[i].y);
    fprintf(out, "%.8g %.8g\nEND\n", x.high, p->front[p->n_front - 1].y);
}

static void write_curve(FILE *out, const weft_plot_series *series, int s) {
    int every = series->n / MARKERS > 0 ? series->n / MARKERS : 1;
    fprintf(out,
            ", $d%d using 1:2 with linespoints linewidth %s dashtype %s linecolor rgb '%s' "
            "pointtype %d pointsize %s pointinterval %d",
            s, series->under ? "5" : "2", series->under ? "1" : dash_of(series->style),
            colour_of(series->style), marker_of(series->style), series->under ? "1.1" : "0.6",
            every);
}

static void write_marks(FILE *out, const weft_plot *p, const weft_plot_series *series, int s) {
    const char *colour = colour_of(series->style);
    if (p->kind == WEFT_PLOT_MEASURED)
        fprintf(out, ", $d%d using 1:2 with lines linewidth %s dashtype %s linecolor rgb '%s'", s,
                series->under ? "5" : "2", series->under ? "1" : dash_of(series->style), colour);
    fprintf(out,
            ", $d%d using 1:2:3:4 with yerrorbars linewidth %s linecolor rgb '%s' pointtype %d "
            "pointsize %s",
            s, series->under ? "4" : "1.6", colour, marker_of(series->style),
            series->under ? "2.2" : "1.3");
}

/* Bands under everything, then what is drawn under, then the rest. */
static void write_plot(FILE *out, const weft_plot *p) {
    fputs("plot NaN", out); /* so that every part can begin with a comma */
    for (int s = 0; s < p->n_series && p->kind == WEFT_PLOT_CURVES; s++)
        if (p->series[s].n > 1)
            fprintf(out,
                    ", $d%d using 1:3:4 with filledcurves fillcolor rgb '%s' fillstyle "
                    "transparent solid 0.16 noborder",
                    s, colour_of(p->series[s].style));
    if (p->n_front)
        fputs(", $front using 1:2 with steps linewidth 1.6 dashtype (5,4) linecolor rgb '" INK "'",
              out);
    for (int over = 0; over < 2; over++) {
        for (int s = 0; s < p->n_series; s++) {
            const weft_plot_series *series = &p->series[s];
            if (!series->n || series->under == (over == 1)) continue;
            if (p->kind == WEFT_PLOT_CURVES)
                write_curve(out, series, s);
            else
                write_marks(out, p, series, s);
        }
    }
    fputs("\n", out);
}

static weft_status write_script(FILE *out, const weft_plot *p) {
    range x, y;
    find_ranges(p, &x, &y);
    write_frame(out, p, x, y);
    WEFT_TRY(write_labels(out, p, y));
    write_data(out, p, x);
    write_plot(out, p);
    return WEFT_OK;
}

/* Where letter number n of a text begins. */
static const char *letter_at(const char *text, int n) {
    for (; *text; text++)
        if (((unsigned char)*text & 0xc0) != 0x80 && n-- == 0) break;
    return text;
}

/* A long label loses its middle: steps' names often begin alike. */
static void put_label(FILE *out, const char *text) {
    enum { TAIL = 5, HEAD = LABEL_LETTERS - TAIL - 1 };
    char head[HEAD * 4 + 4];
    int n = 0;
    for (const char *at = text; *at; at++)
        n += ((unsigned char)*at & 0xc0) != 0x80;
    if (n <= LABEL_LETTERS) {
        weft_page_escape_html(out, text);
        return;
    }
    int bytes = (int)(letter_at(text, HEAD) - text);
    snprintf(head, sizeof head, "%.*s\xe2\x80\xa6", bytes < HEAD * 4 ? bytes : HEAD * 4, text);
    weft_page_escape_html(out, head);
    weft_page_escape_html(out, letter_at(text, n - TAIL));
}

static void put_text(FILE *out, const weft_plot *p, int number) {
    if (number == text_x(p))
        weft_page_escape_html(out, p->x_label);
    else if (number == text_y(p))
        weft_page_escape_html(out, p->y_label);
    else if (number >= 0 && number < p->n_series)
        put_label(out, p->series[number].label);
}

/* "rgb( 1, 2, 3)" or "#010203" as the page is to have it; returns the bytes read, 0: no colour. */
static int take_colour(FILE *out, const char *at) {
    int r, g, b, n = 0;
    if (sscanf(at, "rgb(%d ,%d ,%d )%n", &r, &g, &b, &n) != 3 || n == 0) {
        unsigned hex;
        if (at[0] != '#' || sscanf(at + 1, "%6x%n", &hex, &n) != 1 || n != 6) return 0;
        n++;
        r = (int)(hex >> 16) & 255, g = (int)(hex >> 8) & 255, b = (int)hex & 255;
    }
    if (r == 1 && g == 2 && (b == 3 || b == 4))
        fputs(b == 3 ? "ink" : "faint", out);
    else
        fprintf(out, "#%02X%02X%02X", (unsigned)r & 255, (unsigned)g & 255, (unsigned)b & 255);
    return n;
}

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

/* One piece of gnuplot's SVG to the page; returns the bytes read. */
static int take_piece(FILE *out, const char *at, const weft_plot *p, int id) {
    static const char *const names[] = {" id='", " id=\"", "href='#", "href=\"#", "url(#"};
    static const char *const dropped[][2] = {{"<title>", "</title>"}, {"<desc>", "</desc>"}};
    for (int i = 0; i < COUNT(dropped); i++) {
        const char *end = begins(at, dropped[i][0]) ? strstr(at, dropped[i][1]) : NULL;
        if (end) return (int)(end - at) + (int)strlen(dropped[i][1]);
    }
    if (begins(at, "xlink:href")) return 6;
    for (int i = 0; i < COUNT(names); i++) {
        if (!begins(at, names[i])) continue;
        fprintf(out, "%sp%d-", names[i], id);
        return (int)strlen(names[i]);
    }
    int number, n = 0;
    if (*at == '@' && sscanf(at, "@%d@%n", &number, &n) == 1 && n > 0) {
        put_text(out, p, number);
        return n;
    }
    n = begins(at, "rgb(") || *at == '#' ? take_colour(out, at) : 0;
    if (n) return n;
    fputc(*at, out);
    return 1;
}

/* From the first element on, under a head of our own: inside a page no namespace is needed. */
static weft_status adapt_svg(const char *drawn, const weft_plot *p, int id, char **svg) {
    const char *at = strstr(drawn, "<svg"), *end = at ? strstr(at, "</svg>") : NULL;
    at = at ? strchr(at, '>') : NULL;
    if (!at || !end || at > end)
        return weft_fail(WEFT_EIO, "gnuplot drew nothing; see that 'gnuplot --version' works");
    size_t size;
    FILE *out = open_memstream(svg, &size);
    if (!out) return weft_fail(WEFT_ENOMEM, "plot: no memory for it");
    fprintf(out, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH, plot_height(p));
    weft_page_escape_html(out, p->title);
    fputs("\">\n", out);
    for (at++; at < end;)
        at += take_piece(out, at, p, id);
    fputs("</svg>\n", out);
    bool bad = ferror(out) != 0;
    if (fclose(out) == 0 && !bad) return WEFT_OK;
    free(*svg);
    *svg = NULL;
    return weft_fail(WEFT_ENOMEM, "plot: no memory for it");
}

weft_status weft_plot_svg(const weft_plot *plot, int id, char **svg) {
    *svg = NULL;
    int n = 0;
    for (int s = 0; s < plot->n_series; s++)
        n += plot->series[s].n;
    if (n == 0) return weft_fail(WEFT_EINPUT, "nothing to draw yet");
    char *script = NULL, *drawn = NULL;
    size_t size;
    FILE *out = open_memstream(&script, &size);
    if (!out) return weft_fail(WEFT_ENOMEM, "plot: no memory for its script");
    weft_status status = write_script(out, plot);
    if (fclose(out) != 0 && status == WEFT_OK)
        status = weft_fail(WEFT_ENOMEM, "plot: no memory for its script");
    if (status == WEFT_OK) status = weft_gnuplot(script, &drawn);
    if (status == WEFT_OK) status = adapt_svg(drawn, plot, id, svg);
    free(script);
    free(drawn);
    return status;
}
