/* Studies that come with the program, by name: `--config demo`. */
#ifndef WEFT_CLI_DEFCONFIG_H
#define WEFT_CLI_DEFCONFIG_H

#include "base/files.h"

#include <stdbool.h>

/* Where `name` is a plain word, no file of that name is here, and one is among the studies beside the
 * program (../share/weft/defconfigs as installed; as built, defconfigs, a link that make puts there), the
 * path of that one, in `room`; `name` itself otherwise, NULL too. */
const char *weft_defconfig_find(const char *name, char room[WEFT_PATH_MAX]);

/* Whether `name` is a plain word that is neither a file here nor one of these studies; the study whose name
 * is nearest to it is then in `nearest`, "" where none is near. */
bool weft_defconfig_is_missing(const char *name, char nearest[WEFT_PATH_MAX]);

#endif
