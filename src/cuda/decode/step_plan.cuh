/* The plan of a step on the host (step.cu): its list of phases, and for each block its weights and biases
 * in the order of use.
 *
 * The kernel's blocks read their weights as one stream (step_product.cuh), so what is laid out here walks
 * through phases, items and pieces just as the kernel does. There are two orders: that of blocks which
 * have a part of a product's depth, and that of blocks which sum all of it (step_few.cuh). */
#pragma once

#include "cuda/decode/step_kernel.cuh"

#include <string.h>
#include <vector>

extern "C" {
#include "core/decoding.h"
}

static_assert((int)STEP_ROWS == (int)WEFT_STEP_ROWS && (int)STEP_CHUNK == (int)WEFT_STEP_CHUNK &&
                  (int)STEP_COLUMNS == (int)WEFT_STEP_COLUMNS,
              "weights are packed for this kernel");

typedef void (*step_kernel)(step_problem);

/* Weights and biases in the order of use. */
struct step_order {
    const unsigned short *weights;
    const int *pieces;
    const float *biases;
    int n_biases;
};

struct cuda_step {
    weft_step_form form;
    step_problem problem;
    step_kernel few, many;   /* up to 16 rows, and up to 64 */
    step_order whole, split; /* of blocks that sum all of a depth, and of those that have parts */
    bool sums_whole;         /* up to 16 rows */
    int flagged;             /* rows whose numbers travel with flags, at most */
    unsigned flags;          /* the next step's first */
    int grid, few_bytes, many_bytes;
    bool overlaps; /* a step's blocks come while the last of the step before are still there */
    cudaStream_t stream;
    std::vector<void *> memory;
    std::vector<step_phase> phases;
    std::vector<const weft_step_matrix *> matrices; /* of the phases, while it is opened */
    int shift;                                      /* of the next product */
    int64_t weight_bytes;
    int32_t *told;       /* host, pinned: [2, ROWS] */
    unsigned *told_step; /* [2], and one that nobody watches */
    cuda_draws *draws;
    int32_t *drawn;  /* device: [ROWS] */
    int32_t *inputs; /* device: [ROWS]: the rows' tokens */
    float *logits;   /* host, pinned: [ROWS, V], made when first asked for */
    unsigned started, finished;
    int64_t ran;      /* phases of the step that was started last */
    unsigned arrived; /* blocks at the barrier by the end of all that was started */
    int64_t rows[2];
};

/* Room on the device; with `from`, filled. */
static weft_status place(cuda_step *s, const void *from, int64_t bytes, void **out) {
    *out = NULL;
    if (bytes == 0) return WEFT_OK;
    WEFT_TRY(check_cuda(cudaMalloc(out, (size_t)bytes), "no memory for a step"));
    s->memory.push_back(*out);
    cudaError_t error = from ? cudaMemcpy(*out, from, (size_t)bytes, cudaMemcpyHostToDevice)
                             : cudaMemset(*out, 0, (size_t)bytes);
    return check_cuda(error, "a step's memory was not filled");
}

static weft_status place_floats(cuda_step *s, const float *from, int64_t count, const float **out) {
    return from ? place(s, from, count * (int64_t)sizeof *from, (void **)out) : WEFT_OK;
}

/* A product with the columns of the residual stream. */
static void split_depth(const cuda_step *s, step_phase *f) {
    int splits = f->chunks / STEP_WARPS < STEP_SPLITS ? f->chunks / STEP_WARPS : (int)STEP_SPLITS;
    if (splits < 2) return;
    f->split = (f->chunks + splits - 1) / splits;
    f->split = (f->split + STEP_WARPS - 1) / STEP_WARPS * STEP_WARPS; /* a stage begins there */
    f->splits = (short)((f->chunks + f->split - 1) / f->split);
    int together = (f->tiles * f->splits + s->grid - 1) / s->grid;
    f->together = (short)(together < STEP_TILES ? together : (int)STEP_TILES);
}

