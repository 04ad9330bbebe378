/* Attention whose tiles are multiplied by the processor's instructions for bf16: what the forward and
 * the backward pass share.
 *
 * The operands are copied as they are into the panels that the products' kernels read (panel_form.h).
 * Scores, softmax and every sum are float; the weights and the gradients of the scores are rounded to
 * bf16 where they become operands. A tile of scores lies as [query][key], keys in the vectors' lanes. */
#pragma once

#include "cpu/attention_exp.h"
#include "cpu/panel_form.h"

/* These are there for f32 alone. */
#define HAS_BF16_TILES (WEFT_REAL == 32)

/* Whether this is how the node is done: all of its rows are bf16, the processor has the instructions, and
 * scores have no term of position. */
bool KERNEL(attention_bf16_runs)(const weft_node *n);
bool KERNEL(attention_back_bf16_runs)(const weft_node *n);

extern const weft_kernel KERNEL(attention_bf16), KERNEL(attention_back_bf16);

#if WEFT_REAL == 32

enum {
    PANEL_KEYS = 96,             /* keys of a tile: whole panels for every form */
    PANEL_HALF = PANEL_KEYS / 2, /* softmax works on so many keys, or on all */
    SCORES_LD = PANEL_KEYS + 16, /* an odd number of cache lines */
    PANEL_WIDTH_MAX = 512        /* widest heads */
};

/* The node's inputs q, k and v from `in` on, as both passes read them. */
static inline bool fits_bf16(const weft_attention_attr *a, weft_tensor *const *in) {
    const weft_tensor *q = in[WEFT_ATTN_Q], *k = in[WEFT_ATTN_K], *v = in[WEFT_ATTN_V];
    bool bf16 =
        q->dtype == WEFT_BF16 && (!k || k->dtype == WEFT_BF16) && (!v || v->dtype == WEFT_BF16);
    bool plain = a->pos == WEFT_POS_NONE && !a->band;
    return bf16 && plain && a->dqk <= PANEL_WIDTH_MAX && a->dv <= PANEL_WIDTH_MAX &&
           KERNEL(panel_bf16)() != NULL;
}

static inline uint16_t *take_halves(real_block *block, int64_t n) {
    return (uint16_t *)take_reals(block, ceil_div(n, 2));
}

/* Rows of a head from position r0 on, as they lie. */
static inline gemm_matrix rows_of_head(const attention_problem *p, const head_rows *rows, int64_t b,
                                       int64_t r0, int64_t head) {
    uint16_t *data = weft_data(p->x, rows->t);
    return (gemm_matrix){
        .data = data + head_row_at(rows, b, r0, head), .ld = rows->row, .bf16 = true};
}

/* c [m, n] = alpha · a b, or += where `add`, for panels of k terms; those of a and of b are as many
 * numbers apart as said. m, n and k are padded. */
static inline void multiply_panels(const panel_form *f, int64_t m, int64_t n, int64_t k,
                                   const uint16_t *a, int64_t a_step, const uint16_t *b,
                                   int64_t b_step, real alpha, bool add, real *c, int64_t ldc) {
    for (int64_t j = 0; j < n; j += f->columns, b += b_step) {
        const uint16_t *row = a;
        for (int64_t i = 0; i < m; i += f->rows, row += a_step)
            f->multiply(k, row, b, alpha, add, c + i * ldc + j, ldc);
    }
}

typedef uint32_t vbits __attribute__((vector_size(VBYTES)));
typedef uint16_t vhalves __attribute__((vector_size(VBYTES / 2)));

/* Rounds to bf16 and returns the rounded numbers. Of a NaN, whose bits the sum may carry over into those
 * of a zero, all bits but the sign are set. */
static ALWAYS_INLINE vreal vround(uint16_t *to, vreal v) {
    vbits bits = (vbits)v;
    bits = ((bits + 0x7fff + ((bits >> 16) & 1)) >> 16) | ((vbits)(v != v) >> 17);
    vhalves half = __builtin_convertvector(bits, vhalves);
    memcpy(to, &half, sizeof half);
    return (vreal)(bits << 16);
}

#endif
