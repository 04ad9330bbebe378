/* weft serve: a checkpoint behind OpenAI's HTTP interface; weft watch: the live page of runs. */
#include "base/json.h"
#include "base/log.h"
#include "cli/args.h"
#include "serve/http.h"
#include "serve/server.h"
#include "watch/live.h"

#include <signal.h>
#include <sys/resource.h>
#include <time.h>

const char weft_help_serve[] =
    "  --model DIR\ta checkpoint; of a run's folder, its best/, or last/ if there is no best/\n"
    "  --beside DIR\ta second checkpoint; requests choose by 'model', and the page shows both side "
    "by side\n"
    "  --host ADDRESS\taddress to listen on; default: 127.0.0.1, this machine only\n"
    "  --port N\tdefault: 8000; 0 takes a free port and prints it\n"
    "  --name NAME\tthe model's name in /v1/models; default: the folder's name\n"
    "  --api-key-file FILE\tclients must send the key in this file ('Authorization: Bearer KEY'); "
    "default: the key in the variable WEFT_API_KEY, if it is set\n"
    "  --sequences N\ttexts generated at once; default: 16\n"
    "  --queue N\ttexts that may wait; default: 256. A request beyond that gets status 429 and the "
    "time after which to try again\n"
    "  --context N\tmost tokens of prompt and text together; default: CONTEXT; more only with "
    "positions that have no end (rope, alibi, none)\n"
    "  --cache-mib N\tmemory for the key-value cache; default: enough for --sequences texts of "
    "--context tokens\n"
    "  --speculate HOW\tdraft the next tokens and check several in one step; texts stay the same. "
    "HOW is ngram (what came behind the same tokens before), or the folder of a smaller model with "
    "the same tokenizer, whose cache comes on top of --cache-mib\n"
    "  --prompt-share N\twhile texts are written, the time that prompts take of a step, in percent "
    "of that for the texts' next tokens; default: 75, which aims at less than twice the usual time "
    "between tokens; 0: pieces of 256 tokens, on a GPU of up to 512\n"
    "  --max-tokens N\tmost tokens of one text, whatever a request asks for; default: as many as "
    "fit the context\n"
    "  --max-body BYTES\tmost bytes of a request; default: 1048576\n"
    "  --connections N\tmost connections at once; default: 1024\n"
    "  --request-timeout S\tseconds in which a client must send a request; default: 30\n"
    "  --answer-timeout S\tseconds in which a request must be answered; default: 600\n"
    "  -o KEY=VALUE\toverride a key of the checkpoint's config, such as CHAT_TEMPLATE (the form of "
    "conversations), CACHE_DTYPE and WEIGHT_DTYPE (f32, bf16, int8: the types of cache and "
    "matrices); repeatable\n"
    "  --unchecked\tdo not verify the checksums in the checkpoint's state.json\n"
    "  --dtype T\tf32, bf16 or f64\n"
    "  --device D\tcpu, cuda or auto (the default: a GPU if there is one)\n"
    "  --threads N\tdefault: one per processor\n"
    "  --json\tprint the address, and the model's name, context and vocabulary, as one object\n"
    "\n"
    "SIGTERM, SIGHUP or Ctrl-C finishes the requests that are being answered and stops; a second "
    "one stops at once. docs/guide/serving.md has examples.\n";

/* "serving NAME at http://..."; an object of the host and port, and `more`, with --json. */
static void print_address(const weft_args *a, const char *what, const char *host, int port,
                          json_t *more) {
    bool six = strchr(host, ':') != NULL;
    if (a->json) {
        json_t *object = json_pack("{s:s, s:i}", "host", host, "port", port);
        json_object_update(object, more);
        json_dumpf(object, stdout, 0);
        json_decref(object);
        printf("\n");
    } else {
        printf("%s at http://%s%s%s:%d\n", what, six ? "[" : "", host, six ? "]" : "", port);
    }
    json_decref(more);
    fflush(stdout);
}

