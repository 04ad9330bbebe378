/* What each check asks of a block:
 *
 *   shapes      the model builds, and its logits and weights have the shapes that were asked for
 *   forward     from its start every number is finite, and the loss is that of guessing
 *   gradients   along a random direction the loss changes as the gradient says (f64)
 *   causality   another last token leaves all logits before it as they were, bit for bit
 *
 * Weights of the cross-token mechanism are constants to the gradient, so with it only the tensors
 * behind the last attention are moved. */
#include "model/verify.h"

#include "base/random.h"
#include "model/kinds.h"
#include "model/session.h"

enum { VERIFY_BATCH = 2, VERIFY_TIME = 24, VERIFY_VOCAB = 61 };

/* Each attention and feed-forward as it is, then what has options of its own. */
#define ATTENTION(NAME, name, title, help) {#name, help, "ATTENTION=" #name},
#define FFN(NAME, name, title, help) {#name, help, "FFN=" #name},
const weft_verify_block weft_verify_blocks[] = {
    /* clang-format off */
    WEFT_ATTENTIONS(ATTENTION)
    WEFT_FFNS(FFN)
    /* clang-format on */
    {"dot-rope", "rotary positions, RMSNorm", "POSITION=rope NORM=rmsnorm"},
    {"dot-alibi", "ALiBi slopes, grouped key heads", "POSITION=alibi KV_HEADS=2"},
    {"dot-relative", "learned relative bias, post-norm", "POSITION=relative NORM_PLACEMENT=post"},
    {"qk-norm", "RMSNorm on queries and keys, grouped", "QK_NORM=y KV_HEADS=2"},
    {"out-gate", "a gate per element on what attention finds", "ATTENTION_GATE=element"},
    {"w2-rope", "rotated means", "ATTENTION=w2 POSITION=rope"},
    {"w2-overlap", "Gaussian overlap", "ATTENTION=w2 W2_KERNEL=overlap"},
    {"mla-joint", "one latent for both, rotated",
     "ATTENTION=mla RA_MLA_JOINT_KV=y RA_MLA_USE_ROPE=y"},
    {"mla-reciprocal", "reciprocal scoring",
     "ATTENTION=mla RA_MLA_RA_ALPHA=0.5 RA_MLA_RA_WINDOW=5"},
    {"mla-w2", "distances in the latent", "ATTENTION=mla RA_MLA_SCORE=w2"},
    {"mla-deepseek", "a rotated part beside a normed latent, queries of low rank",
     "ATTENTION=mla RA_MLA_JOINT_KV=y RA_MLA_LATENT_NORM=y RA_MLA_ROPE_DIM=4 RA_MLA_Q_RANK=6 "
     "POSITION=none"},
    {"mla-gla", "two latents, a rotated part for both",
     "ATTENTION=mla RA_MLA_JOINT_KV=y RA_MLA_LATENT_HEADS=2 RA_MLA_ROPE_DIM=4"},
    {"gta-grouped", "tied keys and values of two groups", "ATTENTION=gta KV_HEADS=2"},
    {"kv-share", "the second layer reads the first one's keys", "KV_SHARE=2"},
    {"wsffn-losses", "auxiliary losses of some weight",
     "FFN=wsffn WSFFN_LAMBDA_Z=0.1 WSFFN_LAMBDA_C=0.1"},
    {"wsffn-grouped", "z-heads kept apart", "FFN=wsffn WSFFN_Z_PROJ=grouped WSFFN_LAMBDA_Z=0.1"},
    {"gate", "feed-forward gates the next layer's heads", "RA_MLA_MLP_ATTN_GATE=y"},
    {"gate-cummean", "gates from the mean so far",
     "RA_MLA_MLP_ATTN_GATE=y RA_MLA_MLP_GATE_POOL=cummean"},
    {"cross-topk", "gathering from the k likeliest tokens",
     "RA_MLA_MLP_CROSS_TOKEN=y RA_MLA_MLP_SPARSE_K=3"},
    {"cross-rms", "gathering above a threshold",
     "RA_MLA_MLP_CROSS_TOKEN=y RA_MLA_MLP_SPARSE_MODE=rms"},
    {"cross-none", "gathering from all, low rank",
     "RA_MLA_MLP_CROSS_TOKEN=y RA_MLA_MLP_SPARSE_MODE=none RA_MLA_MLP_CROSS_RANK=3"},
    {"latent-tied", "latent and feed-forward coupled by one matrix",
     "ATTENTION=mla RA_MLA_MLP_LATENT_RECIP=y"},
    {"latent-untied", "coupled by three",
     "ATTENTION=mla RA_MLA_MLP_LATENT_RECIP=y RA_MLA_MLP_TYING_MODE=untied"},
    {"latent-scalar", "coupled by a number per head",
     "ATTENTION=mla RA_MLA_MLP_LATENT_RECIP=y RA_MLA_MLP_TYING_MODE=per_head_scalar"},
    {"all", "mla, wsffn and all three mechanisms",
     "ATTENTION=mla FFN=wsffn RA_MLA_MLP_ATTN_GATE=y RA_MLA_MLP_CROSS_TOKEN=y "
     "RA_MLA_MLP_LATENT_RECIP=y"},
};
const int weft_verify_count = sizeof weft_verify_blocks / sizeof weft_verify_blocks[0];

