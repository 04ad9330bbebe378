/* Their tensors and ours: which is which, and models read from a folder of Hugging Face's and written into
 * one.
 *
 * GPT-2 keeps its matrices [in, out] and queries, keys and values in one; GPT-NeoX keeps these head by head;
 * the Llama-like models keep matrices [out, in] and those apart, where ours are one tensor's rows. DeepSeek's have
 * several of ours in one, head by head.
 *
 * The weights of a folder are in model.safetensors, or in several files that model.safetensors.index.json
 * lists. Each of our tensors must find all of its pieces, and each of theirs must be one of them. */
#include "base/json.h"
#include "convert/hf.h"
#include "core/safetensors.h"
#include "model/kinds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One of their tensors, and the rows of ours that hold it. */
typedef struct {
    char ours[96], theirs[128];
    int64_t first, rows; /* of ours */
    int64_t columns;     /* 0: it has one dimension */
    bool transposed;     /* theirs is [columns, rows] */
    /* Theirs has so many blocks of `block` rows, of which ours are those from `at` on; 0: as ours. With
     * `pairs` rows 2i and 2i + 1 of them are i and i + n/2 of our n; with `turned` our columns are their rows,
     * block by block. */
    int64_t blocks, block, at;
    bool pairs, turned;
    int64_t heads; /* theirs has q, k and v of one head after the other, of so many; 0: not so */
    double
        factor; /* what ours is multiplied by to be theirs; 0: 1. With `ours` empty, theirs is it */
} hf_piece;

/* Before the names of a body. */
static const char *const prefixes[] = {[WEFT_HF_GPT2] = "transformer.",
                                       [WEFT_HF_LLAMA] = "model.",
                                       [WEFT_HF_LLAMA_PAIRS] = "model.",
                                       [WEFT_HF_PHI3] = "model.",
                                       [WEFT_HF_NEOX] = "gpt_neox."};

typedef struct {
    const weft_config *c;
    const char *prefix;
    weft_hf_family family;
    hf_piece *list;
    int64_t n;
} piece_list;

enum { LAYER_PIECES = 24, OTHER_PIECES = 8 }; /* at most */
enum { HEAD = -2, BODY = -1 };                /* in place of a layer's number */

/* `layers` is their word before a layer's number. */
static hf_piece *add(piece_list *p, const char *layers, int64_t layer, const char *ours,
                     const char *theirs, int64_t rows, int64_t columns) {
    hf_piece *piece = &p->list[p->n++];
    *piece = (hf_piece){.rows = rows, .columns = columns};
    if (layer >= 0) {
        snprintf(piece->ours, sizeof piece->ours, "h.%lld.%s", (long long)layer, ours);
        snprintf(piece->theirs, sizeof piece->theirs, "%s%s.%lld.%s", p->prefix, layers,
                 (long long)layer, theirs);
    } else {
        snprintf(piece->ours, sizeof piece->ours, "%s", ours);
        snprintf(piece->theirs, sizeof piece->theirs, "%s%s", layer == HEAD ? "" : p->prefix,
                 theirs);
    }
    return piece;
}

static void add_transposed(piece_list *p, int64_t layer, const char *ours, const char *theirs,
                           int64_t rows, int64_t columns) {
    add(p, "h", layer, ours, theirs, rows, columns)->transposed = true;
}

static void add_rows(piece_list *p, int64_t layer, const char *ours, const char *theirs,
                     int64_t first, int64_t rows, int64_t columns) {
    add(p, "layers", layer, ours, theirs, rows, columns)->first = first;
}

static void add_head(piece_list *p, const char *theirs) {
    if (!p->c->weight_tying)
        add(p, "", HEAD, "lm_head.weight", theirs, p->c->vocab_size, p->c->n_embd);
}

