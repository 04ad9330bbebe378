/* Every file operation of a command fails once, with each error it may have, and the command is killed
 * before every one. After each, the same command as a user would give it again ends in the right bits
 * or names what is wrong; and a command that says all went well left the right bits at once.
 *
 * `make test` takes a fixed sample; `make test-faults` and `make test-long` take all, and print how
 * many there were. WEFT_FAULT_STRIDE=7 WEFT_FAULT_FIRST=3 takes every seventh, from the third on,
 * WEFT_FAULT_SCENARIO=resume one of the commands;
 * WEFT_FAULT_ONLY="train write 12 5" runs one of them: scenario, operation, call, number of the error
 * (0: a kill). */
#include "base/folders.h"
#include "support/fault.h"
#include "support/study_run.h"
#include "support/token_file.h"
#include "support/train_run.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char config[256], whole[256], work[256], source[256];

/* A write that writes a half. */
enum { HALF = -2 };

/* The operations, and what each may end with. */
static const struct {
    const char *call;
    int errors[4];
} operations[] = {
    {"open", {EIO, EACCES, EMFILE, ENOSPC}},
    {"read", {EIO, ESTALE}},
    {"write", {EIO, ENOSPC, EDQUOT, HALF}},
    {"fsync", {EIO, ENOSPC}},
    {"close", {EIO}},
    {"rename", {EIO, ENOSPC, EACCES}},
    {"link", {EIO, EMLINK, EPERM}},
    {"unlink", {EIO, EACCES}},
    {"rmdir", {EIO, EBUSY}},
    {"mkdir", {EIO, ENOSPC, EACCES}},
    {"access", {EIO, EACCES}},
    {"stat", {EIO, ESTALE, EACCES}},
    {"fstat", {EIO, ESTALE}},
    {"ftruncate", {EIO, ENOSPC}},
    {"flock", {EIO, ENOLCK}},
    {"opendir", {EIO, ENOMEM}},
    {"readdir", {EIO, ESTALE}},
};
enum { OPERATIONS = sizeof operations / sizeof operations[0] };

static const char *at(const char *name) {
    return scratch_path("%s", name);
}

static bool is_there(const char *folder, const char *name) {
    char path[600];
    struct stat is;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return lstat(path, &is) == 0;
}

/* A scenario: how its folder is prepared, the command, and whether what it left is right. */
typedef struct {
    const char *name, *command; /* which processes count; NULL: all */
    void (*prepare)(void);
    const char *const *(*arguments)(bool again);
    bool (*is_right)(char *why);
    const char *refusal; /* what the second command may end on instead; NULL: nothing */
    int sample;          /* of so many cases `make test` takes one */
    bool plain;          /* on a file system that cannot exchange two names */
    /* Whether what a command that failed or was killed left is the old or the new one, whole; NULL: only
     * the second command tells. */
    bool (*is_whole)(char *why);
} scenario;

enum { WHY = 600 };

static bool same_as(const char *folder, const char *name, char *why) {
    char a[600], b[600];
    size_t n, m;
    snprintf(a, sizeof a, "%s/%s", folder, name);
    snprintf(b, sizeof b, "%s/%s", work, name);
    if (access(b, R_OK) != 0) {
        snprintf(why, WHY, "%s is missing", name);
        return false;
    }
    char *x = file_read(a, &n), *y = file_read(b, &m);
    bool same = n == m && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    if (!same) snprintf(why, WHY, "%s differs", name);
    return same;
}

static bool same_file(const char *name, char *why) {
    return same_as(whole, name, why);
}

/* That no name in a folder but `own` begins with `start`: nothing was left beside. */
static bool is_alone(const char *folder, const char *start, const char *own, char *why) {
    weft_names names;
    bool alone = true;
    assert_int_equal(weft_folder_list(folder, &names), WEFT_OK);
    for (int i = 0; i < names.n; i++)
        if (strncmp(names.list[i], start, strlen(start)) == 0 && strcmp(names.list[i], own) != 0) {
            snprintf(why, WHY, "%s is left", names.list[i]);
            alone = false;
        }
    weft_names_free(&names);
    return alone;
}

