/* Parts of weft's own models as blocks: put together by hand they are the model, in loss and in every
 * gradient. Everything here goes through the public headers; nothing of src/ is included. */
#include <weft/graph.h>

#include "support/block_memory.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, TIME = 6, WIDTH = 8, HEADS = 2, WORDS = 11, COUNT = BATCH * TIME, LAYERS = 2 };

#define SIZES                                                                                      \
    "N_LAYER=2", "N_HEAD=2", "N_EMBD=8", "N_FFN=12", "VOCAB_SIZE=11", "CONTEXT=6", "DTYPE=f64",    \
        "NORM=rmsnorm", "INIT=orthogonal"

static const char *const w2[] = {SIZES, "ATTENTION=w2", "FFN=swiglu", "POSITION=rope", NULL};
static const char *const mla[] = {SIZES,
                                  "ATTENTION=mla",
                                  "FFN=gelu",
                                  "POSITION=none",
                                  "RA_MLA_LATENT_DIM=4",
                                  "RA_MLA_MLP_ATTN_GATE=y",
                                  "RA_MLA_MLP_GATE_DIM=3",
                                  "RA_MLA_MLP_CROSS_TOKEN=y",
                                  "RA_MLA_MLP_SPARSE_K=3",
                                  "RA_MLA_MLP_LATENT_RECIP=y",
                                  "RA_MLA_MLP_TYING_MODE=tied_transpose",
                                  NULL};
static const char *const wsffn[] = {SIZES,
                                    "ATTENTION=dot",
                                    "FFN=wsffn",
                                    "POSITION=alibi",
                                    "WSFFN_N_HEAD=4",
                                    "WSFFN_LAMBDA_Z=0.1",
                                    "WSFFN_LAMBDA_C=0.2",
                                    "BIAS=y",
                                    NULL};
static const char *const *const mixes[] = {w2, mla, wsffn};

static const int32_t tokens[COUNT] = {1, 5, 2, 9, 10, 0, 3, 3, 7, 4, 6, 8};
static const int32_t targets[COUNT] = {5, 2, 9, 10, -1, 3, 3, 7, 4, 8, 0, 1};

static weft_status describe_embedding(void *context, weft_graph *g) {
    (void)context;
    weft_tensor *ids = weft_graph_input(g, "ids", "i32", 2, (int64_t[]){BATCH, TIME}, 0);
    weft_tensor *table = weft_graph_weight(g, "wte.weight", "f64", 2, (int64_t[]){WORDS, WIDTH});
    weft_graph_output(g, "x", weft_graph_embed(g, table, ids, NULL));
    return WEFT_OK;
}

static weft_status describe_head(void *context, weft_graph *g) {
    (void)context;
    weft_tensor *x = weft_graph_input(g, "x", "f64", 3, (int64_t[]){BATCH, TIME, WIDTH}, 1);
    weft_tensor *next = weft_graph_input(g, "next", "i32", 2, (int64_t[]){BATCH, TIME}, 0);
    weft_tensor *gain = weft_graph_weight(g, "ln_f.weight", "f64", 1, (int64_t[]){WIDTH});
    weft_tensor *table = weft_graph_weight(g, "wte.weight", "f64", 2, (int64_t[]){WORDS, WIDTH});
    x = weft_graph_norm(g, "rmsnorm", x, NULL, gain, NULL, NULL);
    weft_graph_output(g, "loss", weft_graph_cross_entropy(g, x, table, next, 0, NULL));
    return WEFT_OK;
}

static weft_status describe_norm(void *context, weft_graph *g) {
    weft_tensor *x = weft_graph_input(g, "x", "f64", 3, (int64_t[]){BATCH, TIME, WIDTH}, 1), *sum;
    weft_tensor *r = weft_graph_input(g, "r", "f64", 3, (int64_t[]){BATCH, TIME, WIDTH}, 1);
    weft_tensor *gain = weft_graph_weight(g, context, "f64", 1, (int64_t[]){WIDTH});
    weft_graph_output(g, "y", weft_graph_norm(g, "rmsnorm", x, r, gain, NULL, &sum));
    weft_graph_output(g, "sum", sum);
    return WEFT_OK;
}

/* A model's tensor of that name, of layer `layer` where it is not -1. */
static void full_name(char *out, size_t room, const char *name, int layer) {
    if (layer < 0)
        snprintf(out, room, "%s", name);
    else
        snprintf(out, room, "h.%d.%s", layer, name);
}

