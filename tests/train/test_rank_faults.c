/* Ranks that fail, each in its way: all of them end within a minute, each with one line that says
 * which rank and why, and the last checkpoint goes on at another number of ranks. */
#include "support/command.h"
#include "support/ranks_run.h"
#include "support/test.h"
#include "support/token_file.h"
#include "support/train_run.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { NAME_ROOM = 256 };
static const double LIMIT = 240; /* seconds; a machine may be busy with more than this */

typedef struct {
    char config[NAME_ROOM], out[NAME_ROOM], err[NAME_ROOM];
} run_files;

static run_files open_run(const char *name) {
    run_files f;
    ranks_need_mpi();
    snprintf(f.config, sizeof f.config, "%s", scratch_path("config"));
    snprintf(f.out, sizeof f.out, "%s", scratch_path("%s", name));
    snprintf(f.err, sizeof f.err, "%s", scratch_path("%s.err", name));
    train_config(f.config);
    return f;
}

/* Six micro-batches: at most six ranks. */
#define FOREVER                                                                                    \
    "-o", "STEPS=100000", "-o", "LOG_INTERVAL=100000", "-o", "MICRO_BATCH=1", "-o",                \
        "BATCH_SIZE=3", "-o", "GRADIENT_ACCUMULATION=2", "-o", "LR_SCHEDULE=constant"

static pid_t start_forever(const run_files *f, int ranks, const char *const *environment) {
    ranks_part part = {.ranks = ranks,
                       .arguments = RUN("train", "--config", f->config, "--out", f->out, "--resume",
                                        "--peak-flops", "0", FOREVER),
                       .environment = environment};
    return ranks_start(&part, 1, f->err);
}

static void show(const char *path) {
    size_t n;
    WEFT_AUTO_FREE char *text = file_read(path, &n);
    printf("%s\n", text);
}

static void expect_lines(const run_files *f, const char *text, int least) {
    int lines = ranks_count(f->err, text);
    if (lines >= least) return;
    show(f->err);
    fail_msg("%d of %d times it says '%s'", lines, least, text);
}

/* The next start goes on from the last checkpoint, at another number. */
static void expect_resumable(const run_files *f, int ranks) {
    size_t n;
    WEFT_AUTO_FREE char *text = file_read(format_text("%s/last/state.json", f->out), &n);
    WEFT_AUTO_DECREF json_t *object = json_loads(text, 0, NULL);
    long long done = json_integer_value(json_object_get(object, "iteration"));
    assert_true(done > 0);
    const char *steps = format_text("STEPS=%lld", done + 2);
    assert_int_equal(ranks_run(ranks,
                               RUN("train", "--config", f->config, "--out", f->out, "--resume",
                                   "--peak-flops", "0", FOREVER, "-o", steps),
                               f->err),
                     0);
}

/* One of so many is killed; the checkpoint is whole, and so many others go on with it. */
static void check_killed(const char *name, int ranks, int rank, int others) {
    run_files f = open_run(name);
    pid_t child = start_forever(&f, ranks, NULL);
    train_wait_checkpoint(child, f.out);
    pid_t victim = ranks_kill(child, rank, SIGKILL);
    assert_true(ranks_wait(child, LIMIT) != 0);
    const char *who = format_text("rank %d (", rank);
    expect_lines(&f, who, ranks - 1);
    who = format_text("pid %d) is gone", (int)victim);
    expect_lines(&f, who, ranks - 1);
    expect_resumable(&f, others);
}

TEST(test_killed_rank_ends_all) {
    static const int numbers[] = {2, 3, 4, 6};
    check_killed("killed", 4, 3, 2);
    for (size_t i = 0; train_long() && i < sizeof numbers / sizeof *numbers; i++) {
        for (int rank = 0; rank < numbers[i]; rank++) {
            const char *name = format_text("killed-%d-%d", numbers[i], rank);
            check_killed(name, numbers[i], rank, numbers[(i + (size_t)rank + 1) % 4]);
        }
    }
}

