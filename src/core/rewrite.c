/* The walk over the rules, and the changes they may make.
 *
 * While it lasts, the list of nodes has holes where nodes were dropped, so that places stay
 * comparable, and the views of a tensor may name an old maker: rules ask for what a tensor is a view
 * of. Both are put right at the end. */
#include "core/rewrite.h"

#include "core/graph_internal.h"

struct weft_rewrite {
    weft_graph *g;
    const weft_rule *rules;
    int64_t first;    /* nodes from here on may change */
    int32_t *reads;   /* [tensors] by root: of how many inputs it is the memory */
    weft_node *again; /* to be looked at anew; NULL: none */
};

static void count_read(weft_rewrite *r, const weft_tensor *t, int32_t change) {
    if (t) r->reads[t->view_of ? t->view_of->id : t->id] += change;
}

bool weft_rewrite_is_again(const weft_rewrite *r, const weft_node *n) {
    return r->first > 0 && n->index >= r->first && n->segment != 0;
}

static bool is_open(const weft_rewrite *r, const weft_node *n) {
    return n->index >= r->first && !weft_rewrite_is_again(r, n);
}

bool weft_rewrite_is_made_before(weft_tensor *t, const weft_node *n) {
    const weft_node *maker = weft_tensor_root(t)->producer;
    return !maker || maker->index < n->index;
}

bool weft_rewrite_is_quiet(const weft_rewrite *r, const weft_node *from, const weft_node *to) {
    for (int64_t i = from->index + 1; i < to->index; i++)
        if (r->g->nodes[i] && r->g->nodes[i]->op->side_effect) return false;
    return true;
}

/* Which output of n the tensor is; -1: none. */
static int output_of(const weft_node *n, const weft_tensor *root) {
    for (int i = 0; i < n->n_out; i++)
        if (n->out[i] == root) return i;
    return -1;
}

/* The maker of `t`, if it is of that operation and may be changed. */
static weft_node *find_open(const weft_rewrite *r, weft_tensor *t, const weft_op *op, bool shared,
                            const weft_node *reader) {
    const weft_tensor *root = weft_tensor_root(t);
    weft_node *n = root->producer;
    if (!n || n->op != op || !is_open(r, n)) return NULL;
    if (!shared && (root->keep || r->reads[root->id] != 1)) return NULL;
    return weft_rewrite_is_quiet(r, n, reader) ? n : NULL;
}

weft_node *weft_rewrite_find_maker(const weft_rewrite *r, weft_tensor *t, const weft_op *op,
                                   int output, const weft_node *reader) {
    weft_node *n = t ? find_open(r, t, op, false, reader) : NULL;
    return n && output_of(n, weft_tensor_root(t)) == output ? n : NULL;
}

void *weft_rewrite_attr(weft_rewrite *r, weft_node *n, size_t size) {
    void *attr = weft_graph_alloc(r->g, size);
    if (!attr) return NULL;
    memcpy(attr, n->attr, size);
    n->attr = attr;
    return attr;
}

void weft_rewrite_read(weft_rewrite *r, weft_node *n, int input, weft_tensor *t) {
    count_read(r, n->in[input], -1);
    count_read(r, t, 1);
    n->in[input] = t;
}

bool weft_rewrite_read_all(weft_rewrite *r, weft_node *n, weft_tensor *const *in, int n_in) {
    weft_tensor **list = weft_graph_alloc(r->g, (size_t)n_in * sizeof *list);
    if (!list) return false;
    for (int k = 0; k < n->n_in; k++)
        count_read(r, n->in[k], -1);
    for (int k = 0; k < n_in; k++) {
        list[k] = in[k];
        count_read(r, in[k], 1);
    }
    n->in = list;
    n->n_in = n_in;
    return true;
}

void weft_rewrite_make(weft_rewrite *r, weft_node *n, int output, weft_tensor *t) {
    (void)r;
    weft_tensor *before = n->out[output];
    if (before) before->producer = &weft_node_gone;
    weft_node *maker = t ? t->producer : NULL;
    int made = maker ? output_of(maker, t) : -1;
    if (made >= 0) maker->out[made] = NULL;
    n->out[output] = t;
    if (t) t->producer = n;
}

weft_node *weft_rewrite_new(weft_rewrite *r, const weft_op *op, weft_tensor *const *in, int n_in,
                            int n_out, const void *attr) {
    weft_node *n = weft_graph_node_new(r->g, op, in, n_in, n_out, attr);
    if (!n) return NULL;
    n->index = -1;
    for (int k = 0; k < n_in; k++)
        count_read(r, in[k], 1);
    return n;
}

