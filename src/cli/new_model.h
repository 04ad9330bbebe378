/* A checkpoint that `weft convert` or `weft prune` made: a folder with config.json, model.safetensors,
 * tokenizer.json and model.config, with which it can be trained further. */
#ifndef WEFT_CLI_NEW_MODEL_H
#define WEFT_CLI_NEW_MODEL_H

#include "data/tokenizer.h"
#include "model/model.h"

/* Makes the folder; an error where a model in it would be overwritten, unless `force`. */
weft_status weft_new_model_room(const char *folder, bool force);
/* `t` may be NULL: no tokenizer. */
weft_status weft_new_model_write(const char *folder, const weft_model *m, const weft_tokenizer *t);

#endif
