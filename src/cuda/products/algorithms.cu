/* Measuring and keeping the algorithms of matrix products.
 *
 * The file is text. A line `# GPU, driver N, cublasLt N` opens the choices of one machine; a choice
 * is the shape's key, a tab, and the algorithm as the library describes it, eight words. Choices of
 * other machines are copied when the file is written anew. */
#include "cuda/products/library.cuh"

#include <algorithm>
#include <errno.h>
#include <sys/stat.h>
#include <vector>

extern "C" {
#include "base/log.h"
}

enum { CANDIDATES = 16, WARM = 2, REPEATS = 5, LINE_ROOM = 512, PATH_ROOM = 4096 };

/* Below so many operations a product takes microseconds whatever does it. */
static const double MEASURED_FLOPS = 1e8;

typedef struct {
    char key[ALGORITHM_KEY];
    cublasLtMatmulAlgo_t algorithm;
    bool measured; /* kept in the file; else only remembered */
    bool used;     /* by this process */
} choice;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Never ended: a thread may still have a product to run when the program exits. */
static std::vector<choice> &choices = *new std::vector<choice>;
static bool is_loaded, is_changed;
static char machine[LINE_ROOM];

static bool find_path(char *path) {
    const char *file = getenv("WEFT_CUDA_ALGORITHMS"), *cache = getenv("XDG_CACHE_HOME");
    const char *home = getenv("HOME");
    int length = -1;
    if (file && *file)
        length = snprintf(path, PATH_ROOM, "%s", file);
    else if (cache && *cache)
        length = snprintf(path, PATH_ROOM, "%s/weft/cuda-algorithms", cache);
    else if (home && *home)
        length = snprintf(path, PATH_ROOM, "%s/.cache/weft/cuda-algorithms", home);
    return length > 0 && length < PATH_ROOM;
}

static choice *find_choice(const char *key) {
    for (choice &c : choices)
        if (strcmp(c.key, key) == 0) return &c;
    return NULL;
}

static void add_choice(const char *key, const cublasLtMatmulAlgo_t *algorithm, bool measured,
                       bool used) {
    choice c = {"", *algorithm, measured, used};
    snprintf(c.key, sizeof c.key, "%s", key);
    choices.push_back(c);
}

static_assert(sizeof(cublasLtMatmulAlgo_t) == 8 * sizeof(uint64_t), "the file holds eight words");

static void read_choice(char *line) {
    char *tab = strchr(line, '\t');
    cublasLtMatmulAlgo_t algorithm;
    if (!tab || tab - line >= ALGORITHM_KEY) return;
    *tab++ = 0;
    for (int i = 0; i < 8; i++) {
        char *end;
        algorithm.data[i] = strtoull(tab, &end, 16);
        if (end == tab) return;
        tab = end;
    }
    if (!find_choice(line)) add_choice(line, &algorithm, true, false);
}

/* Reads this machine's choices, or, with `to`, copies the others'. */
static void read_file(const char *path, FILE *to) {
    char line[LINE_ROOM];
    FILE *file = fopen(path, "r");
    bool ours = false;
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] == '#') ours = strcmp(line, machine) == 0;
        if (!ours && to) fprintf(to, "%s\n", line);
        if (ours && !to && line[0] != '#') read_choice(line);
    }
    if (file) fclose(file);
}

static void sort_choices(void) {
    std::sort(choices.begin(), choices.end(),
              [](const choice &a, const choice &b) { return strcmp(a.key, b.key) < 0; });
}

static bool write_file(const char *path, const char *fresh) {
    FILE *file = fopen(fresh, "w");
    if (!file) return false;
    read_file(path, file);
    fprintf(file, "%s\n", machine);
    for (const choice &c : choices) {
        if (!c.measured) continue;
        fprintf(file, "%s\t", c.key);
        for (int w = 0; w < 8; w++)
            fprintf(file, "%llx%c", (unsigned long long)c.algorithm.data[w], w < 7 ? ' ' : '\n');
    }
    bool ok = ferror(file) == 0;
    ok = fclose(file) == 0 && ok;
    return ok && rename(fresh, path) == 0;
}

void save_algorithms(void) {
    char path[PATH_ROOM], fresh[PATH_ROOM + 32];
    WEFT_LOCK(&lock);
    if (is_changed && find_path(path)) {
        for (char *slash = path + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
            *slash = 0;
            mkdir(path, 0777);
            *slash = '/';
        }
        sort_choices();
        snprintf(fresh, sizeof fresh, "%s.%ld", path, (long)getpid());
        if (!write_file(path, fresh)) {
            weft_log(WEFT_LOG_WARN,
                     "%s: %s; another process may choose other algorithms for matrix products, "
                     "and so other last bits",
                     path, strerror(errno));
            unlink(fresh);
        }
    }
    is_changed = false;
}

/* FNV-1a over the choices in the order of their keys. */
uint32_t hash_algorithms(void) {
    WEFT_LOCK(&lock);
    sort_choices();
    uint32_t hash = 0x811c9dc5u;
    for (const choice &c : choices) {
        if (!c.measured || !c.used) continue;
        for (const char *k = c.key; *k; k++)
            hash = (hash ^ (unsigned char)*k) * 0x01000193u;
        const unsigned char *bytes = (const unsigned char *)&c.algorithm;
        for (size_t b = 0; b < sizeof c.algorithm; b++)
            hash = (hash ^ bytes[b]) * 0x01000193u;
    }
    return hash;
}

/* Sums in one piece, or in pieces added by a second kernel in f32: nothing that depends on which
 * block comes first, and no partial sums rounded to the result's type. */
