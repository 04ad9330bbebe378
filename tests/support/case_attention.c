/* Cases of attention. */
#include "cases.h"
#include "ops/arith.h"
#include "ops/attention.h"
#include "ops/documents.h"
#include "ops/gaussian.h"

#include <math.h>
#include <string.h>

typedef struct {
    int64_t batch, queries, keys, heads, kv_heads, dqk, dv;
} sizes;

static weft_attention_pos read_position(const test_case *c) {
    if (case_is(c, "pos", "alibi", "none")) return WEFT_POS_ALIBI;
    return case_is(c, "pos", "relative", "none") ? WEFT_POS_RELATIVE : WEFT_POS_NONE;
}

/* Whether q or k is a Gaussian's. */
static bool is_gaussian(const test_case *c, const char *which) {
    return case_is(c, "gaussian", which, "none") || case_is(c, "gaussian", "both", "none");
}

/* The numbers a key, a head and a distance that the case's score has; a Gaussian key brings its own. */
static void add_score_inputs(test_case *c, const sizes *z, weft_score *score) {
    bool tau = case_is(c, "score", "tau", "dot"), beta = case_is(c, "score", "beta", "dot");
    bool w2 = case_is(c, "score", "w2", "dot");
    int64_t per_key[] = {z->batch, z->kv_heads, z->keys}, per_head[] = {z->heads};
    if ((tau || beta || w2) && !is_gaussian(c, "k"))
        score->n = case_stat(c, "n", CASE_DIFF, 1, 3, per_key);
    if (tau) score->log_tau = case_stat(c, "log_tau", CASE_DIFF, 1, 1, per_head);
    if (beta) score->beta = case_stat(c, "beta", CASE_DIFF, 1, 1, per_head);
    if (w2) {
        double warmth = 2 * sqrt((double)z->dqk / 2);
        score->scale_value = 2 / warmth;
        score->beta = weft_fill(case_graph(c), case_stat_dtype(c), 1, per_head, -1 / warmth);
    }
    if (!tau && case_is(c, "scaled", "head", "const"))
        score->scale = case_stat(c, "scale", CASE_DIFF, 1, 1, per_head);
    if (score->pos == WEFT_POS_RELATIVE)
        score->rel = case_stat(c, "r", CASE_DIFF, 1, 1, (int64_t[]){case_size(c, "R")});
    int64_t kinds = case_int(c, "documents", 0), per_query[] = {z->batch, z->queries};
    if (kinds) {
        weft_tensor *tokens = case_ids(c, "tokens", kinds, kinds, 2, per_query);
        score->first = weft_find_documents(case_graph(c), tokens, 0).first;
    }
}

/* q and k as the model has them behind their projections. */
static void add_queries_and_keys(test_case *c, const sizes *z, weft_score *score) {
    int64_t q[] = {z->batch, z->queries, z->heads, z->dqk};
    int64_t k[] = {z->batch, z->keys, z->kv_heads, z->dqk};
    double range = case_number(c, "range", 1);
    score->q = case_input(c, "q", CASE_DIFF, range, 4, q);
    score->k = case_input(c, "k", CASE_DIFF, range, 4, k);
    if (is_gaussian(c, "q")) score->q = weft_gaussian_query(case_graph(c), score->q);
    if (is_gaussian(c, "k") && !score->beta && !score->log_tau)
        score->k = weft_gaussian_query(case_graph(c), score->k);
    else if (is_gaussian(c, "k")) {
        weft_gaussian key = weft_gaussian_key(case_graph(c), score->k);
        score->k = key.y;
        score->n = key.n;
    }
}

static void build_attention(test_case *c) {
    sizes z = {case_size(c, "B"),  case_size(c, "T"), case_size(c, "T"), case_size(c, "H"),
               case_size(c, "KV"), case_size(c, "Q"), case_size(c, "V")};
    weft_score score = {
        .scale_value = 1 / sqrt((double)z.dqk),
        .pos = read_position(c),
        .causal = case_int(c, "causal", 1) != 0,
        .band = case_int(c, "band", 0) != 0,
        .band_alpha = case_number(c, "alpha", 0.5),
        .reach = case_int(c, "reach", 0),
        .softcap = case_number(c, "softcap", 0),
    };
    if (score.band) score.window = case_size(c, "W");
    add_score_inputs(c, &z, &score);
    weft_attended y;
    if (case_int(c, "packed", 0)) {
        int64_t width = (z.heads + 2 * z.kv_heads) * z.dqk;
        score.packed =
            case_input(c, "qkv", CASE_DIFF, 1, 3, (int64_t[]){z.batch, z.queries, width});
        score.heads = z.heads;
        score.kv_heads = z.kv_heads;
        y = weft_attention(case_graph(c), &score, NULL);
    } else {
        add_queries_and_keys(c, &z, &score);
        weft_tensor *v =
            case_input(c, "v", CASE_DIFF, 1, 4, (int64_t[]){z.batch, z.keys, z.kv_heads, z.dv});
        y = weft_attention(case_graph(c), &score, v);
    }
    /* The gradient takes ⟨do, o⟩ from the stored o: rounded to bf16, a row's ds no longer adds up to
     * 0 and all that is summed from it carries that on. */
    if (case_dtype(c) == WEFT_BF16) case_loosen(c, 12);
    /* Scores of width 128 reach 70, and rounding them to f32 alone moves o by 8e-6; they grow with
     * the width's square root. */
    if (case_dtype(c) == WEFT_F32 && score.log_tau && z.dqk >= 128)
        case_loosen(c, 2 * sqrt((double)z.dqk / 128));
    case_output(c, "o", CASE_DIFF, y.o);
    case_output(c, "lse", CASE_CONST, y.lse);
}

const case_builder cases_attention[] = {
    {"attention", build_attention},
    {NULL, NULL},
};
