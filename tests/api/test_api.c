/* The public header: round trips, steps against the formula, errors. Everything here goes through
 * weft.h; nothing of src/ is included. */
#include "support/command.h"
#include "support/test.h"

#include <weft/weft.h>

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 2, TIME = 5, COUNT = BATCH * TIME, WORDS = 11, ROOM = 4096 };

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != WEFT_OK) fail_msg("%s: %s", #call, weft_error_message());                    \
    } while (0)

/* Fails with that status, and says so in words that hold `text`. */
static void refused(weft_status got, weft_status want, const char *text) {
    assert_int_equal(got, want);
    if (!strstr(weft_error_message(), text))
        fail_msg("'%s' does not say '%s'", weft_error_message(), text);
}

static const int32_t tokens[COUNT] = {1, 5, 2, 9, 10, 0, 3, 3, 7, 4};
static const int32_t targets[COUNT] = {5, 2, 9, 10, -1, 3, 3, 7, 4, 8};

#define SMALL "N_LAYER=2", "N_HEAD=2", "N_EMBD=8", "VOCAB_SIZE=11", "CONTEXT=6", "INIT=orthogonal"

typedef struct {
    weft_engine *engine;
    weft_model *model;
    weft_pass *pass;
    weft_optimizer *optimizer;
} kit;

static kit open_kit(const char *const *options, const char *folder) {
    kit k = {0};
    OK(weft_engine_open(2, "cpu", &k.engine));
    OK(weft_model_open(folder, options, &k.model));
    OK(weft_pass_open(k.engine, k.model, BATCH, TIME, WEFT_PASS_TRAIN | WEFT_PASS_LOGITS, &k.pass));
    OK(weft_optimizer_open(k.engine, k.model, folder, &k.optimizer));
    return k;
}

static void close_kit(kit *k) {
    weft_optimizer_close(k->optimizer);
    weft_pass_close(k->pass);
    weft_model_close(k->model);
    weft_engine_close(k->engine);
}

static void train(kit *k, int steps) {
    for (int i = 0; i < steps; i++) {
        OK(weft_pass_run(k->pass, tokens, targets, COUNT, (uint32_t)i));
        OK(weft_optimizer_step(k->optimizer, k->pass, 1e-2));
    }
}

static int64_t count_of(const weft_model *m, const char *name) {
    int64_t shape[4], count;
    int ndim;
    OK(weft_model_shape(m, name, shape, &ndim, &count));
    return count;
}

static double *values_of(const weft_model *m, const char *name) {
    int64_t n = count_of(m, name);
    double *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    OK(weft_model_read_f64(m, name, values, n));
    return values;
}

/* Every tensor of two models has the same bits. */
static void same_weights(const weft_model *a, const weft_model *b) {
    assert_int_equal(weft_model_tensors(a), weft_model_tensors(b));
    for (int64_t i = 0; i < weft_model_tensors(a); i++) {
        const char *name = weft_model_tensor_name(a, i);
        assert_string_equal(name, weft_model_tensor_name(b, i));
        double *x = values_of(a, name), *y = values_of(b, name);
        if (memcmp(x, y, (size_t)count_of(a, name) * sizeof *x) != 0) fail_msg("%s differs", name);
        free(x);
        free(y);
    }
}

static double loss_of(weft_pass *pass, const char *part) {
    double loss;
    OK(weft_pass_loss(pass, part, &loss));
    return loss;
}

TEST(test_tensors_are_listed_and_read_back_as_written) {
    const char *options[] = {SMALL, "ATTENTION=w2", NULL};
    weft_model *m;
    OK(weft_model_open(NULL, options, &m));
    assert_true(weft_model_tensors(m) > 10);
    for (int64_t i = 1; i < weft_model_tensors(m); i++)
        assert_true(strcmp(weft_model_tensor_name(m, i - 1), weft_model_tensor_name(m, i)) < 0);
    assert_null(weft_model_tensor_name(m, weft_model_tensors(m)));
    assert_null(weft_model_tensor_name(m, -1));
    int64_t shape[4], count;
    int ndim;
    OK(weft_model_shape(m, "h.1.attn.q.weight", shape, &ndim, &count));
    assert_int_equal(ndim, 2);
    assert_int_equal(shape[0], 16);
    assert_int_equal(shape[1], 8);
    assert_int_equal(shape[3], 1);
    assert_int_equal(count, 128);
    float in[128], out[128];
    for (int i = 0; i < 128; i++)
        in[i] = (float)i / 7;
    OK(weft_model_write(m, "h.1.attn.q.weight", in, 128));
    OK(weft_model_read(m, "h.1.attn.q.weight", out, 128));
    assert_memory_equal(in, out, sizeof in);
    char text[16];
    OK(weft_model_option(m, "CONFIG_ATTENTION", text, sizeof text));
    assert_string_equal(text, "w2");
    OK(weft_model_option(m, "n_layer", text, sizeof text));
    assert_string_equal(text, "2");
    weft_model_close(m);
}

