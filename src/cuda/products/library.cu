/* A product as a call of cuBLASLt. The library is column-major, so it makes cᵀ = op(b)ᵀ op(a)ᵀ: our rows
 * are its columns. Which of its algorithms does it, algorithms.cu knows.
 *
 * The library is opened by its name where the system finds it, else in the folder of the toolkit that
 * this build was made with. */
#include "cuda/products/library.cuh"

#include <algorithm>
#include <dlfcn.h>

#ifndef WEFT_CUDA_LIBRARIES
#define WEFT_CUDA_LIBRARIES "/usr/local/cuda/lib64"
#endif

#define TEXT_OF_(x) #x
#define TEXT_OF(x) TEXT_OF_(x)
#define LIBRARY "libcublasLt.so." TEXT_OF(CUBLAS_VER_MAJOR)

static weft_cuda_blas blas;
static char problem[512];
static bool is_open;

static void open_library(void) {
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) library = dlopen(WEFT_CUDA_LIBRARIES "/" LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(problem, sizeof problem,
                 "cuda: " LIBRARY " was not found; install cuBLAS, or say where it is with "
                 "LD_LIBRARY_PATH");
        return;
    }
#define FIND(name)                                                                                 \
    blas.name = (decltype(blas.name))dlsym(library, "cublasLt" #name);                             \
    if (!blas.name) {                                                                              \
        snprintf(problem, sizeof problem, "cuda: " LIBRARY " has no cublasLt" #name);              \
        return;                                                                                    \
    }
    WEFT_BLAS_FUNCTIONS(FIND)
#undef FIND
    cublasStatus_t status = blas.Create(&blas.handle);
    is_open = status == CUBLAS_STATUS_SUCCESS;
    if (!is_open)
        snprintf(problem, sizeof problem, "cuda: cuBLASLt did not start: %s",
                 blas.GetStatusString(status));
}

const weft_cuda_blas *weft_cuda_blas_open(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, open_library);
    if (is_open) return &blas;
    weft_fail(WEFT_EMISSING, "%s", problem);
    return NULL;
}

static weft_status check_blas(const weft_cuda_blas *blas, cublasStatus_t status, const char *key) {
    if (status == CUBLAS_STATUS_SUCCESS) return WEFT_OK;
    return weft_fail(WEFT_EIO, "cuda: cuBLASLt did not take the product %s: %s", key,
                     blas->GetStatusString(status));
}

/* Of a matrix whose transpose, or else itself, has so many rows and columns. */
static cublasStatus_t make_layout(const weft_cuda_blas *blas, const cuda_gemm_matrix *x,
                                  bool transposed, int64_t rows, int64_t columns, int64_t batch,
                                  cublasLtMatrixLayout_t *out) {
    if (transposed) std::swap(rows, columns);
    cublasStatus_t status = blas->MatrixLayoutCreate(out, x->is_bf16 ? CUDA_R_16BF : CUDA_R_32F,
                                                     (uint64_t)columns, (uint64_t)rows, x->ld);
    int32_t count = (int32_t)batch;
    if (status == CUBLAS_STATUS_SUCCESS && batch > 1)
        status = blas->MatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count,
                                                sizeof count);
    if (status == CUBLAS_STATUS_SUCCESS && batch > 1)
        status = blas->MatrixLayoutSetAttribute(*out, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                                &x->stride, sizeof x->stride);
    return status;
}

/* The largest power of two up to 64, our tensors' alignment, that divides address, rows' distance
 * and matrices' distance. */
static uint32_t find_alignment(const cuda_gemm_matrix *x, int64_t batch) {
    int64_t size = x->is_bf16 ? 2 : 4;
    uint64_t all = (uint64_t)(uintptr_t)x->data | (uint64_t)(x->ld * size) |
                   (batch > 1 ? (uint64_t)(x->stride * size) : 0);
    uint32_t align = WEFT_ARENA_ALIGN;
    while (align > 1 && all % align != 0)
        align /= 2;
    return align;
}

