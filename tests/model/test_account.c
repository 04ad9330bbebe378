/* What `weft plan` counts: parameters to the digit, and what the backward pass keeps. */
#include "cpu/backend.h"
#include "model/account.h"
#include "model/model.h"
#include "model/transformer.h"
#include "support/command.h"
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#define TINY "N_LAYER=2 N_EMBD=32 N_HEAD=2 VOCAB_SIZE=256 CONTEXT=16 DATASET=copy "

static weft_config config_of(const char *overrides) {
    weft_config c;
    weft_config_defaults(&c);
    expect_ok(weft_config_override_all(&c, overrides, "test"));
    return c;
}

static weft_account account_of(const char *overrides, int step) {
    weft_config c = config_of(overrides);
    weft_account a;
    if (step >= 0) expect_ok(weft_config_step(&c, step));
    expect_ok(weft_account_make(&c, weft_cpu_backend(), 2, &a));
    return a;
}

static int64_t parameters(const char *overrides, int step) {
    return account_of(overrides, step).parameters;
}

/* GPT-2 124M with mla, vocabulary padded to 50304: the RA-MLA write-up's own table. */
TEST(test_parameters_of_the_write_ups_table) {
    const char untied[] = "ATTENTION=mla RA_MLA_MLP_TYING_MODE=untied";
    assert_int_equal(parameters(untied, 0), 115001856);
    assert_int_equal(parameters(untied, 1), 117370368);
    assert_int_equal(parameters(untied, 2), 230616576);
    assert_int_equal(parameters(untied, 3), 240250368);
    assert_int_equal(parameters("ATTENTION=mla", 3), 235335168);
}

TEST(test_steps_4_and_5_are_2_and_3) {
    const char mla[] = "ATTENTION=mla";
    assert_int_equal(parameters(mla, 4), parameters(mla, 2));
    assert_int_equal(parameters(mla, 5), parameters(mla, 3));
}

/* No T x T matrix is kept: what a token keeps does not depend on how many there are. */
TEST(test_numbers_kept_for_the_backward_pass) {
    const char mla[] = "ATTENTION=mla BATCH_SIZE=8";
    double step0 = account_of(mla, 0).kept_per_token_layer;
    double step3 = account_of(mla, 3).kept_per_token_layer;
    if (step0 > 14100) fail_msg("step 0 keeps %.0f numbers a token and layer", step0);
    if (step3 > step0 + 4000) fail_msg("step 3 keeps %.0f, step 0 %.0f", step3, step0);
    double at_4096 = account_of("ATTENTION=mla BATCH_SIZE=2 CONTEXT=4096", 3).kept_per_token_layer;
    assert_true(at_4096 < step3 + 1 && at_4096 > step3 - 1);
    double all = account_of("ATTENTION=w2 BATCH_SIZE=8", -1).kept_per_token_layer;
    double few = account_of("ATTENTION=w2 W2_SIGMA_DIM=16 BATCH_SIZE=8", -1).kept_per_token_layer;
    assert_int_equal(all - few, 2 * 12 * (64 - 16)); /* of queries and keys */
}

/* A layer that is made again keeps what it reads, and costs one more pass forward. */
TEST(test_recomputed_layers_keep_their_input) {
    weft_account a = account_of("BATCH_SIZE=8", -1), b = account_of("BATCH_SIZE=8 RECOMPUTE=y", -1);
    assert_true(b.kept_per_token_layer >= 768 && b.kept_per_token_layer <= 2 * 768);
    assert_true(b.activations_bytes < a.activations_bytes / 4);
    assert_true(b.training_bytes < a.training_bytes);
    assert_true(b.built_flops > a.built_flops && b.built_flops < 1.34 * a.built_flops);
}

/* GPT-2 124M by hand, E = 768, T = 1024, twelve layers: four products of E x E and a causal score and mix
 * over (T + 1) / 2 keys; two products of E x 4E. */
TEST(test_operations_by_part) {
    weft_account a = account_of("", -1), b = account_of("N_FFN=6144", -1);
    assert_true(a.attention_flops == 12.0 * (8 * 768 * 768 + 2 * 1025 * 768));
    assert_true(a.ffn_flops == 12.0 * 4 * 768 * 3072);
    assert_true(a.head_flops == 2.0 * 768 * 50304);
    assert_true(a.reciprocal_flops == 0 && a.z_flops == 0);
    assert_true(b.ffn_flops == 2 * a.ffn_flops && b.attention_flops == a.attention_flops);
}

/* A mechanism's operations are its own and change no other part's: the gate's two products, W_c and what it
 * gathers, the z-heads' product for every token and for the means. */
