/* Numbers and texts to JSON and back. JSON has no NaN and no infinity: they are null. */
#ifndef WEFT_CORE_JSON_H
#define WEFT_CORE_JSON_H

#include <jansson.h>

/* null where the value is not finite. The caller owns it. */
json_t *weft_json_number(double value);
/* The same as a whole number. */
json_t *weft_json_whole(double value);
/* A text; bytes of it that are no UTF-8 are U+FFFD. The caller owns it. */
json_t *weft_json_text(const char *text);
/* The number under a key; NaN: there is none, or it is no number. */
double weft_json_number_of(const json_t *object, const char *key);

#endif