/* The signals that end a server, which the thread that waits for them takes and no other: before any thread is
 * started, since every thread inherits the mask. A client that goes away ends a write and not the program. */
static void hold_signals(sigset_t *signals) {
    sigemptyset(signals);
    sigaddset(signals, SIGTERM);
    sigaddset(signals, SIGINT);
    sigaddset(signals, SIGHUP);
    pthread_sigmask(SIG_BLOCK, signals, NULL);
    signal(SIGPIPE, SIG_IGN);
}

static void wait_for_signal(const sigset_t *signals) {
    int number;
    while (sigwait(signals, &number) != 0)
        ;
}

#ifdef WEFT_HAVE_MICROHTTPD
enum { KEY_MOST = 4096, NAME_MOST = 256, POLL_MS = 50 };

typedef struct {
    weft_args *args;
    const char *paths[WEFT_SERVED_MOST], *key_file, *name, *speculate;
    int64_t port, context, cache_mib, prompt_share, request_seconds, answer_seconds;
    weft_server_options options;
    weft_loaded loaded[WEFT_SERVED_MOST], drafts[WEFT_SERVED_MOST];
    weft_generator_stats sizes[WEFT_SERVED_MOST];
    weft_served_model models[WEFT_SERVED_MOST];
    char names[WEFT_SERVED_MOST][NAME_MOST];
    weft_server *server;
    char *key;
} serving;

static weft_status read_options(serving *s, int argc, char **argv) {
    weft_server_options *o = &s->options;
    const weft_arg own[] = {
        {"--model", .value = &s->paths[0], .rule = WEFT_ARG_NEEDED},
        {"--beside", .value = &s->paths[1]},
        {"--host", .value = &o->host},
        {"--name", .value = &s->name},
        {"--api-key-file", .value = &s->key_file},
        {"--port", .number = &s->port, .max = 65535},
        {"--sequences", .number = &o->sequences, .min = 1, .max = 4096},
        {"--queue", .number = &o->queue, .max = 1 << 20},
        {"--context", .number = &s->context, .min = 1, .max = 1 << 28},
        {"--cache-mib", .number = &s->cache_mib, .min = 1, .max = 1 << 28},
        {"--speculate", .value = &s->speculate},
        {"--prompt-share", .number = &s->prompt_share, .max = 10000},
        {"--max-tokens", .number = &o->max_tokens, .min = 1, .max = 1 << 28},
        {"--max-body", .number = &o->body_bytes, .min = 64, .max = 1 << 30},
        {"--connections", .number = &o->connections, .min = 1, .max = 1 << 20},
        {"--request-timeout", .number = &s->request_seconds, .min = 1, .max = 86400},
        {"--answer-timeout", .number = &s->answer_seconds, .min = 1, .max = 86400},
        {0}};
    WEFT_TRY(weft_args_parse(s->args, argc, argv, ARGS_ALL | ARGS_UNCHECKED, own, NULL, 0));
    o->port = (int)s->port;
    o->request_seconds = (double)s->request_seconds;
    o->answer_seconds = (double)s->answer_seconds;
    WEFT_TRY(weft_args_no_config(s->args));
    return s->key_file ? weft_args_readable(s->key_file, NULL) : WEFT_OK;
}

