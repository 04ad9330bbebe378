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
    WEFT_HF_GPT2,
    WEFT_HF_LLAMA,
    WEFT_HF_LLAMA_PAIRS,
    WEFT_HF_PHI3,
    WEFT_HF_GEMMA,
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
