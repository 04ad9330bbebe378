/* Lines are appended whole and flushed, so a kill leaves at most one torn line at the end, which
 * the next run cuts off together with the lines of steps that it will do again. They are synced
 * before each checkpoint, so that none is missing of the steps which that one has done. */
#include "train/metrics.h"

#include "base/json.h"
#include "train/events.h"
#include "train/metrics_lines.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

enum { SCALARS = 16 };

struct weft_metrics {
    FILE *file;
    weft_events *events;
    char run[WEFT_PATH_MAX], path[WEFT_PATH_MAX];
};

static weft_status failed(const weft_metrics *m) {
    return weft_fail(WEFT_EIO, "%s: %s", m->path, strerror(errno));
}

static weft_status open_lines(weft_metrics *m) {
    int fd;
    WEFT_TRY(weft_file_open_own(m->path, &fd));
    m->file = fdopen(fd, "r+");
    if (!m->file) {
        weft_status status = failed(m);
        close(fd);
        return status;
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return weft_fail(WEFT_EINPUT, "%s: another process trains into this folder", m->path);
    return WEFT_OK;
}

weft_status weft_metrics_hold(const char *run, weft_metrics **out) {
    *out = NULL;
    weft_metrics *m = calloc(1, sizeof *m);
    if (!m) return weft_fail(WEFT_ENOMEM, "metrics: no memory");
    weft_status status = weft_path(m->run, "%s", run);
    if (status == WEFT_OK) status = weft_path(m->path, "%s/metrics.jsonl", run);
    if (status == WEFT_OK) status = open_lines(m);
    if (status != WEFT_OK) {
        weft_metrics_close(m);
        return status;
    }
    *out = m;
    return WEFT_OK;
}

weft_status weft_metrics_logged(weft_metrics *m, int64_t *step) {
    weft_lines lines;
    WEFT_TRY(weft_lines_read(m->file, m->path, INT64_MAX, 0, &lines));
    *step = lines.last;
    return WEFT_OK;
}

weft_status weft_metrics_start(weft_metrics *m, int64_t step, int64_t every) {
    weft_lines lines;
    WEFT_TRY(weft_lines_read(m->file, m->path, step, every, &lines));
    weft_lines_warn(&lines, m->path);
    if (lines.bad)
        WEFT_TRY(weft_lines_repair(&m->file, m->path, step));
    else if (ftruncate(fileno(m->file), (off_t)lines.bytes) != 0)
        return failed(m);
    if (fseek(m->file, 0, SEEK_END) != 0) return failed(m);
    return weft_events_open(m->run, step, &m->events);
}

weft_status weft_metrics_sync(weft_metrics *m) {
    if (fflush(m->file) != 0 || fsync(fileno(m->file)) != 0) return failed(m);
    return weft_events_sync(m->events);
}

void weft_metrics_close(weft_metrics *m) {
    if (!m) return;
    weft_events_close(m->events);
    if (m->file) fclose(m->file);
    free(m);
}

static json_t *make_line(const weft_metrics_row *r) {
    const weft_step_events *e = &r->events;
    json_t *line = json_pack(
        "{s:I, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "step", (json_int_t)r->step, "loss",
        weft_json_number(r->parts.loss), "cross_entropy", weft_json_number(r->parts.cross_entropy),
        "aux_z", weft_json_number(r->parts.aux_z), "aux_contrastive",
        weft_json_number(r->parts.aux_contrastive), "logits_z", weft_json_number(r->parts.logits_z),
        "lr", weft_json_number(r->rate), "grad_norm", weft_json_number(e->norm), "tokens_per_s",
        weft_json_number(r->tokens_per_s));
    if (!line) return NULL;
    if (r->evaluated) json_object_set_new(line, "val_loss", weft_json_number(r->val_loss));
    if (r->evaluated && r->metric)
        json_object_set_new(line, r->metric, weft_json_number(r->metric_value));
    if (r->mfu > 0) json_object_set_new(line, "mfu", weft_json_number(r->mfu));
    json_object_set_new(line, "clipped", json_boolean(e->clipped));
    if (e->warmup > 0 && e->warmup < 1)
        json_object_set_new(line, "warmup_after_reset", weft_json_number(e->warmup));
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
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    json_decref(line);
    if (!text) return weft_fail(WEFT_ENOMEM, "%s: no memory for a line", m->path);
    size_t n = strlen(text);
    text[n] = '\n'; /* in the end's place: a line is written at once */
    bool ok = fwrite(text, 1, n + 1, m->file) == n + 1 && fflush(m->file) == 0;
    free(text);
    return ok ? add_events(m, row) : failed(m);
}
