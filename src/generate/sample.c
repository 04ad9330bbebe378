/* Sampling. The rules act in this order: penalty, temperature, top-k, top-p, min-p; then one uniform
 * number draws from what is left. core/draw.h has the arithmetic, which is a GPU's too; here candidates are
 * divided, as far as a place in their order asks for it (quickselect). */
#include "generate/sample.h"

#include "base/order.h"

typedef struct {
    double p; /* a logit or a weight */
    int32_t token;
} candidate;

weft_sampling weft_sampling_default(void) {
    return (weft_sampling){.temperature = 1,
                           .top_p = 1,
                           .repetition_penalty = 1,
                           .seed = 1,
                           .max_tokens = 256,
                           .end_token = -1};
}

static weft_status check_number(const char *what, double value, double low, double high) {
    if (value >= low && value <= high) return WEFT_OK;
    return WEFT_BAD_INPUT("%s is %g, but it must be from %g to %g", what, value, low, high);
}

weft_status weft_sampling_check(const weft_sampling *s) {
    WEFT_TRY(check_number("temperature", s->temperature, 0, 100));
    WEFT_TRY(check_number("top-k", (double)s->top_k, 0, 0x1p31));
    WEFT_TRY(check_number("top-p", s->top_p, 0, 1));
    WEFT_TRY(check_number("min-p", s->min_p, 0, 1));
    WEFT_TRY(check_number("repetition penalty", s->repetition_penalty, 0.01, 100));
    WEFT_TRY(check_number("max-tokens", (double)s->max_tokens, s->prompt_logprobs ? 0 : 1, 0x1p31));
    return check_number("top-logprobs", (double)s->top_logprobs, 0, WEFT_TOP_MAX);
}

size_t weft_sample_room(int64_t vocab) {
    return (size_t)vocab * (sizeof(candidate) + sizeof(float));
}

weft_draw weft_sampling_draw(const weft_sampling *s, uint32_t number, const int32_t *seen,
                             int64_t n_seen) {
    const double log2e = 1.4426950408889634074;
    weft_random4 words =
        weft_philox(s->seed, number, s->sample, 0, weft_random_site("generate.sample"));
    return (weft_draw){
        .scale = s->temperature > 0 ? fmin(log2e * WEFT_DRAW_STEPS / s->temperature, 0x1p1000) : 0,
        .random = (uint64_t)words.word[0] << 32 | words.word[1],
        .top_k = s->top_k,
        .top_p = s->top_p,
        .least = weft_draw_ceiling(s->min_p * (double)WEFT_DRAW_ONE),
        .penalty = s->repetition_penalty,
        .seen = seen,
        .n_seen = s->repetition_penalty != 1 ? n_seen : 0};
}

static int by_likelihood(const void *a, const void *b) {
    const candidate *x = a, *y = b;
    int order = weft_order(y->p, x->p);
    return order ? order : (x->token > y->token) - (x->token < y->token);
}

/* Divides c[low..high), two or more, in two: each of the first part is before each of the second, which begins
 * where it says. Neither is empty. */
static int64_t divide(candidate *c, int64_t low, int64_t high) {
    candidate pivot = c[low + (high - low) / 2];
    int64_t i = low, j = high - 1;
    while (i <= j) {
        while (by_likelihood(&c[i], &pivot) < 0)
            i++;
        while (by_likelihood(&pivot, &c[j]) < 0)
            j--;
        if (i > j) break;
        candidate swapped = c[i];
        c[i++] = c[j];
        c[j--] = swapped;
    }
    return j + 1;
}

/* The k likeliest to the front, in no order; their number. */
static int64_t select_likeliest(candidate *c, int64_t n, int64_t k) {
    int64_t low = 0, high = n;
    while (low < k && k < high) {
        int64_t middle = divide(c, low, high);
        if (k < middle)
            high = middle;
        else
            low = middle;
    }
    return k < n ? k : n;
}

static uint64_t add_weights(const candidate *c, int64_t n) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (uint64_t)c[i].p;
    return sum;
}

