/* Steps of generation in one launch (ops/step.h): the memory of a step, its list of phases, and its
 * launches. The kernel is step_kernel.cuh.
 *
 * A launch has one block on every multiprocessor, all of them there at once. What changes
 * from step to step travels in the kernel's parameters, and what was picked comes back by a word of
 * pinned host memory that the host watches, so that nothing is copied and nobody waits for a stream.
 * The next step may be started before that: it takes its tokens from the device's memory. */
#include "cuda/decode/step_kernel.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

extern "C" {
#include "ops/step.h"

extern const struct weft_step_backend weft_cuda_steps;
}

static_assert((int)STEP_ROWS == (int)WEFT_STEP_ROWS && (int)STEP_CHUNK == (int)WEFT_STEP_CHUNK &&
                  (int)STEP_COLUMNS == (int)WEFT_STEP_COLUMNS,
              "weights are packed for this kernel");

template <int MT, int DQ, int DV>
static __global__ void __launch_bounds__(STEP_THREADS, 1)
    run_step(const __grid_constant__ step_problem p) {
    extern __shared__ __align__(16) char step_shared[];
    step_run_phases<MT, DQ, DV>(p, step_shared);
}

typedef void (*step_kernel)(step_problem);

/* Keys of a run. Partial results are a hundredth of what is read, and a short context still has a run
 * for every multiprocessor. */
enum { SHORT_RUN = 64, LONG_RUN = 128 };

enum { JOIN_MOST = 16384 /* numbers of attention's parts that each block joins for itself */ };

struct cuda_step {
    weft_step_form form;
    step_problem problem;
    step_kernel few, many; /* up to 16 rows, and up to 64 */
    int grid, few_bytes, many_bytes;
    cudaStream_t stream;
    std::vector<void *> memory;
    std::vector<step_phase> phases;
    std::vector<const weft_step_matrix *> matrices; /* of the phases, while it is opened */
    int shift;                                      /* of the next product */
    int64_t weight_bytes;
    int32_t *told;       /* host, pinned: [2, ROWS] */
    unsigned *told_step; /* [2] */
    float *logits;       /* host, pinned: [ROWS, V], made when first asked for */
    unsigned started, finished;
    unsigned arrived; /* blocks at the barrier by the end of all that was started */
    int64_t rows[2];
};

static weft_status check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return WEFT_OK;
    cudaGetLastError();
    return weft_fail(error == cudaErrorMemoryAllocation ? WEFT_ENOMEM : WEFT_EIO, "cuda: %s: %s",
                     what, cudaGetErrorString(error));
}

static step_kernel kernel_of(const weft_step_form *f, bool many) {
    if (f->dqk == 64 && f->dv == 64) return many ? run_step<4, 2, 2> : run_step<1, 2, 2>;
    if (f->dqk == 128 && f->dv == 64) return many ? run_step<4, 4, 2> : run_step<1, 4, 2>;
    if (f->dqk == 128 && f->dv == 128) return many ? run_step<4, 4, 4> : run_step<1, 4, 4>;
    return NULL;
}

static bool suits(const weft_step_form *f) {
    const weft_cuda_facts *facts = weft_cuda_device();
    const char *asked = getenv("WEFT_CUDA_STEP");
    int most =
        step_shape<1>::BYTES > step_shape<4>::BYTES ? step_shape<1>::BYTES : step_shape<4>::BYTES;
    return !(asked && strcmp(asked, "0") == 0) && facts->code >= 80 &&
           facts->shared_memory >= most && kernel_of(f, false) && f->width % STEP_CHUNK == 0 &&
           f->width <= STEP_WIDTH && f->hidden % STEP_CHUNK == 0 && f->heads / f->kv_heads <= 16 &&
           !(f->joint && (f->gaussian || f->dqk != f->dv));
}

/* Room on the device; with `from`, filled. */
static weft_status place(cuda_step *s, const void *from, int64_t bytes, void **out) {
    *out = NULL;
    if (bytes == 0) return WEFT_OK;
    WEFT_TRY(check(cudaMalloc(out, (size_t)bytes), "no memory for a step"));
    s->memory.push_back(*out);
    cudaError_t error = from ? cudaMemcpy(*out, from, (size_t)bytes, cudaMemcpyHostToDevice)
                             : cudaMemset(*out, 0, (size_t)bytes);
    return check(error, "a step's memory was not filled");
}

