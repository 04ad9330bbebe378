/* Products with a fused epilogue (src/cuda/products/gemm_fused.cuh) alone: what they compute, and how fast.
 *
 *     products_cuda            both
 *     products_cuda check      only the first, quietly; with WEFT_QUICK, of the small forms
 *     products_cuda time NAME  only the second, of the forms whose name holds NAME
 *
 * A check takes some rows of each result, made again by a loop per value, the sums' bands from the
 * result itself, and three more runs, which must have the same bits. Times stand beside the library's
 * for the same, with the passes over memory that go with it there; some of those are simpler here than
 * the kernels that training uses. */
#include "check_cuda.cuh"
#include "cuda/functions.cuh"
#include "cuda/products/gemm.cuh"
#include "cuda/products/gemm_fused.cuh"

#include <string.h>

struct form {
    const char *name;
    int m, n;
    int k[3]; /* up to the first 0 */
    fused_epilogue epilogue;
    int what; /* of these */
    float factor[3];
};

enum {
    NT = 1, /* b of the last segment, and with SwiGLU of both, as [n, k]; else as [k, n] */
    ADDEND = 2,
    SUMS = 4, /* of columns */
    KEEP = 8, /* gate and up */
    TIMED = 16
};

static bool has(const form &f, int flag) {
    return (f.what & flag) != 0;
}

enum { SPARE = 64, CHECKED_ROWS = 300 };

__device__ static inline float draw(uint64_t i, uint32_t seed) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull + seed * 0xd1342543de82ef95ull;
    x ^= x >> 32, x *= 0xd6e8feb86659fd93ull, x ^= x >> 29, x *= 0xd6e8feb86659fd93ull;
    float sum = 0;
    for (int k = 0; k < 4; k++)
        sum += (float)((x >> (16 * k)) & 0xffff) / 65536.0f - 0.5f;
    return sum * 1.7320508f;
}

static __global__ void fill(bf16 *to, int64_t count, float spread, uint32_t seed) {
    for (int64_t i = thread_index(); i < count; i += thread_count())
        to[i] = from_float<bf16>(spread * draw((uint64_t)i, seed));
}

static bf16 *make(int64_t count, float spread, uint32_t seed) {
    bf16 *data;
    CUDA(cudaMalloc(&data, (size_t)count * 2 + SPARE));
    fill<<<1024, 256>>>(data, count, spread, seed);
    return data;
}

struct problem {
    form f;
    fused_product p = {};
    std::vector<void *> held, results;
    std::vector<int64_t> bytes;
    bf16 *scratch[2], *workspace; /* for the library: results before a pass */

    template <typename T> T *result(int64_t count) {
        void *data;
        CUDA(cudaMalloc(&data, (size_t)count * sizeof(T)));
        results.push_back(data);
        bytes.push_back(count * (int64_t)sizeof(T));
        return (T *)data;
    }

    bf16 *input(int64_t count, float spread, uint32_t seed) {
        held.push_back(make(count, spread, seed));
        return (bf16 *)held.back();
    }

    void poison() {
        for (size_t i = 0; i < results.size(); i++)
            CUDA(cudaMemset(results[i], 0xff, (size_t)bytes[i]));
    }
};

static void set_up(problem &x, const form &f) {
    x.f = f;
    fused_product &p = x.p;
    int64_t values = (int64_t)f.m * f.n;
    bool two = f.epilogue == FUSED_SILU_MUL;
    p.m = f.m, p.n = f.n, p.epilogue = f.epilogue;
    int total = two ? f.k[0] : f.k[0] + f.k[1] + f.k[2];
    for (int s = 0; s < 3 && f.k[s]; s++) {
        fused_segment &g = p.segment[p.segments++];
        g.k = f.k[s], g.tb = has(f, NT) && (two || s == 2 || !f.k[s + 1]);
        g.factor = f.factor[s] != 0 ? f.factor[s] : 1;
        g.a = two && s ? p.segment[0].a : x.input((int64_t)f.m * f.k[s], 1, 1 + (uint32_t)s);
        g.b = x.input((int64_t)f.n * f.k[s], 1 / sqrtf((float)total), 11 + (uint32_t)s);
    }
    if (f.epilogue == FUSED_GELU_BACK || has(f, ADDEND)) p.in = x.input(values, 1, 31);
    for (int i = 0; i < (has(f, KEEP) ? 3 : 1); i++)
        p.out[i] = x.result<bf16>(values);
    if (has(f, SUMS)) p.sums = x.result<float>(fused_bands(f.m) * f.n);
}

