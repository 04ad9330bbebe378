/* A folder of Hugging Face's into a model. The weights are in model.safetensors, or in several files
 * that model.safetensors.index.json lists. Each of our tensors must find all of its pieces, and each
 * of theirs must be one of them. */
#include "base/json.h"
#include "convert/hf.h"
#include "core/safetensors.h"
#include "model/kinds.h"

#include <stdlib.h>
#include <string.h>

enum { JSON_MOST = 1 << 26, SHARDS_MOST = 4096 };

typedef struct {
    const char *folder;
    weft_safetensors **list;
    int n;
} weight_files;

static weft_status find_file(const char *folder, const char *name, bool *there) {
    char path[WEFT_PATH_MAX];
    WEFT_TRY(weft_path(path, "%s/%s", folder, name));
    return weft_path_there(path, there);
}

static weft_status read_json(const char *folder, const char *name, json_t **out) {
    char path[WEFT_PATH_MAX];
    *out = NULL;
    WEFT_TRY(weft_path(path, "%s/%s", folder, name));
    return weft_json_load(path, JSON_MOST, out);
}

bool weft_hf_is_folder(const char *folder) {
    json_t *root = NULL;
    bool theirs = read_json(folder, "config.json", &root) == WEFT_OK &&
                  json_is_string(json_object_get(root, "model_type"));
    json_decref(root);
    return theirs;
}

static void close_files(weight_files *f) {
    for (int i = 0; i < f->n; i++)
        weft_safetensors_close(f->list[i]);
    free(f->list);
}

static weft_status open_file(weight_files *f, const char *name) {
    char path[WEFT_PATH_MAX];
    if (strchr(name, '/'))
        return weft_fail(WEFT_EINPUT, "%s: its index names a file '%.80s' outside the folder",
                         f->folder, name);
    if (f->n == SHARDS_MOST)
        return weft_fail(WEFT_EINPUT, "%s: more than %d files of weights", f->folder, SHARDS_MOST);
    WEFT_TRY(weft_path(path, "%s/%s", f->folder, name));
    WEFT_TRY(weft_safetensors_open(path, &f->list[f->n]));
    f->n++;
    return WEFT_OK;
}

/* The files that an index of tensors names, each once. */
static weft_status open_index(weight_files *f) {
    static const char NAME[] = "model.safetensors.index.json";
    json_t *root, *seen, *file;
    const char *tensor, *name;
    WEFT_TRY(read_json(f->folder, NAME, &root));
    json_t *map = json_object_get(root, "weight_map");
    seen = json_object();
    weft_status status = WEFT_OK;
    if (!json_is_object(map) || !seen)
        status = weft_fail(WEFT_EINPUT, "%s/%s: \"weight_map\" is missing", f->folder, NAME);
    json_object_foreach(map, tensor, file) {
        name = json_string_value(file);
        if (status != WEFT_OK || (name && json_object_get(seen, name))) continue;
        if (!name)
            status = weft_fail(WEFT_EINPUT, "%s/%s: the file of '%.80s' is no text", f->folder,
                               NAME, tensor);
        else
            status = open_file(f, name);
        if (name) json_object_set_new(seen, name, json_true());
    }
    json_decref(seen);
    json_decref(root);
    return status;
}

static weft_status open_files(const char *folder, weight_files *f) {
    bool there;
    *f = (weight_files){.folder = folder};
    f->list = calloc(SHARDS_MOST, sizeof *f->list);
    if (!f->list) return weft_fail(WEFT_ENOMEM, "convert: no memory");
    WEFT_TRY(find_file(folder, "model.safetensors", &there));
    if (there) return open_file(f, "model.safetensors");
    WEFT_TRY(find_file(folder, "model.safetensors.index.json", &there));
    if (there) return open_index(f);
    return weft_fail(WEFT_EINPUT,
                     "%s: has no model.safetensors and no model.safetensors.index.json; weights of "
                     "other formats can be saved so by transformers",
                     folder);
}

static const weft_safetensor *find_tensor(const weight_files *f, const char *name) {
    const weft_safetensor *t = NULL;
    for (int i = 0; i < f->n && !t; i++)
        t = weft_safetensors_find(f->list[i], name);
    return t;
}

static weft_status check_piece(const weight_files *f, const weft_hf_piece *p) {
    const weft_safetensor *t = find_tensor(f, p->theirs);
    int64_t rows = p->transposed ? p->columns : p->rows,
            columns = p->transposed ? p->rows : p->columns;
    if (!t) return weft_fail(WEFT_EINPUT, "%s: tensor '%s' is missing", f->folder, p->theirs);
    bool matrix = p->columns > 0, whole = t->dtype == WEFT_FILE_I32 || t->dtype == WEFT_FILE_I64;
    if (!whole && t->ndim == (matrix ? 2 : 1) && t->shape[0] == rows &&
        (!matrix || t->shape[1] == columns))
        return WEFT_OK;
    return weft_fail(WEFT_EINPUT,
                     "%s: tensor '%s' does not have the shape [%lld%s%.0lld] of the config",
                     f->folder, p->theirs, (long long)rows, matrix ? ", " : "",
                     (long long)(matrix ? columns : 0));
}

