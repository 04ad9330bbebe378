/* Draws of tokens (core/draw.h) where the logits are.
 *
 * Three kernels: the largest logit of each row; the weights, by as many blocks as the device has room for;
 * and a block a row that chooses. With a penalty a kernel before them marks the tokens that were seen.
 *
 * Nothing is sorted. Where the order is that of tokens, each warp adds up its share of the row, and the share
 * in which the sum exceeds the target is looked through. Where it is that of weights, they are counted and
 * added up in bins: by their leading bits first, then those of the bin where the target is exceeded by the
 * bits behind, until the bin has one token or one weight. All rules are such searches, since each leaves the
 * beginning of one order: what the next one needs is its sum. Sums are integers, so it does not matter that
 * threads add to the bins in any order. */
#include "cuda/decode/draw.cuh"

typedef unsigned long long whole;

static_assert(sizeof(whole) == sizeof(uint64_t), "weights are whole numbers of 64 bits");

enum {
    THREADS = 1024, /* that choose */
    WARPS = THREADS / 32,
    SPREAD = 256, /* threads that rank and weigh */
    PART = 4 * SPREAD,
    LEADING = 5,                /* bits behind the first that is set */
    FIRST_BINS = 40 << LEADING, /* a weight has 40 bits at most */
    FINER_BITS = 11,
    FINER_BINS = 1 << FINER_BITS
};

/* What a row's token is drawn by, on the device. */
struct draw_rule {
    double scale, top_p, penalty;
    whole random, least, top_k;
    int seen, n_seen; /* where in the list of seen tokens, and how many */
    int slot;
};

struct draw_problem {
    int vocab, words; /* words: of 32 tokens' marks */
    const draw_rule *rules;
    const int32_t *seen, *inputs;
    whole *most;     /* [rows]: the largest rank */
    unsigned *marks; /* [rows, words]: a bit of each token, of rows with a penalty */
    whole *weights;  /* [rows, vocab] */
    int32_t *tokens;
};

/* A block a row. */
static __global__ void mark_seen(draw_problem p) {
    int row = (int)blockIdx.x;
    const draw_rule &rule = p.rules[row];
    if (rule.penalty == 1) return;
    for (int i = (int)threadIdx.x; i < rule.n_seen + row + 1; i += (int)blockDim.x) {
        int behind = i - rule.n_seen; /* the list are the rows of this run */
        if (behind >= 0 && p.rules[behind].slot != rule.slot) continue;
        int token = behind < 0 ? p.seen[rule.seen + i] : p.inputs[behind];
        if (token >= 0 && token < p.vocab)
            atomicOr(p.marks + (int64_t)row * p.words + token / 32, 1u << token % 32);
    }
}

template <typename T>
__device__ static inline float used_logit(const draw_problem &p, const T *logits,
                                          const draw_rule &rule, int row, int i) {
    float v = to_float(logits[(int64_t)row * p.vocab + i]);
    bool seen = rule.penalty != 1 && (p.marks[(int64_t)row * p.words + i / 32] >> i % 32 & 1u) != 0;
    return seen ? weft_draw_penalised(v, rule.penalty) : v;
}

template <typename T> static __global__ void rank_tokens(draw_problem p, const T *logits) {
    int row = (int)blockIdx.y, from = (int)blockIdx.x * PART, to = min(from + PART, p.vocab);
    const draw_rule &rule = p.rules[row];
    whole best = 0;
    for (int i = from + (int)threadIdx.x; i < to; i += SPREAD) {
        whole rank = rank_logit(used_logit(p, logits, rule, row, i), i);
        best = rank > best ? rank : best;
    }
    best = best_of_warp(best);
    if (threadIdx.x % 32 == 0) atomicMax(p.most + row, best);
}