static void list_gpt2(piece_list *p) {
    const weft_config *c = p->c;
    int64_t e = c->n_embd, f = weft_config_ffn_dim(c);
    add(p, "", BODY, "wte.weight", "wte.weight", c->vocab_size, e);
    add(p, "", BODY, "wpe.weight", "wpe.weight", c->context, e);
    add(p, "", BODY, "ln_f.weight", "ln_f.weight", e, 0);
    add(p, "", BODY, "ln_f.bias", "ln_f.bias", e, 0);
    for (int64_t i = 0; i < c->n_layer; i++) {
        add(p, "h", i, "ln_1.weight", "ln_1.weight", e, 0);
        add(p, "h", i, "ln_1.bias", "ln_1.bias", e, 0);
        add(p, "h", i, "ln_2.weight", "ln_2.weight", e, 0);
        add(p, "h", i, "ln_2.bias", "ln_2.bias", e, 0);
        add_transposed(p, i, "attn.qkv.weight", "attn.c_attn.weight", 3 * e, e);
        add(p, "h", i, "attn.qkv.bias", "attn.c_attn.bias", 3 * e, 0);
        add_transposed(p, i, "attn.out.weight", "attn.c_proj.weight", e, e);
        add(p, "h", i, "attn.out.bias", "attn.c_proj.bias", e, 0);
        add_transposed(p, i, "ffn.fc.weight", "mlp.c_fc.weight", f, e);
        add(p, "h", i, "ffn.fc.bias", "mlp.c_fc.bias", f, 0);
        add_transposed(p, i, "ffn.proj.weight", "mlp.c_proj.weight", e, f);
        add(p, "h", i, "ffn.proj.bias", "mlp.c_proj.bias", e, 0);
    }
    add_head(p, "lm_head.weight");
}

/* `columns` 0: the biases. */
static void add_projections(piece_list *p, int64_t layer, const char *ours, const char *kind,
                            int64_t columns) {
    const weft_config *c = p->c;
    int64_t d = weft_config_head_dim(c), q = c->n_head * d, kv = weft_config_kv_heads(c) * d;
    char theirs[64];
    snprintf(theirs, sizeof theirs, "self_attn.q_proj.%s", kind);
    add_rows(p, layer, ours, theirs, 0, q, columns);
    snprintf(theirs, sizeof theirs, "self_attn.k_proj.%s", kind);
    add_rows(p, layer, ours, theirs, q, kv, columns);
    snprintf(theirs, sizeof theirs, "self_attn.v_proj.%s", kind);
    add_rows(p, layer, ours, theirs, q + kv, kv, columns);
}

/* Rows of each of `blocks` blocks of theirs. */
static hf_piece *add_blocks(piece_list *p, int64_t layer, const char *ours, const char *theirs,
                            int64_t blocks, int64_t block, int64_t at, int64_t n, int64_t columns) {
    hf_piece *piece = add(p, "layers", layer, ours, theirs, blocks * n, columns);
    piece->blocks = blocks;
    piece->block = block;
    piece->at = at;
    return piece;
}

/* DeepSeek's norm of the latent divides by the root of its mean square and an epsilon, of which this is the
 * root. A latent that is so small that the epsilon is all that counts is divided by a constant. */
static const double ROOT_OF_EPSILON = 1e-3, LATENT_GAIN = 1 << 20;

/* DeepSeek's attention: a head's queries with their rotated part, the latent with that of the keys, and a
 * head's maps A and U. */
static void add_latents(piece_list *p, int64_t i) {
    const weft_config *c = p->c;
    int64_t e = c->n_embd, h = c->n_head, d = weft_config_head_dim(c),
            latent = c->ra_mla_latent_dim;
    int64_t rope = c->ra_mla_rope_dim, rank = c->ra_mla_q_rank, from = rank ? rank : e;
    const char *q = rank ? "self_attn.q_b_proj.weight" : "self_attn.q_proj.weight";
    bool pairs = p->family == WEFT_HF_LLAMA_PAIRS;
    const char *kv_a = "self_attn.kv_a_proj_with_mqa.weight", *kv_b = "self_attn.kv_b_proj.weight";
    if (rank) {
        add(p, "layers", i, "attn.q_down.weight", "self_attn.q_a_proj.weight", rank, e);
        add(p, "layers", i, "attn.q_down_norm.weight", "self_attn.q_a_layernorm.weight", rank, 0);
    }
    add_blocks(p, i, "attn.q.weight", q, h, d + rope, 0, d, from);
    add_blocks(p, i, "attn.q_rope.weight", q, h, d + rope, d, rope, from)->pairs = pairs;
    hf_piece *down = add_blocks(p, i, "attn.k_down.weight", kv_a, 1, latent + rope, 0, latent, e);
    add_blocks(p, i, "attn.k_rope.weight", kv_a, 1, latent + rope, latent, rope, e)->pairs = pairs;
    hf_piece *norm = add(p, "layers", i, "attn.latent_norm.weight",
                         "self_attn.kv_a_layernorm.weight", latent, 0);
    if (!c->ra_mla_latent_norm) {
        down->factor = ROOT_OF_EPSILON / LATENT_GAIN;
        norm->factor = LATENT_GAIN;
        norm->ours[0] = 0;
    }
    add_blocks(p, i, "attn.q_latent", kv_b, h, 2 * d, 0, d, latent);
    add_blocks(p, i, "attn.v_up", kv_b, h, 2 * d, d, latent, d)->turned = true;
}

