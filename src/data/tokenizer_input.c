/* One growing buffer, filled by read(): it holds the units of a batch, then what is left over of
 * the last file, which moves to the front for the next batch. Nothing is mapped, so a file that
 * shrinks meanwhile is a short text and not a crash. */
#include "data/texts.h"

#include "base/json.h"
#include "base/text.h"
#include "data/tokens.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>

#ifdef WEFT_HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef WEFT_HAVE_ZSTD
#include <zstd.h>
#endif

/* The bytes of a file in their order, from a pipe too: as they are, or by zlib or libzstd what was packed. Its first bytes tell. A
 * packed file may be several packed texts in a row, as cat makes of two; it ends where one of them ends. A build without
 * zlib or libzstd says so of a file that needs it. */
enum { RAW_BYTES = 1 << 17, MAGIC_BYTES = 4 };

typedef enum { PLAIN, GZIP, ZSTD } packing;

typedef struct {
    int file;
    const char *path;
    packing how;
    bool ended;  /* the file is */
    bool inside; /* a packed text that has begun and not ended */
    size_t at, used;
#ifdef WEFT_HAVE_ZLIB
    z_stream gzip;
#endif
#ifdef WEFT_HAVE_ZSTD
    ZSTD_DStream *zstd;
#endif
    unsigned char raw[RAW_BYTES];
} unpacker;

static weft_status read_file(unpacker *u, void *to, size_t room, size_t *got) {
    ssize_t n;
    do
        n = read(u->file, to, room);
    while (n < 0 && errno == EINTR);
    *got = n > 0 ? (size_t)n : 0;
    u->ended = n == 0;
    if (n >= 0) return WEFT_OK;
    return weft_fail(errno == EISDIR ? WEFT_EINPUT : WEFT_EIO, "%s: %s", u->path, strerror(errno));
}

static weft_status refill(unpacker *u) {
    size_t got;
    if (u->at == u->used) u->at = u->used = 0;
    WEFT_TRY(read_file(u, u->raw + u->used, sizeof u->raw - u->used, &got));
    u->used += got;
    return WEFT_OK;
}

static weft_status damaged(const unpacker *u, const char *why) {
    return WEFT_BAD_INPUT("%s: its packed text is damaged: %s", u->path, why);
}

/* Of a packing whose library this build lacks. */
#define MISSING(how, library)                                                                      \
    static weft_status begin_##how(unpacker *u) {                                                  \
        return weft_fail(WEFT_EMISSING,                                                            \
                         "%s: this build cannot read " #how ": it was made without " library       \
                         "; scripts/setup optional installs it, then make configure",              \
                         u->path);                                                                 \
    }                                                                                              \
    static weft_status unpack_##how(unpacker *u, char *to, size_t room, size_t *got) {             \
        (void)to, (void)room, (void)got;                                                           \
        return begin_##how(u);                                                                     \
    }                                                                                              \
    static void end_##how(unpacker *u) {                                                           \
        (void)u;                                                                                   \
    }

#ifdef WEFT_HAVE_ZLIB
static weft_status begin_gzip(unpacker *u) {
    /* 16: with gzip's header */
    if (inflateInit2(&u->gzip, MAX_WBITS + 16) == Z_OK) return WEFT_OK;
    return weft_fail(WEFT_ENOMEM, "%s: no memory to unpack it", u->path);
}

static weft_status unpack_gzip(unpacker *u, char *to, size_t room, size_t *got) {
    u->gzip.next_in = u->raw + u->at;
    u->gzip.avail_in = (uInt)(u->used - u->at);
    u->gzip.next_out = (unsigned char *)to;
    u->gzip.avail_out = (uInt)room;
    int said = inflate(&u->gzip, Z_NO_FLUSH);
    u->at = u->used - u->gzip.avail_in;
    *got = room - u->gzip.avail_out;
    u->inside = said != Z_STREAM_END;
    if (!u->inside) inflateReset(&u->gzip);
    if (said == Z_OK || said == Z_STREAM_END || said == Z_BUF_ERROR) return WEFT_OK;
    return damaged(u, u->gzip.msg ? u->gzip.msg : "zlib cannot read it");
}

static void end_gzip(unpacker *u) {
    inflateEnd(&u->gzip);
}
#else
MISSING(gzip, "zlib")
#endif

#ifdef WEFT_HAVE_ZSTD
static weft_status begin_zstd(unpacker *u) {
    u->zstd = ZSTD_createDStream();
    return u->zstd ? WEFT_OK : weft_fail(WEFT_ENOMEM, "%s: no memory to unpack it", u->path);
}