template <typename T> static __global__ void weigh_tokens(draw_problem p, const T *logits) {
    int row = (int)blockIdx.y, from = (int)blockIdx.x * PART, to = min(from + PART, p.vocab);
    const draw_rule &rule = p.rules[row];
    int best = ranked_token(p.most[row]);
    if (rule.scale == 0 || best < 0) return;
    float most = used_logit(p, logits, rule, row, best);
    for (int i = from + (int)threadIdx.x; i < to; i += SPREAD)
        p.weights[(int64_t)row * p.vocab + i] =
            weft_draw_weight(used_logit(p, logits, rule, row, i), most, rule.scale);
}

/* Tokens by their weights: how many, and their sum. */
struct weight_bins {
    unsigned *count;
    whole *sum;
    int n;
};

/* Shared memory of a block that chooses. */
struct choice {
    whole warp[WARPS];
    /* Where the target is exceeded: the beginning of the share, the token; the bin. */
    int from, token, bin;
    whole passed, above; /* before it: what the target is compared with, and the sum of weights */
    unsigned counts[FIRST_BINS + FINER_BINS];
    whole sums[FIRST_BINS + FINER_BINS];
};

__device__ static inline whole scan_warp(whole v) {
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        whole before = __shfl_up_sync(0xffffffffu, v, step);
        if ((int)threadIdx.x % 32 >= step) v += before;
    }
    return v;
}

/* The sum of what the threads before this one have, and of all. */
__device__ static whole scan_block(choice &c, whole v, whole &total) {
    int warp = (int)threadIdx.x / 32;
    whole upto = scan_warp(v), before = 0;
    __syncthreads(); /* all have read what was here */
    if (threadIdx.x % 32 == 31) c.warp[warp] = upto;
    __syncthreads();
    total = 0;
    for (int k = 0; k < WARPS; k++) {
        if (k == warp) before = total;
        total += c.warp[k];
    }
    return before + upto - v;
}

template <typename F> __device__ static whole add_up(choice &c, int n, F value) {
    whole own = 0, total;
    for (int i = (int)threadIdx.x; i < n; i += THREADS)
        own += value(i);
    scan_block(c, own, total);
    return total;
}

/* The first token at which the sum of values exceeds target(sum of all), in the order of tokens: first the
 * warp's share in which it is, then all threads share that out. */
template <typename F, typename G>
__device__ static int find_in_order(choice &c, int n, F value, G target) {
    int lane = (int)threadIdx.x % 32, share = (n + THREADS - 1) / THREADS * 32;
    int from = min((int)threadIdx.x / 32 * share, n), to = min(from + share, n);
    whole own = 0, total;
    for (int i = from + lane; i < to; i += 32)
        own += value(i);
    whole before = scan_block(c, own, total), end = before + own, aim = target(total);
    before = __shfl_sync(0xffffffffu, before, 0); /* of the warp */
    end = __shfl_sync(0xffffffffu, end, 31);
    if (lane == 0 && before <= aim && aim < end) {
        c.from = from;
        c.passed = before;
    }
    __syncthreads();
    int each = (share + THREADS - 1) / THREADS, i = c.from + (int)threadIdx.x * each;
    to = min(min(i + each, c.from + share), n);
    own = 0;
    for (int k = i; k < to; k++)
        own += value(k);
    before = c.passed;
    before += scan_block(c, own, total);
    if (before <= aim && aim - before < own) {
        for (; before + value(i) <= aim; i++)
            before += value(i);
        c.token = i;
    }
    __syncthreads();
    return c.token;
}

/* The bin of a weight above 0: how many bits it has, and those behind the first. */
__device__ static inline int first_bin(whole w) {
    int bits = 64 - __clzll((long long)w);
    return (bits - 1) << LEADING |
           ((int)(w << (40 - bits) >> (39 - LEADING)) & ((1 << LEADING) - 1));
}

