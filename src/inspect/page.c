/* The page: the text with what each head looks at from every token of it, heads by what they do, and what
 * report/inside.c draws. */
#include "base/embed.h"
#include "base/json.h"
#include "inspect/inspect.h"

#include "report/page.h"
#include "train/samples.h"

#include <math.h>

WEFT_EMBED("weft_heads_script", "src/inspect/heads.js");
extern const char weft_heads_script[];

enum { MAP_LAYERS = 12, MAP_HEADS = 16, SEEN_LEAST = 2, SAME_LEAST = 3 };
static const double MOST = 0.25, ALIKE = 0.9; /* weight, and share of the entropy, for a name */

/* Adds the tokens that cross-token's routes keep for each token. */
static weft_status add_routes(const weft_session *s, int64_t layer, int64_t time, json_t *to) {
    const weft_config *c = &s->model->config;
    size_t pairs = (size_t)(time * time);
    if (!c->cross_token) return WEFT_OK;
    WEFT_ROOM(double, weights, (size_t)c->n_head *pairs, "inspect: no memory");
    WEFT_ROOM(weft_head_look, heads, c->n_head, "inspect: no memory");
    WEFT_ROOM(unsigned char, chosen, pairs, "inspect: no memory");
    weft_layer_look look = {.heads = heads};
    WEFT_TRY(weft_session_scores(s, layer, weights));
    weft_look_weights(c, weights, time, &look);
    WEFT_TRY(weft_look_routes(s, layer, weights, time, NULL, chosen, &look));
    json_t *all = json_array();
    for (int64_t i = 0; i < time; i++) {
        json_t *row = json_array();
        for (int64_t j = 0; j < time; j++)
            if (chosen[i * time + j]) json_array_append_new(row, json_integer(j));
        json_array_append_new(all, row);
    }
    json_object_set_new(to, "routes", all);
    return WEFT_OK;
}

static weft_status make_maps(const weft_model *m, weft_backing place, const int32_t *tokens,
                             int64_t time, json_t *layers) {
    WEFT_AUTO(weft_session_close) weft_session s = {0};
    weft_build build = {
        .batch = 1, .time = time, .dtype = m->dtype, .scores = true, .inside = true};
    WEFT_TRY(weft_session_open(m, place.backend, place.pool, &build, false, false, &s));
    WEFT_TRY(weft_session_run(&s, tokens, tokens, NULL));
    int64_t n = m->config.n_layer, count = n < MAP_LAYERS ? n : MAP_LAYERS;
    for (int64_t k = 0; k < count; k++) {
        int64_t layer = count > 1 ? k * (n - 1) / (count - 1) : 0;
        WEFT_TRY(weft_attention_map_layer(&s, layer, MAP_HEADS, layers));
        /* Adds the gates of each head by token, in percent; a gate of the whole text is every
         * token's. */
        const weft_tensor *gate = s.graph.inside[layer].gate;
        WEFT_AUTO_FREE double *values = NULL;
        WEFT_TRY(weft_session_take(&s, gate, &values));
        if (values) {
            json_t *all = json_array();
            int64_t heads = gate->shape[2], step = gate->shape[1] > 1 ? heads : 0;
            for (int64_t h = 0; h < heads; h++) {
                WEFT_JSON_LIST(row, i, time,
                               json_integer(lround(100 / (1 + exp(-values[i * step + h])))));
                json_array_append_new(all, row);
            }
            json_object_set_new(json_array_get(layers, (size_t)k), "gates", all);
        }
        WEFT_TRY(add_routes(&s, layer, time, json_array_get(layers, (size_t)k)));
    }
    return WEFT_OK;
}

/* What a head may do, in the order of the columns; the last two are said of heads that do none of these. */
enum { PREVIOUS, FIRST, ITSELF, SAME, HABITS, EVERYWHERE = HABITS, SEVERAL, NAMES };
static const char *const habit_names[NAMES] = {"the previous token", "the first token",
                                               "the token itself",   "the same word",
                                               "everywhere alike",   "several places"};

/* The weight on each such place: on the first token and the token itself as measured over the text; on the others over
 * the tokens shown, of those that see three at least, and for the same word of those that have one before them, NaN
 * where they are few. */
