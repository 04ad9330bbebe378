/* Two scripts and two calls of sbatch. */
#include "supervise/supervise.h"

#include "base/folders.h"
#include "base/text.h"

enum { NUMBER_ROOM = 32, SPARE_MIB = 256 };

/* A word as a shell reads it back, with a blank before it. */
static void put_word(FILE *out, const char *word) {
    fputs(" '", out);
    for (const char *at = word; *at; at++)
        *at == '\'' ? fputs("'\\''", out) : fputc(*at, out);
    fputc('\'', out);
}

typedef struct {
    const weft_study *study;
    const weft_slurm_options *o;
    const char *program, *array; /* the array's number, once it is submitted */
    int jobs;
    int64_t mib;
} job;

typedef void maker(FILE *out, const job *j);
/* What `make` writes, as a text that the caller frees. */
static weft_status make_text(maker *make, const job *j, char **text) {
    size_t bytes;
    FILE *out = open_memstream(text, &bytes);
    if (out) make(out, j);
    return out && weft_memory_end(out, text) ? WEFT_OK : weft_no_memory("study");
}

static bool is_chosen(const weft_study *s, const weft_slurm_options *o, int i) {
    return !*s->built[i].error && (!o->variants || o->variants[i]);
}

static void put_variants(FILE *out, const job *j) {
    for (int i = 0; i < j->study->variants.n; i++)
        if (is_chosen(j->study, j->o, i)) fprintf(out, "%s\n", j->study->variants.list[i].name);
}

/* One variant's study, by the task's place in the list. */
static void put_array(FILE *out, const job *j) {
    fputs("#!/bin/sh\nset -eu\ncd \"$SLURM_SUBMIT_DIR\"\n"
          "variant=$(sed -n \"$((SLURM_ARRAY_TASK_ID + 1))p\"",
          out);
    put_word(out, j->o->out);
    fputs("/slurm/variants)\nexec", out);
    put_word(out, j->program);
    for (const char *const *word = j->o->words; *word; word++)
        put_word(out, *word);
    fputs(" --threads \"${SLURM_CPUS_PER_TASK:-1}\" --variants \"$variant\" --out", out);
    put_word(out, j->o->out);
    fputs("/parts/\"$variant\"\n", out);
}

/* All parts as one database, which takes its name when it is whole. A study of one variant is its part. */
static void put_gather(FILE *out, const job *j) {
    fputs("#!/bin/sh\nset -eu\ncd \"$SLURM_SUBMIT_DIR\"\nset --", out);
    put_word(out, j->o->out);
    fputs("\nout=$1\nif [ -e \"$out\"/runs.db ] && [ ! -e \"$out\"/slurm/gathered ]; then\n"
          "    echo \"$out/runs.db was not gathered here\" >&2; exit 1\nfi\n"
          "rm -f \"$out\"/slurm/gathered.db\n"
          "set -- \"$out\"/parts/*/runs.db\n"
          "if [ $# -gt 1 ]; then",
          out);
    put_word(out, j->program);
    fputs(" runs merge \"$@\" --out \"$out\"/slurm/gathered.db\n"
          "else cp \"$1\" \"$out\"/slurm/gathered.db; fi\n"
          ": >\"$out\"/slurm/gathered\n"
          "mv \"$out\"/slurm/gathered.db \"$out\"/runs.db\n",
          out);
    put_word(out, j->program);
    fputs(" report \"$out\"\n", out);
}

/* What both calls of sbatch have: names, logs, the caller's own options, the script. */
static void put_rest(FILE *out, const job *j, const char *log, const char *script) {
    fputs(" --job-name", out);
    put_word(out, j->study->name);
    fputs(" --output", out);
    put_word(out, j->o->out);
    fprintf(out, "/slurm/%s %s", log, j->o->more ? j->o->more : "");
    put_word(out, j->o->out);
    fprintf(out, "/slurm/%s", script);
}

static void put_array_call(FILE *out, const job *j) {
    fprintf(out,
            "sbatch --parsable --array=0-%d --ntasks=1 --cpus-per-task=%d --mem=%lldM%s "
            "--requeue --signal=TERM@60",
            j->jobs - 1, j->o->cpus, (long long)j->mib, j->o->gpu ? " --gres=gpu:1" : "");
    put_rest(out, j, "%a.log", "array.sh");
}

