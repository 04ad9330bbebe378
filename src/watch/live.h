/* The live page of runs: `weft watch`. One thread looks at the runs once a second; every browser has a stream of
 * server-sent events, each of which says what is new since the one before.
 *
 *   GET  /            the page
 *   GET  /api/runs    everything, as weft_watched_news tells it
 *   GET  /api/events  the stream: events `news` and `machine`
 *   GET  /api/log     ?id=N: the end of a run's log, or of its samples; &samples=1: of these alone
 *   POST /api/note    {"id": N, "note": TEXT, "tags": TEXT}
 *
 * It is for this machine: names that others gave lead nowhere (see http.h), and a note is taken from the page alone. */
#pragma once

#include "record/watched.h"

typedef struct {
    int port;  /* at which it listens */
    int found; /* how many runs there were when it began */
} weft_live;

typedef struct {
    const char *host;
    int port;               /* 0: any that is free */
    double request_seconds; /* within which a client must have sent a request whole; 0: 30 */
} weft_live_options;

/* The runs are its own until it is closed. */
weft_status weft_live_open(const weft_live_options *o, weft_watched *runs, weft_live **out);
void weft_live_close(weft_live *w);
WEFT_ENDED_BY(weft_live_close, weft_live)
