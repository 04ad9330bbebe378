/* What generation needs of a folder: the checkpoint in it and its tokenizer. */
#pragma once

#include "config/config.h"
#include "data/tokenizer.h"

enum { WEFT_FOLDER_PATH = 4096 };

/* The checkpoint that `path` stands for: itself, or the best of a run's folder. */
weft_status weft_generation_folder(const char *path, char out[WEFT_FOLDER_PATH]);

/* The tokenizer of a checkpoint: its tokenizer.json, or what the config names. Fails where tokens
 * could be the model's and not the tokenizer's the other way round: a larger vocabulary than the
 * model's. */
weft_status weft_generation_tokenizer(const char *folder, const weft_config *c,
                                      weft_tokenizer **out);
