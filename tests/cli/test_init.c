/* `weft init`: equal seeds give equal files, shared tensors start equal, and every tensor starts as
 * the design says. */
#include "config/config.h"
#include "core/safetensors.h"
#include "support/command.h"
#include "support/test.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, WIDTH = 64, HEADS = 4, DIM = WIDTH / HEADS, FFN = 128, LATENT = 32 };

#define SIZES                                                                                      \
    "-o", "N_LAYER=2", "-o", "N_EMBD=64", "-o", "N_HEAD=4", "-o", "N_FFN=128", "-o",               \
        "VOCAB_SIZE=300", "-o", "CONTEXT=24", "-o", "RA_MLA_LATENT_DIM=32"

#define INIT(folder, ...) SUCCEEDS("init", "--force", "--out", folder, SIZES, __VA_ARGS__)

static char *model_bytes(const char *folder, size_t *count) {
    return file_read(format_text("%s/model.safetensors", folder), count);
}

static bool same_model(const char *one, const char *other) {
    size_t n, m;
    char *a = model_bytes(one, &n), *b = model_bytes(other, &m);
    bool same = n == m && memcmp(a, b, n) == 0;
    free(a);
    free(b);
    return same;
}

TEST(test_the_same_seed_gives_the_same_bytes) {
    const char *a = scratch_path("a"), *b = scratch_path("b"), *c = scratch_path("c"),
               *d = scratch_path("d");
    INIT(a, "--seed", "7");
    INIT(b, "--seed", "7", "--threads", "3");
    INIT(c, "--seed", "8");
    INIT(d, "-o", "SEED=7");
    assert_true(same_model(a, b));
    assert_true(same_model(a, d));
    assert_false(same_model(a, c));
    INIT(a, "--seed", "8"); /* over the old one */
    assert_true(same_model(a, c));
}

/* Threads share out a large tensor's numbers in pieces: here more than one, the last not full. */
TEST(test_threads_draw_the_same_bytes) {
    static const char *const starts[] = {"INIT=normal", "INIT=orthogonal"};
    for (int i = 0; i < 2; i++) {
        const char *a = scratch_path("one-%d", i), *b = scratch_path("five-%d", i);
        INIT(a, "--threads", "1", "-o", "VOCAB_SIZE=1200", "-o", starts[i]);
        INIT(b, "--threads", "5", "-o", "VOCAB_SIZE=1200", "-o", starts[i]);
        assert_true(same_model(a, b));
    }
}

static weft_safetensors *open_model(const char *folder) {
    weft_safetensors *file;
    const char *path = format_text("%s/model.safetensors", folder);
    expect_ok(weft_safetensors_open(path, &file));
    return file;
}

typedef struct {
    const char *name;
    int64_t rows, columns, count; /* columns: the last dimension */
    double *values;
} start;

static double element(const weft_safetensor *t, int64_t i) {
    const char *data = t->data;
    double wide;
    float value;
    uint16_t bits;
    switch (t->dtype) {
    case WEFT_FILE_F64:
        memcpy(&wide, data + 8 * i, 8);
        return wide;
    case WEFT_FILE_F32:
        memcpy(&value, data + 4 * i, 4);
        return (double)value;
    default:
        assert_int_equal(t->dtype, WEFT_FILE_BF16);
        memcpy(&bits, data + 2 * i, 2);
        return (double)weft_bf16_to_float(bits);
    }
}

static start read_start(const weft_safetensors *file, const char *name) {
    const weft_safetensor *t = weft_safetensors_find(file, name);
    if (!t) fail_msg("no tensor '%s'", name);
    start s = {.name = name, .count = 1, .columns = t->shape[t->ndim - 1]};
    for (int d = 0; d < t->ndim; d++)
        s.count *= t->shape[d];
    s.rows = s.count / s.columns;
    s.values = malloc((size_t)s.count * sizeof *s.values);
    assert_non_null(s.values);
    for (int64_t i = 0; i < s.count; i++)
        s.values[i] = element(t, i);
    return s;
}

