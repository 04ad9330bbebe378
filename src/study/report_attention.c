/* What attention looks at: for each step, the weights of a few heads over the text that its first seed
 * wrote, and with W2 attention the deviation of each token, where the runs' folders hold them
 * (attention.json, see train/attention_map.h). The file is read as any by others: sizes and numbers
 * beyond what weft writes are not drawn. */
#include "study/report_sections.h"

#include "core/json.h"
#include "study/plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MOST = 1 << 20, TOKENS_MOST = 64, MAPS_MOST = 8, SHADES = 6, SIGMA_HEIGHT = 14 };

static json_t *read_map(const char *folder, const weft_report_run *run) {
    char path[WEFT_PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s/attention.json", folder, run->folder);
    return n < WEFT_PATH_MAX ? weft_json_file(path, FILE_MOST) : NULL;
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

/* One head: a square of tokens by tokens, a row for each token that looks. */
static char *draw_head(const json_t *rows, const json_t *sigma, size_t time, int style,
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

static void put_step(weft_page *p, const weft_report_data *d, int step, const json_t *map) {
    size_t time = json_array_size(json_object_get(map, "tokens")), l, h;
    json_t *layer, *rows;
    int drawn = 0;
    if (time < 2 || time > TOKENS_MOST) return;
    weft_page_subtitle(p, weft_step_label(d, step));
    weft_page_pictures_open(p, NULL);
    json_array_foreach(json_object_get(map, "layers"), l, layer) {
        json_array_foreach(json_object_get(layer, "heads"), h, rows) {
            char title[400], place[120];
            json_t *sigma = json_array_get(json_object_get(layer, "sigma"), h);
            if (drawn++ == MAPS_MOST) break;
            snprintf(place, sizeof place, "layer %lld, head %zu%s",
                     (long long)json_integer_value(json_object_get(layer, "layer")) + 1, h + 1,
                     sigma ? "; below: each token's \xcf\x83" : "");
            snprintf(title, sizeof title, "%.200s, %s", weft_step_label(d, step), place);
            char *svg = draw_head(rows, sigma, time, step, title);
            if (svg) weft_page_thumbnail(p, svg, place);
            free(svg);
        }
    }
    weft_page_pictures_close(p);
}

weft_status weft_report_attention(weft_page *p, const weft_report_data *d) {
    char folder[WEFT_PATH_MAX];
    bool open = false;
    weft_report_folder(d, folder);
    for (int step = 0; step < d->n_steps; step++) {
        const weft_report_run *run =
            d->steps[step].repeats < 0 ? weft_report_first_run(d, step) : NULL;
        json_t *map = run ? read_map(folder, run) : NULL;
        if (map && !open)
            weft_page_fold(p, "What attention looks at",
                           "Each step's heads of the first and the last layer, over the text "
                           "above: a row for each token, darker where it looks more. The first "
                           "token is at the top left. (The pictures are in report.html.)");
        open = open || map;
        if (map) put_step(p, d, step, map);
        json_decref(map);
    }
    return WEFT_OK;
}
