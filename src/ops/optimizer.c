/* AdamW, AdamWSPAM (spike-aware Adam with momentum reset) and Muon: what a step does, in this order.
 *
 * norm_parts    Σ g² of chunks, which norm_join makes a norm of: √ Σ g²
 *
 * adam_control  a norm that is NaN or infinite: the step is skipped, nothing but a counter changes
 *               spike       norm > mean + threshold · deviation (n − 1) of the last 100 norms, of
 *                           which there must be 10:                       m ← m/2, v ← 0.9 v
 *               clipping    norm > clip:                                  g ← g · clip/norm
 *               t ← t + 1, the steps since the start or the last reset
 *               warm-up     lr ← lr · max(1e-3, ½(1 − cos(π t/warmup))), after a reset, t ≤ warmup
 *               reset       t = interval: t ← 0 after the step
 *
 * adamw         spike clipping, with t and v from before this step (v after a spike's 0.9):
 *               v̂ = v/(1 − β2^t), where v̂ > 0 and g² > θ v̂:              g ← sign(g) √(θ v̂)
 *               m ← β1 m + (1 − β1) g        v ← β2 v + (1 − β2) g²       v_max ← max(v_max, v)
 *               p ← p − lr · decay · p − lr · m/(1 − β1^t) / (√(v/(1 − β2^t)) + ε)
 *               with v_max in place of v where there is one; decay only with two dimensions or more;
 *               a tensor may have a factor on lr, though not on the decay's
 *               reset: m, v, v_max ← 0
 *
 * muon          of each matrix, in place of adamw (μ: the momentum):
 *               m ← μ m + g      Ĝ = g + μ m      X = Ĝ/(‖Ĝ‖_F + 1e-7)
 *               five times       A = X Xᵀ         X ← a X + (b A + c A²) X
 *               p ← p − lr · decay · p − lr · 0.2 √max(rows, columns) · X
 *               with more rows than columns A = Xᵀ X and X ← a X + X (b A + c A²): the same without
 *               a transposed copy. What is kept is Z = X/aᵏ after k rounds, so that a round is three
 *               products and nothing beside them: A = a²ᵏ Z Zᵀ, B = A + (c/b) A A, Z ← Z + (b/a) B Z.
 *
 * zero_masked   p ← 0 where its mask is 0, after all that
 *
 * The norm of a spike enters the history like any other, and a reset does not empty it. What
 * depends on t is computed in double, once a step, and reaches the update as a factor. */
#include "ops/optimizer.h"

#include "ops/define.h"
#include "ops/linear.h"

#include <math.h>

/* Room for a list that weft_graph_append copies. */
static weft_tensor **tensor_list(weft_graph *g, int64_t n) {
    return weft_graph_alloc(g, (size_t)n * sizeof(weft_tensor *));
}

static weft_status check_real(weft_graph *g, const weft_node *n, const char *what,
                              const weft_tensor *t, const weft_tensor *like) {
    if (t->dtype == like->dtype && (t->dtype == WEFT_F32 || t->dtype == WEFT_F64)) return WEFT_OK;
    return REFUSE("%s is %s beside %s; both must be f32, or both f64", what,
                  weft_tensor_describe(t), weft_tensor_describe(like));
}

/* What an operation writes must outlive the run: not a temporary. */
static weft_status check_written(weft_graph *g, const weft_node *n, const char *what,
                                 const weft_tensor *t) {
    if (t->role != WEFT_ROLE_TEMP) return WEFT_OK;
    return REFUSE("%s, %s, is made by an operation, so it cannot be updated", what,
                  weft_tensor_describe(t));
}

OPERATION(norm_parts, void, first) {
    int64_t chunks = 0;
    for (int i = 0; i < n->n_in; i++) {
        WEFT_TRY(weft_check_float(g, n, "a gradient", n->in[i]));
        chunks += (weft_tensor_count(n->in[i]) + WEFT_NORM_CHUNK - 1) / WEFT_NORM_CHUNK;
    }
    return weft_output_of(g, n, 0, WEFT_I32, chunks, 2);
}

weft_tensor *weft_norm_parts(weft_graph *g, weft_tensor *const *grads, int n) {
    weft_tensor **in = n > 0 ? tensor_list(g, n) : NULL;
    int count = 0;
    for (int i = 0; in && i < n; i++)
        if (grads[i]) in[count++] = grads[i];
    if (count == 0)
        return weft_graph_refuse(g, "norm_parts: there is no gradient to take the norm of");
    return weft_append_list(g, &weft_op_norm_parts, NULL, 0, count, count, in);
}

