/* A run's folder and its process: fork, the child's files and signals, and exec of this program; and the study's folder.
 * Of a run that is set aside nothing is removed; a run's checkpoints are last, best and step-N. */
#include "supervise/supervise.h"

#include "base/clock.h"
#include "base/log.h"
#include "train/checkpoint.h"
#include "train/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { NOT_STARTED = 127, TAIL = 8192, LEAST_MS = 5, MOST_MS = 250 };

/* In the child; does not return. Only calls that are safe after a fork. */
static void become(char *const *words, int out, int log, pid_t parent, const sigset_t *mask) {
    int nothing = open("/dev/null", O_RDONLY);
    setpgid(0, 0);
    signal(SIGINT, SIG_DFL);
    signal(SIGTERM, SIG_DFL);
    if (signal(SIGHUP, SIG_DFL) == SIG_IGN) signal(SIGHUP, SIG_IGN); /* nohup's */
    sigprocmask(SIG_SETMASK, mask, NULL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(NOT_STARTED); /* it was killed before this was set */
    if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(out, 1) < 0 || dup2(log, 2) < 0)
        _exit(NOT_STARTED);
    execv("/proc/self/exe", words);
    execvp(words[0], words);
    _exit(NOT_STARTED);
}

static weft_status start_process(const char *const *words, const char *out, const char *log,
                                 pid_t *pid) {
    WEFT_AUTO_CLOSE int out_fd = -1, log_fd = -1;
    WEFT_TRY(weft_file_open_own(out, &out_fd));
    WEFT_TRY(weft_file_open_own(log, &log_fd));
    if (ftruncate(out_fd, 0) != 0 || fcntl(log_fd, F_SETFL, O_APPEND) != 0)
        return weft_fail(WEFT_EIO, "%s: %s", out, strerror(errno));
    /* Signals wait until the child has forgotten this process's handlers: one that came in between would
     * be noted by a handler which the new program does not have. */
    sigset_t all, before;
    pid_t parent = getpid();
    fflush(NULL);
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    *pid = fork();
    if (*pid == 0) become((char *const *)(uintptr_t)words, out_fd, log_fd, parent, &before);
    int error = errno;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (*pid > 0) return WEFT_OK;
    return weft_fail(WEFT_EIO, "study: no process for a run: %s", strerror(error));
}

bool weft_process_ended(pid_t pid, bool wait, weft_process_end *end) {
    int status = 0;
    struct rusage usage = {.ru_maxrss = 0};
    pid_t got;
    do
        got = wait4(pid, &status, wait ? 0 : WNOHANG, &usage);
    while (got < 0 && errno == EINTR);
    if (got == 0) return false;
    *end = (weft_process_end){.status = NOT_STARTED};
    if (got < 0) return true; /* nobody to wait for: as one that never was */
    end->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    end->status = end->signal ? WEFT_STOP_EXIT + end->signal : WEXITSTATUS(status);
    end->memory = (int64_t)usage.ru_maxrss * 1024;
    return true;
}

static const char *without(const char *text, const char *head) {
    size_t n = strlen(head);
    return strncmp(text, head, n) == 0 ? text + n : text;
}

void weft_process_last_line(const char *log, const char *folder, char *line, size_t room) {
    char tail[TAIL + 1], head[4200];
    WEFT_AUTO_FCLOSE FILE *file = NULL;
    size_t n = 0;
    *line = '\0';
    if (weft_file_open_stream(log, &file) != WEFT_OK) return;
    if (fseek(file, -TAIL, SEEK_END) != 0) rewind(file);
    n = fread(tail, 1, TAIL, file);
    while (n > 0 && (tail[n - 1] == '\n' || tail[n - 1] == ' '))
        n--;
    tail[n] = '\0';
    const char *last = strrchr(tail, '\n');
    last = without(last ? last + 1 : tail, "weft train: ");
    snprintf(head, sizeof head, "%s: ", folder);
    snprintf(line, room, "%s", without(last, head));
}

void weft_pause(double waited) {
    double ms = fmin(fmax(20 * waited, LEAST_MS), MOST_MS);
    nanosleep(&(struct timespec){.tv_nsec = (long)(ms * 1e6)}, NULL);
}

weft_status weft_launch(const weft_config *c, const char *folder,
                        const weft_launch_options *options, pid_t *pid) {
    char count[16], peak[40];
    WEFT_TRY(weft_folder_make(folder));
    WEFT_PATH(result, "%s/result.json", folder);
    WEFT_PATH(config, "%s/config", folder);
    WEFT_PATH(log, "%s/log", folder);
    WEFT_TRY(weft_config_save(c, config));
    snprintf(count, sizeof count, "%d", options->threads);
    snprintf(peak, sizeof peak, "%.17g", options->peak_flops);
    const char *words[] = {"weft",     "train",  "--config",  config, "--out",        folder,
                           "--resume", "--json", "--threads", count,  "--peak-flops", peak,
                           NULL,       NULL,     NULL,        NULL};
    int n = 12;
    if (options->save_last) words[n++] = "--save-last";
    if (options->from && *options->from) {
        words[n++] = "--from";
        words[n] = options->from;
    }
    /* The process gets its GPU by WEFT_CUDA_DEVICE; this one's own is put back. */
    const char *gpu = options->gpu, *own = getenv("WEFT_CUDA_DEVICE");
    WEFT_AUTO_FREE char *before = own ? strdup(own) : NULL;
    if (own && !before) return weft_fail(WEFT_ENOMEM, "study: no memory");
    if (gpu) setenv("WEFT_CUDA_DEVICE", gpu, 1);
    weft_status status = start_process(words, result, log, pid);
    if (gpu && before)
        setenv("WEFT_CUDA_DEVICE", before, 1);
    else if (gpu)
        unsetenv("WEFT_CUDA_DEVICE");
    return status;
}

