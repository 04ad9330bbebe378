/* Caches on the GPU: what is written, attended, gathered and averaged over pages agrees with the CPU's
 * kernels, for every kind of score and of stored number, and a row has the bits it has alone. */
#include "core/exec.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "ops/documents.h"
#include "support/table.h"
#include "support/test.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum {
    SLOTS = 3,
    ROWS = 24,
    MANY = 250, /* of a run in which rows of a sequence share keys */
    MOST = 700,
    TABLE = 46,
    LONG_TABLE = 368,
    LONG = 5800,
    FAR_TABLE = 1256,
    FAR = 20000,
    MOST_WIDTH = 4096
};

/* A kind of attention over a cache. */
typedef struct {
    const char *name;
    int64_t heads, key_heads, dqk, dv;
    bool own_values; /* the values are the keys as they are stored */
    bool number, gaussian, squares, log_tau;
    int64_t rotated, window, context;
    int64_t document; /* tokens of one; 0: there is one alone */
    double softcap;
    weft_attention_pos pos;
    weft_weights weights;
    weft_cache_keep keep;
} form;

static const form forms[] = {
    {"dot", 4, 4, 64, 64, .context = MOST},
    {"dot, any width", 3, 3, 20, 12, .context = MOST},
    {"dot, grouped heads, sliding", 6, 2, 32, 32, .context = 300},
    {"dot, heads of 128", 4, 2, 128, 128, .context = MOST},
    {"dot, keys of 256", 4, 2, 256, 64, .context = MOST},
    {"alibi", 6, 6, 32, 32, .context = MOST, .pos = WEFT_POS_ALIBI},
    {"relative", 2, 2, 32, 32, .context = MOST, .pos = WEFT_POS_RELATIVE},
    {"w2", 4, 4, 128, 64, .number = true, .log_tau = true, .context = MOST},
    {"mla", 12, 1, 128, 128, .own_values = true, .context = MOST},
    {"mla, keys of 320", 12, 1, 320, 256, .context = MOST},
    {"mla, rotated", 5, 1, 96, 64, .rotated = 32, .context = MOST},
    {"mla, w2", 4, 1, 64, 32, .gaussian = true, .squares = true, .log_tau = true, .context = MOST},
    {"a band", 4, 2, 32, 32, .window = 5, .context = MOST},
    {"a soft-cap", 4, 2, 64, 64, .softcap = 0.5, .context = MOST},
    {"documents", 4, 2, 64, 64, .document = 70, .context = MOST},
    {"documents, any width, sliding", 3, 3, 20, 12, .document = 310, .softcap = 1, .context = 300},
    {"top-k", 4, 4, 32, 32, .context = MOST, .weights = WEFT_WEIGHTS_MEAN, .keep = WEFT_KEEP_TOPK},
    {"threshold", 4, 4, 32, 32, .context = MOST, .weights = WEFT_WEIGHTS_MAX,
     .keep = WEFT_KEEP_RMS},
    {"all", 4, 4, 32, 32, .context = 300, .weights = WEFT_WEIGHTS_MEAN, .keep = WEFT_KEEP_ALL},
};

/* A graph that writes rows into caches and reads them again. */
typedef struct {
    weft_graph *g;
    weft_pool *pool;
    weft_exec *exec;
    weft_tensor *position, *slot, *table, *q, *k, *v, *log_tau, *rel, *rotations, *o, *c, *mean;
    weft_tensor *tokens; /* of documents, each so long */
    int64_t document;
    int64_t rows, pages; /* pages: of a sequence */
} decoder;

static weft_tensor *input(decoder *d, const char *name, weft_dtype dtype, int64_t a, int64_t b) {
    return weft_new_tensor(d->g, WEFT_ROLE_INPUT, name, dtype, a, b);
}

static weft_tensor *pages_of(decoder *d, const char *name, const weft_cache_part *part) {
    return weft_new_tensor(d->g, WEFT_ROLE_STATE, name, WEFT_I8, SLOTS * d->pages,
                           weft_cache_page_bytes(part));
}

