/* What uname and sysconf say. */
#include "base/machine.h"

#include <stdio.h>
#include <sys/utsname.h>
#include <unistd.h>

void weft_machine_text(char *text, size_t room) {
    struct utsname is;
    if (uname(&is) == 0)
        snprintf(text, room, "%s %s %s, %ld processors", is.machine, is.sysname, is.release,
                 sysconf(_SC_NPROCESSORS_ONLN));
    else
        snprintf(text, room, "unknown");
}
