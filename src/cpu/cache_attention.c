/* Attention of one query for each row over the pages of its sequence (FlashDecoding's split of the
 * keys, with the splits at fixed positions).
 *
 * A task is rows of one sequence whose positions follow each other, one block of WEFT_KEY_BLOCK keys and all
 * key heads, or some where there are few blocks, with the query heads that share them: their scores, the
 * largest of them, the sum of the exponentials and the weighted sum of the values (`attend`). What is read
 * of a key serves all rows of a prompt, or of a draft, that see it. A row's blocks are joined afterwards in
 * their order. Where a block begins follows from the position alone, and no sum crosses rows, so a row's
 * bits depend neither on the rows beside it nor on the threads.
 *
 * Keys and values of a narrow type go by the instructions made for it, where the processor has them
 * (cache_attention_arm.h, cache_attention_x86.h), others by plain vector code. Keys that are stored as a
 * latent (rotated, or made into a Gaussian, when they are read) are first written out for the block; the
 * products then read that copy. */
#include "ops/cache.h"

#include "cpu/attention_exp.h"
#include "cpu/bytes.h"
#include "cpu/cache_attention_scores.h"

#if BYTES_ARM
#include "cpu/cache_attention_arm.h"
#elif BYTES_X86
#include "cpu/cache_attention_x86.h"
#else
static const attend_way *narrow_way(UNUSED const weft_cache_part *part, UNUSED int64_t group,
                                    UNUSED bool several) {
    return NULL;
}
#endif

/* Scores to exponentials under the largest; that one, and their sum. */
static void exponentials(real *s, int64_t count, real *largest, real *sum) {
    vreal most[4];
    int64_t j = 0;
    for (int v = 0; v < 4; v++)
        most[v] = vset(s[0]);
    for (; j + 4 * VLEN <= count; j += 4 * VLEN)
        for (int v = 0; v < 4; v++)
            most[v] = vmax(most[v], vload(s + j + v * VLEN));
    real top = vmax_lane(vmax(vmax(most[0], most[1]), vmax(most[2], most[3])));
    for (; j < count; j++)
        top = s[j] > top ? s[j] : top;
    vreal tops[2] = {vset(top), vset(top)}, totals[2] = {vset(0), vset(0)};
    j = softmax_many(s, count / (2 * VLEN), tops, totals) * 2 * VLEN;
    vreal total = totals[0] + totals[1];
    for (; j + VLEN <= count; j += VLEN) {
        vreal e = vexp2_low(vload(s + j) - tops[0]);
        vstore(s + j, e);
        total += e;
    }
    if (j < count) {
        vreal e = vexp2_low(vload_part(s + j, count - j) - tops[0]);
        vstore_part(s + j, e, count - j);
        total += vload_part(s + j, count - j);
    }
    *largest = top;
    *sum = vsum(total);
}

/* Zeros beside [lead, end), up to multiples of NARROW_EDGE. */
static inline void clear_edges(real *x, int64_t lead, int64_t end) {
    for (int64_t j = lead & -NARROW_EDGE; j < lead; j++)
        x[j] = 0;
    for (int64_t j = end; j % NARROW_EDGE != 0; j++)
        x[j] = 0;
}

/* What a block leaves of the first head of a row and key head g; the next head's is `out_step` behind. */
static int64_t out_step(const attend_run *a) {
    return a->blocks * (a->dv + 2);
}

static real *out_of(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    int64_t block = b->base / BLOCK - first_seen(a, b->row) / BLOCK;
    return a->partial + (b->row * a->heads + g * a->group) * out_step(a) + block * (a->dv + 2);
}

