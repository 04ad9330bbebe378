/* A plot as SVG, written here and now: a picture is some hundred numbers and needs no other program.
 *
 * What is drawn in the words `ink` and `faint` for colours gets the reader's own from the page's style.
 * Each series is named at the right edge, beside its last point as far as its neighbours let it, with
 * its marker: nobody has to hunt through a legend. Texts pass the page's escape. */

#include "base/json.h"
#include "base/order.h"
#include "base/text.h"
#include "report/page.h"

enum { WIDTH = 640, HEIGHT = 360, TOP = 34, BOTTOM = 50, FONT = 14 };
enum { LETTER = 8 /* pixels a letter, about */, LABEL_LETTERS = 24, LABEL_HEIGHT = 19 };
enum { TAIL = 8, HEAD = LABEL_LETTERS - TAIL - 1 }; /* letters of a label that is cut */
enum { TICKS = 7, MARKERS = 6 /* on a curve */ };
enum { SERIES_MOST = 256 }; /* as many as a study has variants */

/* Okabe and Ito's colours, in an order that keeps neighbours apart; their black, which a dark page
 * would hide, is a grey here, and their yellow, which a light one would, is darker. */
static const char *const colours[] = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                      "#E69F00", "#56B4E9", "#8A8A8A", "#B5A500"};
static const char *const dashes[] = {"", "9 4", "4 3", "9 4 2 4", "2 3"};

const char *weft_plot_colour(int style) {
    return colours[style % WEFT_COUNT(colours)];
}

/* Axes: round numbers, and how to write them. The minus is the typographer's, as wide as a plus. */
#define MINUS "\xe2\x88\x92"

static const char *const units[] = {"", "k", "M", "G", "T", "P", "E", "Z", "Y"};

static void put_number(char *text, const char *form, int decimals, double value, const char *unit) {
    char plain[WEFT_TICK_ROOM];
    snprintf(plain, sizeof plain, form, decimals, value);
    bool negative = *plain == '-';
    snprintf(text, WEFT_TICK_ROOM, "%s%.*s%s", negative ? MINUS : "", WEFT_TICK_ROOM - 6,
             plain + negative, unit);
}

void weft_axis_ticks(double low, double high, int most, weft_ticks *out) {
    out->n = 0;
    if (!(high > low) || !isfinite(high - low) || most < 1) return;
    if (most > WEFT_TICKS_MOST - 1) most = WEFT_TICKS_MOST - 1;
    /* The smallest of 1, 2, 5 and 10 times a power of ten that fits at most `most` times. */
    static const int times[] = {1, 2, 5, 10};
    double power = pow(10, floor(log10((high - low) / most)));
    int k = 0;
    while (k < 3 && (high - low) / (power * times[k]) > most)
        k++;
    double step = power * times[k], first = ceil(low / step - 1e-9);
    if (!(step > 0) || !isfinite(step) || fabs(first) > 1e12) return;
    for (int i = 0; i <= most && out->n < WEFT_TICKS_MOST; i++) {
        double at = (first + i) * step;
        if (at > high + step * 1e-9) break;
        out->at[out->n++] = fabs(at) < step * 1e-9 ? 0 : at;
    }
    double largest = 0, scale = 1;
    int unit = 0;
    for (int i = 0; i < out->n; i++)
        largest = fmax(largest, fabs(out->at[i]));
    for (; largest >= 1e4 && largest / scale >= 1000 && unit < WEFT_COUNT(units) - 1; unit++)
        scale *= 1000;
    int decimals = 0; /* that a step needs to be written whole */
    for (double s = step / scale; decimals < 8 && fabs(round(s) - s) > 1e-6 * s; decimals++)
        s *= 10;
    for (int i = 0; i < out->n; i++) {
        if (out->at[i] == 0)
            snprintf(out->text[i], sizeof out->text[i], "0");
        else if (step / scale < 1e-6)
            put_number(out->text[i], "%.*e", 1, out->at[i], "");
        else
            put_number(out->text[i], "%.*f", decimals, out->at[i] / scale, units[unit]);
    }
}