TEST(test_operations_of_the_mechanisms) {
    const char mla[] = "ATTENTION=mla";
    const char dense[] = "FFN=wsffn WSFFN_Z_PROJ=dense";
    weft_account plain = account_of(mla, 0), gate = account_of(mla, 1), all = account_of(mla, 3);
    weft_account gated = account_of("FFN=swiglu", -1), z = account_of(dense, -1);
    double f = 3072;
    assert_true(gate.reciprocal_flops == 12 * (2 * f * 64 + 2.0 * 64 * 12));
    assert_true(account_of(mla, 2).reciprocal_flops - gate.reciprocal_flops > 12 * 2 * f * f);
    assert_true(all.attention_flops == plain.attention_flops && all.ffn_flops == plain.ffn_flops);
    assert_true(z.ffn_flops == gated.ffn_flops && z.attention_flops == gated.attention_flops);
    assert_true(z.z_flops >= 12 * 2 * f * f * 1025 / 1024 && z.z_flops < 12 * 2.01 * f * f);
    assert_true(all.attention_flops + all.ffn_flops + all.reciprocal_flops + all.head_flops ==
                all.forward_flops);
}

/* The contrastive loss over several micro-batches takes a forward pass more, without the head. */
TEST(test_first_phase_is_counted) {
    const char whole[] = "FFN=wsffn BATCH_SIZE=8";
    const char cut[] = "FFN=wsffn BATCH_SIZE=8 MICRO_BATCH=2";
    const char one[] = "FFN=wsffn BATCH_SIZE=8 MICRO_BATCH=2 WSFFN_LAMBDA_C=0";
    weft_account a = account_of(whole, -1), b = account_of(cut, -1), c = account_of(one, -1);
    assert_true(a.first_phase_flops == 0 && c.first_phase_flops == 0);
    assert_true(b.first_phase_flops > 0.15 * c.built_flops);
    assert_true(b.first_phase_flops < 0.34 * c.built_flops);
    assert_true(b.built_flops >= c.built_flops + 0.99 * b.first_phase_flops);
    assert_true(b.training_bytes > c.training_bytes);
}

TEST(test_moments_are_those_that_the_optimizer_keeps) {
    const char spam[] = "N_LAYER=1 OPTIMIZER=adamwspam SPAM_AMSGRAD=n";
    const char adam[] = "N_LAYER=1 OPTIMIZER=adamw SPAM_AMSGRAD=y";
    weft_account a = account_of(spam, -1), b = account_of(adam, -1);
    assert_int_equal(a.optimizer_bytes, 2 * 4 * a.parameters);
    assert_int_equal(b.optimizer_bytes, 2 * 4 * b.parameters);
}

/* What Muon's products have beside AdamW, and one moment of a matrix for two. */
static int64_t muon_products(int layers) {
#define SIZES "N_EMBD=64 N_HEAD=4 N_FFN=320 CONTEXT=16 VOCAB_SIZE=300 "
    weft_account a = account_of(format_text(SIZES "N_LAYER=%d", layers), -1);
    weft_account b = account_of(format_text(SIZES "N_LAYER=%d OPTIMIZER=muon", layers), -1);
    int64_t matrices = layers * (4 * 64 * 64 + 2 * 64 * 320);
    assert_int_equal(b.optimizer_bytes, a.optimizer_bytes - 4 * matrices);
    return b.workspace_bytes - a.workspace_bytes;
}

/* Of the products the largest are there at a time, of the matrices of a shape: two of their size and two of
 * their squares', some alignment beside. */
TEST(test_muons_memory_is_counted) {
    int64_t update = muon_products(2), more = muon_products(4) - update;
    int64_t most = 2 * 4 * (2 * 64 * 320 + 2 * 64 * 64);
    if (update < most || update > 3 * most || more < most || more > 2 * most)
        fail_msg("Muon's products have %lld bytes, and %lld more for two more layers; the largest "
                 "are %lld",
                 (long long)update, (long long)more, (long long)most);
}

/* Which matrices a rank has must show in no bit, and a GPU's batches may have other bits. */
TEST(test_divided_matrices_are_apart_on_a_gpu) {
    static const char *const shards[] = {"SHARD=none", "SHARD=optimizer", "SHARD=gradients"};
    for (int remote = 0; remote < 2; remote++)
        for (int i = 0; i < 3; i++) {
            weft_config c = config_of(shards[i]);
            weft_backend backend = {.remote = remote};
            assert_int_equal(weft_model_muon(&c, &backend).together > 0, !remote || i == 0);
        }
}

