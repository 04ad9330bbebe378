/* Reading CONFIG_STUDY_VARIANTS and CONFIG_RA_MLA_ABLATION_STEPS, and what CONFIG_STUDY_SWEEP makes of
 * them. */
#include "study/variants.h"

#include "base/text.h"
#include "model/kinds.h"
#include "train/loop.h"

#include <ctype.h>
#include <limits.h>

enum { WORD_ROOM = WEFT_TEXT_MAX + 128, ABLATION_STEPS = 6, LABEL_ROOM = 42 };

void weft_variants_free(weft_variants *s) {
    for (int i = 0; i < s->n; i++) {
        for (int k = 0; k < s->list[i].n_sets; k++)
            free(s->list[i].sets[k].value);
        free(s->list[i].sets);
    }
    free(s->list);
    *s = (weft_variants){0};
}

static weft_status add_variant(weft_variants *s, const char *name, const char *where,
                               weft_variant **out) {
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->list[i].name, name) == 0)
            return WEFT_BAD_INPUT("%s: variant '%s' is there twice", where, name);
    if (s->n == WEFT_VARIANTS_MAX)
        return WEFT_BAD_INPUT("%s: more than %d variants", where, WEFT_VARIANTS_MAX);
    *out = WEFT_ADD(s->list, s->n);
    if (!*out) return weft_fail(WEFT_ENOMEM, "study: no memory for its variants");
    (*out)->baseline = (*out)->repeats = -1;
    snprintf((*out)->name, sizeof(*out)->name, "%s", name);
    snprintf((*out)->title, sizeof(*out)->title, "%s", name);
    return WEFT_OK;
}

static weft_status add_set(weft_variant *variant, const weft_option *option, const char *value) {
    weft_setting *set = WEFT_ADD(variant->sets, variant->n_sets);
    if (set) *set = (weft_setting){option, strdup(value)};
    return set && set->value ? WEFT_OK
                             : weft_fail(WEFT_ENOMEM, "study: no memory for its variants");
}

bool weft_variant_sets(const weft_variant *v, const weft_option *option) {
    for (int i = 0; i < v->n_sets; i++)
        if (v->sets[i].option == option) return true;
    return false;
}

/* A key that a variant may set, and has not yet. `where` names the variant. */
static weft_status check_key(const weft_variant *variant, const char *key, const char *where) {
    weft_config scratch;
    const weft_option *option = weft_option_find(key);
    if (!option) return weft_config_set(&scratch, key, "", where);
    if (option->owner == WEFT_OWNER_STUDY)
        return WEFT_BAD_INPUT("%s: CONFIG_%s is the whole study's, not a variant's", where,
                              option->key);
    if (weft_variant_sets(variant, option))
        return WEFT_BAD_INPUT("%s: CONFIG_%s is set twice", where, option->key);
    return WEFT_OK;
}

static bool is_name_letter(char c) {
    return isalnum((unsigned char)c) || c == '.' || c == '_' || c == '-';
}

/* The next word up to a blank, ':' or ';'. Quotes hold these in; a backslash before a quote, as
 * Kconfig writes it, is left out. */
static const char *next_word(const char *at, const char *ends, char word[WORD_ROOM]) {
    size_t n = 0;
    char quote = 0;
    for (; *at; at++) {
        if (*at == '\\' && (at[1] == '"' || at[1] == '\'')) at++;
        if (quote ? *at == quote : *at == '"' || *at == '\'') {
            quote = quote ? 0 : *at;
            continue;
        }
        if (!quote && (isspace((unsigned char)*at) || strchr(ends, *at))) break;
        if (n + 1 < WORD_ROOM) word[n++] = *at;
    }
    word[n] = '\0';
    return at;
}

