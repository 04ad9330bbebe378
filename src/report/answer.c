/* The first screen: the question, the answer in a sentence, and what must be known beside it. Repeats
 * are no comparisons of their own and are left out. */
#include "report/sections.h"

#include "base/json.h"
#include "base/text.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>

enum { NAMES_MOST = 3 };

bool weft_report_is_compared(const weft_report_variant *v) {
    return v->baseline && !v->repeats;
}

int weft_report_count(const weft_report_data *d, weft_variant_is *is) {
    int n = 0;
    EACH_VARIANT(v, d)
        n += is(v);
    return n;
}

void weft_report_open_table(weft_page *p, const weft_report_data *d, const char *first,
                            weft_variant_is *is) {
    weft_page_table_open(p, first);
    EACH_VARIANT(v, d)
        if (!is || is(v)) weft_page_head(p, "%s", v->label);
}

/* Compared, and worth a word in the answer: it can be built and sees no answer. */
bool weft_report_counts(const weft_report_variant *v) {
    return weft_report_is_compared(v) && !*v->error && v->leaks == v->baseline->leaks;
}

/* A difference from the baseline is shown, whatever else is to be said of it. */
static bool is_shown(const weft_report_variant *v) {
    weft_verdict verdict = v->compared.verdict;
    return weft_report_counts(v) && (verdict == WEFT_BETTER || verdict == WEFT_WORSE);
}

static bool is_equivalent(const weft_report_variant *v) {
    return weft_report_counts(v) && v->compared.verdict == WEFT_EQUIVALENT;
}

/* A variant's rate, or its minimum, is at the least or the most of those that were tried for it. */
static bool is_rate_at_edge(const weft_report_variant *v) {
    double least = NAN, most = NAN;
    if (v->study->minima) return v->minimum.edge != 0;
    EACH_RUN_OF(run, v) {
        least = fmin(least, run->rate);
        most = fmax(most, run->rate);
    }
    return least < most && (v->rate == least || v->rate == most);
}

/* Equivalent by itself; or its minimum, or the baseline's, may lie beyond the rates that were tried. */
static bool is_hardly_equivalent(const weft_report_variant *v) {
    return is_equivalent(v) && (!v->left || is_rate_at_edge(v) || is_rate_at_edge(v->baseline));
}

static bool is_at_edge(const weft_report_variant *v) {
    return !v->repeats && v->done > 0 && is_rate_at_edge(v);
}

/* The side that came off worse might have done better with a rate that was not tried. (With the other
 * side's at the edge the difference could only be larger.) */
static bool lost_at_edge(const weft_report_variant *v) {
    return is_shown(v) && is_at_edge(v->compared.verdict == WEFT_BETTER ? v->baseline : v);
}

static bool is_not_left(const weft_report_variant *v) {
    return is_shown(v) && !v->left;
}

static bool has_two_seeds(const weft_report_variant *v) {
    return is_shown(v) && v->compared.pairs == 2;
}

static bool has_fewer_seeds(const weft_report_variant *v) {
    return has_two_seeds(v) && v->study->most_pairs > 2;
}

static bool has_two_versions(const weft_report_variant *v) {
    if (!is_shown(v) && !is_equivalent(v)) return false;
    EACH_PAIR(pair, v, v->baseline)
        if (pair.counts && strcmp(weft_json_text_of(pair.variant->facts, "commit"),
                                  weft_json_text_of(pair.baseline->facts, "commit")) != 0)
            return true;
    return false;
}

/* Shown, and one of the caveats takes it back: the sentence does not name it. */
bool weft_report_is_in_doubt(const weft_report_variant *v) {
    return is_not_left(v) || has_two_seeds(v) || lost_at_edge(v) || has_two_versions(v) ||
           is_hardly_equivalent(v);
}

static bool comes_out(const weft_report_variant *v, weft_verdict verdict) {
    return weft_report_counts(v) && v->compared.verdict == verdict && !weft_report_is_in_doubt(v);
}

