/* What came out: the verdicts in plain words, the table, and the repeats' equality. */
#include "base/json.h"
#include "report/sections.h"
#include "study/variants.h"

#include <math.h>
#include <strings.h>

/* What the intervals are worth, all together. */
static void say_confidence(weft_page *p, const weft_report_data *d) {
    int n = d->comparisons;
    if (n == 0) {
        weft_page_say(p, "No comparison has the two seeds that an interval takes, so nothing is "
                         "called better or worse.");
        return;
    }
    if (d->minima) {
        weft_page_say(p,
                      "Variants are compared at the minima of parabolas in the logarithm of the "
                      "learning rate; intervals have %.0f%% confidence, by a bootstrap over runs. "
                      "A variant helps or hurts where its interval lies beyond the smallest effect "
                      "of interest, %g, and is equivalent where the interval at %.0f%% lies within "
                      "it.",
                      100 * WEFT_CONFIDENCE, d->effect, 100 * WEFT_EQUIVALENCE);
        return;
    }
    weft_page_say(
        p,
        "Every interval has %.0f%% confidence, by Student's t over the differences seed by "
        "seed. There %s %s with an interval (repeats are not counted again). If there "
        "were nothing to find, %s.",
        100 * WEFT_CONFIDENCE, n == 1 ? "is" : "are", weft_say_plural(n, "comparison"),
        n == 1 ? weft_say("there would be a %.2g%% chance of a false verdict",
                          100 * (1 - WEFT_CONFIDENCE))
               : weft_say("%.2g of them would still be called better or worse on average, by "
                          "chance",
                          n * (1 - WEFT_CONFIDENCE)));
}

/* The variants with the most seeds, as a two-way analysis of variance over variants and seeds: the
 * standard deviation pooled over them, with more degrees of freedom than a single comparison has. */
typedef struct {
    int variants, seeds, freedom;
    double sd;   /* what neither variant nor seed explains */
    double half; /* of the interval of a difference, at WEFT_CONFIDENCE */
} common;

/* Variants whose scores may stand beside one another. */
static bool takes_part(const weft_report_variant *s) {
    return !s->repeats && !*s->error && !s->leaks && s->done > 1 && isfinite(s->rate);
}

/* The scores of one seed, a variant after the other; false: one of them has none. */
static bool list_seed(const weft_report_data *d, int most, int64_t seed, double *scores) {
    EACH_VARIANT(v, d) {
        if (!takes_part(v) || v->done < most) continue;
        const weft_report_run *run = weft_report_find(v, v->rate, seed);
        if (!run || !run->finished) return false;
        *scores++ = run->score;
    }
    return true;
}

/* False: fewer than three such variants, or two seeds. Repeats and variants that leak stay out. */
static bool find_common(const weft_report_data *d, common *out) {
    int most = 0;
    EACH_VARIANT(v, d)
        if (takes_part(v) && v->done > most) most = v->done;
    *out = (common){0};
    EACH_VARIANT(v, d)
        out->variants += takes_part(v) && v->done == most;
    WEFT_AUTO_FREE double *scores =
        out->variants < 3 || d->n_seeds < 2
            ? NULL
            : calloc((size_t)d->n_seeds * (size_t)out->variants, sizeof *scores);
    if (!scores) return false;
    for (int i = 0; i < d->n_seeds; i++)
        out->seeds += list_seed(d, most, d->seeds[i], scores + out->seeds * out->variants);
    out->freedom = (out->variants - 1) * (out->seeds - 1);
    if (out->seeds > 1) {
        /* The square root of what is left of scores[seeds][variants] without the means of its rows and columns,
         * by its degrees of freedom. */
        double all = weft_mean(scores, out->seeds * out->variants), rest = 0;
        for (int v = 0; v < out->variants; v++) {
            double mean = 0;
            for (int k = 0; k < out->seeds; k++)
                mean += scores[k * out->variants + v] / out->seeds;
            for (int k = 0; k < out->seeds; k++)
                rest += pow(scores[k * out->variants + v] - mean -
                                weft_mean(scores + k * out->variants, out->variants) + all,
                            2);
        }
        out->sd = sqrt(rest / out->freedom);
        out->half = weft_t_quantile((1 + WEFT_CONFIDENCE) / 2, out->freedom) * out->sd *
                    sqrt(2.0 / out->seeds);
    }
    return out->seeds > 1;
}