static void save_and_open(const char *dtype, const char *optimizer) {
    const char *options[] = {SMALL, "FFN=wsffn", "WSFFN_N_HEAD=2", dtype, optimizer, NULL};
    char folder[ROOM];
    snprintf(folder, sizeof folder, "%s", scratch_path("checkpoint"));
    kit a = open_kit(options, NULL);
    train(&a, 12);
    OK(weft_save(a.model, a.optimizer, folder));
    kit b = open_kit(NULL, folder);
    same_weights(a.model, b.model);
    train(&a, 3);
    train(&b, 3);
    same_weights(a.model, b.model);
    assert_true(loss_of(a.pass, "loss") == loss_of(b.pass, "loss"));
    double steps;
    OK(weft_optimizer_event(b.optimizer, "steps", &steps));
    assert_true(steps == 15);
    /* Saved without one, the folder has no optimizer to go on from. */
    OK(weft_save(a.model, NULL, folder));
    weft_optimizer *none;
    refused(weft_optimizer_open(a.engine, a.model, folder, &none), WEFT_EIO, "optimizer");
    assert_null(none);
    close_kit(&a);
    close_kit(&b);
}

TEST(test_a_saved_training_goes_on_with_equal_bits) {
    save_and_open("DTYPE=f32", "OPTIMIZER=adamw");
    save_and_open("DTYPE=f64", "OPTIMIZER=adamwspam");
    save_and_open("DTYPE=bf16", "OPTIMIZER=adamwspam");
}

/* A folder is replaced whole, with checksums of what is in it, and what others need stays. */
TEST(test_a_saved_folder_is_whole) {
    const char *options[] = {SMALL, NULL};
    char folder[ROOM], optimizer[ROOM + 32], other[ROOM + 32], kept[ROOM + 32];
    snprintf(folder, sizeof folder, "%s", scratch_path("saved"));
    snprintf(optimizer, sizeof optimizer, "%s/optimizer.safetensors", folder);
    snprintf(other, sizeof other, "%s/notes", folder);
    snprintf(kept, sizeof kept, "%s", scratch_path("kept.safetensors"));
    kit a = open_kit(options, NULL);
    weft_optimizer *none;
    train(&a, 1);
    OK(weft_save(a.model, a.optimizer, folder));
    assert_int_equal(rename(optimizer, kept), 0);
    train(&a, 1);
    OK(weft_save(a.model, a.optimizer, folder));
    /* An optimizer's state of other weights, of the same size. */
    assert_int_equal(rename(kept, optimizer), 0);
    refused(weft_optimizer_open(a.engine, a.model, folder, &none), WEFT_EINPUT, "state.json");
    file_write(scratch_path("words"), "{}", 2);
    OK(weft_save_with_tokenizer(a.model, NULL, scratch_path("words"), folder));
    assert_int_not_equal(access(optimizer, F_OK), 0);
    weft_model *m;
    OK(weft_model_open(folder, NULL, &m));
    weft_model_close(m);
    snprintf(kept, sizeof kept, "%s/tokenizer.json", folder);
    file_write(kept, "{ }", 3);
    refused(weft_model_open(folder, NULL, &m), WEFT_EINPUT, "tokenizer.json");
    file_write(other, "mine", 4);
    refused(weft_save(a.model, NULL, folder), WEFT_EINPUT, "other things");
    assert_int_equal(unlink(other), 0);
    /* What a run goes on from. */
    static const char run[] = "{\"format\": 1, \"iteration\": 3, \"files\": {}}\n";
    snprintf(kept, sizeof kept, "%s/state.json", folder);
    file_write(kept, run, sizeof run - 1);
    refused(weft_save(a.model, NULL, folder), WEFT_EINPUT, "goes on from");
    /* The same, cut off in the middle: its weights and the optimizer's state can still be saved. */
    file_write(kept, run, sizeof run / 2);
    OK(weft_save(a.model, NULL, folder));
    OK(weft_save(a.model, a.optimizer, folder));
    file_write(kept, run, sizeof run / 2);
    refused(weft_save(a.model, NULL, folder), WEFT_EINPUT, "goes on from");
    assert_int_equal(unlink(kept), 0);
    refused(weft_save(a.model, NULL, folder), WEFT_EINPUT, "goes on from");
    assert_int_equal(access(optimizer, F_OK), 0);
    close_kit(&a);
}

