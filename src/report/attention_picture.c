/* A square of tokens by tokens as SVG: a row for each token that looks, darker where it looks more. */
#include "report/attention_picture.h"

#include "report/page.h"
#include "report/plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SHADES = 6, SIGMA_HEIGHT = 14 };

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
    if (fclose(out) == 0) return svg;
    free(svg);
    return NULL;
}
