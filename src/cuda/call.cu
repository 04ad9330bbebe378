/* Calls over memory that is another's (core/function.h): kernels on the caller's stream.
 *
 * What a replayed graph reads from the executor's own device memory, the run's numbers and the first
 * bad value, lies at the head of the call's workspace here: one kernel sets it before the others, and
 * one behind them copies a bad value to a word in pinned host memory, where a later question finds it
 * without waiting. Both have all they need in their arguments, so the caller may capture a call.
 *
 * At small shapes the host takes longer to start a call's kernels than the GPU to run them. A training
 * loop brings the same addresses at every step, since its allocator gives the same memory to the same
 * sequence of wishes. So the kernels of a list of addresses that comes a second time are captured as a
 * CUDA graph, on a stream of the call's own, and from then on one launch repeats them. Only the
 * addresses are in it; what lies there is read when it runs, and so are the run's numbers. */
#include "cuda/products/library.cuh"

extern "C" {
#include "core/function.h"
}

#include <map>
#include <vector>

static const unsigned long long NO_FAULT = ~0ULL;

/* Graphs that are kept for each pass; how often addresses come before a graph is made of them, which
 * takes as long as some ten calls; and how many launches a graph must have been worth on average, once
 * as many were made as are kept, for more to be made. */
enum { GRAPHS_KEPT = 256, SEEN_BEFORE = 2, LEAST_LAUNCHES = 4 };

/* A list of addresses that came lately. */
typedef struct {
    cudaGraphExec_t graph; /* NULL: none yet */
    int64_t seen, last;    /* how often it came, and in which search the last time */
} call_entry;

/* Of one call at a time. The first is what kernels look into. */
typedef struct {
    weft_cuda_state state;
    unsigned long long *fault; /* host, pinned */
    bool warned;               /* of slow kernels */
    bool replays;              /* false: WEFT_CUDA_GRAPH=0, or no graph could be made */
    cudaStream_t recording;    /* NULL: nothing was captured yet */
    std::map<std::vector<const void *>, call_entry> entries[2]; /* by pass, GRAPHS_KEPT at most */
    int64_t searches;
    int64_t captures, launches; /* of graphs */
} call_state;

static __global__ void begin_call(weft_cuda_run *run, weft_cuda_run values) {
    *run = values;
}

static __global__ void end_call(const weft_cuda_run *run, volatile unsigned long long *fault) {
    if (run->fault == ~0ULL || *fault != ~0ULL) return;
    *fault = run->fault;
    __threadfence_system();
}

static weft_status open_call(void **state) {
    unsigned long long *fault = NULL;
    WEFT_TRY(check_cuda(cudaHostAlloc((void **)&fault, sizeof *fault, cudaHostAllocMapped),
                        "no pinned memory"));
    call_state *s = new call_state();
    s->fault = fault;
    *fault = NO_FAULT;
    const char *asked = getenv("WEFT_CUDA_GRAPH");
    s->replays = !(asked && strcmp(asked, "0") == 0);
    *state = s;
    return WEFT_OK;
}

static void drop_graph(const call_entry &entry) {
    if (entry.graph) cudaGraphExecDestroy(entry.graph);
}

static void close_call(void *state) {
    call_state *s = (call_state *)state;
    for (auto &entries : s->entries)
        for (auto &known : entries)
            drop_graph(known.second);
    if (s->recording) cudaStreamDestroy(s->recording);
    cudaFreeHost(s->fault);
    delete s;
}

static bool is_captured(cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    if (cudaStreamIsCapturing(stream, &status) == cudaSuccess)
        return status != cudaStreamCaptureStatusNone;
    cudaGetLastError(); /* the default stream beside one that is captured */
    return true;
}

/* The entry of a call's addresses; NULL: it is not remembered. Where there is no room, those that were
 * found longest ago are forgotten. */
