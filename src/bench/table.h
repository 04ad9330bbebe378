/* A table for people, a line as soon as it is known. */
#ifndef WEFT_BENCH_TABLE_H
#define WEFT_BENCH_TABLE_H

#include <stdio.h>

typedef struct {
    const char *title;
    int width; /* characters; negative: to the left */
} bench_column;

typedef struct {
    FILE *to;                   /* NULL: nothing is printed */
    const bench_column *column; /* a title of NULL ends them */
    int next;                   /* the cell to be printed */
} bench_table;

/* Prints the titles and a rule below them. */
void bench_table_start(bench_table *t, FILE *to, const bench_column *columns);

/* The next cell of the current line, as printf; the last ends it. */
void bench_cell(bench_table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Ends a line that has cells left: they say "-". */
void bench_table_end_line(bench_table *t);

#endif
