/* Models in Hugging Face's layout: a folder with config.json, model.safetensors (or several files and
 * an index of them) and a tokenizer, read into weft's and written from it.
 *
 * Three families: GPT-2, GPT-NeoX, and the Llama-like ones (Llama, Mistral, Qwen2, Qwen3, SmolLM3, OLMo 2 and 3,
 * Phi-3, Gemma 1 to 3, and DeepSeek-V3 without experts).
 * hf_config.c reads their config, hf_config_write.c writes it; hf_pieces.c has the one list of which tensor is
 * which, and hf_weights.c reads and writes the files by it. What a folder asks for and weft does not compute is
 * refused by its key: a model is read whole or not at all. */
#pragma once

#include "data/tokenizer.h"
#include "model/folder.h"
#include "model/model.h"

/* WEFT_HF_LLAMA_PAIRS: the columns that are rotated together are neighbours. WEFT_HF_PHI3: Llama with queries,
 * keys and values in one tensor, and so the feed-forward's two first maps. WEFT_HF_GEMMA: Llama with gains that
 * are kept less 1, and with norms before and behind the branches. WEFT_HF_OWN: none of theirs; the
 * folder brings a class of weft's along (modeling_weft.py). */
typedef enum {
    WEFT_HF_LLAMA,
    WEFT_HF_LLAMA_PAIRS,
    WEFT_HF_PHI3,
    WEFT_HF_GEMMA,
    WEFT_HF_GPT2,
    WEFT_HF_NEOX,
    WEFT_HF_OWN
} weft_hf_family;

/* Whether the folder's config.json is one of theirs: it has a model_type. */
bool weft_hf_is_folder(const char *folder);

/* Takes a key out of their config, or "rope_scaling.KEY". One that is not there is WEFT_EINPUT. */
weft_status weft_hf_config_ignore(json_t *root, const char *where, const char *key);
/* Their config as ours. `where` names it in errors. */
weft_status weft_hf_config_read(const json_t *root, const char *where, weft_config *c,
                                weft_hf_family *family);
/* Ours as theirs; the caller owns the object. The special tokens are the tokenizer's; NULL: none. */
weft_status weft_hf_config_write(const weft_config *c, const weft_tokenizer *t,
                                 weft_hf_family *family, json_t **out);

/* ATTENTION_BIAS with auto resolved. */
int weft_hf_attention_bias(const weft_config *c);

/* `ignored` are keys of the config that are read as if they were not there. */
weft_status weft_hf_read(const char *folder, weft_dtype dtype, const char *const *ignored,
                         int n_ignored, weft_model **out);
/* Publishes a folder, with what it may replace (model/folder.h). `t` NULL: without a tokenizer. */
weft_status weft_hf_write(const weft_model *m, const weft_tokenizer *t, const char *folder,
                          weft_may_replace may);

/* What reading (hf_config.c) and writing (hf_config_write.c) share of each model_type: those that are Llama but for what
 * is said here, and the two that are not. */

/* `kv_heads` and what follows are for a config that says nothing, 0: as Llama has it. */
typedef struct {
    const char *type, *architecture;
    weft_hf_family family;
    bool qkv_bias; /* in these three maps, and nowhere else */
    bool qk_norm;
    bool tied;
    bool windows;   /* a sliding_window is in use, in all layers; not only if use_sliding_window */
    bool no_window; /* the family has none */
    bool reordered; /* norms come behind the branches, and those of queries and keys are whole */
    bool partial;   /* some columns of a head may be left unrotated */
    int full_every; /* a sliding_window is in use in all layers but every n-th */
    int heads, kv_heads, head_dim, nope_every, window, vocab, context;
    double theta, eps;
    double scalar; /* query_pre_attn_scalar: scores are divided by its root */
    double softcap_attention, softcap_end; /* of the scores, of the logits */
    double local_theta;                    /* of layers with a window, which have no scaling */
    const char *keys; /* that the others do not have, or not with these values */
} llama_like;

enum {
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    SMOLLM3,
    OLMO2,
    OLMO3,
    PHI3,
    DEEPSEEK,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GPT2, /* from here on none is Llama */
    NEOX,
    LIKES
};

extern const llama_like weft_hf_likes[LIKES];

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
    /* Theirs is ours times the factor, 0: 1; with `ours` empty, theirs is the factor. And less `lessened`. */
    double factor, lessened;
} hf_piece;

/* Before the names of a body ("transformer.", "model."), and a tensor that every body has. */
typedef struct {
    const char *prefix, *first;
} hf_body;

extern const hf_body weft_hf_bodies[];

/* All pieces of a model that is read, with that prefix, or written; malloc'd. NULL: no memory, said in an error. */
hf_piece *weft_hf_pieces(const weft_config *c, weft_hf_family family, const char *prefix,
                         bool written, int64_t *count);

/* The shape of their tensor; columns 0: it has one dimension. */
int64_t weft_hf_rows(const hf_piece *p);
int64_t weft_hf_columns(const hf_piece *p);
/* Where their tensor has the element (i, j) of our rows. */
int64_t weft_hf_place(const hf_piece *p, int64_t i, int64_t j);
