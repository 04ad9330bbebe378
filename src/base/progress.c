/* The progress bar. It is text for the log's status line, so all that concerns the screen is
 * there; here is what to say, and when. */
#include "base/progress.h"
#include "base/text.h"

#include "base/clock.h"
#include "base/log.h"

#include <math.h>

enum {
    TEXT_MAX = 64,
    NOTE_MAX = 128,
    RATE_MAX = 256,
    BAR_LEAST = 8,
    BAR_MOST = 40,
    BAR_WIDTH = 60,
    POINTS = 2 * BAR_MOST, /* of the curve */
    CURVE = 16             /* columns of it in a summary */
};

static const double redraw_seconds = 0.1, line_seconds = 30;

struct weft_progress {
    char label[TEXT_MAX], unit[TEXT_MAX], note[NOTE_MAX];
    int64_t total, first, done;
    double seconds, begun, shown; /* shown: when the last line or drawing was */
    int tenth;                    /* of the way at the last line */
    double curve[POINTS];         /* means of `each` values in a row */
    int points;
    int64_t each, held; /* held: values in `sum`, of the next point */
    double sum;
    bool curved; /* the terminal can show it */
};

/* Columns of a text: characters of UTF-8. */
static int columns(const char *text) {
    return weft_utf8_count(text, strlen(text));
}

/* Cuts a text to so many columns. */
static void cut_columns(char *text, int width) {
    size_t n = strlen(text);
    while (n > 0 && weft_utf8_count(text, n) > width)
        n = weft_utf8_cut(text, n - 1);
    text[n] = '\0';
}

/* Copies as much of a text as fits, and no half character. */
static void copy_text(char *to, size_t size, const char *from) {
    snprintf(to, size, "%.*s", (int)weft_utf8_cut(from, strnlen(from, size - 1)), from);
}

/* "8.2", "820", "8.2k", "8.2M". */
static void format_rate(double rate, char *out, size_t size) {
    static const char *const suffix[] = {"", "k", "M", "G", "T"};
    int step = 0;
    for (; rate >= 9999.5 && step < 4; step++)
        rate /= 1000;
    snprintf(out, size, rate < 99.95 ? "%.1f%s" : "%.0f%s", rate, suffix[step]);
}

/* "42s", "3m05s", "2h07m", "5d03h". */
static void format_time(double seconds, char *out, size_t size) {
    if (!(seconds < 1e9)) {
        snprintf(out, size, "?");
        return;
    }
    int64_t s = (int64_t)llround(seconds);
    if (s < 60)
        snprintf(out, size, "%ds", (int)s);
    else if (s < 3600)
        snprintf(out, size, "%dm%02ds", (int)(s / 60), (int)(s % 60));
    else if (s < 86400)
        snprintf(out, size, "%dh%02dm", (int)(s / 3600), (int)(s / 60 % 60));
    else
        snprintf(out, size, "%dd%02dh", (int)(s / 86400), (int)(s / 3600 % 24));
}

static double fraction(const weft_progress *p) {
    if (p->total <= 0) return 0;
    double f = (double)p->done / (double)p->total;
    return f < 0 ? 0 : f > 1 ? 1 : f;
}

/* What stands behind the bar or the place, with commas between: "12.3 steps/s, 3m05s left" and the note. Nothing is left
 * where the end is unknown. With `cut` it is shorter by the rate; what is too long even then loses the last parts of the
 * note. */
static void describe_tail(const weft_progress *p, double now, const char *place, bool cut,
                          char *out, size_t size) {
    double passed = now - p->begun, moved = (double)(p->done - p->first);
    double rest = (double)(p->total - p->done);
    char rate[16] = "?";
    char speed[TEXT_MAX + 24] = "", time[16], left[32] = "";
    size_t at = 0;
    if (passed > 0 && moved > 0) format_rate(moved / passed, rate, sizeof rate);
    if (!cut) snprintf(speed, sizeof speed, "%s %s/s", rate, p->unit);
    format_time(rest <= 0 ? 0 : moved > 0 ? rest * passed / moved : INFINITY, time, sizeof time);
    if (p->total > 0) snprintf(left, sizeof left, "%s left", time);
    const char *const parts[] = {place, speed, left, p->note};
    *out = '\0';
    for (int i = 0; i < 4; i++)
        if (*parts[i] && at < size)
            at += (size_t)snprintf(out + at, size - at, "%s%s", at ? ", " : "", parts[i]);
}

/* The curve so far in `width` columns, an eighth of a line the smallest step; the bar's end where there is none. */
static void draw_curve(const weft_progress *p, int width, char *out) {
    double least = INFINITY, most = -INFINITY;
    for (int i = 0; i < p->points; i++) {
        least = fmin(least, p->curve[i]);
        most = fmax(most, p->curve[i]);
    }
    for (int k = 0; k < width; k++) {
        double at = most > least ? (p->curve[k * p->points / width] - least) / (most - least) : 0;
        memcpy(out + 3 * k, "\xe2\x96\x81", 3); /* U+2581, a low line, to U+2588, a whole block */
        out[3 * k + 2] = (char)(0x81 + (int)lround(7 * at));
    }
    out[3 * width] = '\0';
}

/* "train [=====>     ] 480/1000, 12.3 steps/s, 3m05s left, loss 3.21" in `width` columns: the bar takes
 * what the words leave. On a terminal of the usual width it always has some columns; on a narrow one
 * it goes. */
