/* The table of options, from options.def. */
#include "config/config.h"

#include <strings.h>

/* A heading is an entry with a group alone. */
#define ROW(field_, kind, key_, owner_, resume, depends_, help_, ...)                              \
    {.key = #key_,                                                                                 \
     .type = WEFT_OPT_##kind,                                                                      \
     .owner = WEFT_OWNER_##owner_,                                                                 \
     .free = RESUME_##resume,                                                                      \
     .depends = (depends_),                                                                        \
     .help = (help_),                                                                              \
     .offset = offsetof(weft_config, field_),                                                      \
     __VA_ARGS__},

enum { RESUME_FIXED, RESUME_FREE };

static const weft_option rows[] = {
#define GROUP(title) {.group = (title)},
#define BOOL(field, key, value, owner, resume, depends, help)                                      \
    ROW(field, BOOL, key, owner, resume, depends, help, .fallback = (value) ? "y" : "n")
#define INT(field, key, value, low, high, owner, resume, depends, help)                            \
    ROW(field, INT, key, owner, resume, depends, help, .fallback = #value, .min = (double)(low),   \
        .max = (double)(high))
#define NUMBER(field, key, value, low, high, owner, resume, depends, help)                         \
    ROW(field, NUMBER, key, owner, resume, depends, help, .fallback = #value, .min = (low),        \
        .max = (high))
#define IS(name, word) word,
#define WORD(field, key, value, owner, resume, depends, choices, help)                             \
    ROW(field, WORD, key, owner, resume, depends, help, .fallback = (value),                       \
        .words = (const char *const[]){choices NULL})
#define TEXT(field, key, value, owner, resume, depends, help)                                      \
    ROW(field, TEXT, key, owner, resume, depends, help, .fallback = (value))
#include "config/options.def"
};

enum { N_ROWS = sizeof rows / sizeof rows[0] };
_Static_assert(sizeof rows / sizeof rows[0] <= sizeof((weft_config *)0)->given,
               "weft_config.given has no room for so many options");

const weft_option *weft_options(int *count) {
    static weft_option options[N_ROWS + 1];
    static int n;
    if (n == 0) {
        const char *group = "";
        int filled = 0;
        for (int i = 0; i < N_ROWS; i++) {
            if (!rows[i].key) {
                group = rows[i].group;
                continue;
            }
            options[filled] = rows[i];
            options[filled++].group = group;
        }
        n = filled;
    }
    if (count) *count = n;
    return options;
}

const weft_alias weft_aliases[] = {
#define ALIAS(old, new) {#old, #new},
#include "config/aliases.def"
    {NULL, NULL},
};

const weft_named_kind weft_named_kinds[] = {
#define ATTENTION(NUMBER, name, title, help) {"ATTENTION", #name, title},
#define FFN(NUMBER, name, title, help) {"FFN", #name, title},
#define POSITION(NUMBER, name, title, help) {"POSITION", #name, title},
    WEFT_ATTENTIONS(ATTENTION) WEFT_FFNS(FFN)
        WEFT_POSITIONS(POSITION){"NORM", "layernorm", "LayerNorm"},
    {"NORM", "rmsnorm", "RMSNorm"},
    {NULL, NULL, NULL},
};

const weft_option *weft_option_find(const char *key) {
    if (strncasecmp(key, "CONFIG_", 7) == 0) key += 7;
    for (const weft_alias *a = weft_aliases; a->old; a++)
        if (strcasecmp(a->old, key) == 0) key = a->key;
    for (const weft_option *o = weft_options(NULL); o->key; o++)
        if (strcasecmp(o->key, key) == 0) return o;
    return NULL;
}

const weft_option *weft_option_at(size_t offset) {
    const weft_option *o = weft_options(NULL);
    while (o->offset != offset)
        o++;
    return o;
}

const char *weft_option_words(const weft_option *o, char *text, size_t room) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; o->words[i] && used < room; i++)
        used += (size_t)snprintf(text + used, room - used, "%s%s", i ? " " : "", o->words[i]);
    return text;
}

/* A known model by one word. A preset stands between the defaults and everything that is set: the
 * file, a study's step and overrides win over it. */

/* By PRESET's number: KEY=VALUE with blanks between. */
static const char *const presets[] = {
    [WEFT_PRESET_NONE] = "",
    [WEFT_PRESET_GPT2] = "ATTENTION=dot FFN=gelu POSITION=learned NORM=layernorm "
                         "NORM_PLACEMENT=pre BIAS=y WEIGHT_TYING=y",
    [WEFT_PRESET_W2] = "ATTENTION=w2 W2_KERNEL=w2 FFN=swiglu POSITION=rope NORM=rmsnorm "
                       "NORM_PLACEMENT=pre BIAS=n",
    [WEFT_PRESET_WSFFN] = "ATTENTION=dot FFN=wsffn WSFFN_N_HEAD=8 WSFFN_Z_PROJ=dense "
                          "WSFFN_AUX_LOSS=y NORM=layernorm NORM_PLACEMENT=pre WEIGHT_TYING=n",
    [WEFT_PRESET_RA_MLA] =
        "ATTENTION=mla RA_MLA_LATENT_DIM=128 RA_MLA_RA_WINDOW=64 RA_MLA_RA_ALPHA=0 FFN=gelu "
        "POSITION=learned NORM=layernorm NORM_PLACEMENT=pre RA_MLA_MLP_ATTN_GATE=y "
        "RA_MLA_MLP_CROSS_TOKEN=y RA_MLA_MLP_SPARSE_MODE=topk RA_MLA_MLP_SPARSE_K=8 "
        "RA_MLA_MLP_LATENT_RECIP=y RA_MLA_MLP_TYING_MODE=tied_transpose OPTIMIZER=adamwspam",
    [WEFT_PRESET_MODERN] = "ATTENTION=dot QK_NORM=y FFN=relu2 POSITION=rope NORM=rmsnorm "
                           "NORM_PLACEMENT=pre BIAS=n OPTIMIZER=muon",
};

const char *weft_preset_sets(const char *word) {
    const char *const *words = WEFT_OPTION(preset)->words;
    int preset = 0;
    while (words[preset] && strcmp(words[preset], word) != 0)
        preset++;
    return words[preset] ? presets[preset] : "";
}

weft_status weft_config_preset(weft_config *c, int preset) {
    unsigned char given[WEFT_OPTIONS_MAX];
    memcpy(given, c->given, sizeof given);
    WEFT_TRY(weft_config_override_all(c, presets[preset], "preset"));
    memcpy(c->given, given, sizeof given); /* nobody set them */
    c->preset = preset;
    return WEFT_OK;
}
