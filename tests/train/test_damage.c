/* Damage is noticed: a flipped bit in any file of a checkpoint, a bad line among the metrics, a
 * dataset that is another one. */
#include "base/beside.h"
#include "base/clock.h"
#include "model/folder.h"
#include "support/command.h"
#include "support/fault.h"
#include "support/test.h"
#include "support/token_file.h"
#include "support/train_run.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char out[256];

static const char *at(const char *name) {
    return scratch_path("%s", name);
}

#define TRAIN(...)                                                                                 \
    RUN("train", "--config", config_path, "--threads", "1", "--peak-flops", "0", __VA_ARGS__)
#define RESUME TRAIN("--out", out, "--resume")

static void train_some(const char *name, const char *iterations) {
    snprintf(out, sizeof out, "%s", at(name));
    command_succeeds(TRAIN("--out", out, "-o", iterations), NULL);
}

/* Every bit of state.json would be many runs: some bit of every seventh byte. */
TEST(test_a_flipped_bit_in_the_state_is_noticed) {
    size_t bytes;
    train_some("flip", "STEPS=2");
    WEFT_AUTO_FREE char *text = file_read(at("flip/last/state.json"), &bytes);
    size_t stride = train_long() ? 1 : 23;
    for (size_t i = 0; i < bytes; i += stride) {
        text[i] ^= (char)(1 << i % 8);
        file_write(at("flip/last/state.json"), text, bytes);
        text[i] ^= (char)(1 << i % 8);
        WEFT_AUTO(command_free) command_result r = command_run(RESUME);
        if (r.status != 2 || !strstr(r.err, "state.json"))
            fail_msg("bit %zu of byte %zu of %zu: ended on %d: %s", i % 8, i, bytes, r.status,
                     r.err);
    }
    file_write(at("flip/last/state.json"), text, bytes);
    command_succeeds(RESUME, NULL);
}

/* What is on the disk is not what was meant: the checkpoint before stays. */
TEST(test_a_write_that_went_wrong_is_noticed) {
    fault_need();
    train_some("wrong", "STEPS=2");
    size_t bytes;
    WEFT_AUTO_FREE char *before = file_read(at("wrong/last/state.json"), &bytes);
    static const char *const files[] = {"last.new/model", "last.new/optimizer", "last.new/config",
                                        "last.new/state"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        fault f = {.calls = "write", .path = files[i], .nth = 1, .error = -1};
        /* Without a best beside it, whose files it would share. */
        command_result r =
            fault_run(&f, TRAIN("--out", out, "--resume", "-o", "EVAL_INTERVAL=100"), NULL);
        if (r.status != 1 || !strstr(r.err, "reads otherwise"))
            fail_msg("%s: ended on %d: %s", files[i], r.status, r.err);
        command_free(&r);
        WEFT_AUTO_FREE char *now = file_read(at("wrong/last/state.json"), NULL);
        assert_string_equal(before, now);
    }
    command_succeeds(RESUME, NULL);
}

/* A state of the version before has no checksum of its own. */
TEST(test_a_state_of_the_version_before_is_read) {
    train_some("format1", "STEPS=2");
    WEFT_AUTO_DECREF json_t *kept = json_load_file(at("format1/last/state.json"), 0, NULL);
    assert_non_null(kept);
    json_object_del(kept, "state_crc32c");
    json_object_set_new(kept, "format", json_integer(1));
    assert_int_equal(json_dump_file(kept, at("format1/last/state.json"), 0), 0);
    command_succeeds(RESUME, NULL);
}

/* Numbers at the ends of what 64 bits hold: refused before anything is counted with them. */
TEST(test_extreme_counts_in_a_state_are_refused) {
    static const char *const keys[] = {"iteration", "skipped", "skipped_in_a_row", "logged_every"};
    static const json_int_t values[] = {INT64_MAX, INT64_MIN, -1, 1000000001};
    train_some("extreme", "STEPS=2");
    for (int k = 0; k < 4; k++) {
        for (int v = 0; v < 4; v++) {
            WEFT_AUTO_DECREF json_t *kept = json_load_file(at("extreme/last/state.json"), 0, NULL);
            WEFT_AUTO_DECREF json_t *changed = json_deep_copy(kept);
            json_object_del(changed, "state_crc32c");
            json_object_set_new(changed, "format", json_integer(1));
            json_object_set_new(changed, keys[k], json_integer(values[v]));
            assert_int_equal(json_dump_file(changed, at("extreme/last/state.json"), 0), 0);
            command_fails(2, RESUME, SAYS("state.json"));
            assert_int_equal(json_dump_file(kept, at("extreme/last/state.json"), 0), 0);
        }
    }
}