static void build(decoder *d, const form *f, weft_dtype dtype, weft_dtype cached) {
    weft_cache_part key = {f->key_heads, f->dqk, cached, f->number};
    weft_cache_part value = {f->key_heads, f->dv, cached, false}, hidden = {1, 40, cached, false};
    d->position = weft_new_tensor(d->g, WEFT_ROLE_INPUT, "position", WEFT_I32, d->rows);
    d->slot = weft_new_tensor(d->g, WEFT_ROLE_INPUT, "slot", WEFT_I32, d->rows);
    d->table = input(d, "table", WEFT_I32, SLOTS, d->pages);
    d->q = input(d, "q", dtype, d->rows, f->heads * f->dqk);
    d->k = input(d, "k", dtype, d->rows, f->key_heads * f->dqk);
    d->v = input(d, "v", dtype, d->rows, 40 + f->key_heads * f->dv);
    weft_rows rows = {.position = d->position, .slot = d->slot, .table = d->table};
    if (f->document) {
        weft_tensor *begun =
            weft_new_tensor(d->g, WEFT_ROLE_STATE, "begun", WEFT_I32, (int64_t)SLOTS);
        d->tokens = input(d, "tokens", WEFT_I32, d->rows, 1);
        d->document = f->document;
        rows.first = weft_find_cached_documents(d->g, d->tokens, 0, begun, &rows).first;
    }
    weft_tensor *keys = pages_of(d, "keys", &key), *values = NULL;
    weft_cache_write(d->g, &key, d->k, 0, NULL, keys, &rows);
    if (!f->own_values) {
        values = pages_of(d, "values", &value);
        weft_cache_write(d->g, &value, d->v, 40, NULL, values, &rows);
    }
    if (f->log_tau)
        d->log_tau = weft_new_tensor(d->g, WEFT_ROLE_INPUT, "log_tau", WEFT_F32, f->heads);
    if (f->pos == WEFT_POS_RELATIVE)
        d->rel = weft_new_tensor(d->g, WEFT_ROLE_INPUT, "rel", WEFT_F32, (int64_t)MOST);
    if (f->rotated)
        d->rotations = weft_new_tensor(d->g, WEFT_ROLE_INPUT, "rotations", WEFT_F32,
                                       (int64_t)WEFT_KEY_BLOCK, (int64_t)2, f->rotated / 2);
    weft_score score = {.q = d->q,
                        .log_tau = d->log_tau,
                        .rel = d->rel,
                        .scale_value = 0.2,
                        .pos = f->pos,
                        .band = f->window > 0,
                        .window = f->window,
                        .softcap = f->softcap,
                        .band_alpha = 0.5};
    weft_cache_query query = {.score = &score,
                              .heads = f->heads,
                              .key = key,
                              .value = value,
                              .keys = keys,
                              .values = values,
                              .context = f->context,
                              .rotations = d->rotations,
                              .rotated = f->rotated,
                              .law = WEFT_ROPE_USUAL,
                              .gaussian = f->gaussian,
                              .squares = f->squares,
                              .weights = f->weights};
    if (f->window)
        query.query_cache = weft_new_tensor(d->g, WEFT_ROLE_STATE, "query_cache", WEFT_F32,
                                            (int64_t)SLOTS, f->window, f->heads, f->dqk);
    weft_cache_attended attended = weft_cache_attention(d->g, &query, &rows);
    d->o = weft_keep(attended.o);
    if (f->weights) {
        weft_tensor *cache = pages_of(d, "hidden", &hidden);
        weft_cache_write(d->g, &hidden, d->v, 0, NULL, cache, &rows);
        d->c = weft_keep(weft_cache_gather(d->g, &hidden, cache, attended.weights, f->keep, 8, 1.0,
                                           true, &rows));
    }
    weft_tensor *sums = weft_new_tensor(d->g, WEFT_ROLE_STATE, "sums", WEFT_F32, (int64_t)SLOTS,
                                        f->key_heads * f->dqk);
    d->mean = weft_keep(weft_cache_mean(d->g, d->k, sums, &rows));
}

static void open_decoder(decoder *d, const weft_backend *backend, const form *f, weft_dtype dtype,
                         weft_dtype cached, int64_t rows) {
    *d = (decoder){.rows = rows};
    d->pages = f->context > LONG ? FAR_TABLE : f->context > MOST ? LONG_TABLE : TABLE;
    assert_int_equal(weft_graph_create(&d->g), WEFT_OK);
    assert_int_equal(weft_pool_create(1, &d->pool), WEFT_OK);
    build(d, f, dtype, cached);
    if (weft_exec_create(d->g, backend, d->pool, NULL, &d->exec) != WEFT_OK)
        fail_msg("%s: %s", f->name, weft_error_message());
}

static void close_decoder(decoder *d) {
    weft_exec_destroy(d->exec);
    weft_pool_destroy(d->pool);
    weft_graph_destroy(d->g);
}

