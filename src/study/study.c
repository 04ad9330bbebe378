/* Building a study: each variant by itself, its failure its own, unless all fail. */
#include "study/study.h"

#include "model/kinds.h"
#include "train/loop.h"

#include <stdarg.h>

enum { WIDTH_UNIT = 8, WIDTH_MOST = 1048576 };

int64_t weft_study_iter_tokens(const weft_config *c) {
    return c->batch_size * c->gradient_accumulation * c->context;
}

int64_t weft_study_tokens(const weft_study *s, int variant) {
    return weft_bounded_product(s->built[variant].iters,
                                weft_study_iter_tokens(&s->built[variant].config));
}

int weft_study_variant_rates(const weft_study *s) {
    return s->n_rates ? s->n_rates : 1;
}

double weft_study_rate(const weft_study *s, int variant, int k) {
    return s->n_rates ? s->rates[k] : s->built[variant].config.learning_rate;
}

bool weft_study_chooses(const weft_study *s) {
    return s->base.study_rate_seed >= 0 && s->n_rates > 1;
}

bool weft_study_fits(const weft_study *s) {
    return s->base.study_compare == WEFT_COMPARE_MINIMUM;
}

int weft_study_variant_runs(const weft_study *s, int variant) {
    int rates = weft_study_variant_rates(s), seeds = (int)s->base.study_seeds;
    if (s->rate_as[variant] >= 0) return seeds;
    return weft_study_chooses(s) ? rates + seeds : rates * seeds;
}

int64_t weft_study_seed(const weft_study *s, int k) {
    return s->base.seed + k;
}

void weft_study_run_config(const weft_study *s, int variant, double rate, int64_t seed,
                           weft_config *c) {
    *c = s->built[variant].config;
    weft_config_reset(c, WEFT_OWNER_STUDY);
    c->learning_rate = rate;
    c->seed = seed;
}

__attribute__((format(printf, 3, 4))) static void append(char *text, size_t room,
                                                         const char *format, ...) {
    size_t at = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + at, room - at, format, args);
    va_end(args);
}

static void append_setting(const weft_config *c, const weft_option *o, char *text, size_t room) {
    char value[WEFT_TEXT_MAX];
    weft_config_format(c, o, value, sizeof value);
    bool quoted = !*value || strpbrk(value, " \t;:");
    append(text, room, quoted ? "%s%s=\"%s\"" : "%s%s=%s", *text ? " " : "", o->key, value);
}

void weft_study_overrides(const weft_study *s, int variant, char *text, size_t room) {
    const weft_study_variant *p = &s->built[variant];
    const weft_option *width = WEFT_OPTION(n_ffn), *iters = WEFT_OPTION(steps);
    *text = '\0';
    for (int i = 0; i < p->variant->n_sets; i++)
        append_setting(&p->config, p->variant->sets[i].option, text, room);
    if (p->widened && !weft_variant_sets(p->variant, width))
        append_setting(&p->config, width, text, room);
    if (p->counted && !weft_variant_sets(p->variant, iters))
        append_setting(&p->config, iters, text, room);
}

void weft_study_seeds_text(const weft_study *s, char *text, size_t room) {
    *text = '\0';
    for (int k = 0; k < (int)s->base.study_seeds; k++)
        append(text, room, "%s%lld", k ? "," : "", (long long)weft_study_seed(s, k));
}

void weft_study_rates_text(const weft_study *s, char *text, size_t room) {
    *text = '\0';
    for (int k = 0; k < weft_study_variant_rates(s); k++) {
        char one[32];
        weft_number_format(s->n_rates ? s->rates[k] : s->base.learning_rate, one, sizeof one);
        append(text, room, "%s%s", k ? "," : "", one);
    }
}

/* `why` NULL: the last error's words. */
static weft_status refuse_rate_as(const weft_study *s, const char *why) {
    return WEFT_BAD_INPUT("%s: CONFIG_STUDY_RATE_AS=\"%.200s\": %.600s", s->where,
                          s->base.study_rate_as, why ? why : weft_error_message());
}

/* A variant by the next name of a list, up to one of `ends`, which *at is then at; -1: there is none of that
 * name. */
static int next_variant(const weft_study *s, const char **at, const char *ends) {
    char name[WEFT_VARIANT_NAME];
    *at += strspn(*at, " \t");
    size_t n = strcspn(*at, ends), used = n;
    while (used > 0 && strchr(" \t", (*at)[used - 1]))
        used--;
    snprintf(name, sizeof name, "%.*s", (int)used, *at);
    *at += n;
    return weft_variants_find(&s->variants, name);
}

