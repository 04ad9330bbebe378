/* Which tensor is which. GPT-2 keeps its matrices [in, out] and queries, keys and values in one; the
 * Llama-like models keep them [out, in] and apart, where ours are one tensor's rows. */
#include "convert/hf.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    const weft_config *c;
    const char *prefix;
    weft_hf_piece *list;
    int64_t n, room;
    bool failed;
} pieces;

enum { HEAD = -2, BODY = -1 }; /* in place of a layer's number */

static weft_hf_piece *new_piece(pieces *p) {
    if (p->n == p->room) {
        int64_t room = p->room ? 2 * p->room : 64;
        weft_hf_piece *grown = realloc(p->list, (size_t)room * sizeof *grown);
        if (!grown) {
            p->failed = true;
            return NULL;
        }
        p->list = grown;
        p->room = room;
    }
    p->list[p->n] = (weft_hf_piece){.first = 0};
    return &p->list[p->n++];
}

/* `layers` is their word before a layer's number. */
static weft_hf_piece *add(pieces *p, const char *layers, int64_t layer, const char *ours,
                          const char *theirs, int64_t rows, int64_t columns) {
    weft_hf_piece *piece = new_piece(p);
    if (!piece) return NULL;
    piece->rows = rows;
    piece->columns = columns;
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

static void add_transposed(pieces *p, int64_t layer, const char *ours, const char *theirs,
                           int64_t rows, int64_t columns) {
    weft_hf_piece *piece = add(p, "h", layer, ours, theirs, rows, columns);
    if (piece) piece->transposed = true;
}

static void add_rows(pieces *p, int64_t layer, const char *ours, const char *theirs, int64_t first,
                     int64_t rows, int64_t columns) {
    weft_hf_piece *piece = add(p, "layers", layer, ours, theirs, rows, columns);
    if (piece) piece->first = first;
}

static void add_head(pieces *p) {
    if (!p->c->weight_tying)
        add(p, "", HEAD, "lm_head.weight", "lm_head.weight", p->c->vocab_size, p->c->n_embd);
}

static void list_gpt2(pieces *p) {
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
    add_head(p);
}

/* `columns` 0: the biases. */
static void add_projections(pieces *p, int64_t layer, const char *ours, const char *kind,
                            int64_t columns) {
    const weft_config *c = p->c;
    int64_t kv = weft_config_kv_heads(c) * weft_config_head_dim(c), e = c->n_embd;
    char theirs[64];
    snprintf(theirs, sizeof theirs, "self_attn.q_proj.%s", kind);
    add_rows(p, layer, ours, theirs, 0, e, columns);
    snprintf(theirs, sizeof theirs, "self_attn.k_proj.%s", kind);
    add_rows(p, layer, ours, theirs, e, kv, columns);
    snprintf(theirs, sizeof theirs, "self_attn.v_proj.%s", kind);
    add_rows(p, layer, ours, theirs, e + kv, kv, columns);
}

static void list_llama(pieces *p) {
    const weft_config *c = p->c;
    int64_t e = c->n_embd, f = weft_config_ffn_dim(c);
    int bias = weft_hf_attention_bias(c);
    bool all = bias == WEFT_ATTENTION_BIAS_ALL;
    add(p, "", BODY, "wte.weight", "embed_tokens.weight", c->vocab_size, e);
    add(p, "", BODY, "ln_f.weight", "norm.weight", e, 0);
    for (int64_t i = 0; i < c->n_layer; i++) {
        add(p, "layers", i, "ln_1.weight", "input_layernorm.weight", e, 0);
        add(p, "layers", i, "ln_2.weight", "post_attention_layernorm.weight", e, 0);
        add_projections(p, i, "attn.qkv.weight", "weight", e);
        if (bias != WEFT_ATTENTION_BIAS_NONE) add_projections(p, i, "attn.qkv.bias", "bias", 0);
        add(p, "layers", i, "attn.out.weight", "self_attn.o_proj.weight", e, e);
        if (all) add(p, "layers", i, "attn.out.bias", "self_attn.o_proj.bias", e, 0);
        add(p, "layers", i, "ffn.w1.weight", "mlp.up_proj.weight", f, e);
        add(p, "layers", i, "ffn.w3.weight", "mlp.gate_proj.weight", f, e);
        add(p, "layers", i, "ffn.w2.weight", "mlp.down_proj.weight", e, f);
    }
    add_head(p);
}

weft_hf_piece *weft_hf_list(const weft_config *c, weft_hf_family family, const char *prefix,
                            int64_t *count) {
    pieces p = {.c = c, .prefix = prefix};
    if (family == WEFT_HF_GPT2)
        list_gpt2(&p);
    else
        list_llama(&p);
    *count = p.n;
    if (!p.failed) return p.list;
    free(p.list);
    weft_fail(WEFT_ENOMEM, "convert: no memory for the list of tensors");
    return NULL;
}
