/* A block of one's own, trained by hand: y = x + w2 gelu(w1 norm(x) + b), fitted to a fixed map of
 * random rows by plain gradient descent. Memory, loss and optimizer are this program's; weft brings
 * the block's forward and backward pass. */
#include <weft/graph.h>

#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 256, WIDTH = 16, HIDDEN = 64, STEPS = 400, WEIGHTS = 4 };

static weft_status describe(void *context, weft_graph *g) {
    (void)context;
    weft_tensor *x = weft_graph_input(g, "x", "f32", 2, (int64_t[]){ROWS, WIDTH}, 0);
    weft_tensor *gain = weft_graph_weight(g, "gain", "f32", 1, (int64_t[]){WIDTH});
    weft_tensor *w1 = weft_graph_weight(g, "w1", "f32", 2, (int64_t[]){HIDDEN, WIDTH});
    weft_tensor *b = weft_graph_weight(g, "b", "f32", 1, (int64_t[]){HIDDEN});
    weft_tensor *w2 = weft_graph_weight(g, "w2", "f32", 2, (int64_t[]){WIDTH, HIDDEN});
    weft_tensor *h = weft_graph_norm(g, "rmsnorm", x, NULL, gain, NULL, NULL);
    h = weft_graph_linear(g, h, w1, b, "gelu");
    weft_graph_output(g, "y", weft_graph_add(g, x, weft_graph_linear(g, h, w2, NULL, "none"), 1));
    return WEFT_OK;
}

/* Memory that begins where a block wants it. */
static void *take(int64_t bytes) {
    size_t room = ((size_t)bytes + WEFT_ALIGNMENT - 1) / WEFT_ALIGNMENT * WEFT_ALIGNMENT;
    void *memory = room ? aligned_alloc(WEFT_ALIGNMENT, room) : NULL;
    if (room && !memory) exit(1);
    return memory;
}

static float draw(void) {
    return (float)rand() / (float)RAND_MAX - 0.5f;
}

static int fail(void) {
    fprintf(stderr, "%s\n", weft_error_message());
    return 1;
}

int main(void) {
    weft_engine *engine;
    weft_block *block;
    if (weft_engine_open(0, "cpu", &engine) ||
        weft_block_open(engine, "fit", describe, NULL, WEFT_BLOCK_GRADIENT, &block))
        return fail();

    float *weights[WEIGHTS], *gradients[WEIGHTS];
    weft_block_info info[WEIGHTS];
    for (int i = 0; i < WEIGHTS; i++) {
        if (weft_block_tensor(block, WEFT_BLOCK_WEIGHTS, i, &info[i], sizeof info[i]))
            return fail();
        weights[i] = take(info[i].bytes);
        gradients[i] = take(info[i].bytes);
        for (int64_t j = 0; j < info[i].count; j++)
            weights[i][j] = info[i].ndim == 1 ? (float)(i == 0) : 0.5f * draw();
    }
    float *x = take(ROWS * WIDTH * sizeof *x), *y = take(ROWS * WIDTH * sizeof *y);
    float *dy = take(ROWS * WIDTH * sizeof *dy);
    int64_t forward = weft_block_bytes(block, WEFT_BYTES_FORWARD);
    int64_t backward = weft_block_bytes(block, WEFT_BYTES_BACKWARD);
    weft_call call = {.size = sizeof call,
                      .inputs = (void *[]){x},
                      .weights = (void **)weights,
                      .outputs = (void *[]){y},
                      .saved = take(weft_block_bytes(block, WEFT_BYTES_SAVED)),
                      .workspace = take(forward > backward ? forward : backward),
                      .grad_outputs = (void *[]){dy},
                      .grad_inputs = (void *[]){NULL},
                      .grad_weights = (void **)gradients};

    for (int step = 0; step <= STEPS; step++) {
        for (int i = 0; i < ROWS * WIDTH; i++)
            x[i] = 2 * draw();
        if (weft_block_forward(block, &call)) return fail();
        /* The rows should come out in reverse. */
        double error = 0;
        for (int i = 0; i < ROWS * WIDTH; i++) {
            int64_t mirrored = i / WIDTH * WIDTH + WIDTH - 1 - i % WIDTH;
            float off = y[i] - x[mirrored];
            error += (double)(off * off) / (ROWS * WIDTH);
            dy[i] = 2 * off / ROWS;
        }
        if (step % 40 == 0) printf("step %3d error %.5f\n", step, error);
        if (weft_block_backward(block, &call)) return fail();
        for (int i = 0; i < WEIGHTS; i++)
            for (int64_t j = 0; j < info[i].count; j++)
                weights[i][j] -= 0.1f * gradients[i][j];
    }
    for (int i = 0; i < WEIGHTS; i++) {
        free(weights[i]);
        free(gradients[i]);
    }
    free(call.saved);
    free(call.workspace);
    free(x);
    free(y);
    free(dy);
    weft_block_close(block);
    weft_engine_close(engine);
    return 0;
}
