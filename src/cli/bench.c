/* weft bench: measured rows, a peer beside them. `train` measures whole training steps, `attention`
 * the attention operations alone, `decode` generation, `serve` a server under load. */
#include "base/json.h"
#include "bench/tables.h"
#include "cli/args.h"

#include <signal.h>

const char weft_help_bench[] =
    "train: training steps (forward, backward, clipping, AdamW) of each variant on random tokens: "
    "tokens per second, memory planned and measured, share of the machine's limit (multiply-adds "
    "in registers; on a GPU a large matrix product).\n"
    "  --shape NAME\tsmall (6 layers, 256 wide, 8 x 256 tokens; the default), or gpt2-124m, "
    "gpt2-355m, gpt2-1558m or llama-1b (Llama 3.2's, with --variants swiglu; 8 x 1024 tokens: 10 "
    "GB and minutes on a CPU)\n"
    "  --config FILE\tthe sizes and options of this config instead\n"
    "  -o KEY=VALUE\toverride a config key in every row; repeatable\n"
    "  --variants A,B\tdot, w2, cosine, mla, mla+gate, mla+gate+cross, mla+gate+cross64 (of rank "
    "64), mla+all, swiglu, wsffn, wsffn-grouped, mla-w2\n"
    "  --steps N\tsteps to measure per row, on both sides\n"
    "  --settle S\tseconds of steps before those, so that a GPU's clock settles\n"
    "  --profile\twhere each row's time goes, by operation, on standard error\n"
    "attention: the attention operations alone, forward and with backward.\n"
    "  --quick\tthe main rows\n"
    "decode: generation with full caches: tokens per second, the bytes that must be read, how much "
    "of the machine's read rate is reached, and the time to the first token of a 512-token prompt. "
    "It takes --shape (default gpt2-124m), --config, -o, --variants and --steps too; -o "
    "WEIGHT_DTYPE=int8 and -o CACHE_DTYPE=bf16 choose what is read.\n"
    "  --contexts N,N\tdefault: 256,2048,8192,32768\n"
    "  --batches N,N\tsequences at once; default: 1,8,64\n"
    "  --prompt N\ttokens of the prompt before the first token, at most 32768; default: 512; 0: "
    "leave that out, which saves most of the time\n"
    "  --grid\tup to 50 rows of several models, variants, contexts and batches, on a GPU in bf16; "
    "below them the geometric mean of the ratios to --peer and the worst row. On a CPU a dozen "
    "rows of gpt2-124m. With --json the table is on standard error\n"
    "  --rows WORD\twith --grid: the rows with this word in their names, such as \"mla+all\", "
    "\"llama-1b\" or \"batch 64\"\n"
    "  --minutes M\twith --grid: no row begins that would end later\n"
    "  --speculate HOW\twhat drafts are worth instead (see 'weft help generate'): how many tokens "
    "are right, tokens per step, and the gain over plain decoding\n"
    "  --model DIR\twith --speculate: the checkpoint. -o DATASET=... names what it was trained on; "
    "default: embedded\n"
    "  --text FILE\twith --speculate: a text of another kind; default: this help\n"
    "serve: a server under load. Requests arrive by chance (a Poisson process), whether those "
    "before them were answered or not; throughput, the time to the first token and between tokens, "
    "and the share of requests that were good; then texts that are written while a long prompt is "
    "read.\n"
    "  --model DIR\tthe checkpoint to serve, by a server that ends with the benchmark; with -o, "
    "--threads, --dtype and --device\n"
    "  --serve \"WORDS\"\tmore options of that server, such as \"--sequences 8 --context 9000\"\n"
    "  --url URL\tin its place a server that runs: http://HOST:PORT\n"
    "  --rates R,R\trequests in a second, a row each; default: 1,2,4\n"
    "  --requests N\tof a row; default: 32\n"
    "  --prompts N,N\ttokens of prompts, of which each request draws one; default: 16,64,256, less "
    "where the context is below 512\n"
    "  --tokens N,N\tthe same of texts; default: 16,64, or less\n"
    "  --good-first MS\ta request is good whose first token comes within that time; default: 1000\n"
    "  --good-between MS\tand the others on average in that time each; default: 100\n"
    "  --long N\ttokens of the long prompt; 0: none; default: 8192, or what fits the context\n"
    "  --streams N\ttexts beside it; default: 4\n"
    "  --seed N\tof arrivals and prompts; default: 1\n"
    "all:\n"
    "  --peer COMMAND\tmeasure another program in turns: \"python3 bench/peer_train.py\" for "
    "train, \"python3 bench/peer.py\" for attention, \"python3 bench/peer_decode.py\" for decode "
    "(all PyTorch)\n"
    "  --device D\tcpu (the default) or cuda, for train and decode\n"
    "  --dtype T\tf32 (the default) or bf16, for train and decode\n"
    "  --threads N\tfor both sides; default: one per processor\n"
    "  --json\tone object on standard output\n";

