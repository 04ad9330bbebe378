/* weft generate: text from a checkpoint, streamed as it is made. */
#include "base/clock.h"
#include "base/json.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/args.h"
#include "generate/text.h"

#include <errno.h>
#include <fcntl.h>

const char weft_help_generate[] =
    "  --model DIR\ta checkpoint; of a run's folder, its best/, or last/ if there is no best/\n"
    "  --prompt TEXT\tthe beginning of the text; \\n and the like are not interpreted. An empty "
    "one begins a new text\n"
    "  --file FILE\tread the prompt from this file; - is standard input, which is also read if "
    "there is no prompt and it is not a terminal\n"
    "  --tokens \"5 6 7\"\tthe prompt as tokens' numbers, separated by blanks or commas; the text "
    "comes out as numbers, too. For models without a tokenizer\n"
    "  -i\ta conversation: each line of standard input is added and answered, up to a stop string "
    "or --max-tokens; what was said before stays in the cache. --prompt or --file is its "
    "beginning, which is answered first\n"
    "  --max-tokens N\tmost tokens to generate; default: 256\n"
    "  --temperature X\tdefault: 1; 0 always takes the likeliest token\n"
    "  --top-k N\tsample from the N likeliest tokens; default: 0, all of them\n"
    "  --top-p X\tfrom the likeliest whose probabilities add up to X\n"
    "  --min-p X\tfrom those at least X times as likely as the likeliest\n"
    "  --repetition-penalty X\tabove 1: tokens that are already there become less likely\n"
    "  --seed N\tthe same random seed gives the same text; default: the config's SEED\n"
    "  --stop TEXT\tend the text before this; repeatable\n"
    "  --samples N\tseveral texts for one prompt, one after the other\n"
    "  --logprobs N\twith --json: the N likeliest tokens at each place too (at most 20)\n"
    "  --context N\tmost tokens of prompt and text together; default: CONTEXT; more only with "
    "positions that have no end (rope, alibi, none)\n"
    "  --slide\tcontinue past the end of the context, with its last N tokens in view\n"
    "  --speculate HOW\tdraft the next tokens and check several in one step, which is faster where "
    "drafts are right; the text stays the same. HOW is ngram (what came behind the same tokens "
    "before), or the folder of a smaller model with the same tokenizer\n"
    "  -o KEY=VALUE\toverride a key of the checkpoint's config, such as CACHE_DTYPE and "
    "WEIGHT_DTYPE (f32, bf16, int8), the types of cache and matrices; repeatable\n"
    "  --unchecked\tdo not verify the checksums in the checkpoint's state.json\n"
    "  --dtype T\tf32, bf16 or f64\n"
    "  --device D\tcpu, cuda or auto (the default: a GPU if there is one)\n"
    "  --threads N\tdefault: one per processor\n"
    "  --json\tone object on standard output: text, tokens, logprobs, times\n"
    "\n"
    "On a terminal, control characters of the text are shown as \\xNN.\n";

typedef struct {
    int64_t id;
    weft_stream *stream; /* NULL: its text is numbers */
    size_t shown;        /* bytes of its text */
    weft_sampled *tokens;
    int64_t n_tokens, tokens_room;
    bool done;
    const char *finish;
    double first; /* seconds to the first token */
} sample_text;

typedef struct {
    weft_args *args;
    const char *path, *prompt, *file, *tokens, *speculate;
    bool interactive, slide;
    int64_t samples, context, top_logprobs;
    weft_sampling sampling;
    weft_loaded loaded, draft;
    weft_generator *generator;
    sample_text *texts; /* [samples] of a prompt */
} generation;

