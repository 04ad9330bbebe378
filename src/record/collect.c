/* Reading metrics.jsonl and result.json, the facts that the latter gets, and whether runs that repeat others have their
 * bits. */
#include "record/record.h"

#include "base/json.h"
#include "base/log.h"
#include "base/order.h"
#include "base/text.h"
#include "base/version.h"

enum { RATES_MOST = 256, FACT_MOST = 1 << 16, MANIFEST_MOST = 1 << 24 };
enum { BLOCK = 1 << 20, DETAIL_ROOM = 512 };

/* What is summed up while the lines go by. */
typedef struct {
    const weft_study *study;
    const weft_record_run *job;
    int64_t iters; /* of the whole training */
    int64_t last;  /* the last line's step */
    double val_loss, best_val_loss, metric_value;
    double tail_sum; /* cross-entropy of the last STUDY_TAIL steps' lines */
    int64_t tail_lines, skipped;
    double seconds; /* of training: steps over their rate */
    char metric[32];
} summary;

/* The dataset's own metric is the one key whose name ends on _accuracy. */
static double metric_of(const json_t *line, char name[32]) {
    EACH_MEMBER(number, line) {
        size_t n = strlen(number.key);
        if (n <= 9 || strcmp(number.key + n - 9, "_accuracy") != 0) continue;
        snprintf(name, 32, "%s", number.key);
        return weft_json_number_of(line, number.key);
    }
    return NAN;
}

static weft_status add_event(weft_database *d, const summary *u, int64_t step, const char *kind,
                             const char *format, double value) {
    char detail[64];
    snprintf(detail, sizeof detail, format, value);
    return weft_record_event(d, u->job->run, step, kind, detail);
}

static weft_status read_lines(weft_database *d, summary *u, const char *path) {
    WEFT_AUTO_FREE char *text = NULL;
    WEFT_AUTO_FCLOSE FILE *file = NULL;
    size_t room = 0;
    ssize_t n;
    if (weft_file_open_stream(path, &file) != WEFT_OK) return WEFT_EINPUT;
    for (long number = 1; (n = getline(&text, &room, file)) > 0; number++) {
        json_error_t error;
        WEFT_AUTO_DECREF json_t *line = weft_json_read(text, (size_t)n, 0, &error);
        if (!line) return WEFT_BAD_INPUT("%s:%ld: %s", path, number, error.text);
        const json_t *at = json_object_get(line, "step");
        if (!json_is_integer(at))
            return WEFT_BAD_INPUT("%s:%ld: a line without a step", path, number);
        int64_t step = (int64_t)json_integer_value(at);
        if (step < u->last || step > u->iters)
            return WEFT_BAD_INPUT("%s:%ld: a line of step %lld after step %lld of %lld", path,
                                  number, (long long)step, (long long)u->last, (long long)u->iters);
        u->metric_value = metric_of(line, u->metric);
        WEFT_TRY(weft_record_line(d, u->job->run, line, u->metric_value, false));
        if (json_is_true(json_object_get(line, "spike")))
            WEFT_TRY(add_event(d, u, step, "spike", "grad_norm %.9g",
                               weft_json_number_of(line, "grad_norm")));
        if (json_is_true(json_object_get(line, "reset")))
            WEFT_TRY(weft_record_event(d, u->job->run, step, "reset", "the moments"));
        if (json_is_true(json_object_get(line, "pruned")))
            WEFT_TRY(add_event(d, u, step, "pruned", "sparsity %.6g",
                               weft_json_number_of(line, "sparsity")));
        int64_t skipped = (int64_t)json_integer_value(json_object_get(line, "skipped"));
        if (skipped > u->skipped) {
            u->skipped = skipped;
            WEFT_TRY(add_event(d, u, step, "skipped", "%.0f so far", (double)skipped));
        }
        double rate = weft_json_number_of(line, "tokens_per_s"),
               val = weft_json_number_of(line, "val_loss");
        const weft_config *c = &u->study->built[u->job->variant].config;
        if (rate > 0)
            u->seconds += (double)(step - u->last) * (double)weft_study_iter_tokens(c) / rate;
        u->val_loss = val;
        if (val < u->best_val_loss || isnan(u->best_val_loss)) u->best_val_loss = val;
        if (step > u->iters - u->study->base.study_tail) {
            u->tail_sum += weft_json_number_of(line, "cross_entropy");
            u->tail_lines++;
        }
        u->last = step;
    }
    return WEFT_OK;
}

