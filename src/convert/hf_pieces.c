/* Their tensors and ours: which is which.
 *
 * GPT-2 keeps its matrices [in, out] and queries, keys and values in one; GPT-NeoX keeps these head by head;
 * the Llama-like models keep matrices [out, in] and those apart, where ours are one tensor's rows; Phi-3 keeps
 * both in one. DeepSeek's have several of ours in one, head by head. */
#include "convert/hf.h"

const hf_body weft_hf_bodies[] = {
    [WEFT_HF_GPT2] = {"transformer.", "wte.weight"},
    [WEFT_HF_LLAMA... WEFT_HF_GEMMA] = {"model.", "embed_tokens.weight"},
    [WEFT_HF_NEOX] = {"gpt_neox.", "embed_in.weight"},
};

typedef struct {
    const weft_config *c;
    const char *prefix;
    weft_hf_family family;
    bool written;
    hf_piece *list;
    int64_t n;
} piece_list;

enum { LAYER_PIECES = 24, OTHER_PIECES = 8 }; /* at most */
enum { HEAD = -2, BODY = -1 };                /* in place of a layer's number */

static hf_piece *add(piece_list *p, int64_t layer, const char *ours, const char *theirs,
                     int64_t rows, int64_t columns) {
    hf_piece *piece = &p->list[p->n++];
    *piece = (hf_piece){.rows = rows, .columns = columns};
    if (layer >= 0) {
        snprintf(piece->ours, sizeof piece->ours, "h.%lld.%s", (long long)layer, ours);
        snprintf(piece->theirs, sizeof piece->theirs, "%s%s.%lld.%s", p->prefix,
                 p->family == WEFT_HF_GPT2 ? "h" : "layers", (long long)layer, theirs);
    } else {
        snprintf(piece->ours, sizeof piece->ours, "%s", ours);
        snprintf(piece->theirs, sizeof piece->theirs, "%s%s", layer == HEAD ? "" : p->prefix,
                 theirs);
    }
    return piece;
}

/* A map or a gain and its bias, of `heads` heads where they lie head by head. */
static void add_both(piece_list *p, int64_t layer, const char *ours, const char *theirs,
                     int64_t rows, int64_t columns, int64_t heads) {
    char mine[64], yours[64];
    snprintf(mine, sizeof mine, "%s.weight", ours);
    snprintf(yours, sizeof yours, "%s.weight", theirs);
    hf_piece *weight = add(p, layer, mine, yours, rows, columns);
    snprintf(mine, sizeof mine, "%s.bias", ours);
    snprintf(yours, sizeof yours, "%s.bias", theirs);
    hf_piece *bias = add(p, layer, mine, yours, rows, 0);
    weight->heads = bias->heads = heads;
    weight->transposed = columns && p->family == WEFT_HF_GPT2;
}

/* vLLM's class of DeepSeek's layout has a head of its own, whatever the config says: a tied one goes along. */
static void add_head(piece_list *p, const char *theirs) {
    bool tied = p->c->weight_tying;
    if (!tied || (p->written && p->family == WEFT_HF_LLAMA_PAIRS))
        add(p, HEAD, tied ? "wte.weight" : "lm_head.weight", theirs, p->c->vocab_size,
            p->c->n_embd);
}