static bool keeps_order(const weft_cuda_blas *blas, const cublasLtMatmulAlgo_t *algorithm) {
    uint32_t scheme = 0;
    int32_t pieces = 1;
    size_t written;
    blas->MatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &scheme,
                                       sizeof scheme, &written);
    blas->MatmulAlgoConfigGetAttribute(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &pieces,
                                       sizeof pieces, &written);
    return (scheme & ~(uint32_t)CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) == 0 &&
           (pieces == 0 || pieces == 1 || scheme == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
}

/* The library's proposals for a call, the best first by its own estimate. */
static int list_candidates(const weft_cuda_blas *blas, const algorithm_call *c,
                           cublasLtMatmulHeuristicResult_t *out) {
    cublasLtMatmulPreference_t wish = NULL;
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    int found = 0, kept = 0;
    if (blas->MatmulPreferenceCreate(&wish) != CUBLAS_STATUS_SUCCESS) return 0;
#define WISH(name, value)                                                                          \
    blas->MatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_##name, &(value), sizeof(value))
    WISH(MAX_WORKSPACE_BYTES, c->workspace_bytes);
    WISH(REDUCTION_SCHEME_MASK, schemes);
    WISH(MIN_ALIGNMENT_A_BYTES, c->align_a);
    WISH(MIN_ALIGNMENT_B_BYTES, c->align_b);
    WISH(MIN_ALIGNMENT_C_BYTES, c->align_c);
    WISH(MIN_ALIGNMENT_D_BYTES, c->align_c);
#undef WISH
    cublasStatus_t status = blas->MatmulAlgoGetHeuristic(blas->handle, c->what, c->a, c->b, c->c,
                                                         c->c, wish, CANDIDATES, out, &found);
    blas->MatmulPreferenceDestroy(wish);
    for (int i = 0; status == CUBLAS_STATUS_SUCCESS && i < found; i++)
        if (out[i].state == CUBLAS_STATUS_SUCCESS && keeps_order(blas, &out[i].algo))
            out[kept++] = out[i];
    return kept;
}

cublasStatus_t call_library(const weft_cuda_blas *blas, const algorithm_call *c,
                            const cublasLtMatmulAlgo_t *algorithm, cudaStream_t stream) {
    return blas->Matmul(blas->handle, c->what, &c->alpha, c->a_data, c->a, c->b_data, c->b,
                        &c->beta, c->c_data, c->c, c->d_data, c->c, algorithm, c->workspace,
                        c->workspace_bytes, stream);
}

/* Milliseconds of the fastest of REPEATS; negative: the algorithm does not run. */
static float measure(const weft_cuda_blas *blas, const algorithm_call *c,
                     const cublasLtMatmulAlgo_t *algorithm, cudaStream_t stream,
                     cudaEvent_t *events) {
    float best = -1;
    for (int i = 0; i < WARM + REPEATS; i++) {
        float took = 0;
        cudaEventRecord(events[0], stream);
        if (call_library(blas, c, algorithm, stream) != CUBLAS_STATUS_SUCCESS) return -1;
        cudaEventRecord(events[1], stream);
        if (cudaEventSynchronize(events[1]) != cudaSuccess) return -1;
        cudaEventElapsedTime(&took, events[0], events[1]);
        if (i >= WARM && (best < 0 || took < best)) best = took;
    }
    return best;
}

/* The fastest of the candidates; -1: there was no memory to measure on. */
static int measure_all(const weft_cuda_blas *blas, const algorithm_call *call,
                       const cublasLtMatmulHeuristicResult_t *candidates, int n,
                       cudaStream_t stream) {
    algorithm_call apart = *call, *c = &apart;
    bool in_place = call->beta != 0 && call->c_data == call->d_data;
    cudaEvent_t events[2] = {NULL, NULL};
    int best = 0;
    float least = -1;
    if (in_place && cudaMalloc(&apart.d_data, (size_t)call->d_bytes) != cudaSuccess) {
        cudaGetLastError();
        return -1;
    }
    cudaEventCreate(&events[0]);
    cudaEventCreate(&events[1]);
    for (int i = 0; i < n; i++) {
        float took = measure(blas, c, &candidates[i].algo, stream, events);
        if (took < 0 || (least >= 0 && took >= least)) continue;
        least = took;
        best = i;
    }
    cudaEventDestroy(events[0]);
    cudaEventDestroy(events[1]);
    if (in_place) cudaFree(apart.d_data);
    return best;
}

bool find_algorithm(const weft_cuda_blas *blas, const algorithm_call *call, cudaStream_t stream,
                    cublasLtMatmulAlgo_t *out) {
    cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
    cublasLtMatmulHeuristicResult_t candidates[CANDIDATES];
    WEFT_LOCK(&lock);
    if (!is_loaded) {
        char path[PATH_ROOM];
        int driver = 0;
        cudaDriverGetVersion(&driver);
        snprintf(machine, sizeof machine, "# %s, driver %d, cublasLt %zu", weft_cuda_device()->name,
                 driver, blas->GetVersion());
        if (find_path(path)) read_file(path, NULL);
        is_loaded = true;
    }
    choice *known = find_choice(call->key);
    if (known) {
        known->used = true;
        *out = known->algorithm;
        return true;
    }
    int n = list_candidates(blas, call, candidates), best = -1;
    if (n == 0) return false;
    cudaStreamIsCapturing(stream, &capturing);
    if (call->flops >= MEASURED_FLOPS && n > 1 && capturing == cudaStreamCaptureStatusNone)
        best = measure_all(blas, call, candidates, n, stream);
    *out = candidates[max(best, 0)].algo;
    add_choice(call->key, out, best >= 0, true);
    is_changed |= best >= 0;
    return true;
}