static weft_status unpack_zstd(unpacker *u, char *to, size_t room, size_t *got) {
    ZSTD_inBuffer in = {u->raw, u->used, u->at};
    ZSTD_outBuffer out = {to, room, 0};
    size_t said = ZSTD_decompressStream(u->zstd, &out, &in);
    u->at = in.pos;
    *got = out.pos;
    u->inside = said != 0;
    return ZSTD_isError(said) ? damaged(u, ZSTD_getErrorName(said)) : WEFT_OK;
}

static void end_zstd(unpacker *u) {
    ZSTD_freeDStream(u->zstd);
}
#else
MISSING(zstd, "libzstd")
#endif

static void close_unpacker(unpacker *u) {
    if (!u) return;
    if (u->how == GZIP) end_gzip(u);
    if (u->how == ZSTD) end_zstd(u);
    free(u);
}

WEFT_ENDED_BY(close_unpacker, unpacker)
static weft_status open_unpacker(int file, const char *path, unpacker **out) {
    static const unsigned char gzip[] = {0x1F, 0x8B}, zstd[] = {0x28, 0xB5, 0x2F, 0xFD};
    WEFT_NEW(unpacker, u, close_unpacker, "%s: no memory to read it", path);
    u->file = file;
    u->path = path;
    while (u->used < MAGIC_BYTES && !u->ended)
        WEFT_TRY(refill(u));
    if (u->used >= sizeof gzip && memcmp(u->raw, gzip, sizeof gzip) == 0) {
        WEFT_TRY(begin_gzip(u));
        u->how = GZIP;
    } else if (u->used >= sizeof zstd && memcmp(u->raw, zstd, sizeof zstd) == 0) {
        WEFT_TRY(begin_zstd(u));
        u->how = ZSTD;
    }
    return weft_hand(&u, out);
}

static weft_status read_unpacked(unpacker *u, char *to, size_t room, size_t *got) {
    *got = 0;
    if (u->how == PLAIN && u->at == u->used) return read_file(u, to, room, got);
    if (u->how == PLAIN) { /* what was read to tell */
        *got = u->used - u->at < room ? u->used - u->at : room;
        memcpy(to, u->raw + u->at, *got);
        u->at += *got;
    }
    while (!*got) {
        if (u->at == u->used && !u->ended) WEFT_TRY(refill(u));
        bool all = u->at == u->used;
        if (all && !u->inside) return WEFT_OK;
        WEFT_TRY(u->how == GZIP ? unpack_gzip(u, to, room, got) : unpack_zstd(u, to, room, got));
        if (all && !*got && u->inside) return damaged(u, "it ends too early");
    }
    return WEFT_OK;
}

enum { PART_BYTES = 1 << 20, READ_BYTES = 1 << 20 };

struct weft_input {
    weft_input_options o;
    int64_t total;
    int next; /* path to open */
    int file; /* -1: none is open */
    unpacker *unpack;
    bool ended, hold;
    bool lines; /* of JSON */
    bool starts, in_val;
    int64_t size;  /* of the file; -1: unknown */
    int64_t place; /* in the file, of `start` */
    int64_t line, documents;
    char *buffer;
    size_t start, seen, used, room; /* seen: up to where there is no line end */
    weft_input_unit *units;
    int64_t count, units_room;
};

/* Whether a path ends on `tail`, or on `tail` and a name of packing. */
static bool ends_on(const char *path, const char *tail) {
    static const char *const packed[] = {"", ".gz", ".zst"};
    for (size_t i = 0, n = strlen(path), m = strlen(tail); i < 3; i++) {
        size_t more = strlen(packed[i]);
        if (n >= m + more && strncmp(path + n - m - more, tail, m) == 0 &&
            strcmp(path + n - more, packed[i]) == 0)
            return true;
    }
    return false;
}

/* NULL: the file is plain text. */
static const char *field_of(const weft_input *in, const char *path) {
    if (in->o.field) return in->o.field;
    return ends_on(path, ".jsonl") || ends_on(path, ".ndjson") ? "text" : NULL;
}

