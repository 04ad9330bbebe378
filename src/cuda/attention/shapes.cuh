/* The widths that the tensor cores' attention is compiled for, and what a block of each kernel has.
 *
 * A problem gets the first widths of the list that hold its own; the columns that it does not have are
 * 0 in shared memory, where they change no product, and are not written. The list has what dot products
 * (DQK = DV) and W2 (DQK = 2 DV) need; in between a tile is at most half wider than its rows.
 *
 * A block has at most 227 KB of shared memory and a multiprocessor 64 K registers, so that a thread of
 * two warpgroups has 255. Up to 128 columns several blocks of one warpgroup run beside each other, and
 * one has work while another waits. Wider tiles leave room for one block of two warpgroups: of 128
 * queries; or, where the sums of 64 rows are more than a warpgroup's registers hold (SPLIT), of 64 rows,
 * of which each warpgroup makes the weights of half the columns of a tile, exchanges them in shared
 * memory, and adds up half of the result's columns. */
#pragma once

#include "cuda/attention/attention.cuh"
#include "cuda/tensor/tile.cuh"

/* What a score has beside ⟨q, k⟩ times a positive constant: nothing; a number per key, and by keys only
 * where a block has one query head; anything but a relative position; that too; a scale per head and a
 * soft-cap, compiled where dqk is dv. Its exponentials would cost the others registers. */
enum score_extent { BARE, KEYED, GENERAL, RELATIVE, CAPPED };

/* Biases of distances that a block has at hand: those between its rows and two tiles, and a power of
 * two. */
template <int ROWS, int COLUMNS> constexpr int ring_size = ROWS + 2 * COLUMNS <= 256 ? 256 : 512;

template <int DQK_, int DV_, int WARPGROUPS_, int BLOCKS_, int KEYS_, bool Q_IN_REGISTERS_>
struct forward_shape {
    static constexpr int DQK = DQK_, DV = DV_;
    static constexpr int WARPGROUPS = WARPGROUPS_;          /* of a block */
    static constexpr int BLOCKS = BLOCKS_;                  /* on a multiprocessor */
    static constexpr int KEYS = KEYS_;                      /* in a tile */
    static constexpr bool Q_IN_REGISTERS = Q_IN_REGISTERS_; /* Q in registers */
    static constexpr int QUERIES = WARPGROUPS * 64, THREADS = WARPGROUPS * 128;
    static constexpr int Q = 0, K = Q + tile_bytes<QUERIES, DQK>;
    static constexpr int V = K + 2 * tile_bytes<KEYS, DQK>;
    static constexpr int BIAS = V + 2 * tile_bytes<KEYS, DV>;
    static constexpr int DISTANCES = BIAS + 2 * KEYS * (int)sizeof(float);
    static constexpr int RING = ring_size<QUERIES, KEYS>;
    static constexpr int BARRIERS = DISTANCES + RING * (int)sizeof(float);
    static constexpr int MEMORY = BARRIERS + 2 * 8 + 1024;
};

/* As many keys as fit beside the queries. */
template <int DQK, int DV>
constexpr int produced_keys = DQK <= 192 && DV <= 128  ? 128
                              : DQK <= 192             ? 96
                              : DQK == 256 && DV < 256 ? 96
                              : DQK == 256             ? 64
                              : DQK == 384             ? 48
                                                       : 32;

/* Of the forward pass whose tiles a warpgroup of its own copies: two more multiply, and take over the
 * registers that it does not need. Where there is room, results have a place of their own on the way
 * out, and the next queries may come before they have left. */
template <int DQK_, int DV_, int KEYS_> struct produced_shape {
    static constexpr int DQK = DQK_, DV = DV_, KEYS = KEYS_;
    static constexpr int QUERIES = 128, CONSUMERS = 256, THREADS = CONSUMERS + 128;
    static constexpr int BIASES = 4; /* tiles whose biases are at hand */
    static constexpr int Q = 0, K = Q + tile_bytes<QUERIES, DQK>;
    static constexpr int V = K + 2 * tile_bytes<KEYS, DQK>;
    static constexpr int BEHIND = V + 2 * tile_bytes<KEYS, DV>, BARRIERS = 10;
    static constexpr int REST = BIASES * KEYS * (int)sizeof(float) + BARRIERS * 8 + 1024;
    static constexpr bool HAS_O = BEHIND + tile_bytes<QUERIES, DV> + REST <= 227 << 10;
    static constexpr int O = HAS_O ? BEHIND : Q;
    static constexpr int BIAS = BEHIND + (HAS_O ? tile_bytes<QUERIES, DV> : 0);
    static constexpr int BARRIER = BIAS + BIASES * KEYS * (int)sizeof(float);
    static constexpr int MEMORY = BIAS + REST;
    static_assert(MEMORY <= 227 << 10, "a block's shared memory on Hopper");
};