/* "step1=mla, step2=step3" */
static weft_status parse_rate_as(weft_study *s) {
    const char *at = s->base.study_rate_as;
    WEFT_ROOM_AT(s->rate_as, s->variants.n, "study: no memory for its variants");
    for (int i = 0; i < s->variants.n; i++)
        s->rate_as[i] = -1;
    if (*(at += strspn(at, " \t")) && !weft_study_chooses(s))
        return refuse_rate_as(s, "it needs CONFIG_STUDY_RATE_SEED and several learning rates");
    while (*at) {
        int variant = next_variant(s, &at, "=,");
        if (variant < 0) return refuse_rate_as(s, NULL);
        if (*at != '=') return refuse_rate_as(s, "must be NAME=OTHER, NAME2=OTHER2");
        at++;
        int other = next_variant(s, &at, "=,");
        if (other < 0) return refuse_rate_as(s, NULL);
        if (*at == '=' || variant == other || s->rate_as[variant] >= 0)
            return refuse_rate_as(s, "must be NAME=OTHER, NAME2=OTHER2, each variant once");
        s->rate_as[variant] = other;
        at += *at == ',';
        at += strspn(at, " \t");
    }
    for (int i = 0; i < s->variants.n; i++)
        if (s->rate_as[i] >= 0 && s->rate_as[s->rate_as[i]] >= 0)
            return refuse_rate_as(s, "the other must be a variant that tries the rates itself");
    return WEFT_OK;
}

static void keep_error(weft_study_variant *p, weft_status status) {
    if (status != WEFT_OK) snprintf(p->error, sizeof p->error, "%s", weft_error_message());
}

static weft_status check_data(const weft_study *s, const weft_config *c) {
    char metric[32];
    WEFT_TRY(weft_train_check(c, metric, sizeof metric));
    if (s->base.study_score == WEFT_STUDY_SCORE_METRIC && !*metric)
        return WEFT_BAD_INPUT(
            "CONFIG_STUDY_SCORE=\"metric\", but CONFIG_DATASET=\"%s\" has no metric "
            "of its own; take val_loss",
            c->dataset);
    return WEFT_OK;
}

/* Fitting variants to the first one. Parameters grow with the feed-forward's width whatever the
 * mechanisms, so the nearest width is found by halving. */
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
    WEFT_AUTO(weft_model_graph_destroy) weft_model_graph m = {0};
    wide.n_ffn = width;
    WEFT_TRY(weft_model_build_nominal(&wide, &m));
    *out = 0;
    for (int64_t i = 0; i < m.n_parameters; i++)
        *out += weft_tensor_count(m.parameters[i].tensor);
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

static weft_status need_first(const weft_study *s) {
    if (!*s->built[0].error) return WEFT_OK;
    return WEFT_BAD_INPUT(
        "%s: CONFIG_STUDY_EQUAL=\"%s\" goes by variant '%s', which cannot be built: %s", s->where,
        weft_config_word(&s->base, WEFT_OPTION(study_equal)), s->variants.list[0].name,
        s->built[0].error);
}

/* Before the accounts are made: parameters. */
static weft_status equal_widths(weft_study *s) {
    int64_t wanted, count, width, off;
    if (s->base.study_equal != WEFT_EQUAL_PARAMETERS) return WEFT_OK;
    WEFT_TRY(need_first(s));
    WEFT_TRY(count_parameters(&s->built[0].config, s->built[0].config.n_ffn, &wanted));
    for (int i = 1; i < s->variants.n; i++) {
        weft_study_variant *p = &s->built[i];
        if (*p->error) continue;
        WEFT_TRY(count_parameters(&p->config, p->config.n_ffn, &count));
        WEFT_TRY(nearest_width(&p->config, wanted, &width, &off));
        if (llabs(count - wanted) <= off) continue; /* as it is, it is as near */
        p->config.n_ffn = width;
        p->widened = true;
    }
    return WEFT_OK;
}

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

/* After they are made: tokens and flops; for iters as configured, for time as configured in the
 * first variant and 0 in the others. */
static weft_status equal_iters(weft_study *s) {
    int equal = s->base.study_equal;
    for (int i = 0; i < s->variants.n; i++)
        s->built[i].iters = equal == WEFT_EQUAL_TIME && i > 0 ? 0 : s->built[i].config.steps;
    if (equal == WEFT_EQUAL_TIME) return need_first(s);
    return equal == WEFT_EQUAL_TOKENS || equal == WEFT_EQUAL_FLOPS ? scale_iters(s) : WEFT_OK;
}

weft_status weft_equal_time(weft_study *s) {
    return s->base.study_equal == WEFT_EQUAL_TIME ? scale_iters(s) : WEFT_OK;
}

