/* Configs of small models, drawn at random from a model's options. */
#ifndef WEFT_TESTS_MIX_H
#define WEFT_TESTS_MIX_H

#include "config/config.h"

/* Config `mix` of those of a seed, 21 tokens long with 11 in its vocabulary, and what it sets, for messages: words
 * with a blank before each. What it is may be no model (weft_model_check). */
void mix_draw(uint64_t seed, uint64_t mix, weft_config *c, char *words, size_t room);

#endif