TEST(test_overrides_change_a_checkpoints_config_but_not_its_tensors) {
    const char *options[] = {SMALL, NULL}, *rate[] = {"LEARNING_RATE=0.5", "DTYPE=f64", NULL};
    const char *wider[] = {"N_EMBD=16", NULL}, *fewer[] = {"N_LAYER=1", NULL};
    char folder[ROOM], text[16];
    snprintf(folder, sizeof folder, "%s", scratch_path("overrides"));
    weft_model *a, *b;
    OK(weft_model_open(NULL, options, &a));
    OK(weft_save(a, NULL, folder));
    OK(weft_model_open(folder, rate, &b));
    OK(weft_model_option(b, "LEARNING_RATE", text, sizeof text));
    assert_string_equal(text, "0.5");
    same_weights(a, b);
    weft_model_close(b);
    refused(weft_model_open(folder, wider, &b), WEFT_EINPUT, "checkpoint does not have");
    refused(weft_model_open(folder, fewer, &b), WEFT_EINPUT, "but the checkpoint has");
    assert_null(b);
    weft_model_close(a);
}

TEST(test_a_gradient_is_the_losss_finite_difference) {
    const char *options[] = {
        SMALL, "ATTENTION=w2", "FFN=wsffn", "WSFFN_N_HEAD=2", "WSFFN_LAMBDA_Z=0.1", "DTYPE=f64",
        NULL};
    kit k = open_kit(options, NULL);
    OK(weft_pass_run(k.pass, tokens, targets, COUNT, 0));
    for (int64_t i = 0; i < weft_model_tensors(k.model); i++) {
        const char *name = weft_model_tensor_name(k.model, i);
        int64_t n = count_of(k.model, name), at = n / 2;
        double *w = values_of(k.model, name), *g = malloc((size_t)n * sizeof *g), loss[2];
        float *narrow = malloc((size_t)n * sizeof *narrow);
        OK(weft_pass_run(k.pass, tokens, targets, COUNT, 0));
        OK(weft_pass_gradient_f64(k.pass, name, g, n));
        OK(weft_pass_gradient(k.pass, name, narrow, n));
        assert_true(narrow[at] == (float)g[at]);
        for (int side = 0; side < 2; side++) {
            double kept = w[at], step = 1e-5;
            w[at] += side ? step : -step;
            OK(weft_model_write_f64(k.model, name, w, n));
            w[at] = kept;
            OK(weft_pass_run(k.pass, tokens, targets, COUNT, 0));
            loss[side] = loss_of(k.pass, "loss");
        }
        OK(weft_model_write_f64(k.model, name, w, n));
        double slope = (loss[1] - loss[0]) / 2e-5;
        if (fabs(slope - g[at]) > 1e-7 * fmax(1, fabs(slope)))
            fail_msg("%s[%lld]: gradient %.10g, slope %.10g", name, (long long)at, g[at], slope);
        free(w);
        free(g);
        free(narrow);
    }
    double sum = loss_of(k.pass, "cross_entropy") + loss_of(k.pass, "logits_z") +
                 loss_of(k.pass, "aux_z") + loss_of(k.pass, "aux_contrastive");
    assert_true(loss_of(k.pass, "aux_z") > 0);
    assert_true(fabs(sum - loss_of(k.pass, "loss")) < 1e-12);
    close_kit(&k);
}

/* AdamW as it is written down, for one tensor. */
typedef struct {
    double *p, *g, *m, *v;
    int64_t n;
    int ndim;
} by_hand;

static void step_by_hand(by_hand *h, int t, double rate, double factor) {
    double beta1 = 0.9, beta2 = 0.95, decay = h->ndim >= 2 ? 0.1 : 0;
    for (int64_t i = 0; i < h->n; i++) {
        double g = h->g[i] * factor;
        h->m[i] = beta1 * h->m[i] + (1 - beta1) * g;
        h->v[i] = beta2 * h->v[i] + (1 - beta2) * g * g;
        double m = h->m[i] / (1 - pow(beta1, t)), v = h->v[i] / (1 - pow(beta2, t));
        h->p[i] -= rate * decay * h->p[i] + rate * m / (sqrt(v) + 1e-8);
    }
}

