/* Damaged and hostile checkpoints and tokens: each is one clear line and the right exit status. */
#include "base/random.h"
#include "core/safetensors.h"
#include "model/model.h"
#include "support/command.h"
#include "support/test.h"
#include "support/token_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *folder, *tokens, *weights, *config;

enum { LARGE_KB = 500 * 1000 }; /* that no command here needs */

static const int32_t GOOD[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};

/* A good checkpoint of 10 tokens in sequences of 6, and good tokens [2, 5]. */
static int make_good(void **state) {
    static char paths[4][256];
    (void)state;
    scratch_open();
    snprintf(paths[0], sizeof paths[0], "%s", scratch_path("model"));
    snprintf(paths[1], sizeof paths[1], "%s", scratch_path("tokens.npy"));
    snprintf(paths[2], sizeof paths[2], "%s", scratch_path("model/model.safetensors"));
    snprintf(paths[3], sizeof paths[3], "%s", scratch_path("model/config.json"));
    folder = paths[0];
    tokens = paths[1];
    weights = paths[2];
    config = paths[3];
    return 0;
}

static int restore(void **state) {
    (void)state;
    remove(weights);
    remove(config);
    SUCCEEDS("init", "--force", "--out", folder, "-o", "N_LAYER=1", "-o", "N_EMBD=4", "-o",
             "N_HEAD=2", "-o", "VOCAB_SIZE=10", "-o", "CONTEXT=6");
    /* As others write one: without checksums, which would find every change below. */
    remove(format_text("%s/state.json", folder));
    npy_write(tokens, 4, 2, 5, GOOD);
    return 0;
}

#define EVAL(...) RUN("eval", "--model", folder, "--tokens", tokens, "--json", __VA_ARGS__)
#define REFUSED(...) command_fails(2, EVAL("--threads=1"), SAYS(__VA_ARGS__))

TEST_WITH(test_the_good_one_is_good, restore, NULL) {
    WEFT_AUTO_DECREF json_t *object = command_json(EVAL("--threads=1"));
    assert_true(fabs(json_real_value(json_object_get(object, "loss")) - log(10)) < 0.1);
}

static void write_config(const char *text) {
    file_write(config, text, strlen(text));
}

TEST_WITH(test_config_json_that_cannot_be_used, restore, NULL) {
    write_config("");
    REFUSED(config);
    write_config("{\"n_layer\": 1,");
    REFUSED(config, ":1:");
    write_config("{\n\n\"n_layer\": 1, \"n_layer\": 2}");
    REFUSED(config, ":3:", "duplicate");
    write_config("[1]");
    REFUSED(config, "JSON object");
    write_config("{\"n_layers\": 1}");
    REFUSED(config, "did you mean CONFIG_N_LAYER?");
    write_config("{\"n_layer\": null}");
    REFUSED(config, "n_layer");
    write_config("{\"n_layer\": [1]}");
    REFUSED(config, "n_layer");
    write_config("{\"n_layer\": 1.5}");
    REFUSED(config, "N_LAYER", "whole number");
    write_config("{\"n_layer\": -1}");
    REFUSED(config, "N_LAYER=-1");
    write_config("{\"n_head\": 7}");
    REFUSED(config, "N_HEAD=7");
    write_config("{\"n_layer\": 99999999999999999999}");
    REFUSED(config);
    char deep[100001];
    memset(deep, '[', sizeof deep);
    file_write(config, deep, sizeof deep);
    REFUSED(config);
    remove(config);
    REFUSED(config, "No such file");
    mkdir(config, 0777);
    REFUSED(config, "folder");
    rmdir(config);
    FAILS(2, SAYS("is a file; a checkpoint is a folder"), "eval", "--model", tokens, "--tokens",
          tokens);
}

