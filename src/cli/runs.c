/* weft runs: what databases of runs hold. */
#include "base/json.h"
#include "base/text.h"
#include "cli/args.h"
#include "record/database.h"
#include "report/report.h"

#include <errno.h>

const char weft_help_runs[] =
    "  DIR|DB...\tstudies' folders or their runs.db, or folders with runs of weft train, six deep: "
    "runs that differ by seed and learning rate alone are one variant, compared with the first of "
    "the same dataset and tokenizer\n"
    "  --compare A B\ttwo variants of one study: how their configs differ, their scores seed by "
    "seed, the mean difference\n"
    "  --fit X\ta power law of the score over X: parameters, flops, tokens, cache_bytes or an "
    "option that is a number; with its interval\n"
    "  --variants A,B\twith --fit: these variants alone\n"
    "  --csv FILE\tthe runs as comma-separated values; - is standard output\n"
    "  --metrics-csv FILE\tthe same of every logged training step\n"
    "  --force\toverwrite FILE\n"
    "  --diff DB2\twhether another database holds the same, time, speed, memory and machine apart; "
    "exits 1 and shows the first rows that differ if not\n"
    "  --json\tone object on standard output\n"
    "\n"
    "Without --compare, --fit, --csv, --metrics-csv or --diff, lists the runs.\n"
    "\n"
    "weft runs merge A B ... --out DIR|FILE.db joins databases of one study into a new one and "
    "says which commit on which machine made each run. A study of another config is refused, and "
    "so is a run that ended in two with different results. 'weft study --out DIR' goes on with "
    "what none of them has.\n";

enum { DATABASES_MOST = 256 };

typedef struct {
    const char *paths[DATABASES_MOST];
    int n;
    const char *a, *b; /* --compare */
    const char *csv, *metrics_csv, *diff, *fit, *variants;
    const char *out; /* of a merge */
    bool force, merge;
} runs_args;

static weft_status list_runs(const weft_args *args, const runs_args *own) {
    WEFT_AUTO_DECREF json_t *studies = json_array();
    for (int i = 0; i < own->n; i++) {
        json_t *one = NULL;
        WEFT_TRY(args->json ? weft_listing_json(own->paths[i], &one)
                            : weft_listing_table(own->paths[i], stdout));
        if (one) json_array_append_new(studies, one);
    }
    if (args->json) weft_args_print(weft_json_make("studies:O", studies), JSON_ENSURE_ASCII);
    return WEFT_OK;
}

static weft_status write_csv(const runs_args *own, const char *path, bool metrics) {
    weft_new_file f;
    char head[16] = "";
    if (strcmp(path, "-") == 0) return weft_listing_csv(own->paths, own->n, metrics, stdout);
    WEFT_TRY(weft_file_vacant(path, own->force));
    /* With --force too, a database is not written over. */
    WEFT_AUTO_FCLOSE FILE *old = fopen(path, "rb");
    size_t n = old ? fread(head, 1, sizeof head, old) : 0;
    if (n == sizeof head && memcmp(head, "SQLite format 3", sizeof head) == 0)
        return WEFT_BAD_INPUT("%s: is a database; name another file", path);
    WEFT_TRY(weft_new_file_begin(&f, path));
    f.once = !own->force;
    int copy = dup(f.descriptor);
    FILE *file = copy < 0 ? NULL : fdopen(copy, "w");
    if (!file) return weft_new_file_end(&f, weft_path_failed(path));
    weft_status status = weft_listing_csv(own->paths, own->n, metrics, file);
    bool ok = !ferror(file);
    ok = fclose(file) == 0 && ok;
    if (status == WEFT_OK && !ok) status = weft_path_failed(path);
    return weft_new_file_end(&f, status);
}

static weft_status diff(weft_args *args, const runs_args *own) {
    bool same;
    WEFT_TRY(weft_listing_diff(own->paths[0], own->diff, args->json ? stderr : stdout, &same));
    if (args->json)
        weft_args_print(weft_json_make("equal:b", same), 0);
    else
        printf(same ? "%s and %s hold the same\n" : "%s and %s differ\n", weft_shown(own->paths[0]),
               weft_shown(own->diff));
    args->exit = same ? WEFT_EXIT_DONE : WEFT_EXIT_FAILED;
    return WEFT_OK;
}

