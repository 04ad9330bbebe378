/* Models read from a folder of Hugging Face's and written into one, by the list of tensors in hf_pieces.c.
 *
 * The weights of a folder are in model.safetensors, or in several files that model.safetensors.index.json
 * lists. Each of our tensors must find all of its pieces, and each of theirs must be one of them. */
#include "base/embed.h"
#include "base/json.h"
#include "convert/hf.h"
#include "core/safetensors.h"
#include "model/kinds.h"

WEFT_EMBED("weft_hf_configuration", "src/convert/configuration_weft.py");
WEFT_EMBED("weft_hf_modeling", "src/convert/modeling_weft.py");
extern const char weft_hf_configuration[], weft_hf_modeling[];

enum { JSON_MOST = 1 << 26, SHARDS_MOST = 4096 };

typedef struct {
    const char *folder;
    weft_safetensors **list;
    int n;
} weight_files;

static weft_status read_json(const char *folder, const char *name, json_t **out) {
    *out = NULL;
    WEFT_PATH(path, "%s/%s", folder, name);
    return weft_json_load(path, JSON_MOST, out);
}

bool weft_hf_is_folder(const char *folder) {
    WEFT_AUTO_DECREF json_t *root = NULL;
    return read_json(folder, "config.json", &root) == WEFT_OK &&
           json_is_string(json_object_get(root, "model_type"));
}

static weft_status open_file(weight_files *f, const char *name) {
    if (strchr(name, '/'))
        return WEFT_BAD_INPUT("%s: its index names a file '%.80s' outside the folder", f->folder,
                              name);
    if (f->n == SHARDS_MOST)
        return WEFT_BAD_INPUT("%s: more than %d files of weights", f->folder, SHARDS_MOST);
    WEFT_PATH(path, "%s/%s", f->folder, name);
    WEFT_TRY(weft_safetensors_open(path, &f->list[f->n]));
    f->n++;
    return WEFT_OK;
}

static weft_status open_files(const char *folder, weight_files *f) {
    static const char NAME[] = "model.safetensors.index.json";
    bool there;
    *f = (weight_files){.folder = folder};
    WEFT_ROOM_AT(f->list, SHARDS_MOST, "convert: no memory");
    WEFT_TRY(weft_folder_has(folder, "model.safetensors", &there));
    if (there) return open_file(f, "model.safetensors");
    WEFT_TRY(weft_folder_has(folder, NAME, &there));
    if (!there)
        return WEFT_BAD_INPUT("%s: has no model.safetensors and no model.safetensors.index.json; "
                              "weights of other formats can be saved so by transformers",
                              folder);
    /* The files that it names, each once. */
    WEFT_AUTO_DECREF json_t *root = NULL, *seen = json_object();
    WEFT_TRY(read_json(folder, NAME, &root));
    const json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || !seen)
        return WEFT_BAD_INPUT("%s/%s: \"weight_map\" is missing", folder, NAME);
    EACH_MEMBER(tensor, map) {
        const char *name = json_string_value(tensor.value);
        if (!name)
            return WEFT_BAD_INPUT("%s/%s: the file of '%.80s' is no text", folder, NAME,
                                  tensor.key);
        if (json_object_get(seen, name)) continue;
        WEFT_TRY(open_file(f, name));
        json_object_set_new(seen, name, json_true());
    }
    return WEFT_OK;
}

static const weft_safetensor *find_tensor(const weight_files *f, const char *name) {
    const weft_safetensor *t = NULL;
    for (int i = 0; i < f->n && !t; i++)
        t = weft_safetensors_find(f->list[i], name);
    return t;
}

static weft_status check_piece(const weight_files *f, const hf_piece *p) {
    const weft_safetensor *t = find_tensor(f, p->theirs);
    int64_t rows = weft_hf_rows(p), columns = weft_hf_columns(p);
    if (!t) return WEFT_BAD_INPUT("%s: tensor '%s' is missing", f->folder, p->theirs);
    bool matrix = p->columns > 0, whole = t->dtype >= WEFT_FILE_I64;
    if (!whole && t->ndim == (matrix ? 2 : 1) && t->shape[0] == rows &&
        (!matrix || t->shape[1] == columns))
        return WEFT_OK;
    return WEFT_BAD_INPUT("%s: tensor '%s' does not have the shape [%lld%s%.0lld] of the config",
                          f->folder, p->theirs, (long long)rows, matrix ? ", " : "",
                          (long long)(matrix ? columns : 0));
}

