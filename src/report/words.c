/* Words and numbers for people. What is not known is a dash, never a NaN. */
#include "record/record.h"
#include "report/sections.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>

enum { DECIMALS_LEAST = 4, DECIMALS_MOST = 8, TEXTS = 16, TEXT_ROOM = 512 };

#define DASH "\xe2\x80\x93"

const char *weft_say(const char *format, ...) {
    static _Thread_local char rooms[TEXTS][TEXT_ROOM];
    static _Thread_local unsigned next;
    char *room = rooms[next++ % TEXTS];
    va_list args;
    va_start(args, format);
    vsnprintf(room, TEXT_ROOM, format, args);
    va_end(args);
    return room;
}

const char *weft_say_variant(const weft_report_variant *v) {
    return strcmp(v->label, v->name) != 0 ? v->label : weft_say("variant %.400s", v->name);
}

const char *weft_say_share(const weft_comparison *c, double difference) {
    double percent = c->baseline != 0 ? 100 * fabs(difference / c->baseline) : NAN;
    int decimals = percent >= 9.95 ? 0 : percent >= 0.0995 ? 1 : percent >= 0.00995 ? 2 : 3;
    return isfinite(percent) ? weft_say("%.*f%%", decimals, percent)
                             : weft_say("%.3g", fabs(difference));
}

const char *weft_say_score(double value) {
    if (!isfinite(value)) return DASH;
    bool plain = fabs(value) < 1e6 && (fabs(value) >= 1e-3 || value == 0);
    return plain ? weft_say("%.4f", value) : weft_say("%.4g", value);
}

const char *weft_say_bytes(double bytes) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    int unit = 0;
    if (!isfinite(bytes)) return DASH;
    for (; fabs(bytes) >= 1023.95 && unit < 4; unit++)
        bytes /= 1024;
    return weft_say("%.*f %s", unit > 0, bytes, units[unit]);
}

const char *weft_say_count(double value) {
    char text[32];
    return isfinite(value) ? weft_say("%s", weft_plot_short(value, 4, text)) : DASH;
}

const char *weft_say_number(double value) {
    return isfinite(value) ? weft_say("%.10g", value) : DASH;
}

/* Two digits of half the interval's width; one that only rounding made is none. */
const char *weft_say_change(const weft_comparison *c, double value) {
    double scale = (c->high - c->low) / 2, decimals = DECIMALS_LEAST;
    if (!(scale > 1e-9 * fabs(c->mean))) scale = fabs(c->mean);
    if (scale > 0) decimals = fmin(fmax(1 - floor(log10(scale)), DECIMALS_LEAST), DECIMALS_MOST);
    return isfinite(value) ? weft_say("%+.*f", (int)decimals, value) : DASH;
}

const char *weft_say_interval(const weft_comparison *c) {
    if (c->pairs < 1) return DASH;
    const char *mean = weft_say_change(c, c->mean);
    if (c->pairs < 2) return weft_say("%s (no interval)", mean);
    return weft_say("%s [%s, %s]", mean, weft_say_change(c, c->low), weft_say_change(c, c->high));
}

const char *weft_say_share_interval(const weft_comparison *c) {
    double scale = c->baseline != 0 ? 100 / fabs(c->baseline) : NAN;
    double half = scale * (c->pairs < 2 ? fabs(c->mean) : (c->high - c->low) / 2);
    int decimals = half >= 0.0995 ? 1 : half >= 0.00995 ? 2 : 3;
    if (c->pairs < 1 || !isfinite(half)) return "";
    if (c->pairs < 2) return weft_say("%+.*f%%", decimals, scale * c->mean);
    return weft_say("%+.*f%% [%+.*f%%, %+.*f%%]", decimals, scale * c->mean, decimals,
                    scale * c->low, decimals, scale * c->high);
}

/* ISO 8601 without its T and Z; the date is not said twice. */
static void plain_time(const char *time, const char *after, char room[40]) {
    size_t date = strcspn(time, "T");
    bool same = time[date] && strncmp(time, after, date + 1) == 0;
    snprintf(room, 40, "%.39s", same ? time + date + 1 : *time ? time : DASH);
    room[strcspn(room, "Z")] = '\0';
    char *t = strchr(room, 'T');
    if (t) *t = ' ';
}

const char *weft_say_times(const weft_report_run *run) {
    char started[40], ended[40];
    if (!run || (!*run->started && !*run->ended)) return DASH;
    plain_time(run->started, "", started);
    plain_time(run->ended, run->started, ended);
    return weft_say("%s to %s", started, ended);
}

const char *weft_say_verdict(const weft_report_variant *v) {
    const char *word = weft_comparison_word(&v->compared);
    bool final = v->waiting + v->baseline->waiting == 0;
    return final || v->compared.verdict == WEFT_NOT_YET ? word : weft_say("%s so far", word);
}

const char *weft_say_between(int said, int n) {
    return said == 0 ? "" : said == n - 1 ? " and " : ", ";
}