/* Killed again and again at any moment, in any number: the end is that of a run that nobody disturbed. */
TEST(test_run_that_is_killed_often_ends_as_another) {
    static const int numbers[] = {3, 2, 6, 4};
    run_files f = open_run("often");
    int kills = train_long() ? 24 : 3;
    long long steps = 0;
    const char *alone = scratch_path("undisturbed");
    setenv("OMPI_MCA_odls_base_sigkill_timeout", "1", 1); /* nobody reads why they end */
    for (int i = 0; i < kills; i++) {
        int ranks = numbers[i % 4];
        pid_t child = start_forever(&f, ranks, NULL);
        train_wait_checkpoint(child, f.out);
        pause_ms(i * 37 % 211);
        ranks_kill(child, i % ranks, SIGKILL);
        assert_true(ranks_wait(child, LIMIT) != 0);
    }
    unsetenv("OMPI_MCA_odls_base_sigkill_timeout");
    size_t n;
    WEFT_AUTO_FREE char *text = file_read(format_text("%s/last/state.json", f.out), &n);
    WEFT_AUTO_DECREF json_t *object = json_loads(text, 0, NULL);
    steps = json_integer_value(json_object_get(object, "iteration")) + 1;
    const char *more = format_text("STEPS=%lld", steps);
    assert_int_equal(ranks_run(2,
                               RUN("train", "--config", f.config, "--out", f.out, "--resume",
                                   "--peak-flops", "0", FOREVER, "-o", more),
                               f.err),
                     0);
    SUCCEEDS("train", "--config", f.config, "--out", alone, "--peak-flops", "0", FOREVER, "-o",
             more);
    train_same_file(alone, f.out, "last/model.safetensors");
    train_same_file(alone, f.out, "last/optimizer.safetensors");
}

/* Hangs rank `rank` of a run, by `hang`, and sees that the others say so of it in these words. A rank that gets
 * no processor for as long as the heartbeat is taken for one that hangs, and rightly so: then the next run
 * has twice the time. */
static void check_hung(const run_files *f, int rank, void (*hang)(pid_t child, pid_t victim),
                       const char *words) {
    for (int seconds = 2; seconds <= 16; seconds *= 2) {
        const char *beat = format_text("WEFT_HEARTBEAT=%d", seconds);
        pid_t child = start_forever(f, 3, SAYS(beat)), victim = 0;
        if (train_sees_checkpoint(child, f->out)) {
            victim = ranks_pid(child, rank);
            if (victim) hang(child, victim);
        }
        assert_true(ranks_wait(child, LIMIT) != 0);
        const char *who = format_text("pid %d) %s", (int)victim, words);
        if (victim && ranks_count(f->err, who) > 0) return;
        if (ranks_count(f->err, "has been silent for") + ranks_count(f->err, "hangs: nothing") == 0)
            break; /* not a matter of time */
    }
    show(f->err);
    fail_msg("nobody says that rank %d %s", rank, words);
}

static void stop(pid_t child, pid_t victim) {
    (void)child;
    kill(victim, SIGSTOP);
}

/* A stopped process answers nothing: a heartbeat finds it. */
TEST(test_hung_rank_ends_all) {
    run_files f = open_run("hung");
    for (int rank = 0; rank < 2; rank++)
        check_hung(&f, rank, stop, "has been silent for");
    expect_resumable(&f, 2);
}

/* A rank that never comes: the others wait inside MPI, where no heartbeat is yet. */
TEST(test_rank_that_does_not_come_ends_all) {
    run_files f = open_run("absent");
    const char *const *environment = SAYS("WEFT_HEARTBEAT=2");
    ranks_part parts[] = {
        {.ranks = 2,
         .arguments = RUN("train", "--config", f.config, "--out", f.out, "--peak-flops", "0"),
         .environment = environment},
        {.ranks = 1, .program = "sleep", .arguments = RUN("100"), .environment = environment}};
    assert_true(ranks_wait(ranks_start(parts, 2, f.err), LIMIT) != 0);
    expect_lines(&f, "not all ranks have come within 20 s", 1);
}

/* Waits until a process's first thread computes: one that sleeps waits for the others. */
static void wait_running(pid_t victim) {
    char text[512];
    const char *path = format_text("/proc/%d/task/%d/stat", (int)victim, (int)victim);
    for (int i = 0; i < 5000; i++) {
        FILE *file = fopen(path, "r");
        if (!file) return;
        size_t n = fread(text, 1, sizeof text - 1, file);
        fclose(file);
        text[n] = 0;
        const char *state = strrchr(text, ')');
        if (state && state[1] && state[2] == 'R') return;
        pause_ms(1);
    }
}

