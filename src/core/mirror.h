/* Host memory with a copy on a device: weights and an optimizer's state, which kernels change there
 * and the host reads, saves and sets here.
 *
 * Whoever is about to use one side asks for it (weft_mirror_use), and says afterwards if it changed
 * it (weft_mirror_wrote); what is newer is copied over only then. Where the backend's memory is the
 * host's there is no copy, and none of this does anything. */
#pragma once

#include "core/exec.h"

typedef struct weft_mirror weft_mirror;

/* Over `bytes` of the caller's memory, which must outlive it. */
weft_status weft_mirror_create(void *host, int64_t bytes, weft_mirror **out);
void weft_mirror_destroy(weft_mirror *m);

/* Makes room on a backend, for good: a mirror has one copy. Nothing to do on the host's own. */
weft_status weft_mirror_place(weft_mirror *m, const weft_backend *backend);
/* Where the backend finds what lies at `host`, an address inside the memory; NULL for NULL. */
void *weft_mirror_at(const weft_mirror *m, const weft_backend *backend, void *host);

/* Brings the backend's side up to date; NULL: the host's. Where the copy fails, that side is as old as
 * it was or worse, and must not be used. */
weft_status weft_mirror_use(weft_mirror *m, const weft_backend *backend)
    __attribute__((warn_unused_result));
/* The backend's side was changed, after weft_mirror_use; NULL: the host's. */
void weft_mirror_wrote(weft_mirror *m, const weft_backend *backend);

/* Copies the newer side's bytes at `host` out, without bringing all of it over. */
weft_status weft_mirror_read(weft_mirror *m, const void *host, int64_t bytes, void *out)
    __attribute__((warn_unused_result));

/* How often the host's side was changed: whether another has written since one looked. */
int64_t weft_mirror_writes(weft_mirror *m);
