/* The weights are compared as files, not by their checksums: the claim is about bytes, and a file that
 * was changed after its run shows. */
#include "base/files.h"
#include "base/log.h"
#include "base/scope.h"
#include "record/record.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = 1 << 20, DETAIL_ROOM = 512 };

/* Whether two files are the same; *bytes of them, or what differs. */
static weft_status compare_files(const char *a, const char *b, int64_t *bytes, char *detail) {
    WEFT_AUTO_FREE unsigned char *block = malloc(2 * BLOCK);
    WEFT_AUTO_FCLOSE FILE *one = NULL, *two = NULL;
    if (!block) return weft_fail(WEFT_ENOMEM, "%s: no memory to read it", a);
    WEFT_TRY(weft_file_open_stream(a, &one));
    WEFT_TRY(weft_file_open_stream(b, &two));
    *bytes = 0;
    for (size_t n = 1; n > 0 && !*detail; *bytes += (int64_t)n) {
        n = fread(block, 1, BLOCK, one);
        size_t m = fread(block + BLOCK, 1, BLOCK, two), at = 0;
        if (ferror(one) || ferror(two))
            return weft_fail(WEFT_EIO, "%s: %s", ferror(one) ? a : b, strerror(errno));
        while (at < n && at < m && block[at] == block[BLOCK + at])
            at++;
        if (at < n || at < m)
            snprintf(detail, DETAIL_ROOM, "the weights differ from byte %lld on",
                     (long long)(*bytes + (int64_t)at));
    }
    return WEFT_OK;
}

static weft_status find_weights(const char *folder, const weft_record_run *job,
                                char path[WEFT_PATH_MAX], bool *there) {
    WEFT_TRY(weft_path(path, "%s/%s/last/model.safetensors", folder, job->folder));
    return weft_path_there(path, there);
}

static weft_status compare_weights(const char *folder, const weft_record_run *run,
                                   const weft_record_run *first, int64_t *bytes, char *detail) {
    char a[WEFT_PATH_MAX], b[WEFT_PATH_MAX];
    bool mine, other;
    *bytes = 0;
    WEFT_TRY(find_weights(folder, run, a, &mine));
    WEFT_TRY(find_weights(folder, first, b, &other));
    if (mine && other) return compare_files(a, b, bytes, detail);
    if (mine != other)
        snprintf(detail, DETAIL_ROOM, "%s has no weights", mine ? first->folder : run->folder);
    return WEFT_OK;
}

/* The first step at which the rows of two runs are not the same, time apart. */
static weft_status compare_metrics(weft_database *d, const weft_record_run *run,
                                   const weft_record_run *first, int64_t *rows, char *detail) {
    static const char columns[] = "step, loss, cross_entropy, aux_z, aux_contrastive, logits_z,"
                                  " val_loss, metric_value, lr, grad_norm";
    char sql[1024];
    int64_t others, step;
    snprintf(sql, sizeof sql,
             "SELECT min(step) FROM (SELECT * FROM (SELECT %s FROM metrics WHERE run = ?1 EXCEPT"
             " SELECT %s FROM metrics WHERE run = ?2) UNION ALL SELECT * FROM (SELECT %s FROM"
             " metrics WHERE run = ?2 EXCEPT SELECT %s FROM metrics WHERE run = ?1))",
             columns, columns, columns, columns);
    WEFT_TRY(weft_database_number(d, 0, rows, "SELECT count(*) FROM metrics WHERE run = ?", "i",
                                  run->run));
    WEFT_TRY(weft_database_number(d, 0, &others, "SELECT count(*) FROM metrics WHERE run = ?", "i",
                                  first->run));
    WEFT_TRY(weft_database_number(d, -1, &step, sql, "ii", run->run, first->run));
    if (step < 0 && others == *rows) return WEFT_OK;
    size_t at = strlen(detail);
    snprintf(detail + at, DETAIL_ROOM - at, "%sthe metrics differ from step %lld on",
             at ? "; " : "", (long long)step);
    return WEFT_OK;
}

static weft_status check_all(weft_database *d, const weft_study *s, const weft_record_runs *jobs,
                             const char *folder, weft_repeats *out) {
    WEFT_TRY(weft_database_script(d, "DELETE FROM events WHERE kind IN ('equal', 'unequal')"));
    for (int i = 0; i < jobs->n; i++) {
        const weft_record_run *run = &jobs->list[i];
        int repeated = s->variants.list[run->variant].repeats;
        for (int k = 0; repeated >= 0 && k < jobs->n; k++) {
            const weft_record_run *first = &jobs->list[k];
            char detail[DETAIL_ROOM] = "";
            int64_t bytes, rows;
            if (first->variant != repeated || first->rate != run->rate ||
                first->seed != run->seed || !weft_run_ended(run) || !weft_run_ended(first))
                continue;
            if (run->status != first->status)
                snprintf(detail, sizeof detail, "%s is %s", first->folder,
                         weft_run_status_name(first->status));
            WEFT_TRY(compare_weights(folder, run, first, &bytes, detail));
            WEFT_TRY(compare_metrics(d, run, first, &rows, detail));
            bool equal = !*detail;
            out->equal += equal;
            out->unequal += !equal;
            if (equal)
                snprintf(detail, sizeof detail,
                         "%lld bytes of weights and %lld rows of metrics are %s's",
                         (long long)bytes, (long long)rows, first->folder);
            else
                weft_log(WEFT_LOG_WARN, "%s does not repeat %s: %s", run->folder, first->folder,
                         detail);
            WEFT_TRY(weft_record_event(d, run->run, -1, equal ? "equal" : "unequal", detail));
        }
    }
    return WEFT_OK;
}

weft_status weft_repeats_check(weft_database *d, const weft_study *s, const char *folder,
                               weft_repeats *out) {
    WEFT_AUTO(weft_record_runs_free) weft_record_runs jobs = {0};
    *out = (weft_repeats){0};
    WEFT_TRY(weft_record_read_runs(d, s, &jobs));
    WEFT_TRY(weft_database_begin(d));
    return weft_database_finish(d, check_all(d, s, &jobs, folder, out));
}
