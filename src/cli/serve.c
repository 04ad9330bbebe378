/* weft serve: a checkpoint behind OpenAI's HTTP interface. */
#include "base/files.h"
#include "base/log.h"
#include "cli/loaded.h"
#include "cli/signals.h"
#include "generate/generator.h"
#include "serve/server.h"

#include <jansson.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

const char weft_help_serve[] =
    "  --model DIR        a checkpoint; of a run's folder, its best/, or last/ if there is no "
    "best/\n"
    "  --host ADDRESS     address to listen on; default: 127.0.0.1, this machine only\n"
    "  --port N           default: 8000; 0 takes a free port and prints it\n"
    "  --name NAME        the model's name in /v1/models; default: the folder's name\n"
    "  --api-key-file FILE\n"
    "                     clients must send the key in this file ('Authorization: Bearer KEY');\n"
    "                     default: the key in the variable WEFT_API_KEY, if it is set\n"
    "  --sequences N      texts generated at once; default: 16\n"
    "  --queue N          texts that may wait; default: 256. A request beyond that gets status "
    "429\n"
    "                     and the time after which to try again\n"
    "  --context N        most tokens of prompt and text together; default: CONTEXT; more\n"
    "                     only with positions that have no end (rope, alibi, none)\n"
    "  --cache-mib N      memory for the key-value cache; default: enough for --sequences texts "
    "of\n"
    "                     --context tokens\n"
    "  --max-tokens N     most tokens of one text; default: as many as fit the context\n"
    "  --max-body BYTES   most bytes of a request; default: 1048576\n"
    "  --connections N    most connections at once; default: 1024\n"
    "  --request-timeout S\n"
    "                     seconds in which a client must send a request; default: 30\n"
    "  --answer-timeout S seconds in which a request must be answered; default: 600\n"
    "  -o KEY=VALUE       override a key of the checkpoint's config, such as CHAT_TEMPLATE (the "
    "form\n"
    "                     of conversations), CACHE_DTYPE and WEIGHT_DTYPE (f32, bf16, int8: the "
    "types\n"
    "                     of cache and matrices); repeatable\n"
    "  --unchecked        do not verify the checksums in the checkpoint's state.json\n"
    "  --dtype T          f32, bf16 or f64\n"
    "  --device D         cpu, cuda or auto (the default: a GPU if there is one)\n"
    "  --threads N        default: one per processor\n"
    "  --json             print the address as one object\n"
    "\n"
    "SIGTERM, SIGHUP or Ctrl-C finishes the requests that are being answered and stops; a second "
    "one\n"
    "stops at once. docs/guide/serving.md has examples.\n";

enum { KEY_MOST = 4096, POLL_MS = 50 };

typedef struct {
    weft_args args;
    const char *path, *key_file;
    bool unchecked;
    int64_t port, context, cache_mib, request_seconds, answer_seconds;
    weft_server_options options;
    weft_loaded loaded;
    weft_generator *generator;
    weft_server *server;
    char *key, *name;
} serving;

static int read_numbers(serving *s, const char *const *text) {
    weft_server_options *o = &s->options;
    const struct {
        const char *name;
        int64_t least, most, *out;
    } numbers[] = {{"--port", 0, 65535, &s->port},
                   {"--sequences", 1, 4096, &o->sequences},
                   {"--queue", 0, 1 << 20, &o->queue},
                   {"--context", 1, 1 << 28, &s->context},
                   {"--cache-mib", 1, 1 << 28, &s->cache_mib},
                   {"--max-tokens", 1, 1 << 28, &o->max_tokens},
                   {"--max-body", 64, 1 << 30, &o->body_bytes},
                   {"--connections", 1, 1 << 20, &o->connections},
                   {"--request-timeout", 1, 86400, &s->request_seconds},
                   {"--answer-timeout", 1, 86400, &s->answer_seconds}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        int status = weft_args_number(&s->args, numbers[i].name, text[i], numbers[i].least,
                                      numbers[i].most, numbers[i].out);
        if (status) return status;
    }
    o->port = (int)s->port;
    o->request_seconds = (double)s->request_seconds;
    o->answer_seconds = (double)s->answer_seconds;
    return weft_args_no_config(&s->args);
}

static int read_options(serving *s, int argc, char **argv) {
    const char *text[10] = {0};
    const weft_arg own[] = {
        {"--model", &s->path, NULL, true},           {"--host", &s->options.host, NULL, false},
        {"--name", &s->options.name, NULL, false},   {"--api-key-file", &s->key_file, NULL, false},
        {"--unchecked", NULL, &s->unchecked, false}, {"--port", &text[0], NULL, false},
        {"--sequences", &text[1], NULL, false},      {"--queue", &text[2], NULL, false},
        {"--context", &text[3], NULL, false},        {"--cache-mib", &text[4], NULL, false},
        {"--max-tokens", &text[5], NULL, false},     {"--max-body", &text[6], NULL, false},
        {"--connections", &text[7], NULL, false},    {"--request-timeout", &text[8], NULL, false},
        {"--answer-timeout", &text[9], NULL, false}, {NULL, NULL, NULL, false}};
    int status = weft_args_parse(&s->args, argc, argv, own, NULL, 0);
    if (!status) status = read_numbers(s, text);
    if (!status && s->key_file) status = weft_args_readable(&s->args, s->key_file, NULL);
    return status;
}