static weft_status place_floats(cuda_step *s, const float *from, int64_t count, const float **out) {
    return from ? place(s, from, count * (int64_t)sizeof *from, (void **)out) : WEFT_OK;
}

static weft_status add_product(cuda_step *s, const weft_step_matrix *m, step_source source,
                               step_target target, step_phase f) {
    f.kind = STEP_PRODUCT;
    f.source = source;
    f.target = target;
    f.columns = (int)m->columns;
    f.depth = (int)m->depth;
    f.tiles = (int)ceil_div(m->columns, STEP_COLUMNS);
    f.chunks = (int)(m->depth / STEP_CHUNK);
    f.shift = s->shift;
    /* The next product begins where this one ends, so that blocks have equal shares in all. */
    s->shift = (s->shift + f.tiles) % s->grid;
    s->weight_bytes += weft_step_packed(m->columns, m->depth) * 2;
    WEFT_TRY(place_floats(s, m->bias, m->columns, &f.bias));
    s->phases.push_back(f);
    s->matrices.push_back(m);
    return WEFT_OK;
}

static void add_phase(cuda_step *s, step_kind kind, step_phase f) {
    f.kind = kind;
    s->phases.push_back(f);
    s->matrices.push_back(NULL);
}

static weft_status add_layer(cuda_step *s, const weft_step_layer *l) {
    int64_t heads = s->form.heads;
    step_phase f = {};
    f.keys = (char *)l->keys;
    f.values = (char *)(s->form.joint ? l->keys : l->values);
    WEFT_TRY(add_product(s, &l->heads, STEP_FROM_STREAM, STEP_TO_HEADS, f));
    std::vector<float> scale(l->scale, l->scale + heads), beta;
    if (l->beta) beta.assign(l->beta, l->beta + heads);
    for (int64_t h = 0; h < heads; h++) {
        scale[(size_t)h] *= LOG2E;
        if (l->beta) beta[(size_t)h] *= LOG2E;
    }
    WEFT_TRY(place_floats(s, scale.data(), heads, &f.scale));
    WEFT_TRY(place_floats(s, l->beta ? beta.data() : NULL, heads, &f.beta));
    add_phase(s, STEP_ATTEND, f);
    add_phase(s, STEP_JOIN, {});
    WEFT_TRY(add_product(s, &l->out, STEP_FROM_HEADS, STEP_TO_STREAM, {}));
    WEFT_TRY(add_product(s, &l->in, STEP_FROM_STREAM, STEP_TO_HIDDEN, {}));
    return add_product(s, &l->back, STEP_FROM_HIDDEN, STEP_TO_STREAM, {});
}

/* Calls visit(matrix, tile, slot) for each piece of a block's weights in the order of use, which is
 * that of step_product. */
template <typename F> static void walk_pieces(const cuda_step *s, int block, F visit) {
    for (size_t i = 0; i < s->phases.size(); i++) {
        const step_phase &f = s->phases[i];
        if (f.kind != STEP_PRODUCT) continue;
        int first = (block - f.shift + s->grid) % s->grid;
        for (int tile = first; tile < f.tiles; tile += STEP_TILES * s->grid)
            for (int slot = 0; slot < step_slots(f.chunks); slot++)
                for (int g = 0; g < STEP_TILES && tile + g * s->grid < f.tiles; g++)
                    visit(s->matrices[i], tile + g * s->grid, slot);
    }
}

