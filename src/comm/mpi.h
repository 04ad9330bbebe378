/* MPI as weft uses it, in plain C types.
 *
 * Implementations of MPI do not share a binary interface: a communicator is a number in one and a
 * pointer in another, and constants are macros of each mpi.h. So the calls are compiled against the
 * machine's own mpi.h into a small library beside this one, libweft-mpi.so (mpi/shim.c), which is
 * opened when a launcher has started several processes. libweft itself knows only this table, and
 * loads on a machine without MPI. */
#ifndef WEFT_COMM_MPI_H
#define WEFT_COMM_MPI_H

#include <stdint.h>

enum { WEFT_MPI_ABI = 2, WEFT_MPI_NOTE = 512 };

/* Functions return 0, or MPI's error for `explain`. All of them are for one thread, the one that
 * called `start`. A request is a number that is free again once `test` says done. */
typedef struct {
    int abi; /* WEFT_MPI_ABI */
    int (*start)(int *rank, int *size);
    void (*finish)(void);
    /* Messages between two ranks; at most 2^30 bytes each. */
    int (*send)(const void *data, int64_t bytes, int to, int tag, int *request);
    int (*receive)(void *data, int64_t bytes, int from, int tag, int *request);
    /* Every rank's part of `all`, of bytes[rank] at offsets[rank], to every rank; the own part lies in
     * its place. */
    int (*gather)(void *all, const int *bytes, const int *offsets, int *request);
    int (*broadcast)(void *data, int64_t bytes, int *request); /* from rank 0 */
    /* Sums over ranks in the order MPI likes, in place. */
    int (*sum)(void *data, int64_t count, int is_double, int *request);
    int (*test)(int request, int *done);
    /* Notes of WEFT_MPI_NOTE bytes beside the messages. `note` leaves *sent at 0, and has done nothing,
     * where the last to the same rank is still on its way; `next_note` sets *from to -1 where none has
     * come. */
    int (*note)(const void *text, int to, int *sent);
    int (*next_note)(void *text, int *from);
    void (*explain)(int error, char *text, int room);
} weft_mpi;

/* What libweft-mpi.so has: */
#define WEFT_MPI_ENTRY "weft_mpi_table"

#endif