weft_status weft_input_open(const weft_input_options *options, weft_input **out) {
    *out = NULL;
    WEFT_NEW(weft_input, in, weft_input_close, "no memory to read texts");
    *in = (weft_input){.o = *options, .file = -1};
    for (int i = 0; i < options->n_paths; i++) {
        struct stat is;
        bool standard = strcmp(options->paths[i], "-") == 0;
        int failed = standard ? fstat(0, &is) : stat(options->paths[i], &is);
        if (failed || (!S_ISREG(is.st_mode) && !standard)) {
            const char *why = failed                ? strerror(errno)
                              : S_ISDIR(is.st_mode) ? "is a folder, not a file"
                                                    : "is a pipe or a device; - reads standard "
                                                      "input";
            return WEFT_BAD_INPUT("%s: %s", options->paths[i], why);
        }
        bool packed = ends_on(options->paths[i], ".gz") || ends_on(options->paths[i], ".zst");
        if (!S_ISREG(is.st_mode) || packed) in->total = -1;
        if (in->total >= 0) in->total += is.st_size;
    }
    if (in->total < 0) in->total = 0;
    return weft_hand(&in, out);
}

void weft_input_close(weft_input *in) {
    if (!in) return;
    if (in->file > 0) close(in->file);
    close_unpacker(in->unpack);
    WEFT_FREE(in->buffer, in->units, in);
}

WEFT_GETTER(int64_t, weft_input_total, weft_input, total)

static const char *path_now(const weft_input *in) {
    return in->o.paths[in->next - 1];
}

/* The beginning of a file: what has a zero byte, or is known for something else, is no text. */
static weft_status check_text(const weft_input *in, const char *bytes, size_t n) {
    const char *zero = memchr(bytes, 0, n), *path = path_now(in);
    bool npy = n > 6 && memcmp(bytes, "\x93NUMPY", 6) == 0;
    if (n > 4 && memcmp(bytes, "PAR1", 4) == 0)
        return WEFT_BAD_INPUT("%s: is a parquet file; scripts/stream_dataset.py FILE | weft "
                              "tokenize --jsonl text ... - reads it",
                              path);
    if (npy || (n > 8 && weft_shard_width((const unsigned char *)bytes)))
        return WEFT_BAD_INPUT("%s: holds tokens, and a text is wanted", path);
    if (n > 2 && zero && (memcmp(bytes, "\xFF\xFE", 2) == 0 || memcmp(bytes, "\xFE\xFF", 2) == 0))
        return WEFT_BAD_INPUT("%s: is UTF-16; iconv -f UTF-16 -t UTF-8 makes UTF-8 of it", path);
    if (!zero) return WEFT_OK;
    return WEFT_BAD_INPUT("%s: is no text: its byte %lld is zero", path, (long long)(zero - bytes));
}

static weft_status fill(weft_input *in) {
    if (in->room - in->used < READ_BYTES) {
        size_t room = in->room ? in->room + in->room / 2 : 4 * READ_BYTES;
        char *buffer = realloc(in->buffer, room);
        if (!buffer) return weft_fail(WEFT_ENOMEM, "%s: no memory to hold it", path_now(in));
        in->buffer = buffer;
        in->room = room;
    }
    size_t got;
    char *to = in->buffer + in->used;
    WEFT_TRY(read_unpacked(in->unpack, to, READ_BYTES, &got));
    if (in->place == 0 && in->used == in->start) WEFT_TRY(check_text(in, to, got));
    in->used += got;
    in->ended = got == 0;
    return WEFT_OK;
}

static weft_status add_unit(weft_input *in, size_t end, bool val) {
    if (!weft_grow_list(&in->units, &in->units_room, in->count + 1, sizeof *in->units))
        return weft_fail(WEFT_ENOMEM, "%s: no memory", path_now(in));
    in->units[in->count++] = (weft_input_unit){.at = in->start,
                                               .bytes = end - in->start,
                                               .starts = in->starts,
                                               .val = val,
                                               .path = in->next - 1,
                                               .line = in->line};
    in->place += (int64_t)(end - in->start);
    in->start = end;
    return WEFT_OK;
}

static weft_status cut_lines(weft_input *in) {
    while (in->start < in->used) {
        const char *from = in->buffer + in->seen;
        const char *end = memchr(from, '\n', in->used - in->seen);
        if (!end && !in->ended) {
            in->seen = in->used;
            return WEFT_OK;
        }
        size_t stop = end ? (size_t)(end - in->buffer) + 1 : in->used;
        in->line++;
        in->starts = true;
        /* Document n is held out when the share of n+1 documents is one more than of n. */
        double n = (double)in->documents++, share = in->o.val_share;
        WEFT_TRY(add_unit(in, stop, floor((n + 1) * share) > floor(n * share) || in->in_val));
        in->seen = stop;
    }
    return WEFT_OK;
}

