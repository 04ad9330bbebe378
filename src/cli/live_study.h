/* The live page of a study that runs on a terminal: `weft watch` in a process of its own, as long as the
 * study runs. */
#ifndef WEFT_CLI_LIVE_STUDY_H
#define WEFT_CLI_LIVE_STUDY_H

#include <sys/types.h>

/* Starts it and logs its address; 0: none, because standard error is no terminal, WEFT_WATCH is "no", or
 * this build has no HTTP. A page that does not start keeps no study from running. */
pid_t weft_live_study_start(const char *folder);
void weft_live_study_stop(pid_t pid);

#endif
