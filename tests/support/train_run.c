#include "train_run.h"

#include "command.h"
#include "test.h"

#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS_MOST = 64, LIMIT_MS = 1800000, PAUSE_MS = 2 };

void train_config(const char *path) {
    static const char text[] = "CONFIG_ATTENTION=\"mla\"\n"
                               "CONFIG_FFN=\"swiglu\"\n"
                               "CONFIG_POSITION=\"rope\"\n"
                               "CONFIG_N_LAYER=2\n"
                               "CONFIG_N_HEAD=2\n"
                               "CONFIG_N_EMBD=16\n"
                               "CONFIG_RA_MLA_LATENT_DIM=8\n"
                               "CONFIG_VOCAB_SIZE=256\n"
                               "CONFIG_CONTEXT=24\n"
                               "CONFIG_DROPOUT=0.1\n"
                               "CONFIG_OPTIMIZER=\"adamwspam\"\n"
                               "CONFIG_SPAM_INTERVAL=5\n"
                               "CONFIG_SPAM_WARMUP_STEPS=3\n"
                               "CONFIG_BATCH_SIZE=4\n"
                               "CONFIG_MICRO_BATCH=2\n"
                               "CONFIG_GRADIENT_ACCUMULATION=3\n"
                               "CONFIG_STEPS=12\n"
                               "CONFIG_WARMUP_STEPS=3\n"
                               "CONFIG_LEARNING_RATE=1e-2\n"
                               "CONFIG_EVAL_INTERVAL=4\n"
                               "CONFIG_EVAL_SAMPLES=2\n"
                               "CONFIG_LOG_INTERVAL=1\n"
                               "CONFIG_CHECKPOINT_INTERVAL=2\n";
    file_write(path, text, sizeof text - 1);
}

static void run_child(char **words, const char *err, long limit) {
    int nothing = open("/dev/null", O_RDWR);
    int errors = open(err, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    signal(SIGHUP, SIG_DFL); /* the tests may run under nohup */
    struct rlimit most = {.rlim_cur = (rlim_t)limit, .rlim_max = (rlim_t)limit};
    if (nothing < 0 || errors < 0 || dup2(nothing, 0) < 0 || dup2(nothing, 1) < 0 ||
        dup2(errors, 2) < 0 || (limit > 0 && setrlimit(RLIMIT_FSIZE, &most) != 0))
        _exit(126);
    execvp(words[0], words);
    _exit(127);
}

void train_scratch(char *config, size_t room) {
    scratch_open();
    snprintf(config, room, "%s", scratch_path("config"));
    train_config(config);
}

pid_t train_start(const char *const *arguments, const char *err, long limit) {
    const char *named = getenv("WEFT");
    char *program = strdup(named ? named : "build/weft"), *words[WORDS_MOST + 1];
    int n = 0;
    assert_non_null(program);
    /* An emulator may stand before the program. */
    for (char *at = program, *word; (word = strtok_r(at, " ", &at)) && n < WORDS_MOST;)
        words[n++] = word;
    for (; *arguments && n < WORDS_MOST; arguments++)
        words[n++] = (char *)(uintptr_t)*arguments;
    words[n] = NULL;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) run_child(words, err, limit);
    free(program);
    return child;
}

void train_need_limit(void) {
#if defined(__SANITIZE_THREAD__)
    puts("ThreadSanitizer's own memory is a file, which the limit holds for too");
    skip();
#endif
}

int train_wait(pid_t child) {
    int status;
    for (long waited = 0; waitpid(child, &status, WNOHANG) == 0; waited += PAUSE_MS) {
        if (waited == LIMIT_MS) kill(child, SIGKILL);
        pause_ms(PAUSE_MS);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void train_same_file(const char *a, const char *b, const char *name) {
    char first[512], second[512];
    size_t n, m;
    snprintf(first, sizeof first, "%s/%s", a, name);
    snprintf(second, sizeof second, "%s/%s", b, name);
    char *x = file_read(first, &n), *y = file_read(second, &m);
    if (n != m || memcmp(x, y, n) != 0) fail_msg("%s and %s differ", first, second);
    free(x);
    free(y);
}

void train_same_end(const char *a, const char *b) {
    train_same_file(a, b, "last/model.safetensors");
    train_same_file(a, b, "last/optimizer.safetensors");
    train_same_file(a, b, "best/model.safetensors");
}

bool train_long(void) {
    const char *asked = getenv("WEFT_TEST_LONG");
    return asked && strcmp(asked, "1") == 0;
}

/* Which folder has the name now: a new checkpoint is another one. */
static ino_t which_last(const char *out) {
    char path[PATH_MAX];
    struct stat is;
    snprintf(path, sizeof path, "%s/last", out);
    return stat(path, &is) == 0 ? is.st_ino : 0;
}

bool train_sees_checkpoint(pid_t child, const char *out) {
    ino_t before = which_last(out);
    for (int i = 0; i < 12000 && which_last(out) == before; i++) {
        siginfo_t ended = {0};
        assert_int_equal(waitid(P_PID, (id_t)child, &ended, WEXITED | WNOHANG | WNOWAIT), 0);
        if (ended.si_pid) break;
        pause_ms(5);
    }
    return which_last(out) != before;
}

void train_wait_checkpoint(pid_t child, const char *out) {
    assert_true(train_sees_checkpoint(child, out));
}