/* The sizes to measure: a shape's, or a config's. */
static weft_status find_source(const weft_args *a, bench_options *own, const char *usual) {
    if (a->variant)
        return WEFT_BAD_INPUT("--variant is not taken; name them: --variants mla,mla+all");
    if (a->config && own->shape) return WEFT_BAD_INPUT("--shape and --config: give one of them");
    const bench_shape *shape = bench_shape_find(own->shape ? own->shape : usual);
    if (!shape)
        return WEFT_BAD_INPUT(
            "--shape must be small, gpt2-124m, gpt2-355m, gpt2-1558m or llama-1b");
    own->source = (bench_config_source){
        .shape = shape, .file = a->config, .settings = a->settings, .n_settings = a->n_settings};
    return a->config ? weft_args_readable(a->config, NULL) : WEFT_OK;
}

static weft_status bench_attention(const weft_args *a, bench_options *own, int *failed) {
    if (a->config || a->n_overrides || a->variant || a->seed >= 0 || own->shape || own->variants ||
        own->steps || own->settle >= 0 || own->profile ||
        (a->dtype && strcmp(a->dtype, "f32") != 0))
        return WEFT_BAD_INPUT("attention takes --quick, --peer, --threads and --json only");
    if (own->cuda)
        return WEFT_BAD_INPUT(
            "attention is measured on the CPU here; on a GPU: make bench-attention-cuda");
    own->rows = "attention";
    return bench_op_table(own, failed);
}

static weft_status bench_decode(const weft_args *a, bench_options *own, int *failed) {
    if (own->quick || own->settle >= 0 || own->profile)
        return WEFT_BAD_INPUT(
            "decode takes no --quick, --settle or --profile; see 'weft help bench'");
    if (own->grid) {
        if (a->config || own->shape || own->variants || own->contexts || own->batches ||
            own->prompt_text)
            return WEFT_BAD_INPUT(
                "--grid has its models, variants, contexts and batches; --rows chooses of them");
        own->prompt = 0;
        own->table = own->json ? stderr : stdout; /* it takes minutes */
    } else if (own->rows || own->minutes > 0)
        return WEFT_BAD_INPUT("--rows and --minutes go with --grid");
    WEFT_TRY(find_source(a, own, "gpt2-124m"));
    return bench_decode_table(own, failed);
}

static weft_status bench_speculate(const weft_args *a, bench_options *own) {
    enum { TEXT_MOST = 1 << 20 };
    WEFT_AUTO(weft_loaded_close) weft_loaded model = {0}, draft = {0};
    WEFT_AUTO_FREE char *text = NULL;
    size_t bytes;
    weft_generator_limits limits = {0};
    if (!own->speculate)
        return WEFT_BAD_INPUT("--model and --text go with --speculate ngram or DIR");
    if (!own->model) return WEFT_BAD_INPUT("--speculate needs --model, a trained checkpoint");
    if (a->config || own->shape || own->variants || own->contexts || own->batches ||
        own->prompt_text || own->steps || own->peer || own->grid)
        return WEFT_BAD_INPUT(
            "--speculate takes --model, --text, -o, --device, --dtype, --threads and --json");
    if (own->text) WEFT_TRY(weft_file_read(own->text, TEXT_MOST, &text, &bytes));
    WEFT_TRY(weft_loaded_open(a, own->model, WEFT_LOADED_GENERATION, &model));
    WEFT_TRY(weft_speculation_open(a, own->speculate, &model, &draft, &limits));
    bench_drafting drafting = {model.model,
                               limits.draft,
                               model.encoder,
                               model.backend,
                               model.pool,
                               text ? text : weft_help_bench,
                               text ? own->text : "this help"};
    return bench_speculate_table(own, &drafting);
}