/* Row r of a tensor of token t of sequence s: the same wherever that row stands. */
static void write_rows(decoder *d, weft_tensor *t, const char *name, const int32_t *slot,
                       const int32_t *position) {
    static float values[MANY * MOST_WIDTH];
    static uint16_t rounded[MANY * MOST_WIDTH];
    int64_t width = weft_tensor_count(t) / d->rows;
    assert_true(d->rows * width <= MANY * MOST_WIDTH);
    for (int64_t r = 0; r < d->rows; r++)
        for (int64_t i = 0; i < width; i++) {
            int64_t token = slot[r] * d->pages * WEFT_PAGE_TOKENS + position[r];
            float value = slot[r] < 0 ? 0 : (float)(2 * case_unit(1, name, token * width + i) - 1);
            rounded[r * width + i] = weft_float_to_bf16(value);
            values[r * width + i] =
                d->pages > TABLE ? weft_bf16_to_float(rounded[r * width + i]) : value;
        }
    const void *from = t->dtype == WEFT_BF16 ? (const void *)rounded : (const void *)values;
    assert_int_equal(weft_exec_write(d->exec, t, from), WEFT_OK);
}

static void write_constants(decoder *d, const form *f) {
    static float rotations[WEFT_KEY_BLOCK * 2 * 64], numbers[MOST];
    static int32_t table[SLOTS * FAR_TABLE];
    int32_t pages = (int32_t)(SLOTS * d->pages);
    for (int32_t i = 0; i < pages; i++)
        table[i] = (i * 37 + 5) % pages; /* 37 and it have no common divisor */
    assert_int_equal(weft_exec_write(d->exec, d->table, table), WEFT_OK);
    for (int i = 0; i < MOST; i++)
        numbers[i] = (float)(0.5 * case_unit(1, "numbers", i));
    if (d->log_tau) assert_int_equal(weft_exec_write(d->exec, d->log_tau, numbers), WEFT_OK);
    if (d->rel) assert_int_equal(weft_exec_write(d->exec, d->rel, numbers), WEFT_OK);
    int64_t half = f->rotated / 2;
    for (int64_t j = 0; j < WEFT_KEY_BLOCK; j++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)j * pow(10000, -2.0 * (double)i / (double)f->rotated);
            rotations[(j * 2) * half + i] = (float)cos(angle);
            rotations[(j * 2 + 1) * half + i] = (float)sin(angle);
        }
    if (d->rotations) assert_int_equal(weft_exec_write(d->exec, d->rotations, rotations), WEFT_OK);
}

static void run_rows(decoder *d, const int32_t *slot, const int32_t *position) {
    assert_int_equal(weft_exec_write(d->exec, d->slot, slot), WEFT_OK);
    assert_int_equal(weft_exec_write(d->exec, d->position, position), WEFT_OK);
    write_rows(d, d->q, "q", slot, position);
    write_rows(d, d->k, "k", slot, position);
    write_rows(d, d->v, "v", slot, position);
    int32_t tokens[MANY];
    for (int64_t r = 0; d->tokens && r < d->rows; r++)
        tokens[r] = (position[r] + 1) % d->document == 0 ? 0 : 1;
    if (d->tokens) assert_int_equal(weft_exec_write(d->exec, d->tokens, tokens), WEFT_OK);
    if (weft_exec_run(d->exec, NULL) != WEFT_OK) fail_msg("%s", weft_error_message());
}

/* A tensor's numbers of the last run, as floats. */
static int64_t read_numbers(decoder *d, const weft_tensor *t, float *out) {
    static uint16_t halves[MANY * MOST_WIDTH];
    int64_t count = weft_tensor_count(t);
    assert_int_equal(weft_exec_read(d->exec, t, t->dtype == WEFT_BF16 ? (void *)halves : out),
                     WEFT_OK);
    for (int64_t i = 0; t->dtype == WEFT_BF16 && i < count; i++)
        out[i] = weft_bf16_to_float(halves[i]);
    return count;
}

static void compare(decoder *a, const weft_tensor *ta, decoder *b, const weft_tensor *tb,
                    double allowed, const char *what) {
    static float x[MANY * MOST_WIDTH], y[MANY * MOST_WIDTH];
    if (!ta) return;
    int64_t count = read_numbers(a, ta, x);
    assert_int_equal(read_numbers(b, tb, y), count);
    double error = 0, size = 0;
    for (int64_t i = 0; i < count; i++) {
        error += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        size += (double)y[i] * y[i];
    }
    if (!(sqrt(error) <= allowed * sqrt(size)))
        fail_msg("%s: off by %.3g of %.3g", what, sqrt(error), sqrt(size));
}

/* Three sequences of 700, 260 and 9 tokens, in runs of rows of one sequence; then a last run with a row
 * of each, and an empty one. */
typedef struct {
    int32_t slot[MANY], position[MANY];
} step;

static const int32_t lengths[SLOTS] = {MOST - 1, 260, 9};

