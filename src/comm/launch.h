/* Whether this process is one of several that a launcher started, and the libraries it then opens. */
#ifndef WEFT_COMM_LAUNCH_H
#define WEFT_COMM_LAUNCH_H

#include "base/error.h"
#include "comm/mpi.h"
#include "comm/nccl.h"

#include <stdbool.h>

/* By the environment that mpirun, mpiexec and srun leave. *several: this process is one of several.
 * An error where it is, but was started in a way that lets it not find the others. */
weft_status weft_launch_look(bool *several);

/* Opens libweft-mpi.so: WEFT_MPI names the file; without it, beside the program, in ../lib of it, or
 * where the system looks. It stays open until the process ends. */
weft_status weft_launch_open(const weft_mpi **out);
/* The same of libweft-nccl.so, which is not needed: WEFT_NCCL names NCCL's own library. */
weft_status weft_launch_nccl(const weft_nccl **out);

#endif