/* The lines without what time has to do with. */
static char *lines_of(const char *folder) {
    char path[600], *text, *out = calloc(1, 1 << 16);
    snprintf(path, sizeof path, "%s/metrics.jsonl", folder);
    text = file_read(path, NULL);
    assert_non_null(out);
    for (char *line = text, *end; *line && (end = strchr(line, '\n')); line = end + 1) {
        json_t *row = json_loadb(line, (size_t)(end - line), 0, NULL);
        json_object_del(row, "tokens_per_s");
        json_object_del(row, "mfu");
        char *kept = json_dumps(row, JSON_SORT_KEYS | JSON_COMPACT);
        if (strlen(out) + strlen(kept ? kept : "bad") + 2 < 1 << 16)
            sprintf(out + strlen(out), "%s\n", kept ? kept : "bad");
        free(kept);
        json_decref(row);
    }
    free(text);
    return out;
}

static bool run_is_right(char *why) {
    static const char *const files[] = {
        "last/config.json", "last/model.safetensors", "last/optimizer.safetensors",
        "last/state.json",  "best/model.safetensors", "best/state.json",
        "samples.jsonl",    "attention.json",         ".saved"};
    static const char *const left[] = {"last.new", "best.new", "last.old", "best.old"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
        if (!same_file(files[i], why)) return false;
    for (size_t i = 0; i < sizeof left / sizeof left[0]; i++)
        if (is_there(work, left[i])) {
            snprintf(why, WHY, "%s is left", left[i]);
            return false;
        }
    for (int i = 0; i < 2; i++)
        if (!is_there(work, i ? "result.json" : "metrics.jsonl")) {
            snprintf(why, WHY, "%s is missing", i ? "result.json" : "metrics.jsonl");
            return false;
        }
    WEFT_AUTO_DECREF json_t *result = train_result(whole), *other = train_result(work);
    if (!json_equal(result, other)) {
        snprintf(why, WHY, "result.json differs");
        return false;
    }
    char *a = lines_of(whole), *b = lines_of(work);
    bool same = strcmp(a, b) == 0;
    if (!same) snprintf(why, WHY, "metrics.jsonl differs");
    free(a);
    free(b);
    return same;
}

static void prepare_nothing(void) {
    shell_succeeds("rm -rf '%s'", work);
}

static void prepare_run(void) {
    shell_succeeds("rm -rf '%s' && cp -a '%s' '%s'", work, source, work);
}

#define TRAIN "train", "--config", config, "--threads", "1", "--peak-flops", "0"

static const char *const *train_arguments(bool again) {
    static const char *words[16];
    const char *const *from =
        again ? RUN(TRAIN, "--out", work, "--resume") : RUN(TRAIN, "--out", work);
    memcpy(words, from, (again ? 11 : 10) * sizeof *words);
    return words;
}

static const char *const *resume_arguments(bool again) {
    (void)again;
    return train_arguments(true);
}

static const char *const *study_arguments(bool again) {
    static const char *words[16];
    (void)again;
    memcpy(words,
           RUN("study", "--config", at("study-config"), "--out", work, "--threads", "1",
               "--variants", "2"),
           10 * sizeof *words);
    return words;
}

/* The study's own files; its runs are the train scenarios. */
static bool study_is_right(char *why) {
    command_result r = command_run(RUN("runs", whole, "--diff", work));
    bool right = r.status == 0 && is_there(work, "report.html") && is_there(work, "report.md");
    if (!right) snprintf(why, WHY, "%.200s%.200s", r.out, r.err);
    command_free(&r);
    return right;
}

static const char *const *tokenize_arguments(bool again) {
    static const char *words[16];
    (void)again;
    memcpy(words,
           RUN("tokenize", "--out", work, "--threads", "1", "--shard-tokens", "1500", at("text")),
           9 * sizeof *words);
    return words;
}

static bool shards_are_right(char *why) {
    return same_file("train_000000.bin", why) && same_file("train_000001.bin", why) &&
           same_file("train_000002.bin", why) && same_file("tokenizer.json", why);
}

static const char *const *init_arguments(bool again) {
    static const char *words[16];
    const char *const *from = RUN("init", "--config", config, "--threads", "1", "--out", work,
                                  again ? "--force" : "--seed=1337", "--seed=1337");
    memcpy(words, from, 10 * sizeof *words);
    return words;
}

static bool model_is_right(char *why) {
    if (is_there(work, "optimizer.safetensors")) {
        snprintf(why, WHY, "another's optimizer.safetensors is there");
        return false;
    }
    return same_file("model.safetensors", why) && same_file("config.json", why) &&
           same_file("state.json", why) && is_alone(at("."), "work.", "", why);
}

/* Another model, with its optimizer's state, is there to be replaced. */
static void prepare_other(void) {
    shell_succeeds("rm -rf '%s' && cp -a '%s/last' '%s'", work, source, work);
}

static const char *const *init_force_arguments(bool again) {
    (void)again;
    return init_arguments(true);
}

/* The other one or the new one, with all that belongs to it. */
static bool model_is_whole(char *why) {
    static const char *const names[] = {"config.json", "model.safetensors", "state.json"};
    char other[300];
    int old = 0, new = 0;
    snprintf(other, sizeof other, "%s/last", source);
    for (int i = 0; i < 3; i++) {
        old += same_as(other, names[i], why);
        new += same_file(names[i], why);
    }
    bool optimizer = is_there(work, "optimizer.safetensors");
    if ((old == 3 && optimizer) || (new == 3 && !optimizer)) return true;
    snprintf(why, WHY, "left %d files of the old model and %d of the new, %s optimizer", old, new,
             optimizer ? "with its" : "without an");
    return false;
}

/* From Hugging Face's layout and into it. */
static const char *const *convert_arguments(bool again) {
    static const char *words[16];
    const char *const *from =
        again ? RUN("convert", "--model", hf_path("gpt2"), "--out", work, "--force")
              : RUN("convert", "--model", hf_path("gpt2"), "--out", work);
    memcpy(words, from, (again ? 7 : 6) * sizeof *words);
    return words;
}

static const char *const *convert_back_arguments(bool again) {
    static const char *words[16];
    static char model[300];
    snprintf(model, sizeof model, "%s", at("converted"));
    const char *const *from =
        again ? RUN("convert", "--model", model, "--to-hf", "--out", work, "--force")
              : RUN("convert", "--model", model, "--to-hf", "--out", work);
    memcpy(words, from, (again ? 8 : 7) * sizeof *words);
    return words;
}

static const char *const *prune_arguments(bool again) {
    static const char *words[16];
    static char model[300];
    snprintf(model, sizeof model, "%s/last", source);
    const char *const *from =
        RUN("prune", "--model", model, "--what", "heads", "--keep", "0.5", "--threads", "1",
            "--out", work, again ? "--force" : "--by=magnitude");
    memcpy(words, from, 13 * sizeof *words);
    return words;
}

static const char *const *convert_force_arguments(bool again) {
    (void)again;
    return convert_arguments(true);
}

static const char *const *prune_force_arguments(bool again) {
    (void)again;
    return prune_arguments(true);
}

static bool converted_is_right(char *why) {
    return model_is_right(why) && same_file("model.config", why);
}

/* Commands that write one file; what they read lies elsewhere. */
static void prepare_folder(void) {
    shell_succeeds("rm -rf '%s' && mkdir '%s'", work, work);
}

static const char *const *eval_arguments(bool again) {
    static const char *words[16];
    static char model[300], logits[300];
    (void)again;
    snprintf(model, sizeof model, "%s/last", source);
    snprintf(logits, sizeof logits, "%s/out", work);
    memcpy(words,
           RUN("eval", "--model", model, "--threads", "1", "--tokens", at("tokens.npy"), "--logits",
               logits),
           10 * sizeof *words);
    return words;
}

static const char *const *tokenizer_arguments(bool again) {
    static const char *words[16];
    static char out[300];
    snprintf(out, sizeof out, "%s/out", work);
    memcpy(words,
           RUN("tokenizer", "train", "--vocab", "270", "--out", out, at("text"),
               again ? "--force" : "--min-count=2"),
           9 * sizeof *words);
    return words;
}

static bool out_is_right(char *why) {
    return same_file("out", why);
}

/* Parts of one study, made once. */
static void prepare_parts(void) {
    prepare_folder();
    if (is_there(at("."), "second")) return;
    for (int i = 0; i < 2; i++)
        command_succeeds(RUN("study", "--config", at("study-config"), "--out",
                             at(i ? "second" : "first"), "--threads", "1", "-o",
                             "RA_MLA_ABLATION_STEPS=", "-o", "STUDY_VARIANTS=a; b: N_FFN=24", "-o",
                             "STUDY_LEARNING_RATES=1e-3", "-o", "STUDY_SEEDS=1", "--variants",
                             i ? "b" : "a"),
                         NULL);
}

static const char *const *merge_arguments(bool again) {
    static const char *words[16];
    static char paths[3][300];
    (void)again;
    snprintf(paths[0], sizeof paths[0], "%s", at("first"));
    snprintf(paths[1], sizeof paths[1], "%s", at("second"));
    snprintf(paths[2], sizeof paths[2], "%s", work);
    memcpy(words, RUN("runs", "merge", paths[0], paths[1], "--out", paths[2]), 7 * sizeof *words);
    return words;
}

static bool merge_is_right(char *why) {
    command_result r = command_run(RUN("runs", whole, "--diff", work));
    bool right = r.status == 0;
    if (!right) snprintf(why, WHY, "%.200s%.200s", r.out, r.err);
    command_free(&r);
    return right && is_alone(work, "", "runs.db", why);
}

/* Nothing or the whole. */
static bool merge_is_whole(char *why) {
    if (!is_there(work, "runs.db")) return true;
    command_result r = command_run(RUN("runs", whole, "--diff", work));
    bool right = r.status == 0;
    if (!right) snprintf(why, WHY, "a part of it: %.200s%.200s", r.out, r.err);
    command_free(&r);
    return right;
}

static const char *const *csv_arguments(bool again) {
    static const char *words[16];
    static char paths[2][300];
    (void)again;
    snprintf(paths[0], sizeof paths[0], "%s", at("first"));
    snprintf(paths[1], sizeof paths[1], "%s/out", work);
    memcpy(words, RUN("runs", paths[0], "--csv", paths[1], "--force"), 6 * sizeof *words);
    return words;
}

static void prepare_csv(void) {
    prepare_parts();
    shell_succeeds("echo old > '%s/out'", work);
}

static bool csv_is_whole(char *why) {
    char path[300];
    snprintf(path, sizeof path, "%s/out", work);
    char *now = file_read(path, NULL);
    bool old = strcmp(now, "old\n") == 0;
    free(now);
    return old || same_file("out", why);
}

static const scenario scenarios[] = {
    {"train", "train", prepare_nothing, train_arguments, run_is_right, NULL, 251, false, NULL},
    {"resume", "train", prepare_run, resume_arguments, run_is_right, NULL, 251, false, NULL},
    {"resume-plain", "train", prepare_run, resume_arguments, run_is_right, NULL, 251, true, NULL},
    {"study", "study", prepare_nothing, study_arguments, study_is_right, NULL, 151, false, NULL},
    {"study-train", "train", prepare_nothing, study_arguments, study_is_right, NULL, 601, false,
     NULL},
    {"tokenize", "tokenize", prepare_nothing, tokenize_arguments, shards_are_right,
     "has shards already", 23, false, NULL},
    {"eval", "eval", prepare_folder, eval_arguments, out_is_right, NULL, 7, false, NULL},
    {"tokenizer", "tokenizer", prepare_folder, tokenizer_arguments, out_is_right, NULL, 7, false,
     NULL},
    {"init", "init", prepare_nothing, init_arguments, model_is_right, NULL, 29, false, NULL},
    {"convert", "convert", prepare_nothing, convert_arguments, converted_is_right, NULL, 29, false,
     NULL},
    {"convert-back", "convert", prepare_nothing, convert_back_arguments, model_is_right, NULL, 29,
     false, NULL},
    {"prune", "prune", prepare_nothing, prune_arguments, model_is_right, NULL, 29, false, NULL},
    {"init-force", "init", prepare_other, init_force_arguments, model_is_right, NULL, 61, false,
     model_is_whole},
    {"convert-force", "convert", prepare_other, convert_force_arguments, converted_is_right, NULL,
     61, false, model_is_whole},
    {"convert-plain", "convert", prepare_other, convert_force_arguments, converted_is_right, NULL,
     61, true, NULL},
    {"prune-force", "prune", prepare_other, prune_force_arguments, model_is_right, NULL, 61, false,
     model_is_whole},
    {"merge", "runs", prepare_parts, merge_arguments, merge_is_right, "there already", 61, false,
     merge_is_whole},
    {"csv", "runs", prepare_csv, csv_arguments, out_is_right, NULL, 29, false, csv_is_whole},
};
enum { SCENARIOS = sizeof scenarios / sizeof scenarios[0] };

typedef struct {
    long kills, faults;
    long silent;  /* faults that changed nothing: exit 0 and the right bits */
    long told;    /* exit 1 or 2 with a line */
    long refused; /* the second command named what is wrong */
    long wrong;
} figures;

static bool is_all(void) {
    const char *faults = getenv("WEFT_TEST_FAULTS");
    return train_long() || (faults && strcmp(faults, "1") == 0);
}

/* One that is wrong does not keep the others from being tried. */
__attribute__((format(printf, 4, 5))) static void note_wrong(const scenario *s, const fault *f,
                                                             figures *n, const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("note: WRONG: WEFT_FAULT_ONLY=\"%s %s %ld %d\": ", s->name, f->calls, f->nth, f->error);
    vprintf(format, args);
    printf("\n");
    fflush(stdout);
    va_end(args);
    n->wrong++;
}

static void check_first(const scenario *s, const fault *f, const command_result *r, figures *n) {
    char why[WHY] = "";
    if (f->error == 0) {
        n->kills++;
        return; /* a call that is not reached any more leaves the process alive */
    }
    n->faults++;
    if (r->status == 0) {
        n->silent++;
        if (!s->is_right(why)) note_wrong(s, f, n, "ended on 0, but %s", why);
        return;
    }
    n->told++;
    if (r->status != 1 && r->status != 2) note_wrong(s, f, n, "ended on %d: %s", r->status, r->err);
    if (!strstr(r->err, "weft ")) note_wrong(s, f, n, "nothing was said: %s", r->err);
}

static void check_second(const scenario *s, const fault *f, figures *n) {
    char why[WHY] = "";
    command_result r = command_run(s->arguments(true));
    if (r.status != 0 && s->refusal && strstr(r.err, s->refusal)) {
        n->refused++;
    } else if (r.status != 0) {
        note_wrong(s, f, n, "cannot go on, ended on %d: %s", r.status, r.err);
    } else if (!s->is_right(why)) {
        note_wrong(s, f, n, "goes on wrongly: %s", why);
    }
    command_free(&r);
}

static void run_fault(const scenario *s, const fault *f, figures *n) {
    s->prepare();
    command_result r = fault_run(f, s->arguments(false), NULL);
    check_first(s, f, &r, n);
    char why[WHY] = "";
    if (r.status != 0 && s->is_whole && !s->is_whole(why)) note_wrong(s, f, n, "%s", why);
    if (r.status != 0) check_second(s, f, n);
    command_free(&r);
}

static void run_case(const scenario *s, const char *call, long nth, int error, figures *n) {
    fault f = {.calls = call, .path = "/work", .command = s->command, .nth = nth, .error = error};
    run_fault(s, &f, n);
}

/* How often each operation is called; the last number is that of all. */
static void count_calls(const scenario *s, long counts[OPERATIONS + 1]) {
    char trace[300], call[32];
    long all = 0;
    fault f = {.calls = "all", .path = "/work", .command = s->command};
    snprintf(trace, sizeof trace, "%s", at("trace"));
    unlink(trace);
    setenv("WEFT_FAULT_TRACE", trace, 1);
    s->prepare();
    command_result r = fault_run(&f, s->arguments(false), &all);
    unsetenv("WEFT_FAULT_TRACE");
    if (r.status != 0) fail_msg("%s ended on %d: %s", s->name, r.status, r.err);
    command_free(&r);
    memset(counts, 0, (OPERATIONS + 1) * sizeof *counts);
    counts[OPERATIONS] = all;
    char *text = file_read(trace, NULL);
    for (const char *line = text; line && *line; line = strchr(line, '\n') + 1) {
        if (sscanf(line, "%*d %31s", call) != 1) continue;
        for (int o = 0; o < OPERATIONS; o++)
            counts[o] += strcmp(call, operations[o].call) == 0;
    }
    free(text);
}

/* The right bits, made without a fault. */
static void make_whole(const scenario *s) {
    char name[64], why[WHY];
    snprintf(name, sizeof name, "whole-%s", s->name);
    snprintf(whole, sizeof whole, "%s", at(name));
    s->prepare();
    command_succeeds(s->arguments(false), NULL);
    shell_succeeds("rm -rf '%s' && cp -a '%s' '%s'", whole, work, whole);
    if (!s->is_right(why)) fail_msg("%s: %s", s->name, why);
}

/* Every stride-th case over all operations, so that a sample has some of each. */
static void run_scenario(const scenario *s) {
    figures n = {0};
    long counts[OPERATIONS + 1];
    const char *given = getenv("WEFT_FAULT_STRIDE"), *first = getenv("WEFT_FAULT_FIRST");
    long stride = given && *given ? strtol(given, NULL, 10) : is_all() ? 1 : s->sample;
    long number = stride - (first ? strtol(first, NULL, 10) % stride : 0);
    fault_need();
    make_whole(s);
    setenv("WEFT_FAULT_PLAIN", s->plain ? "1" : "0", 1);
    count_calls(s, counts);
    for (int o = 0; o < OPERATIONS; o++)
        for (int e = 0; e < 4 && operations[o].errors[e]; e++)
            for (long nth = 1; nth <= counts[o]; nth++)
                if (number++ % stride == 0)
                    run_case(s, operations[o].call, nth, operations[o].errors[e], &n);
    for (long nth = 1; nth <= counts[OPERATIONS]; nth++)
        if (number++ % stride == 0) run_case(s, "all", nth, 0, &n);
    printf(
        "note: %s: %ld faults (%ld told, %ld without effect), %ld kills; %ld refused, %ld wrong, "
        "all others ended in the right bits\n",
        s->name, n.faults, n.told, n.silent, n.kills, n.refused, n.wrong);
    assert_int_equal(n.wrong, 0);
}

/* One case, by WEFT_FAULT_ONLY. */
static bool run_only(const scenario *s) {
    const char *text = getenv("WEFT_FAULT_ONLY");
    char name[32], call[32];
    long nth;
    int error;
    figures n = {0};
    if (!text) return false;
    if (sscanf(text, "%31s %31s %ld %d", name, call, &nth, &error) == 4 &&
        strcmp(name, s->name) == 0) {
        fault_need();
        make_whole(s);
        setenv("WEFT_FAULT_PLAIN", s->plain ? "1" : "0", 1);
        setenv("WEFT_FAULT_TRACE", "/tmp/weft-fault-trace", 1);
        run_case(s, call, nth, error, &n);
        assert_int_equal(n.wrong, 0);
    }
    return true;
}

static void test_every_call(void **state) {
    const scenario *s = *state;
    const char *chosen = getenv("WEFT_FAULT_SCENARIO");
    if (chosen && strcmp(chosen, s->name) != 0) {
        printf("WEFT_FAULT_SCENARIO is %s\n", chosen);
        skip();
    }
    if (!run_only(s)) run_scenario(s);
}

/* Weights that cannot be looked at were once a run without weights, and the study went on. */
static void test_the_weights_of_a_run_are_looked_at(void **state) {
    (void)state;
    const scenario *s = scenarios;
    figures n = {0};
    fault f = {
        .calls = "access,stat", .path = "/last/model.safetensors", .command = "study", .nth = 1};
    if (getenv("WEFT_FAULT_SCENARIO") || getenv("WEFT_FAULT_ONLY")) {
        printf("one of the scenarios is chosen\n");
        skip();
    }
    while (strcmp(s->name, "study") != 0)
        s++;
    fault_need();
    make_whole(s);
    f.error = EACCES;
    run_fault(s, &f, &n);
    assert_int_equal(n.told, 1);
    assert_int_equal(n.wrong, 0);
}

static int open_scratch(void **state) {
    (void)state;
    scratch_open();
    snprintf(config, sizeof config, "%s", at("config"));
    snprintf(work, sizeof work, "%s", at("work"));
    snprintf(source, sizeof source, "%s", at("source"));
    train_config(config);
    FILE *file = fopen(config, "a");
    assert_non_null(file);
    fputs("CONFIG_STEPS=4\nCONFIG_EVAL_INTERVAL=2\nCONFIG_CHECKPOINT_INTERVAL=1\n"
          "CONFIG_CHECKPOINT_KEEP=2\nCONFIG_GRADIENT_ACCUMULATION=1\n"
          "CONFIG_LR_SCHEDULE=\"constant\"\nCONFIG_SAMPLE_PROMPT=\"a\"\n"
          "CONFIG_SAMPLE_INTERVAL=2\nCONFIG_SAMPLE_TOKENS=2\nCONFIG_EVAL_POSITIONS=y\n",
          file);
    fclose(file);
    command_succeeds(RUN(TRAIN, "--out", source, "-o", "STEPS=2"), NULL);
    command_succeeds(RUN("convert", "--model", hf_path("gpt2"), "--out", at("converted")), NULL);
    study_config(at("study-config"));
    file = fopen(at("study-config"), "a");
    assert_non_null(file);
    fputs("CONFIG_STEPS=2\nCONFIG_STUDY_SEEDS=1\nCONFIG_STUDY_LEARNING_RATES=\"1e-3\"\n"
          "CONFIG_CHECKPOINT_INTERVAL=1\n",
          file);
    fclose(file);
    char text[4000];
    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i % 26);
    file_write(at("text"), text, sizeof text);
    int32_t tokens[25];
    for (int i = 0; i < 25; i++)
        tokens[i] = i;
    npy_write(at("tokens.npy"), 4, 1, 25, tokens);
    return 0;
}

int main(void) {
    struct CMUnitTest tests[SCENARIOS + 1];
    static char names[SCENARIOS][64];
    static scenario list[SCENARIOS];
    for (int i = 0; i < SCENARIOS; i++) {
        list[i] = scenarios[i];
        snprintf(names[i], sizeof names[i], "test_every_call_of_%s", scenarios[i].name);
        tests[i] = (struct CMUnitTest){
            .name = names[i], .test_func = test_every_call, .initial_state = &list[i]};
    }
    tests[SCENARIOS] = (struct CMUnitTest)cmocka_unit_test(test_the_weights_of_a_run_are_looked_at);
    return cmocka_run_group_tests(tests, open_scratch, scratch_teardown);
}
