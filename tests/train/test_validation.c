/* The held-out loss is the mean over targets: of runs with different numbers of them, for a batch however
 * it is cut, and by position. */
#include "cpu/backend.h"
#include "support/command.h"
#include "support/test.h"
#include "support/train_run.h"
#include "train/validation.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void near(double a, double b) {
    if (!(fabs(a - b) <= 1e-12 * (1 + fabs(b)))) fail_msg("%.15g, not %.15g", a, b);
}

TEST(test_runs_count_by_their_targets) {
    /* One target at 4 and three at 2 are 10 in 4 targets. */
    weft_run_loss runs[] = {{4, 1, 0, 0}, {2, 3, 0, 0}, {9, 0, 0, 0}};
    near(weft_run_losses_join(runs, 2), 2.5);
    near(weft_run_losses_join(runs, 3), 2.5);
    near(weft_run_losses_join(runs + 1, 2), 2);
    near(weft_run_losses_join(runs, 1), 4);
    near(weft_run_losses_join(runs + 2, 1), 9);
    runs[0].targets = runs[1].targets = 0;
    near(weft_run_losses_join(runs, 3), 0);
}

typedef struct {
    weft_model *model;
    weft_dataset *data;
    weft_pool *pool;
    weft_validation *v;
} held_out;

static held_out open_held_out(int64_t micro, const char *dataset) {
    held_out h = {0};
    weft_config c;
    weft_config_defaults(&c);
    expect_ok(weft_config_read(&c, config_path));
    c.micro_batch = micro;
    c.dropout = 0;
    expect_ok(weft_config_set(&c, "DATASET", dataset, "test"));
    if (strcmp(dataset, "recall") == 0) c.vocab_size = 8;
    expect_ok(weft_pool_create(1, &h.pool));
    expect_ok(weft_dataset_open(&c, &h.data));
    expect_ok(weft_model_create(&c, WEFT_F64, NULL, &h.model));
    expect_ok(weft_model_start(h.model, 3, NULL));
    expect_ok(weft_validation_open(h.model, h.data, weft_cpu_backend(), h.pool, NULL, &h.v));
    return h;
}

static void close_held_out(held_out *h) {
    weft_validation_close(h->v);
    weft_model_destroy(h->model);
    weft_dataset_close(h->data);
    weft_pool_destroy(h->pool);
}

/* The mean of the sequences' losses, each in a run of its own: all have as many targets. */
static double by_sequences(const held_out *h) {
    const weft_config *c = &h->model->config;
    int64_t time = c->context, n = c->batch_size * c->eval_samples;
    weft_session s;
    weft_build build = {.batch = 1, .time = time, .dtype = WEFT_F64};
    WEFT_AUTO_FREE int32_t *tokens = malloc((size_t)time * sizeof *tokens);
    WEFT_AUTO_FREE int32_t *targets = malloc((size_t)time * sizeof *targets);
    double sum = 0, loss;
    assert_true(tokens && targets);
    assert_int_equal(
        weft_session_open(h->model, weft_cpu_backend(), h->pool, &build, false, false, &s),
        WEFT_OK);
    for (int64_t i = 0; i < n; i++) {
        uint32_t batch = (uint32_t)(i / c->batch_size), place = (uint32_t)(i % c->batch_size);
        expect_ok(weft_dataset_fill(h->data, WEFT_SPLIT_VAL, 0, batch, place, time, tokens, targets,
                                    NULL));
        expect_ok(weft_session_run(&s, tokens, targets, &(weft_run){0}));
        expect_ok(weft_session_values(&s, s.graph.cross_entropy, 1, &loss));
        sum += loss;
    }
    weft_session_close(&s);
    return sum / (double)n;
}

TEST(test_the_loss_is_that_of_the_sequences) {
    for (int64_t micro = 1; micro <= 4; micro *= 2) {
        held_out h = open_held_out(micro, "embedded");
        double loss, metric;
        expect_ok(weft_validation_run(h.v, &loss, &metric));
        near(loss, by_sequences(&h));
        close_held_out(&h);
    }
}

/* The ranges, as many times as they have positions, are the whole. */
TEST(test_losses_by_position_are_parts_of_the_loss) {
    held_out h = open_held_out(2, "embedded");
    weft_position_loss p[WEFT_POSITION_RANGES_MAX];
    double loss, metric, sum = 0;
    int count;
    expect_ok(weft_validation_run(h.v, &loss, &metric));
    expect_ok(weft_validation_positions(h.v, p, &count));
    static const int64_t first[] = {0, 1, 4, 16, 24}; /* of 24 positions */
    assert_int_equal(count, 4);
    for (int i = 0; i < count; i++) {
        assert_int_equal(p[i].first, first[i]);
        assert_int_equal(p[i].last, first[i + 1]);
        sum += p[i].loss * (double)(p[i].last - p[i].first);
    }
    near(sum / 24, loss);
    double again;
    expect_ok(weft_validation_run(h.v, &again, &metric));
    assert_true(again == loss);
    close_held_out(&h);
}

/* Of weights that are all zero the first choice is token 0: the metric is how often that is asked for. */
TEST(test_the_metric_is_the_part_that_is_right) {
    held_out h = open_held_out(2, "recall");
    const weft_config *c = &h.model->config;
    enum { TIME = 24 };
    int32_t tokens[TIME], targets[TIME];
    uint8_t scored[TIME];
    int64_t right = 0, asked = 0;
    double loss, metric;
    memset(h.model->memory, 0, (size_t)h.model->memory_bytes);
    assert_int_equal(c->context, TIME);
    for (int64_t i = 0; i < c->batch_size * c->eval_samples; i++) {
        uint32_t batch = (uint32_t)(i / c->batch_size), place = (uint32_t)(i % c->batch_size);
        expect_ok(weft_dataset_fill(h.data, WEFT_SPLIT_VAL, 0, batch, place, TIME, tokens, targets,
                                    scored));
        for (int t = 0; t < TIME; t++) {
            asked += scored[t];
            right += scored[t] && targets[t] == 0;
        }
    }
    assert_true(right > 0);
    expect_ok(weft_validation_run(h.v, &loss, &metric));
    near(loss, log(8));
    near(metric, (double)right / (double)asked);
    close_held_out(&h);
}

RUN_TESTS(train_setup, scratch_teardown)