static void draw_bar(const weft_progress *p, double now, int width) {
    char head[TEXT_MAX + 4], tail[RATE_MAX + 128], line[2 * RATE_MAX + 256],
        bar[4 * BAR_MOST + 8] = "", place[TEXT_MAX + 32];
    if (p->total > 0)
        snprintf(place, sizeof place, "%lld/%lld", (long long)p->done, (long long)p->total);
    else
        snprintf(place, sizeof place, "%lld", (long long)p->done);
    snprintf(head, sizeof head, "%s ", p->label);
    int words = width - columns(head) - 3, room = 0;
    for (int cut = 0; cut < 2 && room < BAR_LEAST; cut++) {
        describe_tail(p, now, place, cut, tail, sizeof tail);
        room = words - columns(tail);
    }
    if (room < BAR_LEAST && width >= BAR_WIDTH && words - BAR_LEAST > 0) {
        /* At one of its commas, where there is one. */
        cut_columns(tail, words - BAR_LEAST + 1);
        char *comma = strrchr(tail, ',');
        if (comma) *comma = '\0';
        cut_columns(tail, words - BAR_LEAST);
        room = words - columns(tail);
    }
    if (p->total > 0 && room >= BAR_LEAST) {
        int length = room < BAR_MOST ? room : BAR_MOST, full = (int)(fraction(p) * length);
        char done[3 * BAR_MOST + 1];
        memset(done, '=', (size_t)full);
        if (full > 0 && full < length) done[full - 1] = '>';
        done[full] = '\0';
        if (p->curved && p->points > 1) draw_curve(p, full, done);
        snprintf(bar, sizeof bar, "[%s%*s] ", done, length - full, "");
    }
    snprintf(line, sizeof line, "%s%s%s", head, bar, tail);
    cut_columns(line, width);
    weft_log_status(line);
}

weft_progress *weft_progress_begin(const weft_progress_options *options) {
    weft_progress *p = calloc(1, sizeof *p);
    if (!p) return NULL;
    copy_text(p->label, sizeof p->label, options->label ? options->label : "");
    copy_text(p->unit, sizeof p->unit, options->unit ? options->unit : "steps");
    p->total = options->total;
    p->first = p->done = options->done;
    p->seconds = options->seconds > 0 ? options->seconds : line_seconds;
    p->begun = weft_clock();
    p->shown = p->begun;
    p->tenth = (int)(10 * fraction(p));
    p->each = 1;
    /* Whether texts are UTF-8 here, as the environment says it. */
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    const char *value = NULL;
    for (int i = 0; i < 3 && !(value && *value); i++)
        value = getenv(names[i]);
    p->curved = value && (strcasestr(value, "utf-8") || strcasestr(value, "utf8"));
    if (weft_log_enabled(WEFT_LOG_INFO) && weft_log_status_width() > 0)
        draw_bar(p, p->begun, weft_log_status_width());
    return p;
}

void weft_progress_update(weft_progress *p, int64_t done, const char *note) {
    if (!p) return;
    p->done = done;
    if (!weft_log_enabled(WEFT_LOG_INFO)) return;
    copy_text(p->note, sizeof p->note, note ? note : "");
    double now = weft_clock();
    int width = weft_log_status_width();
    int tenth = (int)(10 * fraction(p));
    if (width > 0) {
        if (now - p->shown < redraw_seconds) return;
        draw_bar(p, now, width);
    } else {
        /* The end is told by the summary. */
        bool at_tenth = tenth > p->tenth && tenth < 10;
        if (!at_tenth && now - p->shown < p->seconds) return;
        char place[TEXT_MAX + 32], rate[RATE_MAX];
        /* "120/1000 (12%)", or "120 steps" where the end is unknown. */
        if (p->total > 0)
            snprintf(place, sizeof place, "%lld/%lld (%d%%)", (long long)p->done,
                     (long long)p->total, (int)(100 * fraction(p)));
        else
            snprintf(place, sizeof place, "%lld %s", (long long)p->done, p->unit);
        describe_tail(p, now, "", false, rate, sizeof rate);
        weft_log(WEFT_LOG_INFO, "%s %s %s", p->label, place, rate);
        p->tenth = tenth;
    }
    p->shown = now;
}

/* When there are as many points as there is room for, two and two become one. */
void weft_progress_value(weft_progress *p, double value) {
    if (!p || !isfinite(value)) return;
    p->sum += value;
    if (++p->held < p->each) return;
    if (p->points == POINTS) {
        for (int i = 0; i < POINTS / 2; i++)
            p->curve[i] = (p->curve[2 * i] + p->curve[2 * i + 1]) / 2;
        p->points /= 2;
        p->each *= 2;
        return;
    }
    p->curve[p->points++] = p->sum / (double)p->held;
    p->sum = 0;
    p->held = 0;
}

void weft_progress_set_total(weft_progress *p, int64_t total) {
    if (p) p->total = total;
}

void weft_progress_end(weft_progress *p, bool summary) {
    if (!p) return;
    weft_log_status(NULL);
    if (summary) {
        double passed = weft_clock() - p->begun;
        char rate[16], time[16], curve[3 * CURVE + 1] = "";
        if (p->curved && p->points > 1 && weft_log_status_width() > 0) draw_curve(p, CURVE, curve);
        format_rate(passed > 0 ? (double)(p->done - p->first) / passed : 0, rate, sizeof rate);
        format_time(passed, time, sizeof time);
        weft_log(WEFT_LOG_INFO, "%s %lld %s in %s, %s %s/s%s%s%s%s", p->label,
                 (long long)(p->done - p->first), p->unit, time, rate, p->unit,
                 *p->note ? ", " : "", p->note, *curve ? "  " : "", curve);
    }
    free(p);
}
