/* Cases of routing. The logsumexp comes from the attention itself, whose values are the keys again:
 * its output is not looked at. */
#include "cases.h"
#include "ops/documents.h"
#include "ops/routing.h"

#include <math.h>

typedef struct {
    int64_t batch, queries, keys, heads, kv_heads, dqk;
    weft_score score;
    weft_tensor *lse;
    bool use_max, normalize;
} routed;

static void add_score_inputs(test_case *c, routed *r) {
    weft_score *score = &r->score;
    bool tau = case_is(c, "score", "tau", "dot"), beta = case_is(c, "score", "beta", "dot");
    int64_t per_key[] = {r->batch, r->kv_heads, r->keys}, per_head[] = {r->heads};
    if (tau || beta) score->n = case_stat(c, "n", CASE_CONST, 1, 3, per_key);
    if (tau) score->log_tau = case_stat(c, "log_tau", CASE_CONST, 1, 1, per_head);
    if (beta) score->beta = case_stat(c, "beta", CASE_CONST, 1, 1, per_head);
    if (!tau && case_is(c, "scaled", "head", "const"))
        score->scale = case_stat(c, "scale", CASE_CONST, 1, 1, per_head);
    if (case_is(c, "pos", "alibi", "none")) score->pos = WEFT_POS_ALIBI;
    if (case_is(c, "pos", "relative", "none")) {
        score->pos = WEFT_POS_RELATIVE;
        score->rel = case_stat(c, "r", CASE_CONST, 1, 1, (int64_t[]){case_size(c, "R")});
    }
    int64_t kinds = case_int(c, "documents", 0), per_query[] = {r->batch, r->queries};
    if (kinds) {
        weft_tensor *tokens = case_ids(c, "tokens", kinds, kinds, 2, per_query);
        score->first = weft_find_documents(case_graph(c), tokens, 0).first;
    }
}

static routed make_weights(test_case *c) {
    routed r = {.batch = case_size(c, "B"),
                .queries = case_size(c, "T"),
                .keys = case_size(c, "T"),
                .heads = case_size(c, "H"),
                .kv_heads = case_size(c, "KV"),
                .dqk = case_size(c, "Q"),
                .use_max = case_is(c, "head", "max", "mean"),
                .normalize = case_int(c, "normalize", 0) != 0};
    weft_score *score = &r.score;
    score->scale_value = 1 / sqrt((double)r.dqk);
    score->causal = true;
    score->band = case_int(c, "band", 0) != 0;
    score->band_alpha = case_number(c, "alpha", 0.5);
    score->reach = case_int(c, "reach", 0);
    score->softcap = case_number(c, "softcap", 0);
    if (score->band) score->window = case_size(c, "W");
    add_score_inputs(c, &r);
    if (case_int(c, "packed", 0)) {
        int64_t width = (r.heads + 2 * r.kv_heads) * r.dqk;
        score->packed =
            case_input(c, "qkv", CASE_CONST, 2, 3, (int64_t[]){r.batch, r.queries, width});
        score->heads = r.heads;
        score->kv_heads = r.kv_heads;
        r.lse = weft_attention(case_graph(c), score, NULL).lse;
        return r;
    }
    score->q =
        case_input(c, "q", CASE_CONST, 2, 4, (int64_t[]){r.batch, r.queries, r.heads, r.dqk});
    score->k =
        case_input(c, "k", CASE_CONST, 1, 4, (int64_t[]){r.batch, r.keys, r.kv_heads, r.dqk});
    r.lse = weft_attention(case_graph(c), score, score->k).lse;
    return r;
}

static weft_routes make_routes(test_case *c, const routed *r) {
    int64_t k = case_int(c, "k", 8);
    return weft_route_topk(case_graph(c), &r->score, r->lse, k, r->normalize, r->use_max);
}

static void build_route_topk(test_case *c) {
    routed r = make_weights(c);
    weft_routes routes = make_routes(c, &r);
    case_output(c, "w", CASE_CONST, routes.weight);
    case_scatter(c, "dense", routes.index, routes.weight, r.keys);
}

/* ids=N: the kept columns are not a top-k, but drawn from the first N, those from `cut` on left out;
 * so a column may be kept by all rows, or by none. */
static weft_routes draw_routes(test_case *c, int64_t limit) {
    int64_t shape[] = {case_size(c, "B"), case_size(c, "T"), case_int(c, "k", 8)};
    weft_routes routes = {case_ids(c, "index", limit, case_int(c, "cut", limit), 3, shape),
                          case_stat(c, "w", CASE_CONST, 1, 3, shape)};
    return routes;
}

static void build_route_gather(test_case *c) {
    int64_t limit = case_int(c, "ids", 0);
    int64_t shape[] = {case_size(c, "B"), 0, case_size(c, "F")};
    weft_routes routes;
    if (limit > 0) {
        routes = draw_routes(c, limit);
        shape[1] = case_size(c, "S");
    } else {
        routed r = make_weights(c);
        routes = make_routes(c, &r);
        shape[1] = r.keys;
    }
    weft_tensor *h = case_input(c, "h", CASE_DIFF, 1, 3, shape);
    if (!case_int(c, "G", 0)) {
        case_output(c, "c", CASE_DIFF,
                    weft_route_gather(case_graph(c), h, routes.index, routes.weight));
        return;
    }
    shape[2] = case_size(c, "G");
    weft_tensor *second = case_input(c, "second", CASE_DIFF, 1, 3, shape);
    weft_route_pair pair =
        weft_route_gather_pair(case_graph(c), h, second, routes.index, routes.weight);
    case_output(c, "c", CASE_DIFF, pair.first);
    case_output(c, "d", CASE_DIFF, pair.second);
}

static void build_route_dense(test_case *c) {
    routed r = make_weights(c);
    int64_t shape[] = {r.batch, r.keys, case_size(c, "F")};
    weft_tensor *h = case_input(c, "h", CASE_DIFF, 1, 3, shape);
    weft_route_mode mode = case_is(c, "mode", "rms", "none") ? WEFT_ROUTE_RMS : WEFT_ROUTE_ALL;
    double threshold = case_number(c, "threshold", 0.5);
    weft_tensor *y = weft_route_dense(case_graph(c), &r.score, r.lse, h, mode, threshold,
                                      r.normalize, r.use_max);
    case_output(c, "c", CASE_DIFF, y);
}

const case_builder cases_routing[] = {
    {"route_topk", build_route_topk},
    {"route_gather", build_route_gather},
    {"route_dense", build_route_dense},
    {NULL, NULL},
};
