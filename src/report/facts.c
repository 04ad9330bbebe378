/* What the runs' records say, by variant: means over the runs that count, and comparisons seed by seed. */
#include "report/data.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

bool weft_report_run_counts(const weft_report_data *d, const weft_report_run *run) {
    return run->finished && !run->chooses && run->rate == d->variants[run->variant].rate;
}

const weft_report_fact *weft_report_fact_of(const weft_report_data *d, const weft_report_run *run,
                                            const char *name) {
    for (int i = 0; i < d->n_facts; i++)
        if (&d->runs[d->facts[i].run] == run && strcmp(d->facts[i].name, name) == 0)
            return &d->facts[i];
    return NULL;
}

double weft_report_fact_mean(const weft_report_data *d, int variant, const char *name) {
    double sum = 0;
    int n = 0;
    for (int i = 0; i < d->n_facts; i++) {
        const weft_report_fact *fact = &d->facts[i];
        const weft_report_run *run = &d->runs[fact->run];
        if (run->variant != variant || !weft_report_run_counts(d, run)) continue;
        if (strcmp(fact->name, name) != 0 || !isfinite(fact->value)) continue;
        sum += fact->value;
        n++;
    }
    return n ? sum / n : NAN;
}

weft_status weft_report_fact_compare(const weft_report_data *d, int variant, int baseline,
                                     const char *name, weft_comparison *out) {
    double *values = malloc(sizeof *values * (2 * (size_t)d->n_seeds + 1));
    if (!values) return weft_fail(WEFT_ENOMEM, "%s: no memory to read it", d->path);
    double *other = values + d->n_seeds;
    int n = 0;
    for (int i = 0; i < d->n_seeds; i++) {
        weft_report_pair pair = weft_report_pair_of(d, variant, baseline, d->seeds[i]);
        const weft_report_fact *a = pair.counts ? weft_report_fact_of(d, pair.variant, name) : NULL;
        const weft_report_fact *b =
            pair.counts ? weft_report_fact_of(d, pair.baseline, name) : NULL;
        if (!a || !b || !isfinite(a->value) || !isfinite(b->value)) continue;
        values[n] = a->value;
        other[n++] = b->value;
    }
    *out = weft_compare(values, other, n, false);
    free(values);
    return WEFT_OK;
}