/* NAME of at most WEFT_VARIANT_NAME - 1 letters. */
static weft_status read_name(const char **at, const char *where, const char *after,
                             char name[WEFT_VARIANT_NAME]) {
    size_t n = 0;
    const char *from = weft_skip_blanks(*at);
    while (is_name_letter(from[n]))
        n++;
    if (n == 0)
        return WEFT_BAD_INPUT("%s: a variant's name is expected %s, not '%.20s'; names have "
                              "letters, digits, '.', '_' and '-'",
                              where, after, from);
    if (n >= WEFT_VARIANT_NAME)
        return WEFT_BAD_INPUT("%s: the variant's name '%.20s...' is longer than %d letters", where,
                              from, WEFT_VARIANT_NAME - 1);
    snprintf(name, WEFT_VARIANT_NAME, "%.*s", (int)n, from);
    *at = weft_skip_blanks(from + n);
    return WEFT_OK;
}

/* A label from what it sets, as much of it as a chart has room for: "ATTENTION w2, N_FFN 64 and 2 more".
 * Without any, its name. */
static void describe_sets(weft_variant *v) {
    char text[LABEL_ROOM] = "";
    int n = 0, told = 0;
    for (int i = 0; i < v->n_sets; i++) {
        const char *value = v->sets[i].value, *name = v->sets[i].option->key;
        if (v->sets[i].option->type == WEFT_OPT_BOOL) value = *value == 'n' ? "off" : "on";
        size_t letters = (size_t)n + strlen(name) + strlen(value) + 3;
        if (letters >= sizeof text && told > 0) break;
        n += snprintf(text + n, sizeof text - (size_t)n, letters < sizeof text ? "%s%s %s" : "%s%s",
                      told ? ", " : "", name, value);
        told++;
    }
    if (told > 0 && told < v->n_sets)
        snprintf(v->title, sizeof v->title, "%s and %d more", text, v->n_sets - told);
    else if (told > 0)
        snprintf(v->title, sizeof v->title, "%s", text);
}

bool weft_variant_labelled(const char *title, const char *name, const char *sets) {
    size_t key = strcspn(sets, "=");
    bool described = key && strncmp(title, sets, key) == 0 && (!title[key] || title[key] == ' ');
    return *title && strcmp(title, name) != 0 && !described;
}

/* NAME ["LABEL"] [vs BASE] [: KEY=VALUE ...], up to the next ';' or the end. */
static weft_status read_variant(weft_variants *s, const char **text, const char *where) {
    char name[WEFT_VARIANT_NAME], here[800], word[WORD_ROOM];
    const char *at = *text;
    weft_variant *variant;
    WEFT_TRY(read_name(&at, where, s->n ? "after ';'" : "at the start", name));
    WEFT_TRY(add_variant(s, name, where, &variant));
    snprintf(here, sizeof here, "%.640s: variant '%s'", where, name);
    const char *from = at + (*at == '\\');
    char quote = *from;
    bool labelled = quote == '"' || quote == '\'';
    if (labelled) {
        const char *end = next_word(at, ":;", word);
        if (!*word || end == from + 1 || end[-1] != quote)
            return WEFT_BAD_INPUT("%s: its label must be text between two %c", here, quote);
        if (strlen(word) >= sizeof variant->title)
            return WEFT_BAD_INPUT("%s: its label is longer than %d letters", here,
                                  WEFT_VARIANT_TITLE - 1);
        snprintf(variant->title, sizeof variant->title, "%s", word);
        at = weft_skip_blanks(end);
    }
    if (strncmp(at, "vs", 2) == 0 && isspace((unsigned char)at[2])) {
        at += 2;
        WEFT_TRY(read_name(&at, here, "after 'vs'", variant->base));
    }
    if (*at != ':' && *at != ';' && *at)
        return WEFT_BAD_INPUT("%s: ':' is expected before what it sets, not '%.20s'", here, at);
    if (*at == ':') {
        for (at = weft_skip_blanks(at + 1); *at && *at != ';'; at = weft_skip_blanks(at)) {
            at = next_word(at, ";", word);
            const char *equals = strchr(word, '=');
            char key[128];
            if (!equals || equals == word || (size_t)(equals - word) >= sizeof key)
                return WEFT_BAD_INPUT("%s: '%.60s' must be KEY=VALUE", here, word);
            snprintf(key, sizeof key, "%.*s", (int)(equals - word), word);
            WEFT_TRY(check_key(variant, key, here));
            WEFT_TRY(add_set(variant, weft_option_find(key), equals + 1));
        }
    }
    if (!labelled) describe_sets(variant);
    *text = *at == ';' ? weft_skip_blanks(at + 1) : at;
    return WEFT_OK;
}

