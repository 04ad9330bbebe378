/* What becomes part of products (generate/fold.h): which norms are left, what the folded matrices hold, by
 * arithmetic in double from the model's own numbers, and whole models on the CPU, which has all but norms. */
#include "cpu/backend.h"
#include "generate/decoder.h"
#include "ops/fuse.h"
#include "ops/linear.h"
#include "ops/list.h"
#include "support/step_forms.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct {
    step_form form;
    int norms;         /* left in a model of two layers; the first and the last always are */
    const char *first; /* a product that is folded, and its norm */
    const char *norm;
    bool joins; /* MLA's maps */
} fold_form;

static const fold_form forms[] = {
    {{"layernorm", {"ATTENTION=dot", "BIAS=y", "ATTENTION_BIAS=all"}},
     2,
     "h.1.ffn.fc",
     "h.1.ln_2",
     false},
    {{"rmsnorm", {"ATTENTION=dot", "NORM=rmsnorm", "BIAS=n", "FFN=swiglu"}},
     2,
     "h.1.ffn.w1",
     "h.1.ln_2",
     false},
    {{"swiglu-layernorm", {"ATTENTION=dot", "FFN=swiglu"}}, 2, "h.1.ffn.w1", "h.1.ln_2", false},
    {{"mla", {"ATTENTION=mla", "RA_MLA_LATENT_DIM=64"}}, 2, "h.1.ffn.fc", "h.1.ln_2", false},
    {{"mla-joined", {"ATTENTION=mla", "RA_MLA_LATENT_DIM=32"}}, 2, "h.1.ffn.fc", "h.1.ln_2", true},
    {{"both-sides", {"ATTENTION=dot", "NORM_PLACEMENT=both"}}, 9, NULL, NULL, false},
};

typedef struct {
    model_case c;
    weft_model *model;
    weft_pool *pool;
    weft_cached_graph graph;
    weft_fold *folds;
    int64_t n_folds;
} folded_graph;

static void open_graph(folded_graph *f, const fold_form *form, int64_t rows, int64_t width) {
    *f = (folded_graph){0};
    step_case_open(&f->c, &form->form, 4);
    f->model = model_case_weights(&f->c, WEFT_BF16);
    expect_ok(weft_pool_create(2, &f->pool));
    weft_cached_shape shape = {.rows = rows,
                               .wanted = 1,
                               .slots = 1,
                               .pages = 2,
                               .context = 16,
                               .table_pages = 2,
                               .dtype = WEFT_BF16,
                               .cache_dtype = WEFT_BF16};
    expect_ok(weft_cached_build(&f->c.config, &shape, &f->graph));
    expect_ok(weft_fuse(f->graph.model.graph));
    expect_ok(weft_fold_products(f->graph.model.graph, width, form->joins ? 8 << 20 : 0, &f->folds,
                                 &f->n_folds));
}

static void close_graph(folded_graph *f) {
    free(f->folds);
    weft_cached_destroy(&f->graph);
    weft_pool_destroy(f->pool);
    weft_model_destroy(f->model);
    free(f->c.tokens);
}

static int count_norms(const weft_graph *g) {
    int count = 0;
    for (int64_t i = 0; i < weft_graph_node_count(g); i++)
        count += weft_graph_node(g, i)->op->id == WEFT_OP_norm;
    return count;
}

/* Every product with moments has those that a product makes, of the rows that it reads. */
static void expect_sources(const weft_graph *g) {
    for (int64_t i = 0; i < weft_graph_node_count(g); i++) {
        const weft_node *n = weft_graph_node(g, i);
        if (n->op->id != WEFT_OP_matmul || !n->in[WEFT_MATMUL_MOMENTS]) continue;
        const weft_node *source = n->in[WEFT_MATMUL_MOMENTS]->producer;
        const weft_tensor *x = n->in[WEFT_MATMUL_A];
        assert_ptr_equal(x->view_of ? x->view_of : x, source->out[0]);
        assert_true(source->op->id == WEFT_OP_matmul
                        ? ((const weft_matmul_attr *)source->attr)->moments
                        : ((const weft_cache_gather_attr *)source->attr)->moments);
        assert_true(source->index < n->index);
    }
}

