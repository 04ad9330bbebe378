/* Runs of decode graphs that follow each other and sample tokens (core/decoding.h): the bits of runs that the
 * host waits for, while sequences join, leave and grow; tokens that are taken from where they were
 * sampled; and whole texts. */
#include "core/decoding.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "generate/decoder.h"
#include "generate/generator.h"
#include "ops/linear.h"
#include "support/model_case.h"
#include "support/sampling.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Of a GPU's runs more than half are of more than 32 rows; the CPU has no more than those. */
#ifdef ON_GPU
enum { SLOTS = 56, AT_ONCE = 32, STEPS = 70 };
#else
enum { SLOTS = 24, AT_ONCE = 8, STEPS = 40 };
#endif
enum { SEQUENCES = 120, CONTEXT = 300, VOCAB = 104, WRITERS = 7, MOST_TOKENS = 64 };
enum { TABLE = (CONTEXT - 1 + WEFT_PAGE_TOKENS - 1) / WEFT_PAGE_TOKENS + 1 };

typedef struct {
    const char *name;
    int step; /* of the reciprocal mechanisms */
    weft_dtype dtype;
    const char *settings[6];
} form;

static const form forms[] = {
    {"step1", 1, WEFT_BF16, {NULL}},
    {"step2", 2, WEFT_BF16, {NULL}},
    {"step3", 3, WEFT_BF16, {"RA_MLA_MLP_TYING_MODE=tied_transpose", NULL}},
    {"step3-f32", 3, WEFT_F32, {"RA_MLA_MLP_TYING_MODE=tied_transpose", NULL}},
    {"step1-cummean", 1, WEFT_BF16, {"RA_MLA_MLP_GATE_POOL=cummean", NULL}},
    {"step1-shared-maps",
     1,
     WEFT_BF16,
     {"RA_MLA_PER_HEAD_Q_LATENT=n", "RA_MLA_PER_HEAD_V_UP=n", NULL}},
    {"step2-int8", 2, WEFT_BF16, {"WEIGHT_DTYPE=int8", "CACHE_DTYPE=int8", NULL}},
    {"step2-dot-heads-of-64", 2, WEFT_BF16, {"ATTENTION=dot", "N_HEAD=2", NULL}},
    {"mla-rope", 0, WEFT_BF16, {"POSITION=rope", NULL}},
    {"dot-rope", 0, WEFT_BF16, {"ATTENTION=dot", "POSITION=rope", "N_HEAD=2", NULL}},
    {"dot-rope-one-head", 0, WEFT_BF16, {"ATTENTION=dot", "POSITION=rope", "N_HEAD=1", NULL}},
    {"w2", 0, WEFT_BF16, {"ATTENTION=w2", "N_HEAD=2", NULL}},
    {"dot-window",
     0,
     WEFT_BF16,
     {"ATTENTION=dot", "POSITION=rope", "N_HEAD=2", "WINDOW=40", "WINDOW_EVERY=3", NULL}},
    {"cosine-odd-vocabulary", 0, WEFT_BF16, {"ATTENTION=cosine", "VOCAB_SIZE=97", NULL}},
    {"dot", 0, WEFT_BF16, {"ATTENTION=dot", NULL}},
    {"w2-shared-keys", 0, WEFT_BF16, {"ATTENTION=w2", "KV_HEADS=2", "ATTENTION_BIAS=qkv", NULL}},
    {"llama",
     0,
     WEFT_BF16,
     {"ATTENTION=dot", "KV_HEADS=2", "NORM=rmsnorm", "POSITION=rope", "FFN=swiglu", NULL}},
};
enum { FORMS = sizeof forms / sizeof forms[0] };

typedef struct {
    weft_model *model;
    weft_pool *pool;
    weft_decoder *decoder;
    int64_t vocab;
    int32_t pages; /* given out so far */
} decoding;

static void need_backend(void) {
#ifdef ON_GPU
    if (weft_cuda_backend()) return;
    printf("%s\n", weft_error_message());
    skip();
#endif
}

/* `waits`: for each run, and on a GPU each is launched kernel by kernel. */
static const weft_backend *choose_backend(bool waits) {
#ifdef ON_GPU
    if (waits) {
        setenv("WEFT_CUDA_SAMPLER", "0", 1);
        setenv("WEFT_CUDA_GRAPH", "0", 1);
    } else {
        unsetenv("WEFT_CUDA_SAMPLER");
        unsetenv("WEFT_CUDA_GRAPH");
    }
    return weft_cuda_backend();
#else
    return waits ? weft_cpu_backend() : sampling_backend();
#endif
}

