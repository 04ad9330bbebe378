/* The table of comm/launch.h over this machine's NCCL: libweft-nccl.so, all by itself. */
#include "comm/launch.h"

#include <dlfcn.h>
#include <nccl.h>

_Static_assert(sizeof(ncclUniqueId) == WEFT_NCCL_ID, "an id has a fixed size");

/* The calls that are used, with the types of nccl.h. */
#define CALLS(X)                                                                                   \
    X(ncclGetUniqueId)                                                                             \
    X(ncclCommInitRank)                                                                            \
    X(ncclCommDestroy)                                                                             \
    X(ncclCommAbort)                                                                               \
    X(ncclGroupStart)                                                                              \
    X(ncclGroupEnd)                                                                                \
    X(ncclSend)                                                                                    \
    X(ncclRecv)                                                                                    \
    X(ncclAllReduce)                                                                               \
    X(ncclGetErrorString)

#define DECLARE(name) static __typeof__(name) *p_##name;
CALLS(DECLARE)

static void *open_library(void) {
    const char *named = getenv("WEFT_NCCL");
    void *library = NULL;
    if (named && *named) return dlopen(named, RTLD_NOW | RTLD_LOCAL);
#ifdef WEFT_NCCL_LIBRARY
    library = dlopen(WEFT_NCCL_LIBRARY, RTLD_NOW | RTLD_LOCAL);
#endif
    return library ? library : dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
}

static int open_nccl(char *why, int room) {
    void *library = open_library();
    if (!library) {
        snprintf(why, (size_t)room, "%s", dlerror());
        return 1;
    }
#define FIND(name)                                                                                 \
    *(void **)&p_##name = dlsym(library, #name);                                                   \
    if (!p_##name) {                                                                               \
        snprintf(why, (size_t)room, "libnccl.so.2 has no %s", #name);                              \
        return 1;                                                                                  \
    }
    CALLS(FIND)
    return 0;
}

static int make_id(void *id) {
    return (int)p_ncclGetUniqueId(id);
}

static int start(const void *id, int rank, int size, void **comm) {
    ncclUniqueId own;
    memcpy(&own, id, sizeof own);
    return (int)p_ncclCommInitRank((ncclComm_t *)comm, size, own, rank);
}

static void finish(void *comm) {
    p_ncclCommDestroy(comm);
}

static void give_up(void *comm) {
    p_ncclCommAbort(comm);
}

static int begin(void) {
    return (int)p_ncclGroupStart();
}

static int end(void) {
    return (int)p_ncclGroupEnd();
}

static int send_bytes(void *comm, const void *data, int64_t bytes, int to, void *queue) {
    return (int)p_ncclSend(data, (size_t)bytes, ncclInt8, to, comm, queue);
}

static int receive_bytes(void *comm, void *data, int64_t bytes, int from, void *queue) {
    return (int)p_ncclRecv(data, (size_t)bytes, ncclInt8, from, comm, queue);
}

static int sum(void *comm, float *data, int64_t count, void *queue) {
    return (int)p_ncclAllReduce(data, data, (size_t)count, ncclFloat32, ncclSum, comm, queue);
}

static const char *explain(int error) {
    return p_ncclGetErrorString ? p_ncclGetErrorString((ncclResult_t)error) : "not open";
}

__attribute__((visibility("default"))) const weft_nccl weft_nccl_table = {
    .abi = WEFT_NCCL_ABI,
    .open = open_nccl,
    .make_id = make_id,
    .start = start,
    .finish = finish,
    .abort = give_up,
    .begin = begin,
    .end = end,
    .send = send_bytes,
    .receive = receive_bytes,
    .sum = sum,
    .explain = explain,
};