static void find_habits(const json_t *rows, const int32_t *tokens, int64_t time,
                        const double *numbers, double out[HABITS]) {
    double previous = 0, same = 0;
    int64_t seen = 0, repeated = 0;
    for (int64_t i = SEEN_LEAST; i < time; i++, seen++) {
        const json_t *row = json_array_get(rows, (size_t)i);
        bool repeats = false;
        previous += json_number_value(json_array_get(row, (size_t)i - 1)) / 100;
        for (int64_t j = 0; j < i; j++) {
            if (tokens[j] != tokens[i]) continue;
            same += json_number_value(json_array_get(row, (size_t)j)) / 100;
            repeats = true;
        }
        repeated += repeats;
    }
    out[PREVIOUS] = seen ? previous / (double)seen : NAN;
    out[FIRST] = numbers[WEFT_HEAD_FIRST];
    out[ITSELF] = numbers[WEFT_HEAD_SELF];
    out[SAME] = repeated >= SAME_LEAST ? same / (double)repeated : NAN;
}

/* Numbers that stand in the table beside the habits; the first layer has no gate. */
static bool is_column(const weft_inspection *i, int n) {
    return n != WEFT_HEAD_FIRST && n != WEFT_HEAD_SELF &&
           (isfinite(i->layers[0].heads[0].number[n]) ||
            isfinite(i->layers[i->n_layers - 1].heads[0].number[n]));
}

static void put_number(weft_page *p, double value) {
    weft_page_cell(p, isfinite(value) ? "%.3g" : "–", value);
}

/* "Of 8 heads, 3 look most at the previous token, 2 at the first token, 3 at several places." */
static void put_sentence(weft_page *p, const int counts[NAMES], int heads) {
    bool begun = false;
    fprintf(p->words, "Of %d head%s,", heads, heads == 1 ? "" : "s");
    for (int k = 0; k < NAMES; k++) {
        if (!counts[k]) continue;
        if (counts[k] == heads && heads > 1)
            fprintf(p->words, " all look%s %s%s", k < EVERYWHERE ? " most" : "",
                    k == EVERYWHERE ? "" : "at ", habit_names[k]);
        else
            fprintf(p->words, "%s %d look%s%s %s%s", begun ? "," : "", counts[k],
                    counts[k] == 1 ? "s" : "", begun || k >= EVERYWHERE ? "" : " most",
                    k == EVERYWHERE ? "" : "at ", habit_names[k]);
        begun = true;
    }
    weft_page_line(p, "answer", "%s.", weft_page_words(p));
}

/* A row for each head, what it does and all its numbers; or, without `shown`, how many do what. Returns how many there
 * are. */
static int put_heads(weft_page *p, const json_t *layers, const weft_inspection *i,
                     const weft_windows *text, int64_t time, bool shown, int counts[NAMES]) {
    int heads = 0;
    EACH_ITEM(layer, layers) {
        size_t at = (size_t)json_integer_value(json_object_get(layer.value, "layer"));
        EACH_ITEM(head, json_object_get(layer.value, "heads")) {
            const double *numbers = i->layers[at].heads[head.n - 1].number;
            double habits[HABITS];
            find_habits(head.value, text->tokens, time, numbers, habits);
            int most = 0;
            for (int k = 1; k < HABITS; k++)
                if (habits[k] > habits[most]) most = k;
            int name = habits[most] >= MOST                        ? most
                       : numbers[WEFT_HEAD_ENTROPY_SHARE] >= ALIKE ? EVERYWHERE
                                                                   : SEVERAL;
            if (shown) {
                weft_page_cell(p, "%zu.%zu", at + 1, head.n);
                weft_page_cell(p, "%s", habit_names[name]);
                weft_page_cell(p, "–");
                for (int k = 0; k < HABITS; k++)
                    put_number(p, habits[k]);
                for (int n = 0; n < WEFT_HEAD_NUMBERS; n++)
                    if (is_column(i, n)) put_number(p, numbers[n]);
            }
            counts[name]++;
            heads++;
        }
    }
    return heads;
}

