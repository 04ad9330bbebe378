/* Blocks on the GPU: the CPU's values on the caller's stream, pending calls, repeated calls, bad values
 * told later, no memory taken in a call, and calls that the caller captures. */
#include "core/exec.h"
#include "cuda/backend.h"
#include "support/block_memory.h"

#include <weft/graph.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 2, TIME = 64 };

#define SIZES "N_HEAD=4", "N_EMBD=64", "CONTEXT=64", "RA_MLA_LATENT_DIM=32"

typedef struct {
    const char *name;
    const char *options[16];
    double bound; /* of the difference to the CPU's f32, over the largest value */
} mix;

static const mix mixes[] = {
    {"w2 f32", {SIZES, "ATTENTION=w2", "FFN=swiglu", "DTYPE=f32", NULL}, 1e-4},
    {"mla f32", {SIZES, "ATTENTION=mla", "FFN=gelu", "DTYPE=f32", NULL}, 1e-4},
    {"dot f32", {SIZES, "ATTENTION=dot", "FFN=wsffn", "DTYPE=f32", NULL}, 1e-4},
    {"w2 bf16", {SIZES, "ATTENTION=w2", "FFN=swiglu", "DTYPE=bf16", NULL}, 5e-2},
    {"dot bf16", {SIZES, "ATTENTION=dot", "FFN=gelu", "DTYPE=bf16", NULL}, 5e-2},
};
enum { MIXES = sizeof mixes / sizeof mixes[0] };

static weft_engine *cpu, *gpu;
static const weft_backend *device;

static int open_engines(void **state) {
    (void)state;
    device = weft_cuda_backend();
    if (!device) {
        printf("%s\n", weft_error_message());
        return 0;
    }
    return weft_engine_open(2, "cpu", &cpu) || weft_engine_open(1, "cuda", &gpu);
}

static int close_engines(void **state) {
    (void)state;
    weft_engine_close(gpu);
    weft_engine_close(cpu);
    return 0;
}

static void need_gpu(void) {
    if (device) return;
    printf("there is no GPU: %s\n", weft_error_message());
    skip();
}

/* The same pieces on the device. */
typedef struct {
    void *values[3][MEMORY_TENSORS], *grads[3][MEMORY_TENSORS], *saved, *workspace;
} device_memory;

static void *copy_up(const void *from, int64_t bytes) {
    if (!from || bytes == 0) return NULL;
    void *to = device->alloc(bytes);
    assert_non_null(to);
    OK(device->upload(to, from, bytes));
    return to;
}

static void take_device(device_memory *d, const memory *m) {
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < m->n[k]; i++) {
            d->values[k][i] = copy_up(m->values[k][i], m->info[k][i].bytes);
            d->grads[k][i] = copy_up(m->grads[k][i], m->info[k][i].bytes);
        }
    d->saved = copy_up(m->saved.at, m->saved.bytes);
    const piece *larger = m->forward.bytes > m->backward.bytes ? &m->forward : &m->backward;
    d->workspace = copy_up(larger->at, larger->bytes);
}

/* Brings everything back and lets go of the device's. */
static void give_device_back(device_memory *d, memory *m) {
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < m->n[k]; i++) {
            int64_t bytes = m->info[k][i].bytes;
            OK(device->download(m->values[k][i], d->values[k][i], bytes));
            device->release(d->values[k][i], bytes);
            if (!d->grads[k][i]) continue;
            OK(device->download(m->grads[k][i], d->grads[k][i], bytes));
            device->release(d->grads[k][i], bytes);
        }
    if (d->saved) device->release(d->saved, m->saved.bytes);
    if (d->workspace) device->release(d->workspace, 0);
}

static weft_call device_call(device_memory *d, void *stream) {
    return (weft_call){.size = sizeof(weft_call),
                       .inputs = d->values[WEFT_BLOCK_INPUTS],
                       .weights = d->values[WEFT_BLOCK_WEIGHTS],
                       .outputs = d->values[WEFT_BLOCK_OUTPUTS],
                       .saved = d->saved,
                       .workspace = d->workspace,
                       .stream = stream,
                       .seed = 7,
                       .iteration = 3,
                       .grad_outputs = d->grads[WEFT_BLOCK_OUTPUTS],
                       .grad_inputs = d->grads[WEFT_BLOCK_INPUTS],
                       .grad_weights = d->grads[WEFT_BLOCK_WEIGHTS]};
}

