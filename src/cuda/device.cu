/* Which GPU is used, and what it is like.
 *
 * A GPU is taken if the build has code for it: machine code of its architecture, or PTX that the
 * driver can translate. A probe kernel tells: it cannot be loaded where there is no code, and its
 * attributes say for which architecture it was compiled. The kernels for Hopper need 9.0a; code for
 * any other architecture has the plain kernels and those that multiply by mma.sync. */
#include <cuda_runtime.h>

#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include "cuda/backend.h"
#include "cuda/device.h"
}

/* What a plan assumes where there is no GPU: an H200, and the best code that is in this build. */
#ifdef WEFT_CUDA_9_0A
enum { BUILT_WGMMA = 1, BUILT_CODE = 90 };
#else
enum { BUILT_WGMMA = 0, BUILT_CODE = 80 };
#endif
static weft_cuda_facts facts = WEFT_CUDA_H200(BUILT_CODE, BUILT_WGMMA);

typedef struct {
    weft_status status; /* WEFT_OK: a GPU was found */
    int number;
    weft_cuda_facts facts;
    char problem[512]; /* why there is none */
} finding;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static finding opened;
static bool is_opened, is_asked;

/* Empty, and compiled for more threads where there is code for 9.0a: that shows in its attributes. */
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
enum { PROBE_THREADS = 64 };
#else
enum { PROBE_THREADS = 32 };
#endif
static __global__ void __launch_bounds__(PROBE_THREADS) probe() {
}

__attribute__((format(printf, 3, 4))) static bool refuse(finding *f, weft_status status,
                                                         const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(f->problem, sizeof f->problem, format, args);
    va_end(args);
    f->status = status;
    return false;
}

/* Tries one device: it answers, and there is code for it. */
static bool find_facts(int number, finding *f) {
    struct cudaDeviceProp is;
    cudaFuncAttributes code = {};
    if (cudaGetDeviceProperties(&is, number) != cudaSuccess)
        return refuse(f, WEFT_EIO, "cuda: the GPU does not answer");
    if (cudaSetDevice(number) != cudaSuccess || cudaFree(NULL) != cudaSuccess)
        return refuse(f, WEFT_EIO, "cuda: %s does not answer: %s", is.name,
                      cudaGetErrorString(cudaGetLastError()));
    if (cudaFuncGetAttributes(&code, probe) != cudaSuccess) {
        cudaGetLastError();
        return refuse(f, WEFT_EMISSING,
                      "cuda: %s has compute capability %d.%d, for which this weft has no code; "
                      "build with CUDA_ARCH='-arch=sm_%d%d%s'",
                      is.name, is.major, is.minor, is.major, is.minor,
                      is.major == 9 && is.minor == 0 ? "a" : "");
    }
    f->number = number;
    f->facts.major = is.major;
    f->facts.minor = is.minor;
    f->facts.code = code.ptxVersion;
    f->facts.wgmma = code.maxThreadsPerBlock == 64;
    f->facts.multiprocessors = is.multiProcessorCount;
    f->facts.shared_memory = (int64_t)is.sharedMemPerBlockOptin;
    snprintf(f->facts.name, sizeof f->facts.name, "%s", is.name);
    f->status = WEFT_OK;
    return true;
}

static bool wants_none(void) {
    const char *asked = getenv("WEFT_CUDA_DEVICE");
    return asked && strcmp(asked, "none") == 0;
}

static int local_rank =
    -1; /* of this process among those that share the machine's GPUs; -1: it has none */

static bool find_device(finding *f) {
    const char *asked = getenv("WEFT_CUDA_DEVICE");
    int count = 0;
    memset(f, 0, sizeof *f);
    f->status = WEFT_EMISSING;
    if (wants_none())
        return refuse(f, WEFT_EMISSING, "cuda: WEFT_CUDA_DEVICE=none asks for no GPU");
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0)
        return refuse(f, WEFT_EMISSING, "cuda: no GPU can be used: %s; --device cpu works without",
                      error == cudaErrorInsufficientDriver
                          ? "there is no driver, or one older than this CUDA"
                      : error != cudaSuccess ? cudaGetErrorString(error)
                                             : "there is none");
    if (asked && *asked) {
        char *end;
        long number = strtol(asked, &end, 10);
        if (*end || number < 0 || number >= count)
            return refuse(f, WEFT_EINPUT, "WEFT_CUDA_DEVICE=%.40s: this machine has GPUs 0 to %d",
                          asked, count - 1);
        return find_facts((int)number, f);
    }
    if (local_rank >= 0) return find_facts(local_rank % count, f);
    for (int i = 0; i < count; i++)
        if (find_facts(i, f)) return true;
    return false;
}

extern "C" int weft_cuda_set_rank(int rank) {
    int count = 0;
    if (wants_none() || cudaGetDeviceCount(&count) != cudaSuccess) return 0;
    pthread_mutex_lock(&lock);
    local_rank = rank;
    pthread_mutex_unlock(&lock);
    return count;
}

