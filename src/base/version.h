/* Which source this build was made from. The version itself is in the public header. */
#ifndef WEFT_BASE_VERSION_H
#define WEFT_BASE_VERSION_H

/* The git commit in 40 hexadecimal digits, with "-changed" where the sources differed from it;
 * "unknown" where the build was not made in a git tree. */
const char *weft_git_commit(void);

#endif