static int count_verdicts(const weft_report_data *d, weft_verdict verdict) {
    int n = 0;
    EACH_VARIANT(v, d)
        n += comes_out(v, verdict);
    return n;
}

/* The one whose difference is the largest, of those with a verdict, or of all with an interval. */
enum { ANY_VERDICT = -1 };

static const weft_report_variant *largest(const weft_report_data *d, int verdict) {
    const weft_report_variant *best = NULL;
    EACH_VARIANT(v, d) {
        if (verdict == ANY_VERDICT ? !weft_report_counts(v) || v->compared.pairs < 2
                                   : !comes_out(v, (weft_verdict)verdict))
            continue;
        if (!best || fabs(v->compared.percent) > fabs(best->compared.percent)) best = v;
    }
    return best;
}

const weft_report_variant *weft_report_headline(const weft_report_data *d) {
    static const int order[] = {WEFT_BETTER, WEFT_WORSE, ANY_VERDICT};
    for (int i = 0; i < 3; i++)
        if (largest(d, order[i])) return largest(d, order[i]);
    EACH_VARIANT(v, d)
        if (weft_report_counts(v)) return v;
    return NULL;
}

/* " against B": a baseline that is not the first variant, which readers take it to be. */
static void write_baseline(FILE *out, const weft_report_variant *v) {
    if (v->baseline && v->baseline->place > 0) fprintf(out, " against %s", v->baseline->label);
}

/* What came out in one direction; nothing where nothing did. */
static void write_side(FILE *out, const weft_report_data *d, weft_verdict verdict, const char *verb,
                       const char *object, int all) {
    int n = count_verdicts(d, verdict);
    if (n == 0) return;
    if (n <= NAMES_MOST) {
        /* "A by 2.1%, B by 1.0% against C and D by 0.5%", with their interval where there is one alone. */
        int said = 0;
        EACH_VARIANT(v, d) {
            const weft_comparison *k = &v->compared;
            if (!comes_out(v, verdict)) continue;
            fprintf(out, "%s%s", weft_say_between(said, n), v->label);
            if (said == 0) fprintf(out, " %s %s", verb, object);
            said++;
            fprintf(out, " by %s", weft_say_share(k, k->mean));
            write_baseline(out, v);
            if (n == 1) {
                double least = fmin(fabs(k->low), fabs(k->high)),
                       most = fmax(fabs(k->low), fabs(k->high));
                fprintf(out, " (%.0f%% interval %s to %s)", 100 * WEFT_CONFIDENCE,
                        weft_say_share(k, least), weft_say_share(k, most));
            }
        }
        return;
    }
    const weft_report_variant *most = largest(d, (int)verdict);
    if (n == all)
        fprintf(out, "All %d variants", n);
    else
        fprintf(out, "%d of %d variants", n, all);
    fprintf(out, " %s %s, %s the most: by %s", verb, object, most->label,
            weft_say_share(&most->compared, most->compared.mean));
    write_baseline(out, most);
}

/* "3 seeds could have shown a difference of 2.0%": the half of the widest interval; of a range where
 * the variants' widths are unlike. */
static void write_power(FILE *out, const weft_report_data *d) {
    double least = NAN, most = NAN;
    const weft_comparison *narrow = NULL, *wide = NULL;
    EACH_VARIANT(v, d) {
        const weft_comparison *c = &v->compared;
        if (!weft_report_counts(v) || c->verdict != WEFT_NO_DIFFERENCE || c->pairs < 2) continue;
        double half = (c->high - c->low) / 2, share = c->baseline != 0 ? half / c->baseline : half;
        if (!(share >= least)) least = share, narrow = c;
        if (!(share <= most)) most = share, wide = c;
    }
    if (!wide || !narrow) return;
    fprintf(out, "%s could have shown a difference of ", weft_say_pairs(d, d->most_pairs));
    if (most > 1.5 * least)
        fprintf(out, "%s to %s, depending on the variant",
                weft_say_share(narrow, (narrow->high - narrow->low) / 2),
                weft_say_share(wide, (wide->high - wide->low) / 2));
    else
        fputs(weft_say_share(wide, (wide->high - wide->low) / 2), out);
}

