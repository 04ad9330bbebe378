/* The count itself. */
#include "base/beat.h"

atomic_uint_least64_t weft_beats;
