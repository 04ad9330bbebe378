/* Ranks: the processes that train one model together, and what they say to each other.
 *
 * mpirun, mpiexec or srun starts them; MPI carries what they say. One thread of each process makes all
 * calls of MPI: it moves data while the others compute, and it watches. Work is handed to it as jobs,
 * which every rank begins in the same order.
 *
 * A run ends as one. Every second each rank tells rank 0 how long ago its working thread gave a sign
 * of life (base/clock.h), and rank 0 answers all. A rank that is gone, silent for WEFT_HEARTBEAT
 * seconds (30; 0: any time), or that reports an error ends all: each writes one line that says which
 * rank and why, and leaves with status 1, wherever its working thread is. Checkpoints are whole at
 * every moment, so the next start resumes. */
#pragma once

#include "base/error.h"

#include <stdatomic.h>

typedef struct weft_comm weft_comm;

/* Finds the other ranks. *out is NULL where this process is alone: every function takes that for one
 * rank, and most then do nothing. */
weft_status weft_comm_open(weft_comm **out);
/* Waits for all ranks. */
void weft_comm_close(weft_comm *c);

int weft_comm_rank(const weft_comm *c);
int weft_comm_size(const weft_comm *c);
/* The same among the ranks on this machine. */
int weft_comm_local_rank(const weft_comm *c);
int weft_comm_local_size(const weft_comm *c);

/* This rank cannot go on: all others end with the message, as above. It is for the caller to end this
 * one; weft_comm_close then waits for nobody. Jobs under way are over when it returns, so it comes
 * before their memory is freed. */
void weft_comm_fail(weft_comm *c, const char *message);

/* Whether the run has ended by a fault: others may not answer any more. */
bool weft_comm_is_over(weft_comm *c);

/* Around calls in which the working thread waits for other ranks without weft_comm_wait: its silence
 * means nothing then, and a fault ends the process. */
void weft_comm_away(weft_comm *c, bool away);

/* One message of an exchange. */
typedef struct {
    int rank;  /* the other one */
    bool send; /* or receive */
    void *data;
    int64_t bytes; /* the same on both sides; up to 2^30 */
} weft_transfer;

/* A job; the caller's memory, untouched until it is waited for. */
typedef struct weft_comm_job weft_comm_job;
struct weft_comm_job {
    enum { WEFT_JOB_EXCHANGE, WEFT_JOB_GATHER, WEFT_JOB_BROADCAST, WEFT_JOB_SUM } kind;
    const weft_transfer *transfers; /* exchange: messages between two ranks match in their order */
    int64_t tag;   /* exchange: tells it from others under way at the same time, on all ranks alike;
                      begun in any order. Other jobs begin in one order on all ranks */
    int64_t count; /* of transfers; sum: of numbers */
    void *data;    /* gather, broadcast, sum */
    int64_t bytes; /* broadcast */
    const int *part_bytes, *part_offsets; /* gather: [ranks] of `data` */
    bool is_double;                       /* sum: f64, else f32 */
    /* The communication's own. */
    uint64_t *requests;
    int pending;
    atomic_bool done; /* waiting would take no time */
    weft_comm_job *next;
};

weft_status weft_comm_begin(weft_comm *c, weft_comm_job *job);
weft_status weft_comm_wait(weft_comm *c, weft_comm_job *job);

/* Memory for messages: zeros; NULL: there is none. After a fault the library that sends them may still
 * read and write what it was given, so memory of a message that failed (`status` is what became of it) is
 * kept until the process ends, which a fault ends soon. */
void *weft_message_memory(size_t count, size_t size);
void weft_message_done(void *memory, weft_status status);

/* Jobs that are waited for at once. */
/* own [bytes] of each rank to all [ranks, bytes] on every rank. */
weft_status weft_comm_gather(weft_comm *c, const void *own, int64_t bytes, void *all);
/* `count` records of so many bytes each, of which every rank has made its span (share.h), or, where they
 * were `dealt` out, rank r has made r, r + ranks, r + 2 ranks, ...: all of them to every rank. */
weft_status weft_comm_gather_records(weft_comm *c, void *all, int64_t count, int64_t bytes,
                                     bool dealt);
/* Every rank's part of `all`, of bytes[rank] at offsets[rank], to every rank. */
weft_status weft_comm_gather_parts(weft_comm *c, void *all, const int *bytes, const int *offsets);
/* Messages between ranks, at once. */
weft_status weft_comm_exchange(weft_comm *c, const weft_transfer *transfers, int64_t n);
/* Rank 0's bytes to all; any number of them. */
weft_status weft_comm_broadcast(weft_comm *c, void *data, int64_t bytes);
/* Whether any rank says so. */
weft_status weft_comm_any(weft_comm *c, bool own, bool *any);
/* WEFT_OK where all ranks are; else every rank has the first failed one's status and message, and
 * weft_comm_fail has nothing to tell. */
weft_status weft_comm_agree(weft_comm *c, weft_status own);
/* The same text on all ranks; else every rank fails, and is told by the first whose text differs: "its NAME is not
 * rank 0's: ... in place of ...". */
weft_status weft_comm_same(weft_comm *c, const char *name, const char *text);