static void put_gather_call(FILE *out, const job *j) {
    fprintf(out,
            "sbatch --parsable --dependency=afterany:%s --ntasks=1 --cpus-per-task=1 --mem=%dM",
            j->array, 2 * SPARE_MIB);
    put_rest(out, j, "gather.log", "gather.sh");
}

static weft_status write_text(const char *folder, const char *name, maker *make, const job *j) {
    WEFT_AUTO_FREE char *text = NULL;
    WEFT_PATH(path, "%s/slurm/%s", folder, name);
    WEFT_TRY(make_text(make, j, &text));
    return weft_file_write(path, text, strlen(text), NULL);
}

/* Runs sbatch; the job's number. */
static weft_status submit(maker *make, const job *j, char number[NUMBER_ROOM]) {
    char line[256] = "";
    WEFT_AUTO_FREE char *command = NULL;
    if (system("command -v sbatch >/dev/null 2>&1") != 0)
        return weft_fail(WEFT_EMISSING, "there is no sbatch here: --slurm is for a machine that "
                                        "submits jobs to Slurm");
    WEFT_TRY(make_text(make, j, &command));
    FILE *pipe = popen(command, "r");
    if (!pipe) return weft_fail(WEFT_EIO, "sbatch could not be started");
    if (!fgets(line, sizeof line, pipe)) line[0] = 0;
    int status = pclose(pipe);
    size_t digits = strspn(line, "0123456789");
    if (status != 0 || digits == 0 || digits >= NUMBER_ROOM)
        return weft_fail(WEFT_EIO, "sbatch refused the job; what it said is above");
    snprintf(number, NUMBER_ROOM, "%.*s", (int)digits, line);
    return WEFT_OK;
}

weft_status weft_slurm_submit(const weft_study *s, const weft_slurm_options *o,
                              weft_slurm_jobs *out) {
    char path[WEFT_PATH_MAX], program[WEFT_PATH_MAX];
    job j = {.study = s, .o = o, .program = program, .array = out->array};
    bool made, gathered;
    WEFT_TRY(weft_path(path, "%s/runs.db", o->out));
    WEFT_TRY(weft_path_there(path, &made));
    WEFT_TRY(weft_path(path, "%s/slurm/gathered", o->out));
    WEFT_TRY(weft_path_there(path, &gathered));
    if (made && !gathered) /* a study that was run here is not replaced by one that is gathered */
        return WEFT_BAD_INPUT("%s: a study was run there without --slurm; take another --out",
                              o->out);
    WEFT_TRY(weft_database_place(o->out));
    ssize_t n = readlink("/proc/self/exe", program, WEFT_PATH_MAX - 1);
    if (n <= 0) return weft_fail(WEFT_EIO, "the program's own file is not known");
    program[n] = 0;
    /* MiB of the largest variant, with room for what a plan does not count. */
    int64_t most = 0;
    for (int i = 0; i < s->variants.n; i++) {
        weft_rank_bytes bytes;
        if (!is_chosen(s, o, i)) continue;
        j.jobs++;
        WEFT_TRY(weft_account_rank(&s->built[i].config, o->host, o->cpus, 1, &bytes));
        if (bytes.all > most) most = bytes.all;
    }
    j.mib = most / (1024 * 1024) * 5 / 4 + SPARE_MIB;
    if (j.jobs == 0) return WEFT_BAD_INPUT("study: no variant to submit");
    WEFT_TRY(weft_folder_make(o->out));
    WEFT_TRY(weft_path(path, "%s/slurm", o->out));
    WEFT_TRY(weft_folder_make(path));
    WEFT_TRY(weft_path(path, "%s/parts", o->out));
    WEFT_TRY(weft_folder_make(path));
    WEFT_TRY(write_text(o->out, "variants", put_variants, &j));
    WEFT_TRY(write_text(o->out, "array.sh", put_array, &j));
    WEFT_TRY(write_text(o->out, "gather.sh", put_gather, &j));
    out->jobs = j.jobs;
    WEFT_TRY(submit(put_array_call, &j, out->array));
    return submit(put_gather_call, &j, out->gather);
}
