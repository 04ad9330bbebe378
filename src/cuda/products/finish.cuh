/* What becomes of the sums of a product: bias, addend, the value before gelu, gelu or its slope, c. */
#pragma once

#include "cuda/functions.cuh"
#include "cuda/products/gemm.cuh"

typedef struct {
    any_tensor c, bias, addend, pre; /* data NULL: not there */
    int64_t ld, stride;              /* of c, addend and pre */
    int64_t bias_stride;
    bool gelu, gelu_back, accumulate;
    int group;     /* not 0: as of gemm.cuh; by fours only */
    bool by_fours; /* four columns from a multiple of four on can be read and written at once */
    float alpha;
} finishing;

static inline bool has_fours(const cuda_gemm_matrix *x) {
    return !x->data || (uintptr_t)x->data % (x->is_bf16 ? 8 : 16) == 0;
}

static inline finishing describe_finish(const cuda_gemm *p) {
    finishing f = {};
    f.c = any_tensor{p->c.data, p->c.is_bf16};
    f.bias = any_tensor{p->bias.data, p->bias.is_bf16};
    f.addend = any_tensor{p->addend.data, p->addend.is_bf16};
    f.pre = any_tensor{p->pre.data, p->pre.is_bf16};
    f.ld = p->c.ld;
    f.stride = p->c.stride;
    f.bias_stride = p->bias.stride;
    f.gelu = p->gelu;
    f.gelu_back = p->gelu_back;
    f.group = p->group;
    f.accumulate = p->accumulate;
    f.by_fours = p->n % 4 == 0 && p->c.ld % 4 == 0 && p->batch == 1 && has_fours(&p->c) &&
                 has_fours(&p->bias) && has_fours(&p->addend) && has_fours(&p->pre);
    f.alpha = p->alpha;
    return f;
}

__device__ static inline void finish_value(const finishing &f, int64_t g, int64_t row,
                                           int64_t column, float sum) {
    int64_t at = g * f.stride + row * f.ld + column;
    if (f.accumulate) sum += load_any(f.c, at);
    if (f.bias.data) sum += load_any(f.bias, g * f.bias_stride + column);
    if (f.addend.data) sum += load_any(f.addend, at);
    if (f.gelu_back)
        sum *= gelu_slope(load_any(f.pre, at));
    else if (f.pre.data)
        store_any(f.pre, at, sum);
    store_any(f.c, at, f.gelu ? gelu_value(sum) : sum);
}

__device__ static inline float4 load_four(any_tensor t, int64_t i) {
    if (!t.is_bf16) return *(const float4 *)((const float *)t.data + i);
    uint2 v = *(const uint2 *)((const bf16 *)t.data + i);
    return make_float4(__uint_as_float(v.x << 16), __uint_as_float(v.x & 0xffff0000u),
                       __uint_as_float(v.y << 16), __uint_as_float(v.y & 0xffff0000u));
}

__device__ static inline void store_four(any_tensor t, int64_t i, float4 v) {
    if (t.is_bf16)
        store_words((bf16 *)(void *)t.data + i, join_halves(v.x, v.y), join_halves(v.z, v.w));
    else
        *(float4 *)((float *)(void *)t.data + i) = v;
}

__device__ static inline float4 add_four(float4 a, float4 b) {
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

/* What is added to four sums of a row: it can be read before they are there. */
struct four_addends {
    float4 bias, addend;
};

__device__ static inline bool goes_by_fours(const finishing &f) {
    return f.by_fours && !f.gelu_back;
}

__device__ static inline four_addends load_addends(const finishing &f, int64_t row, int64_t column,
                                                   int64_t n) {
    four_addends a = {};
    if (!goes_by_fours(f) || column >= n) return a;
    if (f.bias.data) a.bias = load_four(f.bias, column);
    if (f.addend.data) a.addend = load_four(f.addend, row * f.ld + column);
    return a;
}

/* Four sums of a row up to column n, one by one. Not inline: kernels of few microseconds wait for each
 * line of code that they come to first. */
__device__ static __noinline__ void finish_apart(const finishing &f, int64_t row, int64_t column,
                                                 int64_t n, float4 sum) {
#pragma unroll 1
    for (int i = 0; i < 4 && column + i < n; i++)
        finish_value(f, 0, row, column + i,
                     i == 0   ? sum.x
                     : i == 1 ? sum.y
                     : i == 2 ? sum.z
                              : sum.w);
}

__device__ static __noinline__ float4 softplus_four(float4 v) {
    return make_float4(softplus(v.x), softplus(v.y), softplus(v.z), softplus(v.w));
}

/* Four sums of a row, with the bits of finish_value. What became of them; zeros behind column n. */
__device__ static inline float4 finish_four(const finishing &f, int64_t row, int64_t column,
                                            int64_t n, float4 sum, const four_addends &a) {
    if (!goes_by_fours(f)) {
        finish_apart(f, row, column, n, sum);
        return sum;
    }
    int64_t at = row * f.ld + column;
    if (column >= n) return float4{};
    if (f.accumulate) sum = add_four(sum, load_four(f.c, at));
    if (f.bias.data) sum = add_four(sum, a.bias);
    if (f.addend.data) sum = add_four(sum, a.addend);
    if (f.pre.data) store_four(f.pre, at, sum);
    if (f.gelu)
        sum =
            make_float4(gelu_value(sum.x), gelu_value(sum.y), gelu_value(sum.z), gelu_value(sum.w));
    if (f.group && (int)column % f.group >= f.group / 2) sum = softplus_four(sum);
    store_four(f.c, at, sum);
    return sum;
}
