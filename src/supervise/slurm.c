/* Two scripts and two calls of sbatch. */
#include "supervise/slurm.h"

#include "base/files.h"
#include "base/folders.h"
#include "cpu/backend.h"
#include "record/database.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_ROOM = 64 * 1024, NUMBER_ROOM = 32, SPARE_MIB = 256 };

/* Text that grows; what does not fit makes `full`. */
typedef struct {
    char text[TEXT_ROOM];
    size_t n;
    bool full;
} script;

static void add(script *s, const char *text) {
    size_t n = strlen(text);
    s->full = s->full || s->n + n + 1 > sizeof s->text;
    if (s->full) return;
    memcpy(s->text + s->n, text, n + 1);
    s->n += n;
}

/* A word as a shell reads it back. */
static void add_quoted(script *s, const char *word) {
    add(s, "'");
    for (const char *at = word; *at; at++) {
        char one[2] = {*at, 0};
        add(s, *at == '\'' ? "'\\''" : one);
    }
    add(s, "'");
}

/* The same with a blank before it. */
static void add_word(script *s, const char *word) {
    add(s, " ");
    add_quoted(s, word);
}

static weft_status write_script(const script *s, const char *path) {
    if (s->full) return weft_fail(WEFT_EINPUT, "%s: its command is too long", path);
    return weft_file_write(path, s->text, s->n, NULL);
}

/* Whether step i is run. */
static bool is_chosen(const weft_study *s, const weft_slurm_options *o, int i) {
    return !*s->built[i].error && (!o->steps || o->steps[i]);
}

static weft_status write_steps(const weft_study *s, const weft_slurm_options *o, const char *path,
                               int *count) {
    script list = {.n = 0};
    *count = 0;
    for (int i = 0; i < s->steps.n; i++) {
        if (!is_chosen(s, o, i)) continue;
        add(&list, s->steps.list[i].name);
        add(&list, "\n");
        ++*count;
    }
    if (*count == 0) return weft_fail(WEFT_EINPUT, "study: no variant to submit");
    return write_script(&list, path);
}

/* MiB of the largest step, with room for what a plan does not count. */
static weft_status count_memory(const weft_study *s, const weft_slurm_options *o, int64_t *mib) {
    int64_t most = 0;
    for (int i = 0; i < s->steps.n; i++) {
        weft_rank_bytes bytes;
        if (!is_chosen(s, o, i)) continue;
        WEFT_TRY(weft_account_rank(&s->built[i].config, weft_cpu_backend(), o->cpus, 1, &bytes));
        if (bytes.all > most) most = bytes.all;
    }
    *mib = most / (1024 * 1024) * 5 / 4 + SPARE_MIB;
    return WEFT_OK;
}

static weft_status own_program(char path[WEFT_PATH_MAX]) {
    ssize_t n = readlink("/proc/self/exe", path, WEFT_PATH_MAX - 1);
    if (n <= 0) return weft_fail(WEFT_EIO, "the program's own file is not known");
    path[n] = 0;
    return WEFT_OK;
}

/* One step's study, by the task's place in the list. */
static void make_array(script *s, const weft_slurm_options *o, const char *program) {
    add(s, "#!/bin/sh\nset -eu\ncd \"$SLURM_SUBMIT_DIR\"\n"
           "variant=$(sed -n \"$((SLURM_ARRAY_TASK_ID + 1))p\"");
    add_word(s, o->out);
    add(s, "/slurm/variants)\nexec");
    add_word(s, program);
    for (const char *const *w = o->words; *w; w++)
        add_word(s, *w);
    add(s, " --threads \"${SLURM_CPUS_PER_TASK:-1}\" --variants \"$variant\" --out");
    add_word(s, o->out);
    add(s, "/parts/\"$variant\"\n");
}

/* All parts as one database, which takes its name when it is whole. A study of one step is its part. */
static void make_gather(script *s, const weft_slurm_options *o, const char *program) {
    add(s, "#!/bin/sh\nset -eu\ncd \"$SLURM_SUBMIT_DIR\"\nout=");
    add_quoted(s, o->out);
    add(s, "\nif [ -e \"$out\"/runs.db ] && [ ! -e \"$out\"/slurm/gathered ]; then\n"
           "    echo \"$out/runs.db was not gathered here\" >&2; exit 1\nfi\n"
           "rm -f \"$out\"/slurm/gathered.db\n"
           "set -- \"$out\"/parts/*/runs.db\n"
           "if [ $# -gt 1 ]; then");
    add_word(s, program);
    add(s, " runs merge \"$@\" --out \"$out\"/slurm/gathered.db\n"
           "else cp \"$1\" \"$out\"/slurm/gathered.db; fi\n"
           ": >\"$out\"/slurm/gathered\n"
           "mv \"$out\"/slurm/gathered.db \"$out\"/runs.db\n");
    add_word(s, program);
    add(s, " report \"$out\"\n");
}

