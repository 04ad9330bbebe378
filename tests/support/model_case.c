/* Cases of whole models: drawing by the rule of CONFIGS.md, building and running. */
#include "model_case.h"

#include "base/random.h"
#include "command.h"
#include "cpu/backend.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIGS "tests/model/configs"

static int by_text(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int model_case_names(char ***out) {
    DIR *folder = opendir(CONFIGS);
    if (!folder) return -1;
    char **names = NULL;
    int n = 0;
    for (struct dirent *e; (e = readdir(folder));) {
        char *end = strstr(e->d_name, ".config");
        if (!end || end[7]) continue;
        names = realloc(names, (size_t)(n + 1) * sizeof *names);
        if (!names) abort();
        names[n++] = strndup(e->d_name, (size_t)(end - e->d_name));
    }
    closedir(folder);
    if (n) qsort(names, (size_t)n, sizeof *names, by_text);
    *out = names;
    return n;
}

void model_case_names_free(char **names, int n) {
    for (int i = 0; i < n; i++)
        free(names[i]);
    free(names);
}

int model_cases_run(const model_case_check *checks, int n) {
    const char *only = getenv("WEFT_CASES");
    char **names;
    int n_names = model_case_names(&names);
    if (n_names <= 0) {
        fprintf(stderr, CONFIGS ": no configs\n");
        return 1;
    }
    for (int i = 0; i < n_names * n; i++) {
        char *name = names[i / n];
        const char *what = checks[i % n].what;
        if (only && !strstr(name, only)) continue;
        test_list(&(struct CMUnitTest){.name = what ? format_text("%s: %s", name, what) : name,
                                       .test_func = checks[i % n].run,
                                       .initial_state = name});
    }
    int failed = tests_run(NULL, NULL);
    model_case_names_free(names, n_names);
    return failed;
}

static double draw(uint64_t key, const char *name, int64_t index) {
    return weft_random_unit(weft_random_word(key, 0, 0, weft_random_site(name), (uint64_t)index));
}

/* The lines `# seed=`, `# length=`, `# ignore=` of a config. */
static void read_marks(model_case *c, const char *path) {
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char line[256];
    uint64_t seed = 0;
    while (fgets(line, sizeof line, file)) {
        long long value;
        if (sscanf(line, "# seed=%lld", &value) == 1) seed = (uint64_t)value;
        if (sscanf(line, "# length=%lld", &value) == 1) c->time = value;
        if (sscanf(line, "# ignore=%lld", &value) == 1) c->ignore = value != 0;
    }
    fclose(file);
    c->key = seed << 32 | weft_random_site(c->name);
}

static int32_t draw_token(const model_case *c, int64_t at) {
    return (int32_t)floor(draw(c->key, "tokens", at) * (double)c->config.vocab_size);
}

void model_case_token_rows(const model_case *c, int32_t *rows) {
    for (int64_t i = 0; i < c->batch * (c->time + 1); i++)
        rows[i] = draw_token(c, i);
}

void model_case_open(model_case *c, const char *name) {
    char path[256];
    *c = (model_case){0};
    snprintf(c->name, sizeof c->name, "%s", name);
    snprintf(path, sizeof path, CONFIGS "/%s.config", name);
    weft_config_defaults(&c->config);
    expect_ok(weft_config_read(&c->config, path));
    read_marks(c, path);
    c->batch = c->config.batch_size;
    size_t n = (size_t)(c->batch * c->time);
    c->tokens = calloc(n, sizeof *c->tokens);
    c->targets = calloc(n, sizeof *c->targets);
    assert_non_null(c->tokens);
    assert_non_null(c->targets);
    for (int64_t b = 0; b < c->batch; b++) {
        for (int64_t t = 0; t <= c->time; t++) {
            int32_t token = draw_token(c, b * (c->time + 1) + t);
            if (t < c->time) c->tokens[b * c->time + t] = token;
            if (t > 0) c->targets[b * c->time + t - 1] = token;
        }
    }
    for (size_t i = 0; c->ignore && i < n; i++)
        if (draw(c->key, "ignore", (int64_t)i) < 0.25) c->targets[i] = -1;
}

void model_case_close(model_case *c) {
    free(c->tokens);
    free(c->targets);
}

static bool ends_in(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

static void draw_weight(const model_case *c, const weft_weight *w, double *values) {
    double middle = 0, scale = 0.5;
    if (w->ndim >= 2) {
        scale = 2;
        while (scale * scale * (double)w->shape[w->ndim - 1] > 6)
            scale /= 2;
    } else if (!ends_in(w->name, ".bias") && !ends_in(w->name, ".rel_bias")) {
        middle = 1;
    }
    weft_random_uniform(c->key, 0, weft_random_site(w->name), 0, w->count, values);
    for (int64_t i = 0; i < w->count; i++)
        values[i] = (double)(float)(middle + scale * (2 * values[i] - 1));
}

weft_model *model_case_weights(const model_case *c, weft_dtype dtype) {
    weft_model *m;
    expect_ok(weft_model_create(&c->config, dtype, NULL, &m));
    for (int64_t i = 0; i < m->n_weights; i++) {
        weft_weight *w = &m->weights[i];
        double *values = malloc((size_t)w->count * sizeof *values);
        assert_non_null(values);
        draw_weight(c, w, values);
        weft_weight_write(w, values);
        free(values);
    }
    return m;
}

void model_run_open(model_run *r, const model_case *c, const model_run_options *o) {
    *r = (model_run){.model = model_case_weights(c, o->dtype)};
    weft_build build = {.batch = c->batch,
                        .time = c->time,
                        .dtype = o->dtype,
                        .train = o->train,
                        .logits = true,
                        .form = o->form,
                        .recompute = o->recompute,
                        .scores = o->scores,
                        .inside = o->inside,
                        .given_routes = o->given_routes};
    expect_ok(weft_pool_create(o->threads ? o->threads : 1, &r->pool));
    const weft_backend *backend = o->backend ? o->backend : weft_cpu_backend();
    expect_ok(weft_session_open(r->model, backend, r->pool, &build, o->grads, true, &r->session));
    if (!o->given_routes) model_run_again(r, c->tokens, c->targets);
}

void model_run_again(model_run *r, const int32_t *tokens, const int32_t *targets) {
    expect_ok(weft_session_run(&r->session, tokens, targets, &(weft_run){.seed = 1}));
}

void model_run_close(model_run *r) {
    weft_session_close(&r->session);
    weft_pool_destroy(r->pool);
    weft_model_destroy(r->model);
}

double *model_run_values(const model_run *r, const weft_tensor *t, int64_t n) {
    double *values = calloc((size_t)n, sizeof *values);
    assert_non_null(values);
    expect_ok(weft_session_values(&r->session, t, n, values));
    return values;
}

double model_run_number(const model_run *r, const weft_tensor *t) {
    double *value = model_run_values(r, t, 1), number = value[0];
    free(value);
    return number;
}

static const weft_tensor *tensor_of(const weft_session *s, const char *name) {
    if (!strcmp(name, "logits")) return s->graph.logits;
    for (int64_t i = 0; i < s->graph.n_parameters; i++)
        if (!strcmp(name + 5, s->graph.parameters[i].tensor->name))
            return s->graph.parameters[i].tensor->grad;
    fail_msg("no tensor '%s'", name);
    return NULL;
}

vectors *model_case_kept(const char *name) {
    model_case c;
    model_run r;
    vectors *kept = vectors_open("model", name);
    if (!kept) fail_msg("%s: nothing is kept", name);
    model_case_open(&c, name);
    model_run_open(&r, &c, &(model_run_options){.dtype = WEFT_F64, .train = true, .grads = true});
    vector *v;
    int n = vectors_begin(kept, &v, "%s", "");
    for (; n-- > 0; v++) {
        bool number = strcmp(v->name, "logits") != 0 && strncmp(v->name, "grad.", 5) != 0;
        v->data = calloc((size_t)v->count, sizeof *v->data);
        assert_non_null(v->data);
        if (number)
            v->data[0] = v->kept[0];
        else
            expect_ok(
                weft_session_values(&r.session, tensor_of(&r.session, v->name), v->count, v->data));
        double gap = vector_gap(v, v->data), size = vector_norm(v->data, v->count);
        if (!(gap <= 1e-10 * fmax(size, 1e-6 * sqrt((double)v->count))))
            fail_msg("%s: a sum of %s is off by %.3g, of a norm of %.3g", name, v->name, gap, size);
    }
    model_run_close(&r);
    model_case_close(&c);
    return kept;
}
