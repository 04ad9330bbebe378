/* Attention over pages against its definition in double precision, from the numbers as they are
 * stored: every type of cache, one query head for each key head and many, blocks that begin and end
 * anywhere in a page. Tokens that a row must not see are NaN, or bytes with a scale that is: nothing
 * of them may reach a result. And a row has the bits that it has alone, at any number of threads and with
 * any rows of its sequence and of others beside it. */
#include "core/exec.h"
#include "cpu/backend.h"
#include "ops/cache.h"
#include "support/table.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ROWS = 6,
    MOST = 640,
    TABLE = MOST / WEFT_PAGE_TOKENS + 1,
    PAGES = ROWS * TABLE,
    WIDEST = 128,
    RUN = 100, /* rows of a run, at most */
    DRAWS = 48
};

static const int32_t ends[ROWS] = {0, 3, 17, 255, 261, 635};
static int32_t positions[ROWS]; /* the last of each sequence */

typedef struct {
    const char *name;
    int64_t heads, key_heads, dqk, dv, context;
    int64_t document; /* tokens of one; 0: there is one alone */
    double softcap;
    int64_t rows; /* of a sequence that are in a run: these last ones, and one more */
} form;

static const form forms[] = {
    {"one query head to a key head", 4, 4, 64, 64, .context = MOST},
    {"one to one, sliding", 3, 3, 128, 64, .context = 101},
    {"any width", 3, 3, 20, 12, .context = MOST},
    {"any width, five to one, sliding", 5, 1, 36, 20, .context = 101},
    {"three to a key head, sliding", 6, 2, 32, 32, .context = 101},
    {"twelve to one", 12, 1, 128, 128, .context = MOST},
    {"fifteen to one, sliding", 15, 1, 64, 96, .context = 297},
    {"documents", 4, 4, 64, 64, .context = MOST, .document = 100},
    {"documents, three to a key head, sliding", 6, 2, 32, 32, .context = 101, .document = 250},
    {"soft-cap, any width", 3, 3, 20, 12, .context = MOST, .softcap = 2},
};

static const struct {
    weft_dtype dtype;
    double tolerance; /* of the largest value, which is 1 */
} types[] = {{WEFT_F32, 1e-6}, {WEFT_BF16, 2e-3}, {WEFT_I8, 3e-3}};

/* A part's pages, and the same numbers as they are stored: [rows, MOST, heads, width]. */
typedef struct {
    weft_cache_part part;
    char *pages;
    double *stored;
} cache;

static int32_t page_of(int64_t row, int64_t token) {
    /* 37 and PAGES have no common divisor. */
    return (int32_t)((row * TABLE + token / WEFT_PAGE_TOKENS) * 37 % PAGES);
}

/* Where the document of the token at `position` begins. */
static int64_t document_of(const form *f, int64_t position) {
    return f->document ? position / f->document * f->document : 0;
}

static bool seen(const form *f, int64_t row, int64_t token) {
    int64_t first = positions[row] - f->rows;
    return token <= positions[row] && token > first - f->context && token >= document_of(f, first);
}

static double store_number(const cache *c, char *page, int64_t at, double x, double scale) {
    if (c->part.dtype == WEFT_F32) {
        ((float *)page)[at] = (float)x;
        return (double)(float)x;
    }
    if (c->part.dtype == WEFT_BF16) {
        uint16_t *to = (uint16_t *)page + at;
        *to = isnan(x) ? 0x7fc0 : weft_float_to_bf16((float)x);
        return (double)weft_bf16_to_float(*to);
    }
    int8_t *to = (int8_t *)page + at;
    *to = isnan(x) ? 127 : (int8_t)lrint(x / scale);
    return scale * *to;
}

/* Numbers in [-1, 1]; of tokens that are not seen, NaN. */
static void fill_cache(cache *c, const form *f, const char *name) {
    int64_t heads = c->part.heads, width = c->part.width;
    for (int64_t row = 0; row < ROWS; row++)
        for (int64_t t = 0; t < MOST; t++)
            for (int64_t h = 0; h < heads; h++) {
                char *page = c->pages + page_of(row, t) * weft_cache_page_bytes(&c->part);
                int64_t at = h * WEFT_PAGE_TOKENS + t % WEFT_PAGE_TOKENS;
                bool is_seen = seen(f, row, t);
                float scale = is_seen ? (float)((1 + 0.01 * (double)(t % 7)) / 127) : NAN;
                if (c->part.dtype == WEFT_I8)
                    ((float *)(page + heads * WEFT_PAGE_TOKENS * width))[at] = scale;
                for (int64_t i = 0; i < width; i++) {
                    int64_t number = ((row * MOST + t) * heads + h) * width + i;
                    double x = is_seen ? 2 * case_unit(1, name, number) - 1 : NAN;
                    c->stored[number] = store_number(c, page, at * width + i, x, (double)scale);
                }
            }
}

