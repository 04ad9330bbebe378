/* What the kernels of attention over a cache share (cache_attention.cu): the problem, a block's place, and
 * the way from raw products to weights. */
#pragma once

#include "cuda/attention/attention.cuh"
#include "cuda/decode/cached.cuh"
#include "cuda/functions.cuh"

enum {
    BLOCK = WEFT_KEY_BLOCK,
    THREADS = 256,
    LANES = 8, /* that share a key */
    KEY_TILE = THREADS / LANES,
    HEADS = 4,                         /* query heads at a time */
    SPREAD = THREADS * VECTOR * HEADS, /* floats that the values' sums are joined in */
    JOINED = 9,                        /* leaves that are asked for at once */
    JOINED_HEADS = 16,                 /* heads that are joined at once */
    JOINED_LEAVES = 32,                /* leaves that a warp joins, where there are many */
    JOINED_COLUMNS = 128, /* of a head, that a block of at most JOIN_WARPS joins then */
    JOIN_WARPS = 16,
    JOIN_CHAINS = 4, /* of leaves of a head, where heads are few */
    FEW_LEAVES = 66, /* that a block joins; with more, blocks for each head share that out */
    FEW_OF_MANY = 18 /* the same of many heads */
};

struct attend_problem {
    row_places places;
    cached_pages keys, values;
    /* What the rows of this run have for those, where no kernel ahead has written it: both, or none. */
    cached_write key_write, value_write;
    int heads, group, dqk, dv, context;
    int padded;        /* dqk, rounded up to whole vectors */
    int64_t q_columns; /* of a row of q */
    any_tensor q, o;
    float scale_value, band_alpha;
    float softcap;            /* to the base 2; 0: none */
    const int32_t *documents; /* [R]: a row's document begins there; NULL: with the sequence */
    const float *scale, *beta, *log_tau, *rel, *rotations; /* NULL: not there */
    const float *shares; /* [R, H]: of the heads in the weights; NULL: 1 */
    float *query_cache;  /* [slots, window, H, dqk] */
    weft_attention_pos pos;
    bool band, gaussian, squares;
    int window, rotated;
    weft_rope_law law;
    weft_weights weights;
    bool tensor;    /* by attend_tensor.cuh */
    bool joint;     /* values are the keys, before what is done to those */
    int leaf;       /* keys that are summed in one chain, between multiples of that */
    int leaf_bits;  /* its logarithm, in attend_tensor.cuh */
    int blocks;     /* most leaves of a row */
    int splits;     /* blocks of threads that share out the leaves of a row and key head */
    int together;   /* rows that may share a tile there; 1: none do */
    int apart;      /* splits of rows that share none */
    int own_heads;  /* key heads of a block; 1 but in attend_tensor.cuh */
    int warps;      /* of a block that have leaves, there, */
    int head_warps; /* those of each of its key heads, */
    int all_warps;  /* and with those that only help */
    int units;      /* of a leaf, there */
    int stages;     /* of a warp, there */
    bool quarters;  /* a leaf's are warps' of one block, there */
    /* [R, key heads]: blocks that are done, where the last one joins them; else NULL */
    unsigned *joins;
    float *partial; /* [R, H, blocks, dv + 2]: weighted values, largest score, sum */
    float *rows;    /* [R, H, 2]: largest, sum of a row, when its blocks are joined */
    float *scores;  /* [R, H, context] or NULL */
    float *weight;  /* [R, context] or NULL */
};

__device__ __host__ static inline bool copies_keys(const attend_problem &a) {
    return a.rotated > 0 || a.gaussian;
}

__device__ static inline int first_seen(const attend_problem &a, int r, int position) {
    int first = max(0, position + 1 - a.context);
    return a.documents ? max(first, a.documents[r]) : first;
}

/* A leaf: row, key head, which of the row's leaves, and its keys; none where first is not below end. */
struct block_place {
    int r, g, part, block, position, first, end;
};