/* Mean 0 and that deviation, within what chance allows (5 standard errors). */
static void expect_deviation(const weft_safetensors *file, const char *name, double deviation) {
    start s = read_start(file, name);
    double sum = 0, squares = 0, n = (double)s.count;
    for (int64_t i = 0; i < s.count; i++) {
        sum += s.values[i];
        squares += s.values[i] * s.values[i];
    }
    double got = sqrt(squares / n);
    if (fabs(sum / n) > 5 * deviation / sqrt(n)) fail_msg("%s: its mean is %g", name, sum / n);
    if (fabs(got / deviation - 1) > 5 / sqrt(2 * n))
        fail_msg("%s: its deviation is %g, not %g", name, got, deviation);
    free(s.values);
}

/* Beyond three deviations there are normal numbers, and no uniform ones. */
static void expect_normal(const weft_safetensors *file, const char *name, double deviation) {
    expect_deviation(file, name, deviation);
    start s = read_start(file, name);
    double most = 0;
    for (int64_t i = 0; i < s.count; i++)
        most = fmax(most, fabs(s.values[i]));
    if (s.count > 2000 && most < 3 * deviation) fail_msg("%s: not normal, at most %g", name, most);
    free(s.values);
}

static void expect_constant(const weft_safetensors *file, const char *name, double value) {
    start s = read_start(file, name);
    for (int64_t i = 0; i < s.count; i++)
        if (fabs(s.values[i] - value) > 1e-6 * fabs(value))
            fail_msg("%s[%lld] is %g, not %g", name, (long long)i, s.values[i], value);
    free(s.values);
}

static void expect_uniform(const weft_safetensors *file, const char *name, double bound) {
    expect_deviation(file, name, bound / sqrt(3));
    start s = read_start(file, name);
    double most = 0;
    for (int64_t i = 0; i < s.count; i++)
        most = fmax(most, fabs(s.values[i]));
    if (most > bound * (1 + 1e-6) || most < bound * 0.97)
        fail_msg("%s: reaches %g, not %g", name, most, bound);
    free(s.values);
}

TEST(test_dot_and_gelu_start_as_gpt2) {
    const char *folder = scratch_path("gelu");
    INIT(folder, "-o", "WEIGHT_TYING=n");
    weft_safetensors *file = open_model(folder);
    expect_normal(file, "wte.weight", 0.02);
    expect_normal(file, "wpe.weight", 0.02);
    expect_normal(file, "lm_head.weight", 0.02);
    for (int layer = 0; layer < LAYERS; layer++) {
        char name[64];
#define AT(text) (snprintf(name, sizeof name, "h.%d." text, layer), name)
        expect_normal(file, AT("attn.qkv.weight"), 0.02);
        expect_normal(file, AT("ffn.fc.weight"), 0.02);
        expect_normal(file, AT("attn.out.weight"), 0.02 / sqrt(2.0 * LAYERS));
        expect_normal(file, AT("ffn.proj.weight"), 0.02 / sqrt(2.0 * LAYERS));
        expect_constant(file, AT("attn.qkv.bias"), 0);
        expect_constant(file, AT("attn.out.bias"), 0);
        expect_constant(file, AT("ffn.fc.bias"), 0);
        expect_constant(file, AT("ffn.proj.bias"), 0);
        expect_constant(file, AT("ln_1.weight"), 1);
        expect_constant(file, AT("ln_2.weight"), 1);
        expect_constant(file, AT("ln_1.bias"), 0);
    }
    expect_constant(file, "ln_f.weight", 1);
    expect_constant(file, "ln_f.bias", 0);
    weft_safetensors_close(file);
}

