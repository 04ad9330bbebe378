/* Steps of generation in one launch (core/decoding.h): the memory of a step, and its launches. The phases are
 * in step_plan.cuh, the kernel in step_kernel.cuh.
 *
 * A launch has one block on every multiprocessor, all of them there at once. What changes
 * from step to step travels in the kernel's parameters, and what was sampled comes back by a word of
 * pinned host memory that the host watches, so that nothing is copied and nobody waits for a stream.
 * The next step may be started before that: it takes its tokens from the device's memory. Where tokens are
 * drawn, a few launches behind the step do that and tell the host in its place (draw.cu). */
#include "cuda/decode/step_plan.cuh"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern "C" const struct weft_step_backend weft_cuda_steps;

template <int MT, int DQ, int DV, bool JOINT>
static __global__ void __launch_bounds__(STEP_THREADS, 1)
    run_step(const __grid_constant__ step_problem p) {
    extern __shared__ __align__(16) char step_shared[];
    step_run_phases<MT, DQ, DV, JOINT>(p, step_shared);
}

/* Keys of a run. Partial results are a hundredth of what is read, and a short context still has a run
 * for every multiprocessor. */
enum { SHORT_RUN = 64, LONG_RUN = 128, SHORT = 2048 };

/* The same of blocks. */
enum { SHORT_SPAN = 384, LONG_SPAN = 1536, SHORT_SPANS = 4096 };

enum { JOIN_MOST = 16384 /* numbers of attention's parts that each block joins for itself */ };

template <int DQ, int DV, bool JOINT> static step_kernel kernel_for(bool many) {
    return many ? run_step<4, DQ, DV, JOINT> : run_step<1, DQ, DV, JOINT>;
}

/* Values that are the keys are read once where spans are, and else like others. */
static step_kernel kernel_of(const weft_step_form *f, bool many) {
    if (f->dqk == 64 && f->dv == 64) return kernel_for<2, 2, false>(many);
    if (f->dqk == 128 && f->dv == 64) return kernel_for<4, 2, false>(many);
    if (f->dqk == 128 && f->dv == 128 && f->joint) return kernel_for<4, 4, true>(many);
    if (f->dqk == 128 && f->dv == 128) return kernel_for<4, 4, false>(many);
    return NULL;
}

/* Shared memory for biases, at most. */
static int64_t list_bytes(const weft_step_form *f) {
    int64_t columns = f->heads * f->dqk + f->kv_heads * (f->dqk + f->dv) + 2 * f->width +
                      (f->gated ? 2 : 1) * f->hidden;
    int64_t tiles = columns / STEP_COLUMNS / weft_cuda_device()->multiprocessors;
    return f->layers * (tiles + 2 + 2 * STEP_TILES) * STEP_COLUMNS * (int64_t)sizeof(float);
}

static bool has_spans(const weft_step_form *f) {
    return step_has_spans((int)f->dqk / 32, (int)f->dv / 32);
}

/* Query heads that share a key head, at most. */
static int64_t most_heads(const weft_step_form *f) {
    static_assert((int)step_span<4, 4, 4>::GROUP <= (int)step_span<1, 4, 4>::GROUP, "the least");
    return has_spans(f) ? step_span<4, 4, 4>::GROUP : 16;
}

static bool suits(const weft_step_form *f) {
    const weft_cuda_facts *facts = weft_cuda_device();
    const char *asked = getenv("WEFT_CUDA_STEP");
    int64_t most = max_i64(step_shape<1>::BYTES, step_shape<4>::BYTES) + list_bytes(f);
    return !(asked && strcmp(asked, "0") == 0) && facts->code >= 80 &&
           facts->shared_memory >= most && kernel_of(f, false) && f->width % 64 == 0 &&
           f->width <= STEP_WIDTH && f->hidden % 64 == 0 && f->heads * f->dv % 64 == 0 &&
           f->heads / f->kv_heads <= most_heads(f) &&
           !(f->joint && (f->gaussian || f->dqk != f->dv)) &&
           !(f->rotated && (f->gaussian || f->joint));
}

/* Most runs of keys that a row has: by the shorter ones as far as they go, then by the longer. */
static int64_t runs_of(const step_problem &p, int64_t context) {
    int64_t few = min_i64(context, p.short_positions) / p.run_keys[0],
            many = context / p.run_keys[1];
    return max_i64(few, many) + 2;
}

