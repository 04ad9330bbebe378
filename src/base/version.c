/* The build gives this file alone the commit, so that a new one compiles nothing else again. */
#include "base/version.h"

#ifndef WEFT_GIT_COMMIT
#define WEFT_GIT_COMMIT "unknown"
#endif

const char *weft_git_commit(void) {
    return WEFT_GIT_COMMIT;
}