TEST(test_gated_kinds_and_relative_bias) {
    const char *folder = scratch_path("gated");
    INIT(folder, "-o", "FFN=swiglu", "-o", "POSITION=relative");
    weft_safetensors *file = open_model(folder);
    expect_normal(file, "h.0.ffn.w1.weight", 0.02);
    expect_normal(file, "h.1.ffn.w3.weight", 0.02);
    expect_normal(file, "h.1.ffn.w2.weight", 0.02 / sqrt(2.0 * LAYERS));
    expect_constant(file, "h.1.attn.rel_bias", 0);
    assert_null(weft_safetensors_find(file, "wpe.weight"));
    weft_safetensors_close(file);
}

static void expect_blocks(const weft_safetensors *file, const char *name, int64_t block) {
    start s = read_start(file, name);
    double bound = 1 / sqrt((double)block), most = 0, squares = 0;
    for (int64_t i = 0; i < s.count; i++) {
        bool inside = i / s.columns / block == i % s.columns / block;
        if (!inside && s.values[i] != 0) fail_msg("%s: not zero outside its blocks", name);
        most = fmax(most, fabs(s.values[i]));
        squares += s.values[i] * s.values[i];
    }
    double deviation = sqrt(squares / (double)(s.columns * block));
    assert_true(most <= bound * (1 + 1e-6) && most > 0.97 * bound);
    assert_true(fabs(deviation * sqrt(3) / bound - 1) < 0.1);
    free(s.values);
}

TEST(test_z_heads_start_block_diagonal) {
    const char *dense = scratch_path("dense"), *grouped = scratch_path("grouped");
    INIT(dense, "-o", "FFN=wsffn", "-o", "WSFFN_N_HEAD=8", "-o", "INIT=orthogonal");
    INIT(grouped, "-o", "FFN=wsffn", "-o", "WSFFN_N_HEAD=8", "-o", "WSFFN_Z_PROJ=grouped");
    weft_safetensors *file = open_model(dense);
    expect_blocks(file, "h.0.ffn.z_proj.weight", FFN / 8);
    weft_safetensors_close(file);
    file = open_model(grouped);
    expect_uniform(file, "h.1.ffn.z_proj.weight", 1 / sqrt((double)FFN / 8));
    weft_safetensors_close(file);
}

TEST(test_temperatures_start_at_twice_the_root) {
    const char *w2 = scratch_path("w2"), *set = scratch_path("set"), *latent = scratch_path("mw2");
    INIT(w2, "-o", "ATTENTION=w2");
    INIT(set, "-o", "ATTENTION=w2", "-o", "W2_TAU=3");
    INIT(latent, "-o", "ATTENTION=mla", "-o", "RA_MLA_SCORE=w2");
    weft_safetensors *file = open_model(w2);
    expect_constant(file, "h.0.attn.log_tau", log(2 * sqrt((double)DIM)));
    expect_normal(file, "h.0.attn.q.weight", 0.02);
    expect_normal(file, "h.0.attn.k.weight", 0.02);
    weft_safetensors_close(file);
    file = open_model(set);
    expect_constant(file, "h.1.attn.log_tau", log(3));
    weft_safetensors_close(file);
    file = open_model(latent);
    expect_constant(file, "h.1.attn.log_tau", log(2 * sqrt(LATENT / 2.0)));
    weft_safetensors_close(file);
}

TEST(test_maps_of_the_latent_start_uniform) {
    const char *own = scratch_path("own"), *shared = scratch_path("shared");
    INIT(own, "-o", "ATTENTION=mla");
    INIT(shared, "-o", "ATTENTION=mla", "-o", "RA_MLA_PER_HEAD_Q_LATENT=n", "-o",
         "RA_MLA_PER_HEAD_V_UP=n", "-o", "INIT=orthogonal");
    weft_safetensors *file = open_model(own);
    expect_uniform(file, "h.0.attn.q_latent", sqrt(6.0 / (DIM + LATENT)));
    expect_uniform(file, "h.1.attn.v_up", sqrt(6.0 / (DIM + LATENT)));
    expect_normal(file, "h.0.attn.k_down.weight", 0.02);
    weft_safetensors_close(file);
    file = open_model(shared);
    expect_uniform(file, "h.0.attn.q_latent", sqrt(6.0 / (WIDTH + LATENT)));
    expect_uniform(file, "h.1.attn.v_up", sqrt(6.0 / (DIM + LATENT)));
    weft_safetensors_close(file);
}