/* Powers of ten times some numbers, the most of them that fit; where powers alone are too many, every second, third, ... */
void weft_axis_log_ticks(double low, double high, int most, weft_ticks *out) {
    static const int times[][3] = {{1, 2, 5}, {1, 3, 0}, {1, 0, 0}, {1, 0, 0}};
    out->n = 0;
    if (!(low > 0) || !(high > low) || !isfinite(high) || most < 2) return;
    if (most > WEFT_TICKS_MOST) most = WEFT_TICKS_MOST;
    int from = (int)floor(log10(low)), to = (int)ceil(log10(high));
    for (int way = 0; way < 4 && (out->n < 2 || out->n > most); way++) {
        int every = way < 3 ? 1 : (int)ceil((double)(to - from) / most);
        if (way == 3 && to - from < 2) {
            weft_axis_ticks(low, high, most, out);
            return;
        }
        out->n = 0;
        for (int i = 0; from + i / 3 * every <= to; i++) {
            double at = times[way][i % 3] * pow(10, from + i / 3 * every);
            if (at < low * (1 - 1e-9) || at > high * (1 + 1e-9)) continue;
            if (out->n < WEFT_TICKS_MOST) out->at[out->n] = at;
            out->n++;
        }
    }
    if (out->n > WEFT_TICKS_MOST) out->n = WEFT_TICKS_MOST;
    for (int i = 0; i < out->n; i++) { /* 3k, 0.002: each number by itself */
        double value = out->at[i];
        int unit = 0;
        for (; out->at[i] >= 1e4 && value >= 999.5 && unit < WEFT_COUNT(units) - 1; unit++)
            value /= 1000;
        put_number(out->text[i], "%.*g", 4, value, units[unit]);
    }
}

weft_scale weft_axis_scale(weft_unit unit, double most) {
    static const weft_scale scales[][5] = {
        [WEFT_UNIT_COUNT] = {{1, ""}},
        [WEFT_UNIT_SECONDS] = {{1, "s"}, {60, "min"}, {3600, "h"}, {86400, "days"}},
        [WEFT_UNIT_BYTES] = {{1, "bytes"},
                             {1024, "KiB"},
                             {1048576, "MiB"},
                             {1073741824, "GiB"},
                             {1099511627776, "TiB"}}};
    const weft_scale *list = scales[unit];
    int chosen = 0;
    for (int i = 1; i < 5 && list[i].name; i++)
        if (most >= (unit == WEFT_UNIT_SECONDS ? 2 : 1) * list[i].by) chosen = i;
    return list[chosen];
}