void weft_rewrite_drop(weft_rewrite *r, weft_node *n) {
    for (int k = 0; k < n->n_in; k++)
        count_read(r, n->in[k], -1);
    for (int i = 0; i < n->n_out; i++)
        if (n->out[i]) n->out[i]->producer = &weft_node_gone;
    r->g->nodes[n->index] = NULL;
}

void weft_rewrite_place(weft_rewrite *r, weft_node *n, const weft_node *dropped) {
    if (n->index >= 0 && r->g->nodes[n->index] == n) r->g->nodes[n->index] = NULL;
    n->index = dropped->index;
    r->g->nodes[n->index] = n;
}

void weft_rewrite_move_before(weft_rewrite *r, weft_node *n, const weft_node *other) {
    weft_node **nodes = r->g->nodes;
    for (int64_t i = n->index; i < other->index - 1; i++) {
        nodes[i] = nodes[i + 1];
        if (nodes[i]) nodes[i]->index = (int32_t)i;
    }
    n->index = other->index - 1;
    nodes[n->index] = n;
}

void weft_rewrite_again(weft_rewrite *r, weft_node *n) {
    r->again = n;
}

static int64_t place_made(weft_tensor *t) {
    const weft_node *maker = t ? weft_tensor_root(t)->producer : NULL;
    return maker ? maker->index : -1;
}

/* The input behind `at`, in the order of their makers' places from the last on, of one place the
 * later input first; -1: none is left. Start with -1. */
static int next_input(const weft_node *n, int at) {
    int best = -1;
    for (int k = 0; k < n->n_in; k++) {
        int64_t place = place_made(n->in[k]), bound = at < 0 ? INT64_MAX : place_made(n->in[at]);
        if (place > bound || (place == bound && k >= at)) continue;
        if (best < 0 || place >= place_made(n->in[best])) best = k;
    }
    return best;
}

static void try_rules(weft_rewrite *r, weft_node *n) {
    for (const weft_rule *rule = r->rules; rule->name; rule++) {
        bool any = rule->input == WEFT_ANY_INPUT;
        if (rule->reader != n->op) continue;
        for (int k = any ? next_input(n, -1) : rule->input; k >= 0;
             k = any ? next_input(n, k) : -1) {
            if (k >= n->n_in || !n->in[k]) continue;
            weft_node *maker = find_open(r, n->in[k], rule->maker, rule->shared, n);
            int output = maker ? output_of(maker, weft_tensor_root(n->in[k])) : -1;
            if (output >= 0 && rule->apply(r, &(weft_match){n, maker, k, output})) return;
        }
    }
}

void weft_graph_close_holes(weft_graph *g) {
    int64_t count = 0, forward = 0;
    for (int64_t i = 0; i < g->n_nodes; i++) {
        if (!g->nodes[i]) continue;
        forward += i < g->n_forward;
        g->nodes[i]->index = (int32_t)count;
        g->nodes[count++] = g->nodes[i];
    }
    g->n_nodes = count;
    if (g->n_forward >= 0) g->n_forward = forward;
    for (int64_t i = 0; i < g->n_tensors; i++)
        if (g->tensors[i]->view_of) g->tensors[i]->producer = g->tensors[i]->view_of->producer;
}

weft_status weft_graph_rewrite(weft_graph *g, const weft_rule *rules) {
    WEFT_TRY(weft_graph_status(g));
    WEFT_ROOM(int32_t, reads, g->n_tensors + 1, "rewrite: no memory");
    int64_t first = g->n_forward < 0 ? 0 : g->n_forward;
    weft_rewrite r = {.g = g, .rules = rules, .first = first, .reads = reads};
    for (int64_t i = 0; i < r.g->n_nodes; i++) {
        const weft_node *n = r.g->nodes[i];
        for (int k = 0; k < n->n_in; k++)
            count_read(&r, n->in[k], 1);
    }
    for (int64_t i = r.first; i < g->n_nodes; i++) {
        weft_node *n = g->nodes[i];
        if (!n || !is_open(&r, n)) continue;
        for (r.again = n; r.again;) {
            weft_node *next = r.again;
            r.again = NULL;
            try_rules(&r, next);
        }
    }
    weft_graph_close_holes(g);
    return weft_graph_status(g);
}