/* The words for weft serve; `text` is where its own are split. */
static weft_status list_words(const weft_args *a, const bench_options *own, char *text,
                              const char **words) {
    enum { MOST = 60 };
    static char threads[16];
    int n = 0;
    const char *const given[][2] = {{"serve", NULL},
                                    {"--model", own->model},
                                    {"--threads", a->threads ? threads : NULL},
                                    {"--dtype", a->dtype},
                                    {"--device", a->device}};
    snprintf(threads, sizeof threads, "%d", a->threads);
    for (int i = 0; i < WEFT_COUNT(given); i++) {
        if (i == 0 || given[i][1]) words[n++] = given[i][0];
        if (given[i][1]) words[n++] = given[i][1];
    }
    for (int i = 0; i < a->n_overrides && n + 2 < MOST; i++) {
        words[n++] = "-o";
        words[n++] = a->overrides[i];
    }
    for (char *at = text, *word; (word = strtok_r(at, " ", &at)) && n < MOST;)
        words[n++] = word;
    words[n] = NULL;
    return n < MOST ? WEFT_OK : WEFT_BAD_INPUT("too many options for the server");
}

static weft_status bench_serve(weft_args *a, bench_options *own, int *failed) {
    const char *words[64];
    pid_t pid = 0;
    WEFT_AUTO_DECREF json_t *line = NULL;
    if (!own->model == !own->url)
        return WEFT_BAD_INPUT("serve needs --model DIR, or --url of a server that runs");
    if (a->config || a->variant || own->shape || own->variants || own->steps || own->quick ||
        own->settle >= 0 || own->profile || own->peer)
        return WEFT_BAD_INPUT(
            "serve takes --model, --rates and what 'weft help bench' lists with them");
    if (own->url && (own->words || a->n_overrides || a->threads || a->dtype || a->device))
        return WEFT_BAD_INPUT("the server at --url has options of its own");
    if (own->url && sscanf(own->url, "http://%255[^:/]:%d", own->host, &own->port) != 2)
        return WEFT_BAD_INPUT("--url '%s' must be http://HOST:PORT", own->url);
    if (own->model) {
        WEFT_AUTO_FREE char *text = strdup(own->words ? own->words : "");
        if (!text) return weft_fail(WEFT_ENOMEM, "no memory");
        WEFT_TRY(list_words(a, own, text, words));
        a->exit = weft_child_start(words, false, -1, &pid, &line);
        if (a->exit) return WEFT_OK; /* it has said why */
    }
    /* What is not said follows the server's context. */
    int64_t context = json_integer_value(json_object_get(line, "context")),
            base = context && context < 512 ? context : 512;
    char prompts[64], tokens[64];
    snprintf(prompts, sizeof prompts, "%lld,%lld,%lld", (long long)(base + 31) / 32,
             (long long)(base + 7) / 8, (long long)base / 2);
    snprintf(tokens, sizeof tokens, "%lld,%lld", (long long)(base + 31) / 32,
             (long long)(base + 7) / 8);
    if (!own->url) {
        strcpy(own->host, "127.0.0.1");
        own->port = (int)json_integer_value(json_object_get(line, "port"));
    }
    own->vocab = own->url ? 256 : json_integer_value(json_object_get(line, "vocabulary"));
    if (own->url) own->model = own->url;
    if (!own->rates) own->rates = "1,2,4";
    if (!own->prompts) own->prompts = prompts;
    if (!own->tokens) own->tokens = tokens;
    if (!own->requests) own->requests = 32;
    if (own->long_prompt < 0) own->long_prompt = own->url ? 0 : context > 8192 ? 8192 : context - 1;
    if (!own->streams) own->streams = 4;
    if (!own->good_first) own->good_first = 1000;
    if (!own->good_between) own->good_between = 100;
    own->seed = a->seed >= 0 ? a->seed : 1;
    weft_status status = bench_serve_table(own, failed);
    a->exit = weft_child_stop(pid);
    return status;
}