static weft_status read_options(generation *g, int argc, char **argv) {
    weft_args *a = g->args;
    weft_sampling *s = &g->sampling;
    const char *logprobs = NULL;
    const weft_arg own[] = {
        {"--model", .value = &g->path, .rule = WEFT_ARG_NEEDED},
        {"--prompt", .value = &g->prompt, .rule = WEFT_ARG_MAY_BE_EMPTY},
        {"--file", .value = &g->file},
        {"--tokens", .value = &g->tokens},
        {"-i", .flag = &g->interactive},
        {"--interactive", .flag = &g->interactive},
        {"--slide", .flag = &g->slide},
        {"--max-tokens", .number = &s->max_tokens, .min = 1, .max = 1 << 30},
        {"--temperature", .real = &s->temperature, .max = 100},
        {"--top-k", .number = &s->top_k, .max = 1 << 30},
        {"--top-p", .real = &s->top_p, .max = 1},
        {"--min-p", .real = &s->min_p, .max = 1},
        {"--repetition-penalty", .real = &s->repetition_penalty, .min = 0.01, .max = 100},
        {"--samples", .number = &g->samples, .min = 1, .max = 1024},
        {"--logprobs", .value = &logprobs, .number = &g->top_logprobs, .max = WEFT_TOP_MAX},
        {"--context", .number = &g->context, .min = 1, .max = 1 << 28},
        {"--speculate", .value = &g->speculate},
        {.name = "--stop"},
        {0}};
    WEFT_TRY(weft_args_parse(a, argc, argv, ARGS_ALL | ARGS_UNCHECKED, own, NULL, 0));
    s->top_logprobs = (int)g->top_logprobs;
    s->token_only = !a->json;
    if ((g->prompt != NULL) + (g->file != NULL) + (g->tokens != NULL) > 1)
        return WEFT_BAD_INPUT("--prompt, --file and --tokens are each a prompt; give one");
    if (g->tokens && (g->interactive || a->n_repeated))
        return WEFT_BAD_INPUT("--tokens goes without -i and --stop, which are about text");
    if (g->interactive && (g->samples > 1 || a->json))
        return WEFT_BAD_INPUT("-i is one conversation, without --samples and --json");
    if (g->interactive && g->file && strcmp(g->file, "-") == 0)
        return WEFT_BAD_INPUT(
            "-i reads the conversation from standard input, which --file - is too; name a file");
    if (logprobs && !a->json) return WEFT_BAD_INPUT("--logprobs needs --json");
    return weft_args_no_config(a);
}

static weft_status open_all(generation *g) {
    weft_loaded *l = &g->loaded;
    WEFT_TRY(weft_loaded_open(g->args, g->path,
                              g->tokens ? WEFT_LOADED_NUMBERS : WEFT_LOADED_GENERATION, l));
    g->sampling.seed = (uint64_t)l->config.seed;
    g->sampling.ends = l->tokenizer;
    weft_generator_limits limits = {
        .sequences = g->samples, .context = g->context, .slide = g->slide};
    WEFT_TRY(weft_speculation_open(g->args, g->speculate, l, &g->draft, &limits));
    return weft_generator_open(l->model, l->backend, l->pool, &limits, &g->generator);
}

static weft_status open_sample(const generation *g, sample_text *s) {
    if (!g->loaded.tokenizer) return WEFT_OK; /* no text is made */
    return weft_stream_open(g->loaded.tokenizer, g->args->repeated, g->args->n_repeated,
                            &s->stream);
}

static void close_sample(sample_text *s) {
    weft_stream_close(s->stream);
    free(s->tokens);
}

/* A terminal would obey what the model says; a file or a pipe has it as it is. */
static void show_text(const char *text, size_t bytes) {
    if (isatty(STDOUT_FILENO))
        weft_text_print(stdout, text, bytes);
    else
        fwrite(text, 1, bytes, stdout);
    fflush(stdout);
}

/* What of a text became certain since it was last shown. */
static void show_more(sample_text *s) {
    size_t bytes;
    const char *text = weft_stream_text(s->stream, &bytes);
    if (bytes > s->shown) show_text(text + s->shown, bytes - s->shown);
    s->shown = bytes;
}