static weft_status make_rotations(cuda_step *s) {
    int64_t half = s->form.dqk / 2;
    std::vector<double> rates;
    if (!s->form.rotated) return WEFT_OK;
    for (int64_t i = 0; i < half; i++)
        rates.push_back(weft_rope_rate(&s->form.law, i, s->form.dqk));
    WEFT_TRY(place(s, rates.data(), half * (int64_t)sizeof rates[0], (void **)&s->problem.rates));
    return place(s, NULL, STEP_ROWS * half * (int64_t)sizeof(float2),
                 (void **)&s->problem.rotations);
}

/* Inputs of products, stage by stage. */
static weft_status place_rows(cuda_step *s, int64_t columns, unsigned short **out) {
    int64_t stages = ceil_div(columns, STEP_STAGE);
    return place(s, NULL, stages * STEP_ROWS * STEP_STAGE * 2, (void **)out);
}

static weft_status make_buffers(cuda_step *s) {
    const weft_step_form *f = &s->form;
    step_problem *p = &s->problem;
    int64_t rows = STEP_ROWS;
    p->runs = (int)runs_of(*p, f->context);
    WEFT_TRY(place(s, NULL, rows * f->width * 4, (void **)&p->stream));
    WEFT_TRY(place(s, NULL, STEP_SPLITS * rows * f->width * 4, (void **)&p->sums));
    WEFT_TRY(place_rows(s, f->width, &p->normed));
    WEFT_TRY(place(s, NULL, 2 * STEP_FLAGGED * f->width * 8, (void **)&p->stream_flags));
    WEFT_TRY(place(s, NULL, STEP_FLAGGED * f->hidden * 4, (void **)&p->hidden_flags));
    WEFT_TRY(place(s, NULL, rows * f->heads * f->dqk * 2, (void **)&p->query));
    WEFT_TRY(place_rows(s, f->heads * f->dv, &p->found));
    WEFT_TRY(place_rows(s, f->hidden, &p->between));
    WEFT_TRY(
        place(s, NULL, rows * f->heads * p->runs * (f->dv + STEP_LINE) * 4, (void **)&p->parts));
    WEFT_TRY(place(s, NULL, rows * f->vocab * 4, (void **)&p->logits));
    WEFT_TRY(place(s, NULL, 2 * rows * 8, (void **)&p->sampled));
    WEFT_TRY(place(s, NULL, f->slots * f->table_pages * 4, (void **)&p->pages));
    WEFT_TRY(place(s, NULL, 128, (void **)&p->barrier));
    WEFT_TRY(place(s, NULL, rows * 4, (void **)&s->drawn));
    WEFT_TRY(place(s, NULL, rows * 4, (void **)&s->inputs));
    if (getenv("WEFT_CUDA_STEP_TIMES"))
        WEFT_TRY(place(s, NULL, (int64_t)s->phases.size() * STEP_MARKS * 8, (void **)&p->times));
    WEFT_TRY(check_cuda(
        cudaHostAlloc((void **)&s->told, 2 * STEP_ROWS * sizeof *s->told, cudaHostAllocMapped),
        "no pinned memory"));
    WEFT_TRY(check_cuda(
        cudaHostAlloc((void **)&s->told_step, 3 * sizeof *s->told_step, cudaHostAllocMapped),
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
    p->share = 1 / (float)p->width;
    while (1 << p->dqk_bits < p->dqk)
        p->dqk_bits++;
    while (1 << p->dv_bits < p->dv)
        p->dv_bits++;
    p->vocab = (int)f->vocab;
    p->gaussian = f->gaussian;
    p->rms = f->rms;
    p->rotated = f->rotated;
    p->gated = f->gated;
    p->amplitude = (float)f->law.amplitude;
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
    s->few_bytes = step_shape<1>::BYTES + (int)max_i64(s->whole.n_biases, s->split.n_biases) * 4;
    s->many_bytes = step_shape<4>::BYTES + s->split.n_biases * 4;
    WEFT_TRY(
        check_cuda(cudaFuncSetAttribute((const void *)s->few,
                                        cudaFuncAttributeMaxDynamicSharedMemorySize, s->few_bytes),
                   "no room for a step"));
    return check_cuda(cudaFuncSetAttribute((const void *)s->many,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize,
                                           s->many_bytes),
                      "no room for a step");
}

static int kind_of(const step_phase &f) {
    return f.kind == STEP_EMBED           ? 0
           : f.kind == STEP_ATTEND        ? 6
           : f.kind == STEP_JOIN          ? 7
           : f.kind == STEP_ADD           ? 8
           : f.target == STEP_TO_HEADS    ? 1
           : f.source == STEP_FROM_HEADS  ? 2
           : f.target == STEP_TO_HIDDEN   ? 3
           : f.source == STEP_FROM_HIDDEN ? 4
                                          : 5;
}

/* WEFT_CUDA_STEP_TIMES: what the phases of the last step took on the first multiprocessor, from mark to
 * mark, the last being until the next phase began. Of a product: its input is there, it is multiplied,
 * the warps' sums are in shared memory, the results are written. Of attention: the first keys are asked
 * for, they are there, the run is summed, its part is written. */
static void print_times(const cuda_step *s) {
    static const char *const kinds[] = {
        "embedding", "queries, keys, values", "out",       "in", "back", "head",
        "attention", "attention joined",      "sums added"};
    std::vector<long long> at(STEP_MARKS * s->phases.size());
    double between[9][STEP_MARKS] = {};
    int count[9] = {};
    cudaMemcpy(at.data(), s->problem.times, at.size() * sizeof at[0], cudaMemcpyDeviceToHost);
    for (size_t i = 0; i < s->phases.size(); i++) {
        const long long *mark = &at[STEP_MARKS * i];
        size_t next = i + 1;
        if (mark[0] == 0) continue; /* it was left out */
        while (next < s->phases.size() && at[STEP_MARKS * next] == 0)
            next++;
        int kind = kind_of(s->phases[i]), last = 0;
        for (int k = 1; k < STEP_MARKS; k++)
            if (mark[k] > mark[last]) {
                between[kind][k - 1] += (double)(mark[k] - mark[last]);
                last = k;
            }
        if (next < s->phases.size())
            between[kind][STEP_MARKS - 1] += (double)(at[STEP_MARKS * next] - mark[last]);
        count[kind]++;
    }
    fprintf(stderr, "%lld rows, %.1f us on the first multiprocessor\n",
            (long long)s->rows[(s->finished + 1) % 2], 1e-3 * (double)(at.back() - at.front()));
    for (int k = 0; k < 9; k++) {
        double all = 0, scale = count[k] ? 1e-3 / count[k] : 0;
        for (double part : between[k])
            all += part * scale;
        if (!count[k]) continue;
        fprintf(stderr, "%-22s %3d phases, %7.2f us each:", kinds[k], count[k], all);
        for (double part : between[k])
            fprintf(stderr, " %.2f", part * scale);
        fprintf(stderr, "\n");
    }
}

static void close_step(void *step) {
    cuda_step *s = (cuda_step *)step;
    if (!s) return;
    cudaSetDevice(weft_cuda_device_number());
    if (s->stream) cudaStreamSynchronize(s->stream);
    if (s->problem.times && s->finished) print_times(s);
    for (void *memory : s->memory)
        cudaFree(memory);
    weft_cuda_draws_close(s->draws);
    if (s->told) cudaFreeHost(s->told);
    if (s->told_step) cudaFreeHost(s->told_step);
    if (s->logits) cudaFreeHost(s->logits);
    if (s->stream) cudaStreamDestroy(s->stream);
    delete s;
}

static weft_status choose_runs(cuda_step *s) {
    step_problem *p = &s->problem;
    bool spans = has_spans(&s->form);
    p->run_keys[0] = spans ? (int)SHORT_SPAN : (int)SHORT_RUN;
    p->run_keys[1] = spans ? (int)LONG_SPAN : (int)LONG_RUN;
    p->short_positions = spans ? (int)SHORT_SPANS : (int)SHORT;
    const char *asked = getenv("WEFT_CUDA_STEP_RUNS");
    return asked ? weft_step_runs_read(asked, p->run_keys, &p->short_positions) : WEFT_OK;
}

/* How blocks work together. Flags are the fewer rows', and of models without pairs of columns. */
static void choose_form(cuda_step *s) {
    const weft_step_form *f = &s->form;
    int64_t deepest = max_i64(f->hidden, f->heads * f->dv);
    s->sums_whole = deepest <= step_shape<1>::PANEL;
    s->flagged = s->sums_whole && !f->rotated && !f->gated ? (int)STEP_FLAGGED : 0;
    s->flags = 1;
    s->overlaps = weft_cuda_device()->code >= 90;
}

static weft_status open_step(const weft_step_model *m, void **step) {
    cuda_step *s = new cuda_step();
    s->form = m->form;
    s->grid = weft_cuda_device()->multiprocessors;
    weft_status status = choose_runs(s);
    choose_form(s);
    describe(s, m);
    if (status == WEFT_OK)
        status = check_cuda(cudaSetDevice(weft_cuda_device_number()), "the GPU is gone");
    if (status == WEFT_OK)
        status =
            check_cuda(cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking), "no stream");
    if (status == WEFT_OK) status = add_phases(s, m);
    if (status == WEFT_OK) status = choose_kernels(s);
    if (status == WEFT_OK) status = make_rotations(s);
    if (status == WEFT_OK) status = make_buffers(s);
    if (status == WEFT_OK)
        status = check_cuda(cudaDeviceSynchronize(), "a step was not made ready");
    if (status != WEFT_OK) {
        close_step(s);
        return status;
    }
    *step = s;
    return WEFT_OK;
}

static weft_status set_pages(void *step, int64_t slot, const int32_t *pages) {
    cuda_step *s = (cuda_step *)step;
    WEFT_TRY(check_cuda(cudaSetDevice(weft_cuda_device_number()), "the GPU is gone"));
    return check_cuda(cudaMemcpyAsync((int *)s->problem.pages + slot * s->form.table_pages, pages,
                                      (size_t)s->form.table_pages * sizeof *pages,
                                      cudaMemcpyHostToDevice, s->stream),
                      "the table of pages was not copied");
}

static int64_t runs_at(const cuda_step *s, int64_t position) {
    int64_t keys = step_run_keys(s->problem, (int)position);
    int64_t seen = max_i64(0, position + 1 - s->form.context);
    return position / keys - seen / keys + 1;
}

/* Whether attention's parts are so few that each block may join them for itself, which saves a phase.
 * The sums are the same. */
static bool joins_late(const cuda_step *s, const weft_step_rows *rows) {
    int64_t numbers = 0;
    bool many = rows->count > 16 || !s->sums_whole;
    if (many && s->form.heads * s->form.dv > STEP_WIDTH) return false; /* one panel */
    for (int64_t r = 0; r < rows->count; r++) {
        int64_t runs = runs_at(s, rows->position[r]);
        if (runs > STEP_FEW_RUNS) return false;
        numbers += s->form.heads * runs * (s->form.dv + STEP_LINE);
    }
    return numbers <= JOIN_MOST;
}

/* One block a multiprocessor, which its shared memory sees to. They are all there at once: what runs
 * before them ends without them. */
static cudaError_t launch(const cuda_step *s, step_problem *p, bool many) {
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3((unsigned)s->grid);
    config.blockDim = dim3(STEP_THREADS);
    config.dynamicSmemBytes = (size_t)(many ? s->many_bytes : s->few_bytes);
    config.stream = s->stream;
    config.attrs = &early;
    config.numAttrs = s->overlaps ? 1 : 0;
    return cudaLaunchKernelEx(&config, many ? s->many : s->few, *p);
}

static void use_order(step_problem *p, const step_order &order) {
    p->weights = order.weights;
    p->pieces = order.pieces;
    p->biases = order.biases;
    p->n_biases = order.n_biases;
}

/* Phases that a step goes through, and how often its blocks meet. */
static void count_phases(const cuda_step *s, const step_problem &p, int64_t *phases,
                         int64_t *meetings) {
    *phases = 0;
    *meetings = 1; /* when the host is told */
    for (int i = 0; i < p.n_phases; i = step_behind(p, s->phases[(size_t)i], i)) {
        ++*phases;
        *meetings += i > 0 && !step_is_flagged(p, s->phases[(size_t)i]);
    }
}

/* The rows' tokens, of which some were sampled by the step before. */
static __global__ void list_inputs(weft_step_rows rows, const unsigned long long *before,
                                   int32_t *inputs) {
    int r = (int)threadIdx.x, token = rows.token[r];
    inputs[r] = token < 0 ? max(ranked_token(before[-1 - token]), 0) : token;
}

/* Puts what was drawn where the next step looks for its tokens, and tells the host. A thread a row. */
static __global__ void tell_drawn(const int32_t *drawn, unsigned long long *sampled,
                                  volatile int *told, volatile unsigned *told_step, unsigned step) {
    int r = (int)threadIdx.x, token = drawn[r];
    sampled[r] = token < 0 ? 0 : rank_logit(0, token);
    told[r] = token;
    __threadfence_system();
    __syncthreads();
    if (r == 0) *told_step = step;
}

static weft_status draw_tokens(cuda_step *s, const weft_step_rows *rows, int buffer) {
    unsigned long long *sampled = s->problem.sampled;
    unsigned count = (unsigned)rows->count;
    bool penalises = weft_cuda_penalises(rows);
    draw_source from = {s->problem.logits, WEFT_F32, s->problem.vocab,
                        penalises ? s->inputs : NULL};
    if (penalises)
        list_inputs<<<1, count, 0, s->stream>>>(*rows, sampled + (1 - buffer) * STEP_ROWS,
                                                s->inputs);
    WEFT_TRY(weft_cuda_draw(&s->draws, s->stream, &from, rows, (unsigned)buffer, s->drawn));
    tell_drawn<<<1, count, 0, s->stream>>>(s->drawn, sampled + buffer * STEP_ROWS,
                                           s->told + buffer * STEP_ROWS, s->told_step + buffer,
                                           s->started + 1);
    return check_cuda(cudaGetLastError(), "a draw did not start");
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
        p.settled[r] = r && rows->slot[r] == rows->slot[r - 1] ? p.settled[r - 1] : p.position[r];
        p.live_runs = (int)max_i64(p.live_runs, runs_at(s, rows->position[r]));
    }
    p.buffer = (int)(s->started % 2);
    p.joins_late = joins_late(s, rows);
    p.arrived = s->arrived;
    p.step = s->started + 1;
    p.told = s->told + p.buffer * STEP_ROWS;
    p.told_step = s->told_step + (rows->draws ? 2 : p.buffer);
    bool many = rows->count > 16 || !s->sums_whole;
    p.whole = !many;
    p.flagged = p.whole && rows->count <= s->flagged;
    p.flags = s->flags;
    if (p.flagged) s->flags += (unsigned)p.n_phases;
    use_order(&p, p.whole ? s->whole : s->split);
    WEFT_TRY(check_cuda(cudaSetDevice(weft_cuda_device_number()), "the GPU is gone"));
    WEFT_TRY(check_cuda(launch(s, &p, many), "a step did not start"));
    int64_t meetings;
    count_phases(s, p, &s->ran, &meetings);
    s->arrived += (unsigned)(s->grid * meetings);
    if (rows->draws) WEFT_TRY(draw_tokens(s, rows, p.buffer));
    s->rows[p.buffer] = rows->count;
    s->started++;
    return WEFT_OK;
}