static double train_loss_of(const summary *u) {
    return u->tail_lines ? u->tail_sum / (double)u->tail_lines : NAN;
}

static double score_of(const summary *u) {
    int64_t score = u->study->base.study_score;
    if (score == WEFT_STUDY_SCORE_TRAIN_LOSS) return train_loss_of(u);
    return score == WEFT_STUDY_SCORE_METRIC ? u->metric_value : u->val_loss;
}

static weft_status add_fact(weft_database *d, int64_t run, const char *name, const json_t *value) {
    static const char sql[] = "INSERT INTO facts(run, name, value) VALUES (?, ?, ?)";
    if (json_is_string(value) && json_string_length(value) > FACT_MOST) return WEFT_OK;
    if (json_is_string(value))
        return weft_database_run(d, sql, "iss", run, name, json_string_value(value));
    if (json_is_integer(value))
        return weft_database_run(d, sql, "isi", run, name, (int64_t)json_integer_value(value));
    return weft_database_run(d, sql, "isd", run, name, json_number_value(value));
}

static weft_status take_run(weft_database *d, summary *u, const weft_ending *e,
                            const char *weights) {
    WEFT_PATH(path, "%s/metrics.jsonl", e->folder);
    WEFT_TRY(weft_database_run(d, "DELETE FROM metrics WHERE run = ?", "i", u->job->run));
    WEFT_TRY(weft_database_run(d,
                               "DELETE FROM events WHERE run = ? AND kind IN"
                               " ('spike', 'reset', 'pruned', 'skipped', 'equal', 'unequal')",
                               "i", u->job->run));
    WEFT_TRY(read_lines(d, u, path));
    if (!e->diverged && u->last != u->iters)
        return WEFT_BAD_INPUT("%s: ends at step %lld of %lld", path, (long long)u->last,
                              (long long)u->iters);
    WEFT_TRY(weft_database_run(d, "DELETE FROM facts WHERE run = ?", "i", u->job->run));
    EACH_MEMBER(fact, json_object_get(e->result, "facts"))
        if (!json_is_null(fact.value)) WEFT_TRY(add_fact(d, u->job->run, fact.key, fact.value));
    const weft_config *c = &u->study->built[u->job->variant].config;
    double tokens = (double)u->last * (double)weft_study_iter_tokens(c);
    bool metric = *u->metric != '\0';
    /* A run that diverged has losses on its way, but no result. */
    double none = e->diverged ? NAN : 0;
    return weft_database_run(
        d,
        "UPDATE runs SET status = ?, why = ?, iters = ?, val_loss = ?, best_val_loss = ?,"
        " train_loss = ?, metric = ?, metric_value = ?, score = ?, skipped = ?, weights = ?,"
        " ended = " WEFT_SQL_NOW ", seconds = ifnull(seconds, 0) + ?, tokens_per_s = ?,"
        " memory_bytes = max(ifnull(memory_bytes, 0), ?) WHERE run = ?",
        "ssidddsddisddii", e->diverged ? "diverged" : "done", e->diverged ? e->why : NULL, u->last,
        u->val_loss + none, u->best_val_loss, train_loss_of(u) + none, metric ? u->metric : NULL,
        u->metric_value + none, score_of(u) + none, u->skipped, weights, e->seconds,
        u->seconds > 0 ? tokens / u->seconds : NAN, e->memory, u->job->run);
}

weft_status weft_collect_run(weft_database *d, const weft_study *s, const weft_record_run *job,
                             const weft_ending *ending, double *score) {
    char path[WEFT_PATH_MAX], weights[16];
    weft_sum sum = {0};
    summary u = {.study = s,
                 .job = job,
                 .iters = s->built[job->variant].iters,
                 .val_loss = NAN,
                 .best_val_loss = NAN,
                 .metric_value = NAN};
    WEFT_TRY(weft_path(path, "%s/last/model.safetensors", ending->folder));
    bool kept; /* a run may diverge before its first checkpoint */
    if (weft_path_there(path, &kept) != WEFT_OK) return WEFT_EINPUT;
    if ((kept || !ending->diverged) && weft_file_sum(path, &sum) != WEFT_OK)
        return WEFT_EINPUT; /* with its message: the run's fault, not the database's */
    snprintf(weights, sizeof weights, "%08x", (unsigned)sum.crc);
    weft_status status = weft_database_within(d, take_run(d, &u, ending, kept ? weights : NULL));
    *score = ending->diverged ? NAN : score_of(&u);
    return status;
}

