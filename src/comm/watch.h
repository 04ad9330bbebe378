/* Watching over ranks: who is alive, and who has to be told that one is not. All but what is said
 * otherwise is called by the thread that talks (comm.c). */
#pragma once

#include "comm/launch.h"

typedef struct weft_watch weft_watch;

typedef struct {
    char machine[128]; /* whoever has the same can see each other's processes */
    char host[64];
    int64_t pid;
} weft_rank_place;

/* This process's. */
weft_rank_place weft_watch_place(void);
/* WEFT_HEARTBEAT, in seconds; 0: none. */
double weft_watch_limit(void);

weft_status weft_watch_open(const weft_mpi *mpi, int rank, int size, const weft_rank_place *places,
                            weft_watch **out);
void weft_watch_close(weft_watch *w);

typedef enum {
    WEFT_WATCH_WELL,
    WEFT_WATCH_FOUND, /* this rank found a fault, and no other knows of it yet */
    WEFT_WATCH_TOLD   /* another rank said so */
} weft_watch_state;

/* Reads what came, sends what is due, looks at the ranks of this machine. `waiting`: the working
 * thread waits for other ranks, so its silence means nothing. */
weft_watch_state weft_watch_look(weft_watch *w, double now, bool waiting, char *why, size_t room);
/* A fault for all ranks to hear of. */
void weft_watch_tell(weft_watch *w, const char *why);

/* By any thread: the next look tells all ranks of it, and finds nothing wrong here. */
void weft_watch_resign(weft_watch *w, const char *why);
/* By any thread: ranks of this machine may end from now on. */
void weft_watch_leave(weft_watch *w);
/* "rank 2 (host, pid 4242)" with a separator and words behind it. */
void weft_watch_describe(const weft_watch *w, int rank, const char *separator, const char *words,
                         char *text, size_t room);
