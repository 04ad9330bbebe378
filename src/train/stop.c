/* A handler may do next to nothing: it notes the signal, and at the second one leaves without
 * running anything else, as checkpoints are whole at every moment. */
#include "train/stop.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <unistd.h>

static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXFSZ};
enum { SIGNALS = sizeof signals / sizeof signals[0] };

static struct sigaction before[SIGNALS];
static bool installed;
static volatile sig_atomic_t asked;

static void note_signal(int number) {
    if (asked) _exit(WEFT_STOP_EXIT + number);
    asked = number;
}

void weft_stop_install(void) {
    asked = 0;
    installed = true;
    for (int i = 0; i < SIGNALS; i++) {
        struct sigaction action = {.sa_flags = SA_RESTART};
        action.sa_handler = signals[i] == SIGXFSZ ? SIG_IGN : note_signal;
        sigemptyset(&action.sa_mask);
        sigaction(signals[i], &action, &before[i]);
        /* A hangup that is ignored stays so: nohup. */
        if (signals[i] == SIGHUP && before[i].sa_handler == SIG_IGN)
            sigaction(SIGHUP, &before[i], NULL);
    }
}

void weft_stop_remove(void) {
    for (int i = 0; installed && i < SIGNALS; i++)
        sigaction(signals[i], &before[i], NULL);
    installed = false;
}

int weft_stop_asked(void) {
    return asked;
}