static weft_status put_looks(weft_page *p, const weft_model *m, weft_backing place,
                             const weft_windows *text, const weft_tokenizer *t,
                             const weft_inspection *i) {
    static const char style[] =
        "<style>#looks{line-height:2.2;white-space:pre-wrap}\n"
        ".tk{font:inherit;padding:0 1px;border:0;border-radius:3px;color:var(--ink);"
        "background:linear-gradient(var(--c0),var(--c0)) bottom/100% calc(var(--d,0)*6px) "
        "no-repeat color-mix(in srgb,var(--c1) calc(var(--w,0)*65%),transparent)}\n"
        ".tk.at{outline:2px solid var(--accent)}table.looks tr.on>*{background:var(--tint)}"
        ".looks tr{cursor:pointer}</style>\n";
    int64_t time = text->time < WEFT_MAP_TOKENS ? text->time : WEFT_MAP_TOKENS;
    WEFT_AUTO_DECREF json_t *layers = json_array();
    WEFT_TRY(make_maps(m, place, text->tokens, time, layers));
    WEFT_AUTO_DECREF json_t *words =
        t ? weft_attention_map_tokens(t, text->tokens, time) : json_array();
    for (int64_t at = 0; !t && at < time; at++)
        json_array_append_new(words, json_sprintf("%d ", (int)text->tokens[at]));
    int counts[NAMES] = {0}, heads = put_heads(p, layers, i, text, time, false, counts);
    put_sentence(p, counts, heads);
    weft_page_heading(p, "Where each head looks", NULL);
    weft_page_say(p,
                  "The first tokens of the text. Point at one, or tap it, to see from there: the "
                  "table's third column has what each head looks at most, and the colour of the "
                  "tokens is the weight that the chosen head gives them, strongest where it is "
                  "largest. A click on a row chooses its head.%s",
                  json_object_get(json_array_get(layers, 0), "sigma")
                      ? " The bar below a token is its query's mean deviation \xcf\x83."
                  : json_object_get(json_array_get(layers, json_array_size(layers) - 1), "gates")
                      ? " The bar below a token is the head's gate there."
                      : "");
    fputs(style, p->html);
    /* The text, a button a token, for the script to tint. */
    fputs("<div id=\"looks\" class=\"card\">", p->html);
    EACH_ITEM(word, words)
        weft_html(p->html, "<button type=\"button\" class=\"tk\">", json_string_value(word.value),
                  "</button>");
    fputs(
        "</div>\n<p id=\"look\" class=\"facts\" role=\"status\"></p>\n<div id=\"routes\"></div>\n",
        p->html);
    WEFT_AUTO_DECREF json_t *data = weft_json_make("tokens:O layers:O", words, layers);
    WEFT_TRY(weft_page_put_json(p, "weft-looks", data));
    weft_page_table_open(
        p, "=head|=looks most at|=from the chosen token|>previous|>first|>itself|>same word");
    for (int n = 0; n < WEFT_HEAD_NUMBERS; n++)
        if (is_column(i, n)) weft_page_head(p, ">%s", weft_inside_heads[n].name);
    put_heads(p, layers, i, text, time, true, counts);
    return WEFT_OK;
}

weft_status weft_inspection_page(const weft_inspection *i, const weft_model *m, weft_backing place,
                                 const weft_windows *text, const weft_tokenizer *t,
                                 const char *title, const char *path, bool force) {
    WEFT_AUTO(weft_page_free) weft_page p = {0};
    WEFT_TRY(weft_page_open(&p, title));
    weft_page_title(&p, 1, title);
    weft_page_line(&p, "facts", "%lld tokens in %lld windows of %lld; loss %.4f",
                   (long long)(i->windows * i->time), (long long)i->windows, (long long)i->time,
                   i->loss);
    WEFT_AUTO_DECREF json_t *inside = weft_inspection_inside(i);
    if (!inside) return weft_fail(WEFT_ENOMEM, "inspect: no memory for its pictures");
    WEFT_TRY(put_looks(&p, m, place, text, t, i));
    weft_page_heading(&p, "Heads by layers",
                      "A square for each head, coloured the stronger the larger its number is; the "
                      "numbers are in the table above.");
    weft_page_pictures_open(&p, NULL);
    weft_inside_put_heads(&p, inside, 0);
    if (json_object_get(inside, "keys")) {
        weft_page_heading(&p, "Latents",
                          "How many directions hold how much of what differs between tokens.");
        weft_page_pictures_open(&p, NULL);
        weft_inside_put_latents(&p, inside);
    }
    weft_inspection_print(i, p.words);
    weft_page_folded(&p, "All numbers", weft_page_words(&p));
    fprintf(p.html, "<script>\n%s</script>\n", weft_heads_script);
    return weft_page_write_html(&p, path, force);
}
