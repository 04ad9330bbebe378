/* Tables, JSON and CSV out of a database. */
#include "report/report.h"

#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "record/gather.h"
#include "report/sections.h"
#include "study/study.h"

#include <math.h>
#include <string.h>

static void print_number(FILE *out, int width, int digits, double value) {
    if (isfinite(value))
        fprintf(out, " %*.*f", width, digits, value);
    else
        fprintf(out, " %*s", width, "-");
}

static void print_heading(sqlite3_stmt *rows, void *context) {
    FILE *out = context;
    fprintf(out, "%s: %d of %d runs done, equal %s, scored by %s, made %s\n",
            weft_column_shown(rows, 0), sqlite3_column_int(rows, 1), sqlite3_column_int(rows, 2),
            weft_column_shown(rows, 3), weft_column_shown(rows, 4), weft_column_shown(rows, 5));
}

static void print_run(sqlite3_stmt *rows, void *context) {
    FILE *out = context;
    char rate[32];
    weft_study_number(sqlite3_column_double(rows, 2), rate, sizeof rate);
    fprintf(out, "%4lld %-16s %9s %6lld %-8s %8lld", (long long)sqlite3_column_int64(rows, 0),
            weft_column_shown(rows, 1), rate, (long long)sqlite3_column_int64(rows, 3),
            weft_column_shown(rows, 4), (long long)sqlite3_column_int64(rows, 5));
    print_number(out, 9, 4, weft_column_number(rows, 6));
    print_number(out, 9, 4, weft_column_number(rows, 7));
    print_number(out, 9, 1, weft_column_number(rows, 8));
    print_number(out, 9, 0, weft_column_number(rows, 9));
    print_number(out, 8, 1, weft_column_number(rows, 10) / (1024.0 * 1024.0));
    fprintf(out, "%s%s\n", *weft_column_text(rows, 11) ? "  " : "", weft_column_shown(rows, 11));
}

/* "variant 1: Gate": what the numbers of an ablation mean. */
static void print_title(sqlite3_stmt *rows, void *context) {
    FILE *out = context;
    fprintf(out, "variant %s: ", weft_column_shown(rows, 0));
    fprintf(out, "%s\n", weft_column_shown(rows, 1));
}

static bool is_baseline(const weft_report_data *d, int variant) {
    for (int i = 0; i < d->n_variants; i++)
        if (d->variants[i].baseline == variant) return true;
    return false;
}

/* What the runs say together: a variant's mean at its rate, and its difference to its baseline. */
static weft_status print_variants(const char *path, FILE *out) {
    WEFT_AUTO(weft_report_free) weft_report_data d = {0};
    WEFT_TRY(weft_report_read(path, &d));
    if (d.n_variants < 2) return WEFT_OK;
    fprintf(out, "\n%-16s %9s %5s %9s %9s  %s\n", "variant", "lr", "runs", "mean", "sd",
            "difference and its 95% interval");
    for (int i = 0; i < d.n_variants; i++) {
        const weft_report_variant *v = d.variants + i;
        char rate[32] = "-";
        if (isfinite(v->rate)) weft_study_number(v->rate, rate, sizeof rate);
        fprintf(out, "%-16s %9s %5d", weft_shown(v->name), rate, v->done);
        print_number(out, 9, 4, v->mean);
        print_number(out, 9, 4, v->sd);
        if (v->baseline >= 0) {
            const weft_comparison *c = &v->compared;
            fprintf(out, "  ");
            if (isfinite(c->mean)) fprintf(out, "%+.4f ", c->mean);
            if (isfinite(c->low)) fprintf(out, "(%+.4f to %+.4f) ", c->low, c->high);
            fprintf(out, "against %s: %s", weft_shown(d.variants[v->baseline].name),
                    c->pairs < 2 && c->verdict == WEFT_NO_DIFFERENCE ? v->why
                                                                     : weft_say_verdict(&d, i));
        } else if (!is_baseline(&d, i)) {
            fprintf(out, "  nothing to compare with");
        }
        fprintf(out, "\n");
    }
    return WEFT_OK;
}

weft_status weft_listing_table(const char *path, FILE *out) {
    WEFT_AUTO(weft_database_close_at) weft_database *d = NULL;
    WEFT_TRY(weft_listing_open(path, &d));
    WEFT_TRY(weft_listing_each(d,
                               "SELECT name, (SELECT count(*) FROM runs WHERE status = 'done'),"
                               " (SELECT count(*) FROM runs), equal, score, created FROM study",
                               print_heading, out));
    WEFT_TRY(weft_listing_each(d,
                               "SELECT name, title FROM variants WHERE title <> '' AND"
                               " title <> name ORDER BY variant",
                               print_title, out));
    fprintf(out, "%4s %-16s %9s %6s %-8s %8s %9s %9s %9s %9s %8s\n", "run", "variant", "lr", "seed",
            "status", "iters", "val_loss", "score", "seconds", "tokens/s", "MiB");
    WEFT_TRY(weft_listing_each(d,
                               "SELECT run, name, learning_rate, seed, status, runs.iters,"
                               " val_loss, score, seconds, tokens_per_s, memory_bytes, why"
                               " FROM runs JOIN variants USING (variant) ORDER BY run",
                               print_run, out));
    return print_variants(path, out);
}