/* The largest difference of outputs and gradients, over the largest value of each tensor. */
static double part_by(const memory *a, const memory *b, char *where, size_t room) {
    double worst = 0;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < a->n[k]; i++)
            for (int pass = 0; pass < 2; pass++) {
                const void *x = pass ? a->grads[k][i] : a->values[k][i];
                const void *y = pass ? b->grads[k][i] : b->values[k][i];
                double most = 1e-12, off = 0;
                for (int64_t j = 0; x && j < a->info[k][i].count; j++) {
                    double u = get_value(&a->info[k][i], x, j), v = get_value(&b->info[k][i], y, j);
                    if (fabs(u) > most) most = fabs(u);
                    if (!(fabs(u - v) <= off)) off = isnan(u - v) ? INFINITY : fabs(u - v);
                }
                if (off / most <= worst) continue;
                worst = off / most;
                snprintf(where, room, "%s%s", pass ? "gradient of " : "", a->info[k][i].name);
            }
    return worst;
}

static void test_values_and_gradients_are_the_cpus(void **state) {
    (void)state;
    need_gpu();
    for (int i = 0; i < MIXES; i++) {
        weft_block *here, *there;
        memory want, got;
        device_memory d = {0};
        char where[96] = "";
        int purpose = WEFT_BLOCK_GRADIENT | WEFT_BLOCK_TRAIN;
        OK(weft_block_open_part(cpu, "layer", mixes[i].options, BATCH, TIME, 1, purpose, &here));
        OK(weft_block_open_part(gpu, "layer", mixes[i].options, BATCH, TIME, 1, purpose, &there));
        take_memory(&want, here, 3, 0xff);
        take_memory(&got, there, 3, 0xff);
        forward(&want);
        backward(&want);
        take_device(&d, &got);
        weft_call call = device_call(&d, NULL);
        OK(weft_block_forward(there, &call));
        OK(weft_block_backward(there, &call));
        give_device_back(&d, &got);
        OK(weft_block_check(there));
        double by = part_by(&want, &got, where, sizeof where);
        printf("      %s: within %.2g of the CPU, most at %s\n", mixes[i].name, by, where);
        if (!(by <= mixes[i].bound)) fail_msg("%s: %s parts by %g", mixes[i].name, where, by);
        give_memory_back(&want);
        give_memory_back(&got);
        weft_block_close(here);
        weft_block_close(there);
    }
}

static void test_forwards_may_be_pending_and_take_no_memory(void **state) {
    (void)state;
    need_gpu();
    weft_block *block;
    memory m[3];
    device_memory d[3] = {0};
    OK(weft_block_open_part(gpu, "layer", mixes[0].options, BATCH, TIME, 1, WEFT_BLOCK_GRADIENT,
                            &block));
    for (int i = 0; i < 3; i++) {
        take_memory(&m[i], block, i == 2 ? 3 : (uint64_t)i + 3, 0xff);
        take_device(&d[i], &m[i]);
    }
    int64_t before = weft_cuda_bytes_taken();
    for (int i = 0; i < 2; i++) {
        weft_call call = device_call(&d[i], NULL);
        OK(weft_block_forward(block, &call));
    }
    for (int i = 0; i < 2; i++) {
        weft_call call = device_call(&d[i], NULL);
        OK(weft_block_backward(block, &call));
    }
    weft_call alone = device_call(&d[2], NULL);
    OK(weft_block_forward(block, &alone));
    OK(weft_block_backward(block, &alone));
    assert_int_equal(weft_cuda_bytes_taken(), before);
    for (int i = 0; i < 3; i++)
        give_device_back(&d[i], &m[i]);
    check_equal(&m[0], &m[2]);
    for (int i = 0; i < 3; i++)
        give_memory_back(&m[i]);
    weft_block_close(block);
}

/* What the device has, over what the CPU's pieces hold. */
static void put_input(device_memory *d, memory *m, int64_t i, double value) {
    const weft_block_info *t = &m->info[WEFT_BLOCK_INPUTS][0];
    put_value(t, m->values[WEFT_BLOCK_INPUTS][0], i, value);
    OK(device->upload(d->values[WEFT_BLOCK_INPUTS][0], m->values[WEFT_BLOCK_INPUTS][0], t->bytes));
}

static void run_both(weft_block *block, device_memory *d, uint32_t iteration) {
    weft_call call = device_call(d, NULL);
    call.iteration = iteration;
    OK(weft_block_forward(block, &call));
    OK(weft_block_backward(block, &call));
}