static weft_status add_product(cuda_step *s, const weft_step_matrix *m, step_source source,
                               step_target target, step_phase f) {
    f.kind = STEP_PRODUCT;
    f.source = (short)source;
    f.target = (short)target;
    f.columns = (int)m->columns;
    f.depth = (int)m->depth;
    f.tiles = (int)ceil_div(m->columns, STEP_COLUMNS);
    f.chunks = (int)(m->depth / STEP_CHUNK);
    f.shift = (short)s->shift;
    f.splits = 1;
    f.split = f.chunks;
    if (target == STEP_TO_SUMS) split_depth(s, &f);
    /* The next product begins where this one ends, so that blocks have equal shares in all. */
    s->shift = (s->shift + step_items(f)) % s->grid;
    s->weight_bytes += weft_step_packed(m->columns, m->depth) * 2;
    if (target == STEP_TO_LOGITS) WEFT_TRY(place_floats(s, m->bias, m->columns, &f.bias));
    s->phases.push_back(f);
    s->matrices.push_back(m);
    return WEFT_OK;
}

static void add_phase(cuda_step *s, step_kind kind, step_phase f) {
    f.kind = (short)kind;
    s->phases.push_back(f);
    s->matrices.push_back(NULL);
}

/* What the last product made, to the residual stream. */
static void add_sums(cuda_step *s) {
    step_phase f = {};
    f.splits = s->phases.back().splits;
    add_phase(s, STEP_ADD, f);
}

static weft_status add_layer(cuda_step *s, const weft_step_layer *l) {
    int64_t heads = s->form.heads;
    step_phase f = {};
    f.keys = (char *)l->keys;
    f.values = (char *)(s->form.joint ? l->keys : l->values);
    WEFT_TRY(add_product(s, &l->heads, STEP_FROM_NORM, STEP_TO_HEADS, f));
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
    WEFT_TRY(add_product(s, &l->out, STEP_FROM_HEADS, STEP_TO_SUMS, {}));
    add_sums(s);
    WEFT_TRY(add_product(s, &l->in, STEP_FROM_NORM, STEP_TO_HIDDEN, {}));
    WEFT_TRY(add_product(s, &l->back, STEP_FROM_HIDDEN, STEP_TO_SUMS, {}));
    add_sums(s);
    return WEFT_OK;
}

/* Calls visit(chunk_of) for each piece of the head's weights: the order of step_head. */
template <typename F>
static void walk_head(const cuda_step *s, const step_phase &f, int block, F visit) {
    for (int base = 0, each; base < f.tiles; base += each * s->grid * STEP_WARPS) {
        each = step_head_tiles(f.tiles, base, s->grid);
        if (step_head_first(base, each, s->grid, block, 0) >= f.tiles) break;
        for (int chunk = 0; chunk < f.chunks; chunk++)
            for (int g = 0; g < each; g++)
                visit([=](int warp) {
                    int tile = step_head_first(base, each, s->grid, block, warp) + g;
                    return tile < f.tiles ? (int64_t)tile * f.chunks + chunk : -1;
                });
    }
}

/* Calls visit(item) for each of a block's items in the order of step_product, or, where a block sums
 * all of the depth, of step_product_adds: a tile. */
template <typename F>
static void walk_items(const cuda_step *s, const step_phase &f, bool whole, int block, F visit) {
    bool adds = whole && f.target == STEP_TO_SUMS;
    int all = adds ? f.tiles : step_items(f), step = adds ? s->grid : step_item_step(f, s->grid);
    for (int i = (block - f.shift + s->grid) % s->grid; i < all; i += step)
        visit(adds ? step_item{i, 1, 1, 0, f.chunks, 0} : step_item_at(f, i, s->grid));
}

/* The pieces of a tile whose splits are summed beside each other. */
template <typename F> static void walk_splits(const step_phase &f, int tile, F visit) {
    for (int slot = 0; slot < step_slots(f.split); slot++)
        for (int k = 0; k < f.splits; k++)
            visit([=](int warp) {
                int in_split = slot * STEP_WARPS + warp, chunk = k * f.split + in_split;
                bool has = in_split < f.split && chunk < f.chunks;
                return has ? (int64_t)tile * f.chunks + chunk : (int64_t)-1;
            });
}

/* The same as walk_head of another product. */
template <typename F>
static void walk_product(const cuda_step *s, const step_phase &f, bool whole, int block, F visit) {
    walk_items(s, f, whole, block, [&](step_item t) {
        if (whole && f.target == STEP_TO_SUMS) return walk_splits(f, t.tile, visit);
        for (int slot = 0; slot < step_slots(t.chunks); slot++)
            for (int g = 0; g < t.tiles; g++)
                visit([=](int warp) {
                    int chunk = slot * STEP_WARPS + warp;
                    int64_t tile = t.tile + g * t.stride;
                    return chunk < t.chunks ? tile * f.chunks + t.chunk + chunk : (int64_t)-1;
                });
    });
}

