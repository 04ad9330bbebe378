/* Products of few rows (src/cuda/products/gemm.cuh) alone, as generation runs them: what they compute, and how
 * much of the memory's rate they reach.
 *
 *     rows_cuda          both
 *     rows_cuda check    only the first
 *     rows_cuda time     only the second
 *
 * A check takes every value, made again by a loop in double, and the bits of each row, which must be the
 * same with any number of rows. The first wrong value is printed. A time is of a captured graph whose
 * products follow each other through weights that no cache holds; the rate is that of the weights' bytes,
 * beside that of a plain read. */
#include "check_cuda.cuh"
#include "cuda/products/gemm.cuh"
#include "cuda/products/streamed.cuh"

extern "C" {
#include "cuda/backend.h"
}

#include <string.h>

enum { MOST_ROWS = 256, WEIGHT_BYTES = 512 << 20 };

__device__ static inline float draw(uint64_t i, uint32_t seed) {
    uint64_t x = (i + 1) * 0x9e3779b97f4a7c15ull + seed * 0xd1342543de82ef95ull;
    x ^= x >> 32, x *= 0xd6e8feb86659fd93ull, x ^= x >> 29, x *= 0xd6e8feb86659fd93ull;
    return (float)(x >> 40) / 8388608.0f - 1;
}

static __global__ void fill(bf16 *to, int64_t count, float spread, uint32_t seed) {
    for (int64_t i = thread_index(); i < count; i += thread_count())
        to[i] = from_float<bf16>(spread * draw((uint64_t)i, seed));
}

static bf16 *make(int64_t count, float spread, uint32_t seed) {
    bf16 *data;
    CUDA(cudaMalloc(&data, (size_t)count * sizeof *data));
    fill<<<1024, 256>>>(data, count, spread, seed);
    return data;
}

/* What the check found: how many, and the first place. */
struct found {
    unsigned long long wrong, first;
};

__device__ static inline void note(found *f, int64_t at) {
    atomicAdd(&f->wrong, 1ull);
    atomicMin(&f->first, (unsigned long long)at);
}

/* With a norm behind the product the rows of a have large means. */
enum norm_form { NO_NORM, LAYER_NORM, RMS_NORM };
static const float EPS = 1e-5f;

struct problem {
    int m, n, k;
    bool gelu, gated;
    int head;  /* not 0: a's heads of so many columns have gates */
    int group; /* not 0: softplus of the second half of so many columns */
    norm_form norm;
    bf16 *a, *b, *up, *addend, *c, *gates;
    float *bias, *sums, *up_sums; /* of b's rows, of up's */
    float2 *moments, *made;       /* of a; of c, by the product */
    double2 *stats;               /* mean and rstd of a's rows */
};

__host__ __device__ static inline int tiles_of(int columns) {
    return (columns + 63) / 64;
}

static __global__ void move_rows(bf16 *a, int64_t count, int k) {
    static const float means[] = {0, 8, -60};
    for (int64_t i = thread_index(); i < count; i += thread_count())
        a[i] = from_float<bf16>(to_float(a[i]) + means[i / k % 3]);
}

static __global__ void sum_rows(const bf16 *b, int n, int k, float *sums) {
    for (int64_t i = thread_index(); i < n; i += thread_count()) {
        double sum = 0;
        for (int j = 0; j < k; j++)
            sum += (double)to_float(b[i * k + j]);
        sums[i] = (float)sum;
    }
}

/* Mean and sum of squares around it, of columns first to last - 1. */
static __device__ double2 moments_of(const bf16 *row, int first, int last) {
    double2 v = {0, 0};
    for (int i = first; i < last; i++)
        v.x += (double)to_float(row[i]) / (last - first);
    for (int i = first; i < last; i++)
        v.y += ((double)to_float(row[i]) - v.x) * ((double)to_float(row[i]) - v.x);
    return v;
}

static __global__ void measure_rows(problem p) {
    for (int64_t i = thread_index(); i < MOST_ROWS * tiles_of(p.k); i += thread_count()) {
        int64_t row = i / tiles_of(p.k);
        int tile = (int)(i % tiles_of(p.k));
        double2 v = moments_of(p.a + row * p.k, tile * 64, min(p.k, tile * 64 + 64));
        p.moments[i] = make_float2((float)v.x, (float)v.y);
        if (tile != 0) continue;
        v = moments_of(p.a + row * p.k, 0, p.k);
        if (p.norm == RMS_NORM) v.y += p.k * v.x * v.x, v.x = 0;
        p.stats[row] = make_double2(v.x, 1 / sqrt(v.y / p.k + (double)EPS));
    }
}