static double *read_weight(const weft_model *m, const char *name, const char *what, int64_t *n) {
    char full[128];
    snprintf(full, sizeof full, "%s.%s", name, what);
    const weft_weight *w = weft_model_find(m, full);
    double *values = calloc(w ? (size_t)w->count : 1, sizeof *values);
    *n = w ? w->count : 0;
    if (w) weft_weight_read(w, values);
    return values;
}

static const void *find_made(const weft_generation_weights *w, const fold_form *form,
                             const char *what) {
    char name[256];
    snprintf(name, sizeof name, "%s.weight.%s.weight.%s", form->first, form->norm, what);
    return weft_generation_weights_at(w, name);
}

static void expect_matrix(const folded_graph *f, const fold_form *form) {
    weft_generation_weights *w;
    expect_ok(weft_generation_weights_make(f->model, weft_cpu_backend(), f->pool, &f->graph,
                                           f->folds, f->n_folds, &w));
    int64_t size, width, biases, offsets;
    double *from = read_weight(f->model, form->first, "weight", &size);
    double *gain = read_weight(f->model, form->norm, "weight", &width);
    double *bias = read_weight(f->model, form->first, "bias", &biases);
    double *offset = read_weight(f->model, form->norm, "bias", &offsets);
    char name[128];
    snprintf(name, sizeof name, biases ? "%s.bias" : "bias", form->first);
    const uint16_t *matrix = find_made(w, form, "folded");
    const float *sums = find_made(w, form, "sums"), *made = find_made(w, form, name);
    assert_non_null(matrix);
    assert_true((sums != NULL) == (f->c.config.norm == WEFT_NORM_LAYERNORM));
    assert_true((made != NULL) == (offsets > 0));
    for (int64_t r = 0; r < size / width; r++) {
        double sum = 0, added = biases ? bias[r] : 0;
        for (int64_t k = 0; k < width; k++) {
            double want = from[r * width + k] * gain[k];
            double got = (double)weft_bf16_to_float(matrix[r * width + k]);
            assert_true(fabs(got - want) <= 0x1p-8 * fabs(want) + 1e-30);
            sum += got;
            if (offsets) added += from[r * width + k] * offset[k];
        }
        if (sums) assert_true(fabs((double)sums[r] - sum) <= 1e-6 * (1 + fabs(sum)));
        if (made) assert_true(fabs((double)made[r] - added) <= 1e-6 * (1 + fabs(added)));
    }
    free(from);
    free(gain);
    free(bias);
    free(offset);
    weft_generation_weights_destroy(w);
}

/* MLA's maps of heads and the products around them, in layer 0, whose norm stays: the matrices that x goes
 * through behind each other. */
static void expect_joined(const folded_graph *f) {
    enum { HEADS = 2, WIDTH = 128, HEAD = 64, LATENT = 32 };
    weft_generation_weights *w;
    expect_ok(weft_generation_weights_make(f->model, weft_cpu_backend(), f->pool, &f->graph,
                                           f->folds, f->n_folds, &w));
    int64_t n;
    double *q = read_weight(f->model, "h.0.attn.q", "weight", &n);
    double *in = read_weight(f->model, "h.0.attn", "q_latent", &n);
    assert_int_equal(n, HEADS * HEAD * LATENT);
    double *up = read_weight(f->model, "h.0.attn", "v_up", &n);
    double *out = read_weight(f->model, "h.0.attn.out", "weight", &n);
    const uint16_t *queries = weft_generation_weights_at(w, "h.0.attn.q.weight.h.0.attn.q_latent");
    const uint16_t *back = weft_generation_weights_at(w, "h.0.attn.out.weight.h.0.attn.v_up");
    assert_non_null(queries);
    assert_non_null(back);
    for (int64_t h = 0; h < HEADS; h++)
        for (int64_t l = 0; l < LATENT; l++)
            for (int64_t e = 0; e < WIDTH; e++) {
                double want_query = 0, want_back = 0;
                for (int64_t d = 0; d < HEAD; d++) {
                    want_query += q[(h * HEAD + d) * WIDTH + e] * in[(h * HEAD + d) * LATENT + l];
                    want_back += up[(h * LATENT + l) * HEAD + d] * out[e * WIDTH + h * HEAD + d];
                }
                double query = (double)weft_bf16_to_float(queries[(h * LATENT + l) * WIDTH + e]);
                double got = (double)weft_bf16_to_float(back[e * HEADS * LATENT + h * LATENT + l]);
                assert_true(fabs(query - want_query) <= 0x1p-8 * fabs(want_query) + 1e-6);
                assert_true(fabs(got - want_back) <= 0x1p-8 * fabs(want_back) + 1e-6);
            }
    free(q);
    free(in);
    free(up);
    free(out);
    weft_generation_weights_destroy(w);
}

