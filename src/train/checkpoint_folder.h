/* A checkpoint's folder as such: whose it is, whether it is whole, and its removal. */
#ifndef WEFT_TRAIN_CHECKPOINT_FOLDER_H
#define WEFT_TRAIN_CHECKPOINT_FOLDER_H

#include "base/folders.h"

/* So many of a model's parts (model/folder.h) are always in a checkpoint; the last one, the tokenizer, only
 * where tokens stand for text. */
enum { WEFT_CHECKPOINT_PARTS = 3 };

typedef enum {
    WEFT_CHECKPOINT_NONE,
    WEFT_CHECKPOINT_WHOLE,  /* every file is there in its size */
    WEFT_CHECKPOINT_TORN,   /* weft's, and one of its files is missing */
    WEFT_CHECKPOINT_BAD,    /* weft's, with all files, but not as they were written */
    WEFT_CHECKPOINT_FOREIGN /* a link, or a folder with something in it that weft did not make */
} weft_checkpoint_kind;

weft_status weft_checkpoint_look(const char *path, weft_checkpoint_kind *out);
/* An error where it is foreign. */
weft_status weft_checkpoint_need_own(const char *path, weft_checkpoint_kind *out);

/* That its files are what was written: each of them, its size and its checksum. */
weft_status weft_checkpoint_verify(const char *path);

/* N of step-N; -1: another name. */
int64_t weft_checkpoint_step_of(const char *name);
/* The step a checkpoint was made at; -1: it does not say. */
int64_t weft_checkpoint_iteration(const char *path);

/* Removes a checkpoint that is weft's, its name first. */
weft_status weft_checkpoint_remove(const char *path);

/* RUN/.saved says that RUN/last was written once, so that one that is missing was lost. */
weft_status weft_checkpoint_note_saved(const char *run);
weft_status weft_checkpoint_was_saved(const char *run, bool *out);
weft_status weft_checkpoint_forget_saved(const char *run);

#endif
