/* The count itself. */
#include "core/beat.h"

atomic_uint_least64_t weft_beats;