/* The place in the order at which the sum of weights exceeds the target, or the last one. That candidate comes
 * there, and those before it come before it, in no order. */
static int64_t select_by_weight(candidate *c, int64_t n, uint64_t target) {
    int64_t low = 0, high = n;
    while (high - low > 1) {
        int64_t middle = divide(c, low, high);
        uint64_t sum = add_weights(c + low, middle - low);
        if (target < sum) {
            high = middle;
        } else {
            low = middle;
            target -= sum;
        }
    }
    return low;
}

static int32_t likeliest(const float *logits, int64_t vocab) {
    int64_t best = 0;
    for (int64_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

void weft_sample_tell(const float *logits, int64_t vocab, int32_t token, int top, void *scratch,
                      weft_sampled *out) {
    candidate *c = scratch;
    float most = logits[likeliest(logits, vocab)];
    double sum = 0;
    for (int64_t i = 0; i < vocab; i++)
        sum += (double)expf(logits[i] - most);
    double lse = (double)most + log(sum);
    *out = (weft_sampled){.token = token, .logprob = (float)((double)logits[token] - lse)};
    if (top == 0) return;
    for (int64_t i = 0; i < vocab; i++)
        c[i] = (candidate){(double)logits[i], (int32_t)i};
    out->n_top = (int)select_likeliest(c, vocab, top);
    qsort(c, (size_t)out->n_top, sizeof *c, by_likelihood);
    for (int i = 0; i < out->n_top; i++) {
        out->top[i] = c[i].token;
        out->top_logprob[i] = (float)(c[i].p - lse);
    }
}

/* The candidates that the rules leave, to the front, in no order; how many. */
static int64_t keep_candidates(candidate *c, int64_t n, const weft_draw *d) {
    if (d->top_k) n = select_likeliest(c, n, d->top_k);
    uint64_t needed = weft_draw_needed(add_weights(c, n), d->top_p);
    int64_t heavy = 0;
    for (int64_t i = 0; i < n; i++)
        if (c[i].p >= fmax((double)d->least, 1)) c[heavy++] = c[i];
    return heavy > 0 ? select_by_weight(c, heavy, needed - 1) + 1 : 1;
}

int32_t weft_draw_token(const float *logits, int64_t vocab, const weft_draw *d, void *scratch) {
    candidate *c = scratch;
    if (d->penalty != 1) {
        float *changed = (float *)(c + vocab);
        memcpy(changed, logits, (size_t)vocab * sizeof *changed);
        for (int64_t i = 0; i < d->n_seen; i++) {
            int32_t t = d->seen[i];
            if (t >= 0 && t < vocab) changed[t] = weft_draw_penalised(logits[t], d->penalty);
        }
        logits = changed;
    }
    int32_t best = likeliest(logits, vocab);
    if (!(d->scale > 0)) return best;
    float most = logits[best];
    /* Without a rule that needs the order, the vocabulary's is as good. */
    bool ordered = d->top_k || d->top_p < 1 || d->least;
    for (int64_t i = 0; i < vocab; i++)
        c[i] = (candidate){(double)weft_draw_weight(logits[i], most, d->scale), (int32_t)i};
    int64_t n = ordered ? keep_candidates(c, vocab, d) : vocab;
    uint64_t target = weft_draw_target(d->random, add_weights(c, n)), sum = 0;
    if (ordered) return c[select_by_weight(c, n, target)].token;
    for (int64_t i = 0; i + 1 < n; i++) {
        sum += (uint64_t)c[i].p;
        if (sum > target) return c[i].token;
    }
    return c[n - 1].token;
}

void weft_sample(const float *logits, int64_t vocab, const weft_sampling *s, uint32_t number,
                 const int32_t *seen, int64_t n_seen, void *scratch, weft_sampled *out) {
    weft_draw d = weft_sampling_draw(s, number, seen, n_seen);
    int32_t token = weft_draw_token(logits, vocab, &d, scratch);
    weft_sample_tell(logits, vocab, token, s->top_logprobs, scratch, out);
}
