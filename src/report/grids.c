/* Grids of squares as SVG: numbers by rows and columns, and what a head looks at, tokens by tokens: a row for each
 * token that looks, darker where it looks more. */
#include "base/text.h"
#include "report/page.h"
#include "report/plot.h"

#include <math.h>
#include <stdlib.h>

enum { SIDE = 26, LEFT = 62, TOP = 44, RIGHT = 12, BOTTOM = 10, FONT = 13, LABELS_MOST = 24 };
enum { SHADES = 6, SIGMA_HEIGHT = 14 };

/* Numbers stand beside every square, or where they are many beside each second, third, ... */
static int label_step(int count) {
    return 1 + (count - 1) / LABELS_MOST;
}

static void put_square(FILE *out, const weft_heat *h, int row, int column) {
    double value = h->values[row * h->columns + column];
    if (!isfinite(value)) return;
    double shade = h->high > h->low ? (value - h->low) / (h->high - h->low) : 0;
    fprintf(out,
            "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\" "
            "fill-opacity=\"%.3f\" stroke=\"faint\" stroke-width=\"0.5\"><title>%d, %d: %.4g"
            "</title></rect>\n",
            LEFT + SIDE * column, TOP + SIDE * row, SIDE - 1, SIDE - 1, weft_plot_colour(h->style),
            fmin(fmax(shade, 0.02), 1), 1 + row, h->column_first + column, value);
}

char *weft_heat_svg(const weft_heat *h) {
    char *svg = NULL;
    size_t size;
    FILE *out = open_memstream(&svg, &size);
    if (!out) return NULL;
    int width = LEFT + SIDE * h->columns + RIGHT;
    fprintf(out,
            "<svg viewBox=\"0 0 %d %d\" style=\"max-width:%dpx\" font-size=\"%d\" role=\"img\" "
            "aria-label=\"",
            width, TOP + SIDE * h->rows + BOTTOM, width, FONT);
    weft_page_escape_html(out, h->title);
    fputs("\">\n", out);
    char number[16];
    weft_svg_text(out, LEFT, 16, "start", h->column_label);
    weft_svg_text(out, LEFT - 8, TOP - 8, "end", h->row_label);
    for (int i = 0; i < h->columns; i += label_step(h->columns)) {
        snprintf(number, sizeof number, "%d", h->column_first + i);
        weft_svg_text(out, LEFT + SIDE * (i + 0.5), TOP - 8, "middle", number);
    }
    for (int i = 0; i < h->rows; i += label_step(h->rows)) {
        snprintf(number, sizeof number, "%d", 1 + i);
        weft_svg_text(out, LEFT - 8, TOP + SIDE * (i + 0.65), "end", number);
    }
    for (int row = 0; row < h->rows; row++)
        for (int column = 0; column < h->columns; column++)
            put_square(out, h, row, column);
    fputs("</svg>\n", out);
    return weft_memory_end(out, &svg);
}

static int percent_of(const json_t *row, size_t j) {
    double value = json_number_value(json_array_get(row, j));
    return value >= 0 && value <= 100 ? (int)value : 0;
}

/* Weights of one shade as one path of unit squares, row by row. */
static void put_shade(FILE *out, const json_t *rows, size_t time, int shade, const char *colour) {
    int low = 100 * shade / SHADES, high = 100 * (shade + 1) / SHADES;
    bool open = false;
    for (size_t i = 0; i < time; i++) {
        const json_t *row = json_array_get(rows, i);
        for (size_t j = 0; j < time; j++) {
            int percent = (int)(100 * sqrt(percent_of(row, j) / 100.0)); /* faint ones show, too */
            if (percent <= low || percent > high) continue;
            if (!open)
                fprintf(out, "<path fill=\"%s\" fill-opacity=\"%.2f\" d=\"", colour,
                        (shade + 1) / (double)SHADES);
            open = true;
            fprintf(out, "M%zu %zuh1v1h-1z", j, i);
        }
    }
    if (open) fputs("\"/>\n", out);
}

/* A bar for each token under the map, from 0 to the largest. */
static void put_sigma(FILE *out, const json_t *sigma, size_t time, const char *colour) {
    double most = 0;
    for (size_t i = 0; i < time; i++)
        most = fmax(most, json_number_value(json_array_get(sigma, i)));
    if (!(most > 0)) return;
    fprintf(out, "<path fill=\"%s\" d=\"", colour);
    for (size_t i = 0; i < time; i++) {
        double value = fmax(json_number_value(json_array_get(sigma, i)), 0);
        double height = (SIGMA_HEIGHT - 3) * value / most;
        fprintf(out, "M%.1f %zuv-%.2fh0.8v%.2fz", (double)i + 0.1, time + SIGMA_HEIGHT, height,
                height);
    }
    fputs("\"/>\n", out);
}

char *weft_attention_picture(const json_t *rows, const json_t *sigma, size_t time, int style,
                             const char *title) {
    char *svg = NULL;
    size_t size;
    FILE *out = open_memstream(&svg, &size);
    if (!out) return NULL;
    const char *colour = weft_plot_colour(style);
    fprintf(out, "<svg viewBox=\"-1 -1 %zu %zu\" role=\"img\" aria-label=\"", time + 2,
            time + 2 + (sigma ? SIGMA_HEIGHT : 0));
    weft_page_escape_html(out, title);
    fprintf(
        out,
        "\">\n<rect x=\"0\" y=\"0\" width=\"%zu\" height=\"%zu\" fill=\"none\" stroke=\"faint\" "
        "stroke-width=\"0.3\"/>\n",
        time, time);
    for (int shade = 0; shade < SHADES; shade++)
        put_shade(out, rows, time, shade, colour);
    if (sigma) put_sigma(out, sigma, time, colour);
    fputs("</svg>\n", out);
    return weft_memory_end(out, &svg);
}
