/* Runs of decode graphs that follow each other on one stream (core/decoding.h).
 *
 * A run is three launches: a small kernel that writes its rows into the graph's inputs, the captured
 * graph, and a kernel that samples each row's likeliest token; tokens that are drawn take a few more
 * (draw.cu). The host gives the next run to the stream while one is under way, and watches a word in pinned
 * memory for the end of the oldest. Neither the rows nor the logits are copied by the host, unless it asks for
 * logits.
 *
 * WEFT_CUDA_SAMPLER=0 waits for each run and copies its logits to the host, as the CPU does. */
#include "cuda/decode/draw.cuh"
#include "cuda/products/streamed.cuh"

enum { ROWS = WEFT_RUN_ROWS, READ_ROWS = 2048, THREADS = 512 };
static_assert(sizeof(weft_run_rows) <= 4000,
              "they are a parameter of a kernel, with 96 bytes more");

/* In pinned memory: what a run tells the host. */
struct told_run {
    int32_t token[ROWS];
    unsigned long long fault;
    unsigned number; /* of the run, when all else is there */
};

/* Of the rows of a run that are sampled: the best so far, and how many blocks are done. */
struct sampled_rows {
    unsigned long long best[ROWS];
    unsigned arrived;
};

struct cuda_sampler {
    cudaStream_t stream;
    int32_t *table; /* device; not ours */
    int64_t table_pages;
    int32_t *sampled;   /* device, [2, ROWS] */
    sampled_rows *best; /* device */
    cuda_draws *draws;
    told_run *told; /* [2] */
    weft_sampler_graph graph[2];
    int64_t rows[2];
    unsigned started, finished;
    cuda_room logits; /* pinned; none: nobody has asked yet */
};

static void close_sampler(void *sampler) {
    cuda_sampler *s = (cuda_sampler *)sampler;
    if (!s) return;
    cudaSetDevice(weft_cuda_device_number());
    if (s->stream) cudaStreamSynchronize(s->stream);
    cudaFree(s->sampled);
    cudaFree(s->best);
    weft_cuda_draws_close(s->draws);
    if (s->told) cudaFreeHost(s->told);
    weft_cuda_free_room(&s->logits, true);
    if (s->stream) cudaStreamDestroy(s->stream);
    free(s);
}

static weft_status make_room(cuda_sampler *s) {
    WEFT_TRY(check_cuda(cudaSetDevice(weft_cuda_device_number()), "the GPU is gone"));
    WEFT_TRY(check_cuda(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "no stream"));
    WEFT_TRY(check_cuda(cudaMalloc((void **)&s->sampled, 2 * ROWS * sizeof *s->sampled),
                        "no memory for tokens"));
    WEFT_TRY(check_cuda(cudaMalloc((void **)&s->best, sizeof *s->best), "no memory for tokens"));
    WEFT_TRY(
        check_cuda(cudaMallocHost((void **)&s->told, 2 * sizeof *s->told), "no pinned memory"));
    memset(s->told, 0, 2 * sizeof *s->told);
    WEFT_TRY(check_cuda(cudaMemset(s->sampled, 0, 2 * ROWS * sizeof *s->sampled),
                        "no memory for tokens"));
    WEFT_TRY(check_cuda(cudaMemset(s->best, 0, sizeof *s->best), "no memory for tokens"));
    return check_cuda(cudaDeviceSynchronize(), "the GPU did not become ready");
}

static weft_status open_sampler(const weft_exec *x, int32_t *table, int64_t table_pages,
                                void **sampler) {
    const char *asked = getenv("WEFT_CUDA_SAMPLER");
    *sampler = NULL;
    if (weft_exec_profiled(x) || (asked && strcmp(asked, "0") == 0)) return WEFT_OK;
    cuda_sampler *s = (cuda_sampler *)calloc(1, sizeof *s);
    if (!s) return weft_fail(WEFT_ENOMEM, "cuda: no memory");
    s->table = table;
    s->table_pages = table_pages;
    weft_status status = make_room(s);
    if (status != WEFT_OK) {
        close_sampler(s);
        return status;
    }
    *sampler = s;
    return WEFT_OK;
}

static weft_status set_pages(void *sampler, int64_t slot, const int32_t *pages) {
    cuda_sampler *s = (cuda_sampler *)sampler;
    WEFT_TRY(check_cuda(cudaSetDevice(weft_cuda_device_number()), "the GPU is gone"));
    return check_cuda(cudaMemcpyAsync(s->table + slot * s->table_pages, pages,
                                      (size_t)s->table_pages * sizeof *pages,
                                      cudaMemcpyHostToDevice, s->stream),
                      "the table of pages was not copied");
}

/* The inputs of a graph that say what its rows are. */
struct row_inputs {
    int32_t *token, *position, *slot, *wanted;
};

