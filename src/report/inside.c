/* What the trained models do. What they write, side by side: the last sample of each variant's first seed, where the
 * study has SAMPLE_PROMPT and the runs' folders are still there; and what attention looks at over that text
 * (attention.json, see train/samples.h). What their mechanisms do inside (EVAL_INSIDE): numbers by variant, and
 * pictures of the first seed. A grid is squares as SVG: numbers by rows and columns, or what a head looks at, a row for
 * each token that looks, darker where it looks more. And what generation costs (EVAL_DECODE): tokens per second and the
 * cache, by variant. Files and JSON are read as any by others: sizes and numbers beyond what weft writes are not drawn. */
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "report/sections.h"

#include <math.h>

enum { SHOWN = 600 /* bytes of a text */, FILE_MOST = 1 << 20, TOKENS_MOST = 64, MAPS_MOST = 8 };
enum { PARTS_MOST = 24, NAME_ROOM = 96 };
enum { SIDE_MOST = 128, CURVES_MOST = 6, WIDTH_MOST = 1 << 20 };

const weft_inside_number weft_inside_heads[] = {
    {"entropy", "entropy of the weights, in nats", NAN},
    {"entropy_share", "entropy as a share of that of equal weights", 1},
    {"first", "weight on the first token", 1},
    {"self", "weight on the token itself", 1},
    {"back", "tokens back, in the mean", NAN},
    {"tau", "temperature", NAN},
    {"sigma_q", "mean deviation of queries", NAN},
    {"sigma_k", "mean deviation of keys", NAN},
    {"spread_q", "how much queries' deviations vary over tokens (std / mean)", NAN},
    {"spread_k", "how much keys' deviations vary over tokens (std / mean)", NAN},
    {"moved", "weight that moves if all tokens have the same deviations", NAN},
    {"gate", "gate, in the mean over tokens", 1},
    {"gate_spread", "gate, standard deviation over tokens", NAN},
    {NULL, NULL, 0}};

const weft_inside_number weft_inside_layers[] = {
    {"routes", "tokens that the routes of cross-token keep, or would", NAN},
    {"routes_weight", "share of the weight that they hold", 1},
    {"routes_as_layer_before", "share of them kept in the layer before, too", 1},
    {"routes_as_token_before", "share of them kept by the token before, too", 1},
    {"keys_width", "width of the keys' latent", NAN},
    {"keys_effective_rank", "its effective rank", NAN},
    {"keys_directions_99", "its directions that hold 99% of the variance", NAN},
    {"values_width", "width of the values' latent", NAN},
    {"values_effective_rank", "its effective rank", NAN},
    {"values_directions_99", "its directions that hold 99% of the variance", NAN},
    {"z_off_blocks", "share of W_z outside its blocks", 1},
    {"z_between_heads", "|cosine| between two z-heads", 1},
    {"z_across_sequences", "cosine of one z-head in two sequences", 1},
    {NULL, NULL, 0}};

int weft_inside_direction(int width, int i, int n) {
    return (int)(((int64_t)width * (i + 1) + n - 1) / n);
}

enum { SIDE = 26, LEFT = 62, TOP = 44, RIGHT = 12, BOTTOM = 10, FONT = 13, LABELS_MOST = 24 };
enum { SHADES = 6, SIGMA_HEIGHT = 14 };