/* Whether a stopped thread is in the C library: there it waits for the others, or just did. */
static bool is_in_libc(pid_t victim) {
    char line[4200];
    unsigned long at = 0, from, to;
    bool in = false;
    const char *path = format_text("/proc/%d/syscall", (int)victim);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    /* "-1 SP PC", or a call's number, its six arguments, SP and PC. */
    if (fgets(line, sizeof line, file) && strrchr(line, ' '))
        at = strtoul(strrchr(line, ' '), NULL, 16);
    fclose(file);
    path = format_text("/proc/%d/maps", (int)victim);
    file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= at && at < to)
            in = strstr(line, "libc.");
    if (file) fclose(file);
    return in;
}

/* Whether the process has ended within so many hundredths of a second. */
static bool has_ended(pid_t victim, int hundredths) {
    int status;
    for (int i = 0; i < hundredths; i++) {
        if (waitpid(victim, &status, __WALL | WNOHANG) == victim &&
            (WIFEXITED(status) || WIFSIGNALED(status)))
            return true;
        pause_ms(10);
    }
    return false;
}

/* Stops one thread of another process until that has ended: its working thread hangs, and the thread that
 * talks goes on. Where it happens to stop while it waits for the others, which is no fault, it is let go
 * and stopped again. */
static void hold_thread(pid_t victim) {
    int status;
    if (ptrace(PTRACE_SEIZE, victim, NULL, NULL) != 0) _exit(77);
    for (int round = 0, held = 0; round < 10000 && held < 20; round++) {
        wait_running(victim);
        ptrace(PTRACE_INTERRUPT, victim, NULL, NULL);
        if (waitpid(victim, &status, __WALL) != victim || !WIFSTOPPED(status)) _exit(0);
        if (!is_in_libc(victim)) {
            held++;
            if (has_ended(victim, 500)) _exit(0);
        }
        ptrace(PTRACE_CONT, victim, NULL, NULL);
        pause_ms(1 + round % 31);
    }
    _exit(1);
}

static void hang_thread(pid_t child, pid_t victim) {
    int status;
    pid_t holder = fork();
    assert_true(holder >= 0);
    if (holder == 0) hold_thread(victim);
    while (waitpid(holder, &status, WNOHANG) == 0)
        pause_ms(10);
    if (!WIFEXITED(status) || WEXITSTATUS(status) != 77) return;
    kill(child, SIGTERM);
    ranks_wait(child, LIMIT);
    printf("this system does not let a process stop another's thread\n");
    skip();
}

TEST(test_hung_working_thread_ends_all) {
    run_files f = open_run("thread");
    check_hung(&f, 1, hang_thread, "hangs: nothing has moved");
}

/* Rank 0 gathers what the others have of the optimizer's state, and the disk is full: a limit on the size of
 * its files stands for that. It is set once the run goes on, since MPI's shared memory is a file too. */
TEST(test_rank_that_cannot_save_ends_all) {
    run_files f = open_run("full");
    ranks_part part = {.ranks = 3,
                       .arguments = RUN("train", "--config", f.config, "--out", f.out,
                                        "--peak-flops", "0", FOREVER, "-o", "SHARD=optimizer")};
    pid_t child = ranks_start(&part, 1, f.err);
    train_wait_checkpoint(child, f.out);
    struct rlimit most = {20000, 20000};
    assert_int_equal(prlimit(ranks_kill(child, 0, 0), RLIMIT_FSIZE, &most, NULL), 0);
    assert_true(ranks_wait(child, LIMIT) != 0);
    expect_lines(&f, "File too large", 3);
    expect_lines(&f, "rank 0 (", 2);
}

/* Rank 1 is started with something else than the others. */
static void expect_refused(const run_files *f, const ranks_part *other, const char *what) {
    const char *const *usual =
        RUN("train", "--config", f->config, "--out", f->out, "--peak-flops", "0");
    ranks_part parts[] = {
        {.ranks = 1, .arguments = usual}, *other, {.ranks = 1, .arguments = usual}};
    if (!parts[1].arguments) parts[1].arguments = usual;
    parts[1].ranks = 1;
    assert_true(ranks_wait(ranks_start(parts, 3, f->err), LIMIT) != 0);
    expect_lines(f, "rank 1 (", 2);
    expect_lines(f, what, 2);
}

