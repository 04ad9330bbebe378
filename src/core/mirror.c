/* Two copies and which of them is newer. */
#include "core/mirror.h"

typedef enum { BOTH, HOST, REMOTE } newer_side;

struct weft_mirror {
    unsigned char *host;
    int64_t bytes;
    const weft_backend *backend; /* NULL: there is no copy */
    unsigned char *remote;
    newer_side newer;
    int64_t writes;
    pthread_mutex_t lock; /* two that only read one model may both find it old */
};

weft_status weft_mirror_create(void *host, int64_t bytes, weft_mirror **out) {
    WEFT_ROOM_AT(*out, 1, "mirror: no memory");
    **out = (weft_mirror){.host = host, .bytes = bytes, .newer = HOST};
    pthread_mutex_init(&(*out)->lock, NULL);
    return WEFT_OK;
}

void weft_mirror_destroy(weft_mirror *m) {
    if (!m) return;
    if (m->remote) m->backend->release(m->remote, m->bytes);
    pthread_mutex_destroy(&m->lock);
    free(m);
}

static bool is_remote(const weft_backend *backend) {
    return backend && backend->remote;
}

weft_status weft_mirror_place(weft_mirror *m, const weft_backend *backend) {
    if (!is_remote(backend)) return WEFT_OK;
    WEFT_LOCK(&m->lock);
    if (m->backend == backend) return WEFT_OK;
    if (m->backend) return WEFT_BAD_INPUT("mirror: it is on %s already", m->backend->name);
    m->remote = backend->alloc(m->bytes);
    if (!m->remote)
        return weft_fail(WEFT_ENOMEM, "%s: no memory for %.2f GiB of weights or state",
                         backend->name, (double)m->bytes / (1024.0 * 1024.0 * 1024.0));
    m->backend = backend;
    m->newer = HOST;
    return WEFT_OK;
}

void *weft_mirror_at(const weft_mirror *m, const weft_backend *backend, void *host) {
    if (!host || !is_remote(backend)) return host;
    return m->remote + ((unsigned char *)host - m->host);
}

weft_status weft_mirror_use(weft_mirror *m, const weft_backend *backend) {
    bool there = is_remote(backend);
    WEFT_LOCK(&m->lock);
    if (!m->remote || m->newer != (there ? HOST : REMOTE)) return WEFT_OK;
    WEFT_TRY(there ? m->backend->upload(m->remote, m->host, m->bytes)
                   : m->backend->download(m->host, m->remote, m->bytes));
    m->newer = BOTH;
    return WEFT_OK;
}

void weft_mirror_wrote(weft_mirror *m, const weft_backend *backend) {
    WEFT_LOCK(&m->lock);
    m->newer = is_remote(backend) ? REMOTE : HOST;
    if (!is_remote(backend)) m->writes++;
}

weft_status weft_mirror_read(weft_mirror *m, const void *host, int64_t bytes, void *out) {
    WEFT_LOCK(&m->lock);
    if (m->remote && m->newer == REMOTE)
        return m->backend->download(out, m->remote + ((const unsigned char *)host - m->host),
                                    bytes);
    memcpy(out, host, (size_t)bytes);
    return WEFT_OK;
}

int64_t weft_mirror_writes(weft_mirror *m) {
    WEFT_LOCK(&m->lock);
    return m->writes;
}
