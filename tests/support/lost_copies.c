/* The backend is a copy with another download, so its own errors come through. */
#include "lost_copies.h"

#include "command.h"
#include "test.h"
#include "train/loop.h"
#include "train_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of the weights and of the optimizer's state; losses and norms are shorter. */
enum { STEPS = 6, LONG_COPY = 8192, COPIES_MOST = 64 };

static const weft_backend *inner;
static weft_status (*lose)(void *to, int64_t bytes);
static int left; /* long copies until one fails; 0: none does */

static weft_status download(void *to, const void *from, int64_t bytes) {
    bool fails = bytes >= LONG_COPY && left > 0 && --left == 0;
    return fails ? lose(to, bytes) : inner->download(to, from, bytes);
}

static weft_status run(const char *config, const char *out) {
    weft_backend backend = *inner;
    weft_config c;
    weft_pool *pool;
    weft_train_result result;
    backend.download = download;
    weft_config_defaults(&c);
    expect_ok(weft_config_read(&c, config));
    c.steps = STEPS;
    c.checkpoint_keep = STEPS;
    expect_ok(weft_pool_create(1, &pool));
    weft_train_options options = {.out = out};
    weft_status status = weft_train(&c, &backend, pool, &options, &result);
    weft_pool_destroy(pool);
    return status;
}

/* RUN/NAME, where it is there, against the same step of the run that lost nothing. */
static void compare(const char *whole, const char *out, const char *name) {
    char b[500];
    const char *a = format_text("%s/%s", out, name);
    snprintf(b, sizeof b, "%s/state.json", a);
    if (access(b, F_OK) != 0) return;
    WEFT_AUTO_DECREF json_t *state = json_load_file(b, 0, NULL);
    int step = (int)json_integer_value(json_object_get(state, "iteration"));
    assert_true(step > 0 && step % 2 == 0);
    if (step == STEPS)
        snprintf(b, sizeof b, "%s/last", whole);
    else
        snprintf(b, sizeof b, "%s/step-%010d", whole, step);
    train_same_file(a, b, "model.safetensors");
    train_same_file(a, b, "optimizer.safetensors");
}

void lost_copies_check(const weft_backend *backend, weft_status (*fail)(void *to, int64_t bytes),
                       const char *config, const char *why) {
    int lost = 0;
    inner = backend;
    lose = fail;
    const char *whole = scratch_path("lost-none");
    assert_int_equal(run(config, whole), WEFT_OK);
    for (int n = 1; n <= COPIES_MOST; n++) {
        const char *out = scratch_path("lost-%d", n);
        left = n;
        weft_status status = run(config, out);
        if (left > 0) break; /* there are no more */
        lost++;
        if (status != WEFT_EIO) fail_msg("copy %d is lost, and the run ends on %d", n, (int)status);
        if (!strstr(weft_error_message(), why)) fail_msg("copy %d: %s", n, weft_error_message());
        const char *fresh = format_text("%s/last.new", out);
        assert_int_not_equal(access(fresh, F_OK), 0);
        compare(whole, out, "last");
        compare(whole, out, "best");
    }
    /* Weights and state, of each of the checkpoints. */
    assert_in_range(lost, STEPS, COPIES_MOST - 1);
}
