/* `weft prune`: what is left computes what the whole model does with the removed parts at zero, the parts
 * that go are the least important ones, and what is left is smaller, generates and trains on.
 *
 * The models are those of tests/model/configs. The zeros are written here, into the whole model and only
 * where a part's output is made, so that nothing of what prunes is used. */
#include "support/command.h"
#include "support/model_case.h"
#include "support/snapshot.h"
#include "support/tensor_file.h"
#include "support/test.h"
#include "support/token_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { UNITS_MOST = 64 };

static void check(weft_status status) {
    if (status != WEFT_OK) fail_msg("%s", weft_error_message());
}

/* A path in the scratch folder that stays valid. */
static const char *at(const char *name) {
    static char paths[32][512];
    int i = 0;
    const char *path = scratch_path("%s", name);
    while (paths[i][0] && strcmp(paths[i], path) != 0)
        i++;
    assert_true(i < 31);
    snprintf(paths[i], sizeof paths[i], "%s", path);
    return paths[i];
}

static weft_weight *find(weft_model *m, int64_t layer, const char *name) {
    char full[128];
    snprintf(full, sizeof full, "h.%lld.%.90s", (long long)layer, name);
    return weft_model_find(m, full);
}

/* Rows or columns [first, last) of a layer's matrix, or elements of its vector, become 0. */
static void zero_part(weft_model *m, int64_t layer, const char *name, bool rows, int64_t first,
                      int64_t last) {
    weft_weight *w = find(m, layer, name);
    if (!w) return;
    double *values = calloc((size_t)w->count, sizeof *values);
    assert_non_null(values);
    int64_t columns = w->count / w->shape[0];
    weft_weight_read(w, values);
    for (int64_t i = 0; i < w->count; i++) {
        int64_t at = rows ? i / columns : i % columns;
        if (at >= first && at < last) values[i] = 0;
    }
    weft_weight_write(w, values);
    free(values);
}