/* Runs sbatch; the job's number. */
static weft_status submit(const script *command, char number[NUMBER_ROOM]) {
    char line[256] = "";
    if (command->full) return weft_fail(WEFT_EINPUT, "sbatch: its options are too long");
    if (system("command -v sbatch >/dev/null 2>&1") != 0)
        return weft_fail(WEFT_EMISSING, "there is no sbatch here: --slurm is for a machine that "
                                        "submits jobs to Slurm");
    FILE *pipe = popen(command->text, "r");
    if (!pipe) return weft_fail(WEFT_EIO, "sbatch could not be started");
    if (!fgets(line, sizeof line, pipe)) line[0] = 0;
    int status = pclose(pipe);
    size_t digits = strspn(line, "0123456789");
    if (status != 0 || digits == 0 || digits >= NUMBER_ROOM)
        return weft_fail(WEFT_EIO, "sbatch refused the job; what it said is above");
    snprintf(number, NUMBER_ROOM, "%.*s", (int)digits, line);
    return WEFT_OK;
}

static weft_status submit_array(const weft_study *s, const weft_slurm_options *o, int jobs,
                                int64_t mib, char number[NUMBER_ROOM]) {
    script c = {.n = 0};
    char resources[256];
    snprintf(resources, sizeof resources,
             "sbatch --parsable --array=0-%d --ntasks=1 --cpus-per-task=%d --mem=%lldM%s "
             "--requeue --signal=TERM@60",
             jobs - 1, o->cpus, (long long)mib, o->gpu ? " --gres=gpu:1" : "");
    add(&c, resources);
    add(&c, " --job-name");
    add_word(&c, s->name);
    add(&c, " --output");
    add_word(&c, o->out);
    add(&c, "/slurm/%a.log ");
    if (o->more) add(&c, o->more);
    add_word(&c, o->out);
    add(&c, "/slurm/array.sh");
    return submit(&c, number);
}

static weft_status submit_gather(const weft_study *s, const weft_slurm_options *o,
                                 const char *array, char number[NUMBER_ROOM]) {
    script c = {.n = 0};
    char resources[256];
    snprintf(resources, sizeof resources,
             "sbatch --parsable --dependency=afterany:%s --ntasks=1 --cpus-per-task=1 --mem=%dM",
             array, 2 * SPARE_MIB);
    add(&c, resources);
    add(&c, " --job-name");
    add_word(&c, s->name);
    add(&c, " --output");
    add_word(&c, o->out);
    add(&c, "/slurm/gather.log ");
    if (o->more) add(&c, o->more);
    add_word(&c, o->out);
    add(&c, "/slurm/gather.sh");
    return submit(&c, number);
}

/* A study that was run here is not replaced by one that is gathered. */
static weft_status check_folder(const char *out) {
    char database[WEFT_PATH_MAX], mark[WEFT_PATH_MAX];
    bool made, gathered;
    WEFT_TRY(weft_path(database, "%s/runs.db", out));
    WEFT_TRY(weft_path(mark, "%s/slurm/gathered", out));
    WEFT_TRY(weft_path_there(database, &made));
    WEFT_TRY(weft_path_there(mark, &gathered));
    if (!made || gathered) return WEFT_OK;
    return weft_fail(WEFT_EINPUT, "%s: a study was run there without --slurm; take another --out",
                     out);
}

weft_status weft_slurm_submit(const weft_study *s, const weft_slurm_options *o,
                              weft_slurm_jobs *out) {
    char path[WEFT_PATH_MAX], program[WEFT_PATH_MAX];
    script *array = calloc(2, sizeof *array);
    if (!array) return weft_fail(WEFT_ENOMEM, "study: no memory");
    script *gather = array + 1;
    int64_t mib;
    weft_status status = check_folder(o->out);
    if (status == WEFT_OK) status = weft_database_place(o->out);
    if (status == WEFT_OK) status = own_program(program);
    if (status == WEFT_OK) status = count_memory(s, o, &mib);
    if (status == WEFT_OK) status = weft_folder_make(o->out);
    if (status == WEFT_OK) status = weft_path(path, "%s/slurm", o->out);
    if (status == WEFT_OK) status = weft_folder_make(path);
    if (status == WEFT_OK) status = weft_path(path, "%s/parts", o->out);
    if (status == WEFT_OK) status = weft_folder_make(path);
    if (status == WEFT_OK) status = weft_path(path, "%s/slurm/variants", o->out);
    if (status == WEFT_OK) status = write_steps(s, o, path, &out->jobs);
    if (status == WEFT_OK) {
        make_array(array, o, program);
        make_gather(gather, o, program);
        status = weft_path(path, "%s/slurm/array.sh", o->out);
    }
    if (status == WEFT_OK) status = write_script(array, path);
    if (status == WEFT_OK) status = weft_path(path, "%s/slurm/gather.sh", o->out);
    if (status == WEFT_OK) status = write_script(gather, path);
    if (status == WEFT_OK) status = submit_array(s, o, out->jobs, mib, out->array);
    if (status == WEFT_OK) status = submit_gather(s, o, out->array, out->gather);
    free(array);
    return status;
}