static void write_sides(FILE *out, const weft_report_data *d, bool none, int all) {
    const char *gain = d->higher_is_better ? "raised" : "lowered";
    const char *loss = d->higher_is_better ? "lowered" : "raised";
    const char *object = weft_say("the %.100s", d->score_name);
    bool begun = none || count_verdicts(d, WEFT_BETTER);
    if (none) fprintf(out, "No variant %s %s", gain, object);
    write_side(out, d, WEFT_BETTER, gain, object, all);
    if (begun && count_verdicts(d, WEFT_WORSE)) fputs("; ", out);
    write_side(out, d, WEFT_WORSE, loss, begun ? "it" : object, all);
}

/* "A and B against C", or how many they are. */
static void write_those(FILE *out, const weft_report_data *d, weft_verdict verdict, int n) {
    int said = 0;
    if (n > NAMES_MOST) fprintf(out, "%d others", n);
    EACH_VARIANT(v, d) {
        if (n > NAMES_MOST || !comes_out(v, verdict)) continue;
        fprintf(out, "%s%s", weft_say_between(said++, n), v->label);
        write_baseline(out, v);
    }
}

static void write_outcome(FILE *out, const weft_report_data *d) {
    int better = count_verdicts(d, WEFT_BETTER), worse = count_verdicts(d, WEFT_WORSE);
    int open = count_verdicts(d, WEFT_NO_DIFFERENCE), yet = count_verdicts(d, WEFT_NOT_YET);
    int same = count_verdicts(d, WEFT_EQUIVALENT);
    int doubts = weft_report_count(d, weft_report_is_in_doubt),
        all = better + worse + open + yet + same + doubts;
    if (doubts && !better && !worse && !same) {
        fputs("Nothing is settled: ", out);
        if (all > 1) fprintf(out, "for %d of %d variants ", doubts, all);
        fputs("a difference was seen that the warnings below put in doubt.", out);
        return;
    }
    bool none = better == 0 && all > 1 && !doubts && !same;
    if (same) { /* "A and B are equivalent to the baseline, within 0.01; " */
        write_those(out, d, WEFT_EQUIVALENT, same);
        fprintf(out, " %s equivalent to the baseline, within %g%s", same == 1 ? "is" : "are",
                d->effect, better || worse || open ? "; " : "");
    }
    write_sides(out, d, none, all);
    if (open && (better || worse)) {
        fputs("; for ", out);
        write_those(out, d, WEFT_NO_DIFFERENCE, open);
        fputs(" no difference was shown", out);
    } else if (open) {
        /* Of the one comparison that there is. */
        const weft_report_variant *most = none ? NULL : largest(d, WEFT_NO_DIFFERENCE);
        if (most)
            fprintf(out, "No difference in %.100s was shown between %s and %s", d->score_name,
                    most->label, most->baseline->label);
        fputs("; ", out);
        write_power(out, d);
    }
    if (doubts)
        fprintf(out, "; for %d %s a difference was seen that the warnings below put in doubt",
                doubts, doubts == 1 ? "other" : "others");
    fputs(".", out);
}

/* Where there is nothing to compare: what was reached. */
static void write_alone(FILE *out, const weft_report_data *d) {
    const weft_report_variant *s = &d->variants[0];
    if (d->n_variants > 1 || !isfinite(s->mean)) {
        fputs("Nothing is compared: no variant has a baseline.", out);
        return;
    }
    fprintf(out, "%s reached a %s of %s", s->label, d->score_name, weft_say_score(s->mean));
    if (!d->higher_is_better && s->mean < 20) fprintf(out, " (perplexity %.3g)", exp(s->mean));
    if (s->done > 1) fprintf(out, ", the mean of %d seeds", s->done);
    if (isfinite(s->iters)) fprintf(out, ", after %.0f training steps", s->iters);
    fputs(".", out);
}