static bool wants_tf32(void) {
    const char *asked = getenv("WEFT_CUDA_TF32");
    return asked && strcmp(asked, "1") == 0;
}

static cublasLtEpilogue_t choose_epilogue(const cuda_gemm *p) {
    if (p->gelu_back) return CUBLASLT_EPILOGUE_DGELU;
    if (p->gelu && p->pre.data)
        return p->bias.data ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    if (p->gelu) return p->bias.data ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    return p->bias.data ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/* `p` is what the library is to do. */
static weft_status describe_all(const weft_cuda_blas *blas, const cuda_gemm *p, algorithm_call *c) {
    bool tf32 = !p->a.is_bf16 && wants_tf32();
    cublasOperation_t on_a = p->tb ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t on_b = p->ta ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = choose_epilogue(p);
    snprintf(c->key, sizeof c->key,
             "%s%s%s%s %lldx[%lld,%lld,%lld] ld %lld %lld %lld stride %lld %lld %lld align %u %u "
             "%u epilogue %d%s workspace %zu",
             p->a.is_bf16 ? "bf16"
             : tf32       ? "tf32"
                          : "f32",
             p->c.is_bf16 ? ">bf16" : ">f32", p->ta ? " ta" : "", p->tb ? " tb" : "",
             (long long)p->batch, (long long)p->m, (long long)p->n, (long long)p->k,
             (long long)p->a.ld, (long long)p->b.ld, (long long)p->c.ld,
             (long long)(p->batch > 1 ? p->a.stride : 0),
             (long long)(p->batch > 1 ? p->b.stride : 0),
             (long long)(p->batch > 1 ? p->c.stride : 0), c->align_b, c->align_a, c->align_c,
             (int)epilogue, c->beta != 0 ? " add" : "", c->workspace_bytes);
    cublasStatus_t status = blas->MatmulDescCreate(
        &c->what, tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F);
#define SET(name, value)                                                                           \
    if (status == CUBLAS_STATUS_SUCCESS)                                                           \
    status = blas->MatmulDescSetAttribute(c->what, CUBLASLT_MATMUL_DESC_##name, &(value),          \
                                          sizeof(value))
    SET(TRANSA, on_a);
    SET(TRANSB, on_b);
    SET(EPILOGUE, epilogue);
    if (p->bias.data) SET(BIAS_POINTER, p->bias.data);
    if (p->bias.data && p->batch > 1) SET(BIAS_BATCH_STRIDE, p->bias.stride);
    if (p->pre.data) SET(EPILOGUE_AUX_POINTER, p->pre.data);
    if (p->pre.data) SET(EPILOGUE_AUX_LD, p->pre.ld);
#undef SET
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layout(blas, &p->b, p->tb, p->k, p->n, p->batch, &c->a);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layout(blas, &p->a, p->ta, p->m, p->k, p->batch, &c->b);
    if (status == CUBLAS_STATUS_SUCCESS)
        status = make_layout(blas, &p->c, false, p->m, p->n, p->batch, &c->c);
    return check_blas(blas, status, c->key);
}

/* Addresses, factors and what follows from them. */
static algorithm_call describe_data(const cuda_gemm *p, void *workspace, int64_t workspace_bytes) {
    algorithm_call c = {};
    c.a_data = p->b.data;
    c.b_data = p->a.data;
    c.c_data = p->addend.data ? p->addend.data : p->c.data;
    c.d_data = p->c.data;
    c.d_bytes = gemm_values(&p->c, p->batch, p->m, p->n) * (p->c.is_bf16 ? 2 : 4);
    c.alpha = p->alpha;
    c.beta = p->accumulate || p->addend.data ? 1 : 0;
    c.workspace = workspace;
    c.workspace_bytes = (size_t)workspace_bytes;
    c.align_a = find_alignment(&p->b, p->batch);
    c.align_b = find_alignment(&p->a, p->batch);
    c.align_c = find_alignment(&p->c, p->batch);
    if (p->addend.data) c.align_c = std::min(c.align_c, find_alignment(&p->addend, p->batch));
    c.flops = 2.0 * (double)p->batch * (double)p->m * (double)p->n * (double)p->k;
    return c;
}

/* Calls whose descriptions and algorithms are kept: to make one takes longer than to look it up. */
enum { LISTS = 1024, PREPARED_MOST = 4096, KEY_WORDS = 12 };

/* A call ready to be made but for its addresses. */
typedef struct prepared {
    int64_t key[KEY_WORDS]; /* what it follows from */
    algorithm_call call;
    cublasLtMatmulAlgo_t algorithm;
    bool found;
    struct prepared *next;
} prepared;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static prepared *lists[LISTS];
static int n_prepared;

static void fill_key(const cuda_gemm *p, const algorithm_call *c, int64_t (&key)[KEY_WORDS]) {
    bool flags[] = {p->ta,        p->tb,        p->gelu,      c->beta != 0,
                    p->a.is_bf16, p->b.is_bf16, p->c.is_bf16, !p->a.is_bf16 && wants_tf32()};
    int64_t bits = (int64_t)c->align_a << 48 | (int64_t)c->align_b << 32 | c->align_c << 16;
    for (int i = 0; i < 8; i++)
        bits |= flags[i] << i;
    const int64_t words[] = {
        p->batch, p->m,        p->n,    p->k,        bits,    (int64_t)c->workspace_bytes,
        p->a.ld,  p->a.stride, p->b.ld, p->b.stride, p->c.ld, p->c.stride};
    memcpy(key, words, sizeof key);
}

weft_status library_run(cudaStream_t stream, const cuda_gemm *p, void *workspace,
                        int64_t workspace_bytes, bool *found) {
    const weft_cuda_blas *blas = weft_cuda_blas_open();
    if (!blas) return WEFT_EMISSING;
    algorithm_call c = describe_data(p, workspace, workspace_bytes);
    prepared once = {}, *ready = NULL;
    fill_key(p, &c, once.key);
    uint64_t hash = 0xcbf29ce484222325u;
    for (int64_t word : once.key)
        hash = (hash ^ (uint64_t)word) * 0x100000001b3u;
    prepared **list = &lists[(hash ^ hash >> 32) % LISTS];
    /* The descriptions of bias and gelu hold addresses, so those calls are described each time. */
    bool lasts = !p->bias.data && !p->pre.data && !p->gelu_back;
    pthread_mutex_lock(&lock);
    if (lasts)
        for (ready = *list; ready && memcmp(ready->key, once.key, sizeof once.key) != 0;)
            ready = ready->next;
    weft_status status = WEFT_OK;
    if (!ready) {
        status = describe_all(blas, p, &c);
        once.found = status == WEFT_OK && find_algorithm(blas, &c, stream, &once.algorithm);
        once.call = c;
        once.next = *list;
        bool keep = lasts && status == WEFT_OK && n_prepared < PREPARED_MOST;
        ready = keep ? (prepared *)malloc(sizeof *ready) : NULL;
        if (ready) *ready = once, *list = ready, n_prepared++;
    }
    pthread_mutex_unlock(&lock);
    const prepared *is = ready ? ready : &once;
    *found = is->found;
    if (*found) {
        c.what = is->call.what, c.a = is->call.a, c.b = is->call.b, c.c = is->call.c;
        status = check_blas(blas, call_library(blas, &c, &is->algorithm, stream), is->call.key);
    }
    if (ready) return status;
    if (c.a) blas->MatrixLayoutDestroy(c.a);
    if (c.b) blas->MatrixLayoutDestroy(c.b);
    if (c.c) blas->MatrixLayoutDestroy(c.c);
    if (c.what) blas->MatmulDescDestroy(c.what);
    return status;
}