static cache new_cache(const weft_cache_part *part, const form *f, const char *name) {
    cache c = {.part = *part};
    c.pages = calloc(PAGES, (size_t)weft_cache_page_bytes(part));
    c.stored = calloc((size_t)(ROWS * MOST * part->heads * part->width), sizeof *c.stored);
    assert_non_null(c.pages);
    assert_non_null(c.stored);
    fill_cache(&c, f, name);
    return c;
}

static void free_cache(cache *c) {
    free(c->pages);
    free(c->stored);
}

/* Some keys are like the query: there the weights differ by many powers of two. */
static float query_number(const form *f, const cache *keys, int64_t row, int64_t head, int64_t i) {
    int64_t g = head / (f->heads / f->key_heads), t = positions[row] - positions[row] % 5;
    double like = keys->stored[((row * MOST + t) * f->key_heads + g) * f->dqk + i];
    return (float)(like + 0.5 * case_unit(1, "q", (row * f->heads + head) * f->dqk + i));
}

static double scale_of(const form *f) {
    return 12.0 / (double)f->dqk;
}

/* o [dv] of a row's head by the definition. */
static void attend_plainly(const form *f, const cache *keys, const cache *values, const float *q,
                           int64_t row, int64_t head, double *o) {
    int64_t g = head / (f->heads / f->key_heads);
    double total = 0, top = -INFINITY, score[MOST];
    memset(o, 0, (size_t)f->dv * sizeof *o);
    for (int64_t t = 0; t < MOST; t++) {
        if (!seen(f, row, t)) continue;
        const double *k = keys->stored + ((row * MOST + t) * f->key_heads + g) * f->dqk;
        score[t] = 0;
        for (int64_t i = 0; i < f->dqk; i++)
            score[t] += scale_of(f) * (double)q[(row * f->heads + head) * f->dqk + i] * k[i];
        if (f->softcap > 0) score[t] = f->softcap * tanh(score[t] / f->softcap);
        top = fmax(top, score[t]);
    }
    for (int64_t t = 0; t < MOST; t++) {
        if (!seen(f, row, t)) continue;
        const double *v = values->stored + ((row * MOST + t) * f->key_heads + g) * f->dv;
        double weight = exp(score[t] - top);
        total += weight;
        for (int64_t i = 0; i < f->dv; i++)
            o[i] += weight * v[i];
    }
    for (int64_t i = 0; i < f->dv; i++)
        o[i] /= total;
}

