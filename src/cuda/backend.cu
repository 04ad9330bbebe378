/* One GPU as a backend: its memory, and runs of a graph on it.
 *
 * A run's first time goes kernel by kernel, so that whatever is chosen or loaded once (matrix
 * products' algorithms, modules) is; the second is captured as a CUDA graph, which it and all later
 * ones replay. WEFT_CUDA_GRAPH=0 keeps to single kernels. A run that is watched is a graph for each
 * part: all of them are given to the stream, an event after each, and while the device works on, the
 * host waits for one event after the other and says what is done. Around either, the run's numbers are
 * copied to the device before, and the first bad value that a kernel met is copied back after, when
 * the host waits for the run to end. So whoever returns from here finds the device idle: uploads
 * and downloads need no order of their own. */
extern "C" {
#include "cuda/backend.h"
}
#include "cuda/products/library.cuh"

extern "C" const struct weft_call_backend weft_cuda_calls;       /* call.cu */
extern "C" const struct weft_row_backend weft_cuda_rows;         /* tensor/rows.cu */
extern "C" const struct weft_sampler_backend weft_cuda_samplers; /* decode/sampler.cu */

static weft_status cuda_upload(void *to, const void *from, int64_t bytes) {
    WEFT_TRY(check_cuda(cudaSetDevice(weft_cuda_device_number()), "the GPU is gone"));
    WEFT_TRY(check_cuda(cudaMemcpy(to, from, (size_t)bytes, cudaMemcpyHostToDevice),
                        "values were not copied to the GPU"));
    return check_cuda(cudaStreamSynchronize(NULL), "values were not copied to the GPU");
}

static weft_status cuda_download(void *to, const void *from, int64_t bytes) {
    WEFT_TRY(check_cuda(cudaSetDevice(weft_cuda_device_number()), "the GPU is gone"));
    return check_cuda(cudaMemcpy(to, from, (size_t)bytes, cudaMemcpyDeviceToHost),
                      "values were not copied from the GPU");
}

static weft_status cuda_fill(void *to, int byte, int64_t bytes) {
    WEFT_TRY(check_cuda(cudaSetDevice(weft_cuda_device_number()), "the GPU is gone"));
    WEFT_TRY(check_cuda(cudaMemset(to, byte, (size_t)bytes), "memory was not filled"));
    return check_cuda(cudaStreamSynchronize(NULL), "memory was not filled");
}

/* Zeroed, as the CPU's pages are. */
static void *cuda_alloc(int64_t bytes) {
    void *memory = NULL;
    cudaSetDevice(weft_cuda_device_number());
    if (cudaMalloc(&memory, (size_t)bytes) != cudaSuccess) {
        cudaGetLastError();
        return NULL;
    }
    if (cuda_fill(memory, 0, bytes) == WEFT_OK) return memory;
    cudaFree(memory);
    return NULL;
}

static void cuda_release(void *memory, int64_t bytes) {
    (void)bytes;
    cudaSetDevice(weft_cuda_device_number());
    cudaFree(memory);
}

static int64_t cuda_memory(void) {
    size_t free_now = 0, total = 0;
    if (weft_cuda_device_number() < 0) return 0;
    cudaSetDevice(weft_cuda_device_number());
    return cudaMemGetInfo(&free_now, &total) == cudaSuccess ? (int64_t)free_now : 0;
}

static bool has_double(weft_tensor *const *t, int count) {
    for (int i = 0; i < count; i++)
        if (t[i] && t[i]->dtype == WEFT_F64) return true;
    return false;
}

static const weft_kernel *cuda_kernel(const weft_node *n) {
    bool in_double = has_double(n->in, n->n_in) || has_double(n->out, n->n_out);
    return in_double ? NULL : weft_cuda_kernel(n->op->id);
}

static void cuda_close(void *state) {
    weft_cuda_state *s = (weft_cuda_state *)state;
    cudaSetDevice(weft_cuda_device_number());
    for (int64_t i = 0; s->marks && i < s->n_marks; i++)
        if (s->marks[i]) cudaEventDestroy(s->marks[i]);
    free(s->marks);
    for (int i = 0; s->parts && i < s->n_parts; i++) {
        if (s->parts[i].graph) cudaGraphExecDestroy(s->parts[i].graph);
        if (s->parts[i].done) cudaEventDestroy(s->parts[i].done);
    }
    free(s->parts);
    if (s->graph) cudaGraphExecDestroy(s->graph);
    if (s->stream) cudaStreamDestroy(s->stream);
    if (s->run) cudaFree(s->run);
    if (s->staged) cudaFreeHost(s->staged);
    free(s);
}

