/* weft study --slurm against a Slurm of this machine: the array's parts, gathered, are the study that one
 * process would have run. srun starts ranks that train as one process does. And what is refused with a
 * line. */
#include "support/command.h"
#include "support/ranks_run.h"
#include "support/study_run.h"
#include "support/test.h"
#include "support/train_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NAME_ROOM = 256, WAIT_SECONDS = 180 };

static void keep(char *out, const char *path) {
    snprintf(out, NAME_ROOM, "%s", path);
}

/* Two variants and two seeds. */
static void write_config(const char *path) {
    static const char text[] =
        "CONFIG_N_LAYER=1\nCONFIG_N_HEAD=2\nCONFIG_N_EMBD=16\n"
        "CONFIG_VOCAB_SIZE=256\nCONFIG_CONTEXT=16\nCONFIG_BATCH_SIZE=2\n"
        "CONFIG_STEPS=8\nCONFIG_EVAL_INTERVAL=4\nCONFIG_EVAL_SAMPLES=1\n"
        "CONFIG_LOG_INTERVAL=1\nCONFIG_DEVICE=\"cpu\"\nCONFIG_STUDY_SEEDS=2\n"
        "CONFIG_STUDY_VARIANTS=\"a: LEARNING_RATE=0.01; b: LEARNING_RATE=0.02\"\n";
    file_write(path, text, sizeof text - 1);
}

static int cluster(const char *what, const char *folder) {
    char command[2 * NAME_ROOM];
    snprintf(command, sizeof command, "tests/supervise/slurm_cluster %s %s", what, folder);
    int status = system(command);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool wait_for(const char *path) {
    for (int i = 0; i < WAIT_SECONDS * 10; i++) {
        if (access(path, F_OK) == 0) return true;
        pause_ms(100);
    }
    return false;
}

static void show_logs(const char *out) {
    char command[2 * NAME_ROOM];
    snprintf(command, sizeof command, "tail -n 5 %s/slurm/*.log; squeue", out);
    if (system(command) != 0) printf("no logs\n");
}

static void submit_and_compare(const char *config, const char *folder) {
    char out[NAME_ROOM], alone[NAME_ROOM], report[NAME_ROOM + 32], conf[NAME_ROOM + 32];
    keep(out, scratch_path("slurm-study"));
    keep(alone, scratch_path("alone"));
    snprintf(conf, sizeof conf, "%s/slurm.conf", folder);
    snprintf(report, sizeof report, "%s/report.html", out);
    setenv("SLURM_CONF", conf, 1);
    command_succeeds(RUN("study", "--config", config, "--out", out, "--threads", "1", "--slurm"),
                     NULL);
    bool done = wait_for(report);
    if (!done) show_logs(out);
    unsetenv("SLURM_CONF");
    assert_true(done);
    command_succeeds(RUN("study", "--config", config, "--out", alone, "--threads", "1"), NULL);
    study_same(alone, out);
}

/* Ranks that srun starts, against one process. */
static void train_by_srun(const char *config, const char *folder) {
    char out[NAME_ROOM], alone[NAME_ROOM], conf[NAME_ROOM + 32], command[4096];
    const char *weft = getenv("WEFT");
    keep(out, scratch_path("srun"));
    keep(alone, scratch_path("process"));
    train_config(config);
    snprintf(conf, sizeof conf, "%s/slurm.conf", folder);
    setenv("SLURM_CONF", conf, 1);
    snprintf(
        command, sizeof command,
        "srun --mpi=pmix -n 2 %s train --config %s --out %s --threads 1 --peak-flops 0 2>%s.err",
        weft ? weft : "build/weft", config, out, out);
    int status = system(command);
    unsetenv("SLURM_CONF");
    assert_int_equal(status, 0);
    command_succeeds(
        RUN("train", "--config", config, "--out", alone, "--threads", "1", "--peak-flops", "0"),
        NULL);
    train_same_end(alone, out);
}

/* Starts a Slurm for the work, where that can be. */
static void with_cluster(const char *name, void (*work)(const char *config, const char *folder)) {
    const char *runner = getenv("RUNNER");
    char config[NAME_ROOM], folder[NAME_ROOM];
    if (!train_long() || (runner && *runner)) {
        printf("%s\n", train_long() ? "processes are run by RUNNER"
                                    : "starts a Slurm: make test-long does");
        skip();
    }
    keep(config, scratch_path("config"));
    keep(folder, scratch_path("%s", name));
    write_config(config);
    int started = cluster("start", folder);
    if (started == 77) skip();
    if (started == 0) work(config, folder);
    cluster("stop", folder);
    assert_int_equal(started, 0);
}

TEST(test_array_is_gathered) {
    with_cluster("array", submit_and_compare);
}

TEST(test_srun_starts_ranks) {
    if (train_long()) ranks_need_mpi();
    with_cluster("tasks", train_by_srun);
}

TEST(test_without_slurm_is_one_line) {
    char config[NAME_ROOM], out[NAME_ROOM], path[4096];
    keep(config, scratch_path("config"));
    keep(out, scratch_path("none"));
    study_config(config);
    snprintf(path, sizeof path, "%s", getenv("PATH"));
    setenv("PATH", "/nowhere", 1);
    command_fails(1, RUN("study", "--config", config, "--out", out, "--slurm"), SAYS("sbatch"));
    /* A job's variant takes the place of those that were chosen, by the option's old name too. */
    static const char *const names[] = {"--variants", "--steps"};
    for (int i = 0; i < 2; i++) {
        command_fails(1, RUN("study", "--config", config, "--out", out, "--slurm", names[i], "2,4"),
                      SAYS("sbatch"));
        char *script = file_read(scratch_path("none/slurm/array.sh"), NULL);
        char *list = file_read(scratch_path("none/slurm/variants"), NULL);
        assert_non_null(strstr(script, " --variants \"$variant\""));
        assert_null(strstr(script, "2,4"));
        assert_null(strstr(script, "--steps"));
        assert_string_equal(list, "2\n4\n");
        free(script);
        free(list);
    }
    setenv("PATH", path, 1);
}

TEST(test_a_study_is_not_started_by_mpirun) {
    char config[NAME_ROOM];
    keep(config, scratch_path("config"));
    study_config(config);
    setenv("OMPI_COMM_WORLD_SIZE", "2", 1);
    command_fails(2, RUN("study", "--config", config), SAYS("mpirun", "--jobs"));
    unsetenv("OMPI_COMM_WORLD_SIZE");
}

RUN_TESTS(scratch_setup, scratch_teardown)
