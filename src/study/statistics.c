/* Student's t by the incomplete beta function, and verdicts from paired differences.
 *
 * A seed decides the first weights and the order of the batches, and moves a score by more than
 * most ideas do. Both variants of a comparison were run with the same seeds, so the difference is taken
 * within each seed, where that part cancels, and the interval is that of the mean difference:
 * mean +- t sd / sqrt(n), with n - 1 degrees of freedom. One pair has no spread and no interval, and
 * no verdict follows from it.
 *
 * The incomplete beta function is a continued fraction (Lentz's way of summing it up from the
 * front); the quantile is found by halving, since the probability is monotone and speed is no
 * matter. */
#include "study/statistics.h"

#include <float.h>
#include <math.h>

double weft_mean(const double *values, int n) {
    if (n < 1) return NAN;
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += values[i];
    return sum / n;
}

double weft_sd(const double *values, int n) {
    if (n < 2) return NAN;
    double mean = weft_mean(values, n), sum = 0;
    for (int i = 0; i < n; i++)
        sum += (values[i] - mean) * (values[i] - mean);
    return sqrt(sum / (n - 1));
}

static double nonzero(double x) {
    return fabs(x) < DBL_MIN ? DBL_MIN : x;
}

/* The continued fraction of I_x(a, b); it settles fast where x < (a + 1) / (a + b + 2). */
static double beta_fraction(double x, double a, double b) {
    enum { TERMS_MOST = 10000 };
    double c = 1, d = 1 / nonzero(1 - (a + b) * x / (a + 1)), sum = d;
    for (int m = 1; m < TERMS_MOST; m++) {
        double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
        d = 1 / nonzero(1 + even * d);
        c = nonzero(1 + even / c);
        sum *= d * c;
        double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
        d = 1 / nonzero(1 + odd * d);
        c = nonzero(1 + odd / c);
        sum *= d * c;
        if (fabs(d * c - 1) < DBL_EPSILON) break;
    }
    return sum;
}

/* I_x(a, b); `rest` is 1 - x, given so that it need not be computed from an x next to 1. */
static double incomplete_beta(double x, double rest, double a, double b) {
    if (x <= 0) return 0;
    if (rest <= 0) return 1;
    double front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(rest));
    if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(x, a, b) / a;
    return 1 - front * beta_fraction(rest, b, a) / b;
}

double weft_t_probability(double t, double freedom) {
    if (isnan(t) || !(freedom > 0)) return NAN;
    if (isinf(t)) return t > 0 ? 1 : 0;
    double square = t * t, whole = freedom + square;
    double tail = incomplete_beta(freedom / whole, square / whole, freedom / 2, 0.5) / 2;
    return t > 0 ? 1 - tail : tail;
}

double weft_t_quantile(double probability, double freedom) {
    enum { HALVINGS_MOST = 4096 };
    if (!(probability >= 0 && probability <= 1) || !(freedom > 0)) return NAN;
    if (probability == 0) return -INFINITY;
    if (probability == 1) return INFINITY;
    if (probability == 0.5) return 0;
    /* The lower tail is the one with digits to spare. */
    double tail = probability < 0.5 ? probability : 1 - probability, low = -1, high = 0;
    while (weft_t_probability(low, freedom) > tail && low > -DBL_MAX / 4)
        low *= 2;
    for (int i = 0; i < HALVINGS_MOST; i++) {
        double middle = (low + high) / 2;
        if (!(middle > low && middle < high)) break; /* neighbours */
        if (weft_t_probability(middle, freedom) < tail)
            low = middle;
        else
            high = middle;
    }
    return probability < 0.5 ? high : -high;
}

const char *weft_verdict_word(weft_verdict v) {
    static const char *const words[] = {"no difference shown", "better", "worse", "not yet",
                                        "equivalent"};
    return words[v];
}

const char *weft_comparison_word(const weft_comparison *c) {
    static const char *const words[] = {"undecided", "helps", "hurts"};
    return c->minima && c->verdict <= WEFT_WORSE ? words[c->verdict]
                                                 : weft_verdict_word(c->verdict);
}

weft_comparison weft_compare(const double *variant, const double *baseline, int pairs,
                             bool higher_is_better) {
    weft_comparison c = {.pairs = pairs, .mean = NAN, .sd = NAN, .low = NAN, .high = NAN};
    c.variant = weft_mean(variant, pairs);
    c.baseline = weft_mean(baseline, pairs);
    c.percent = NAN;
    if (pairs < 1) return c;
    double sum = 0, squares = 0;
    for (int i = 0; i < pairs; i++)
        sum += variant[i] - baseline[i];
    c.mean = sum / pairs;
    if (c.baseline != 0) c.percent = 100 * c.mean / fabs(c.baseline);
    if (pairs < 2) return c;
    for (int i = 0; i < pairs; i++)
        squares += pow(variant[i] - baseline[i] - c.mean, 2);
    c.sd = sqrt(squares / (pairs - 1));
    double half = weft_t_quantile((1 + WEFT_CONFIDENCE) / 2, pairs - 1) * c.sd / sqrt(pairs);
    c.low = c.mean - half;
    c.high = c.mean + half;
    if (c.low > 0) c.verdict = higher_is_better ? WEFT_BETTER : WEFT_WORSE;
    if (c.high < 0) c.verdict = higher_is_better ? WEFT_WORSE : WEFT_BETTER;
    return c;
}