static void list_llama(piece_list *p) {
    const weft_config *c = p->c;
    int64_t e = c->n_embd, f = weft_config_ffn_dim(c), d = weft_config_head_dim(c);
    int bias = weft_hf_attention_bias(c);
    bool all = bias == WEFT_ATTENTION_BIAS_ALL;
    bool behind = c->norm_placement == WEFT_PLACEMENT_REORDERED, phi3 = p->family == WEFT_HF_PHI3;
    int64_t normed = c->qk_norm_whole ? c->n_head * d : d;
    add(p, "", BODY, "wte.weight", "embed_tokens.weight", c->vocab_size, e);
    add(p, "", BODY, "ln_f.weight", "norm.weight", e, 0);
    for (int64_t i = 0; i < c->n_layer; i++) {
        add(p, "layers", i, behind ? "ln_2.weight" : "ln_1.weight",
            behind ? "post_feedforward_layernorm.weight" : "input_layernorm.weight", e, 0);
        add(p, "layers", i, behind ? "ln_1.weight" : "ln_2.weight",
            "post_attention_layernorm.weight", e, 0);
        if (c->attention == WEFT_ATTENTION_MLA)
            add_latents(p, i);
        else if (phi3)
            add(p, "layers", i, "attn.qkv.weight", "self_attn.qkv_proj.weight",
                (c->n_head + 2 * weft_config_kv_heads(c)) * d, e);
        else
            add_projections(p, i, "attn.qkv.weight", "weight", e);
        if (bias != WEFT_ATTENTION_BIAS_NONE) add_projections(p, i, "attn.qkv.bias", "bias", 0);
        add(p, "layers", i, "attn.out.weight", "self_attn.o_proj.weight", e, c->n_head * d);
        if (all) add(p, "layers", i, "attn.out.bias", "self_attn.o_proj.bias", e, 0);
        if (phi3) {
            add_blocks(p, i, "ffn.w3.weight", "mlp.gate_up_proj.weight", 1, 2 * f, 0, f, e);
            add_blocks(p, i, "ffn.w1.weight", "mlp.gate_up_proj.weight", 1, 2 * f, f, f, e);
        } else {
            add(p, "layers", i, "ffn.w1.weight", "mlp.up_proj.weight", f, e);
            add(p, "layers", i, "ffn.w3.weight", "mlp.gate_proj.weight", f, e);
        }
        add(p, "layers", i, "ffn.w2.weight", "mlp.down_proj.weight", e, f);
        if (c->qk_norm) {
            add(p, "layers", i, "attn.q_norm.weight", "self_attn.q_norm.weight", normed, 0);
            add(p, "layers", i, "attn.k_norm.weight", "self_attn.k_norm.weight", normed, 0);
        }
        if (c->ffn_bias) {
            add(p, "layers", i, "ffn.w1.bias", "mlp.up_proj.bias", f, 0);
            add(p, "layers", i, "ffn.w3.bias", "mlp.gate_proj.bias", f, 0);
            add(p, "layers", i, "ffn.w2.bias", "mlp.down_proj.bias", e, 0);
        }
    }
    add_head(p, "lm_head.weight");
}