const char *weft_say_plural(int n, const char *thing) {
    return weft_say("%d %s%s", n, thing, n == 1 ? "" : "s");
}

const char *weft_say_pairs(const weft_report_data *d, int n) {
    return weft_say_plural(n, d->minima ? "run" : "seed");
}

/* What variants are called where their study gave them no label: what differs between a variant and what it is
 * compared with, in words. "SwiGLU, feed-forward width 253" for FFN=swiglu N_FFN=253. */
enum { KEYS_TOLD = 3 };

static const struct {
    const char *key, *before, *after;
} numbers[] = {
    {"N_LAYER", "", " layers"},           {"N_HEAD", "", " heads"},
    {"KV_HEADS", "", " key-value heads"}, {"N_EMBD", "width ", ""},
    {"N_FFN", "feed-forward width ", ""}, {"STEPS", "", " training steps"},
};

static void write_words(FILE *out, const char *key, const char *value) {
    for (const weft_named_kind *p = weft_named_kinds; p->key; p++)
        if (strcmp(p->key, key) == 0 && strcmp(p->word, value) == 0) {
            fputs(p->title, out);
            return;
        }
    for (int i = 0; i < WEFT_COUNT(numbers); i++)
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

bool weft_next_setting(const char **at, char end, char key[WEFT_SETTING_KEY],
                       char value[WEFT_SETTING_VALUE]) {
    *at += strspn(*at, " \n");
    size_t k = strcspn(*at, "=");
    if (!(*at)[k]) return false;
    const char *from = *at + k + 1;
    bool quoted = end == ' ' && (*from == '"' || *from == '\'');
    size_t n = strcspn(from + quoted, (char[]){quoted ? *from : end, '\0'});
    snprintf(key, WEFT_SETTING_KEY, "%.*s", k < WEFT_SETTING_KEY ? (int)k : 0, *at);
    snprintf(value, WEFT_SETTING_VALUE, "%.*s", (int)n, from + quoted);
    *at = from + quoted + n;
    *at += quoted && **at;
    return true;
}

/* The value of an option in a variant: what it sets, or its preset, or the study's. */
static void find_value(const weft_report_variant *v, const char *key,
                       char value[WEFT_SETTING_VALUE]) {
    char own[WEFT_SETTING_KEY];
    const char *of_preset = "";
    for (const char *at = v->overrides; weft_next_setting(&at, ' ', own, value);) {
        if (strcmp(own, key) == 0) return;
        if (strcmp(own, "PRESET") == 0) of_preset = weft_preset_sets(value);
    }
    while (weft_next_setting(&of_preset, ' ', own, value))
        if (strcmp(own, key) == 0) return;
    weft_record_value(v->study->config, weft_option_find(key), value, WEFT_SETTING_VALUE);
}

static int count_sets(const weft_report_variant *v) {
    int n = 0;
    for (const char *at = v->overrides; (at = strchr(at, '=')); at++)
        n++;
    return n;
}

/* Writes what of the sets of `whose` differs between the two; returns how many there are by now. */
static int write_sets(FILE *out, const weft_report_variant *v, const weft_report_variant *other,
                      const weft_report_variant *whose, int n) {
    char key[WEFT_SETTING_KEY], value[WEFT_SETTING_VALUE], own[WEFT_SETTING_VALUE],
        set[WEFT_SETTING_KEY];
    for (const char *at = whose->overrides; weft_next_setting(&at, ' ', key, value);) {
        bool known = false;
        if (!weft_option_find(key)) continue; /* of another weft */
        find_value(v, key, own);
        if (other) {
            find_value(other, key, value);
            if (strcmp(own, value) == 0 || strcmp(own, "0") == 0)
                continue; /* 0: weft's own choice */
        }
        for (const char *mine = v->overrides;
             whose != v && weft_next_setting(&mine, ' ', set, value);)
            known = known || strcmp(set, key) == 0;
        if (known || n++ >= KEYS_TOLD) continue;
        if (n > 1) fputs(", ", out);
        write_words(out, key, own);
    }
    return n;
}

void weft_report_label(const weft_report_variant *v, char *label, size_t room) {
    bool given = weft_variant_labelled(v->title, v->name, v->overrides);
    /* Whom a variant is told from: its baseline, or who is compared with it and differs the least. */
    const weft_report_variant *other = v->baseline;
    EACH_VARIANT(each, v->study)
        if (!v->baseline && each->baseline == v && (!other || count_sets(each) < count_sets(other)))
            other = each;
    FILE *out = given ? NULL : fmemopen(label, room, "w");
    int n = out ? write_sets(out, v, other, v, 0) : 0;
    if (out && other) n = write_sets(out, v, other, other, n);
    if (n > KEYS_TOLD) fprintf(out, " and %d more", n - KEYS_TOLD);
    if (out) fclose(out);
    label[room - 1] = '\0';
    if (n > 0)
        *label = (char)toupper((unsigned char)*label);
    else
        snprintf(label, room, "%s", given ? v->title : v->name);
}