double weft_comparison_p(const weft_comparison *c) {
    if (c->minima) return c->p;
    if (c->pairs < 2 || !isfinite(c->mean) || !isfinite(c->sd)) return NAN;
    if (c->sd == 0) return c->mean == 0 ? 1 : 0;
    double t = fabs(c->mean) / (c->sd / sqrt(c->pairs));
    return 2 * weft_t_probability(-t, c->pairs - 1);
}

int weft_seeds_needed(const weft_comparison *c) {
    if (c->pairs < 2 || !(c->sd > 0) || c->mean == 0) return 0;
    for (int n = 2; n <= WEFT_SEEDS_MOST; n++)
        if (weft_t_quantile((1 + WEFT_CONFIDENCE) / 2, n - 1) * c->sd / sqrt(n) < fabs(c->mean))
            return n;
    return 0;
}

static double normal_probability(double z) {
    return erfc(-z / sqrt(2)) / 2;
}

/* t with a true difference is (z + difference √n) / x, where z is normal and x, the spread that is measured
 * over the true one, has the distribution of √(χ²/freedom). So the probability is the mean over x, which is
 * summed up by Simpson's rule. */
double weft_power(double difference, int pairs) {
    enum { PIECES = 2000 };
    if (pairs < 2) return NAN;
    double freedom = pairs - 1, edge = weft_t_quantile((1 + WEFT_CONFIDENCE) / 2, freedom);
    double shift = fabs(difference) * sqrt(pairs), most = 1 + 12 / sqrt(freedom), sum = 0;
    double front = log(2) + freedom / 2 * log(freedom / 2) - lgamma(freedom / 2);
    for (int i = 0; i <= PIECES; i++) {
        double x = most * i / PIECES, weight = i == 0 || i == PIECES ? 1 : i % 2 ? 4 : 2;
        double power = x > 0 ? (freedom - 1) * log(x) : freedom > 1 ? -INFINITY : 0;
        double density = exp(front + power - freedom * x * x / 2);
        sum += weight * density *
               (normal_probability(shift - edge * x) + normal_probability(-shift - edge * x));
    }
    return fmin(sum * most / PIECES / 3, 1);
}

double weft_power_difference(int pairs, double probability) {
    enum { HALVINGS = 100 };
    double low = 0, high = 1;
    if (pairs < 2) return NAN;
    while (weft_power(high, pairs) < probability && high < 1e6)
        high *= 2;
    for (int i = 0; i < HALVINGS; i++) {
        double middle = (low + high) / 2;
        if (weft_power(middle, pairs) < probability)
            low = middle;
        else
            high = middle;
    }
    return high;
}

void weft_power_text(int pairs, double spread, char *text, size_t room) {
    double times = weft_power_difference(pairs, WEFT_POWER);
    if (pairs < 2)
        snprintf(text, room, "One seed shows no difference: it has no interval.");
    else if (spread > 0)
        snprintf(text, room,
                 "With %d seeds, a true difference of %.2g would be found 4 times in 5, assuming "
                 "that differences have a standard deviation of %.2g from seed to seed.",
                 pairs, times * spread, spread);
    else
        snprintf(text, room,
                 "With %d seeds, a true difference of %.2g times its standard deviation from seed "
                 "to seed would be found 4 times in 5.",
                 pairs, times);
}

weft_line weft_line_fit(const double *x, const double *y, int n) {
    weft_line line = {NAN, NAN, NAN, NAN, NAN};
    double mean_x = weft_mean(x, n), mean_y = weft_mean(y, n), xx = 0, xy = 0, rest = 0;
    for (int i = 0; i < n; i++) {
        xx += pow(x[i] - mean_x, 2);
        xy += (x[i] - mean_x) * (y[i] - mean_y);
    }
    if (!(xx > 0)) return line;
    line.slope = xy / xx;
    line.at = mean_y - line.slope * mean_x;
    if (n < 3) return line;
    for (int i = 0; i < n; i++)
        rest += pow(y[i] - line.at - line.slope * x[i], 2);
    line.spread = sqrt(rest / (n - 2));
    double half = weft_t_quantile((1 + WEFT_CONFIDENCE) / 2, n - 2) * line.spread / sqrt(xx);
    line.low = line.slope - half;
    line.high = line.slope + half;
    return line;
}