/* A piece has a chunk of the tile for each warp, and zeros where there are no more. */
static weft_status lay_out_weights(cuda_step *s) {
    enum { CHUNK = STEP_COLUMNS * STEP_CHUNK };
    std::vector<int> pieces(1, 0);
    int count = 0;
    for (int b = 0; b < s->grid; b++) {
        walk_pieces(s, b, [&](const weft_step_matrix *, int, int) { count++; });
        pieces.push_back(count);
    }
    std::vector<uint16_t> weights((size_t)count * STEP_WARPS * CHUNK);
    uint16_t *to = weights.data();
    for (int b = 0; b < s->grid; b++)
        walk_pieces(s, b, [&](const weft_step_matrix *m, int tile, int slot) {
            int64_t chunks = m->depth / STEP_CHUNK;
            for (int64_t w = 0; w < STEP_WARPS; w++, to += CHUNK) {
                int64_t chunk = slot * STEP_WARPS + w;
                if (chunk < chunks)
                    memcpy(to, m->weights + (tile * chunks + chunk) * CHUNK, CHUNK * sizeof *to);
            }
        });
    WEFT_TRY(place(s, weights.data(), (int64_t)(weights.size() * sizeof weights[0]),
                   (void **)&s->problem.weights));
    return place(s, pieces.data(), (int64_t)(pieces.size() * sizeof pieces[0]),
                 (void **)&s->problem.pieces);
}

static weft_status add_phases(cuda_step *s, const weft_step_model *m) {
    add_phase(s, STEP_EMBED, {});
    for (int64_t i = 0; i < m->form.layers; i++)
        WEFT_TRY(add_layer(s, m->layer + i));
    WEFT_TRY(add_product(s, &m->head, STEP_FROM_STREAM, STEP_TO_LOGITS, {}));
    WEFT_TRY(lay_out_weights(s));
    s->matrices.clear();
    s->problem.n_phases = (int)s->phases.size();
    return place(s, s->phases.data(), (int64_t)(s->phases.size() * sizeof(step_phase)),
                 (void **)&s->problem.phases);
}

/* Most runs of keys that a row has: by the shorter ones as far as they go, then by the longer. */
static int64_t runs_of(const step_problem &p, int64_t context) {
    int64_t few = min_i64(context, STEP_SHORT) / p.run_keys[0], many = context / p.run_keys[1];
    return max_i64(few, many) + 2;
}

static weft_status make_buffers(cuda_step *s) {
    const weft_step_form *f = &s->form;
    step_problem *p = &s->problem;
    int64_t rows = STEP_ROWS, found = f->heads * f->dv;
    p->runs = (int)runs_of(*p, f->context);
    WEFT_TRY(place(s, NULL, rows * f->width * 4, (void **)&p->stream));
    WEFT_TRY(place(s, NULL, rows * f->heads * f->dqk * 2, (void **)&p->query));
    WEFT_TRY(place(s, NULL, rows * found * 2, (void **)&p->found));
    WEFT_TRY(place(s, NULL, rows * f->hidden * 2, (void **)&p->between));
    WEFT_TRY(
        place(s, NULL, rows * f->heads * p->runs * (f->dv + STEP_LINE) * 4, (void **)&p->parts));
    WEFT_TRY(place(s, NULL, rows * f->vocab * 4, (void **)&p->logits));
    WEFT_TRY(place(s, NULL, 2 * rows * 8, (void **)&p->picked));
    WEFT_TRY(place(s, NULL, f->slots * f->table_pages * 4, (void **)&p->pages));
    WEFT_TRY(place(s, NULL, 128, (void **)&p->barrier));
    if (getenv("WEFT_CUDA_STEP_TIMES"))
        WEFT_TRY(place(s, NULL, (int64_t)s->phases.size() * 16, (void **)&p->times));
    WEFT_TRY(check(
        cudaHostAlloc((void **)&s->told, 2 * STEP_ROWS * sizeof *s->told, cudaHostAllocMapped),
        "no pinned memory"));
    WEFT_TRY(
        check(cudaHostAlloc((void **)&s->told_step, 2 * sizeof *s->told_step, cudaHostAllocMapped),
              "no pinned memory"));
    s->told_step[0] = s->told_step[1] = 0;
    return WEFT_OK;
}