char *weft_report_sentence(const weft_report_data *d) {
    char *text = NULL;
    size_t size;
    FILE *out = open_memstream(&text, &size);
    if (!out) return NULL;
    int comparisons = weft_report_count(d, weft_report_is_compared);
    int counted = weft_report_count(d, weft_report_counts);
    if (d->n_variants == 0) {
        fputs("There are no variants yet.", out);
    } else if (d->waiting) {
        fprintf(out, "Not yet: %d of %d runs are finished.", d->finished, d->n_runs);
        if (count_verdicts(d, WEFT_BETTER) || count_verdicts(d, WEFT_WORSE)) {
            fputs(" So far: ", out);
            write_sides(out, d, false, counted);
            fputs(".", out);
        }
    } else if (d->nothing_learned) {
        fprintf(
            out,
            "Nothing was learned: every run ends at the loss of guessing (%.4f), so the variants "
            "cannot be told apart.",
            log(d->vocabulary));
    } else if (comparisons == 0) {
        write_alone(out, d);
    } else if (counted == 0) {
        fputs("Nothing can be compared: no variant can be built and keeps from seeing later "
              "tokens, as its baseline does.",
              out);
    } else if (d->most_pairs == 0) {
        fputs("Nothing can be compared: no seed was finished by a variant and its baseline.", out);
    } else if (d->most_pairs == 1) {
        fputs("One seed cannot tell: a difference needs at least two to be told from chance.", out);
    } else {
        write_outcome(out, d);
    }
    return weft_memory_end(out, &text);
}

static bool leaks_alone(const weft_report_variant *v) {
    return v->leaks && (!v->baseline || !v->baseline->leaks);
}

static bool cannot_be_built(const weft_report_variant *v) {
    return *v->error != '\0';
}

static bool is_unequal(const weft_report_variant *v) {
    weft_report_repeat r;
    EACH_RUN_OF(run, v)
        if (v->repeats && weft_report_repeat_of(run, &r) == WEFT_OK &&
            r.result == WEFT_REPEAT_UNEQUAL)
            return true;
    return false;
}

static void list_variant_caveats(const weft_report_data *d, json_t *list) {
    static const struct {
        weft_variant_is *is;
        const char *one, *more; /* NULL: the same of several */
    } kinds[] = {
        {leaks_alone, " leaks: a token sees later ones, so its score is not one of prediction.",
         " leak: a token sees later ones, so their scores are not of prediction."},
        {cannot_be_built, " cannot be built and was not run.",
         " cannot be built and were not run."},
        {is_at_edge,
         " got a learning rate at the edge of those tried: a better one may lie beyond it.", NULL},
        {is_not_left,
         " differs from its baseline, but not when all comparisons are counted together (Holm's "
         "method).",
         " differ from their baselines, but not when all comparisons are counted together (Holm's "
         "method)."},
        {is_hardly_equivalent,
         " is equivalent to its baseline by itself, but not when all comparisons are counted "
         "together (Holm's method), or a minimum is at the edge of the learning rates.",
         " are equivalent to their baselines by themselves, but not when all comparisons are "
         "counted together (Holm's method), or a minimum is at the edge of the learning rates."},
        {has_fewer_seeds, " was compared over two seeds only, which are too few.",
         " were compared over two seeds only, which are too few."},
        {has_two_versions,
         " was trained by another version of weft than its baseline, which may be a part of the "
         "difference.",
         " were trained by other versions of weft than their baselines, which may be a part of the "
         "differences."},
        {is_unequal, " did not repeat to the same bits.", NULL},
    };
    for (int i = 0; i < WEFT_COUNT(kinds); i++) {
        WEFT_AUTO_FREE char *text = NULL;
        size_t size;
        int n = weft_report_count(d, kinds[i].is), said = 0;
        FILE *out = n ? open_memstream(&text, &size) : NULL;
        if (!out) continue;
        /* "A", "A and B", "A, B and 2 others": the labels of the n variants that `is` says. */
        EACH_VARIANT(v, d) {
            if (!kinds[i].is(v)) continue;
            if (said == NAMES_MOST && n > NAMES_MOST + 1) {
                fprintf(out, " and %d others", n - said);
                break;
            }
            fprintf(out, "%s%s", weft_say_between(said++, n), v->label);
        }
        fputs(n == 1 || !kinds[i].more ? kinds[i].one : kinds[i].more, out);
        if (weft_memory_end(out, &text)) json_array_append_new(list, weft_json_text(text));
    }
}