static void check(const form *f, weft_status status) {
    if (status != WEFT_OK) fail_msg("%s: %s", f->name, weft_error_message());
}

static void set(const form *f, weft_config *c, const char *text) {
    check(f, weft_config_override(c, text, "test"));
}

static void configure(const form *f, weft_config *c) {
    static const char *const all[] = {"N_LAYER=3",           "N_EMBD=128",  "N_HEAD=4",
                                      "VOCAB_SIZE=104",      "FFN=gelu",    "ATTENTION=mla",
                                      "RA_MLA_SCORE=dot",    "CONTEXT=300", "DROPOUT=0",
                                      "RA_MLA_LATENT_DIM=64"};
    weft_config_defaults(c);
    check(f, weft_config_step(c, f->step));
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        set(f, c, all[i]);
    for (int i = 0; f->settings[i]; i++)
        set(f, c, f->settings[i]);
}

static weft_model *make_model_with(const form *f, const char *setting) {
    model_case c = {.key = 7, .batch = 1, .time = 1};
    snprintf(c.name, sizeof c.name, "%s", f->name);
    configure(f, &c.config);
    if (setting) set(f, &c.config, setting);
    return model_case_weights(&c, f->dtype);
}

static weft_model *make_model(const form *f) {
    return make_model_with(f, NULL);
}

/* Takes the model over. */
static void open_decoding(const form *f, decoding *d, weft_model *m, int64_t slots, bool waits) {
    *d = (decoding){.model = m, .vocab = m->config.vocab_size};
    check(f, weft_pool_create(1, &d->pool));
    weft_decoder_limits limits = {slots, SEQUENCES * TABLE, CONTEXT, TABLE};
    check(f, weft_decoder_open(m, choose_backend(waits), d->pool, &limits, &d->decoder));
    assert_int_equal(weft_decoder_samples(d->decoder), !waits);
}

static void close_decoding(decoding *d) {
    weft_decoder_close(d->decoder);
    weft_pool_destroy(d->pool);
    weft_model_destroy(d->model);
}

/* A page for a row that is the first of one. They are given out as rows come by, so those of a sequence
 * lie among others', and those that a slot had before are somebody's. */
static void grow(decoding *d, const weft_decoder_row *row) {
    if (row->position % WEFT_PAGE_TOKENS) return;
    weft_decoder_table(d->decoder, row->slot)[row->position / WEFT_PAGE_TOKENS] = d->pages++;
}

static int32_t token_of(int64_t sequence, int64_t position) {
    return (int32_t)((sequence * 31 + position * position + 3 * position + 1) % 97);
}

/* Sequences that run at a time: each has a slot while it does. Two join before each step, as long as
 * there are slots; the length says when one leaves. */
typedef struct {
    int64_t of[SLOTS], at[SLOTS]; /* -1: nobody's; and tokens so far */
    int64_t joined;
} company;

static int64_t length_of(int64_t sequence) {
    return 1 + sequence * 37 % 90;
}

static int64_t next_rows(company *all, weft_decoder_row *rows) {
    int64_t n = 0, joining = 2;
    for (int32_t s = 0; s < SLOTS; s++) {
        if (all->of[s] >= 0 && all->at[s] >= length_of(all->of[s])) all->of[s] = -1;
        if (all->of[s] < 0 && joining > 0 && all->joined < SEQUENCES) {
            all->of[s] = all->joined++;
            all->at[s] = 0;
            joining--;
        }
        if (all->of[s] < 0) continue;
        int64_t at = all->at[s]++;
        rows[n++] = (weft_decoder_row){token_of(all->of[s], at), (int32_t)at, s, true};
    }
    return n;
}

/* All logits of all steps, in runs of up to `most` rows; malloc'd. */
static float *play(const form *f, int64_t most, bool waits, int64_t *numbers) {
    decoding d;
    company all = {0};
    int64_t room = (int64_t)STEPS * SLOTS * VOCAB, largest = 0;
    float *logits = calloc((size_t)room, sizeof *logits);
    assert_non_null(logits);
    for (int s = 0; s < SLOTS; s++)
        all.of[s] = -1;
    open_decoding(f, &d, make_model(f), SLOTS, waits);
    *numbers = 0;
    for (int t = 0; t < STEPS; t++) {
        weft_decoder_row rows[SLOTS];
        int64_t n = next_rows(&all, rows);
        largest = n > largest ? n : largest;
        for (int64_t r = 0; r < n; r++)
            grow(&d, &rows[r]);
        for (int64_t first = 0; first < n; first += most) {
            int64_t count = n - first < most ? n - first : most;
            check(f, weft_decoder_run(d.decoder, rows + first, count, logits + *numbers));
            *numbers += count * d.vocab;
        }
    }
    assert_true(largest > AT_ONCE);
    close_decoding(&d);
    return logits;
}

