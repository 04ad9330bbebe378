/* Words and numbers for people. What is not known is a dash, never a NaN. */
#include "report/sections.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

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

const char *weft_say_variant(const weft_report_data *d, int variant) {
    const weft_report_variant *s = &d->variants[variant];
    return strcmp(s->label, s->name) != 0 ? s->label : weft_say("variant %.400s", s->name);
}

const char *weft_variant_label(const weft_report_data *d, int variant) {
    return d->variants[variant].label;
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
static int decimals_for(const weft_comparison *c) {
    double scale = (c->high - c->low) / 2;
    if (!(scale > 1e-9 * fabs(c->mean))) scale = fabs(c->mean);
    if (!(scale > 0)) return DECIMALS_LEAST;
    double decimals = 1 - floor(log10(scale));
    return (int)fmin(fmax(decimals, DECIMALS_LEAST), DECIMALS_MOST);
}

const char *weft_say_change(const weft_comparison *c, double value) {
    return isfinite(value) ? weft_say("%+.*f", decimals_for(c), value) : DASH;
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

const char *weft_say_verdict(const weft_report_data *d, int variant) {
    const weft_report_variant *s = &d->variants[variant];
    const char *word = weft_comparison_word(&s->compared);
    bool final = s->waiting + d->variants[s->baseline].waiting == 0;
    return final || s->compared.verdict == WEFT_NOT_YET ? word : weft_say("%s so far", word);
}

const char *weft_say_kind(weft_verdict verdict) {
    return verdict == WEFT_BETTER ? "good" : verdict == WEFT_WORSE ? "bad" : "plain";
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
