/* The supervisor. It holds no state that matters: what is done is in the database and in the runs'
 * folders, so it may be killed at any moment. Of a run that is set aside nothing is removed. */
#include "supervise/supervise.h"

#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/order.h"
#include "base/progress.h"
#include "study/study.h"
#include "train/checkpoint.h"
#include "train/metrics.h"
#include "train/stop.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/statvfs.h>

enum { LINE_ROOM = WEFT_STUDY_LINE, NOTE_ROOM = 160, RESULT_MOST = 1 << 20, ASIDE_MOST = 10000 };

/* For a killed study's last run to be another program, and to be gone. */
static const double left_seconds = 5, orphan_seconds = 20;

typedef struct {
    weft_record_run *job; /* NULL: free */
    pid_t pid;
    double begun;
    int64_t steps; /* as its metrics tell */
    char folder[WEFT_PATH_MAX];
} slot;

typedef struct {
    weft_study *study;
    const weft_study_options *options;
    weft_study_result *result;
    weft_database *database;
    weft_record_runs jobs;
    weft_record_run **order; /* what is to be run, in this order */
    int n_order, next;
    slot *slots;
    int active;
    weft_progress *progress;
    int64_t iters_done; /* of runs that ended */
    bool told;          /* the runs were asked to stop */
    bool restarted;     /* what was to begin anew does */
    bool announced;     /* options->begins was called: nothing is refused any more */
    double begun;
} supervisor;

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
    double begun = weft_clock();
    while (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        read_holder(fd, holder);
        long pid = strtol(holder, NULL, 10);
        bool gone = pid > 0 && kill((pid_t)pid, 0) != 0 && errno == ESRCH;
        if (weft_clock() - begun >= left_seconds || !gone) return true;
        weft_pause(weft_clock() - begun);
    }
    return false;
}

/* Holds the study's folder until the descriptor is closed or the process ends. */
static weft_status hold_folder(const char *path, int *descriptor) {
    char holder[32] = "";
    WEFT_AUTO_CLOSE int fd = -1;
    *descriptor = -1;
    WEFT_PATH(lock, "%s/lock", path);
    WEFT_TRY(weft_file_open_own(lock, &fd));
    if (is_held(fd, holder))
        return WEFT_BAD_INPUT("%s: another weft study (process %s) runs in this folder; wait for "
                              "it, or take another --out",
                              path, *holder ? holder : "unknown");
    if (!read_holder(fd, holder))
        return WEFT_BAD_INPUT("%s: is not a lock of weft's; move it away, or take another --out",
                              lock);
    int n = snprintf(holder, sizeof holder, "%ld\n", (long)getpid());
    if (ftruncate(fd, 0) != 0 || pwrite(fd, holder, (size_t)n, 0) != n)
        return weft_fail(WEFT_EIO, "%s: %s", lock, strerror(errno));
    *descriptor = fd;
    fd = -1;
    return WEFT_OK;
}

/* Until no process trains into a run's folder, or for too long. */
static void wait_folder(const char *path) {
    double begun = weft_clock();
    char lines[WEFT_PATH_MAX];
    if (weft_path(lines, "%s/metrics.jsonl", path) != WEFT_OK) return;
    WEFT_AUTO_CLOSE int fd = open(lines, O_RDWR | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK &&
           weft_clock() - begun < orphan_seconds)
        weft_pause(weft_clock() - begun);
}

/* Sets aside the folders of runs that failed and cannot go on, as FOLDER.aside-1 and so on, so that these begin
 * anew: all of them where --restart is "failed", else the one by that name ("2-lr0.001-seed1"). */
