/* Lines are appended whole and flushed, so a kill leaves at most one torn line at the end, and are synced
 * before each checkpoint, so that none is missing of the steps which that one has done. */
#include "train/metrics.h"

#include "base/json.h"
#include "base/log.h"

#include <errno.h>
#include <math.h>
#include <sys/file.h>
#include <time.h>

enum { SCALARS = 16, NAMES_MOST = 1000, TAIL = 4096 };

weft_status weft_lines_open(const char *path, FILE **out) {
    int fd;
    WEFT_TRY(weft_file_open_own(path, &fd));
    *out = fdopen(fd, "r+");
    if (*out) return WEFT_OK;
    weft_status status = weft_path_failed(path);
    close(fd);
    return status;
}

/* A step between two lines that should have had one. */
static void look_for_gap(weft_lines *l, int64_t next, int64_t every) {
    if (every > 0 && (next - 1) / every > l->last / every && l->gaps++ == 0) {
        l->gap_from = l->last + 1;
        l->gap_to = next - 1;
    }
}

static void note_bad(weft_lines *l, int64_t number) {
    if (l->bad++) return;
    l->bad_line = number;
    l->bad_after = l->last;
}

/* Takes one line; whether it stays. `later` is the first line of a step that is yet to be done: the
 * end of what stays, or, if a line that stays follows, damaged. */
static bool take_line(weft_lines *l, int64_t number, int64_t is, int64_t step, int64_t every,
                      int64_t *later) {
    if (is <= l->last) {
        note_bad(l, number);
        return false;
    }
    if (is > step) {
        if (!*later) *later = number;
        return false;
    }
    if (*later) note_bad(l, *later);
    *later = 0;
    look_for_gap(l, is, every);
    l->last = is;
    return true;
}