/* Raw products of a row's group to weights, and what joins the blocks: the largest score and the sum. */
static void softmax_row(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    int64_t lead = b->first - b->base, count = b->end - b->first, i = a->places.position[b->row];
    if (a->attr->band) add_band(b, g);
    for (int64_t h = 0; h < a->group; h++) {
        int64_t head = g * a->group + h, seen = b->first - first_seen(a, b->row);
        real *row = scores_of(b, g) + h * BLOCK + lead, *out = out_of(b, g) + h * out_step(a);
        finish_scores(a, i, head, b->first, count, row, numbers_of(b, g) + lead);
        if (a->scores)
            memcpy(a->scores + (b->row * a->heads + head) * a->attr->context + seen, row,
                   (size_t)count * sizeof(real));
        exponentials(row, count, out + a->dv, out + a->dv + 1);
    }
    if (b->value_way->weights) {
        int64_t end = b->end - b->base, from = lead & -NARROW_EDGE;
        for (int64_t h = 0; h < b->lines; h++)
            clear_edges(scores_of(b, g) + h * BLOCK, lead, end);
        if (a->values.kind == CACHED_I8) clear_edges(b->s->scales, lead, end);
        for (int64_t j = b->first, n; a->values.kind == CACHED_I8 && j < b->end; j += n) {
            page_run run = run_at(b, &a->values, j, b->end);
            n = run.end - run.token;
            memcpy(b->s->scales + run.at + run.token, scale_at(&a->values, run.page, g, run.token),
                   (size_t)n * sizeof(real));
        }
        b->value_way->weights(b, g, from, ceil_div(end - from, NARROW_EDGE) * NARROW_EDGE);
    }
}

static void add_plain(const block_task *b, const page_run *runs, int n, int64_t g) {
    const attend_run *a = b->a;
    const cached_pages *c = &a->values;
    plain_shape shape = {b->lines, a->dv, c->token_bytes, c->kind};
    for (const page_run *run = runs; run < runs + n; run++)
        BY_KIND(c->kind, plain_add, &shape, scores_of(b, g) + run->at + run->token,
                head_at(c, run->page, g) + run->token * c->token_bytes,
                c->kind == CACHED_I8 ? scale_at(c, run->page, g, run->token) : NULL,
                run->end - run->token, sums_of(b, g), 2 * a->dv);
}

/* Whatever a part's type, and where no instructions are made for it. */
static const attend_way plain = {.score = score_plain, .add = add_plain};

/* The way of keys or values, of one line or of several. */
static const attend_way *way_of(const weft_node *n, bool values, bool several) {
    const weft_cache_attention_attr *attr = n->attr;
    const weft_cache_part *part = values && n->in[WEFT_CACHE_VALUES] ? &attr->value : &attr->key;
    const attend_way *way = NULL;
    if (values || !copies_keys(attr))
        way = narrow_way(part, attr->heads / attr->key.heads, several);
    return way ? way : &plain;
}

/* The weighted values of keys [j, end), by pages that end where a multiple of them does. */
static void add_keys(const block_task *b, int64_t j, int64_t end) {
    const int64_t most = b->lines == 1 ? WEFT_PAGE_TOKENS : PAGES_TOGETHER * WEFT_PAGE_TOKENS;
    while (j < end) {
        page_run runs[PAGES_TOGETHER];
        int n = 0;
        do {
            runs[n] = run_at(b, &b->a->values, j, end);
            j += runs[n].end - runs[n].token;
            n++;
        } while (j < end && j % most != 0);
        for (int64_t g = b->from; g < b->to; g++)
            b->value_way->add(b, runs, n, g);
    }
}

static void finish_row(const block_task *b, int64_t g) {
    const attend_run *a = b->a;
    for (int64_t h = 0; h < a->group; h++) {
        real *to = out_of(b, g) + h * out_step(a);
        if (b->value_way->finish)
            b->value_way->finish(b, g, h, to);
        else
            memcpy(to, (real *)sums_of(b, g) + 2 * h * a->dv, (size_t)a->dv * sizeof *to);
    }
}

static void each_row(const block_task *b, void (*step)(const block_task *one, int64_t g)) {
    for (int64_t r = 0; r < b->rows; r++) {
        block_task one = row_of(b, r);
        for (int64_t g = b->from; g < b->to; g++)
            step(&one, g);
    }
}

/* Attention of rows over one block of keys, page by page: the scores of all key heads of a page, page after
 * page, then the weights, then the sums of the values in the same order. So memory is read as it lies. What
 * a line's numbers go through depends neither on the heads nor on the rows that are done with it. */
