/* `weft eval --needle`: what of it is the command line's. */
#ifndef WEFT_CLI_NEEDLE_H
#define WEFT_CLI_NEEDLE_H

#include "cli/args.h"
#include "eval/eval.h"

typedef struct {
    bool on;
    const char *lengths, *depths, *trials; /* as given; NULL: not */
} weft_needle_args;

/* Reads the lists into the options; the default lengths are of the model's context `block`. Returns
 * WEFT_EXIT_DONE, or prints one line and returns WEFT_EXIT_USAGE. */
int weft_needle_args_read(const weft_args *a, const weft_needle_args *given, int64_t block,
                          weft_needle_options *out);
/* A table of depths by lengths, or an object. */
void weft_needle_print(const weft_args *a, const weft_needle_options *o,
                       const weft_needle_score *score);

#endif