/* A map of a layer and its bias. */
static void add_map(piece_list *p, int64_t layer, const char *ours, const char *theirs,
                    int64_t rows, int64_t columns, int64_t heads) {
    char mine[64], yours[64];
    snprintf(mine, sizeof mine, "%s.weight", ours);
    snprintf(yours, sizeof yours, "%s.weight", theirs);
    add(p, "layers", layer, mine, yours, rows, columns)->heads = heads;
    snprintf(mine, sizeof mine, "%s.bias", ours);
    snprintf(yours, sizeof yours, "%s.bias", theirs);
    add(p, "layers", layer, mine, yours, rows, 0)->heads = heads;
}

static void list_neox(piece_list *p) {
    const weft_config *c = p->c;
    int64_t e = c->n_embd, f = weft_config_ffn_dim(c);
    add(p, "", BODY, "wte.weight", "embed_in.weight", c->vocab_size, e);
    add(p, "", BODY, "ln_f.weight", "final_layer_norm.weight", e, 0);
    add(p, "", BODY, "ln_f.bias", "final_layer_norm.bias", e, 0);
    for (int64_t i = 0; i < c->n_layer; i++) {
        add(p, "layers", i, "ln_1.weight", "input_layernorm.weight", e, 0);
        add(p, "layers", i, "ln_1.bias", "input_layernorm.bias", e, 0);
        add(p, "layers", i, "ln_2.weight", "post_attention_layernorm.weight", e, 0);
        add(p, "layers", i, "ln_2.bias", "post_attention_layernorm.bias", e, 0);
        add_map(p, i, "attn.qkv", "attention.query_key_value", 3 * e, e, c->n_head);
        add_map(p, i, "attn.out", "attention.dense", e, e, 0);
        add_map(p, i, "ffn.fc", "mlp.dense_h_to_4h", f, e, 0);
        add_map(p, i, "ffn.proj", "mlp.dense_4h_to_h", e, f, 0);
    }
    add_head(p, "embed_out.weight");
}

/* Where their tensor has the element (i, j) of our rows. */
static int64_t their_place(const hf_piece *p, int64_t i, int64_t j) {
    int64_t width = p->columns ? p->columns : 1;
    if (p->transposed) return j * p->rows + i;
    if (p->blocks) {
        int64_t n = p->rows / p->blocks, in = i % n, first = i / n * p->block + p->at;
        if (p->turned) return (first + j) * n + in;
        return (first + (p->pairs ? in % (n / 2) * 2 + in / (n / 2) : in)) * width + j;
    }
    if (!p->heads) return i * width + j;
    int64_t d = p->rows / (3 * p->heads), part = i / d / p->heads, head = i / d % p->heads;
    return ((head * 3 + part) * d + i % d) * width + j;
}

/* All pieces; malloc'd. `prefix` is before the names of the body ("transformer.", "model."). NULL: no
 * memory, said in an error. */
static hf_piece *list_pieces(const weft_config *c, weft_hf_family family, const char *prefix,
                             int64_t *count) {
    size_t most = (size_t)(c->n_layer * LAYER_PIECES + OTHER_PIECES);
    piece_list p = {.c = c, .prefix = prefix, .list = malloc(most * sizeof *p.list)};
    p.family = family;
    if (!p.list)
        weft_fail(WEFT_ENOMEM, "convert: no memory for the list of tensors");
    else if (family == WEFT_HF_GPT2)
        list_gpt2(&p);
    else if (family == WEFT_HF_NEOX)
        list_neox(&p);
    else
        list_llama(&p);
    *count = p.n;
    return p.list;
}

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
    WEFT_AUTO_DECREF json_t *root = NULL;
    return read_json(folder, "config.json", &root) == WEFT_OK &&
           json_is_string(json_object_get(root, "model_type"));
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
    WEFT_AUTO_DECREF json_t *root = NULL, *seen = json_object();
    json_t *file;
    const char *tensor;
    WEFT_TRY(read_json(f->folder, NAME, &root));
    json_t *map = json_object_get(root, "weight_map");
    if (!json_is_object(map) || !seen)
        return weft_fail(WEFT_EINPUT, "%s/%s: \"weight_map\" is missing", f->folder, NAME);
    json_object_foreach(map, tensor, file) {
        const char *name = json_string_value(file);
        if (!name)
            return weft_fail(WEFT_EINPUT, "%s/%s: the file of '%.80s' is no text", f->folder, NAME,
                             tensor);
        if (json_object_get(seen, name)) continue;
        WEFT_TRY(open_file(f, name));
        json_object_set_new(seen, name, json_true());
    }
    return WEFT_OK;
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