static void test_folded_matrices(void **state) {
    const fold_form *form = *state;
    folded_graph f;
    open_graph(&f, form, 3, 2048);
    int left = count_norms(f.graph.model.graph);
    if (left != form->norms)
        fail_msg("%s: %d norms are left, not %d", form->form.name, left, form->norms);
    expect_sources(f.graph.model.graph);
    if (form->first) expect_matrix(&f, form);
    if (form->joins) expect_joined(&f);
    close_graph(&f);
}

/* Nor do more rows make a difference. */
static void test_wide_norms_stay(void **state) {
    const fold_form *form = *state;
    folded_graph f, wide;
    open_graph(&f, form, 256, 2048);
    open_graph(&wide, form, 256, 64);
    assert_int_equal(count_norms(f.graph.model.graph), form->norms);
    for (int64_t i = 0; i < wide.n_folds; i++)
        assert_null(wide.folds[i].gain);
    close_graph(&wide);
    close_graph(&f);
}

/* Models in which something but a norm is folded, and how many nodes fewer a middle layer has. */
static const struct {
    int step, fewer;
    step_form form;
} whole[] = {
    {0, 2, {"mla", {"ATTENTION=mla", "RA_MLA_LATENT_DIM=32"}}},
    {0, 2, {"w2", {"ATTENTION=w2", "KV_HEADS=1"}}},
    {1, 2, {"gate", {"ATTENTION=mla", "RA_MLA_LATENT_DIM=32"}}},
    {2, 2, {"cross", {"ATTENTION=dot"}}},
    {2, 1, {"cross of low rank", {"ATTENTION=dot", "RA_MLA_MLP_CROSS_RANK=16"}}},
    {3, 5, {"all three", {"ATTENTION=mla", "RA_MLA_LATENT_DIM=32"}}},
    {3, 5, {"rms", {"ATTENTION=mla", "RA_MLA_LATENT_DIM=32", "RA_MLA_MLP_SPARSE_MODE=rms"}}},
};
enum { WHOLE = sizeof whole / sizeof whole[0], TIME = 40 };

static weft_foldable fold_maps(void) {
    return (weft_foldable){0, 8 << 20};
}

static weft_status open_none(const weft_exec *x, int32_t *table, int64_t pages, void **sampler) {
    (void)x, (void)table, (void)pages;
    *sampler = NULL;
    return WEFT_OK;
}

static weft_model *copy_weights(const model_case *c, const weft_model *from, weft_dtype dtype) {
    weft_model *to = model_case_weights(c, dtype);
    for (int64_t i = 0; from && i < from->n_weights; i++) {
        const weft_weight *w = from->weights + i;
        double *values = malloc((size_t)w->count * sizeof *values);
        weft_weight_read(w, values);
        weft_weight_write(weft_model_find(to, w->name), values);
        free(values);
    }
    return to;
}

static double distance(const float *a, const float *b, int64_t n) {
    double squares = 0;
    for (int64_t i = 0; i < n; i++)
        squares += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(squares / (double)n);
}