template <int DQK_, int DV_, int WARPGROUPS_, int BLOCKS_, int KEYS_, bool Q_IN_REGISTERS_,
          bool DO_IN_REGISTERS_, int SPLIT_ = 1>
struct query_shape {
    static constexpr int DQK = DQK_, DV = DV_, WARPGROUPS = WARPGROUPS_, BLOCKS = BLOCKS_;
    static constexpr int KEYS = KEYS_; /* in a tile */
    static constexpr int SPLIT = SPLIT_, STAGES = SPLIT == 1 ? 3 : 2;
    static constexpr bool Q_IN_REGISTERS = Q_IN_REGISTERS_,
                          DO_IN_REGISTERS = DO_IN_REGISTERS_; /* in registers */
    static constexpr int QUERIES = WARPGROUPS / SPLIT * 64, THREADS = WARPGROUPS * 128;
    static constexpr int Q = 0, D_O = Q + tile_bytes<QUERIES, DQK>;
    static constexpr int K = D_O + tile_bytes<QUERIES, DV>;
    static constexpr int V = K + STAGES * tile_bytes<KEYS, DQK>;
    static constexpr int DS = V + 2 * tile_bytes<KEYS, DV>;
    static constexpr int BIAS = DS + (SPLIT == 1 ? 0 : tile_bytes<QUERIES, KEYS>);
    static constexpr int DISTANCES = BIAS + 2 * KEYS * (int)sizeof(float);
    static constexpr int RING = ring_size<QUERIES, KEYS>;
    static constexpr int BARRIERS = DISTANCES + RING * (int)sizeof(float);
    static constexpr int MEMORY = BARRIERS + STAGES * 8 + 1024;
};

template <int DQK_, int DV_, int WARPGROUPS_, int BLOCKS_, int QUERIES_, int SPLIT_ = 1>
struct key_shape {
    static constexpr int DQK = DQK_, DV = DV_, WARPGROUPS = WARPGROUPS_, BLOCKS = BLOCKS_;
    static constexpr int QUERIES = QUERIES_; /* in a tile */
    static constexpr int SPLIT = SPLIT_, STAGES = 2;
    static constexpr int KEYS = WARPGROUPS / SPLIT * 64, THREADS = WARPGROUPS * 128;
    static constexpr int K = 0, V = K + tile_bytes<KEYS, DQK>, Q = V + tile_bytes<KEYS, DV>;
    static constexpr int D_O = Q + STAGES * tile_bytes<QUERIES, DQK>;
    static constexpr int P = D_O + STAGES * tile_bytes<QUERIES, DV>;
    static constexpr int DS = P + (SPLIT == 1 ? 0 : tile_bytes<KEYS, QUERIES>);
    static constexpr int ROWS = DS + (SPLIT == 1 ? 0 : tile_bytes<KEYS, QUERIES>); /* lse, total,
                                                                                      shift */
    static constexpr int DISTANCES = ROWS + STAGES * 3 * QUERIES * (int)sizeof(float);
    static constexpr int RING = ring_size<KEYS, QUERIES>;
    static constexpr int BARRIERS = DISTANCES + RING * (int)sizeof(float);
    static constexpr int MEMORY = BARRIERS + STAGES * 8 + 1024;
};

/* Of the sums by distance. A block has one warpgroup, one tile of each kind and DISTANCES sums. */
template <int DQK_, int DV_> struct distance_shape {
    static constexpr int DQK = DQK_, DV = DV_, THREADS = 128, WARPS = 4;
    static constexpr int QUERIES = 64, KEYS = 64, DISTANCES = 256;
    static constexpr int SKEW =
        84; /* floats of a row: rows of diagonals meet a bank twice at most */
    static constexpr int Q = 0, D_O = Q + tile_bytes<QUERIES, DQK>;
    static constexpr int K = D_O + tile_bytes<QUERIES, DV>, V = K + tile_bytes<KEYS, DQK>;
    static constexpr int BIAS = V + tile_bytes<KEYS, DV>, RING = ring_size<KEYS, QUERIES>;
    static constexpr int RINGS = BIAS + 2 * KEYS * (int)sizeof(float);
    static constexpr int SKEWED = RINGS + RING * (int)sizeof(float);
    static constexpr int SUMS = SKEWED + WARPS * 16 * SKEW * (int)sizeof(float);
    static constexpr int BARRIERS = SUMS + WARPS * DISTANCES * (int)sizeof(float);
    static constexpr int MEMORY = BARRIERS + 8 + 1024;
    static constexpr int BLOCKS = MEMORY < 56 << 10    ? 4
                                  : MEMORY < 75 << 10  ? 3
                                  : MEMORY < 112 << 10 ? 2
                                                       : 1;
};