/* All lines; those that stay are put into `copy`, where there is one. */
static weft_status walk(FILE *file, const char *path, int64_t step, int64_t every, weft_lines *l,
                        weft_new_file *copy) {
    WEFT_AUTO_FREE char *line = NULL;
    size_t room = 0;
    ssize_t n;
    int64_t later = 0, number = 1;
    bool whole = true;
    rewind(file);
    for (; (n = getline(&line, &room, file)) > 0 && line[n - 1] == '\n'; number++) {
        WEFT_AUTO_DECREF json_t *row =
            weft_json_read(line, (size_t)n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
        int64_t is = (int64_t)json_integer_value(json_object_get(row, "step")); /* 0: damaged */
        bool stays = take_line(l, number, is, step, every, &later);
        whole = whole && stays;
        if (whole) l->bytes += n;
        if (stays && copy) weft_new_file_put(copy, line, n);
    }
    return ferror(file) ? weft_path_failed(path) : WEFT_OK;
}

weft_status weft_lines_read(FILE *file, const char *path, int64_t step, int64_t every,
                            weft_lines *out) {
    *out = (weft_lines){0};
    WEFT_TRY(walk(file, path, step, every, out, NULL));
    if (step < INT64_MAX) look_for_gap(out, step + 1, every);
    return WEFT_OK;
}

/* Another name for what is at `path`: .damaged, .damaged-2 and so on. */
static weft_status name_damaged(const char *path) {
    char aside[WEFT_PATH_MAX];
    for (int i = 1; i < NAMES_MOST; i++) {
        WEFT_TRY(i == 1 ? weft_path(aside, "%s.damaged", path)
                        : weft_path(aside, "%s.damaged-%d", path, i));
        if (link(path, aside) == 0) return WEFT_OK;
        if (errno == EEXIST) continue;
        break;
    }
    return weft_fail(WEFT_EIO, "%s: cannot be set aside: %s", aside, strerror(errno));
}

/* Puts a file with the good lines up to `step` in the place of the damaged one, which gets another name;
 * *file is closed and opened anew, with its lock. */
static weft_status repair(FILE **file, const char *path, int64_t step) {
    weft_lines lines = {0};
    weft_new_file copy;
    WEFT_AUTO_FCLOSE FILE *fresh = NULL;
    WEFT_TRY(weft_new_file_begin(&copy, path));
    weft_status status = walk(*file, path, step, 0, &lines, &copy);
    if (status == WEFT_OK) status = name_damaged(path);
    WEFT_TRY(weft_new_file_end(&copy, status));
    WEFT_TRY(weft_lines_open(path, &fresh));
    if (flock(fileno(fresh), LOCK_EX | LOCK_NB) != 0) return weft_path_failed(path);
    fclose(*file);
    *file = weft_steal(&fresh);
    return WEFT_OK;
}

weft_status weft_lines_start(FILE **file, const char *path, int64_t step, int64_t every) {
    weft_lines l;
    WEFT_TRY(weft_lines_read(*file, path, step, every, &l));
    if (l.bad)
        weft_log(WEFT_LOG_WARN,
                 "%s: %lld lines are damaged, the first is line %lld, after step %lld; the file is "
                 "kept as %s.damaged, and its good lines stay",
                 path, (long long)l.bad, (long long)l.bad_line, (long long)l.bad_after, path);
    if (l.gaps)
        weft_log(WEFT_LOG_WARN, "%s: there is no line of steps %lld to %lld%s", path,
                 (long long)l.gap_from, (long long)l.gap_to,
                 l.gaps > 1 ? ", nor of others later" : "");
    if (l.bad)
        WEFT_TRY(repair(file, path, step));
    else if (ftruncate(fileno(*file), (off_t)l.bytes) != 0)
        return weft_path_failed(path);
    return fseek(*file, 0, SEEK_END) == 0 ? WEFT_OK : weft_path_failed(path);
}

weft_status weft_lines_add(FILE *file, const char *path, json_t *row) {
    WEFT_AUTO_FREE char *text = weft_json_line(row);
    if (!text) return weft_fail(WEFT_ENOMEM, "%s: no memory for a line", path);
    size_t n = strlen(text);
    text[n] = '\n'; /* in the end's place: a line is written at once */
    bool ok = fwrite(text, 1, n + 1, file) == n + 1 && fflush(file) == 0;
    return ok ? WEFT_OK : weft_path_failed(path);
}

struct weft_metrics {
    FILE *file;
    weft_events events;
    char run[WEFT_PATH_MAX], path[WEFT_PATH_MAX];
};

weft_status weft_metrics_hold(const char *run, weft_metrics **out) {
    *out = NULL;
    WEFT_NEW(weft_metrics, m, weft_metrics_close, "metrics: no memory");
    WEFT_TRY(weft_path(m->run, "%s", run));
    WEFT_TRY(weft_path(m->path, "%s/metrics.jsonl", run));
    WEFT_TRY(weft_lines_open(m->path, &m->file));
    struct stat is; /* one without a name is another's, who withdraws it */
    if ((flock(fileno(m->file), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) ||
        (fstat(fileno(m->file), &is) == 0 && is.st_nlink == 0))
        return WEFT_BAD_INPUT("%s: another process trains into this folder", m->path);
    return weft_hand(&m, out);
}

void weft_metrics_withdraw(weft_metrics *m) {
    struct stat is;
    char config[WEFT_PATH_MAX];
    /* One that a run left before its first line is known as weft's by the file that would go. */
    if (weft_path(config, "%s/config", m->run) != WEFT_OK || lstat(config, &is) == 0) return;
    if (fstat(fileno(m->file), &is) == 0 && is.st_size == 0) unlink(m->path);
}

void weft_metrics_last(const char *run, int64_t *step, weft_loss_parts *out) {
    char path[WEFT_PATH_MAX], tail[TAIL];
    WEFT_AUTO_FCLOSE FILE *file = NULL;
    *step = 0;
    *out = (weft_loss_parts){NAN, NAN, NAN, NAN, NAN};
    if (weft_path(path, "%s/metrics.jsonl", run) != WEFT_OK) return;
    if (weft_file_open_stream(path, &file) != WEFT_OK) return;
    if (fseek(file, -TAIL, SEEK_END) != 0) rewind(file);
    size_t n = fread(tail, 1, TAIL, file);
    const char *end = memrchr(tail, '\n', n); /* behind it is half a line */
    if (!end) return;
    const char *before = memrchr(tail, '\n', (size_t)(end - tail));
    const char *from = before ? before + 1 : tail;
    WEFT_AUTO_DECREF json_t *line = weft_json_read(from, (size_t)(end - from), 0, NULL);
    *step = (int64_t)json_integer_value(json_object_get(line, "step"));
    *out = (weft_loss_parts){
        weft_json_number_of(line, "loss"), weft_json_number_of(line, "cross_entropy"),
        weft_json_number_of(line, "aux_z"), weft_json_number_of(line, "aux_contrastive"),
        weft_json_number_of(line, "logits_z")};
}

weft_status weft_metrics_start(weft_metrics *m, int64_t step, int64_t every) {
    WEFT_TRY(weft_lines_start(&m->file, m->path, step, every));
    return weft_events_open(m->run, step, &m->events);
}

weft_status weft_metrics_sync(weft_metrics *m) {
    FILE *files[] = {m->file, m->events.file};
    for (int i = 0; i < 2; i++)
        if (fflush(files[i]) != 0 || fsync(fileno(files[i])) != 0)
            return weft_path_failed(i ? m->events.path : m->path);
    return WEFT_OK;
}

void weft_metrics_close(weft_metrics *m) {
    if (!m) return;
    if (m->events.file) fclose(m->events.file);
    if (m->file) fclose(m->file);
    free(m);
}

static json_t *make_line(const weft_metrics_row *r) {
    const weft_step_events *e = &r->events;
    json_t *line = weft_json_make(
        "step:I loss:f cross_entropy:f aux_z:f aux_contrastive:f logits_z:f lr:f grad_norm:f "
        "tokens_per_s:f",
        r->step, r->parts.loss, r->parts.cross_entropy, r->parts.aux_z, r->parts.aux_contrastive,
        r->parts.logits_z, r->rate, e->norm, r->tokens_per_s);
    if (r->evaluated) weft_json_add(line, "val_loss:f", r->val_loss);
    if (r->evaluated && r->metric)
        json_object_set_new(line, r->metric, weft_json_number(r->metric_value));
    if (r->mfu > 0) weft_json_add(line, "mfu:f", r->mfu);
    weft_json_add(line, "clipped:b", e->clipped);
    if (e->warmup > 0 && e->warmup < 1) weft_json_add(line, "warmup_after_reset:f", e->warmup);
    if (e->spike) weft_json_add(line, "spike:b", true);
    if (e->reset) weft_json_add(line, "reset:b", true);
    if (e->sparsity > 0) weft_json_add(line, "sparsity:f", e->sparsity);
    if (e->pruned) weft_json_add(line, "pruned:b", true);
    if (e->cut) weft_json_add(line, "cut:I", e->cut);
    if (r->skipped) weft_json_add(line, "skipped:I", r->skipped);
    return line;
}

weft_status weft_metrics_add(weft_metrics *m, const weft_metrics_row *row) {
    WEFT_TRY(weft_lines_add(m->file, m->path, make_line(row)));
    char tag[64];
    snprintf(tag, sizeof tag, "validation/%s", row->metric ? row->metric : "");
    const weft_scalar all[] = {
        {"loss/train", row->parts.loss},
        {"loss/cross_entropy", row->parts.cross_entropy},
        {"loss/aux_z", row->parts.aux_z},
        {"loss/aux_contrastive", row->parts.aux_contrastive},
        {"loss/logits_z", row->parts.logits_z},
        {"optimizer/lr", row->events.rate > 0 ? row->events.rate : row->rate},
        {"optimizer/grad_norm", row->events.norm},
        {"optimizer/spikes", (double)row->events.spikes},
        {"optimizer/resets", (double)row->events.resets},
        {"optimizer/skipped", (double)row->skipped},
        {"optimizer/sparsity", row->events.sparsity > 0 ? row->events.sparsity : NAN},
        {"speed/tokens_per_s", row->tokens_per_s},
        {"speed/mfu", row->mfu},
        {"validation/loss", row->evaluated ? row->val_loss : NAN},
        {tag, row->evaluated && row->metric ? row->metric_value : NAN},
    };
    weft_scalar finite[SCALARS];
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (isfinite(all[i].value)) finite[n++] = all[i];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return weft_events_add(&m->events, row->step, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec,
                           finite, n);
}
