/* Pruning while training: which weights and units are masked, when, and that they stay zero, over a resume and
 * any number of ranks. */
#include "core/safetensors.h"
#include "cpu/backend.h"
#include "support/command.h"
#include "support/model_case.h"
#include "support/ranks_run.h"
#include "support/test.h"
#include "support/train_run.h"
#include "train/optimizer.h"
#include "train/step.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    model_case c;
    model_run r;
    weft_optimizer *o;
} trainee;

static void open_trainee(trainee *t, const char *model, int optimizer, int prune, int what,
                         weft_dtype dtype) {
    *t = (trainee){0};
    model_case_open(&t->c, model);
    t->c.config.optimizer = optimizer;
    t->c.config.prune = prune;
    t->c.config.prune_what = what;
    t->c.config.prune_sparsity = 0.75;
    model_run_open(&t->r, &t->c,
                   &(model_run_options){.dtype = dtype, .train = true, .grads = true});
    expect_ok(weft_optimizer_create(t->r.model, weft_cpu_backend(), t->r.pool, NULL, &t->o));
    expect_ok(weft_optimizer_bind_session(t->o, &t->r.session));
}

static void close_trainee(trainee *t) {
    weft_optimizer_destroy(t->o);
    model_run_close(&t->r);
    model_case_close(&t->c);
}

static void take_step(trainee *t) {
    model_run_again(&t->r, t->c.tokens, t->c.targets);
    expect_ok(weft_optimizer_run(t->o, 1e-2));
}

static const weft_weight *find_state(const trainee *t, const char *kind, const char *name) {
    const weft_weight *list;
    int64_t n;
    const char *full = format_text("%s.%s", kind, name);
    expect_ok(weft_optimizer_state(t->o, &list, &n));
    for (int64_t i = 0; i < n; i++)
        if (strcmp(list[i].name, full) == 0) return &list[i];
    return NULL;
}

static double *read_weight(const weft_weight *w) {
    double *values = malloc((size_t)w->count * sizeof *values);
    assert_non_null(values);
    weft_weight_read(w, values);
    return values;
}

/* Copies of all weights, [weights]. */
static double **read_weights(const weft_model *m) {
    double **all = calloc((size_t)m->n_weights, sizeof *all);
    assert_non_null(all);
    for (int64_t i = 0; i < m->n_weights; i++)
        all[i] = read_weight(&m->weights[i]);
    return all;
}

static void free_weights(const weft_model *m, double **all) {
    for (int64_t i = 0; i < m->n_weights; i++)
        free(all[i]);
    free(all);
}

/* The scores as they are published: |w|, w (w - w0), |w| v^¼. */
static double *published_scores(const trainee *t, const weft_weight *w, const double *start) {
    int prune = t->c.config.prune;
    double *scores = read_weight(w), *v = NULL;
    if (prune == WEFT_PRUNING_STATE) v = read_weight(find_state(t, "v", w->name));
    for (int64_t i = 0; i < w->count; i++)
        scores[i] = prune == WEFT_PRUNING_MAGNITUDE  ? fabs(scores[i])
                    : prune == WEFT_PRUNING_MOVEMENT ? scores[i] * (scores[i] - start[i])
                                                     : fabs(scores[i]) * pow(v[i], 0.25);
    free(v);
    return scores;
}

/* How many others come before a number: lower ones, and of equal ones those behind it. */
static int64_t rank_of(const double *scores, int64_t n, int64_t i) {
    int64_t before = 0;
    for (int64_t k = 0; k < n; k++)
        before += scores[k] < scores[i] || (scores[k] == scores[i] && k > i);
    return before;
}

/* The mask of a weight against the scores; what was masked before counts as lowest. */
static void check_mask(const trainee *t, const weft_weight *w, double *scores, const int8_t *was,
                       double sparsity) {
    const int8_t *mask = find_state(t, "mask", w->name)->data;
    int64_t masked = 0;
    for (int64_t i = 0; i < w->count; i++)
        if (was && !was[i]) scores[i] = -INFINITY;
    for (int64_t i = 0; i < w->count; i++) {
        bool low = rank_of(scores, w->count, i) < llround(sparsity * (double)w->count);
        if (low == (mask[i] != 0))
            fail_msg("%s: %lld with the score %.17g is %s", w->name, (long long)i, scores[i],
                     low ? "not masked" : "masked");
        masked += !mask[i];
    }
    assert_int_equal(masked, llround(sparsity * (double)w->count));
}