static weft_status read_piece(const weight_files *f, const weft_hf_piece *p, weft_model *m) {
    const weft_safetensor *t = find_tensor(f, p->theirs);
    weft_weight *w = weft_model_find(m, p->ours);
    if (!w) return weft_fail(WEFT_EBUG, "convert: '%s' is not in the config's model", p->ours);
    int64_t width = p->columns ? p->columns : 1, count = p->rows * width;
    double *values = malloc((size_t)count * 2 * sizeof *values);
    if (!values) return weft_fail(WEFT_ENOMEM, "convert: no memory for '%s'", p->theirs);
    double *transposed = values + count;
    weft_safetensor_values(t, 0, count, values);
    for (int64_t i = 0; p->transposed && i < p->rows; i++)
        for (int64_t j = 0; j < width; j++)
            transposed[i * width + j] = values[j * p->rows + i];
    size_t size = weft_dtype_size(w->dtype);
    weft_weight part = *w;
    part.count = count;
    part.bytes = count * (int64_t)size;
    part.data = (unsigned char *)w->data + (size_t)(p->first * width) * size;
    weft_weight_write(&part, p->transposed ? transposed : values);
    free(values);
    return WEFT_OK;
}

static bool ends_on(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Tensors that are made from the config, or written twice. */
static bool is_spare(const weft_config *c, const char *name) {
    return ends_on(name, ".attn.bias") || ends_on(name, ".attn.masked_bias") ||
           ends_on(name, ".rotary_emb.inv_freq") ||
           (c->weight_tying && strcmp(name, "lm_head.weight") == 0);
}

static int by_theirs(const void *a, const void *b) {
    return strcmp(((const weft_hf_piece *)a)->theirs, ((const weft_hf_piece *)b)->theirs);
}

static weft_status check_all_taken(const weight_files *f, const weft_config *c,
                                   const weft_hf_piece *pieces, int64_t n) {
    for (int i = 0; i < f->n; i++)
        for (int64_t k = 0; k < weft_safetensors_count(f->list[i]); k++) {
            const char *name = weft_safetensors_at(f->list[i], k)->name;
            weft_hf_piece key = {.first = 0};
            int length = snprintf(key.theirs, sizeof key.theirs, "%s", name);
            if (length < (int)sizeof key.theirs &&
                bsearch(&key, pieces, (size_t)n, sizeof key, by_theirs))
                continue;
            if (!is_spare(c, name))
                return weft_fail(WEFT_EINPUT, "%s: tensor '%.120s' is not one of the model's",
                                 f->folder, name);
        }
    return WEFT_OK;
}

/* Models saved without their head have no prefix. */
static const char *prefix_of(const weight_files *f, weft_hf_family family) {
    if (family == WEFT_HF_GPT2)
        return find_tensor(f, "transformer.wte.weight") ? "transformer." : "";
    return find_tensor(f, "embed_tokens.weight") ? "" : "model.";
}

static weft_status read_weights(const char *folder, weft_hf_family family, weft_model *m) {
    weight_files files;
    weft_hf_piece *pieces = NULL;
    int64_t n = 0;
    weft_status status = open_files(folder, &files);
    if (status == WEFT_OK) {
        pieces = weft_hf_list(&m->config, family, prefix_of(&files, family), &n);
        if (!pieces) status = WEFT_ENOMEM;
    }
    for (int64_t i = 0; status == WEFT_OK && i < n; i++)
        status = check_piece(&files, &pieces[i]);
    if (status == WEFT_OK) {
        qsort(pieces, (size_t)n, sizeof *pieces, by_theirs);
        status = check_all_taken(&files, &m->config, pieces, n);
    }
    /* A config that asks for more than the files have costs no memory. */
    if (status == WEFT_OK) status = weft_model_allocate(m, NULL);
    for (int64_t i = 0; status == WEFT_OK && i < n; i++)
        status = read_piece(&files, &pieces[i], m);
    free(pieces);
    close_files(&files);
    return status;
}

weft_status weft_hf_read(const char *folder, weft_dtype dtype, weft_model **out) {
    json_t *root;
    weft_config c;
    weft_hf_family family;
    char where[WEFT_PATH_MAX];
    *out = NULL;
    WEFT_TRY(weft_path(where, "%s/config.json", folder));
    WEFT_TRY(read_json(folder, "config.json", &root));
    weft_status status = weft_hf_config_read(root, where, &c, &family);
    json_decref(root);
    if (status == WEFT_OK) status = weft_model_check(&c, where);
    if (status == WEFT_OK && dtype == WEFT_BF16) c.dtype = WEFT_CONFIG_BF16;
    if (status == WEFT_OK && dtype == WEFT_F64) c.dtype = WEFT_CONFIG_F64;
    if (status == WEFT_OK) status = weft_model_describe(&c, dtype, out);
    if (status == WEFT_OK) status = read_weights(folder, family, *out);
    if (status != WEFT_OK) {
        weft_model_destroy(*out);
        *out = NULL;
    }
    return status;
}