/* The moments that the product made, of c as it was written. */
static __global__ void check_moments(problem p, found *f) {
    for (int64_t i = thread_index(); i < (int64_t)p.m * tiles_of(p.n); i += thread_count()) {
        int64_t row = i / tiles_of(p.n);
        int tile = (int)(i % tiles_of(p.n));
        double2 v = moments_of(p.c + row * p.n, tile * 64, min(p.n, tile * 64 + 64));
        double d = (double)p.made[i].x - v.x;
        if (!(fabs(d) <= 1e-5 * (1 + fabs(v.x))) ||
            !(fabs((double)p.made[i].y - v.y) <= 1e-4 * v.y + 1e-6))
            note(f, row * p.n + tile * 64);
    }
}

static const float GATE_ALPHA = 0.3f;

static __device__ double dot_gated(const problem &p, int64_t row, const bf16 *b) {
    double sum = 0;
    for (int i = 0; i < p.k; i++) {
        double gate = (double)to_float(p.gates[row * (p.k / p.head) + i / p.head]);
        double factor = 1 - (double)GATE_ALPHA + (double)GATE_ALPHA / (1 + exp(-gate));
        float a = (float)(factor * (double)to_float(p.a[row * p.k + i]));
        sum += (double)to_float(from_float<bf16>(a)) * (double)to_float(b[i]);
    }
    return sum;
}

static __device__ double dot(const bf16 *a, const bf16 *b, int k, double2 norm) {
    double sum = 0;
    for (int i = 0; i < k; i++)
        sum += ((double)to_float(a[i]) - norm.x) * (double)to_float(b[i]);
    return sum * norm.y;
}

static __global__ void check_values(problem p, found *f) {
    for (int64_t i = thread_index(); i < (int64_t)p.m * p.n; i += thread_count()) {
        int64_t row = i / p.n, column = i % p.n;
        const bf16 *a = p.a + row * p.k;
        double2 norm = p.norm ? p.stats[row] : make_double2(0, 1);
        const bf16 *b = p.b + column * p.k;
        double want = p.head ? dot_gated(p, row, b) : dot(a, b, p.k, norm);
        if (p.gated) {
            want = want / (1 + exp(-want)) * dot(a, p.up + column * p.k, p.k, norm);
        } else {
            want += (double)p.bias[column] + (double)to_float(p.addend[i]);
            if (p.group && column % p.group >= p.group / 2) want = log(1 + exp(want));
            if (p.gelu)
                want =
                    want / (1 + exp(-1.5957691216057308 * (want + 0.044715 * want * want * want)));
        }
        double got = (double)to_float(p.c[i]);
        if (!(fabs(got - want) <= 4e-3 + 1.2e-2 * fabs(want))) note(f, i);
    }
}

static __global__ void check_bits(const uint16_t *a, const uint16_t *b, int64_t count, found *f) {
    for (int64_t i = thread_index(); i < count; i += thread_count())
        if (a[i] != b[i]) note(f, i);
}

static cuda_gemm describe(const problem &p, bf16 *a, bf16 *b, int m) {
    cuda_gemm g = {};
    g.batch = 1, g.m = m, g.n = p.n, g.k = p.k, g.tb = true, g.alpha = 1;
    g.gelu = p.gelu;
    g.a = cuda_gemm_matrix{a, p.k, 0, true};
    g.b = cuda_gemm_matrix{b, p.k, 0, true};
    g.c = cuda_gemm_matrix{p.c, p.n, 0, true};
    g.addend = cuda_gemm_matrix{p.addend, p.n, 0, true};
    g.bias = cuda_gemm_matrix{p.bias, p.n, 0, false};
    if (p.norm) g.norm = gemm_norm{p.moments, p.norm == LAYER_NORM ? p.sums : NULL, EPS};
    if (p.norm && !p.gated) g.moments = p.made;
    if (p.head) g.gate = gemm_gate{any_tensor{p.gates, true}, p.k / p.head, p.head, GATE_ALPHA};
    g.group = p.group;
    return g;
}

static void run(cudaStream_t stream, const problem &p, bf16 *b, int m, bool follows) {
    cuda_gemm g = describe(p, p.a, b, m);
    g.follows = g.steady = follows;
    if (p.gated) {
        g.bias.data = g.addend.data = g.c.data = NULL;
        cuda_gemm up = g;
        up.b.data = p.up;
        if (p.norm == LAYER_NORM) up.norm.sums = p.up_sums;
        streamed_launch_gated(stream, &g, &up, any_tensor{p.c, true});
    } else if (gemm_launch(stream, g, NULL) != WEFT_OK) {
        fprintf(stderr, "rows_cuda: %s\n", weft_error_message());
        exit(1);
    }
    CUDA(cudaGetLastError());
}