/* A thread a row of the graph. Those behind the run's are no sequence's. `sampled`: by the run before; a
 * row that goes on from none has a token all the same, and nobody wants what it makes. */
static __global__ void place_rows(weft_run_rows rows, row_inputs to, const int32_t *sampled,
                                  weft_cuda_run *run) {
    int r = (int)threadIdx.x;
    bool there = r < rows.count;
    int32_t token = there ? rows.token[r] : 0;
    if (r == 0) *run = weft_cuda_run{0, 0, 0, ~0ULL};
    to.token[r] = token < 0 ? max(sampled[-1 - token], 0) : token;
    to.position[r] = there ? rows.position[r] : 0;
    to.slot[r] = there ? rows.slot[r] : -1;
    to.wanted[r] = r;
}

/* The best of a thread's share of a row. VECTOR logits at a time where rows begin at multiples of 16 bytes. */
template <typename T>
__device__ static inline unsigned long long best_of_share(const T *logits, int vocab) {
    unsigned long long best = 0;
    int thread = (int)thread_index(), threads = (int)gridDim.x * THREADS;
    if (vocab % VECTOR == 0) {
        for (int i = thread * VECTOR; i < vocab; i += threads * VECTOR) {
            float v[VECTOR];
            load_vector(logits + i, v);
#pragma unroll
            for (int k = 0; k < VECTOR; k++)
                best = max(best, rank_logit(v[k], i + k));
        }
        return best;
    }
    for (int i = thread; i < vocab; i += threads)
        best = max(best, rank_logit(to_float(logits[i]), i));
    return best;
}

/* Tells the host that all tokens are there. */
__device__ static inline void tell_host(const weft_cuda_run *run, told_run *told, unsigned number) {
    *(volatile unsigned long long *)&told->fault = run->fault;
    __threadfence_system();
    *(volatile unsigned *)&told->number = number;
}

/* Some blocks a row. The last of all to end takes the rows' tokens and tells the host. A token of -1: there is a
 * logit that is not a number, or none has a share of all probability. */
template <typename T>
static __global__ void __launch_bounds__(THREADS)
    sample_tokens(const T *logits, int vocab, int32_t *sampled, sampled_rows *of,
                  const weft_cuda_run *run, told_run *told, unsigned number) {
    __shared__ bool last;
    int row = (int)blockIdx.y, rows = (int)gridDim.y;
    unsigned long long rank = best_of_warp(best_of_share(logits + (int64_t)row * vocab, vocab));
    if (threadIdx.x % 32 == 0) atomicMax(&of->best[row], rank);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) last = atomicAdd(&of->arrived, 1u) + 1 == gridDim.x * gridDim.y;
    __syncthreads();
    if (!last) return;
    __threadfence();
    for (int r = (int)threadIdx.x; r < rows; r += THREADS) {
        int32_t token = ranked_token(__ldcg(&of->best[r]));
        of->best[r] = 0;
        sampled[r] = token;
        *(volatile int32_t *)&told->token[r] = token;
    }
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x > 0) return;
    of->arrived = 0;
    tell_host(run, told, number);
}

/* A thread a row, of tokens that were drawn. */
static __global__ void tell_tokens(const int32_t *sampled, const weft_cuda_run *run, told_run *told,
                                   unsigned number) {
    *(volatile int32_t *)&told->token[threadIdx.x] = sampled[threadIdx.x];
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) tell_host(run, told, number);
}

static weft_status start(void *sampler, const weft_sampler_graph *g, const weft_run_rows *rows) {
    cuda_sampler *s = (cuda_sampler *)sampler;
    unsigned buffer = s->started % 2, count = (unsigned)rows->count;
    int vocab = (int)weft_tensor_width(g->logits);
    int32_t *sampled = s->sampled + buffer * ROWS;
    weft_cuda_run *run = device_run(g->exec);
    int64_t room = weft_tensor_count(g->slot);
    if (s->started - s->finished >= 2)
        return weft_fail(WEFT_EBUG, "cuda: two runs are under way already");
    if (rows->count < 1 || rows->count > room || room > ROWS)
        return weft_fail(WEFT_EBUG, "cuda: a run of %lld rows in a graph of %lld",
                         (long long)rows->count, (long long)room);
    WEFT_TRY(check_cuda(cudaSetDevice(weft_cuda_device_number()), "the GPU is gone"));
    row_inputs to = {data_of<int32_t>(g->exec, g->tokens), data_of<int32_t>(g->exec, g->position),
                     data_of<int32_t>(g->exec, g->slot), data_of<int32_t>(g->exec, g->wanted)};
    place_rows<<<1, (unsigned)room, 0, s->stream>>>(*rows, to, s->sampled + (1 - buffer) * ROWS,
                                                    run);
    WEFT_TRY(weft_cuda_follow(g->exec, s->stream));
    if (rows->draws) {
        draw_source from = {data_of<void>(g->exec, g->logits), g->logits->dtype, vocab,
                            weft_cuda_penalises(rows) ? to.token : NULL};
        WEFT_TRY(weft_cuda_draw(&s->draws, s->stream, &from, rows, buffer, sampled));
        tell_tokens<<<1, count, 0, s->stream>>>(sampled, run, s->told + buffer, s->started + 1);
    } else {
        int64_t shares = max_i64(1, multiprocessors() / rows->count);
        unsigned blocks = (unsigned)min_i64(ceil_div(vocab, THREADS * VECTOR), shares);
        with_type(g->logits, [&](auto tag) {
            using T = decltype(tag);
            sample_tokens<T><<<dim3(blocks, count), THREADS, 0, s->stream>>>(
                data_of<T>(g->exec, g->logits), vocab, sampled, s->best, run, s->told + buffer,
                s->started + 1);
        });
    }
    WEFT_TRY(check_cuda(cudaGetLastError(), "a run did not start"));
    s->graph[buffer] = *g;
    s->rows[buffer] = rows->count;
    s->started++;
    return WEFT_OK;
}