OPERATION(norm_join, weft_dtype, parts) {
    if (parts->dtype != WEFT_I32 || parts->ndim != 2 || parts->shape[1] != 2)
        return REFUSE("the sums are %s, but they must be i32 [chunks, 2]",
                      weft_tensor_describe(parts));
    weft_node_output(g, n, 0, *attr, 0, NULL);
    return check_real(g, n, "norm", n->out[0], n->out[0]);
}

DEFINE_APPEND_WITH(norm_join, (weft_tensor * parts, weft_dtype dtype), dtype, parts)

weft_tensor *weft_global_norm(weft_graph *g, weft_tensor *const *grads, int n) {
    weft_tensor *parts = weft_norm_parts(g, grads, n);
    return parts ? weft_norm_join(g, parts, weft_stat_dtype(parts->producer->in[0])) : NULL;
}

static weft_status check_range(weft_graph *g, const char *what, double value, double below) {
    if (value >= 0 && value < below) return WEFT_OK;
    return weft_graph_fail(g, "adam_control: %s is %g, but it must be at least 0 and below %g",
                           what, value, below);
}

OPERATION(adam_control, weft_adam_options, norm, .side_effect = true) {
    const weft_tensor *lr = n->in[1], *state = n->in[2];
    WEFT_TRY(check_range(g, "beta1", attr->beta1, 1));
    WEFT_TRY(check_range(g, "beta2", attr->beta2, 1));
    WEFT_TRY(check_range(g, "eps", attr->eps, HUGE_VAL));
    WEFT_TRY(check_range(g, "weight decay", attr->weight_decay, HUGE_VAL));
    WEFT_TRY(check_range(g, "clip", attr->clip, HUGE_VAL));
    WEFT_TRY(check_range(g, "spike threshold", attr->spike_threshold, HUGE_VAL));
    WEFT_TRY(check_range(g, "theta", attr->theta, HUGE_VAL));
    /* Beyond 2^24 an f32 could not count them. */
    WEFT_TRY(check_range(g, "reset interval", (double)attr->reset_interval, 0x1p24));
    WEFT_TRY(check_range(g, "warm-up", (double)attr->warmup_steps, 0x1p24));
    WEFT_TRY(check_real(g, n, "norm", norm, norm));
    WEFT_TRY(check_real(g, n, "lr", lr, norm));
    WEFT_TRY(check_real(g, n, "state", state, norm));
    for (int i = 0; i < 2; i++)
        if (weft_tensor_count(n->in[i]) != 1)
            return REFUSE("%s is %s, but it must be one number", i ? "lr" : "norm",
                          weft_tensor_describe(n->in[i]));
    WEFT_TRY(weft_check_dims(g, n, "state", state, WEFT_ADAM_STATE));
    WEFT_TRY(check_written(g, n, "state", state));
    return weft_output_of(g, n, 0, norm->dtype, WEFT_ADAM_CONTROL);
}

weft_tensor *weft_adam_control(weft_graph *g, weft_tensor *norm, weft_tensor *lr,
                               weft_tensor *state, const weft_adam_options *options) {
    weft_tensor *control =
        weft_append(g, &weft_op_adam_control, options, sizeof *options, norm, lr, state);
    return control ? weft_keep(control) : NULL;
}

static weft_status check_moment(weft_graph *g, const weft_node *n, const char *what,
                                const weft_tensor *t, const weft_tensor *param) {
    if (!t) return REFUSE("a parameter, %s, has no %s", weft_tensor_describe(param), what);
    WEFT_TRY(check_real(g, n, what, t, param));
    WEFT_TRY(weft_check_same(g, n, what, t, "its parameter", param));
    return check_written(g, n, what, t);
}

/* A bf16 tensor beside a parameter, where there is one. */
static weft_status check_half(weft_graph *g, const weft_node *n, const char *what,
                              const weft_tensor *t, const weft_tensor *param) {
    if (!t) return WEFT_OK;
    if (t->dtype != WEFT_BF16)
        return REFUSE("%s is %s, but it must be bf16", what, weft_tensor_describe(t));
    return weft_check_same(g, n, what, t, "its parameter", param);
}