static weft_status parse_named(const weft_config *base, const char *where, weft_variants *s) {
    const char *at = weft_skip_blanks(base->study_variants);
    char here[700];
    snprintf(here, sizeof here, "%.600s: CONFIG_STUDY_VARIANTS", where);
    while (*at)
        WEFT_TRY(read_variant(s, &at, here));
    /* Where a label is another's too, the name tells them apart. */
    bool same[WEFT_VARIANTS_MAX] = {false};
    for (int i = 0; i < s->n; i++)
        for (int k = 0; k < s->n; k++)
            if (i != k && strcmp(s->list[i].title, s->list[k].title) == 0) same[i] = true;
    for (int i = 0; i < s->n; i++) {
        char label[WEFT_VARIANT_TITLE];
        if (!same[i]) continue;
        snprintf(label, sizeof label, "%.*s (%s)", WEFT_VARIANT_TITLE - WEFT_VARIANT_NAME - 4,
                 s->list[i].title, s->list[i].name);
        memcpy(s->list[i].title, label, sizeof label);
    }
    /* Who is compared with whom: a variant that does not say, with the first, unless the first is compared with
     * it. Going from a variant to its baseline must come to an end. */
    for (int i = 0; i < s->n; i++) {
        weft_variant *variant = &s->list[i];
        bool root = i == 0 || strcmp(s->list[0].base, variant->name) == 0;
        variant->baseline = root ? -1 : 0;
        if (!*variant->base) continue;
        variant->baseline = weft_variants_find(s, variant->base);
        if (variant->baseline < 0)
            return WEFT_BAD_INPUT("%s: variant '%s' vs '%s': %s", here, variant->name,
                                  variant->base, weft_error_message());
    }
    for (int i = 0; i < s->n; i++) {
        int place = i, hops = 0;
        while (place >= 0 && hops <= s->n) {
            place = s->list[place].baseline;
            hops++;
        }
        if (place >= 0)
            return WEFT_BAD_INPUT("%s: variant '%s' vs '%s' leads back to itself", here,
                                  s->list[i].name, s->list[i].base);
    }
    return WEFT_OK;
}

/* Step `number` of the ablation: the three switches, and the RA-MLA write-up's words for it. */
static weft_status add_ablation(weft_variants *s, const weft_config *base, int number,
                                const char *where) {
    static const char *const titles[ABLATION_STEPS] = {"",
                                                       "FF->Attn Gate",
                                                       "Gate + Cross-Token",
                                                       "All three mechanisms",
                                                       "Gate + Cross-Token (repeat of 2)",
                                                       "All three (repeat of 3)"};
    const weft_option *switches[] = {WEFT_OPTION(attn_gate), WEFT_OPTION(cross_token),
                                     WEFT_OPTION(latent_recip)};
    char name[4] = {(char)('0' + number), 0};
    weft_config set = {0};
    weft_variant *variant;
    WEFT_TRY(weft_config_step(&set, number));
    WEFT_TRY(add_variant(s, name, where, &variant));
    if (number == 0)
        snprintf(variant->title, sizeof variant->title, "Baseline (%s only)",
                 weft_attention_title(base));
    else
        snprintf(variant->title, sizeof variant->title, "%s", titles[number]);
    for (int i = 0; i < WEFT_COUNT(switches); i++) {
        char value[4];
        weft_config_format(&set, switches[i], value, sizeof value);
        WEFT_TRY(add_set(variant, switches[i], value));
    }
    variant->baseline = s->n > 1 ? 0 : -1;
    return WEFT_OK;
}

