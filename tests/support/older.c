#include "older.h"

#include "command.h"

#include <stdlib.h>

bool older_bits(void) {
#if defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__)
    return command_patience() == 1;
#else
    return false;
#endif
}

int older_setup(void **state) {
    if (older_bits()) setenv("WEFT_CPU", "neon", 1);
    scratch_setup(state);
    shell_succeeds("tar -xJf tests/older/made.tar.xz -C '%s'", scratch_path("."));
    return 0;
}