static weft_status take_tokens(const generation *g, sample_text *s, double start) {
    bool stopped;
    weft_sampled token;
    weft_take take;
    while (!s->done &&
           (take = weft_generator_take(g->generator, s->id, &token)) != WEFT_TAKE_WAIT) {
        if (take == WEFT_TAKE_TOKEN) {
            if (s->n_tokens == 0) s->first = weft_clock() - start;
            if (!weft_grow_list(&s->tokens, &s->tokens_room, s->n_tokens + 1, sizeof token))
                return weft_fail(WEFT_ENOMEM, "generate: no memory for tokens");
            s->tokens[s->n_tokens++] = token;
            if (!s->stream) continue;
            WEFT_TRY(weft_stream_put(s->stream, token.token, &stopped));
            if (!stopped) continue;
            s->finish = "stop";
            s->done = true;
            weft_generator_stop(g->generator, s->id);
            return WEFT_OK;
        }
        s->finish = take == WEFT_TAKE_BROKEN ? "error" : take == WEFT_TAKE_END ? "stop" : "length";
        s->done = true;
        if (!s->stream) return WEFT_OK;
        WEFT_TRY(weft_stream_end(s->stream));
    }
    return WEFT_OK;
}

static bool broke_off(const sample_text *s) {
    return strcmp(s->finish, "error") == 0;
}

/* Runs until every sample is done; the first that is not done is shown as it comes, and those behind
 * it when their turn comes. */
static weft_status run_samples(const generation *g, sample_text *samples, double start, bool show) {
    int64_t shown = 0, n = g->samples;
    while (shown < n) {
        WEFT_TRY(weft_generator_step(g->generator));
        for (int64_t i = 0; i < n; i++)
            WEFT_TRY(take_tokens(g, samples + i, start));
        if (show) show_more(samples + shown);
        while (shown < n && samples[shown].done) {
            if (show && (n > 1 || samples->n_tokens > 0 || !broke_off(samples))) show_text("\n", 1);
            if (++shown == n || !show) continue;
            printf("--- %lld\n", (long long)shown + 1);
            show_more(samples + shown);
        }
    }
    return WEFT_OK;
}

/* An error where a text broke off; the others are whole. */
static weft_status check_samples(const generation *g, const sample_text *samples) {
    int64_t i = 0;
    while (i < g->samples && !broke_off(samples + i))
        i++;
    if (i == g->samples) return WEFT_OK;
    weft_status status = weft_generator_broken();
    if (g->samples == 1) return status;
    return weft_fail(status, "sample %lld broke off after %lld tokens: %s", (long long)i + 1,
                     (long long)samples[i].n_tokens, weft_error_message());
}

static json_t *sample_json(const sample_text *s) {
    const weft_sampled *t = s->tokens;
    size_t bytes;
    const char *text = weft_stream_text(s->stream, &bytes);
    json_t *tops = json_array();
    WEFT_JSON_LIST(tokens, i, s->n_tokens, json_integer(t[i].token));
    WEFT_JSON_LIST(logprobs, i, s->n_tokens, weft_json_number((double)t[i].logprob));
    for (int64_t i = 0; i < s->n_tokens; i++) {
        WEFT_JSON_LIST(
            top, k, t[i].n_top,
            weft_json_make("token:i logprob:f", (int)t[i].top[k], (double)t[i].top_logprob[k]));
        json_array_append_new(tops, top);
    }
    json_t *object = json_pack("{s:s%, s:o, s:o, s:s}", "text", text, bytes, "tokens", tokens,
                               "logprobs", logprobs, "finish", s->finish ? s->finish : "");
    if (s->n_tokens && s->tokens[0].n_top)
        json_object_set_new(object, "top_logprobs", tops);
    else
        json_decref(tops);
    return object;
}

typedef struct {
    double seconds, first;
    int64_t prompt, made;
} speed;

static speed measure(const sample_text *samples, int64_t n, int64_t prompt, double start) {
    speed v = {.seconds = weft_clock() - start, .first = samples[0].first, .prompt = prompt};
    for (int64_t i = 0; i < n; i++)
        v.made += samples[i].n_tokens;
    return v;
}

