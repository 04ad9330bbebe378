/* A model's folder read under a config that asks for other tensors than there are: for one less, and for one more. */
#include "core/pool.h"
#include "model/model.h"
#include "support/command.h"
#include "support/test.h"

#include <string.h>

static weft_status load(const char *folder, const char *changed, weft_model **m) {
    weft_config c;
    weft_pool *pool;
    expect_ok(weft_model_read_config(folder, &c));
    expect_ok(weft_config_override_all(&c, changed, "test"));
    expect_ok(weft_pool_create(1, &pool));
    weft_status status = weft_model_load_as(folder, &c, WEFT_F32, pool, m);
    weft_pool_destroy(pool);
    return status;
}

TEST(test_a_folder_has_just_the_tensors_of_its_config) {
    const char *folder = scratch_path("model");
    weft_model *m;
    SUCCEEDS("init", "-o", "N_LAYER=2", "-o", "N_EMBD=16", "-o", "N_HEAD=2", "-o", "VOCAB_SIZE=32",
             "-o", "CONTEXT=8", "--out", folder);
    expect_ok(load(folder, "DROPOUT=0.5", &m));
    weft_model_destroy(m);
    static const char *const wrong[][2] = {
        {"N_LAYER=1", "'h.1."},
        {"BIAS=n", "bias' is not in the config's model"},
        {"POSITION=none", "'wpe.weight' is not in the config's model"},
        {"WEIGHT_TYING=n", "'lm_head.weight'"},
        {"CONTEXT=9", "'wpe.weight'"},
    };
    for (int i = 0; i < WEFT_COUNT(wrong); i++) {
        assert_int_equal(load(folder, wrong[i][0], &m), WEFT_EINPUT);
        if (!strstr(weft_error_message(), wrong[i][1]))
            fail_msg("%s: %s", wrong[i][0], weft_error_message());
    }
}

RUN_TESTS(scratch_setup, scratch_teardown)