/* Leaf `part` of the block's row and key head. */
__device__ static inline block_place place_leaf(const attend_problem &a, int part) {
    block_place t = {(int)blockIdx.y, (int)blockIdx.x, part, 0, 0, 0, 0};
    if (a.places.slot[t.r] < 0) return t;
    t.position = a.places.position[t.r];
    int seen = first_seen(a, t.r, t.position);
    t.block = seen / a.leaf + t.part;
    t.first = max(t.block * a.leaf, seen);
    t.end = min((t.block + 1) * a.leaf, t.position + 1);
    return t;
}

struct head_factors {
    float scale, beta, slope; /* to the base 2 */
};

__device__ static inline head_factors factors_of(const attend_problem &a, int head) {
    double scale = (double)a.scale_value, beta = 0;
    if (a.scale) scale = (double)a.scale[head];
    if (a.beta) beta = (double)a.beta[head];
    if (a.log_tau) {
        double tau = exp((double)a.log_tau[head]) + 1e-6;
        scale = 2 / tau;
        beta = -1 / tau;
    }
    head_factors f = {(float)(scale * (double)LOG2E), (float)(beta * (double)LOG2E), 0};
    if (a.pos == WEFT_POS_ALIBI) f.slope = alibi_slope(head, a.heads) * LOG2E;
    return f;
}

/* From raw products [group, BLOCK] to exponentials under the largest score, and zeros behind them; that
 * score and their sum to the workspace. A warp a head. */
__device__ static inline void weigh_keys(const attend_problem &a, float *scores, const float *n,
                                         const block_place &t, float *partial, int64_t step) {
    int lane = threadIdx.x % 32, i = t.position, first = t.first, count = t.end - t.first;
    bool number = a.keys.number || a.squares;
    for (int h = (int)threadIdx.x / 32; h < a.group; h += THREADS / 32) {
        int head = t.g * a.group + h;
        head_factors f = factors_of(a, head);
        float *s = scores + h * BLOCK, top = -INFINITY, sum = 0;
        for (int j = lane; j < count; j += 32) {
            float score = s[j] * f.scale;
            if (number) score = fmaf(n[j], f.beta, score);
            score -= f.slope * (float)(i - first - j);
            if (a.rel) score = fmaf(a.rel[i - first - j], LOG2E, score);
            if (a.softcap > 0) score = a.softcap * tanhf(score / a.softcap);
            s[j] = score;
            top = fmaxf(top, score);
        }
        top = warp_max(top);
        for (int j = lane; j < count; j += 32) {
            if (a.scores) {
                int64_t row = (int64_t)t.r * a.heads + head;
                a.scores[row * a.context + first - first_seen(a, t.r, i) + j] = s[j];
            }
            s[j] = exp2f(s[j] - top);
            sum += s[j];
        }
        for (int j = count + lane; j < a.leaf; j += 32)
            s[j] = 0;
        sum = warp_sum(sum);
        if (lane == 0) {
            partial[h * step + a.dv] = top;
            partial[h * step + a.dv + 1] = sum;
        }
    }
}

__device__ static inline int leaves_of(const attend_problem &a, int r) {
    int i = a.places.position[r];
    return a.places.slot[r] < 0 ? 0 : i / a.leaf - first_seen(a, r, i) / a.leaf + 1;
}

/* Leaves of a row's head that a warp has joined, in shared memory. */
struct joined_leaves {
    float values[JOINED_COLUMNS], top, sum, factors[JOINED_LEAVES];
};

/* Leaves [first, first + 32) of a row's head, as far as they are there, from column `from` on. They were
 * written on other multiprocessors. */
__device__ static inline void join_leaves(const attend_problem &a, const float *part, int from,
                                          int first, int leaves, joined_leaves &to) {
    int lane = threadIdx.x % 32, step = a.dv + 2, columns = min((int)JOINED_COLUMNS, a.dv - from);
    auto load = [&](int i, int column, float none) {
        int leaf = first + i; /* below 0: it is not there either */
        return (unsigned)leaf < (unsigned)leaves ? __ldcg(part + leaf * step + column) : none;
    };
    float own = load(lane, a.dv, -INFINITY), sum = load(lane, a.dv + 1, 0);
    float top = warp_max(own), factor = exp2f(own - top);
    sum = warp_sum(factor * sum);
    to.factors[lane] = factor;
    if (lane == 0) to.top = top, to.sum = sum;
    for (int d = lane; d - lane < columns; d += 32) {
        float v[JOINED_LEAVES], x = 0;
#pragma unroll
        for (int i = 0; i < JOINED_LEAVES; i++)
            v[i] = load(i, from + min(d, columns - 1), 0);
        __syncwarp(); /* the factors are there; and no value is waited for before all are asked for */
#pragma unroll
        for (int i = 0; i < JOINED_LEAVES; i++)
            x = fmaf(v[i], to.factors[i], x);
        if (d < columns) to.values[d] = x;
    }
}