static weft_status cut_text(weft_input *in) {
    int64_t size = in->size >= 0 ? in->size : in->place + (int64_t)(in->used - in->start);
    int64_t val_at = (int64_t)((double)size * (1 - in->o.val_share));
    while (in->start < in->used) {
        size_t left = in->used - in->start, end = in->used;
        bool boundary = false;
        if (!in->in_val && in->o.val_share > 0 && (in->hold || in->place + PART_BYTES >= val_at)) {
            int64_t some = val_at - in->place;
            size_t at = in->start + (some > 0 ? (size_t)some : 0);
            const char *line = at < in->used ? memchr(in->buffer + at, '\n', in->used - at) : NULL;
            if (line) end = (size_t)(line - in->buffer) + 1;
            if (!line && !in->ended) return WEFT_OK;
            boundary = true;
        } else if (!in->hold && left > PART_BYTES) {
            const char *s = in->buffer;
            end = in->start + PART_BYTES;
            while (end < in->used &&
                   ((s[end] != ' ' && s[end] != '\n') || s[end - 1] <= ' ' || s[end - 1] >= 0x7F))
                end++;
            if (end == in->used && !in->ended) return WEFT_OK;
        } else if (!in->ended) {
            return WEFT_OK;
        }
        WEFT_TRY(add_unit(in, end, in->in_val));
        in->starts = boundary;
        in->in_val = in->in_val || boundary;
    }
    return WEFT_OK;
}

weft_status weft_input_next(weft_input *in, size_t want, const weft_input_unit **units,
                            int64_t *count) {
    size_t left = in->used - in->start;
    if (left) memmove(in->buffer, in->buffer + in->start, left);
    in->seen -= in->seen < in->start ? in->seen : in->start;
    in->start = 0;
    in->used = left;
    in->count = 0;
    while (in->start < want && (in->file >= 0 || in->next < in->o.n_paths)) {
        if (in->file < 0) {
            const char *path = in->o.paths[in->next++];
            struct stat is;
            in->file = strcmp(path, "-") == 0 ? 0 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
            if (in->file < 0) return WEFT_BAD_INPUT("%s: %s", path, strerror(errno));
            WEFT_TRY(open_unpacker(in->file, path, &in->unpack));
            bool known = fstat(in->file, &is) == 0 && S_ISREG(is.st_mode);
            in->size = known && in->unpack->how == PLAIN ? is.st_size : -1;
            in->ended = false;
            in->lines = field_of(in, path) != NULL;
            in->hold = !in->lines && (!in->o.cuttable || (in->size < 0 && in->o.val_share > 0));
            in->starts = true;
            in->in_val = path == in->o.val_path;
            in->place = in->line = 0;
            in->start = in->seen = in->used;
        }
        if (!in->ended) WEFT_TRY(fill(in));
        if (in->hold && !in->ended) continue;
        WEFT_TRY(in->lines ? cut_lines(in) : cut_text(in));
        if (!in->ended || in->start < in->used) continue;
        close_unpacker(in->unpack);
        in->unpack = NULL;
        if (in->file > 0) close(in->file);
        in->file = -1;
    }
    for (int64_t i = 0; i < in->count; i++)
        in->units[i].text = in->buffer + in->units[i].at;
    *units = in->units;
    *count = in->count;
    return WEFT_OK;
}

weft_status weft_input_text(const weft_input *in, const weft_input_unit *unit, char **keep,
                            const char **text, size_t *bytes) {
    const char *path = in->o.paths[unit->path], *field = field_of(in, path);
    *keep = NULL;
    *text = unit->text;
    *bytes = unit->bytes;
    if (!field) return WEFT_OK;
    size_t blank = 0;
    while (blank < unit->bytes && strchr(" \t\r\n", unit->text[blank]) && unit->text[blank])
        blank++;
    *bytes = 0;
    if (blank == unit->bytes) return WEFT_OK;
    json_error_t error;
    WEFT_AUTO_DECREF json_t *line = weft_json_read(unit->text, unit->bytes, JSON_ALLOW_NUL, &error);
    if (!line)
        return WEFT_BAD_INPUT("%s, line %lld: is no JSON: %.80s", path, (long long)unit->line,
                              error.text);
    const json_t *value = json_object_get(line, field);
    if (!json_is_string(value))
        return WEFT_BAD_INPUT("%s, line %lld: has no text in a field \"%s\"", path,
                              (long long)unit->line, field);
    *bytes = json_string_length(value);
    *text = *keep = malloc(*bytes + 1);
    if (!*keep) return weft_fail(WEFT_ENOMEM, "%s: no memory for a line of it", path);
    memcpy(*keep, json_string_value(value), *bytes);
    return WEFT_OK;
}