/* After a step: zero, to the bit, where the mask is 0. */
static void check_zeros(const trainee *t) {
    const weft_model *m = t->r.model;
    for (int64_t i = 0; i < m->n_weights; i++) {
        const weft_weight *mask = find_state(t, "mask", m->weights[i].name);
        const weft_weight *master = find_state(t, "master", m->weights[i].name);
        if (!mask) continue;
        double *values = read_weight(master ? master : &m->weights[i]),
               *copy = read_weight(&m->weights[i]);
        for (int64_t k = 0; k < mask->count; k++) {
            bool kept = ((const int8_t *)mask->data)[k] != 0;
            if (!kept && (values[k] != 0 || copy[k] != 0))
                fail_msg("%s: %lld is masked and %g", m->weights[i].name, (long long)k, values[k]);
        }
        free(values);
        free(copy);
    }
}

static bool is_matrix(const weft_weight *w) {
    return strncmp(w->name, "h.", 2) == 0 && w->ndim >= 2;
}

static void check_weights(int optimizer, int prune, weft_dtype dtype) {
    /* So little more that what has gone towards zero since would take the place of what is masked. */
    static const double sparsities[] = {0.3, 0.32};
    trainee t;
    open_trainee(&t, "dot-learned", optimizer, prune, WEFT_MASKS_WEIGHTS, dtype);
    const weft_model *m = t.r.model;
    double **start = read_weights(m);
    for (int round = 0; round < 2; round++) {
        take_step(&t);
        take_step(&t);
        expect_ok(weft_optimizer_refresh(t.o)); /* where weights began is not where they are */
        int8_t **was = calloc((size_t)m->n_weights, sizeof *was);
        double **scores = calloc((size_t)m->n_weights, sizeof *scores);
        assert_true(was && scores);
        for (int64_t i = 0; i < m->n_weights; i++) {
            const weft_weight *w = &m->weights[i], *mask = find_state(&t, "mask", w->name);
            if ((mask != NULL) != is_matrix(w))
                fail_msg("%s has %s mask", w->name, mask ? "a" : "no");
            if (!mask) continue;
            scores[i] = published_scores(&t, w, start[i]);
            was[i] = malloc((size_t)w->count);
            assert_non_null(was[i]);
            memcpy(was[i], mask->data, (size_t)w->count);
        }
        expect_ok(weft_optimizer_prune(t.o, sparsities[round]));
        for (int64_t i = 0; i < m->n_weights; i++)
            if (was[i]) check_mask(&t, &m->weights[i], scores[i], was[i], sparsities[round]);
        take_step(&t);
        check_zeros(&t);
        weft_step_events e;
        expect_ok(weft_optimizer_events(t.o, &e));
        assert_true(e.pruned && fabs(e.sparsity - sparsities[round]) < 0.01);
        for (int64_t i = 0; i < m->n_weights; i++) {
            free(was[i]);
            free(scores[i]);
        }
        free(was);
        free(scores);
    }
    /* Nothing more to do at the same sparsity. */
    expect_ok(weft_optimizer_prune(t.o, sparsities[1]));
    take_step(&t);
    check_zeros(&t);
    weft_step_events e;
    expect_ok(weft_optimizer_events(t.o, &e));
    assert_false(e.pruned);
    free_weights(m, start);
    close_trainee(&t);
}

TEST(test_lowest_scores_of_each_matrix_are_masked) {
    check_weights(WEFT_OPTIMIZER_ADAMW, WEFT_PRUNING_MAGNITUDE, WEFT_F32);
    check_weights(WEFT_OPTIMIZER_ADAMW, WEFT_PRUNING_MOVEMENT, WEFT_F32);
    check_weights(WEFT_OPTIMIZER_ADAMW, WEFT_PRUNING_STATE, WEFT_F64);
    check_weights(WEFT_OPTIMIZER_ADAMWSPAM, WEFT_PRUNING_STATE, WEFT_F32);
    check_weights(WEFT_OPTIMIZER_MUON, WEFT_PRUNING_MOVEMENT, WEFT_F32);
    check_weights(WEFT_OPTIMIZER_MUON, WEFT_PRUNING_MAGNITUDE, WEFT_F64);
}