WEFT_ENDED_BY(weft_study_close, weft_study)
weft_status weft_study_open(const weft_source *source, const weft_backend *backend, int threads,
                            weft_study **out) {
    *out = NULL;
    WEFT_NEW(weft_study, s, weft_study_close, "study: no memory");
    s->where = source->file;
    weft_study_name(source->file, s->name, sizeof s->name);
    WEFT_TRY(weft_source_read(source, NULL, &s->base));
    WEFT_TRY(weft_variants_parse(&s->base, s->where, s->name, &s->variants));
    /* "1e-3, 3e-3" */
    const char *text = s->base.study_learning_rates, *at = text;
    const weft_option *o = WEFT_OPTION(learning_rate);
    while (*(at += strspn(at, " \t"))) {
        char *end;
        double rate = strtod(at, &end);
        bool ok = end != at && isfinite(rate) && rate >= o->min && rate <= o->max;
        for (int i = 0; ok && i < s->n_rates; i++)
            ok = s->rates[i] != rate;
        end += strspn(end, " \t");
        if (!ok || (*end && *end != ',') || s->n_rates == WEFT_STUDY_RATES_MAX)
            return WEFT_BAD_INPUT(
                "%s: CONFIG_STUDY_LEARNING_RATES=\"%s\" must be numbers from %g to %g "
                "with commas, each once, %d at most",
                s->where, text, o->min, o->max, WEFT_STUDY_RATES_MAX);
        s->rates[s->n_rates++] = rate;
        at = *end ? end + 1 : end;
    }
    /* A seed that chooses rates and counts in the verdicts too would be what it is there to avoid. */
    int64_t seed = s->base.study_rate_seed, first = weft_study_seed(s, 0);
    if (weft_study_chooses(s) && seed >= first && seed < first + s->base.study_seeds)
        return WEFT_BAD_INPUT("%s: CONFIG_STUDY_RATE_SEED=%lld is one of the study's own seeds, "
                              "%lld to %lld; take another",
                              s->where, (long long)seed, (long long)first,
                              (long long)(first + s->base.study_seeds - 1));
    if (weft_study_fits(s) && (s->n_rates < 3 || s->base.study_seeds < 2 || seed >= 0))
        return WEFT_BAD_INPUT("%s: CONFIG_STUDY_COMPARE=\"minimum\" takes three or more "
                              "CONFIG_STUDY_LEARNING_RATES and two or more CONFIG_STUDY_SEEDS, "
                              "without CONFIG_STUDY_RATE_SEED",
                              s->where);
    WEFT_TRY(parse_rate_as(s));
    /* "small, middle, large; others" */
    for (const char *list = s->base.study_yardstick; *(list += strspn(list, " \t,;"));)
        if (next_variant(s, &list, ",;") < 0)
            return WEFT_BAD_INPUT("%s: CONFIG_STUDY_YARDSTICK: %.600s", s->where,
                                  weft_error_message());
    for (int i = 0; i < s->variants.n; i++)
        if (s->n_rates && weft_variant_sets(&s->variants.list[i], WEFT_OPTION(learning_rate)))
            return WEFT_BAD_INPUT("%s: variant '%s' sets CONFIG_LEARNING_RATE, which "
                                  "CONFIG_STUDY_LEARNING_RATES sweeps; leave one of them out",
                                  s->where, s->variants.list[i].name);
    bool there = true;
    if (*s->base.study_from) WEFT_TRY(weft_path_there(s->base.study_from, &there));
    if (!there)
        return WEFT_BAD_INPUT("%s: CONFIG_STUDY_FROM=\"%.300s\": there is no such folder", s->where,
                              s->base.study_from);
    WEFT_ROOM_AT(s->built, s->variants.n, "study: no memory for its variants");
    char where[800];
    for (int i = 0; i < s->variants.n; i++) {
        weft_study_variant *p = &s->built[i];
        p->variant = &s->variants.list[i];
        p->seconds_per_iter = NAN;
        snprintf(where, sizeof where, "%.640s: variant '%s'", s->where, p->variant->name);
        WEFT_TRY(weft_source_read(source, p->variant, &p->config));
        keep_error(p, weft_model_check(&p->config, where));
    }
    WEFT_TRY(equal_widths(s));
    for (int i = 0; i < s->variants.n; i++) {
        weft_study_variant *p = &s->built[i];
        if (!*p->error) keep_error(p, weft_account_make(&p->config, backend, threads, &p->account));
    }
    /* The data of every variant; what an earlier one has the same of is not opened again. */
    for (int i = 0; i < s->variants.n; i++) {
        const weft_config *a = &s->built[i].config;
        bool known = *s->built[i].error;
        for (int k = 0; !known && k < i; k++) {
            const weft_config *b = &s->built[k].config;
            known = !*s->built[k].error && strcmp(a->dataset, b->dataset) == 0 &&
                    strcmp(a->tokenizer, b->tokenizer) == 0 && a->vocab_size == b->vocab_size &&
                    a->context == b->context;
        }
        if (!known) keep_error(&s->built[i], check_data(s, a));
    }
    int built = 0;
    while (built < s->variants.n && *s->built[built].error)
        built++;
    if (built == s->variants.n) return WEFT_BAD_INPUT("%s", s->built[0].error);
    WEFT_TRY(equal_iters(s));
    return weft_hand(&s, out);
}

void weft_study_close(weft_study *s) {
    if (!s) return;
    weft_variants_free(&s->variants);
    WEFT_FREE(s->built, s->rate_as, s);
}