const char *const weft_verify_check_names[] = {"shapes", "forward", "gradients", "causality"};

typedef struct {
    weft_model *model;
    weft_session session;
    int32_t tokens[VERIFY_BATCH * VERIFY_TIME], targets[VERIFY_BATCH * VERIFY_TIME];
} verify_run;

static void close_run(verify_run *v) {
    weft_session_close(&v->session);
    weft_model_destroy(v->model);
}

static weft_status check_shapes(const verify_run *v) {
    const weft_tensor *logits = v->session.graph.logits;
    const int64_t want[] = {VERIFY_BATCH, VERIFY_TIME, VERIFY_VOCAB};
    if (logits->ndim != 3 || memcmp(logits->shape, want, sizeof want) != 0)
        return weft_fail(WEFT_EBUG, "logits are %s", weft_tensor_describe(logits));
    for (int64_t i = 0; i < v->session.graph.n_parameters; i++) {
        const weft_tensor *p = v->session.graph.parameters[i].tensor;
        const weft_weight *w = weft_model_find(v->model, p->name);
        if (!w || w->count != weft_tensor_count(p))
            return weft_fail(WEFT_EBUG, "weight '%s' is not %s", p->name, weft_tensor_describe(p));
        if (p->grad && !weft_tensor_same_shape(p, p->grad))
            return weft_fail(WEFT_EBUG, "the gradient of '%s' is %s", p->name,
                             weft_tensor_describe(p->grad));
    }
    return WEFT_OK;
}

static weft_status check_forward(const verify_run *v) {
    enum { COUNT = VERIFY_BATCH * VERIFY_TIME * VERIFY_VOCAB };
    static const double off = 0.2;
    double logits[COUNT];
    weft_loss_parts parts;
    WEFT_TRY(weft_session_values(&v->session, v->session.graph.logits, COUNT, logits));
    for (int i = 0; i < COUNT; i++)
        if (!isfinite(logits[i])) return weft_fail(WEFT_EBUG, "logit %d is %g", i, logits[i]);
    WEFT_TRY(weft_session_losses(&v->session, &parts));
    double guess = log((double)VERIFY_VOCAB);
    if (!(fabs(parts.cross_entropy - guess) < off))
        return weft_fail(WEFT_EBUG, "the loss starts at %.4f, but guessing has %.4f",
                         parts.cross_entropy, guess);
    return WEFT_OK;
}

/* Tensors that the check may move: see the top of the file. */
static bool may_move(const verify_run *v, const char *name) {
    if (!v->model->config.cross_token) return true;
    return strncmp(name, "h.1.ffn.", 8) == 0 || strncmp(name, "ln_f.", 5) == 0;
}

/* Moves every weight by `step` along its own random direction. */
static weft_status move_weights(verify_run *v, double step) {
    weft_weight *end = v->model->weights + v->model->n_weights;
    for (weft_weight *w = v->model->weights; w < end; w++) {
        if (!may_move(v, w->name)) continue;
        WEFT_ROOM(double, values, 2 * w->count, "no memory");
        double *direction = values + w->count;
        weft_weight_read(w, values); /* nothing but this writes them: the host's are the newest */
        weft_random_normal(9, 0, weft_random_site(w->name), 0, w->count, direction);
        for (int64_t k = 0; k < w->count; k++)
            values[k] += step * direction[k];
        weft_weight_write(w, values);
    }
    weft_mirror_wrote(v->model->mirror, NULL);
    return WEFT_OK;
}