static bool has_interval(const weft_report_variant *v) {
    const weft_comparison *c = &v->compared;
    return weft_report_counts(v) && c->verdict != WEFT_NOT_YET && isfinite(weft_comparison_p(c));
}

void weft_report_holm(weft_report_data *d) {
    for (int n = weft_report_count(d, has_interval); n > 0; n--) {
        weft_report_variant *least = NULL;
        double p = INFINITY;
        EACH_VARIANT(v, d) {
            if (v->left || !has_interval(v)) continue;
            double one = weft_comparison_p(&v->compared);
            if (one >= p) continue;
            least = v;
            p = one;
        }
        if (!least || p > (1 - WEFT_CONFIDENCE) / n) return;
        least->left = true;
    }
}

/* "Gate against Plain, Cross against Plain" */
static void add_name(FILE *out, const weft_report_variant *v, bool *any) {
    fprintf(out, "%s%s against %s", *any ? ", " : "", weft_say_variant(v),
            weft_say_variant(v->baseline));
    *any = true;
}

/* Three seeds leave two degrees of freedom for a comparison, and many comparisons find something by
 * chance: the first is answered by a pooled standard deviation, the second by Holm's method. */
static void say_together(weft_page *p, const weft_report_data *d) {
    common spread;
    if (d->comparisons < 2) return;
    fputs("Counted together by Holm's method, ", p->words);
    bool any = false;
    EACH_VARIANT(v, d) {
        if (!v->left) continue;
        if (!any) fputs("these are left: ", p->words);
        add_name(p->words, v, &any);
    }
    if (!any) fputs("none is left", p->words);
    fputs(".", p->words);
    if (!d->minima && find_common(d, &spread)) {
        any = false;
        fprintf(
            p->words,
            " Read with the standard deviation pooled over all %d variants (%.3g, %d degrees of "
            "freedom; a two-way analysis of variance over variants and seeds), an interval is "
            "±%.3g, and a difference is shown for ",
            spread.variants, spread.sd, spread.freedom, spread.half);
        EACH_VARIANT(v, d)
            if (has_interval(v) && fabs(v->compared.mean) > spread.half)
                add_name(p->words, v, &any);
        fputs(any ? "." : "none.", p->words);
    }
    weft_page_say(p, "%s", weft_page_words(p));
}

json_t *weft_report_common_json(const weft_report_data *d) {
    common c;
    if (!find_common(d, &c)) return json_null();
    return weft_json_make("variants:i seeds:i freedom:i sd:f half:f", c.variants, c.seeds,
                          c.freedom, c.sd, c.half);
}

weft_status weft_report_verdicts(weft_page *p, const weft_report_data *d) {
    if (weft_report_count(d, weft_report_is_compared) == 0) return WEFT_OK;
    weft_page_fold(
        p, "How the verdicts are reached",
        "Each variant of the study against its baseline, from runs with the same seeds.");
    if (strcmp(d->score, "metric") == 0)
        weft_page_say(p, "The score is the dataset's own %s. Higher is better.", d->score_name);
    else if (strcmp(d->score, "train_loss") == 0)
        weft_page_say(p,
                      "The score is the training loss: the mean cross-entropy over the last %.0f "
                      "training steps. Lower is better.",
                      d->tail);
    else
        weft_page_say(p, "The score is the held-out loss after the last training step: the "
                         "cross-entropy on text that was not trained on. Lower is better.");
    if (d->nothing_learned)
        weft_page_say(p,
                      "Every run ends at the loss of guessing, %.4f for %.0f tokens. Train for "
                      "longer, try another learning rate, or look at the data.",
                      log(d->vocabulary), d->vocabulary);
    if (d->spread > 0 && d->planned_seeds > 1) {
        /* What was said before the first run, and what became of it. */
        char power[512];
        double least = NAN, most = NAN;
        weft_power_text(d->planned_seeds, d->spread, power, sizeof power);
        EACH_VARIANT(v, d) {
            if (!weft_report_counts(v)) continue;
            least = fmin(least, v->compared.sd);
            most = fmax(most, v->compared.sd);
        }
        weft_page_say(p, "Stated beforehand: %s%s%s%s", power,
                      isfinite(least) ? weft_say(" They had %.2g", least) : "",
                      least < most ? weft_say(" to %.2g", most) : "", isfinite(least) ? "." : "");
    }
    say_confidence(p, d);
    say_together(p, d);
    return WEFT_OK;
}

