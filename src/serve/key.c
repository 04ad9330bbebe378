/* Comparing keys in constant time. */
#include "serve/key.h"

#include <string.h>
#include <strings.h>

bool weft_key_matches(const char *key, const char *header) {
    static const char scheme[] = "Bearer ";
    size_t letters = sizeof scheme - 1, length = strlen(key);
    if (!header || strncasecmp(header, scheme, letters) != 0) return false;
    const char *sent = header + letters;
    size_t count = strlen(sent);
    /* Every letter that was sent is compared with one of the key's, whatever came before. */
    volatile unsigned char differs = (unsigned char)(count != length);
    for (size_t i = 0; i < count; i++)
        differs =
            (unsigned char)(differs | (unsigned char)(sent[i] ^ key[length ? i % length : 0]));
    return !differs;
}
