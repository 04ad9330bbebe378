/* Parabolas by least squares, and a bootstrap over runs.
 *
 * A loss is nearly quadratic in the logarithm of the rate around its minimum, and not far from it, so the
 * parabola goes through the rates within a factor of two of the best one, three of them at least: farther
 * off, training may be unstable. What moves a single run (its seed, the order of its batches) moves the minimum as well as its place; the bootstrap makes every run anew, as the fitted value and a
 * residual drawn from all of them, and fits again, window and all. The residuals are scaled for the degrees of freedom that
 * the fits took, and every draw has a spread of its own, drawn by chi-squared: with few runs the interval is
 * then as wide as Student's t has it, and not as the normal distribution. Where all rates were run with the same
 * seeds, what a seed moves everywhere is no part of a difference, and is taken out of the residuals.
 *
 * Runs of one variant count as independent. Where a seed moves all rates of one variant alike and not its baseline,
 * as much as chance moves a run, an interval of 95% covers about 91%. */
#include "study/statistics.h"

#include "base/order.h"
#include "base/random.h"

enum { RATES_MOST = 80, DRAWS = 10000, PARABOLA = 3 /* numbers that a fit takes */ };

static const double reach = 2.001; /* of the parabola, as a factor of the best rate */

/* The rates of a variant in their order, of finished runs, with the runs of each. */
typedef struct {
    int n, runs[RATES_MOST];
    double x[RATES_MOST]; /* log(rate) */
    double mean[RATES_MOST];
    double above; /* the lowest rate above them at which a run diverged; infinite: none */
} levels;

static levels list_levels(const weft_rate_run *runs, int n, double sign) {
    levels l = {.above = INFINITY};
    for (double rate = 0; l.n < RATES_MOST;) {
        double last = rate, sum = 0;
        int count = 0;
        rate = INFINITY; /* the next one */
        for (int i = 0; i < n; i++)
            if (runs[i].rate > last) rate = fmin(rate, runs[i].rate);
        if (isinf(rate)) break;
        for (int i = 0; i < n; i++) {
            if (runs[i].rate != rate) continue;
            sum += runs[i].score;
            count++;
        }
        if (!isfinite(sum)) {
            l.above = fmin(l.above, rate);
            continue;
        }
        l.x[l.n] = log(rate);
        l.mean[l.n] = sign * sum / count;
        l.runs[l.n++] = count;
    }
    if (l.n && l.above < exp(l.x[l.n - 1])) l.above = INFINITY;
    return l;
}

/* Where a parabola is least within its window, and which rates these are. */
typedef struct {
    int best, first, last;
    double middle, at[3], x, score;
    bool low, high; /* it is least at the end of the window */
} parabola;

static bool fit_means(const levels *l, const double *mean, parabola *p) {
    *p = (parabola){.best = 0};
    if (l->n < PARABOLA) return false;
    for (int i = 1; i < l->n; i++)
        if (mean[i] < mean[p->best]) p->best = i;
    p->first = p->last = p->best;
    for (;;) {
        double left = p->first > 0 ? l->x[p->best] - l->x[p->first - 1] : INFINITY;
        double right = p->last + 1 < l->n ? l->x[p->last + 1] - l->x[p->best] : INFINITY;
        double near = fmin(left, right);
        if (isinf(near) || (near > log(reach) && p->last - p->first >= 2)) break;
        if (left <= right)
            p->first--;
        else
            p->last++;
    }
    /* Least squares, each rate with the weight of its runs. */
    double s0 = 0, s1 = 0, s2 = 0, s3 = 0, s4 = 0, t0 = 0, t1 = 0, t2 = 0;
    for (int i = p->first; i <= p->last; i++) {
        s0 += l->runs[i];
        s1 += l->runs[i] * l->x[i];
    }
    p->middle = s1 / s0;
    for (int i = p->first; i <= p->last; i++) {
        double u = l->x[i] - p->middle, w = l->runs[i];
        s2 += w * u * u;
        s3 += w * u * u * u;
        s4 += w * u * u * u * u;
        t0 += w * mean[i];
        t1 += w * u * mean[i];
        t2 += w * u * u * mean[i];
    }
    p->at[2] = (t2 - s2 * t0 / s0 - s3 * t1 / s2) / (s4 - s2 * s2 / s0 - s3 * s3 / s2);
    p->at[1] = (t1 - s3 * p->at[2]) / s2;
    p->at[0] = (t0 - s2 * p->at[2]) / s0;
    double low = l->x[p->first] - p->middle, high = l->x[p->last] - p->middle;
    double u = -p->at[1] / (2 * p->at[2]);
    /* Without a minimum it is least at an end: this is the sign of how much higher the last end is. */
    if (!(p->at[2] > 0)) u = p->at[1] + p->at[2] * (low + high) > 0 ? low : high;
    p->low = u <= low;
    p->high = u >= high;
    u = fmin(fmax(u, low), high);
    p->x = p->middle + u;
    p->score = p->at[0] + u * (p->at[1] + u * p->at[2]);
    return true;
}

