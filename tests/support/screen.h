/* What a child process shows: its standard error through a pipe, or on a terminal of which the
 * lines are worked out as a person would see them. For tests of the log and the progress bar. */
#ifndef WEFT_TESTS_SCREEN_H
#define WEFT_TESTS_SCREEN_H

#include <stdbool.h>
#include <stddef.h>

enum { SCREEN_LINES = 4096, SCREEN_WIDTH = 512 };

typedef struct {
    char *raw; /* every byte that was written */
    size_t bytes;
    int status; /* how the child ended: 0 is well */
    /* A terminal's lines, oldest first, without what was erased. */
    int lines;
    char (*line)[SCREEN_WIDTH];
    int draws;     /* how often a line was erased */
    bool overflow; /* something was written beyond the last column */
} screen;

/* Runs `body` in a child whose standard error is a pipe (width 0) or a terminal that wide, with
 * these variables ("NAME=value", or "NAME" to unset it; ends on NULL). Where the system gives no
 * terminal the running test is skipped. */
screen screen_run(int width, const char *const *environment, void (*body)(void));
void screen_free(screen *s);

/* How often a text is in what was written. */
int screen_count(const screen *s, const char *text);

#endif