static void test_runs_have_the_bits_of_those_that_are_waited_for(void **state) {
    const form *f = *state;
    need_backend();
    int64_t n, m, finite = 0;
    float *want = play(f, AT_ONCE, true, &n), *got = play(f, SLOTS, false, &m);
    assert_int_equal(n, m);
    for (int64_t i = 0; i < n; i++) {
        finite += isfinite(want[i]) && want[i] != 0;
        if (memcmp(want + i, got + i, sizeof *got) != 0)
            fail_msg("%s: number %lld of %lld is %g, not %g", f->name, (long long)i, (long long)n,
                     (double)got[i], (double)want[i]);
    }
    assert_true(finite > n / 2);
    free(want);
    free(got);
}

/* Greedy text of one sequence that begins with a token, by its logits. */
static void continue_alone(const form *f, int32_t first, int32_t *text, int64_t steps) {
    decoding d;
    float logits[VOCAB];
    open_decoding(f, &d, make_model(f), 1, true);
    for (int32_t t = 0; t < steps; t++) {
        weft_decoder_row row = {t ? text[t - 1] : first, t, 0, true};
        grow(&d, &row);
        check(f, weft_decoder_run(d.decoder, &row, 1, logits));
        text[t] = 0;
        for (int32_t k = 1; k < d.vocab; k++)
            if (logits[k] > logits[text[t]]) text[t] = k;
    }
    close_decoding(&d);
}

/* Five texts of which the i-th ends after so many tokens: each run begins before the tokens of the one
 * before are here, and takes them from where they were sampled, in another row once one has left. */
static void test_sampled_tokens_go_on_where_they_were_sampled(void **state) {
    enum { TEXTS = 5, MOST = 60 };
    const form *f = *state;
    static const int64_t lengths[TEXTS] = {MOST, 17, 40, 33, 50};
    need_backend();
    int32_t want[TEXTS][MOST], got[2][WEFT_DECODER_ROWS_MAX];
    for (int i = 0; i < TEXTS; i++)
        continue_alone(f, 5 * i + 1, want[i], lengths[i]);
    decoding d;
    int of[2][TEXTS];
    int64_t n[2] = {0, 0};
    open_decoding(f, &d, make_model(f), TEXTS, false);
    for (int32_t t = 0; t <= MOST; t++) { /* begins run t, ends run t - 1 */
        weft_decoder_row rows[TEXTS];
        int now = t % 2, last = 1 - now;
        n[now] = 0;
        for (int i = 0; i < TEXTS; i++) {
            if (t >= lengths[i]) continue;
            int32_t row = 0; /* of the run before */
            while (t && of[last][row] != i)
                row++;
            of[now][n[now]] = i;
            rows[n[now]] = (weft_decoder_row){t ? -1 - row : 5 * i + 1, t, i, true};
            grow(&d, &rows[n[now]++]);
        }
        if (n[now]) check(f, weft_decoder_begin(d.decoder, rows, n[now], NULL));
        if (t == 0) continue;
        check(f, weft_decoder_end(d.decoder, got[last]));
        for (int64_t r = 0; r < n[last]; r++)
            if (got[last][r] != want[of[last][r]][t - 1])
                fail_msg("%s: token %d of text %d is %d, not %d", f->name, (int)t - 1, of[last][r],
                         (int)got[last][r], (int)want[of[last][r]][t - 1]);
    }
    close_decoding(&d);
}

/* Rows [from, to) of a slot's sequence, by runs or by reading. */
static void fill_slot(const form *f, decoding *d, int32_t slot, int32_t from, int32_t to,
                      bool reads) {
    int32_t tokens[CONTEXT];
    float logits[WEFT_DECODER_ROWS_MAX * VOCAB];
    weft_decoder_row rows[WEFT_DECODER_ROWS_MAX];
    int64_t most = weft_decoder_rows(d->decoder);
    for (int32_t t = from; t < to; t++) {
        tokens[t] = token_of(slot, t);
        grow(d, &(weft_decoder_row){tokens[t], t, slot, false});
    }
    if (reads) check(f, weft_decoder_read(d->decoder, slot, tokens + from, from, to - from));
    for (int32_t first = from; first < to && !reads; first += (int32_t)most) {
        int64_t n = to - first < most ? to - first : most;
        for (int32_t i = 0; i < n; i++)
            rows[i] = (weft_decoder_row){tokens[first + i], first + i, slot, false};
        check(f, weft_decoder_run(d->decoder, rows, n, logits));
    }
}