/* The shape of their tensor; columns 0: it has one dimension. */
static int64_t their_rows(const hf_piece *p) {
    return p->transposed ? p->columns : p->blocks ? p->blocks * p->block : p->rows;
}

static int64_t their_columns(const hf_piece *p) {
    return p->transposed ? p->rows : p->turned ? p->rows / p->blocks : p->columns;
}

static weft_status check_piece(const weight_files *f, const hf_piece *p) {
    const weft_safetensor *t = find_tensor(f, p->theirs);
    int64_t rows = their_rows(p), columns = their_columns(p);
    if (!t) return weft_fail(WEFT_EINPUT, "%s: tensor '%s' is missing", f->folder, p->theirs);
    bool matrix = p->columns > 0, whole = t->dtype >= WEFT_FILE_I64;
    if (!whole && t->ndim == (matrix ? 2 : 1) && t->shape[0] == rows &&
        (!matrix || t->shape[1] == columns))
        return WEFT_OK;
    return weft_fail(WEFT_EINPUT,
                     "%s: tensor '%s' does not have the shape [%lld%s%.0lld] of the config",
                     f->folder, p->theirs, (long long)rows, matrix ? ", " : "",
                     (long long)(matrix ? columns : 0));
}

static weft_status read_piece(const weight_files *f, const hf_piece *p, weft_model *m) {
    const weft_safetensor *t = find_tensor(f, p->theirs);
    weft_weight *w = weft_model_find(m, p->ours);
    if (!w) return weft_fail(WEFT_EBUG, "convert: '%s' is not in the config's model", p->ours);
    int64_t width = p->columns ? p->columns : 1, count = p->rows * width;
    int64_t theirs = t->shape[0] * (t->ndim == 2 ? t->shape[1] : 1);
    WEFT_AUTO_FREE double *values = malloc((size_t)(theirs + count) * sizeof *values);
    if (!values) return weft_fail(WEFT_ENOMEM, "convert: no memory for '%s'", p->theirs);
    double *ordered = values + theirs;
    weft_safetensor_values(t, 0, theirs, values);
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < width; j++)
            ordered[i * width + j] = values[their_place(p, i, j)];
    size_t size = weft_dtype_size(w->dtype);
    weft_weight part = *w;
    part.count = count;
    part.bytes = count * (int64_t)size;
    part.data = (unsigned char *)w->data + (size_t)(p->first * width) * size;
    weft_weight_write(&part, ordered);
    return WEFT_OK;
}