weft_status weft_cuda_device_open(void) {
    pthread_mutex_lock(&lock);
    if (!is_opened) {
        size_t free_now = 0, total = 0;
        is_opened = is_asked = true;
        find_device(&opened);
        if (opened.status == WEFT_OK && cudaMemGetInfo(&free_now, &total) != cudaSuccess)
            refuse(&opened, WEFT_EIO, "cuda: the GPU does not tell its memory");
        opened.facts.memory = (int64_t)total;
        opened.facts.free_at_start = (int64_t)free_now;
        if (opened.status == WEFT_OK) facts = opened.facts;
    }
    pthread_mutex_unlock(&lock);
    if (opened.status == WEFT_OK) return WEFT_OK;
    return weft_fail(opened.status, "%s", opened.problem);
}

/* A driver that was used before a fork does not survive it, so the child asks. */
static void ask_in_child(finding *f) {
    int ends[2];
    f->status = WEFT_EIO;
    if (pipe(ends) != 0) return;
    pid_t child = fork();
    if (child == 0) {
        find_device(f);
        bool sent = write(ends[1], f, sizeof *f) == (ssize_t)sizeof *f;
        _exit(sent ? 0 : 1);
    }
    close(ends[1]);
    if (child > 0) {
        if (read(ends[0], f, sizeof *f) != (ssize_t)sizeof *f) f->status = WEFT_EIO;
        while (waitpid(child, NULL, 0) < 0 && errno == EINTR)
            continue;
    }
    close(ends[0]);
}

void weft_cuda_device_ask(void) {
    static finding found;
    pthread_mutex_lock(&lock);
    if (!is_asked && !wants_none()) {
        is_asked = true;
        ask_in_child(&found);
        if (found.status == WEFT_OK) facts = found.facts;
    }
    pthread_mutex_unlock(&lock);
}

const weft_cuda_facts *weft_cuda_device(void) {
    return &facts;
}

int weft_cuda_device_number(void) {
    return is_opened && opened.status == WEFT_OK ? opened.number : -1;
}

/* How fast its memory is read: the rate that floors are made of. Nothing is computed but what keeps the
 * loads, nothing is written, and the time is the GPU's own. */

enum { READ_THREADS = 256, READ_AT_ONCE = 8, READ_TIMES = 6, READ_BLOCKS = 4 };
static const int64_t READ_MOST = (int64_t)4 << 30, READ_LEAST = (int64_t)256 << 20;

/* Words are such that their sum is never 1. */
static __global__ void __launch_bounds__(READ_THREADS, READ_BLOCKS)
    read_words(const uint4 *from, int64_t count, unsigned *to) {
    unsigned sum = 0;
    int64_t step = (int64_t)gridDim.x * READ_THREADS * READ_AT_ONCE;
    int64_t first = (int64_t)blockIdx.x * READ_THREADS * READ_AT_ONCE + threadIdx.x;
#pragma unroll 1
    for (int64_t i = first; i < count; i += step) {
        uint4 v[READ_AT_ONCE];
#pragma unroll
        for (int k = 0; k < READ_AT_ONCE; k++)
            v[k] = __ldcs(from + i + k * READ_THREADS);
#pragma unroll
        for (int k = 0; k < READ_AT_ONCE; k++)
            sum ^= v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
    if (sum == 1) *to = sum;
}

extern "C" double weft_cuda_read_rate(void) {
    cudaEvent_t mark[2];
    void *memory = NULL;
    int64_t bytes = READ_MOST;
    double best = 0;
    if (weft_cuda_device_number() < 0 || cudaSetDevice(weft_cuda_device_number()) != cudaSuccess)
        return 0;
    while (cudaMalloc(&memory, (size_t)bytes) != cudaSuccess) {
        cudaGetLastError();
        if ((bytes /= 2) < READ_LEAST) return 0;
    }
    cudaMemset(memory, 0x5a, (size_t)bytes);
    cudaEventCreate(&mark[0]);
    cudaEventCreate(&mark[1]);
    /* By blocks that stay, and by one block for each part, in turn. */
    int64_t count = bytes / (int64_t)sizeof(uint4), parts = count / (READ_THREADS * READ_AT_ONCE);
    int64_t stay = (int64_t)weft_cuda_device()->multiprocessors * READ_BLOCKS;
    for (int i = 0; i < READ_TIMES; i++) {
        float taken = 0; /* milliseconds */
        cudaEventRecord(mark[0]);
        read_words<<<(unsigned)(i % 2 == 0 ? stay : parts), READ_THREADS>>>(
            (const uint4 *)memory, count, (unsigned *)memory);
        cudaEventRecord(mark[1]);
        if (cudaEventSynchronize(mark[1]) != cudaSuccess) continue;
        cudaEventElapsedTime(&taken, mark[0], mark[1]);
        double seconds = 1e-3 * (double)taken;
        if (seconds > 0 && (double)bytes / seconds > best) best = (double)bytes / seconds;
    }
    cudaEventDestroy(mark[0]);
    cudaEventDestroy(mark[1]);
    cudaFree(memory);
    return best;
}
