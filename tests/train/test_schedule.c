/* The learning rate of each step, against values worked out by hand. */
#include "support/test.h"
#include "train/step.h"

#include <math.h>

static weft_config make_config(int schedule) {
    weft_config c;
    weft_config_defaults(&c);
    c.steps = 110;
    c.warmup_steps = 10;
    c.learning_rate = 1;
    c.min_lr = 0.1;
    c.lr_schedule = schedule;
    return c;
}

static void near(double a, double b) {
    if (fabs(a - b) > 1e-12) fail_msg("%.15g, not %.15g", a, b);
}

TEST(test_warmup_is_linear_in_every_schedule) {
    for (int schedule = WEFT_SCHEDULE_COSINE; schedule <= WEFT_SCHEDULE_WSD; schedule++) {
        weft_config c = make_config(schedule);
        near(weft_schedule_rate(&c, 0), 0.1);
        near(weft_schedule_rate(&c, 4), 0.5);
        near(weft_schedule_rate(&c, 9), 1);
    }
}

TEST(test_cosine_falls_to_the_least_rate) {
    weft_config c = make_config(WEFT_SCHEDULE_COSINE);
    near(weft_schedule_rate(&c, 59), 0.55);
    near(weft_schedule_rate(&c, 84), 0.55 - 0.45 * sqrt(0.5));
    near(weft_schedule_rate(&c, 109), 0.1);
    near(weft_schedule_rate(&c, 500), 0.1);
    c.min_lr = 3; /* above the rate: the schedule never rises */
    near(weft_schedule_rate(&c, 109), 1);
    c.warmup_steps = 0;
    c.min_lr = 0;
    near(weft_schedule_rate(&c, 54), 0.5);
    c.warmup_steps = 1000; /* longer than the run */
    near(weft_schedule_rate(&c, 109), 0.11);
}

TEST(test_constant_stays) {
    weft_config c = make_config(WEFT_SCHEDULE_CONSTANT);
    near(weft_schedule_rate(&c, 10), 1);
    near(weft_schedule_rate(&c, 109), 1);
    c = make_config(WEFT_SCHEDULE_COSINE);
    c.decay_lr = false;
    near(weft_schedule_rate(&c, 109), 1);
    near(weft_schedule_rate(&c, 4), 0.5);
}

TEST(test_wsd_falls_over_the_last_fifth) {
    weft_config c = make_config(WEFT_SCHEDULE_WSD);
    near(weft_schedule_rate(&c, 10), 1);
    near(weft_schedule_rate(&c, 87), 1);
    near(weft_schedule_rate(&c, 98), 0.55);
    near(weft_schedule_rate(&c, 109), 0.1);
    c.steps = 12; /* a fifth is 2.4 steps: three */
    c.warmup_steps = 1;
    near(weft_schedule_rate(&c, 8), 1);
    near(weft_schedule_rate(&c, 9), 0.7);
    near(weft_schedule_rate(&c, 11), 0.1);
}

/* The last fifth begins at 88. After a warm-up to step 100 ten steps are left to fall in, by 0.09 each. */
TEST(test_wsd_falls_over_what_a_long_warmup_leaves) {
    weft_config c = make_config(WEFT_SCHEDULE_WSD);
    c.warmup_steps = 100;
    near(weft_schedule_rate(&c, 87), 0.88);
    near(weft_schedule_rate(&c, 99), 1);
    near(weft_schedule_rate(&c, 100), 0.91);
    near(weft_schedule_rate(&c, 104), 0.55);
    near(weft_schedule_rate(&c, 109), 0.1);
    c.warmup_steps = 110; /* nothing is left */
    near(weft_schedule_rate(&c, 109), 1);
}

RUN_TESTS(NULL, NULL)
