/* weft new: a study from a few answers.
 *
 * Each part that is to be compared is a word of one option, so a part alone says which option it sets. The first
 * goes into the config itself; each other one is a variant, the same model with that one option changed. Size
 * and steps are those of `weft train --text`, for a run's share of the time. */
#include "base/folders.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/args.h"
#include "cpu/backend.h"
#include "supervise/supervise.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>

const char weft_help_new[] =
    "  --text FILE\tthe text to train on; repeatable. Without it, English-like text that the "
    "program makes itself\n"
    "  --compare A,B,...\twhat to compare: dot, w2, mla, cosine or gta (attentions); gelu, swiglu, "
    "wsffn, relu2 or gelu_erf (feed-forwards); learned, rope, alibi, relative or none (positions); "
    "layernorm or rmsnorm; or KEY=VALUE. The others are compared with the first; default: dot,w2\n"
    "  --minutes M\thow long the study may take, a quarter of it kept in reserve; default: 10\n"
    "  --seeds N\trandom seeds per variant: more show smaller differences; default: 5\n"
    "  --equal WHAT\twhat the variants have in common: iters, tokens, parameters (by the "
    "feed-forward's width), flops or time; default: iters\n"
    "  --out DIR\ta new folder for the study; default: the text's name, or my-study\n"
    "  --device D\tcpu, cuda or auto\n"
    "  --threads N\tdefault: one per processor\n"
    "  --json\twhat 'weft study --list --json' prints of the study\n"
    "\n"
    "DIR/study is the study's file, DIR/data the text as tokens. Nothing is trained yet: it prints "
    "how long the study takes, how small a difference it can show, and the command that runs it. "
    "On a terminal, it asks for whatever you leave out.\n";

enum { ANSWER_ROOM = 1024, PARTS_MOST = 16, SEEDS_MOST = 1000, VARIANT_ROOM = 256 };

/* How much the difference of two variants varied from seed to seed in studies of small models, in nats. */
static const double USUAL_SPREAD = 0.02;
/* What of a run's time its steps take; the rest is starting, evaluation and saving. */
static const double SHARE_OF_STEPS = 0.7;
/* What of the time that is allowed is planned for: runs may be slower than a short measurement was. */
static const double SHARE_OF_TIME = 0.75;

/* Models whose parameters differ by less count as equally large. */
static const double SIZES_ALIKE = 1.05;

typedef struct {
    const char *compare, *minutes_text, *seeds_text, *equal, *out;
    double minutes;
    int64_t seeds;
    char texts[ANSWER_ROOM], compared[ANSWER_ROOM], folder[ANSWER_ROOM];
    char sets[PARTS_MOST][VARIANT_ROOM]; /* KEY=VALUE of each part */
    int n;
    char titles[ANSWER_ROOM]; /* "A, B and C" */
    char variants[WEFT_TEXT_MAX];
} wishes;

/* One part, as what it sets and as a variant: "w2 'W2 attention': ATTENTION=w2". */
static weft_status add_part(wishes *w, const char *word) {
    const weft_named_kind *p = weft_named_kinds;
    while (p->key && strcasecmp(p->word, word) != 0)
        p++;
    if (!p->key) p = NULL;
    const char *equals = strchr(word, '=');
    char name[WEFT_VARIANT_NAME], label[VARIANT_ROOM] = "";
    weft_config scratch;
    if (!p && !equals) {
        weft_nearest nearest = weft_nearest_slip(word);
        for (const weft_named_kind *known = weft_named_kinds; known->key; known++)
            weft_nearest_offer(&nearest, known->word);
        if (*nearest.name)
            return WEFT_BAD_INPUT("--compare: '%s' is not known; did you mean '%s'?", word,
                                  nearest.name);
        return WEFT_BAD_INPUT("--compare: '%s' is not known; 'weft help new' lists the words, "
                              "and KEY=VALUE is any option of a config",
                              word);
    }
    if (w->n == PARTS_MOST) return WEFT_BAD_INPUT("--compare: more than %d parts", PARTS_MOST);
    char *sets = w->sets[w->n];
    snprintf(sets, VARIANT_ROOM, "%s%s%s", p ? p->key : "", p ? "=" : "", p ? p->word : word);
    for (int i = 0; i < w->n; i++)
        if (strcmp(sets, w->sets[i]) == 0)
            return WEFT_BAD_INPUT("--compare: '%s' is there twice", word);
    weft_config_defaults(&scratch);
    WEFT_TRY(weft_config_override(&scratch, sets, "--compare"));
    snprintf(name, sizeof name, "%s", p ? p->word : word);
    for (char *at = name; *at; at++)
        *at = isalnum((unsigned char)*at) || *at == '.' ? (char)tolower((unsigned char)*at) : '-';
    snprintf(label, sizeof label, "%s", p ? p->title : word);
    size_t at = strlen(w->variants), said = strlen(w->titles);
    snprintf(w->variants + at, sizeof w->variants - at, "%s%s '%s'%s%s", w->n ? "; " : "", name,
             label, w->n ? ": " : "", w->n ? sets : "");
    snprintf(w->titles + said, sizeof w->titles - said, "%s%s", w->n ? ", " : "", label);
    w->n++;
    return WEFT_OK;
}

