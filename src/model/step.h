/* A model as a step of one launch (core/decoding.h). */
#pragma once

#include "core/decoding.h"
#include "model/model.h"

/* Whether the model's layers have that form, caches and weights being bf16: the form, but for the
 * decoder's own sizes (slots, context, table_pages). */
bool weft_step_form_of(const weft_config *c, weft_dtype cache_dtype, weft_step_form *form);

/* The weights, on the host but for the tables of embeddings, which lie where the backend has them.
 * Of a layer keys and values are left to the caller. Freed with weft_step_model_free. */
weft_status weft_step_make(const weft_model *m, const weft_backend *backend, weft_pool *pool,
                           const weft_step_form *form, weft_step_model *out);

/* For kinds: a layer of a model, and one of its parameters as floats, whatever its type. */
typedef struct weft_step_source {
    const weft_model *model;
    const weft_step_form *form;
    int64_t layer;
} weft_step_source;

int64_t weft_step_count(const weft_step_source *s, const char *name); /* 0: there is none */
weft_status weft_step_read(const weft_step_source *s, const char *name, float *out);
/* The same where it is there; otherwise `out` stays as it is. */
weft_status weft_step_read_optional(const weft_step_source *s, const char *name, float *out);