OPERATION(adamw, void, control, .side_effect = true) {
    WEFT_TRY(check_real(g, n, "control", control, control));
    WEFT_TRY(weft_check_dims(g, n, "control", control, WEFT_ADAM_CONTROL));
    for (int i = 1; i < n->n_in; i += WEFT_SLOT_SIZE) {
        weft_tensor *const *slot = n->in + i;
        const weft_tensor *param = slot[WEFT_SLOT_PARAM], *grad = slot[WEFT_SLOT_GRAD];
        if (!param) return REFUSE("a slot has no parameter");
        WEFT_TRY(check_real(g, n, "a parameter", param, n->in[0]));
        WEFT_TRY(check_written(g, n, "a parameter", param));
        if (grad) {
            WEFT_TRY(weft_check_float(g, n, "a gradient", grad));
            WEFT_TRY(weft_check_same(g, n, "a gradient", grad, "its parameter", param));
        }
        WEFT_TRY(check_moment(g, n, "m", slot[WEFT_SLOT_M], param));
        WEFT_TRY(check_moment(g, n, "v", slot[WEFT_SLOT_V], param));
        if (slot[WEFT_SLOT_V_MAX])
            WEFT_TRY(check_moment(g, n, "v_max", slot[WEFT_SLOT_V_MAX], param));
        WEFT_TRY(check_half(g, n, "a copy", slot[WEFT_SLOT_COPY], param));
        if (slot[WEFT_SLOT_COPY]) WEFT_TRY(check_written(g, n, "a copy", slot[WEFT_SLOT_COPY]));
        WEFT_TRY(check_half(g, n, "a given parameter", slot[WEFT_SLOT_GIVEN], param));
    }
    return weft_output(g, n, 0, WEFT_I32, 0, NULL);
}

_Static_assert(offsetof(weft_adam_slot, given) == WEFT_SLOT_GIVEN * sizeof(weft_tensor *),
               "a slot begins with what the node reads of it");

weft_tensor *weft_adamw(weft_graph *g, weft_tensor *control, const weft_adam_slot *slots, int n) {
    if (n < 1) return weft_graph_refuse(g, "adamw: there is no parameter to update");
    int64_t most = 1 + (int64_t)n * WEFT_SLOT_SIZE;
    weft_tensor **in = most <= INT32_MAX ? tensor_list(g, most) : NULL;
    double *rates = weft_graph_alloc(g, (size_t)n * sizeof *rates);
    if (!in || !rates) return NULL;
    bool own = false;
    int count = 0;
    in[0] = control;
    for (int i = 0; i < n; i++) {
        if (slots[i].matrices.n) continue;
        weft_tensor **slot = in + 1 + (int64_t)count * WEFT_SLOT_SIZE;
        memcpy(slot, &slots[i], WEFT_SLOT_SIZE * sizeof *slot);
        rates[count] = slots[i].rate != 0 ? slots[i].rate : 1;
        own = own || rates[count] != 1;
        count++;
    }
    if (count == 0) return NULL;
    weft_node *node =
        weft_graph_append(g, &weft_op_adamw, in, 1 + count * WEFT_SLOT_SIZE, 1, 1,
                          own ? rates : NULL, own ? (size_t)count * sizeof *rates : 0);
    return node ? weft_keep(node->out[0]) : NULL;
}

/* Jordan et al. (2024): five rounds of this polynomial bring singular values near 1. */
static const double NEWTON_A = 3.4445, NEWTON_B = -4.7750, NEWTON_C = 2.0315;
enum { NEWTON_ROUNDS = 5 };

OPERATION(muon_direction, weft_muon_attr, control, .side_effect = true) {
    WEFT_TRY(weft_check_dims(g, n, "control", control, WEFT_ADAM_CONTROL));
    for (int i = 0; i < n->n_in - 1; i += WEFT_MUON_DIRECTION_SIZE) {
        const weft_tensor *grad = n->in[WEFT_MUON_GRAD + i], *m = n->in[WEFT_MUON_M + i];
        WEFT_TRY(check_moment(g, n, "m", m, m));
        WEFT_TRY(check_real(g, n, "m", m, control));
        WEFT_TRY(weft_check_float(g, n, "a gradient", grad));
        WEFT_TRY(weft_check_same(g, n, "a gradient", grad, "its momentum", m));
    }
    if (!(attr->momentum >= 0 && attr->momentum < 1))
        return weft_graph_fail(g, "muon: the momentum is %g, but it must be at least 0 and below 1",
                               attr->momentum);
    const weft_muon_piece *last = &attr->piece[attr->n - 1];
    return weft_output_of(g, n, 0, attr->dtype, last->at + last->count, attr->rows, attr->columns);
}

