/* The program: finds the command that was asked for and runs it.
 *
 * Adding a command is one line in COMMANDS below and one file, src/cli/NAME.c, with the two things
 * that line declares:
 *
 *   weft_status weft_cmd_NAME(weft_args *args, int argc, char **argv)
 *           runs it; argv[0] is the command's own name. The exit status follows from the result: 0 done,
 *           1 the work failed, 2 wrong usage or input.
 *   const char weft_help_NAME[]
 *           what `weft help NAME` prints below the usage line: whole lines, the options first, each with a tab
 *           before what it does.
 */
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>

#include "base/text.h"
#include "base/version.h"
#include "cli/args.h"

/* X(group, name, what follows the name in the usage line, summary in a few words, an example) */
#define COMMANDS(X)                                                                                \
    X("Start", new,                                                                                \
      "[--text FILE] [--compare A,B] [--minutes M] [--seeds N] [--out DIR] [--json]",              \
      "write a study that compares parts of a model",                                              \
      "weft new --text book.txt --compare dot,w2 --minutes 20 --out my-study")                     \
    X("Start", help, "[COMMAND|OPTION|config [WORD]]",                                             \
      "explain a command or an option of a config", "weft help ATTENTION")                         \
    X("Start", verify, "[--json]", "check weft on this machine", "weft verify")                    \
    X("Train", train,                                                                              \
      "--config FILE|--text FILE [--variant NAME] [--out DIR] [--resume] [--from DIR] [--json]",   \
      "train a model", "weft train --text book.txt --minutes 10 --out runs/book")                  \
    X("Train", plan, "[--config FILE] [--variant NAME] [--json]",                                  \
      "what a config costs, before anything runs", "weft plan --config defconfigs/demo")           \
    X("Train", init, "[--config FILE] --out DIR [--seed N]", "write a fresh checkpoint",           \
      "weft init --config defconfigs/demo --out models/fresh --seed 1")                            \
    X("Look", generate, "--model DIR [--prompt TEXT|--file FILE|-i] [--json]",                     \
      "continue a text with a trained model",                                                      \
      "weft generate --model runs/book --prompt 'It was a'")                                       \
    X("Look", serve,                                                                               \
      "--model DIR [--beside DIR] [--host ADDRESS] [--port N] [--api-key-file FILE]",              \
      "serve a model over HTTP, compatible with OpenAI's API", "weft serve --model runs/book")     \
    X("Look", inspect, "MODEL --text FILE [--out FILE] [--json]",                                  \
      "what a model's mechanisms do on a text",                                                    \
      "weft inspect runs/book --text book.txt --out inside.html")                                  \
    X("Look", eval, "--model DIR --text FILE|--tokens FILE|--suite FILE|--needle [--json]",        \
      "loss, logits or gradients of a checkpoint", "weft eval --model runs/book --text other.txt") \
    X("Look", watch, "[DIR...] [--port N] [--host ADDRESS] [--json]",                              \
      "a live page of runs and studies", "weft watch runs")                                        \
    X("Compare", study, "--config FILE [--variants A,B] [--out DIR] [--jobs N] [--list] [--json]", \
      "run a study and write its report", "weft study --config my-study/study")                    \
    X("Compare", runs, "DIR|DB... [--compare A B] [--csv FILE] [--diff DB2] [--json]",             \
      "list, compare or export a study's runs", "weft runs my-study --compare dot w2")             \
    X("Compare", report, "RUNS... [--out DIR] [--json]", "write the report of studies again",      \
      "weft report my-study")                                                                      \
    X("Tools", tokenize, "[--tokenizer T] --out DIR FILES", "turn text into token shards",         \
      "weft tokenize --out data book.txt")                                                         \
    X("Tools", tokenizer, "train --vocab N --out FILE FILES", "train a byte-level BPE tokenizer",  \
      "weft tokenizer train --vocab 1024 --out tokenizer.json book.txt")                           \
    X("Tools", convert, "--model DIR --out DIR [--to-hf|--to-mla --latent L|--to-w2] [--json]",    \
      "read or write Hugging Face's layout, or change the attention",                              \
      "weft convert --model runs/book --out book-hf --to-hf")                                      \
    X("Tools", prune,                                                                              \
      "--model DIR --out DIR --what heads|ffn|z-heads|cross --keep X [--sparse] [--json]",         \
      "remove the least important parts of a model",                                               \
      "weft prune --model runs/book --out smaller --what heads --keep 0.5")                        \
    X("Tools", bench, "train|decode|attention|serve [--peer COMMAND] [--json]",                    \
      "measure speed and memory, also beside PyTorch",                                             \
      "weft bench train --config defconfigs/demo")                                                 \
    X("Tools", version, "[--json]", "the version, and the parts of this build", "weft version")