/* An engine whose calls go kernel by kernel. Blocks read the setting when they are opened. */
static weft_status open_single(const char *const *options, weft_engine *single, int purpose,
                               weft_block **out) {
    setenv("WEFT_CUDA_GRAPH", "0", 1);
    weft_status status =
        weft_block_open_part(single, "layer", options, BATCH, TIME, 1, purpose, out);
    unsetenv("WEFT_CUDA_GRAPH");
    return status;
}

/* The third call with the same addresses is a replay, and so are all behind it; what lies there and the
 * numbers that random ones follow from are others each time. */
static void test_repeated_calls_have_the_bits_of_single_kernels(void **state) {
    (void)state;
    need_gpu();
    static const mix dropped = {
        "w2 bf16, dropout",
        {SIZES, "ATTENTION=w2", "FFN=swiglu", "DTYPE=bf16", "DROPOUT=0.2", NULL},
        0};
    int purpose = WEFT_BLOCK_GRADIENT | WEFT_BLOCK_TRAIN;
    weft_engine *single;
    OK(weft_engine_open(1, "cuda", &single));
    for (int i = 0; i <= MIXES; i++) {
        const mix *form = i < MIXES ? &mixes[i] : &dropped;
        weft_block *block, *plain;
        OK(weft_block_open_part(gpu, "layer", form->options, BATCH, TIME, 1, purpose, &block));
        OK(open_single(form->options, single, purpose, &plain));
        memory m[2][2];
        device_memory d[2][2] = {0};
        for (int k = 0; k < 4; k++) {
            take_memory(&m[k / 2][k % 2], k / 2 ? plain : block, (uint64_t)(k % 2) + 3, 0xff);
            take_device(&d[k / 2][k % 2], &m[k / 2][k % 2]);
        }
        for (uint32_t round = 0; round < 6; round++)
            for (int k = 0; k < 2; k++) { /* two lists of addresses alternating */
                for (int way = 0; way < 2; way++) {
                    put_input(&d[way][k], &m[way][k], round, 0.25 * round - k);
                    run_both(way ? plain : block, &d[way][k], round);
                }
            }
        for (int k = 0; k < 2; k++) {
            give_device_back(&d[0][k], &m[0][k]);
            give_device_back(&d[1][k], &m[1][k]);
            check_equal(&m[0][k], &m[1][k]);
            give_memory_back(&m[0][k]);
            give_memory_back(&m[1][k]);
        }
        weft_block_close(block);
        weft_block_close(plain);
    }
    weft_engine_close(single);
}

/* More lists of addresses than are remembered, each three times in a row, then all once more. */
static void test_many_addresses_are_told_apart(void **state) {
    (void)state;
    need_gpu();
    enum { PLACES = 300 };
    weft_block *block;
    memory m;
    device_memory d = {0};
    OK(weft_block_open_part(gpu, "layer", mixes[3].options, BATCH, TIME, 1, 0, &block));
    take_memory(&m, block, 3, 0xff);
    take_device(&d, &m);
    int64_t bytes = m.info[WEFT_BLOCK_OUTPUTS][0].bytes;
    unsigned char *all = device->alloc(PLACES * bytes), *want = malloc((size_t)bytes),
                  *got = malloc((size_t)bytes);
    assert_true(all && want && got && bytes % 64 == 0);
    weft_call call = device_call(&d, NULL);
    void *outputs[MEMORY_TENSORS];
    memcpy(outputs, d.values[WEFT_BLOCK_OUTPUTS], sizeof outputs);
    call.outputs = outputs;
    for (int round = 0; round < 2; round++) {
        OK(device->fill(all, 0xff, PLACES * bytes));
        for (int i = 0; i < PLACES; i++) {
            outputs[0] = all + i * bytes;
            for (int k = 0; k < (round ? 1 : 3); k++)
                OK(weft_block_forward(block, &call));
        }
        OK(device->download(want, all, bytes));
        for (int i = 1; i < PLACES; i++) {
            OK(device->download(got, all + i * bytes, bytes));
            if (memcmp(got, want, (size_t)bytes) != 0) fail_msg("round %d, place %d", round, i);
        }
    }
    assert_true(isfinite(get_value(&m.info[WEFT_BLOCK_OUTPUTS][0], want, 0)));
    device->release(all, PLACES * bytes);
    free(want);
    free(got);
    give_device_back(&d, &m);
    give_memory_back(&m);
    weft_block_close(block);
}

