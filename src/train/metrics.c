/* Lines are appended whole and flushed, so a kill leaves at most one torn line at the end, which
 * the next run cuts off together with the lines of steps that it will do again. */
#include "train/metrics.h"

#include "train/events.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH_ROOM = 4096, SCALARS = 16 };

struct weft_metrics {
    FILE *file;
    weft_events *events;
    char path[PATH_ROOM];
};

static weft_status failed(const weft_metrics *m) {
    return weft_fail(WEFT_EIO, "%s: %s", m->path, strerror(errno));
}

static int64_t step_of_line(const char *line, size_t length) {
    json_t *row = json_loadb(line, length, 0, NULL);
    json_t *step = json_object_get(row, "step");
    int64_t value = json_is_integer(step) ? (int64_t)json_integer_value(step) : INT64_MAX;
    json_decref(row);
    return value;
}

/* Where the lines of the first `step` steps end. */
static long kept_bytes(FILE *file, int64_t step) {
    char *line = NULL;
    size_t room = 0;
    long kept = 0;
    ssize_t n;
    rewind(file);
    while (step > 0 && (n = getline(&line, &room, file)) > 0 && line[n - 1] == '\n' &&
           step_of_line(line, (size_t)n) <= step)
        kept += (long)n;
    free(line);
    return kept;
}

static weft_status open_lines(weft_metrics *m, int64_t step) {
    int fd = open(m->path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    m->file = fd < 0 ? NULL : fdopen(fd, "r+");
    if (!m->file) {
        weft_status status = failed(m);
        if (fd >= 0) close(fd);
        return status;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return weft_fail(WEFT_EINPUT, "%s: another process trains into this folder", m->path);
    long kept = kept_bytes(m->file, step);
    if (ftruncate(fd, kept) != 0 || fseek(m->file, kept, SEEK_SET) != 0) return failed(m);
    return WEFT_OK;
}

weft_status weft_metrics_open(const char *run, int64_t step, weft_metrics **out) {
    *out = NULL;
    weft_metrics *m = calloc(1, sizeof *m);
    if (!m) return weft_fail(WEFT_ENOMEM, "metrics: no memory");
    weft_status status = WEFT_OK;
    if (snprintf(m->path, PATH_ROOM, "%s/metrics.jsonl", run) >= PATH_ROOM)
        status = weft_fail(WEFT_EINPUT, "%.200s...: the path is too long", run);
    if (status == WEFT_OK) status = open_lines(m, step);
    if (status == WEFT_OK) status = weft_events_open(run, step, &m->events);
    if (status != WEFT_OK) {
        weft_metrics_close(m);
        return status;
    }
    *out = m;
    return WEFT_OK;
}

void weft_metrics_close(weft_metrics *m) {
    if (!m) return;
    weft_events_close(m->events);
    if (m->file) fclose(m->file);
    free(m);
}

static json_t *number(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *make_line(const weft_metrics_row *r) {
    const weft_step_events *e = &r->events;
    json_t *line = json_pack("{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "step",
                             (json_int_t)r->step, "loss", number(r->parts.loss), "cross_entropy",
                             number(r->parts.cross_entropy), "aux_z", number(r->parts.aux_z),
                             "aux_contrastive", number(r->parts.aux_contrastive), "logits_z",
                             number(r->parts.logits_z), "lr", number(r->rate), "grad_norm",
                             number(e->norm), "tokens_per_s", number(r->tokens_per_s));
    if (!line) return NULL;
    if (r->evaluated) json_object_set_new(line, "val_loss", number(r->val_loss));
    if (r->evaluated && r->metric) json_object_set_new(line, r->metric, number(r->metric_value));
    if (r->mfu > 0) json_object_set_new(line, "mfu", number(r->mfu));
    json_object_set_new(line, "clipped", json_boolean(e->clipped));
    if (e->warmup > 0 && e->warmup < 1)
        json_object_set_new(line, "warmup_after_reset", number(e->warmup));
    if (e->spike) json_object_set_new(line, "spike", json_true());
    if (e->reset) json_object_set_new(line, "reset", json_true());
    if (e->cut) json_object_set_new(line, "cut", json_integer(e->cut));
    if (r->skipped) json_object_set_new(line, "skipped", json_integer(r->skipped));
    return line;
}

static weft_status add_events(weft_metrics *m, const weft_metrics_row *r) {
    char tag[64];
    snprintf(tag, sizeof tag, "validation/%s", r->metric ? r->metric : "");
    const weft_scalar all[] = {
        {"loss/train", r->parts.loss},
        {"loss/cross_entropy", r->parts.cross_entropy},
        {"loss/aux_z", r->parts.aux_z},
        {"loss/aux_contrastive", r->parts.aux_contrastive},
        {"loss/logits_z", r->parts.logits_z},
        {"optimizer/lr", r->events.rate > 0 ? r->events.rate : r->rate},
        {"optimizer/grad_norm", r->events.norm},
        {"optimizer/spikes", (double)r->events.spikes},
        {"optimizer/resets", (double)r->events.resets},
        {"optimizer/skipped", (double)r->skipped},
        {"speed/tokens_per_s", r->tokens_per_s},
        {"speed/mfu", r->mfu},
        {"validation/loss", r->evaluated ? r->val_loss : NAN},
        {tag, r->evaluated && r->metric ? r->metric_value : NAN},
    };
    weft_scalar finite[SCALARS];
    int n = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        if (isfinite(all[i].value)) finite[n++] = all[i];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return weft_events_add(m->events, r->step, (double)now.tv_sec + 1e-9 * (double)now.tv_nsec,
                           finite, n);
}

weft_status weft_metrics_add(weft_metrics *m, const weft_metrics_row *row) {
    json_t *line = make_line(row);
    if (!line) return weft_fail(WEFT_ENOMEM, "%s: no memory for a line", m->path);
    bool ok = json_dumpf(line, m->file, JSON_COMPACT) == 0 && fputc('\n', m->file) != EOF &&
              fflush(m->file) == 0;
    json_decref(line);
    return ok ? add_events(m, row) : failed(m);
}