/* GPT-2 and GPT-NeoX, which have the same parts. */
static void list_gpt(piece_list *p) {
    static const char *const gpt2[] = {"wte.weight",  "ln_f",        "ln_1",     "ln_2",
                                       "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"};
    static const char *const neox[] = {"embed_in.weight",           "final_layer_norm",
                                       "input_layernorm",           "post_attention_layernorm",
                                       "attention.query_key_value", "attention.dense",
                                       "mlp.dense_h_to_4h",         "mlp.dense_4h_to_h"};
    const weft_config *c = p->c;
    int64_t e = c->n_embd, f = weft_config_ffn_dim(c);
    bool first = p->family == WEFT_HF_GPT2;
    const char *const *theirs = first ? gpt2 : neox;
    add(p, BODY, "wte.weight", theirs[0], c->vocab_size, e);
    if (first) add(p, BODY, "wpe.weight", "wpe.weight", c->context, e);
    add_both(p, BODY, "ln_f", theirs[1], e, 0, 0);
    for (int64_t i = 0; i < c->n_layer; i++) {
        add_both(p, i, "ln_1", theirs[2], e, 0, 0);
        add_both(p, i, "ln_2", theirs[3], e, 0, 0);
        add_both(p, i, "attn.qkv", theirs[4], 3 * e, e, first ? 0 : c->n_head);
        add_both(p, i, "attn.out", theirs[5], e, e, 0);
        add_both(p, i, "ffn.fc", theirs[6], f, e, 0);
        add_both(p, i, "ffn.proj", theirs[7], e, f, 0);
    }
    add_head(p, first ? "lm_head.weight" : "embed_out.weight");
}

/* `columns` 0: the biases. */
static void add_projections(piece_list *p, int64_t layer, const char *ours, const char *kind,
                            int64_t columns) {
    const weft_config *c = p->c;
    int64_t d = weft_config_head_dim(c), q = c->n_head * d, kv = weft_config_kv_heads(c) * d;
    int64_t firsts[] = {0, q, q + kv};
    for (int i = 0; i < 3; i++) {
        char theirs[64];
        snprintf(theirs, sizeof theirs, "self_attn.%c_proj.%s", "qkv"[i], kind);
        add(p, layer, ours, theirs, i ? kv : q, columns)->first = firsts[i];
    }
}

/* Rows of each of `blocks` blocks of theirs. */
static hf_piece *add_blocks(piece_list *p, int64_t layer, const char *ours, const char *theirs,
                            int64_t blocks, int64_t block, int64_t at, int64_t n, int64_t columns) {
    hf_piece *piece = add(p, layer, ours, theirs, blocks * n, columns);
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
        add(p, i, "attn.q_down.weight", "self_attn.q_a_proj.weight", rank, e);
        add(p, i, "attn.q_down_norm.weight", "self_attn.q_a_layernorm.weight", rank, 0);
    }
    add_blocks(p, i, "attn.q.weight", q, h, d + rope, 0, d, from);
    add_blocks(p, i, "attn.q_rope.weight", q, h, d + rope, d, rope, from)->pairs = pairs;
    hf_piece *down = add_blocks(p, i, "attn.k_down.weight", kv_a, 1, latent + rope, 0, latent, e);
    add_blocks(p, i, "attn.k_rope.weight", kv_a, 1, latent + rope, latent, rope, e)->pairs = pairs;
    hf_piece *norm =
        add(p, i, "attn.latent_norm.weight", "self_attn.kv_a_layernorm.weight", latent, 0);
    if (!c->ra_mla_latent_norm) {
        down->factor = ROOT_OF_EPSILON / LATENT_GAIN;
        norm->factor = LATENT_GAIN;
        norm->ours[0] = 0;
    }
    add_blocks(p, i, "attn.q_latent", kv_b, h, 2 * d, 0, d, latent);
    add_blocks(p, i, "attn.v_up", kv_b, h, 2 * d, d, latent, d)->turned = true;
}

static void add_gain(piece_list *p, int64_t layer, const char *ours, const char *theirs,
                     int64_t width) {
    add(p, layer, ours, theirs, width, 0)->lessened = p->family == WEFT_HF_GEMMA ? 1 : 0;
}

/* Those around a layer's branches. OLMo 2's are behind them, Gemma 2's and 3's on both sides. */
static void add_gains(piece_list *p, int64_t i) {
    int64_t e = p->c->n_embd;
    bool both = p->c->norm_placement == WEFT_PLACEMENT_BOTH;
    bool behind = p->c->norm_placement == WEFT_PLACEMENT_REORDERED;
    if (!behind) add_gain(p, i, "ln_1.weight", "input_layernorm.weight", e);
    add_gain(p, i,
             both     ? "ln_1_post.weight"
             : behind ? "ln_1.weight"
                      : "ln_2.weight",
             "post_attention_layernorm.weight", e);
    if (both) add_gain(p, i, "ln_2.weight", "pre_feedforward_layernorm.weight", e);
    if (both || behind)
        add_gain(p, i, both ? "ln_2_post.weight" : "ln_2.weight",
                 "post_feedforward_layernorm.weight", e);
}

