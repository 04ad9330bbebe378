/* A checkpoint that is ready to run: what `weft generate`, `weft serve` and `weft inspect` begin with. */
#ifndef WEFT_CLI_LOADED_H
#define WEFT_CLI_LOADED_H

#include "cli/args.h"
#include "generate/folder.h"
#include "model/model.h"

typedef struct {
    char folder[WEFT_FOLDER_PATH]; /* the checkpoint itself */
    weft_config config;
    weft_model *model;
    weft_tokenizer *tokenizer;
    weft_encoder *encoder;
    const weft_backend *backend;
    weft_pool *pool;
} weft_loaded;

/* What is wanted of it: the model alone, */
typedef enum {
    WEFT_LOADED_MODEL,
    WEFT_LOADED_TEXT,      /* and its tokenizer, */
    WEFT_LOADED_GENERATION /* and the type that generation runs in */
} weft_loaded_for;

/* Opens what `path` stands for, with what the arguments change of its config. Its checksums are
 * verified unless `unchecked`. After a failure too it is to be closed. */
weft_status weft_loaded_open(const weft_args *a, const char *path, bool unchecked,
                             weft_loaded_for purpose, weft_loaded *out);
void weft_loaded_close(weft_loaded *l);

/* Refuses --config and --variant, since a checkpoint has a config of its own. */
int weft_args_no_config(const weft_args *a);

#endif
