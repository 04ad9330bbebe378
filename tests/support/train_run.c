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
    config_write(path,
                 "ATTENTION=mla FFN=swiglu POSITION=rope N_LAYER=2 N_HEAD=2 N_EMBD=16 "
                 "RA_MLA_LATENT_DIM=8 VOCAB_SIZE=256 CONTEXT=24 DROPOUT=0.1 OPTIMIZER=adamwspam "
                 "SPAM_INTERVAL=5 SPAM_WARMUP_STEPS=3 BATCH_SIZE=4 MICRO_BATCH=2 "
                 "GRADIENT_ACCUMULATION=3 STEPS=12 WARMUP_STEPS=3 LEARNING_RATE=1e-2 "
                 "EVAL_INTERVAL=4 EVAL_SAMPLES=2 LOG_INTERVAL=1 CHECKPOINT_INTERVAL=2");
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

const char *config_path;

int train_setup(void **state) {
    scratch_setup(state);
    config_path = scratch_path("config");
    train_config(config_path);
    return 0;
}

json_t *train_metrics(const char *run) {
    WEFT_AUTO_FREE char *text = file_read(format_text("%s/metrics.jsonl", run), NULL);
    json_t *rows = json_array();
    for (char *rest = text, *line; (line = strtok_r(rest, "\n", &rest));)
        if (json_array_append_new(rows, json_loads(line, 0, NULL)) != 0)
            fail_msg("%s: no JSON: %s", run, line);
    return rows;
}

json_t *train_last_metrics(const char *run) {
    WEFT_AUTO_DECREF json_t *rows = train_metrics(run);
    assert_true(json_array_size(rows) > 0);
    return json_incref(json_array_get(rows, json_array_size(rows) - 1));
}

json_t *train_result(const char *run) {
    static const char *const others[] = {"out", "seconds", "tokens_per_s", "mfu"};
    json_t *result = json_load_file(format_text("%s/result.json", run), 0, NULL);
    assert_non_null(result);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        json_object_del(result, others[i]);
    return result;
}

pid_t train_start(const char *const *arguments, const char *err, long limit) {
    char *words[WORDS_MOST];
    command_words(arguments, words, WORDS_MOST);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) run_child(words, err, limit);
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

void train_wait_text(const char *path, const char *text) {
    bool there = false;
    for (long waited = 0; waited < LIMIT_MS && !there; waited += PAUSE_MS) {
        WEFT_AUTO_FREE char *said = access(path, R_OK) == 0 ? file_read(path, NULL) : NULL;
        there = said && strstr(said, text);
        pause_ms(PAUSE_MS);
    }
    if (!there) fail_msg("%s has no '%s'", path, text);
}

void train_same_file(const char *a, const char *b, const char *name) {
    size_t n, m;
    const char *first = format_text("%s/%s", a, name);
    const char *second = format_text("%s/%s", b, name);
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
    struct stat is;
    const char *path = format_text("%s/last", out);
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