TEST(test_rank_without_its_data_ends_all) {
    run_files f = open_run("data");
    ranks_part other = {.arguments = RUN("train", "--config", f.config, "--out", f.out,
                                         "--peak-flops", "0", "-o", "DATASET=./nowhere")};
    expect_refused(&f, &other, "nowhere");
}

TEST(test_rank_with_another_config_ends_all) {
    run_files f = open_run("config-differs");
    ranks_part other = {.arguments = RUN("train", "--config", f.config, "--out", f.out,
                                         "--peak-flops", "0", "-o", "LEARNING_RATE=0.02")};
    expect_refused(&f, &other, "learning_rate");
}

/* The program with a byte more. */
TEST(test_rank_with_another_program_ends_all) {
    run_files f = open_run("program-differs");
    size_t n;
    char weft[4096];
    assert_non_null(realpath(command_program(), weft));
    const char *copy = scratch_path("weft");
    WEFT_AUTO_FREE char *bytes = file_read(weft, &n);
    file_write(copy, bytes, n + 1);
    assert_int_equal(chmod(copy, 0755), 0);
    const char *library =
        format_text("WEFT_MPI=%.*s/libweft-mpi.so", (int)(strrchr(weft, '/') - weft), weft);
    ranks_part other = {.program = copy, .environment = SAYS(library)};
    expect_refused(&f, &other, "its program is not rank 0's");
}

/* A folder with a dataset ./set of as many tokens, but other ones. */
static void write_data(const char *folder, int kind) {
    int32_t tokens[4096];
    for (int k = 0; k < 4096; k++)
        tokens[k] = (k * 7 + kind * (k % 2)) % 256;
    assert_int_equal(mkdir(folder, 0777), 0);
    const char *path = format_text("%s/set", folder);
    assert_int_equal(mkdir(path, 0777), 0);
    for (int split = 0; split < 2; split++) {
        path = format_text("%s/set/%s_0.bin", folder, split ? "val" : "train");
        shard_write(path, 20240520, 1, 4096, 2, tokens, 4096);
    }
}

TEST(test_rank_with_other_data_ends_all) {
    run_files f = open_run("data-differs");
    char folder[2][NAME_ROOM];
    const char *const *arguments = RUN("train", "--config", f.config, "--out", f.out,
                                       "--peak-flops", "0", "-o", "DATASET=./set");
    for (int i = 0; i < 2; i++) {
        snprintf(folder[i], sizeof folder[i], "%s", scratch_path("at-%d", i));
        write_data(folder[i], i);
    }
    ranks_part parts[] = {{.ranks = 1, .arguments = arguments, .folder = folder[0]},
                          {.ranks = 1, .arguments = arguments, .folder = folder[1]}};
    assert_true(ranks_wait(ranks_start(parts, 2, f.err), LIMIT) != 0);
    expect_lines(&f, "its data is not rank 0's", 2);
}

TEST(test_more_ranks_than_micro_batches_is_an_error) {
    run_files f = open_run("too-many");
    assert_true(ranks_run(3,
                          RUN("train", "--config", f.config, "--out", f.out, "--peak-flops", "0",
                              "-o", "GRADIENT_ACCUMULATION=1", "-o", "MICRO_BATCH=2"),
                          f.err) != 0);
    expect_lines(&f, "3 ranks share a step's 2 micro-batches", 3);
}

TEST(test_build_without_mpi_says_so) {
    run_files f = open_run("no-mpi");
    ranks_part part = {.ranks = 2,
                       .arguments = RUN("train", "--config", f.config, "--out", f.out),
                       .environment = SAYS("WEFT_MPI=/nowhere/libweft-mpi.so")};
    assert_true(ranks_wait(ranks_start(&part, 1, f.err), LIMIT) != 0);
    expect_lines(&f, "/nowhere/libweft-mpi.so cannot be opened", 1);
}

RUN_TESTS(scratch_setup, scratch_teardown)
