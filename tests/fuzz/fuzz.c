/* What the targets share. */
#include "fuzz/fuzz.h"

#include "base/log.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_ROOM = 512, PATHS = 4 };

bool fuzz_every_way;

static char folder[PATH_ROOM / 2];
static pid_t owner;

void fuzz_broken(const char *file, int line, const char *what) {
    fprintf(stderr, "%s:%d: a promise is broken: %s\n", file, line, what);
    abort();
}

static int remove_one(const char *path, const struct stat *is, int type, struct FTW *at) {
    (void)is, (void)type, (void)at;
    return remove(path);
}

/* A process that the harness starts is not to take the folder with it. */
static void remove_folder(void) {
    if (getpid() == owner) nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Warnings are of no interest here, and there are millions. */
static void begin(void) {
    const char *places[] = {getenv("FUZZ_FOLDER"), "/dev/shm", getenv("TMPDIR"), "/tmp"};
    weft_log_set_level(WEFT_LOG_ERROR);
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        if (!places[i] || !*places[i]) continue;
        snprintf(folder, sizeof folder, "%.200s/weft-fuzz-XXXXXX", places[i]);
        if (!mkdtemp(folder)) continue;
        owner = getpid();
        atexit(remove_folder);
        return;
    }
    perror("fuzz: no folder for files");
    exit(2);
}

const char *fuzz_folder(void) {
    if (!owner) begin();
    return folder;
}

const char *fuzz_path(const char *name) {
    static char paths[PATHS][PATH_ROOM];
    static int next;
    char *path = paths[next++ % PATHS];
    snprintf(path, PATH_ROOM, "%s/%.200s", fuzz_folder(), name);
    return path;
}

const char *fuzz_file(const char *name, const void *data, size_t size) {
    const char *path = fuzz_path(name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size || close(fd) != 0) {
        perror(path);
        exit(2);
    }
    return path;
}

void fuzz_new_folder(const char *name) {
    const char *path = fuzz_path(name);
    nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    if (mkdir(path, 0700) == 0) return;
    perror(path);
    exit(2);
}

fuzz_bytes fuzz_until_zero(fuzz_bytes *from) {
    const uint8_t *end = from->size ? memchr(from->data, 0, from->size) : NULL;
    fuzz_bytes part = {from->data, end ? (size_t)(end - from->data) : from->size};
    size_t taken = part.size + (end != NULL);
    if (taken) from->data += taken;
    from->size -= taken;
    return part;
}

uint8_t fuzz_byte(fuzz_bytes *from) {
    if (!from->size) return 0;
    from->size--;
    return *from->data++;
}

int64_t fuzz_number(fuzz_bytes *from) {
    uint64_t number = 0;
    for (int i = 0; i < 8; i++)
        number |= (uint64_t)fuzz_byte(from) << (8 * i);
    return (int64_t)number;
}

char *fuzz_text(fuzz_bytes bytes) {
    char *text = malloc(bytes.size + 1);
    if (!text) exit(2);
    if (bytes.size) memcpy(text, bytes.data, bytes.size);
    text[bytes.size] = 0;
    return text;
}

/* FNV-1a. */
int fuzz_way(const uint8_t *data, size_t size, int ways) {
    uint32_t hash = 2166136261u;
    if (fuzz_every_way) return -1;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ data[i]) * 16777619u;
    return (int)((hash >> 8) % (uint32_t)ways);
}

void fuzz_touch(const void *data, size_t size) {
    static volatile uint8_t sink;
    uint8_t sum = 0;
    for (size_t i = 0; i < size; i++)
        sum = (uint8_t)(sum + ((const uint8_t *)data)[i]);
    sink = sum;
    (void)sink;
}