static void print_json(const generation *g, const sample_text *samples, const speed *v) {
    weft_generator_stats stats;
    weft_generator_count(g->generator, &stats);
    json_t *object = sample_json(samples);
    weft_json_add(object,
                  "prompt_tokens:I seed:I seconds:f first_token_seconds:f tokens_per_s:f "
                  "cache_bytes_per_token:I",
                  v->prompt, g->sampling.seed, v->seconds, v->first,
                  v->seconds > 0 ? (double)v->made / v->seconds : 0.0, stats.cache_bytes_per_token);
    if (g->speculate)
        weft_json_add(object, "drafted_tokens:I accepted_tokens:I", stats.drafted_tokens,
                      stats.accepted_tokens);
    if (g->samples > 1) {
        WEFT_JSON_LIST(list, i, g->samples, sample_json(samples + i));
        json_object_set_new(object, "samples", list);
    }
    weft_args_print(object, 0);
}

/* The prompt before its text, where both are read on a screen: dim, so that the two are told apart. */
static void show_prompt(const char *text, size_t bytes) {
    const char *plain = getenv("NO_COLOR"), *term = getenv("TERM");
    bool dim = !(plain && *plain) && term && strcmp(term, "dumb") != 0;
    if (!bytes || !isatty(STDOUT_FILENO)) return;
    fputs(dim ? "\033[2m" : "", stdout);
    show_text(text, bytes);
    fputs(dim ? "\033[0m" : "", stdout);
}

static void tell_full(const generation *g, const sample_text *samples, int64_t prompt) {
    weft_generator_stats stats;
    weft_generator_count(g->generator, &stats);
    for (int64_t i = 0; i < g->samples && !g->slide; i++) {
        if (prompt + samples[i].n_tokens < stats.context) continue;
        weft_log(WEFT_LOG_INFO,
                 "the context of %lld tokens is full; --slide goes on with its last tokens in view",
                 (long long)stats.context);
        return;
    }
}

static void print_speed(const speed *v) {
    if (!isatty(STDERR_FILENO)) return;
    double after = v->seconds - v->first;
    fprintf(stderr,
            "%lld tokens of prompt, first token after %.0f ms; %lld tokens, %.1f tokens/s\n",
            (long long)v->prompt, 1e3 * v->first, (long long)v->made,
            v->made > 1 && after > 0 ? (double)(v->made - 1) / after : 0);
}

/* What the text begins with: --prompt, --file, or standard input where `input`; malloc'd. */
static weft_status read_beginning(const generation *g, bool input, char **text, size_t *bytes) {
    *text = NULL;
    *bytes = 0;
    if (g->prompt) {
        *text = strdup(g->prompt);
        *bytes = strlen(g->prompt);
        return *text ? WEFT_OK : weft_fail(WEFT_ENOMEM, "generate: no memory for text");
    }
    if (!g->file && !input) return WEFT_OK;
    const char *path = g->file ? g->file : "-";
    input = strcmp(path, "-") == 0;
    WEFT_AUTO_CLOSE int own = input ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    if (!input && own < 0) return WEFT_BAD_INPUT("%s: %s", path, strerror(errno));
    return weft_file_read_open(input ? STDIN_FILENO : own, path, SIZE_MAX, text, bytes);
}

/* Numbers with blanks or commas between them; malloc'd. */
static weft_status read_numbers(const generation *g, int32_t **out, int64_t *count) {
    *count = 0;
    for (const char *at = g->tokens; *(at += strspn(at, " ,\t\n"));) {
        char *end;
        long long token = strtoll(at, &end, 10);
        if (end == at || !strchr(" ,\t\n", *end) || token < 0 ||
            token >= g->loaded.config.vocab_size)
            return WEFT_BAD_INPUT(
                "--tokens: '%.*s' is not a number from 0 to %lld, the model's last token",
                (int)strcspn(at, " ,\t\n"), at, (long long)g->loaded.config.vocab_size - 1);
        int32_t *one = WEFT_ADD(*out, *count);
        if (!one) return weft_fail(WEFT_ENOMEM, "generate: no memory for tokens");
        *one = (int32_t)token;
        at = end;
    }
    return *count ? WEFT_OK : WEFT_BAD_INPUT("--tokens: there is no number in it");
}