/* One process of so many iterations; seconds of an iteration, the median. */
static weft_status measure_once(weft_study *s, int variant, const char *folder, int threads,
                                int64_t iters) {
    weft_study_variant *p = &s->built[variant];
    weft_config c;
    weft_process_end end;
    pid_t pid;
    char line[WEFT_STUDY_LINE];
    weft_study_run_config(s, variant, p->config.learning_rate, s->base.seed, &c);
    c.steps = iters;
    c.eval_interval = iters;
    c.eval_samples = 1;
    c.log_interval = 1;
    c.save_checkpoint = false;
    WEFT_TRY(weft_launch(&c, folder, &(weft_launch_options){.threads = threads}, &pid));
    /* Waits for a measuring process; a signal is handed on. */
    double begun = weft_clock();
    bool told = false;
    while (!weft_process_ended(pid, false, &end)) {
        int asked = weft_stop_asked();
        if (asked && !told) kill(pid, asked);
        told = told || asked;
        weft_pause(weft_clock() - begun);
    }
    if (told)
        return weft_fail(WEFT_EIO, "stopped by a signal while variants were measured; nothing is "
                                   "kept, the same command starts anew");
    double rate = weft_collect_rate(folder);
    if (end.status == 0 && rate > 0) {
        p->seconds_per_iter = (double)weft_study_iter_tokens(&c) / rate;
        return WEFT_OK;
    }
    WEFT_PATH(log, "%s/log", folder);
    weft_process_last_line(log, folder, line, sizeof line);
    return weft_fail(WEFT_EIO, "variant '%s' could not be measured: %s", p->variant->name,
                     *line ? line : "its process ended without a word");
}

/* A few iterations; where they are short, as many as make about a second. A repeat has the seconds
 * of what it repeats, since it must do the same. */
static weft_status measure_variant(weft_study *s, int variant, const char *all, int threads) {
    weft_study_variant *p = &s->built[variant];
    int repeats = p->variant->repeats;
    if (repeats >= 0 && s->built[repeats].seconds_per_iter > 0) {
        p->seconds_per_iter = s->built[repeats].seconds_per_iter;
        return WEFT_OK;
    }
    WEFT_PATH(folder, "%s/%d", all, variant);
    WEFT_TRY(measure_once(s, variant, folder, threads, WEFT_MEASURE_ITERS));
    double more = fmin(1 / p->seconds_per_iter, WEFT_MEASURE_MOST);
    if (more >= 2 * WEFT_MEASURE_ITERS) {
        WEFT_TRY(weft_path(folder, "%s/%d-again", all, variant));
        WEFT_TRY(measure_once(s, variant, folder, threads, (int64_t)more));
    }
    weft_log(WEFT_LOG_INFO, "variant %s: %.4g s an iteration", p->variant->name,
             p->seconds_per_iter);
    return WEFT_OK;
}

weft_status weft_measure_variants(weft_study *s, const char *folder, int threads) {
    WEFT_PATH(all, "%s/measure", folder);
    WEFT_TRY(weft_folder_remove(all));
    WEFT_TRY(weft_folder_make_marked(all));
    weft_status status = WEFT_OK;
    for (int i = 0; status == WEFT_OK && i < s->variants.n; i++)
        if (!*s->built[i].error) status = measure_variant(s, i, all, threads);
    if (status == WEFT_OK) return weft_folder_remove(all);
    char message[1024];
    snprintf(message, sizeof message, "%s", weft_error_message());
    weft_folder_remove(all);
    return weft_fail(status, "%s", message);
}

enum { PAUSE_MS = 20, LEFT_MS = 5000, ASIDE_MOST = 10000 };

/* Who a lock says holds it. A lock has a process's number, or nothing yet: another file by that name is the
 * user's, and false. */
static bool read_holder(int fd, char holder[32]) {
    ssize_t n = pread(fd, holder, 31, 0);
    holder[n > 0 ? n : 0] = '\0';
    size_t digits = strspn(holder, "0123456789");
    bool ours =
        n == 0 || (n < 31 && digits > 0 && (!holder[digits] || strcmp(holder + digits, "\n") == 0));
    holder[strcspn(holder, "\n")] = '\0';
    return ours;
}

/* Whether another study holds the lock. The run that a study had just forked as it was killed holds it
 * too, until it has become another program: where the holder is gone, that is waited for. */
