/* What the phases of a step share (step_kernel.cuh): the problem, its phases, and how a block divides its
 * shared memory. */
#ifndef WEFT_CUDA_DECODE_STEP_PROBLEM_CUH
#define WEFT_CUDA_DECODE_STEP_PROBLEM_CUH

#include "cuda/decode/step_device.cuh"

enum {
    STEP_WARPS = 12,
    STEP_THREADS = 32 * STEP_WARPS,
    STEP_COLUMNS = 8, /* of a tile of weights */
    STEP_TILES = 3,   /* that a block sums at once */
    STEP_CHUNK = 32,  /* numbers of a column that a warp multiplies at a time */
    STEP_LEAF = 32,   /* keys that a warp scores at a time */
    STEP_ROWS = 64,
    STEP_WIDTH = 768,   /* most of the residual stream */
    STEP_SPARE = 8,     /* numbers behind a row of inputs, so that rows share no bank */
    STEP_SHORT = 2048,  /* positions with short runs of keys */
    STEP_FEW_RUNS = 32, /* that one thread joins */
    STEP_LINE = 4       /* floats behind a part of attention: largest score, sum */
};

enum step_kind { STEP_EMBED, STEP_PRODUCT, STEP_ATTEND, STEP_JOIN };
enum step_source { STEP_FROM_STREAM, STEP_FROM_HEADS, STEP_FROM_HIDDEN };
enum step_target { STEP_TO_HEADS, STEP_TO_STREAM, STEP_TO_HIDDEN, STEP_TO_LOGITS };

struct step_phase {
    int kind, source, target;
    int columns, depth; /* of a product: n, k */
    int tiles, chunks;
    int shift;                 /* the block that has the first tile */
    const float *bias;         /* [columns] or NULL */
    const float *scale, *beta; /* of attention, [heads], to the base 2; beta NULL: none */
    char *keys, *values;       /* the layer's pages */
};

struct step_problem {
    const step_phase *phases;
    const unsigned short *weights; /* of all blocks: [piece, STEP_THREADS, 8] */
    const int *pieces;             /* [grid + 1]: where those of a block begin */
    int n_phases, rows, row_bits;  /* 2^row_bits >= rows */
    bool joins_late;               /* attention's runs are joined where they are read: all rows
                      have few */
    int width, hidden, heads, kv_heads, group, dqk, dv, vocab;
    bool gaussian, rms, table_is_bf16, place_is_bf16;
    float eps;
    const void *table, *place; /* [vocab, width]; [positions, width] or NULL */
    int token[STEP_ROWS];      /* -1 - i: the one that was picked in row i of the step
                           before */
    int position[STEP_ROWS], slot[STEP_ROWS];
    const int *pages;                 /* [slots, table_pages] */
    int run_keys[2];                  /* keys of a run: up to STEP_SHORT, and beyond */
    int table_pages, context, runs;   /* runs: most of a row */
    long long key_bytes, value_bytes; /* of a page */
    long long numbers;                /* where the keys' numbers begin in a page */
    float *stream;                    /* [ROWS, width] */
    unsigned short *query, *found,
        *between;               /* [ROWS, heads · dqk], [.., heads · dv], [.., hidden] */
    float *parts;               /* [ROWS, heads, runs, dv + LINE] */
    float *logits;              /* [ROWS, vocab] */
    unsigned long long *picked; /* [2, ROWS] */
    int turn;                   /* which of the two this step writes */
    unsigned *barrier;
    unsigned arrived; /* blocks at the barrier before this launch */
    /* The host's memory: what was picked, and which step that was. */
    volatile int *told;
    volatile unsigned *told_step;
    unsigned step;
    long long *times; /* [phases, 2]: when the first block began a phase and ended
                       it; NULL: not noted */
};

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

/* How a block works on up to 16 MT rows. */
template <int MT> struct step_shape {
    static constexpr int TILES = STEP_TILES;
    static constexpr int DEPTH = MT == 1 ? 16 : 8;                      /* of the ring */
    static constexpr int PANEL = MT == 1 ? 4 * STEP_WIDTH : STEP_WIDTH; /* columns of inputs held */
    static constexpr int SLOTS = PANEL / STEP_CHUNK / STEP_WARPS; /* of a panel, for each warp */
    static constexpr int PITCH = PANEL + STEP_SPARE;
    static constexpr int INPUT = 16 * MT * PITCH * 2; /* bytes */
    static constexpr int SUMS = STEP_WARPS * TILES * 16 * MT * STEP_COLUMNS * 4;
    static constexpr int RING = DEPTH * STEP_THREADS * 16;
    static constexpr int BEST = STEP_ROWS * 8;
    static constexpr int BYTES = RING + INPUT + SUMS + BEST; /* and the phases */
    static constexpr int PLACES =
        (INPUT + SUMS) / STEP_THREADS / 16; /* for attention, each thread's */
};

/* The page of position j of row r's sequence. */
__device__ static inline char *step_page(const step_problem &p, char *pages, long long bytes, int r,
                                         int j) {
    int page = __ldg(p.pages + (long long)p.slot[r] * p.table_pages + j / 16 % p.table_pages);
    return pages + page * bytes;
}

#endif