/* Nothing makes the columns [first, last) of h. */
static void zero_hidden(weft_model *m, int64_t layer, int64_t first, int64_t last) {
    static const char *const names[] = {
        "ffn.fc.weight",       "ffn.fc.bias",       "ffn.w1.bias",
        "ffn.w3.bias",         "ffn.w1.weight",     "ffn.cross_proj.weight",
        "ffn.cross_up.weight", "ffn.couple.weight", "ffn.attn_to_mlp.weight"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        zero_part(m, layer, names[i], true, first, last);
    /* The scalar coupling's share is no weight of its own: nothing may read it. */
    bool scalar = m->config.latent_recip && m->config.tying_mode == WEFT_TYING_SCALAR;
    if (scalar) zero_part(m, layer, "ffn.proj.weight", false, first, last);
}

static void zero_unit(weft_model *m, const char *what, int64_t layer, int64_t unit) {
    const weft_config *c = &m->config;
    int64_t ffn = weft_config_ffn_dim(c), z = ffn / c->wsffn_n_head;
    int64_t head = c->n_head / weft_config_kv_heads(c) * weft_config_head_dim(c);
    if (strcmp(what, "heads") == 0)
        zero_part(m, layer, "attn.out.weight", false, unit * head, (unit + 1) * head);
    else if (strcmp(what, "ffn") == 0)
        zero_hidden(m, layer, unit, unit + 1);
    else if (strcmp(what, "z-heads") == 0)
        zero_hidden(m, layer, unit * z, (unit + 1) * z);
    else if (c->cross_rank)
        zero_part(m, layer, "ffn.cross_down.weight", true, unit, unit + 1);
    else
        zero_part(m, layer, "ffn.cross_proj.weight", false, unit, unit + 1);
}

static bool holds(const json_t *list, int64_t unit) {
    size_t i;
    json_t *one;
    json_array_foreach(list, i, one) if (json_integer_value(one) == unit) return true;
    return false;
}

static int64_t whole(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

static const json_t *kept_of(const json_t *said, size_t layer) {
    return json_object_get(json_array_get(json_object_get(said, "layers"), layer), "kept");
}

/* Writes zeros for all that was removed. */
static void zero_removed(weft_model *m, const char *what, const json_t *said) {
    for (int64_t l = 0; l < m->config.n_layer; l++) {
        const json_t *kept = kept_of(said, (size_t)l);
        assert_int_equal(json_array_size(kept), whole(said, "left"));
        for (int64_t u = 0; u < whole(said, "units"); u++)
            if (!holds(kept, u)) zero_unit(m, what, l, u);
    }
}

static const char *logits_of(const model_case *c, const char *model, const char *name) {
    const char *tokens = at("tokens.npy"), *out = at(name);
    int32_t *rows = calloc((size_t)(c->batch * (c->time + 1)), sizeof *rows);
    assert_non_null(rows);
    model_case_token_rows(c, rows);
    npy_write(tokens, 4, c->batch, c->time + 1, rows);
    free(rows);
    command_succeeds(
        RUN("eval", "--model", model, "--tokens", tokens, "--logits", out, "--dtype", "f64"), NULL);
    return out;
}

/* Heads 0 and 1 of every layer attend alike; what they find stays their own. */
static void make_alike(weft_model *m) {
    static const char *const names[] = {"attn.q.weight", "attn.q_latent"};
    for (int64_t l = 0; l < m->config.n_layer; l++)
        for (int i = 0; i < 2; i++) {
            weft_weight *w = find(m, l, names[i]);
            char *data = w->data;
            memcpy(data + w->bytes / 2, data, (size_t)w->bytes / 2);
        }
}

/* Prunes a case's model and compares logits; returns what was said. */
static json_t *prune_case(const char *name, const char *what, const char *keep, bool alike,
                          const char *form) {
    model_case c;
    model_case_open(&c, name);
    weft_model *m = model_case_weights(&c, WEFT_F64);
    if (alike) make_alike(m);
    const char *model = at("whole"), *zeros = at("zeros"), *out = at("pruned");
    check(weft_model_save(m, model));
    json_t *said = command_json(RUN("prune", "--model", model, "--out", out, "--force", "--what",
                                    what, "--keep", keep, "--dtype", "f64", "--json", form));
    zero_removed(m, what, said);
    snapshot_expect_keys("prune.json", said);
    check(weft_model_save(m, zeros));
    double apart = tensors_apart(logits_of(&c, out, "pruned.logits"),
                                 logits_of(&c, zeros, "zeros.logits"), "logits");
    if (!(apart < 1e-12))
        fail_msg("%s, %s: logits are %.3g from those with zeros", name, what, apart);
    /* And the zeros change something. */
    apart = tensors_apart(logits_of(&c, model, "whole.logits"),
                          logits_of(&c, zeros, "zeros.logits"), "logits");
    if (!(apart > 1e-6)) fail_msg("%s, %s: what was removed did nothing", name, what);
    weft_model_destroy(m);
    model_case_close(&c);
    return said;
}

typedef struct {
    const char *name, *what, *keep;
    bool alike;
} prune_test;

static const prune_test tests_of[] = {
    {"dot-learned", "heads", "0.5", false},
    {"dot-gqa-2-of-4-rope", "heads", "0.5", false},
    {"dot-bias-qkv-theta", "heads", "0.5", false},
    {"w2-rope", "heads", "0.5", false},
    {"w2-bias-rope", "heads", "0.5", false},
    {"w2-overlap-learned", "heads", "0.5", false},
    {"mix-w2-wsffn-gate-zloss", "heads", "0.5", false},
    {"mla-learned", "heads", "0.5", false},
    {"mla-w2", "heads", "0.5", false},
    {"mla-shared-v", "heads", "0.5", false},
    {"w2-kv-2-of-4-rope", "heads", "0.5", false},
    {"w2-sigma-kv-rope", "heads", "0.5", false},
    {"gate-open-learned", "heads", "0.5", false},
    {"gta-2-of-4", "heads", "0.5", false},
    {"mla-deepseek", "heads", "0.5", false},
    {"dot-out-gate-head-gqa", "heads", "0.5", false},
    {"dot-out-gate-element-post", "heads", "0.5", false},
    {"mla-reciprocal", "heads", "0.5", false},
    {"latent-untied", "heads", "0.5", false},
    {"gate-cummean", "heads", "0.5", false},
    {"step-3", "heads", "0.5", true}, /* routes are of the heads that are left */
    {"mix-mla-head-dim-all", "ffn", "0.5", false},
    {"dot-learned", "ffn", "0.3", false},
    {"ffn-swiglu", "ffn", "0.5", false},
    {"ffn-relu2", "ffn", "0.5", false},
    {"ffn-wsffn-dense", "ffn", "0.5", false},
    {"ffn-wsffn-grouped", "ffn", "0.5", false},
    {"step-3", "ffn", "0.5", false},
    {"step-3-untied", "ffn", "0.75", false},
    {"cross-topk-plain-mean-rank3", "ffn", "0.5", false},
    {"cross-rms-plain-mean-full", "ffn", "0.5", false},
    {"ffn-wsffn-dense", "z-heads", "0.5", false},
    {"ffn-wsffn-grouped", "z-heads", "0.5", false},
    {"ffn-wsffn-z-logits", "z-heads", "0.5", false},
    {"mix-mla-wsffn-all-zloss-ignore", "z-heads", "0.5", false},
    {"step-3", "cross", "0.4", false},
    {"cross-none-plain-max-full", "cross", "0.25", false},
    {"cross-topk-plain-mean-rank3", "cross", "0.6", false},
};

TEST(test_what_is_left_computes_as_with_zeros) {
    for (size_t i = 0; i < sizeof tests_of / sizeof tests_of[0]; i++) {
        const prune_test *t = &tests_of[i];
        json_t *said = prune_case(t->name, t->what, t->keep, t->alike, NULL);
        if (!(whole(said, "parameters") < whole(said, "parameters_before")))
            fail_msg("%s, %s: not smaller", t->name, t->what);
        json_decref(said);
    }
}

TEST(test_sparse_puts_zeros_in_place) {
    size_t step = getenv("WEFT_TEST_LONG") ? 1 : 4; /* each is five runs of the program */
    for (size_t i = 0; i < sizeof tests_of / sizeof tests_of[0]; i += step) {
        const prune_test *t = &tests_of[i];
        json_t *said = prune_case(t->name, t->what, t->keep, false, "--sparse");
        assert_int_equal(whole(said, "parameters"), whole(said, "parameters_before"));
        json_decref(said);
    }
    /* What cannot be removed can be zeroed. */
    json_decref(prune_case("dot-alibi-h2", "heads", "0.5", false, "--sparse"));
    json_decref(prune_case("latent-scalar", "ffn", "0.5", false, "--sparse"));
    json_decref(prune_case("mla-shared-q", "heads", "0.5", false, "--sparse"));
}

#define SMALL                                                                                      \
    "-o", "N_LAYER=2", "-o", "N_EMBD=32", "-o", "N_HEAD=4", "-o", "N_FFN=48", "-o",                \
        "VOCAB_SIZE=256", "-o", "CONTEXT=32", "-o", "BATCH_SIZE=4", "-o",                          \
        "RA_MLA_MLP_ATTN_GATE=y", "--peak-flops", "0"

/* A run of a few steps; its best checkpoint has an optimizer's state. */
static const char *trained(void) {
    static char run[512];
    snprintf(run, sizeof run, "%s", at("run"));
    if (access(run, F_OK) != 0) {
        const char *config = at("config");
        static const char text[] = "CONFIG_STEPS=12\nCONFIG_LEARNING_RATE=\"3e-3\"\n";
        file_write(config, text, sizeof text - 1);
        command_succeeds(RUN("train", "--config", config, SMALL, "--out", run), NULL);
    }
    return run;
}

/* Σ w² (v) over rows or columns [first, last) of a tensor in the run's files. */
static double importance(const char *name, bool rows, int64_t out, int64_t first, int64_t last,
                         bool state) {
    int64_t n, m = 0;
    char model[600], optimizer[600], moment[128];
    snprintf(model, sizeof model, "%s/best/model.safetensors", trained());
    snprintf(optimizer, sizeof optimizer, "%s/best/optimizer.safetensors", trained());
    snprintf(moment, sizeof moment, "v.%s", name);
    double *w = tensor_values(model, name, &n), sum = 0;
    double *v = state ? tensor_values(optimizer, moment, &m) : NULL;
    for (int64_t i = 0; i < n; i++) {
        int64_t at = rows ? i / (n / out) : i % (n / out);
        if (at >= first && at < last) sum += w[i] * w[i] * (v ? v[i] : 1);
    }
    free(w);
    free(v);
    return sum;
}

/* Of head `u` of the second layer: rows of the projection, its bias, columns of the output. */
static double head_importance(int64_t u, bool state) {
    double sum = importance("h.1.attn.out.weight", false, 32, 8 * u, 8 * u + 8, state);
    for (int64_t part = 0; part < 3; part++) {
        int64_t first = 32 * part + 8 * u;
        sum += importance("h.1.attn.qkv.weight", true, 96, first, first + 8, state);
        sum += importance("h.1.attn.qkv.bias", true, 96, first, first + 8, state);
    }
    return sum;
}

static double column_importance(int64_t u, bool state) {
    return importance("h.1.ffn.fc.weight", true, 48, u, u + 1, state) +
           importance("h.1.ffn.fc.bias", true, 48, u, u + 1, state) +
           importance("h.1.ffn.proj.weight", false, 32, u, u + 1, state) +
           importance("h.1.ffn.gate_proj.weight", false, 64, u, u + 1, state);
}

/* Every kept one of the second layer is at least as important as every other. */
static void check_choice(const json_t *said, int64_t units, const double *by) {
    const json_t *kept = kept_of(said, 1);
    for (int64_t a = 0; a < units; a++)
        for (int64_t b = 0; b < units; b++)
            if (holds(kept, a) && !holds(kept, b) && by[a] < by[b])
                fail_msg("%lld (%g) stays and %lld (%g) goes", (long long)a, by[a], (long long)b,
                         by[b]);
}

TEST(test_the_least_important_go) {
    static const char *const bys[] = {"magnitude", "state"};
    const char *out = at("pruned");
    double by[UNITS_MOST];
    for (int i = 0; i < 2; i++) {
        json_t *said =
            command_json(RUN("prune", "--model", trained(), "--out", out, "--force", "--what",
                             "heads", "--keep", "0.5", "--by", bys[i], "--json"));
        for (int64_t u = 0; u < 4; u++)
            by[u] = head_importance(u, i == 1);
        check_choice(said, 4, by);
        json_decref(said);
        said = command_json(RUN("prune", "--model", trained(), "--out", out, "--force", "--what",
                                "ffn", "--keep", "0.4", "--by", bys[i], "--json"));
        assert_int_equal(whole(said, "left"), 19);
        for (int64_t u = 0; u < 48; u++)
            by[u] = column_importance(u, i == 1);
        check_choice(said, 48, by);
        json_decref(said);
    }
}

/* Moments of other weights have the same names and shapes; the checksums tell them. */
TEST(test_another_models_state_is_refused) {
    char mixed[512];
    snprintf(mixed, sizeof mixed, "%s", at("mixed"));
#define BY_STATE(...)                                                                              \
    RUN("prune", "--model", mixed, "--out", at("by-state"), "--force", "--what", "heads",          \
        "--keep", "0.5", "--by", "state", __VA_ARGS__)
    shell_succeeds("cp -r '%s/best' '%s' && printf x | dd of='%s/optimizer.safetensors' bs=1 "
                   "seek=9000 conv=notrunc 2>&1",
                   trained(), mixed, mixed);
    command_fails(2, BY_STATE("--threads=1"), SAYS("optimizer.safetensors", "--unchecked"));
    command_succeeds(BY_STATE("--unchecked"), NULL);
    assert_int_equal(unlink(at("mixed/state.json")), 0);
    command_fails(2, BY_STATE("--threads=1"), SAYS("no state.json", "--unchecked"));
}

/* Muon keeps no second moments of matrices. */
TEST(test_muons_state_is_refused) {
    char config[512], run[512], out[512];
    snprintf(config, sizeof config, "%s", at("muon.config"));
    file_write(config, "CONFIG_STEPS=2\n", 15);
    snprintf(run, sizeof run, "%s", at("muon"));
    snprintf(out, sizeof out, "%s", at("muon-pruned"));
    command_succeeds(RUN("train", "--config", config, SMALL, "-o", "OPTIMIZER=muon", "--out", run),
                     NULL);
    command_fails(2,
                  RUN("prune", "--model", run, "--out", out, "--what", "heads", "--keep", "0.5",
                      "--by", "state"),
                  SAYS("OPTIMIZER=muon", "--by magnitude"));
}

static const char *make_text(void) {
    const char *path = at("text");
    char words[1200];
    for (size_t i = 0; i < sizeof words; i++)
        words[i] = "to be or not to be, that "[i % 25];
    file_write(path, words, sizeof words);
    return path;
}

TEST(test_gates_choose_heads) {
    const char *text = make_text(), *out = at("pruned");
    double by[4];
    json_t *inside = command_json(
        RUN("inspect", trained(), "--text", text, "--windows", "32", "--no-gradients", "--json"));
    const json_t *heads =
        json_object_get(json_array_get(json_object_get(inside, "layers"), 1), "heads");
    for (size_t u = 0; u < 4; u++)
        by[u] = json_number_value(json_object_get(json_array_get(heads, u), "gate"));
    json_t *said =
        command_json(RUN("prune", "--model", trained(), "--out", out, "--force", "--what", "heads",
                         "--keep", "0.5", "--by", "gate", "--text", text, "--json"));
    check_choice(said, 4, by);
    assert_true(json_is_number(json_object_get(said, "loss_after")));
    json_decref(said);
    json_decref(inside);
}

static double loss_of(const char *model) {
    json_t *said = command_json(RUN("eval", "--model", model, "--text", make_text(), "--json"));
    double loss = json_number_value(json_object_get(said, "loss"));
    json_decref(said);
    return loss;
}

TEST(test_the_smaller_model_is_planned_generates_and_heals) {
    const char *out = at("pruned"), *healed = at("healed");
    char config[600];
    json_t *said = command_json(RUN("prune", "--model", trained(), "--out", out, "--force",
                                    "--what", "heads", "--keep", "0.25", "--json"));
    snprintf(config, sizeof config, "%s/model.config", out);
    json_t *plan = command_json(RUN("plan", "--config", config, "--json"));
    json_t *before = command_json(RUN("plan", "--config", at("run/config"), "--json"));
    assert_int_equal(whole(plan, "parameters"), whole(said, "parameters"));
    assert_int_equal(4 * whole(plan, "cache_bytes_per_token"),
                     whole(before, "cache_bytes_per_token"));
    json_decref(before);
    json_decref(plan);
    json_decref(said);
    command_succeeds(RUN("generate", "--model", out, "--prompt", "to be", "--max-tokens", "4"),
                     NULL);
    double pruned = loss_of(out);
    command_succeeds(RUN("train", "--config", config, "--from", out, "--out", healed, "-o",
                         "STEPS=10", "-o", "BATCH_SIZE=4", "-o", "LEARNING_RATE=3e-3",
                         "--peak-flops", "0"),
                     NULL);
    assert_true(loss_of(healed) < pruned);
}

/* A model in bf16 is trained further in bf16. */
TEST(test_the_smaller_model_keeps_its_dtype) {
    char whole[600], out[600];
    snprintf(whole, sizeof whole, "%s", at("bf16"));
    snprintf(out, sizeof out, "%s", at("bf16-pruned"));
    command_succeeds(RUN("init", "--force", "-o", "N_LAYER=1", "-o", "N_HEAD=2", "-o", "N_EMBD=32",
                         "-o", "VOCAB_SIZE=256", "-o", "DTYPE=bf16", "--out", whole),
                     NULL);
    command_succeeds(RUN("prune", "--model", whole, "--out", out, "--force", "--what", "heads",
                         "--by", "magnitude", "--keep", "0.5"),
                     NULL);
    char *config = file_read(at("bf16-pruned/model.config"), NULL);
    if (!strstr(config, "CONFIG_DTYPE=\"bf16\"\n")) fail_msg("%s", config);
    assert_null(strstr(config, "LEARNING_RATE"));
    free(config);
}

/* scripts/prune-curve in its smallest form: one model, one share, few steps. */
TEST(test_the_curve_of_losses_is_made) {
    const char *program = getenv("WEFT");
    shell_succeeds(
        "WEFT='%s' MODELS=dot KEEPS=0.5 STEPS=2 HEAL=1 scripts/prune-curve '%s' >'%s' 2>&1",
        program ? program : "build/weft", at("curve"), at("curve.log"));
    char *table = file_read(at("curve/prune.tsv"), NULL);
    int rows = 0;
    for (const char *c = table; (c = strstr(c, "\ndot\t")); c++) {
        double keep, loss, healed;
        char what[16], by[16];
        long long parameters;
        assert_int_equal(sscanf(c + 5, "%15s %15s %lf %lld %lf %lf", what, by, &keep, &parameters,
                                &loss, &healed),
                         6);
        assert_true(loss > 1 && loss < 7 && healed > 1 && healed < 7);
        assert_true((parameters < 174656) == (keep < 1));
        rows++;
    }
    assert_int_equal(rows, 5); /* the whole, heads and columns by two measures */
    free(table);
}

TEST(test_what_cannot_be_is_refused) {
    const char *out = at("refused"), *text = make_text(), *alibi = at("alibi");
    const char *run = trained();
    command_fails(2,
                  RUN("prune", "--model", run, "--out", out, "--what", "layers", "--keep", "0.5"),
                  SAYS("--what", "layers"));
    command_fails(2,
                  RUN("prune", "--model", run, "--out", out, "--what", "ffn", "--by", "luck",
                      "--keep", "0.5"),
                  SAYS("--by", "luck"));
    command_fails(2, RUN("prune", "--model", run, "--out", out, "--what", "ffn", "--keep", "2"),
                  SAYS("--keep"));
    command_fails(2,
                  RUN("prune", "--model", run, "--out", out, "--what", "heads", "--keep", "0.99"),
                  SAYS("--keep 0.99", "of 4 none"));
    command_fails(2, RUN("prune", "--model", run, "--out", out, "--what", "cross", "--keep", "0.5"),
                  SAYS("CROSS_TOKEN"));
    command_fails(2,
                  RUN("prune", "--model", run, "--out", out, "--what", "z-heads", "--keep", "0.5"),
                  SAYS("wsffn"));
    command_fails(2,
                  RUN("prune", "--model", run, "--out", out, "--what", "heads", "--keep", "0.5",
                      "--by", "gate"),
                  SAYS("--text"));
    command_fails(2,
                  RUN("prune", "--model", run, "--out", out, "--what", "ffn", "--keep", "0.5",
                      "--by", "gate", "--text", text),
                  SAYS("--what heads"));
    command_succeeds(RUN("init", "--out", alibi, "-o", "N_LAYER=1", "-o", "N_EMBD=16", "-o",
                         "N_HEAD=2", "-o", "POSITION=alibi", "-o", "VOCAB_SIZE=256"),
                     NULL);
    command_fails(2,
                  RUN("prune", "--model", alibi, "--out", out, "--what", "heads", "--keep", "0.5"),
                  SAYS("alibi", "--sparse"));
    command_fails(2,
                  RUN("prune", "--model", alibi, "--out", out, "--what", "ffn", "--keep", "0.5",
                      "--by", "state"),
                  SAYS("optimizer.safetensors", "--by magnitude"));
    command_fails(2,
                  RUN("prune", "--model", alibi, "--out", out, "--what", "heads", "--keep", "0.5",
                      "--sparse", "--by", "gate", "--text", text),
                  SAYS("no gates"));
    command_succeeds(RUN("prune", "--model", run, "--out", out, "--what", "ffn", "--keep", "0.5"),
                     NULL);
    command_fails(2, RUN("prune", "--model", run, "--out", out, "--what", "ffn", "--keep", "0.5"),
                  SAYS("there already", "--force"));
}

RUN_TESTS(scratch_setup, scratch_teardown)
