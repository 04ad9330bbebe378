/* The report: its sections in order, for one study or several, and the same as JSON. */
#include "report/report.h"

#include "base/json.h"
#include "report/sections.h"

#include <math.h>

static weft_report_section *const sections[] = {
    weft_report_answer,    weft_report_curves,     weft_report_fronts,      weft_report_table,
    weft_report_yardstick, weft_report_positions,  weft_report_decode,      weft_report_inside,
    weft_report_samples,   weft_report_attention,  weft_report_sweep,       weft_report_minima,
    weft_report_trouble,   weft_report_verdicts,   weft_report_differences, weft_report_equality,
    weft_report_repeats,   weft_report_environment};

weft_status weft_report_write_several(const char *const *databases, int n, const char *folder,
                                      bool force) {
    WEFT_AUTO(weft_page_free) weft_page page = {0};
    for (int i = 0; i < n; i++) {
        WEFT_AUTO(weft_report_free) weft_report_data d = {0};
        WEFT_TRY(weft_report_read(databases[i], &d));
        if (i == 0) { /* a page of one study has its name in the window's title */
            WEFT_TRY(weft_page_open(&page, n == 1 ? weft_say("%.200s: a study by weft", d.name)
                                                  : weft_say("weft: %d studies", n)));
            if (n > 1) weft_page_title(&page, 1, weft_say("%d studies", n));
            page.level = n > 1 ? 3 : 2;
        }
        weft_page_title(&page, n > 1 ? 2 : 1,
                        weft_say("%s %.180s", d.n_runs == 1 ? "Run" : "Study", d.name));
        for (size_t k = 0; k < sizeof sections / sizeof sections[0]; k++)
            WEFT_TRY(sections[k](&page, &d));
    }
    return weft_page_write(&page, folder, force);
}

weft_status weft_report_write(const char *database, const char *folder) {
    return weft_report_write_several(&database, 1, folder, false);
}

static json_t *left_out(const weft_report_data *d, int variant) {
    json_t *list = json_array();
    for (int i = 0; i < d->n_seeds; i++) {
        weft_report_pair pair =
            weft_report_pair_of(d, variant, d->variants[variant].baseline, d->seeds[i]);
        if (pair.counts || (!pair.variant && !pair.baseline)) continue;
        json_array_append_new(list,
                              json_pack("{s:I, s:o, s:o}", "seed", (json_int_t)d->seeds[i], "step",
                                        weft_json_text(weft_report_ended(pair.variant)), "baseline",
                                        weft_json_text(weft_report_ended(pair.baseline))));
    }
    return list;
}

static json_t *verdict_json(const weft_report_data *d, int variant) {
    const weft_report_variant *s = &d->variants[variant];
    const weft_comparison *c = &s->compared;
    return json_pack("{s:o, s:o, s:o, s:s, s:o, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:o, s:o}",
                     "variant", weft_json_text(s->name), "step", weft_json_text(s->name),
                     "baseline", weft_json_text(d->variants[s->baseline].name), "verdict",
                     weft_comparison_word(c), "why", weft_json_text(s->why), "pairs", c->pairs,
                     "difference", weft_json_number(c->mean), "low", weft_json_number(c->low),
                     "high", weft_json_number(c->high), "sd", weft_json_number(c->sd), "percent",
                     weft_json_number(c->percent), "p", weft_json_number(weft_comparison_p(c)),
                     "left", s->left, "repeat_of",
                     s->repeats >= 0 ? weft_json_text(d->variants[s->repeats].name) : json_null(),
                     "left_out", left_out(d, variant));
}

static json_t *positions_json(const weft_report_data *d, int variant) {
    weft_report_range ranges[WEFT_REPORT_RANGES];
    int n = weft_report_ranges(d, ranges);
    json_t *list = json_array();
    for (int i = 0; i < n; i++) {
        double loss = weft_report_fact_mean(d, variant, ranges[i].name);
        if (isfinite(loss))
            json_array_append_new(list,
                                  json_pack("{s:I, s:I, s:f}", "first", (json_int_t)ranges[i].first,
                                            "last", (json_int_t)ranges[i].last, "loss", loss));
    }
    return list;
}

/* A variant's facts whose names begin so, in the mean over seeds, by the rest of their names; null: there are none. */
static json_t *facts_json(const weft_report_data *d, int variant, const char *begin) {
    WEFT_AUTO_DECREF json_t *object = json_object();
    size_t n = strlen(begin);
    for (int i = 0; i < d->n_facts; i++) {
        const char *name = d->facts[i].name;
        if (d->runs[d->facts[i].run].variant != variant || strncmp(name, begin, n) != 0) continue;
        if (json_object_get(object, name + n)) continue;
        double mean = weft_report_fact_mean(d, variant, name);
        if (isfinite(mean)) json_object_set_new(object, name + n, json_real(mean));
    }
    return json_object_size(object) > 0 ? json_incref(object) : json_null();
}