/* Watches the word that the last kernel sets; now and then asks whether it is still to come. */
static weft_status wait_for(cuda_sampler *s, unsigned buffer, unsigned number) {
    volatile unsigned *word = &s->told[buffer].number;
    for (unsigned spins = 1; *word != number; spins++) {
        if (spins % 65536) continue;
        cudaError_t error = cudaStreamQuery(s->stream);
        if (error == cudaErrorNotReady) continue;
        WEFT_TRY(check_cuda(error, "the run failed"));
        if (*word != number) return weft_fail(WEFT_EBUG, "cuda: a run ended without a word");
    }
    __sync_synchronize();
    return WEFT_OK;
}

static weft_status finish(void *sampler, int32_t *tokens) {
    cuda_sampler *s = (cuda_sampler *)sampler;
    unsigned buffer = s->finished % 2;
    if (s->finished == s->started) return weft_fail(WEFT_EBUG, "cuda: no run is under way");
    weft_status status = wait_for(s, buffer, s->finished + 1);
    s->finished++;
    WEFT_TRY(status);
    const told_run *told = s->told + buffer;
    if (told->fault != ~0ULL) return weft_cuda_explain(s->graph[buffer].exec, told->fault);
    memcpy(tokens, told->token, (size_t)s->rows[buffer] * sizeof *tokens);
    return WEFT_OK;
}

static weft_status read_logits(void *sampler, int64_t first, int64_t count, float *out) {
    cuda_sampler *s = (cuda_sampler *)sampler;
    const weft_sampler_graph *g = &s->graph[(s->finished + 1) % 2];
    int64_t vocab = weft_tensor_width(g->logits), size = g->logits->dtype == WEFT_BF16 ? 2 : 4;
    int64_t bytes = weft_tensor_bytes(g->logits);
    WEFT_TRY(weft_cuda_make_room(&s->logits, true, bytes, bytes, "no pinned memory for logits"));
    WEFT_TRY(check_cuda(
        cudaMemcpyAsync(s->logits.at, data_of<char>(g->exec, g->logits) + first * vocab * size,
                        (size_t)(count * vocab * size), cudaMemcpyDeviceToHost, s->stream),
        "logits were not copied"));
    WEFT_TRY(check_cuda(cudaStreamSynchronize(s->stream), "the run failed"));
    if (size == 4) {
        memcpy(out, s->logits.at, (size_t)(count * vocab) * sizeof *out);
        return WEFT_OK;
    }
    for (int64_t i = 0; i < count * vocab; i++)
        out[i] = weft_bf16_to_float(((const uint16_t *)s->logits.at)[i]);
    return WEFT_OK;
}

/* WEFT_CUDA_FOLD=0: nothing is folded. A launch less may add 8 MiB: so much is read while one starts. */
static weft_foldable folds(void) {
    const char *asked = getenv("WEFT_CUDA_FOLD");
    if (!weft_cuda_device()->wgmma || (asked && strcmp(asked, "0") == 0)) return weft_foldable{};
    return weft_foldable{STREAMED_NORM_WIDTH, 8 << 20};
}

/* As many as fill the GPU; without wgmma the products of training are faster than those of rows alone. */
static int64_t reads(void) {
    return weft_cuda_device()->wgmma ? READ_ROWS : 0;
}

extern "C" const struct weft_sampler_backend weft_cuda_samplers = {
    ROWS,   open_sampler, close_sampler,   set_pages, start,
    finish, read_logits,  weft_cuda_draws, folds,     reads,
};
