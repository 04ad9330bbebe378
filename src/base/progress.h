/* How far a long piece of work is: a bar on a terminal, now and then a line in a file.
 *
 *     weft_progress *p = weft_progress_begin(&(weft_progress_options){
 *         .label = "train", .unit = "steps", .total = 1000});
 *     for (...) weft_progress_update(p, done, "loss 3.21");
 *     weft_progress_end(p, true);
 *
 * On a terminal it is one line at the bottom, drawn at most ten times a second, with rate and time
 * left; log records appear above it. Elsewhere it is a log record of level info at each tenth of
 * the way and after every `seconds`. Above that level there is neither. One at a time; its calls
 * come from one thread. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct weft_progress weft_progress;

typedef struct {
    const char *label; /* what is done; both texts are copied */
    const char *unit;  /* of what: "steps" */
    int64_t total;     /* 0: unknown; then there is no bar and no time left */
    int64_t done;      /* where it starts: what a resumed run had done before */
    double seconds;    /* between lines where there is no terminal; 0: 30 */
} weft_progress_options;

/* NULL when there is no memory; the other functions then do nothing. */
weft_progress *weft_progress_begin(const weft_progress_options *options);

/* `note` is shown at the end of the line; NULL: none. Allocates nothing, and costs a look at the
 * clock when there is nothing to draw. */
void weft_progress_update(weft_progress *p, int64_t done, const char *note);

/* A number of this step, such as the loss: on a terminal that writes UTF-8 the bar is drawn as its curve,
 * and the summary ends on it. */
void weft_progress_value(weft_progress *p, double value);

/* Another end than the one it began with. */
void weft_progress_set_total(weft_progress *p, int64_t total);

/* Takes the bar away. With `summary` a record says how much was done in what time. */
void weft_progress_end(weft_progress *p, bool summary);