TEST(test_mechanisms_start_small_and_scalars_at_one) {
    const char *tied = scratch_path("tied"), *scalar = scratch_path("scalar");
    INIT(tied, "-o", "ATTENTION=mla", "--variant", "3");
    INIT(scalar, "-o", "ATTENTION=mla", "--variant", "3", "-o",
         "RA_MLA_MLP_TYING_MODE=per_head_scalar", "-o", "RA_MLA_MLP_CROSS_RANK=5");
    weft_safetensors *file = open_model(tied);
    expect_normal(file, "h.0.ffn.couple.weight", 0.02);
    expect_normal(file, "h.0.ffn.gate_proj.weight", 0.02);
    expect_normal(file, "h.0.ffn.cross_proj.weight", 0.02);
    weft_safetensors_close(file);
    file = open_model(scalar);
    expect_constant(file, "couple.attn_to_mlp", 1);
    expect_constant(file, "couple.mlp_to_attn", 1);
    expect_normal(file, "h.1.ffn.cross_up.weight", 0.02);
    weft_safetensors_close(file);
}

/* The rows of a wide matrix, the columns of a tall one: WWᵀ or WᵀW is the identity. */
static void expect_orthonormal(const weft_safetensors *file, const char *name) {
    start s = read_start(file, name);
    bool wide = s.rows <= s.columns;
    int64_t n = wide ? s.rows : s.columns, length = wide ? s.columns : s.rows;
    int64_t to_next = wide ? s.columns : 1, along = wide ? 1 : s.columns;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j <= i; j++) {
            double product = 0;
            for (int64_t k = 0; k < length; k++)
                product += s.values[i * to_next + k * along] * s.values[j * to_next + k * along];
            if (fabs(product - (i == j)) > 1e-12)
                fail_msg("%s: vectors %lld and %lld have product %g", name, (long long)i,
                         (long long)j, product);
        }
    }
    free(s.values);
}

