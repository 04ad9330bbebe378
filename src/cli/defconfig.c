/* A file in the working folder comes first: a name means what it meant without the studies beside the
 * program. */
#include "cli/defconfig.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

const char *weft_defconfig_find(const char *name, char room[WEFT_PATH_MAX]) {
    static const char *const beside[] = {"../share/weft/defconfigs", "../defconfigs"};
    char program[PATH_MAX];
    if (!name || strchr(name, '/') || *name == '.' || access(name, F_OK) == 0) return name;
    ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
    if (n < 1) return name;
    program[n] = '\0';
    char *slash = strrchr(program, '/');
    if (!slash) return name;
    *slash = '\0';
    for (size_t i = 0; i < sizeof beside / sizeof beside[0]; i++) {
        int length = snprintf(room, WEFT_PATH_MAX, "%s/%s/%s", program, beside[i], name);
        if (length < WEFT_PATH_MAX && access(room, R_OK) == 0) return room;
    }
    return name;
}
