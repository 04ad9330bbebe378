/* The peer's process. It ends by itself when its standard input does, so nothing is left behind when
 * the benchmark is interrupted. */
#include "base/json.h"
#include "bench/tables.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

extern char **environ;

struct bench_peer {
    pid_t process;
    FILE *to, *from;
    char error[256];
    bool gone;
};

/* One socket is its standard input and output; what was opened is closed by bench_peer_stop. */
static int spawn(bench_peer *p, const char *command) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends)) return errno;
    p->to = fdopen(ends[0], "w");
    p->from = fdopen(fcntl(ends[0], F_DUPFD_CLOEXEC, 0), "r");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    char *args[] = {"sh", "-c", (char *)(uintptr_t)command, NULL};
    int problem =
        p->to && p->from ? posix_spawnp(&p->process, "sh", &actions, NULL, args, environ) : ENOMEM;
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    return problem;
}

bench_peer *bench_peer_start(const char *command, int threads, char *why, size_t size) {
    bench_peer *p = calloc(1, sizeof *p);
    if (!p) {
        snprintf(why, size, "no memory");
        return NULL;
    }
    int problem = spawn(p, command);
    WEFT_AUTO_DECREF json_t *reply =
        problem ? NULL : bench_peer_ask(p, weft_json_make("do:s threads:i", "hello", threads));
    const char *name = json_string_value(json_object_get(reply, "name"));
    if (problem)
        snprintf(why, size, "%s cannot be started: %s", command, strerror(problem));
    else if (name)
        snprintf(why, size, "%s", name);
    else
        snprintf(why, size, "%s: %s", command, reply ? "it gave no name" : p->error);
    if (!name) bench_peer_stop(weft_steal(&p));
    return p;
}

void bench_peer_stop(bench_peer *p) {
    if (!p) return;
    if (p->to) fclose(p->to);
    if (p->from) fclose(p->from);
    if (p->process > 0) waitpid(p->process, NULL, 0);
    free(p);
}

json_t *bench_peer_ask(bench_peer *p, json_t *request) {
    p->error[0] = 0;
    int failed = !request || json_dumpf(request, p->to, JSON_COMPACT) < 0;
    json_decref(request);
    if (failed || fputc('\n', p->to) == EOF || fflush(p->to)) p->gone = true;
    WEFT_AUTO_FREE char *line = NULL;
    size_t size = 0;
    bool heard = !p->gone && getline(&line, &size, p->from) > 0;
    json_t *reply = heard ? json_loads(line, 0, NULL) : NULL;
    if (!reply) p->gone = true;
    const char *error = json_string_value(json_object_get(reply, "error"));
    if (reply && !error) return reply;
    snprintf(p->error, sizeof p->error, "%s", error ? error : "the peer is gone");
    json_decref(reply);
    return NULL;
}

WEFT_GETTER(const char *, bench_peer_error, bench_peer, error)
WEFT_GETTER(bool, bench_peer_gone, bench_peer, gone)

void bench_sides_free(bench_sides *s) {
    bench_samples_free(&s->ours);
    bench_samples_free(&s->peers);
    bench_samples_free(&s->limit);
}

bool bench_peer_run(bench_peer *p, int repeats, bench_samples *to) {
    WEFT_AUTO_DECREF json_t *reply =
        bench_peer_ask(p, weft_json_make("do:s repeats:i", "run", repeats));
    if (!reply) return false;
    EACH_ITEM(seconds, json_object_get(reply, "seconds"))
        bench_samples_add(to, json_number_value(seconds.value));
    return true;
}
