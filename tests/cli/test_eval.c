/* `weft eval` against the independent reference, through files alone: a checkpoint and tokens go in,
 * losses, logits, gradients and scores come out. */
#include "core/safetensors.h"
#include "support/command.h"
#include "support/model_case.h"
#include "support/snapshot.h"
#include "support/test.h"
#include "support/token_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A case as files: scratch/NAME/{config.json,model.safetensors}, tokens.npy, targets.npy. */
typedef struct {
    model_case c;
    weft_model *model;
    char folder[256], tokens[256], targets[256];
} case_files;

static void case_open(case_files *f, const char *name, weft_dtype dtype, int size) {
    model_case_open(&f->c, name);
    f->model = model_case_weights(&f->c, dtype);
    snprintf(f->folder, sizeof f->folder, "%s", scratch_path("%s", name));
    snprintf(f->tokens, sizeof f->tokens, "%s", scratch_path("tokens.npy"));
    snprintf(f->targets, sizeof f->targets, "%s", scratch_path("targets.npy"));
    expect_ok(weft_model_save(f->model, f->folder));
    int64_t batch = f->c.batch, time = f->c.time;
    WEFT_AUTO_FREE int32_t *rows = calloc((size_t)(batch * (time + 1)), sizeof *rows);
    assert_non_null(rows);
    for (int64_t b = 0; b < batch; b++) {
        int32_t *row = rows + b * (time + 1), last = f->c.targets[b * time + time - 1];
        memcpy(row, f->c.tokens + b * time, (size_t)time * sizeof *row);
        row[time] = last < 0 ? 0 : last; /* an ignored one is only in the targets */
    }
    npy_write(f->tokens, size, batch, time + 1, rows);
    npy_write(f->targets, size, batch, time, f->c.targets);
}

static void case_close(case_files *f) {
    weft_model_destroy(f->model);
    model_case_close(&f->c);
}

static weft_safetensors *open_file(const char *path) {
    weft_safetensors *file;
    expect_ok(weft_safetensors_open(path, &file));
    return file;
}

static int64_t elements(const weft_safetensor *t) {
    int64_t count = 1;
    for (int d = 0; d < t->ndim; d++)
        count *= t->shape[d];
    return count;
}

static double f64_at(const weft_safetensor *t, int64_t i) {
    double value;
    memcpy(&value, (const char *)t->data + 8 * i, sizeof value);
    return value;
}

/* ‖got − want‖ within the tolerance of max(‖want‖, least). */
static void compare(const char *what, const weft_safetensor *got, const vector *want,
                    double tolerance) {
    if (!got || !want) fail_msg("%s is missing", what);
    assert_int_equal(got->dtype, WEFT_FILE_F64);
    assert_int_equal(got->ndim, want->ndim);
    assert_memory_equal(got->shape, want->shape, (size_t)want->ndim * sizeof want->shape[0]);
    double off = 0, size = 0, n = (double)want->count;
    for (int64_t i = 0; i < want->count; i++) {
        double a = f64_at(got, i), b = want->data[i];
        off += (a - b) * (a - b);
        size += b * b;
    }
    if (!(sqrt(off) <= tolerance * fmax(sqrt(size), 1e-6 * sqrt(n))))
        fail_msg("%s is off by %.3g of %.3g", what, sqrt(off), sqrt(size));
}

static double part(const json_t *object, const char *name) {
    const json_t *value = json_object_get(object, name);
    if (!json_is_number(value)) fail_msg("'%s' is missing or no number", name);
    return json_number_value(value);
}

static void compare_part(const case_files *f, const json_t *object, const char *name,
                         const vectors *kept, const char *reference) {
    double got = part(object, name), want = vectors_find(kept, "%s", reference)->kept[0];
    if (!(fabs(got - want) <= 1e-10 * fmax(1, fabs(want))))
        fail_msg("%s: %s is %.15g, the reference has %.15g", f->c.name, name, got, want);
}

