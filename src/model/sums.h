/* state.json beside a model: facts about it, and the sizes and checksums of the files in its folder (parts.h),
 * which thereby belong together. A run's checkpoint says more (train/checkpoint.h): a state with an
 * "iteration" is one that a run goes on from.
 *
 *     {"files": {"model.safetensors": {"bytes": 123, "crc32c": "89abcdef"}, ...}, ...,
 *      "state_crc32c": "01234567"}
 *
 * Its last member is the checksum of all the bytes before it, so that a changed bit in it is noticed
 * like one in the files. Format 1 of versions before had none. */
#ifndef WEFT_MODEL_SUMS_H
#define WEFT_MODEL_SUMS_H

#include "base/files.h"

#include <jansson.h>

enum { WEFT_STATE_FORMAT = 2 };

/* {"bytes": ..., "crc32c": ...} */
json_t *weft_sum_to_json(const weft_sum *sum);

/* Writes FOLDER/state.json: `state`, which is taken, with "format" and its own checksum added. */
weft_status weft_state_write(const char *folder, json_t *state);
/* Reads it and checks its own checksum. */
weft_status weft_state_read(const char *folder, json_t **out);

/* Checks the folder's file against its entry in `state`; no entry is an error. Where `whole` is
 * false only the size is looked at, which is quick. */
weft_status weft_state_check_file(const char *folder, const json_t *state, const char *name,
                                  bool whole);

/* Checks all files that it tells of. */
weft_status weft_state_verify(const char *folder);

/* Checks what a model's folder says of config.json, model.safetensors and tokenizer.json. A folder
 * without a state.json, as others write it, says nothing. */
weft_status weft_model_check_sums(const char *folder);
/* Checks that optimizer.safetensors belongs to the model: that the folder says so. */
weft_status weft_model_check_optimizer(const char *folder);

#endif
