/* Memory that runs out while a graph is built: each growth of a list fails once, and what is said of it is
 * that there is no memory, not that the input is wrong. */
#include "model/cached.h"
#include "support/test.h"

#include <dlfcn.h>

static int until_failure = -1; /* growths that still succeed; -1: all do */

void *realloc(void *memory, size_t bytes) {
    static void *(*real)(void *, size_t);
    if (until_failure == 0) {
        until_failure = -1;
        return NULL;
    }
    if (until_failure > 0) until_failure--;
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "realloc");
    return real(memory, bytes);
}

static weft_config make_config(void) {
    weft_config c;
    weft_config_defaults(&c);
    assert_int_equal(
        weft_config_override_all(&c,
                                 "N_LAYER=40 N_HEAD=2 N_EMBD=8 VOCAB_SIZE=16 CONTEXT=8 "
                                 "RA_MLA_MLP_CROSS_TOKEN=y WEIGHT_DTYPE=bf16",
                                 "test"),
        WEFT_OK);
    return c;
}

TEST(test_training_says_that_memory_ran_out) {
    weft_config c = make_config();
    weft_status status = WEFT_ENOMEM;
    int failures = 0;
    for (; status != WEFT_OK; failures++) {
        weft_model_graph m = {0};
        until_failure = failures;
        status = weft_model_build(&c, &(weft_build){.batch = 1, .time = 8, .dtype = WEFT_F32}, &m);
        until_failure = -1;
        assert_true(status == WEFT_OK || status == WEFT_ENOMEM);
        if (status == WEFT_ENOMEM) assert_non_null(strstr(weft_error_message(), "no memory"));
        weft_model_graph_destroy(&m);
    }
    assert_true(failures > 8); /* nodes, tensors and parameters, each several times */
}

TEST(test_generation_says_that_memory_ran_out) {
    weft_config c = make_config();
    weft_cached_shape shape = {.rows = 1,
                               .wanted = 1,
                               .slots = 1,
                               .pages = 4,
                               .context = 8,
                               .table_pages = weft_cached_table_pages(8),
                               .dtype = WEFT_F32,
                               .cache_dtype = WEFT_F32};
    weft_status status = WEFT_ENOMEM;
    for (int failures = 0; status != WEFT_OK; failures++) {
        weft_cached_graph g;
        until_failure = failures;
        status = weft_cached_build(&c, &shape, &g);
        until_failure = -1;
        assert_true(status == WEFT_OK || status == WEFT_ENOMEM);
        if (status == WEFT_OK) weft_cached_destroy(&g);
    }
}

RUN_TESTS(NULL, NULL)
