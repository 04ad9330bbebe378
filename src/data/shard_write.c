/* Writing of token shards. A shard is a stream until its tokens are counted; then the header, left
 * empty before, is written over. Tokens are little-endian words in a file, whatever the machine. */
#include "data/shard_write.h"
#include "base/getter.h"
#include "base/scope.h"

#include "base/folders.h"
#include "data/tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SOME = 4096 };

struct weft_shard_writer {
    char *dir, *name;
    int width; /* bytes of a token */
    int64_t shard_tokens, tokens, shards, in_shard;
    int64_t placed; /* shards that have their names */
    FILE *file;     /* NULL: between shards */
    bool committed;
};

static void shard_path(const weft_shard_writer *w, int64_t shard, const char *tail,
                       char path[WEFT_PATH_MAX]) {
    snprintf(path, WEFT_PATH_MAX, "%s/%s_%06lld.bin%s", w->dir, w->name, (long long)shard, tail);
}

static weft_status write_failed(const weft_shard_writer *w) {
    return weft_fail(WEFT_EIO, "%s: a shard cannot be written: %s", w->dir, strerror(errno));
}

static void put_word(uint8_t *to, uint32_t value, int width) {
    for (int i = 0; i < width; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

/* NAME_000000.bin.part */
static bool is_part(const char *is, const char *name) {
    size_t n = strlen(name);
    if (strncmp(is, name, n) != 0 || is[n] != '_') return false;
    size_t digits = strspn(is + n + 1, "0123456789");
    return digits >= 6 && strcmp(is + n + 1 + digits, ".bin.part") == 0;
}

/* Removes what an interrupted run left: by its name a part of a shard, and by its first bytes too. Of
 * an empty file nothing is lost. */
static weft_status remove_part(const char *dir, const char *name) {
    char path[WEFT_PATH_MAX];
    unsigned char head[8] = {0};
    WEFT_AUTO_CLOSE int fd = -1;
    WEFT_TRY(weft_path(path, "%s/%s", dir, name));
    WEFT_TRY(weft_file_open(path, &fd));
    ssize_t n = read(fd, head, sizeof head);
    if (n < 0) return weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno));
    if (n > 0 && !weft_shard_width(head))
        return weft_fail(WEFT_EINPUT,
                         "%s: is not a part of a shard that weft began; move it away, or name "
                         "another folder",
                         path);
    return unlink(path) == 0 ? WEFT_OK : weft_fail(WEFT_EIO, "%s: %s", path, strerror(errno));
}

weft_status weft_shard_writer_open(const char *dir, const char *name, int64_t vocab,
                                   int64_t shard_tokens, weft_shard_writer **out) {
    *out = NULL;
    if (strlen(dir) + strlen(name) + 32 > WEFT_PATH_MAX)
        return weft_fail(WEFT_EINPUT, "%.80s...: the name is too long", dir);
    if (shard_tokens < 1 || shard_tokens > INT32_MAX)
        return weft_fail(WEFT_EINPUT, "a shard holds from 1 to %d tokens, not %lld", INT32_MAX,
                         (long long)shard_tokens);
    /* Refuses a folder that has such shards; removes what an interrupted run left. */
    struct stat there;
    WEFT_AUTO(weft_names_free) weft_names list = {0};
    if (stat(dir, &there) == 0 && !S_ISDIR(there.st_mode))
        return weft_fail(WEFT_EINPUT, "%s: Not a directory", dir);
    WEFT_TRY(weft_folder_make(dir));
    WEFT_TRY(weft_folder_list(dir, &list));
    size_t n = strlen(name);
    bool parts = false;
    for (int i = 0; i < list.n; i++)
        parts = parts || is_part(list.list[i], name);
    for (int i = 0; i < list.n; i++) {
        const char *is = list.list[i], *tail = strrchr(is, '.');
        if (strncmp(is, name, n) == 0 && is[n] == '_' && tail && strcmp(tail, ".bin") == 0)
            return weft_fail(WEFT_EINPUT, "%s: has shards already (%s)%s; name another folder", dir,
                             is, parts ? ", not all of them: a command was cut off here" : "");
    }
    for (int i = 0; i < list.n; i++)
        if (is_part(list.list[i], name)) WEFT_TRY(remove_part(dir, list.list[i]));
    weft_shard_writer *w = calloc(1, sizeof *w);
    if (w) {
        w->dir = strdup(dir);
        w->name = strdup(name);
        w->width = vocab <= 65536 ? 2 : 4;
        w->shard_tokens = shard_tokens;
    }
    if (!w || !w->dir || !w->name) {
        weft_shard_writer_close(w);
        return weft_fail(WEFT_ENOMEM, "%s: no memory to write shards", dir);
    }
    *out = w;
    return WEFT_OK;
}

