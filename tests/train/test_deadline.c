/* A run with a deadline ends in time, whatever the machine does: by a clock that the test moves. */
#include "cpu/backend.h"
#include "support/command.h"
#include "support/test.h"
#include "support/train_run.h"
#include "train/loop.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PLANNED = 400 };

static double now;

static double read_now(void) {
    return now;
}

/* Seconds that a step takes, before and from step `change` on. */
typedef struct {
    double before, after;
    int64_t change;
} load;

static void pass_time(void *context, int64_t step, weft_model *m) {
    const load *l = context;
    (void)m;
    now += step < l->change ? l->before : l->after;
}

/* A run of at most PLANNED steps that has `seconds`; 0: no deadline. */
static weft_train_result run(const char *name, double seconds, load l) {
    weft_config c;
    weft_pool *pool;
    weft_train_result result;
    weft_config_defaults(&c);
    c.n_layer = 1;
    c.n_head = 1;
    c.n_embd = 8;
    c.context = 8;
    c.vocab_size = 256;
    c.batch_size = 1;
    c.steps = PLANNED;
    c.warmup_steps = 4;
    c.learning_rate = 1e-3;
    c.min_lr = 1e-4;
    c.eval_interval = PLANNED;
    c.eval_samples = 3;
    c.log_interval = 1;
    c.checkpoint_interval = PLANNED;
    snprintf(c.dataset, sizeof c.dataset, "embedded");
    now = 1000;
    expect_ok(weft_pool_create(1, &pool));
    weft_train_options options = {.out = scratch_path("%s", name),
                                  .before_step = pass_time,
                                  .context = &l,
                                  .deadline = seconds ? now + seconds : 0,
                                  .clock = read_now};
    expect_ok(weft_train(&c, weft_cpu_backend(), pool, &options, &result));
    weft_pool_destroy(pool);
    assert_int_equal(result.end, WEFT_TRAIN_DONE);
    assert_true(isfinite(result.val_loss)); /* it was evaluated at its end */
    return result;
}

/* The learning rate of the last line that the run logged. */
static double last_rate(const char *name) {
    WEFT_AUTO_DECREF json_t *row = train_last_metrics(scratch_path("%s", name));
    return real_of(row, "lr");
}

/* 100 seconds: with steps of 1 s, of 0.5 s and then 4 s (a load that comes), of 4 s and then 0.5 s (one that goes), of 10 s.
 * In each the run is over in time and has used nine tenths of it, and its rate has come down. */
TEST(test_a_run_ends_in_time_under_a_load_that_changes) {
    static const load loads[] = {{1, 1, 0}, {0.5, 4, 100}, {4, 0.5, 10}, {10, 10, 0}};
    for (size_t i = 0; i < sizeof loads / sizeof loads[0]; i++) {
        const char *name = format_text("load%zu", i);
        weft_train_result r = run(name, 100, loads[i]);
        printf("note: %lld steps in %.1f of 100 s, the last at a rate of %.2g\n",
               (long long)r.steps, now - 1000, last_rate(name));
        assert_true(r.steps < PLANNED);
        assert_true(now - 1000 <= 100);
        assert_true(now - 1000 >= 90);
        assert_true(last_rate(name) < 2e-4);
        /* It is done: its config has the steps that it did. */
        WEFT_AUTO_FREE char *config = file_read(scratch_path("%s/config", name), NULL);
        assert_non_null(strstr(config, format_text("CONFIG_STEPS=%lld\n", (long long)r.steps)));
    }
}

/* One that is fast enough does all its steps, with the bits of one without a deadline. */
TEST(test_enough_time_changes_nothing) {
    assert_int_equal(run("free", 0, (load){0.1, 0.1, 0}).steps, PLANNED);
    assert_int_equal(run("timed", 100, (load){0.1, 0.1, 0}).steps, PLANNED);
    file_expect_equal(scratch_path("free/last/model.safetensors"),
                      scratch_path("timed/last/model.safetensors"));
}

TEST(test_the_last_step_follows_from_pace_and_time) {
    assert_int_equal(weft_train_last_step(10, 100, 30, 0.5), 70);
    assert_int_equal(weft_train_last_step(10, 100, 300, 0.5), 100);
    assert_int_equal(weft_train_last_step(10, 100, 0.4, 0.5), 10);
    assert_int_equal(weft_train_last_step(10, 100, -5, 0.5), 10);
    assert_int_equal(weft_train_last_step(10, 100, 30, 0), 100);
}

RUN_TESTS(scratch_setup, scratch_teardown)
