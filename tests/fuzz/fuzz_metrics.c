/* A run's metrics.jsonl as --resume and `weft watch` find it: the step and the interval that the
 * checkpoint tells, eight bytes each, then the file. */
#include "base/folders.h"
#include "fuzz/fuzz.h"
#include "record/record.h"
#include "record/watched.h"
#include "train/metrics.h"

#include <stdio.h>
#include <unistd.h>

static void check_lines(const char *path, int64_t step, int64_t every, weft_lines *out) {
    FILE *file = fopen(path, "r");
    FUZZ_PROMISE(file != NULL, "the file that was written is there");
    FUZZ_PROMISE(weft_lines_read(file, path, step, every, out) == WEFT_OK,
                 "a file of lines can be read, whatever is in them");
    fclose(file);
}

/* In looks of a few bytes, as in one. */
static int64_t watch_lines(int64_t size, int64_t each) {
    weft_watched_lines lines = {0};
    int folder;
    FUZZ_PROMISE(weft_below_root(fuzz_path("run"), &folder) == WEFT_OK, "the folder is there");
    weft_watched_lines_clear(&lines);
    do {
        int64_t before = lines.place.read, budget = each;
        weft_watched_lines_read(&lines, folder, size, 1, &budget);
        FUZZ_PROMISE(lines.place.read <= size, "no more is read than there is");
        FUZZ_PROMISE(!lines.more || lines.place.read > before, "every look comes further");
    } while (lines.more);
    close(folder);
    json_t *rows = weft_watched_lines_json(&lines, 0);
    int64_t n = lines.n_read[0] + lines.n_read[1];
    FUZZ_PROMISE(json_array_size(rows) <= 4096 && (n == 0) == (json_array_size(rows) == 0),
                 "some rows are told where there are any");
    json_decref(rows);
    weft_watched_lines_clear(&lines);
    return n;
}

bool fuzz_metrics(const uint8_t *data, size_t size) {
    fuzz_bytes in = {data, size};
    int64_t step = fuzz_number(&in), every = fuzz_number(&in), logged;
    weft_loss_parts parts;
    weft_metrics *m;
    weft_lines before, after;
    fuzz_new_folder("run");
    fuzz_file("run/metrics.jsonl", in.data, in.size);
    FUZZ_PROMISE(watch_lines((int64_t)in.size, 1) == watch_lines((int64_t)in.size, 1 << 20),
                 "a file read piece by piece has the same lines");
    const char *path = fuzz_path("run/metrics.jsonl");
    weft_metrics_last(fuzz_path("run"), &logged, &parts);
    weft_collect_rate(fuzz_path("run"));
    check_lines(path, step, every, &before);
    FUZZ_PROMISE(before.last <= (step > 0 ? step : 0), "no line of a later step stays");
    FUZZ_PROMISE(!before.gaps || before.gap_to / every > (before.gap_from - 1) / every,
                 "a line was due in a gap");
    if (weft_metrics_hold(fuzz_path("run"), &m) != WEFT_OK) return false;
    /* The folder is one of a run that goes on: starting leaves what is good. */
    if (weft_metrics_start(m, step, every) == WEFT_OK) {
        weft_metrics_close(m);
        path = fuzz_path("run/metrics.jsonl");
        check_lines(path, step, every, &after);
        FUZZ_PROMISE(after.bad == 0, "a file that was repaired has no damaged line");
        FUZZ_PROMISE(after.last == before.last, "the last good line stays");
        return true;
    }
    weft_metrics_close(m);
    return false;
}
