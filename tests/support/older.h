/* What weft wrote at commit d71b825: tests/older/make says how. */
#ifndef WEFT_TESTS_OLDER_H
#define WEFT_TESTS_OLDER_H

#include <stdbool.h>

/* cmocka's setup of a group: a scratch folder with the files in it. Commands take that program's kernels
 * where its bits are to be had. */
int older_setup(void **state);
/* Whether its bits are: on NEON, by GNU's compiler, without a sanitizer. Another processor adds in another
 * order. */
bool older_bits(void);

#endif
