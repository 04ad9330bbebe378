/* A config: every option's value, typed. Read from Kconfig-style text, from overrides, or from a
 * checkpoint's config.json; checked as a whole before anything is built.
 *
 * options.def defines the options; this header makes the struct and the numbers of words. */
#pragma once

#include "base/dtype.h"

#include <jansson.h>

enum { WEFT_TEXT_MAX = 4096, WEFT_OPTIONS_MAX = 256 };

typedef struct {
#define GROUP(...)
#define BOOL(field, ...) bool field;
#define INT(field, ...) int64_t field;
#define NUMBER(field, ...) double field;
#define WORD(field, ...) int field;
#define TEXT(field, ...) char field[WEFT_TEXT_MAX];
#include "config/options.def"
    unsigned char given[WEFT_OPTIONS_MAX]; /* by place: 1: it was set, not left at its default */
} weft_config;

/* The numbers of words: one enum for each WORD option, such as
 * enum { WEFT_NORM_LAYERNORM, WEFT_NORM_RMSNORM }. */
#define GROUP(...)
#define BOOL(...)
#define INT(...)
#define NUMBER(...)
#define TEXT(...)
#define IS(name, word) WEFT_##name,
#define WORD(field, key, fallback, owner, resume, depends, words, help) enum { words };
#include "config/options.def"

typedef enum {
    WEFT_OPT_BOOL,
    WEFT_OPT_INT,
    WEFT_OPT_NUMBER,
    WEFT_OPT_WORD,
    WEFT_OPT_TEXT
} weft_option_type;

/* Whose an option is: what is computed, how it is trained, or the whole study's. */
typedef enum { WEFT_OWNER_MODEL, WEFT_OWNER_TRAIN, WEFT_OWNER_STUDY } weft_option_owner;

/* One option as data: for readers, writers, help and the Kconfig file. */
typedef struct {
    const char *group; /* its heading */
    const char *key;   /* "N_LAYER" */
    weft_option_type type;
    const char *fallback;     /* as text */
    double min, max;          /* INT, NUMBER */
    const char *const *words; /* WORD: by number, then NULL */
    weft_option_owner owner;
    bool free; /* a resumed run may change it */
    const char *depends;
    const char *help;
    size_t offset; /* of the field in weft_config */
} weft_option;

/* All options in order, and how many; count NULL: whoever goes through them ends at one without a key. */
const weft_option *weft_options(int *count);
/* Names that options had before; the last is NULL. */
typedef struct {
    const char *old, *key;
} weft_alias;
extern const weft_alias weft_aliases[];
/* The kinds of attention, feed-forward, position and norm: option, word and title (kinds.h); the last has no key. */
typedef struct {
    const char *key, *word, *title;
} weft_named_kind;
extern const weft_named_kind weft_named_kinds[];
/* By key with or without CONFIG_, in either case; NULL: unknown. */
const weft_option *weft_option_find(const char *key);
/* What to use in place of an option that other trainers have and weft does not; NULL: it is not known. */
const char *weft_option_instead(const char *key);
/* A WORD option's words as "dot w2 mla"; returns `text`. */
const char *weft_option_words(const weft_option *o, char *text, size_t room);
/* By its field: WEFT_OPTION(n_layer). Never NULL. */
const weft_option *weft_option_at(size_t offset);
#define WEFT_OPTION(field) weft_option_at(offsetof(weft_config, field))

void weft_config_defaults(weft_config *c);

/* One KEY=VALUE from the command line, and the option it came by ("-o", "--dtype"). */
typedef struct {
    const char *text, *where;
} weft_override;

/* Sets one option from text; quotes around the value are taken off. `where` names the source in
 * errors ("demo.config:12", "-o"). An unknown key names the nearest known one. */
weft_status weft_config_set(weft_config *c, const char *key, const char *value, const char *where);
weft_status weft_config_override(weft_config *c, const char *assignment, const char *where);
/* Several, with blanks between. */
weft_status weft_config_override_all(weft_config *c, const char *assignments, const char *where);
/* Reads Kconfig-style text over what is there: KEY=value, `# CONFIG_X is not set`, comments. */
weft_status weft_config_read(weft_config *c, const char *path);
/* The same of its text, with a zero behind it, which it cuts into lines; `path` names it in messages. A file has
 * so many bytes at most. */