OPERATION(muon_step, void, control, .side_effect = true) {
    for (int i = 0; i < n->n_in - WEFT_MUON_PARAM; i += WEFT_MUON_STEP_SIZE) {
        const weft_tensor *param = n->in[WEFT_MUON_PARAM + i];
        WEFT_TRY(check_real(g, n, "a parameter", param, control));
        WEFT_TRY(check_written(g, n, "a parameter", param));
        WEFT_TRY(check_half(g, n, "a copy", n->in[WEFT_MUON_COPY + i], param));
        WEFT_TRY(check_half(g, n, "a given parameter", n->in[WEFT_MUON_GIVEN + i], param));
    }
    return WEFT_OK;
}

/* alpha · op(a) op(b) + addend, matrix by matrix. */
static weft_tensor *multiply(weft_graph *g, weft_tensor *a, weft_tensor *b, bool ta, bool tb,
                             double alpha, weft_tensor *addend) {
    weft_matmul_attr attr = {
        .form = WEFT_MATMUL_PLAIN, .ta = ta, .tb = tb, .alpha = alpha, .dtype = a->dtype};
    weft_tensor *in[WEFT_MATMUL_INPUTS] = {a, b, [WEFT_MATMUL_ADDEND] = addend};
    weft_node *n =
        weft_graph_append(g, &weft_op_matmul, in, WEFT_MATMUL_INPUTS, 2, 2, &attr, sizeof attr);
    return n ? n->out[0] : NULL;
}

weft_muon_options weft_muon_defaults(double momentum, bool remote) {
    return (weft_muon_options){momentum, remote, remote ? 64 << 20 : 1 << 20};
}

/* Matrices of one shape in a slot's tensors. */
typedef struct {
    const weft_adam_slot *slot;
    const weft_matrices *of;
} muon_part;

/* What updates n parts of one shape. */
static void append_together(weft_graph *g, weft_tensor *control, const muon_part *parts, int n,
                            const weft_muon_options *o, weft_dtype dtype) {
    const weft_matrices *p = parts->of;
    weft_muon_attr attr = {
        .rows = p->rows, .columns = p->columns, .momentum = o->momentum, .dtype = dtype, .n = n};
    weft_tensor *from[WEFT_MUON_GRAD + WEFT_MUON_PIECES * WEFT_MUON_DIRECTION_SIZE] = {control};
    weft_tensor *step[WEFT_MUON_PARAM + WEFT_MUON_PIECES * WEFT_MUON_STEP_SIZE] = {control};
    double longest = (double)(p->rows > p->columns ? p->rows : p->columns);
    double factor = 0.2 * sqrt(longest) * pow(NEWTON_A, NEWTON_ROUNDS);
    int64_t at = 0;
    for (int i = 0; i < n; at += parts[i++].of->count) {
        const weft_adam_slot *s = parts[i].slot;
        attr.piece[i] = (weft_muon_piece){parts[i].of->first, parts[i].of->count, at,
                                          factor * (s->rate != 0 ? s->rate : 1)};
        from[WEFT_MUON_GRAD + i * WEFT_MUON_DIRECTION_SIZE] = s->grad;
        from[WEFT_MUON_M + i * WEFT_MUON_DIRECTION_SIZE] = s->m;
        step[WEFT_MUON_PARAM + i * WEFT_MUON_STEP_SIZE] = s->param;
        step[WEFT_MUON_COPY + i * WEFT_MUON_STEP_SIZE] = s->copy;
        step[WEFT_MUON_GIVEN + i * WEFT_MUON_STEP_SIZE] = s->given;
    }
    int n_from = WEFT_MUON_GRAD + n * WEFT_MUON_DIRECTION_SIZE;
    weft_node *made =
        weft_graph_append(g, &weft_op_muon_direction, from, n_from, n_from, 1, &attr, sizeof attr);
    /* X/a⁵, orthogonalised. */
    weft_tensor *z = made ? made->out[0] : NULL;
    double grown = 1; /* a²ᵏ */
    for (int k = 0; z && k < NEWTON_ROUNDS; k++, grown *= NEWTON_A * NEWTON_A) {
        bool tall = z->shape[1] > z->shape[2];
        weft_tensor *a = multiply(g, z, z, tall, !tall, grown, NULL);
        weft_tensor *b = a ? multiply(g, a, a, false, false, NEWTON_C / NEWTON_B, a) : NULL;
        if (!b) return;
        z = multiply(g, tall ? z : b, tall ? b : z, false, false, NEWTON_B / NEWTON_A, z);
    }
    step[WEFT_MUON_X] = z;
    if (z)
        weft_graph_append(g, &weft_op_muon_step, step, WEFT_MUON_PARAM + n * WEFT_MUON_STEP_SIZE,
                          WEFT_MUON_PARAM, 0, &attr, sizeof attr);
}