static weft_status cuda_open(weft_exec *x, void **state) {
    weft_cuda_state *s = (weft_cuda_state *)calloc(1, sizeof *s);
    if (!s) return weft_fail(WEFT_ENOMEM, "cuda: no memory");
    *state = s;
    const char *asked = getenv("WEFT_CUDA_GRAPH");
    s->capture = !weft_exec_profiled(x) && !(asked && strcmp(asked, "0") == 0);
    weft_cuda_warn_slow(weft_exec_graph(x));
    WEFT_TRY(check_cuda(cudaSetDevice(weft_cuda_device_number()), "the GPU is gone"));
    WEFT_TRY(check_cuda(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "no stream"));
    size_t bytes = sizeof *s->run + DEVICE_COUNTERS * sizeof(unsigned);
    /* Filled when this returns: runs are on streams that do not wait for the one that fills it. */
    s->run = (weft_cuda_run *)cuda_alloc((int64_t)bytes);
    if (!s->run) return weft_fail(WEFT_ENOMEM, "cuda: no memory for a run");
    s->counters = (unsigned *)(s->run + 1);
    WEFT_TRY(
        check_cuda(cudaMallocHost((void **)&s->staged, sizeof *s->staged), "no pinned memory"));
    if (!weft_exec_profiled(x)) return WEFT_OK;
    s->n_marks = weft_graph_node_count(weft_exec_graph(x)) + 1;
    s->marks = (cudaEvent_t *)calloc((size_t)s->n_marks, sizeof *s->marks);
    if (!s->marks) return weft_fail(WEFT_ENOMEM, "cuda: no memory");
    for (int64_t i = 0; i < s->n_marks; i++)
        WEFT_TRY(check_cuda(cudaEventCreate(&s->marks[i]), "no event"));
    return WEFT_OK;
}

static void mark_node(weft_exec *x, int64_t node) {
    cudaEventRecord(state_of(x)->marks[node + 1], stream_of(x));
}

/* The times between the marks. The first run's say how long choosing took, so they are left out. */
static void report_times(weft_exec *x, const weft_cuda_state *s) {
    double *seconds = (double *)calloc((size_t)s->n_marks, sizeof *seconds);
    for (int64_t i = 0; seconds && i + 1 < s->n_marks; i++) {
        float milliseconds = 0;
        cudaEventElapsedTime(&milliseconds, s->marks[i], s->marks[i + 1]);
        seconds[i] = 1e-3 * (double)milliseconds;
    }
    if (seconds && s->runs > 1) weft_exec_timed(x, seconds);
    free(seconds);
}

weft_status weft_cuda_capture(weft_exec *x, cudaStreamCaptureMode mode, int64_t first, int64_t last,
                              cudaGraphExec_t *out) {
    cudaGraph_t graph = NULL;
    WEFT_TRY(
        check_cuda(cudaStreamBeginCapture(stream_of(x), mode), "the run could not be captured"));
    weft_status status = weft_exec_walk_part(x, first, last);
    cudaError_t error = cudaStreamEndCapture(stream_of(x), &graph);
    if (status != WEFT_OK) cudaGetLastError(); /* of the capture's end, not of the next call */
    if (status == WEFT_OK)
        status =
            check_cuda(error, "the run could not be captured (WEFT_CUDA_GRAPH=0 does without)");
    if (status == WEFT_OK)
        status = check_cuda(cudaGraphInstantiate(out, graph, 0), "no memory for the run's graph");
    if (graph) cudaGraphDestroy(graph);
    return status;
}

/* Nodes first .. last − 1: kernel by kernel the first time, then as a graph. */
static weft_status start_nodes(weft_exec *x, const weft_cuda_state *s, int64_t first, int64_t last,
                               cudaGraphExec_t *graph) {
    if (!s->capture || s->runs == 0) return weft_exec_walk_part(x, first, last);
    if (!*graph)
        WEFT_TRY(weft_cuda_capture(x, cudaStreamCaptureModeThreadLocal, first, last, graph));
    return check_cuda(cudaGraphLaunch(*graph, s->stream), "the run did not start");
}

static weft_status start_run(weft_exec *x, weft_cuda_state *s) {
    if (s->marks) return weft_exec_walk(x, mark_node);
    return start_nodes(x, s, 0, weft_graph_node_count(weft_exec_graph(x)), &s->graph);
}

static weft_status start_parts(weft_exec *x, weft_cuda_state *s) {
    const int64_t *ends;
    int n = weft_exec_parts(x, &ends);
    if (!s->parts) {
        s->n_parts = n;
        s->parts = (weft_cuda_part *)calloc((size_t)n, sizeof *s->parts);
        if (!s->parts) return weft_fail(WEFT_ENOMEM, "cuda: no memory");
        for (int i = 0; i < n; i++)
            WEFT_TRY(check_cuda(cudaEventCreateWithFlags(&s->parts[i].done, cudaEventDisableTiming),
                                "no event"));
    }
    for (int i = 0; i < n; i++) {
        WEFT_TRY(start_nodes(x, s, i ? ends[i - 1] : 0, ends[i], &s->parts[i].graph));
        WEFT_TRY(check_cuda(cudaEventRecord(s->parts[i].done, s->stream), "no event"));
    }
    return WEFT_OK;
}