static bool beats(const weft_report_data *d, double score, double other) {
    return isfinite(score) &&
           (isnan(other) || (d->higher_is_better ? score > other : score < other));
}

/* The variant with the best mean, of those that see no later tokens; NULL: there are not two. */
static const weft_report_variant *best_variant(const weft_report_data *d) {
    const weft_report_variant *best = NULL;
    int n = 0;
    EACH_VARIANT(v, d) {
        if (v->leaks || v->repeats || !isfinite(v->mean)) continue;
        n++;
        if (beats(d, v->mean, best ? best->mean : NAN)) best = v;
    }
    return n > 1 && !d->nothing_learned ? best : NULL;
}

/* Whether the verdicts tell the variant with the best mean from what it is compared with: it is better
 * than its baseline, or, being a baseline, all others are worse. */
static bool is_told_apart(const weft_report_variant *best) {
    int others = 0;
    if (weft_report_is_compared(best)) return best->compared.verdict == WEFT_BETTER;
    EACH_VARIANT(v, best->study) {
        if (!weft_report_counts(v) || v->baseline != best) continue;
        if (v->compared.verdict != WEFT_WORSE) return false;
        others++;
    }
    return others > 0;
}

static void table_row(weft_page *p, const weft_report_variant *v, bool best) {
    const weft_comparison *c = &v->compared;
    bool compared = v->baseline && c->pairs > 0;
    bool named = strcasecmp(v->label, v->name) != 0; /* its name is what commands take */
    const char *repeats = v->repeats && !strstr(v->label, "repeat")
                              ? weft_say(", repeats %.100s", v->repeats->name)
                              : "";
    weft_page_cell(p, "%s%s%s%s%s%s", v->label, named ? " (" : "", named ? v->name : "",
                   named ? ")" : "", repeats, v->leaks ? " LEAKS" : "");
    weft_page_cell(p, "%s", weft_say_count(v->parameters));
    weft_page_cell(p, "%s%s%s", best ? "\xe2\x98\x85 " : "", weft_say_score(v->mean),
                   v->done > 1 ? weft_say(" ± %s", weft_say_score(v->sd)) : "");
    weft_page_cell(p, "%d of %d", v->done, v->runs);
    weft_page_cells(p, compared ? weft_say_interval(c) : "–", weft_say_bytes(v->memory),
                    weft_say_count(v->speed), weft_say_number(v->cache_bytes),
                    weft_say_count(v->flops));
    if (v->study->n_rates > 1) weft_page_cell(p, "%s", weft_say_number(v->rate));
}

/* Whether every run that counts had a device with a memory of its own. */
static bool all_on_device(const weft_report_data *d) {
    int n = 0;
    EACH_RUN(run, d) {
        if (!weft_report_run_counts(run)) continue;
        if (isnan(weft_json_number_of(run->facts, "device_bytes"))) return false;
        n++;
    }
    return n > 0;
}