static void describe(cuda_step *s, const weft_step_model *m) {
    const weft_step_form *f = &s->form;
    step_problem *p = &s->problem;
    p->width = (int)f->width;
    p->hidden = (int)f->hidden;
    p->heads = (int)f->heads;
    p->kv_heads = (int)f->kv_heads;
    p->group = (int)(f->heads / f->kv_heads);
    p->dqk = (int)f->dqk;
    p->dv = (int)f->dv;
    p->vocab = (int)f->vocab;
    p->gaussian = f->gaussian;
    p->rms = f->rms;
    p->eps = (float)f->eps;
    p->table = m->table;
    p->place = m->place;
    p->table_is_bf16 = m->table_dtype == WEFT_BF16;
    p->place_is_bf16 = m->place_dtype == WEFT_BF16;
    p->table_pages = (int)f->table_pages;
    p->context = (int)f->context;
    p->numbers = f->kv_heads * 16 * f->dqk * 2;
    p->key_bytes = p->numbers + (f->gaussian ? f->kv_heads * 16 * 4 : 0);
    p->value_bytes = f->kv_heads * 16 * f->dv * 2;
}

static weft_status choose_kernels(cuda_step *s) {
    s->few = kernel_of(&s->form, false);
    s->many = kernel_of(&s->form, true);
    int list = (int)((6 * s->form.layers + 2) * (int64_t)sizeof(step_phase));
    s->few_bytes = step_shape<1>::BYTES + list;
    s->many_bytes = step_shape<4>::BYTES + list;
    WEFT_TRY(check(cudaFuncSetAttribute((const void *)s->few,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, s->few_bytes),
                   "no room for a step"));
    return check(cudaFuncSetAttribute((const void *)s->many,
                                      cudaFuncAttributeMaxDynamicSharedMemorySize, s->many_bytes),
                 "no room for a step");
}

/* WEFT_CUDA_STEP_TIMES: what the phases of the last step took, on the first multiprocessor: its own
 * work, and until the next phase began. */
static void print_times(const cuda_step *s) {
    static const char *const kinds[] = {
        "embedding", "queries, keys, values", "out", "in", "back", "head",
        "attention", "attention joined"};
    std::vector<long long> at(2 * s->phases.size());
    double work[8] = {}, rest[8] = {}, clock = weft_cuda_device()->clock;
    int count[8] = {};
    cudaMemcpy(at.data(), s->problem.times, at.size() * sizeof at[0], cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < s->phases.size(); i++) {
        const step_phase &f = s->phases[i];
        size_t next = i + 1;
        if (at[2 * i] == 0) continue; /* it was left out */
        while (next < s->phases.size() && at[2 * next] == 0)
            next++;
        int kind = f.kind == STEP_EMBED           ? 0
                   : f.kind == STEP_ATTEND        ? 6
                   : f.kind == STEP_JOIN          ? 7
                   : f.target == STEP_TO_HEADS    ? 1
                   : f.source == STEP_FROM_HEADS  ? 2
                   : f.target == STEP_TO_HIDDEN   ? 3
                   : f.source == STEP_FROM_HIDDEN ? 4
                                                  : 5;
        work[kind] += (double)(at[2 * i + 1] - at[2 * i]);
        if (next < s->phases.size()) rest[kind] += (double)(at[2 * next] - at[2 * i + 1]);
        count[kind]++;
    }
    fprintf(stderr, "%lld rows, %.1f us by the first multiprocessor's clock of %.0f MHz\n",
            (long long)s->rows[(s->finished + 1) % 2],
            1e6 * (double)(at.back() - at.front()) / clock, 1e-6 * clock);
    for (int k = 0; k < 8; k++)
        if (count[k])
            fprintf(stderr, "%-22s %3d phases, %7.2f us each: work %7.2f, to the next %7.2f\n",
                    kinds[k], count[k], 1e6 * (work[k] + rest[k]) / clock / count[k],
                    1e6 * work[k] / clock / count[k], 1e6 * rest[k] / clock / count[k]);
}

static void close_step(void *step) {
    cuda_step *s = (cuda_step *)step;
    if (!s) return;
    cudaSetDevice(weft_cuda_device_number());
    if (s->stream) cudaStreamSynchronize(s->stream);
    if (s->problem.times && s->finished) print_times(s);
    for (void *memory : s->memory)
        cudaFree(memory);
    if (s->told) cudaFreeHost(s->told);
    if (s->told_step) cudaFreeHost(s->told_step);
    if (s->logits) cudaFreeHost(s->logits);
    if (s->stream) cudaStreamDestroy(s->stream);
    delete s;
}

