/* Setting aside: nothing is removed, and what is there can be looked at. */
#include "supervise/restart.h"

#include "base/folders.h"
#include "base/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

enum { ASIDE_MOST = 10000 };

static weft_status set_aside(weft_database *d, const char *out, const weft_record_run *job) {
    char path[WEFT_PATH_MAX], aside[WEFT_PATH_MAX];
    weft_kind kind;
    WEFT_TRY(weft_path(path, "%s/%s", out, job->folder));
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
            return weft_fail(WEFT_EINPUT,
                             "--restart %s: this run did not fail; only one that did is started "
                             "anew",
                             which);
        if (job->status != WEFT_RUN_FAILED || (!all && !named)) continue;
        found = true;
        WEFT_TRY(set_aside(d, out, job));
    }
    if (found || all) return WEFT_OK;
    return weft_fail(WEFT_EINPUT,
                     "--restart %s: the study has no such run; 'weft runs %s' lists them", which,
                     out);
}
