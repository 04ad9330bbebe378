/* A config: every option's value, typed. Read from Kconfig-style text, from overrides, or from a
 * checkpoint's config.json; checked as a whole before anything is built.
 *
 * options.h defines the options; this header makes the struct. */
#ifndef WEFT_CONFIG_CONFIG_H
#define WEFT_CONFIG_CONFIG_H

#include "core/error.h"
#include "config/options.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { WEFT_TEXT_MAX = 4096 };

#define FIELD_GROUP(title)
#define FIELD_BOOL(field, key, fallback, depends, help) bool field;
#define FIELD_INT(field, key, fallback, min, max, depends, help) int64_t field;
#define FIELD_NUMBER(field, key, fallback, min, max, depends, help) double field;
#define FIELD_WORD(field, key, fallback, words, depends, help) int field;
#define FIELD_TEXT(field, key, fallback, depends, help) char field[WEFT_TEXT_MAX];

typedef struct {
    WEFT_OPTIONS(FIELD_GROUP, FIELD_BOOL, FIELD_INT, FIELD_NUMBER, FIELD_WORD, FIELD_TEXT)
} weft_config;

/* The words of the WORD options, in the order of options.h. */
enum { WEFT_ATTENTION_DOT, WEFT_ATTENTION_W2, WEFT_ATTENTION_MLA };
enum { WEFT_FFN_GELU, WEFT_FFN_SWIGLU, WEFT_FFN_WSFFN };
enum {
    WEFT_POSITION_LEARNED,
    WEFT_POSITION_ROPE,
    WEFT_POSITION_ALIBI,
    WEFT_POSITION_RELATIVE,
    WEFT_POSITION_NONE
};
enum { WEFT_NORM_LAYERNORM, WEFT_NORM_RMSNORM };
enum { WEFT_PLACEMENT_PRE, WEFT_PLACEMENT_POST };
enum { WEFT_KERNEL_W2, WEFT_KERNEL_OVERLAP };
enum { WEFT_Z_DENSE, WEFT_Z_GROUPED };
enum { WEFT_SCORE_DOT, WEFT_SCORE_W2 };
enum { WEFT_GATE_TOKEN, WEFT_GATE_CUMMEAN, WEFT_GATE_SEQUENCE };
enum { WEFT_SPARSE_TOPK, WEFT_SPARSE_RMS, WEFT_SPARSE_NONE };
enum { WEFT_TYING_UNTIED, WEFT_TYING_TRANSPOSE, WEFT_TYING_SCALAR };
enum { WEFT_SCHEDULE_COSINE, WEFT_SCHEDULE_CONSTANT, WEFT_SCHEDULE_WSD };
enum { WEFT_OPTIMIZER_ADAMW, WEFT_OPTIMIZER_ADAMWSPAM };
enum { WEFT_CONFIG_F32, WEFT_CONFIG_BF16, WEFT_CONFIG_F64 };
enum { WEFT_DEVICE_AUTO, WEFT_DEVICE_CPU, WEFT_DEVICE_CUDA };
enum { WEFT_INIT_NORMAL, WEFT_INIT_ORTHOGONAL };
enum {
    WEFT_EQUAL_ITERS,
    WEFT_EQUAL_TOKENS,
    WEFT_EQUAL_PARAMETERS,
    WEFT_EQUAL_FLOPS,
    WEFT_EQUAL_TIME
};
enum { WEFT_STUDY_SCORE_VAL_LOSS, WEFT_STUDY_SCORE_TRAIN_LOSS, WEFT_STUDY_SCORE_METRIC };

typedef enum {
    WEFT_OPT_BOOL,
    WEFT_OPT_INT,
    WEFT_OPT_NUMBER,
    WEFT_OPT_WORD,
    WEFT_OPT_TEXT
} weft_option_type;

/* One option as data: for readers, writers, help and the Kconfig file. */
typedef struct {
    const char *group; /* its heading */
    const char *key;   /* "N_LAYER" */
    weft_option_type type;
    const char *fallback; /* as text */
    double min, max;      /* INT, NUMBER */
    const char *words;    /* WORD: "dot w2 mla" */
    const char *depends;
    const char *help;
    size_t offset; /* of the field in weft_config */
} weft_option;

/* All options in order, and how many. */
const weft_option *weft_options(int *count);
/* By key with or without CONFIG_, in either case; NULL: unknown. */
const weft_option *weft_option_find(const char *key);

void weft_config_defaults(weft_config *c);

/* Sets one option from text; quotes around the value are taken off. `where` names the source in
 * errors ("demo.config:12", "-o"). An unknown key names the nearest known one. */
weft_status weft_config_set(weft_config *c, const char *key, const char *value, const char *where);
/* "KEY=VALUE". */
weft_status weft_config_override(weft_config *c, const char *assignment, const char *where);
/* Reads Kconfig-style text over what is there: KEY=value, `# CONFIG_X is not set`, comments. */
weft_status weft_config_read(weft_config *c, const char *path);

/* Sets the three mechanism switches of the ablation's step 0 to 5 and leaves all else. */
weft_status weft_config_step(weft_config *c, int step);

/* Refuses mixes that make no sense, each with the keys and the remedy. `where` as above. */
weft_status weft_config_check(const weft_config *c, const char *where);

/* One option's value as text ("y", "12", "0.1", "dot"). */
void weft_config_format(const weft_config *c, const weft_option *option, char *text, size_t room);

/* config.json: every key in lower case without CONFIG_. The caller owns the object. */
json_t *weft_config_to_json(const weft_config *c);
weft_status weft_config_from_json(weft_config *c, const json_t *object, const char *where);

/* The Kconfig file, and the text of `weft help config`. */
void weft_config_write_kconfig(FILE *out);
void weft_config_write_help(FILE *out);

/* Derived sizes. */
int64_t weft_config_head_dim(const weft_config *c); /* D = E / H */
int64_t weft_config_ffn_dim(const weft_config *c);  /* F */
int64_t weft_config_kv_heads(const weft_config *c); /* KV of dot */
bool weft_config_leaks(const weft_config *c);       /* a token can see later ones by a mechanism */

#endif