static bool ends_on(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static int by_theirs(const void *a, const void *b) {
    return strcmp(((const hf_piece *)a)->theirs, ((const hf_piece *)b)->theirs);
}

static weft_status check_all_taken(const weight_files *f, const weft_config *c,
                                   const hf_piece *pieces, int64_t n) {
    for (int i = 0; i < f->n; i++)
        for (int64_t k = 0; k < weft_safetensors_count(f->list[i]); k++) {
            const char *name = weft_safetensors_at(f->list[i], k)->name;
            hf_piece key = {.first = 0};
            int length = snprintf(key.theirs, sizeof key.theirs, "%s", name);
            if (length < (int)sizeof key.theirs &&
                bsearch(&key, pieces, (size_t)n, sizeof key, by_theirs))
                continue;
            /* Those are made from the config, or written twice. */
            if (!ends_on(name, ".attn.bias") && !ends_on(name, ".attn.masked_bias") &&
                !ends_on(name, ".attention.bias") && !ends_on(name, ".attention.masked_bias") &&
                !ends_on(name, ".rotary_emb.inv_freq") &&
                !(c->weight_tying && strcmp(name, "lm_head.weight") == 0))
                return weft_fail(WEFT_EINPUT, "%s: tensor '%.120s' is not one of the model's",
                                 f->folder, name);
        }
    return WEFT_OK;
}

static void close_files(weight_files *f) {
    for (int i = 0; i < f->n; i++)
        weft_safetensors_close(f->list[i]);
    free(f->list);
}

static weft_status read_weights(const char *folder, weft_hf_family family, weft_model *m) {
    WEFT_AUTO(close_files) weight_files files = {0};
    int64_t n = 0;
    WEFT_TRY(open_files(folder, &files));
    /* Models saved without their head have no prefix. */
    static const char *const firsts[] = {[WEFT_HF_GPT2] = "wte.weight",
                                         [WEFT_HF_LLAMA] = "embed_tokens.weight",
                                         [WEFT_HF_LLAMA_PAIRS] = "embed_tokens.weight",
                                         [WEFT_HF_PHI3] = "embed_tokens.weight",
                                         [WEFT_HF_NEOX] = "embed_in.weight"};
    const char *prefix = find_tensor(&files, firsts[family]) ? "" : prefixes[family];
    WEFT_AUTO_FREE hf_piece *pieces = list_pieces(&m->config, family, prefix, &n);
    if (!pieces) return WEFT_ENOMEM;
    for (int64_t i = 0; i < n; i++)
        WEFT_TRY(check_piece(&files, &pieces[i]));
    qsort(pieces, (size_t)n, sizeof *pieces, by_theirs);
    WEFT_TRY(check_all_taken(&files, &m->config, pieces, n));
    /* A config that asks for more than the files have costs no memory. */
    WEFT_TRY(weft_model_allocate(m, NULL));
    for (int64_t i = 0; i < n; i++)
        WEFT_TRY(read_piece(&files, &pieces[i], m));
    return WEFT_OK;
}

WEFT_ENDED_BY(weft_model_destroy, weft_model)

weft_status weft_hf_read(const char *folder, weft_dtype dtype, const char *const *ignored,
                         int n_ignored, weft_model **out) {
    WEFT_AUTO_DECREF json_t *root = NULL;
    WEFT_AUTO(weft_model_destroy_at) weft_model *m = NULL;
    weft_config c;
    weft_hf_family family;
    char where[WEFT_PATH_MAX];
    *out = NULL;
    WEFT_TRY(weft_path(where, "%s/config.json", folder));
    WEFT_TRY(read_json(folder, "config.json", &root));
    for (int i = 0; i < n_ignored; i++)
        WEFT_TRY(weft_hf_config_ignore(root, where, ignored[i]));
    WEFT_TRY(weft_hf_config_read(root, where, &c, &family));
    WEFT_TRY(weft_model_check(&c, where));
    if (dtype == WEFT_BF16) c.dtype = WEFT_CONFIG_BF16;
    if (dtype == WEFT_F64) c.dtype = WEFT_CONFIG_F64;
    if (family == WEFT_HF_OWN) return weft_model_load_as(folder, &c, dtype, NULL, out);
    WEFT_TRY(weft_model_describe(&c, dtype, &m));
    WEFT_TRY(read_weights(folder, family, m));
    *out = weft_steal(&m);
    return WEFT_OK;
}

/* Of a gain that is not ours, as gains are: not rounded. */
static weft_dtype dtype_of(const weft_model *m, const weft_weight *w) {
    return w ? w->dtype : m->dtype == WEFT_F64 ? WEFT_F64 : WEFT_F32;
}

/* Our rows times the piece's factor, malloc'd. */
static weft_status multiply_rows(const hf_piece *p, const weft_weight *w, weft_dtype dtype,
                                 unsigned char **out) {
    int64_t count = p->rows * (p->columns ? p->columns : 1);
    WEFT_AUTO_FREE double *values = malloc((size_t)count * sizeof *values);
    *out = malloc((size_t)count * weft_dtype_size(dtype));
    if (!values || !*out) return weft_fail(WEFT_ENOMEM, "convert: no memory for '%s'", p->theirs);
    if (w) weft_weight_read(w, values);
    for (int64_t i = 0; i < count; i++)
        values[i] = w ? p->factor * values[i] : p->factor;
    weft_weight_write(&(weft_weight){.dtype = dtype, .count = count, .data = *out}, values);
    return WEFT_OK;
}

/* Puts our rows where theirs has them. */
static weft_status fill_piece(const hf_piece *p, const weft_weight *w, weft_dtype dtype,
                              unsigned char *to) {
    size_t size = weft_dtype_size(dtype);
    int64_t width = p->columns ? p->columns : 1;
    WEFT_AUTO_FREE unsigned char *multiplied = NULL;
    if (p->factor > 0) WEFT_TRY(multiply_rows(p, w, dtype, &multiplied));
    const unsigned char *from =
        multiplied ? multiplied : (unsigned char *)w->data + (size_t)(p->first * width) * size;
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < width; j++)
            memcpy(to + (size_t)their_place(p, i, j) * size, from + (size_t)(i * width + j) * size,
                   size);
    return WEFT_OK;
}