/* Sizes that no file of this length fills: refused for their tensors or for memory. */
TEST_WITH(test_config_json_of_another_model, restore, NULL) {
    size_t count;
    WEFT_AUTO_FREE char *text = file_read(config, &count);
    WEFT_AUTO_DECREF json_t *object = json_loads(text, 0, NULL);
    assert_non_null(object);
    static const struct {
        const char *key;
        int value;
        const char *word;
    } changes[] = {{"vocab_size", 11, "wte.weight"},
                   {"n_embd", 8, "but the config asks for"},
                   {"n_layer", 2, "h.1."},
                   {"context", 5, "wpe.weight"},
                   {"n_ffn", 3, "ffn"}};
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        WEFT_AUTO_DECREF json_t *changed = json_copy(object);
        json_object_set_new(changed, changes[i].key, json_integer(changes[i].value));
        assert_int_equal(json_dump_file(changed, config, 0), 0);
        REFUSED("model.safetensors", changes[i].word);
    }
}

typedef struct {
    weft_safetensors *file;
    weft_safetensor list[64];
    int64_t n;
} tensor_list;

static tensor_list list_weights(void) {
    tensor_list l = {0};
    expect_ok(weft_safetensors_open(weights, &l.file));
    l.n = weft_safetensors_count(l.file);
    assert_true(l.n < 63);
    for (int64_t i = 0; i < l.n; i++)
        l.list[i] = *weft_safetensors_at(l.file, i);
    return l;
}

/* Writes the list in place of the weights; the old file stays mapped meanwhile. */
static void put_weights(tensor_list *l) {
    expect_ok(weft_safetensors_write(weights, l->list, l->n, NULL, NULL));
    weft_safetensors_close(l->file);
}

TEST_WITH(test_weights_of_another_model, restore, NULL) {
    tensor_list l = list_weights();
    weft_safetensor last = l.list[--l.n];
    put_weights(&l);
    REFUSED(weights, "wte.weight", "is missing");
    restore(state);
    l = list_weights();
    l.list[l.n] = last = l.list[0];
    l.list[l.n++].name = "h.7.extra";
    put_weights(&l);
    REFUSED(weights, "h.7.extra");
    restore(state);
    l = list_weights();
    last = l.list[l.n - 1];
    l.list[l.n - 1].shape[0] = last.shape[1];
    l.list[l.n - 1].shape[1] = last.shape[0];
    put_weights(&l);
    REFUSED(weights, "wte.weight", "F32 [4, 10]", "[10, 4]");
    restore(state);
    l = list_weights();
    l.list[l.n - 1].dtype = WEFT_FILE_I32;
    put_weights(&l);
    REFUSED(weights, "wte.weight", "I32");
}

TEST_WITH(test_weights_that_are_damaged, restore, NULL) {
    size_t count;
    WEFT_AUTO_FREE char *bytes = file_read(weights, &count);
    static const size_t keep[] = {0, 3, 7, 8, 9, 100};
    for (size_t i = 0; i < sizeof keep / sizeof keep[0]; i++) {
        file_write(weights, bytes, keep[i]);
        REFUSED(weights);
    }
    file_write(weights, bytes, count - 1);
    REFUSED(weights, "cut short");
    for (int i = 0; i < 8; i++)
        bytes[i] = i < 7 ? (char)-1 : 0x7f;
    file_write(weights, bytes, count);
    REFUSED(weights, "header");
    remove(weights);
    REFUSED(weights, "No such file");
    mkdir(weights, 0777);
    REFUSED(weights, "folder");
    rmdir(weights);
}

/* What a config asks for is held against the file's header before memory is taken for it. */
TEST_WITH(test_a_large_config_costs_no_memory, restore, NULL) {
    struct rusage used;
    shell_succeeds("sed -i 's/\"n_embd\": 4/\"n_embd\": 16384/' '%s'", config);
    REFUSED("the config asks for", "16384");
    const char *theirs = scratch_path("theirs");
    shell_succeeds("rm -rf '%s' && cp -r '%s' '%s' && sed -i -E "
                   "'s/\"n_embd\": [0-9]+/\"n_embd\": 16384/' '%s/config.json'",
                   theirs, hf_path("gpt2"), theirs, theirs);
    FAILS(2, SAYS("16384"), "convert", "--model", theirs, "--out", scratch_path("never"));
    assert_int_equal(getrusage(RUSAGE_CHILDREN, &used), 0);
    if (used.ru_maxrss > LARGE_KB) fail_msg("%ld KB were taken", used.ru_maxrss);
}

