/* The tables of `weft bench` and what they are made of: what all of them are told, measurements, lines and
 * JSON. */
#pragma once

#include "config/config.h"
#include "core/exec.h"
#include "data/tokenizer.h"
#include "model/model.h"

#include <jansson.h>

/* The variants that training and generation are measured for, and the shapes they are measured at. */

/* A mix of attention, feed-forward and mechanisms: what it sets over a shape. */
typedef struct {
    const char *name;     /* for --variants */
    const char *label;    /* in the table */
    int step;             /* of the ablation: sets the three mechanisms */
    const char *settings; /* KEY=VALUE with blanks between */
} bench_variant;

typedef struct {
    const char *name;
    const char *variants; /* those measured when none are named; NULL: all */
    int steps;            /* measured when no number is given */
    const char *settings;
} bench_shape;

extern const bench_variant bench_variants[];
extern const int bench_variant_count;

/* NULL where there is none of that name. The name ends at a comma or at the end of the text. */
const bench_variant *bench_variant_find(const char *name);
const bench_shape *bench_shape_find(const char *name);

/* Where a row's config comes from, lowest first: the shape or else a file, what is set over it, the
 * variant, settings. */
typedef struct {
    const bench_shape *shape;
    const char *file; /* NULL: the shape */
    const char *over; /* KEY=VALUE with blanks between; NULL: nothing */
    const weft_override *settings;
    int n_settings;
} bench_config_source;

weft_status bench_variant_config(const bench_variant *v, const bench_config_source *from,
                                 weft_config *c);

/* What a benchmark is told, as `weft bench` has it; NULL and 0: nothing was said. */
typedef struct {
    const char *peer; /* its command line: see below */
    int threads;      /* for both sides; 0: one a processor */
    FILE *table;      /* for people; NULL: none */
    FILE *json;       /* the same for a program; NULL: none */
    bench_config_source source;
    const char *shape; /* the source's */
    /* Names with commas; NULL: the shape's; of generation: dot, w2, mla and its mechanisms. */
    const char *variants;
    const char *rows; /* only rows with this word in their operation or name; NULL: all */
    int64_t steps;    /* measured per row; 0: the shape's; of generation: by time */
    double settle;    /* seconds of training steps before those; below 0: not given */
    bool profile;     /* print where each row's time goes, to standard error */
    bool quick;       /* the main rows of operations, under a minute */
    /* Of generation. */
    const char *contexts; /* with commas; NULL: 256,2048,8192,32768 */
    const char *batches;  /* with commas; NULL: 1,8,64 */
    const char *prompt_text;
    int64_t prompt; /* tokens before the first; 0: that is not measured */
    bool cuda;      /* on the GPU */
    bool grid;      /* the rows of decode_grid.c in place of these */
    double minutes; /* after which no row begins; 0: it takes what it takes */
    /* Of drafts, and of a server, which has the model's folder too. */
    const char *speculate, *model, *text;
    /* Of a server. */
    const char *url, *words; /* words: of the server that is started */
    char host[256];
    int port;
    int64_t vocab;                /* prompts are tokens below this */
    const char *rates;            /* requests in a second, with commas */
    const char *prompts, *tokens; /* of prompts and of texts; each request draws one of them */
    int64_t requests;             /* of a row */
    int64_t long_prompt;          /* tokens; 0: that is left out; below 0: not given */
    int64_t streams;              /* texts beside it */
    int64_t seed;
    /* ms within which the first token, and on average the others, come in a request that counts as good. */
    int64_t good_first, good_between;
} bench_options;

/* Training: one row per variant, with tokens per second, memory against the plan, the part of the machine's
 * limit, and a peer's tokens per second in the same run. `failed`: how many rows gave no numbers, or are not
 * the peer's function by their losses; each has said so in a line on standard error. An error is one of the
 * input: no row was measured. */
weft_status bench_train_table(const bench_options *o, int *failed);

/* Operations: each row's time, its rate, what part of the machine's own limit that is, and a peer's time for
 * the same function in the same run. `differing`: how many rows are not the peer's function by their
 * numbers. */
weft_status bench_op_table(const bench_options *o, int *differing);

/* Generation: what a token costs, for each variant, context and batch. `failed`: rows that could not be
 * measured. */
weft_status bench_decode_table(const bench_options *o, int *failed);
/* One row of it, of a model that is there: behind a full CONTEXT. */
weft_status bench_decode_model(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                               int64_t batch, double *tokens_per_s);

/* Speculation (generate/generator.h): what is accepted and gained, on text that the model was trained on and on
 * another. */