static weft_status merge(const weft_args *args, const runs_args *own) {
    weft_merged r;
    WEFT_TRY(weft_merge(own->paths, own->n, own->out, args->json ? NULL : stdout, &r));
    if (args->json)
        weft_args_print(weft_json_make("out:s runs:i done:i", own->out, r.runs, r.done),
                        JSON_ENSURE_ASCII);
    else
        printf("%s: %d of %d runs done\n", weft_shown(own->out), r.done, r.runs);
    return WEFT_OK;
}

weft_status weft_cmd_runs(weft_args *args, int argc, char **argv) {
    runs_args own = {.n = 0};
    const weft_arg list[] = {
        {"--csv", .value = &own.csv},           {"--metrics-csv", .value = &own.metrics_csv},
        {"--diff", .value = &own.diff},         {"--force", .flag = &own.force},
        {"--out", .value = &own.out},           {"--fit", .value = &own.fit},
        {"--variants", .value = &own.variants}, {0}};
    own.merge = argc > 1 && strcmp(argv[1], "merge") == 0;
    if (own.merge) argv[1] = argv[0]; /* the word is taken out of them */
    argc -= own.merge;
    argv += own.merge;
    /* --compare has two values; the second is taken out of the words. */
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--compare") != 0) continue;
        if (i + 2 >= argc) return WEFT_BAD_INPUT("--compare needs two variants");
        own.a = argv[i + 1];
        own.b = argv[i + 2];
        for (int k = i; k + 3 < argc; k++)
            argv[k] = argv[k + 3];
        argc -= 3;
        break;
    }
    WEFT_TRY(weft_args_parse(args, argc, argv, ARGS_ALL, list, own.paths, DATABASES_MOST));
    own.n = args->n_words;
    if (own.merge && (own.a || own.diff || own.csv || own.metrics_csv || own.fit))
        return WEFT_BAD_INPUT("merge takes studies and --out alone");
    if (own.merge && !own.out) return WEFT_BAD_INPUT("merge needs --out DIR or --out FILE.db");
    if (own.merge && own.n < 2) return WEFT_BAD_INPUT("merge takes two studies or more");
    if (!own.merge && own.out) return WEFT_BAD_INPUT("--out goes with merge");
    if (own.csv && own.metrics_csv && strcmp(own.csv, own.metrics_csv) == 0)
        return WEFT_BAD_INPUT("--csv and --metrics-csv are two files");
    if (own.variants && !own.fit) return WEFT_BAD_INPUT("--variants goes with --fit");
    if (own.n == 0)
        return WEFT_BAD_INPUT("name a folder with runs, a study's folder or its runs.db");
    if ((own.a || own.diff) && own.n > 1)
        return WEFT_BAD_INPUT("--compare and --diff take one study");
    if (args->config || args->n_settings || args->variant)
        return WEFT_BAD_INPUT("takes no config; see 'weft help runs'");
    if (own.merge) return merge(args, &own);
    if (own.csv) WEFT_TRY(write_csv(&own, own.csv, false));
    if (own.metrics_csv) WEFT_TRY(write_csv(&own, own.metrics_csv, true));
    FILE *text = args->json ? NULL : stdout;
    json_t *object = NULL, **wanted = args->json ? &object : NULL;
    if (own.a) WEFT_TRY(weft_listing_compare(own.paths[0], own.a, own.b, text, wanted));
    if (object) weft_args_print(weft_steal(&object), JSON_ENSURE_ASCII);
    if (own.fit) WEFT_TRY(weft_listing_fit(own.paths, own.n, own.fit, own.variants, text, wanted));
    if (object) weft_args_print(object, JSON_ENSURE_ASCII);
    if (own.diff) return diff(args, &own);
    return own.a || own.csv || own.metrics_csv || own.fit ? WEFT_OK : list_runs(args, &own);
}