/* Of two prompts, each in two parts, the later of them short: the next tokens have the bits that they have
 * behind runs of rows. */
static void test_prompts_are_read_with_the_bits_of_rows(void **state) {
    enum { NEXT = 3, PARTS = 2 };
    const form *f = *state;
    need_backend();
    decoding d[2];
    float logits[2][2 * NEXT * VOCAB];
    memset(logits, 0, sizeof logits);
    for (int reads = 0; reads < 2; reads++) {
        open_decoding(f, &d[reads], make_model(f), 2, false);
        int32_t most = (int32_t)weft_decoder_reads(d[reads].decoder);
        int32_t first = most > 270 ? 270 : most - 1, ends[PARTS] = {first, first + 11};
        for (int part = 0; part < PARTS && most; part++)
            for (int32_t slot = 0; slot < 2; slot++)
                fill_slot(f, &d[reads], slot, part ? ends[part - 1] - 3 * slot : 0,
                          ends[part] - 3 * slot, reads);
        for (int32_t slot = 0; slot < 2 && most; slot++)
            for (int32_t i = 0, at = ends[PARTS - 1] - 3 * slot; i < NEXT; i++, at++) {
                weft_decoder_row row = {token_of(slot, at), at, slot, true};
                grow(&d[reads], &row);
                check(f, weft_decoder_run(d[reads].decoder, &row, 1,
                                          logits[reads] + (slot * NEXT + i) * VOCAB));
            }
        close_decoding(&d[reads]);
    }
    if (memcmp(logits[0], logits[1], sizeof *logits) != 0)
        fail_msg("%s: other bits behind prompts that were read", f->name);
}

#ifdef ON_GPU
/* The first of many rows, the middle one and the last against runs of one. */
static void test_many_rows_have_the_bits_they_have_alone(void **state) {
    enum { MANY = WEFT_RUN_ROWS, LENGTH = 20, CHECKED = 3 };
    const form *f = *state;
    need_backend();
    decoding all, one;
    weft_decoder_row rows[MANY], row;
    int32_t sampled[WEFT_DECODER_ROWS_MAX];
    float together[MANY * VOCAB], alone[VOCAB];
    open_decoding(f, &all, make_model(f), MANY, false);
    open_decoding(f, &one, make_model(f), CHECKED, false);
    assert_int_equal(weft_decoder_rows(all.decoder), MANY);
    for (int32_t t = 0; t < LENGTH; t++) {
        for (int32_t i = 0; i < MANY; i++) {
            rows[i] = (weft_decoder_row){(7 * i + 3 * t) % 96, t, i, true};
            grow(&all, &rows[i]);
        }
        check(f, weft_decoder_run(all.decoder, rows, MANY, together));
        for (int32_t k = 0; k < CHECKED; k++) {
            int32_t i = k * (MANY - 1) / (CHECKED - 1);
            row = (weft_decoder_row){rows[i].token, t, k, true};
            grow(&one, &row);
            check(f, weft_decoder_run_sampling(one.decoder, &row, 1, NULL, alone, sampled));
            if (memcmp(alone, together + i * all.vocab, (size_t)all.vocab * sizeof *alone) != 0)
                fail_msg("%s: token %d of row %d has other bits among %d", f->name, (int)t, (int)i,
                         (int)MANY);
        }
    }
    close_decoding(&all);
    close_decoding(&one);
}
#endif

/* Greedy text, and every other writer's drawn, the last by no rule. */
static weft_sampling sampling_of(int writer) {
    weft_sampling how = weft_sampling_default();
    how.max_tokens = 10 + 7 * writer;
    how.temperature = writer % 2 || writer + 1 == WRITERS ? 1 + 0.2 * (writer % 3) : 0;
    how.top_k = writer == 1 || writer == 3 ? 30 : 0;
    how.top_p = writer == 3 || writer == 5 ? 0.8 : 1;
    how.min_p = writer == 5 ? 0.1 : 0;
    how.repetition_penalty = writer == 3 || writer == 4 ? 1.3 : 1;
    how.seed = 5;
    how.token_only = true;
    return how;
}