/* A row's head, from column `from` on, by a tree of two levels: warps join its leaves between multiples of 32,
 * then each thread its column of these, in order. How many warps there are, four at least, changes nothing.
 * join_group has other bits; which of them joins follows from the context, so from the decoder alone. */
__device__ static inline void join_head(const attend_problem &a, int at, int from) {
    __shared__ joined_leaves joined[JOIN_WARPS];
    int warps = (int)blockDim.x / 32, warp = (int)threadIdx.x / 32, d = from + (int)threadIdx.x;
    int r = at / a.heads, leaves = leaves_of(a, r);
    int ahead = leaves ? first_seen(a, r, a.places.position[r]) / a.leaf % JOINED_LEAVES : 0;
    const float *part = a.partial + (int64_t)at * a.blocks * (a.dv + 2);
    float top = -INFINITY, total = 0, sum = 0;
    for (int b = -ahead; b < leaves; b += warps * JOINED_LEAVES) {
        int own = b + warp * JOINED_LEAVES;
        if (own < leaves) join_leaves(a, part, from, own, leaves, joined[warp]);
        __syncthreads();
        for (int i = 0; i < warps && b + i * JOINED_LEAVES < leaves; i++) {
            const joined_leaves &next = joined[i];
            float highest = fmaxf(top, next.top);
            float shrink = exp2f(top - highest), factor = exp2f(next.top - highest);
            total = fmaf(total, shrink, next.sum * factor);
            sum = fmaf(sum, shrink, next.values[threadIdx.x % JOINED_COLUMNS] * factor);
            top = highest;
        }
        __syncthreads();
    }
    if (threadIdx.x < JOINED_COLUMNS && d < a.dv)
        store_any(a.o, (int64_t)at * a.dv + d, leaves ? sum / total : 0.0f);
    if (d > 0) return;
    a.rows[2 * at] = top;
    a.rows[2 * at + 1] = total;
}

/* Columns d and d + 1 of leaves first, first + CHAINS, ... of a row's head, each by its factor. */
template <int CHAINS>
__device__ static inline float2 join_chain(const float *from, int step, const float *factors,
                                           int first, int leaves) {
    float2 sum = make_float2(0, 0);
    for (int b = first; b < leaves; b += JOINED * CHAINS) {
        float2 v[JOINED];
#pragma unroll
        for (int i = 0; i < JOINED; i++)
            v[i] = b + i * CHAINS < leaves
                       ? __ldcg((const float2 *)(from + (b + i * CHAINS) * step))
                       : make_float2(0, 0);
#pragma unroll
        for (int i = 0; i < JOINED; i++)
            if (b + i * CHAINS < leaves) {
                sum.x = fmaf(v[i].x, factors[b + i * CHAINS], sum.x);
                sum.y = fmaf(v[i].y, factors[b + i * CHAINS], sum.y);
            }
    }
    return sum;
}

/* So many heads of a block, of one row or of several from r on, where leaves are few: a warp finds the
 * leaves' factors of a head, then each thread adds two columns of a head, leaf after leaf; of few heads lanes
 * eight apart have every fourth leaf each. */