TEST(test_a_step_is_adamws_formula) {
    enum { MOST = 64 };
    const char *options[] = {SMALL, "DTYPE=f64", "GRAD_CLIP=0.7", NULL};
    kit k = open_kit(options, NULL);
    by_hand h[MOST];
    int64_t n = weft_model_tensors(k.model), shape[4];
    assert_true(n <= MOST);
    for (int64_t i = 0; i < n; i++) {
        const char *name = weft_model_tensor_name(k.model, i);
        OK(weft_model_shape(k.model, name, shape, &h[i].ndim, &h[i].n));
        h[i].p = values_of(k.model, name);
        h[i].g = calloc((size_t)h[i].n, sizeof(double));
        h[i].m = calloc((size_t)h[i].n, sizeof(double));
        h[i].v = calloc((size_t)h[i].n, sizeof(double));
    }
    for (int t = 1; t <= 5; t++) {
        double norm = 0, rate = 1e-2 / t, got;
        OK(weft_pass_run(k.pass, tokens, targets, COUNT, 0));
        for (int64_t i = 0; i < n; i++) {
            OK(weft_pass_gradient_f64(k.pass, weft_model_tensor_name(k.model, i), h[i].g, h[i].n));
            for (int64_t j = 0; j < h[i].n; j++)
                norm += h[i].g[j] * h[i].g[j];
        }
        norm = sqrt(norm);
        OK(weft_optimizer_step(k.optimizer, k.pass, rate));
        OK(weft_optimizer_event(k.optimizer, "grad_norm", &got));
        assert_true(fabs(got - norm) < 1e-12 * norm);
        OK(weft_optimizer_event(k.optimizer, "clipped", &got));
        assert_true(got == (norm > 0.7));
        OK(weft_optimizer_event(k.optimizer, "lr", &got));
        assert_true(got == rate);
        for (int64_t i = 0; i < n; i++) {
            step_by_hand(&h[i], t, rate, norm > 0.7 ? 0.7 / norm : 1);
            double *w = values_of(k.model, weft_model_tensor_name(k.model, i));
            for (int64_t j = 0; j < h[i].n; j++)
                if (fabs(w[j] - h[i].p[j]) > 1e-9)
                    fail_msg("step %d, %s[%lld]: %.15g, by hand %.15g", t,
                             weft_model_tensor_name(k.model, i), (long long)j, w[j], h[i].p[j]);
            free(w);
        }
    }
    for (int64_t i = 0; i < n; i++) {
        free(h[i].p);
        free(h[i].g);
        free(h[i].m);
        free(h[i].v);
    }
    close_kit(&k);
}

TEST(test_a_step_reads_the_pass_it_is_given) {
    const char *options[] = {SMALL, NULL};
    kit a = open_kit(options, NULL), b = open_kit(options, NULL);
    weft_pass *other;
    OK(weft_pass_open(a.engine, a.model, 1, TIME, WEFT_PASS_TRAIN | WEFT_PASS_RECOMPUTE, &other));
    train(&a, 1);
    OK(weft_pass_run(other, tokens, targets, TIME, 0));
    OK(weft_optimizer_step(a.optimizer, other, 1e-2));
    weft_pass_close(other);
    train(&a, 1);
    /* The same three steps, each pass new. */
    train(&b, 1);
    OK(weft_pass_open(b.engine, b.model, 1, TIME, WEFT_PASS_TRAIN, &other));
    OK(weft_pass_run(other, tokens, targets, TIME, 0));
    OK(weft_optimizer_step(b.optimizer, other, 1e-2));
    weft_pass_close(other);
    weft_pass_close(b.pass);
    OK(weft_pass_open(b.engine, b.model, BATCH, TIME, WEFT_PASS_TRAIN, &b.pass));
    train(&b, 1);
    same_weights(a.model, b.model);
    close_kit(&a);
    close_kit(&b);
}

TEST(test_a_written_bf16_weight_is_taken_up_by_the_next_step) {
    const char *options[] = {SMALL, "DTYPE=bf16", "WEIGHT_DECAY=0", NULL};
    kit k = open_kit(options, NULL);
    train(&k, 2);
    float ones[8 * WORDS], after[8 * WORDS];
    for (int i = 0; i < 8 * WORDS; i++)
        ones[i] = 1;
    OK(weft_model_write(k.model, "wte.weight", ones, 8 * WORDS));
    OK(weft_optimizer_step(k.optimizer, k.pass, 1e-6));
    OK(weft_model_read(k.model, "wte.weight", after, 8 * WORDS));
    assert_memory_equal(ones, after, sizeof ones);
    close_kit(&k);
}

TEST(test_a_gradient_that_is_not_finite_changes_no_weight) {
    const char *options[] = {SMALL, NULL};
    kit k = open_kit(options, NULL);
    float broken[8];
    for (int i = 0; i < 8; i++)
        broken[i] = NAN;
    OK(weft_model_write(k.model, "ln_f.weight", broken, 8));
    double *before = values_of(k.model, "wte.weight"), skips;
    train(&k, 1);
    double *after = values_of(k.model, "wte.weight");
    assert_memory_equal(before, after, 8 * WORDS * sizeof *before);
    OK(weft_optimizer_event(k.optimizer, "skips", &skips));
    assert_true(skips == 1);
    free(before);
    free(after);
    close_kit(&k);
}