/* Takes the first of `count` parts and those that go with it out of the list; returns how many. */
static int take_together(muon_part *parts, int count, int64_t most, int64_t size,
                         muon_part *taken) {
    const weft_matrices *like = parts->of;
    int64_t bytes = 0;
    int n = 0;
    for (int i = 0; i < count; i++) {
        const weft_matrices *p = parts[i].of;
        int64_t more = p->count * p->rows * p->columns * size;
        bool joins = i == 0 || (p->rows == like->rows && p->columns == like->columns &&
                                n < WEFT_MUON_PIECES && bytes + more <= most);
        if (joins) {
            taken[n++] = parts[i];
            bytes += more;
        } else {
            parts[i - n] = parts[i];
        }
    }
    return n;
}

void weft_muon(weft_graph *g, weft_tensor *control, const weft_adam_slot *slots, int n,
               const weft_muon_options *options) {
    muon_part taken[WEFT_MUON_PIECES];
    muon_part *parts = weft_graph_alloc(g, (size_t)n * WEFT_MUON_PARTS * sizeof *parts + 1);
    int count = 0;
    if (!parts || !control) return;
    for (int i = 0; i < n; i++) {
        const weft_adam_slot *s = &slots[i];
        const weft_muon_parts *m = &s->matrices;
        int64_t at = 0;
        bool fit = s->param && m->n <= WEFT_MUON_PARTS;
        for (int k = 0; fit && k < m->n; k++) {
            const weft_matrices *p = &m->part[k];
            fit = p->first == at && p->count > 0 && p->rows > 0 && p->columns > 0;
            at += p->count * p->rows * p->columns;
            parts[count++] = (muon_part){s, p};
        }
        if (m->n && (!fit || at != weft_tensor_count(s->param))) {
            weft_graph_fail(g, "muon: %s is not filled by the matrices that are named",
                            s->param ? weft_tensor_describe(s->param)
                                     : "a slot without a parameter");
            return;
        }
    }
    weft_dtype dtype = options->narrow && control->dtype == WEFT_F32 ? WEFT_BF16 : control->dtype;
    for (int joined; count > 0; count -= joined) {
        joined =
            take_together(parts, count, options->together, (int64_t)weft_dtype_size(dtype), taken);
        append_together(g, control, taken, joined, options, dtype);
    }
}

OPERATION(zero_masked, void, first, .side_effect = true) {
    for (int i = 0; i < n->n_in; i += WEFT_MASKED_SIZE) {
        const weft_tensor *param = n->in[i + WEFT_MASKED_PARAM],
                          *mask = n->in[i + WEFT_MASKED_MASK];
        WEFT_TRY(check_real(g, n, "a parameter", param, n->in[WEFT_MASKED_PARAM]));
        WEFT_TRY(check_written(g, n, "a parameter", param));
        WEFT_TRY(check_half(g, n, "a copy", n->in[i + WEFT_MASKED_COPY], param));
        WEFT_TRY(weft_check_same(g, n, "a mask", mask, "its parameter", param));
        if (mask->dtype != WEFT_I8)
            return REFUSE("a mask is %s, but it must be i8", weft_tensor_describe(mask));
    }
    return WEFT_OK;
}

void weft_zero_masked(weft_graph *g, const weft_adam_slot *slots, int n) {
    int count = 0;
    weft_tensor **in = tensor_list(g, (int64_t)n * WEFT_MASKED_SIZE + 1);
    for (int i = 0; in && i < n; i++) {
        if (!slots[i].mask) continue;
        in[count + WEFT_MASKED_PARAM] = slots[i].param;
        in[count + WEFT_MASKED_COPY] = slots[i].copy;
        in[count + WEFT_MASKED_MASK] = slots[i].mask;
        count += WEFT_MASKED_SIZE;
    }
    if (count > 0) weft_graph_append(g, &weft_op_zero_masked, in, count, 1, 0, NULL, 0);
}
