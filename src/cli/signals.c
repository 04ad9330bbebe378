/* SIGTERM, SIGINT and SIGHUP, for a server. */
#include "cli/signals.h"

#include <pthread.h>
#include <stddef.h>

void weft_signals_hold(sigset_t *signals) {
    sigemptyset(signals);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGINT);
    sigaddset(signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, signals, NULL);
    signal(SIGPIPE, SIG_IGN);
}

void weft_signals_wait(const sigset_t *signals) {
    int number;
    while (sigwait(signals, &number) != 0)
        ;
}