/* Takes a block's weights from the model. */
static void load_weights(memory *m, const weft_model *model, int layer) {
    for (int i = 0; i < m->n[WEFT_BLOCK_WEIGHTS]; i++) {
        const weft_block_info *t = &m->info[WEFT_BLOCK_WEIGHTS][i];
        char name[128];
        full_name(name, sizeof name, t->name, layer);
        OK(weft_model_read_f64(model, name, m->values[WEFT_BLOCK_WEIGHTS][i], t->count));
    }
}

/* Holds a block's gradients, plus what `more` has for the same weight, against the pass's. */
static void check_weights(const memory *m, const memory *more, const weft_pass *pass, int layer) {
    for (int i = 0; i < m->n[WEFT_BLOCK_WEIGHTS]; i++) {
        const weft_block_info *t = &m->info[WEFT_BLOCK_WEIGHTS][i];
        char name[128];
        double *want = malloc((size_t)t->bytes);
        const double *got = m->grads[WEFT_BLOCK_WEIGHTS][i], *other = NULL;
        if (more && strcmp(t->name, "wte.weight") == 0)
            other = more->grads[WEFT_BLOCK_WEIGHTS]
                               [find_tensor(more, WEFT_BLOCK_WEIGHTS, "wte.weight")];
        full_name(name, sizeof name, t->name, layer);
        OK(weft_pass_gradient_f64(pass, name, want, t->count));
        for (int64_t j = 0; j < t->count; j++) {
            double sum = got[j] + (other ? other[j] : 0);
            if (!(fabs(sum - want[j]) <= 1e-10 * (1 + fabs(want[j]))))
                fail_msg("%s[%lld] is %.15g, of the model %.15g", name, (long long)j, sum, want[j]);
        }
        free(want);
    }
}

static void *value_of(memory *m, weft_block_list list, const char *name) {
    return m->values[list][find_tensor(m, list, name)];
}

static void *grad_of(memory *m, weft_block_list list, const char *name) {
    return m->grads[list][find_tensor(m, list, name)];
}

/* Hands an output on as the next block's input, of the same size. */
static void hand_on(memory *from, const char *output, memory *to, const char *in) {
    int i = find_tensor(from, WEFT_BLOCK_OUTPUTS, output),
        k = find_tensor(to, WEFT_BLOCK_INPUTS, in);
    assert_int_equal(from->info[WEFT_BLOCK_OUTPUTS][i].bytes, to->info[WEFT_BLOCK_INPUTS][k].bytes);
    memcpy(to->values[WEFT_BLOCK_INPUTS][k], from->values[WEFT_BLOCK_OUTPUTS][i],
           (size_t)to->info[WEFT_BLOCK_INPUTS][k].bytes);
}

/* And the gradient of that back. */
static void hand_back(memory *from, const char *in, memory *to, const char *output) {
    int i = find_tensor(from, WEFT_BLOCK_INPUTS, in),
        k = find_tensor(to, WEFT_BLOCK_OUTPUTS, output);
    memcpy(to->grads[WEFT_BLOCK_OUTPUTS][k], from->grads[WEFT_BLOCK_INPUTS][i],
           (size_t)to->info[WEFT_BLOCK_OUTPUTS][k].bytes);
}

static int has(const memory *m, weft_block_list list, const char *name) {
    for (int i = 0; i < m->n[list]; i++)
        if (strcmp(m->info[list][i].name, name) == 0) return 1;
    return 0;
}

typedef struct {
    weft_model *model;
    weft_pass *pass;
    memory embedding, layer[LAYERS], head;
} chain;

static void open_chain(chain *c, const char *const *options) {
    int purpose = WEFT_BLOCK_GRADIENT | WEFT_BLOCK_TRAIN;
    weft_block *block;
    OK(weft_model_open(NULL, options, &c->model));
    OK(weft_pass_open(engine, c->model, BATCH, TIME, WEFT_PASS_TRAIN, &c->pass));
    OK(weft_pass_run(c->pass, tokens, targets, COUNT, 0));
    OK(weft_block_open(engine, "embedding", describe_embedding, NULL, purpose, &block));
    take_memory(&c->embedding, block, 1, 0xff);
    OK(weft_block_open(engine, "head", describe_head, NULL, purpose, &block));
    take_memory(&c->head, block, 1, 0xff);
    for (int i = 0; i < LAYERS; i++) {
        OK(weft_block_open_part(engine, "layer", options, BATCH, TIME, i == 0, purpose, &block));
        take_memory(&c->layer[i], block, 1, 0xff);
        load_weights(&c->layer[i], c->model, i);
    }
    load_weights(&c->embedding, c->model, -1);
    load_weights(&c->head, c->model, -1);
    memcpy(value_of(&c->embedding, WEFT_BLOCK_INPUTS, "ids"), tokens, sizeof tokens);
    memcpy(value_of(&c->head, WEFT_BLOCK_INPUTS, "next"), targets, sizeof targets);
}