static weft_status open_step(const weft_step_model *m, void **step) {
    cuda_step *s = new cuda_step();
    s->form = m->form;
    s->grid = weft_cuda_device()->multiprocessors;
    s->problem.run_keys[0] = SHORT_RUN;
    s->problem.run_keys[1] = LONG_RUN;
    describe(s, m);
    weft_status status = check(cudaSetDevice(weft_cuda_device_number()), "the GPU is gone");
    if (status == WEFT_OK) status = choose_kernels(s);
    if (status == WEFT_OK)
        status = check(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "no stream");
    if (status == WEFT_OK) status = add_phases(s, m);
    if (status == WEFT_OK) status = make_buffers(s);
    if (status == WEFT_OK) status = check(cudaDeviceSynchronize(), "a step was not made ready");
    if (status != WEFT_OK) {
        close_step(s);
        return status;
    }
    *step = s;
    return WEFT_OK;
}

static void set_pages(void *step, int64_t slot, const int32_t *pages) {
    cuda_step *s = (cuda_step *)step;
    cudaSetDevice(weft_cuda_device_number());
    cudaMemcpyAsync((int *)s->problem.pages + slot * s->form.table_pages, pages,
                    (size_t)s->form.table_pages * sizeof *pages, cudaMemcpyHostToDevice, s->stream);
}

/* Whether attention's parts are so few that each block may join them for itself, which saves a phase.
 * The sums are the same. */
static bool joins_late(const cuda_step *s, const weft_step_rows *rows) {
    int64_t numbers = 0;
    for (int64_t r = 0; r < rows->count; r++) {
        int64_t keys = step_run_keys(s->problem, rows->position[r]), last = rows->position[r];
        int64_t seen = max_i64(0, last + 1 - s->form.context), runs = last / keys - seen / keys + 1;
        if (runs > STEP_FEW_RUNS) return false;
        numbers += s->form.heads * runs * (s->form.dv + STEP_LINE);
    }
    return numbers <= JOIN_MOST;
}

/* One block a multiprocessor, which its shared memory sees to. They are all there at once: what runs
 * before them ends without them. */
static cudaError_t launch(const cuda_step *s, step_problem *p, bool many) {
    void *arguments[] = {p};
    const void *kernel = (const void *)(many ? s->many : s->few);
    size_t bytes = (size_t)(many ? s->many_bytes : s->few_bytes);
    dim3 grid((unsigned)s->grid), block(STEP_THREADS);
    return cudaLaunchKernel(kernel, grid, block, arguments, bytes, s->stream);
}

static weft_status start(void *step, const weft_step_rows *rows) {
    cuda_step *s = (cuda_step *)step;
    step_problem p = s->problem;
    if (s->started - s->finished >= 2)
        return weft_fail(WEFT_EBUG, "cuda: two steps are under way already");
    p.rows = (int)rows->count;
    while (1 << p.row_bits < p.rows)
        p.row_bits++;
    for (int64_t r = 0; r < rows->count; r++) {
        p.token[r] = rows->token[r];
        p.position[r] = rows->position[r];
        p.slot[r] = rows->slot[r];
    }
    p.turn = (int)(s->started % 2);
    p.joins_late = joins_late(s, rows);
    p.arrived = s->arrived;
    p.step = s->started + 1;
    p.told = s->told + p.turn * STEP_ROWS;
    p.told_step = s->told_step + p.turn;
    bool many = rows->count > 16;
    WEFT_TRY(check(cudaSetDevice(weft_cuda_device_number()), "the GPU is gone"));
    WEFT_TRY(check(launch(s, &p, many), "a step did not start"));
    int64_t meetings = p.n_phases - (p.joins_late ? s->form.layers : 0);
    s->arrived += (unsigned)(s->grid * meetings);
    s->rows[p.turn] = rows->count;
    s->started++;
    return WEFT_OK;
}