/* Tokens, or the bits of their log-probabilities. */
static void write_all(const form *f, weft_generator *g, const int64_t *id, int n, bool bits,
                      int32_t (*texts)[MOST_TOKENS]) {
    int64_t count[WRITERS] = {0};
    while (weft_generator_busy(g)) {
        weft_sampled made;
        check(f, weft_generator_step(g));
        for (int i = 0; i < n; i++)
            while (weft_generator_take(g, id[i], &made) == WEFT_TAKE_TOKEN)
                memcpy(&texts[i][count[i]++], bits ? (void *)&made.logprob : (void *)&made.token,
                       sizeof **texts);
    }
    for (int i = 0; i < n; i++)
        assert_true(count[i] > 0);
}

/* Texts that a generator writes, of prompts that begin alike, whose pages are shared, but for the third:
 * four together, none waiting, so that runs go ahead; the others, of which one is drawn; and one that goes
 * on from the third, whose pages were filled while it was written. */
static void write_texts(const form *f, bool waits, int32_t (*texts)[MOST_TOKENS]) {
    enum { THIRD = 20 + 9 * 2, GOES_ON = THIRD + 10 + 7 * 2 };
    weft_model *m = make_model(f);
    weft_generator *g;
    weft_pool *pool;
    int64_t id[WRITERS];
    int32_t prompt[GOES_ON];
    for (int i = 0; i < GOES_ON; i++)
        prompt[i] = token_of(3, i);
    check(f, weft_pool_create(1, &pool));
    weft_generator_limits limits = {.sequences = 4, .context = CONTEXT};
    check(f, weft_generator_open(m, choose_backend(waits), pool, &limits, &g));
    for (int i = 0; i < WRITERS; i++) {
        weft_sampling how = sampling_of(i);
        prompt[0] = i == 2 ? 50 : 51;
        prompt[THIRD + i] = i;
        check(f, weft_generator_add(g, prompt, 20 + 9 * i < 60 ? 20 + 9 * i : 60, &how, &id[i]));
        if (i == 3) write_all(f, g, id, 4, false, texts);
    }
    write_all(f, g, id + 4, WRITERS - 4, false, texts + 4);
    prompt[0] = 50;
    memcpy(prompt + THIRD, texts[2], (GOES_ON - THIRD) * sizeof *prompt);
    weft_sampling how = sampling_of(1);
    how.token_only = false;
    check(f, weft_generator_add(g, prompt, GOES_ON, &how, id));
    write_all(f, g, id, 1, true, texts + WRITERS);
    assert_true(weft_generator_shared(g, id[0]) > THIRD);
    weft_generator_close(g);
    weft_pool_destroy(pool);
    weft_model_destroy(m);
}

/* Whether runs draw tokens, or leave all but the likeliest to the host. */
static void set_draws(bool on) {
#ifdef ON_GPU
    if (on)
        unsetenv("WEFT_CUDA_DRAW");
    else
        setenv("WEFT_CUDA_DRAW", "0", 1);
#else
    sampling_leave_draws(!on);
#endif
}

static void test_a_generator_writes_the_same_texts(void **state) {
    const form *f = *state;
    static int32_t want[WRITERS + 1][MOST_TOKENS], got[WRITERS + 1][MOST_TOKENS];
    need_backend();
    memset(want, 0, sizeof want);
    write_texts(f, true, want);
    for (int draws = 1; draws >= 0; draws--) {
        memset(got, 0, sizeof got);
        set_draws(draws);
        write_texts(f, false, got);
        set_draws(true);
        for (int i = 0; i <= WRITERS; i++)
            for (int t = 0; t < MOST_TOKENS; t++)
                if (want[i][t] != got[i][t])
                    fail_msg("%s: token %d of text %d is %d, not %d", f->name, t, i, (int)got[i][t],
                             (int)want[i][t]);
    }
}

/* The first tokens of a text, which is stopped then and gone on with behind more: the bits of what is
 * written there. */
static void write_in_two(const form *f, bool waits, int32_t *text) {
    enum { PROMPT = 20, MORE = 3, FIRST = 6 };
    weft_model *m = make_model(f);
    weft_generator *g;
    weft_pool *pool;
    weft_sampled made;
    int64_t id, n = 0;
    int32_t prompt[PROMPT + MORE];
    for (int i = 0; i < PROMPT + MORE; i++)
        prompt[i] = token_of(5, i);
    check(f, weft_pool_create(1, &pool));
    weft_generator_limits limits = {.sequences = 2, .context = CONTEXT, .no_sharing = true};
    check(f, weft_generator_open(m, choose_backend(waits), pool, &limits, &g));
    weft_sampling how = sampling_of(2);
    check(f, weft_generator_add(g, prompt, PROMPT, &how, &id));
    while (n < FIRST) {
        check(f, weft_generator_step(g));
        while (weft_generator_take(g, id, &made) == WEFT_TAKE_TOKEN)
            n++;
    }
    assert_int_equal(n, FIRST);
    weft_generator_stop(g, id);
    how.token_only = false;
    check(f, weft_generator_extend(g, id, prompt + PROMPT, MORE, &how));
    write_all(f, g, &id, 1, true, (int32_t(*)[MOST_TOKENS])text);
    weft_generator_close(g);
    weft_pool_destroy(pool);
    weft_model_destroy(m);
}