template <class T> static T *room(int64_t count) {
    T *data;
    CUDA(cudaMalloc(&data, (size_t)count * sizeof *data));
    return data;
}

static problem set_up(int n, int k, bool gelu, bool gated, norm_form norm) {
    problem p = {};
    p.m = MOST_ROWS, p.n = n, p.k = k, p.gelu = gelu, p.gated = gated, p.norm = norm;
    float spread = sqrtf(3.0f / (float)k);
    p.a = make((int64_t)MOST_ROWS * k, 1.7f, 1);
    p.b = make((int64_t)n * k, spread, 2);
    p.up = make((int64_t)n * k, spread, 3);
    p.addend = make((int64_t)MOST_ROWS * n, 1, 4);
    p.c = make((int64_t)MOST_ROWS * n, 1, 5);
    std::vector<float> bias((size_t)n);
    for (int i = 0; i < n; i++)
        bias[(size_t)i] = (float)(i % 7) / 7 - 0.5f;
    CUDA(cudaMalloc(&p.bias, (size_t)n * sizeof *p.bias));
    CUDA(cudaMemcpy(p.bias, bias.data(), (size_t)n * sizeof *p.bias, cudaMemcpyHostToDevice));
    p.gates = make((int64_t)MOST_ROWS * k, 3, 8);
    if (!norm) return p;
    p.sums = room<float>(n);
    p.up_sums = room<float>(n);
    sum_rows<<<64, 256>>>(p.up, n, k, p.up_sums);
    p.moments = room<float2>(MOST_ROWS * tiles_of(k));
    p.made = room<float2>(MOST_ROWS * tiles_of(n));
    p.stats = room<double2>(MOST_ROWS);
    move_rows<<<512, 256>>>(p.a, (int64_t)MOST_ROWS * k, k);
    sum_rows<<<64, 256>>>(p.b, n, k, p.sums);
    measure_rows<<<64, 256>>>(p);
    return p;
}

static void tear_down(problem &p) {
    for (void *data : {(void *)p.a, (void *)p.b, (void *)p.up, (void *)p.addend, (void *)p.c,
                       (void *)p.bias, (void *)p.sums, (void *)p.up_sums, (void *)p.gates,
                       (void *)p.moments, (void *)p.made, (void *)p.stats})
        CUDA(cudaFree(data));
}

static found take(found *device) {
    found host;
    CUDA(cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost));
    CUDA(cudaMemset(&device->wrong, 0, 8));
    CUDA(cudaMemset(&device->first, 255, 8));
    return host;
}

static int check_form(int n, int k, bool gelu, bool gated, norm_form norm = NO_NORM, int head = 0,
                      int group = 0) {
    problem p = set_up(n, k, gelu, gated, norm);
    p.head = head, p.group = group;
    found *device;
    bf16 *all = make((int64_t)MOST_ROWS * n, 1, 6);
    int wrong = 0;
    CUDA(cudaMalloc(&device, sizeof *device));
    take(device);
    for (int m : {256, 255, 129, 128, 100, 65, 64, 63, 33, 32, 17, 16, 9, 8, 5, 2, 1}) {
        p.m = m;
        CUDA(cudaMemset(p.c, 0xff, (size_t)MOST_ROWS * (size_t)n * 2));
        run(0, p, p.b, m, false);
        check_values<<<512, 256>>>(p, device);
        if (norm && !gated) check_moments<<<64, 256>>>(p, device);
        found values = take(device);
        if (m == MOST_ROWS)
            CUDA(cudaMemcpy(all, p.c, (size_t)m * (size_t)n * 2, cudaMemcpyDeviceToDevice));
        check_bits<<<512, 256>>>((uint16_t *)all, (uint16_t *)p.c, (int64_t)m * n, device);
        found bits = take(device);
        if (!values.wrong && !bits.wrong) continue;
        wrong++;
        printf("BAD  n %d, k %d, %d rows%s%s: %llu of %lld values wrong, the first in row %lld, "
               "column "
               "%lld; %llu "
               "differ in bits from those of 256 rows\n",
               n, k, m,
               gated   ? ", gated"
               : gelu  ? ", gelu"
               : head  ? ", gates of heads"
               : group ? ", softplus"
                       : "",
               norm == LAYER_NORM ? ", LayerNorm"
               : norm             ? ", RMSNorm"
                                  : "",
               values.wrong, (long long)m * n, values.wrong ? (long long)values.first / n : -1LL,
               values.wrong ? (long long)values.first % n : -1LL, bits.wrong);
    }
    CUDA(cudaFree(device));
    CUDA(cudaFree(all));
    tear_down(p);
    return wrong;
}