TEST(test_two_models_in_one_process_do_not_disturb_each_other) {
    const char *first[] = {SMALL, "ATTENTION=w2", NULL};
    const char *second[] = {SMALL, "ATTENTION=mla", "RA_MLA_LATENT_DIM=4", "DTYPE=f64", NULL};
    kit alone = open_kit(first, NULL), a = open_kit(first, NULL), b = open_kit(second, NULL);
    train(&alone, 3);
    for (int i = 0; i < 3; i++) {
        OK(weft_pass_run(a.pass, tokens, targets, COUNT, (uint32_t)i));
        train(&b, 1);
        OK(weft_optimizer_step(a.optimizer, a.pass, 1e-2));
    }
    same_weights(alone.model, a.model);
    refused(weft_optimizer_step(a.optimizer, b.pass, 1e-2), WEFT_EINPUT, "another model");
    refused(weft_save(a.model, b.optimizer, scratch_path(".")), WEFT_EINPUT, "another model");
    close_kit(&alone);
    close_kit(&a);
    close_kit(&b);
}

/* A training without assertions, which belong to the test's own thread. NULL: all went well. */
static void *train_apart(void *context) {
    kit *k = context;
    for (uint32_t i = 0; i < 20; i++)
        if (weft_pass_run(k->pass, tokens, targets, COUNT, i) != WEFT_OK ||
            weft_optimizer_step(k->optimizer, k->pass, 1e-2) != WEFT_OK)
            return k;
    return NULL;
}

TEST(test_two_engines_run_at_the_same_time) {
    const char *options[] = {SMALL, "ATTENTION=w2", NULL};
    kit k[3];
    pthread_t thread[2];
    for (int i = 0; i < 3; i++)
        k[i] = open_kit(options, NULL);
    assert_null(train_apart(&k[2]));
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, train_apart, &k[i]), 0);
    for (int i = 0; i < 2; i++) {
        void *failed;
        assert_int_equal(pthread_join(thread[i], &failed), 0);
        assert_null(failed);
        same_weights(k[i].model, k[2].model);
    }
    for (int i = 0; i < 3; i++)
        close_kit(&k[i]);
}

TEST(test_logits_need_no_targets) {
    const char *options[] = {SMALL, NULL};
    kit k = open_kit(options, NULL);
    weft_pass *pass;
    float with[COUNT * WORDS], without[COUNT * WORDS];
    double wide[COUNT * WORDS], loss;
    OK(weft_pass_open(k.engine, k.model, BATCH, TIME, WEFT_PASS_LOGITS, &pass));
    assert_true(weft_pass_bytes(pass) > 0);
    assert_true(weft_pass_bytes(pass) < weft_pass_bytes(k.pass));
    OK(weft_pass_run(pass, tokens, targets, COUNT, 0));
    OK(weft_pass_logits(pass, with, COUNT * WORDS));
    OK(weft_pass_run(pass, tokens, NULL, COUNT, 0));
    OK(weft_pass_logits(pass, without, COUNT * WORDS));
    OK(weft_pass_logits_f64(pass, wide, COUNT * WORDS));
    assert_memory_equal(with, without, sizeof with);
    assert_true((float)wide[7] == with[7]);
    refused(weft_pass_loss(pass, "loss", &loss), WEFT_EINPUT, "no targets");
    refused(weft_pass_run(k.pass, tokens, NULL, COUNT, 0), WEFT_EINPUT, "trains");
    weft_pass_close(pass);
    close_kit(&k);
}

/* Greedy tokens are those of the largest logits, and two sequences do not disturb each other. */
TEST(test_generation_goes_on_with_the_likeliest_tokens) {
    const char *options[] = {SMALL, NULL}, *greedy[] = {"temperature=0", "max_tokens=3", NULL};
    const char *wrong[] = {"temprature=0", NULL};
    weft_engine *engine;
    weft_model *model;
    weft_generation *g;
    weft_pass *pass;
    int64_t first, second;
    int busy = 1, ended;
    int32_t made[2][8];
    float logprobs[8], logits[COUNT * WORDS];
    OK(weft_engine_open(1, "cpu", &engine));
    OK(weft_model_open(NULL, options, &model));
    OK(weft_generation_open(engine, model, 2, 0, &g));
    refused(weft_generation_add(g, tokens, 2, wrong, &first), WEFT_EINPUT, "temprature");
    OK(weft_generation_add(g, tokens, 2, greedy, &first));
    OK(weft_generation_add(g, tokens + TIME, 2, greedy, &second));
    while (busy)
        OK(weft_generation_step(g, &busy));
    assert_int_equal(weft_generation_take(g, first, made[0], logprobs, 2, &ended), 2);
    assert_false(ended);
    assert_int_equal(weft_generation_take(g, first, made[0] + 2, NULL, 6, &ended), 1);
    assert_true(ended);
    assert_int_equal(weft_generation_take(g, second, made[1], logprobs, 8, &ended), 3);
    OK(weft_pass_open(engine, model, BATCH, TIME, WEFT_PASS_LOGITS, &pass));
    int32_t whole[COUNT];
    for (int b = 0; b < BATCH; b++)
        for (int t = 0; t < TIME; t++)
            whole[b * TIME + t] = t < 2 ? tokens[b * TIME + t] : made[b][t - 2];
    OK(weft_pass_run(pass, whole, NULL, COUNT, 0));
    OK(weft_pass_logits(pass, logits, COUNT * WORDS));
    for (int b = 0; b < BATCH; b++)
        for (int t = 1; t + 1 < TIME; t++) {
            const float *row = logits + (b * TIME + t) * WORDS;
            int best = 0;
            for (int v = 1; v < WORDS; v++)
                if (row[v] > row[best]) best = v;
            assert_int_equal(best, made[b][t - 1]);
        }
    weft_generation_remove(g, first);
    assert_int_equal(weft_generation_take(g, first, made[0], NULL, 8, &ended), 0);
    weft_generation_close(g);
    weft_pass_close(pass);
    weft_model_close(model);
    weft_engine_close(engine);
}

