/* The page: what report/inside.c draws, and maps of the weights. */
#include "base/json.h"
#include "inspect/inspect.h"

#include "report/inside.h"
#include "train/samples.h"

#include <stdlib.h>

enum { MAP_LAYERS = 3, MAP_HEADS = 16 };

static weft_status make_maps(const weft_model *m, weft_backing place, const int32_t *tokens,
                             int64_t time, json_t *layers) {
    WEFT_AUTO(weft_session_close) weft_session s = {0};
    weft_build build = {.batch = 1, .time = time, .dtype = m->dtype, .scores = true};
    WEFT_TRY(weft_session_open(m, place.backend, place.pool, &build, false, false, &s));
    WEFT_TRY(weft_session_run(&s, tokens, tokens, NULL));
    int64_t n = m->config.n_layer, count = n < MAP_LAYERS ? n : MAP_LAYERS;
    for (int64_t k = 0; k < count; k++)
        WEFT_TRY(weft_attention_map_layer(&s, count > 1 ? k * (n - 1) / (count - 1) : 0, MAP_HEADS,
                                          layers));
    return WEFT_OK;
}

static weft_status put_maps(weft_page *p, const weft_model *m, weft_backing place,
                            const weft_windows *text, const weft_tokenizer *t) {
    int64_t time = text->time < WEFT_MAP_TOKENS ? text->time : WEFT_MAP_TOKENS;
    WEFT_AUTO_DECREF json_t *layers = json_array();
    json_t *layer;
    size_t k;
    WEFT_TRY(make_maps(m, place, text->tokens, time, layers));
    weft_page_fold(p, "What heads look at",
                   "Heads of the first, a middle and the last layer over the first tokens of the "
                   "text: a row for each token, darker where it looks more. The first token is at "
                   "the top left.");
    json_t *word, *words = t ? weft_attention_map_tokens(t, text->tokens, time) : NULL;
    json_array_foreach(words, k, word) {
        fputs(json_string_value(word), p->words);
    }
    if (t) weft_page_say(p, "%s", weft_page_words(p));
    json_decref(words);
    weft_page_pictures_open(p, NULL);
    json_array_foreach(layers, k, layer) {
        weft_inside_put_maps(p, layer, (size_t)time, "", 0, (int)k, MAP_HEADS);
    }
    return WEFT_OK;
}

static weft_status put_inside(weft_page *p, const weft_inspection *i) {
    WEFT_AUTO_DECREF json_t *inside = weft_inspection_inside(i);
    if (!inside) return weft_fail(WEFT_ENOMEM, "inspect: no memory for its pictures");
    weft_page_heading(p, "Heads", "A square for each head; its number shows on hover.");
    weft_page_pictures_open(p, NULL);
    weft_inside_put_heads(p, inside, 0);
    if (weft_inside_has_latent(inside, "keys")) {
        weft_page_heading(p, "Latents",
                          "How many directions hold how much of what differs between tokens.");
        weft_page_pictures_open(p, NULL);
        weft_inside_put_latents(p, inside);
    }
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
    WEFT_TRY(put_inside(&p, i));
    WEFT_TRY(put_maps(&p, m, place, text, t));
    weft_inspection_print(i, p.words);
    weft_page_folded(&p, "All numbers", weft_page_words(&p));
    return weft_page_write_html(&p, path, force);
}