/* A run is under way when a text is stopped. What a sequence keeps beside its pages has then seen a token
 * that the text goes on without. */
static void test_a_text_that_was_stopped_is_gone_on_with(void **state) {
    const form *f = *state;
    int32_t want[MOST_TOKENS] = {0}, got[MOST_TOKENS] = {0};
    need_backend();
    write_in_two(f, true, want);
    write_in_two(f, false, got);
    for (int t = 0; t < MOST_TOKENS; t++)
        if (want[t] != got[t]) fail_msg("%s: token %d has other bits", f->name, t);
}

#ifndef ON_GPU

/* Two texts; *failed: steps that did, and were tried again. */
static void write_through(const form *f, int nth, int32_t (*texts)[MOST_TOKENS], int *failed) {
    weft_model *m = make_model(f);
    weft_generator *g;
    weft_pool *pool;
    int64_t id[2], count[2] = {0};
    int32_t prompt[20];
    check(f, weft_pool_create(1, &pool));
    weft_generator_limits limits = {.sequences = 2, .context = CONTEXT, .no_sharing = true};
    check(f, weft_generator_open(m, choose_backend(false), pool, &limits, &g));
    for (int i = 0; i < 2; i++) {
        weft_sampling how = sampling_of(i + 1);
        for (int t = 0; t < 20; t++)
            prompt[t] = token_of(i, t);
        check(f, weft_generator_add(g, prompt, 20 - 3 * i, &how, &id[i]));
    }
    sampling_fail(nth);
    while (weft_generator_busy(g)) {
        weft_sampled made;
        if (weft_generator_step(g) != WEFT_OK) {
            assert_string_equal(weft_error_message(), "a run failed");
            ++*failed;
        }
        for (int i = 0; i < 2; i++)
            while (weft_generator_take(g, id[i], &made) == WEFT_TAKE_TOKEN)
                texts[i][count[i]++] = made.token;
    }
    sampling_fail(0);
    weft_generator_close(g);
    weft_pool_destroy(pool);
    weft_model_destroy(m);
}

/* Whichever run fails, of prompts or of tokens, waited for or ahead. */
static void test_a_step_that_failed_is_tried_again(void **state) {
    const form *f = *state;
    static int32_t want[2][MOST_TOKENS], got[2][MOST_TOKENS];
    int failed = 0;
    memset(want, 0, sizeof want);
    write_through(f, 0, want, &failed);
    for (int nth = 1; nth <= 22; nth += 3) {
        memset(got, 0, sizeof got);
        write_through(f, nth, got, &failed);
        if (memcmp(want, got, sizeof want) != 0)
            fail_msg("%s: other texts where run %d failed", f->name, nth);
    }
    assert_int_equal(failed, 8);
}

/* A run may have as many rows as a block of a prompt. It is sampled all the same, and the block is not; so
 * where rows of several prompts make up such a run. */
static void test_a_run_of_as_many_rows_as_a_block_has_is_none(void **state) {
    enum { PROMPTS = 4, LENGTH = WEFT_DECODER_BLOCK / PROMPTS };
    const form *f = *state;
    decoding d;
    weft_decoder_row rows[WEFT_DECODER_BLOCK];
    int32_t prompt[LENGTH];
    float *logits = malloc((size_t)WEFT_DECODER_BLOCK * VOCAB * sizeof *logits);
    sampling_set_rows(WEFT_DECODER_BLOCK);
    open_decoding(f, &d, make_model(f), 2, false);
    for (int32_t slot = 0; slot < 2; slot++) {
        for (int32_t t = 0; t < WEFT_DECODER_BLOCK; t++) {
            rows[t] = (weft_decoder_row){t % 96, t, slot, true};
            grow(&d, &rows[t]);
        }
        sampling_fail(1);
        if (slot == 0)
            check(f, weft_decoder_run_block(d.decoder, rows, logits));
        else
            assert_int_equal(weft_decoder_run(d.decoder, rows, WEFT_DECODER_BLOCK, logits),
                             WEFT_EIO);
    }
    weft_generator *g;
    weft_generator_limits limits = {.sequences = PROMPTS, .no_sharing = true};
    weft_sampling how = weft_sampling_default();
    how.token_only = true;
    how.temperature = 0;
    check(f, weft_generator_open(d.model, choose_backend(false), d.pool, &limits, &g));
    for (int i = 0; i < PROMPTS; i++) {
        int64_t id;
        for (int t = 0; t < LENGTH; t++)
            prompt[t] = (i + 3 * t) % 96;
        check(f, weft_generator_add(g, prompt, LENGTH, &how, &id));
    }
    sampling_fail(1);
    assert_int_equal(weft_generator_step(g), WEFT_EIO);
    sampling_fail(0);
    sampling_set_rows(WEFT_FEW_ROWS);
    weft_generator_close(g);
    close_decoding(&d);
    free(logits);
}

