/* Numbers to JSON and back. */
#include "core/json.h"

#include <math.h>

json_t *weft_json_number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *weft_json_whole(double value) {
    return isfinite(value) ? json_integer((json_int_t)value) : json_null();
}

double weft_json_number_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}
