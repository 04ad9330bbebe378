/* The GPU's kernels that move memory, at the shapes of GPT-2 124M (batch 32, bf16): what each takes,
 * and how near it is to a copy.
 *
 *     kernels_cuda [WORD [TOKENS [KEPT [WIDTH]]]]
 *     kernels_cuda limits
 *
 * Only rows that hold the word; sequences of so many tokens in place of 1,024, 32,768 in all; routes
 * that keep so many columns, up to 64, in place of 8; heads of another width than 64, up to 128.
 *
 * limits: what this GPU can do at most, for other figures to be held against: a product of two 8192 × 8192
 * bf16 matrices, and a copy, of which what is read and what is written counts. It prints "GPU name",
 * "matrix TFLOP/s", "copy TB/s", a tab before the value. Status 3: there is no GPU, and a line says why.
 *
 * A row is a graph of the same operation several times over, run as training runs it (captured,
 * replayed); an empty graph's time is taken off. A row of gradients is the graph with them less the
 * graph without. Bytes are what must be read and written once, so TB/s is what is left of them in
 * that time, and `of copy` is that against the first row. Medians of nine runs. Matrix products are
 * in cross_entropy's rows. Numbers are random, since a product of zeros runs faster. */
#include "base/clock.h"
#include "base/scope.h"
#include "bench/tables.h"
#include "cuda/backend.h"
#include "ops/activation.h"
#include "ops/arith.h"
#include "ops/embedding.h"
#include "ops/gaussian.h"
#include "ops/heads.h"
#include "ops/linear.h"
#include "ops/loss.h"
#include "ops/norm.h"
#include "ops/optimizer.h"
#include "ops/rope.h"
#include "ops/routing.h"
#include "ops/time.h"

#include <string.h>

enum { N = 32768, E = 768, F = 3072, H = 12, V = 50304, L = 128, RUNS = 9 };
enum { ROWS_E = N * E, ROWS_F = N * F };
enum { SIDE = 8192, COPIED = 1 << 28 /* numbers of a copy of `limits` */, NO_GPU = 3 };
enum { DRAWN = SIDE * SIDE }; /* random numbers; then they repeat */
enum { WEIGHTS = 49 };        /* about those of the model: the embedding, then 12 layers of four */

static int B = 32, T = 1024, D = 64;
static int KEPT = 8; /* columns that a row of a route keeps */
static weft_graph *graph;
static weft_pool *pool;
static uint16_t *noise; /* [most of a tensor] */
static int32_t *tokens; /* [B, T] */
static int32_t *routes; /* [B, T, KEPT]: column 0, then any up to the row's own */
static double copy_rate, empty_time;
static double route_flops; /* of one search, of the row at hand */
static bool with_gradients;

static void fill_inputs(int64_t most) {
    uint64_t s = 88172645463325252u;
    noise = malloc((size_t)most * sizeof *noise);
    tokens = malloc((size_t)(B * T) * sizeof *tokens);
    routes = malloc((size_t)(B * T * KEPT) * sizeof *routes);
    if (!noise || !tokens || !routes) exit(1);
    for (int64_t i = 0; i < most; i++) {
        if (i >= DRAWN) {
            noise[i] = noise[i - DRAWN];
            continue;
        }
        s ^= s << 13, s ^= s >> 7, s ^= s << 17;
        noise[i] = weft_float_to_bf16((float)((double)(s >> 40) / 8388608.0 - 1));
        if (i < B * T) tokens[i] = (int32_t)(s % V);
        if (i < B * T * KEPT) {
            int64_t row = i / KEPT % T, m = i % KEPT;
            routes[i] = m > row ? -1 : m == 0 ? 0 : (int32_t)((s >> 20) % (uint64_t)(row + 1));
        }
    }
}

/* Tensors, each its own; a tensor whose gradient is wanted is a parameter. */
static weft_tensor *new_tensor(weft_role role, weft_dtype dtype, int ndim, const int64_t *shape) {
    char name[32];
    snprintf(name, sizeof name, "t%lld", (long long)weft_graph_tensor_count(graph));
    return weft_graph_tensor(graph, role, name, dtype, ndim, shape);
}

