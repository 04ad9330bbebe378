/* The build gives this file alone the commit, so that a new one compiles nothing else again. */
#include "base/version.h"

#include <stdio.h>
#include <sys/utsname.h>
#include <unistd.h>

#ifndef WEFT_GIT_COMMIT
#define WEFT_GIT_COMMIT "unknown"
#endif

const char *weft_git_commit(void) {
    return WEFT_GIT_COMMIT;
}

void weft_machine_text(char *text, size_t room) {
    struct utsname is;
    if (uname(&is) == 0)
        snprintf(text, room, "%s %s %s, %ld processors", is.machine, is.sysname, is.release,
                 sysconf(_SC_NPROCESSORS_ONLN));
    else
        snprintf(text, room, "unknown");
}
