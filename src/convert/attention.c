/* Another attention in place of dot's: dot's weights taken apart, MLA's and W2's made of them, and the rest
 * of the model carried over. */
#include "convert/attention.h"

#include "base/progress.h"
#include "base/random.h"
#include "convert/measure.h"
#include "model/builder.h"
#include "model/units.h"

/* A layer's dot attention, as doubles in one malloc'd piece; n = KV_HEADS · D. */
typedef struct {
    double *all;
    double *q, *k, *v;    /* [H D, E], [n, E], [n, E] */
    double *bq, *bk, *bv; /* [H D], [n], [n]; zeros where it has none */
    double *out, *b_out;  /* [E, H D], [E] */
} dot_layer;

/* Refuses a model whose attention is not dot; `what` is the option in the message. `normed`: queries and keys of
 * each head may be. */
static weft_status check_dot(const weft_model *m, const char *what, bool normed) {
    const weft_config *c = &m->config;
    if (c->attention != WEFT_ATTENTION_DOT)
        return WEFT_BAD_INPUT("%s starts from CONFIG_ATTENTION=\"dot\"; this model has \"%s\"",
                              what, weft_config_word(c, WEFT_OPTION(attention)));
    const weft_mix mixes[] = {
        {c->mup, "not of a model with {MUP}, whose scores and logits have scales of their own"},
        {c->qk_norm && !normed, "not of a model with {QK_NORM}, whose queries and keys are not "
                                "linear in what they are made from"},
        {c->qk_norm && c->qk_norm_whole, "not of a model with {QK_NORM_WHOLE}, whose queries and "
                                         "keys are not linear in what they are made from"},
        {c->attention_scale > 0, "not of a model with {ATTENTION_SCALE}, which only dot has"},
        {c->kv_share > 1, "not of a model with {KV_SHARE}, some of whose layers have no keys"},
    };
    return WEFT_REFUSE(c, what, mixes);
}

static void end_dot(dot_layer *dot) {
    free(dot->all);
}

static weft_status read_dot(const weft_model *m, int64_t layer, dot_layer *out) {
    const weft_config *c = &m->config;
    int64_t e = c->n_embd, n = weft_config_kv_heads(c) * weft_config_head_dim(c);
    int64_t inner = c->n_head * weft_config_head_dim(c);
    const weft_weight *qkv = weft_layer_weight(m, layer, "attn.qkv.weight");
    const weft_weight *bias = weft_layer_weight(m, layer, "attn.qkv.bias");
    const weft_weight *to = weft_layer_weight(m, layer, "attn.out.weight");
    const weft_weight *to_bias = weft_layer_weight(m, layer, "attn.out.bias");
    *out = (dot_layer){0};
    if (!qkv || !to) return weft_fail(WEFT_EBUG, "convert: a layer without attention");
    WEFT_ROOM_AT(out->all, (inner + 2 * n) * (e + 1) + e * (inner + 1),
                 "convert: no memory for a layer");
    out->q = out->all;
    out->k = out->q + inner * e;
    out->v = out->k + n * e;
    out->bq = out->v + n * e;
    out->bk = out->bq + inner;
    out->bv = out->bk + n;
    out->out = out->bv + n;
    out->b_out = out->out + e * inner;
    weft_weight_read(qkv, out->q);
    weft_weight_read(to, out->out);
    if (bias) weft_weight_read(bias, out->bq);
    if (to_bias) weft_weight_read(to_bias, out->b_out);
    return WEFT_OK;
}

/* Fills a layer's weight where the model has it. */
static void write_weight(weft_model *out, int64_t layer, const char *name, const double *values) {
    weft_weight *w = weft_layer_weight(out, layer, name);
    if (w) weft_weight_write(w, values);
}

/* A model of another config with the weights that both have, for others to be written. */
static weft_status model_with(const weft_model *m, const weft_config *c, weft_model **out) {
    WEFT_TRY(weft_model_check(c, "convert"));
    WEFT_TRY(weft_mirror_use(m->mirror, NULL));
    WEFT_TRY(weft_model_create(c, m->dtype, NULL, out));
    for (weft_weight *w = (*out)->weights; w < (*out)->weights + (*out)->n_weights; w++) {
        const weft_weight *from = weft_model_find(m, w->name);
        if (from && from->bytes == w->bytes && from->dtype == w->dtype)
            memcpy(w->data, from->data, (size_t)w->bytes);
    }
    return WEFT_OK;
}