static weft_status describe_tokens(void *context, weft_graph *g) {
    (void)context;
    weft_tensor *ids = weft_graph_input(g, "ids", "i32", 2, (int64_t[]){BATCH, TIME}, 0);
    weft_tensor *table = weft_graph_weight(g, "table", "f32", 2, (int64_t[]){11, 64});
    weft_graph_output(g, "x", weft_graph_embed(g, table, ids, NULL));
    return WEFT_OK;
}

static void test_a_bad_token_is_told_by_a_later_check(void **state) {
    (void)state;
    need_gpu();
    weft_block *block;
    memory m;
    device_memory d = {0};
    OK(weft_block_open(gpu, NULL, describe_tokens, NULL, 0, &block));
    take_memory(&m, block, 3, 0);
    ((int32_t *)m.values[WEFT_BLOCK_INPUTS][0])[5] = 11;
    take_device(&d, &m);
    weft_call call = device_call(&d, NULL);
    for (int round = 0; round < 4; round++) { /* the last two are replays */
        OK(weft_block_forward(block, &call));
        OK(device->download(m.values[WEFT_BLOCK_OUTPUTS][0], d.values[WEFT_BLOCK_OUTPUTS][0],
                            m.info[WEFT_BLOCK_OUTPUTS][0].bytes)); /* waits for it */
        refused(weft_block_check(block), WEFT_EINPUT, "embed");
        OK(weft_block_check(block));
    }
    give_device_back(&d, &m);
    give_memory_back(&m);
    weft_block_close(block);
}

#ifdef WEFT_HAVE_CUDA
/* The runtime's, as far as they are wanted here; cudaStreamNonBlocking and the global mode. */
extern int cudaStreamCreateWithFlags(void **stream, unsigned flags);
extern int cudaStreamDestroy(void *stream);
extern int cudaStreamSynchronize(void *stream);
extern int cudaStreamBeginCapture(void *stream, int mode);
extern int cudaStreamEndCapture(void *stream, void **graph);
extern int cudaGraphInstantiate(void **exec, void *graph, unsigned long long flags);
extern int cudaGraphLaunch(void *exec, void *stream);
extern int cudaGraphExecDestroy(void *exec);
extern int cudaGraphDestroy(void *graph);

static void test_the_caller_may_capture_a_call(void **state) {
    (void)state;
    need_gpu();
    weft_block *block;
    memory plain, replayed;
    device_memory p = {0}, r = {0};
    void *stream, *graph, *exec;
    OK(weft_block_open_part(gpu, "layer", mixes[3].options, BATCH, TIME, 1, WEFT_BLOCK_GRADIENT,
                            &block));
    take_memory(&plain, block, 3, 0xff);
    take_memory(&replayed, block, 3, 0xff);
    take_device(&p, &plain);
    take_device(&r, &replayed);
    assert_int_equal(cudaStreamCreateWithFlags(&stream, 1), 0);
    weft_call call = device_call(&p, stream);
    OK(weft_block_forward(block, &call));
    OK(weft_block_backward(block, &call));
    assert_int_equal(cudaStreamSynchronize(stream), 0);
    call = device_call(&r, stream);
    for (int i = 0; i < 3; i++) { /* the addresses have a graph when they are captured */
        OK(weft_block_forward(block, &call));
        OK(weft_block_backward(block, &call));
    }
    assert_int_equal(cudaStreamSynchronize(stream), 0);
    assert_int_equal(cudaStreamBeginCapture(stream, 0), 0);
    OK(weft_block_forward(block, &call));
    OK(weft_block_backward(block, &call));
    assert_int_equal(cudaStreamEndCapture(stream, &graph), 0);
    assert_int_equal(cudaGraphInstantiate(&exec, graph, 0), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(cudaGraphLaunch(exec, stream), 0);
    assert_int_equal(cudaStreamSynchronize(stream), 0);
    cudaGraphExecDestroy(exec);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    give_device_back(&p, &plain);
    give_device_back(&r, &replayed);
    check_equal(&plain, &replayed);
    give_memory_back(&plain);
    give_memory_back(&replayed);
    weft_block_close(block);
}
#endif

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_and_gradients_are_the_cpus),
        cmocka_unit_test(test_forwards_may_be_pending_and_take_no_memory),
        cmocka_unit_test(test_repeated_calls_have_the_bits_of_single_kernels),
        cmocka_unit_test(test_many_addresses_are_told_apart),
        cmocka_unit_test(test_a_bad_token_is_told_by_a_later_check),
#ifdef WEFT_HAVE_CUDA
        cmocka_unit_test(test_the_caller_may_capture_a_call),
#endif
    };
    return cmocka_run_group_tests(tests, open_engines, close_engines);
}
