/* Mapped token shards. Nothing that a file says of itself is believed before its size bears it
 * out, since reading past the end of a mapped file ends the program. For the same reason each
 * window first asks whether the file is still as long as it was. */
#include "data/shards.h"

#include "base/crc32c.h"
#include "base/folders.h"
#include "base/text.h"
#include "data/tokens.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

enum {
    HEADER_BYTES = WEFT_SHARD_HEADER * 4,
    SUM_BLOCK = 65536,
    LOOK = 65536 /* tokens of each shard whose size is looked at when it is opened */
};

typedef struct {
    char *path;
    const unsigned char *map; /* the whole file */
    int64_t bytes;
    int64_t count;
    int size; /* bytes of a token: 2, 4 */
    dev_t device;
    ino_t inode;
} shard;

typedef struct {
    shard *all; /* by name */
    int64_t count, room, tokens;
} shard_list;

struct weft_shards {
    char *folder;
    int64_t vocab, largest;
    shard_list splits[2];
    int64_t bytes; /* of all files */
};

static const char *const SPLIT_NAMES[2] = {"train", "val"};

static uint32_t read_token(const shard *s, int64_t at) {
    const unsigned char *b = s->map + HEADER_BYTES + at * s->size;
    return s->size == 2 ? (uint32_t)(b[0] | b[1] << 8) : weft_shard_u32(b);
}

static bool is_shard_of(const char *name, const char *split) {
    size_t length = strlen(name), word = strlen(split);
    if (length < 4 || strcmp(name + length - 4, ".bin") != 0 || name[0] == '.') return false;
    for (const char *at = strstr(name, split); at; at = strstr(at + 1, split))
        if ((at == name || at[-1] == '_') && at[word] == '_') return true;
    return false;
}