/* Watches the word that the kernel sets; now and then asks whether the kernel is still there. */
static weft_status wait_for(cuda_step *s, unsigned buffer, unsigned number) {
    volatile unsigned *word = s->told_step + buffer;
    for (unsigned spins = 1; *word != number; spins++) {
        if (spins % 65536) continue;
        cudaError_t error = cudaStreamQuery(s->stream);
        if (error == cudaErrorNotReady) continue;
        WEFT_TRY(check_cuda(error, "a step failed"));
        if (*word != number) return weft_fail(WEFT_EBUG, "cuda: a step ended without a word");
    }
    __sync_synchronize();
    return WEFT_OK;
}

static weft_status finish(void *step, int32_t *tokens) {
    cuda_step *s = (cuda_step *)step;
    unsigned buffer = s->finished % 2;
    if (s->finished == s->started) return weft_fail(WEFT_EBUG, "cuda: no step is under way");
    WEFT_TRY(wait_for(s, buffer, s->finished + 1));
    memcpy(tokens, s->told + buffer * STEP_ROWS, (size_t)s->rows[buffer] * sizeof *tokens);
    s->finished++;
    return WEFT_OK;
}

static weft_status read_logits(void *step, int64_t first, int64_t count, float *out) {
    cuda_step *s = (cuda_step *)step;
    size_t vocab = (size_t)s->form.vocab, bytes = (size_t)count * vocab * sizeof *out;
    if (!s->logits)
        WEFT_TRY(check_cuda(cudaMallocHost((void **)&s->logits, STEP_ROWS * vocab * sizeof *out),
                            "no pinned memory for logits"));
    WEFT_TRY(check_cuda(cudaMemcpyAsync(s->logits, s->problem.logits + first * (int64_t)vocab,
                                        bytes, cudaMemcpyDeviceToHost, s->stream),
                        "logits were not copied"));
    WEFT_TRY(check_cuda(cudaStreamSynchronize(s->stream), "a step failed"));
    memcpy(out, s->logits, bytes);
    return WEFT_OK;
}

static int64_t phases(const void *step) {
    return ((const cuda_step *)step)->ran;
}

/* Launches `count` phases of no rows; milliseconds, or 0. */
static float time_phases(cuda_step *s, const step_phase *phases, int count, cudaEvent_t *mark) {
    step_problem p = s->problem;
    float taken = 0;
    p.phases = phases;
    p.n_phases = count;
    p.rows = 0;
    use_order(&p, s->split);
    p.buffer = (int)(s->started % 2);
    p.arrived = s->arrived;
    p.told = s->told + p.buffer * STEP_ROWS;
    p.told_step = s->told_step + 2;
    p.times = NULL;
    cudaEventRecord(mark[0], s->stream);
    if (launch(s, &p, true) != cudaSuccess) return 0;
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
    suits,       open_step, close_step,    set_pages,    start,           finish,
    read_logits, phases,    phase_seconds, weight_bytes, weft_cuda_draws,
};
