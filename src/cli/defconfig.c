/* A file in the working folder comes first: a name means what it meant without the studies beside the
 * program. */
#include "cli/defconfig.h"

#include "base/text.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const beside[] = {"../share/weft/defconfigs", "defconfigs"};
enum { N_BESIDE = sizeof beside / sizeof beside[0] };

/* A plain word may be a study's name; a path is a path. */
static bool may_be_name(const char *name) {
    return name && !strchr(name, '/') && *name != '.' && access(name, F_OK) != 0;
}

/* The folder that the program is in; false: it cannot be told. */
static bool find_program(char folder[PATH_MAX]) {
    ssize_t n = readlink("/proc/self/exe", folder, PATH_MAX - 1);
    if (n < 1) return false;
    folder[n] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash) *slash = '\0';
    return slash != NULL;
}

const char *weft_defconfig_find(const char *name, char room[WEFT_PATH_MAX]) {
    char program[PATH_MAX];
    if (!may_be_name(name) || !find_program(program)) return name;
    for (int i = 0; i < N_BESIDE; i++) {
        int length = snprintf(room, WEFT_PATH_MAX, "%s/%s/%s", program, beside[i], name);
        if (length < WEFT_PATH_MAX && access(room, R_OK) == 0) return room;
    }
    return name;
}

static void offer_all(const char *folder, weft_nearest *to, char nearest[WEFT_PATH_MAX]) {
    DIR *list = opendir(folder);
    for (struct dirent *e; list && (e = readdir(list));) {
        if (*e->d_name == '.') continue;
        weft_nearest_offer(to, e->d_name);
        if (to->name != e->d_name) continue;
        snprintf(nearest, WEFT_PATH_MAX, "%s", e->d_name); /* the entry does not last */
        to->name = nearest;
    }
    if (list) closedir(list);
}

bool weft_defconfig_is_missing(const char *name, char nearest[WEFT_PATH_MAX]) {
    char program[PATH_MAX], folder[WEFT_PATH_MAX];
    *nearest = '\0';
    if (!may_be_name(name) || !find_program(program)) return false;
    weft_nearest to = weft_nearest_slip(name);
    for (int i = 0; i < N_BESIDE; i++)
        if (snprintf(folder, sizeof folder, "%s/%s", program, beside[i]) < (int)sizeof folder)
            offer_all(folder, &to, nearest);
    return true;
}