/* o [rows, heads, dv] of `rows` rows by the kernels. */
static void attend(const form *f, const cache *keys, const cache *values, const float *q,
                   const int32_t *at, const int32_t *slots, int64_t rows, int threads, float *o) {
    weft_graph *g;
    weft_pool *pool;
    weft_exec *exec;
    assert_int_equal(weft_graph_create(&g), WEFT_OK);
    assert_int_equal(weft_pool_create(threads, &pool), WEFT_OK);
    weft_tensor *position = weft_new_tensor(g, WEFT_ROLE_INPUT, "position", WEFT_I32, rows);
    weft_tensor *slot = weft_new_tensor(g, WEFT_ROLE_INPUT, "slot", WEFT_I32, rows);
    weft_tensor *table =
        weft_new_tensor(g, WEFT_ROLE_INPUT, "table", WEFT_I32, (int64_t)ROWS, (int64_t)TABLE);
    weft_tensor *query =
        weft_new_tensor(g, WEFT_ROLE_INPUT, "q", WEFT_F32, rows, (int64_t)1, f->heads, f->dqk);
    weft_tensor *k = weft_new_tensor(g, WEFT_ROLE_STATE, "keys", WEFT_I8, (int64_t)PAGES,
                                     weft_cache_page_bytes(&keys->part));
    weft_tensor *v = weft_new_tensor(g, WEFT_ROLE_STATE, "values", WEFT_I8, (int64_t)PAGES,
                                     weft_cache_page_bytes(&values->part));
    weft_rows places = {.position = position, .slot = slot, .table = table};
    if (f->document) places.first = weft_new_tensor(g, WEFT_ROLE_INPUT, "first", WEFT_I32, rows);
    weft_score score = {.q = query, .scale_value = scale_of(f), .softcap = f->softcap};
    weft_cache_query wanted = {.score = &score,
                               .heads = f->heads,
                               .key = keys->part,
                               .value = values->part,
                               .keys = k,
                               .values = v,
                               .context = f->context};
    weft_tensor *out = weft_keep(weft_cache_attention(g, &wanted, &places).o);
    if (weft_exec_create(g, weft_cpu_backend(), pool, NULL, &exec) != WEFT_OK)
        fail_msg("%s: %s", f->name, weft_error_message());
    int32_t documents[RUN], pages[ROWS * TABLE];
    for (int64_t r = 0; r < rows; r++)
        documents[r] = (int32_t)document_of(f, at[r]);
    for (int64_t r = 0; r < ROWS; r++)
        for (int p = 0; p < TABLE; p++)
            pages[r * TABLE + p] = page_of(r, p * WEFT_PAGE_TOKENS);
    assert_int_equal(weft_exec_write(exec, position, at), WEFT_OK);
    assert_int_equal(weft_exec_write(exec, slot, slots), WEFT_OK);
    if (places.first) assert_int_equal(weft_exec_write(exec, places.first, documents), WEFT_OK);
    assert_int_equal(weft_exec_write(exec, table, pages), WEFT_OK);
    assert_int_equal(weft_exec_write(exec, query, q), WEFT_OK);
    assert_int_equal(weft_exec_write(exec, k, keys->pages), WEFT_OK);
    assert_int_equal(weft_exec_write(exec, v, values->pages), WEFT_OK);
    if (weft_exec_run(exec, NULL) != WEFT_OK) fail_msg("%s", weft_error_message());
    assert_int_equal(weft_exec_read(exec, out, o), WEFT_OK);
    weft_exec_destroy(exec);
    weft_pool_destroy(pool);
    weft_graph_destroy(g);
}

static void check_form(const form *f, weft_dtype dtype, double tolerance) {
    weft_cache_part key = {f->key_heads, f->dqk, dtype, false};
    weft_cache_part value = {f->key_heads, f->dv, dtype, false};
    cache keys = new_cache(&key, f, "k"), values = new_cache(&value, f, "v");
    static float q[ROWS * 15 * WIDEST], together[ROWS * 15 * WIDEST], alone[15 * WIDEST];
    static const int32_t slots[ROWS] = {0, 1, 2, 3, 4, 5};
    for (int64_t i = 0; i < ROWS * f->heads * f->dqk; i++)
        q[i] = query_number(f, &keys, i / (f->heads * f->dqk), i / f->dqk % f->heads, i % f->dqk);
    attend(f, &keys, &values, q, positions, slots, ROWS, 1, together);
    double worst = 0;
    for (int64_t r = 0; r < ROWS; r++) {
        int64_t width = f->heads * f->dv;
        for (int64_t i = 0; i < width; i++) {
            double o[WIDEST];
            if (i % f->dv == 0) attend_plainly(f, &keys, &values, q, r, i / f->dv, o);
            double off = fabs((double)together[r * width + i] - o[i % f->dv]);
            if (!(off <= tolerance))
                fail_msg("%s, %s: position %d, head %lld, column %lld is %g, not %g", f->name,
                         weft_dtype_name(dtype), positions[r], (long long)(i / f->dv),
                         (long long)(i % f->dv), (double)together[r * width + i], o[i % f->dv]);
            worst = fmax(worst, off);
        }
        attend(f, &keys, &values, q + r * f->heads * f->dqk, positions + r, slots + r, 1, 3, alone);
        if (memcmp(alone, together + r * width, (size_t)width * sizeof *alone) != 0)
            fail_msg("%s, %s: position %d has other bits alone", f->name, weft_dtype_name(dtype),
                     positions[r]);
    }
    printf("note: %s, %s: within %.1e\n", f->name, weft_dtype_name(dtype), worst);
    free_cache(&keys);
    free_cache(&values);
}