#define SHAPE(...)                                                                                 \
    (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (int64_t[]) {                       \
        __VA_ARGS__                                                                                \
    }
#define INPUT(...) new_tensor(WEFT_ROLE_INPUT, WEFT_BF16, SHAPE(__VA_ARGS__))
#define PARAM(...) new_tensor(WEFT_ROLE_PARAM, WEFT_BF16, SHAPE(__VA_ARGS__))
#define TOKENS(...) new_tensor(WEFT_ROLE_INPUT, WEFT_I32, SHAPE(__VA_ARGS__))

/* The gradient of y, from an upstream gradient that is given; y alone in the row without. */
static void differentiate(int n, weft_tensor **y) {
    weft_tensor *seed[16];
    for (int i = 0; i < n && !with_gradients; i++)
        weft_keep(y[i]);
    if (!with_gradients) return;
    for (int i = 0; i < n; i++)
        seed[i] = y[i] ? new_tensor(WEFT_ROLE_INPUT, y[i]->dtype, y[i]->ndim, y[i]->shape) : NULL;
    if (weft_graph_status(graph) == WEFT_OK) weft_graph_backward_many(graph, n, y, seed);
}

static void write_inputs(weft_exec *x) {
    for (int64_t i = 0; i < weft_graph_tensor_count(graph); i++) {
        const weft_tensor *t = weft_graph_tensor_at(graph, i);
        if (t->role == WEFT_ROLE_TEMP || t->view_of) continue;
        void *zeros = t->dtype == WEFT_F32 ? calloc((size_t)weft_tensor_count(t), 4) : NULL;
        const void *numbers = t->ndim == 3 ? routes : tokens;
        weft_exec_write(x, t, zeros ? zeros : t->dtype == WEFT_I32 ? numbers : noise);
        free(zeros);
    }
}

/* Seconds of a run of the graph; negative: it did not run. */
static double time_graph(void) {
    weft_exec *x = NULL;
    WEFT_AUTO(bench_samples_free) bench_samples seconds = {0};
    weft_status status = weft_exec_create(graph, weft_cuda_backend(), pool, NULL, &x);
    if (status == WEFT_OK) write_inputs(x);
    for (int i = -3; status == WEFT_OK && i < RUNS; i++) {
        double start = weft_clock();
        status = weft_exec_run(x, &(weft_run){.seed = 1});
        if (i >= 0) bench_samples_add(&seconds, weft_clock() - start);
    }
    weft_exec_destroy(x);
    return status == WEFT_OK ? bench_median(&seconds) : -1;
}

/* Builders: append the operation `times` times and return the bytes of one.
 *
 * EACH(name, bytes, result, inputs): the same inputs for all. GRADIENTS(name, bytes, bytes of the row with
 * gradients, result): inputs of its own for each. AS(name, call): another builder with other sizes. */
#define EACH(name, bytes, result, ...)                                                             \
    static double build_##name(int times) {                                                        \
        __VA_ARGS__;                                                                               \
        for (int i = 0; i < times; i++)                                                            \
            weft_keep(result);                                                                     \
        return bytes;                                                                              \
    }
#define GRADIENTS(name, bytes, back, result)                                                       \
    static double build_##name(int times) {                                                        \
        weft_tensor *y[16] = {NULL};                                                               \
        for (int i = 0; i < times; i++)                                                            \
            y[i] = result;                                                                         \
        differentiate(times, y);                                                                   \
        return with_gradients ? back : bytes;                                                      \
    }
#define AS(name, call)                                                                             \
    static double build_##name(int times) {                                                        \
        (void)times;                                                                               \
        return call;                                                                               \
    }

EACH(copy, 4.0 * ROWS_F, weft_scale(graph, x, 1), weft_tensor *x = INPUT(B * T, F))
EACH(add, 6.0 * ROWS_E, weft_add(graph, a, b), weft_tensor *a = INPUT(B * T, E),
     *b = INPUT(B * T, E))
EACH(gelu_back, 6.0 * ROWS_F, weft_gelu_back(graph, dy, x), weft_tensor *dy = INPUT(B * T, F),
     *x = INPUT(B * T, F))
EACH(rope, 4.0 * ROWS_E, weft_rope(graph, x, D, H, NULL, &WEFT_ROPE_USUAL),
     weft_tensor *x = INPUT(B, T, H, D))
EACH(dropout, 4.0 * ROWS_E, weft_dropout(graph, x, 0.1, "bench"), weft_tensor *x = INPUT(B, T, E))
EACH(means, 2.0 * ROWS_E, weft_time_mean(graph, INPUT(B, T, E)), (void)0)
EACH(running_means, 4.0 * B * T * 64, weft_running_mean(graph, x, NULL),
     weft_tensor *x = INPUT(B, T, 64))
