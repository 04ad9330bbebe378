/* Round numbers, and how to write them. The minus is the typographer's, as wide as a plus. */
#include "report/plot.h"

#include <math.h>

#define COUNT(list) ((int)(sizeof(list) / sizeof(list)[0]))
#define MINUS "\xe2\x88\x92"

static const char *const units[] = {"", "k", "M", "G", "T", "P", "E", "Z", "Y"};

/* The smallest of 1, 2, 5 and 10 times a power of ten that fits at most `most` times. */
static double round_step(double range, int most) {
    static const int times[] = {1, 2, 5, 10};
    double power = pow(10, floor(log10(range / most)));
    for (int i = 0; i < COUNT(times); i++)
        if (range / (power * times[i]) <= most) return power * times[i];
    return power * 10;
}

static void put_number(char *text, const char *form, int decimals, double value, const char *unit) {
    char plain[WEFT_TICK_ROOM];
    snprintf(plain, sizeof plain, form, decimals, value);
    bool negative = *plain == '-';
    snprintf(text, WEFT_TICK_ROOM, "%s%.*s%s", negative ? MINUS : "", WEFT_TICK_ROOM - 6,
             plain + negative, unit);
}

static void write_texts(weft_ticks *t, double step) {
    double most = 0, scale = 1;
    int unit = 0;
    for (int i = 0; i < t->n; i++)
        most = fmax(most, fabs(t->at[i]));
    for (; most >= 1e4 && most / scale >= 1000 && unit < COUNT(units) - 1; unit++)
        scale *= 1000;
    int decimals = 0; /* that a step needs to be written whole */
    for (double s = step / scale; decimals < 8 && fabs(round(s) - s) > 1e-6 * s; decimals++)
        s *= 10;
    for (int i = 0; i < t->n; i++) {
        if (t->at[i] == 0)
            snprintf(t->text[i], sizeof t->text[i], "0");
        else if (step / scale < 1e-6)
            put_number(t->text[i], "%.*e", 1, t->at[i], "");
        else
            put_number(t->text[i], "%.*f", decimals, t->at[i] / scale, units[unit]);
    }
}

void weft_axis_ticks(double low, double high, int most, weft_ticks *out) {
    out->n = 0;
    if (!(high > low) || !isfinite(high - low) || most < 1) return;
    if (most > WEFT_TICKS_MOST - 1) most = WEFT_TICKS_MOST - 1;
    double step = round_step(high - low, most), first = ceil(low / step - 1e-9);
    if (!(step > 0) || !isfinite(step) || fabs(first) > 1e12) return;
    for (int i = 0; i <= most && out->n < WEFT_TICKS_MOST; i++) {
        double at = (first + i) * step;
        if (at > high + step * 1e-9) break;
        out->at[out->n++] = fabs(at) < step * 1e-9 ? 0 : at;
    }
    write_texts(out, step);
}

/* 3k, 0.002: a number by itself. */
static void write_alone(weft_ticks *t) {
    for (int i = 0; i < t->n; i++) {
        double value = t->at[i];
        int unit = 0;
        for (; t->at[i] >= 1e4 && value >= 999.5 && unit < COUNT(units) - 1; unit++)
            value /= 1000;
        put_number(t->text[i], value < 1e-4 ? "%.*e" : "%.*g", value < 1e-4 ? 0 : 4, value,
                   units[unit]);
    }
}

/* Powers of ten times each of `times`, every `every`-th power. */
static void take_powers(double low, double high, const int *times, int n_times, int every,
                        weft_ticks *out) {
    out->n = 0;
    for (int p = (int)floor(log10(low)); p <= (int)ceil(log10(high)); p += every) {
        for (int i = 0; i < n_times; i++) {
            double at = times[i] * pow(10, p);
            if (at < low * (1 - 1e-9) || at > high * (1 + 1e-9)) continue;
            if (out->n < WEFT_TICKS_MOST) out->at[out->n] = at;
            out->n++;
        }
    }
}

void weft_axis_log_ticks(double low, double high, int most, weft_ticks *out) {
    static const struct {
        int n, times[3];
    } ways[] = {{3, {1, 2, 5}}, {2, {1, 3, 0}}, {1, {1, 0, 0}}};
    out->n = 0;
    if (!(low > 0) || !(high > low) || !isfinite(high) || most < 2) return;
    if (most > WEFT_TICKS_MOST) most = WEFT_TICKS_MOST;
    for (int i = 0; i < COUNT(ways); i++) {
        take_powers(low, high, ways[i].times, ways[i].n, 1, out);
        if (out->n > 1 && out->n <= most) {
            write_alone(out);
            return;
        }
    }
    double powers = ceil(log10(high)) - floor(log10(low));
    if (powers < 2) {
        weft_axis_ticks(low, high, most, out);
        return;
    }
    take_powers(low, high, ways[2].times, 1, (int)ceil(powers / most), out);
    if (out->n > WEFT_TICKS_MOST) out->n = WEFT_TICKS_MOST;
    write_alone(out);
}

weft_scale weft_axis_scale(weft_unit unit, double most) {
    static const weft_scale scales[][5] = {
        [WEFT_UNIT_COUNT] = {{1, ""}},
        [WEFT_UNIT_SECONDS] = {{1, "s"}, {60, "min"}, {3600, "h"}, {86400, "days"}},
        [WEFT_UNIT_BYTES] = {{1, "bytes"},
                             {1024, "KiB"},
                             {1048576, "MiB"},
                             {1073741824, "GiB"},
                             {1099511627776, "TiB"}}};
    const weft_scale *list = scales[unit];
    int chosen = 0;
    for (int i = 1; i < 5 && list[i].name; i++)
        if (most >= (unit == WEFT_UNIT_SECONDS ? 2 : 1) * list[i].by) chosen = i;
    return list[chosen];
}

const char *weft_plot_short(double value, int digits, char room[32]) {
    int unit = 0;
    if (!isfinite(value)) return "";
    while (fabs(value) >= 999.5 && unit < 5) { /* up to P: an E would read as a power of ten */
        value /= 1000;
        unit++;
    }
    /* Digits before the point are all written, whatever `digits` is: "120k", not "1.2e+02k". */
    int whole = fabs(value) >= 100 ? 3 : fabs(value) >= 10 ? 2 : 1;
    snprintf(room, 32, "%.*g%s", digits > whole ? digits : whole, value, units[unit]);
    return room;
}
