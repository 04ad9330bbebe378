/* What the phases of a step share (step_kernel.cuh): the problem, its phases, and how a block divides its
 * shared memory. */
#pragma once

#include "cuda/decode/step_device.cuh"

enum {
    STEP_WARPS = 12,
    STEP_THREADS = 32 * STEP_WARPS,
    STEP_COLUMNS = 8, /* of a tile of weights */
    STEP_TILES = 3,   /* that a block sums at once */
    STEP_SPLITS = 4,  /* of a product's depth, at most */
    STEP_CHUNK = 32,  /* numbers of a column that a warp multiplies at a time */
    STEP_LEAF = 32,   /* keys that a warp scores at a time */
    STEP_ROWS = 64,
    STEP_STAGE = STEP_WARPS * STEP_CHUNK, /* columns of inputs that many rows come by */
    STEP_WIDTH = 768,                     /* most of the residual stream */
    STEP_HEAD_TILES = 4,                  /* of the head, that a warp sums at once */
    STEP_FEW_RUNS = 32,                   /* that one thread joins */
    STEP_FLAGGED = 4,                     /* rows whose numbers travel with flags, at most */
    STEP_LINE = 4, /* floats behind a part of attention: largest score, sum */
    STEP_MARKS = 8 /* times of a phase: begun, up to six on the way, ended */
};

enum step_kind { STEP_EMBED, STEP_PRODUCT, STEP_ATTEND, STEP_JOIN, STEP_ADD };
enum step_source { STEP_FROM_NORM, STEP_FROM_HEADS, STEP_FROM_HIDDEN };
enum step_target { STEP_TO_HEADS, STEP_TO_SUMS, STEP_TO_HIDDEN, STEP_TO_LOGITS };

struct step_phase {
    short kind, source, target;
    short shift;        /* the block that has the first tile */
    int columns, depth; /* of a product: n, k */
    int tiles, chunks;
    short splits;   /* of a product's depth; or how many sums are added */
    short together; /* tiles of an item where it is split */
    int split;      /* chunks of a split */
    union {
        const float *bias;  /* of the head: [columns] or NULL */
        const float *scale; /* of attention: [heads], to the base 2 */
    };
    const float *beta;   /* like scale; NULL: none */
    char *keys, *values; /* the layer's pages */
};

struct step_problem {
    const step_phase *phases;
    const unsigned short *weights; /* of all blocks: [piece, STEP_THREADS, 8] */
    const int *pieces;             /* [grid + 1]: where those of a block begin */
    const float *biases;           /* [grid, n_biases]: of a block's columns in the order of use */
    int n_biases;
    int n_phases, rows, row_bits; /* 2^row_bits >= rows */
    bool joins_late;              /* attention's runs are joined where they are read: all rows
                      have few */
    bool whole; /* up to 16 rows: a block sums all of a product's depth and makes the norms that it
                     needs; attention's first keys are asked for ahead of the barrier before it */
    bool flagged; /* the stream and the feed-forward's numbers go from block to block with flags */
    unsigned flags; /* of this step: the first flag */
    int width, hidden, heads, kv_heads, group, dqk, dv, vocab;
    int dqk_bits, dv_bits; /* dqk and dv are powers of two */
    float share;           /* of a column in a row's mean */
    bool gaussian, rms, rotated, gated, table_is_bf16, place_is_bf16;
    float eps;
    const void *table, *place; /* [vocab, width]; [positions, width] or NULL */
    int token[STEP_ROWS];      /* -1 - i: the one that was sampled in row i of the step
                           before */
    int position[STEP_ROWS], slot[STEP_ROWS];
    int settled[STEP_ROWS]; /* of the row's sequence: this step writes none of the keys before it */
    const int *pages;       /* [slots, table_pages] */
    int run_keys[2];        /* keys of a run: up to short_positions, and beyond */
    int short_positions;
    int live_runs;                    /* most of a row in this step */
    int table_pages, context, runs;   /* runs: most of a row at all */
    long long key_bytes, value_bytes; /* of a page */
    long long numbers;                /* where the keys' numbers begin in a page */
    const double *rates;              /* [dqk / 2]: by which pairs rotate, and how far */
    float amplitude;
    float2 *rotations;      /* [ROWS, dqk / 2]: cosines and sines of this step */
    float *stream;          /* [ROWS, width] */
    float *sums;            /* [SPLITS, ROWS, width]: what is added to the stream */
    unsigned short *normed; /* [ROWS, width], as step_row_at says; so `found` and `between` */
    unsigned long long *stream_flags; /* [2, FLAGGED, width]: a float and its flag */
    unsigned long long *hidden_flags; /* [FLAGGED, hidden / 2]: two bf16 and their flag */
    unsigned short *query, *found,
        *between;                /* [ROWS, heads · dqk], [.., heads · dv], [.., hidden] */
    float *parts;                /* [ROWS, heads, runs, dv + LINE] */
    float *logits;               /* [ROWS, vocab] */
    unsigned long long *sampled; /* [2, ROWS] */
    int buffer;                  /* which of the two this step writes */
    unsigned *barrier;
    unsigned arrived; /* blocks at the barrier before this launch */
    /* The host's memory: what was sampled, and which step that was. */
    volatile int *told;
    volatile unsigned *told_step;
    unsigned step;
    long long *times; /* [phases, STEP_MARKS]: when the first block was where in a phase; NULL: not
                       noted */
};

