/* Numbers and texts to JSON and back. JSON has no NaN and no infinity: they are null. */
#pragma once

#include "base/files.h"

#include <jansson.h>

/* A value that is let go of with its scope (base/scope.h). */
#define WEFT_AUTO_DECREF WEFT_AUTO(weft_end_json)
static inline void weft_end_json(json_t **value) {
    json_decref(*value);
}

/* Parses a text by others. In memory, lists and objects take up to a hundred times what they take as
 * text; a text that is little else, and would come to more than 40 times its own size, is an error
 * like any other. Flags and error as json_loadb has them. */
json_t *weft_json_read(const char *text, size_t bytes, size_t flags, json_error_t *error);
/* A whole file of at most so many bytes, in which no key may stand twice; the message names the line that
 * is wrong. The caller owns it. */
weft_status weft_json_load(const char *path, size_t most, json_t **out);
/* The same without a message, and as json_loadb has it; NULL where there is none that can be read. */
json_t *weft_json_file(const char *path, size_t most);
/* Writes an object as a text file, indented, keys in order; NULL: memory ran out when it was made.
 * Releases the object. */
weft_status weft_json_write(const char *path, json_t *object, weft_sum *sum);
/* The same as one line of text, malloc'd; NULL: no memory. */
char *weft_json_line(json_t *object);
/* null where the value is not finite. The caller owns it. */
json_t *weft_json_number(double value);
/* A text; bytes of it that are no UTF-8 are U+FFFD. The caller owns it. */
json_t *weft_json_text(const char *text);
/* An object of fields in their order, "name:s seconds:f": s a text as above, i an int, I an int64_t, f a number,
 * null where it is not finite, w the same as a whole number, b a bool, o a value that is taken over, O one that is
 * shared. NULL is null; with a * behind its letter a field that would be null is left out. The caller owns it; NULL: no
 * memory. */
#define weft_json_make(...) weft_json_add(json_object(), __VA_ARGS__)
/* Puts such an object at the end of a list. */
#define weft_json_append(list, ...) json_array_append_new(list, weft_json_make(__VA_ARGS__))
/* Adds such fields to an object, and returns it. */
json_t *weft_json_add(json_t *object, const char *fields, ...);
/* `list`, made here: so many values, each by an expression of its number i. */
#define WEFT_JSON_LIST(list, i, n, value)                                                          \
    json_t *list = json_array();                                                                   \
    for (int64_t i = 0; i < (int64_t)(n); i++)                                                     \
    json_array_append_new(list, value)
/* The number under a key; NaN: there is none, or it is no number. */
double weft_json_number_of(const json_t *object, const char *key);
/* The text under a key; "": there is none, or it is no text. */
const char *weft_json_text_of(const json_t *object, const char *key);

/* Each member of an object, or each item of a list, whose key is NULL; nothing of a value of another kind:
 *
 *     EACH_MEMBER(fact, facts)
 *         printf("%zu %s\n", fact.n, fact.key);    fact.value is what it is, `n` counts from 1 */
typedef struct {
    const char *key;
    json_t *value;
    size_t n;
    void *at;
} weft_json_member;
bool weft_json_next(const json_t *of, bool list, weft_json_member *m);
#define EACH_MEMBER(m, object) for (weft_json_member m = {0}; weft_json_next(object, false, &(m));)
#define EACH_ITEM(m, list) for (weft_json_member m = {0}; weft_json_next(list, true, &(m));)