static weft_status read_piece(const weight_files *f, const hf_piece *p, weft_model *m) {
    const weft_safetensor *t = find_tensor(f, p->theirs);
    weft_weight *w = weft_model_find(m, p->ours);
    if (!w) return weft_fail(WEFT_EBUG, "convert: '%s' is not in the config's model", p->ours);
    int64_t width = p->columns ? p->columns : 1, count = p->rows * width;
    int64_t theirs = t->shape[0] * (t->ndim == 2 ? t->shape[1] : 1);
    WEFT_ROOM(double, values, theirs + count, "convert: no memory for '%s'", p->theirs);
    double *ordered = values + theirs;
    weft_safetensor_values(t, 0, theirs, values);
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < width; j++)
            ordered[i * width + j] = values[weft_hf_place(p, i, j)] + p->lessened;
    size_t size = weft_dtype_size(w->dtype);
    weft_weight part = *w;
    part.count = count;
    part.bytes = count * (int64_t)size;
    part.data = (unsigned char *)w->data + (size_t)(p->first * width) * size;
    weft_weight_write(&part, ordered);
    return WEFT_OK;
}

/* Whether a tensor of theirs needs no piece: it is made from the config, or written twice. */
static bool is_spare(const weft_config *c, const char *name) {
    static const char *const ends[] = {".attn.bias", ".attn.masked_bias", ".attention.bias",
                                       ".attention.masked_bias", ".rotary_emb.inv_freq"};
    bool spare = c->weight_tying && strcmp(name, "lm_head.weight") == 0;
    for (size_t i = 0, n = strlen(name); !spare && i < sizeof ends / sizeof ends[0]; i++)
        spare = n >= strlen(ends[i]) && strcmp(name + n - strlen(ends[i]), ends[i]) == 0;
    return spare;
}

static void close_files(weight_files *f) {
    for (int i = 0; i < f->n; i++)
        weft_safetensors_close(f->list[i]);
    free(f->list);
}

weft_status weft_hf_read(const char *folder, weft_dtype dtype, const char *const *ignored,
                         int n_ignored, weft_model **out) {
    WEFT_AUTO_DECREF json_t *root = NULL;
    WEFT_AUTO(weft_model_destroy_at) weft_model *m = NULL;
    weft_config c;
    weft_hf_family family;
    *out = NULL;
    WEFT_PATH(where, "%s/config.json", folder);
    WEFT_TRY(read_json(folder, "config.json", &root));
    for (int i = 0; i < n_ignored; i++)
        WEFT_TRY(weft_hf_config_ignore(root, where, ignored[i]));
    WEFT_TRY(weft_hf_config_read(root, where, &c, &family));
    WEFT_TRY(weft_model_check(&c, where));
    if (dtype == WEFT_BF16) c.dtype = WEFT_CONFIG_BF16;
    if (dtype == WEFT_F64) c.dtype = WEFT_CONFIG_F64;
    if (family == WEFT_HF_OWN) return weft_model_load_as(folder, &c, dtype, NULL, out);
    WEFT_TRY(weft_model_describe(&c, dtype, &m));
    WEFT_AUTO(close_files) weight_files files = {0};
    int64_t n = 0;
    WEFT_TRY(open_files(folder, &files));
    /* Models saved without their head have no prefix. */
    const hf_body *body = &weft_hf_bodies[family];
    const char *prefix = find_tensor(&files, body->first) ? "" : body->prefix;
    WEFT_AUTO_FREE hf_piece *pieces = weft_hf_pieces(&m->config, family, prefix, false, &n);
    if (!pieces) return WEFT_ENOMEM;
    for (int64_t i = 0; i < n; i++)
        WEFT_TRY(check_piece(&files, &pieces[i]));
    for (int i = 0; i < files.n; i++)
        for (int64_t k = 0; k < weft_safetensors_count(files.list[i]); k++) {
            const char *name = weft_safetensors_at(files.list[i], k)->name;
            int64_t at = 0;
            if (is_spare(&m->config, name)) continue; /* there may be any number of them */
            while (at < n && strcmp(pieces[at].theirs, name) != 0)
                at++;
            if (at == n)
                return WEFT_BAD_INPUT("%s: tensor '%.120s' is not one of the model's", files.folder,
                                      name);
        }
    /* A config that asks for more than the files have costs no memory. */
    WEFT_TRY(weft_model_allocate(m, NULL));
    for (int64_t i = 0; i < n; i++)
        WEFT_TRY(read_piece(&files, &pieces[i], m));
    return weft_hand(&m, out);
}

static weft_status fill_piece(const hf_piece *p, const weft_weight *w, weft_dtype dtype,
                              unsigned char *to) {
    int64_t width = p->columns ? p->columns : 1, count = p->rows * width;
    size_t size = weft_dtype_size(dtype);
    WEFT_ROOM(double, values, count, "convert: no memory for '%s'", p->theirs);
    weft_weight part = {.dtype = dtype, .count = count};
    if (w) part.data = (unsigned char *)w->data + (size_t)(p->first * width) * size;
    if (w) weft_weight_read(&part, values);
    part.count = 1;
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < width; j++) {
            double ours = w ? values[i * width + j] : 1;
            double value = (p->factor > 0 ? p->factor : 1) * ours - p->lessened;
            part.data = to + (size_t)weft_hf_place(p, i, j) * size;
            weft_weight_write(&part, &value);
        }
    return WEFT_OK;
}

