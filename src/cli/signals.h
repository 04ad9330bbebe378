/* The signals that end a server, taken by the thread that waits for them and by no other. */
#ifndef WEFT_CLI_SIGNALS_H
#define WEFT_CLI_SIGNALS_H

#include <signal.h>

/* Before any thread is started, since every thread inherits the mask. A client that goes away ends a
 * write and not the program. */
void weft_signals_hold(sigset_t *signals);
/* Until one of them comes. */
void weft_signals_wait(const sigset_t *signals);

#endif