/* From dot to MLA. All heads' keys of a layer are k = W x, W [n, E]. With the n directions u_i of
 * their second moments E[k kᵀ] = W M Wᵀ, M = E[x xᵀ], the L strongest are kept:
 *
 *     c = U_Lᵀ W x        k ≈ U_L c
 *
 * which among all maps of rank L loses least of E‖k‖². That is the truncated singular value
 * decomposition of W M^½ with its factors folded together: nothing is inverted, and with L = n it is
 * exact, since then U Uᵀ = 1. Without a text M = 1, and it is the decomposition of W itself. Values
 * go the same way. For a joint latent keys and values are stacked, each divided by its own size, so
 * that neither is lost for the other.
 *
 * MLA divides scores by √L where dot has √D, so A_h = √(L/D) times its head's rows of U; with a rotated part
 * of R columns by √(D + R). A key's bias adds the same number to all scores of a query and drops out; that of the values is seen by every
 * token whole, since weights sum to 1, and goes through W_o into the output's bias. */

/* y [n, n] = W M Wᵀ; M NULL: 1. `room` [n, e]. Returns the sum of its diagonal. */
static double multiply_moments(const double *w, const double *moments, int64_t n, int64_t e,
                               double *room, double *y) {
    if (moments)
        weft_times_moments(w, n, e, moments, room);
    else
        memcpy(room, w, (size_t)(n * e) * sizeof *room);
    double diagonal = 0;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j <= i; j++) {
            double sum = 0;
            for (int64_t k = 0; k < e; k++)
                sum += room[i * e + k] * w[j * e + k];
            y[i * n + j] = y[j * n + i] = sum;
        }
        diagonal += y[i * n + i];
    }
    return diagonal;
}

/* The directions of some rows W [n, E]. */
typedef struct {
    int64_t n, e, latent;
    double *w;      /* [n, E] */
    double *scale;  /* [n]: what each row was divided by */
    double *gram;   /* [n, n]: W M Wᵀ of the undivided rows */
    double *values; /* [n] */
    double *u;      /* [n, n]: row i is the direction i */
    double *down;   /* [L, E]: U_Lᵀ W */
    double *room;   /* [n, max(n, E)] */
} directions;

/* Rows first .. first + n - 1 divided by the root of their mean squares in sum. */
static void balance(directions *d, int64_t first, int64_t n) {
    double sum = 0;
    for (int64_t i = first; i < first + n; i++)
        sum += d->gram[i * d->n + i];
    for (int64_t i = first; i < first + n; i++)
        d->scale[i] = sum > 0 ? sqrt(sum) : 1;
}

/* Finds U and U_Lᵀ W of the divided rows; `scale` and `w` are set, and `gram` is of the rows. */
static weft_status find_directions(directions *d) {
    double *a = d->room;
    for (int64_t i = 0; i < d->n; i++)
        for (int64_t j = 0; j < d->n; j++)
            a[i * d->n + j] = d->gram[i * d->n + j] / (d->scale[i] * d->scale[j]);
    WEFT_TRY(weft_spectrum(a, d->n, d->values, d->u));
    memset(d->down, 0, (size_t)(d->latent * d->e) * sizeof *d->down);
    for (int64_t l = 0; l < d->latent; l++)
        for (int64_t i = 0; i < d->n; i++)
            for (int64_t j = 0; j < d->e; j++)
                d->down[l * d->e + j] += d->u[l * d->n + i] / d->scale[i] * d->w[i * d->e + j];
    return WEFT_OK;
}

/* Row i of the kept rows is Σ_l up(i, l) c_l. */
static double up(const directions *d, int64_t i, int64_t l) {
    return d->u[l * d->n + i] * d->scale[i];
}

/* The root of the lost share of rows first .. first + n - 1: their moments are G, and those of what is
 * left U_L U_Lᵀ applied on both sides. */
static double lost(const directions *d, int64_t first, int64_t n) {
    double all = 0, left = 0;
    for (int64_t i = first; i < first + n; i++) {
        double row = d->gram[i * d->n + i], kept = 0;
        /* E[(k_i − k̂_i)²] = G_ii − Σ_l λ_l up(i, l)², since U's rows are eigenvectors. */
        for (int64_t l = 0; l < d->latent; l++)
            kept += d->values[l] * up(d, i, l) * up(d, i, l);
        all += row;
        left += row - kept;
    }
    return all > 0 && left > 0 ? sqrt(left / all) : 0;
}