static void write_tokens(const char *path) {
    int32_t tokens[25];
    for (int i = 0; i < 25; i++)
        tokens[i] = i;
    npy_write(path, 4, 1, 25, tokens);
}

TEST(test_a_damaged_model_is_refused_wherever_it_is_read) {
    size_t bytes;
    train_some("read", "STEPS=2");
    write_tokens(at("tokens.npy"));
    const char *model = format_text("%s/last", out);
#define EVAL(...) RUN("eval", "--model", model, "--tokens", at("tokens.npy"), __VA_ARGS__)
    command_succeeds(EVAL("--json"), NULL);
    WEFT_AUTO_FREE char *whole = file_read(at("read/last/model.safetensors"), &bytes);
    whole[bytes - 3] ^= 4;
    file_write(at("read/last/model.safetensors"), whole, bytes);
    command_fails(2, EVAL("--json"), SAYS("model.safetensors", "checksum", "--unchecked"));
    command_fails(2, TRAIN("--out", at("from"), "--from", model),
                  SAYS("model.safetensors", "checksum", "--unchecked"));
    command_succeeds(EVAL("--unchecked"), NULL);
    command_succeeds(TRAIN("--out", at("from"), "--from", model, "--unchecked", "-o", "STEPS=1"),
                     NULL);
    /* Without a state.json, as others write a model, there is nothing to check. */
    assert_int_equal(unlink(at("read/last/state.json")), 0);
    command_succeeds(EVAL("--json"), NULL);
}

/* Lines 1 to 8, of which the third is hurt; the run goes on from step 6. */
TEST(test_a_bad_line_costs_only_itself) {
    size_t bytes;
    train_some("line", "STEPS=6");
    WEFT_AUTO_FREE char *text = file_read(at("line/metrics.jsonl"), &bytes);
    char *third = strchr(strchr(text, '\n') + 1, '\n') + 1;
    memcpy(third, "}}", 2);
    file_write(at("line/metrics.jsonl"), text, bytes);
    WEFT_AUTO(command_free) command_result r = command_run(RESUME);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.err, "line 3"));
    assert_non_null(strstr(r.err, "metrics.jsonl.damaged"));
    assert_non_null(strstr(r.err, "steps 3 to 3"));
    WEFT_AUTO_FREE char *aside = file_read(at("line/metrics.jsonl.damaged"), NULL);
    assert_string_equal(aside, text);
    WEFT_AUTO_FREE char *now = file_read(at("line/metrics.jsonl"), NULL);
    int lines = 0, step = 0, expected[] = {1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    for (char *line = now; *line; line = strchr(line, '\n') + 1) {
        const char *is = strstr(line, "\"step\":");
        assert_non_null(is);
        step = atoi(is + 7);
        assert_int_equal(step, expected[lines++]);
    }
    assert_int_equal(lines, 11);
    /* A second time it has another name. */
    file_write(at("line/metrics.jsonl"), "torn\n", 5);
    command_succeeds(RESUME, NULL);
    assert_int_equal(access(at("line/metrics.jsonl.damaged-2"), R_OK), 0);
}

/* A torn last line and lines of steps that are done again are no damage. */
TEST(test_what_a_kill_leaves_is_no_damage) {
    size_t bytes;
    train_some("tail", "STEPS=4");
    WEFT_AUTO_FREE char *text = file_read(at("tail/metrics.jsonl"), &bytes);
    FILE *file = fopen(at("tail/metrics.jsonl"), "a");
    assert_non_null(file);
    fputs("{\"step\": 5, \"loss\": 1}\n{\"step\": 6, \"lo", file);
    fclose(file);
    command_result r = command_run(TRAIN("--out", out, "--resume", "-o", "STEPS=4"));
    assert_int_equal(r.status, 0);
    assert_null(strstr(r.err, "damaged"));
    command_free(&r);
    WEFT_AUTO_FREE char *now = file_read(at("tail/metrics.jsonl"), NULL);
    assert_string_equal(now, text);
}

/* The lines of the steps that a checkpoint has done are on the disk before it is. */
TEST(test_metrics_are_synced_before_a_checkpoint) {
    fault_need();
    snprintf(out, sizeof out, "%s", at("synced"));
    fault f = {.calls = "fsync", .path = "metrics.jsonl", .nth = 1, .error = EIO};
    WEFT_AUTO(command_free) command_result r = fault_run(&f, TRAIN("--out", out), NULL);
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "metrics.jsonl"));
    assert_int_not_equal(access(at("synced/last"), F_OK), 0);
    assert_int_not_equal(access(at("synced/best"), F_OK), 0);
}