/* Numbers stand beside every square, or where they are many beside each second, third, ... */
static int label_step(int count) {
    return 1 + (count - 1) / LABELS_MOST;
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

/* A head of attention.json (train/samples.h): `rows` of percent for `time` tokens, and each token's
 * deviation as a bar below where `sigma` is not NULL. */
static void draw_head(FILE *out, const json_t *rows, const json_t *sigma, size_t time, int style,
                      const char *title) {
    const char *colour = weft_plot_colour(style);
    fprintf(out, "<svg viewBox=\"-1 -1 %zu %zu\" role=\"img\" aria-label=\"", time + 2,
            time + 2 + (sigma ? SIGMA_HEIGHT : 0));
    weft_html(out, "", title);
    fprintf(
        out,
        "\">\n<rect x=\"0\" y=\"0\" width=\"%zu\" height=\"%zu\" fill=\"none\" stroke=\"faint\" "
        "stroke-width=\"0.3\"/>\n",
        time, time);
    for (int shade = 0; shade < SHADES; shade++) {
        /* Weights of one shade as one path of unit squares, row by row. */
        int low = 100 * shade / SHADES, high = 100 * (shade + 1) / SHADES, told = 0;
        for (size_t i = 0; i < time; i++) {
            const json_t *row = json_array_get(rows, i);
            for (size_t j = 0; j < time; j++) {
                double value = json_number_value(json_array_get(row, j));
                if (!(value >= 0 && value <= 100)) continue;
                int percent = (int)(100 * sqrt((int)value / 100.0)); /* faint ones show, too */
                if (percent <= low || percent > high) continue;
                if (told++ == 0)
                    fprintf(out, "<path fill=\"%s\" fill-opacity=\"%.2f\" d=\"", colour,
                            (shade + 1) / (double)SHADES);
                fprintf(out, "M%zu %zuh1v1h-1z", j, i);
            }
        }
        if (told) fputs("\"/>\n", out);
    }
    if (sigma) put_sigma(out, sigma, time, colour);
    fputs("</svg>\n", out);
}

/* A number of a table [rows, columns]; NaN: there is none. */
static double number_at(const json_t *table, int i, int columns) {
    const json_t *row = json_array_get(table, (size_t)(i / columns)),
                 *one = json_array_get(row, (size_t)(i % columns));
    return json_is_number(one) ? json_number_value(one) : NAN;
}

/* The darkest square is `high`, or where that is NaN the largest number. */
static void put_grid(weft_page *p, const json_t *table, const char *name, const char *title,
                     const char *head, int first, double high, int style) {
    size_t n = json_array_size(table), m = json_array_size(json_array_get(table, 0));
    int rows = (int)n, columns = (int)m;
    double most = NAN;
    if (n < 1 || n > SIDE_MOST || m < 1 || m > SIDE_MOST) return;
    EACH_ITEM(row, table)
        if (json_array_size(row.value) != m && !json_is_null(row.value)) return;
    for (int i = 0; i < rows * columns; i++)
        most = fmax(most, number_at(table, i, columns));
    if (!isfinite(most)) return;
    if (isnan(high)) high = most;
    /* A table of numbers [rows, columns] as a picture: a square for each, darker where it is larger up to `high`, which
     * tells its value on hover; NaN: none. Rows are layers, columns have numbers from `first` on. */
    int width = LEFT + SIDE * columns + RIGHT;
    fprintf(p->words,
            "<svg viewBox=\"0 0 %d %d\" style=\"max-width:%dpx\" font-size=\"%d\" role=\"img\" "
            "aria-label=\"",
            width, TOP + SIDE * rows + BOTTOM, width, FONT);
    weft_html(p->words, "", title, "\">\n");
    weft_svg_text(p->words, LEFT, 16, "start", head);
    weft_svg_text(p->words, LEFT - 8, TOP - 8, "end", "layer");
    for (int i = 0; i < columns; i += label_step(columns))
        weft_svg_text(p->words, LEFT + SIDE * (i + 0.5), TOP - 8, "middle",
                      weft_say("%d", first + i));
    for (int i = 0; i < rows; i += label_step(rows))
        weft_svg_text(p->words, LEFT - 8, TOP + SIDE * (i + 0.65), "end", weft_say("%d", 1 + i));
    for (int i = 0; i < rows * columns; i++) {
        int row = i / columns, column = i % columns;
        double value = number_at(table, i, columns);
        if (!isfinite(value)) continue;
        fprintf(p->words,
                "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\" "
                "fill-opacity=\"%.3f\" stroke=\"faint\" stroke-width=\"0.5\"><title>%d, %d: %.4g"
                "</title></rect>\n",
                LEFT + SIDE * column, TOP + SIDE * row, SIDE - 1, SIDE - 1, weft_plot_colour(style),
                fmin(fmax(high > 0 ? value / high : 0, 0.02), 1), 1 + row, first + column, value);
    }
    fputs("</svg>\n", p->words);
    weft_page_picture(
        p, weft_page_words(p),
        weft_say("%s%s%s; strongest colour = %.3g", name, *name ? ": " : "", title, high));
}

void weft_inside_put_heads(weft_page *p, const json_t *inside, int style) {
    const json_t *heads = json_object_get(inside, "heads");
    for (const weft_inside_number *n = weft_inside_heads; n->name; n++)
        put_grid(p, json_object_get(heads, n->name), n->name, n->title, "head", 1, n->high, style);
    put_grid(p, json_object_get(inside, "gates"), "",
             "histogram of the gates: each layer's share in each tenth of 0 to 1",
             "gate, in tenths from", 0, NAN, style + 2);
}

static void put_latent(weft_page *p, const json_t *latent, const char *caption) {
    weft_plot_series series[CURVES_MOST];
    weft_plot_point points[CURVES_MOST][WEFT_INSIDE_POINTS];
    const json_t *held = json_object_get(latent, "held");
    json_int_t width = json_integer_value(json_object_get(latent, "width"));
    size_t layers = json_array_size(held);
    int n = layers < CURVES_MOST ? (int)layers : CURVES_MOST;
    if (n < 1 || layers > SIDE_MOST || width < 1 || width > WIDTH_MOST) return;
    for (int k = 0; k < n; k++) {
        size_t layer = n > 1 ? (size_t)k * (layers - 1) / (size_t)(n - 1) : 0;
        const json_t *curve = json_array_get(held, layer);
        int all = (int)json_array_size(curve);
        series[k] = (weft_plot_series){.label = weft_say("layer %zu", layer + 1),
                                       .style = k,
                                       .points = points[k],
                                       .n = all <= WEFT_INSIDE_POINTS ? all : 0};
        for (int i = 0; i < series[k].n; i++)
            points[k][i] =
                (weft_plot_point){weft_inside_direction((int)width, i, all),
                                  json_number_value(json_array_get(curve, (size_t)i)), NAN, NAN};
    }
    weft_plot plot = {.kind = WEFT_PLOT_CURVES,
                      .title = caption,
                      .x_label = "directions",
                      .y_label = "share of the variance",
                      .series = series,
                      .n_series = n,
                      .top = NAN};
    bool drawn = weft_plot_svg(&plot, ++p->pictures, p->words) == WEFT_OK;
    weft_page_picture(p, drawn ? weft_page_words(p) : NULL, caption);
}

void weft_inside_put_latents(weft_page *p, const json_t *inside) {
    put_latent(p, json_object_get(inside, "keys"),
               "keys' latent: share of the variance in the first directions");
    put_latent(p, json_object_get(inside, "values"),
               "values' latent: share of the variance in the first directions");
}

/* Where a file of a run is; false: there is none. */
static bool find_file(const char *folder, const weft_report_run *run, const char *name,
                      char path[WEFT_PATH_MAX]) {
    /* Runs that no study made are not in runs/ (record/gather.c). A database may be by anyone. */
    const char *place = weft_json_text_of(run->facts, "place");
    bool there = false, below = *place && *place != '/' && !strstr(place, "..");
    const char *names[] = {run->folder, below ? place : NULL};
    for (int i = 0; i < 2 && !there && names[i]; i++) {
        if (weft_path(path, "%s/%s/%s", folder, names[i], name) != WEFT_OK) return false;
        /* One that cannot be looked at is opened too: that tells why. */
        if (weft_path_there(path, &there) != WEFT_OK) there = true;
    }
    return there;
}

/* The last whole line of a run's samples; NULL: there is none. */
static json_t *last_sample(const char *folder, const weft_report_run *run) {
    char path[WEFT_PATH_MAX];
    WEFT_AUTO_FCLOSE FILE *file = NULL;
    WEFT_AUTO_FREE char *line = NULL;
    size_t room = 0;
    ssize_t n;
    json_t *last = NULL;
    if (!find_file(folder, run, "samples.jsonl", path)) return NULL;
    if (weft_file_open_stream(path, &file) != WEFT_OK) {
        weft_log(WEFT_LOG_WARN, "report: without the samples of a run: %s", weft_error_message());
        return NULL;
    }
    while ((n = getline(&line, &room, file)) > 0) {
        json_t *row = weft_json_read(line, (size_t)n, JSON_ALLOW_NUL, NULL);
        if (!row) continue;
        json_decref(last);
        last = row;
    }
    return last;
}

/* A variant's first seed that finished; NULL: none, or the variant is a repeat. */
static const weft_report_run *first_run(const weft_report_variant *v) {
    EACH_RUN_OF(run, v)
        if (!v->repeats && weft_report_run_counts(run)) return run;
    return NULL;
}

weft_status weft_report_samples(weft_page *p, const weft_report_data *d) {
    char folder[WEFT_PATH_MAX];
    int told = 0;
    WEFT_TRY(weft_listing_folder(d->path, folder));
    EACH_VARIANT(v, d) {
        const weft_report_run *run = first_run(v);
        WEFT_AUTO_DECREF json_t *sample = run ? last_sample(folder, run) : NULL;
        const json_t *text = json_object_get(sample, "text"),
                     *cache = json_object_get(sample, "cache_bytes_per_token");
        const char *prompt = json_string_value(json_object_get(sample, "prompt"));
        if (!json_is_string(text) || !prompt) continue;
        if (told++ == 0)
            weft_page_heading(
                p, "What the models write",
                "The last sample of each variant's first random seed; the same prompt "
                "and the same random numbers for all. The cache is the memory that it took "
                "in generating, divided by the tokens that it has room for.");
        const char *title =
            weft_say("%.200s, after %lld training steps", v->label,
                     (long long)json_integer_value(json_object_get(sample, "step")));
        if (json_is_integer(cache))
            title = weft_say("%s; cache: %lld bytes per token", title,
                             (long long)json_integer_value(cache));
        /* Cut between characters; a zero, which a model of bytes may write, is a blank. */
        const char *whole = json_string_value(text);
        size_t length = json_string_length(text);
        if (length > SHOWN) length = weft_utf8_cut(whole, SHOWN);
        char *shown = weft_page_room(p, length + 1);
        for (size_t i = 0; shown && i < length; i++)
            shown[i] = whole[i] ? whole[i] : ' ';
        weft_page_text(p, title, prompt, shown ? shown : "");
    }
    return WEFT_OK;
}

/* The first heads of a variant's layers; layers and heads are numbered from 1. */
static void put_variant(weft_page *p, const weft_report_variant *v, const json_t *map) {
    size_t time = json_array_size(json_object_get(map, "tokens"));
    int drawn = 0;
    if (time < 2 || time > TOKENS_MOST) return;
    weft_page_subtitle(p, v->label);
    weft_page_pictures_open(p, NULL);
    EACH_ITEM(layer, json_object_get(map, "layers")) {
        EACH_ITEM(head, json_object_get(layer.value, "heads")) {
            const json_t *sigma = json_object_get(layer.value, "sigma");
            if (drawn++ >= MAPS_MOST) return;
            sigma = json_array_get(sigma, head.n - 1);
            const char *place =
                weft_say("layer %lld, head %zu%s",
                         (long long)json_integer_value(json_object_get(layer.value, "layer")) + 1,
                         head.n, sigma ? "; below: each token's \xcf\x83" : "");
            draw_head(p->words, head.value, sigma, time, v->place,
                      weft_say("%.200s%s%s", v->label, *v->label ? ", " : "", place));
            weft_page_picture(p, weft_page_words(p), place);
        }
    }
}

weft_status weft_report_attention(weft_page *p, const weft_report_data *d) {
    char folder[WEFT_PATH_MAX];
    int told = 0;
    WEFT_TRY(weft_listing_folder(d->path, folder));
    EACH_VARIANT(v, d) {
        const weft_report_run *run = first_run(v);
        char path[WEFT_PATH_MAX];
        WEFT_AUTO_DECREF json_t *map = NULL;
        if (run && find_file(folder, run, "attention.json", path))
            map = weft_json_file(path, FILE_MOST);
        if (!map) continue;
        if (told++ == 0) {
            weft_page_fold(p, "What attention looks at",
                           "Each variant's heads of the first and the last layer, over the text "
                           "above: a row for each token, stronger where it looks more. The first "
                           "token is at the top left.");
            fputs("\n(The pictures are in report.html.)\n", p->md);
        }
        put_variant(p, v, map);
    }
    return WEFT_OK;
}

static bool has_inside(const weft_report_variant *v) {
    return !v->repeats && isfinite(weft_report_fact_mean(v, "inside_entropy"));
}

static bool any_has(const weft_report_data *d, const char *name) {
    EACH_VARIANT(v, d)
        if (has_inside(v) && isfinite(weft_report_fact_mean(v, name))) return true;
    return false;
}

static void put_row(weft_page *p, const weft_report_data *d, const char *name, const char *title) {
    char fact[NAME_ROOM];
    snprintf(fact, sizeof fact, "inside_%.80s", name);
    if (!any_has(d, fact)) return;
    weft_page_cell(p, "%s: %s", name, title);
    EACH_VARIANT(v, d) {
        if (!has_inside(v)) continue;
        double value = weft_report_fact_mean(v, fact);
        weft_page_cell(p, "%s", isfinite(value) ? weft_say("%.4g", value) : "–");
    }
}

weft_status weft_report_inside(weft_page *p, const weft_report_data *d) {
    if (!any_has(d, "inside_entropy")) return WEFT_OK;
    weft_page_heading(p, "Inside the models",
                      "What the mechanisms do on held-out sequences after training: the mean over "
                      "heads, layers and seeds.");
    weft_report_open_table(p, d, "number", has_inside);
    for (const weft_inside_number *n = weft_inside_heads; n->name; n++)
        put_row(p, d, n->name, n->title);
    for (const weft_inside_number *n = weft_inside_layers; n->name; n++)
        put_row(p, d, n->name, n->title);
    static const char begin[] = "inside_gradient ";
    int n = 0;
    EACH_MEMBER(fact, d->facts) {
        const char *gradient = fact.key, *part = gradient + sizeof begin - 1;
        char weight[NAME_ROOM];
        if (strncmp(gradient, begin, sizeof begin - 1) != 0 || strlen(gradient) >= NAME_ROOM ||
            n == PARTS_MOST || !any_has(d, gradient))
            continue;
        if (n++ == 0) {
            weft_page_say(p, "Gradients by mechanism: the norm of its gradient in one training "
                             "pass over held-out sequences, and in brackets what part of its "
                             "weights' norm that is.");
            weft_report_open_table(p, d, "mechanism", has_inside);
        }
        snprintf(weight, sizeof weight, "inside_weight %s", part);
        weft_page_cell(p, "%s", part);
        EACH_VARIANT(v, d) {
            double is = weft_report_fact_mean(v, gradient);
            double of = weft_report_fact_mean(v, weight);
            if (!has_inside(v)) continue;
            weft_page_cell(p, "%s", isfinite(is) ? weft_say("%.3g (%.2g)", is, is / of) : "–");
        }
    }
    weft_page_fold(
        p, "Inside the models, head by head",
        "The first seed of each variant: a square for each head of each layer, its number on "
        "hover; the gates by tenths; the latents' directions.");
    fputs("\n(The pictures are in report.html.)\n", p->md);
    EACH_VARIANT(v, d) {
        const weft_report_run *run = has_inside(v) ? first_run(v) : NULL;
        const char *text = run ? weft_json_text_of(run->facts, "inside") : "";
        WEFT_AUTO_DECREF json_t *inside = weft_json_read(text, strlen(text), 0, NULL);
        if (!inside) continue;
        weft_page_subtitle(p, v->label);
        weft_page_pictures_open(p, NULL);
        weft_inside_put_heads(p, inside, v->place);
        weft_inside_put_latents(p, inside);
    }
    return WEFT_OK;
}

static bool has_decode(const weft_report_variant *v) {
    return !v->repeats && isfinite(weft_report_fact_mean(v, "decode_tokens_per_s_1"));
}

weft_status weft_report_decode(weft_page *p, const weft_report_data *d) {
    static const char *const rows[][2] = {
        {"decode_tokens_per_s_1", "tokens per second, one sequence"},
        {"decode_tokens_per_s_8", "tokens per second, eight sequences"},
        {"decode_cache_bytes_per_token", "cache bytes per token"}};
    if (weft_report_count(d, has_decode) == 0) return WEFT_OK;
    weft_page_heading(p, "Generation",
                      "How fast the trained models make text behind a full context, as weft bench "
                      "decode measures it, and what they keep of each token: the mean over seeds. "
                      "Runs that shared the machine with others were slower.");
    weft_report_open_table(p, d, "number", has_decode);
    for (int i = 0; i < 3; i++) {
        weft_page_cell(p, "%s", rows[i][1]);
        EACH_VARIANT(v, d)
            if (has_decode(v))
                weft_page_cell(p, "%s",
                               weft_say_number(round(weft_report_fact_mean(v, rows[i][0]))));
    }
    return WEFT_OK;
}