weft_status weft_cmd_bench(weft_args *args, int argc, char **argv) {
    bench_options own = {.prompt = 512, .settle = -1, .long_prompt = -1};
    const char *what = NULL;
    const weft_arg options[] = {
        {"--shape", .value = &own.shape},
        {"--variants", .value = &own.variants},
        {"--steps", .number = &own.steps, .min = 1, .max = 100000},
        {"--settle", .real = &own.settle, .max = 3600},
        {"--peer", .value = &own.peer},
        {"--profile", .flag = &own.profile},
        {"--quick", .flag = &own.quick},
        {"--grid", .flag = &own.grid},
        {"--rows", .value = &own.rows},
        {"--minutes", .real = &own.minutes, .max = 1e6},
        {"--contexts", .value = &own.contexts},
        {"--speculate", .value = &own.speculate},
        {"--model", .value = &own.model},
        {"--text", .value = &own.text},
        {"--batches", .value = &own.batches},
        {"--prompt", .value = &own.prompt_text, .number = &own.prompt, .max = 32768},
        {"--url", .value = &own.url},
        {"--serve", .value = &own.words},
        {"--rates", .value = &own.rates},
        {"--requests", .number = &own.requests, .min = 1, .max = 1 << 20},
        {"--prompts", .value = &own.prompts},
        {"--tokens", .value = &own.tokens},
        {"--good-first", .number = &own.good_first, .min = 1, .max = 1 << 30},
        {"--good-between", .number = &own.good_between, .min = 1, .max = 1 << 30},
        {"--long", .number = &own.long_prompt, .max = 1 << 28},
        {"--streams", .number = &own.streams, .min = 1, .max = 4096},
        {0},
    };
    int failed = 0;
    WEFT_TRY(weft_args_parse(args, argc, argv, ARGS_ALL, options, &what, 1));
    if (!what) return WEFT_BAD_INPUT("say what: train, decode, attention or serve");
    bool decode = strcmp(what, "decode") == 0, train = strcmp(what, "train") == 0,
         serve = strcmp(what, "serve") == 0;
    if (!decode && !train && !serve && strcmp(what, "attention") != 0)
        return WEFT_BAD_INPUT("there is no '%s'; there are train, decode, attention and serve",
                              what);
    if (!serve && (own.url || own.words || own.rates || own.prompts || own.tokens || own.requests ||
                   own.good_first || own.good_between || own.long_prompt >= 0 || own.streams))
        return WEFT_BAD_INPUT("--rates and what stands with them in 'weft help bench' are serve's");
    if (!decode &&
        (own.contexts || own.batches || own.prompt_text || own.grid || own.rows || own.minutes > 0))
        return WEFT_BAD_INPUT("--contexts, --batches, --prompt and --grid are decode's");
    bool speculate = own.speculate || own.text || (own.model && !serve);
    if (!decode && speculate)
        return WEFT_BAD_INPUT(
            "--speculate and --text are decode's, --model is decode's and serve's");
    signal(SIGPIPE, SIG_IGN); /* a peer that is gone is an answer, not an end */
    own.threads = args->threads;
    own.table = args->json ? NULL : stdout;
    own.json = args->json ? stdout : NULL;
    own.cuda = args->device && strcmp(args->device, "cuda") == 0;
    if (train && own.quick)
        return WEFT_BAD_INPUT("--quick is attention's; train has --variants and --steps");
    if (train) WEFT_TRY(find_source(args, &own, "small"));
    WEFT_TRY(train       ? bench_train_table(&own, &failed)
             : speculate ? bench_speculate(args, &own)
             : decode    ? bench_decode(args, &own, &failed)
             : serve     ? bench_serve(args, &own, &failed)
                         : bench_attention(args, &own, &failed));
    if (failed && !args->exit) args->exit = WEFT_EXIT_FAILED;
    return WEFT_OK;
}