/* bf16 weights have many ties; the order of equal ones is part of the bits. */
TEST(test_masks_of_bf16_weights) {
    check_weights(WEFT_OPTIMIZER_ADAMW, WEFT_PRUNING_MAGNITUDE, WEFT_BF16);
    check_weights(WEFT_OPTIMIZER_MUON, WEFT_PRUNING_MAGNITUDE, WEFT_BF16);
}

/* A column of the feed-forward: a row of fc with its bias, a column of proj; its score is the sum of squares
 * of |w| v^¼ over them. All of it is masked, and nothing else. */
TEST(test_columns_of_the_feed_forward_are_masked_whole) {
    trainee t;
    open_trainee(&t, "dot-learned", WEFT_OPTIMIZER_ADAMW, WEFT_PRUNING_STATE, WEFT_MASKS_FFN,
                 WEFT_F32);
    const weft_model *m = t.r.model;
    int64_t f = weft_config_ffn_dim(&m->config), e = m->config.n_embd;
    take_step(&t);
    take_step(&t);
    for (int64_t l = 0; l < m->config.n_layer; l++) {
        static const char *const parts[] = {"fc.weight", "fc.bias", "proj.weight"};
        WEFT_AUTO_FREE double *sums = calloc((size_t)f, sizeof *sums);
        char name[3][64];
        assert_non_null(sums);
        for (int p = 0; p < 3; p++) {
            snprintf(name[p], sizeof name[p], "h.%lld.ffn.%s", (long long)l, parts[p]);
            const weft_weight *w = weft_model_find(m, name[p]);
            assert_non_null(w);
            WEFT_AUTO_FREE double *scores = published_scores(&t, w, NULL);
            for (int64_t i = 0; i < w->count; i++)
                sums[p == 0 ? i / e : i % f] += scores[i] * scores[i];
        }
        /* The masks are made once, for all layers. */
        if (l == 0) expect_ok(weft_optimizer_prune(t.o, 0.5));
        int64_t masked = 0;
        for (int64_t u = 0; u < f; u++) {
            bool low = rank_of(sums, f, u) < llround(0.5 * (double)f);
            masked += low;
            for (int p = 0; p < 3; p++) {
                const weft_weight *mask = find_state(&t, "mask", name[p]);
                for (int64_t i = 0; i < mask->count; i++)
                    if ((p == 0 ? i / e : i % f) == u && ((const int8_t *)mask->data)[i] == low)
                        fail_msg("%s: %lld is %s", name[p], (long long)i,
                                 low ? "not masked" : "masked");
            }
        }
        assert_int_equal(masked, llround(0.5 * (double)f));
    }
    take_step(&t);
    check_zeros(&t);
    assert_null(find_state(&t, "mask", "h.0.attn.out.weight"));
    close_trainee(&t);
}

static void expect_pruned(trainee *t, bool pruned) {
    weft_step_events e;
    expect_ok(weft_optimizer_prune(t->o, 0.5));
    take_step(t);
    expect_ok(weft_optimizer_events(t->o, &e));
    assert_int_equal(e.pruned, pruned);
    assert_true(e.sparsity == (pruned ? 0.5 : 0));
}

/* Where all second moments are zero they tell nothing: the next step does it. */
TEST(test_no_masks_without_moments) {
    trainee t;
    open_trainee(&t, "dot-learned", WEFT_OPTIMIZER_ADAMWSPAM, WEFT_PRUNING_STATE,
                 WEFT_MASKS_WEIGHTS, WEFT_F32);
    expect_pruned(&t, false);
    expect_pruned(&t, true);
    close_trainee(&t);
    open_trainee(&t, "dot-learned", WEFT_OPTIMIZER_ADAMW, WEFT_PRUNING_MAGNITUDE,
                 WEFT_MASKS_WEIGHTS, WEFT_F32);
    expect_pruned(&t, true);
    close_trainee(&t);
}