static weft_status parse_variants(const weft_config *base, const char *where, const char *name,
                                  weft_variants *s) {
    weft_variant *variant;
    if (*base->ra_mla_ablation_steps && *base->study_variants)
        return WEFT_BAD_INPUT(
            "%s: CONFIG_RA_MLA_ABLATION_STEPS=\"%s\" and CONFIG_STUDY_VARIANTS are both "
            "set; empty one of them",
            where, base->ra_mla_ablation_steps);
    if (*weft_skip_blanks(base->ra_mla_ablation_steps)) {
        const char *at = weft_skip_blanks(base->ra_mla_ablation_steps);
        char here[700];
        snprintf(here, sizeof here, "%.600s: CONFIG_RA_MLA_ABLATION_STEPS", where);
        while (*at) {
            char *end;
            long number = strtol(at, &end, 10);
            const char *next = weft_skip_blanks(end);
            if (end == at || number < 0 || number >= ABLATION_STEPS || (*next && *next != ','))
                return WEFT_BAD_INPUT("%s=\"%s\" must be numbers from 0 to 5 with commas", here,
                                      base->ra_mla_ablation_steps);
            WEFT_TRY(add_ablation(s, base, (int)number, here));
            at = weft_skip_blanks(*next ? next + 1 : next);
        }
        /* 4 and 5 are 2 and 3 again, where these are run too. */
        for (int i = 0; i < s->n; i++)
            for (int k = 0; k < s->n; k++)
                if (s->list[i].name[0] >= '4' && s->list[k].name[0] == s->list[i].name[0] - 2)
                    s->list[i].repeats = k;
        return WEFT_OK;
    }
    if (*weft_skip_blanks(base->study_variants)) return parse_named(base, where, s);
    return add_variant(s, name, where, &variant);
}

static weft_status add_point(weft_variants *out, const weft_variant *variant, bool alone,
                             const weft_sweep *sweep, int p, const char *where) {
    const weft_sweep_point *point = &sweep->points[p];
    weft_variant *made;
    /* "NAME-VALUE-VALUE", or the values alone where the study has one variant. */
    char name[WEFT_VARIANT_NAME + WEFT_SWEEP_AXES * (WEFT_SWEEP_VALUE + 1)];
    int used = snprintf(name, sizeof name, "%s", alone ? "" : variant->name);
    for (int i = 0; i < sweep->axes; i++)
        used += snprintf(name + used, sizeof name - (size_t)used, "%s%s", used ? "-" : "",
                         point->text[i]);
    for (int i = 0; i < used; i++)
        if (!is_name_letter(name[i])) name[i] = '_';
    if (used >= WEFT_VARIANT_NAME)
        return WEFT_BAD_INPUT("%s: the variant's name '%.20s...' is longer than %d letters", where,
                              name, WEFT_VARIANT_NAME - 1);
    WEFT_TRY(add_variant(out, name, where, &made));
    for (int i = 0; i < variant->n_sets; i++)
        WEFT_TRY(add_set(made, variant->sets[i].option, variant->sets[i].value));
    size_t n = 0, room = sizeof made->title;
    if (!alone) n = (size_t)snprintf(made->title, room, "%s,", variant->title);
    for (int i = 0; i < sweep->axes; i++) {
        WEFT_TRY(check_key(made, sweep->option[i]->key, where));
        WEFT_TRY(add_set(made, sweep->option[i], point->text[i]));
        if (n < room)
            n += (size_t)snprintf(made->title + n, room - n, "%s%s=%s", n ? " " : "",
                                  sweep->option[i]->key, point->text[i]);
    }
    return WEFT_OK;
}

/* Each variant becomes one variant for each point of the sweep. A point is compared with the same point of the
 * variant's baseline; the points of a variant that has none, with its first. */
static weft_status sweep_variants(const weft_config *base, const char *where, weft_variants *s) {
    char here[700];
    WEFT_AUTO(weft_sweep_free) weft_sweep sweep = {0};
    WEFT_AUTO(weft_variants_free) weft_variants swept = {0};
    bool alone = s->n == 1;
    snprintf(here, sizeof here, "%.600s: CONFIG_STUDY_SWEEP", where);
    WEFT_TRY(weft_sweep_read(base->study_sweep, (int)base->study_sweep_points,
                             WEFT_VARIANTS_MAX / s->n, (uint64_t)base->seed, here, &sweep));
    for (int i = 0; i < s->n; i++)
        for (int p = 0; p < sweep.n; p++)
            WEFT_TRY(add_point(&swept, &s->list[i], alone, &sweep, p, here));
    for (int i = 0; i < swept.n; i++) {
        const weft_variant *from = &s->list[i / sweep.n];
        int p = i % sweep.n;
        swept.list[i].baseline = from->baseline >= 0 ? from->baseline * sweep.n + p
                                 : p                 ? i - p
                                                     : -1;
        swept.list[i].repeats = from->repeats >= 0 ? from->repeats * sweep.n + p : -1;
    }
    weft_variants plain = *s;
    *s = swept;
    swept = plain;
    return WEFT_OK;
}