/* Weights that are no numbers make no loss: JSON says null, text says nan, and both end well. */
TEST_WITH(test_weights_that_are_not_numbers, restore, NULL) {
    weft_model *m;
    expect_ok(weft_model_load(folder, WEFT_F32, &m));
    ((float *)weft_model_find(m, "ln_f.weight")->data)[0] = NAN;
    expect_ok(weft_model_save(m, folder));
    weft_model_destroy(m);
    WEFT_AUTO_DECREF json_t *object = command_json(EVAL("--threads=1"));
    assert_true(json_is_null(json_object_get(object, "loss")));
}

TEST_WITH(test_tokens_that_do_not_fit_the_model, restore, NULL) {
    int32_t bad[10];
    memcpy(bad, GOOD, sizeof bad);
    bad[6] = 10;
    npy_write(tokens, 4, 2, 5, bad);
    REFUSED("token 10", "vocabulary of 10");
    bad[6] = -1;
    npy_write(tokens, 8, 2, 5, bad);
    REFUSED("token -1", "vocabulary of 10");
    bad[6] = 6;
    bad[9] = 10; /* only ever a target */
    npy_write(tokens, 4, 2, 5, bad);
    REFUSED("10", "vocabulary of 10");
    npy_write(tokens, 4, 1, 10, GOOD);
    REFUSED("9 tokens", "CONTEXT is 6");
    npy_write(tokens, 4, 10, 1, GOOD);
    REFUSED("two tokens");
    shard_write(tokens, 20240520, 1, 1, 2, GOOD, 1);
    REFUSED("two tokens");
    bad[9] = 11;
    shard_write(tokens, 20240520, 1, 10, 2, bad, 10);
    REFUSED("11", "vocabulary of 10");
}

TEST_WITH(test_token_files_that_cannot_be_used, restore, NULL) {
    npy_write_raw(tokens, "{'descr': '<f8', 'fortran_order': False, 'shape': (1, 5), }", GOOD, 40);
    REFUSED(tokens, "int32 or int64");
    npy_write_raw(tokens, "{'descr': '<i4', 'fortran_order': True, 'shape': (2, 5), }", GOOD, 40);
    REFUSED(tokens, "C order");
    npy_write_raw(tokens, "{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2, 5), }", GOOD,
                  40);
    REFUSED(tokens, "[B, T+1]");
    npy_write_raw(tokens, "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 5), }", GOOD, 39);
    REFUSED(tokens, "39 bytes");
    shard_write(tokens, 20240520, 2, 10, 2, GOOD, 10);
    REFUSED(tokens, "version 2");
    shard_write(tokens, 20240520, 1, 11, 2, GOOD, 10);
    REFUSED(tokens, "do not fill");
    file_write(tokens, "hello\n", 6);
    REFUSED(tokens, "ends too early");
    file_write(tokens, "", 0);
    REFUSED(tokens);
    FAILS(2, SAYS("folder"), "eval", "--model", folder, "--tokens", folder);
    FAILS(2, SAYS("No such file"), "eval", "--model", folder, "--tokens", scratch_path("none"));
    FAILS(2, SAYS("/dev/zero"), "eval", "--model", folder, "--tokens", "/dev/zero");
    const char *pipe = scratch_path("pipe");
    assert_int_equal(mkfifo(pipe, 0600), 0);
    FAILS(2, SAYS("pipe"), "eval", "--model", folder, "--tokens", pipe);
}