EACH(squares, 2.0 * ROWS_F, weft_sum_squares(graph, x, 1), weft_tensor *x = INPUT(B * T, F))
EACH(few, 2.0 * F * E, weft_matmul(graph, INPUT(B, F), INPUT(F, E), false, false), (void)0)
EACH(few_transposed, 2.0 * F * E, weft_matmul(graph, INPUT(B, E), INPUT(F, E), false, true),
     (void)0)
/* Of `limits`; the first is counted in operations. */
EACH(products, 2.0 * SIDE * SIDE * SIDE, weft_matmul(graph, a, b, false, true),
     weft_tensor *a = INPUT(SIDE, SIDE), *b = INPUT(SIDE, SIDE))
EACH(copies, 4.0 * COPIED, weft_scale(graph, x, 1), weft_tensor *x = INPUT(COPIED))

GRADIENTS(silu, 6.0 * ROWS_F, 10.0 * ROWS_F, weft_silu_mul(graph, PARAM(B *T, F), PARAM(B *T, F)))
GRADIENTS(gaussian, 8.0 * ROWS_E, 12.0 * ROWS_E, weft_gaussian_key(graph, PARAM(B, T, H, 2 * D)).y)
GRADIENTS(row_squares, 4.0 * ROWS_E, 8.0 * ROWS_E,
          weft_row_squares(graph, PARAM(B, T, H, 2 * D), 0))
GRADIENTS(overlap, 6.0 * ROWS_E, 10.0 * ROWS_E, weft_overlap_scale(graph, PARAM(B, T, H, 2 * D)).y)
GRADIENTS(gate, 4.0 * ROWS_E, 6.0 * ROWS_E,
          weft_gate_mix(graph, PARAM(B, T, H, D), PARAM(B, T, H), 0.1))
/* dy is read twice: for tokens, for positions. */
GRADIENTS(embed, 4.0 * ROWS_E, 4.0 * ROWS_E + 2.0 * V * E,
          weft_embed(graph, PARAM(V, E), TOKENS(B, T), PARAM(T, E), NULL))
GRADIENTS(contrast, 2.0 * 8 * B * 384, 4.0 * 8 * B * 384,
          weft_infonce(graph, PARAM(8 * B, 384), 0, 0.07, 1))

/* One result that nobody wants is next to nothing; one that is kept, a kernel. */
static double build_nothing(int kept) {
    weft_tensor *y = weft_scale(graph, INPUT(8), 1);
    if (kept) weft_keep(y);
    return 0;
}

static double build_norm(int times) {
    weft_tensor *y[16] = {NULL};
    for (int i = 0; i < times; i++) {
        weft_tensor *x = PARAM(B * T, E), *r = PARAM(B * T, E);
        weft_normed n = weft_norm(graph, x, r, PARAM(E), PARAM(E), WEFT_LAYERNORM, 0);
        y[2 * i] = n.y;
        y[2 * i + 1] = n.s;
    }
    differentiate(2 * times, y);
    return 8.0 * ROWS_E;
}

static double build_heads(int times) {
    weft_tensor *x = INPUT(B * T, F), *c = INPUT(B * T, L);
    weft_tensor *scale = new_tensor(WEFT_ROLE_INPUT, WEFT_F32, SHAPE(8));
    for (int i = 0; i < times; i++) {
        weft_keep(weft_head_pool(graph, x, scale, L));
        weft_keep(weft_head_spread(graph, c, scale, F));
    }
    return 4.0 * ROWS_F + 4.0 * B * T * L;
}

static double build_gathers(int times, int64_t width) {
    weft_tensor *y[16] = {NULL}, *index = TOKENS(B, T, KEPT);
    weft_tensor *weight = new_tensor(WEFT_ROLE_INPUT, WEFT_F32, SHAPE(B, T, KEPT));
    for (int i = 0; i < times; i++)
        y[i] = weft_keep(weft_route_gather(graph, PARAM(B, T, width), index, weight));
    differentiate(times, y);
    return 4.0 * B * T * (double)width + 8.0 * B * T * KEPT;
}

AS(gather, build_gathers(times, F))
AS(narrow_gather, build_gathers(times, E))