TEST(test_memory_adds_up) {
    const char small[] =
        "N_LAYER=3 N_EMBD=64 N_HEAD=4 VOCAB_SIZE=1000 BATCH_SIZE=2 CONTEXT=64 OPTIMIZER=adamwspam";
    weft_account a = account_of(small, -1);
    assert_int_equal(a.weights_bytes, 4 * a.parameters);
    assert_int_equal(a.optimizer_bytes, 3 * 4 * a.parameters);
    assert_int_equal(a.weights_bytes + a.gradients_bytes + a.optimizer_bytes + a.activations_bytes +
                         a.workspace_bytes,
                     a.training_bytes);
    assert_true(a.workspace_bytes >= 0);
    int64_t sum = 0;
    for (int i = 0; i < a.n_parts; i++)
        sum += a.parts[i].parameters;
    assert_int_equal(sum, a.parameters);
}

static int64_t cache(const char *overrides) {
    return account_of(overrides, -1).cache_bytes_layer;
}

TEST(test_cache_bytes_of_each_attention) {
    const char w2_short[] = "BATCH_SIZE=1 ATTENTION=w2 W2_SIGMA_DIM=16";
    const char rank[] =
        "BATCH_SIZE=1 ATTENTION=mla RA_MLA_MLP_CROSS_TOKEN=y RA_MLA_MLP_CROSS_RANK=32";
    assert_int_equal(cache("BATCH_SIZE=1"), 4 * 2 * 768);
    assert_int_equal(cache("BATCH_SIZE=1 KV_HEADS=3"), 4 * 2 * 3 * 64);
    assert_int_equal(cache("BATCH_SIZE=1 ATTENTION=w2"), 4 * (2 * 768 + 12 + 768));
    assert_int_equal(cache("BATCH_SIZE=1 ATTENTION=w2 KV_HEADS=3"), 4 * (2 * 192 + 3 + 192));
    assert_int_equal(cache(w2_short), 4 * (768 + 12 * 16 + 12 + 768));
    assert_int_equal(cache("BATCH_SIZE=1 ATTENTION=mla"), 4 * 2 * 128);
    assert_int_equal(cache("BATCH_SIZE=1 ATTENTION=mla RA_MLA_JOINT_KV=y"), 4 * 128);
    assert_int_equal(cache(rank), 4 * (2 * 128 + 32));
}

/* Of those that keep little: what all heads have in common is counted once. Layers that share keys keep
 * nothing, and have neither maps of keys nor of values. */
TEST(test_cache_bytes_of_small_caches) {
    const char gla[] =
        "BATCH_SIZE=1 ATTENTION=mla RA_MLA_JOINT_KV=y RA_MLA_LATENT_HEADS=2 RA_MLA_ROPE_DIM=32";
    const char deepseek[] = "BATCH_SIZE=1 ATTENTION=mla RA_MLA_JOINT_KV=y RA_MLA_ROPE_DIM=32";
    const char five[] = "BATCH_SIZE=1 KV_SHARE=5 BIAS=n";
    const char plain[] = "BATCH_SIZE=1 BIAS=n";
    assert_int_equal(cache("BATCH_SIZE=1 ATTENTION=gta KV_HEADS=3"), 4 * (3 * 64 + 32));
    assert_int_equal(cache(gla), 4 * (2 * 128 + 32));
    assert_int_equal(cache(deepseek), 4 * (128 + 32));
    assert_int_equal(cache("BATCH_SIZE=1 ATTENTION=mla RA_MLA_ROPE_DIM=32"), 4 * (128 + 32 + 128));
    assert_int_equal(account_of("BATCH_SIZE=1 KV_SHARE=2", -1).cache_bytes_token, 4 * 2 * 768 * 6);
    assert_int_equal(account_of(five, -1).cache_bytes_token, 4 * 2 * 768 * 3);
    assert_int_equal(parameters(plain, -1) - parameters(five, -1), 9 * 2 * 768 * 768);
}

static int64_t needed(const char *overrides) {
    weft_config c = config_of(overrides);
    weft_fit fit;
    expect_ok(weft_account_fit(&c, weft_cpu_backend(), 1, 1, &fit));
    return fit.needed;
}