static void close_chain(chain *c) {
    memory *const all[] = {&c->embedding, &c->layer[0], &c->layer[1], &c->head};
    for (int i = 0; i < 4; i++) {
        weft_block_close(all[i]->block);
        give_memory_back(all[i]);
    }
    weft_pass_close(c->pass);
    weft_model_close(c->model);
}

static double run_forward(chain *c) {
    static const char *const aux[] = {"aux_z", "aux_contrastive"};
    double loss = 0;
    forward(&c->embedding);
    hand_on(&c->embedding, "x", &c->layer[0], "x");
    for (int i = 0; i < LAYERS; i++) {
        forward(&c->layer[i]);
        for (int k = 0; k < 2; k++)
            if (has(&c->layer[i], WEFT_BLOCK_OUTPUTS, aux[k]))
                loss += *(double *)value_of(&c->layer[i], WEFT_BLOCK_OUTPUTS, aux[k]);
        if (i + 1 == LAYERS) continue;
        hand_on(&c->layer[i], "y", &c->layer[i + 1], "x");
        if (has(&c->layer[i], WEFT_BLOCK_OUTPUTS, "gate"))
            hand_on(&c->layer[i], "gate", &c->layer[i + 1], "gate");
        if (has(&c->layer[i], WEFT_BLOCK_OUTPUTS, "sent"))
            hand_on(&c->layer[i], "sent", &c->layer[i + 1], "received");
    }
    hand_on(&c->layer[LAYERS - 1], "y", &c->head, "x");
    forward(&c->head);
    return loss + *(double *)value_of(&c->head, WEFT_BLOCK_OUTPUTS, "loss");
}

static void clear_gradients(memory *m) {
    for (int i = 0; i < m->n[WEFT_BLOCK_OUTPUTS]; i++)
        if (m->grads[WEFT_BLOCK_OUTPUTS][i])
            memset(m->grads[WEFT_BLOCK_OUTPUTS][i], 0,
                   (size_t)m->info[WEFT_BLOCK_OUTPUTS][i].bytes);
}

static void run_backward(chain *c) {
    *(double *)grad_of(&c->head, WEFT_BLOCK_OUTPUTS, "loss") = 1;
    backward(&c->head);
    for (int i = LAYERS - 1; i >= 0; i--) {
        memory *m = &c->layer[i];
        clear_gradients(m);
        if (has(m, WEFT_BLOCK_OUTPUTS, "aux_z"))
            *(double *)grad_of(m, WEFT_BLOCK_OUTPUTS, "aux_z") =
                *(double *)grad_of(m, WEFT_BLOCK_OUTPUTS, "aux_contrastive") = 1;
        if (i + 1 == LAYERS) {
            hand_back(&c->head, "x", m, "y");
        } else {
            hand_back(&c->layer[i + 1], "x", m, "y");
            if (has(m, WEFT_BLOCK_OUTPUTS, "gate")) hand_back(&c->layer[i + 1], "gate", m, "gate");
            if (has(m, WEFT_BLOCK_OUTPUTS, "sent"))
                hand_back(&c->layer[i + 1], "received", m, "sent");
        }
        backward(m);
    }
    hand_back(&c->layer[0], "x", &c->embedding, "x");
    backward(&c->embedding);
}

TEST(test_layers_put_together_are_the_model) {
    for (int i = 0; i < 3; i++) {
        chain c;
        double want;
        open_chain(&c, mixes[i]);
        double loss = run_forward(&c);
        OK(weft_pass_loss(c.pass, "loss", &want));
        if (!(fabs(loss - want) <= 1e-12 * fabs(want)))
            fail_msg("%d: the loss is %.15g, of the model %.15g", i, loss, want);
        run_backward(&c);
        check_weights(&c.embedding, &c.head, c.pass, -1);
        check_weights(&c.head, &c.embedding, c.pass, -1);
        for (int layer = 0; layer < LAYERS; layer++)
            check_weights(&c.layer[layer], NULL, c.pass, layer);
        close_chain(&c);
    }
}

