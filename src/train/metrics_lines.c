/* Lines of metrics. */
#include "train/metrics_lines.h"

#include "base/json.h"
#include "base/log.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { NAMES_MOST = 1000 };

/* -1: the line is damaged. */
static int64_t step_of_line(const char *line, size_t length) {
    json_t *row = weft_json_read(line, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    json_t *step = json_object_get(row, "step");
    int64_t value = json_is_integer(step) ? (int64_t)json_integer_value(step) : -1;
    json_decref(row);
    return value > 0 ? value : -1;
}

static void note_gap(weft_lines *l, int64_t from, int64_t to) {
    if (l->gaps++) return;
    l->gap_from = from;
    l->gap_to = to;
}

/* A step between two lines that should have had one. */
static void look_for_gap(weft_lines *l, int64_t next, int64_t every) {
    if (every > 0 && (next - 1) / every > l->last / every) note_gap(l, l->last + 1, next - 1);
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
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    int64_t later = 0, number = 1;
    bool whole = true;
    rewind(file);
    for (; (n = getline(&line, &room, file)) > 0 && line[n - 1] == '\n'; number++) {
        bool stays = take_line(l, number, step_of_line(line, (size_t)n), step, every, &later);
        whole = whole && stays;
        if (whole) l->bytes += n;
        if (stays && copy) weft_new_file_put(copy, line, n);
    }
    free(line);
    return ferror(file) ? weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno)) : WEFT_OK;
}

weft_status weft_lines_read(FILE *file, const char *path, int64_t step, int64_t every,
                            weft_lines *out) {
    *out = (weft_lines){0};
    WEFT_TRY(walk(file, path, step, every, out, NULL));
    if (step < INT64_MAX) look_for_gap(out, step + 1, every);
    return WEFT_OK;
}

void weft_lines_warn(const weft_lines *l, const char *path) {
    if (l->bad)
        weft_log(WEFT_LOG_WARN,
                 "%s: %lld lines are damaged, the first is line %lld, after step %lld; the file is "
                 "kept as %s.damaged, and its good lines stay",
                 path, (long long)l->bad, (long long)l->bad_line, (long long)l->bad_after, path);
    if (l->gaps)
        weft_log(WEFT_LOG_WARN, "%s: there is no line of steps %lld to %lld%s", path,
                 (long long)l->gap_from, (long long)l->gap_to,
                 l->gaps > 1 ? ", nor of others later" : "");
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

weft_status weft_lines_repair(FILE **file, const char *path, int64_t step) {
    weft_lines lines = {0};
    weft_new_file copy;
    int fd;
    WEFT_TRY(weft_new_file_begin(&copy, path));
    weft_status status = walk(*file, path, step, 0, &lines, &copy);
    if (status == WEFT_OK) status = name_damaged(path);
    WEFT_TRY(weft_new_file_end(&copy, status));
    WEFT_TRY(weft_file_open_own(path, &fd));
    FILE *fresh = fdopen(fd, "r+");
    if (!fresh || flock(fd, LOCK_EX | LOCK_NB) != 0) {
        status = weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno));
        if (fresh)
            fclose(fresh);
        else
            close(fd);
        return status;
    }
    fclose(*file);
    *file = fresh;
    return WEFT_OK;
}