template <int CHAINS>
__device__ static inline void join_heads(const attend_problem &a, int r, int g, int rows, int all,
                                         float (*factors)[FEW_LEAVES], float *totals) {
    int few = leaves_of(a, r), step = a.dv + 2, lane = threadIdx.x % 32;
    /* Of head h of these; the rows' heads lie one behind the other. */
    auto row_of = [&](int h) { return rows > 1 ? h / a.group : 0; };
    auto place = [&](int h) {
        return (r + row_of(h)) * a.heads + g * a.group + h - row_of(h) * a.group;
    };
    auto leaves_at = [&](int h) { return rows > 1 ? leaves_of(a, r + row_of(h)) : few; };
    for (int h0 = 0; h0 < all; h0 += JOINED_HEADS) {
        int heads = min((int)JOINED_HEADS, all - h0);
        for (int h = (int)threadIdx.x / 32; h < heads; h += (int)blockDim.x / 32) {
            constexpr int MOST = (FEW_LEAVES + 31) / 32;
            int at = place(h0 + h), leaves = leaves_at(h0 + h);
            const float *ends = a.partial + (int64_t)at * a.blocks * step + a.dv;
            float own[MOST], sum[MOST], top = -INFINITY, total = 0;
#pragma unroll
            for (int i = 0; i < MOST; i++) {
                int b = lane + 32 * i;
                own[i] = b < leaves ? __ldcg(ends + b * step) : -INFINITY;
                sum[i] = b < leaves ? __ldcg(ends + b * step + 1) : 0.0f;
            }
#pragma unroll
            for (int i = 0; i < MOST; i++)
                top = fmaxf(top, own[i]);
            top = warp_max(top);
#pragma unroll
            for (int i = 0; i < MOST; i++) {
                int b = lane + 32 * i;
                float f = b < leaves ? exp2f(own[i] - top) : 0.0f;
                total += f * sum[i];
                if (b < leaves) factors[h][b] = f;
            }
            total = warp_sum(total);
            if (lane > 0) continue;
            totals[h] = total;
            a.rows[2 * at] = top;
            a.rows[2 * at + 1] = total;
        }
        __syncthreads();
        int across = 32 / CHAINS, pairs = heads * a.dv / 2;
        int last = (pairs + across - 1) / across * across;
        for (int e = (int)threadIdx.x / 32 * across + lane % across; e < last;
             e += (int)blockDim.x / CHAINS) {
            int own = min(e, pairs - 1) * 2, h = own / a.dv, d = own % a.dv, at = place(h0 + h);
            int leaves = leaves_at(h0 + h);
            float2 sum = join_chain<CHAINS>(a.partial + (int64_t)at * a.blocks * step + d, step,
                                            factors[h], lane / across, leaves);
#pragma unroll
            for (int i = across; i < 32; i *= 2) {
                sum.x += __shfl_xor_sync(0xffffffffu, sum.x, i);
                sum.y += __shfl_xor_sync(0xffffffffu, sum.y, i);
            }
            if (lane >= across || e >= pairs) continue;
            int64_t to = (int64_t)at * a.dv + d;
            store_any(a.o, to, leaves ? sum.x / totals[h] : 0.0f);
            store_any(a.o, to + 1, leaves ? sum.y / totals[h] : 0.0f);
        }
        __syncthreads();
    }
}

/* Whether a key head has few query heads: then its leaves are many and short. */
__device__ __host__ static inline bool has_few_heads(const attend_problem &a) {
    return a.group <= 4;
}

/* The block's key heads, from g on: of one row all at once. */
__device__ static inline void join_group(const attend_problem &a, int r, int g, int rows) {
    __shared__ float factors[JOINED_HEADS][FEW_LEAVES], totals[JOINED_HEADS];
    int last = min(g + a.own_heads, a.keys.heads), all = (rows > 1 ? rows : last - g) * a.group;
    for (; g<last; g += rows> 1 ? 1 : a.own_heads)
        if (has_few_heads(a))
            join_heads<JOIN_CHAINS>(a, r, g, rows, all, factors, totals);
        else
            join_heads<1>(a, r, g, rows, all, factors, totals);
}

/* Whether the block is the last of the `sharing` blocks of a row and key head to come here, and so is to join
 * its leaves: which one that is changes nothing. */
__device__ static inline bool ends_last(const attend_problem &a, int r, int g, int sharing) {
    __shared__ bool last;
    if (sharing > 1) __threadfence();
    __syncthreads();
    if (sharing == 1) return true;
    if (threadIdx.x == 0) {
        unsigned *joined = a.joins + r * a.keys.heads + g;
        last = atomicAdd(joined, 1u) + 1 == (unsigned)sharing;
        if (last) *joined = 0;
        __threadfence();
    }
    __syncthreads();
    return last;
}