static void tear_down(problem &x) {
    for (void *data : x.held)
        CUDA(cudaFree(data));
    for (void *data : x.results)
        CUDA(cudaFree(data));
}

/* How far results are from what they should be, in units of what is allowed. */
struct verdict {
    float worst;
    unsigned long long bad;
};

__device__ static void judge(verdict *v, float is, float should, float room) {
    float far = fabsf(is - should) / (0.012f * fabsf(should) + room);
    if (!(far <= 1.0f)) {
        atomicAdd(&v->bad, 1ull);
        far = isfinite(far) ? far : 1e30f;
    }
    atomicMax((int *)&v->worst, __float_as_int(far));
}

/* gelu's derivative by the library's tanh: the kernels' own is not what they are held to. */
__device__ static float exact_gelu_slope(float x) {
    float square = x * x, t = tanhf(0.7978845608028654f * (x + 0.044715f * x * square));
    return 0.5f * (1.0f + t) +
           0.5f * x * (1.0f - t * t) * 0.7978845608028654f * (1.0f + 0.134145f * square);
}

__device__ static float sum_product(const fused_product &p, int i, int64_t row, int64_t column) {
    const fused_segment &s = p.segment[i];
    float sum = 0;
    for (int64_t k = 0; k < s.k; k++)
        sum += to_float(s.a[row * s.k + k]) *
               to_float(s.tb ? s.b[column * s.k + k] : s.b[k * p.n + column]);
    return sum * s.factor;
}

static __device__ float round_bf16(float x) {
    return to_float(from_float<bf16>(x));
}

/* A thread a value of the rows 0, step, 2 step, ... and the last. */
static __global__ void check_rows(fused_product p, int64_t rows, int64_t step, verdict *v) {
    for (int64_t i = thread_index(); i < rows * p.n; i += thread_count()) {
        int64_t row = min_i64(i / p.n * step, p.m - 1), column = i % p.n, at = row * p.n + column;
        auto value = [&](const bf16 *of) { return to_float(of[at]); };
        if (p.epilogue == FUSED_SILU_MUL) {
            float gate = round_bf16(sum_product(p, 0, row, column));
            float up = round_bf16(sum_product(p, 1, row, column));
            judge(v, value(p.out[0]), gate * up / (1 + expf(-gate)), 8e-3f);
            if (p.out[1]) judge(v, value(p.out[1]), gate, 2e-3f);
            if (p.out[2]) judge(v, value(p.out[2]), up, 2e-3f);
            continue;
        }
        float c = 0, y = value(p.out[0]);
        for (int s = 0; s < p.segments; s++)
            c += sum_product(p, s, row, column);
        if (p.epilogue == FUSED_PLAIN)
            judge(v, y, c + (p.in ? value(p.in) : 0), 2e-3f + (p.in ? fabsf(c) / 128 : 0));
        c = round_bf16(c);
        if (p.epilogue == FUSED_GELU_BACK) judge(v, y, c * exact_gelu_slope(value(p.in)), 2e-3f);
    }
}

static __global__ void check_sums(fused_product p, verdict *v) {
    const int64_t band_rows = 256, bands = ceil_div(p.m, band_rows);
    for (int64_t i = thread_index(); i < bands * p.n; i += thread_count()) {
        int64_t column = i % p.n, first = i / p.n * band_rows;
        double sum = 0;
        for (int64_t r = first; r < min_i64(first + band_rows, p.m); r++)
            sum += (double)to_float(p.out[0][r * p.n + column]);
        judge(v, p.sums[i], (float)sum, 0.1f);
    }
}

static __global__ void count_differences(const uint32_t *a, const uint32_t *b, int64_t words,
                                         unsigned long long *count) {
    for (int64_t i = thread_index(); i < words; i += thread_count())
        if (a[i] != b[i]) atomicAdd(count, 1ull);
}

static void must(weft_status status) {
    if (status == WEFT_OK) return;
    fprintf(stderr, "products_cuda: %s\n", weft_error_message());
    exit(1);
}