typedef struct {
    const weft_model *model, *draft; /* no draft: by n-grams */
    weft_encoder *encoder;           /* NULL: tokens are numbers, and there is no other text */
    const weft_backend *backend;
    weft_pool *pool;
    const char *other, *other_name; /* the other text */
} bench_drafting;

weft_status bench_speculate_table(const bench_options *o, const bench_drafting *d);

/* A server under load: a row for each rate at which requests arrive, by chance and independent of each other (a
 * Poisson process), whether the server has answered the others or not; then texts that are being written while
 * a long prompt is read. `failed`: requests that were neither answered nor refused by a full queue. */
weft_status bench_serve_table(const bench_options *o, int *failed);

/* Numbers with commas between them, in units of `unit`: 1, or a thousandth. */
enum { BENCH_LIST_MAX = 16 };
weft_status bench_list_read(const char *text, const char *what, double unit, int64_t *list, int *n);

/* Sleeps 5 ms, so that threads of the other side which still spin for work go to sleep first. */
void bench_pause(void);

/* Measurements of one thing, in seconds. Starts as {0}; bench_samples_free gives it back. */
typedef struct {
    double *value;
    size_t count;
    int64_t room;
} bench_samples;

/* Ends the program when there is no memory: a benchmark has nothing to save. */
void bench_samples_add(bench_samples *s, double seconds);
void bench_samples_free(bench_samples *s);

/* Runs it so many times and adds the times. */
weft_status bench_time(weft_exec *x, int repeats, bench_samples *to);

/* The value below which a part `p` of the measurements lies, interpolated; 0 without measurements. */
double bench_quantile(const bench_samples *s, double p);
/* The middle value, and half the distance of the quartiles as a part of it: half of all measurements
 * lie within median · (1 ± spread), roughly. 0 without measurements. */
double bench_median(const bench_samples *s);
double bench_spread(const bench_samples *s);

/* A table for people, a line as soon as it is known. */
enum { BENCH_COLUMNS_MAX = 20 };

typedef struct {
    FILE *to; /* NULL: nothing is printed */
    struct {
        char title[24];
        int width; /* characters; negative: to the left */
    } column[BENCH_COLUMNS_MAX];
    int columns, next; /* the cell to be printed */
} bench_table;

/* Prints the titles and a rule below them: "variant:-14|context:7" has two columns of these widths. */
void bench_table_start(bench_table *t, FILE *to, const char *columns);

/* The next cells of the current line, as printf with '|' between them; the last ends it. One that is not
 * a number says "-". */