/* A layer of its two halves, each its own block, with norms between. */
TEST(test_attention_and_ffn_are_the_layer) {
    for (int i = 0; i < 3; i++) {
        weft_block *block;
        memory layer, attention, ffn, first, second;
        OK(weft_block_open_part(engine, "layer", mixes[i], BATCH, TIME, 1, 0, &block));
        take_memory(&layer, block, 5, 0xff);
        OK(weft_block_open_part(engine, "attention", mixes[i], BATCH, TIME, 1, 0, &block));
        take_memory(&attention, block, 5, 0xff);
        OK(weft_block_open_part(engine, "ffn", mixes[i], BATCH, TIME, 1, 0, &block));
        take_memory(&ffn, block, 5, 0xff);
        OK(weft_block_open(engine, "ln_1", describe_norm, "ln_1.weight", 0, &block));
        take_memory(&first, block, 5, 0xff);
        OK(weft_block_open(engine, "ln_2", describe_norm, "ln_2.weight", 0, &block));
        take_memory(&second, block, 5, 0xff);
        double *x = value_of(&layer, WEFT_BLOCK_INPUTS, "x");
        size_t bytes = COUNT * WIDTH * sizeof *x;
        forward(&layer);
        memcpy(value_of(&first, WEFT_BLOCK_INPUTS, "x"), x, bytes);
        memset(value_of(&first, WEFT_BLOCK_INPUTS, "r"), 0, bytes);
        forward(&first);
        hand_on(&first, "y", &attention, "x");
        forward(&attention);
        hand_on(&first, "sum", &second, "x");
        hand_on(&attention, "y", &second, "r");
        forward(&second);
        hand_on(&second, "y", &ffn, "x");
        if (has(&ffn, WEFT_BLOCK_INPUTS, "latent")) hand_on(&attention, "latent", &ffn, "latent");
        if (has(&ffn, WEFT_BLOCK_INPUTS, "routes.index")) {
            hand_on(&attention, "routes.index", &ffn, "routes.index");
            hand_on(&attention, "routes.weight", &ffn, "routes.weight");
        }
        forward(&ffn);
        const double *want = value_of(&layer, WEFT_BLOCK_OUTPUTS, "y");
        const double *sum = value_of(&second, WEFT_BLOCK_OUTPUTS, "sum");
        const double *got = value_of(&ffn, WEFT_BLOCK_OUTPUTS, "y");
        for (int j = 0; j < COUNT * WIDTH; j++)
            if (!(fabs(sum[j] + got[j] - want[j]) <= 1e-12 * (1 + fabs(want[j]))))
                fail_msg("%d: y[%d] is %.15g, of the layer %.15g", i, j, sum[j] + got[j], want[j]);
        memory *const all[] = {&layer, &attention, &ffn, &first, &second};
        for (int k = 0; k < 5; k++) {
            weft_block_close(all[k]->block);
            give_memory_back(all[k]);
        }
    }
}

TEST(test_a_recomputed_layer_saves_less_and_gives_the_same) {
    weft_block *plain, *again;
    memory a, b;
    OK(weft_block_open_part(engine, "layer", w2, BATCH, TIME, 1, WEFT_BLOCK_GRADIENT, &plain));
    OK(weft_block_open_part(engine, "layer", w2, BATCH, TIME, 1,
                            WEFT_BLOCK_GRADIENT | WEFT_BLOCK_RECOMPUTE, &again));
    assert_true(weft_block_bytes(again, WEFT_BYTES_SAVED) <
                weft_block_bytes(plain, WEFT_BYTES_SAVED) / 2);
    take_memory(&a, plain, 5, 0xff);
    take_memory(&b, again, 5, 0xff);
    forward(&a);
    backward(&a);
    forward(&b);
    backward(&b);
    check_equal(&a, &b);
    give_memory_back(&a);
    give_memory_back(&b);
    weft_block_close(plain);
    weft_block_close(again);
}

