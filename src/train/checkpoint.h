/* Checkpoints of a run: folders inside the run's folder.
 *
 *     last      where the run stands          best      where the held-out loss was lowest
 *     step-N    earlier ones, CHECKPOINT_KEEP - 1 of them
 *
 * Each holds config.json, model.safetensors, optimizer.safetensors, tokenizer.json (where
 * tokens stand for text) and, written after them, state.json with their checksums (model/folder.h);
 * and the mark of a folder that weft may remove (base/folders.h).
 *
 * A kill at any moment leaves a whole one: NAME.new is written, synced and read back beside, then the
 * two names are exchanged (weft_folder_exchange; by way of NAME.old where the system cannot do it in one
 * step: resuming puts back what a kill leaves there), and what is now NAME.new, the older checkpoint, is
 * kept as step-N or removed. One that is removed loses its name first (step-N.gone), so that no torn one
 * has a good name.
 *
 * Nothing else is removed. A folder by one of these names that weft did not make, or a link, ends a
 * run before its first step with a line that says so. */
#pragma once

#include "base/folders.h"
#include "data/tokenizer.h"
#include "train/optimizer.h"

typedef struct {
    int64_t iteration;    /* steps done */
    double best_val;      /* the lowest held-out loss so far; infinity: none yet */
    int64_t skipped;      /* steps left out because something was not finite, */
    int64_t skipped_row;  /* and how many of them the last ones were */
    int64_t logged_every; /* LOG_INTERVAL, where it was the same all the way; 0: it was not */
    int64_t data;         /* the checksum of the dataset's files; -1: it has none */
    /* The hash of what the backend chose for itself in a step (weft_backend's choices): with another one the
     * last bits may differ. -1: it does not choose. */
    int64_t choices;
} weft_train_state;

typedef struct {
    const weft_model *model;
    const weft_optimizer *optimizer;
    const weft_tokenizer *tokenizer; /* NULL: none is written */
    const weft_train_state *state;
} weft_checkpoint;

/* Writes RUN/NAME ("last", "best"). `keep` of them stay, older ones as RUN/step-N. On an error the
 * one that was there is untouched. RUN/FROM was just written of the same: its files get a second
 * name, and nothing is written twice; NULL: there is none. */
weft_status weft_checkpoint_save(const char *run, const char *name, int64_t keep,
                                 const weft_checkpoint *checkpoint, const char *from);

/* An error where the folder has anything of a run in it, or a file that is none's and has a name that a
 * run writes over. */
weft_status weft_checkpoint_unused(const char *run);

enum { WEFT_CHECKPOINT_NAME = 32 };

/* Where a run goes on: puts an interrupted exchange right, removes what a kill left half written or
 * half removed, and names the checkpoint, empty: nothing was saved yet and the run starts. `asked` is
 * "step-N", to go on from that one; NULL: last. Anything else, such as a last that is gone or cannot be
 * looked at, is an error that names what is there. To be called by whoever holds the run (metrics.h). */
weft_status weft_checkpoint_choose(const char *run, const char *asked,
                                   char name[WEFT_CHECKPOINT_NAME]);

/* Checks that the files of RUN/NAME are what was written, and that its config is `c` but for what a
 * run may change on its way (how long it is, what it reports and keeps, where it runs). */
weft_status weft_checkpoint_check(const char *run, const char *name, const weft_config *c);
/* Reads it back into a model and an optimizer made for the same config. */
weft_status weft_checkpoint_load(const char *run, const char *name, weft_model **m_out,
                                 const weft_config *c, weft_dtype dtype, weft_pool *pool,
                                 weft_train_state *state);

/* So many of a model's parts (model/parts.h) are always in a checkpoint; the last one, the tokenizer, only
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

/* N of step-N; -1: another name. */
int64_t weft_checkpoint_step_of(const char *name);
/* The step a checkpoint was made at; -1: it does not say. */
int64_t weft_checkpoint_iteration(const char *path);

/* Removes a checkpoint that is weft's, its name first. */
weft_status weft_checkpoint_remove(const char *path);
