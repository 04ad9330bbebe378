/* The report: its sections in order, for one study or several, and the same as JSON. */
#include "report/report.h"

#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
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
        for (int k = 0; k < WEFT_COUNT(sections); k++)
            WEFT_TRY(sections[k](&page, &d));
    }
    return weft_page_write(&page, folder, force);
}

weft_status weft_report_write(const char *database, const char *folder) {
    return weft_report_write_several(&database, 1, folder, false);
}

static json_t *verdict_json(const weft_report_variant *v) {
    const weft_comparison *c = &v->compared;
    json_t *left_out = json_array();
    EACH_PAIR(pair, v, v->baseline) {
        if (pair.counts || (!pair.variant && !pair.baseline)) continue;
        weft_json_append(left_out, "seed:I step:s baseline:s", pair.seed,
                         weft_report_ended(pair.variant), weft_report_ended(pair.baseline));
    }
    return weft_json_make(
        "variant:s step:s baseline:s verdict:s why:s pairs:i difference:f low:f high:f sd:f "
        "percent:f p:f left:b repeat_of:s left_out:o",
        v->name, v->name, v->baseline->name, weft_comparison_word(c), v->why, c->pairs, c->mean,
        c->low, c->high, c->sd, c->percent, weft_comparison_p(c), v->left,
        v->repeats ? v->repeats->name : NULL, left_out);
}

/* A variant's facts whose names begin so, in the mean over seeds, by the rest of their names; null: there are none. */
static json_t *facts_json(const weft_report_variant *v, const char *begin) {
    WEFT_AUTO_DECREF json_t *object = json_object();
    size_t n = strlen(begin);
    EACH_MEMBER(fact, v->study->facts) {
        if (strncmp(fact.key, begin, n) != 0) continue;
        double mean = weft_report_fact_mean(v, fact.key);
        if (isfinite(mean)) json_object_set_new(object, fact.key + n, json_real(mean));
    }
    return json_object_size(object) > 0 ? json_incref(object) : json_null();
}

static json_t *variant_json(const weft_report_variant *v) {
    json_t *minimum = !v->study->minima
                          ? NULL
                          : weft_json_make("learning_rate:f score:f edge:i", v->minimum.rate,
                                           v->minimum.score, v->minimum.edge);
    json_t *positions = json_array();
    EACH_RANGE(r, v->study) {
        double loss = weft_report_fact_mean(v, r->name);
        if (isfinite(loss))
            weft_json_append(positions, "first:I last:I loss:f", r->first, r->last, loss);
    }
    return weft_json_make(
        "variant:s step:s title:s overrides:s learning_rate:f score:f sd:f seeds:i runs:i leaks:b "
        "error:s iters:w tokens:w parameters:w flops_per_token:f memory_bytes:w training_bytes:w "
        "tokens_per_s:f cache_bytes_per_token:w seconds:f minimum:o* loss_by_position:o inside:o "
        "decode:o",
        v->name, v->name, v->title, v->overrides, v->rate, v->mean, v->sd, v->done, v->runs,
        v->leaks, *v->error ? v->error : NULL, v->iters, v->tokens, v->parameters, v->flops,
        v->memory, v->training_bytes, v->speed, v->cache_bytes, v->seconds, minimum, positions,
        facts_json(v, "inside_"), facts_json(v, "decode_"));
}

weft_status weft_report_json(const char *const *databases, int n, json_t **object) {
    static const char *const words[] = {"not compared", "equal", "unequal"};
    WEFT_AUTO_DECREF json_t *studies = json_array();
    *object = NULL;
    for (int i = 0; i < n; i++) {
        WEFT_AUTO(weft_report_free) weft_report_data d = {0};
        WEFT_AUTO_DECREF json_t *verdicts = json_array(), *variants = json_array(),
                                *repeats = json_array(), *yardsticks = json_array();
        WEFT_TRY(weft_report_read(databases[i], &d));
        EACH_VARIANT(v, &d) {
            json_array_append_new(variants, variant_json(v));
            if (v->baseline) json_array_append_new(verdicts, verdict_json(v));
        }
        EACH_RUN(run, &d) {
            const weft_report_variant *v = run->variant;
            weft_report_repeat r;
            if (!v->repeats) continue;
            WEFT_TRY(weft_report_repeat_of(run, &r));
            weft_json_append(
                repeats,
                "step:s repeats:s seed:I learning_rate:f result:s files_compared:b detail:s",
                v->name, v->repeats->name, run->seed, run->rate, words[r.result], r.files,
                r.detail);
        }
        WEFT_TRY(weft_report_yardstick_json(&d, yardsticks));
        WEFT_AUTO_FREE char *answer = weft_report_sentence(&d);
        weft_json_append(
            studies,
            "name:s question:s answer:s warnings:o score:s score_name:s higher_is_better:b "
            "confidence:f comparisons:i common:o verdicts:O steps:O repeats:O yardsticks:O",
            d.name, d.question, answer ? answer : "", weft_report_caveats(&d), d.score,
            d.score_name, d.higher_is_better, WEFT_CONFIDENCE, d.comparisons,
            weft_report_common_json(&d), verdicts, variants, repeats, yardsticks);
    }
    if ((int)json_array_size(studies) == n) *object = weft_json_make("studies:O", studies);
    return *object ? WEFT_OK : weft_fail(WEFT_ENOMEM, "report: no memory for it");
}

void weft_report_tell(const char *database, bool whole) {
    WEFT_AUTO(weft_report_free) weft_report_data d = {0};
    if (weft_report_read(database, &d) != WEFT_OK) return;
    EACH_VARIANT(v, &d) {
        /* "FF->Attn Gate: no difference shown, -0.0050 [-0.0455, +0.0355]" */
        const weft_comparison *c = &v->compared;
        const char *against = "", *number = isfinite(c->mean) ? weft_say(", %+.4f", c->mean) : "";
        /* A repeat says what its original said, unless that is the baseline. */
        if (!v->baseline || (v->repeats && v->repeats != v->baseline)) continue;
        if (v->baseline->place > 0)
            against = weft_say(" against %s", weft_shown(v->baseline->title));
        if (*number && isfinite(c->low) && isfinite(c->high))
            number = weft_say("%s [%+.4f, %+.4f]", number, c->low, c->high);
        weft_log(WEFT_LOG_INFO, "%s%s: %s%s%s", weft_shown(v->title), against,
                 weft_comparison_word(c), whole || c->verdict == WEFT_NOT_YET ? "" : " so far",
                 number);
    }
    WEFT_AUTO_FREE char *answer = weft_report_sentence(&d);
    if (answer) weft_log(WEFT_LOG_INFO, "%s", answer);
}