static void attend(block_task *b) {
    b->lines = b->all = b->rows * b->a->lines;
    b->key_way = b->a->key_way[b->lines > 1];
    b->value_way = b->a->value_way[b->lines > 1];
    b->first = row_of(b, 0).first;
    b->end = row_of(b, b->rows - 1).end;
    const attend_way *way = b->key_way->begin ? b->key_way : b->value_way;
    if (way->begin) way->begin();
    score_block(b);
    each_row(b, softmax_row);
    /* The weighted values of a block: of the pages that all rows see whole at once, of those at the
     * rows' ends one row after the other, for what a row does not see may not be numbers. */
    const attend_run *a = b->a;
    block_task top = row_of(b, 0), low = row_of(b, b->rows - 1);
    int64_t unit = max_i64(WEFT_PAGE_TOKENS, b->value_way->unit);
    int64_t from = b->first, to = b->end;
    if (b->rows > 1) {
        from = ceil_div(low.first, unit) * unit;
        to = max_i64(from, top.end / unit * unit);
    }
    memset(sums_of(b, b->from), 0, (size_t)(2 * (b->to - b->from) * b->all * a->dv) * sizeof(real));
    for (int64_t r = 0; r < b->rows; r++) {
        block_task one = row_of(b, r);
        add_keys(&one, one.first, min_i64(one.end, from));
    }
    add_keys(b, from, to);
    for (int64_t r = 0; r < b->rows; r++) {
        block_task one = row_of(b, r);
        add_keys(&one, max_i64(one.first, to), one.end);
    }
    each_row(b, finish_row);
    if (way->end) way->end();
}

/* Blocks of keys that rows of one sequence see, from the one to the other. */
static int64_t count_blocks(const attend_run *a, int64_t row, int64_t last) {
    if (a->places.slot[row] < 0) return 0;
    return a->places.position[last] / BLOCK - first_seen(a, row) / BLOCK + 1;
}

WEFT_TASK(attend_block, const attend_run *a) {
    int64_t at = task / a->parts, part = task % a->parts, run = find_last(a->first, a->runs, at);
    int64_t row = a->run[run], last = a->run[run + 1] - 1;
    int64_t base = (first_seen(a, row) / BLOCK + at - a->first[run]) * BLOCK;
    while (a->places.position[row] < base)
        row++;
    while (first_seen(a, last) >= base + BLOCK)
        last--;
    block_scratch s;
    cut_scratch(a->attr, a->room, a->scratch + thread * a->thread_bytes, &s);
    block_task b = {.a = a, .base = base, .s = &s};
    int64_t at_once = a->room / (min_i64(a->together, last + 1 - row) * a->lines);
    int64_t end = (part + 1) * a->key_heads / a->parts;
    for (b.from = part * a->key_heads / a->parts; b.from < end; b.from = b.to) {
        b.to = min_i64(end, b.from + at_once);
        for (b.row = row; b.row <= last; b.row += b.rows) {
            b.rows = min_i64(a->together, last + 1 - b.row);
            attend(&b);
        }
    }
}

static void add_times(real *restrict sum, const real *restrict x, real factor, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        sum[i] += x[i] * factor;
}

/* A row's head: its blocks, in order. */
WEFT_TASK(join_blocks, const attend_run *a) {
    int64_t r = task / a->heads, blocks = count_blocks(a, r, r);
    const weft_tensor *o = a->n->out[0];
    real *sum = a->partial + task * a->blocks * (a->dv + 2), total = 0;
    if (blocks == 0) {
        memset(sum, 0, (size_t)a->dv * sizeof *sum);
        write_reals(a->x, o, task * a->dv, a->dv, sum);
        return;
    }
    real top = sum[a->dv];
    for (int64_t b = 1; b < blocks; b++)
        top = sum[b * (a->dv + 2) + a->dv] > top ? sum[b * (a->dv + 2) + a->dv] : top;
    for (int64_t b = 0; b < blocks; b++) {
        const real *from = sum + b * (a->dv + 2);
        real factor = (real)exp2((double)(from[a->dv] - top));
        total += factor * from[a->dv + 1];
        if (b == 0)
            for (int64_t d = 0; d < a->dv; d++)
                sum[d] *= factor;
        else
            add_times(sum, from, factor, a->dv);
    }
    a->largest[task] = top;
    a->norm[task] = total;
    real inverse = 1 / total;
    for (int64_t d = 0; d < a->dv; d++)
        sum[d] *= inverse;
    write_reals(a->x, o, task * a->dv, a->dv, sum);
}