/* A conversion of a model: the sizes that both kinds need, then what is MLA's and what is W2's. */
typedef struct {
    const weft_model *from;
    weft_model *to;
    int64_t e, n, heads, kv, width; /* E, KV · D, H, KV, D */
    const weft_mla_options *options;
    weft_rotated rotated; /* kept 0: nothing rotates */
    double factor;        /* of queries, for MLA's scale in place of dot's */
    uint64_t seed;
    double spread; /* a */
} conversion;

static conversion conversion_of(const weft_model *m) {
    const weft_config *c = &m->config;
    int64_t kv = weft_config_kv_heads(c), width = weft_config_head_dim(c);
    return (conversion){
        .from = m, .e = c->n_embd, .n = kv * width, .heads = c->n_head, .kv = kv, .width = width};
}

/* A [H, D, L] from the rows of U that start at `first`, times a factor; U [H, L, D] where `transposed`. */
static weft_status write_maps(const conversion *v, int64_t layer, const char *name,
                              const directions *d, int64_t first, double factor, bool transposed) {
    int64_t latent = d->latent, width = v->width;
    WEFT_ROOM(double, map, (v->heads * width * latent), "convert: no memory for a layer's maps");
    for (int64_t h = 0; h < v->heads; h++)
        for (int64_t i = 0; i < width; i++)
            for (int64_t l = 0; l < latent; l++) {
                int64_t row = first + h * v->kv / v->heads * width + i;
                int64_t at =
                    transposed ? (h * latent + l) * width + i : (h * width + i) * latent + l;
                map[at] = factor * up(d, row, l);
            }
    write_weight(v->to, layer, name, map);
    return WEFT_OK;
}

static const double *moments_of(const conversion *v, int64_t layer) {
    const double *all = v->options->moments;
    return all ? all + layer * v->e * v->e : NULL;
}

/* Writes the rotated part, and leaves in `dot` the keys without it; *left is their share of the mean square. */
static weft_status take_rotated(const conversion *v, int64_t layer, dot_layer *dot, directions *d,
                                double *left) {
    const weft_rotated *f = &v->rotated;
    const double *moments = moments_of(v, layer);
    int64_t e = v->e, inner = v->heads * v->width, rows = v->heads * f->kept;
    *left = 1;
    if (!f->kept) return WEFT_OK;
    WEFT_ROOM(double, room, (rows + f->kept) * (e + 1) + inner,
              "convert: no memory for a layer's rotated part");
    weft_rotated_rows all = {dot->q, dot->k, dot->bq, dot->bk}, part = {.q = room};
    part.k = part.q + rows * e;
    part.bq = part.k + f->kept * e;
    part.bk = part.bq + rows;
    double *squares = part.bk + f->kept;
    WEFT_TRY(weft_rotated_squares(dot->q, inner, e, moments, squares));
    double before = multiply_moments(dot->k, moments, v->n, e, d->room, d->gram);
    WEFT_TRY(weft_rotated_split(f, &all, d->gram, squares, &part));
    double behind = multiply_moments(dot->k, moments, v->n, e, d->room, d->gram);
    *left = before > 0 ? behind / before : 0;
    for (int64_t i = 0; i < rows * e; i++)
        part.q[i] *= v->factor;
    for (int64_t i = 0; i < rows; i++)
        part.bq[i] *= v->factor;
    write_weight(v->to, layer, "attn.q_rope.weight", part.q);
    write_weight(v->to, layer, "attn.q_rope.bias", part.bq);
    write_weight(v->to, layer, "attn.k_rope.weight", part.k);
    write_weight(v->to, layer, "attn.k_rope.bias", part.bk);
    return WEFT_OK;
}