static call_entry *find_entry(call_state *s, const weft_call_start *call) {
    auto &entries = s->entries[call->first > 0];
    if (!s->replays || is_captured((cudaStream_t)call->stream)) return NULL;
    std::vector<const void *> key(call->addresses, call->addresses + call->n_addresses);
    auto found = entries.find(key);
    if (found == entries.end() && entries.size() >= GRAPHS_KEPT) {
        auto oldest = entries.begin();
        for (auto at = entries.begin(); at != entries.end(); ++at)
            if (at->second.last < oldest->second.last) oldest = at;
        drop_graph(oldest->second);
        entries.erase(oldest);
    }
    call_entry *entry = found != entries.end() ? &found->second : &entries[key];
    entry->seen++;
    entry->last = ++s->searches;
    return entry;
}

/* Captures a call's kernels. Other threads may capture or allocate meanwhile: what is done here is
 * none of theirs. Where it cannot be done, calls go on kernel by kernel. */
static void make_graph(weft_exec *x, call_state *s, const weft_call_start *call,
                       call_entry *entry) {
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaGraphExec_t graph = NULL;
    cudaThreadExchangeStreamCaptureMode(&mode);
    bool ready = s->recording ||
                 cudaStreamCreateWithFlags(&s->recording, cudaStreamNonBlocking) == cudaSuccess;
    s->state.stream = s->recording;
    s->replays = ready && weft_cuda_capture(x, cudaStreamCaptureModeRelaxed, call->first,
                                            call->last, &graph) == WEFT_OK;
    cudaThreadExchangeStreamCaptureMode(&mode);
    if (!s->replays) {
        cudaGetLastError();
        return;
    }
    entry->graph = graph;
    s->captures++;
}

static weft_status start_call(weft_exec *x, const weft_call_start *call) {
    call_state *s = (call_state *)weft_exec_state(x);
    const weft_run *run = weft_exec_current_run(x);
    bool noted = false; /* a node draws random numbers or may meet a value that it cannot use */
    for (int64_t i = call->first; i < call->last; i++)
        noted = noted || weft_graph_node(weft_exec_graph(x), i)->op->id == WEFT_OP_dropout ||
                weft_exec_kernel(x, i)->explain;
    if (!s->warned) weft_cuda_warn_slow(weft_exec_graph(x));
    s->warned = true;
    s->state.run = (weft_cuda_run *)call->memory;
    call_entry *entry = find_entry(s, call);
    /* Addresses that hardly ever come again are not worth their graphs. */
    bool pays = s->captures < GRAPHS_KEPT || s->launches >= LEAST_LAUNCHES * s->captures;
    if (entry && !entry->graph && entry->seen >= SEEN_BEFORE && pays) make_graph(x, s, call, entry);
    cudaGraphExec_t graph = entry ? entry->graph : NULL;
    if (graph) s->launches++;
    cudaStream_t stream = (cudaStream_t)call->stream;
    if (noted)
        begin_call<<<1, 1, 0, stream>>>(
            s->state.run, weft_cuda_run{run->seed, run->iteration, run->sequence, NO_FAULT});
    s->state.stream = stream;
    if (graph)
        WEFT_TRY(check_cuda(cudaGraphLaunch(graph, stream), "the call did not start"));
    else
        WEFT_TRY(weft_exec_walk_part(x, call->first, call->last));
    if (noted) end_call<<<1, 1, 0, stream>>>(s->state.run, s->fault);
    return check_cuda(cudaGetLastError(), "the call did not start");
}

static bool find_fault(void *state, int64_t *node, int64_t *place) {
    call_state *s = (call_state *)state;
    unsigned long long fault = *(volatile unsigned long long *)s->fault;
    if (fault == NO_FAULT) return false;
    *(volatile unsigned long long *)s->fault = NO_FAULT;
    *node = (int64_t)(fault >> 40);
    *place = (int64_t)(fault & ((1ULL << 40) - 1));
    return true;
}

static weft_status settle(void) {
    weft_status status = check_cuda(cudaDeviceSynchronize(), "the call failed");
    save_algorithms();
    return status;
}

static_assert(sizeof(weft_cuda_run) <= WEFT_ARENA_ALIGN, "the run's numbers have a line");

extern "C" const struct weft_call_backend weft_cuda_calls = {
    WEFT_ARENA_ALIGN, open_call, close_call, start_call, find_fault, settle,
};
