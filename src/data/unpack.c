/* Three ways from a buffer of the file's bytes to the text: as they are, by zlib, by libzstd. A packed file may
 * be several packed texts in a row, as cat makes of two; it ends where one of them ends. */
#include "data/texts.h"

#include <errno.h>

#ifdef WEFT_HAVE_ZLIB
#include <zlib.h>
#endif
#ifdef WEFT_HAVE_ZSTD
#include <zstd.h>
#endif

enum { RAW_BYTES = 1 << 17, MAGIC_BYTES = 4 };

typedef enum { PLAIN, GZIP, ZSTD } packing;

struct weft_unpack {
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
};

static weft_status read_file(weft_unpack *u, void *to, size_t room, size_t *got) {
    ssize_t n;
    do
        n = read(u->file, to, room);
    while (n < 0 && errno == EINTR);
    *got = n > 0 ? (size_t)n : 0;
    u->ended = n == 0;
    if (n >= 0) return WEFT_OK;
    return weft_fail(errno == EISDIR ? WEFT_EINPUT : WEFT_EIO, "%s: %s", u->path, strerror(errno));
}

static weft_status refill(weft_unpack *u) {
    size_t got;
    if (u->at == u->used) u->at = u->used = 0;
    WEFT_TRY(read_file(u, u->raw + u->used, sizeof u->raw - u->used, &got));
    u->used += got;
    return WEFT_OK;
}

static weft_status damaged(const weft_unpack *u, const char *why) {
    return WEFT_BAD_INPUT("%s: its packed text is damaged: %s", u->path, why);
}

/* Of a packing whose library this build lacks. */
#define MISSING(how, library)                                                                      \
    static weft_status begin_##how(weft_unpack *u) {                                               \
        return weft_fail(WEFT_EMISSING,                                                            \
                         "%s: this build cannot read " #how ": it was made without " library       \
                         "; scripts/setup optional installs it, then make configure",              \
                         u->path);                                                                 \
    }                                                                                              \
    static weft_status unpack_##how(weft_unpack *u, char *to, size_t room, size_t *got) {          \
        (void)to, (void)room, (void)got;                                                           \
        return begin_##how(u);                                                                     \
    }                                                                                              \
    static void end_##how(weft_unpack *u) {                                                        \
        (void)u;                                                                                   \
    }

#ifdef WEFT_HAVE_ZLIB
static weft_status begin_gzip(weft_unpack *u) {
    /* 16: with gzip's header */
    if (inflateInit2(&u->gzip, MAX_WBITS + 16) == Z_OK) return WEFT_OK;
    return weft_fail(WEFT_ENOMEM, "%s: no memory to unpack it", u->path);
}

static weft_status unpack_gzip(weft_unpack *u, char *to, size_t room, size_t *got) {
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

static void end_gzip(weft_unpack *u) {
    inflateEnd(&u->gzip);
}
#else
MISSING(gzip, "zlib")
#endif

#ifdef WEFT_HAVE_ZSTD
static weft_status begin_zstd(weft_unpack *u) {
    u->zstd = ZSTD_createDStream();
    return u->zstd ? WEFT_OK : weft_fail(WEFT_ENOMEM, "%s: no memory to unpack it", u->path);
}

static weft_status unpack_zstd(weft_unpack *u, char *to, size_t room, size_t *got) {
    ZSTD_inBuffer in = {u->raw, u->used, u->at};
    ZSTD_outBuffer out = {to, room, 0};
    size_t said = ZSTD_decompressStream(u->zstd, &out, &in);
    u->at = in.pos;
    *got = out.pos;
    u->inside = said != 0;
    return ZSTD_isError(said) ? damaged(u, ZSTD_getErrorName(said)) : WEFT_OK;
}

static void end_zstd(weft_unpack *u) {
    ZSTD_freeDStream(u->zstd);
}
#else
MISSING(zstd, "libzstd")
#endif

static weft_status begin(weft_unpack *u) {
    static const unsigned char gzip[] = {0x1F, 0x8B}, zstd[] = {0x28, 0xB5, 0x2F, 0xFD};
    while (u->used < MAGIC_BYTES && !u->ended)
        WEFT_TRY(refill(u));
    if (u->used >= sizeof gzip && memcmp(u->raw, gzip, sizeof gzip) == 0) {
        WEFT_TRY(begin_gzip(u));
        u->how = GZIP;
    } else if (u->used >= sizeof zstd && memcmp(u->raw, zstd, sizeof zstd) == 0) {
        WEFT_TRY(begin_zstd(u));
        u->how = ZSTD;
    }
    return WEFT_OK;
}

weft_status weft_unpack_open(int file, const char *path, weft_unpack **out) {
    weft_unpack *u = *out = calloc(1, sizeof *u);
    if (!u) return weft_fail(WEFT_ENOMEM, "%s: no memory to read it", path);
    u->file = file;
    u->path = path;
    weft_status status = begin(u);
    if (status != WEFT_OK) weft_unpack_close(weft_steal(out));
    return status;
}

void weft_unpack_close(weft_unpack *u) {
    if (!u) return;
    if (u->how == GZIP) end_gzip(u);
    if (u->how == ZSTD) end_zstd(u);
    free(u);
}

bool weft_unpack_is_packed(const weft_unpack *u) {
    return u->how != PLAIN;
}

weft_status weft_unpack_read(weft_unpack *u, char *to, size_t room, size_t *got) {
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
