/* The files of a model's folder: which they are, whose the folder is, and how it is published.
 *
 * A folder is weft's where it holds nothing but a model's files (a checkpoint's, and model.config), and
 * weft's mark, or, as versions before made it, a state.json or a config.json of weft's, or an optimizer's
 * state. Only such a folder is replaced, and always whole. */
#ifndef WEFT_MODEL_PARTS_H
#define WEFT_MODEL_PARTS_H

#include "base/new_folder.h"

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

/* `own`: it is weft's. */
weft_status weft_contents_read(const char *path, weft_contents *c, bool *own);

/* The sums of the parts that were written, for state.json; those of no bytes are left out. */
json_t *weft_parts_to_json(const weft_sum sums[WEFT_PARTS]);

/* What may be replaced (new_folder.h): any model's folder of weft's, as --force has it; or one that no run
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

#endif