double weft_collect_rate(const char *folder) {
    char path[WEFT_PATH_MAX];
    WEFT_AUTO_FREE char *text = NULL;
    WEFT_AUTO_FCLOSE FILE *file = NULL;
    size_t room = 0;
    ssize_t n;
    double rates[RATES_MOST];
    int count = 0, lines = 0;
    if (weft_path(path, "%s/metrics.jsonl", folder) != WEFT_OK) return NAN;
    if (weft_file_open_stream(path, &file) != WEFT_OK) return NAN;
    while ((n = getline(&text, &room, file)) > 0) {
        WEFT_AUTO_DECREF json_t *line = weft_json_read(text, (size_t)n, 0, NULL);
        double rate = weft_json_number_of(line, "tokens_per_s");
        if (lines++ > 0 && rate > 0 && count < RATES_MOST) rates[count++] = rate;
    }
    if (count == 0) return NAN;
    qsort(rates, (size_t)count, sizeof *rates, weft_order_doubles);
    return count % 2 ? rates[count / 2] : (rates[count / 2 - 1] + rates[count / 2]) / 2;
}

/* "bash-doc 5.2.15-2, git-doc 1:2.39.5"; of more than a fact has room for, how many there are. NULL where there are
 * none; the caller frees it. */
static char *list_packages(const json_t *manifest) {
    const json_t *packages = json_object_get(manifest, "packages");
    char *text = NULL;
    size_t room = 0;
    FILE *out = json_array_size(packages) ? open_memstream(&text, &room) : NULL;
    if (!out) return NULL;
    EACH_ITEM(one, packages) {
        const char *name = json_string_value(json_object_get(one.value, "package"));
        if (name)
            fprintf(out, "%s%s %s", one.n > 1 ? ", " : "", name,
                    weft_json_text_of(one.value, "version"));
    }
    if (!weft_memory_end(out, &text) || strlen(text) <= FACT_MOST) return text;
    free(text);
    return asprintf(&text, "%zu packages", json_array_size(packages)) < 0 ? NULL : text;
}

json_t *weft_facts_of_run(const weft_config *c, const char *device, const weft_train_result *r) {
    char machine[512], path[WEFT_PATH_MAX];
    weft_machine_text(machine, sizeof machine);
    json_t *facts = json_pack("{s:s, s:s, s:s}", "commit", weft_git_commit(), "machine", machine,
                              "device", device);
    if (!facts) return NULL;
    if (r->device_bytes > 0)
        json_object_set_new(facts, "device_bytes", json_integer(r->device_bytes));
    if (r->train_tokens > 0)
        json_object_set_new(facts, "train_tokens", json_integer(r->train_tokens));
    if (r->val_tokens > 0) json_object_set_new(facts, "val_tokens", json_integer(r->val_tokens));
    if (weft_path(path, "%s/manifest.json", c->dataset) == WEFT_OK) {
        WEFT_AUTO_DECREF json_t *manifest = weft_json_file(path, MANIFEST_MOST);
        WEFT_AUTO_FREE char *packages = list_packages(manifest);
        json_t *hash = json_object_get(manifest, "hash");
        if (json_is_string(hash)) json_object_set(facts, "dataset_hash", hash);
        if (packages) json_object_set_new(facts, "dataset_packages", json_string(packages));
    }
    for (int i = 0; i < r->n_positions; i++) {
        const weft_position_loss *p = &r->positions[i];
        char name[64];
        snprintf(name, sizeof name, "loss_at_%lld_%lld", (long long)p->first,
                 (long long)p->last - 1);
        if (isfinite(p->loss)) json_object_set_new(facts, name, json_real(p->loss));
    }
    return facts;
}

/* Repeats. The weights are compared as files, not by their checksums: the claim is about bytes, and a file that
 * was changed after its run shows. */