static int64_t count_nodes(const model_case *c, bool folds) {
    weft_cached_shape shape = {.rows = 1,
                               .wanted = 1,
                               .slots = 1,
                               .pages = 2,
                               .context = 16,
                               .table_pages = 2,
                               .dtype = WEFT_BF16,
                               .cache_dtype = WEFT_BF16};
    weft_cached_graph graph;
    weft_fold *list = NULL;
    int64_t n_folds;
    expect_ok(weft_cached_build(&c->config, &shape, &graph));
    expect_ok(weft_fuse(graph.model.graph));
    expect_ok(weft_fold_products(graph.model.graph, 0, folds ? 8 << 20 : 0, &list, &n_folds));
    int64_t n = weft_graph_node_count(graph.model.graph);
    free(list);
    weft_cached_destroy(&graph);
    return n;
}

/* Four layers less three: the nodes of a layer that has others around it. */
static int64_t count_layer(model_case *c, bool folds) {
    expect_ok(weft_config_override(&c->config, "N_LAYER=4", "test"));
    int64_t n = count_nodes(c, folds);
    expect_ok(weft_config_override(&c->config, "N_LAYER=3", "test"));
    return n - count_nodes(c, folds);
}

static void test_logits_are_as_near_as_unfolded(void **state) {
    size_t i = (size_t)(uintptr_t)*state;
    static const weft_sampler_backend samplers = {.open = open_none, .folds = fold_maps};
    weft_backend folding = *weft_cpu_backend();
    folding.samplers = &samplers;
    model_case c;
    step_case_open(&c, &whole[i].form, TIME);
    if (whole[i].step) expect_ok(weft_config_step(&c.config, whole[i].step));
    for (int k = 0; whole[i].step && whole[i].form.settings[k]; k++)
        expect_ok(weft_config_override(&c.config, whole[i].form.settings[k], "test"));
    assert_int_equal(count_layer(&c, false) - count_layer(&c, true), whole[i].fewer);
    weft_model *narrow = copy_weights(&c, NULL, WEFT_BF16);
    const weft_backend *backends[] = {weft_cpu_backend(), weft_cpu_backend(), &folding};
    float *logits[3];
    int64_t count = 0;
    for (int k = 2; k >= 0; k--) {
        step_decoding d;
        weft_model *m = copy_weights(&c, narrow, k ? WEFT_BF16 : WEFT_F32);
        step_decoding_open(&d, m, backends[k], 1, TIME);
        logits[k] = step_decode(&d, 0, c.tokens, TIME, 5);
        count = TIME * d.vocab;
        step_decoding_close(&d);
    }
    double was = distance(logits[1], logits[0], count), off = distance(logits[2], logits[0], count);
    printf("%s: off by %.3g, unfolded by %.3g\n", whole[i].form.name, off, was);
    assert_true(off > 0 && off <= 1.3 * was);
    for (int k = 0; k < 3; k++)
        free(logits[k]);
    weft_model_destroy(narrow);
    free(c.tokens);
}

int main(void) {
    enum { FORMS = sizeof forms / sizeof forms[0] };
    struct CMUnitTest tests[2 * FORMS + WHOLE];
    size_t n = 0;
    for (size_t i = 0; i < FORMS; i++) {
        void *form = (void *)(uintptr_t)(forms + i);
        tests[n++] =
            (struct CMUnitTest){"test_folded_matrices", test_folded_matrices, NULL, NULL, form};
        tests[n++] =
            (struct CMUnitTest){"test_wide_norms_stay", test_wide_norms_stay, NULL, NULL, form};
    }
    for (size_t i = 0; i < WHOLE; i++)
        tests[n++] =
            (struct CMUnitTest){"test_logits_are_as_near_as_unfolded",
                                test_logits_are_as_near_as_unfolded, NULL, NULL, (void *)i};
    return _cmocka_run_group_tests("folded products", tests, n, NULL, NULL);
}