static void list_llama(piece_list *p) {
    const weft_config *c = p->c;
    int64_t e = c->n_embd, f = weft_config_ffn_dim(c), d = weft_config_head_dim(c);
    int bias = weft_hf_attention_bias(c);
    bool all = bias == WEFT_ATTENTION_BIAS_ALL;
    bool phi3 = p->family == WEFT_HF_PHI3;
    int64_t normed = c->qk_norm_whole ? c->n_head * d : d;
    add(p, BODY, "wte.weight", "embed_tokens.weight", c->vocab_size, e);
    add_gain(p, BODY, "ln_f.weight", "norm.weight", e);
    for (int64_t i = 0; i < c->n_layer; i++) {
        add_gains(p, i);
        if (c->attention == WEFT_ATTENTION_MLA)
            add_latents(p, i);
        else if (phi3)
            add(p, i, "attn.qkv.weight", "self_attn.qkv_proj.weight",
                (c->n_head + 2 * weft_config_kv_heads(c)) * d, e);
        else
            add_projections(p, i, "attn.qkv.weight", "weight", e);
        if (bias != WEFT_ATTENTION_BIAS_NONE) add_projections(p, i, "attn.qkv.bias", "bias", 0);
        add(p, i, "attn.out.weight", "self_attn.o_proj.weight", e, c->n_head * d);
        if (all) add(p, i, "attn.out.bias", "self_attn.o_proj.bias", e, 0);
        if (phi3) {
            add_blocks(p, i, "ffn.w3.weight", "mlp.gate_up_proj.weight", 1, 2 * f, 0, f, e);
            add_blocks(p, i, "ffn.w1.weight", "mlp.gate_up_proj.weight", 1, 2 * f, f, f, e);
        } else {
            add(p, i, "ffn.w1.weight", "mlp.up_proj.weight", f, e);
            add(p, i, "ffn.w3.weight", "mlp.gate_proj.weight", f, e);
        }
        add(p, i, "ffn.w2.weight", "mlp.down_proj.weight", e, f);
        if (c->qk_norm) {
            add_gain(p, i, "attn.q_norm.weight", "self_attn.q_norm.weight", normed);
            add_gain(p, i, "attn.k_norm.weight", "self_attn.k_norm.weight", normed);
        }
        if (c->ffn_bias) {
            add(p, i, "ffn.w1.bias", "mlp.up_proj.bias", f, 0);
            add(p, i, "ffn.w3.bias", "mlp.gate_proj.bias", f, 0);
            add(p, i, "ffn.w2.bias", "mlp.down_proj.bias", e, 0);
        }
    }
    add_head(p, "lm_head.weight");
}

int64_t weft_hf_place(const hf_piece *p, int64_t i, int64_t j) {
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

hf_piece *weft_hf_pieces(const weft_config *c, weft_hf_family family, const char *prefix,
                         bool written, int64_t *count) {
    size_t most = (size_t)(c->n_layer * LAYER_PIECES + OTHER_PIECES);
    piece_list p = {.c = c, .prefix = prefix, .family = family, .written = written};
    p.list = malloc(most * sizeof *p.list);
    if (!p.list)
        weft_fail(WEFT_ENOMEM, "convert: no memory for the list of tensors");
    else if (family == WEFT_HF_GPT2 || family == WEFT_HF_NEOX)
        list_gpt(&p);
    else
        list_llama(&p);
    *count = p.n;
    return p.list;
}

int64_t weft_hf_rows(const hf_piece *p) {
    return p->transposed ? p->columns : p->blocks ? p->blocks * p->block : p->rows;
}

int64_t weft_hf_columns(const hf_piece *p) {
    return p->transposed ? p->rows : p->turned ? p->rows / p->blocks : p->columns;
}