static int make_steps(step *steps) {
    int n = 0;
    for (int32_t s = 0; s < SLOTS; s++)
        for (int32_t at = 0; at < lengths[s]; at += ROWS, n++)
            for (int32_t r = 0; r < ROWS; r++) {
                steps[n].slot[r] = at + r < lengths[s] ? s : -1;
                steps[n].position[r] = at + r < lengths[s] ? at + r : 0;
            }
    for (int32_t r = 0; r < ROWS; r++) {
        steps[n].slot[r] = r < SLOTS ? r : -1;
        steps[n].position[r] = r < SLOTS ? lengths[r] : 0;
    }
    return n + 1;
}

static void check_form(const form *f, weft_dtype dtype, weft_dtype cached) {
    static step steps[64];
    decoder gpu, cpu;
    char what[160];
    int n = make_steps(steps);
    open_decoder(&gpu, weft_cuda_backend(), f, dtype, cached, ROWS);
    open_decoder(&cpu, weft_cpu_backend(), f, dtype, cached, ROWS);
    write_constants(&gpu, f);
    write_constants(&cpu, f);
    for (int i = 0; i < n; i++) {
        run_rows(&gpu, steps[i].slot, steps[i].position);
        run_rows(&cpu, steps[i].slot, steps[i].position);
        snprintf(what, sizeof what, "%s, %s over %s, run %d", f->name, weft_dtype_name(dtype),
                 weft_dtype_name(cached), i);
        double allowed = dtype == WEFT_BF16 ? 5e-3 : 2e-5;
        compare(&gpu, gpu.o, &cpu, cpu.o, allowed, what);
        compare(&gpu, gpu.c, &cpu, cpu.c, dtype == WEFT_BF16 ? 5e-3 : 1e-4, what);
        compare(&gpu, gpu.mean, &cpu, cpu.mean, allowed, what);
    }
    close_decoder(&gpu);
    close_decoder(&cpu);
}

/* Of a list of forms every third where a part is to do. */
static size_t stride(void) {
    return test_is_quick() ? 3 : 1;
}

static void need_gpu(void) {
    if (weft_cuda_backend()) return;
    printf("%s\n", weft_error_message());
    skip();
}

static void test_caches_agree_with_the_cpu(void **state) {
    (void)state;
    need_gpu();
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i += stride()) {
        check_form(&forms[i], WEFT_F32, WEFT_F32);
        check_form(&forms[i], WEFT_F32, WEFT_I8);
        check_form(&forms[i], WEFT_BF16, WEFT_BF16);
    }
}

/* The last run of make_steps as it is, and each of its rows in a run of its own. */
static void test_a_row_has_the_bits_it_has_alone(void **state) {
    (void)state;
    need_gpu();
    static step steps[64];
    static float together[MANY * MOST_WIDTH], alone[MANY * MOST_WIDTH];
    int n = make_steps(steps);
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i += stride()) {
        decoder d;
        /* A row's own query takes the place of one that it read; the end of a document is passed. */
        if (forms[i].window || forms[i].document) continue;
        open_decoder(&d, weft_cuda_backend(), &forms[i], WEFT_BF16, WEFT_BF16, ROWS);
        write_constants(&d, &forms[i]);
        for (int k = 0; k < n; k++)
            run_rows(&d, steps[k].slot, steps[k].position);
        int64_t width = read_numbers(&d, d.o, together) / ROWS;
        for (int32_t s = 0; s < SLOTS; s++) {
            step one = {0};
            for (int32_t r = 0; r < ROWS; r++)
                one.slot[r] = -1;
            one.slot[7] = s;
            one.position[7] = lengths[s];
            run_rows(&d, one.slot, one.position);
            read_numbers(&d, d.o, alone);
            if (memcmp(alone + 7 * width, together + s * width, (size_t)width * sizeof *alone) != 0)
                fail_msg("%s: sequence %d", forms[i].name, (int)s);
        }
        close_decoder(&d);
    }
}

/* Rows of a sequence from position `at` on, `first` of them, and behind an empty row some of another one. */
static void make_step(step *s, int32_t at, int32_t tokens, int32_t first, int32_t rows) {
    int32_t others = rows - first - 1;
    for (int32_t r = 0; r < rows; r++) {
        int32_t position = r < first ? at + r : at / first * others + r - first - 1;
        bool there = r != first && position < tokens;
        s->slot[r] = !there ? -1 : r < first ? 1 : 2;
        s->position[r] = there ? position : 0;
    }
}

/* Rows of sequences, `many` at a time, and the same `few` at a time, which divides that: they share keys there,
 * and other blocks have them. With `wide`, also against the same in f32. */
