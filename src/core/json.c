/* Numbers and texts to JSON and back. */
#include "core/json.h"

#include "core/text.h"

#include <math.h>
#include <stdlib.h>

json_t *weft_json_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *weft_json_whole(double value) {
    return fabs(value) < 9.2e18 ? json_integer((json_int_t)value) : json_null();
}

json_t *weft_json_text(const char *text) {
    char *repaired = weft_text_repair(text);
    json_t *string = repaired ? json_string(repaired) : NULL;
    free(repaired);
    return string;
}

double weft_json_number_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}
