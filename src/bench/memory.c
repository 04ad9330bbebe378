/* Read from /proc, where Linux tells both numbers for the process that asks. */
#include "bench/memory.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

static int64_t read_status(const char *key) {
    FILE *file = fopen("/proc/self/status", "r");
    if (!file) return 0;
    char line[256];
    long long kilobytes = 0;
    size_t length = strlen(key);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, key, length) == 0 && sscanf(line + length, "%lld", &kilobytes) == 1)
            break;
    fclose(file);
    return kilobytes * 1024;
}

int64_t bench_resident_bytes(void) {
    return read_status("VmRSS:");
}

int64_t bench_peak_bytes(void) {
    return read_status("VmHWM:");
}

void bench_trim_memory(void) {
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}