static bool write_header(weft_shard_writer *w) {
    uint8_t header[WEFT_SHARD_HEADER * 4] = {0};
    put_word(header, w->width == 2 ? WEFT_SHARD_MAGIC_16 : WEFT_SHARD_MAGIC_32, 4);
    put_word(header + 4, w->width == 2 ? WEFT_SHARD_VERSION_16 : WEFT_SHARD_VERSION_32, 4);
    put_word(header + 8, (uint32_t)w->in_shard, 4);
    return fwrite(header, 1, sizeof header, w->file) == sizeof header;
}

static weft_status start_shard(weft_shard_writer *w) {
    char path[WEFT_PATH_MAX];
    shard_path(w, w->shards, ".part", path);
    /* Parts were looked at before: what has appeared since is another's. */
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    w->file = fd < 0 ? NULL : fdopen(fd, "wb");
    if (!w->file) {
        weft_status status = write_failed(w);
        if (fd >= 0) close(fd);
        return status;
    }
    w->shards++;
    w->in_shard = 0;
    return write_header(w) ? WEFT_OK : write_failed(w);
}

static weft_status end_shard(weft_shard_writer *w) {
    bool ok = fseek(w->file, 0, SEEK_SET) == 0 && write_header(w) && fflush(w->file) == 0 &&
              fsync(fileno(w->file)) == 0;
    int error = errno;
    if (fclose(w->file) != 0 && ok) {
        ok = false;
        error = errno;
    }
    w->file = NULL;
    errno = error;
    return ok ? WEFT_OK : write_failed(w);
}

weft_status weft_shard_writer_put(weft_shard_writer *w, const int32_t *tokens, int64_t count) {
    uint8_t words[SOME * 4];
    for (int64_t done = 0; done < count;) {
        if (!w->file) WEFT_TRY(start_shard(w));
        int64_t some = count - done < SOME ? count - done : SOME;
        if (some > w->shard_tokens - w->in_shard) some = w->shard_tokens - w->in_shard;
        for (int64_t i = 0; i < some; i++)
            put_word(words + i * w->width, (uint32_t)tokens[done + i], w->width);
        size_t bytes = (size_t)(some * w->width);
        if (fwrite(words, 1, bytes, w->file) != bytes) return write_failed(w);
        done += some;
        w->in_shard += some;
        w->tokens += some;
        if (w->in_shard == w->shard_tokens) WEFT_TRY(end_shard(w));
    }
    return WEFT_OK;
}

WEFT_GETTER(int64_t, weft_shard_writer_tokens, weft_shard_writer, tokens)
WEFT_GETTER(int64_t, weft_shard_writer_shards, weft_shard_writer, shards)

static weft_status place(weft_shard_writer *w) {
    char from[WEFT_PATH_MAX], to[WEFT_PATH_MAX];
    weft_kind kind;
    for (; w->placed < w->shards; w->placed++) {
        shard_path(w, w->placed, ".part", from);
        shard_path(w, w->placed, "", to);
        /* No shard is overwritten that another put there meanwhile. */
        WEFT_TRY(weft_path_kind(to, &kind));
        if (kind != WEFT_KIND_NOTHING)
            return weft_fail(WEFT_EIO, "%s: appeared while its text was tokenized", to);
        if (rename(from, to) != 0) return write_failed(w);
    }
    return weft_folder_sync(w->dir); /* the renames are on disk when the folder is */
}

weft_status weft_shard_writers_commit(weft_shard_writer *const *writers, int n) {
    for (int i = 0; i < n; i++)
        if (writers[i]->file) WEFT_TRY(end_shard(writers[i]));
    for (int i = n - 1; i >= 0; i--)
        WEFT_TRY(place(writers[i]));
    for (int i = 0; i < n; i++)
        writers[i]->committed = true;
    return WEFT_OK;
}

void weft_shard_writer_close(weft_shard_writer *w) {
    if (!w) return;
    if (w->file) fclose(w->file);
    for (int64_t i = 0; i < w->shards && !w->committed; i++) {
        char path[WEFT_PATH_MAX];
        shard_path(w, i, i < w->placed ? "" : ".part", path);
        unlink(path);
    }
    free(w->dir);
    free(w->name);
    free(w);
}