void bench_cells(bench_table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Writes the object, which it takes over; NULL: there was no memory for it. */
weft_status bench_write_json(FILE *to, json_t *all);

/* What this machine can do at most, so that a rate can be told as a part of it: multiply-adds in
 * registers alone for what computes, a copy for what moves memory; on a GPU a large matrix product. */
typedef struct bench_limits bench_limits;

/* Fails without memory for the operands of the copy, which are made only with `copies`. */
weft_status bench_limits_create(weft_pool *pool, bool copies, bench_limits **out);
void bench_limits_destroy(bench_limits *l);
WEFT_ENDED_BY(bench_limits_destroy, bench_limits)

/* One measurement, in 1e9 a second: floating-point operations of a loop that reads no memory, on each
 * thread of the pool at once, in float or by the processor's instructions for bf16, or in float too where
 * it has none; bytes read and written by a copy of 256 MiB, shared out over the threads (0 without
 * `copies`). */
double bench_limit_gflops(bench_limits *l, bool bf16);
double bench_limit_gbytes(bench_limits *l);

/* The best of a few measurements of the first, in operations per second: what counts as full use of
 * the machine. 0: unknown. */
double bench_peak_flops(weft_pool *pool, bool bf16);
/* What of that a whole training run comes to, evaluation and saving included. */
#define BENCH_TRAINING_SHARE 0.3

/* 1e9 floating-point operations per second of a large matrix product on a backend, the median of a few;
 * 0: it could not be run there. */
double bench_product_gflops(const weft_backend *backend, weft_pool *pool, bool bf16);

/* A peer: another program that is measured in the same run, one JSON request per line, one JSON reply
 * a line. bench/peer.py and bench/peer_train.py say what they can be asked. */
typedef struct bench_peer bench_peer;

/* Starts the command line, by the shell, and greets it. NULL where there is no peer; `why`, of `size`
 * bytes, then has one line on the reason, else the peer's name for itself. The caller ignores
 * SIGPIPE, so that a peer that is gone is an answer and not an end. */
bench_peer *bench_peer_start(const char *command, int threads, char *why, size_t size);
void bench_peer_stop(bench_peer *p);

/* Sends `request`, which it takes over, and waits for the reply: the caller's to json_decref. NULL
 * when the peer answered with an error, or is gone: bench_peer_error says which. One that is gone
 * stays so. */
json_t *bench_peer_ask(bench_peer *p, json_t *request);
const char *bench_peer_error(const bench_peer *p);
bool bench_peer_gone(const bench_peer *p);

/* What was measured of a row, in turns: both sides, and the machine's limit as seconds for 1e9 units. */
typedef struct {
    bench_samples ours, peers, limit;
} bench_sides;
void bench_sides_free(bench_sides *s);

/* Has what was prepared run `repeats` times and adds the times. False on an error. */
bool bench_peer_run(bench_peer *p, int repeats, bench_samples *to);

/* The rows of generation's table, and the grid: rows of several models, chosen so that every model, variant, batch
 * and context occurs, and few enough that a GPU measures them beside another program in ten minutes. */
enum { BENCH_GRID_MAX = 50, BENCH_ROW_NAME = 128 };

typedef struct {
    const char *model; /* the grid's name for it; NULL: the table has one model */
    const bench_variant *variant;
    int64_t context, batch;
    weft_config config; /* CONTEXT is the longest of the rows of this model */
} bench_decode_row;

/* "gpt2-124m, dot, context 1024, batch 64". */
const char *bench_row_name(const bench_decode_row *r, char name[BENCH_ROW_NAME]);

/* Whether two rows are measured with the same weights. */
bool bench_row_same_model(const bench_decode_row *a, const bench_decode_row *b);

/* The grid's rows whose names have the word that was asked for. On a CPU, those that take seconds and not minutes.
 * `rows` has room for BENCH_GRID_MAX. */
weft_status bench_grid_list(const bench_options *o, bench_decode_row *rows, int *n);

/* Prints below the table what its rows, as they are in the JSON, say together: the geometric mean of the ratios to
 * the peer, the worst row and how many are behind. Gives the same as an object that the caller owns. */
json_t *bench_grid_summary(const json_t *rows, FILE *to);

/* The rows of the operations' table: what is built, with which sizes, and what the peer calls it. */
enum { BENCH_MAX_LEAVES = 64, BENCH_MAX_OUTPUTS = 2 };

/* Sizes by the names that peer.py reads; 0: the row has none of that name. */
typedef struct {
    int64_t m, n, k;     /* rows; columns of the result; length of the sums */
    int64_t b, t, h, kv; /* batch, tokens, query heads, key heads */
    int64_t dqk, dv;
    int64_t e, v; /* width, vocabulary */
    int64_t copies;
    int64_t bf16; /* 1: operands and result are bf16, not f32 */
} bench_sizes;

/* A tensor that the caller fills: the hash of `salt`, times scale, plus shift. */
typedef struct {
    weft_tensor *tensor;
    uint32_t salt;
    float scale, shift;
} bench_leaf;

typedef struct {
    weft_graph *graph;
    bool backward;
    bench_leaf leaf[BENCH_MAX_LEAVES];
    int leaves;
    int wanted; /* the first leaves have gradients, in the peer's order */
    weft_tensor *output[BENCH_MAX_OUTPUTS];
    int outputs;
} bench_graph;

typedef struct bench_row bench_row;
struct bench_row {
    const char *group; /* product, linear, decode, attention, norm, optimizer, cross-entropy */
    const char *label;
    const char *op; /* the peer's name for it */
    bench_sizes sizes;
    void (*build)(bench_graph *g, const bench_row *row);
    bool forward_only;
    bool quick;         /* measured in the quick mode too */
    bool longer;        /* measured for longer: a row that others are judged by */
    int64_t traffic[2]; /* bytes moved, forward and with backward; 0: compute counts */
};

/* A product as large as any model's, by which a device's limit is measured: f32, bf16. */
extern const bench_row bench_limit_rows[2];

extern const bench_row bench_op_rows[];
extern const int bench_op_row_count;

/* The graph of a row. Errors are in weft_graph_status(g->graph). */
weft_status bench_graph_build(const bench_row *row, bool backward, bench_graph *g);

static inline void bench_graph_free(bench_graph *g) {
    weft_graph_destroy(g->graph);
}

json_t *bench_row_sizes(const bench_row *row);

weft_status bench_graph_fill(const bench_graph *g, weft_exec *x);

/* The root mean squares of the outputs, then of the gradients; returns how many. */
int bench_graph_rms(const bench_graph *g, weft_exec *x, double *rms);