/* Three more runs against copies of the first one's results. */
static unsigned long long check_bits(problem &x, unsigned long long *count) {
    std::vector<void *> copies(x.results.size());
    CUDA(cudaMemset(count, 0, sizeof *count));
    for (size_t i = 0; i < copies.size(); i++) {
        CUDA(cudaMalloc(&copies[i], (size_t)x.bytes[i]));
        CUDA(cudaMemcpy(copies[i], x.results[i], (size_t)x.bytes[i], cudaMemcpyDeviceToDevice));
    }
    for (int again = 0; again < 3; again++) {
        x.poison();
        must(fused_launch(0, &x.p));
        for (size_t i = 0; i < copies.size(); i++)
            count_differences<<<1024, 256>>>((const uint32_t *)copies[i],
                                             (const uint32_t *)x.results[i], x.bytes[i] / 4, count);
    }
    unsigned long long differing;
    CUDA(cudaMemcpy(&differing, count, sizeof differing, cudaMemcpyDeviceToHost));
    for (void *copy : copies)
        CUDA(cudaFree(copy));
    return differing;
}

static int check(const form &f, bool quiet) {
    problem x;
    struct {
        verdict values, sums;
        unsigned long long differing;
    } host = {}, *device;
    set_up(x, f);
    x.poison();
    if (!fused_can(&x.p)) {
        printf("skipped: %s cannot be fused here\n", f.name);
        tear_down(x);
        return 0;
    }
    CUDA(cudaMalloc(&device, sizeof host));
    CUDA(cudaMemset(device, 0, sizeof host));
    must(fused_launch(0, &x.p));
    int64_t rows = std::min(f.m, (int)CHECKED_ROWS), step = std::max<int64_t>(1, f.m / rows);
    if (step > 1) step |= 1; /* every place in a tile */
    rows = ceil_div(f.m, step) + 1;
    check_rows<<<2048, 256>>>(x.p, rows, step, &device->values);
    if (has(f, SUMS)) check_sums<<<1024, 256>>>(x.p, &device->sums);
    CUDA(cudaDeviceSynchronize());
    CUDA(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
    unsigned long long differing = check_bits(x, &device->differing);
    bool bad = host.values.bad || host.sums.bad || differing;
    if (bad || !quiet)
        printf("%-5s %-26s [%d, %d] < %d+%d+%d %s: off by %.2f of what is allowed, %llu bad; sums "
               "%.2f, "
               "%llu bad; bits that differ: %llu\n",
               bad ? "BAD" : "ok", f.name, f.m, f.n, f.k[0], f.k[1], f.k[2],
               has(f, NT) ? "nt" : "nn", host.values.worst, host.values.bad, host.sums.worst,
               host.sums.bad, differing);
    fflush(stdout);
    CUDA(cudaFree(device));
    tear_down(x);
    return bad;
}

/* The pass that the library's products need behind them, over c, or gate and up; without column sums. */
static __global__ void finish_library(fused_product p, const bf16 *c, const bf16 *up) {
    int64_t at = thread_index() * VECTOR;
    if (at >= p.m * p.n) return;
    float v[VECTOR], x[VECTOR];
    load_vector(c + at, v);
    load_vector((up ? up : p.in) + at, x);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        v[i] *= up ? sigmoid(v[i]) * x[i] : gelu_slope(x[i]);
    store_vector(p.out[0] + at, v);
}

/* The same by the library. */
static void run_product(problem &x, int s, bf16 *c) {
    const fused_product &p = x.p;
    const fused_segment &g = p.segment[s];
    cuda_gemm q = {};
    q.batch = 1, q.m = p.m, q.n = p.n, q.k = g.k, q.tb = g.tb, q.alpha = g.factor;
    q.a = cuda_gemm_matrix{(void *)g.a, g.k, 0, true};
    q.b = cuda_gemm_matrix{(void *)g.b, g.tb ? g.k : p.n, 0, true};
    q.c = q.addend = cuda_gemm_matrix{c, p.n, 0, true};
    q.addend.data = s == 0 && p.epilogue == FUSED_PLAIN ? (void *)p.in : NULL;
    q.accumulate = s > 0 && p.epilogue != FUSED_SILU_MUL;
    must(gemm_launch(0, q, x.workspace));
}

static void run_library(problem &x) {
    const fused_product &p = x.p;
    bool plain = p.epilogue == FUSED_PLAIN, two = p.epilogue == FUSED_SILU_MUL;
    for (int s = 0; s < p.segments; s++)
        run_product(x, s, plain ? p.out[0] : x.scratch[two && s]);
    if (!plain)
        finish_library<<<(unsigned)ceil_div(p.m * p.n / VECTOR, 256), 256>>>(
            p, x.scratch[0], two ? x.scratch[1] : NULL);
}

static void print_times(const form &f) {
    problem x;
    set_up(x, f);
    for (bf16 *&scratch : x.scratch)
        scratch = x.input(x.p.m * x.p.n, 0, 0);
    x.workspace = x.input(32 << 20, 0, 0);
    if (fused_can(&x.p)) {
        double flops = 2.0 * f.m * f.n * (f.k[0] + f.k[1] + f.k[2]);
        double library = measure(1, 7, 10, [&] { run_library(x); });
        double ours = measure(1, 7, 10, [&] { must(fused_launch(0, &x.p)); });
        printf("%-26s [%d, %d] < %d+%d+%d %s  ours %.4f ms %4.0f TFLOP/s  library %.4f ms  ratio "
               "%.2f\n",
               f.name, f.m, f.n, f.k[0], f.k[1], f.k[2], has(f, NT) ? "nt" : "nn", ours,
               flops / ours / 1e9, library, library / ours);
        fflush(stdout);
    }
    tear_down(x);
}

/* name; m n; k; epilogue; what; factors */
static const form forms[] = {
    {"odd plain", 1000, 136, {72}, FUSED_PLAIN, NT, {}},
    {"odd plain", 1000, 136, {72}, FUSED_PLAIN, ADDEND, {0.5f}},
    {"odd gelu back", 1000, 1032, {200}, FUSED_GELU_BACK, SUMS, {}},
    {"odd three", 1000, 392, {200, 72, 8}, FUSED_PLAIN, 0, {2, -0.5f, 3}},
    {"odd three", 1000, 392, {200, 72, 8}, FUSED_GELU_BACK, NT | SUMS, {2, -0.5f, 3}},
    {"odd silu", 1000, 136, {200, 200}, FUSED_SILU_MUL, NT | KEEP, {}},
    {"odd silu", 1000, 200, {72, 72}, FUSED_SILU_MUL, 0, {}},
    {"gelu back", 32768, 3072, {768}, FUSED_GELU_BACK, SUMS | TIMED, {}},
    {"gelu back two", 32768, 3072, {768, 64}, FUSED_GELU_BACK, SUMS | TIMED, {1, 2}},
    {"gelu back two", 32768, 3072, {768, 128}, FUSED_GELU_BACK, NT | SUMS | TIMED, {1, 2}},
    {"gelu back two deep", 32768, 3072, {768, 768}, FUSED_GELU_BACK, SUMS | TIMED, {}},
    {"plain 768 three", 32768, 768, {128, 128, 768}, FUSED_PLAIN, TIMED, {}},
    {"plain 1600 three", 32768, 1600, {128, 128, 1600}, FUSED_PLAIN, TIMED, {}},
    {"plain 768 swiglu back", 32768, 768, {3072, 3072}, FUSED_PLAIN, TIMED, {}},
    {"plain 128 three", 32768, 128, {64, 768, 64}, FUSED_PLAIN, ADDEND | TIMED, {}},
    {"silu", 32768, 3072, {768, 768}, FUSED_SILU_MUL, NT | KEEP | TIMED, {}},
};

static int check_all(bool quiet) {
    const char *quick = getenv("WEFT_QUICK");
    int bad = 0, count = 0;
    for (const form &f : forms) {
        if (has(f, TIMED) && quiet && quick && *quick) continue;
        bad += check(f, quiet);
        count++;
    }
    printf("fused products: %d forms, %d wrong\n", count, bad);
    return bad;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "both";
    if (weft_cuda_device_open() != WEFT_OK) {
        printf("skipped: fused products: %s\n", weft_error_message());
        return 0;
    }
    if (!weft_cuda_device()->wgmma) {
        printf("skipped: fused products: this build has no code for 9.0a, or the GPU is another\n");
        return 0;
    }
    int bad = strcmp(what, "time") == 0 ? 0 : check_all(strcmp(what, "check") == 0);
    if (strcmp(what, "check") != 0)
        for (const form &f : forms)
            if (has(f, TIMED) && (argc < 3 || strstr(f.name, argv[2]))) print_times(f);
    return bad != 0;
}
