/* No positions: a causal model still sees how many tokens came before. */
#include "model/builder.h"

const weft_position_kind weft_position_none = {0};
