/* The thread's last error message, and the version. */
#include "base/text.h"

#include <stdarg.h>

enum { ERROR_MESSAGE_MAX = 1024 };

static _Thread_local char error_message[ERROR_MESSAGE_MAX];

weft_status weft_fail(weft_status status, const char *format, ...) {
    /* Formatted aside first, since an argument may be the old message itself. */
    char text[ERROR_MESSAGE_MAX];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    /* One line, whatever a file or a user put into it. */
    weft_text_show(text, error_message, sizeof error_message);
    return status;
}

weft_status weft_no_memory(const char *who) {
    return weft_fail(WEFT_ENOMEM, "%s: no memory", who);
}

const char *weft_error_message(void) {
    return error_message;
}

#define STRINGIFY_(x) #x
#define STRINGIFY(x) STRINGIFY_(x)

const char *weft_version(void) {
    return STRINGIFY(WEFT_VERSION_MAJOR) "." STRINGIFY(WEFT_VERSION_MINOR) "." STRINGIFY(
        WEFT_VERSION_PATCH);
}