/* In f64 to a part in 10^5; a device without f64 is held to what f32's differences can tell. */
static weft_status check_gradients(verify_run *v) {
    bool fine = v->model->dtype == WEFT_F64;
    double slope = 0, step = fine ? 1e-6 : 2e-4, part = fine ? 1e-5 : 5e-2,
           floor = fine ? 1e-9 : 1e-2;
    weft_loss_parts low, high;
    for (int64_t i = 0; i < v->session.graph.n_parameters; i++) {
        const weft_tensor *p = v->session.graph.parameters[i].tensor;
        if (!p->grad || !may_move(v, p->name)) continue;
        int64_t count = weft_tensor_count(p);
        WEFT_ROOM(double, gradient, 2 * count, "no memory");
        double *direction = gradient + count;
        WEFT_TRY(weft_session_values(&v->session, p->grad, count, gradient));
        weft_random_normal(9, 0, weft_random_site(p->name), 0, count, direction);
        for (int64_t k = 0; k < count; k++)
            slope += gradient[k] * direction[k];
    }
    WEFT_TRY(move_weights(v, -step));
    WEFT_TRY(weft_session_run(&v->session, v->tokens, v->targets, NULL));
    WEFT_TRY(weft_session_losses(&v->session, &low));
    WEFT_TRY(move_weights(v, 2 * step));
    WEFT_TRY(weft_session_run(&v->session, v->tokens, v->targets, NULL));
    WEFT_TRY(weft_session_losses(&v->session, &high));
    double measured = (high.loss - low.loss) / (2 * step);
    if (slope == 0 || !(fabs(measured - slope) <= part * fabs(slope) + floor))
        return weft_fail(WEFT_EBUG, "the loss changes at %.9g, the gradient says %.9g", measured,
                         slope);
    return WEFT_OK;
}

static weft_status check_causality(verify_run *v) {
    enum { ROW = VERIFY_TIME * VERIFY_VOCAB, COUNT = VERIFY_BATCH * ROW };
    double before[COUNT], after[COUNT];
    const weft_tensor *logits = v->session.graph.logits;
    WEFT_TRY(weft_session_values(&v->session, logits, COUNT, before));
    for (int b = 0; b < VERIFY_BATCH; b++) {
        int32_t *last = &v->tokens[b * VERIFY_TIME + VERIFY_TIME - 1];
        *last = (*last + 1) % VERIFY_VOCAB;
    }
    WEFT_TRY(weft_session_run(&v->session, v->tokens, v->targets, NULL));
    WEFT_TRY(weft_session_values(&v->session, logits, COUNT, after));
    for (int b = 0; b < VERIFY_BATCH; b++)
        if (memcmp(before + b * ROW, after + b * ROW, (ROW - VERIFY_VOCAB) * sizeof *before) != 0)
            return weft_fail(WEFT_EBUG, "a token sees the one after it");
    if (memcmp(before, after, sizeof before) == 0)
        return weft_fail(WEFT_EBUG, "another last token changed nothing at all");
    return WEFT_OK;
}

weft_status weft_verify_run(int block, weft_verify_check check, const weft_backend *backend,
                            weft_pool *pool) {
    WEFT_AUTO(close_run) verify_run v = {0};
    bool grads = check == WEFT_VERIFY_GRADIENTS || check == WEFT_VERIFY_SHAPES;
    weft_dtype dtype = check == WEFT_VERIFY_GRADIENTS && !backend->remote ? WEFT_F64 : WEFT_F32;
    weft_config c;
    static const char sizes[] =
        "N_LAYER=2 N_HEAD=4 N_EMBD=16 N_FFN=32 VOCAB_SIZE=61 CONTEXT=24 BATCH_SIZE=2 "
        "RA_MLA_LATENT_DIM=8 WSFFN_N_HEAD=4 RA_MLA_MLP_GATE_DIM=5 RA_MLA_MLP_LATENT_DIM=6";
    weft_config_defaults(&c);
    WEFT_TRY(weft_config_override_all(&c, sizes, "verify"));
    WEFT_TRY(weft_config_override_all(&c, weft_verify_blocks[block].overrides, "verify"));
    WEFT_TRY(weft_model_check(&c, "verify"));
    for (int i = 0; i < VERIFY_BATCH * VERIFY_TIME; i++) {
        v.tokens[i] = (int32_t)(weft_random_word(3, 0, 0, 0, (uint64_t)i) % VERIFY_VOCAB);
        v.targets[i] = (int32_t)(weft_random_word(3, 0, 0, 1, (uint64_t)i) % VERIFY_VOCAB);
    }
    weft_build build = {
        .batch = VERIFY_BATCH, .time = VERIFY_TIME, .dtype = dtype, .train = true, .logits = true};
    WEFT_TRY(weft_model_create(&c, dtype, NULL, &v.model));
    WEFT_TRY(weft_model_start(v.model, 5, NULL));
    WEFT_TRY(weft_session_open(v.model, backend, pool, &build, grads, false, &v.session));
    WEFT_TRY(weft_session_run(&v.session, v.tokens, v.targets, NULL));
    return check == WEFT_VERIFY_SHAPES      ? check_shapes(&v)
           : check == WEFT_VERIFY_FORWARD   ? check_forward(&v)
           : check == WEFT_VERIFY_GRADIENTS ? check_gradients(&v)
                                            : check_causality(&v);
}