TEST(test_an_estimate_counts_the_models_parameters) {
    const char *options[] = {SMALL, "ATTENTION=w2", "BATCH_SIZE=2", NULL};
    weft_cost cost;
    weft_model *m;
    OK(weft_estimate(NULL, options, 1, &cost, sizeof cost));
    OK(weft_model_open(NULL, options, &m));
    int64_t parameters = 0;
    for (int64_t i = 0; i < weft_model_tensors(m); i++)
        parameters += count_of(m, weft_model_tensor_name(m, i));
    weft_model_close(m);
    assert_int_equal(cost.parameters, parameters);
    assert_int_equal(cost.weights_bytes, 4 * parameters);
    assert_int_equal(cost.optimizer_bytes, 8 * parameters);
    assert_int_equal(cost.training_bytes, cost.weights_bytes + cost.gradients_bytes +
                                              cost.optimizer_bytes + cost.activations_bytes +
                                              cost.workspace_bytes);
    assert_int_equal(cost.cache_bytes_per_token, 2 * 4 * (2 * 8 + 2 + 8));
    assert_true(cost.forward_flops > 0 && cost.backward_flops > cost.forward_flops);
    /* An older caller's struct is shorter: what lies behind it stays. */
    weft_cost partial = {.weights_bytes = -1};
    OK(weft_estimate(NULL, options, 1, &partial, offsetof(weft_cost, weights_bytes)));
    assert_int_equal(partial.parameters, parameters);
    assert_int_equal(partial.weights_bytes, -1);
    refused(weft_estimate(NULL, options, 1, &cost, 0), WEFT_EINPUT, "sizeof");
    refused(weft_estimate(NULL, options, -1, &cost, sizeof cost), WEFT_EINPUT, "threads");
    refused(weft_estimate(NULL, options, 1, NULL, sizeof cost), WEFT_EINPUT, "out is NULL");
}

TEST(test_wrong_configs_and_engines_are_refused) {
    const char *unknown[] = {"N_LAYERS=2", NULL}, *value[] = {"N_LAYER=none", NULL};
    const char *mix[] = {"N_EMBD=10", "N_HEAD=3", NULL}, *bare[] = {"N_LAYER", NULL};
    char path[ROOM];
    /* Not NULL, so that it is seen to be set. */
    weft_engine *e = (weft_engine *)path;
    weft_model *m = (weft_model *)path;
    refused(weft_engine_open(-1, NULL, &e), WEFT_EINPUT, "threads");
    assert_null(e);
    refused(weft_engine_open(1, "abacus", &e), WEFT_EINPUT, "abacus");
    refused(weft_engine_open(1, NULL, NULL), WEFT_EINPUT, "out is NULL");
    assert_int_equal(weft_engine_threads(NULL), 0);
    assert_null(weft_engine_device(NULL));
    refused(weft_model_open(NULL, unknown, &m), WEFT_EINPUT, "N_LAYER");
    assert_null(m);
    refused(weft_model_open(NULL, value, &m), WEFT_EINPUT, "N_LAYER");
    refused(weft_model_open(NULL, bare, &m), WEFT_EINPUT, "N_LAYER");
    refused(weft_model_open(NULL, mix, &m), WEFT_EINPUT, "N_HEAD");
    refused(weft_model_open(NULL, mix, NULL), WEFT_EINPUT, "out is NULL");
    snprintf(path, sizeof path, "%s", scratch_path("none.config"));
    refused(weft_model_open(path, NULL, &m), WEFT_EIO, "none.config");
    refused(weft_model_open(scratch_path("."), NULL, &m), WEFT_EIO, "config.json");
    weft_engine_close(NULL);
    weft_model_close(NULL);
    weft_pass_close(NULL);
    weft_optimizer_close(NULL);
    assert_int_equal(weft_model_tensors(NULL), 0);
    assert_int_equal(weft_pass_bytes(NULL), 0);
}