/* Their tensors; a tensor's pieces follow each other. `own` are those that are not ours as they are. */
static weft_status fill_tensors(const weft_model *m, const hf_piece *pieces, int64_t n,
                                weft_safetensor *tensors, void **own, int64_t *count) {
    for (const hf_piece *p = pieces; p < pieces + n; p++) {
        const weft_weight *w = weft_model_find(m, p->ours);
        weft_dtype gains = m->dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32; /* not rounded */
        weft_dtype dtype = w ? w->dtype : gains;
        int64_t rows = weft_hf_rows(p), columns = weft_hf_columns(p), at = *count - 1;
        int64_t width = columns ? columns : 1;
        if (!w && p->ours[0])
            return weft_fail(WEFT_EBUG, "convert: '%s' is not in the model", p->ours);
        bool first = at < 0 || strcmp(tensors[at].name, p->theirs) != 0;
        if (first) {
            at = (*count)++;
            tensors[at] = (weft_safetensor){.name = p->theirs,
                                            .dtype = weft_file_dtype_of(dtype),
                                            .ndim = columns ? 2 : 1,
                                            .shape = {rows, columns}};
        }
        bool other = p->factor > 0 || p->lessened > 0; /* numbers of theirs are others than ours */
        if (!p->transposed && !p->heads && !p->blocks && !other) {
            size_t skipped = (size_t)(p->first * width) * weft_dtype_size(dtype);
            tensors[at].data = (unsigned char *)w->data + skipped;
            continue;
        }
        if (first) own[at] = malloc((size_t)(rows * width) * weft_dtype_size(dtype));
        if (!own[at]) return weft_fail(WEFT_ENOMEM, "convert: no memory for '%s'", p->theirs);
        tensors[at].data = own[at];
        WEFT_TRY(fill_piece(p, w, dtype, own[at]));
    }
    return WEFT_OK;
}

static weft_status write_text(const char *folder, const char *name, const char *text) {
    WEFT_PATH(path, "%s/%s", folder, name);
    return weft_file_write(path, text, strlen(text), NULL);
}

typedef struct {
    const weft_model *model;
    const weft_tokenizer *tokenizer;
} their_parts;

static weft_status write_parts(void *context, const char *folder, weft_sum sums[WEFT_PARTS]) {
    const their_parts *p = context;
    weft_hf_family family;
    WEFT_PATH(path, "%s/%s", folder, weft_parts[WEFT_PART_CONFIG]);
    static const char *const types[] = {
        [WEFT_F32] = "float32", [WEFT_BF16] = "bfloat16", [WEFT_F64] = "float64"};
    WEFT_AUTO_DECREF json_t *root = NULL;
    WEFT_TRY(weft_hf_config_write(&p->model->config, p->tokenizer, &family, &root));
    json_object_set_new(root, "torch_dtype", json_string(types[p->model->dtype]));
    if (family == WEFT_HF_OWN) {
        WEFT_TRY(weft_model_save_summed(p->model, folder, sums));
        WEFT_TRY(write_text(folder, "configuration_weft.py", weft_hf_configuration));
        WEFT_TRY(write_text(folder, "modeling_weft.py", weft_hf_modeling));
    }
    WEFT_TRY(weft_json_write(path, json_incref(root), &sums[WEFT_PART_CONFIG]));
    WEFT_TRY(weft_path(path, "%s/%s", folder, weft_parts[WEFT_PART_MODEL]));
    if (family != WEFT_HF_OWN) {
        weft_sum *sum = &sums[WEFT_PART_MODEL];
        static const char *const metadata[] = {"format", "pt", NULL};
        int64_t n, count = 0;
        WEFT_AUTO_FREE hf_piece *pieces =
            weft_hf_pieces(&p->model->config, family, weft_hf_bodies[family].prefix, true, &n);
        if (!pieces) return WEFT_ENOMEM;
        WEFT_ROOM(weft_safetensor, tensors, n, "%s: no memory", path);
        WEFT_ROOM(void *, own, n, "%s: no memory", path);
        WEFT_TRY(weft_mirror_use(p->model->mirror, NULL));
        weft_status status = fill_tensors(p->model, pieces, n, tensors, own, &count);
        if (status == WEFT_OK) status = weft_safetensors_write(path, tensors, count, metadata, sum);
        for (int64_t i = 0; i < n; i++)
            free(own[i]);
        WEFT_TRY(status);
    }
    WEFT_TRY(weft_path(path, "%s/%s", folder, weft_parts[WEFT_PART_TOKENIZER]));
    return p->tokenizer ? weft_tokenizer_save(p->tokenizer, path, &sums[WEFT_PART_TOKENIZER])
                        : WEFT_OK;
}

weft_status weft_hf_write(const weft_model *m, const weft_tokenizer *t, const char *folder,
                          weft_may_replace may) {
    return weft_model_publish(folder, may, write_parts, &(their_parts){m, t});
}