weft_status weft_report_table(weft_page *p, const weft_report_data *d) {
    if (d->n_variants == 0) return WEFT_OK;
    weft_page_heading(p, "The variants in numbers", "What each variant scored, and what it costs.");
    weft_page_table_open(
        p, weft_say("variant|>parameters|>%.120s ± sd|>seeds|>change [%.0f%% interval]|%s|"
                    ">tokens/s|>cache bytes per token|>FLOPs per token%s",
                    d->score_name, 100 * WEFT_CONFIDENCE,
                    all_on_device(d) ? ">GPU memory, by its own count" : ">memory, measured peak",
                    d->n_rates > 1 ? "|>learning rate" : ""));
    const weft_report_variant *best = best_variant(d);
    bool told = best && is_told_apart(best);
    EACH_VARIANT(v, d)
        table_row(p, v, v == best && told);
    if (told)
        weft_page_say(p, "\xe2\x98\x85 marks the best mean.");
    else if (best)
        weft_page_say(p, "%s has the best mean, %s; it may be so by chance.", best->label,
                      weft_say_score(best->mean));
    const weft_report_run *single = NULL; /* the one with the best score, of the same variants */
    EACH_RUN(run, d)
        if (!run->variant->leaks && !run->variant->repeats && run->finished &&
            beats(d, run->score, single ? single->score : NAN))
            single = run;
    if (single)
        weft_page_say(
            p, "The best single run is %s with seed %lld and learning rate %g: %s %s, in %s.",
            single->variant->label, (long long)single->seed, single->rate, d->score_name,
            weft_say_score(single->score), single->folder);
    weft_page_line(
        p, "about",
        "Score: mean and standard deviation over the seeds that finished. Change: the mean of the "
        "differences from the baseline, seed by seed, so it may differ from the difference of two "
        "rows where a seed is missing. Memory measured is the device's, by its own count, the "
        "least of the seeds, or, on the CPU, the whole process at its largest. Tokens/s depend on "
        "what else the machine did meanwhile. Cache bytes and FLOPs (forward and backward) are "
        "counted. Where the models write samples, their section has the cache as measured.");
    if (d->n_rates > 1 && d->rate_seed >= 0)
        weft_page_say(p,
                      "Each variant was run at %d learning rates with seed %lld, which counts for "
                      "nothing else, and got the best of them.",
                      d->n_rates, (long long)d->rate_seed);
    else if (d->minima)
        weft_page_say(p, "Each variant's score is at the learning rate that has the best mean; the "
                         "verdicts compare minima over all rates, and so do the changes.");
    else if (d->n_rates > 1)
        weft_page_say(p,
                      "Each variant was run at %d learning rates and counts with the one that has "
                      "the best mean score (among those at which most of its seeds finished). The "
                      "choice and the score come from the same runs, which flatters every variant "
                      "alike.",
                      d->n_rates);
    if (d->rate_seed >= 0 && *d->rate_as)
        weft_page_say(p, "Some took over the learning rate of another, and tried no other: %s.",
                      d->rate_as);
    return WEFT_OK;
}

weft_status weft_report_repeats(weft_page *p, const weft_report_data *d) {
    static const char *const results[] = {[WEFT_REPEAT_UNKNOWN] = "not compared: both must finish",
                                          [WEFT_REPEAT_EQUAL] = "equal by checksum",
                                          [WEFT_REPEAT_UNEQUAL] = "NOT EQUAL"};
    int counts[3] = {0}, n = 0, anew = 0;
    EACH_RUN(run, d)
        n += run->variant->repeats != NULL;
    if (n == 0) return WEFT_OK;
    weft_page_fold(p, "Repeats, bit for bit",
                   "Some variants are trained a second time, in processes of their own: the same "
                   "config must give the same bits.");
    weft_page_table_open(p, "repeat|of|>seed|>learning rate|=result|=weights: repeat / first|"
                            ">metrics rows that differ|=repeat ran (UTC)|=first ran (UTC)|found");
    EACH_RUN(run, d) {
        if (!run->variant->repeats) continue;
        weft_report_repeat r;
        WEFT_TRY(weft_report_repeat_of(run, &r));
        counts[r.result]++;
        anew += r.first && *run->started && strcmp(run->started, r.first->started) != 0;
        const weft_report_run *first = r.first;
        bool bits = r.result == WEFT_REPEAT_EQUAL && r.files;
        weft_page_cells(p, run->variant->name, run->variant->repeats->name,
                        weft_say("%lld", (long long)run->seed), weft_say("%g", run->rate),
                        bits ? "equal, bit for bit" : results[r.result],
                        weft_say("%.12s / %.12s", *run->weights ? run->weights : "–",
                                 first && *first->weights ? first->weights : "–"),
                        r.rows >= 0 ? weft_say("%lld", (long long)r.rows) : "–",
                        weft_say_times(run), weft_say_times(first), r.detail);
    }
    weft_page_say(
        p,
        "%d of %d repeated runs are equal to the first; %d are not equal; %d could not be "
        "compared. Compared are the files of the final weights, byte for byte, and every "
        "number of every logged training step but the speed.%s",
        counts[WEFT_REPEAT_EQUAL], n, counts[WEFT_REPEAT_UNEQUAL], counts[WEFT_REPEAT_UNKNOWN],
        anew == n ? " The times show that each was trained anew." : "");
    return WEFT_OK;
}
