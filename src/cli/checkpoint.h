/* The checkpoints that commands open, and those that they write. */
#pragma once

#include "cli/args.h"
#include "data/tokenizer.h"
#include "generate/generator.h"
#include "model/folder.h"

WEFT_ENDED_BY(weft_pool_destroy, weft_pool)

/* The checkpoint that `path` stands for: itself, or the best of a run's folder. */
weft_status weft_checkpoint_folder(const char *path, char out[WEFT_PATH_MAX]);

typedef struct {
    char folder[WEFT_PATH_MAX]; /* the checkpoint itself */
    weft_config config;
    weft_model *model;
    weft_tokenizer *tokenizer;
    weft_encoder *encoder;
    const weft_backend *backend;
    weft_pool *pool;
} weft_loaded;

/* What is wanted of it. */
typedef enum {
    WEFT_LOADED_MODEL,         /* the model alone, */
    WEFT_LOADED_ANY_TOKENIZER, /* and its tokenizer where it has one, */
    WEFT_LOADED_TEXT,          /* which must be there, */
    WEFT_LOADED_GENERATION,    /* and an encoder, and the type that generation runs in; */
    WEFT_LOADED_NUMBERS        /* its tokenizer where it has one, and that type */
} weft_loaded_for;

/* Opens what `path` stands for, with what the arguments change of its config. Its checksums are
 * verified unless `unchecked`. After a failure too it is to be closed. */
weft_status weft_loaded_open(const weft_args *a, const char *path, bool unchecked,
                             weft_loaded_for purpose, weft_loaded *out);
void weft_loaded_close(weft_loaded *l);

/* What --speculate says, for a generator of `model`: "ngram", or the folder of a draft model, which is opened;
 * NULL: nothing. After a failure too the draft is to be closed. */
weft_status weft_speculation_open(const weft_args *a, const char *how, bool unchecked,
                                  const weft_loaded *model, weft_loaded *draft,
                                  weft_generator_limits *limits);

/* Publishes a model that was made of another: a folder with config.json, model.safetensors, tokenizer.json and
 * model.config, with which it can be trained further. An error where a model would be replaced, unless
 * `force`. `t` may be NULL: no tokenizer. */
weft_status weft_new_model_write(const char *folder, bool force, const weft_model *m,
                                 const weft_tokenizer *t);
/* What --force allows to be replaced, and what is allowed without it: nothing. */
#define WEFT_NEW_MODEL_MAY(force) ((force) ? weft_model_may_force : weft_model_may_not)
