/* Poison for one token. */
#include "support/poison.h"

#include "support/test.h"

#include <math.h>

void poison_token(weft_model *m, int32_t token, float with) {
    assert_false(m->config.weight_tying);
    weft_weight *w = weft_model_find(m, "wte.weight");
    assert_non_null(w);
    assert_int_equal(w->dtype, WEFT_F32);
    int64_t width = w->count / m->config.vocab_size;
    expect_ok(weft_mirror_use(m->mirror, NULL));
    for (int64_t i = 0; i < width; i++)
        ((float *)w->data)[token * width + i] = with;
    weft_mirror_wrote(m->mirror, NULL);
}

void poison_checkpoint(const char *folder, int32_t token) {
    weft_model *m;
    expect_ok(weft_model_load(folder, WEFT_F32, &m));
    poison_token(m, token, NAN);
    expect_ok(weft_model_save(m, folder));
    weft_model_destroy(m);
}
