/* Dropout on the GPU: a thread per pack, two Philox blocks each. The counters are those of the CPU,
 * and the run's numbers come from device memory, where a replayed run finds them changed. Floor:
 * the bytes of x and y; twenty rounds of Philox a pack cost a little less than that takes. */
#include "cuda/pack.cuh"

struct dropping {
    int64_t batch, length; /* elements of a sequence */
    uint32_t threshold, site;
    float scale;
    any_tensor x, y;
    const weft_cuda_run *run;
};

template <bool WHOLE> static __global__ void drop_packs(dropping k) {
    auto [b, at, n] = place_pack(k.length);
    if (b >= k.batch) return;
    pack p = fetch_of<WHOLE>(k.x, b * k.length + at, n);
    uint64_t seed = k.run->seed;
    uint32_t sequence = k.run->sequence + (uint32_t)b, iteration = k.run->iteration;
    uint32_t block = (uint32_t)(at / 4);
    weft_random4 low = weft_philox(seed, block, sequence, iteration, k.site);
    weft_random4 high = weft_philox(seed, block + 1, sequence, iteration, k.site);
    float v[VECTOR];
    widen_of<WHOLE>(p, k.x, v);
#pragma unroll
    for (int i = 0; i < VECTOR; i++)
        v[i] = (i < 4 ? low : high).word[i % 4] >> 8 >= k.threshold ? v[i] * k.scale : 0.0f;
    store_of<WHOLE>(k.y, b * k.length + at, n, v);
}

CUDA_RUN(dropout) {
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
    bool whole = are_whole(k.length, k.x, k.y);
    return run_items(x, n, count_packs(k.batch, k.length),
                     whole ? drop_packs<true> : drop_packs<false>, k);
}
