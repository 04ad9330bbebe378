/* Reading the launcher's environment, and finding libweft-mpi.so and libweft-nccl.so. */
#include "comm/launch.h"

#include <dlfcn.h>
#include <limits.h>

#define LIBRARY "libweft-mpi.so"
#define NCCL_LIBRARY "libweft-nccl.so"

static long number_of(const char *name) {
    const char *text = getenv(name);
    return text && *text ? strtol(text, NULL, 10) : -1;
}

/* How many processes there are; -1: started by hand, or by a launcher that does not say. */
static long count_ranks(void) {
    static const char *const names[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE",
                                        "MPI_LOCALNRANKS"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (number_of(names[i]) > 0) return number_of(names[i]);
    /* PMIx gives a rank; Slurm knows the number. */
    if (number_of("PMIX_RANK") >= 0) {
        long tasks = number_of("SLURM_STEP_NUM_TASKS");
        return tasks > 0 ? tasks : number_of("SLURM_NTASKS");
    }
    return -1;
}

weft_status weft_launch_look(bool *several) {
    const char *force = getenv("WEFT_COMM");
    long ranks = count_ranks();
    *several = ranks > 1 || (force && strcmp(force, "mpi") == 0);
    if (ranks < 0 && number_of("SLURM_STEP_NUM_TASKS") > 1 && number_of("SLURM_PROCID") >= 0)
        return WEFT_BAD_INPUT(
            "srun started %ld tasks that cannot find each other; srun --mpi=pmix or "
            "--mpi=pmi2, whichever this MPI was built for ('srun --mpi=list')",
            number_of("SLURM_STEP_NUM_TASKS"));
    return WEFT_OK;
}

/* FOLDER of the program + `inner` + the library's name. */
static void *open_near(const char *inner, const char *name) {
    char path[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 64);
    if (length <= 0) return NULL;
    path[length] = 0;
    char *slash = strrchr(path, '/');
    if (!slash) return NULL;
    snprintf(slash, sizeof path - (size_t)(slash - path), "%s%s", inner, name);
    return access(path, R_OK) == 0 ? dlopen(path, RTLD_NOW | RTLD_GLOBAL) : NULL;
}

/* A library's table: from a named file, or beside the program, in ../lib of it, or where the system looks.
 * NULL: it has none. */
static const void *open_table(const char *named, const char *name, const char *entry,
                              bool *opened) {
    void *library = NULL;
    dlerror();
    if (named && *named) {
        library = dlopen(named, RTLD_NOW | RTLD_GLOBAL);
    } else {
        library = open_near("/", name);
        if (!library) library = open_near("/../lib/", name);
        if (!library) library = dlopen(name, RTLD_NOW | RTLD_GLOBAL);
    }
    *opened = library != NULL;
    return library ? dlsym(library, entry) : NULL;
}

weft_status weft_launch_nccl(const weft_nccl **out) {
    bool opened;
    *out = open_table(NULL, NCCL_LIBRARY, WEFT_NCCL_ENTRY, &opened);
    if (!opened)
        return weft_fail(WEFT_EMISSING, "this build has no " NCCL_LIBRARY
                                        ": with NCCL's nccl.h, make configure and build");
    if (*out && (*out)->abi == WEFT_NCCL_ABI) return WEFT_OK;
    return weft_fail(WEFT_EMISSING, NCCL_LIBRARY " is of another version of weft");
}

weft_status weft_launch_open(const weft_mpi **out) {
    const char *named = getenv("WEFT_MPI"), *why;
    bool opened;
    *out = open_table(named, LIBRARY, WEFT_MPI_ENTRY, &opened);
    if (!opened)
        return weft_fail(WEFT_EMISSING,
                         "a launcher started several processes, but %s cannot be opened (%s); "
                         "install MPI ('scripts/setup optional'), then make configure and build",
                         named && *named ? named : LIBRARY, (why = dlerror()) ? why : "not found");
    if (*out && (*out)->abi == WEFT_MPI_ABI) return WEFT_OK;
    return weft_fail(WEFT_EMISSING, "%s is of another version of weft; build and install both",
                     LIBRARY);
}