static weft_status map_shard(shard *s) {
    WEFT_AUTO_CLOSE int file = open(s->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat is;
    if (file < 0 || fstat(file, &is) != 0) return weft_path_failed(s->path);
    if (!S_ISREG(is.st_mode))
        return WEFT_BAD_INPUT("%s: a folder, pipe or device; a shard is a file", s->path);
    if (is.st_size < HEADER_BYTES)
        return WEFT_BAD_INPUT("%s: damaged: %lld bytes are too few for a shard's header; make it "
                              "again with weft tokenize",
                              s->path, (long long)is.st_size);
    void *map = mmap(NULL, (size_t)is.st_size, PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED)
        return weft_fail(WEFT_EIO, "%s: cannot map it: %s", s->path, strerror(errno));
    s->map = map;
    s->bytes = is.st_size;
    s->device = is.st_dev;
    s->inode = is.st_ino;
    uint32_t count = weft_shard_u32(s->map + 8);
    s->size = weft_shard_width(s->map);
    if (!s->size)
        return WEFT_BAD_INPUT(
            "%s: not a token shard (magic %u, version %u); make one with weft tokenize", s->path,
            weft_shard_u32(s->map), weft_shard_u32(s->map + 4));
    int64_t has = (s->bytes - HEADER_BYTES) / s->size;
    if (count < 1 || count > INT32_MAX || has != (int64_t)count ||
        (s->bytes - HEADER_BYTES) % s->size)
        return WEFT_BAD_INPUT("%s: damaged: its header says %u tokens, and its %lld bytes hold "
                              "%lld; make it again with weft tokenize",
                              s->path, count, (long long)s->bytes, (long long)has);
    s->count = count;
    return WEFT_OK;
}

/* The texts that the configs in defconfigs/ train on can be had by name, so the error has the
 * command: as it is printed it works in the repository's folder. */
static weft_status refuse_missing_text(const char *folder) {
    if (strstr(folder, "fineweb"))
        return WEFT_BAD_INPUT(
            "DATASET %s: %s; with a network, put FineWeb-Edu's shards there by: "
            "scripts/stream_dataset.py --tokenizer openai-community/gpt2 data/gpt2 && "
            "scripts/stream_dataset.py HuggingFaceFW/fineweb-edu --name sample-10BT | "
            "build/weft tokenize --tokenizer data/gpt2 --jsonl text --val-share 0.001 "
            "--out %s - ; or take CONFIG_DATASET=embedded",
            folder, strerror(errno), folder);
    return WEFT_BAD_INPUT(
        "DATASET %s: %s; on Debian, make it by: scripts/corpus --out %s && build/weft tokenize "
        "--tokenizer data/gpt2 --jsonl text --out %s %s/train.jsonl --val %s/val.jsonl (data/gpt2: "
        "GPT-2's vocab.bpe and encoder.json, or a tokenizer.json by build/weft tokenizer train); "
        "or take CONFIG_DATASET=embedded",
        folder, strerror(errno), folder, folder, folder, folder);
}

/* A part of a shard is what weft tokenize leaves when it is cut off; the shards that have their names
 * are then not all. */
static weft_status take_name(weft_shards *s, const char *name) {
    size_t n = strlen(name);
    /* NAME_000000.bin.part */
    if (n > 15 && strcmp(name + n - 9, ".bin.part") == 0 &&
        strspn(name + n - 15, "0123456789") == 6)
        return WEFT_BAD_INPUT("DATASET %s: is not whole: weft tokenize was cut off or goes on "
                              "(%s); run it again into a new folder, or remove its parts",
                              s->folder, name);
    for (int split = 0; split < 2; split++) {
        shard_list *list = &s->splits[split];
        if (!is_shard_of(name, SPLIT_NAMES[split])) continue;
        char *path = NULL;
        if (!weft_grow_list(&list->all, &list->room, list->count + 1, sizeof *list->all) ||
            asprintf(&path, "%s/%s", s->folder, name) < 0)
            return weft_fail(WEFT_ENOMEM, "%s: no memory for the names of its shards", s->folder);
        list->all[list->count++] = (shard){.path = path};
        return WEFT_OK;
    }
    return WEFT_OK;
}

weft_status weft_shards_open(const char *folder, int64_t vocab, weft_shards **out) {
    *out = NULL;
    WEFT_AUTO(weft_shards_close_at) weft_shards *s = calloc(1, sizeof *s);
    if (s) s->folder = strdup(folder);
    if (!s || !s->folder) return weft_fail(WEFT_ENOMEM, "%s: no memory", folder);
    s->vocab = vocab;
    DIR *root = opendir(s->folder);
    if (!root && errno == ENOENT &&
        (strstr(s->folder, "fineweb") || strstr(s->folder, "debian-docs")))
        return refuse_missing_text(s->folder);
    if (!root)
        return weft_fail(errno == ENOENT || errno == ENOTDIR ? WEFT_EINPUT : WEFT_EIO,
                         "DATASET %s: %s; it is embedded, recall, entailment or a folder of "
                         "train_*.bin and val_*.bin shards, which weft tokenize makes",
                         s->folder, strerror(errno));
    closedir(root);
    WEFT_AUTO(weft_names_free) weft_names names = {0};
    WEFT_TRY(weft_folder_list(s->folder, &names));
    for (int i = 0; i < names.n; i++)
        WEFT_TRY(take_name(s, names.list[i]));
    for (int split = 0; split < 2; split++) {
        shard_list *list = &s->splits[split];
        if (!list->count)
            return WEFT_BAD_INPUT("DATASET %s: no %s_*.bin in it; a dataset has train_*.bin and "
                                  "val_*.bin shards, which weft tokenize makes",
                                  s->folder, SPLIT_NAMES[split]);
        for (shard *one = list->all; one < list->all + list->count; one++) {
            WEFT_TRY(map_shard(one));
            list->tokens += one->count;
            s->bytes += one->bytes;
            for (int64_t t = 0; t < one->count && t < LOOK; t++) {
                int64_t token = read_token(one, t);
                if (token > s->largest) s->largest = token;
            }
        }
    }
    return weft_hand(&s, out);
}

void weft_shards_close(weft_shards *s) {
    if (!s) return;
    for (shard_list *list = s->splits; list < s->splits + 2; list++) {
        for (int64_t i = 0; i < list->count; i++) {
            shard *one = &list->all[i];
            if (one->map) munmap((void *)(uintptr_t)one->map, (size_t)one->bytes);
            free(one->path);
        }
        free(list->all);
    }
    WEFT_FREE(s->folder, s);
}

int64_t weft_shards_vocab(const weft_shards *s) {
    return s->largest >= s->vocab ? s->largest + 1 : s->vocab;
}

int64_t weft_shards_tokens(const weft_shards *s, weft_split split) {
    return s->splits[split].tokens;
}

weft_status weft_shards_sum(const weft_shards *s, uint32_t *crc) {
    *crc = 0;
    int64_t part = s->bytes / WEFT_SHARDS_SUMMED + 1, stride = SUM_BLOCK * part;
    WEFT_ROOM(unsigned char, block, SUM_BLOCK, "%s: no memory for its checksum", s->folder);
    for (const shard_list *list = s->splits; list < s->splits + 2; list++)
        for (const shard *one = list->all; one < list->all + list->count; one++) {
            const char *slash = strrchr(one->path, '/');
            WEFT_AUTO_CLOSE int fd = -1;
            *crc = weft_crc32c(*crc, slash, strlen(slash) + 1);
            *crc = weft_crc32c(*crc, &one->bytes, sizeof one->bytes);
            WEFT_TRY(weft_file_open(one->path, &fd));
            for (int64_t at = 0; at < one->bytes; at += stride) {
                ssize_t n = pread(fd, block, SUM_BLOCK, (off_t)at);
                if (n <= 0)
                    return weft_fail(WEFT_EIO, "%s: %s", one->path,
                                     n < 0 ? strerror(errno) : "is shorter than it was");
                *crc = weft_crc32c(*crc, block, (size_t)n);
            }
        }
    return WEFT_OK;
}

weft_status weft_shards_fill(const weft_shards *s, const weft_sequence_place *p, int64_t time,
                             int32_t *tokens, int32_t *targets) {
    const shard_list *list = &s->splits[p->split];
    int64_t starts = 0;
    for (int64_t i = 0; i < list->count; i++)
        if (list->all[i].count > time) starts += list->all[i].count - time;
    if (!starts)
        return WEFT_BAD_INPUT("DATASET %s: no %s shard has the %lld tokens of one sequence; lower "
                              "CONTEXT or make longer shards",
                              s->folder, SPLIT_NAMES[p->split], (long long)time + 1);
    weft_random_stream random = weft_random_stream_at(p, "data.shards.train", "data.shards.val", 0);
    uint64_t high = weft_random_stream_word(&random), low = weft_random_stream_word(&random);
    int64_t at = (int64_t)((high << 32 | low) % (uint64_t)starts);
    const shard *from = list->all; /* of the window that is `at`-th of all */
    for (; from->count <= time || at >= from->count - time; from++)
        if (from->count > time) at -= from->count - time;
    struct stat is; /* another file of that name is no matter: the map is of the old one */
    if (stat(from->path, &is) == 0 && is.st_dev == from->device && is.st_ino == from->inode &&
        is.st_size < from->bytes)
        return weft_fail(WEFT_EIO, "%s: cut from %lld to %lld bytes while in use", from->path,
                         (long long)from->bytes, (long long)is.st_size);
    for (int64_t t = 0; t <= time; t++) {
        uint32_t token = read_token(from, at + t);
        if (token >= s->vocab)
            return WEFT_BAD_INPUT("%s: token %u at position %lld is not below VOCAB_SIZE %lld; "
                                  "these shards are of another tokenizer",
                                  from->path, token, (long long)(at + t), (long long)s->vocab);
        if (t < time) tokens[t] = (int32_t)token;
        if (t) targets[t - 1] = (int32_t)token;
    }
    return WEFT_OK;
}

/* Writing of token shards. A shard is a stream until its tokens are counted; then the header, left
 * empty before, is written over. Tokens are little-endian words in a file, whatever the machine. */

enum { SOME = 4096 };

struct weft_shard_writer {
    char *dir, *name;
    int width; /* bytes of a token */
    int64_t shard_tokens, tokens, shards, in_shard;
    int64_t placed; /* shards that have their names */
    FILE *file;     /* NULL: between shards */
    bool committed;
};

static void shard_path(const weft_shard_writer *w, int64_t number, const char *tail,
                       char path[WEFT_PATH_MAX]) {
    snprintf(path, WEFT_PATH_MAX, "%s/%s_%06lld.bin%s", w->dir, w->name, (long long)number, tail);
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

weft_status weft_shard_writer_open(const char *dir, const char *name, int64_t vocab,
                                   int64_t shard_tokens, weft_shard_writer **out) {
    *out = NULL;
    if (strlen(dir) + strlen(name) + 32 > WEFT_PATH_MAX)
        return WEFT_BAD_INPUT("%.80s...: the name is too long", dir);
    if (shard_tokens < 1 || shard_tokens > INT32_MAX)
        return WEFT_BAD_INPUT("a shard holds from 1 to %d tokens, not %lld", INT32_MAX,
                              (long long)shard_tokens);
    /* Refuses a folder that has such shards; removes what an interrupted run left. */
    WEFT_AUTO(weft_names_free) weft_names list = {0};
    WEFT_TRY(weft_folder_make(dir));
    WEFT_TRY(weft_folder_list(dir, &list));
    size_t n = strlen(name);
    bool parts = false;
    for (int i = 0; i < list.n; i++)
        parts = parts || is_part(list.list[i], name);
    for (int i = 0; i < list.n; i++) {
        const char *is = list.list[i], *tail = strrchr(is, '.');
        if (strncmp(is, name, n) == 0 && is[n] == '_' && tail && strcmp(tail, ".bin") == 0)
            return WEFT_BAD_INPUT("%s: has shards already (%s)%s; name another folder", dir, is,
                                  parts ? ", not all of them: a command was cut off here" : "");
    }
    for (int i = 0; i < list.n; i++) {
        unsigned char head[8] = {0};
        WEFT_AUTO_CLOSE int fd = -1;
        if (!is_part(list.list[i], name)) continue;
        /* By its name a part of a shard, and by its first bytes too. Of an empty file nothing is lost. */
        WEFT_PATH(path, "%s/%s", dir, list.list[i]);
        WEFT_TRY(weft_file_open(path, &fd));
        ssize_t got = read(fd, head, sizeof head);
        if (got > 0 && !weft_shard_width(head))
            return WEFT_BAD_INPUT("%s: is not a part of a shard that weft began; move it away, or "
                                  "name another folder",
                                  path);
        if (got < 0 || unlink(path) != 0) return weft_path_failed(path);
    }
    WEFT_AUTO(weft_shard_writer_close_at) weft_shard_writer *w = calloc(1, sizeof *w);
    if (w) w->dir = strdup(dir);
    if (w) w->name = strdup(name);
    if (!w || !w->dir || !w->name)
        return weft_fail(WEFT_ENOMEM, "%s: no memory to write shards", dir);
    w->width = vocab <= 65536 ? 2 : 4;
    w->shard_tokens = shard_tokens;
    return weft_hand(&w, out);
}

static bool write_header(weft_shard_writer *w) {
    uint8_t header[WEFT_SHARD_HEADER * 4] = {0};
    put_word(header, w->width == 2 ? WEFT_SHARD_MAGIC_16 : WEFT_SHARD_MAGIC_32, 4);
    put_word(header + 4, w->width == 2 ? WEFT_SHARD_VERSION_16 : WEFT_SHARD_VERSION_32, 4);
    put_word(header + 8, (uint32_t)w->in_shard, 4);
    return fwrite(header, 1, sizeof header, w->file) == sizeof header;
}

static weft_status end_shard(weft_shard_writer *w) {
    bool ok = fseek(w->file, 0, SEEK_SET) == 0 && write_header(w) && fflush(w->file) == 0 &&
              fsync(fileno(w->file)) == 0;
    weft_status status = ok ? WEFT_OK : write_failed(w);
    if (fclose(w->file) != 0 && ok) status = write_failed(w);
    w->file = NULL;
    return status;
}

weft_status weft_shard_writer_put(weft_shard_writer *w, const int32_t *tokens, int64_t count) {
    uint8_t words[SOME * 4];
    for (int64_t done = 0; done < count;) {
        if (!w->file) {
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
            if (!write_header(w)) return write_failed(w);
        }
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

weft_status weft_shard_writers_commit(weft_shard_writer *const *writers, int n) {
    char from[WEFT_PATH_MAX], to[WEFT_PATH_MAX];
    weft_kind kind;
    for (int i = 0; i < n; i++)
        if (writers[i]->file) WEFT_TRY(end_shard(writers[i]));
    for (int i = n - 1; i >= 0; i--) {
        weft_shard_writer *w = writers[i];
        for (; w->placed < w->shards; w->placed++) {
            shard_path(w, w->placed, ".part", from);
            shard_path(w, w->placed, "", to);
            /* No shard is overwritten that another put there meanwhile. */
            WEFT_TRY(weft_path_kind(to, &kind));
            if (kind != WEFT_KIND_NOTHING)
                return weft_fail(WEFT_EIO, "%s: appeared while its text was tokenized", to);
            if (rename(from, to) != 0) return write_failed(w);
        }
        WEFT_TRY(weft_folder_sync(w->dir)); /* the renames are on disk when the folder is */
    }
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
    WEFT_FREE(w->dir, w->name, w);
}
