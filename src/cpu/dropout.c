/* Dropout on the CPU. Philox is run on LANES counters side by side, a loop that compilers turn
 * into vector code; a counter gives four words, for four elements in a row. */
#include "ops/activation.h"

#include "base/random.h"
#include "cpu/chunks.h"

enum { LANES = 64, DRAWN = 4 * LANES };

typedef struct {
    weft_exec *x;
    const weft_node *n;
    int64_t length, chunk, chunks; /* elements of a sequence, of a task; tasks of a sequence */
    uint32_t threshold, site;      /* keep where word >> 8 ≥ threshold */
    real scale;
} dropping;

/* Words of LANES consecutive counters from `first` on, word w of counter l at [4l + w]. It is
 * weft_philox written for many. */
static void draw_words(uint64_t key, uint32_t first, uint32_t sequence, uint32_t iteration,
                       uint32_t site, uint32_t *out) {
    uint32_t c0[LANES], c1[LANES], c2[LANES], c3[LANES];
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int l = 0; l < LANES; l++) {
        c0[l] = first + (uint32_t)l;
        c1[l] = sequence;
        c2[l] = iteration;
        c3[l] = site;
    }
    for (int round = 0; round < 10; round++) {
        for (int l = 0; l < LANES; l++) {
            uint64_t a = (uint64_t)0xD2511F53u * c0[l], b = (uint64_t)0xCD9E8D57u * c2[l];
            c0[l] = (uint32_t)(b >> 32) ^ c1[l] ^ k0;
            c2[l] = (uint32_t)(a >> 32) ^ c3[l] ^ k1;
            c1[l] = (uint32_t)b;
            c3[l] = (uint32_t)a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int l = 0; l < LANES; l++) {
        out[4 * l] = c0[l];
        out[4 * l + 1] = c1[l];
        out[4 * l + 2] = c2[l];
        out[4 * l + 3] = c3[l];
    }
}

/* Elements at .. at+len of sequence b, `at` a multiple of DRAWN. */
static void drop_tile(const dropping *k, int64_t b, int64_t at, int64_t len) {
    const weft_run *run = weft_exec_current_run(k->x);
    real x_scratch[TILE_SCRATCH], y_scratch[TILE_SCRATCH];
    int64_t place = b * k->length + at;
    const real *x = tile_in(k->x, k->n->in[0], place, len, x_scratch);
    real *y = tile_out(k->x, k->n->out[0], place, y_scratch);
    const uint32_t threshold = k->threshold;
    const real scale = k->scale;
    for (int64_t i = 0; i < len; i += DRAWN) {
        uint32_t word[DRAWN];
        real kept[DRAWN];
        draw_words(run->seed, (uint32_t)((at + i) / 4), run->sequence + (uint32_t)b, run->iteration,
                   k->site, word);
        int64_t count = min_i64(DRAWN, len - i);
        memcpy(kept, x + i, (size_t)count * sizeof(real));
        for (int64_t e = 0; e < count; e++)
            kept[e] = word[e] >> 8 >= threshold ? kept[e] * scale : 0;
        memcpy(y + i, kept, (size_t)count * sizeof(real));
    }
    tile_done(k->x, k->n->out[0], place, len, y);
}

WEFT_TASK(drop_chunk) {
    const dropping *k = context;
    int64_t b = task / k->chunks, first = task % k->chunks * k->chunk;
    int64_t end = min_i64(first + k->chunk, k->length);
    for (int64_t at = first; at < end; at += TILE)
        drop_tile(k, b, at, min_i64(TILE, end - at));
}

DEFINE_KERNEL(dropout) {
    const weft_dropout_attr *attr = n->attr;
    int64_t batch = n->in[0]->shape[0];
    dropping k = {.x = x,
                  .n = n,
                  .length = weft_tensor_count(n->in[0]) / batch,
                  .threshold = (uint32_t)ceil(attr->p * 0x1p24),
                  .site = attr->site,
                  .scale = (real)(1 / (1 - attr->p))};
    k.chunk = chunk_length(k.length);
    k.chunks = ceil_div(k.length, k.chunk);
    weft_pool_run(weft_exec_pool(x), batch * k.chunks, drop_chunk, &k);
    return WEFT_OK;
}
