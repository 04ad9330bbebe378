/* What `weft help KEY` prints of one option. */
#ifndef WEFT_CONFIG_HELP_H
#define WEFT_CONFIG_HELP_H

#include "config/config.h"

/* Its default, what it does, what it may be, when it matters, and the names that it had before. */
void weft_option_explain(const weft_option *o, FILE *out);

#endif
