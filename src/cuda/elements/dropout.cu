/* Dropout on the GPU: a thread per pack, two Philox blocks each. The counters are those of the CPU,
 * and the run's numbers come from device memory, where a replayed run finds them changed. Floor:
 * the bytes of x and y; twenty rounds of Philox a pack cost a little less than that takes. */
#include "cuda/pack.cuh"

extern "C" {
#include "ops/activation.h"
}

struct dropping {
    int64_t batch, length; /* elements of a sequence */
    uint32_t threshold, site;
    float scale;
    any_tensor x, y;
    const weft_cuda_run *run;
};

/* One block of four words: weft_philox, for the device. */
__device__ static inline uint4 draw_words(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2,
                                          uint32_t c3) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)b;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return make_uint4(c0, c1, c2, c3);
}

template <bool WHOLE> static __global__ void drop_packs(dropping k) {
    int64_t packs = ceil_div(k.length, VECTOR), b = quotient(thread_index(), packs);
    if (b >= k.batch) return;
    int64_t item = thread_index() - b * packs, at = item * VECTOR;
    int n = pack_length(k.length, at);
    pack p = fetch_of<WHOLE>(k.x, b * k.length + at, n);
    uint64_t seed = k.run->seed;
    uint32_t sequence = k.run->sequence + (uint32_t)b, iteration = k.run->iteration;
    uint4 low = draw_words(seed, (uint32_t)(2 * item), sequence, iteration, k.site);
    uint4 high = draw_words(seed, (uint32_t)(2 * item + 1), sequence, iteration, k.site);
    uint32_t word[VECTOR] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    float v[VECTOR];
    widen_of<WHOLE>(p, k.x, v);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        v[i] = word[i] >> 8 >= k.threshold ? v[i] * k.scale : 0.0f;
    store_of<WHOLE>(k.y, b * k.length + at, n, v);
}

static weft_status dropout_run(weft_exec *x, const weft_node *n) {
    const weft_dropout_attr *attr = ATTR(n, weft_dropout_attr);
    dropping k = {};
    k.batch = n->in[0]->shape[0];
    k.length = weft_tensor_count(n->in[0]) / k.batch;
    k.threshold = (uint32_t)ceil(attr->p * 0x1p24);
    k.site = attr->site;
    k.scale = (float)(1 / (1 - attr->p));
    k.x = any_of(x, n->in[0]);
    k.y = any_of(x, n->out[0]);
    k.run = device_run(x);
    unsigned blocks = pack_grid(k.batch * ceil_div(k.length, VECTOR));
    with_flag(are_whole(k.length, k.x, k.y), [&](auto whole) {
        drop_packs<decltype(whole)::value><<<blocks, PACK_THREADS, 0, stream_of(x)>>>(k);
    });
    return launched(n);
}

CUDA_KERNEL(dropout, dropout_run)