/* The key: a file's first line, or the environment's. An empty one is a mistake, not a key. */
static weft_status read_key(serving *s) {
    const char *named = getenv("WEFT_API_KEY");
    size_t bytes;
    if (s->key_file) {
        WEFT_TRY(weft_file_read(s->key_file, KEY_MOST, &s->key, &bytes));
        s->key[strcspn(s->key, "\r\n")] = 0;
        if (!*s->key) return weft_fail(WEFT_EINPUT, "%s: no key in its first line", s->key_file);
    } else if (named) {
        if (!*named)
            return weft_fail(WEFT_EINPUT, "WEFT_API_KEY is empty; set it to a key, or unset it");
        s->key = strdup(named);
        if (!s->key) return weft_fail(WEFT_ENOMEM, "no memory");
    }
    s->options.key = s->key;
    return WEFT_OK;
}

/* The folder's name; best/ and last/ are the run's. */
static weft_status find_name(serving *s) {
    if (s->options.name) return WEFT_OK;
    char *full = realpath(s->loaded.folder, NULL), *slash = full ? strrchr(full, '/') : NULL;
    if (slash && slash > full && (!strcmp(slash, "/best") || !strcmp(slash, "/last"))) {
        *slash = 0;
        slash = strrchr(full, '/');
    }
    s->name = strdup(slash && slash[1] ? slash + 1 : "weft");
    free(full);
    if (!s->name) return weft_fail(WEFT_ENOMEM, "no memory");
    json_t *text = json_string(s->name);
    s->options.name = text ? s->name : "weft"; /* a name that is no UTF-8 cannot be told in JSON */
    json_decref(text);
    return WEFT_OK;
}

/* Connections are files to the system, which often allows fewer than it could. */
static void allow_files(int64_t connections) {
    struct rlimit limit;
    rlim_t want = (rlim_t)connections + 64;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= want) return;
    limit.rlim_cur = limit.rlim_max < want ? limit.rlim_max : want;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < want)
        weft_log(WEFT_LOG_WARN,
                 "serve: the system allows %lld files, so fewer than the %lld "
                 "connections of --connections",
                 (long long)limit.rlim_cur, (long long)connections);
}

static bool is_local(const char *host) {
    return strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           strncmp(host, "127.", 4) == 0;
}

static void warn_of_small_cache(const serving *s) {
    weft_generator_stats stats;
    weft_generator_count(s->generator, &stats);
    int64_t wanted = s->context ? s->context : s->loaded.config.context;
    if (stats.context < wanted)
        weft_log(WEFT_LOG_WARN,
                 "serve: --cache-mib %lld holds %lld tokens, fewer than a context of %lld; texts "
                 "end there",
                 (long long)s->cache_mib, (long long)stats.context, (long long)wanted);
}

static weft_status open_all(serving *s) {
    weft_loaded *l = &s->loaded;
    WEFT_TRY(weft_server_available());
    WEFT_TRY(read_key(s));
    WEFT_TRY(weft_loaded_open(&s->args, s->path, s->unchecked, WEFT_LOADED_GENERATION, l));
    WEFT_TRY(find_name(s));
    weft_generator_limits limits = {.sequences = s->options.sequences,
                                    .context = s->context,
                                    .cache_bytes = s->cache_mib << 20};
    WEFT_TRY(weft_generator_open(l->model, l->backend, l->pool, &limits, &s->generator));
    warn_of_small_cache(s);
    s->options.chat_template = l->config.chat_template;
    allow_files(s->options.connections);
    WEFT_TRY(weft_server_open(&s->options, s->generator, l->tokenizer, l->encoder, &s->server));
    if (!s->key && !is_local(s->options.host))
        weft_log(WEFT_LOG_WARN,
                 "serve: everyone who reaches %s can use the model; "
                 "--api-key-file sets a key",
                 s->options.host);
    return WEFT_OK;
}

static void close_all(serving *s) {
    weft_server_close(s->server);
    weft_generator_close(s->generator);
    weft_loaded_close(&s->loaded);
    free(s->key);
    free(s->name);
}

static void print_address(const serving *s) {
    const char *host = s->options.host;
    bool six = strchr(host, ':') != NULL;
    int port = weft_server_port(s->server);
    if (s->args.json) {
        json_t *object =
            json_pack("{s:s, s:i, s:s}", "host", host, "port", port, "model", s->options.name);
        json_dumpf(object, stdout, 0);
        json_decref(object);
        printf("\n");
    } else {
        printf("serving %s at http://%s%s%s:%d\n", s->options.name, six ? "[" : "", host,
               six ? "]" : "", port);
    }
    fflush(stdout);
}

/* Until a signal comes; then until nothing runs, or another one comes. */
static void wait_for_end(serving *s, const sigset_t *signals) {
    const struct timespec pause = {.tv_nsec = POLL_MS * 1000000L};
    weft_signals_wait(signals);
    weft_server_drain(s->server);
    int64_t busy = weft_server_busy(s->server);
    if (busy)
        weft_log(WEFT_LOG_INFO,
                 "serve: stopping, requests still being answered: %lld; a second signal "
                 "stops at once",
                 (long long)busy);
    while (weft_server_busy(s->server) > 0)
        if (sigtimedwait(signals, NULL, &pause) > 0) return;
}

int weft_cmd_serve(int argc, char **argv) {
    serving s = {.port = 8000,
                 .request_seconds = 30,
                 .answer_seconds = 600,
                 .options = {.host = "127.0.0.1",
                             .sequences = 16,
                             .queue = 256,
                             .connections = 1024,
                             .body_bytes = 1 << 20}};
    sigset_t signals;
    int exit_status = read_options(&s, argc, argv);
    if (exit_status) return exit_status;
    weft_signals_hold(&signals);
    weft_status status = open_all(&s);
    if (status == WEFT_OK) {
        print_address(&s);
        wait_for_end(&s, &signals);
    }
    close_all(&s);
    return status == WEFT_OK ? WEFT_EXIT_DONE : weft_args_fail(&s.args, status);
}