weft_status weft_variants_parse(const weft_config *base, const char *where, const char *name,
                                weft_variants *out) {
    *out = (weft_variants){0};
    weft_status status = parse_variants(base, where, name, out);
    if (status == WEFT_OK && *weft_skip_blanks(base->study_sweep))
        status = sweep_variants(base, where, out);
    if (status != WEFT_OK) weft_variants_free(out);
    return status;
}

bool weft_variants_by_name(const weft_config *base) {
    return *base->study_variants || *base->study_sweep;
}

bool weft_variants_listed(const weft_config *base) {
    return weft_variants_by_name(base) || *base->ra_mla_ablation_steps;
}

weft_status weft_variants_ablation(const weft_config *base, int number, weft_variants *out) {
    *out = (weft_variants){0};
    weft_status status = add_ablation(out, base, number, "--variant");
    if (status != WEFT_OK) weft_variants_free(out);
    return status;
}

int weft_variants_find(const weft_variants *s, const char *name) {
    weft_nearest nearest = weft_nearest_to(name);
    for (int i = 0; i < s->n; i++) {
        if (strcmp(s->list[i].name, name) == 0) return i;
        weft_nearest_offer(&nearest, s->list[i].name);
    }
    WEFT_BAD_INPUT("there is no variant '%.63s'; did you mean '%s'?", name, nearest.name);
    return -1;
}

/* File, variant and overrides, the later over the earlier. */
static weft_status read_over(const weft_source *s, const weft_variant *variant, weft_config *c) {
    char where[800];
    if (s->file) WEFT_TRY(weft_config_read(c, s->file));
    snprintf(where, sizeof where, "%.640s: variant '%s'", s->file ? s->file : "config",
             variant ? variant->name : "");
    for (int i = 0; variant && i < variant->n_sets; i++)
        WEFT_TRY(weft_config_set(c, variant->sets[i].option->key, variant->sets[i].value, where));
    for (int i = 0; i < s->n_overrides; i++)
        WEFT_TRY(weft_config_override(c, s->overrides[i].text, s->overrides[i].where));
    return WEFT_OK;
}

weft_status weft_source_read(const weft_source *s, const weft_variant *variant, weft_config *c) {
    weft_config_defaults(c);
    WEFT_TRY(read_over(s, variant, c));
    int preset = c->preset;
    if (preset != WEFT_PRESET_NONE) {
        /* Which one is known only now, and it goes below all of them. */
        weft_config_defaults(c);
        WEFT_TRY(weft_config_preset(c, preset));
        WEFT_TRY(read_over(s, variant, c));
    }
    return weft_train_settle(c);
}

bool weft_study_own_folder(const char *file, char folder[WEFT_PATH_MAX]) {
    const char *slash = strrchr(file, '/');
    if (strcmp(slash ? slash + 1 : file, "study") != 0) return false;
    return weft_path(folder, "%.*s", slash > file ? (int)(slash - file) : 1, slash ? file : ".") ==
           WEFT_OK;
}

void weft_study_name(const char *file, char *name, size_t room) {
    char folder[WEFT_PATH_MAX], whole[PATH_MAX];
    if (weft_study_own_folder(file, folder) && realpath(folder, whole)) file = whole;
    const char *slash = strrchr(file, '/');
    const char *last = slash ? slash + 1 : file;
    size_t n = 0;
    for (const char *at = last; *at && n + 1 < room; at++)
        if (is_name_letter(*at)) name[n++] = *at;
    name[n] = '\0';
    if (n == 0 || strcmp(last, ".config") == 0) snprintf(name, room, "study");
}
