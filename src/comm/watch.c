/* Notes go along a star: each rank tells rank 0 how long its working thread has been silent, rank 0
 * answers each. So a thousand ranks send a thousand notes a second to one, and a rank that is lost is
 * found by rank 0, or rank 0 by all. Processes on the same machine are looked at directly, which finds
 * a killed one at once. */
#include "comm/launch.h"

#include "base/clock.h"

#include <errno.h>
#include <signal.h>

enum { LIMIT_SECONDS = 30, LAST_LOOKS = 50, LAST_LOOK_US = 1000 };
static const double NOTE_SECONDS = 1, LOCAL_SECONDS = 0.1;

typedef struct {
    double silent; /* seconds since the sender's working thread gave a sign of life */
    int fault;     /* the text says what has gone wrong */
    char text[WEFT_MPI_NOTE - 16];
} note;
_Static_assert(sizeof(note) == WEFT_MPI_NOTE, "a note has a fixed size");

struct weft_watch {
    const weft_mpi *mpi;
    int rank, size;
    double limit;            /* seconds; 0: none */
    weft_rank_place *places; /* [size] */
    double *heard, *silent;  /* [size]: when a note last came, and what it said */
    double noted, looked;    /* when notes were last sent, and processes looked at */
    uint64_t beats;          /* of the working thread, */
    double beaten;           /* and when they changed */
    atomic_bool leaving, resigned;
    char last_words[WEFT_MPI_NOTE - 16];
    note fault; /* that the others are told of, */
    bool *told; /* [size], those who were; */
    int untold; /* and how many were not */
};

weft_rank_place weft_watch_place(void) {
    weft_rank_place p = {.pid = getpid()};
    char space[64] = "";
    gethostname(p.host, sizeof p.host - 1);
    if (readlink("/proc/self/ns/pid", space, sizeof space - 1) < 0) space[0] = 0;
    snprintf(p.machine, sizeof p.machine, "%.63s %.60s", p.host, space);
    return p;
}

double weft_watch_limit(void) {
    const char *limit = getenv("WEFT_HEARTBEAT");
    return limit && *limit ? strtod(limit, NULL) : LIMIT_SECONDS;
}

weft_status weft_watch_open(const weft_mpi *mpi, int rank, int size, const weft_rank_place *places,
                            weft_watch **out) {
    size_t n = (size_t)size;
    *out = NULL;
    WEFT_NEW(weft_watch, w, weft_watch_close, "no memory for %d ranks", size);
    *w = (weft_watch){.mpi = mpi, .rank = rank, .size = size, .limit = weft_watch_limit()};
    WEFT_ROOM_AT(w->places, n, "no memory for %d ranks", size);
    WEFT_ROOM_AT(w->heard, n, "no memory for %d ranks", size);
    WEFT_ROOM_AT(w->silent, n, "no memory for %d ranks", size);
    WEFT_ROOM_AT(w->told, n, "no memory for %d ranks", size);
    memcpy(w->places, places, n * sizeof *places);
    return weft_hand(&w, out);
}

void weft_watch_close(weft_watch *w) {
    if (!w) return;
    WEFT_FREE(w->places, w->heard, w->silent, w->told, w);
}

void weft_watch_describe(const weft_watch *w, int rank, const char *separator, const char *words,
                         char *text, size_t room) {
    const weft_rank_place *p = &w->places[rank];
    snprintf(text, room, "rank %d (%s, pid %lld)%s%s", rank, p->host, (long long)p->pid, separator,
             words);
}

/* To those whom no note is on its way to: a heartbeat may be. A rank that no note can be sent to is
 * gone, and needs none. */
static void tell_rest(weft_watch *w) {
    for (int i = 0; w->untold > 0 && i < w->size; i++) {
        int sent = 1;
        if (w->told[i]) continue;
        int error = w->mpi->note(&w->fault, i, &sent);
        w->told[i] = error || sent;
        w->untold -= w->told[i];
    }
}

