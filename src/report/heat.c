/* Squares in a grid with their rows' and columns' numbers beside them, as SVG. */
#include "report/heat.h"

#include "report/page.h"
#include "report/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SIDE = 26, LEFT = 62, TOP = 44, RIGHT = 12, BOTTOM = 10, FONT = 13, LABELS_MOST = 24 };

/* Numbers stand beside every square, or where they are many beside each second, third, ... */
static int label_step(int count) {
    return 1 + (count - 1) / LABELS_MOST;
}

static void put_text(FILE *out, double x, double y, const char *anchor, const char *text) {
    fprintf(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\" font-size=\"%d\" fill=\"ink\">", x,
            y, anchor, FONT);
    weft_page_escape_html(out, text);
    fputs("</text>\n", out);
}

static void put_labels(FILE *out, const weft_heat *h) {
    char number[16];
    put_text(out, LEFT, 16, "start", h->column_label);
    put_text(out, LEFT - 8, TOP - 8, "end", h->row_label);
    for (int i = 0; i < h->columns; i += label_step(h->columns)) {
        snprintf(number, sizeof number, "%d", h->column_first + i);
        put_text(out, LEFT + SIDE * (i + 0.5), TOP - 8, "middle", number);
    }
    for (int i = 0; i < h->rows; i += label_step(h->rows)) {
        snprintf(number, sizeof number, "%d", h->row_first + i);
        put_text(out, LEFT - 8, TOP + SIDE * (i + 0.65), "end", number);
    }
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
            fmin(fmax(shade, 0.02), 1), h->row_first + row, h->column_first + column, value);
}

char *weft_heat_svg(const weft_heat *h) {
    char *svg = NULL;
    size_t size;
    FILE *out = open_memstream(&svg, &size);
    if (!out) return NULL;
    int width = LEFT + SIDE * h->columns + RIGHT;
    fprintf(out, "<svg viewBox=\"0 0 %d %d\" style=\"max-width:%dpx\" role=\"img\" aria-label=\"",
            width, TOP + SIDE * h->rows + BOTTOM, width);
    weft_page_escape_html(out, h->title);
    fputs("\">\n", out);
    put_labels(out, h);
    for (int row = 0; row < h->rows; row++)
        for (int column = 0; column < h->columns; column++)
            put_square(out, h, row, column);
    fputs("</svg>\n", out);
    if (fclose(out) == 0) return svg;
    free(svg);
    return NULL;
}
