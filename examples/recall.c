/* Associative recall with Wasserstein-2 attention, through weft.h alone: k v k v ... k ? k ? ...
 * Four keys in some order, each with a value drawn anew, then four questions. The answers are in no
 * weight: the model has to look them up in its context. Ends on 0 if it has learned to. */
#include <stdio.h>
#include <stdlib.h>
#include <weft/weft.h>

enum { PAIRS = 4, TIME = 4 * PAIRS, BATCH = 64, TOKENS = BATCH * TIME, WORDS = 2 * PAIRS };
enum { STEPS = 200, LOG_EVERY = 20 };

static void check(weft_status status) {
    if (status == WEFT_OK) return;
    fprintf(stderr, "recall: %s\n", weft_error_message());
    exit(1);
}

/* Tokens 0 .. 3 are keys, 4 .. 7 values; only the answers are targets. */
static void draw_batch(int32_t *tokens, int32_t *targets) {
    for (int b = 0; b < BATCH; b++) {
        /* An odd stride meets each key once. */
        int first = rand() % PAIRS, stride = 2 * (rand() % (PAIRS / 2)) + 1;
        int32_t value[PAIRS] = {0};
        for (int i = 0; i < 2 * PAIRS; i++, tokens += 2, targets += 2) {
            int key = i < PAIRS ? (first + i * stride) % PAIRS : rand() % PAIRS;
            if (i < PAIRS) value[key] = PAIRS + rand() % PAIRS;
            tokens[0] = key;
            tokens[1] = value[key];
            targets[0] = i < PAIRS ? -1 : value[key];
            targets[1] = -1;
        }
    }
}

/* The share of answers whose logit is the largest. */
static double measure_recall(const float *logits, const int32_t *targets) {
    int asked = 0, right = 0;
    for (int i = 0; i < TOKENS; i++, logits += WORDS) {
        int best = 0;
        for (int w = 1; w < WORDS; w++)
            if (logits[w] > logits[best]) best = w;
        asked += targets[i] >= 0;
        right += targets[i] == best;
    }
    return (double)right / asked;
}

int main(void) {
    const char *options[] = {"ATTENTION=w2", "POSITION=rope", "INIT=orthogonal",
                             "N_LAYER=2",    "N_HEAD=2",      "N_EMBD=32",
                             "VOCAB_SIZE=8", "CONTEXT=16",    NULL};
    static int32_t tokens[TOKENS], targets[TOKENS];
    static float logits[TOKENS * WORDS];
    double loss, recall = 0;
    weft_engine *engine;
    weft_model *model;
    weft_pass *pass;
    weft_optimizer *optimizer;
    check(weft_engine_open(0, "cpu", &engine));
    check(weft_model_open(NULL, options, &model));
    check(weft_pass_open(engine, model, BATCH, TIME, WEFT_PASS_TRAIN | WEFT_PASS_LOGITS, &pass));
    check(weft_optimizer_open(engine, model, NULL, &optimizer));
    for (int i = 0; i <= STEPS; i++) {
        draw_batch(tokens, targets);
        check(weft_pass_run(pass, tokens, targets, TOKENS, (uint32_t)i));
        if (i % LOG_EVERY == 0) {
            check(weft_pass_loss(pass, "loss", &loss));
            check(weft_pass_logits(pass, logits, TOKENS * WORDS));
            recall = measure_recall(logits, targets);
            printf("step %3d  loss %.4f  recall %5.1f%%\n", i, loss, 100 * recall);
        }
        check(weft_optimizer_step(optimizer, pass, 5e-3 * (STEPS - i) / STEPS));
    }
    weft_optimizer_close(optimizer);
    weft_pass_close(pass);
    weft_model_close(model);
    weft_engine_close(engine);
    return recall > 0.9 ? 0 : 1;
}