static void refuse_model_calls(kit *k) {
    float f[8 * WORDS];
    double d[8 * WORDS];
    int64_t shape[4];
    char text[2];
    refused(weft_model_read(k->model, "wte.wieght", f, 8), WEFT_EINPUT, "'wte.weight'");
    refused(weft_model_read(k->model, "", f, 8), WEFT_EINPUT, "no tensor");
    refused(weft_model_read(k->model, "wte.weight", f, 87), WEFT_EINPUT, "f32 [11, 8]: 88");
    refused(weft_model_read_f64(k->model, "wte.weight", d, -1), WEFT_EINPUT, "-1");
    refused(weft_model_write(k->model, "wte.weight", f, 89), WEFT_EINPUT, "89");
    refused(weft_model_write_f64(k->model, "nothing", d, 8), WEFT_EINPUT, "nothing");
    refused(weft_model_read(NULL, "wte.weight", f, 8), WEFT_EINPUT, "model is NULL");
    refused(weft_model_read(k->model, NULL, f, 8), WEFT_EINPUT, "name is NULL");
    refused(weft_model_read(k->model, "wte.weight", NULL, 8), WEFT_EINPUT, "out is NULL");
    refused(weft_model_read_f64(k->model, "wte.weight", NULL, 8), WEFT_EINPUT, "out is NULL");
    refused(weft_model_write(k->model, "wte.weight", NULL, 8), WEFT_EINPUT, "values is NULL");
    refused(weft_model_write_f64(NULL, "wte.weight", d, 8), WEFT_EINPUT, "model is NULL");
    refused(weft_model_shape(k->model, "wte", shape, NULL, NULL), WEFT_EINPUT, "wte");
    refused(weft_model_shape(k->model, "wte.weight", NULL, NULL, NULL), WEFT_EINPUT, "shape");
    refused(weft_model_option(k->model, "N_LAYERS", text, 2), WEFT_EINPUT, "N_LAYER");
    refused(weft_model_option(k->model, "ATTENTION", text, 2), WEFT_EINPUT, "4 bytes");
    refused(weft_model_option(k->model, NULL, text, 2), WEFT_EINPUT, "key is NULL");
    refused(weft_save(NULL, NULL, scratch_path(".")), WEFT_EINPUT, "model is NULL");
    refused(weft_save(k->model, NULL, NULL), WEFT_EINPUT, "folder is NULL");
    refused(weft_save(k->model, NULL, "/dev/null/x"), WEFT_EIO, "/dev/null");
}

static void refuse_passes(kit *k) {
    weft_pass *p;
    refused(weft_pass_open(k->engine, k->model, 0, 5, 0, &p), WEFT_EINPUT, "0 times 5");
    assert_null(p);
    refused(weft_pass_open(k->engine, k->model, 1, -5, 0, &p), WEFT_EINPUT, "-5");
    refused(weft_pass_open(k->engine, k->model, INT64_MAX, 5, 0, &p), WEFT_EINPUT, "2^31");
    refused(weft_pass_open(k->engine, k->model, 1, 7, 0, &p), WEFT_EINPUT, "CONTEXT");
    refused(weft_pass_open(k->engine, k->model, 1, 5, 64, &p), WEFT_EINPUT, "64");
    refused(weft_pass_open(k->engine, k->model, 1, 5, WEFT_PASS_RECOMPUTE, &p), WEFT_EINPUT,
            "WEFT_PASS_TRAIN");
    refused(weft_pass_open(NULL, k->model, 1, 5, 0, &p), WEFT_EINPUT, "engine is NULL");
    refused(weft_pass_open(k->engine, NULL, 1, 5, 0, &p), WEFT_EINPUT, "model is NULL");
    refused(weft_pass_open(k->engine, k->model, 1, 5, 0, NULL), WEFT_EINPUT, "out is NULL");
}

