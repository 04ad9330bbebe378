/* Fitting variants to the first one. Parameters grow with the feed-forward's width whatever the
 * mechanisms, so the nearest width is found by halving. */
#include "study/study.h"

#include "model/kinds.h"
#include "model/transformer.h"

#include <math.h>
#include <stdlib.h>

enum { WIDTH_UNIT = 8, WIDTH_MOST = 1048576 };

static int64_t common_multiple(int64_t a, int64_t b) {
    int64_t divisor = a;
    for (int64_t rest = b, next; rest; rest = next) {
        next = divisor % rest;
        divisor = rest;
    }
    return divisor > 0 ? a / divisor * b : 0;
}

int64_t weft_equal_unit(const weft_config *c) {
    int64_t unit = WIDTH_UNIT;
    const weft_ffn_kind *ffn = weft_ffn_of(c);
    if (ffn->unit) unit = common_multiple(unit, ffn->unit(c));
    if (c->latent_recip && c->tying_mode == WEFT_TYING_SCALAR) {
        unit = common_multiple(unit, c->n_head);
        unit = common_multiple(unit, c->ra_mla_latent_dim);
    }
    return unit > 0 ? unit : WIDTH_UNIT;
}

/* A config's parameters, from its graph, where N_FFN is so wide. */
static weft_status count_parameters(const weft_config *c, int64_t width, int64_t *out) {
    weft_config wide = *c;
    weft_model_graph m;
    wide.n_ffn = width;
    WEFT_TRY(weft_model_build_nominal(&wide, &m));
    *out = 0;
    for (int64_t i = 0; i < m.n_parameters; i++)
        *out += weft_tensor_count(m.parameters[i].tensor);
    weft_model_graph_destroy(&m);
    return WEFT_OK;
}

/* The width, in multiples of `unit`, whose parameters are nearest; of two, the smaller one. */
static weft_status nearest_width(const weft_config *c, int64_t wanted, int64_t *width,
                                 int64_t *off) {
    int64_t unit = weft_equal_unit(c), low = 1, high = WIDTH_MOST / unit, count;
    if (high < 1) high = 1;
    while (low < high) { /* the least width with at least as many */
        int64_t middle = low + (high - low) / 2;
        WEFT_TRY(count_parameters(c, middle * unit, &count));
        if (count >= wanted)
            high = middle;
        else
            low = middle + 1;
    }
    WEFT_TRY(count_parameters(c, low * unit, &count));
    *width = low * unit;
    *off = llabs(count - wanted);
    if (low == 1) return WEFT_OK;
    WEFT_TRY(count_parameters(c, (low - 1) * unit, &count));
    if (llabs(count - wanted) > *off) return WEFT_OK;
    *width = (low - 1) * unit;
    *off = llabs(count - wanted);
    return WEFT_OK;
}

static weft_status fit_width(weft_study_variant *p, int64_t wanted) {
    int64_t count, width, off;
    WEFT_TRY(count_parameters(&p->config, p->config.n_ffn, &count));
    WEFT_TRY(nearest_width(&p->config, wanted, &width, &off));
    if (llabs(count - wanted) <= off) return WEFT_OK; /* as it is, it is as near */
    p->config.n_ffn = width;
    p->widened = true;
    return WEFT_OK;
}

static weft_status need_first(const weft_study *s) {
    if (!*s->built[0].error) return WEFT_OK;
    return weft_fail(
        WEFT_EINPUT,
        "%s: CONFIG_STUDY_EQUAL=\"%s\" goes by variant '%s', which cannot be built: %s", s->where,
        weft_config_word(&s->base, WEFT_OPTION(study_equal)), s->variants.list[0].name,
        s->built[0].error);
}

weft_status weft_equal_widths(weft_study *s) {
    int64_t wanted;
    if (s->base.study_equal != WEFT_EQUAL_PARAMETERS) return WEFT_OK;
    WEFT_TRY(need_first(s));
    WEFT_TRY(count_parameters(&s->built[0].config, s->built[0].config.n_ffn, &wanted));
    for (int i = 1; i < s->variants.n; i++)
        if (!*s->built[i].error) WEFT_TRY(fit_width(&s->built[i], wanted));
    return WEFT_OK;
}

/* What one iteration costs, in what is held equal. */
static double iter_cost(const weft_study *s, int variant) {
    const weft_study_variant *p = &s->built[variant];
    double tokens = (double)weft_study_iter_tokens(&p->config);
    double flops = p->account.forward_flops + p->account.backward_flops;
    return s->base.study_equal == WEFT_EQUAL_TIME    ? p->seconds_per_iter
           : s->base.study_equal == WEFT_EQUAL_FLOPS ? tokens * flops
                                                     : tokens;
}

static weft_status scale_iters(weft_study *s) {
    WEFT_TRY(need_first(s));
    double whole = (double)s->built[0].iters * iter_cost(s, 0);
    for (int i = 1; i < s->variants.n; i++) {
        double cost = iter_cost(s, i);
        if (*s->built[i].error) continue;
        if (!(cost > 0) || !(whole > 0))
            return weft_fail(WEFT_EBUG, "study: variant '%s' has no cost to be held equal",
                             s->variants.list[i].name);
        int64_t iters = (int64_t)fmin(fmax(nearbyint(whole / cost), 1), WEFT_OPTION(steps)->max);
        s->built[i].counted = iters != s->built[i].config.steps;
        s->built[i].config.steps = iters;
        s->built[i].iters = iters;
    }
    return WEFT_OK;
}

weft_status weft_equal_iters(weft_study *s) {
    int equal = s->base.study_equal;
    for (int i = 0; i < s->variants.n; i++)
        s->built[i].iters = equal == WEFT_EQUAL_TIME && i > 0 ? 0 : s->built[i].config.steps;
    if (equal == WEFT_EQUAL_TIME) return need_first(s);
    return equal == WEFT_EQUAL_TOKENS || equal == WEFT_EQUAL_FLOPS ? scale_iters(s) : WEFT_OK;
}

weft_status weft_equal_time(weft_study *s) {
    return s->base.study_equal == WEFT_EQUAL_TIME ? scale_iters(s) : WEFT_OK;
}