/* Their tensors; a tensor's pieces follow each other. `own` are those that are not ours as they are. */
static weft_status fill_tensors(const weft_model *m, const hf_piece *pieces, int64_t n,
                                weft_safetensor *tensors, void **own, int64_t *count) {
    for (int64_t i = 0; i < n; i++) {
        const hf_piece *p = &pieces[i];
        const weft_weight *w = weft_model_find(m, p->ours);
        weft_dtype dtype = dtype_of(m, w);
        int64_t rows = their_rows(p), columns = their_columns(p), at = *count - 1;
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
        if (!p->transposed && !p->heads && !p->blocks && !(p->factor > 0)) {
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

static weft_status write_weights(const weft_model *m, weft_hf_family family, const char *path,
                                 weft_sum *sum) {
    static const char *const metadata[] = {"format", "pt", NULL};
    int64_t n, count = 0;
    WEFT_AUTO_FREE hf_piece *pieces = list_pieces(&m->config, family, prefixes[family], &n);
    if (!pieces) return WEFT_ENOMEM;
    if (family == WEFT_HF_LLAMA_PAIRS && m->config.weight_tying) {
        /* vLLM's class of DeepSeek's layout has a head of its own, whatever the config says */
        piece_list more = {.c = &m->config, .prefix = "", .list = pieces, .n = n};
        add(&more, "", HEAD, "wte.weight", "lm_head.weight", m->config.vocab_size,
            m->config.n_embd);
        n = more.n;
    }
    WEFT_AUTO_FREE weft_safetensor *tensors = calloc((size_t)n, sizeof *tensors);
    WEFT_AUTO_FREE void **own = calloc((size_t)n, sizeof *own);
    weft_status status = tensors && own ? WEFT_OK : weft_fail(WEFT_ENOMEM, "%s: no memory", path);
    if (status == WEFT_OK) status = weft_mirror_use(m->mirror, NULL);
    if (status == WEFT_OK) status = fill_tensors(m, pieces, n, tensors, own, &count);
    if (status == WEFT_OK)
        status = weft_safetensors_write_summed(path, tensors, count, metadata, sum);
    for (int64_t i = 0; own && i < n; i++)
        free(own[i]);
    return status;
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
    static const char *const types[] = {
        [WEFT_F32] = "float32", [WEFT_BF16] = "bfloat16", [WEFT_F64] = "float64"};
    json_t *root;
    WEFT_TRY(weft_hf_config_write(&p->model->config, p->tokenizer, &family, &root));
    json_object_set_new(root, "torch_dtype", json_string(types[p->model->dtype]));
    weft_status status =
        family == WEFT_HF_OWN ? weft_hf_own_write(p->model, folder, sums) : WEFT_OK;
    if (status != WEFT_OK) {
        json_decref(root);
        return status;
    }
    WEFT_TRY(weft_json_write(path, root, &sums[WEFT_PART_CONFIG]));
    WEFT_TRY(weft_path(path, "%s/%s", folder, weft_parts[WEFT_PART_MODEL]));
    if (family != WEFT_HF_OWN)
        WEFT_TRY(write_weights(p->model, family, path, &sums[WEFT_PART_MODEL]));
    WEFT_TRY(weft_path(path, "%s/%s", folder, weft_parts[WEFT_PART_TOKENIZER]));
    return p->tokenizer ? weft_tokenizer_save(p->tokenizer, path, &sums[WEFT_PART_TOKENIZER])
                        : WEFT_OK;
}

weft_status weft_hf_write(const weft_model *m, const weft_tokenizer *t, const char *folder,
                          weft_may_replace may) {
    return weft_model_publish(folder, may, write_parts, &(their_parts){m, t});
}