/* Adds a warp's weights to their bins; -1: none. Often they have all the same one. */
__device__ static inline void add_to_bins(const weight_bins &b, int bin, whole w) {
    unsigned there = __ballot_sync(0xffffffffu, bin >= 0);
    if (!there) return;
    int first = __shfl_sync(0xffffffffu, bin, __ffs((int)there) - 1);
    if (__ballot_sync(0xffffffffu, bin == first) == there) {
        whole sum = scan_warp(bin >= 0 ? w : 0);
        if (threadIdx.x % 32 == 31) {
            atomicAdd(b.count + first, (unsigned)__popc(there));
            atomicAdd(b.sum + first, sum);
        }
    } else if (bin >= 0) {
        atomicAdd(b.count + bin, 1u);
        atomicAdd(b.sum + bin, w);
    }
}

template <typename F>
__device__ static void fill_bins(const weight_bins &b, const whole *weights, int n, F bin_of) {
    __syncthreads(); /* all have read what was here */
    for (int i = (int)threadIdx.x; i < b.n; i += THREADS)
        b.count[i] = 0, b.sum[i] = 0;
    __syncthreads();
    for (int i = (int)threadIdx.x; i - (int)threadIdx.x < n; i += THREADS) {
        whole w = i < n ? weights[i] : 0;
        add_to_bins(b, w ? bin_of(w) : -1, w);
    }
    __syncthreads();
}

/* Sets c.bin, c.passed and c.above: the bin in which the number of tokens, or their sum, exceeds the target,
 * from the heaviest on. There is one. */
__device__ static void pick_bin(choice &c, const weight_bins &b, bool counts, whole target) {
    int each = (b.n + THREADS - 1) / THREADS, last = b.n - 1 - (int)threadIdx.x * each;
    whole n = 0, sum = 0, all;
    for (int k = last; k > last - each && k >= 0; k--)
        n += b.count[k], sum += b.sum[k];
    whole n_before = scan_block(c, n, all), above = scan_block(c, sum, all);
    whole passed = counts ? n_before : above, own = counts ? n : sum;
    if (passed <= target && target - passed < own) {
        int k = last;
        for (; target - passed >= (counts ? b.count[k] : b.sum[k]); k--) {
            passed += counts ? b.count[k] : b.sum[k];
            above += b.sum[k];
        }
        c.bin = k;
        c.passed = passed;
        c.above = above;
    }
    __syncthreads();
}

/* A place in the order of weights. */
struct ordered_place {
    whole weight, above; /* above: the sum of what is heavier */
    whole tie;           /* its number among those of the same weight */
};

__device__ static inline whole sum_up_to(const ordered_place &at) {
    return at.above + (at.tie + 1) * at.weight;
}

/* The place at which the number of tokens, or the sum of weights, exceeds the target. The first bins are
 * filled. */
__device__ static ordered_place find_by_weight(choice &c, const whole *weights, int n, bool counts,
                                               whole target) {
    weight_bins b = {c.counts, c.sums, FIRST_BINS};
    weight_bins finer = {c.counts + FIRST_BINS, c.sums + FIRST_BINS, FINER_BINS};
    pick_bin(c, b, counts, target);
    /* The least weight of the bin, and in how many bits its weights differ. */
    int bin = c.bin, length = (bin >> LEADING) + 1, bits = max(length - 1 - LEADING, 0);
    int lead = (bin & ((1 << LEADING) - 1)) | 1 << LEADING;
    whole low = (whole)lead << (39 - LEADING) >> (40 - length), above = c.above;
    target -= c.passed;
    while (b.count[bin] > 1 && bits > 0) {
        int shift = max(bits - FINER_BITS, 0);
        whole base = low, span = (whole)1 << bits;
        b = finer;
        fill_bins(b, weights, n,
                  [=](whole w) { return w - base < span ? (int)((w - base) >> shift) : -1; });
        pick_bin(c, b, counts, target);
        bin = c.bin;
        bits = shift;
        low += (whole)bin << shift;
        above += c.above;
        target -= c.passed;
    }
    whole weight = b.sum[bin] / b.count[bin];
    return ordered_place{weight, above, counts ? target : target / weight};
}

