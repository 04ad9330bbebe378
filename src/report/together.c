/* Three seeds leave two degrees of freedom for a comparison, and many comparisons find something by
 * chance: the first is answered by a pooled standard deviation, the second by Holm's method. */
#include "report/sections.h"

#include "base/json.h"

#include <math.h>
#include <stdlib.h>

/* The variants with the most seeds, as a two-way analysis of variance over variants and seeds: the
 * standard deviation pooled over them, with more degrees of freedom than a single comparison has. */
typedef struct {
    int variants, seeds, freedom;
    double sd;   /* what neither variant nor seed explains */
    double half; /* of the interval of a difference, at WEFT_CONFIDENCE */
} common;

/* Variants whose scores may stand beside one another. */
static bool takes_part(const weft_report_variant *s) {
    return s->repeats < 0 && !*s->error && !s->leaks && s->done > 1 && isfinite(s->rate);
}

/* The scores of one seed, a variant after the other; false: one of them has none. */
static bool list_seed(const weft_report_data *d, int most, int64_t seed, double *scores) {
    for (int i = 0; i < d->n_variants; i++) {
        if (!takes_part(&d->variants[i]) || d->variants[i].done < most) continue;
        const weft_report_run *run = weft_report_find(d, i, d->variants[i].rate, seed);
        if (!run || !run->finished) return false;
        *scores++ = run->score;
    }
    return true;
}

/* The square root of what is left of scores[seeds][variants] without the means of its rows and columns,
 * by its degrees of freedom. */
static double unexplained(const double *scores, int seeds, int variants, int freedom) {
    double all = weft_mean(scores, seeds * variants), rest = 0;
    for (int v = 0; v < variants; v++) {
        double mean = 0;
        for (int k = 0; k < seeds; k++)
            mean += scores[k * variants + v] / seeds;
        for (int k = 0; k < seeds; k++)
            rest += pow(scores[k * variants + v] - mean -
                            weft_mean(scores + k * variants, variants) + all,
                        2);
    }
    return sqrt(rest / freedom);
}

/* False: fewer than three such variants, or two seeds. Repeats and variants that leak stay out. */
static bool find_common(const weft_report_data *d, common *out) {
    int most = 0;
    for (int i = 0; i < d->n_variants; i++)
        if (takes_part(&d->variants[i]) && d->variants[i].done > most) most = d->variants[i].done;
    *out = (common){0};
    for (int i = 0; i < d->n_variants; i++)
        out->variants += takes_part(&d->variants[i]) && d->variants[i].done == most;
    double *scores = out->variants < 3 || d->n_seeds < 2
                         ? NULL
                         : calloc((size_t)d->n_seeds * (size_t)out->variants, sizeof *scores);
    if (!scores) return false;
    for (int i = 0; i < d->n_seeds; i++)
        out->seeds += list_seed(d, most, d->seeds[i], scores + out->seeds * out->variants);
    out->freedom = (out->variants - 1) * (out->seeds - 1);
    if (out->seeds > 1) {
        out->sd = unexplained(scores, out->seeds, out->variants, out->freedom);
        out->half = weft_t_quantile((1 + WEFT_CONFIDENCE) / 2, out->freedom) * out->sd *
                    sqrt(2.0 / out->seeds);
    }
    free(scores);
    return out->seeds > 1;
}

static bool has_interval(const weft_report_data *d, int variant) {
    const weft_comparison *c = &d->variants[variant].compared;
    return weft_report_counts(d, variant) && c->verdict != WEFT_NOT_YET &&
           isfinite(weft_comparison_p(c));
}

void weft_report_holm(weft_report_data *d) {
    for (int n = weft_report_count(d, has_interval); n > 0; n--) {
        int least = -1;
        double p = INFINITY;
        for (int i = 0; i < d->n_variants; i++) {
            if (d->variants[i].left || !has_interval(d, i)) continue;
            double one = weft_comparison_p(&d->variants[i].compared);
            if (one >= p) continue;
            least = i;
            p = one;
        }
        if (least < 0 || p > (1 - WEFT_CONFIDENCE) / n) return;
        d->variants[least].left = true;
    }
}

/* "Gate against Plain, Cross against Plain" */
static void add_name(FILE *out, const weft_report_data *d, int variant, bool *any) {
    fprintf(out, "%s%s against %s", *any ? ", " : "", weft_say_variant(d, variant),
            weft_say_variant(d, d->variants[variant].baseline));
    *any = true;
}

static void write_common(FILE *out, const weft_report_data *d, const common *c) {
    bool any = false;
    fprintf(out,
            " Read with the standard deviation pooled over all %d variants (%.3g, %d degrees of "
            "freedom; a two-way analysis of variance over variants and seeds), an interval is "
            "±%.3g, and a difference is shown for ",
            c->variants, c->sd, c->freedom, c->half);
    for (int i = 0; i < d->n_variants; i++)
        if (has_interval(d, i) && fabs(d->variants[i].compared.mean) > c->half)
            add_name(out, d, i, &any);
    fputs(any ? "." : "none.", out);
}

void weft_report_say_together(weft_page *p, const weft_report_data *d) {
    common spread;
    if (weft_report_comparisons(d) < 2) return;
    fputs("Counted together by Holm's method, ", p->words);
    bool any = false;
    for (int i = 0; i < d->n_variants; i++) {
        if (!d->variants[i].left) continue;
        if (!any) fputs("these are left: ", p->words);
        add_name(p->words, d, i, &any);
    }
    if (!any) fputs("none is left", p->words);
    fputs(".", p->words);
    if (!d->minima && find_common(d, &spread)) write_common(p->words, d, &spread);
    weft_page_say(p, "%s", weft_page_words(p));
}

json_t *weft_report_common_json(const weft_report_data *d) {
    common c;
    if (!find_common(d, &c)) return json_null();
    return json_pack("{s:i, s:i, s:i, s:o, s:o}", "variants", c.variants, "seeds", c.seeds,
                     "freedom", c.freedom, "sd", weft_json_number(c.sd), "half",
                     weft_json_number(c.half));
}