static weft_status open_model(serving *s, int k) {
    weft_loaded *l = s->loaded + k;
    weft_served_model *m = s->models + k;
    WEFT_TRY(weft_loaded_open(s->args, s->paths[k], WEFT_LOADED_GENERATION, l));
    /* The folder's name; best/ and last/ are the run's. Of a second model of one name it says which it is. */
    WEFT_AUTO_FREE char *full = realpath(l->folder, NULL);
    char *to = s->names[k], *slash = full ? strrchr(full, '/') : NULL;
    if (slash && slash > full && (!strcmp(slash, "/best") || !strcmp(slash, "/last"))) {
        *slash = 0;
        slash = strrchr(full, '/');
    }
    snprintf(to, NAME_MOST, "%s",
             k == 0 && s->name   ? s->name
             : slash && slash[1] ? slash + 1
                                 : "weft");
    WEFT_AUTO_DECREF json_t *text = json_string(to);
    if (!text) snprintf(to, NAME_MOST, "weft"); /* what is no UTF-8 cannot be told in JSON */
    if (k > 0 && strcmp(to, s->names[0]) == 0) snprintf(to, NAME_MOST, "%.240s (2)", s->names[0]);
    weft_generator_limits limits = {.sequences = s->options.sequences,
                                    .context = s->context,
                                    .cache_bytes = s->cache_mib << 20,
                                    .prompt_share = 0.01 * (double)s->prompt_share};
    WEFT_TRY(weft_speculation_open(s->args, s->speculate, l, s->drafts + k, &limits));
    WEFT_TRY(weft_generator_open(l->model, l->backend, l->pool, &limits, &m->generator));
    weft_generator_count(m->generator, s->sizes + k);
    int64_t held = s->sizes[k].context, wanted = s->context ? s->context : l->config.context;
    if (held < wanted)
        weft_log(WEFT_LOG_WARN,
                 "serve: --cache-mib %lld holds %lld tokens, fewer than a context of %lld; texts "
                 "end there",
                 (long long)s->cache_mib, (long long)held, (long long)wanted);
    m->name = s->names[k];
    m->chat_template = l->config.chat_template;
    m->tokenizer = l->tokenizer;
    m->encoder = l->encoder;
    return WEFT_OK;
}

static weft_status open_all(serving *s) {
    int n = s->paths[1] ? 2 : 1;
    /* The key: a file's first line, or the environment's. An empty one is a mistake, not a key. */
    const char *named = getenv("WEFT_API_KEY");
    size_t bytes;
    if (s->key_file) {
        WEFT_TRY(weft_file_read(s->key_file, KEY_MOST, &s->key, &bytes));
        s->key[strcspn(s->key, "\r\n")] = 0;
        if (!*s->key) return WEFT_BAD_INPUT("%s: no key in its first line", s->key_file);
    } else if (named) {
        if (!*named) return WEFT_BAD_INPUT("WEFT_API_KEY is empty; set it to a key, or unset it");
        s->key = strdup(named);
        if (!s->key) return weft_fail(WEFT_ENOMEM, "no memory");
    }
    s->options.key = s->key;
    for (int k = 0; k < n; k++)
        WEFT_TRY(open_model(s, k));
    /* Connections are files to the system, which often allows fewer than it could. */
    struct rlimit limit;
    rlim_t want = (rlim_t)s->options.connections + 64;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < want) {
        limit.rlim_cur = limit.rlim_max < want ? limit.rlim_max : want;
        setrlimit(RLIMIT_NOFILE, &limit);
        if (limit.rlim_cur < want)
            weft_log(WEFT_LOG_WARN,
                     "serve: the system allows %lld files, so fewer than the %lld connections of "
                     "--connections",
                     (long long)limit.rlim_cur, (long long)s->options.connections);
    }
    WEFT_TRY(weft_server_open(&s->options, s->models, n, &s->server));
    if (!s->key && !weft_http_is_local(s->options.host))
        weft_log(WEFT_LOG_WARN,
                 "serve: everyone who reaches %s can use the model; --api-key-file sets a key",
                 s->options.host);
    return WEFT_OK;
}

static void close_all(serving *s) {
    weft_server_close(s->server);
    for (int k = 0; k < WEFT_SERVED_MOST; k++) {
        weft_generator_close(s->models[k].generator);
        weft_loaded_close(s->loaded + k);
        weft_loaded_close(s->drafts + k);
    }
    free(s->key);
}