static weft_status generate_once(generation *g) {
    WEFT_AUTO_FREE int32_t *numbers = NULL;
    WEFT_AUTO_FREE char *text = NULL;
    size_t bytes = 0;
    const int32_t *tokens = NULL;
    int64_t count = 0;
    bool shown = !g->args->json && !g->tokens;
    WEFT_TRY(g->tokens ? read_numbers(g, &numbers, &count)
                       : read_beginning(g, !isatty(STDIN_FILENO), &text, &bytes));
    if (g->tokens)
        tokens = numbers;
    else
        WEFT_TRY(weft_prompt_encode(g->loaded.tokenizer, g->loaded.encoder, text, bytes, true,
                                    &tokens, &count));
    sample_text *samples = g->texts = calloc((size_t)g->samples, sizeof *samples);
    if (!samples) return weft_fail(WEFT_ENOMEM, "generate: no memory");
    double start = weft_clock();
    for (int64_t i = 0; i < g->samples; i++) {
        weft_sampling sampling = g->sampling;
        sampling.sample = (uint32_t)i;
        WEFT_TRY(open_sample(g, samples + i));
        WEFT_TRY(weft_generator_add(g->generator, tokens, count, &sampling, &samples[i].id));
    }
    if (shown) show_prompt(text, bytes);
    WEFT_TRY(run_samples(g, samples, start, shown));
    /* Tokens in, tokens out: a line for each text. */
    for (int64_t i = 0; g->tokens && !g->args->json && i < g->samples; i++)
        for (int64_t k = 0; k < samples[i].n_tokens; k++)
            printf("%d%c", samples[i].tokens[k].token, k + 1 < samples[i].n_tokens ? ' ' : '\n');
    speed v = measure(samples, g->samples, count, start);
    weft_status status = check_samples(g, samples);
    if (g->args->json && (v.made || status == WEFT_OK)) print_json(g, samples, &v);
    if (!g->args->json) print_speed(&v);
    if (!g->args->json) tell_full(g, samples, count);
    return status;
}

/* One line of a conversation, which has `held` tokens so far, and its answer. */
static weft_status answer(generation *g, int64_t *id, int64_t *held, const char *line,
                          size_t bytes) {
    const int32_t *tokens;
    int64_t count;
    WEFT_AUTO(close_sample) sample_text s = {.id = *id};
    WEFT_TRY(weft_prompt_encode(g->loaded.tokenizer, g->loaded.encoder, line, bytes, *id < 0,
                                &tokens, &count));
    WEFT_TRY(open_sample(g, &s));
    double start = weft_clock();
    WEFT_TRY(*id < 0 ? weft_generator_add(g->generator, tokens, count, &g->sampling, id)
                     : weft_generator_extend(g->generator, *id, tokens, count, &g->sampling));
    s.id = *id;
    WEFT_TRY(run_samples(g, &s, start, true));
    speed v = measure(&s, 1, count, start);
    print_speed(&v);
    tell_full(g, &s, *held += count);
    *held += s.n_tokens;
    return check_samples(g, &s);
}

static weft_status converse(generation *g) {
    WEFT_AUTO_FREE char *line = NULL;
    size_t room = 0, bytes = 0;
    int64_t id = -1, held = 0;
    bool terminal = isatty(STDIN_FILENO);
    weft_status status = read_beginning(g, false, &line, &bytes);
    if (status == WEFT_OK && bytes) status = answer(g, &id, &held, line, bytes);
    free(weft_steal(&line)); /* what getline fills is its own */
    while (status == WEFT_OK) {
        if (terminal) fputs("> ", stderr);
        ssize_t got = getline(&line, &room, stdin);
        if (got < 0) break;
        status = answer(g, &id, &held, line, (size_t)got);
    }
    if (terminal) fputs("\n", stderr);
    return status;
}

weft_status weft_cmd_generate(weft_args *args, int argc, char **argv) {
    generation g = {.args = args, .samples = 1, .sampling = weft_sampling_default()};
    WEFT_TRY(read_options(&g, argc, argv));
    weft_status status = open_all(&g);
    if (status == WEFT_OK) status = g.interactive ? converse(&g) : generate_once(&g);
    for (int64_t i = 0; g.texts && i < g.samples; i++)
        close_sample(g.texts + i);
    free(g.texts);
    weft_generator_close(g.generator);
    weft_loaded_close(&g.loaded);
    weft_loaded_close(&g.draft);
    return status;
}