static json_t *variant_json(const weft_report_data *d, int variant) {
    const weft_report_variant *s = &d->variants[variant];
    json_t *object = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:i, s:i, s:b, s:o}", "variant",
        weft_json_text(s->name), "step", weft_json_text(s->name), "title", weft_json_text(s->title),
        "overrides", weft_json_text(s->overrides), "learning_rate", weft_json_number(s->rate),
        "score", weft_json_number(s->mean), "sd", weft_json_number(s->sd), "seeds", s->done, "runs",
        s->runs, "leaks", s->leaks, "error", *s->error ? weft_json_text(s->error) : json_null());
    WEFT_AUTO_DECREF json_t *cost = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "iters", weft_json_whole(s->iters),
        "tokens", weft_json_whole(s->tokens), "parameters", weft_json_whole(s->parameters),
        "flops_per_token", weft_json_number(s->flops), "memory_bytes", weft_json_whole(s->memory),
        "training_bytes", weft_json_whole(s->training_bytes), "tokens_per_s",
        weft_json_number(s->speed), "cache_bytes_per_token", weft_json_whole(s->cache_bytes),
        "seconds", weft_json_number(s->seconds));
    json_object_update(object, cost);
    if (d->minima)
        json_object_set_new(object, "minimum",
                            json_pack("{s:o, s:o, s:i}", "learning_rate",
                                      weft_json_number(s->minimum.rate), "score",
                                      weft_json_number(s->minimum.score), "edge", s->minimum.edge));
    json_object_set_new(object, "loss_by_position", positions_json(d, variant));
    json_object_set_new(object, "inside", facts_json(d, variant, "inside_"));
    json_object_set_new(object, "decode", facts_json(d, variant, "decode_"));
    return object;
}

static json_t *repeat_json(const weft_report_data *d, const weft_report_repeat *r) {
    static const char *const words[] = {"not compared", "equal", "unequal"};
    const weft_report_run *run = r->run;
    return json_pack("{s:o, s:o, s:I, s:o, s:s, s:b, s:o}", "step",
                     weft_json_text(d->variants[run->variant].name), "repeats",
                     weft_json_text(d->variants[d->variants[run->variant].repeats].name), "seed",
                     (json_int_t)run->seed, "learning_rate", weft_json_number(run->rate), "result",
                     words[r->result], "files_compared", r->files, "detail",
                     weft_json_text(r->detail));
}

static weft_status study_json(const char *database, json_t **object) {
    WEFT_AUTO(weft_report_free) weft_report_data d = {0};
    WEFT_AUTO_DECREF json_t *verdicts = json_array(), *variants = json_array(),
                            *repeats = json_array(), *yardsticks = json_array();
    *object = NULL;
    WEFT_TRY(weft_report_read(database, &d));
    for (int i = 0; i < d.n_variants; i++) {
        json_array_append_new(variants, variant_json(&d, i));
        if (d.variants[i].baseline >= 0) json_array_append_new(verdicts, verdict_json(&d, i));
    }
    for (int i = 0; i < d.n_runs; i++) {
        weft_report_repeat r;
        if (d.variants[d.runs[i].variant].repeats < 0) continue;
        WEFT_TRY(weft_report_repeat_of(&d, &d.runs[i], &r));
        json_array_append_new(repeats, repeat_json(&d, &r));
    }
    WEFT_TRY(weft_report_yardstick_json(&d, yardsticks));
    WEFT_AUTO_FREE char *answer = weft_report_sentence(&d);
    *object = json_pack("{s:o, s:o, s:o, s:o, s:o, s:o, s:b, s:f, s:i, s:o, s:O, s:O, s:O, s:O}",
                        "name", weft_json_text(d.name), "question", weft_json_text(d.question),
                        "answer", weft_json_text(answer ? answer : ""), "warnings",
                        weft_report_caveats(&d), "score", weft_json_text(d.score), "score_name",
                        weft_json_text(d.score_name), "higher_is_better", d.higher_is_better,
                        "confidence", WEFT_CONFIDENCE, "comparisons", weft_report_comparisons(&d),
                        "common", weft_report_common_json(&d), "verdicts", verdicts, "steps",
                        variants, "repeats", repeats, "yardsticks", yardsticks);
    return *object ? WEFT_OK : weft_fail(WEFT_ENOMEM, "report: no memory for it");
}

weft_status weft_report_json(const char *const *databases, int n, json_t **object) {
    WEFT_AUTO_DECREF json_t *all = json_pack("{s:[]}", "studies");
    *object = NULL;
    if (!all) return weft_fail(WEFT_ENOMEM, "report: no memory for it");
    for (int i = 0; i < n; i++) {
        json_t *study;
        WEFT_TRY(study_json(databases[i], &study));
        json_array_append_new(json_object_get(all, "studies"), study);
    }
    *object = weft_steal(&all);
    return WEFT_OK;
}
