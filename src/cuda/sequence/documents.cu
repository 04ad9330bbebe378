/* Where documents begin, on the GPU. A block has a sequence: each thread looks through some tokens for the
 * last that ends a document, the threads tell each other, and each writes its own. In generation a thread
 * has a row, and looks back over the run's earlier rows for those of its sequence. */
#include "cuda/decode/cached.cuh"

enum { THREADS = 256 };

static __global__ void find_documents(const int32_t *tokens, int32_t end, int time, int32_t *first,
                                      int32_t *place) {
    __shared__ int begun[THREADS];
    int length = (int)ceil_div(time, THREADS), from = min((int)threadIdx.x * length, time);
    int to = min(from + length, time), own = 0;
    int64_t base = (int64_t)blockIdx.x * time;
    for (int t = from; t < to; t++)
        if (tokens[base + t] == end) own = t + 1;
    begun[threadIdx.x] = own;
    __syncthreads();
    own = 0;
    for (int i = 0; i < (int)threadIdx.x; i++)
        own = max(own, begun[i]);
    for (int t = from; t < to; t++) {
        first[base + t] = own;
        place[base + t] = t - own;
        if (tokens[base + t] == end) own = t + 1;
    }
}

CUDA_RUN(documents) {
    int64_t batch = n->in[0]->shape[0], time = n->in[0]->shape[1];
    find_documents<<<(unsigned)batch, THREADS, 0, stream_of(x)>>>(
        data_of<int32_t>(x, n->in[0]), ATTR(n, weft_documents_attr)->end, (int)time,
        data_of<int32_t>(x, n->out[0]), data_of<int32_t>(x, n->out[1]));
    return launched(n);
}

/* One block: what a sequence had is read by all of its rows before the last of them writes. Other sequences'
 * rows may stand between them. */
static __global__ void find_cached_documents(row_places p, const int32_t *tokens, int32_t end,
                                             int32_t *begun, int32_t *first, int32_t *place) {
    for (int r = threadIdx.x; r < p.rows; r += blockDim.x) {
        int slot = p.slot[r], own = -1, earliest = r;
        for (int i = r - 1; i >= 0 && slot >= 0 && own < 0; i--) {
            if (p.slot[i] != slot) continue;
            if (tokens[i] == end) own = p.position[i] + 1;
            earliest = i;
        }
        if (own < 0) own = slot >= 0 && p.position[earliest] > 0 ? begun[slot] : 0;
        first[r] = own;
        place[r] = slot >= 0 ? p.position[r] - own : 0;
    }
    __syncthreads();
    for (int r = threadIdx.x; r < p.rows; r += blockDim.x) {
        bool last = p.slot[r] >= 0;
        for (int i = r + 1; i < p.rows && last; i++)
            last = p.slot[i] != p.slot[r];
        if (last) begun[p.slot[r]] = tokens[r] == end ? p.position[r] + 1 : first[r];
    }
}

CUDA_RUN(cache_documents) {
    find_cached_documents<<<1, 1024, 0, stream_of(x)>>>(
        places_of(x, n), data_of<int32_t>(x, n->in[WEFT_CACHE_X]),
        ATTR(n, weft_documents_attr)->end, data_of<int32_t>(x, n->in[WEFT_CACHE_PAGES]),
        data_of<int32_t>(x, n->out[0]), data_of<int32_t>(x, n->out[1]));
    return launched(n);
}