/* Whether the weights of two runs are the same files; *bytes of them, or what differs. */
static weft_status compare_weights(const char *folder, const weft_record_run *run,
                                   const weft_record_run *first, int64_t *bytes, char *detail) {
    bool mine, other;
    *bytes = 0;
    WEFT_PATH(a, "%s/%s/last/model.safetensors", folder, run->folder);
    WEFT_PATH(b, "%s/%s/last/model.safetensors", folder, first->folder);
    WEFT_TRY(weft_path_there(a, &mine));
    WEFT_TRY(weft_path_there(b, &other));
    if (mine != other)
        snprintf(detail, DETAIL_ROOM, "%s has no weights", mine ? first->folder : run->folder);
    if (!mine || !other) return WEFT_OK;
    WEFT_AUTO_FREE unsigned char *block = malloc(2 * BLOCK);
    WEFT_AUTO_FCLOSE FILE *one = NULL, *two = NULL;
    if (!block) return weft_fail(WEFT_ENOMEM, "%s: no memory to read it", a);
    WEFT_TRY(weft_file_open_stream(a, &one));
    WEFT_TRY(weft_file_open_stream(b, &two));
    for (size_t n = 1; n > 0 && !*detail; *bytes += (int64_t)n) {
        n = fread(block, 1, BLOCK, one);
        size_t m = fread(block + BLOCK, 1, BLOCK, two), at = 0;
        if (ferror(one) || ferror(two)) return weft_path_failed(ferror(one) ? a : b);
        while (at < n && at < m && block[at] == block[BLOCK + at])
            at++;
        if (at < n || at < m)
            snprintf(detail, DETAIL_ROOM, "the weights differ from byte %lld on",
                     (long long)(*bytes + (int64_t)at));
    }
    return WEFT_OK;
}

#define OTHERS(a, b) "SELECT * FROM (" WEFT_SQL_METRICS(a) " EXCEPT " WEFT_SQL_METRICS(b) ")"

static weft_status check_all(weft_database *d, const weft_study *s, const weft_record_runs *jobs,
                             const char *folder, weft_repeats *out) {
    WEFT_TRY(weft_database_script(d, "DELETE FROM events WHERE kind IN ('equal', 'unequal')"));
    for (int i = 0; i < jobs->n; i++) {
        const weft_record_run *run = &jobs->list[i];
        int repeated = s->variants.list[run->variant].repeats;
        for (int k = 0; repeated >= 0 && k < jobs->n; k++) {
            const weft_record_run *first = &jobs->list[k];
            char detail[DETAIL_ROOM] = "";
            int64_t bytes, rows;
            if (first->variant != repeated || first->rate != run->rate ||
                first->seed != run->seed || !weft_run_ended(run) || !weft_run_ended(first))
                continue;
            if (run->status != first->status)
                snprintf(detail, sizeof detail, "%s is %s", first->folder,
                         weft_run_status_name(first->status));
            WEFT_TRY(compare_weights(folder, run, first, &bytes, detail));
            /* The first step at which the rows of two runs are not the same, time apart. */
            int64_t step;
            WEFT_TRY(weft_database_number(d, 0, &rows, "SELECT count(*) FROM metrics WHERE run = ?",
                                          "i", run->run));
            WEFT_TRY(weft_database_number(
                d, -1, &step,
                "SELECT min(step) FROM (" OTHERS("?1", "?2") " UNION ALL " OTHERS("?2", "?1") ")",
                "ii", run->run, first->run));
            if (step >= 0) {
                size_t at = strlen(detail);
                snprintf(detail + at, DETAIL_ROOM - at, "%sthe metrics differ from step %lld on",
                         at ? "; " : "", (long long)step);
            }
            bool equal = !*detail;
            out->equal += equal;
            out->unequal += !equal;
            if (equal)
                snprintf(detail, sizeof detail,
                         "%lld bytes of weights and %lld rows of metrics are %s's",
                         (long long)bytes, (long long)rows, first->folder);
            else
                weft_log(WEFT_LOG_WARN, "%s does not repeat %s: %s", run->folder, first->folder,
                         detail);
            WEFT_TRY(weft_record_event(d, run->run, -1, equal ? "equal" : "unequal", detail));
        }
    }
    return WEFT_OK;
}

weft_status weft_repeats_check(weft_database *d, const weft_study *s, const char *folder,
                               weft_repeats *out) {
    WEFT_AUTO(weft_record_runs_free) weft_record_runs jobs = {0};
    *out = (weft_repeats){0};
    WEFT_TRY(weft_record_read_runs(d, s, &jobs));
    return weft_database_within(d, check_all(d, s, &jobs, folder, out));
}
