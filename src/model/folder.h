/* The files of a model's folder: which they are, whose the folder is, and how it is published.
 *
 * A folder is weft's where it holds nothing but a model's files (a checkpoint's, and model.config), and
 * weft's mark, or, as versions before made it, a state.json or a config.json of weft's, or an optimizer's
 * state. Only such a folder is replaced, and always whole. */
#pragma once

#include "base/beside.h"

#include <jansson.h>

/* The parts that state.json has checksums of. */
enum { WEFT_PART_CONFIG, WEFT_PART_MODEL, WEFT_PART_OPTIMIZER, WEFT_PART_TOKENIZER, WEFT_PARTS };
extern const char *const weft_parts[WEFT_PARTS];

/* What the names in a folder say. */
typedef struct {
    bool mark, state, file[WEFT_PARTS];
    bool foreign; /* something else is there too */
    int n;
} weft_contents;

/* Whether FOLDER/NAME is there. */
weft_status weft_folder_has(const char *folder, const char *name, bool *there);

/* `own`: it is weft's. */
weft_status weft_contents_read(const char *path, weft_contents *c, bool *own);

/* The sums of the parts that were written, for state.json; those of no bytes are left out. */
json_t *weft_parts_to_json(const weft_sum sums[WEFT_PARTS]);

/* What may be replaced (base/beside.h): any model's folder of weft's, as --force has it; or one that no run
 * goes on from; or none, with a line that names --force. */
weft_status weft_model_may_force(const char *path);
weft_status weft_model_may_save(const char *path);
weft_status weft_model_may_not(const char *path);

/* Writes a model's parts into a folder and tells their sums; zeros for those it does not write. */
typedef weft_status (*weft_parts_writer)(void *context, const char *folder,
                                         weft_sum sums[WEFT_PARTS]);

/* A model's folder: the parts, state.json with their checksums, all of it synced and read back, and then
 * its name. */
weft_status weft_model_publish(const char *path, weft_may_replace may, weft_parts_writer write,
                               void *context);

/* state.json beside a model: facts about it, and the sizes and checksums of the files in its folder,
 * which thereby belong together. A run's checkpoint says more (train/checkpoint.h): a state with an
 * "iteration" is one that a run goes on from.
 *
 *     {"files": {"model.safetensors": {"bytes": 123, "crc32c": "89abcdef"}, ...}, ...,
 *      "state_crc32c": "01234567"}
 *
 * Its last member is the checksum of all the bytes before it, so that a changed bit in it is noticed
 * like one in the files. Format 1 of versions before had none. */

enum { WEFT_STATE_FORMAT = 2 };

/* Writes FOLDER/state.json: `state`, which is taken, with "format" and its own checksum added. */
weft_status weft_state_write(const char *folder, json_t *state);
/* Reads it and checks its own checksum. */
weft_status weft_state_read(const char *folder, json_t **out);

/* Checks the folder's files that `state` tells of, and that it tells of the first `needed` parts. Where
 * `whole` is false only their sizes are looked at, which is quick. */
weft_status weft_state_check(const char *folder, const json_t *state, int needed, bool whole);
/* The same of its own state, whole. */
weft_status weft_state_verify(const char *folder, int needed);

/* Checks what a model's folder says of config.json, model.safetensors and tokenizer.json. A folder
 * without a state.json, as others write it, says nothing. */
weft_status weft_model_check_sums(const char *folder);
/* Checks that optimizer.safetensors belongs to the model: that the folder says so. */
weft_status weft_model_check_optimizer(const char *folder);
