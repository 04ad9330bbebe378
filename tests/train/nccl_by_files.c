/* The table of comm/launch.h without NCCL, for ranks on the device of support/remote.h: a library that a test
 * compiles. Messages are files of the folder NCCL_FILES, which have their names when they are whole, and are
 * sent and read in the order of the device's queue. */
#include "comm/launch.h"
#include "support/remote.h"

#include <unistd.h>

static int own_rank, ranks;
static int64_t sent[64], came[64];

static void name_file(char path[512], int from, int to, int64_t number) {
    snprintf(path, 512, "%s/%d-%d-%lld", getenv("NCCL_FILES"), from, to, (long long)number);
}

static void send_file(const remote_call *c) {
    char path[512], part[520];
    name_file(path, own_rank, c->rank, sent[c->rank]++);
    snprintf(part, sizeof part, "%s.part", path);
    FILE *file = fopen(part, "wb");
    if (!file || fwrite(c->from, 1, (size_t)c->n, file) != (size_t)c->n || fclose(file) != 0)
        abort();
    if (rename(part, path) != 0) abort();
}

static void read_file(const remote_call *c) {
    char path[512];
    FILE *file;
    name_file(path, c->rank, own_rank, came[c->rank]++);
    while (!(file = fopen(path, "rb")))
        usleep(200);
    if (fread(c->to, 1, (size_t)c->n, file) != (size_t)c->n || fgetc(file) != EOF) abort();
    fclose(file);
    unlink(path);
}

/* In the order of the ranks. */
static void sum_files(const remote_call *c) {
    float *row = c->to, *sum = calloc((size_t)c->n, sizeof *sum), *other = malloc((size_t)c->n * 4);
    if (!sum || !other) abort();
    for (int r = 0; r < ranks; r++)
        if (r != own_rank) send_file(&(remote_call){.from = row, .n = 4 * c->n, .rank = r});
    for (int r = 0; r < ranks; r++) {
        if (r != own_rank) read_file(&(remote_call){.to = other, .n = 4 * c->n, .rank = r});
        for (int64_t i = 0; i < c->n; i++)
            sum[i] += (r == own_rank ? row : other)[i];
    }
    memcpy(row, sum, (size_t)c->n * 4);
    free(sum);
    free(other);
}

static int open_files(char *why, int room) {
    snprintf(why, (size_t)room, "NCCL_FILES is not set");
    return getenv("NCCL_FILES") ? 0 : 1;
}

static int make_id(void *id) {
    memset(id, 1, WEFT_NCCL_ID);
    return 0;
}

static int start(const void *id, int rank, int size, void **comm) {
    own_rank = rank;
    ranks = size;
    *comm = &ranks;
    return size > 64 || ((const char *)id)[0] != 1;
}

static void finish(void *comm) {
    (void)comm;
}

static int do_nothing(void) {
    return 0;
}

static int put_send(void *comm, const void *data, int64_t bytes, int to, void *queue) {
    remote_put(queue, (remote_call){.run = send_file, .from = data, .n = bytes, .rank = to});
    return comm != &ranks;
}

static int put_receive(void *comm, void *data, int64_t bytes, int from, void *queue) {
    remote_put(queue, (remote_call){.run = read_file, .to = data, .n = bytes, .rank = from});
    return comm != &ranks;
}

static int put_sum(void *comm, float *data, int64_t count, void *queue) {
    remote_put(queue, (remote_call){.run = sum_files, .to = data, .n = count});
    return comm != &ranks;
}

static const char *explain(int error) {
    return error ? "a file" : "nothing";
}

const weft_nccl weft_nccl_table = {.abi = WEFT_NCCL_ABI,
                                   .open = open_files,
                                   .make_id = make_id,
                                   .start = start,
                                   .finish = finish,
                                   .abort = finish,
                                   .begin = do_nothing,
                                   .end = do_nothing,
                                   .send = put_send,
                                   .receive = put_receive,
                                   .sum = put_sum,
                                   .explain = explain};
