/* The key that clients send. */
#ifndef WEFT_SERVE_KEY_H
#define WEFT_SERVE_KEY_H

#include <stdbool.h>

/* Whether a value of the header Authorization is "Bearer " and the key. How long it takes depends on
 * the length of what was sent alone, and says nothing about the key. `header` may be NULL. */
bool weft_key_matches(const char *key, const char *header);

#endif
