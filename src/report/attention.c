/* What attention looks at: for each step, the weights of a few heads over the text that its first seed
 * wrote, and with W2 attention the deviation of each token, where the runs' folders hold them
 * (attention.json, see train/samples.h). The file is read as any by others: sizes and numbers
 * beyond what weft writes are not drawn. */
#include "report/sections.h"

#include "base/json.h"
#include "report/attention_picture.h"

#include <stdlib.h>

enum { FILE_MOST = 1 << 20, TOKENS_MOST = 64, MAPS_MOST = 8 };

static json_t *read_map(const char *folder, const weft_report_run *run) {
    char path[WEFT_PATH_MAX];
    int n = snprintf(path, sizeof path, "%s/%s/attention.json", folder, run->folder);
    return n < WEFT_PATH_MAX ? weft_json_file(path, FILE_MOST) : NULL;
}

static void put_step(weft_page *p, const weft_report_data *d, int step, const json_t *map) {
    size_t time = json_array_size(json_object_get(map, "tokens")), l, h;
    json_t *layer, *rows;
    int drawn = 0;
    if (time < 2 || time > TOKENS_MOST) return;
    weft_page_subtitle(p, weft_variant_label(d, step));
    weft_page_pictures_open(p, NULL);
    json_array_foreach(json_object_get(map, "layers"), l, layer) {
        json_array_foreach(json_object_get(layer, "heads"), h, rows) {
            char title[400], place[120];
            json_t *sigma = json_array_get(json_object_get(layer, "sigma"), h);
            if (drawn++ == MAPS_MOST) break;
            snprintf(place, sizeof place, "layer %lld, head %zu%s",
                     (long long)json_integer_value(json_object_get(layer, "layer")) + 1, h + 1,
                     sigma ? "; below: each token's \xcf\x83" : "");
            snprintf(title, sizeof title, "%.200s, %s", weft_variant_label(d, step), place);
            char *svg = weft_attention_picture(rows, sigma, time, step, title);
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
        const weft_report_run *run = weft_report_first_run(d, step);
        json_t *map = run ? read_map(folder, run) : NULL;
        if (map && !open)
            weft_page_fold(p, "What attention looks at",
                           "Each variant's heads of the first and the last layer, over the text "
                           "above: a row for each token, darker where it looks more. The first "
                           "token is at the top left. (The pictures are in report.html.)");
        open = open || map;
        if (map) put_step(p, d, step, map);
        json_decref(map);
    }
    return WEFT_OK;
}