void weft_watch_tell(weft_watch *w, const char *why) {
    w->fault = (note){.fault = 1};
    snprintf(w->fault.text, sizeof w->fault.text, "%s", why);
    for (int i = 0; i < w->size; i++)
        w->told[i] = i == w->rank;
    w->untold = w->size - 1;
    tell_rest(w);
}

void weft_watch_resign(weft_watch *w, const char *why) {
    snprintf(w->last_words, sizeof w->last_words, "%s", why);
    atomic_store(&w->resigned, true);
}

void weft_watch_leave(weft_watch *w) {
    atomic_store(&w->leaving, true);
}

/* Whether a process of this machine is there: a zombie is not. */
static bool is_alive(int64_t pid) {
    char path[64], text[512] = "";
    if (kill((pid_t)pid, 0) != 0 && errno == ESRCH) return false;
    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    FILE *file = fopen(path, "r");
    if (!file) return errno != ENOENT;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    const char *state = strrchr(text, ')');
    return !state || (state[1] && state[2] != 'Z' && state[2] != 'X');
}

static bool read_notes(weft_watch *w, double now, char *why, size_t room) {
    for (;;) {
        note n;
        int from;
        if (w->mpi->next_note(&n, &from) != 0 || from < 0) return false;
        w->heard[from] = now;
        w->silent[from] = n.silent;
        if (!n.fault) continue;
        n.text[sizeof n.text - 1] = 0;
        snprintf(why, room, "%s", n.text);
        return true;
    }
}

/* The rank, of those that this one hears, that has been silent for too long; -1: none. */
static int find_silent(const weft_watch *w, double now, char *what, size_t room) {
    for (int i = 0; w->limit > 0 && i < w->size; i++) {
        if (i == w->rank || (w->rank != 0 && i != 0)) continue;
        if (w->heard[i] > 0 && now - w->heard[i] > w->limit) {
            snprintf(what, room,
                     "has been silent for %.0f s: it hangs, was stopped or cannot be reached",
                     now - w->heard[i]);
            return i;
        }
        if (w->silent[i] > w->limit) {
            snprintf(what, room, "hangs: nothing has moved in it for %.0f s", w->silent[i]);
            return i;
        }
    }
    return -1;
}

weft_watch_state weft_watch_look(weft_watch *w, double now, bool waiting, char *why, size_t room) {
    char what[96];
    if (atomic_exchange(&w->resigned, false)) weft_watch_tell(w, w->last_words);
    tell_rest(w);
    if (read_notes(w, now, why, room)) return WEFT_WATCH_TOLD;
    if (now - w->looked < LOCAL_SECONDS) return WEFT_WATCH_WELL;
    w->looked = now;
    for (int i = 0; i < w->size; i++)
        if (w->heard[i] == 0) w->heard[i] = now;
    uint64_t beats = atomic_load_explicit(&weft_beats, memory_order_relaxed);
    if (waiting || beats != w->beats || w->beaten == 0) w->beaten = now;
    w->beats = beats;
    if (now - w->noted >= NOTE_SECONDS) {
        w->noted = now;
        note n = {.silent = now - w->beaten};
        int sent; /* one that is not is made good by the next */
        for (int i = 0; i < w->size; i++)
            if (i != w->rank && (w->rank == 0 || i == 0)) w->mpi->note(&n, i, &sent);
    }
    int rank = -1; /* the first one of this machine that is gone */
    for (int i = 0; rank < 0 && i < w->size && !atomic_load(&w->leaving); i++)
        if (i != w->rank && strcmp(w->places[i].machine, w->places[w->rank].machine) == 0 &&
            !is_alive(w->places[i].pid))
            rank = i;
    if (rank >= 0) {
        /* It, or whoever ended it, may have said why. */
        for (int i = 0; i < LAST_LOOKS; i++) {
            if (read_notes(w, now, why, room)) return WEFT_WATCH_TOLD;
            usleep(LAST_LOOK_US);
        }
        snprintf(what, sizeof what, "is gone: killed, or it crashed");
    } else {
        rank = find_silent(w, now, what, sizeof what);
    }
    if (rank < 0) return WEFT_WATCH_WELL;
    weft_watch_describe(w, rank, " ", what, why, room);
    return WEFT_WATCH_FOUND;
}
