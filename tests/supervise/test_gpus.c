/* weft study --gpus: one run at a time on each GPU, by the variable that a run takes its GPU from. */
#include "support/command.h"
#include "support/test.h"
#include "support/train_run.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void write_config(const char *path) {
    static const char text[] =
        "CONFIG_N_LAYER=1\nCONFIG_N_HEAD=2\nCONFIG_N_EMBD=16\n"
        "CONFIG_VOCAB_SIZE=256\nCONFIG_CONTEXT=16\n"
        "CONFIG_BATCH_SIZE=2\nCONFIG_STEPS=100000\n"
        "CONFIG_EVAL_INTERVAL=100000\nCONFIG_DEVICE=\"cpu\"\n"
        "CONFIG_STUDY_VARIANTS=\"a: LEARNING_RATE=0.01; b: LEARNING_RATE=0.02\"\n"
        "CONFIG_STUDY_SEEDS=2\n";
    file_write(path, text, sizeof text - 1);
}

/* The value of WEFT_CUDA_DEVICE in a process's environment, as one digit; 0 bytes: none. */
static char gpu_of(long pid) {
    char path[64], text[65536];
    snprintf(path, sizeof path, "/proc/%ld/environ", pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    for (size_t at = 0; at < n; at += strlen(text + at) + 1)
        if (strncmp(text + at, "WEFT_CUDA_DEVICE=", 17) == 0) return text[at + 17];
    return 0;
}

/* Which GPUs the children of a process have been given, as a sum of 1 << number. */
static unsigned gpus_of_children(pid_t parent) {
    char path[64], text[1024];
    unsigned seen = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)parent, (int)parent);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    for (char *at = text, *end; *at; at = end) {
        long pid = strtol(at, &end, 10);
        if (end == at) break;
        char gpu = gpu_of(pid);
        if (gpu >= '0' && gpu <= '9') seen |= 1u << (gpu - '0');
    }
    return seen;
}

TEST(test_each_gpu_has_one_run) {
    const char *runner = getenv("RUNNER");
    if (runner && *runner) {
        printf("processes are run by RUNNER\n");
        skip();
    }
    char config[256], err[256], out[256];
    snprintf(config, sizeof config, "%s", scratch_path("config"));
    snprintf(err, sizeof err, "%s", scratch_path("err"));
    snprintf(out, sizeof out, "%s", scratch_path("study"));
    write_config(config);
    pid_t child =
        train_start(RUN("study", "--config", config, "--out", out, "--gpus", "3,5"), err, 0);
    unsigned seen = 0;
    for (int i = 0; i < 6000 && seen != (1u << 3 | 1u << 5); i++) {
        pause_ms(10);
        seen = gpus_of_children(child);
    }
    kill(child, SIGTERM);
    train_wait(child);
    assert_int_equal(seen, 1u << 3 | 1u << 5);
}

TEST(test_bad_gpus_are_refused) {
    char config[256];
    snprintf(config, sizeof config, "%s", scratch_path("config"));
    write_config(config);
    command_fails(2, RUN("study", "--config", config, "--gpus", "0,x"), SAYS("--gpus", "x"));
    command_fails(2, RUN("study", "--config", config, "--gpus", "0", "--jobs", "2"),
                  SAYS("--jobs", "--gpus"));
}

RUN_TESTS(scratch_setup, scratch_teardown)