#endif

/* Sets numbers of a weight from `first` on. */
static void set_weight(weft_model *m, const char *name, int64_t first, int64_t count,
                       double value) {
    weft_weight *w = weft_model_find(m, name);
    assert_non_null(w);
    double *values = malloc((size_t)w->count * sizeof *values);
    weft_weight_read(w, values);
    for (int64_t i = 0; i < count; i++)
        values[first + i] = value;
    weft_weight_write(w, values);
    free(values);
}

static void check_draws(const form *f, weft_model *m) {
    decoding d;
    open_decoding(f, &d, m, SAMPLING_RULES, false);
    for (int32_t k = 0; k < SAMPLING_RULES; k++)
        weft_decoder_table(d.decoder, k)[0] = SAMPLING_RULES - 1 - k;
    sampling_check_draws(f->name, d.decoder, d.vocab);
    close_decoding(&d);
}

static void test_tokens_are_drawn_as_the_host_draws_them(void **state) {
    need_backend();
    check_draws(*state, make_model(*state));
}

/* From one token to many, of both types; where all are as likely, and where all but a few are. */
static void test_tokens_are_drawn_from_vocabularies_of_all_sizes(void **state) {
    static const char *const sizes[] = {"VOCAB_SIZE=1",     "VOCAB_SIZE=33",    "VOCAB_SIZE=1025",
                                        "VOCAB_SIZE=5000",
#ifdef ON_GPU
                                        "VOCAB_SIZE=50257", "VOCAB_SIZE=200000"
#endif
    };
    (void)state;
    need_backend();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        form f = {sizes[i], 0, i % 2 ? WEFT_F32 : WEFT_BF16, {"WEIGHT_TYING=n", "N_LAYER=1", NULL}};
        for (int kind = 0; kind < 3; kind++) {
            weft_model *m = make_model_with(&f, sizes[i]);
            int64_t width = m->config.n_embd, count = m->config.vocab_size * width;
            if (kind > 0) set_weight(m, "lm_head.weight", 0, count, 0);
            if (kind > 1) set_weight(m, "lm_head.weight", count - width, width, 1);
            check_draws(&f, m);
        }
    }
}

static void test_logits_that_are_not_numbers_give_no_token(void **state) {
    const form *f = *state;
    need_backend();
    decoding d;
    weft_model *m = make_model(f);
    set_weight(m, "ln_f.weight", 5, 1, NAN);
    weft_decoder_row row = {1, 0, 0, true};
    open_decoding(f, &d, m, 1, false);
    int32_t token;
    grow(&d, &row);
    check(f, weft_decoder_begin(d.decoder, &row, 1, NULL));
    check(f, weft_decoder_end(d.decoder, &token));
    assert_int_equal(token, -1);
    close_decoding(&d);
}

/* One token's embedding is broken. Behind it, what the cache holds of it breaks the text. */
static void test_a_token_that_breaks_a_text_is_kept_as_such(void **state) {
    const form *f = *state;
    need_backend();
    decoding d;
    weft_model *m = make_model_with(f, "WEIGHT_TYING=n");
    set_weight(m, "wte.weight", 3 * m->config.n_embd, m->config.n_embd, NAN);
    open_decoding(f, &d, m, 2, false);
    int32_t sampled[2];
    for (int32_t t = 0; t < 3; t++) {
        weft_decoder_row rows[2] = {{t == 1 ? 3 : 4, t, 0, true}, {4, t, 1, true}};
        grow(&d, &rows[0]);
        grow(&d, &rows[1]);
        check(f, weft_decoder_begin(d.decoder, rows, 2, NULL));
        check(f, weft_decoder_end(d.decoder, sampled));
        assert_int_equal(sampled[0] < 0, t >= 1);
        assert_true(sampled[1] >= 0);
    }
    close_decoding(&d);
}

