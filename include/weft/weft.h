/* weft: an engine and workbench for transformer architectures.
 *
 * This is the public header. Everything a caller may rely on is here; what is under src/ may
 * change. Functions that can fail return a weft_status and leave one line of explanation in
 * weft_error_message(); nothing aborts on bad input. */
#ifndef WEFT_WEFT_H
#define WEFT_WEFT_H

#ifdef __cplusplus
extern "C" {
#endif

#define WEFT_VERSION_MAJOR 0
#define WEFT_VERSION_MINOR 1
#define WEFT_VERSION_PATCH 0

#if defined(__GNUC__)
#define WEFT_API __attribute__((visibility("default")))
#else
#define WEFT_API
#endif

/* What a call came to. WEFT_EINPUT is the caller's to mend (a shape, a type, a value);
 * WEFT_ENOMEM and WEFT_EIO are the machine's; WEFT_EMISSING names a part that was left out of
 * this build; WEFT_EBUG is ours. */
typedef enum {
    WEFT_OK = 0,
    WEFT_EINPUT,
    WEFT_ENOMEM,
    WEFT_EIO,
    WEFT_EMISSING,
    WEFT_EBUG
} weft_status;

/* "0.1.0", as the WEFT_VERSION_* numbers above. */
WEFT_API const char *weft_version(void);

/* One line on the calling thread's last failure: what, where, and what to do. Empty when nothing
 * failed yet; valid until the thread's next failing call. */
WEFT_API const char *weft_error_message(void);

#ifdef __cplusplus
}
#endif
#endif
