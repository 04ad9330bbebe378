/* The operations' table as a program: src/bench/tables.h says what it measures. */
#include "bench/tables.h"

#include "base/files.h"
#include "base/json.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

static const char usage[] =
    "usage: ops [--quick] [--rows WORD] [--threads N] [--json FILE] [--peer COMMAND] [--no-peer]\n"
    "  --quick         the main rows, under a minute\n"
    "  --rows WORD     rows whose operation or name has WORD in it\n"
    "  --threads N     for both sides; one a processor if not given\n"
    "  --json FILE     everything that was measured, for a program to read\n"
    "  --peer COMMAND  the peer, if not bench/peer.py by $PYTHON, else python3\n"
    "  --no-peer       without PyTorch\n";

enum { COMMAND_MAX = 1024, OLD_MOST = 1 << 26 };

static bool parse(int argc, char **argv, bench_options *o, const char **json) {
    for (int i = 1; i < argc; i++) {
        const char *name = argv[i], *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(name, "--quick") == 0) {
            o->quick = true;
        } else if (strcmp(name, "--no-peer") == 0) {
            o->peer = NULL;
        } else if (value && strcmp(name, "--rows") == 0) {
            o->rows = argv[++i];
        } else if (value && strcmp(name, "--json") == 0) {
            *json = argv[++i];
        } else if (value && strcmp(name, "--peer") == 0) {
            o->peer = argv[++i];
        } else if (value && strcmp(name, "--threads") == 0) {
            char *end;
            long n = strtol(argv[++i], &end, 10);
            if (*end || n < 1 || n > 1024) return false;
            o->threads = (int)n;
        } else {
            return false;
        }
    }
    return true;
}

/* A file of ours, or none: others are not written over. */
static bool is_vacant(const char *path) {
    weft_kind kind;
    if (weft_path_kind(path, &kind) != WEFT_OK || kind == WEFT_KIND_NOTHING) return true;
    json_t *old = kind == WEFT_KIND_FILE ? weft_json_file(path, OLD_MOST) : NULL;
    bool ours = json_is_array(json_object_get(old, "rows"));
    json_decref(old);
    if (!ours)
        fprintf(stderr, "bench: %s is there already and no benchmark's; name another file\n", path);
    return ours;
}

int main(int argc, char **argv) {
    char peer[COMMAND_MAX];
    const char *python = getenv("PYTHON"), *json = NULL;
    snprintf(peer, sizeof peer, "%s bench/peer.py", python && *python ? python : "python3");
    bench_options o = {.peer = peer, .table = stdout};
    if (!parse(argc, argv, &o, &json)) {
        fputs(usage, stderr);
        return 2;
    }
    char *text = NULL;
    size_t bytes = 0;
    if (json && !is_vacant(json)) return 2;
    if (json && !(o.json = open_memstream(&text, &bytes))) {
        fprintf(stderr, "bench: %s: %s\n", json, strerror(errno));
        return 2;
    }
    signal(SIGPIPE, SIG_IGN);
    int differing;
    weft_status status = bench_op_table(&o, &differing);
    if (status) fprintf(stderr, "bench: %s\n", weft_error_message());
    if (differing) fprintf(stderr, "bench: %d rows differ from the peer's numbers\n", differing);
    if (o.json && (fclose(o.json) || weft_file_write(json, text, bytes, NULL) != WEFT_OK)) {
        fprintf(stderr, "bench: %s: cannot be written: %s\n", json, weft_error_message());
        return 1;
    }
    free(text);
    return status || differing ? 1 : 0;
}
