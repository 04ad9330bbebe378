/* Checkpoints of a run: folders inside the run's folder.
 *
 *     last      where the run stands          best      where the held-out loss was lowest
 *     step-N    earlier ones, CHECKPOINT_KEEP - 1 of them
 *
 * Each holds config.json, model.safetensors, optimizer.safetensors, tokenizer.json (where
 * tokens stand for text) and, written after them, state.json with their checksums.
 *
 * A kill at any moment leaves a whole one: NAME.new is written and synced beside, then the two
 * names are exchanged in one step (renameat2 with RENAME_EXCHANGE), and what is now NAME.new, the
 * older checkpoint, is kept as step-N or removed. Where the system cannot exchange, the old one is
 * first renamed to NAME.old; a kill between the two renames leaves it there, and resuming puts it
 * back. */
#ifndef WEFT_TRAIN_CHECKPOINT_H
#define WEFT_TRAIN_CHECKPOINT_H

#include "data/tokenizer.h"
#include "train/optimizer.h"

/* What is no tensor. */
typedef struct {
    int64_t iteration;   /* steps done */
    double best_val;     /* the lowest held-out loss so far; infinity: none yet */
    int64_t skipped;     /* steps left out because something was not finite, */
    int64_t skipped_row; /* and how many of them the last ones were */
    /* The hash of what the backend chose for itself in a step (weft_backend's choices), where it
     * chooses: with another one the last bits may differ. */
    bool has_choices;
    uint32_t choices;
} weft_train_state;

/* What a checkpoint is made of. */
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

/* Whether the folder has anything of a run in it. */
bool weft_checkpoint_used(const char *run);
/* Whether there is a RUN/NAME to go on from. Puts an interrupted exchange right. */
bool weft_checkpoint_find(const char *run, const char *name);

/* Checks that the files of RUN/NAME are what was written, and that its config is `c` but for what a
 * run may change on its way (how long it is, what it reports and keeps, where it runs). */
weft_status weft_checkpoint_check(const char *run, const char *name, const weft_config *c);
/* Reads it back into a model and an optimizer made for the same config. */
weft_status weft_checkpoint_load(const char *run, const char *name, weft_model **m_out,
                                 const weft_config *c, weft_dtype dtype, weft_train_state *state);
weft_status weft_checkpoint_load_optimizer(const char *run, const char *name, weft_optimizer *o);

#endif