const char *weft_plot_short(double value, int digits, char room[32]) {
    int unit = 0;
    if (!isfinite(value)) return "";
    while (fabs(value) >= 999.5 && unit < 5) { /* up to P: an E would read as a power of ten */
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

/* What is drawn on: the numbers' ranges, and the pixels they fall on. */
typedef struct {
    const weft_plot *plot;
    FILE *out;
    range x, y;
    weft_scale x_scale;
    weft_ticks x_ticks, y_ticks;
    double left, right, height; /* of the area, and of the picture */
} canvas;

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

/* Letters of a text, not bytes; at most those of a label. */
static int letters(const char *text) {
    return weft_utf8_count(text, strlen(text));
}

static void find_ticks(canvas *c) {
    const weft_plot *p = c->plot;
    int longest = 3, label = 1;
    for (int s = 0; s < p->n_series; s++)
        if (p->series[s].n) label = (int)fmax(label, letters(p->series[s].label));
    weft_axis_ticks(c->y.low, c->y.high, TICKS, &c->y_ticks);
    for (int i = 0; i < c->y_ticks.n; i++)
        longest = (int)fmax(longest, letters(c->y_ticks.text[i]));
    c->left = 16 + LETTER * longest;
    c->right = WIDTH - 34 - LETTER * (label < LABEL_LETTERS ? label : LABEL_LETTERS);
    int most = (int)((c->right - c->left) / 70);
    c->x_scale = weft_axis_scale(p->log_x ? WEFT_UNIT_COUNT : p->x_unit, c->x.high);
    double by = c->x_scale.by;
    if (p->log_x)
        weft_axis_log_ticks(pow(10, c->x.low), pow(10, c->x.high), most, &c->x_ticks);
    else
        weft_axis_ticks(c->x.low / by, c->x.high / by, most, &c->x_ticks);
    for (int i = 0; i < c->x_ticks.n; i++)
        c->x_ticks.at[i] *= by;
}

/* Far outside is as good as just outside, and keeps the numbers short. */
static double clamp(double value) {
    return fmin(fmax(value, -2000), 4000);
}

static double x_of(const canvas *c, double x) {
    double at = c->plot->log_x ? log10(x) : x;
    return clamp(c->left + (at - c->x.low) / (c->x.high - c->x.low) * (c->right - c->left));
}

static double y_of(const canvas *c, double y) {
    double share = (y - c->y.low) / (c->y.high - c->y.low);
    return clamp(c->height - BOTTOM - share * (c->height - TOP - BOTTOM));
}

void weft_svg_text(FILE *out, double x, double y, const char *anchor, const char *text) {
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" fill=\"ink\">", x, y, anchor);
    weft_html(out, "", text, "</text>\n");
}

void weft_svg_line(FILE *out, double x1, double y1, double x2, double y2, const char *stroke,
                   double width) {
    fprintf(out,
            "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\" "
            "stroke-width=\"%.1f\"/>\n",
            x1, y1, x2, y2, stroke, width);
}

static void put_marker(const canvas *c, int style, double x, double y, double size) {
    static const double shapes[][8] = {{-1, -1, 1, -1, 1, 1, -1, 1},
                                       {0, -1.3, 1.2, 1, -1.2, 1, 0, -1.3},
                                       {0, -1.4, 1.4, 0, 0, 1.4, -1.4, 0},
                                       {0, 1.3, 1.2, -1, -1.2, -1, 0, 1.3},
                                       {-1.2, -0.6, 1.2, -0.6, 1.2, 0.6, -1.2, 0.6}};
    int kind = style % 7;
    const char *colour = weft_plot_colour(style);
    if (kind == 0 || kind == 6) {
        fprintf(c->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"%s\" stroke=\"%s\"/>\n",
                x, y, size, kind ? "none" : colour, colour);
        return;
    }
    const double *shape = shapes[kind - 1];
    fprintf(c->out, "<path fill=\"%s\" d=\"", colour);
    for (int i = 0; i < 4; i++)
        fprintf(c->out, "%c%.1f %.1f", i ? 'L' : 'M', x + size * shape[2 * i],
                y + size * shape[2 * i + 1]);
    fputs("Z\"/>\n", c->out);
}

static void put_frame(const canvas *c) {
    const weft_plot *p = c->plot;
    double floor_y = c->height - BOTTOM;
    char name[256];
    for (int i = 0; i < c->y_ticks.n; i++) {
        double y = y_of(c, c->y_ticks.at[i]);
        weft_svg_line(c->out, c->left, y, c->right, y, "faint", 0.7);
        weft_svg_text(c->out, c->left - 7, y + 5, "end", c->y_ticks.text[i]);
    }
    for (int i = 0; i < c->x_ticks.n; i++) {
        double x = x_of(c, c->x_ticks.at[i]);
        weft_svg_line(c->out, x, floor_y, x, floor_y + 5, "ink", 1);
        weft_svg_text(c->out, x, floor_y + 20, "middle", c->x_ticks.text[i]);
    }
    weft_svg_line(c->out, c->left, floor_y, c->right, floor_y, "ink", 1);
    if (p->zero) weft_svg_line(c->out, c->left, y_of(c, 0), c->right, y_of(c, 0), "ink", 1.4);
    snprintf(name, sizeof name, *c->x_scale.name ? "%.150s (%s)" : "%.150s", p->x_label,
             c->x_scale.name);
    weft_svg_text(c->out, (c->left + c->right) / 2, c->height - 8, "middle", name);
    snprintf(name, sizeof name, p->y_unit ? "%.150s (%s)" : "%.150s", p->y_label,
             p->y_unit ? p->y_unit : "");
    weft_svg_text(c->out, 4, 18, "start", name);
}

static void put_band(const canvas *c, const weft_plot_series *s) {
    if (s->n < 2) return;
    fprintf(c->out, "<path fill=\"%s\" fill-opacity=\"0.14\" d=\"", weft_plot_colour(s->style));
    for (int i = 0; i < 2 * s->n; i++) {
        weft_plot_point at = s->points[i < s->n ? i : 2 * s->n - 1 - i];
        double edge = i < s->n ? at.high : at.low;
        fprintf(c->out, "%c%.1f %.1f", i ? 'L' : 'M', x_of(c, at.x),
                y_of(c, isfinite(edge) ? edge : at.y));
    }
    fputs("Z\"/>\n", c->out);
}

static void put_curve(const canvas *c, const weft_plot_series *s, const weft_plot_point *points,
                      int n) {
    const char *dash = dashes[s->style % WEFT_COUNT(dashes)];
    fprintf(c->out, "<path fill=\"none\" stroke=\"%s\" stroke-width=\"2\"",
            weft_plot_colour(s->style));
    if (*dash) fprintf(c->out, " stroke-dasharray=\"%s\"", dash);
    fputs(" d=\"", c->out);
    for (int i = 0; i < n; i++)
        fprintf(c->out, "%c%.1f %.1f", i ? 'L' : 'M', x_of(c, points[i].x), y_of(c, points[i].y));
    fputs("\"/>\n", c->out);
}

static void put_series(const canvas *c, const weft_plot_series *s) {
    bool curve = c->plot->kind == WEFT_PLOT_CURVES;
    int every = curve && s->n / MARKERS > 0 ? s->n / MARKERS : 1;
    double size = (curve ? 3 : 5) * (s->size > 0 ? s->size : 1);
    if (c->plot->kind != WEFT_PLOT_POINTS) put_curve(c, s, s->points, s->n);
    if (s->n_fit) {
        put_curve(c, s, s->fit, s->n_fit);
        fprintf(c->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"9\" fill=\"none\" stroke=\"%s\"/>\n",
                x_of(c, s->least.x), y_of(c, s->least.y), weft_plot_colour(s->style));
    }
    for (int i = 0; i < s->n; i++) {
        weft_plot_point at = s->points[i];
        double x = x_of(c, at.x);
        if (!curve && isfinite(at.low) && isfinite(at.high))
            weft_svg_line(c->out, x, y_of(c, at.low), x, y_of(c, at.high),
                          weft_plot_colour(s->style), 1.8);
        if (i % every == every / 2) put_marker(c, s->style, x, y_of(c, at.y), size);
    }
}

typedef struct {
    int series;
    double y; /* of the label, in pixels from the bottom of the area */
} label_place;

static int by_height(const void *a, const void *b) {
    const label_place *left = a, *right = b;
    int order = weft_order(left->y, right->y);
    return order ? order : right->series - left->series; /* the first of equals is the higher */
}

/* Where letter number n of a text begins. */
static const char *letter_at(const char *text, int n) {
    for (; *text; text++)
        if (((unsigned char)*text & 0xc0) != 0x80 && n-- == 0) break;
    return text;
}

static void put_labels(const canvas *c) {
    const weft_plot *p = c->plot;
    label_place places[SERIES_MOST];
    double room = c->height - TOP - BOTTOM;
    int n = 0;
    for (int s = 0; s < p->n_series && n < SERIES_MOST; s++) {
        const weft_plot_series *series = &p->series[s];
        if (!series->n) continue;
        double at = c->height - BOTTOM - y_of(c, series->points[series->n - 1].y);
        places[n++] = (label_place){s, fmin(fmax(at, 0), room)};
    }
    /* Pushes labels apart from the bottom up, then back down from the top. */
    double gap = LABEL_HEIGHT;
    if (n >= 1) {
        qsort(places, (size_t)n, sizeof *places, by_height);
        if (gap * n > room) gap = room / n;
        for (int i = 1; i < n; i++)
            places[i].y = fmax(places[i].y, places[i - 1].y + gap);
        places[n - 1].y = fmin(places[n - 1].y, room);
        for (int i = n - 1; i-- > 0;)
            places[i].y = fmin(places[i].y, places[i + 1].y - gap);
    }
    for (int i = 0; i < n; i++) {
        const weft_plot_series *series = &p->series[places[i].series];
        char label[LABEL_LETTERS * 4 + 8];
        double y = c->height - BOTTOM - places[i].y;
        const char *text = series->label;
        int all = letters(text);
        if (all <= LABEL_LETTERS)
            snprintf(label, sizeof label, "%s", text);
        else /* a long label loses its middle: variants' names often begin alike */
            snprintf(label, sizeof label, "%.*s\xe2\x80\xa6%s", (int)(letter_at(text, HEAD) - text),
                     text, letter_at(text, all - TAIL));
        put_marker(c, series->style, c->right + 14, y, 4);
        weft_svg_text(c->out, c->right + 24, y + 5, "start", label);
    }
}

int weft_plot_count(const weft_plot *plot) {
    int n = 0;
    for (int s = 0; s < plot->n_series; s++)
        n += plot->series[s].n;
    return n;
}

weft_status weft_plot_svg(const weft_plot *p, int id, FILE *out) {
    if (weft_plot_count(p) == 0) return WEFT_BAD_INPUT("nothing to draw yet");
    canvas on = {.plot = p, .out = out}, *c = &on;
    int needed = TOP + BOTTOM + LABEL_HEIGHT * p->n_series;
    c->height = needed > HEIGHT ? needed : HEIGHT;
    c->x = c->y = (range){NAN, NAN};
    for (int s = 0; s < p->n_series; s++) {
        for (int i = 0; i < p->series[s].n; i++) {
            weft_plot_point at = p->series[s].points[i];
            take_in(&c->x, p->log_x ? log10(at.x) : at.x);
            take_in(&c->y, at.y);
            take_in(&c->y, at.low);
            take_in(&c->y, at.high);
        }
        for (int i = 0; i < p->series[s].n_fit; i++)
            take_in(&c->y, p->series[s].fit[i].y);
    }
    if (p->top < c->y.high && p->top > c->y.low) c->y.high = p->top;
    if (p->zero) take_in(&c->y, 0);
    if (p->kind == WEFT_PLOT_CURVES && !p->log_x) take_in(&c->x, 0);
    if (p->kind != WEFT_PLOT_CURVES || !(c->x.high > c->x.low)) widen(&c->x, 0.08);
    widen(&c->y, 0.06);
    find_ticks(c);
    fprintf(c->out,
            "<svg viewBox=\"0 0 %d %.0f\" font-family=\"system-ui,sans-serif\" font-size=\"%d\" "
            "role=\"img\" aria-label=\"",
            WIDTH, c->height, FONT);
    weft_html(c->out, "", p->title);
    fprintf(c->out,
            "\">\n<clipPath id=\"area%d\"><rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" "
            "height=\"%.1f\"/></clipPath>\n",
            id, c->left - 6, TOP - 8, c->right - c->left + 12, c->height - TOP - BOTTOM + 14);
    put_frame(c);
    fprintf(c->out, "<g clip-path=\"url(#area%d)\">\n", id);
    for (int s = 0; s < p->n_series && p->kind == WEFT_PLOT_CURVES; s++)
        put_band(c, &p->series[s]);
    /* The front goes on to the right edge: whoever may spend more gets no better than its last step. */
    for (int i = 0; i < p->n_front; i++) {
        double x = x_of(c, p->front[i].x), y = y_of(c, p->front[i].y);
        fprintf(out,
                i ? "H%.1fV%.1f"
                  : "<path fill=\"none\" stroke=\"ink\" stroke-width=\"1.4\" "
                    "stroke-dasharray=\"5 4\" d=\"M%.1f %.1f",
                x, y);
    }
    if (p->n_front) fprintf(out, "H%.1f\"/>\n", c->right);
    for (int s = 0; s < p->n_series; s++)
        if (p->series[s].n) put_series(c, &p->series[s]);
    fputs("</g>\n", c->out);
    put_labels(c);
    fputs("</svg>\n", c->out);
    return WEFT_OK;
}

static json_t *point_json(weft_plot_point at) {
    return weft_json_make("x:f y:f low:f* high:f*", at.x, at.y, at.low, at.high);
}

static json_t *points_json(const weft_plot_point *points, int n) {
    WEFT_JSON_LIST(list, i, n, point_json(points[i]));
    return list;
}

json_t *weft_plot_json(const weft_plot *p) {
    static const char *const kinds[] = {"count", "seconds", "bytes"};
    WEFT_AUTO_DECREF json_t *sets = json_array();
    WEFT_AUTO_DECREF WEFT_JSON_LIST(front, i, p->n_front,
                                    json_pack("[f, f]", p->front[i].x, p->front[i].y));
    json_t *chart =
        weft_json_make("title:o label:o difference:b higher:b", weft_page_json(p->title),
                       weft_page_json(p->y_label), p->zero, p->rises);
    for (int s = 0; s < p->n_series; s++) {
        const weft_plot_series *one = &p->series[s];
        if (one->n && !p->lines)
            weft_json_append(sets, "series:i at:o join:b fit:o* least:o* size:f*", s,
                             points_json(one->points, one->n), p->kind == WEFT_PLOT_MEASURED,
                             one->n_fit ? points_json(one->fit, one->n_fit) : NULL,
                             one->n_fit ? point_json(one->least) : NULL,
                             one->size > 0 ? one->size : NAN);
    }
    if (p->lines)
        json_object_set(chart, "lines", p->lines);
    else
        weft_json_add(chart, "x:o points:O front:O log:b",
                      weft_json_make("label:s unit:s", p->x_label, kinds[p->x_unit]), sets, front,
                      p->log_x);
    return weft_json_add(chart, "unit:s* note:o*", p->y_unit,
                         p->note ? weft_page_json(p->note) : NULL);
}
