/* A run's folder and its process: fork, the child's files and signals, and exec of this program. */
#include "supervise/supervise.h"

#include "base/clock.h"
#include "base/folders.h"
#include "base/log.h"
#include "train/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { NOT_STARTED = 127, TAIL = 8192, LEAST_MS = 5, MOST_MS = 250 };

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
    if (*pid == 0) { /* the child makes only calls that are safe after a fork */
        int nothing = open("/dev/null", O_RDONLY);
        setpgid(0, 0);
        signal(SIGINT, SIG_DFL);
        signal(SIGTERM, SIG_DFL);
        if (signal(SIGHUP, SIG_DFL) == SIG_IGN) signal(SIGHUP, SIG_IGN); /* nohup's */
        sigprocmask(SIG_SETMASK, &before, NULL);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent) _exit(NOT_STARTED); /* it was killed before this was set */
        if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(out_fd, 1) < 0 || dup2(log_fd, 2) < 0)
            _exit(NOT_STARTED);
        execv("/proc/self/exe", (char *const *)(uintptr_t)words);
        execvp(words[0], (char *const *)(uintptr_t)words);
        _exit(NOT_STARTED);
    }
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