/* Notes when the first block came to place `at` of a phase. */
__device__ static inline void step_mark(const step_problem &p, int phase, int at) {
    if (p.times && blockIdx.x == 0 && threadIdx.x == 0)
        p.times[phase * STEP_MARKS + at] = step_clock();
}

struct step_words {
    unsigned word[4];
};

__device__ static inline float step_low(unsigned w) {
    return __uint_as_float(w << 16);
}

__device__ static inline float step_high(unsigned w) {
    return __uint_as_float(w & 0xffff0000u);
}

__device__ static inline float step_widen(unsigned short v) {
    return __uint_as_float((unsigned)v << 16);
}

/* Where the k's that meet are counted differently is free as long as both
 * factors agree: a lane multiplies the eight that it loaded beside each other,
 * four at a time. */
__device__ static inline void step_multiply(float (&c)[4], const step_words &high,
                                            const step_words &low, int half, unsigned b0,
                                            unsigned b1) {
    step_mma(c, high.word[2 * half], low.word[2 * half], high.word[2 * half + 1],
             low.word[2 * half + 1], b0, b1);
}

/* How a block works on up to 16 MT rows. Inputs are held PANEL columns at a time, in stages of STAGE
 * columns that many rows come in one by one. */
template <int MT> struct step_shape {
    static constexpr int GROUPS = MT == 1 ? STEP_SPLITS : STEP_TILES; /* sums of a warp at once */
    static constexpr int DEPTH = MT == 1 ? 16 : 8;                    /* of the ring */
    static constexpr int PANEL = MT == 1 ? 4 * STEP_WIDTH : STEP_WIDTH;
    static constexpr int STAGE = MT == 1 ? PANEL : (int)STEP_STAGE;
    static constexpr int SLOTS = PANEL / STEP_CHUNK / STEP_WARPS; /* of a panel, for each warp */
    static constexpr int INPUT = 16 * MT * PANEL * 2;             /* bytes */
    static constexpr int SUMS = STEP_WARPS * GROUPS * 16 * MT * STEP_COLUMNS * 4;
    static constexpr int RING = DEPTH * STEP_THREADS * 16;
    static constexpr int BEST = STEP_ROWS * 8, PAGES = STEP_ROWS * 4, FULL = 2 * 8;
    static constexpr int PHASES = 2 * (int)sizeof(step_phase); /* this and the next */
    static constexpr int LINES = STEP_WARPS * 16 * 8;          /* of spans */
    static constexpr int BYTES =
        RING + INPUT + SUMS + LINES + BEST + FULL + PAGES + PHASES; /* biases behind */
    static constexpr int PLACES =
        (INPUT + SUMS) / STEP_THREADS / 16; /* for attention, each thread's */
};

/* Of odd rows the halves of 128 bytes are exchanged, so that two rows beside each other share no bank. */
__device__ static inline int step_swapped(int r, int at) {
    return at ^ (r & 1) << 5;
}

/* Where number `at` of row r of a product's inputs is in memory, [stage, ROWS, STAGE]: what a block takes
 * at a time lies together, and is exchanged already. */
__device__ static inline int step_row_at(int r, int at) {
    return (at / STEP_STAGE * STEP_ROWS + r) * STEP_STAGE + step_swapped(r, at % STEP_STAGE);
}

/* Where number `at` of row r of a panel of inputs is: [stage, row, STAGE]. */
template <int MT> __device__ static inline int step_input_at(int r, int at) {
    constexpr int STAGE = step_shape<MT>::STAGE;
    return (at / STAGE * 16 * MT + r) * STAGE + step_swapped(r, at % STAGE);
}

/* Whether a run of keys is a block's, not a warp's. */
__device__ __host__ static constexpr bool step_has_spans(int dq, int dv) {
    return dq == 4 && dv == 4;
}

/* The page of position j of row r's sequence. */
__device__ static inline char *step_page(const step_problem &p, char *pages, long long bytes, int r,
                                         int j) {
    int page = __ldg(p.pages + (long long)p.slot[r] * p.table_pages + j / 16 % p.table_pages);
    return pages + page * bytes;
}