/* `heads` key heads of width `width`. */
static double build_routes(int times, int64_t heads, int64_t width) {
    weft_score score = {.q = INPUT(B, T, H, width), .k = INPUT(B, T, heads, width)};
    weft_tensor *lse = new_tensor(WEFT_ROLE_INPUT, WEFT_F32, SHAPE(B, H, T));
    score.scale_value = 0.1;
    score.causal = true;
    route_flops = 1.0 * N * (double)(H * width * T);
    for (int i = 0; i < times; i++)
        weft_keep(weft_route_topk(graph, &score, lse, KEPT, false, false).weight);
    return 2.0 * B * T * (double)((H + heads) * width) + 8.0 * B * T * KEPT;
}

AS(topk, build_routes(times, H, D))
AS(shared_topk, build_routes(times, 1, 2 * D))

/* With the logits, which a product writes and reads, and three or one of them. */
static double build_losses(bool gradients) {
    weft_tensor *x = gradients ? PARAM(B * T, E) : INPUT(B * T, E);
    weft_tensor *w = gradients ? PARAM(V, E) : INPUT(V, E);
    weft_losses c = weft_cross_entropy(graph, x, w, TOKENS(B * T), NULL, 0, true, 0);
    weft_keep(c.ce);
    if (gradients && c.ce) weft_graph_backward(graph, c.ce, NULL);
    return (gradients ? 10.0 : 4.0) * B * T * V;
}

AS(entropy, build_losses(false))
AS(entropy_back, build_losses(true))

static int64_t list_slots(weft_adam_slot *slot, weft_tensor **grads) {
    int64_t count = 0;
    for (int i = 0; i < WEIGHTS; i++) {
        int64_t shape[] = {i == 0 ? V : i % 4 == 1 ? 3 * E : i % 4 == 2 ? E : 4 * E, E};
        weft_role state = WEFT_ROLE_STATE;
        slot[i] = (weft_adam_slot){.param = new_tensor(state, WEFT_F32, 2, shape),
                                   .grad = new_tensor(WEFT_ROLE_INPUT, WEFT_BF16, 2, shape),
                                   .m = new_tensor(state, WEFT_F32, 2, shape),
                                   .v = new_tensor(state, WEFT_F32, 2, shape),
                                   .copy = new_tensor(state, WEFT_BF16, 2, shape)};
        grads[i] = slot[i].grad;
        count += shape[0] * E;
    }
    return count;
}

static double build_step(bool update) {
    weft_adam_slot slot[WEIGHTS];
    weft_tensor *grads[WEIGHTS];
    weft_adam_options options = {
        .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8, .weight_decay = 0.1, .clip = 1};
    double count = (double)list_slots(slot, grads);
    weft_tensor *lr = new_tensor(WEFT_ROLE_INPUT, WEFT_F32, 0, NULL);
    weft_tensor *state = new_tensor(WEFT_ROLE_STATE, WEFT_F32, SHAPE(WEFT_ADAM_STATE));
    weft_tensor *norm = weft_global_norm(graph, grads, WEIGHTS);
    weft_tensor *control = weft_adam_control(graph, norm, lr, state, &options);
    if (update) weft_adamw(graph, control, slot, WEIGHTS);
    return (update ? 30.0 : 2.0) * count; /* the norm's with the update's */
}

AS(grad_norm, build_step(false))
AS(adamw, build_step(true))

static const struct {
    const char *name;
    int times;
    double (*build)(int times);
    bool back;    /* a second row: its gradients */
    double flops; /* of matrix products */
} rows[] = {
    {"copy [N, F]", 8, build_copy, false, 0},
    {"add [N, E]", 8, build_add, false, 0},
    {"gelu_back [N, F]", 8, build_gelu_back, false, 0},
    {"silu_mul [N, F]", 3, build_silu, true, 0},
    {"gaussian", 4, build_gaussian, true, 0},
    {"row_squares", 4, build_row_squares, true, 0},
    {"overlap", 4, build_overlap, true, 0},
    {"gate_mix", 4, build_gate, true, 0},
    {"rope", 8, build_rope, false, 0},
    {"dropout [N, E]", 8, build_dropout, false, 0},
    {"norm with residual", 4, build_norm, true, 0},
    {"embed", 4, build_embed, true, 0},
    {"head_pool, head_spread", 4, build_heads, false, 0},
    {"time_mean [B, T, E]", 8, build_means, false, 0},
    {"running_mean [B, T, 64]", 8, build_running_means, false, 0},
    {"sum_squares [N, F]", 8, build_squares, false, 0},
    {"route_gather [B, T, F]", 3, build_gather, true, 0},
    {"route_gather [B, T, E]", 8, build_narrow_gather, true, 0},
    {"route_topk", 4, build_topk, false, 0},
    {"route_topk, one key head", 4, build_shared_topk, false, 0},
    {"infonce", 4, build_contrast, true, 0},
    {"matmul [B, F] [F, E]", 8, build_few, false, 0},
    {"matmul [B, E] [F, E]^T", 8, build_few_transposed, false, 0},
    {"cross_entropy", 1, build_entropy, false, 2.0 * ROWS_E *V},
    {"cross_entropy, gradients", 1, build_entropy_back, false, 6.0 * ROWS_E *V},
    {"global_norm", 1, build_grad_norm, false, 0},
    {"global_norm and adamw", 1, build_adamw, false, 0},
};

