/* Times are kept a node and summed by the operation's name only when they are printed. */
#include "core/exec_internal.h"

#include "base/order.h"

enum { NAME_ROOM = 120 };

struct weft_profile {
    const weft_graph *g;
    bool shapes;     /* a line for each shape */
    double *seconds; /* [nodes], over all runs */
    int64_t runs;
};

/* All nodes of one operation, in one run on average. */
typedef struct {
    char name[NAME_ROOM];
    int64_t nodes;
    double seconds, flops;
} share;

weft_profile *weft_profile_create(const weft_graph *g) {
    const char *asked = getenv("WEFT_PROFILE");
    if (!asked || !*asked) return NULL;
    WEFT_AUTO_FREE weft_profile *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    p->g = g;
    p->shapes = strcmp(asked, "shapes") == 0;
    p->seconds = calloc((size_t)weft_graph_node_count(g) + 1, sizeof *p->seconds);
    return p->seconds ? weft_steal(&p) : NULL;
}

void weft_profile_add(weft_profile *p, int64_t node, double seconds) {
    p->seconds[node] += seconds;
}

void weft_profile_end_run(weft_profile *p) {
    p->runs++;
}

static int by_time(const void *a, const void *b) {
    return weft_order(((const share *)b)->seconds, ((const share *)a)->seconds);
}

static void print_shares(const weft_profile *p, share *shares) {
    int n = 0;
    for (int64_t i = 0; i < weft_graph_node_count(p->g); i++) {
        const weft_node *node = weft_graph_node(p->g, i);
        char name[NAME_ROOM];
        int k = 0;
        /* "matmul", or "matmul bf16 [8, 4] < bf16 [8, 2], bf16 [4, 2]". */
        const weft_tensor *y = p->shapes && node->n_out ? node->out[0] : NULL;
        int at = snprintf(name, sizeof name, "%s", node->op->name);
        if (y) at += snprintf(name + at, sizeof name - (size_t)at, " %s", weft_tensor_describe(y));
        for (int j = 0; y && j < node->n_in && j < 2 && node->in[j] && at < NAME_ROOM; j++)
            at += snprintf(name + at, sizeof name - (size_t)at, "%s%s", j ? ", " : " < ",
                           weft_tensor_describe(node->in[j]));
        while (k < n && strcmp(shares[k].name, name) != 0)
            k++;
        if (k == n) memcpy(shares[n++].name, name, sizeof name);
        shares[k].nodes++;
        shares[k].seconds += p->seconds[i] / (double)p->runs;
        if (node->op->flops) shares[k].flops += (double)node->op->flops(node);
    }
    qsort(shares, (size_t)n, sizeof *shares, by_time);
    double total = 0;
    for (int i = 0; i < n; i++)
        total += shares[i].seconds;
    fprintf(stderr, "profile: %lld runs of %.2f ms\n", (long long)p->runs, 1e3 * total);
    fprintf(stderr, "  %-24s %6s %10s %6s %9s\n", "operation", "nodes", "ms", "share", "GFLOP/s");
    for (int i = 0; i < n; i++) {
        const share *s = &shares[i];
        fprintf(stderr, "  %-24s %6lld %10.3f %5.1f%%", s->name, (long long)s->nodes,
                1e3 * s->seconds, total > 0 ? 100 * s->seconds / total : 0);
        if (s->flops > 0 && s->seconds > 0)
            fprintf(stderr, " %9.1f\n", 1e-9 * s->flops / s->seconds);
        else
            fputc('\n', stderr);
    }
}

void weft_profile_destroy(weft_profile *p) {
    if (!p) return;
    int64_t nodes = weft_graph_node_count(p->g);
    share *shares = p->runs ? calloc((size_t)nodes + 1, sizeof *shares) : NULL;
    if (shares) print_shares(p, shares);
    WEFT_FREE(shares, p->seconds, p);
}
