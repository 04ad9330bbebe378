/* A safetensors file: by itself, as the weights of a small model, and as an optimizer's state. */
#include "core/safetensors.h"
#include "cpu/backend.h"
#include "fuzz/fuzz.h"
#include "model/model.h"
#include "train/optimizer.h"

#include <stdlib.h>
#include <string.h>

static void check_tensor(const weft_safetensors *file, int64_t i) {
    const weft_safetensor *t = weft_safetensors_at(file, i);
    int64_t count = 1;
    for (int d = 0; d < t->ndim; d++)
        count *= t->shape[d];
    FUZZ_PROMISE(t->bytes == count * weft_file_dtype_size(t->dtype),
                 "a tensor has the bytes that its shape asks for");
    FUZZ_PROMISE(weft_safetensors_find(file, t->name) == t, "a tensor is found by its name");
    fuzz_touch(t->data, (size_t)t->bytes);
}

/* What is read and written again holds the same tensors. */
static void check_written_again(const weft_safetensors *file) {
    int64_t n = weft_safetensors_count(file);
    weft_safetensor *tensors = calloc((size_t)n + 1, sizeof *tensors);
    weft_safetensors *again;
    if (!tensors) exit(2);
    for (int64_t i = 0; i < n; i++)
        tensors[i] = *weft_safetensors_at(file, i);
    const char *path = fuzz_path("again.safetensors");
    FUZZ_PROMISE(weft_safetensors_write(path, tensors, n, NULL, NULL) == WEFT_OK,
                 "tensors that were read can be written");
    FUZZ_PROMISE(weft_safetensors_open(path, &again) == WEFT_OK, "a written file opens");
    FUZZ_PROMISE(weft_safetensors_count(again) == n, "no tensor is lost");
    for (int64_t i = 0; i < n; i++) {
        const weft_safetensor *a = &tensors[i], *b = weft_safetensors_at(again, i);
        FUZZ_PROMISE(strcmp(a->name, b->name) == 0 && a->dtype == b->dtype &&
                         a->bytes == b->bytes && memcmp(a->data, b->data, (size_t)a->bytes) == 0,
                     "a tensor is written as it was read");
    }
    weft_safetensors_close(again);
    free(tensors);
}

/* The smallest model, and its optimizer. */
static struct {
    weft_model *model;
    weft_pool *pool;
    weft_optimizer *optimizer;
} small;

static void make_small(void) {
    weft_config c;
    weft_config_defaults(&c);
    c.n_layer = c.n_head = 1;
    c.n_embd = c.n_ffn = c.vocab_size = c.context = 2;
    if (weft_model_create(&c, WEFT_F32, NULL, &small.model) != WEFT_OK ||
        weft_pool_create(1, &small.pool) != WEFT_OK ||
        weft_optimizer_create(small.model, weft_cpu_backend(), small.pool, NULL,
                              &small.optimizer) != WEFT_OK)
        exit(2);
}

bool fuzz_safetensors(const uint8_t *data, size_t size) {
    weft_safetensors *file;
    weft_model *model;
    const char *path = fuzz_file("model.safetensors", data, size);
    if (!small.model) make_small();
    if (weft_safetensors_open(path, &file) != WEFT_OK) return false;
    int64_t n = weft_safetensors_count(file);
    for (int64_t i = 0; i < n; i++)
        check_tensor(file, i);
    weft_safetensors_metadata(file, "format");
    check_written_again(file);
    weft_safetensors_close(file);
    if (weft_model_load_as(fuzz_folder(), &small.model->config, WEFT_F32, NULL, &model) == WEFT_OK)
        weft_model_destroy(model);
    weft_optimizer_read(small.optimizer, path);
    return true;
}
