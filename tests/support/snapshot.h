/* Texts that users see, as they were when somebody last read them: tests/snapshots has a file for each. They hold the
 * words and the form; numbers stand as N there, since what a number is worth is tested elsewhere. */
#ifndef WEFT_TESTS_SNAPSHOT_H
#define WEFT_TESTS_SNAPSHOT_H

#include <jansson.h>

/* Fails unless the text is that of tests/snapshots/NAME. With WEFT_SNAPSHOTS=write in the environment it is written
 * there instead; read the difference before you commit it. */
void snapshot_expect(const char *name, const char *text);
/* The same of what is in a JSON value: keys and types, and of an array its first element. */
void snapshot_expect_keys(const char *name, const json_t *value);

#endif