/* A block a row. */
static __global__ void __launch_bounds__(THREADS) choose_tokens(draw_problem p) {
    __shared__ choice c;
    int row = (int)blockIdx.x, token = ranked_token(p.most[row]), n = p.vocab;
    const draw_rule rule = p.rules[row];
    const whole *weights = p.weights + (int64_t)row * p.vocab;
    if (token >= 0 && rule.scale > 0) {
        if (rule.top_k || rule.top_p < 1 || rule.least) {
            whole left = add_up(c, n, [=](int i) { return weights[i]; }), least = rule.least;
            fill_bins({c.counts, c.sums, FIRST_BINS}, weights, n,
                      [](whole w) { return first_bin(w); });
            if (rule.top_k &&
                rule.top_k < add_up(
                                 c, n, [=](int i) { return (whole)(weights[i] > 0); }))
                left = sum_up_to(find_by_weight(c, weights, n, true, rule.top_k - 1));
            if (rule.top_p < 1)
                left = sum_up_to(
                    find_by_weight(c, weights, n, false, weft_draw_needed(left, rule.top_p) - 1));
            if (least)
                left =
                    min(left,
                        add_up(c, n, [=](int i) { return weights[i] >= least ? weights[i] : 0; }));
            ordered_place at =
                find_by_weight(c, weights, n, false, weft_draw_target(rule.random, left));
            token = find_in_order(
                c, n, [=](int i) { return weights[i] == at.weight; },
                [=](whole) { return at.tie; });
        } else {
            token = find_in_order(
                c, n, [=](int i) { return weights[i]; },
                [=](whole total) { return (whole)weft_draw_target(rule.random, total); });
        }
    }
    if (threadIdx.x == 0) p.tokens[row] = token;
}

struct cuda_draws {
    int64_t rows, vocab; /* that there is room for */
    cuda_room room;      /* device */
    cuda_room rules;     /* device: rules and tokens that were seen */
    cuda_room staged[2]; /* pinned: the same */
};

void weft_cuda_free_room(cuda_room *r, bool pinned) {
    if (pinned && r->at) cudaFreeHost(r->at);
    if (!pinned) cudaFree(r->at);
    *r = {};
}

weft_status weft_cuda_make_room(cuda_room *r, bool pinned, int64_t least, int64_t bytes,
                                const char *problem) {
    if (r->bytes >= least) return WEFT_OK;
    weft_cuda_free_room(r, pinned);
    cudaError_t error = pinned ? cudaMallocHost((void **)&r->at, (size_t)bytes)
                               : cudaMalloc((void **)&r->at, (size_t)bytes);
    WEFT_TRY(check_cuda(error, problem));
    r->bytes = bytes;
    return WEFT_OK;
}

void weft_cuda_draws_close(cuda_draws *d) {
    if (!d) return;
    weft_cuda_free_room(&d->room, false);
    weft_cuda_free_room(&d->rules, false);
    for (cuda_room &staged : d->staged)
        weft_cuda_free_room(&staged, true);
    free(d);
}

bool weft_cuda_draws(void) {
    const char *asked = getenv("WEFT_CUDA_DRAW");
    return !asked || strcmp(asked, "0") != 0;
}

bool weft_cuda_penalises(const weft_run_rows *rows) {
    for (int64_t r = 0; rows->draws && r < rows->count; r++)
        if (rows->draws[r].penalty != 1) return true;
    return false;
}

/* Divides the room of the device; bytes. */
static int64_t divide_room(char *room, int64_t rows, int64_t vocab, draw_problem *p) {
    workspace_pieces w = {room, 0};
    w.take(&p->most, rows);
    w.take(&p->marks, rows * ceil_div(vocab, 32));
    w.take(&p->weights, rows * vocab);
    return w.bytes;
}

