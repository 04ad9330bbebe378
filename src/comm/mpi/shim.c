/* The table of comm/launch.h over this machine's MPI: libweft-mpi.so, all by itself. */
#include "comm/launch.h"

#include <mpi.h>

enum { NOTE_TAG = 1 };
_Static_assert(sizeof(MPI_Request) <= WEFT_MPI_REQUEST, "a request has room");

static MPI_Comm messages, notes;
static int own_rank, ranks;
static char (*note_texts)[WEFT_MPI_NOTE]; /* [ranks]: on their way */
static MPI_Request *note_requests;        /* [ranks] */

static int start(int *rank, int *size) {
    int given, error = MPI_Init_thread(NULL, NULL, MPI_THREAD_FUNNELED, &given);
    if (!error) error = MPI_Comm_dup(MPI_COMM_WORLD, &messages);
    if (!error) error = MPI_Comm_dup(MPI_COMM_WORLD, &notes);
    if (error) return error;
    MPI_Comm_set_errhandler(messages, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(notes, MPI_ERRORS_RETURN);
    MPI_Comm_rank(messages, &own_rank);
    MPI_Comm_size(messages, &ranks);
    *rank = own_rank;
    *size = ranks;
    note_texts = calloc((size_t)ranks, sizeof *note_texts);
    note_requests = malloc((size_t)ranks * sizeof *note_requests);
    if (!note_texts || !note_requests) return MPI_ERR_NO_MEM;
    for (int i = 0; i < ranks; i++)
        note_requests[i] = MPI_REQUEST_NULL;
    return 0;
}

static void finish(void) {
    int done;
    MPI_Finalized(&done);
    if (!done) MPI_Finalize();
    free(note_texts);
    free(note_requests);
}

static int send_bytes(const void *data, int64_t bytes, int to, int tag, void *request) {
    return MPI_Isend(data, (int)bytes, MPI_BYTE, to, tag, messages, request);
}

static int receive_bytes(void *data, int64_t bytes, int from, int tag, void *request) {
    return MPI_Irecv(data, (int)bytes, MPI_BYTE, from, tag, messages, request);
}

static int gather(void *all, const int *bytes, const int *offsets, void *request) {
    return MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, all, bytes, offsets, MPI_BYTE,
                           messages, request);
}

static int broadcast(void *data, int64_t bytes, void *request) {
    return MPI_Ibcast(data, (int)bytes, MPI_BYTE, 0, messages, request);
}

static int sum(void *data, int64_t count, int is_double, void *request) {
    return MPI_Iallreduce(MPI_IN_PLACE, data, (int)count, is_double ? MPI_DOUBLE : MPI_FLOAT,
                          MPI_SUM, messages, request);
}

static int test(void *request, int *done) {
    return MPI_Test(request, done, MPI_STATUS_IGNORE);
}

static int note(const void *text, int to, int *sent) {
    *sent = 1;
    if (note_requests[to] != MPI_REQUEST_NULL) {
        int error = MPI_Test(&note_requests[to], sent, MPI_STATUS_IGNORE);
        if (error) return error;
    }
    if (!*sent) return 0;
    memcpy(note_texts[to], text, WEFT_MPI_NOTE);
    return MPI_Isend(note_texts[to], WEFT_MPI_NOTE, MPI_BYTE, to, NOTE_TAG, notes,
                     &note_requests[to]);
}

static int next_note(void *text, int *from) {
    int there;
    MPI_Status status;
    *from = -1;
    int error = MPI_Iprobe(MPI_ANY_SOURCE, NOTE_TAG, notes, &there, &status);
    if (error || !there) return error;
    *from = status.MPI_SOURCE;
    return MPI_Recv(text, WEFT_MPI_NOTE, MPI_BYTE, *from, NOTE_TAG, notes, MPI_STATUS_IGNORE);
}

static void explain(int error, char *text, int room) {
    char whole[MPI_MAX_ERROR_STRING] = "";
    int length;
    MPI_Error_string(error, whole, &length);
    snprintf(text, (size_t)room, "%s", whole);
}

__attribute__((visibility("default"))) const weft_mpi weft_mpi_table = {
    .abi = WEFT_MPI_ABI,
    .start = start,
    .finish = finish,
    .send = send_bytes,
    .receive = receive_bytes,
    .gather = gather,
    .broadcast = broadcast,
    .sum = sum,
    .test = test,
    .note = note,
    .next_note = next_note,
    .explain = explain,
};