/* The first token that the model does not know, and a row of the run before that there cannot be. */
static void test_tokens_that_there_are_not_are_refused(void **state) {
    const form *f = *state;
    need_backend();
    decoding d;
    int32_t sampled[1];
    open_decoding(f, &d, make_model(f), 1, false);
    weft_decoder_row row = {(int32_t)d.vocab, 0, 0, true};
    grow(&d, &row);
    assert_int_equal(weft_decoder_begin(d.decoder, &row, 1, NULL), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "the model knows 0 to"));
    row.token = -WEFT_RUN_ROWS - 1;
    assert_int_equal(weft_decoder_begin(d.decoder, &row, 1, NULL), WEFT_EINPUT);
    row.token = (int32_t)d.vocab - 1;
    check(f, weft_decoder_begin(d.decoder, &row, 1, NULL));
    check(f, weft_decoder_end(d.decoder, sampled));
    close_decoding(&d);
}

int main(void) {
    struct CMUnitTest tests[9 * FORMS + 3];
    int n = 0;
    const char *only = getenv("WEFT_TEST_FORM"); /* one of them */
    for (int i = 0; i < FORMS; i += test_is_quick() ? 5 : 1) {
        if (only && strcmp(only, forms[i].name) != 0) continue;
        void *f = (void *)(uintptr_t)(forms + i);
        tests[n++] = (struct CMUnitTest){"test_runs_have_the_bits_of_those_that_are_waited_for",
                                         test_runs_have_the_bits_of_those_that_are_waited_for, NULL,
                                         NULL, f};
        tests[n++] =
            (struct CMUnitTest){"test_sampled_tokens_go_on_where_they_were_sampled",
                                test_sampled_tokens_go_on_where_they_were_sampled, NULL, NULL, f};
        tests[n++] =
            (struct CMUnitTest){"test_tokens_are_drawn_as_the_host_draws_them",
                                test_tokens_are_drawn_as_the_host_draws_them, NULL, NULL, f};
        tests[n++] = (struct CMUnitTest){"test_a_generator_writes_the_same_texts",
                                         test_a_generator_writes_the_same_texts, NULL, NULL, f};
        tests[n++] =
            (struct CMUnitTest){"test_a_text_that_was_stopped_is_gone_on_with",
                                test_a_text_that_was_stopped_is_gone_on_with, NULL, NULL, f};
        tests[n++] =
            (struct CMUnitTest){"test_logits_that_are_not_numbers_give_no_token",
                                test_logits_that_are_not_numbers_give_no_token, NULL, NULL, f};
        tests[n++] =
            (struct CMUnitTest){"test_a_token_that_breaks_a_text_is_kept_as_such",
                                test_a_token_that_breaks_a_text_is_kept_as_such, NULL, NULL, f};
        tests[n++] =
            (struct CMUnitTest){"test_prompts_are_read_with_the_bits_of_rows",
                                test_prompts_are_read_with_the_bits_of_rows, NULL, NULL, f};
#ifdef ON_GPU
        tests[n++] =
            (struct CMUnitTest){"test_many_rows_have_the_bits_they_have_alone",
                                test_many_rows_have_the_bits_they_have_alone, NULL, NULL, f};
#else
        tests[n++] = (struct CMUnitTest){"test_a_step_that_failed_is_tried_again",
                                         test_a_step_that_failed_is_tried_again, NULL, NULL, f};
#endif
    }
    tests[n++] =
        (struct CMUnitTest){"test_tokens_are_drawn_from_vocabularies_of_all_sizes",
                            test_tokens_are_drawn_from_vocabularies_of_all_sizes, NULL, NULL, NULL};
#ifndef ON_GPU
    tests[n++] = (struct CMUnitTest){"test_a_run_of_as_many_rows_as_a_block_has_is_none",
                                     test_a_run_of_as_many_rows_as_a_block_has_is_none, NULL, NULL,
                                     (void *)(uintptr_t)forms};
#endif
    tests[n++] = (struct CMUnitTest){"test_tokens_that_there_are_not_are_refused",
                                     test_tokens_that_there_are_not_are_refused, NULL, NULL,
                                     (void *)(uintptr_t)forms};
    return _cmocka_run_group_tests("device sampling", tests, (size_t)n, NULL, NULL);
}