/* Rules, and behind them the tokens that were seen, to the device. Rows of one sequence share these. */
static weft_status send_rules(cuda_draws *d, cudaStream_t stream, const weft_run_rows *rows,
                              unsigned buffer, draw_problem *p) {
    int64_t n_seen = 0, rule_bytes = rows->count * (int64_t)sizeof(draw_rule);
    for (int64_t r = 0; r < rows->count; r++)
        n_seen += rows->draws[r].n_seen;
    int64_t least = rule_bytes + n_seen * (int64_t)sizeof(int32_t);
    cuda_room *staged = d->staged + buffer;
    WEFT_TRY(weft_cuda_make_room(staged, true, least, 2 * least,
                                 "no pinned memory for draws of tokens"));
    WEFT_TRY(
        weft_cuda_make_room(&d->rules, false, least, 2 * least, "no memory for draws of tokens"));
    draw_rule *rules = (draw_rule *)staged->at;
    int32_t *seen = (int32_t *)(staged->at + rule_bytes);
    int64_t at = 0;
    for (int64_t r = 0; r < rows->count; r++) {
        const weft_draw *w = rows->draws + r;
        bool same = r && w->seen == w[-1].seen && w->n_seen == w[-1].n_seen;
        int place = same ? rules[r - 1].seen : (int)at;
        rules[r] = {w->scale,        w->top_p, w->penalty,     w->random,    w->least,
                    (whole)w->top_k, place,    (int)w->n_seen, rows->slot[r]};
        if (same || !w->n_seen) continue;
        memcpy(seen + at, w->seen, (size_t)w->n_seen * sizeof *seen);
        at += w->n_seen;
    }
    p->rules = (const draw_rule *)d->rules.at;
    p->seen = (const int32_t *)(d->rules.at + rule_bytes);
    return check_cuda(cudaMemcpyAsync(d->rules.at, staged->at,
                                      (size_t)rule_bytes + (size_t)at * sizeof *seen,
                                      cudaMemcpyHostToDevice, stream),
                      "rules of draws were not copied");
}

weft_status weft_cuda_draw(cuda_draws **draws, cudaStream_t stream, const draw_source *from,
                           const weft_run_rows *rows, unsigned buffer, int32_t *tokens) {
    if (!*draws) *draws = (cuda_draws *)calloc(1, sizeof **draws);
    cuda_draws *d = *draws;
    if (!d) return weft_fail(WEFT_ENOMEM, "cuda: no memory");
    draw_problem p = {};
    p.vocab = from->vocab;
    p.words = (int)ceil_div(p.vocab, 32);
    p.inputs = from->inputs;
    p.tokens = tokens;
    if (d->rows < rows->count || d->vocab != p.vocab) {
        int64_t room = 8;
        while (room < rows->count)
            room *= 2;
        int64_t bytes = divide_room(NULL, room, p.vocab, &p);
        d->rows = 0;
        WEFT_TRY(
            weft_cuda_make_room(&d->room, false, bytes, bytes, "no memory for draws of tokens"));
        d->rows = room;
        d->vocab = p.vocab;
    }
    divide_room(d->room.at, d->rows, p.vocab, &p);
    WEFT_TRY(send_rules(d, stream, rows, buffer, &p));
    size_t cleared =
        (size_t)((char *)(from->inputs ? (void *)p.weights : (void *)p.marks) - d->room.at);
    WEFT_TRY(check_cuda(cudaMemsetAsync(d->room.at, 0, cleared, stream), "a draw did not start"));
    if (from->inputs) mark_seen<<<(unsigned)rows->count, SPREAD, 0, stream>>>(p);
    dim3 parts((unsigned)ceil_div(p.vocab, PART), (unsigned)rows->count);
    with_type(from->dtype, [&](auto tag) {
        using T = decltype(tag);
        rank_tokens<T><<<parts, SPREAD, 0, stream>>>(p, (const T *)from->logits);
        weigh_tokens<T><<<parts, SPREAD, 0, stream>>>(p, (const T *)from->logits);
    });
    choose_tokens<<<(unsigned)rows->count, THREADS, 0, stream>>>(p);
    return check_cuda(cudaGetLastError(), "a draw did not start");
}