/* Seconds of the graph that is built; negative: it did not run. */
static double time_built(double (*build)(int times), int times, double *bytes) {
    weft_graph_create(&graph);
    *bytes = build(times);
    double seconds = weft_graph_status(graph) == WEFT_OK ? time_graph() : -1;
    weft_graph_destroy(graph);
    return seconds;
}

/* The same of row i; where it did not run, the reason is printed. */
static double time_row(int i, bool gradients, double *bytes) {
    with_gradients = gradients;
    route_flops = 0;
    double seconds = time_built(rows[i].build, rows[i].times, bytes);
    if (seconds < 0) printf("%-24s %s\n", rows[i].name, weft_error_message());
    return seconds;
}

static void print_row(int i, const char *suffix, double seconds, double bytes) {
    char name[64];
    snprintf(name, sizeof name, "%s%s", rows[i].name, suffix);
    seconds /= rows[i].times;
    double rate = bytes / seconds;
    if (copy_rate == 0) copy_rate = rate;
    printf("%-28s %9.4f ms %8.1f MB %6.0f GB/s %5.0f%% of copy", name, 1e3 * seconds, 1e-6 * bytes,
           1e-9 * rate, 100 * rate / copy_rate);
    double flops = rows[i].flops + route_flops;
    if (flops > 0) printf("  %4.0f TFLOP/s", 1e-12 * flops / seconds);
    printf("\n");
    fflush(stdout);
}

static void measure_row(int i) {
    double bytes, without = time_row(i, false, &bytes);
    if (without < 0) return;
    print_row(i, "", without - empty_time, bytes);
    if (!rows[i].back) return;
    double with = time_row(i, true, &bytes);
    if (with >= 0) print_row(i, ", back", with - without, bytes);
}

static int print_limits(void) {
    enum { PRODUCTS = 10, COPIES = 4 };
    double none, flops, bytes, empty = time_built(build_nothing, 1, &none);
    double products = time_built(build_products, PRODUCTS, &flops);
    double copies = time_built(build_copies, COPIES, &bytes);
    if (empty < 0 || products < 0 || copies < 0) {
        fprintf(stderr, "%s\n", weft_error_message());
        return 1;
    }
    printf("GPU\t%s\n", weft_cuda_device_name());
    printf("matrix TFLOP/s\t%.1f\n", 1e-12 * PRODUCTS * flops / (products - empty));
    printf("copy TB/s\t%.3f\n", 1e-12 * COPIES * bytes / (copies - empty));
    return 0;
}

int main(int argc, char **argv) {
    bool limits = argc == 2 && strcmp(argv[1], "limits") == 0;
    int status = 0;
    double none;
    if (!weft_cuda_backend()) {
        printf("%s\n", weft_error_message());
        return limits ? NO_GPU : 0;
    }
    if (argc > 2) T = atoi(argv[2]);
    if (argc > 3) KEPT = atoi(argv[3]);
    if (argc > 4) D = atoi(argv[4]);
    if (T < 1 || T > N || KEPT < 1 || KEPT > 64 || D < 1 || D > L ||
        weft_pool_create(1, &pool) != WEFT_OK)
        return 2;
    B = N / T;
    fill_inputs(limits ? COPIED : ROWS_F);
    if (limits) {
        status = print_limits();
    } else {
        empty_time = time_built(build_nothing, 0, &none);
        printf("%s; an empty run takes %.1f us\n", weft_cuda_device_name(), 1e6 * empty_time);
        for (int i = 0; i < (int)(sizeof rows / sizeof *rows); i++)
            if (i == 0 || argc < 2 || strstr(rows[i].name, argv[1])) measure_row(i);
    }
    weft_pool_destroy(pool);
    free(noise);
    free(tokens);
    free(routes);
    return status;
}