static double tidy(double rate) {
    char text[32];
    snprintf(text, sizeof text, "%.3g", rate);
    return strtod(text, NULL);
}

/* A rate beyond the edge, as far as the outermost are apart, by √2 to 2; below one that diverged. */
static double beyond(const levels *l, int edge) {
    int end = edge < 0 ? 0 : l->n - 1, next = edge < 0 ? 1 : l->n - 2;
    double rate = exp(l->x[end]), step = 2;
    if (l->n > 1) step = fmin(fmax(exp(fabs(l->x[end] - l->x[next])), sqrt(2)), 2);
    if (edge < 0) return tidy(rate / step);
    if (rate * step < l->above * (1 - 1e-6)) return tidy(rate * step);
    return l->above > 1.5 * rate ? tidy(sqrt(rate * l->above)) : NAN;
}

weft_minimum weft_minimum_fit(const weft_rate_run *runs, int n, bool higher_is_better) {
    double sign = higher_is_better ? -1 : 1;
    levels l = list_levels(runs, n, sign);
    weft_minimum m = {.rate = NAN, .score = NAN, .beyond = NAN};
    parabola p;
    if (!fit_means(&l, l.mean, &p)) {
        if (l.n && isfinite(l.above)) m.beyond = beyond(&l, m.edge = -1); /* the others diverged */
        return m;
    }
    m.rate = exp(p.x);
    m.score = sign * p.score;
    m.first = exp(l.x[p.first]);
    m.last = exp(l.x[p.last]);
    m.middle = exp(p.middle);
    for (int i = 0; i < 3; i++)
        m.at[i] = sign * p.at[i];
    if (p.best == 0 || p.best == l.n - 1)
        m.edge = p.best ? 1 : -1;
    else
        m.edge = p.low && p.first == 0 ? -1 : p.high && p.last == l.n - 1;
    if (m.edge) m.beyond = beyond(&l, m.edge);
    return m;
}

double weft_minimum_at(const weft_minimum *m, double rate) {
    double u = log(rate / m->middle);
    return m->at[0] + u * (m->at[1] + u * m->at[2]);
}

/* One of the two that are compared: its rates, and what each run's mean is drawn around. */
typedef struct {
    levels l;
    parabola p;
    double centre[RATES_MOST];
} side;

/* Adds the residuals of the runs within the window, with their seeds. */
static int add_residuals(const side *s, const weft_rate_run *runs, int n, double sign,
                         weft_rate_run *out) {
    int added = 0;
    for (int i = 0; i < n; i++) {
        int level = s->p.first;
        while (level <= s->p.last && !(runs[i].rate > 0 && s->l.x[level] == log(runs[i].rate)))
            level++;
        if (level > s->p.last) continue;
        out[added] = runs[i];
        out[added++].score = sign * runs[i].score - s->centre[level];
    }
    return added;
}

/* Takes out what each seed moves, where every rate of both sides has every seed; returns the degrees of freedom that
 * this took. */
static int center_seeds(weft_rate_run *list, int n, int rates) {
    int seeds = 0;
    for (int pass = 0; pass < 2 && (pass == 0 || n == seeds * rates); pass++)
        for (int i = 0; i < n; i++) {
            double sum = 0;
            int first = 0;
            while (list[first].seed != list[i].seed)
                first++;
            if (first < i) continue;
            seeds += pass == 0;
            for (int k = i; k < n; k++)
                if (list[k].seed == list[i].seed) sum += list[k].score;
            for (int k = i; pass == 1 && k < n; k++)
                if (list[k].seed == list[i].seed) list[k].score -= sum / rates;
        }
    return n == seeds * rates ? seeds - 1 : 0;
}

typedef struct {
    uint32_t draw, site;
    uint64_t next;
} numbers;

static uint32_t word_of(numbers *r) {
    return weft_random_word(0, r->draw, 0, r->site, r->next++);
}

static double unit_of(numbers *r) { /* in (0, 1] */
    return 1 - weft_random_unit(word_of(r));
}

static double chi_squared(numbers *r, int freedom) {
    double sum = 0;
    for (int i = 1; i < freedom; i += 2)
        sum -= 2 * log(unit_of(r));
    if (freedom % 2) sum -= 2 * log(unit_of(r)) * pow(cos(2 * acos(-1) * unit_of(r)), 2);
    return sum;
}