static bool is_held(int fd, char holder[32]) {
    const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
    for (int waited = 0; flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
         waited += PAUSE_MS) {
        read_holder(fd, holder);
        long pid = strtol(holder, NULL, 10);
        bool gone = pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
        if (waited >= LEFT_MS || !gone) return true;
        nanosleep(&pause, NULL);
    }
    return false;
}

weft_status weft_folder_hold(const char *path, int *descriptor) {
    char holder[32] = "";
    WEFT_AUTO_CLOSE int fd = -1;
    *descriptor = -1;
    WEFT_PATH(lock, "%s/lock", path);
    WEFT_TRY(weft_file_open_own(lock, &fd));
    if (is_held(fd, holder))
        return WEFT_BAD_INPUT(
            "%s: another weft study (process %s) runs in this folder; wait for it, or "
            "take another --out",
            path, *holder ? holder : "unknown");
    if (!read_holder(fd, holder))
        return WEFT_BAD_INPUT("%s: is not a lock of weft's; move it away, or take another "
                              "--out",
                              lock);
    int n = snprintf(holder, sizeof holder, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, holder, (size_t)n, 0) != n)
        return weft_fail(WEFT_EIO, "%s: %s", lock, strerror(errno));
    *descriptor = fd;
    fd = -1;
    return WEFT_OK;
}

void weft_folder_wait(const char *path, double seconds) {
    const struct timespec pause = {.tv_nsec = PAUSE_MS * 1000000L};
    char lines[WEFT_PATH_MAX];
    if (weft_path(lines, "%s/metrics.jsonl", path) != WEFT_OK) return;
    WEFT_AUTO_CLOSE int fd = open(lines, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return;
    for (int waited = 0; 0.001 * waited < seconds; waited += PAUSE_MS) {
        if (flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) break;
        nanosleep(&pause, NULL);
    }
}

static weft_status set_aside(weft_database *d, const char *out, const weft_record_run *job) {
    char aside[WEFT_PATH_MAX];
    weft_kind kind;
    WEFT_PATH(path, "%s/%s", out, job->folder);
    WEFT_TRY(weft_path_kind(path, &kind));
    if (kind == WEFT_KIND_NOTHING) return WEFT_OK;
    for (int i = 1; kind != WEFT_KIND_NOTHING && i < ASIDE_MOST; i++) {
        WEFT_TRY(weft_path(aside, "%s.aside-%d", path, i));
        WEFT_TRY(weft_path_kind(aside, &kind));
    }
    if (rename(path, aside) != 0) return weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno));
    weft_log(WEFT_LOG_INFO, "%s is set aside as %s, and the run begins anew", path, aside);
    char detail[WEFT_PATH_MAX + 32];
    snprintf(detail, sizeof detail, "begins anew; set aside as %s", aside);
    return weft_record_event(d, job->run, -1, "stopped", detail);
}

weft_status weft_restart(weft_database *d, const char *out, const weft_record_runs *jobs,
                         const char *which) {
    bool all = strcmp(which, "failed") == 0, found = false;
    for (int i = 0; i < jobs->n; i++) {
        const weft_record_run *job = &jobs->list[i];
        const char *slash = strrchr(job->folder, '/');
        bool named =
            strcmp(slash ? slash + 1 : job->folder, which) == 0 || strcmp(job->folder, which) == 0;
        if (named && job->status != WEFT_RUN_FAILED)
            return WEFT_BAD_INPUT(
                "--restart %s: this run did not fail; only one that did is started "
                "anew",
                which);
        if (job->status != WEFT_RUN_FAILED || (!all && !named)) continue;
        found = true;
        WEFT_TRY(set_aside(d, out, job));
    }
    if (found || all) return WEFT_OK;
    return WEFT_BAD_INPUT("--restart %s: the study has no such run; 'weft runs %s' lists them",
                          which, out);
}

bool weft_weights_stay(const weft_study *s, const weft_record_run *job) {
    bool compared = s->variants.list[job->variant].repeats >= 0;
    for (int i = 0; i < s->variants.n; i++)
        compared = compared || s->variants.list[i].repeats == job->variant;
    if (s->base.study_weights == WEFT_STUDY_WEIGHTS_ALL || compared) return true;
    return s->base.study_weights == WEFT_STUDY_WEIGHTS_FIRST && job->seed == weft_study_seed(s, 0);
}

weft_status weft_weights_remove(const char *folder) {
    WEFT_AUTO(weft_names_free) weft_names names = {0};
    WEFT_TRY(weft_folder_list(folder, &names));
    for (int i = 0; i < names.n; i++) {
        weft_checkpoint_kind kind;
        const char *name = names.list[i];
        if (strcmp(name, "last") != 0 && strcmp(name, "best") != 0 &&
            weft_checkpoint_step_of(name) < 0)
            continue;
        WEFT_PATH(path, "%s/%s", folder, name);
        WEFT_TRY(weft_checkpoint_look(path, &kind));
        if (kind != WEFT_CHECKPOINT_NONE && kind != WEFT_CHECKPOINT_FOREIGN)
            WEFT_TRY(weft_checkpoint_remove(path));
    }
    return WEFT_OK;
}