/* One row as an object: every column by its name. */
static json_t *row_object(sqlite3_stmt *rows) {
    json_t *object = json_object();
    for (int i = 0; i < sqlite3_column_count(rows); i++) {
        int type = sqlite3_column_type(rows, i);
        json_t *value = type == SQLITE_INTEGER ? json_integer(sqlite3_column_int64(rows, i))
                        : type == SQLITE_FLOAT ? json_real(sqlite3_column_double(rows, i))
                        : type == SQLITE_TEXT  ? weft_json_text(weft_column_text(rows, i))
                                               : json_null();
        /* A run's config is JSON already. */
        if (strcmp(sqlite3_column_name(rows, i), "config") == 0 &&
            *weft_column_text(rows, i) == '{') {
            json_decref(value);
            value = weft_config_kept(weft_column_text(rows, i));
        }
        json_object_set_new(object, sqlite3_column_name(rows, i), value ? value : json_null());
    }
    return object;
}

static void append_row(sqlite3_stmt *rows, void *context) {
    json_array_append_new(context, row_object(rows));
}

weft_status weft_listing_json(const char *path, json_t **object) {
    static const char *const parts[][2] = {
        {"study", "SELECT * FROM study"},
        {"steps", "SELECT *, variant AS step FROM variants ORDER BY variant"},
        {"runs", "SELECT *, variant AS step FROM runs ORDER BY run"}};
    WEFT_AUTO(weft_database_close_at) weft_database *d = NULL;
    WEFT_AUTO_DECREF json_t *all = json_pack("{s:o}", "path", weft_json_text(path));
    *object = NULL;
    if (!all) return weft_fail(WEFT_ENOMEM, "runs: no memory");
    WEFT_TRY(weft_listing_open(path, &d));
    for (int i = 0; i < 3; i++) {
        WEFT_AUTO_DECREF json_t *rows = json_array();
        WEFT_TRY(weft_listing_each(d, parts[i][1], append_row, rows));
        json_object_set(all, parts[i][0], i == 0 ? json_array_get(rows, 0) : rows);
    }
    *object = weft_steal(&all);
    return WEFT_OK;
}

/* One letter, escaped where a terminal would obey it; lines' ends and tabs are a table's own. Returns
 * its bytes. */
static int write_letter(FILE *out, const char *text) {
    int n = weft_utf8_length(text), bytes = n ? n : 1;
    bool plain = strchr("\r\n\t", *text) || (n && !weft_utf8_is_control(text, n));
    if (plain) fwrite(text, 1, (size_t)bytes, out);
    for (int i = 0; !plain && i < bytes; i++)
        fprintf(out, "\\x%02x", (unsigned)(unsigned char)text[i]);
    return bytes;
}

/* Quoted where it must be; a quote inside is doubled. */
static void write_field(FILE *out, const char *text) {
    bool quoted = strpbrk(text, ",\"\r\n");
    if (quoted) fputc('"', out);
    while (*text) {
        if (*text == '"') fputc('"', out);
        text += write_letter(out, text);
    }
    if (quoted) fputc('"', out);
}

typedef struct {
    FILE *out;
    bool headed;
} csv_file;

static void write_row(sqlite3_stmt *rows, void *context) {
    csv_file *file = context;
    int n = sqlite3_column_count(rows);
    for (int i = 0; !file->headed && i < n; i++)
        fprintf(file->out, "%s%s", i ? "," : "", sqlite3_column_name(rows, i));
    if (!file->headed) fputs("\r\n", file->out);
    file->headed = true;
    for (int i = 0; i < n; i++) {
        char number[32];
        if (i) fputc(',', file->out);
        if (sqlite3_column_type(rows, i) == SQLITE_FLOAT) {
            weft_study_number(sqlite3_column_double(rows, i), number, sizeof number);
            fputs(number, file->out);
        } else {
            write_field(file->out, weft_column_text(rows, i));
        }
    }
    fputs("\r\n", file->out);
}

weft_status weft_listing_csv(const char *const *paths, int n, bool metrics, FILE *out) {
    static const char runs_sql[] =
        "SELECT (SELECT name FROM study) AS study, run, s.name AS step, s.title, learning_rate,"
        " seed, folder, status, why, r.iters, val_loss, best_val_loss, train_loss, metric,"
        " metric_value, score, skipped, weights, started, ended, seconds, r.tokens_per_s,"
        " memory_bytes, host, resumes, s.overrides, s.tokens, s.parameters, s.flops_per_token,"
        " s.training_bytes, s.cache_bytes_per_token, s.leaks"
        " FROM runs r JOIN variants s USING (variant) ORDER BY run";
    static const char metrics_sql[] =
        "SELECT (SELECT name FROM study) AS study, m.run, s.name AS name, r.learning_rate, r.seed,"
        " m.step, m.loss, m.cross_entropy, m.aux_z, m.aux_contrastive, m.logits_z, m.val_loss,"
        " m.metric_value, m.lr, m.grad_norm, m.tokens_per_s FROM metrics m"
        " JOIN runs r ON r.run = m.run JOIN variants s USING (variant) ORDER BY m.run, m.step";
    csv_file file = {.out = out};
    for (int i = 0; i < n; i++) {
        WEFT_AUTO(weft_database_close_at) weft_database *d = NULL;
        WEFT_TRY(weft_listing_open(paths[i], &d));
        WEFT_TRY(weft_listing_each(d, metrics ? metrics_sql : runs_sql, write_row, &file));
    }
    return WEFT_OK;
}