weft_status weft_cmd_serve(weft_args *args, int argc, char **argv) {
    WEFT_AUTO(close_all)
    serving s = {.args = args,
                 .port = 8000,
                 .prompt_share = 75,
                 .request_seconds = 30,
                 .answer_seconds = 600,
                 .options = {.host = "127.0.0.1",
                             .sequences = 16,
                             .queue = 256,
                             .connections = 1024,
                             .body_bytes = 1 << 20}};
    sigset_t signals;
    WEFT_TRY(read_options(&s, argc, argv));
    hold_signals(&signals);
    WEFT_TRY(open_all(&s));
    char what[WEFT_PATH_MAX];
    bool two = s.paths[1] != NULL;
    snprintf(what, sizeof what, "serving %s%s%s", s.names[0], two ? " and " : "", s.names[1]);
    print_address(args, what, s.options.host, weft_server_port(s.server),
                  weft_json_make("model:s context:I vocabulary:I", s.names[0], s.sizes[0].context,
                                 s.sizes[0].vocab));
    /* Until a signal comes; then until nothing runs, or another one comes. */
    const struct timespec pause = {.tv_nsec = POLL_MS * 1000000L};
    wait_for_signal(&signals);
    weft_server_drain(s.server);
    int64_t busy = weft_server_busy(s.server);
    if (busy)
        weft_log(
            WEFT_LOG_INFO,
            "serve: stopping, requests still being answered: %lld; a second signal stops at once",
            (long long)busy);
    while (weft_server_busy(s.server) > 0 && sigtimedwait(&signals, NULL, &pause) <= 0)
        ;
    return WEFT_OK;
}
#else
weft_status weft_cmd_serve(weft_args *args, int argc, char **argv) {
    (void)args, (void)argc, (void)argv;
    return weft_fail(WEFT_EMISSING, "this build cannot serve: it was made without libmicrohttpd; "
                                    "scripts/setup optional installs it, then make configure");
}
#endif

const char weft_help_watch[] =
    "  DIR...\tfolders with runs and studies, six deep; default: runs\n"
    "  --port N\tdefault: 8100; 0 takes a free port and prints it\n"
    "  --host ADDRESS\tdefault: 127.0.0.1, this machine alone\n"
    "  --json\tthe address as one object on standard output\n"
    "\n"
    "A page that follows runs while they are written, and shows them after: curves, speed, what is "
    "left, logs and samples, GPUs. Runs can be compared, filtered and sorted by every option and "
    "score, averaged over seeds, and given notes and tags, which are kept in notes.db in the first "
    "folder. Nothing else is written, and no run waits for it. SIGINT or SIGTERM ends it.\n";

weft_status weft_cmd_watch(weft_args *args, int argc, char **argv) {
    enum { FOLDERS_MOST = 256 };
    const char *folders[FOLDERS_MOST] = {"runs"};
    weft_live_options o = {.host = "127.0.0.1"};
    int64_t port = 8100;
    WEFT_AUTO(weft_watched_close_at) weft_watched *runs = NULL;
    WEFT_AUTO(weft_live_close_at) weft_live *watch = NULL;
    sigset_t signals;
    const weft_arg own[] = {
        {"--port", .number = &port, .max = 65535}, {"--host", .value = &o.host}, {0}};
    WEFT_TRY(weft_args_parse(args, argc, argv, ARGS_ALL, own, folders, FOLDERS_MOST));
    if (args->config || args->variant || args->n_settings)
        return WEFT_BAD_INPUT("takes folders and no config; see 'weft help watch'");
    o.port = (int)port;
    hold_signals(&signals);
    WEFT_TRY(weft_watched_open(folders, args->n_words ? args->n_words : 1, true, &runs));
    WEFT_TRY(weft_live_open(&o, runs, &watch));
    char what[64];
    snprintf(what, sizeof what, "watching %d run%s", watch->found, watch->found == 1 ? "" : "s");
    print_address(args, what, o.host, watch->port, NULL);
    if (!weft_http_is_local(o.host))
        weft_log(WEFT_LOG_WARN, "watch: everyone who reaches %s sees these runs", o.host);
    wait_for_signal(&signals);
    return WEFT_OK;
}