static void refuse_pass_calls(kit *k) {
    float f[COUNT * WORDS];
    double d;
    weft_pass *eval;
    int32_t strange[COUNT] = {0, 0, 0, WORDS};
    OK(weft_pass_open(k->engine, k->model, BATCH, TIME, WEFT_PASS_EVAL, &eval));
    refused(weft_pass_loss(k->pass, "loss", &d), WEFT_EINPUT, "run the pass first");
    refused(weft_optimizer_step(k->optimizer, k->pass, 1), WEFT_EINPUT, "run the pass first");
    refused(weft_pass_run(k->pass, tokens, targets, COUNT - 1, 0), WEFT_EINPUT, "[2, 5]");
    refused(weft_pass_run(NULL, tokens, targets, COUNT, 0), WEFT_EINPUT, "pass is NULL");
    refused(weft_pass_run(k->pass, NULL, targets, COUNT, 0), WEFT_EINPUT, "tokens is NULL");
    OK(weft_pass_run(k->pass, tokens, targets, COUNT, 0));
    OK(weft_pass_run(eval, tokens, targets, COUNT, 0));
    refused(weft_pass_loss(k->pass, "los", &d), WEFT_EINPUT, "cross_entropy");
    refused(weft_pass_loss(k->pass, NULL, &d), WEFT_EINPUT, "part is NULL");
    refused(weft_pass_loss(NULL, "loss", &d), WEFT_EINPUT, "pass is NULL");
    refused(weft_pass_logits(k->pass, f, 3), WEFT_EINPUT, "[2, 5, 11]: 110");
    refused(weft_pass_logits(eval, f, 110), WEFT_EINPUT, "WEFT_PASS_LOGITS");
    refused(weft_pass_logits_f64(k->pass, NULL, 110), WEFT_EINPUT, "out is NULL");
    refused(weft_pass_gradient(eval, "wte.weight", f, 88), WEFT_EINPUT, "WEFT_PASS_TRAIN");
    refused(weft_pass_gradient(k->pass, "wte.weights", f, 88), WEFT_EINPUT, "did you mean");
    refused(weft_pass_gradient(k->pass, "wte.weight", f, 8), WEFT_EINPUT, "88 numbers");
    refused(weft_pass_gradient_f64(k->pass, NULL, &d, 1), WEFT_EINPUT, "name is NULL");
    refused(weft_optimizer_step(k->optimizer, eval, 1), WEFT_EINPUT, "WEFT_PASS_TRAIN");
    refused(weft_optimizer_step(k->optimizer, k->pass, NAN), WEFT_EINPUT, "nan");
    refused(weft_optimizer_step(k->optimizer, k->pass, -1), WEFT_EINPUT, "-1");
    refused(weft_optimizer_step(k->optimizer, NULL, 1), WEFT_EINPUT, "pass is NULL");
    refused(weft_optimizer_step(NULL, k->pass, 1), WEFT_EINPUT, "optimizer is NULL");
    refused(weft_optimizer_event(k->optimizer, "lunch", &d), WEFT_EINPUT, "grad_norm");
    refused(weft_optimizer_event(NULL, "lr", &d), WEFT_EINPUT, "optimizer is NULL");
    /* A run that failed leaves nothing to read. */
    assert_int_equal(weft_pass_run(k->pass, strange, targets, COUNT, 0), WEFT_EINPUT);
    refused(weft_pass_loss(k->pass, "loss", &d), WEFT_EINPUT, "run the pass first");
    weft_pass_close(eval);
}

TEST(test_wrong_arguments_are_refused_and_change_nothing) {
    const char *options[] = {SMALL, NULL};
    kit k = open_kit(options, NULL), untouched = open_kit(options, NULL);
    refuse_model_calls(&k);
    refuse_passes(&k);
    refuse_pass_calls(&k);
    weft_optimizer *o;
    refused(weft_optimizer_open(NULL, k.model, NULL, &o), WEFT_EINPUT, "engine is NULL");
    refused(weft_optimizer_open(k.engine, NULL, NULL, &o), WEFT_EINPUT, "model is NULL");
    refused(weft_optimizer_open(k.engine, k.model, NULL, NULL), WEFT_EINPUT, "out is NULL");
    same_weights(k.model, untouched.model);
    close_kit(&k);
    close_kit(&untouched);
}

TEST(test_an_optimizer_of_another_kind_is_refused) {
    const char *plain[] = {SMALL, NULL}, *spam[] = {SMALL, "OPTIMIZER=adamwspam", NULL};
    const char *wide[] = {SMALL, "N_FFN=12", NULL};
    char folder[ROOM];
    snprintf(folder, sizeof folder, "%s", scratch_path("kind"));
    kit a = open_kit(plain, NULL), b = open_kit(spam, NULL), c = open_kit(wide, NULL);
    weft_optimizer *o;
    OK(weft_save(a.model, a.optimizer, folder));
    refused(weft_optimizer_open(b.engine, b.model, folder, &o), WEFT_EINPUT, "v_max");
    refused(weft_optimizer_open(c.engine, c.model, folder, &o), WEFT_EINPUT, "shape");
    OK(weft_save(b.model, b.optimizer, folder));
    refused(weft_optimizer_open(a.engine, a.model, folder, &o), WEFT_EINPUT, "another OPTIMIZER");
    close_kit(&a);
    close_kit(&b);
    close_kit(&c);
}

RUN_TESTS(scratch_setup, scratch_teardown)
