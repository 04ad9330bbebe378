/* weft watch: the live page of runs. */
#include "base/log.h"
#include "base/text.h"
#include "cli/args.h"
#include "cli/signals.h"
#include "serve/http.h"
#include "watch/live.h"

#include <string.h>

const char weft_help_watch[] =
    "  DIR...             folders with runs and studies, six deep; default: runs\n"
    "  --port N           default: 8100; 0 takes a free port and prints it\n"
    "  --host ADDRESS     default: 127.0.0.1, this machine alone\n"
    "  --json             the address as one object on standard output\n"
    "\n"
    "A page that follows runs while they are written, and shows them after: curves, speed, what "
    "is\n"
    "left, logs and samples, GPUs. Runs can be compared, filtered and sorted by every option and\n"
    "score, averaged over seeds, and given notes and tags, which are kept in notes.db in the "
    "first\n"
    "folder. Nothing else is written, and no run waits for it. SIGINT or SIGTERM ends it.\n";

enum { FOLDERS_MOST = 256, PORT = 8100 };

typedef struct {
    weft_args args;
    const char *folders[FOLDERS_MOST];
    int n;
    weft_live_options options;
    weft_watched *runs;
    weft_live *watch;
} watching;

static int read_options(watching *w, int argc, char **argv) {
    const char *port = NULL;
    int64_t number = PORT;
    const weft_arg own[] = {{"--port", &port, NULL, false},
                            {"--host", &w->options.host, NULL, false},
                            {NULL, NULL, NULL, false}};
    int status = weft_args_parse(&w->args, argc, argv, own, w->folders, FOLDERS_MOST);
    if (!status) status = weft_args_number(&w->args, "--port", port, 0, 65535, &number);
    w->options.port = (int)number;
    while (w->n < FOLDERS_MOST && w->folders[w->n])
        w->n++;
    if (!w->n) w->folders[w->n++] = "runs";
    if (!status && (w->args.config || w->args.variant || w->args.n_settings)) {
        fprintf(stderr, "weft watch: takes folders and no config; see 'weft help watch'\n");
        status = WEFT_EXIT_USAGE;
    }
    return status;
}

static void print_address(const watching *w) {
    const char *host = w->options.host;
    bool six = strchr(host, ':') != NULL;
    int port = weft_live_port(w->watch), found = weft_live_found(w->watch);
    if (w->args.json)
        printf("{\"host\": \"%s\", \"port\": %d}\n", host, port);
    else
        printf("watching %d run%s at http://%s%s%s:%d\n", found, found == 1 ? "" : "s",
               six ? "[" : "", host, six ? "]" : "", port);
    fflush(stdout);
    if (!weft_http_is_local(host))
        weft_log(WEFT_LOG_WARN, "watch: everyone who reaches %s sees these runs", host);
}

int weft_cmd_watch(int argc, char **argv) {
    watching w = {.options = {.host = "127.0.0.1"}};
    sigset_t signals;
    int exit_status = read_options(&w, argc, argv);
    if (exit_status) return exit_status;
    weft_signals_hold(&signals);
    weft_status status = weft_watched_open(w.folders, w.n, true, &w.runs);
    if (status == WEFT_OK) status = weft_live_open(&w.options, w.runs, &w.watch);
    if (status == WEFT_OK) {
        print_address(&w);
        weft_signals_wait(&signals);
    }
    weft_live_close(w.watch);
    weft_watched_close(w.runs);
    return status == WEFT_OK ? WEFT_EXIT_DONE : weft_args_fail(&w.args, status);
}
