/* A checkpoint that `weft convert` or `weft prune` made: a folder with config.json, model.safetensors,
 * tokenizer.json and model.config, with which it can be trained further. */
#ifndef WEFT_CLI_NEW_MODEL_H
#define WEFT_CLI_NEW_MODEL_H

#include "data/tokenizer.h"
#include "model/folder.h"
#include "model/model.h"

/* Publishes it; an error where a model would be replaced, unless `force`. `t` may be NULL: no tokenizer. */
weft_status weft_new_model_write(const char *folder, bool force, const weft_model *m,
                                 const weft_tokenizer *t);
/* What --force allows to be replaced, and what is allowed without it: nothing. */
weft_may_replace weft_new_model_may(bool force);

#endif
