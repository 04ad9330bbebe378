#include "bench/table.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Columns that a terminal shows for a text of UTF-8: every byte but the following ones. */
static int shown_width(const char *text) {
    int width = 0;
    for (; *text; text++)
        width += ((unsigned char)*text & 0xc0) != 0x80;
    return width;
}

static void put_cell(bench_table *t, const char *text) {
    if (!t->to) return;
    const bench_column *c = &t->column[t->next++];
    int pad = abs(c->width) - shown_width(text);
    if (pad < 0) pad = 0;
    int last = t->column[t->next].title == NULL;
    if (c->width < 0)
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

void bench_table_start(bench_table *t, FILE *to, const bench_column *columns) {
    *t = (bench_table){.to = to, .column = columns};
    if (!to) return;
    int width = -2;
    for (const bench_column *c = columns; c->title; c++) {
        put_cell(t, c->title);
        width += abs(c->width) + 2;
    }
    for (int i = 0; i < width; i++)
        fputc('-', to);
    fputc('\n', to);
}

void bench_cell(bench_table *t, const char *format, ...) {
    char text[128];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    put_cell(t, text);
}

void bench_table_end_line(bench_table *t) {
    do
        put_cell(t, "-");
    while (t->next);
}