static void compare_training_pass(const case_files *f, const vectors *kept) {
    const char *logits = scratch_path("logits"), *grads = scratch_path("grads");
    WEFT_AUTO_DECREF json_t *object = command_json(
        RUN("eval", "--model", f->folder, "--tokens", f->tokens, "--targets", f->targets, "--dtype",
            "f64", "--logits", logits, "--grads", grads, "--json"));
    static const char *const parts[] = {"loss", "cross_entropy", "aux_z", "aux_contrastive",
                                        "logits_z"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        compare_part(f, object, parts[i], kept, parts[i]);
    weft_safetensors *file = open_file(logits);
    assert_int_equal(weft_safetensors_count(file), 1);
    compare(f->c.name, weft_safetensors_find(file, "logits"), vectors_find(kept, "logits"), 1e-10);
    weft_safetensors_close(file);
    file = open_file(grads);
    assert_int_equal(weft_safetensors_count(file), f->model->n_weights);
    for (int64_t i = 0; i < f->model->n_weights; i++) {
        char name[160];
        snprintf(name, sizeof name, "grad.%s", f->model->weights[i].name);
        compare(name, weft_safetensors_find(file, name + 5), vectors_find(kept, "%s", name), 1e-10);
    }
    weft_safetensors_close(file);
}

/* Without gradients it is eval mode, and without --targets the tokens that follow. */
static void compare_eval_pass(const case_files *f, const vectors *kept) {
    const char *const with[] = {"eval", "--model", f->folder,   "--tokens", f->tokens, "--dtype",
                                "f64",  "--json",  "--targets", f->targets, NULL};
    const char *const without[] = {"eval",    "--model", f->folder, "--tokens", f->tokens,
                                   "--dtype", "f64",     "--json",  NULL};
    WEFT_AUTO_DECREF json_t *object = command_json(f->c.ignore ? with : without);
    compare_part(f, object, "loss", kept, "eval.loss");
    assert_true(part(object, "aux_z") == 0 && part(object, "aux_contrastive") == 0);
    assert_true(fabs(part(object, "loss") - part(object, "cross_entropy") -
                     part(object, "logits_z")) < 1e-12 * fmax(1, part(object, "loss")));
}

/* Checkpoints are f32 files, read under --dtype f64. */
TEST(test_every_config_equals_the_reference) {
    char **names;
    int n = model_case_names(&names);
    assert_true(n >= 40);
    for (int i = 0; i < n; i++) {
        case_files f;
        case_open(&f, names[i], WEFT_F32, i % 2 ? 4 : 8);
        vectors *kept = model_case_kept(names[i]);
        compare_training_pass(&f, kept);
        compare_eval_pass(&f, kept);
        vectors_close(kept);
        case_close(&f);
    }
    model_case_names_free(names, n);
}

static json_t *evaluate(const case_files *f, const char *dtype) {
    return command_json(RUN("eval", "--model", f->folder, "--tokens", f->tokens, "--targets",
                            f->targets, "--dtype", dtype, "--json"));
}

/* f64, f32 and bf16 files under every type: near the loss in f64. */
TEST(test_any_file_under_any_type) {
    static const weft_dtype files[] = {WEFT_F64, WEFT_F32, WEFT_BF16};
    static const char *const names[] = {"f64", "f32", "bf16"};
    double exact = 0;
    for (int i = 0; i < 3; i++) {
        case_files f;
        case_open(&f, "mix-dot-wsffn-gate-cross-ignore", files[i], 4);
        for (int k = 0; k < 3; k++) {
            WEFT_AUTO_DECREF json_t *object = evaluate(&f, names[k]);
            double loss = part(object, "loss");
            if (i == 0 && k == 0) exact = loss;
            double tolerance = i == 2 || k == 2 ? 0.05 : k == 1 ? 1e-5 : 1e-10;
            if (fabs(loss - exact) > tolerance * exact)
                fail_msg("%s file under %s: %.12g, not %.12g", names[i], names[k], loss, exact);
        }
        case_close(&f);
    }
}

static void expect_type(const char *path, weft_file_dtype dtype) {
    weft_safetensors *file = open_file(path);
    assert_int_equal(weft_safetensors_find(file, "logits")->dtype, dtype);
    weft_safetensors_close(file);
}

TEST(test_logits_are_f32_unless_f64_is_asked_for) {
    case_files f;
    const char *path = scratch_path("logits");
    case_open(&f, "dot-rope", WEFT_F32, 4);
    WEFT_AUTO_FREE char *table =
        OUTPUT("eval", "--model", f.folder, "--tokens", f.tokens, "--logits", path);
    assert_non_null(strstr(table, "\nlogits_z "));
    assert_null(strchr(table, '{')); /* --json's alone */
    expect_type(path, WEFT_FILE_F32);
    SUCCEEDS("eval", "--model", f.folder, "--tokens", f.tokens, "--logits", path, "--dtype",
             "bf16");
    expect_type(path, WEFT_FILE_F32);
    SUCCEEDS("eval", "--model", f.folder, "--tokens", f.tokens, "--logits", path, "--dtype=f64",
             "--threads=1");
    expect_type(path, WEFT_FILE_F64);
    case_close(&f);
}

static double weight_at(const weft_model *m, const char *name, int64_t i) {
    const weft_weight *w = weft_model_find(m, name);
    if (!w) fail_msg("no weight '%s'", name);
    return ((const double *)w->data)[i];
}

/* The first layer's norm of a token's embedding, by the formulas. */
static void first_norm(const case_files *f, int32_t token, int64_t position, double *y) {
    int64_t width = f->c.config.n_embd;
    bool rms = f->c.config.norm == WEFT_NORM_RMSNORM, bias = !rms && f->c.config.bias;
    double mean = 0, variance = 0;
    for (int64_t e = 0; e < width; e++) {
        y[e] = weight_at(f->model, "wte.weight", token * width + e);
        if (f->c.config.position == WEFT_POSITION_LEARNED)
            y[e] += weight_at(f->model, "wpe.weight", position * width + e);
        mean += rms ? 0 : y[e] / (double)width;
    }
    for (int64_t e = 0; e < width; e++)
        variance += (y[e] - mean) * (y[e] - mean) / (double)width;
    for (int64_t e = 0; e < width; e++)
        y[e] = (y[e] - mean) / sqrt(variance + (rms ? 1e-6 : 1e-5)) *
                   weight_at(f->model, "h.0.ln_1.weight", e) +
               (bias ? weight_at(f->model, "h.0.ln_1.bias", e) : 0);
}

/* Row `row` of the first layer's projection `name`, of a normed token. */
static double projected(const case_files *f, const char *name, int64_t row, const double *y) {
    int64_t width = f->c.config.n_embd;
    double sum = 0;
    for (int64_t e = 0; e < width; e++)
        sum += weight_at(f->model, name, row * width + e) * y[e];
    return sum;
}

/* −(‖μ_q − μ_k‖² + ‖σ_q − σ_k‖²)/(τ + ε) of one head. */
static double distance_score(const case_files *f, int64_t head, const double *query,
                             const double *key) {
    int64_t dim = weft_config_head_dim(&f->c.config);
    double sum = 0, tau = 2 * sqrt((double)dim);
    if (f->c.config.w2_tau > 0) tau = f->c.config.w2_tau;
    if (f->c.config.w2_tau_learned) tau = exp(weight_at(f->model, "h.0.attn.log_tau", head));
    for (int64_t d = 0; d < 2 * dim; d++) {
        double a = projected(f, "h.0.attn.q.weight", head * 2 * dim + d, query);
        double b = projected(f, "h.0.attn.k.weight", head * 2 * dim + d, key);
        if (d >= dim) {
            a = log1p(exp(a));
            b = log1p(exp(b));
        }
        sum += (a - b) * (a - b);
    }
    return -sum / (tau + 1e-6);
}

static double product_score(const case_files *f, int64_t head, const double *query,
                            const double *key) {
    int64_t dim = weft_config_head_dim(&f->c.config), width = f->c.config.n_embd;
    double sum = 0;
    for (int64_t d = 0; d < dim; d++) {
        int64_t row = head * dim + d;
        double a = projected(f, "h.0.attn.qkv.weight", row, query);
        double b = projected(f, "h.0.attn.qkv.weight", width + row, key);
        if (f->c.config.bias) {
            a += weight_at(f->model, "h.0.attn.qkv.bias", row);
            b += weight_at(f->model, "h.0.attn.qkv.bias", width + row);
        }
        sum += a * b;
    }
    return sum / sqrt((double)dim);
}

static void compare_first_layer(const case_files *f, const weft_safetensor *scores) {
    int64_t heads = f->c.config.n_head, time = f->c.time, width = f->c.config.n_embd;
    WEFT_AUTO_FREE double *y = malloc((size_t)(time * width) * sizeof *y);
    assert_non_null(y);
    for (int64_t b = 0; b < f->c.batch; b++) {
        for (int64_t t = 0; t < time; t++)
            first_norm(f, f->c.tokens[b * time + t], t, y + t * width);
        for (int64_t h = 0; h < heads; h++) {
            for (int64_t i = 0; i < time; i++) {
                for (int64_t j = 0; j <= i; j++) {
                    double got = f64_at(scores, ((b * heads + h) * time + i) * time + j);
                    double want = f->c.config.attention == WEFT_ATTENTION_W2
                                      ? distance_score(f, h, y + i * width, y + j * width)
                                      : product_score(f, h, y + i * width, y + j * width);
                    if (!(fabs(got - want) <= 1e-9 * fmax(1, fabs(want))))
                        fail_msg("%s: score %lld,%lld is %.12g, not %.12g", f->c.name, (long long)i,
                                 (long long)j, got, want);
                }
            }
        }
    }
}

/* Shapes, finite below the diagonal, -inf above; distances are never positive. */
static void check_scores(const case_files *f, const char *path, bool distances) {
    weft_safetensors *file = open_file(path);
    int64_t time = f->c.time;
    assert_int_equal(weft_safetensors_count(file), f->c.config.n_layer);
    for (int64_t layer = 0; layer < f->c.config.n_layer; layer++) {
        const char *name = format_text("h.%lld.attn.scores", (long long)layer);
        const weft_safetensor *t = weft_safetensors_find(file, name);
        assert_non_null(t);
        const int64_t shape[4] = {f->c.batch, f->c.config.n_head, time, time};
        assert_int_equal(t->ndim, 4);
        assert_memory_equal(t->shape, shape, sizeof shape);
        for (int64_t i = 0; i < elements(t); i++) {
            double value = f64_at(t, i);
            if (f->c.config.causal && i % time > i / time % time)
                assert_true(value == -INFINITY);
            else
                assert_true(isfinite(value) && !(distances && value > 0));
        }
    }
    if (f->c.config.position != WEFT_POSITION_ROPE && f->c.config.attention != WEFT_ATTENTION_MLA)
        compare_first_layer(f, weft_safetensors_find(file, "h.0.attn.scores"));
    weft_safetensors_close(file);
}

TEST(test_scores_are_what_the_formulas_give) {
    static const struct {
        const char *name;
        bool distances;
    } cases[] = {{"w2-none", true},       {"w2-learned", true}, {"w2-tau-fixed", true},
                 {"w2-tau-set", true},    {"w2-rope", true},    {"dot-learned", false},
                 {"dot-none", false},     {"mla-w2", true},     {"mla-reciprocal", false},
                 {"dot-noncausal", false}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        case_files f;
        case_open(&f, cases[i].name, WEFT_F64, 4);
        const char *path = scratch_path("scores");
        SUCCEEDS("eval", "--model", f.folder, "--tokens", f.tokens, "--scores", path, "--dtype",
                 "f64");
        check_scores(&f, path, cases[i].distances);
        case_close(&f);
    }
}

static double loss_of(const char *folder, const char *tokens) {
    WEFT_AUTO_DECREF json_t *object = command_json(
        RUN("eval", "--model", folder, "--tokens", tokens, "--dtype", "f64", "--json"));
    double loss = part(object, "loss");
    return loss;
}

/* Windows of the block size, the last one shorter. */
TEST(test_a_shard_has_the_loss_of_its_windows) {
    case_files f;
    case_open(&f, "dot-zloss", WEFT_F32, 4);
    int64_t block = f.c.config.context, windows = 2 * f.c.batch + 1, tail = 3;
    assert_true(block > tail);
    int64_t total = windows * block + tail + 1;
    WEFT_AUTO_FREE int32_t *tokens = calloc((size_t)total, sizeof *tokens);
    WEFT_AUTO_FREE int32_t *rows = calloc((size_t)(windows * (block + 1)), sizeof *rows);
    assert_non_null(tokens);
    assert_non_null(rows);
    for (int64_t i = 0; i < total; i++)
        tokens[i] = (int32_t)(i * i % f.c.config.vocab_size);
    for (int64_t w = 0; w < windows; w++)
        memcpy(rows + w * (block + 1), tokens + w * block, (size_t)(block + 1) * sizeof *rows);
    const char *path = scratch_path("windows");
    npy_write(path, 4, windows, block + 1, rows);
    double whole = loss_of(f.folder, path);
    npy_write(path, 8, 1, tail + 1, tokens + windows * block);
    double rest = loss_of(f.folder, path);
    double n = (double)(windows * block),
           want = (whole * n + rest * (double)tail) / (n + (double)tail);
    shard_write(path, 20240520, 1, (int32_t)total, 2, tokens, total);
    assert_true(fabs(loss_of(f.folder, path) - want) < 1e-12 * want);
    shard_write(path, 20240801, 7, (int32_t)total, 4, tokens, total);
    assert_true(fabs(loss_of(f.folder, path) - want) < 1e-12 * want);
    shard_write(path, 20240520, 1, (int32_t)(total - tail), 2, tokens, total - tail);
    assert_true(fabs(loss_of(f.folder, path) - whole) < 1e-12 * want);
    FAILS(2, SAYS(path, ".npy"), "eval", "--model", f.folder, "--tokens", path, "--grads", "x");
    case_close(&f);
}

/* Keys of the checkpoint's config that leave its tensors alone may be changed. */
TEST(test_overrides_change_the_checkpoints_config) {
    case_files f;
    case_open(&f, "dot-rope", WEFT_F32, 4);
    WEFT_AUTO_DECREF json_t *object = command_json(RUN(
        "eval", "--model", f.folder, "--tokens", f.tokens, "--json", "-o", "LAMBDA_LOGITS_Z=0.5"));
    snapshot_expect_keys("eval.json", object);
    assert_true(part(object, "logits_z") > 0);
    FAILS(2, SAYS("wpe.weight", "missing"), "eval", "--model", f.folder, "--tokens", f.tokens, "-o",
          "POSITION=learned");
    FAILS(2, SAYS("did you mean CONFIG_N_LAYER?"), "eval", "--model", f.folder, "--tokens",
          f.tokens, "-o", "N_LAYERS=1");
    FAILS(2, SAYS("--variant", "-o"), "eval", "--model", f.folder, "--tokens", f.tokens,
          "--variant", "1");
    case_close(&f);
}

/* Dropout is off in a gradient pass, whatever the checkpoint says. */
TEST(test_dropout_is_off) {
    case_files f;
    case_open(&f, "dot-rope", WEFT_F32, 4);
    const char *a = scratch_path("a"), *b = scratch_path("b");
    SUCCEEDS("eval", "--model", f.folder, "--tokens", f.tokens, "--grads", a);
    SUCCEEDS("eval", "--model", f.folder, "--tokens", f.tokens, "--grads", b, "-o", "DROPOUT=0.5");
    file_expect_equal(a, b);
    case_close(&f);
}

RUN_TESTS(scratch_setup, scratch_teardown)