TEST(test_pages_are_attended_as_defined) {
    memcpy(positions, ends, sizeof positions);
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
        for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++)
            check_form(forms + i, types[t].dtype, types[t].tolerance);
}

/* A number of draw `draw` in [0, n). */
static int64_t draw_below(int64_t draw, const char *what, int64_t n) {
    return (int64_t)(case_unit(2, what, draw) * (double)n);
}

/* Rows of two sequences, with an empty one between them or the second's positions behind the first's. The last token of each
 * sequence is not a number: only its own row may know of it. */
static void check_rows(int64_t draw) {
    form f = forms[draw_below(draw, "form", sizeof forms / sizeof forms[0])];
    weft_dtype dtype = types[draw % 3].dtype;
    int32_t at[RUN], slots[RUN];
    int64_t count[2], rows = 0, width = f.heads * f.dv;
    f.rows = RUN / 2 - 2;
    for (int64_t i = 0; i < ROWS; i++)
        positions[i] = 0;
    for (int64_t i = 0; i < 2; i++) {
        positions[i] = (int32_t)draw_below(2 * draw + i, "position", MOST);
        count[i] = 1 + draw_below(2 * draw + i, "rows", i == 0 ? f.rows : 6);
        if (i == 1 && draw % 4 == 0) positions[1] = (int32_t)(positions[0] + count[1]) % MOST;
        if (count[i] > positions[i] + 1) count[i] = positions[i] + 1;
    }
    weft_cache_part key = {f.key_heads, f.dqk, dtype, false},
                    value = {f.key_heads, f.dv, dtype, false};
    cache keys = new_cache(&key, &f, "k"), values = new_cache(&value, &f, "v");
    for (int64_t i = 0; i < 2; i++) {
        for (int64_t r = count[i] - 1; r >= 0; r--, rows++) {
            at[rows] = positions[i] - (int32_t)r;
            slots[rows] = (int32_t)i;
        }
        if (i == 0 && draw % 4) at[rows] = 0, slots[rows++] = -1;
        int64_t t = positions[i];
        char *page = values.pages + page_of(i, t) * weft_cache_page_bytes(&value);
        for (int64_t h = 0; h < f.key_heads; h++) {
            int64_t token = h * WEFT_PAGE_TOKENS + t % WEFT_PAGE_TOKENS;
            if (dtype == WEFT_I8)
                ((float *)(page + f.key_heads * WEFT_PAGE_TOKENS * f.dv))[token] = NAN;
            for (int64_t d = 0; d < f.dv; d++)
                store_number(&values, page, token * f.dv + d, NAN, 1);
        }
    }
    static float q[RUN * 15 * WIDEST], together[RUN * 15 * WIDEST], alone[15 * WIDEST];
    for (int64_t i = 0; i < rows * f.heads * f.dqk; i++)
        q[i] = (float)(4 * case_unit((uint32_t)draw, "q", i) - 2);
    attend(&f, &keys, &values, q, at, slots, rows, 1 + (int)(draw % 2), together);
    for (int64_t r = draw_below(draw, "first", 3); r < rows; r += 1 + draw_below(r, "step", 9)) {
        if (slots[r] < 0 || at[r] == positions[slots[r]]) continue;
        attend(&f, &keys, &values, q + r * f.heads * f.dqk, at + r, slots + r, 1, 1, alone);
        for (int64_t i = 0; i < width; i++)
            if (!(fabsf(alone[i]) <= 2))
                fail_msg("draw %lld, %s: row %lld is %g", (long long)draw, f.name, (long long)r,
                         (double)alone[i]);
        if (memcmp(alone, together + r * width, (size_t)width * sizeof *alone) != 0)
            fail_msg("draw %lld, %s, %s: position %d of %lld rows from %d on has other bits alone",
                     (long long)draw, f.name, weft_dtype_name(dtype), at[r],
                     (long long)count[slots[r]], positions[slots[r]] + 1 - (int)count[slots[r]]);
    }
    free_cache(&keys);
    free_cache(&values);
}

TEST(test_a_row_has_its_bits_beside_any_others) {
    for (int64_t draw = 0; draw < DRAWS; draw++)
        check_rows(draw);
}

RUN_TESTS(NULL, NULL)
