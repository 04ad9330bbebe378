/* The tables of `weft bench` and what they are made of: what all of them are told, measurements, lines and
 * JSON. */
#pragma once

#include "bench/variants.h"
#include "data/tokenizer.h"
#include "model/model.h"

/* What a benchmark is told, as `weft bench` has it; NULL and 0: nothing was said. */
typedef struct {
    const char *peer; /* its command line: see bench/peer.h */
    int threads;      /* for both sides; 0: one a processor */
    FILE *table;      /* for people; NULL: none */
    FILE *json;       /* the same for a program; NULL: none */
    bench_config_source source;
    const char *shape; /* the source's */
    const char *
        variants; /* names with commas; NULL: the shape's; of generation: dot, w2, mla and its mechanisms */
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
    bool grid;      /* the rows of bench/decode_grid.h in place of these */
    double minutes; /* after which no row begins; 0: it takes what it takes */
    /* Of drafts, and of a server, which has the model's folder too. */
    const char *speculate, *model, *text;
    /* Of a server. */
    const char *url, *words; /* words: of the server that is started */
    char host[256];
    int port;
    int64_t vocab;     /* prompts are tokens below this */
    const char *rates; /* requests in a second, with commas */
    const char *prompts,
        *tokens;         /* tokens of prompts and of texts, from which each request draws one */
    int64_t requests;    /* of a row */
    int64_t long_prompt; /* tokens; 0: that is left out; below 0: not given */
    int64_t streams;     /* texts beside it */
    int64_t seed;
    int64_t good_first,
        good_between; /* ms within which the first token, and on average the others, come in a
                                             request that counts as good */
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

/* Sleeps, so that threads of the other side which still spin for work go to sleep first. */
void bench_pause(double seconds);

/* Measurements of one thing, in seconds. Starts as {0}; bench_samples_free gives it back. */
typedef struct {
    double *value;
    size_t count;
    int64_t room;
} bench_samples;

/* Ends the program when there is no memory: a benchmark has nothing to save. */
void bench_samples_add(bench_samples *s, double seconds);
void bench_samples_free(bench_samples *s);

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