TEST_WITH(test_targets_that_cannot_be_used, restore, NULL) {
    const char *targets = scratch_path("targets.npy");
    int32_t values[8] = {0, 1, 2, 3, 4, 5, 6, -2};
    npy_write(targets, 4, 2, 4, values);
    command_fails(2, EVAL("--targets", targets), SAYS("-2", "vocabulary of 10"));
    values[7] = 10;
    npy_write(targets, 4, 2, 4, values);
    command_fails(2, EVAL("--targets", targets), SAYS("10", "vocabulary of 10"));
    npy_write(targets, 4, 4, 2, values);
    command_fails(2, EVAL("--targets", targets), SAYS(targets, "[4, 2]", "[2, 4]"));
    npy_write(targets, 4, 1, 8, values);
    command_fails(2, EVAL("--targets", targets), SAYS(targets));
    shard_write(targets, 20240520, 1, 8, 2, GOOD, 8);
    command_fails(2, EVAL("--targets", targets), SAYS(targets));
    command_fails(2, EVAL("--targets", scratch_path("none")), SAYS("No such file"));
    for (int i = 0; i < 8; i++)
        values[i] = -1;
    npy_write(targets, 8, 2, 4, values);
    WEFT_AUTO_DECREF json_t *object = command_json(EVAL("--targets", targets));
    assert_true(json_real_value(json_object_get(object, "cross_entropy")) == 0);
}

/* What cannot be written is work that failed. */
TEST_WITH(test_places_that_cannot_be_written, restore, NULL) {
    const char *nowhere = scratch_path("none/none");
    command_fails(1, EVAL("--logits", nowhere), SAYS(nowhere, "No such file"));
    command_fails(1, EVAL("--grads", nowhere), SAYS(nowhere, "No such file"));
    command_fails(1, EVAL("--scores", nowhere), SAYS(nowhere, "No such file"));
    command_fails(1, EVAL("--logits", folder), SAYS(folder));
    /* Folders above it are made, but not below a file. */
    FAILS(1, SAYS(tokens), "init", "--out", format_text("%s/none", tokens));
    FAILS(2, SAYS(tokens, "is a file"), "init", "--out", tokens);
    SUCCEEDS("init", "--out", scratch_path("deep/er"), "-o", "N_LAYER=1", "-o", "VOCAB_SIZE=16",
             "-o", "N_EMBD=24");
}

TEST_WITH(test_a_missing_gpu_is_told, restore, NULL) {
    command_fails(2, EVAL("--device", "tpu"), SAYS("tpu", "cuda"));
    WEFT_AUTO(command_free) command_result eval = command_run(EVAL("--device", "cuda"));
    bool there = eval.status == 0;
    if (there) {
        printf("this machine has a GPU\n");
        skip();
    }
    command_fails(1, EVAL("--device", "cuda"), SAYS("CUDA"));
    FAILS(1, SAYS("CUDA"), "verify", "--device", "cuda");
}

/* A checkpoint with a byte changed in its header or config, thousands of times, in process. */
TEST_WITH(test_damaged_checkpoints_never_crash, restore, NULL) {
    const char *const files[2] = {weights, config};
    for (int k = 0; k < 2; k++) {
        size_t count;
        WEFT_AUTO_FREE char *bytes = file_read(files[k], &count);
        size_t reach = k == 0 && count > 1200 ? 1200 : count;
        for (uint64_t round = 0; round < 1500; round++) {
            size_t at = weft_random_word(5, 0, 0, 0, 2 * round) % reach;
            char was = bytes[at];
            bytes[at] = round % 2 ? (char)weft_random_word(5, 0, 0, 0, 2 * round + 1)
                                  : "0123456789,:[]{}\"-.e"[round / 2 % 20];
            file_write(files[k], bytes, count);
            bytes[at] = was;
            weft_model *m;
            weft_config c;
            /* A size may come out enormous, and then there is no reason to make such a model. */
            if (weft_model_read_config(folder, &c) != WEFT_OK) continue;
            if (c.n_embd > 1000 || c.vocab_size > 1000 || c.n_layer > 100 || c.n_ffn > 1000 ||
                c.context > 1000 || c.ra_mla_latent_dim > 1000)
                continue;
            if (weft_model_load(folder, WEFT_F32, &m) == WEFT_OK) weft_model_destroy(m);
            assert_null(strchr(weft_error_message(), '\n'));
        }
        file_write(files[k], bytes, count);
    }
}

RUN_TESTS(make_good, scratch_teardown)