enum { WEFT_CONFIG_BYTES = 1 << 24 };
weft_status weft_config_read_text(weft_config *c, char *text, size_t bytes, const char *path);

/* Sets what a preset (a number of PRESET's) sets, over what is there. */
weft_status weft_config_preset(weft_config *c, int preset);
/* What a preset sets, by its word: KEY=VALUE with blanks between; "" of no preset. */
const char *weft_preset_sets(const char *word);

/* Sets the three mechanism switches of the ablation's step 0 to 5 and leaves all else. */
weft_status weft_config_step(weft_config *c, int step);

/* Refuses mixes that make no sense, each with the keys and the remedy. `where` as above. What a kind
 * of attention, feed-forward or position refuses is weft_model_check's (model/kinds.h). */
weft_status weft_config_check(const weft_config *c, const char *where);

/* A mix of options, whether a config `is` one, and why it makes no sense; {KEY} in the text stands for
 * CONFIG_KEY=VALUE, and {head_dim}, {ffn_dim}, {last_token} and {document_token} for these numbers. */
typedef struct {
    bool is;
    const char *why;
} weft_mix;
/* Refuses by the first of n that it is. */
weft_status weft_config_refuse(const weft_config *c, const char *where, const weft_mix *mixes,
                               size_t n);
#define WEFT_REFUSE(c, where, mixes)                                                               \
    weft_config_refuse((c), (where), (mixes), sizeof(mixes) / sizeof((mixes)[0]))

/* Whether the option changes anything under this config: its `depends`. */
bool weft_option_matters(const weft_config *c, const weft_option *o);
/* Warns, a line each, of keys that were given and change nothing in any of the configs (a study's
 * steps), and of settings that undo each other. */
void weft_config_advise(const weft_config *const *configs, int n, const char *where);

/* A number as configs write it: the shortest text that reads back the same. */
void weft_number_format(double value, char *text, size_t room);
/* One option's value as text ("y", "12", "0.1", "dot"). */
void weft_config_format(const weft_config *c, const weft_option *option, char *text, size_t room);
bool weft_option_same(const weft_config *a, const weft_config *b, const weft_option *option);

const char *weft_config_word(const weft_config *c, const weft_option *option);
void weft_config_reset(weft_config *c, weft_option_owner owner);

/* config.json: every key in lower case without CONFIG_. The caller owns the object. */
json_t *weft_config_to_json(const weft_config *c);
weft_status weft_config_from_json(weft_config *c, const json_t *object, const char *where);

void weft_option_json_key(const weft_option *o, char *key, size_t room);
/* A config.json as somebody kept it, every option by its key of today. NULL: it is no object. */
json_t *weft_config_kept(const char *text);

/* A file with a line for every key, which reading takes back; beside, then renamed. */
weft_status weft_config_save(const weft_config *c, const char *path);
/* The same below `head`, of the keys that are not at their defaults and that are `wanted` (NULL: all). */
weft_status weft_config_save_changes(const weft_config *c, const char *head,
                                     bool (*wanted)(const weft_option *o), const char *path);

/* The Kconfig file, and the text of `weft help config`: of the options whose key or help holds `word`
 * (NULL: all); false: there are none. */
void weft_config_write_kconfig(FILE *out);
bool weft_config_write_help(FILE *out, const char *word);
/* One option: its default, what it does, what it may be, when it matters, and the names that it had before. */
void weft_option_explain(const weft_option *o, FILE *out);

double weft_config_mup(const weft_config *c);       /* E / MUP_BASE_WIDTH with MUP; else 1 */
int64_t weft_config_head_dim(const weft_config *c); /* D: HEAD_DIM, or E / H */
int64_t weft_config_ffn_dim(const weft_config *c);  /* F */
int64_t weft_config_w2_width(const weft_config *c); /* means and deviations of a W2 head */
int64_t weft_config_kv_heads(const weft_config *c); /* KV: key and value heads */
/* Tokens that one of layer `layer` sees, itself included; 0: all before it. */
int64_t weft_config_window(const weft_config *c, int64_t layer);
int64_t weft_config_micro_batch(const weft_config *c); /* sequences in one graph run */
/* Graph runs of a step: its BATCH_SIZE × GRADIENT_ACCUMULATION sequences, so cut. */
int64_t weft_config_micro_batches(const weft_config *c);
weft_dtype weft_config_dtype(const weft_config *c);
bool weft_config_leaks(const weft_config *c); /* a token can see later ones by a mechanism */