constexpr int larger(int a, int b) {
    return a > b ? a : b;
}

/* A pair of widths: its shapes, and whether a score may be bare. */
template <typename FORWARD_, typename BY_QUERIES_, typename BY_KEYS_> struct width_shapes {
    using FORWARD = FORWARD_;
    using BY_QUERIES = BY_QUERIES_;
    using BY_KEYS = BY_KEYS_;
    static constexpr int DQK = FORWARD::DQK, DV = FORWARD::DV;
    using BY_DISTANCES = distance_shape<DQK, DV>;
    static constexpr bool HAS_BARE = DQK == DV;
    static constexpr int MEMORY = larger(larger(FORWARD::MEMORY, BY_DISTANCES::MEMORY),
                                         larger(BY_QUERIES::MEMORY, BY_KEYS::MEMORY));
    static_assert(MEMORY <= 227 << 10, "a block's shared memory on Hopper");
};

#define WIDTHS(NAME, DQK, DV, FORWARD, BY_QUERIES, BY_KEYS)                                        \
    using NAME = width_shapes<forward_shape<DQK, DV, FORWARD>, query_shape<DQK, DV, BY_QUERIES>,   \
                              key_shape<DQK, DV, BY_KEYS>>;
#define ARGS(...) __VA_ARGS__

WIDTHS(widths_32_32, 32, 32, ARGS(1, 4, 64, true), ARGS(1, 4, 64, false, false), ARGS(1, 4, 64))
WIDTHS(widths_64_32, 64, 32, ARGS(1, 4, 64, true), ARGS(1, 3, 64, true, false), ARGS(1, 3, 64))
WIDTHS(widths_64_64, 64, 64, ARGS(1, 4, 64, true), ARGS(1, 3, 64, true, false), ARGS(1, 3, 64))
WIDTHS(widths_96_64, 96, 64, ARGS(1, 3, 64, true), ARGS(1, 3, 64, false, false), ARGS(1, 2, 64))
WIDTHS(widths_96_96, 96, 96, ARGS(1, 3, 64, true), ARGS(3, 1, 64, false, false), ARGS(1, 2, 64))
WIDTHS(widths_128_64, 128, 64, ARGS(1, 3, 64, true), ARGS(1, 2, 64, true, true), ARGS(1, 2, 64))
WIDTHS(widths_128_128, 128, 128, ARGS(1, 2, 64, true), ARGS(2, 1, 64, true, true), ARGS(1, 2, 64))
WIDTHS(widths_192_96, 192, 96, ARGS(1, 2, 64, true), ARGS(2, 1, 64, false, false), ARGS(1, 2, 32))
WIDTHS(widths_192_192, 192, 192, ARGS(2, 1, 64, true), ARGS(2, 1, 64, false, false),
       ARGS(2, 1, 64, 2))
WIDTHS(widths_256_128, 256, 128, ARGS(2, 1, 64, true), ARGS(2, 1, 48, false, false),
       ARGS(2, 1, 64, 2))
WIDTHS(widths_256_256, 256, 256, ARGS(2, 1, 64, false), ARGS(2, 1, 32, false, false),
       ARGS(2, 1, 64, 2))
WIDTHS(widths_384_192, 384, 192, ARGS(2, 1, 48, false), ARGS(2, 1, 64, false, false, 2),
       ARGS(2, 1, 32, 2))
WIDTHS(widths_512_256, 512, 256, ARGS(2, 1, 32, false), ARGS(2, 1, 32, false, false, 2),
       ARGS(2, 1, 32, 2))

#undef WIDTHS
#undef ARGS

#define CHECK_BYTES(DQK, DV, BYTES)                                                                \
    static_assert(widths_##DQK##_##DV::MEMORY == BYTES, "choice.h has the same bytes");
WEFT_CUDA_ATTENTION_WIDTHS(CHECK_BYTES)
#undef CHECK_BYTES

/* Calls f with the first widths of the list (cuda/choice.h) that hold the problem's. */
template <typename F> static inline void with_widths(const attention_problem &p, F f) {
#define FIRST_THAT_HOLDS(DQK, DV, BYTES)                                                           \
    if (p.dqk <= DQK && p.dv <= DV) return f(widths_##DQK##_##DV());
    WEFT_CUDA_ATTENTION_WIDTHS(FIRST_THAT_HOLDS)
#undef FIRST_THAT_HOLDS
}