static weft_status read_parts(wishes *w, const char *list) {
    char words[ANSWER_ROOM], *at = words;
    w->n = 0;
    *w->variants = *w->titles = '\0';
    snprintf(words, sizeof words, "%s", list);
    for (char *word; (word = strsep(&at, ","));) {
        while (isspace((unsigned char)*word))
            word++;
        word[strcspn(word, " \t")] = '\0';
        if (*word) WEFT_TRY(add_part(w, word));
    }
    if (w->n > 1) return WEFT_OK;
    return WEFT_BAD_INPUT("--compare needs two parts or more, such as dot,w2");
}

/* One answer; an empty one is the default. False: the terminal was closed. */
static bool ask(const char *question, const char *fallback, char answer[ANSWER_ROOM]) {
    fprintf(stderr, "%s [%s]: ", question, fallback);
    if (!fgets(answer, ANSWER_ROOM, stdin)) return false;
    answer[strcspn(answer, "\r\n")] = '\0';
    if (!*weft_skip_blanks(answer)) snprintf(answer, ANSWER_ROOM, "%s", fallback);
    return true;
}

/* A number that is asked for until it is one. */
static bool ask_number(const weft_args *a, const char *question, const char *fallback,
                       const weft_arg *o) {
    char answer[ANSWER_ROOM];
    do {
        if (!ask(question, fallback, answer)) return false;
    } while (weft_args_end(a, weft_args_number(o, weft_skip_blanks(answer))));
    return true;
}

static bool ask_text(weft_args *a, wishes *w) {
    do {
        if (!ask("Text to train on, a file", "the text that comes with weft", w->texts))
            return false;
        if (strcmp(w->texts, "the text that comes with weft") == 0) return true;
    } while (weft_args_end(a, weft_args_readable(w->texts, NULL)));
    a->repeated[a->n_repeated++] = w->texts;
    return true;
}

static bool ask_parts(const weft_args *a, wishes *w) {
    fputs("What can be compared, the others with the first:\n", stderr);
    const char *key = "";
    for (const weft_named_kind *p = weft_named_kinds; p->key; key = p++->key)
        fprintf(stderr, "%s%s", strcmp(p->key, key) == 0 ? ", " : *key ? "\n  " : "  ", p->word);
    fputs("\n", stderr);
    do {
        if (!ask("Compare", "dot,w2", w->compared)) return false;
    } while (weft_args_end(a, read_parts(w, w->compared)));
    w->compare = w->compared;
    return true;
}

/* The text's name without its ending. */
static void name_folder(const weft_args *a, wishes *w) {
    const char *path = a->n_repeated ? a->repeated[0] : "my-study", *slash = strrchr(path, '/');
    const char *name = slash ? slash + 1 : path, *dot = strrchr(name, '.');
    int length = dot && dot > name ? (int)(dot - name) : (int)strlen(name);
    snprintf(w->folder, sizeof w->folder, "%.*s%s", length, name, a->n_repeated ? "-study" : "");
}

/* What differs from the defaults, below a few lines on what it is. */
static weft_status write_study(const weft_config *c, const wishes *w, const char *path) {
    char head[ANSWER_ROOM + 256];
    snprintf(head, sizeof head,
             "# A comparison of %s, written by weft new.\n#\n"
             "# 'weft help config' explains the options. STUDY_SPREAD is what differences "
             "between small models\n# usually vary by from seed to seed.\n",
             w->titles);
    return weft_config_save_changes(c, head, NULL, path);
}