/* The message for a value that a kernel could not use. */
weft_status weft_cuda_explain(weft_exec *x, unsigned long long fault) {
    int64_t node = (int64_t)(fault >> 40), place = (int64_t)(fault & ((1ULL << 40) - 1));
    if (node >= weft_graph_node_count(weft_exec_graph(x)))
        return weft_fail(WEFT_EBUG, "cuda: node %lld of a graph without it noted a bad value",
                         (long long)node);
    const weft_node *n = weft_graph_node(weft_exec_graph(x), node);
    const weft_kernel *kernel = weft_exec_kernel(x, node);
    if (kernel->explain) return kernel->explain(x, n, place);
    return WEFT_BAD_INPUT("%s: a value at %lld cannot be used", n->op->name, (long long)place);
}

static void set_alone(weft_cuda_state *s, bool alone) {
    s->alone = alone;
    s->follows = alone && weft_cuda_device()->code >= 90;
    s->launched = 0;
    s->ahead = -1;
}

static weft_status cuda_run(weft_exec *x) {
    weft_cuda_state *s = state_of(x);
    const weft_run *run = weft_exec_current_run(x);
    bool watched = weft_exec_is_watched(x), in_parts = watched && !s->marks;
    set_alone(s, run->alone);
    *s->staged = weft_cuda_run{run->seed, run->iteration, run->sequence, ~0ULL};
    WEFT_TRY(check_cuda(cudaSetDevice(weft_cuda_device_number()), "the GPU is gone"));
    WEFT_TRY(check_cuda(
        cudaMemcpyAsync(s->run, s->staged, sizeof *s->run, cudaMemcpyHostToDevice, s->stream),
        "the run's numbers were not copied"));
    weft_status status = in_parts ? start_parts(x, s) : start_run(x, s);
    if (status != WEFT_OK) {
        cudaStreamSynchronize(s->stream);
        return status;
    }
    s->runs++;
    WEFT_TRY(check_cuda(
        cudaMemcpyAsync(s->staged, s->run, sizeof *s->run, cudaMemcpyDeviceToHost, s->stream),
        "the run's state was not copied"));
    const int64_t *ends = NULL;
    int parts = in_parts ? weft_exec_parts(x, &ends) : 0;
    for (int i = 0; i < parts; i++) { /* says of each when it is done */
        WEFT_TRY(check_cuda(cudaEventSynchronize(s->parts[i].done), "the run failed"));
        weft_exec_made(x, i ? ends[i - 1] : 0, ends[i]);
    }
    WEFT_TRY(check_cuda(cudaStreamSynchronize(s->stream), "the run failed"));
    if (watched && !in_parts) weft_exec_made(x, 0, weft_graph_node_count(weft_exec_graph(x)));
    if (s->marks) report_times(x, s);
    if (s->runs == 1) save_algorithms();
    return s->staged->fault == ~0ULL ? WEFT_OK : weft_cuda_explain(x, s->staged->fault);
}

weft_status weft_cuda_follow(weft_exec *x, cudaStream_t stream) {
    weft_cuda_state *s = state_of(x);
    cudaStream_t own = s->stream;
    s->stream = stream;
    set_alone(s, true);
    weft_status status = start_run(x, s);
    s->stream = own;
    if (status == WEFT_OK) s->runs++;
    return status;
}

static int64_t cuda_taken(void) {
    return weft_cuda_device()->free_at_start - cuda_memory();
}

static const weft_backend cuda = {
    "cuda",
    cuda_kernel,
    cuda_alloc,
    cuda_release,
    cuda_upload,
    cuda_download,
    cuda_memory,
    true,
    cuda_fill,
    cuda_open,
    cuda_close,
    cuda_run,
    hash_algorithms,
    &weft_cuda_calls,
    cuda_taken,
    &weft_cuda_rows,
    &weft_cuda_samplers,
};

extern "C" const weft_backend *weft_cuda_backend(void) {
    return weft_cuda_device_open() == WEFT_OK ? &cuda : NULL;
}

extern "C" const weft_backend *weft_cuda_planner(void) {
    weft_cuda_device_ask();
    return &cuda;
}

extern "C" const char *weft_cuda_device_name(void) {
    static char name[320];
    if (weft_cuda_device_open() != WEFT_OK) return "none";
    snprintf(name, sizeof name, "%s, %.1f GiB", weft_cuda_device()->name,
             (double)weft_cuda_device()->memory / (1024.0 * 1024.0 * 1024.0));
    return name;
}

extern "C" int64_t weft_cuda_bytes_taken(void) {
    return weft_cuda_device_open() == WEFT_OK ? cuda_taken() : 0;
}
