/* A model into a folder of Hugging Face's layout: config.json, model.safetensors, tokenizer.json. */
#include "base/json.h"
#include "convert/hf.h"
#include "core/safetensors.h"

#include <stdlib.h>
#include <string.h>

/* Their tensor's elements from our rows, of the same type; malloc'd where they must be transposed. */
static weft_status fill_tensor(const weft_model *m, const weft_hf_piece *p, weft_safetensor *t,
                               void **own) {
    const weft_weight *w = weft_model_find(m, p->ours);
    if (!w) return weft_fail(WEFT_EBUG, "convert: '%s' is not in the model", p->ours);
    size_t size = weft_dtype_size(w->dtype);
    int64_t width = p->columns ? p->columns : 1;
    const unsigned char *from = (const unsigned char *)w->data + (size_t)(p->first * width) * size;
    *t = (weft_safetensor){
        .name = p->theirs,
        .dtype = weft_file_dtype_of(w->dtype),
        .ndim = p->columns ? 2 : 1,
        .shape = {p->transposed ? p->columns : p->rows, p->transposed ? p->rows : p->columns},
        .data = from};
    if (!p->transposed) return WEFT_OK;
    unsigned char *to = malloc((size_t)(p->rows * width) * size);
    if (!to) return weft_fail(WEFT_ENOMEM, "convert: no memory for '%s'", p->theirs);
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < width; j++)
            memcpy(to + (size_t)(j * p->rows + i) * size, from + (size_t)(i * width + j) * size,
                   size);
    t->data = *own = to;
    return WEFT_OK;
}

static weft_status write_weights(const weft_model *m, weft_hf_family family, const char *path,
                                 weft_sum *sum) {
    static const char *const metadata[] = {"format", "pt", NULL};
    int64_t n;
    weft_hf_piece *pieces =
        weft_hf_list(&m->config, family, family == WEFT_HF_GPT2 ? "transformer." : "model.", &n);
    if (!pieces) return WEFT_ENOMEM;
    weft_safetensor *tensors = calloc((size_t)n, sizeof *tensors);
    void **own = calloc((size_t)n, sizeof *own);
    weft_status status = tensors && own ? WEFT_OK : weft_fail(WEFT_ENOMEM, "%s: no memory", path);
    if (status == WEFT_OK) status = weft_mirror_use(m->mirror, NULL);
    for (int64_t i = 0; status == WEFT_OK && i < n; i++)
        status = fill_tensor(m, &pieces[i], &tensors[i], &own[i]);
    if (status == WEFT_OK) status = weft_safetensors_write_summed(path, tensors, n, metadata, sum);
    for (int64_t i = 0; own && i < n; i++)
        free(own[i]);
    free(own);
    free(tensors);
    free(pieces);
    return status;
}

static weft_status write_config(const weft_model *m, const weft_tokenizer *t, const char *path,
                                weft_hf_family *family, weft_sum *sum) {
    static const char *const types[] = {
        [WEFT_F32] = "float32", [WEFT_BF16] = "bfloat16", [WEFT_F64] = "float64"};
    json_t *root;
    WEFT_TRY(weft_hf_config_write(&m->config, t ? weft_tokenizer_end(t) : -1, family, &root));
    json_object_set_new(root, "torch_dtype", json_string(types[m->dtype]));
    return weft_json_write(path, root, sum);
}

typedef struct {
    const weft_model *model;
    const weft_tokenizer *tokenizer;
} their_parts;

static weft_status write_parts(void *context, const char *folder, weft_sum sums[WEFT_PARTS]) {
    const their_parts *p = context;
    char path[WEFT_PATH_MAX];
    weft_hf_family family;
    WEFT_TRY(weft_path(path, "%s/%s", folder, weft_parts[WEFT_PART_CONFIG]));
    WEFT_TRY(write_config(p->model, p->tokenizer, path, &family, &sums[WEFT_PART_CONFIG]));
    WEFT_TRY(weft_path(path, "%s/%s", folder, weft_parts[WEFT_PART_MODEL]));
    WEFT_TRY(write_weights(p->model, family, path, &sums[WEFT_PART_MODEL]));
    WEFT_TRY(weft_path(path, "%s/%s", folder, weft_parts[WEFT_PART_TOKENIZER]));
    return p->tokenizer ? weft_tokenizer_save(p->tokenizer, path, &sums[WEFT_PART_TOKENIZER])
                        : WEFT_OK;
}

weft_status weft_hf_write(const weft_model *m, const weft_tokenizer *t, const char *folder,
                          weft_may_replace may) {
    return weft_model_publish(folder, may, write_parts, &(their_parts){m, t});
}
