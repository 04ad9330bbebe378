/* Being asked to stop: SIGINT, SIGTERM, SIGUSR1, which mpirun hands on, and SIGHUP unless it is
 * ignored (nohup). The first one asks the run to finish its step and save; the second ends the
 * program at once. */
#pragma once

/* The second one's exit status is this and its number, as a shell tells of a process that a signal ended. */
enum { WEFT_STOP_EXIT = 128 };

/* Takes the signals over until weft_stop_remove, and lets writing past a file-size limit fail
 * as an error in place of a signal. One at a time in a process. */
void weft_stop_install(void);
void weft_stop_remove(void);

/* The signal that came; 0: none. */
int weft_stop_asked(void);