static weft_status fill_folder(const weft_args *a, const wishes *w, const char *path) {
    weft_config c;
    double runs = (double)(w->n * w->seeds), minutes = SHARE_OF_TIME * w->minutes;
    WEFT_PATH(data, "%s/data", w->folder);
    WEFT_TRY(weft_own_text_choose(a, a->repeated, a->n_repeated, data, minutes / runs, &c));
    for (int i = 0; i < w->n; i++)
        if (strcmp(w->sets[i], "ATTENTION=mla") == 0) c.ra_mla_latent_dim = c.n_embd / 4;
    WEFT_TRY(weft_config_override(&c, w->sets[0], "--compare"));
    if (a->device) WEFT_TRY(weft_config_set(&c, "DEVICE", a->device, "--device"));
    WEFT_TRY(weft_config_set(&c, "STUDY_VARIANTS", w->variants, "--compare"));
    if (w->equal) WEFT_TRY(weft_config_set(&c, "STUDY_EQUAL", w->equal, "--equal"));
    c.study_seeds = w->seeds;
    c.study_spread = USUAL_SPREAD;
    WEFT_TRY(write_study(&c, w, path));
    /* So many steps that the time is enough, written and told. */
    weft_source source = {.file = path};
    WEFT_AUTO(weft_study_close_at) weft_study *s = NULL, *timed = NULL;
    double seconds = 0; /* that all runs take, by a short measurement of each variant */
    WEFT_TRY(weft_study_open(&source, weft_cpu_backend(), 1, &s));
    for (int i = 0; i < s->variants.n; i++)
        if (*s->built[i].error)
            return WEFT_BAD_INPUT("'%s' cannot be built: %s", s->variants.list[i].name,
                                  s->built[i].error);
    int threads = a->threads ? a->threads : (int)sysconf(_SC_NPROCESSORS_ONLN);
    WEFT_TRY(weft_measure_variants(s, w->folder, threads));
    WEFT_TRY(weft_equal_time(s));
    for (int i = 0; i < s->variants.n; i++)
        seconds +=
            s->built[i].seconds_per_iter / SHARE_OF_STEPS * (double)(w->seeds * s->built[i].iters);
    double planned = (double)c.steps;
    c.steps = (int64_t)fmax(fmin(planned, planned * 60 * minutes / seconds), 1);
    weft_own_text_intervals(&c);
    WEFT_TRY(write_study(&c, w, path));
    WEFT_TRY(weft_study_open(&source, weft_cpu_backend(), 1, &timed));
    weft_study_list(timed, seconds * (double)c.steps / planned, a->json);
    /* Where one model is larger than another, its advantage may be that alone. */
    if (!a->json) {
        int64_t least = timed->built[0].account.parameters, most = least;
        for (int i = 1; i < timed->variants.n; i++) {
            int64_t count = timed->built[i].account.parameters;
            least = count < least ? count : least;
            most = count > most ? count : most;
        }
        if ((double)most > SIZES_ALIKE * (double)least)
            printf("The largest variant has %.2f times the parameters of the smallest; --equal "
                   "parameters makes them alike.\n",
                   (double)most / (double)least);
    }
    return WEFT_OK;
}

weft_status weft_cmd_new(weft_args *args, int argc, char **argv) {
    static wishes w;
    char path[WEFT_PATH_MAX];
    const weft_arg own[] = {
        {.name = "--text"},
        {"--compare", .value = &w.compare},
        {"--minutes", .value = &w.minutes_text, .real = &w.minutes, .min = 0.01, .max = 1e6},
        {"--seeds", .value = &w.seeds_text, .number = &w.seeds, .min = 2, .max = SEEDS_MOST},
        {"--equal", .value = &w.equal},
        {"--out", .value = &w.out},
        {0}};
    w.minutes = WEFT_OWN_TEXT_MINUTES;
    w.seeds = 5;
    WEFT_TRY(
        weft_args_parse(args, argc, argv, ARGS_JSON | ARGS_THREADS | ARGS_DEVICE, own, NULL, 0));
    for (int i = 0; i < args->n_repeated; i++)
        WEFT_TRY(weft_args_readable(args->repeated[i], NULL));
    if (w.compare) WEFT_TRY(read_parts(&w, w.compare));
    weft_config scratch;
    weft_config_defaults(&scratch);
    if (w.equal) WEFT_TRY(weft_config_set(&scratch, "STUDY_EQUAL", w.equal, "--equal"));
    bool asks = isatty(STDIN_FILENO) && isatty(STDERR_FILENO) && !args->json;
    if (asks) {
        char answer[ANSWER_ROOM] = "";
        bool open = args->n_repeated || ask_text(args, &w);
        open = open && (w.compare || ask_parts(args, &w));
        open = open && (w.minutes_text || ask_number(args, "Minutes it may take", "10", &own[2]));
        open = open && (w.seeds_text || ask_number(args, "Random seeds per variant", "5", &own[3]));
        name_folder(args, &w);
        open = open && (w.out || ask("Folder of the study", w.folder, answer));
        if (!open) return WEFT_BAD_INPUT("no answer; nothing was made");
        if (!w.out) snprintf(w.folder, sizeof w.folder, "%s", answer);
    }
    if (!w.compare) WEFT_TRY(read_parts(&w, "dot,w2"));
    if (!asks) name_folder(args, &w);
    if (w.out) snprintf(w.folder, sizeof w.folder, "%s", w.out);
    if (args->json) weft_log_set_level(WEFT_LOG_WARN);
    /* In a folder that was not there, and is not there where it fails. */
    weft_kind kind;
    char message[WEFT_STUDY_LINE];
    WEFT_TRY(weft_path(path, "%s/study", w.folder));
    WEFT_TRY(weft_path_kind(w.folder, &kind));
    if (kind != WEFT_KIND_NOTHING)
        return WEFT_BAD_INPUT("%s is there already; take another --out", w.folder);
    WEFT_TRY(weft_folder_make(w.folder));
    weft_status status = fill_folder(args, &w, path);
    if (status != WEFT_OK) {
        snprintf(message, sizeof message, "%s", weft_error_message());
        if (weft_folder_mark(w.folder) == WEFT_OK) weft_folder_remove(w.folder);
        return weft_fail(status, "%s", message);
    }
    fflush(stdout); /* the next line comes after it */
    if (!args->json)
        weft_log(WEFT_LOG_INFO, "next: %s study --config %s --minutes %g",
                 weft_args_word(program_invocation_name), weft_args_word(path), w.minutes);
    return WEFT_OK;
}
