/* Which source this build was made from. The version itself is in the public header. */
#pragma once

#include <stddef.h>

/* The git commit in 40 hexadecimal digits, with "-changed" where the sources differed from it;
 * "unknown" where the build was not made in a git tree. */
const char *weft_git_commit(void);

/* The machine in words, for records of what was run on it: "x86_64 Linux 6.1.0, 16 processors". */
void weft_machine_text(char *text, size_t room);