static weft_status convert_to_mla(const conversion *v, int64_t layer, directions *d,
                                  weft_latent_error *error) {
    WEFT_AUTO(end_dot) dot_layer dot = {0};
    double left;
    WEFT_TRY(read_dot(v->from, layer, &dot));
    WEFT_TRY(take_rotated(v, layer, &dot, d, &left));
    /* The keys and the values, each with a latent of its own, or with one. */
    bool joint = v->options->joint;
    for (int part = 0; part < (joint ? 1 : 2); part++) {
        /* the values follow the keys */
        memcpy(d->w, part ? dot.v : dot.k, (size_t)(d->n * v->e) * sizeof *d->w);
        multiply_moments(d->w, moments_of(v, layer), d->n, d->e, d->room, d->gram);
        for (int64_t i = 0; i < d->n; i++)
            d->scale[i] = 1;
        if (joint) balance(d, 0, v->n);
        if (joint) balance(d, v->n, v->n);
        WEFT_TRY(find_directions(d));
        write_weight(v->to, layer, part ? "attn.v_down.weight" : "attn.k_down.weight", d->down);
        if (!part) WEFT_TRY(write_maps(v, layer, "attn.q_latent", d, 0, v->factor, false));
        if (!part) error->keys = lost(d, 0, v->n);
        if (!part && !joint) continue;
        int64_t first = joint ? v->n : 0;
        WEFT_TRY(write_maps(v, layer, "attn.v_up", d, first, 1, true));
        error->values = lost(d, first, v->n);
    }
    error->keys *= sqrt(left);
    error->positions = v->rotated.kept ? sqrt(left) : 0;
    write_weight(v->to, layer, "attn.q.weight", dot.q);
    write_weight(v->to, layer, "attn.q.bias", dot.bq);
    /* b_out + W_o b_v, each head having the values of its group. */
    for (int64_t i = 0; i < v->e; i++)
        for (int64_t h = 0; h < v->heads; h++)
            for (int64_t j = 0; j < v->width; j++)
                dot.b_out[i] += dot.out[(i * v->heads + h) * v->width + j] *
                                dot.bv[h * v->kv / v->heads * v->width + j];
    write_weight(v->to, layer, "attn.out.bias", dot.b_out);
    return WEFT_OK;
}

static weft_status check_mla(const weft_model *m, const weft_mla_options *o) {
    const weft_config *c = &m->config;
    int64_t n = weft_config_kv_heads(c) * weft_config_head_dim(c);
    int64_t most = o->joint || n > c->n_embd ? c->n_embd : n;
    int64_t rotated =
        c->position == WEFT_POSITION_ROPE ? rotated_width(c, weft_config_head_dim(c)) : 0;
    WEFT_TRY(check_dot(m, "--to-mla", false));
    if (o->rope % 2 || o->rope > rotated)
        return WEFT_BAD_INPUT("--rope %lld: of a head's columns this model rotates %lld; take an "
                              "even number up to that",
                              (long long)o->rope, (long long)rotated);
    if (o->latent <= most) return WEFT_OK;
    return WEFT_BAD_INPUT(
        "--latent %lld: a layer's keys have %lld dimensions; more would hold nothing",
        (long long)o->latent, (long long)most);
}

/* How the rotated part is made; the stride by what all layers' scores owe each pair. */
static weft_status choose_rotated(conversion *v) {
    const weft_config *c = &v->from->config;
    weft_rotated *f = &v->rotated;
    if (c->position != WEFT_POSITION_ROPE) return WEFT_OK;
    *f = (weft_rotated){v->e,
                        v->heads,
                        v->kv,
                        v->width,
                        .columns = rotated_width(c, v->width),
                        .law = rope_law_of(c, 0)};
    f->kept = v->options->rope ? v->options->rope : f->columns;
    int64_t inner = v->heads * v->width;
    WEFT_ROOM(double, pairs, f->columns + inner + v->n, "convert: no memory");
    double *q = pairs + f->columns, *k = q + inner;
    for (int64_t l = 0; f->kept < f->columns && l < c->n_layer; l++) {
        WEFT_AUTO(end_dot) dot_layer dot = {0};
        WEFT_TRY(read_dot(v->from, l, &dot));
        WEFT_TRY(weft_rotated_squares(dot.q, inner, v->e, moments_of(v, l), q));
        WEFT_TRY(weft_rotated_squares(dot.k, v->n, v->e, moments_of(v, l), k));
        weft_rotated_weigh(f, q, k, pairs);
    }
    f->stride = weft_rotated_stride(f, pairs);
    return WEFT_OK;
}