static weft_status restart(const supervisor *v) {
    const char *which = v->options->restart;
    bool all = strcmp(which, "failed") == 0, found = false;
    for (int i = 0; i < v->jobs.n; i++) {
        const weft_record_run *job = &v->jobs.list[i];
        const char *slash = strrchr(job->folder, '/');
        bool named =
            strcmp(slash ? slash + 1 : job->folder, which) == 0 || strcmp(job->folder, which) == 0;
        if (named && job->status != WEFT_RUN_FAILED)
            return WEFT_BAD_INPUT(
                "--restart %s: this run did not fail; only one that did is started anew", which);
        if (job->status != WEFT_RUN_FAILED || (!all && !named)) continue;
        found = true;
        char aside[WEFT_PATH_MAX];
        weft_kind kind;
        WEFT_PATH(path, "%s/%s", v->options->out, job->folder);
        WEFT_TRY(weft_path_kind(path, &kind));
        if (kind != WEFT_KIND_NOTHING) {
            for (int k = 1; kind != WEFT_KIND_NOTHING && k < ASIDE_MOST; k++) {
                WEFT_TRY(weft_path(aside, "%s.aside-%d", path, k));
                WEFT_TRY(weft_path_kind(aside, &kind));
            }
            if (rename(path, aside) != 0)
                return weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno));
            weft_log(WEFT_LOG_INFO, "%s is set aside as %s, and the run begins anew", path, aside);
            char detail[WEFT_PATH_MAX + 32];
            snprintf(detail, sizeof detail, "begins anew; set aside as %s", aside);
            WEFT_TRY(weft_record_event(v->database, job->run, -1, "stopped", detail));
        }
    }
    if (found || all) return WEFT_OK;
    return WEFT_BAD_INPUT("--restart %s: the study has no such run; 'weft runs %s' lists them",
                          which, v->options->out);
}

/* Whether a run's weights stay once it is done (STUDY_WEIGHTS). Those of a variant that repeats another, and of
 * that other, stay in any case: their bits are compared. */
static bool weights_stay(const weft_study *s, const weft_record_run *job) {
    bool compared = s->variants.list[job->variant].repeats >= 0;
    for (int i = 0; i < s->variants.n; i++)
        compared = compared || s->variants.list[i].repeats == job->variant;
    if (s->base.study_weights == WEFT_STUDY_WEIGHTS_ALL || compared) return true;
    return s->base.study_weights == WEFT_STUDY_WEIGHTS_FIRST && job->seed == weft_study_seed(s, 0);
}

