/* What variants are called where their study gave them no label: what differs between a variant and what it is
 * compared with, in words. "SwiGLU, feed-forward width 253" for FFN=swiglu N_FFN=253. */
#include "config/kinds.h"
#include "record/record.h"
#include "report/sections.h"
#include "study/variants.h"

#include <ctype.h>
#include <string.h>

enum { KEYS_TOLD = 3, KEY_ROOM = 64 };

#define ATTENTION_WORD(NAME, name, title, help) {"ATTENTION", #name, title},
#define FFN_WORD(NAME, name, title, help) {"FFN", #name, title},
#define POSITION_WORD(NAME, name, title, help) {"POSITION", #name, title},
static const struct {
    const char *key, *value, *words;
} kinds[] = {WEFT_ATTENTIONS(ATTENTION_WORD) WEFT_FFNS(FFN_WORD)
                 WEFT_POSITIONS(POSITION_WORD){"NORM", "rmsnorm", "RMSNorm"},
             {"NORM", "layernorm", "LayerNorm"}};

static const struct {
    const char *key, *before, *after;
} numbers[] = {
    {"N_LAYER", "", " layers"},           {"N_HEAD", "", " heads"},
    {"KV_HEADS", "", " key-value heads"}, {"N_EMBD", "width ", ""},
    {"N_FFN", "feed-forward width ", ""}, {"STEPS", "", " training steps"},
};

static void write_words(FILE *out, const char *key, const char *value) {
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].key, key) == 0 && strcmp(kinds[i].value, value) == 0) {
            fputs(kinds[i].words, out);
            return;
        }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (strcmp(numbers[i].key, key) == 0) {
            fprintf(out, "%s%s%s", numbers[i].before, value, numbers[i].after);
            return;
        }
    bool flag = weft_option_find(key)->type == WEFT_OPT_BOOL;
    if (flag && *value == 'n') fputs("without ", out);
    if (strncmp(key, "RA_MLA_", 7) == 0) key += 7;
    for (; *key; key++)
        fputc(*key == '_' ? ' ' : tolower((unsigned char)*key), out);
    if (!flag) fprintf(out, " %s", value);
}

/* The next KEY=VALUE of a variant's overrides, whose values with blanks are in quotes; false: there is no more. */
static bool next_set(const char **at, char key[KEY_ROOM], char value[WEFT_TEXT_MAX]) {
    size_t k = strcspn(*at, "=");
    if (!(*at)[k]) return false;
    const char *from = *at + k + 1;
    char quote = *from == '"' || *from == '\'' ? *from++ : ' ';
    size_t n = strcspn(from, (char[]){quote, '\0'});
    snprintf(key, KEY_ROOM, "%.*s", (int)k, *at);
    snprintf(value, WEFT_TEXT_MAX, "%.*s", (int)n, from);
    *at = from + n;
    *at += strspn(*at, "\"' ");
    return true;
}

/* The value of an option in a variant: what it sets, or the study's. */
static void find_value(const weft_report_data *d, int variant, const char *key,
                       char value[WEFT_TEXT_MAX]) {
    char own[KEY_ROOM];
    for (const char *at = d->variants[variant].overrides; next_set(&at, own, value);)
        if (strcmp(own, key) == 0) return;
    weft_record_value(d->config, weft_option_find(key), value, WEFT_TEXT_MAX);
}

static int count_sets(const weft_report_data *d, int variant) {
    int n = 0;
    for (const char *at = d->variants[variant].overrides; (at = strchr(at, '=')); at++)
        n++;
    return n;
}

/* Whom a variant is told from: its baseline, or who is compared with it and differs the least; -1: nobody. */
static int counterpart_of(const weft_report_data *d, int variant) {
    int least = d->variants[variant].baseline;
    for (int i = 0; i < d->n_variants && d->variants[variant].baseline < 0; i++)
        if (d->variants[i].baseline == variant &&
            (least < 0 || count_sets(d, i) < count_sets(d, least)))
            least = i;
    return least;
}

/* Writes what of the sets of `whose` differs between the two; returns how many there are by now. */
static int write_sets(FILE *out, const weft_report_data *d, int variant, int other, int whose,
                      int n) {
    char key[KEY_ROOM], value[WEFT_TEXT_MAX], own[WEFT_TEXT_MAX], set[KEY_ROOM];
    for (const char *at = d->variants[whose].overrides; next_set(&at, key, value);) {
        bool known = false;
        if (!weft_option_find(key)) continue; /* of another weft */
        find_value(d, variant, key, own);
        if (other >= 0) {
            find_value(d, other, key, value);
            if (strcmp(own, value) == 0 || strcmp(own, "0") == 0)
                continue; /* 0: weft's own choice */
        }
        for (const char *mine = d->variants[variant].overrides;
             whose != variant && next_set(&mine, set, value);)
            known = known || strcmp(set, key) == 0;
        if (known || n++ >= KEYS_TOLD) continue;
        if (n > 1) fputs(", ", out);
        write_words(out, key, own);
    }
    return n;
}

/* False: there is nothing to call it by but its name. */
static bool write_label(FILE *out, const weft_report_data *d, int variant) {
    int other = counterpart_of(d, variant), n = write_sets(out, d, variant, other, variant, 0);
    if (other >= 0) n = write_sets(out, d, variant, other, other, n);
    if (n > KEYS_TOLD) fprintf(out, " and %d more", n - KEYS_TOLD);
    return n > 0;
}

void weft_report_label(const weft_report_data *d, int variant, char *label, size_t room) {
    const weft_report_variant *s = &d->variants[variant];
    bool given = weft_variant_labelled(s->title, s->name, s->overrides);
    FILE *out = given ? NULL : fmemopen(label, room, "w");
    bool made = out && write_label(out, d, variant);
    if (out) fclose(out);
    label[room - 1] = '\0';
    if (made)
        *label = (char)toupper((unsigned char)*label);
    else
        snprintf(label, room, "%s", given ? s->title : s->name);
}
