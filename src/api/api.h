/* What the files of the public API share. Each public function checks what it is given, says what
 * is wrong, and hands over to the layer below, which may then take its arguments for granted. */
#pragma once

#include "core/function.h"
#include "model/session.h"

#include <weft/graph.h>

struct weft_engine {
    const weft_backend *backend;
    weft_pool *pool;
    pthread_mutex_t running;  /* one call uses the pool at a time */
    pthread_mutex_t building; /* one block is planned at a time */
    pthread_mutex_t lock;     /* of what follows */
    weft_block *blocks;       /* those that are kept, the last opened first */
};

/* A function's half: on the host one call of an engine's at a time. */
weft_status weft_api_call(weft_engine *engine, weft_function *function, weft_half half,
                          const weft_call_memory *memory);

/* Those of an engine that closes. */
void weft_api_close_blocks(weft_engine *engine);

struct weft_pass {
    weft_session session;
    uint64_t serial; /* unlike any other pass's: an address may come again */
    int64_t batch, time;
    int purpose;
    int32_t *no_targets; /* [B, T] of -1 */
    bool has_run, has_targets;
};

/* Wrong input: a message that begins with the function's name. */
#define API_REFUSE(format, ...) WEFT_BAD_INPUT("%s: " format, __func__, ##__VA_ARGS__)

/* Refuses the first argument that is NULL, by its name. */
#define API_NEED(...)                                                                              \
    WEFT_TRY(weft_api_need(__func__, #__VA_ARGS__, (const void *const[]){__VA_ARGS__}))
weft_status weft_api_need(const char *caller, const char *names, const void *const *arguments);

/* The start of a function that makes something: *out is NULL until there is one. */
#define API_OPEN(out, ...)                                                                         \
    do {                                                                                           \
        API_NEED(out);                                                                             \
        *(out) = NULL;                                                                             \
        API_NEED(__VA_ARGS__);                                                                     \
    } while (0)

/* The config at `path` (a folder's config.json, a file, or the defaults for NULL) with overrides on
 * it, checked. */
weft_status weft_api_config(const char *path, const char *const *overrides, weft_config *c,
                            bool *is_folder);

/* The model's tensor of that name, which must have `count` elements. `caller` begins the message. */
weft_status weft_api_find(const weft_model *m, const char *caller, const char *name, int64_t count,
                          weft_weight **out);

/* What checksums said of a model's folder, with what to do. */
weft_status weft_api_vouched(weft_status status, const char *folder);

/* What a graph that is built over the public header knows beside its nodes. */

enum { WEFT_API_TENSORS_MAX = 512 }; /* inputs, weights and outputs of a block, each */

typedef struct {
    weft_tensor *tensor;
    char *name;
    weft_tensor *grad; /* made (inputs, weights) or read (outputs) by backward; NULL: none */
    bool wants_grad;
} weft_api_entry;

typedef struct {
    weft_api_entry *entries;
    int n;
} weft_api_list;

typedef struct {
    bool gradient;         /* there will be a backward pass */
    weft_api_list list[3]; /* by weft_block_list */
} weft_api_lists;

/* Appends a tensor; false: no memory, or too many, and the graph has the error. */
bool weft_api_note(weft_graph *g, weft_block_list which, weft_tensor *t, const char *name,
                   bool wants_grad);