/* Watches the word that the kernel sets; now and then asks whether the kernel is still there. */
static weft_status wait_for(cuda_step *s, unsigned turn, unsigned number) {
    volatile unsigned *word = s->told_step + turn;
    for (unsigned spins = 1; *word != number; spins++) {
        if (spins % 65536) continue;
        cudaError_t error = cudaStreamQuery(s->stream);
        if (error == cudaErrorNotReady) continue;
        WEFT_TRY(check(error, "a step failed"));
        if (*word != number) return weft_fail(WEFT_EBUG, "cuda: a step ended without a word");
    }
    __sync_synchronize();
    return WEFT_OK;
}

static weft_status finish(void *step, int32_t *tokens) {
    cuda_step *s = (cuda_step *)step;
    unsigned turn = s->finished % 2;
    if (s->finished == s->started) return weft_fail(WEFT_EBUG, "cuda: no step is under way");
    WEFT_TRY(wait_for(s, turn, s->finished + 1));
    memcpy(tokens, s->told + turn * STEP_ROWS, (size_t)s->rows[turn] * sizeof *tokens);
    s->finished++;
    return WEFT_OK;
}

static weft_status read_logits(void *step, int64_t first, int64_t count, float *out) {
    cuda_step *s = (cuda_step *)step;
    size_t vocab = (size_t)s->form.vocab, bytes = (size_t)count * vocab * sizeof *out;
    if (!s->logits)
        WEFT_TRY(check(cudaMallocHost((void **)&s->logits, STEP_ROWS * vocab * sizeof *out),
                       "no pinned memory for logits"));
    WEFT_TRY(check(cudaMemcpyAsync(s->logits, s->problem.logits + first * (int64_t)vocab, bytes,
                                   cudaMemcpyDeviceToHost, s->stream),
                   "logits were not copied"));
    WEFT_TRY(check(cudaStreamSynchronize(s->stream), "a step failed"));
    memcpy(out, s->logits, bytes);
    return WEFT_OK;
}

static int64_t phases(const void *step) {
    return ((const cuda_step *)step)->problem.n_phases;
}

/* Launches `count` phases of no rows; milliseconds, or 0. */
static float time_phases(cuda_step *s, const step_phase *phases, int count, cudaEvent_t *mark) {
    step_problem p = s->problem;
    float taken = 0;
    p.phases = phases;
    p.n_phases = count;
    p.rows = 0;
    p.turn = (int)(s->started % 2);
    p.arrived = s->arrived;
    p.told = s->told + p.turn * STEP_ROWS;
    p.told_step = s->told_step + 1 - p.turn; /* nobody watches it now */
    p.times = NULL;
    cudaEventRecord(mark[0], s->stream);
    if (launch(s, &p, false) != cudaSuccess) return 0;
    s->arrived += (unsigned)(s->grid * count);
    cudaEventRecord(mark[1], s->stream);
    if (cudaEventSynchronize(mark[1]) != cudaSuccess) return 0;
    cudaEventElapsedTime(&taken, mark[0], mark[1]);
    return taken;
}

static double phase_seconds(void *step) {
    enum { TIMES = 10 };
    cuda_step *s = (cuda_step *)step;
    int many = s->problem.n_phases;
    std::vector<step_phase> empty((size_t)many);
    step_phase *phases = NULL;
    cudaEvent_t mark[2];
    cudaSetDevice(weft_cuda_device_number());
    for (step_phase &f : empty)
        f = {}, f.kind = STEP_JOIN;
    if (place(s, empty.data(), (int64_t)((size_t)many * sizeof empty[0]), (void **)&phases) !=
        WEFT_OK)
        return 0;
    cudaEventCreate(&mark[0]);
    cudaEventCreate(&mark[1]);
    double all = 1e9, one = 1e9;
    for (int i = 0; i < TIMES; i++) {
        all = fmin(all, (double)time_phases(s, phases, many, mark));
        one = fmin(one, (double)time_phases(s, phases, 1, mark));
    }
    cudaEventDestroy(mark[0]);
    cudaEventDestroy(mark[1]);
    return all > one ? 1e-3 * (all - one) / (many - 1) : 0;
}

static int64_t weight_bytes(const void *step) {
    return ((const cuda_step *)step)->weight_bytes;
}

const struct weft_step_backend weft_cuda_steps = {
    suits,  open_step,   close_step, set_pages,     start,
    finish, read_logits, phases,     phase_seconds, weight_bytes,
};