weft_status weft_convert_to_mla(const weft_model *m, const weft_mla_options *options,
                                weft_model **out, weft_latent_error *errors) {
    *out = NULL;
    WEFT_TRY(check_mla(m, options));
    weft_config c = m->config;
    bool biased =
        weft_model_find(m, "h.0.attn.qkv.bias") || weft_model_find(m, "h.0.attn.out.bias");
    c.attention = WEFT_ATTENTION_MLA;
    c.attention_bias = biased ? WEFT_ATTENTION_BIAS_ALL : WEFT_ATTENTION_BIAS_NONE;
    c.kv_heads = 0;
    c.ra_mla_latent_dim = options->latent;
    c.ra_mla_joint_kv = options->joint;
    conversion v = conversion_of(m);
    v.options = options;
    WEFT_TRY(weft_mirror_use(m->mirror, NULL));
    WEFT_TRY(choose_rotated(&v));
    if (v.rotated.kept) { /* its frequencies are those of the pairs that it keeps */
        c.position = WEFT_POSITION_NONE;
        c.rope_dim = 0;
        c.ra_mla_rope_dim = v.rotated.kept;
        c.rope_theta = weft_rotated_base(&v.rotated, v.rotated.stride);
    }
    int64_t scored = v.rotated.kept ? v.width + v.rotated.kept : options->latent;
    v.factor = sqrt((double)scored / (double)v.width);
    WEFT_AUTO(weft_model_destroy_at) weft_model *to = NULL;
    WEFT_TRY(model_with(m, &c, &to));
    v.to = to;
    int64_t n = options->joint ? 2 * v.n : v.n, e = v.e, wide = n > e ? n : e;
    WEFT_ROOM(double, w, n *e + 2 * n + 2 * n * n + options->latent * e + n * wide,
              "convert: no memory for a layer's keys");
    directions d = {.n = n, .e = e, .latent = options->latent, .w = w};
    d.scale = d.w + n * e;
    d.values = d.scale + n;
    d.gram = d.values + n;
    d.u = d.gram + n * n;
    d.down = d.u + n * n;
    d.room = d.down + d.latent * e;
    weft_status status = WEFT_OK;
    weft_progress *bar = NULL; /* on a terminal: seconds per layer at GPT-2's size */
    if (isatty(STDERR_FILENO))
        bar = weft_progress_begin(
            &(weft_progress_options){.label = "convert", .unit = "layers", .total = c.n_layer});
    for (int64_t l = 0; status == WEFT_OK && l < c.n_layer; l++) {
        status = convert_to_mla(&v, l, &d, &errors[l]);
        weft_progress_update(bar, l + 1, NULL);
    }
    weft_progress_end(bar, false);
    weft_mirror_wrote(to->mirror, NULL);
    return status == WEFT_OK ? weft_hand(&to, out) : status;
}

/* From dot to W2. With means a q and k/a, equal deviations and τ = 2√D,
 *
 *     −‖a q − k/a‖²/τ = ⟨q, k⟩/√D − ‖k‖²/(2√D a²) − (a number of the query alone, which drops out)
 *
 * so the scores are dot's but for one number per key, and that falls with the square of a. Where both
 * deviations are the same constant, their distance has no gradient: a little noise in their maps gives
 * it one. */

/* The noise's standard deviation times a: at a = 4 a tenth of a fresh model's, and less where scores are to
 * be closer to dot's. */
static const double NOISE = 0.008;

/* The maps of `heads` heads: of each D rows of means from `rows` times a factor, then D rows of noise. */
static weft_status write_gaussian(const conversion *v, int64_t layer, const char *name,
                                  const double *rows, const double *bias, int64_t heads,
                                  double factor) {
    int64_t e = v->e, d = v->width, count = 2 * heads * d * e;
    char weight[32], bias_name[32], site[64];
    WEFT_ROOM(double, map, count + 2 * heads * d, "convert: no memory for a layer's maps");
    double *shift = map + count;
    snprintf(weight, sizeof weight, "attn.%s.weight", name);
    snprintf(bias_name, sizeof bias_name, "attn.%s.bias", name);
    snprintf(site, sizeof site, "h.%lld.%s", (long long)layer, weight);
    weft_random_normal(v->seed, 0, weft_random_site(site), 0, count, map);
    memset(shift, 0, (size_t)(2 * heads * d) * sizeof *shift);
    for (int64_t i = 0; i < count; i++)
        map[i] *= NOISE / v->spread;
    for (int64_t from = 0; from < heads * d; from++) {
        int64_t to = from / d * 2 * d + from % d;
        for (int64_t j = 0; j < e; j++)
            map[to * e + j] = factor * rows[from * e + j];
        shift[to] = factor * bias[from];
    }
    write_weight(v->to, layer, weight, map);
    write_weight(v->to, layer, bias_name, shift);
    return WEFT_OK;
}