typedef struct {
    const char *group, *name, *usage, *summary, *example, *help;
    weft_status (*run)(weft_args *args, int argc, char **argv);
} command;

#define DECLARE(group, name, usage, summary, example)                                              \
    weft_status weft_cmd_##name(weft_args *args, int argc, char **argv);                           \
    extern const char weft_help_##name[];
COMMANDS(DECLARE)
#undef DECLARE

static const command commands[] = {
#define ROW(group, name, usage, summary, example)                                                  \
    {group, #name, usage, summary, example, weft_help_##name, weft_cmd_##name},
    COMMANDS(ROW)
#undef ROW
};

static const command *find_command(const char *name) {
    for (int i = 0; i < WEFT_COUNT(commands); i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

/* `what` the name might have been of; options are offered too where it is not a command's alone. */
static int unknown_name(const char *what, const char *name, bool options) {
    int count;
    const weft_option *list = weft_options(&count);
    weft_nearest nearest = weft_nearest_slip(name);
    for (int i = 0; i < WEFT_COUNT(commands); i++)
        weft_nearest_offer(&nearest, commands[i].name);
    for (int i = 0; options && i < count; i++)
        weft_nearest_offer(&nearest, list[i].key);
    if (*nearest.name)
        fprintf(stderr, "weft: unknown %s '%s'; did you mean '%s'?\n", what, name, nearest.name);
    else
        fprintf(stderr, "weft: unknown %s '%s'; 'weft help'%s\n", what, name,
                options ? " and 'weft help config' list them" : " lists them");
    return WEFT_EXIT_USAGE;
}

static void print_commands(FILE *to) {
    fputs("usage: weft COMMAND [options]\n", to);
    for (int i = 0; i < WEFT_COUNT(commands); i++) {
        if (i == 0 || strcmp(commands[i].group, commands[i - 1].group) != 0)
            fprintf(to, "\n%s\n", commands[i].group);
        fprintf(to, "  %-10s %s\n", commands[i].name, commands[i].summary);
    }
    fputs("\n'weft help COMMAND' explains a command, 'weft help N_LAYER' an option of a\nconfig, "
          "'weft help config' all of them.\n",
          to);
}

const char weft_help_help[] =
    "Without COMMAND, lists the commands. OPTION is an option of a config, as CONFIG_N_LAYER, "
    "N_LAYER or by an old name: its default, range, meaning, and when it matters. 'weft help "
    "config' lists all, 'weft help config WORD' those whose name or explanation holds a word; "
    "'weft help config --kconfig' prints them as a Kconfig file.\n";

/* An option of other trainers; false: it is none. */
static bool help_foreign(const char *key) {
    const char *instead = weft_option_instead(key);
    if (instead) printf("%s is not an option of weft; %s\n", key, instead);
    return instead;
}

enum { WIDTH = 79, BODY = 21, USAGE = 7 };

/* Words from `column` on, in lines that do not go beyond WIDTH; those after the first begin at `hang`. */
static void fill_words(const char *text, size_t length, int column, int hang) {
    for (size_t at = 0, n; at < length; at += n + strspn(text + at + n, " ")) {
        n = strcspn(text + at, " \n");
        int wide = weft_utf8_count(text + at, n);
        bool breaks = at > 0 && column + 1 + wide > WIDTH;
        if (at > 0) column = breaks ? hang : column + 1;
        if (at > 0) printf("%s%*s", breaks ? "\n" : "", breaks ? hang : 1, "");
        fwrite(text + at, 1, n, stdout);
        column += wide;
    }
    putchar('\n');
}

/* Writes a help text. A line is an option, a tab and what it does, which begins at BODY; or a paragraph; one that
 * begins with a blank and has no tab stays as it is. */
static void print_filled(const char *text) {
    while (*text) {
        size_t length = strcspn(text, "\n"), head = strcspn(text, "\t\n");
        if (head < length) {
            printf("%-*.*s", head < BODY ? BODY : 0, (int)head, text);
            if (head >= BODY) printf("\n%*s", BODY, "");
            fill_words(text + head + 1, length - head - 1, BODY, BODY);
        } else if (*text == ' ') {
            printf("%.*s\n", (int)length, text);
        } else {
            fill_words(text, length, 0, strncmp(text, "usage: ", USAGE) == 0 ? USAGE : 0);
        }
        text += length + (text[length] == '\n');
    }
}

static void help_command(const command *c) {
    char usage[512];
    snprintf(usage, sizeof usage, "usage: weft %s %s\n", c->name, c->usage);
    print_filled(usage);
    printf("\n%c%s.\n\nexample: %s\n\n", toupper((unsigned char)c->summary[0]), c->summary + 1,
           c->example);
    print_filled(c->help);
}

/* `weft help config`: a page that is no command's. */
static weft_status help_config(weft_args *args, int argc, char **argv) {
    const char *word = argc > 2 ? argv[2] : NULL;
    bool kconfig = word && strcmp(word, "--kconfig") == 0;
    args->command = "help config";
    if (argc > 3 || (word && word[0] == '-' && !kconfig))
        return WEFT_BAD_INPUT("takes one word or --kconfig, not '%s'", argv[argc - 1]);
    if (kconfig) weft_config_write_kconfig(stdout);
    if (kconfig || weft_config_write_help(stdout, word) || help_foreign(word)) return WEFT_OK;
    return WEFT_BAD_INPUT("no option is about '%s'; 'weft help config' lists all", word);
}

weft_status weft_cmd_help(weft_args *args, int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "config") == 0) return help_config(args, argc, argv);
    if (argc > 2) return WEFT_BAD_INPUT("one command at a time, not also '%s'", argv[2]);
    const command *c = argc < 2 ? NULL : find_command(argv[1]);
    const weft_option *option = c || argc < 2 ? NULL : weft_option_find(argv[1]);
    if (argc < 2)
        print_commands(stdout);
    else if (c)
        help_command(c);
    else if (option)
        weft_option_explain(option, stdout);
    else if (!help_foreign(argv[1]))
        args->exit = unknown_name("command or option", argv[1], true);
    return WEFT_OK;
}

/* What may be left out of a build, and whether it was: a flag that is set expands to 1, any other to its name. */
#define TEXT_OF(flag) #flag
#define PART(name, flag)                                                                           \
    { name, sizeof TEXT_OF(flag) == sizeof "1" }
static const struct {
    const char *name;
    bool built;
} parts[] = {PART("cuda", WEFT_HAVE_CUDA), PART("mpi", WEFT_HAVE_MPI),
             PART("http", WEFT_HAVE_MICROHTTPD), PART("utf8proc", WEFT_HAVE_UTF8PROC)};

const char weft_help_version[] = "  --json   as one JSON object\n";

weft_status weft_cmd_version(weft_args *args, int argc, char **argv) {
    args->json = argc == 2 && strcmp(argv[1], "--json") == 0;
    if (argc > 1 && !args->json)
        return WEFT_BAD_INPUT("'%s' is not an option of it; there is --json", argv[1]);
    if (args->json) {
        printf("{\"version\": \"%s\", \"commit\": \"%s\"", weft_version(), weft_git_commit());
        for (int i = 0; i < WEFT_COUNT(parts); i++)
            printf(", \"%s\": %s", parts[i].name, parts[i].built ? "true" : "false");
        puts("}");
        return WEFT_OK;
    }
    printf("weft %s\n%-8s %s\n", weft_version(), "commit", weft_git_commit());
    for (int i = 0; i < WEFT_COUNT(parts); i++)
        printf("%-8s %s\n", parts[i].name, parts[i].built ? "yes" : "left out");
    return WEFT_OK;
}

/* Output that could not be written (a full disk, a closed pipe) is work that failed. */
static int close_output(int status) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return status;
    fprintf(stderr, "weft: cannot write to standard output: %s\n", strerror(errno));
    return status == WEFT_EXIT_DONE ? WEFT_EXIT_FAILED : status;
}

int main(int argc, char **argv) {
    /* A standard stream that is closed gets a descriptor that cannot be used, so that no file
     * which is opened later is taken for it. */
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF &&
            open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
            _exit(WEFT_EXIT_FAILED);
    signal(SIGXFSZ, SIG_IGN); /* past a limit of file size, writing fails with an error */
    if (argc < 2) {
        print_commands(stderr);
        return WEFT_EXIT_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0)
        name = "help";
    else if (strcmp(name, "--version") == 0 || strcmp(name, "-V") == 0)
        name = "version";
    const command *c = find_command(name);
    if (!c) return unknown_name("command", name, false);
    /* `weft COMMAND ... --help` is `weft help COMMAND`. */
    for (int i = 2; i < argc; i++)
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            help_command(c);
            return close_output(WEFT_EXIT_DONE);
        }
    weft_args args = {.command = c->name};
    return close_output(weft_args_end(&args, c->run(&args, argc - 1, argv + 1)));
}