TEST(test_orthogonal_start_is_orthonormal) {
    const char *folder = scratch_path("orthogonal");
    INIT(folder, "-o", "ATTENTION=mla", "-o", "INIT=orthogonal", "--dtype", "f64", "--variant",
         "3");
    weft_safetensors *file = open_model(folder);
    static const char *const names[] = {"wte.weight",           "wpe.weight",
                                        "h.0.attn.q.weight",    "h.0.attn.k_down.weight",
                                        "h.1.attn.out.weight",  "h.0.ffn.fc.weight",
                                        "h.1.ffn.proj.weight",  "h.0.ffn.cross_proj.weight",
                                        "h.1.ffn.couple.weight"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        expect_orthonormal(file, names[i]);
    expect_uniform(file, "h.0.attn.q_latent", sqrt(6.0 / (DIM + LATENT)));
    expect_constant(file, "ln_f.weight", 1);
    weft_safetensors_close(file);
}

/* Every tensor that both have is equal in both; there are at least `least` of them. */
static void expect_shared(const char *one, const char *other, int least) {
    weft_safetensors *a = open_model(one), *b = open_model(other);
    int shared = 0;
    for (int64_t i = 0; i < weft_safetensors_count(a); i++) {
        const weft_safetensor *x = weft_safetensors_at(a, i),
                              *y = weft_safetensors_find(b, x->name);
        if (!y) continue;
        if (x->bytes != y->bytes || memcmp(x->data, y->data, (size_t)x->bytes) != 0)
            fail_msg("'%s' starts differently", x->name);
        shared++;
    }
    assert_true(shared >= least);
    weft_safetensors_close(a);
    weft_safetensors_close(b);
}

TEST(test_tensors_that_two_configs_share_start_equal) {
    const char *gelu = scratch_path("s1"), *swiglu = scratch_path("s2"), *mla = scratch_path("s3"),
               *all = scratch_path("s4");
    INIT(gelu, "--seed", "3");
    INIT(swiglu, "--seed", "3", "-o", "FFN=swiglu", "-o", "BATCH_SIZE=3");
    INIT(mla, "--seed", "3", "-o", "ATTENTION=mla");
    INIT(all, "--seed", "3", "-o", "ATTENTION=mla", "--variant", "3");
    expect_shared(gelu, swiglu, 16);
    expect_shared(gelu, mla, 10);
    expect_shared(mla, all, 20);
}

TEST(test_types_of_the_file) {
    const char *single = scratch_path("f32"), *wide = scratch_path("f64"),
               *narrow = scratch_path("bf16");
    INIT(single, "-o", "ATTENTION=w2");
    INIT(wide, "-o", "ATTENTION=w2", "--dtype", "f64");
    INIT(narrow, "-o", "ATTENTION=w2", "-o", "DTYPE=bf16");
    weft_safetensors *f = open_model(single), *d = open_model(wide), *b = open_model(narrow);
    for (int64_t i = 0; i < weft_safetensors_count(d); i++) {
        const weft_safetensor *exact = weft_safetensors_at(d, i),
                              *rounded = weft_safetensors_find(f, exact->name),
                              *half = weft_safetensors_find(b, exact->name);
        assert_int_equal(exact->dtype, WEFT_FILE_F64);
        assert_int_equal(rounded->dtype, WEFT_FILE_F32);
        assert_int_equal(half->dtype, exact->ndim == 1 ? WEFT_FILE_F32 : WEFT_FILE_BF16);
        for (int64_t k = 0; k < exact->bytes / 8; k++) {
            double value = element(exact, k);
            assert_true(element(rounded, k) == (double)(float)value);
            assert_true(fabs(element(half, k) - value) <= fabs(value) / 256);
        }
    }
    weft_safetensors_close(f);
    weft_safetensors_close(d);
    weft_safetensors_close(b);
}

TEST(test_config_json_carries_every_key) {
    const char *folder = scratch_path("keys");
    INIT(folder, "-o", "WEIGHT_DECAY=0.3", "--seed", "12", "--dtype", "f64");
    size_t bytes;
    WEFT_AUTO_FREE char *text = file_read(format_text("%s/config.json", folder), &bytes);
    WEFT_AUTO_DECREF json_t *object = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(object);
    int count;
    const weft_option *options = weft_options(&count);
    assert_int_equal(json_object_size(object), count);
    for (int i = 0; i < count; i++) {
        char key[64] = "";
        for (size_t k = 0; options[i].key[k]; k++)
            key[k] = (char)tolower((unsigned char)options[i].key[k]);
        if (!json_object_get(object, key)) fail_msg("config.json has no '%s'", key);
    }
    assert_int_equal(json_integer_value(json_object_get(object, "n_embd")), WIDTH);
    assert_int_equal(json_integer_value(json_object_get(object, "seed")), 12);
    assert_string_equal(json_string_value(json_object_get(object, "dtype")), "f64");
    assert_true(json_real_value(json_object_get(object, "weight_decay")) == 0.3);
}

/* A study's config without --variant is its step 0. */
TEST(test_a_study_starts_at_step_0) {
    const char *study = scratch_path("study"), *zero = scratch_path("zero");
    INIT(study, "-o", "ATTENTION=mla", "-o", "RA_MLA_ABLATION_STEPS=0,1,2,3");
    INIT(zero, "-o", "ATTENTION=mla", "--variant", "0");
    assert_true(same_model(study, zero));
}

RUN_TESTS(scratch_setup, scratch_teardown)
