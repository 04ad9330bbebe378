/* NCCL as weft uses it, in plain C types: messages between GPUs that do not pass through the host.
 *
 * As with MPI (mpi.h), the calls are compiled against the machine's own nccl.h into a small library,
 * libweft-nccl.so (nccl/shim.c); it opens libnccl.so.2 itself, so that neither is needed to load weft.
 * MPI starts the ranks and brings them the id. */
#ifndef WEFT_COMM_NCCL_H
#define WEFT_COMM_NCCL_H

#include <stdint.h>

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

#endif
