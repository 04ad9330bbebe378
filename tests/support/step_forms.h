/* Small models in the forms that layers commonly have, and decoding of a sequence of tokens. */
#ifndef WEFT_TESTS_STEP_FORMS_H
#define WEFT_TESTS_STEP_FORMS_H

#include "generate/decoder.h"
#include "support/model_case.h"

typedef struct {
    const char *name;
    const char *settings[10];
} step_form;

enum { STEP_FORMS = 11 };
extern const step_form step_forms[STEP_FORMS];

/* A case of `time` tokens; the caller frees its tokens. */
void step_case_open(model_case *c, const step_form *f, int64_t time);

/* Its weights as drawn, but for W2's temperatures: about those that training starts from. Where they are
 * near 1 the scores are 16 times as large, and so is what rounding does to them. */
weft_model *step_case_weights(const model_case *c);

typedef struct {
    weft_model *model;
    weft_pool *pool;
    weft_decoder *decoder;
    int64_t vocab;
} step_decoding;

/* Takes the model over. Pages are given out backwards, so that none lies where its number in the sequence
 * would put it. */
void step_decoding_open(step_decoding *d, weft_model *m, const weft_backend *backend, int64_t slots,
                        int64_t context);
void step_decoding_close(step_decoding *d);

/* Logits [time, V] of a sequence in runs of `chunk` rows; malloc'd. */
float *step_decode(step_decoding *d, int32_t slot, const int32_t *tokens, int64_t time,
                   int64_t chunk);

#endif
