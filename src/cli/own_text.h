/* Training on a text of one's own with nothing else said: `weft train --text FILE`. */
#pragma once

#include "cli/args.h"
#include "study/study.h"

WEFT_ENDED_BY(weft_study_close, weft_study)

/* How long training may take where nothing is said, in minutes. */
enum { WEFT_OWN_TEXT_MINUTES = 10 };

/* Learns a tokenizer from the texts, writes their shards into `out`/data, and a config for them into
 * `out`/config: a model whose size follows the text and what this machine computes in `minutes`. A
 * folder that has a run already is refused. */
weft_status weft_own_text_prepare(const weft_args *a, const char *const *paths, int n_paths,
                                  const char *out, double minutes);

/* The same for a study whose runs may take `minutes` each: the shards go to `data`, and the config to *c, with
 * its dataset by its whole path. Without any text it is the one that comes with weft, and `data` is not made. */
weft_status weft_own_text_choose(const weft_args *a, const char *const *paths, int n_paths,
                                 const char *data, double minutes, weft_config *c);
/* Warm-up and intervals for its steps. */
void weft_own_text_intervals(weft_config *c);

/* What a study is before it runs: its variants and their costs on standard output, how small a difference it can show and that its runs take so
 * many seconds, one after the other; NaN: that is not known. */
void weft_study_list(const weft_study *s, double seconds, bool json);