static int check_all() {
    int wrong = 0, forms = 0;
    for (int n : {8, 12, 40, 64, 72, 128, 200, 768, 1600, 6400})
        for (int k : {8, 40, 64, 128, 200, 1600})
            wrong += check_form(n, k, forms++ % 2, false);
    wrong += check_form(1600, 6400, false, false);
    forms++;
    if (weft_cuda_device()->wgmma)
        for (int n : {8, 36, 64, 200, 3072})
            for (int k : {8, 72, 768})
                wrong += check_form(n, k, false, true), forms++;
    if (weft_cuda_device()->wgmma)
        for (int n : {8, 12, 64, 72, 200, 768, 1600})
            for (int k : {8, 64, 200, 768, 1600, 2048}) {
                wrong += check_form(n, k, forms++ % 2, false, LAYER_NORM);
                wrong += check_form(n, k, forms++ % 2, n % 3 == 0, RMS_NORM);
            }
    if (weft_cuda_device()->wgmma)
        for (int n : {16, 64, 768, 1600})
            for (int k : {128, 768, 1536}) {
                wrong += check_form(n, k, false, false, NO_NORM, k % 3 ? 128 : 64), forms++;
                wrong += check_form(n, k, false, false, LAYER_NORM, 0, 16), forms++;
                wrong += check_form(n, k, false, true, LAYER_NORM), forms++;
            }
    printf("products of few rows: %d forms, %d wrong\n", forms, wrong);
    return wrong;
}

/* Microseconds of a product in a graph of many. */
static double time_product(const problem &p, bf16 *weights, int m) {
    int64_t size = (int64_t)p.n * p.k;
    int copies = (int)(WEIGHT_BYTES / 2 / size), launches = copies < 200 ? copies : 200;
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    cudaEvent_t from, to;
    CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < launches; i++)
        run(stream, p, weights + i % copies * size, m, true);
    CUDA(cudaStreamEndCapture(stream, &graph));
    CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CUDA(cudaEventCreate(&from));
    CUDA(cudaEventCreate(&to));
    float best = 1e9f;
    for (int i = 0; i < 4; i++) {
        float ms;
        CUDA(cudaEventRecord(from, stream));
        CUDA(cudaGraphLaunch(exec, stream));
        CUDA(cudaEventRecord(to, stream));
        CUDA(cudaEventSynchronize(to));
        CUDA(cudaEventElapsedTime(&ms, from, to));
        best = ms < best ? ms : best;
    }
    CUDA(cudaGraphExecDestroy(exec));
    CUDA(cudaGraphDestroy(graph));
    CUDA(cudaEventDestroy(from));
    CUDA(cudaEventDestroy(to));
    CUDA(cudaStreamDestroy(stream));
    return 1e3 * (double)best / launches;
}

/* With a norm behind the product, and the moments of what it makes, where one is asked for. */
static void time_all(norm_form norm, double rate) {
    static const int shapes[][2] = {{2304, 768},   {768, 768},   {3072, 768},  {768, 3072},
                                    {3072, 1024},  {1024, 1024}, {4096, 1024}, {1024, 4096},
                                    {4800, 1600},  {1600, 1600}, {6400, 1600}, {1600, 6400},
                                    {50304, 1600}, {3072, 2048}, {2048, 8192}, {16384, 2048}};
    static const int rows[] = {1, 8, 16, 32, 64, 128, 256};
    bf16 *weights = make(WEIGHT_BYTES / 2, 0.05f, 7);
    printf("a plain read: %.0f GB/s; us, and share of that%s\n%16s", 1e-9 * rate,
           norm ? "; with a norm and moments" : "", "n x k");
    for (int m : rows)
        printf("%14d", m);
    printf("\n");
    for (const auto &s : shapes) {
        if (norm && s[1] > STREAMED_NORM_WIDTH) continue;
        problem p = set_up(s[0], s[1], false, false, norm);
        printf("%8d x %5d", s[0], s[1]);
        for (int m : rows) {
            double us = time_product(p, weights, m);
            printf("%8.2f %4.0f%%", us, 2e-4 * s[0] * s[1] / us / (1e-12 * rate));
            fflush(stdout);
        }
        printf("\n");
        tear_down(p);
    }
    CUDA(cudaFree(weights));
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "both";
    if (weft_cuda_device_open() != WEFT_OK) {
        printf("skipped: products of few rows: %s\n", weft_error_message());
        return 0;
    }
    int wrong = strcmp(what, "time") == 0 ? 0 : check_all();
    if (strcmp(what, "check") != 0) {
        double rate = weft_cuda_read_rate();
        time_all(NO_NORM, rate);
        if (weft_cuda_device()->wgmma) time_all(LAYER_NORM, rate);
    }
    return wrong != 0;
}
