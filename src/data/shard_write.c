/* Writing of token shards. A shard is a stream until its tokens are counted; then the header, left
 * empty before, is written over. Tokens are little-endian words in a file, whatever the machine. */
#include "data/shard_write.h"

#include "data/tokens.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAGIC_16 = 20240520, VERSION_16 = 1, MAGIC_32 = 20240801, VERSION_32 = 7, SOME = 4096 };

struct weft_shard_writer {
    char *dir, *name;
    int width; /* bytes of a token */
    int64_t shard_tokens, tokens, shards, in_shard;
    FILE *file; /* NULL: between shards */
    bool committed;
};

static void shard_path(const weft_shard_writer *w, int64_t shard, const char *tail,
                       char path[PATH_MAX]) {
    snprintf(path, PATH_MAX, "%s/%s_%06lld.bin%s", w->dir, w->name, (long long)shard, tail);
}

static weft_status write_failed(const weft_shard_writer *w) {
    return weft_fail(WEFT_EIO, "%s: a shard cannot be written: %s", w->dir, strerror(errno));
}

/* Refuses a folder that has such shards; removes what an interrupted run left. */
static weft_status check_folder(const char *dir, const char *name) {
    if (mkdir(dir, 0777) != 0 && errno != EEXIST)
        return weft_fail(WEFT_EINPUT, "%s: cannot be made: %s", dir, strerror(errno));
    DIR *list = opendir(dir);
    if (!list) return weft_fail(WEFT_EINPUT, "%s: %s", dir, strerror(errno));
    weft_status status = WEFT_OK;
    size_t n = strlen(name);
    for (struct dirent *entry; status == WEFT_OK && (entry = readdir(list));) {
        const char *is = entry->d_name, *tail = strrchr(is, '.');
        if (strncmp(is, name, n) != 0 || is[n] != '_' || !tail) continue;
        if (strcmp(tail, ".bin") == 0)
            status =
                weft_fail(WEFT_EINPUT, "%s: has shards already (%s); name another folder", dir, is);
        else if (strcmp(tail, ".part") == 0)
            unlinkat(dirfd(list), is, 0);
    }
    closedir(list);
    return status;
}

weft_status weft_shard_writer_open(const char *dir, const char *name, int64_t vocab,
                                   int64_t shard_tokens, weft_shard_writer **out) {
    *out = NULL;
    if (strlen(dir) + strlen(name) + 32 > PATH_MAX)
        return weft_fail(WEFT_EINPUT, "%.80s...: the name is too long", dir);
    if (shard_tokens < 1 || shard_tokens > INT32_MAX)
        return weft_fail(WEFT_EINPUT, "a shard holds from 1 to %d tokens, not %lld", INT32_MAX,
                         (long long)shard_tokens);
    WEFT_TRY(check_folder(dir, name));
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

static void put_word(uint8_t *to, uint32_t value, int width) {
    for (int i = 0; i < width; i++)
        to[i] = (uint8_t)(value >> (8 * i));
}

static bool write_header(weft_shard_writer *w) {
    uint8_t header[WEFT_SHARD_HEADER * 4] = {0};
    put_word(header, w->width == 2 ? MAGIC_16 : MAGIC_32, 4);
    put_word(header + 4, w->width == 2 ? VERSION_16 : VERSION_32, 4);
    put_word(header + 8, (uint32_t)w->in_shard, 4);
    return fwrite(header, 1, sizeof header, w->file) == sizeof header;
}

static weft_status start_shard(weft_shard_writer *w) {
    char path[PATH_MAX];
    shard_path(w, w->shards, ".part", path);
    w->file = fopen(path, "wb");
    if (!w->file) return write_failed(w);
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

int64_t weft_shard_writer_tokens(const weft_shard_writer *w) {
    return w->tokens;
}

int64_t weft_shard_writer_shards(const weft_shard_writer *w) {
    return w->shards;
}

weft_status weft_shard_writer_commit(weft_shard_writer *w) {
    char from[PATH_MAX], to[PATH_MAX];
    if (w->file) WEFT_TRY(end_shard(w));
    for (int64_t i = 0; i < w->shards; i++) {
        shard_path(w, i, ".part", from);
        shard_path(w, i, "", to);
        if (rename(from, to) != 0) return write_failed(w);
    }
    int folder = open(w->dir, O_RDONLY | O_CLOEXEC);
    if (folder >= 0) { /* the renames are on disk when the folder is */
        fsync(folder);
        close(folder);
    }
    w->committed = true;
    return WEFT_OK;
}

void weft_shard_writer_close(weft_shard_writer *w) {
    if (!w) return;
    if (w->file) fclose(w->file);
    for (int64_t i = 0; i < w->shards && !w->committed; i++) {
        char path[PATH_MAX];
        shard_path(w, i, ".part", path);
        unlink(path);
    }
    free(w->dir);
    free(w->name);
    free(w);
}
