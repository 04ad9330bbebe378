/* Whether this process is one of several that a launcher started, and the libraries it then opens.
 *
 * Implementations of MPI do not share a binary interface: a communicator is a number in one and a
 * pointer in another, and constants are macros of each mpi.h. So the calls are compiled against the
 * machine's own mpi.h into a small library beside this one, libweft-mpi.so (mpi/shim.c). libweft itself
 * knows only a table of them in plain C types, and loads on a machine without MPI. NCCL, messages
 * between GPUs that do not pass through the host, is called in the same way (libweft-nccl.so,
 * nccl/shim.c), and the shim opens libnccl.so.2 itself; MPI starts the ranks and brings them the id. */
#pragma once

#include "base/error.h"

enum { WEFT_MPI_ABI = 3, WEFT_MPI_NOTE = 512, WEFT_MPI_REQUEST = 8 };

/* Functions return 0, or MPI's error for `explain`. All of them are for one thread, the one that
 * called `start`. A request is WEFT_MPI_REQUEST bytes, a pointer or a number of MPI's. */
typedef struct {
    int abi; /* WEFT_MPI_ABI */
    int (*start)(int *rank, int *size);
    void (*finish)(void);
    /* Messages between two ranks; at most 2^30 bytes each. */
    int (*send)(const void *data, int64_t bytes, int to, int tag, void *request);
    int (*receive)(void *data, int64_t bytes, int from, int tag, void *request);
    /* Every rank's part of `all`, of bytes[rank] at offsets[rank], to every rank; the own part lies in
     * its place. */
    int (*gather)(void *all, const int *bytes, const int *offsets, void *request);
    int (*broadcast)(void *data, int64_t bytes, void *request); /* from rank 0 */
    /* Sums over ranks in the order MPI likes, in place. */
    int (*sum)(void *data, int64_t count, int is_double, void *request);
    int (*test)(void *request, int *done);
    /* Notes of WEFT_MPI_NOTE bytes beside the messages. `note` leaves *sent at 0, and has done nothing,
     * where the last to the same rank is still on its way; `next_note` sets *from to -1 where none has
     * come. */
    int (*note)(const void *text, int to, int *sent);
    int (*next_note)(void *text, int *from);
    void (*explain)(int error, char *text, int room);
} weft_mpi;

/* What libweft-mpi.so has: */
#define WEFT_MPI_ENTRY "weft_mpi_table"

enum { WEFT_NCCL_ABI = 2, WEFT_NCCL_ID = 128 };

/* Functions return 0, or NCCL's error for `explain`. Data is the device's memory, and a queue the
 * stream that a call is put into. */
typedef struct {
    int abi; /* WEFT_NCCL_ABI */
    /* Opens libnccl.so.2: where WEFT_NCCL says, where it was at build time, or where the system looks.
     * 0: it is there; else `why` has a line. */
    int (*open)(char *why, int room);
    int (*make_id)(void *id); /* [WEFT_NCCL_ID], by one rank for all */
    int (*start)(const void *id, int rank, int size, void **comm);
    void (*finish)(void *comm);
    void (*abort)(void *comm); /* the same, where others may not answer any more */
    /* Messages between `begin` and `end` go at the same time. */
    int (*begin)(void);
    int (*end)(void);
    int (*send)(void *comm, const void *data, int64_t bytes, int to, void *queue);
    int (*receive)(void *comm, void *data, int64_t bytes, int from, void *queue);
    int (*sum)(void *comm, float *data, int64_t count, void *queue); /* in NCCL's own order */
    const char *(*explain)(int error);
} weft_nccl;

/* What libweft-nccl.so has: */
#define WEFT_NCCL_ENTRY "weft_nccl_table"

/* By the environment that mpirun, mpiexec and srun leave. *several: this process is one of several.
 * An error where it is, but was started in a way that lets it not find the others. */
weft_status weft_launch_look(bool *several);

/* Opens libweft-mpi.so: WEFT_MPI names the file; without it, beside the program, in ../lib of it, or
 * where the system looks. It stays open until the process ends. */
weft_status weft_launch_open(const weft_mpi **out);
/* The same of libweft-nccl.so, which is not needed: WEFT_NCCL names NCCL's own library. */
weft_status weft_launch_nccl(const weft_nccl **out);

/* Watching over ranks: who is alive, and who has to be told that one is not. All but what is said
 * otherwise is called by the thread that talks (comm.c). */
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
WEFT_ENDED_BY(weft_watch_close, weft_watch)

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