/* Calls visit(matrix, chunk_of) for each piece of a block's weights in the order of use; chunk_of(warp)
 * is -1 where the warp has none. */
template <typename F> static void walk_pieces(const cuda_step *s, bool whole, int block, F visit) {
    for (size_t i = 0; i < s->phases.size(); i++) {
        const step_phase &f = s->phases[i];
        auto piece = [&](auto chunk_of) { visit(s->matrices[i], chunk_of); };
        if (f.kind != STEP_PRODUCT) continue;
        if (f.target == STEP_TO_LOGITS)
            walk_head(s, f, block, piece);
        else
            walk_product(s, f, whole, block, piece);
    }
}

/* A piece has a chunk for each warp, and zeros where there are no more. */
static weft_status lay_out_weights(cuda_step *s, bool whole, step_order *order) {
    enum { CHUNK = STEP_COLUMNS * STEP_CHUNK };
    std::vector<int> pieces(1, 0);
    int count = 0;
    for (int b = 0; b < s->grid; b++) {
        walk_pieces(s, whole, b, [&](const weft_step_matrix *, auto) { count++; });
        pieces.push_back(count);
    }
    std::vector<uint16_t> weights((size_t)count * STEP_WARPS * CHUNK);
    uint16_t *to = weights.data();
    for (int b = 0; b < s->grid; b++)
        walk_pieces(s, whole, b, [&](const weft_step_matrix *m, auto chunk_of) {
            for (int w = 0; w < STEP_WARPS; w++, to += CHUNK) {
                int64_t chunk = chunk_of(w);
                if (chunk >= 0) memcpy(to, m->weights + chunk * CHUNK, CHUNK * sizeof *to);
            }
        });
    WEFT_TRY(place(s, weights.data(), (int64_t)(weights.size() * sizeof weights[0]),
                   (void **)&order->weights));
    return place(s, pieces.data(), (int64_t)(pieces.size() * sizeof pieces[0]),
                 (void **)&order->pieces);
}

/* Of each block those of its columns in the order of step_product, zeros where there is none. */
static weft_status lay_out_biases(cuda_step *s, bool whole, step_order *order) {
    std::vector<std::vector<float>> of((size_t)s->grid);
    size_t most = 0;
    for (int b = 0; b < s->grid; b++) {
        for (size_t i = 0; i < s->phases.size(); i++) {
            const step_phase &f = s->phases[i];
            if (f.kind != STEP_PRODUCT || f.target == STEP_TO_LOGITS) continue;
            const float *bias = s->matrices[i]->bias;
            walk_items(s, f, whole, b, [&](step_item t) {
                for (int g = 0; g < t.tiles; g++)
                    for (int c = 0; c < STEP_COLUMNS; c++) {
                        int n = (t.tile + g * t.stride) * STEP_COLUMNS + c;
                        bool has = bias && n < f.columns && t.split == 0;
                        of[(size_t)b].push_back(has ? bias[n] : 0);
                    }
            });
        }
        if (of[(size_t)b].size() > most) most = of[(size_t)b].size();
    }
    std::vector<float> all;
    for (std::vector<float> &one : of) {
        one.resize(most);
        all.insert(all.end(), one.begin(), one.end());
    }
    bool any = false;
    for (const weft_step_matrix *m : s->matrices)
        any = any || (m && m->bias);
    if (!any) return WEFT_OK;
    order->n_biases = (int)most;
    return place(s, all.data(), (int64_t)(all.size() * sizeof all[0]), (void **)&order->biases);
}

static weft_status lay_out(cuda_step *s, bool whole, step_order *order) {
    WEFT_TRY(lay_out_weights(s, whole, order));
    return lay_out_biases(s, whole, order);
}

static weft_status add_phases(cuda_step *s, const weft_step_model *m) {
    add_phase(s, STEP_EMBED, {});
    for (int64_t i = 0; i < m->form.layers; i++)
        WEFT_TRY(add_layer(s, m->layer + i));
    WEFT_TRY(add_product(s, &m->head, STEP_FROM_NORM, STEP_TO_LOGITS, {}));
    WEFT_TRY(lay_out(s, false, &s->split));
    if (s->sums_whole) WEFT_TRY(lay_out(s, true, &s->whole));
    s->matrices.clear();
    s->problem.n_phases = (int)s->phases.size();
    return place(s, s->phases.data(), (int64_t)(s->phases.size() * sizeof(step_phase)),
                 (void **)&s->problem.phases);
}