weft_status weft_convert_to_w2(const weft_model *m, double spread, uint64_t seed,
                               weft_model **out) {
    *out = NULL;
    WEFT_TRY(check_dot(m, "--to-w2", true));
    weft_config c = m->config;
    bool biased = weft_model_find(m, "h.0.attn.qkv.bias"),
         all = weft_model_find(m, "h.0.attn.out.bias");
    c.attention = WEFT_ATTENTION_W2;
    c.attention_bias = all      ? WEFT_ATTENTION_BIAS_ALL
                       : biased ? WEFT_ATTENTION_BIAS_QKV
                                : WEFT_ATTENTION_BIAS_NONE;
    c.w2_kernel = WEFT_KERNEL_W2;
    c.w2_tau = 0;
    c.w2_sigma_dim = 0;
    c.w2_tau_learned = true;
    WEFT_AUTO(weft_model_destroy_at) weft_model *to = NULL;
    WEFT_TRY(model_with(m, &c, &to));
    conversion v = conversion_of(m);
    v.to = to;
    v.seed = seed;
    v.spread = spread;
    for (int64_t l = 0; l < c.n_layer; l++) {
        WEFT_AUTO(end_dot) dot_layer dot = {0};
        double log_tau[1024];
        double factor = c.qk_norm ? 1 : spread;
        WEFT_TRY(read_dot(m, l, &dot));
        WEFT_TRY(write_gaussian(&v, l, "q", dot.q, dot.bq, v.heads, factor));
        WEFT_TRY(write_gaussian(&v, l, "k", dot.k, dot.bk, v.kv, 1 / factor));
        /* Normed means take it from the gains. */
        if (c.qk_norm) weft_weight_scale(weft_layer_weight(to, l, "attn.q_norm.weight"), spread);
        if (c.qk_norm)
            weft_weight_scale(weft_layer_weight(to, l, "attn.k_norm.weight"), 1 / spread);
        write_weight(to, l, "attn.v.weight", dot.v);
        write_weight(to, l, "attn.v.bias", dot.bv);
        for (int64_t h = 0; h < v.heads; h++)
            log_tau[h] = log(2 * sqrt((double)v.width));
        write_weight(to, l, "attn.log_tau", log_tau);
    }
    weft_mirror_wrote(to->mirror, NULL);
    return weft_hand(&to, out);
}

weft_status weft_convert_add_word(const weft_config *was, const char *word, size_t n,
                                  weft_config *c, bool *w2) {
    static const char *const words[] = {"gate", "cross", "latent", "output-gate", "wsffn", "w2"};
    enum { GATE, CROSS, LATENT, OUTPUT_GATE, WSFFN, W2, WORDS };
    const bool there[] = {was->attn_gate,
                          was->cross_token,
                          was->latent_recip,
                          was->attention_gate != WEFT_ATTENTION_GATE_NONE,
                          was->ffn == WEFT_FFN_WSFFN,
                          was->attention == WEFT_ATTENTION_W2};
    int i = 0;
    while (i < WORDS && (strlen(words[i]) != n || strncmp(words[i], word, n) != 0))
        i++;
    if (i == WORDS)
        return WEFT_BAD_INPUT("--add %.*s: must be some of gate, cross, latent, output-gate, "
                              "wsffn, w2, separated by commas",
                              (int)n, word);
    if (there[i]) return WEFT_BAD_INPUT("--add %s: the model has it already", words[i]);
    if (i == WSFFN && was->ffn != WEFT_FFN_SWIGLU)
        return WEFT_BAD_INPUT(
            "--add wsffn starts from CONFIG_FFN=\"swiglu\"; this model has \"%s\"",
            weft_config_word(was, WEFT_OPTION(ffn)));
    c->attn_gate = c->attn_gate || i == GATE;
    c->cross_token = c->cross_token || i == CROSS;
    c->latent_recip = c->latent_recip || i == LATENT;
    if (i == OUTPUT_GATE) c->attention_gate = WEFT_ATTENTION_GATE_HEAD;
    if (i == WSFFN) c->ffn = WEFT_FFN_WSFFN;
    *w2 = *w2 || i == W2;
    return WEFT_OK;
}