/* Removes the checkpoints of a run that is done. What is not weft's stays. */
static weft_status remove_weights(const char *folder) {
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

static bool is_chosen(const supervisor *v, int variant) {
    return !v->options->variants || v->options->variants[variant];
}

static int64_t checkpoint_bytes(const supervisor *v, int variant) {
    const weft_account *a = &v->study->built[variant].account;
    return weft_bounded_sum(a->weights_bytes, a->optimizer_bytes);
}

static weft_status check_room(const supervisor *v, int64_t need, int runs) {
    struct statvfs is;
    if (statvfs(v->options->out, &is) != 0) return WEFT_OK;
    int64_t room = (int64_t)is.f_bavail * (int64_t)is.f_frsize;
    if (room >= need) return WEFT_OK;
    return weft_fail(WEFT_EIO,
                     "%s: no room: the checkpoints of %d runs take about %.1f GB, and %.1f GB are "
                     "free; make room, or take an --out on another disk",
                     v->options->out, runs, (double)need / 1e9, (double)room / 1e9);
}

/* Opens or makes the database; a study that is there already must be this one. */
static weft_status open_record(supervisor *v) {
    const weft_study_options *o = v->options;
    bool fresh;
    WEFT_PATH(path, "%s/runs.db", o->out);
    WEFT_TRY(weft_database_open(path, WEFT_DATABASE_MAKE, &v->database, &fresh));
    if (!fresh) return weft_record_match(v->database, v->study);
    /* Each run leaves at least a checkpoint, or as STUDY_WEIGHTS has it. */
    int runs = 0;
    int64_t need = 0;
    for (int i = 0; i < v->study->variants.n; i++) {
        if (*v->study->built[i].error || !is_chosen(v, i)) continue;
        bool all = weights_stay(v->study, &(weft_record_run){.variant = i, .seed = -1});
        int kept = all ? weft_study_variant_runs(v->study, i) : 1;
        need = weft_bounded_sum(need, weft_bounded_product(kept, checkpoint_bytes(v, i)));
        runs += kept;
    }
    WEFT_TRY(check_room(v, need, runs));
    if (v->study->base.study_equal == WEFT_EQUAL_TIME) {
        int share = o->threads / o->jobs;
        WEFT_TRY(weft_measure_variants(v->study, o->out, share > 0 ? share : 1));
        WEFT_TRY(weft_equal_time(v->study));
    }
    return weft_record_create(v->database, v->study, o->threads, o->device);
}

/* Seed by seed, so that a study which is cut off has whole comparisons; then by rate and variant. */
static int compare_jobs(const void *a, const void *b) {
    const weft_record_run *x = *(weft_record_run *const *)a, *y = *(weft_record_run *const *)b;
    if (x->seed != y->seed) return x->seed < y->seed ? -1 : 1;
    int order = weft_order(x->rate, y->rate);
    return order ? order : (x->run > y->run) - (x->run < y->run);
}

static weft_status line_up(supervisor *v) {
    weft_record_runs_free(&v->jobs);
    free(weft_steal(&v->order));
    free(weft_steal(&v->slots));
    v->n_order = v->next = 0;
    v->result->runs = 0;
    v->iters_done = 0;
    WEFT_TRY(weft_record_read_runs(v->database, v->study, &v->jobs));
    if (v->options->restart && !v->restarted) WEFT_TRY(restart(v));
    v->restarted = true;
    WEFT_ROOM_AT(v->order, v->jobs.n + 1, "study: no memory for its runs");
    WEFT_ROOM_AT(v->slots, v->options->jobs, "study: no memory for its runs");
    for (int i = 0; i < v->jobs.n; i++) {
        weft_record_run *job = &v->jobs.list[i];
        if (!is_chosen(v, job->variant)) continue;
        v->result->runs++;
        if (weft_run_ended(job))
            v->iters_done += v->study->built[job->variant].iters;
        else if (!*v->study->built[job->variant].error)
            v->order[v->n_order++] = job;
    }
    qsort(v->order, (size_t)v->n_order, sizeof(weft_record_run *), compare_jobs);
    return WEFT_OK;
}

/* Runs are written below the study's folder, wherever that is, and not through a link inside it. */
static weft_status refuse_link(const char *path) {
    weft_kind kind;
    WEFT_TRY(weft_path_kind(path, &kind));
    if (kind == WEFT_KIND_NOTHING || kind == WEFT_KIND_FOLDER) return WEFT_OK;
    return WEFT_BAD_INPUT("%s: is %s, and a study writes into folders of its own; move it away",
                          path, weft_kind_name(kind));
}

/* "variant 2, lr 0.001, seed 3" */
static void describe_job(const supervisor *v, const weft_record_run *job, char *text, size_t room) {
    char rate[32];
    weft_number_format(job->rate, rate, sizeof rate);
    snprintf(text, room, "variant %s, lr %s, seed %lld", v->study->variants.list[job->variant].name,
             rate, (long long)job->seed);
}

static weft_status end_well(supervisor *v, const slot *s, const weft_ending *ending) {
    char what[LINE_ROOM];
    weft_record_run *job = s->job;
    double score;
    WEFT_TRY(weft_collect_run(v->database, v->study, job, ending, &score));
    describe_job(v, job, what, sizeof what);
    job->status = ending->diverged ? WEFT_RUN_DIVERGED : WEFT_RUN_DONE;
    v->iters_done += v->study->built[job->variant].iters;
    if (!weights_stay(v->study, job) && remove_weights(s->folder) != WEFT_OK)
        weft_log(WEFT_LOG_WARN, "%s: its weights stay: %s", what, weft_error_message());
    if (ending->diverged)
        weft_log(WEFT_LOG_WARN, "%s: diverged: %s", what, ending->why);
    else
        weft_log(WEFT_LOG_INFO, "%s: %s %.4f in %.1f s", what,
                 weft_config_word(&v->study->base, WEFT_OPTION(study_score)), score,
                 ending->seconds);
    return WEFT_OK;
}

static weft_status end_badly(supervisor *v, const slot *s, const weft_process_end *end,
                             const char *given, double seconds) {
    char why[LINE_ROOM], line[LINE_ROOM], what[LINE_ROOM];
    const char *kind = end->signal ? "killed" : "failed";
    WEFT_PATH(log, "%s/log", s->folder);
    weft_process_last_line(log, s->folder, line, sizeof line);
    if (end->signal)
        snprintf(why, sizeof why, "killed by signal %d (%s); its log ends: %.700s", end->signal,
                 strsignal(end->signal), *line ? line : "(empty)");
    else
        snprintf(why, sizeof why, "%s", given ? given : *line ? line : "ended without a word");
    describe_job(v, s->job, what, sizeof what);
    weft_log(WEFT_LOG_ERROR, "%s: %s", what, why);
    s->job->status = WEFT_RUN_FAILED;
    return weft_record_failure(v->database, s->job, kind, why, seconds, end->memory);
}

/* "3 of 18 runs, loss 1.5775, variant 3, seed 1": what matters most comes first, since a narrow terminal
 * shows the beginning. */
static void show_progress(supervisor *v) {
    char note[NOTE_ROOM], what[LINE_ROOM] = "", loss_text[32] = "";
    int64_t done = v->iters_done;
    int ended = 0;
    for (int i = 0; i < v->options->jobs; i++) {
        slot *s = &v->slots[i];
        weft_loss_parts parts;
        if (!s->job) continue;
        weft_metrics_last(s->folder, &s->steps, &parts);
        done += s->steps;
        describe_job(v, s->job, what, sizeof what);
        *loss_text = '\0';
        if (isfinite(parts.loss)) snprintf(loss_text, sizeof loss_text, ", loss %.4f", parts.loss);
    }
    for (int i = 0; i < v->n_order; i++)
        ended += weft_run_ended(v->order[i]) || v->order[i]->status == WEFT_RUN_FAILED;
    snprintf(note, sizeof note, "%d of %d runs%s%s%.100s", ended + v->result->runs - v->n_order,
             v->result->runs, loss_text, *what ? ", " : "", what);
    weft_progress_update(v->progress, done, note);
}

static void hand_on(supervisor *v, int number) {
    for (int i = 0; i < v->options->jobs; i++)
        if (v->slots[i].job) kill(v->slots[i].pid, number);
    v->told = true;
}

static weft_status look_at_slots(supervisor *v, bool *moved) {
    weft_process_end end;
    for (int i = 0; i < v->options->jobs; i++) {
        slot *s = &v->slots[i];
        if (!s->job || !weft_process_ended(s->pid, false, &end)) continue;
        *moved = true;
        /* What became of a run whose process ended. */
        char why[LINE_ROOM], failure[LINE_ROOM];
        double seconds = weft_clock() - s->begun;
        weft_status status = WEFT_OK;
        WEFT_PATH(path, "%s/result.json", s->folder);
        WEFT_AUTO_DECREF json_t *result = weft_json_file(path, RESULT_MOST);
        const char *word = weft_json_text_of(result, "end");
        snprintf(why, sizeof why, "%s", weft_json_text_of(result, "why"));
        weft_ending ending = {.folder = s->folder,
                              .result = result,
                              .diverged = strcmp(word, "diverged") == 0,
                              .why = why,
                              .seconds = seconds,
                              .memory = end.memory};
        if (strcmp(word, "done") == 0 || ending.diverged) {
            status = end_well(v, s, &ending);
            if (status == WEFT_EINPUT) { /* what it left cannot be read: the run's fault */
                snprintf(failure, sizeof failure, "%s", weft_error_message());
                status = end_badly(v, s, &end, failure, seconds);
            }
        } else if (strcmp(word, "stopped") == 0 || (v->told && end.status > WEFT_STOP_EXIT)) {
            s->job->status = WEFT_RUN_WAITING;
            status = weft_record_stop(v->database, s->job, seconds);
        } else {
            status = end_badly(v, s, &end, NULL, seconds);
        }
        s->job = NULL;
        v->active--;
        WEFT_TRY(status);
    }
    return WEFT_OK;
}

static weft_status run_jobs(supervisor *v) {
    double since = weft_clock();
    while (v->next < v->n_order || v->active > 0) {
        int asked = weft_stop_asked();
        bool moved = false;
        bool over = v->options->seconds > 0 && weft_clock() - v->begun > v->options->seconds;
        if ((asked || over) && !v->told) {
            hand_on(v, asked ? asked : SIGTERM);
            v->result->late |= over;
            weft_log(WEFT_LOG_INFO, "stopping: the runs finish their training step and save");
        }
        for (int i = 0; i < v->options->jobs && v->next < v->n_order && !v->told; i++) {
            slot *s = &v->slots[i];
            if (s->job) continue;
            weft_record_run *job = v->order[v->next];
            WEFT_TRY(check_room(v, checkpoint_bytes(v, job->variant), 1));
            const weft_study_options *o = v->options;
            weft_launch_options launch = {.threads =
                                              o->threads / o->jobs > 0 ? o->threads / o->jobs : 1,
                                          .peak_flops = o->peak_flops,
                                          .save_last = true,
                                          .from = v->study->base.study_from,
                                          .gpu = o->gpus ? o->gpus[i] : NULL};
            weft_config c;
            WEFT_TRY(weft_path(s->folder, "%s/%s", o->out, job->folder));
            WEFT_PATH(runs, "%s/runs", o->out);
            WEFT_TRY(refuse_link(runs));
            WEFT_TRY(refuse_link(s->folder));
            if (job->begun) wait_folder(s->folder);
            weft_study_run_config(v->study, job->variant, job->rate, job->seed, &c);
            WEFT_TRY(weft_record_start(v->database, job));
            job->status = WEFT_RUN_RUNNING;
            job->begun = true;
            WEFT_TRY(weft_launch(&c, s->folder, &launch, &s->pid));
            s->job = job;
            s->begun = weft_clock();
            s->steps = 0;
            v->active++;
            v->next++;
        }
        if (v->active == 0) return WEFT_OK;
        WEFT_TRY(look_at_slots(v, &moved));
        show_progress(v);
        if (moved)
            since = weft_clock();
        else
            weft_pause(weft_clock() - since);
    }
    return WEFT_OK;
}

/* Runs that choose a learning rate make others, so it goes on until there are no new ones. */
static weft_status supervise(supervisor *v) {
    int added;
    WEFT_TRY(weft_record_choose(v->database, v->study, &added));
    do {
        /* What is in the database and not done yet. */
        WEFT_TRY(line_up(v));
        if (v->options->begins && !v->announced) v->options->begins(v->study);
        v->announced = true;
        int64_t iters = v->iters_done;
        for (int i = 0; i < v->n_order; i++)
            iters += v->study->built[v->order[i]->variant].iters;
        v->progress = weft_progress_begin(&(weft_progress_options){
            .label = "study", .unit = "iterations", .total = iters, .done = v->iters_done});
        weft_status status = run_jobs(v);
        if (status != WEFT_OK && v->active > 0) {
            /* After an error: the runs save and leave; what they came to is found at the next start. */
            weft_process_end end;
            hand_on(v, SIGTERM);
            for (int i = 0; i < v->options->jobs; i++)
                if (v->slots[i].job) weft_process_ended(v->slots[i].pid, true, &end);
        }
        bool whole = status == WEFT_OK && !v->told && !v->result->late && v->n_order > 0;
        weft_progress_end(v->progress, whole);
        WEFT_TRY(status);
        if (v->told) return WEFT_OK;
        WEFT_TRY(weft_record_choose(v->database, v->study, &added));
    } while (added > 0 && !v->result->late);
    if (added > 0) WEFT_TRY(line_up(v)); /* they wait, and are counted */
    return weft_repeats_check(v->database, v->study, v->options->out, &v->result->repeats);
}

/* One line on what is missing: how many, and the first reason of a run and of a variant. */
static void say_why(const supervisor *v, const weft_record_run *failed, FILE *out) {
    const weft_study_result *r = v->result;
    int left = r->failed + r->waiting, rateless = -1, wrong = 0;
    const weft_variant *variants = v->study->variants.list;
    /* A chosen variant that has no run because the variant whose rate it takes over has chosen none yet. */
    for (int i = 0; rateless < 0 && i < v->study->variants.n; i++) {
        int runs = 0;
        for (int k = 0; k < v->jobs.n; k++)
            runs += v->jobs.list[k].variant == i;
        if (is_chosen(v, i) && v->study->rate_as[i] >= 0 && !*v->study->built[i].error && !runs)
            rateless = i;
    }
    if (left > 0)
        fprintf(out, "%d of %d runs %s not done", left, r->runs, left == 1 ? "is" : "are");
    if (failed) fprintf(out, " (see %.200s/log)", failed->folder);
    if (r->errors) {
        while (!is_chosen(v, wrong) || !*v->study->built[wrong].error)
            wrong++;
        fprintf(out, "%svariant '%s' cannot be built: %s", left > 0 ? "; " : "",
                variants[wrong].name, v->study->built[wrong].error);
    }
    if (rateless >= 0)
        fprintf(out, "%svariant '%s' waits for the learning rate of '%s'",
                left > 0 || r->errors ? "; " : "", variants[rateless].name,
                variants[v->study->rate_as[rateless]].name);
    if (left > 0 && r->signal) fputs("; stopped by a signal", out);
    if (left > 0 && r->late) fputs("; time is up", out);
    if (left > 0) fputs("; repeat the command to continue", out);
    if (r->failed > 0)
        fputs("; with --restart failed, runs that cannot go on begin anew, their folders set aside",
              out);
}

static void sum_up(supervisor *v) {
    weft_study_result *r = v->result;
    const weft_record_run *failed = NULL;
    for (int i = 0; i < v->jobs.n; i++) {
        const weft_record_run *job = &v->jobs.list[i];
        if (!is_chosen(v, job->variant)) continue;
        r->done += job->status == WEFT_RUN_DONE;
        r->diverged += job->status == WEFT_RUN_DIVERGED;
        r->failed += job->status == WEFT_RUN_FAILED;
        r->waiting += job->status == WEFT_RUN_WAITING || job->status == WEFT_RUN_RUNNING;
        if (!failed && job->status == WEFT_RUN_FAILED) failed = job;
    }
    for (int i = 0; i < v->study->variants.n; i++)
        r->errors += is_chosen(v, i) && *v->study->built[i].error;
    r->signal = weft_stop_asked();
    WEFT_AUTO_FREE char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    if (out) say_why(v, failed, out);
    if (out && fclose(out) == 0) snprintf(r->why, sizeof r->why, "%s", text);
}

weft_status weft_study_run(weft_study *s, const weft_study_options *options,
                           weft_study_result *out) {
    supervisor v = {.study = s, .options = options, .result = out, .begun = weft_clock()};
    int hold = -1;
    *out = (weft_study_result){0};
    weft_status status = weft_database_place(options->out);
    if (status == WEFT_OK) status = weft_folder_make(options->out);
    if (status == WEFT_OK) status = hold_folder(options->out, &hold);
    if (status == WEFT_OK) status = open_record(&v);
    if (status == WEFT_OK) status = supervise(&v);
    if (status == WEFT_OK) sum_up(&v);
    weft_database_close(v.database);
    weft_record_runs_free(&v.jobs);
    WEFT_FREE(v.order, v.slots);
    if (hold >= 0) close(hold);
    return status;
}
