/* A model's weights: their names, shapes and memory, apart from any graph. Graphs for other shapes
 * and purposes (training, evaluation, decoding) are built from the same config and bound to the
 * same memory. */
#pragma once

#include "base/files.h"
#include "core/mirror.h"
#include "model/transformer.h"
#include "ops/optimizer.h"

typedef struct {
    const char *name;
    weft_dtype dtype;
    int ndim;
    int64_t shape[WEFT_MAX_DIMS];
    int64_t count, bytes;
    void *data; /* the host's; aligned to WEFT_ARENA_ALIGN */
    weft_init init;
    const char *part;
} weft_weight;

typedef struct weft_model {
    weft_config config;
    weft_dtype dtype;
    int64_t n_weights;
    weft_weight *weights; /* by name, ascending */
    void *memory;
    int64_t memory_bytes;
    weft_mirror *mirror; /* of the memory: before the host reads weights, weft_mirror_use(mirror,
                            NULL); after it wrote some, weft_mirror_wrote(mirror, NULL) */
    char *names;
} weft_model;

/* Weights of zero for a config; `dtype` f32, bf16 or f64. Weights that are few (gains, biases,
 * temperatures) are f32 beside bf16. The memory lies near the threads of a pool (weft_pool_zero);
 * NULL: there is none. */
weft_status weft_model_create(const weft_config *c, weft_dtype dtype, weft_pool *pool,
                              weft_model **out);
/* Both in two steps: names and shapes, without memory for the weights, which a file that is read is held
 * against first; then their memory. */
weft_status weft_model_describe(const weft_config *c, weft_dtype dtype, weft_model **out);
weft_status weft_model_allocate(weft_model *m, weft_pool *pool);
void weft_model_destroy(weft_model *m);
WEFT_ENDED_BY(weft_model_destroy, weft_model)

/* Draws the start that the config asks for (INIT), by all threads of a pool; NULL: the same numbers
 * without one. */
weft_status weft_model_start(weft_model *m, uint64_t seed, weft_pool *pool);

weft_weight *weft_model_find(const weft_model *m, const char *name);
/* Which matrices a weight is to OPTIMIZER: those of the layers with muon, "qkv" as three, and one for each
 * head where a weight is of heads. Others, and all with another optimizer, have none: n is 0. */
weft_muon_parts weft_muon_matrices(const weft_config *c, const char *name, int ndim,
                                   const int64_t *shape);
/* How they are updated on a backend. Where SHARD divides them and a batch of products may have other bits
 * than its parts, on a GPU, none depends on which of them a rank has: they do not go together. */
weft_muon_options weft_model_muon(const weft_config *c, const weft_backend *backend);
int64_t weft_model_parameter_count(const weft_model *m);

/* The bindings of a graph's parameters to the model's memory on a backend, for weft_exec_options;
 * freed by the caller with free(). Before a run there: weft_mirror_use(m->mirror, backend). An error where
 * a parameter of the graph is not the model's, or the backend has no room. */
weft_status weft_model_bind(const weft_model *m, const weft_backend *backend, const weft_graph *g,
                            weft_binding **out);

/* config.json and model.safetensors in a folder, which is made if it is not there. Loading takes
 * the folder's config, or, for a file written by others, checks names and shapes against it. */
weft_status weft_model_save(const weft_model *m, const char *folder);
/* The same; the sums are of what was meant to be written, at their places among the parts (folder.h). */
weft_status weft_model_save_summed(const weft_model *m, const char *folder, weft_sum *sums);
weft_status weft_model_load(const char *folder, weft_dtype dtype, weft_model **out);
/* The same under a config that is not the folder's: its own with some keys changed. The tensors must
 * still be just those that it asks for. The memory is that of weft_model_create. */
weft_status weft_model_load_as(const char *folder, const weft_config *c, weft_dtype dtype,
                               weft_pool *pool, weft_model **out);
weft_status weft_model_read_config(const char *folder, weft_config *c);

/* `m` with the mechanisms that `c` has and m's config has not: the reciprocal gate, cross-token routing,
 * the latent coupling, the output gate, WsFFN's z-heads, and the learned weights of the first three. What reads a mechanism's result starts at zero,
 * so its logits are m's within rounding, and the gradient is not zero. Refuses a config that differs in
 * other tensors. New weights are drawn by `seed`. */
weft_status weft_model_add(const weft_model *m, const weft_config *c, uint64_t seed,
                           weft_pool *pool, weft_model **out);

/* weft_model_load_as, of a folder whose model may have fewer mechanisms than c: they are added. */
weft_status weft_model_load_more(const char *folder, const weft_config *c, weft_dtype dtype,
                                 weft_pool *pool, weft_model **out);

/* Numbers of a weight as doubles, whatever its type, and back; as floats; and times a factor. */
void weft_weight_read(const weft_weight *w, double *out);
void weft_weight_write(weft_weight *w, const double *values);
void weft_weight_floats(const weft_weight *w, float *out);
void weft_weight_scale(weft_weight *w, double factor);