json_t *weft_report_caveats(const weft_report_data *d) {
    json_t *list = json_array();
    int failed = 0;
    EACH_RUN(run, d)
        failed += strcmp(run->status, "failed") == 0 || strcmp(run->status, "diverged") == 0;
    if (d->most_pairs == 2 && !d->nothing_learned)
        json_array_append_new(
            list,
            json_string("Two seeds are too few: the interval of two is 12.7 standard errors to "
                        "either side, of three 4.3, of five 2.8."));
    if (failed)
        json_array_append_new(
            list,
            json_sprintf("%d of %d runs failed or diverged and are left out.", failed, d->n_runs));
    list_variant_caveats(d, list);
    return list;
}

bool weft_report_is_repeat(const weft_report_variant *v) {
    return v->repeats;
}

weft_status weft_report_answer(weft_page *p, const weft_report_data *d) {
    WEFT_AUTO_FREE char *sentence = weft_report_sentence(d);
    WEFT_AUTO_DECREF json_t *caveats = weft_report_caveats(d);
    const char *day = weft_say("%.*s", (int)fmin((double)strcspn(d->created, "T"), 39), d->created);
    int repeats = weft_report_count(d, weft_report_is_repeat);
    const char *counts = weft_say_plural(d->n_variants - repeats, "variant");
    if (repeats)
        counts = weft_say("%s (and %s as a check)", counts, weft_say_plural(repeats, "repeat"));
    counts =
        d->n_runs == 1
            ? "1 run"
            : weft_say("%s, %s, %s; %d of %d runs", counts, weft_say_plural(d->n_seeds, "seed"),
                       weft_say_plural(d->n_rates, "learning rate"), d->finished, d->n_runs);
    weft_page_line(p, "facts", "%s%s%s%s%s%.12s%s%s%s%s finished.", day,
                   *day && *d->version ? ", " : "", *d->version ? "weft " : "", d->version,
                   *d->commit ? ", commit " : "", d->commit, *d->machine ? ", " : "", d->machine,
                   *day || *d->version ? "; " : "", counts);
    if (*d->question)
        weft_page_line(p, "question", "%s", d->question);
    else if (d->baseline)
        weft_page_line(p, "question", "Does any variant have a %s %s than %s?",
                       d->higher_is_better ? "higher" : "lower", d->score_name, d->baseline->label);
    else if (d->n_variants > 1)
        weft_page_line(p, "question", "How does each variant compare with its baseline?");
    /* What the sentence says first is the headline; the rest follows in plain size. */
    const char *rest = sentence ? strstr(sentence, "; ") : NULL;
    weft_page_line(p, "answer", rest ? "%.*s." : "%.*s", rest ? (int)(rest - sentence) : INT_MAX,
                   sentence ? sentence : "");
    if (rest) weft_page_line(p, "rest", "%c%s", toupper((unsigned char)rest[2]), rest + 3);
    EACH_ITEM(caveat, caveats)
        weft_page_line(p, "caveat", "%s", json_string_value(caveat.value));
    return weft_report_forest(p, d);
}
