/* Medians and quartiles: on a shared machine a mean says more of the neighbours than of the code. */
#include "bench/tables.h"

#include "base/clock.h"
#include "base/order.h"
#include "base/text.h"

#include <stdarg.h>

void bench_pause(void) {
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

void bench_samples_add(bench_samples *s, double seconds) {
    if (!weft_grow_list(&s->value, &s->room, (int64_t)s->count + 1, sizeof *s->value)) {
        fputs("bench: no memory for measurements\n", stderr);
        exit(1);
    }
    s->value[s->count++] = seconds;
}

void bench_samples_free(bench_samples *s) {
    free(s->value);
    *s = (bench_samples){0};
}

weft_status bench_time(weft_exec *x, int repeats, bench_samples *to) {
    for (int i = 0; i < repeats; i++) {
        double start = weft_clock();
        WEFT_TRY(weft_exec_run(x, &(weft_run){.seed = 1}));
        bench_samples_add(to, weft_clock() - start);
    }
    return WEFT_OK;
}

weft_status bench_list_read(const char *text, const char *what, double unit, int64_t *list,
                            int *n) {
    for (*n = 0; *text; (*n)++) {
        char *end;
        double value = strtod(text, &end) / unit;
        bool good = end > text && (!*end || *end == ',') && value >= 0.5 && value < 0x1p53;
        list[*n] = good ? llround(value) : 0;
        if (!good || fabs(value - (double)list[*n]) > 1e-6 * value || *n + 1 == BENCH_LIST_MAX)
            return WEFT_BAD_INPUT("--%s '%s' must be %s numbers with commas", what, text,
                                  unit == 1 ? "whole" : "positive");
        text = *end ? end + 1 : end;
    }
    return WEFT_OK;
}

double bench_quantile(const bench_samples *s, double p) {
    if (!s->count) return 0;
    qsort(s->value, s->count, sizeof *s->value, weft_order_doubles);
    double at = p * (double)(s->count - 1);
    size_t i = (size_t)at;
    if (i + 1 >= s->count) return s->value[s->count - 1];
    return s->value[i] + (at - (double)i) * (s->value[i + 1] - s->value[i]);
}

double bench_median(const bench_samples *s) {
    return bench_quantile(s, 0.5);
}

double bench_spread(const bench_samples *s) {
    double middle = bench_median(s);
    return middle > 0 ? 0.5 * (bench_quantile(s, 0.75) - bench_quantile(s, 0.25)) / middle : 0;
}

static void put_cell(bench_table *t, const char *text) {
    if (!t->to) return;
    int width = t->column[t->next++].width, last = t->next == t->columns;
    int pad = abs(width) - weft_utf8_count(text, strlen(text));
    if (pad < 0) pad = 0;
    if (width < 0)
        fprintf(t->to, "%s%*s", text, last ? 0 : pad, "");
    else
        fprintf(t->to, "%*s%s", pad, "", text);
    if (last) {
        fputc('\n', t->to);
        t->next = 0;
        fflush(t->to);
    } else {
        fputs("  ", t->to);
    }
}

void bench_table_start(bench_table *t, FILE *to, const char *columns) {
    int width = -2, end = 0;
    *t = (bench_table){.to = to};
    for (; sscanf(columns, "%23[^:]:%d%n", t->column[t->columns].title,
                  &t->column[t->columns].width, &end) == 2;
         columns += end + (columns[end] == '|'))
        width += abs(t->column[t->columns++].width) + 2;
    for (int i = 0; i < t->columns; i++)
        put_cell(t, t->column[i].title);
    for (int i = 0; to && i < width; i++)
        fputc('-', to);
    if (to) fputc('\n', to);
}

void bench_cells(bench_table *t, const char *format, ...) {
    char text[512], *rest = text, *cell;
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    while ((cell = strsep(&rest, "|")))
        put_cell(t, strncmp(cell + (*cell == '-'), "nan", 3) == 0 ? "-" : cell);
}

weft_status bench_write_json(FILE *to, json_t *all) {
    bool failed = !all || json_dumpf(all, to, JSON_INDENT(2) | JSON_REAL_PRECISION(6)) ||
                  fputc('\n', to) == EOF;
    json_decref(all);
    return failed ? weft_fail(WEFT_EIO, "the JSON cannot be written") : WEFT_OK;
}
