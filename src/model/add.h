/* A model with more mechanisms than another one, and the same function. */
#pragma once

#include "model/model.h"

/* `m` with the mechanisms that `c` has and m's config has not: the reciprocal gate, cross-token routing,
 * the latent coupling, the output gate, WsFFN's z-heads, and the learned weights of the first three. What reads a mechanism's result starts at zero,
 * so its logits are m's within rounding, and the gradient is not zero. Refuses a config that differs in
 * other tensors. New weights are drawn by `seed`. */
weft_status weft_model_add(const weft_model *m, const weft_config *c, uint64_t seed,
                           weft_pool *pool, weft_model **out);

/* weft_model_load_as, of a folder whose model may have fewer mechanisms than c: they are added. */
weft_status weft_model_load_more(const char *folder, const weft_config *c, weft_dtype dtype,
                                 weft_pool *pool, weft_model **out);