/* The weights of a row's block of keys, over all heads. */
WEFT_TASK(join_weights, const attend_run *a) {
    int64_t context_keys = a->attr->context, chunks = ceil_div(context_keys, BLOCK);
    int64_t r = task / chunks, first = task % chunks * BLOCK;
    if (a->places.slot[r] < 0) return;
    int64_t end = min_i64(first + BLOCK, a->places.position[r] + 1 - first_seen(a, r));
    real *w = (real *)weft_data(a->x, a->n->out[1]) + r * context_keys;
    const real *share = weft_data(a->x, a->n->in[WEFT_CACHE_SHARES]);
    for (int64_t j = first; j < end; j++) {
        real sum = 0;
        for (int64_t h = 0; h < a->heads; h++) {
            int64_t at = r * a->heads + h;
            real p = (real)exp2((double)(a->scores[at * context_keys + j] - a->largest[at])) /
                     a->norm[at];
            if (share) p *= share[at];
            sum = a->attr->weights == WEFT_WEIGHTS_MAX ? (p > sum ? p : sum) : sum + p;
        }
        w[j] = a->attr->weights == WEFT_WEIGHTS_MAX ? sum : sum / (real)a->heads;
    }
}

static int64_t most_blocks(const weft_cache_attention_attr *attr) {
    return attr->context / BLOCK + 2;
}

/* Lines of a row and key head, and of a thread's scratch: one row of all heads, or some rows of one. */
static int64_t row_lines(const weft_node *n) {
    const weft_cache_attention_attr *attr = n->attr;
    int64_t group = attr->heads / attr->key.heads;
    bool tiles = way_of(n, false, true)->tiles || way_of(n, true, true)->tiles;
    return tiles ? ceil_div(group, TILE_LINES) * TILE_LINES : group;
}

static int64_t scratch_lines(const weft_node *n) {
    const weft_cache_attention_attr *attr = n->attr;
    return max_i64(attr->key.heads * row_lines(n), LINES);
}

/* The workspace, from `at` on; returns its bytes. */
static int64_t cut_workspace(const weft_node *n, int threads, char *at, attend_run *a) {
    const weft_cache_attention_attr *attr = n->attr;
    const weft_tensor *q = n->in[WEFT_CACHE_X];
    int64_t rows = q->shape[0], heads = rows * attr->heads;
    block_scratch cut;
    a->thread_bytes = cut_scratch(attr, scratch_lines(n), NULL, &cut);
    return CUT_MEMORY(
        at, {&a->scale, 2 * attr->heads * (int64_t)sizeof(double)}, /* and beta */
        {&a->run, 2 * (rows + 1) * (int64_t)sizeof(int64_t)},       /* and first */
        {&a->partial, real_bytes(heads * most_blocks(attr) * (attr->value.width + 2))},
        {&a->largest, real_bytes(2 * heads)}, /* and norm */
        {&a->scores, attr->weights ? real_bytes(heads * attr->context) : 0},
        {&a->widened, q->dtype == WEFT_BF16 ? real_bytes(weft_tensor_count(q)) : 0},
        {&a->scratch, threads * a->thread_bytes});
}

/* Whether row r sees what the row before it sees, but for one key more, or fewer of the first. */
static bool follows(const attend_run *a, int64_t r) {
    const row_places *p = &a->places;
    return p->slot[r] >= 0 && p->slot[r] == p->slot[r - 1] &&
           p->position[r] == p->position[r - 1] + 1 && first_seen(a, r) >= first_seen(a, r - 1);
}

/* Cuts the work into tasks: as many rows together as leave enough for all threads, and all key heads of a
 * block where that is so, for then memory is read as it lies. */