/* Zero before PRUNE_START, a cubic in stairs, all of it from PRUNE_END on. */
TEST(test_sparsity_rises_along_a_cubic) {
    weft_config c;
    weft_config_defaults(&c);
    c.prune_start = 10;
    c.prune_end = 30;
    c.prune_interval = 5;
    c.prune_sparsity = 0.8;
    assert_true(weft_schedule_sparsity(&c, 1000) == 0);
    c.prune = WEFT_PRUNING_MAGNITUDE;
    static const struct {
        int64_t step;
        double sparsity;
    } known[] = {{0, 0},
                 {10, 0},
                 {14, 0},
                 {15, 0.8 * (1 - 27.0 / 64)},
                 {19, 0.8 * (1 - 27.0 / 64)},
                 {20, 0.8 * (1 - 1.0 / 8)},
                 {29, 0.8 * (1 - 1.0 / 64)},
                 {30, 0.8},
                 {999, 0.8}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assert_true(fabs(weft_schedule_sparsity(&c, known[i].step) - known[i].sparsity) < 1e-15);
    c.prune_start = c.prune_end = 0; /* at once */
    assert_true(weft_schedule_sparsity(&c, 0) == 0.8);
}

#define PRUNES(by)                                                                                 \
    "-o", "PRUNE=" by, "-o", "PRUNE_START=1", "-o", "PRUNE_END=8", "-o", "PRUNE_INTERVAL=2", "-o", \
        "PRUNE_SPARSITY=0.6", "-o", "LR_SCHEDULE=constant"

/* The masked share of a checkpoint's matrices, whose weights must be zero there and not elsewhere. */
static void check_checkpoint(const char *run, double sparsity) {
    char path[2][512];
    weft_safetensors *model, *optimizer;
    int64_t masked = 0, all = 0;
    snprintf(path[0], sizeof path[0], "%s/last/model.safetensors", run);
    snprintf(path[1], sizeof path[1], "%s/last/optimizer.safetensors", run);
    expect_ok(weft_safetensors_open(path[0], &model));
    expect_ok(weft_safetensors_open(path[1], &optimizer));
    for (int64_t i = 0; i < weft_safetensors_count(optimizer); i++) {
        const weft_safetensor *t = weft_safetensors_at(optimizer, i);
        if (strncmp(t->name, "mask.", 5) != 0) continue;
        const weft_safetensor *w = weft_safetensors_find(model, t->name + 5);
        double mask, value;
        assert_int_equal(t->dtype, WEFT_FILE_I8);
        int64_t own = 0;
        for (int64_t k = 0; k < t->bytes; k++) {
            weft_safetensor_values(t, k, 1, &mask);
            weft_safetensor_values(w, k, 1, &value);
            assert_true(mask == 1 || (mask == 0 && value == 0));
            own += mask == 0;
        }
        assert_int_equal(own, llround(sparsity * (double)t->bytes));
        masked += own;
        all += t->bytes;
    }
    assert_true(masked > 0 && masked < all);
    weft_safetensors_close(model);
    weft_safetensors_close(optimizer);
}

TEST(test_a_resumed_run_has_the_same_bits) {
    static const char *const by[] = {"PRUNE=magnitude", "PRUNE=movement", "PRUNE=state"};
    static const char *const optimizers[] = {"OPTIMIZER=muon", "OPTIMIZER=adamw",
                                             "OPTIMIZER=adamwspam"};
    for (int i = 0; i < 3; i++) {
        const char *dtype = format_text(i == 1 ? "bf16" : "f32");
        const char *whole = scratch_path("whole-%d", i);
        const char *legs = scratch_path("legs-%d", i);
        SUCCEEDS("train", "--config", config_path, "--out", whole, PRUNES("magnitude"), "-o", by[i],
                 "-o", optimizers[i], "--dtype", dtype, "-o", "SPAM_INTERVAL=4");
        for (int steps = 4; steps <= 12; steps += 4) {
            SUCCEEDS("train", "--config", config_path, "--out", legs, "--resume",
                     PRUNES("magnitude"), "-o", by[i], "-o", optimizers[i], "--dtype", dtype, "-o",
                     "SPAM_INTERVAL=4", "-o", format_text("STEPS=%d", steps), "--threads", "1");
        }
        train_same_file(whole, legs, "last/model.safetensors");
        train_same_file(whole, legs, "last/optimizer.safetensors");
        check_checkpoint(whole, 0.6);
    }
}

TEST(test_ranks_make_the_same_masks) {
    static const struct {
        int ranks;
        const char *shard, *by, *what;
    } ways[] = {{2, "SHARD=none", "PRUNE=state", "PRUNE_WHAT=weights"},
                {3, "SHARD=gradients", "PRUNE=movement", "PRUNE_WHAT=weights"},
                {3, "SHARD=optimizer", "PRUNE=state", "PRUNE_WHAT=heads"}};
    ranks_need_mpi();
    const char *err = scratch_path("err");
    for (int i = 0; i < 3; i++) {
        const char *alone = scratch_path("alone-%d", i);
        const char *together = scratch_path("together-%d", i);
#define RANKED(out)                                                                                \
    RUN("train", "--config", config_path, "--out", out, PRUNES("state"), "-o", ways[i].by, "-o",   \
        ways[i].what, "--peak-flops", "0", "-o", "N_EMBD=64", "-o", "N_FFN=520", "-o", "N_HEAD=4", \
        "-o", ways[i].shard)
        command_succeeds(RANKED(alone), NULL);
        size_t n;
        int status = ranks_run(ways[i].ranks, RANKED(together), err);
        if (status != 0)
            fail_msg("%d ranks ended on %d: %s", ways[i].ranks, status, file_read(err, &n));
        train_same_end(alone, together);
    }
}

/* A damaged mask is found by the checkpoint's checksum. */
TEST(test_masks_are_under_the_checksums) {
    const char *run = scratch_path("summed");
    SUCCEEDS("train", "--config", config_path, "--out", run, PRUNES("magnitude"));
    const char *path = format_text("%s/last/optimizer.safetensors", run);
    size_t n;
    WEFT_AUTO_FREE char *text = file_read(path, &n);
    text[n - 1] ^= 1; /* masks are the smallest numbers, so they come last */
    file_write(path, text, n);
    FAILS(2, SAYS("optimizer.safetensors", "checksum"), "train", "--config", config_path, "--out",
          run, PRUNES("magnitude"), "--resume", "-o", "STEPS=14");
}

/* What was masked is what `weft prune` removes, and the rest computes the same. */
TEST(test_prune_removes_what_was_masked) {
    static const char *const what[][2] = {{"PRUNE_WHAT=ffn", "ffn"}, {"PRUNE_WHAT=heads", "heads"}};
    const char *text = scratch_path("text");
    for (int i = 0; i < 400; i++) {
        FILE *f = fopen(text, i ? "a" : "w");
        assert_non_null(f);
        fputs("the old ship went out to sea at noon ", f);
        fclose(f);
    }
    for (int i = 0; i < 2; i++) {
        const char *run = scratch_path("units-%d", i);
        const char *out = scratch_path("smaller-%d", i);
        SUCCEEDS("train", "--config", config_path, "--out", run, PRUNES("movement"), "-o",
                 "PRUNE_SPARSITY=0.5", "-o", what[i][0], "-o", "N_HEAD=2");
        WEFT_AUTO_DECREF json_t *said =
            command_json(RUN("prune", "--model", scratch_path("units-%d/last", i), "--out", out,
                             "--what", what[i][1], "--keep", "0.5", "--text", text, "--json"));
        double before = json_number_value(json_object_get(said, "loss_before"));
        double after = json_number_value(json_object_get(said, "loss_after"));
        if (!(fabs(before - after) < 1e-5)) fail_msg("%s: %.9g, %.9g", what[i][1], before, after);
        /* The smaller model is dense, and trains as such. */
        SUCCEEDS("train", "--config", scratch_path("smaller-%d/model.config", i), "--from", out,
                 "--out", scratch_path("healed-%d", i), "-o", "DATASET=embedded", "-o", "STEPS=2",
                 "-o", "BATCH_SIZE=2");
        weft_safetensors *file;
        expect_ok(
            weft_safetensors_open(scratch_path("healed-%d/last/optimizer.safetensors", i), &file));
        assert_null(weft_safetensors_find(file, "mask.h.0.ffn.fc.weight"));
        weft_safetensors_close(file);
    }
}

/* A finished sparse model stays as it is where training goes on from it, masked from the first step. */
TEST(test_a_sparse_model_stays_sparse) {
    const char *run = scratch_path("sparse");
    const char *on = scratch_path("on");
    SUCCEEDS("train", "--config", config_path, "--out", run, PRUNES("magnitude"));
    SUCCEEDS("train", "--config", config_path, "--from", scratch_path("sparse/last"), "--out", on,
             PRUNES("magnitude"), "-o", "PRUNE_START=0", "-o", "PRUNE_END=0", "-o", "STEPS=3");
    weft_safetensors *a, *b;
    expect_ok(weft_safetensors_open(scratch_path("sparse/last/optimizer.safetensors"), &a));
    expect_ok(weft_safetensors_open(scratch_path("on/last/optimizer.safetensors"), &b));
    for (int64_t i = 0; i < weft_safetensors_count(a); i++) {
        const weft_safetensor *t = weft_safetensors_at(a, i);
        if (strncmp(t->name, "mask.", 5) == 0)
            assert_memory_equal(t->data, weft_safetensors_find(b, t->name)->data, (size_t)t->bytes);
    }
    weft_safetensors_close(a);
    weft_safetensors_close(b);
    check_checkpoint(on, 0.6);
}

/* To Hugging Face's layout and back: every zero is where it was. */
TEST(test_a_sparse_model_is_converted) {
    const char *run = scratch_path("to-hf");
    const char *hf = scratch_path("hf");
    const char *back = scratch_path("back");
    SUCCEEDS("train", "--config", config_path, "--out", run, PRUNES("magnitude"), "-o",
             "ATTENTION=dot", "-o", "FFN=gelu", "-o", "POSITION=learned");
    SUCCEEDS("convert", "--model", scratch_path("to-hf/last"), "--out", hf, "--to-hf");
    SUCCEEDS("convert", "--model", hf, "--out", back);
    file_expect_equal(scratch_path("to-hf/last/model.safetensors"),
                      scratch_path("back/model.safetensors"));
}

static double planned(const char *prune) {
    json_t *said = command_json(RUN("plan", "--config", config_path, "--json", "-o", prune));
    double bytes =
        json_number_value(json_object_get(json_object_get(said, "training"), "optimizer"));
    json_decref(said);
    return bytes;
}

/* A byte for each weight of the layers' matrices, and by movement four more. */
TEST(test_plan_counts_masks) {
    int64_t matrices = 0;
    SUCCEEDS("train", "--config", config_path, "--out", scratch_path("counted"), "-o", "STEPS=1");
    weft_safetensors *file;
    expect_ok(weft_safetensors_open(scratch_path("counted/last/model.safetensors"), &file));
    for (int64_t i = 0; i < weft_safetensors_count(file); i++) {
        const weft_safetensor *t = weft_safetensors_at(file, i);
        if (strncmp(t->name, "h.", 2) == 0 && t->ndim >= 2) matrices += t->bytes / 4;
    }
    weft_safetensors_close(file);
    double dense = planned("PRUNE=none");
    assert_true(matrices > 0 && dense > 0);
    assert_true(planned("PRUNE=state") == dense + (double)matrices);
    assert_true(planned("PRUNE=movement") == dense + 5 * (double)matrices);
}

TEST(test_what_cannot_be_is_refused) {
    const char *out = scratch_path("refused");
    FAILS(2, SAYS("CONFIG_PRUNE=\"state\"", "muon", "magnitude"), "train", "--config", config_path,
          "--out", out, PRUNES("state"), "-o", "OPTIMIZER=muon");
    FAILS(2, SAYS("CONFIG_PRUNE_START=9", "CONFIG_PRUNE_END=8"), "train", "--config", config_path,
          "--out", out, PRUNES("state"), "-o", "PRUNE_START=9");
    FAILS(2, SAYS("CONFIG_PRUNE_SPARSITY=0.1", "heads"), "train", "--config", config_path, "--out",
          out, PRUNES("state"), "-o", "PRUNE_WHAT=heads", "-o", "PRUNE_SPARSITY=0.1");
    FAILS(2, SAYS("CONFIG_PRUNE_WHAT=heads", "CONFIG_KV_SHARE", "ffn"), "train", "--config",
          config_path, "--out", out, PRUNES("state"), "-o", "PRUNE_WHAT=heads", "-o", "KV_SHARE=2");
}

RUN_TESTS(train_setup, scratch_teardown)
