#include "fault.h"

#include "test.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

void fault_need(void) {
    const char *library = getenv("WEFT_FAULTS");
    if (library && *library && access(library, R_OK) == 0) return;
    printf("the library that lets file operations fail is not built (sanitizers)\n");
    skip();
}

static void set(const char *name, const char *value) {
    if (value)
        setenv(name, value, 1);
    else
        unsetenv(name);
}

static void set_number(const char *name, long value) {
    char text[32];
    snprintf(text, sizeof text, "%ld", value);
    setenv(name, text, 1);
}

command_result fault_run(const fault *f, const char *const *arguments, long *count) {
    char library[PATH_MAX], counts[512];
    assert_non_null(realpath(getenv("WEFT_FAULTS"), library));
    snprintf(counts, sizeof counts, "%s", scratch_path("fault-count"));
    unlink(counts);
    set("WEFT_FAULT_CALLS", f->calls);
    set("WEFT_FAULT_PATH", f->path);
    set("WEFT_FAULT_COMMAND", f->command);
    set("WEFT_FAULT_COUNT", count ? counts : NULL);
    set_number("WEFT_FAULT_NTH", f->nth);
    set_number("WEFT_FAULT_ERRNO", f->error);
    set_number("WEFT_FAULT_ALL", f->all);
    set("LD_PRELOAD", library);
    command_result r = command_run(arguments);
    set("LD_PRELOAD", NULL);
    if (count && access(counts, R_OK) == 0) {
        char *text = file_read(counts, NULL);
        *count = strtol(text, NULL, 10);
        free(text);
    }
    return r;
}