/* Four micro-batches need two sums (of the first two, and of the next) beside what one needs. */
/* What mechanisms learn is a number per layer, and what z needs is one more map. */
TEST(test_parameters_of_later_options) {
    const char w2[] = TINY "ATTENTION=w2";
    const char w2_short[] = TINY "ATTENTION=w2 W2_SIGMA_DIM=3";
    assert_int_equal(parameters(w2, -1) - parameters(w2_short, -1), 2 * 2 * 2 * (16 - 3) * 32);
    const char plain[] = TINY "ATTENTION=mla FFN=wsffn";
    const char more[] =
        TINY "ATTENTION=mla FFN=wsffn WSFFN_Z_LOGITS=0.5 WSFFN_POSITIVE=half "
             "RA_MLA_MLP_ALPHA_LEARNED=y RA_MLA_MLP_GATE_OPEN=4 RA_MLA_MLP_LATENT_DETACH=y";
    /* Two biases of two heads, a gate in the second layer alone, and two others in both. */
    assert_int_equal(parameters(more, 3) - parameters(plain, 3), 2 * 2 + 1 + 2 * 2 + 32 * 128);
}

TEST(test_halves_need_an_even_number_of_tokens) {
    weft_config c = config_of(TINY "FFN=wsffn WSFFN_POSITIVE=half");
    weft_model_graph m;
    for (int form = WEFT_FORM_DIRECT; form <= WEFT_FORM_CHEAP; form++) {
        weft_build build = {
            .batch = 2, .time = 7, .dtype = WEFT_F32, .train = true, .form = (weft_form)form};
        assert_int_equal(weft_model_build(&c, &build, &m), WEFT_EINPUT);
        assert_non_null(strstr(weft_error_message(), "7 tokens have no halves"));
        build.time = 1; /* is both */
        expect_ok(weft_model_build(&c, &build, &m));
        weft_model_graph_destroy(&m);
    }
}

TEST(test_sums_over_micro_batches_have_the_weights_type) {
    const char one[] = TINY "DTYPE=f32 BATCH_SIZE=2";
    const char four[] = TINY "DTYPE=f32 BATCH_SIZE=8 MICRO_BATCH=2";
    const char one64[] = TINY "DTYPE=f64 BATCH_SIZE=2";
    const char four64[] = TINY "DTYPE=f64 BATCH_SIZE=8 MICRO_BATCH=2";
    int64_t weights = parameters(one, -1), room = 4096; /* the count of targets, padding */
    int64_t f32 = needed(four) - needed(one), f64 = needed(four64) - needed(one64);
    assert_in_range(f32, 2 * 4 * weights, 2 * 4 * weights + room);
    assert_in_range(f64, 2 * 8 * weights, 2 * 8 * weights + room);
}

static int64_t memory;

static int64_t tell_memory(void) {
    return memory;
}

/* What BATCH_SIZE=auto makes of a batch of 8 where there is so much memory. */
static int64_t cut(int64_t there, int ranks) {
    weft_config c = config_of(TINY "DTYPE=f32 BATCH_SIZE=8 BATCH_SIZE=auto");
    weft_backend device = *weft_cpu_backend();
    device.remote = true;
    device.memory = tell_memory;
    memory = there;
    assert_int_equal(c.micro_batch, -1);
    expect_ok(weft_config_cut_batch(&c, &device, 1, ranks));
    assert_int_equal(c.batch_size, 8);
    return c.micro_batch;
}

TEST(test_an_automatic_micro_batch_is_the_largest_that_fits) {
    const char four[] = TINY "DTYPE=f32 BATCH_SIZE=8 MICRO_BATCH=4";
    assert_int_equal(cut(needed(TINY "DTYPE=f32 BATCH_SIZE=8"), 1), 0);
    assert_int_equal(cut(needed(four), 1), 4);
    assert_int_equal(cut(needed(four) - 1, 1), 2);
    assert_int_equal(cut(needed(TINY "DTYPE=f32 BATCH_SIZE=8 MICRO_BATCH=2") - 1, 1), 1);
    assert_int_equal(cut(1, 1), 1);         /* nothing fits: what follows says so */
    assert_int_equal(cut(INT64_MAX, 4), 2); /* each rank has a micro-batch */
}

/* Of no backend: the same tensors, and no kernel's workspace among them. */
TEST(test_a_plan_needs_no_backend) {
    weft_config c = config_of(TINY);
    weft_account a = account_of(TINY, -1), b;
    expect_ok(weft_account_make(&c, NULL, 2, &b));
    assert_int_equal(a.parameters, b.parameters);
    assert_int_equal(a.optimizer_bytes, b.optimizer_bytes);
    assert_true(a.forward_flops == b.forward_flops);
    assert_true(b.training_bytes >= b.weights_bytes + b.optimizer_bytes + b.gradients_bytes);
    assert_true(b.training_bytes < a.training_bytes);
}

RUN_TESTS(NULL, NULL)