static void make_shards(const char *folder, int32_t first) {
    int32_t tokens[400];
    for (int i = 0; i < 400; i++)
        tokens[i] = i * i % 251;
    tokens[300] = first; /* one token of them is another */
    assert_int_equal(mkdir(folder, 0777), 0);
    const char *path = format_text("%s/train_000000.bin", folder);
    shard_write(path, 20240520, 1, 400, 2, tokens, 400);
    path = format_text("%s/val_000000.bin", folder);
    shard_write(path, 20240520, 1, 100, 2, tokens, 100);
}

TEST(test_another_dataset_under_a_run_is_noticed) {
    make_shards(at("data"), 1);
    make_shards(at("data2"), 2);
    const char *dataset = format_text("DATASET=%s", at("data"));
    snprintf(out, sizeof out, "%s", at("swapped"));
    command_succeeds(TRAIN("--out", out, "-o", dataset, "-o", "STEPS=2"), NULL);
    assert_int_equal(rename(at("data"), at("data1")), 0);
    assert_int_equal(rename(at("data2"), at("data")), 0);
    command_fails(2, TRAIN("--out", out, "-o", dataset, "--resume"), SAYS("trained on", "--out"));
    assert_int_equal(rename(at("data"), at("data2")), 0);
    assert_int_equal(rename(at("data1"), at("data")), 0);
    command_succeeds(TRAIN("--out", out, "-o", dataset, "--resume"), NULL);
    /* One that is not whole is not trained on. */
    file_write(at("data/train_000001.bin.part"), "", 0);
    command_fails(2, TRAIN("--out", at("partly"), "-o", dataset), SAYS("not whole", ".part"));
}

/* A checkpoint, as far as its checksums go: one file that takes a while to be read, then another. */
static void make_checkpoint(const char *folder, char byte) {
    enum { BYTES = 8 << 20 };
    char path[256], *data = malloc(BYTES);
    weft_sum sums[WEFT_PARTS] = {{0}};
    assert_non_null(data);
    memset(data, byte, BYTES);
    assert_int_equal(mkdir(folder, 0777), 0);
    for (int part = 0; part < WEFT_PARTS; part++) {
        if (part == WEFT_PART_OPTIMIZER) continue;
        snprintf(path, sizeof path, "%s/%s", folder, weft_parts[part]);
        assert_int_equal(
            weft_file_write(path, data, part == WEFT_PART_MODEL ? BYTES : 16, &sums[part]),
            WEFT_OK);
    }
    json_t *state = json_pack("{s:o}", "files", weft_parts_to_json(sums));
    expect_ok(weft_state_write(folder, state));
    free(data);
}

/* Exchanges the two once some of a file was read. */
static void *exchange_meanwhile(void *context) {
    uint_least64_t before = *(uint_least64_t *)context;
    while (atomic_load(&weft_beats) < before + 2)
        ;
    return weft_folder_exchange(at("one"), at("two"), at("three")) == WEFT_OK ? NULL : context;
}

/* A checkpoint that is replaced while it is checked is not taken for a damaged one. */
TEST(test_a_checkpoint_that_is_replaced_is_no_damage) {
    const char *folder = at("one");
    make_checkpoint(folder, 'a');
    make_checkpoint(at("two"), 'b');
    for (int i = 0; i < 20; i++) {
        uint_least64_t beats = atomic_load(&weft_beats);
        pthread_t thread;
        void *failed;
        assert_int_equal(pthread_create(&thread, NULL, exchange_meanwhile, &beats), 0);
        weft_status status = weft_model_check_sums(folder);
        assert_int_equal(pthread_join(thread, &failed), 0);
        assert_null(failed);
        if (status != WEFT_OK) fail_msg("%s", weft_error_message());
    }
}

/* A file of a terabyte, all of it a hole, is refused by its size. */
TEST(test_a_hole_is_not_read_to_its_end) {
    make_checkpoint(at("hole"), 'a');
    uint_least64_t beats = atomic_load(&weft_beats);
    assert_int_equal(truncate(at("hole/model.safetensors"), (off_t)1 << 40), 0);
    assert_int_equal(weft_model_check_sums(at("hole")), WEFT_EINPUT);
    assert_non_null(strstr(weft_error_message(), "1099511627776 bytes, but 8388608 were written"));
    assert_true(atomic_load(&weft_beats) - beats < 8);
}

RUN_TESTS(train_setup, scratch_teardown)