/* Two outputs of one gradient each, and one output of that gradient. */
TEST(test_one_loss_is_the_sum_of_both) {
    int purpose = WEFT_BLOCK_GRADIENT | WEFT_BLOCK_TRAIN;
    weft_block *two, *one;
    memory a, b;
    OK(weft_block_open_part(engine, "ffn", wsffn, BATCH, TIME, 1, purpose, &two));
    OK(weft_block_open_part(engine, "ffn", wsffn, BATCH, TIME, 1, purpose | WEFT_BLOCK_ONE_LOSS,
                            &one));
    take_memory(&a, two, 5, 0xff);
    take_memory(&b, one, 5, 0xff);
    assert_int_equal(b.n[WEFT_BLOCK_OUTPUTS], 2);
    *(double *)grad_of(&a, WEFT_BLOCK_OUTPUTS, "aux_z") = 0.75;
    *(double *)grad_of(&a, WEFT_BLOCK_OUTPUTS, "aux_contrastive") = 0.75;
    *(double *)grad_of(&b, WEFT_BLOCK_OUTPUTS, "aux") = 0.75;
    forward(&a);
    backward(&a);
    forward(&b);
    backward(&b);
    double z = *(double *)value_of(&a, WEFT_BLOCK_OUTPUTS, "aux_z"),
           c = *(double *)value_of(&a, WEFT_BLOCK_OUTPUTS, "aux_contrastive");
    assert_true(z > 0 && c > 0 && *(double *)value_of(&b, WEFT_BLOCK_OUTPUTS, "aux") == z + c);
    for (int i = 0; i < a.n[WEFT_BLOCK_WEIGHTS]; i++)
        assert_memory_equal(a.grads[WEFT_BLOCK_WEIGHTS][i], b.grads[WEFT_BLOCK_WEIGHTS][i],
                            (size_t)a.info[WEFT_BLOCK_WEIGHTS][i].bytes);
    assert_memory_equal(grad_of(&a, WEFT_BLOCK_INPUTS, "x"), grad_of(&b, WEFT_BLOCK_INPUTS, "x"),
                        COUNT * WIDTH * sizeof(double));
    give_memory_back(&a);
    give_memory_back(&b);
    weft_block_close(two);
    weft_block_close(one);
}

TEST(test_parts_do_not_see_later_tokens) {
    for (int i = 0; i < 3; i++) {
        weft_block *block;
        memory a, b;
        OK(weft_block_open_part(engine, "layer", mixes[i], BATCH, TIME, 1, 0, &block));
        take_memory(&a, block, 5, 0xff);
        take_memory(&b, block, 5, 0xff);
        forward(&a);
        double *x = value_of(&b, WEFT_BLOCK_INPUTS, "x");
        for (int j = 0; j < WIDTH; j++)
            x[3 * WIDTH + j] += 1; /* token 3 of the first sequence */
        forward(&b);
        const double *before = value_of(&a, WEFT_BLOCK_OUTPUTS, "y");
        const double *after = value_of(&b, WEFT_BLOCK_OUTPUTS, "y");
        assert_memory_equal(before, after, 3 * WIDTH * sizeof *x);
        assert_true(before[3 * WIDTH] != after[3 * WIDTH]);
        assert_memory_equal(before + TIME * WIDTH, after + TIME * WIDTH, TIME * WIDTH * sizeof *x);
        give_memory_back(&a);
        give_memory_back(&b);
        weft_block_close(block);
    }
}

TEST(test_wrong_parts_are_refused) {
    weft_block *block;
    const char *const dense[] = {SIZES,
                                 "ATTENTION=mla",
                                 "RA_MLA_LATENT_DIM=4",
                                 "RA_MLA_MLP_CROSS_TOKEN=y",
                                 "RA_MLA_MLP_SPARSE_MODE=rms",
                                 NULL};
    refused(weft_block_open_part(engine, "head", w2, BATCH, TIME, 1, 0, &block), WEFT_EINPUT,
            "attention, ffn or layer");
    refused(weft_block_open_part(engine, "ffn", dense, BATCH, TIME, 1, 0, &block), WEFT_EINPUT,
            "whole layer");
    refused(weft_block_open_part(engine, "ffn", (const char *[]){"N_EMBED=3", NULL}, 1, 1, 1, 0,
                                 &block),
            WEFT_EINPUT, "N_EMBD");
    refused(weft_block_open_part(engine, "ffn", w2, 0, TIME, 1, 0, &block), WEFT_EINPUT, "0");
    assert_null(block);
}

RUN_TESTS(open_engine, close_engine)