static double draw_minimum(const side *s, const weft_rate_run *residuals, int n, double scale,
                           numbers *r) {
    double mean[RATES_MOST];
    parabola p;
    for (int i = 0; i < s->l.n; i++) {
        double sum = 0;
        for (int k = 0; k < s->l.runs[i]; k++)
            sum += residuals[(uint64_t)word_of(r) * (uint64_t)n >> 32].score;
        mean[i] = s->centre[i] + scale * sum / s->l.runs[i];
    }
    fit_means(&s->l, mean, &p);
    return p.score;
}

/* What the drawn differences, in their order, say of one that is measured; lower is better. */
static void judge(weft_comparison *c, const double *sorted, double effect) {
    /* The outermost draws that an interval leaves out at each end, so that p is below the rest of 1 just where
     * the interval leaves out the effect. */
    const int out = (int)((1 - WEFT_CONFIDENCE) / 2 * DRAWS + 0.5) - 1;
    const int inner = (int)((1 - WEFT_EQUIVALENCE) / 2 * DRAWS + 0.5) - 1;
    int below = 0, above = 0, left = 0, right = 0;
    for (int i = 0; i < DRAWS; i++) {
        below += sorted[i] <= effect;
        above += sorted[i] >= -effect;
        left += sorted[i] <= -effect;
        right += sorted[i] >= effect;
    }
    c->low = sorted[out];
    c->high = sorted[DRAWS - 1 - out];
    c->p = fmin(2 * (1.0 + (c->mean < 0 ? above : below)) / (DRAWS + 1), 1);
    if (c->high < -effect) c->verdict = WEFT_BETTER;
    if (c->low > effect) c->verdict = WEFT_WORSE;
    if (c->verdict != WEFT_NO_DIFFERENCE || !(sorted[inner] > -effect) ||
        !(sorted[DRAWS - 1 - inner] < effect))
        return;
    c->verdict = WEFT_EQUIVALENT;
    c->p = (1.0 + (left > right ? left : right)) / (DRAWS + 1);
}

/* False: it has no minimum. */
static bool fit_side(const weft_rate_run *runs, int n, double sign, side *s) {
    s->l = list_levels(runs, n, sign);
    if (!fit_means(&s->l, s->l.mean, &s->p)) return false;
    for (int k = 0; k < s->l.n; k++) {
        double u = s->l.x[k] - s->p.middle;
        bool fitted = k >= s->p.first && k <= s->p.last;
        s->centre[k] = fitted ? s->p.at[0] + u * (s->p.at[1] + u * s->p.at[2]) : s->l.mean[k];
    }
    return true;
}

weft_status weft_compare_minima(const weft_rate_run *variant, int n, const weft_rate_run *baseline,
                                int m, double effect, bool higher_is_better, weft_comparison *c) {
    double sign = higher_is_better ? -1 : 1;
    *c = (weft_comparison){
        .minima = true, .mean = NAN, .sd = NAN, .low = NAN, .high = NAN, .p = NAN};
    c->variant = c->baseline = c->percent = NAN;
    side a, b;
    if (!fit_side(variant, n, sign, &a) || !fit_side(baseline, m, sign, &b)) return WEFT_OK;
    WEFT_ROOM(weft_rate_run, residuals, n + m, "study: no memory to compare variants");
    WEFT_ROOM(double, drawn, DRAWS, "study: no memory to compare variants");
    int of_a = add_residuals(&a, variant, n, sign, residuals);
    int of_b = add_residuals(&b, baseline, m, sign, residuals + of_a), all = of_a + of_b;
    c->variant = sign * a.p.score;
    c->baseline = sign * b.p.score;
    c->mean = a.p.score - b.p.score;
    c->pairs = 1;
    int freedom = all - 2 * PARABOLA -
                  center_seeds(residuals, all, a.p.last - a.p.first + b.p.last - b.p.first + 2);
    if (freedom > 0) {
        c->pairs = of_a < of_b ? of_a : of_b;
        numbers r = {.site = weft_random_site("study.minimum")};
        for (; r.draw < DRAWS; r.draw++) {
            r.next = 0;
            double scale = sqrt(all / chi_squared(&r, freedom));
            drawn[r.draw] = draw_minimum(&a, residuals, all, scale, &r);
            drawn[r.draw] -= draw_minimum(&b, residuals, all, scale, &r);
        }
        qsort(drawn, DRAWS, sizeof *drawn, weft_order_doubles);
        judge(c, drawn, effect);
    }
    if (higher_is_better) {
        double low = c->low;
        c->mean = -c->mean;
        c->low = -c->high;
        c->high = -low;
    }
    if (c->baseline != 0) c->percent = 100 * c->mean / fabs(c->baseline);
    return WEFT_OK;
}