static void check_rows(const form *f, int32_t tokens, int32_t many, int32_t few, bool wide) {
    static float all[MANY * MOST_WIDTH], some[MANY * MOST_WIDTH];
    decoder together, apart, exact;
    open_decoder(&together, weft_cuda_backend(), f, WEFT_BF16, WEFT_BF16, many);
    open_decoder(&apart, weft_cuda_backend(), f, WEFT_BF16, WEFT_BF16, few);
    write_constants(&together, f);
    write_constants(&apart, f);
    if (wide) open_decoder(&exact, weft_cuda_backend(), f, WEFT_F32, WEFT_F32, many);
    if (wide) write_constants(&exact, f);
    int32_t first = many > ROWS ? many * 2 / 3 : many;
    for (int32_t at = 0; at < tokens; at += first) {
        step s, part;
        make_step(&s, at, tokens, first, many);
        run_rows(&together, s.slot, s.position);
        if (wide) run_rows(&exact, s.slot, s.position);
        if (wide) compare(&together, together.o, &exact, exact.o, 5e-3, f->name);
        int64_t width = read_numbers(&together, together.o, all) / many;
        for (int32_t r = 0; r < many; r++) {
            int32_t i = r % few;
            part.slot[i] = s.slot[r];
            part.position[i] = s.position[r];
            if (i < few - 1) continue;
            run_rows(&apart, part.slot, part.position);
            read_numbers(&apart, apart.o, some);
            for (int64_t e = 0; e < few * width; e++) {
                float a = all[(r - i) * width + e];
                if (memcmp(&some[e], &a, sizeof a) != 0)
                    fail_msg("%s: row %d behind token %d, number %d: %g among %d, %g among %d",
                             f->name, (int)(r - i + e / width), (int)at, (int)(e % width),
                             (double)a, (int)many, (double)some[e], (int)few);
            }
        }
    }
    close_decoder(&together);
    close_decoder(&apart);
    if (wide) close_decoder(&exact);
}

static void test_rows_of_a_sequence_have_the_bits_they_have_alone(void **state) {
    (void)state;
    need_gpu();
    int32_t tokens = test_is_quick() ? ROWS : MOST - 1, few = test_is_quick() ? 50 : 1;
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i += stride()) {
        check_rows(&forms[i], tokens, ROWS, 1, false);
        check_rows(&forms[i], MOST - 1, MANY, few, false);
    }
}

static void test_long_sequences(void **state) {
    (void)state;
    static const form longer[] = {
        {"dot", 4, 4, 64, 64, .context = LONG},
        {"dot, grouped heads, sliding", 8, 2, 32, 32, .context = 3000},
        {"w2", 4, 4, 128, 64, .number = true, .log_tau = true, .context = LONG},
        {"mla", 12, 1, 128, 128, .own_values = true, .context = LONG},
    };
    need_gpu();
    for (size_t i = 0; i < sizeof longer / sizeof longer[0]; i += stride())
        check_rows(&longer[i], LONG, ROWS, test_is_quick() ? ROWS / 2 : 1, true);
}

/* Leaves of a row are so many that warps join groups of them; of many heads they are longer. */
static void test_rows_of_far_positions(void **state) {
    (void)state;
    static const form far[] = {
        {"dot, far", 2, 2, 64, 64, .context = FAR},
        {"dot, grouped heads, far", 6, 2, 32, 128, .context = FAR},
        {"w2, far", 2, 2, 128, 64, .number = true, .log_tau = true, .context = FAR},
        {"mla, far", 12, 1, 64, 64, .own_values = true, .context = FAR},
    };
    need_gpu();
    for (size_t i = 0; i < sizeof far / sizeof far[0]; i += stride())
        check_rows(&far[i], FAR, MANY, 50, true);
}

/* The CPU's side is the instruction set that runs everywhere: it widens int8 numbers and rounds no query. */
static void hold_cpu_to_plain_sums(void) {
    const char *isa, *last = "";
    bool runs;
    for (int i = 0; (isa = weft_cpu_isa_at(i, &runs)); i++)
        last = isa;
    setenv("WEFT_CPU", last, 1);
}

int main(void) {
    hold_cpu_to_plain_sums();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_caches_agree_with_the_cpu),
        cmocka_unit_test(test_a_row_has_the_bits_it_has_alone),
        cmocka_unit_test(test_rows_of_a_sequence_have_the_bits_they_have_alone),
        cmocka_unit_test(test_long_sequences),
        cmocka_unit_test(test_rows_of_far_positions),
    };
    return cmocka_run_group_tests_name("caches on the GPU", tests, NULL, NULL);
}
