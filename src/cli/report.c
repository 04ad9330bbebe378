/* weft report: the report of studies anew, from their databases. */
#include "report/report.h"
#include "base/text.h"
#include "cli/args.h"
#include "record/database.h"

const char weft_help_report[] =
    "  RUNS...\tstudies' folders or their runs.db, or folders with runs of weft train; several "
    "make one report\n"
    "  --out DIR\twhere report.html and report.md go; without it, into the one study's folder\n"
    "  --force\twrite over a report.html or report.md that is not weft's\n"
    "  --json\tverdicts and table as one object on standard output; files are then written with "
    "--out only\n"
    "\n"
    "A study that is still running or was stopped is reported as far as it has come.\n";

enum { STUDIES_MOST = 256 };

weft_status weft_cmd_report(weft_args *args, int argc, char **argv) {
    const char *studies[STUDIES_MOST] = {NULL}, *out = NULL;
    bool force = false;
    const weft_arg own[] = {{"--out", .value = &out}, {"--force", .flag = &force}, {0}};
    WEFT_TRY(weft_args_parse(args, argc, argv, ARGS_JSON, own, studies, STUDIES_MOST));
    int n = args->n_words;
    if (n == 0) return WEFT_BAD_INPUT("name a study's folder or its runs.db");
    if (n > 1 && !out && !args->json)
        return WEFT_BAD_INPUT("--out is needed for a report of several studies");
    char folder[WEFT_PATH_MAX];
    if (!out && !args->json) {
        WEFT_TRY(weft_listing_folder(studies[0], folder));
        out = folder;
    }
    if (out) WEFT_TRY(weft_report_write_several(studies, n, out, force));
    json_t *object = NULL;
    if (args->json) WEFT_TRY(weft_report_json(studies, n, &object));
    if (object) weft_args_print(object, JSON_ENSURE_ASCII);
    if (!args->json)
        printf("wrote %s/report.html and %s/report.md\n", weft_shown(out), weft_shown(out));
    return WEFT_OK;
}