static int64_t cut_tasks(attend_run *a, int threads) {
    int64_t wanted = threads == 1 ? 1 : 4 * threads, most = 2 * BLOCK;
    do { /* runs of at most `most` rows */
        int64_t rows = a->places.rows;
        most /= 2;
        a->first[0] = a->runs = 0;
        for (int64_t r = 0; r < rows; a->runs++) {
            a->run[a->runs] = r++;
            while (r < rows && r < a->run[a->runs] + most && follows(a, r))
                r++;
            a->run[a->runs + 1] = r;
            a->first[a->runs + 1] = a->first[a->runs] + count_blocks(a, a->run[a->runs], r - 1);
        }
    } while (most > 1 && a->first[a->runs] * a->key_heads < wanted);
    int64_t blocks = a->first[a->runs];
    a->parts = blocks == 0 ? 1 : min_i64(a->key_heads, ceil_div(wanted, blocks));
    return blocks * a->parts;
}

DEFINE_KERNEL_IN(cache_attention, cut_workspace(n, threads, NULL, &(attend_run){0})) {
    const weft_cache_attention_attr *attr = n->attr;
    const weft_tensor *values = n->in[WEFT_CACHE_VALUES];
    attend_run a = {.x = x, .n = n, .attr = attr, .places = places_of(x, n)};
    a.keys = pages_of(weft_data(x, n->in[WEFT_CACHE_PAGES]), &attr->key);
    a.values = values ? pages_of(weft_data(x, values), &attr->value) : a.keys;
    a.heads = attr->heads;
    a.key_heads = attr->key.heads;
    a.group = a.heads / a.key_heads;
    a.dqk = attr->key.width;
    a.dv = attr->value.width;
    a.q_columns = weft_tensor_count(n->in[WEFT_CACHE_X]) / a.places.rows;
    a.rel = weft_data(x, n->in[WEFT_CACHE_REL]);
    a.rotations = weft_data(x, n->in[WEFT_CACHE_ROTATIONS]);
    a.query_cache = weft_data(x, n->in[WEFT_CACHE_QUERIES]);
    a.documents = weft_data(x, n->in[WEFT_CACHE_FIRST]);
    a.blocks = most_blocks(attr);
    a.lines = row_lines(n);
    a.together = max_i64(1, LINES / a.lines);
    a.room = scratch_lines(n);
    for (int several = 0; several < 2; several++) {
        a.key_way[several] = way_of(n, false, several);
        a.value_way[several] = way_of(n, true, several);
    }
    const weft_tensor *q = n->in[WEFT_CACHE_X];
    weft_pool *pool = weft_exec_pool(x);
    cut_workspace(n, weft_pool_size(pool), weft_workspace(x, n), &a);
    a.beta = a.scale + a.heads;
    a.first = a.run + a.places.rows + 1;
    a.norm = a.largest + a.places.rows * a.heads;
    /* scale and beta of each head, with log2 e in them. */
    const real *scales = weft_data(x, n->in[WEFT_CACHE_SCALE]);
    const real *betas = weft_data(x, n->in[WEFT_CACHE_BETA]);
    const real *log_tau = weft_data(x, n->in[WEFT_CACHE_LOG_TAU]);
    for (int64_t h = 0; h < a.heads; h++) {
        double tau = log_tau ? exp((double)log_tau[h]) + 1e-6 : 1;
        double scale = log_tau ? 2 / tau : scales ? (double)scales[h] : attr->scale_value;
        a.scale[h] = LOG2E * scale;
        a.beta[h] = LOG2E * (log_tau ? -1 / tau : betas ? (double)betas[h] : 0);
    }
    a.q = tile_in(x, q, 0, weft_tensor_count(q), a.widened);
    weft_pool_run(pool, cut_tasks(&a, weft_pool_size(pool)), attend_block, &a);
    weft_pool_run(pool, a.places.rows * a.heads, join_blocks, &a);
    if (a.scores)
        weft_pool_run(pool, a.places.rows * ceil_div(attr->context, BLOCK), join_weights, &a);
    /* The queries of this run are kept for the next. */
    int64_t window = attr->band ? attr->window : 0, width = a.heads * a.dqk;
    for (int64_t r = 0; window > 0 && r < a.places.rows; r++) {
        int64_t slot = a.places.slot[r], place = slot * window + a.places.position[r] % window;
        if (slot >= 0)
            memcpy(a.query_cache + place * width, a.q + r * a.q_columns,
                   (size_t)width * sizeof(real));
    }
    return WEFT_OK;
}
