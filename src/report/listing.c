/* Tables, JSON and CSV out of a database; two variants of a study, and two databases of one study. */
#include "report/report.h"

#include "base/json.h"
#include "base/text.h"
#include "report/sections.h"
#include "study/study.h"

#include <math.h>

enum { ROWS_SHOWN = 5, BEFORE = 40, AROUND = 160 };

static void print_number(FILE *out, int width, int digits, double value) {
    if (isfinite(value))
        fprintf(out, " %*.*f", width, digits, value);
    else
        fprintf(out, " %*s", width, "-");
}

static bool is_baseline(const weft_report_variant *v) {
    EACH_VARIANT(other, v->study)
        if (other->baseline == v) return true;
    return false;
}

/* What the runs say together: a variant's mean at its rate, and its difference to its baseline. */
static void print_variants(const weft_report_data *d, FILE *out) {
    fprintf(out, "\n%-16s %9s %5s %9s %9s  %s\n", "variant", "lr", "runs", "mean", "sd",
            "difference and its 95% interval");
    EACH_VARIANT(v, d) {
        char rate[32] = "-";
        if (isfinite(v->rate)) weft_number_format(v->rate, rate, sizeof rate);
        fprintf(out, "%-16s %9s %5d", weft_shown(v->name), rate, v->done);
        print_number(out, 9, 4, v->mean);
        print_number(out, 9, 4, v->sd);
        if (v->baseline) {
            const weft_comparison *c = &v->compared;
            fprintf(out, "  ");
            if (isfinite(c->mean)) fprintf(out, "%+.4f ", c->mean);
            if (isfinite(c->low)) fprintf(out, "(%+.4f to %+.4f) ", c->low, c->high);
            fprintf(out, "against %s: %s", weft_shown(v->baseline->name),
                    c->pairs < 2 && c->verdict == WEFT_NO_DIFFERENCE ? v->why
                                                                     : weft_say_verdict(v));
        } else if (!is_baseline(v)) {
            fprintf(out, "  nothing to compare with");
        }
        fprintf(out, "\n");
    }
}

weft_status weft_listing_table(const char *path, FILE *out) {
    WEFT_AUTO(weft_report_free) weft_report_data d = {0};
    int done = 0;
    WEFT_TRY(weft_report_read(path, &d));
    EACH_RUN(run, &d)
        done += strcmp(run->status, "done") == 0;
    fprintf(out, "%s: %d of %d runs done, equal %s, scored by %s, made %s\n", weft_shown(d.name),
            done, d.n_runs, weft_shown(d.equal), weft_shown(d.score), weft_shown(d.created));
    /* "variant 1: Gate": what the numbers of an ablation mean. */
    EACH_VARIANT(v, &d)
        if (*v->title && strcmp(v->title, v->name) != 0)
            fprintf(out, "variant %s: %s\n", weft_shown(v->name), weft_shown(v->title));
    fprintf(out, "%4s %-16s %9s %6s %-8s %8s %9s %9s %9s %9s %8s\n", "run", "variant", "lr", "seed",
            "status", "iters", "val_loss", "score", "seconds", "tokens/s", "MiB");
    EACH_ROW(rows, d.database,
             "SELECT run, name, learning_rate, seed, status, runs.iters,"
             " val_loss, score, seconds, tokens_per_s, memory_bytes, why"
             " FROM runs JOIN variants USING (variant) ORDER BY run") {
        char rate[32];
        weft_number_format(sqlite3_column_double(rows, 2), rate, sizeof rate);
        fprintf(out, "%4lld %-16s %9s %6lld %-8s %8lld", (long long)sqlite3_column_int64(rows, 0),
                weft_column_shown(rows, 1), rate, (long long)sqlite3_column_int64(rows, 3),
                weft_column_shown(rows, 4), (long long)sqlite3_column_int64(rows, 5));
        print_number(out, 9, 4, weft_column_number(rows, 6));
        print_number(out, 9, 4, weft_column_number(rows, 7));
        print_number(out, 9, 1, weft_column_number(rows, 8));
        print_number(out, 9, 0, weft_column_number(rows, 9));
        print_number(out, 8, 1, weft_column_number(rows, 10) / (1024.0 * 1024.0));
        fprintf(out, "%s%s\n", *weft_column_text(rows, 11) ? "  " : "",
                weft_column_shown(rows, 11));
    }
    if (d.n_variants > 1) print_variants(&d, out);
    return weft_database_end(d.database);
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

weft_status weft_listing_json(const char *path, json_t **object) {
    static const char *const parts[][2] = {
        {"study", "SELECT * FROM study"},
        {"steps", "SELECT *, variant AS step FROM variants ORDER BY variant"},
        {"runs", "SELECT *, variant AS step FROM runs ORDER BY run"}};
    WEFT_AUTO(weft_database_close_at) weft_database *d = NULL;
    WEFT_AUTO_DECREF json_t *all = weft_json_make("path:s", path);
    *object = NULL;
    if (!all) return weft_no_memory("runs");
    WEFT_TRY(weft_listing_open(path, &d));
    for (int i = 0; i < 3; i++) {
        WEFT_AUTO_DECREF json_t *list = json_array();
        EACH_ROW(rows, d, parts[i][1])
            json_array_append_new(list, row_object(rows));
        WEFT_TRY(weft_database_end(d));
        json_object_set(all, parts[i][0], i == 0 ? json_array_get(list, 0) : list);
    }
    return weft_hand(&all, object);
}

/* Quoted where it must be; a quote inside is doubled. A letter that a terminal would obey is escaped; lines' ends and
 * tabs are a table's own. */
static void write_field(FILE *out, const char *text) {
    bool quoted = strpbrk(text, ",\"\r\n");
    if (quoted) fputc('"', out);
    for (int bytes; *text; text += bytes) {
        int n = weft_utf8_length(text);
        bool plain = strchr("\r\n\t", *text) || (n && !weft_utf8_is_control(text, n));
        bytes = n ? n : 1;
        if (*text == '"') fputc('"', out);
        if (plain) fwrite(text, 1, (size_t)bytes, out);
        for (int i = 0; !plain && i < bytes; i++)
            fprintf(out, "\\x%02x", (unsigned)(unsigned char)text[i]);
    }
    if (quoted) fputc('"', out);
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
    bool headed = false;
    for (int i = 0; i < n; i++) {
        WEFT_AUTO(weft_database_close_at) weft_database *d = NULL;
        WEFT_TRY(weft_listing_open(paths[i], &d));
        EACH_ROW(rows, d, metrics ? metrics_sql : runs_sql) {
            int columns = sqlite3_column_count(rows);
            for (int k = 0; !headed && k < columns; k++)
                fprintf(out, "%s%s", k ? "," : "", sqlite3_column_name(rows, k));
            if (!headed) fputs("\r\n", out);
            headed = true;
            for (int k = 0; k < columns; k++) {
                char number[32];
                if (k) fputc(',', out);
                if (sqlite3_column_type(rows, k) == SQLITE_FLOAT) {
                    weft_number_format(sqlite3_column_double(rows, k), number, sizeof number);
                    fputs(number, out);
                } else {
                    write_field(out, weft_column_text(rows, k));
                }
            }
            fputs("\r\n", out);
        }
        WEFT_TRY(weft_database_end(d));
    }
    return WEFT_OK;
}

static weft_status find_variant(const weft_report_data *d, const char *name,
                                const weft_report_variant **out) {
    const char *names = "";
    EACH_VARIANT(v, d) {
        *out = v;
        if (strcmp(v->name, name) == 0) return WEFT_OK;
        names = weft_say("%s%s%s", names, v->place ? ", " : "", v->name);
    }
    return WEFT_BAD_INPUT("%s: there is no variant '%s'; there are: %s", d->path, name, names);
}

/* The config of any run of a variant; NULL: it has none. */
static json_t *config_of(const weft_report_variant *v) {
    EACH_RUN_OF(run, v)
        return weft_config_kept(run->config);
    return NULL;
}

/* {"n_ffn": [a, b], ...}: keys that differ, but for rate and seed, which runs vary. */
static json_t *config_differences(const weft_report_variant *a, const weft_report_variant *b) {
    WEFT_AUTO_DECREF json_t *one = config_of(a), *two = config_of(b);
    json_t *all = json_object();
    EACH_MEMBER(own, one) {
        json_t *other = json_object_get(two, own.key);
        if (!other || json_equal(own.value, other) || strcmp(own.key, "seed") == 0 ||
            strcmp(own.key, "learning_rate") == 0)
            continue;
        json_object_set_new(all, own.key, json_pack("[O, O]", own.value, other));
    }
    return all;
}

static const char *text_of(const json_t *object, const char *key) {
    return weft_shown(weft_json_text_of(object, key));
}

/* Two scores and their difference, in columns. */
static void print_pair(FILE *out, const char *what, const json_t *row) {
    fprintf(out, "  %-28s %14.5f %14.5f %+14.5f", what, weft_json_number_of(row, "a"),
            weft_json_number_of(row, "b"), weft_json_number_of(row, "difference"));
}

static void print_interval(FILE *out, const json_t *object) {
    if (json_is_number(json_object_get(object, "low")))
        fprintf(out, "  95%% interval %+.5f to %+.5f", weft_json_number_of(object, "low"),
                weft_json_number_of(object, "high"));
}

static void print_comparison(FILE *out, const json_t *object) {
    fprintf(out, "config\n");
    EACH_MEMBER(option, json_object_get(object, "config")) {
        WEFT_AUTO_FREE char *a = json_dumps(json_array_get(option.value, 0), JSON_ENCODE_ANY);
        WEFT_AUTO_FREE char *b = json_dumps(json_array_get(option.value, 1), JSON_ENCODE_ANY);
        fprintf(out, "  %-28s %14s %14s\n", weft_shown(option.key), weft_shown(a ? a : ""),
                weft_shown(b ? b : ""));
    }
    fprintf(out, "%-30s %14s %14s %14s\n", text_of(object, "score"), text_of(object, "a"),
            text_of(object, "b"), "difference");
    fprintf(out, "  %-28s %14g %14g\n", "learning rate",
            json_number_value(json_object_get(object, "rate_a")),
            json_number_value(json_object_get(object, "rate_b")));
    EACH_ITEM(pair, json_object_get(object, "pairs")) {
        long long seed = json_integer_value(json_object_get(pair.value, "seed"));
        print_pair(out, weft_say("seed %lld", seed), pair.value);
        fprintf(out, "\n");
    }
    if (json_is_number(json_object_get(object, "mean_difference"))) {
        fprintf(out, "  %-58s %+14.5f", "mean", weft_json_number_of(object, "mean_difference"));
        print_interval(out, object);
        fprintf(out, "\n");
    }
    const char *why = text_of(object, "why");
    fprintf(out, "%s against %s: %s%s%s\n", text_of(object, "b"), text_of(object, "a"),
            text_of(object, "verdict"), *why ? "; " : "", why);
    EACH_ITEM(range, json_object_get(object, "loss_by_position")) {
        const json_t *row = range.value;
        long long first = json_integer_value(json_object_get(row, "first"));
        long long last = json_integer_value(json_object_get(row, "last"));
        print_pair(
            out, weft_say(first == last ? "position %lld" : "positions %lld to %lld", first, last),
            row);
        print_interval(out, row);
        fprintf(out, "\n");
    }
}

weft_status weft_listing_compare(const char *path, const char *a, const char *b, FILE *out,
                                 json_t **object) {
    WEFT_AUTO(weft_report_free) weft_report_data d = {0};
    const weft_report_variant *one, *two;
    weft_comparison c;
    const char *why;
    if (object) *object = NULL;
    WEFT_TRY(weft_report_read(path, &d));
    WEFT_TRY(find_variant(&d, a, &one));
    WEFT_TRY(find_variant(&d, b, &two));
    WEFT_TRY(weft_report_compare(two, one, &c, &why));
    json_t *positions = json_array(), *pairs = json_array();
    EACH_PAIR(pair, two, one) { /* the scores by seed, both at their best rate */
        if (!pair.counts) continue;
        double x = pair.baseline->score, y = pair.variant->score;
        weft_json_append(pairs, "seed:I a:f b:f difference:f", pair.seed, x, y, y - x);
    }
    WEFT_AUTO_DECREF json_t *made = weft_json_make(
        "a:s b:s score:s rate_a:f rate_b:f config:o pairs:o mean_difference:f low:f high:f p:f "
        "counted:i verdict:s why:s loss_by_position:o",
        a, b, d.score, one->rate, two->rate, config_differences(one, two), pairs, c.mean, c.low,
        c.high, weft_comparison_p(&c), c.pairs, weft_comparison_word(&c), why, positions);
    if (!made) return weft_no_memory("runs");
    /* The loss by position, where the runs' records have it. */
    EACH_RANGE(r, &d) {
        WEFT_TRY(weft_report_compare_seeds(two, one, r->name, false, &c));
        if (c.pairs > 0)
            weft_json_append(positions, "first:I last:I a:f b:f difference:f low:f high:f",
                             r->first, r->last, c.baseline, c.variant, c.mean, c.low, c.high);
    }
    if (out) print_comparison(out, made);
    if (object) *object = weft_steal(&made);
    return WEFT_OK;
}

/* A line's beginning. */
static const char *line_part(const char *text) {
    size_t n = strcspn(text, "\n");
    return weft_shown(weft_say("%.*s", n < AROUND ? (int)n : AROUND, text));
}

/* What a database holds, as a temporary table of `d`. */
static weft_status copy_contents(weft_database *from, weft_database *d, const char *table) {
    WEFT_TRY(weft_database_script(d, weft_say("CREATE TEMP TABLE %s(part, key, value);"
                                              "CREATE INDEX temp.%s_key ON %s(part, key)",
                                              table, table, table)));
    weft_status status = WEFT_OK;
    EACH_ROW(rows, from, "SELECT * FROM contents")
        if (status == WEFT_OK)
            status = weft_database_run(d, weft_say("INSERT INTO %s VALUES (?, ?, ?)", table), "sss",
                                       weft_column_text(rows, 0), weft_column_text(rows, 1),
                                       sqlite3_column_text(rows, 2));
    WEFT_TRY(weft_database_end(from));
    return status;
}

weft_status weft_listing_diff(const char *a, const char *b, FILE *out, bool *same) {
    WEFT_AUTO(weft_database_close_at) weft_database *d = NULL, *other = NULL;
    int shown = 0;
    *same = false;
    WEFT_TRY(weft_listing_open(a, &d));
    WEFT_TRY(weft_listing_open(b, &other));
    WEFT_TRY(copy_contents(d, d, "here"));
    WEFT_TRY(copy_contents(other, d, "there"));
    /* A commit is mentioned and not counted. */
    EACH_ROW(rows, d,
             "SELECT a.value, b.value FROM here a JOIN there b USING (part)"
             " WHERE part = 'program' AND a.value <> b.value")
        fprintf(out, "note: written by %s here and by %s there\n", weft_column_shown(rows, 0),
                weft_column_shown(rows, 1));
    WEFT_TRY(weft_database_end(d));
    WEFT_TRY(weft_database_script(d, "DELETE FROM here WHERE part = 'program';"
                                     "DELETE FROM there WHERE part = 'program'"));
    EACH_ROW(rows, d,
             "SELECT h.part, h.key, ifnull(h.value, '(nothing)'), ifnull(t.value, '(nothing)')"
             " FROM here h LEFT JOIN there t"
             " ON t.part = h.part AND t.key = h.key WHERE NOT EXISTS (SELECT 1 FROM there s"
             " WHERE s.part = h.part AND s.key = h.key AND s.value IS h.value)"
             " UNION ALL SELECT t.part, t.key, '(nothing)', t.value FROM there t WHERE NOT EXISTS"
             " (SELECT 1 FROM here h WHERE h.part = t.part AND h.key = t.key)") {
        if (shown++ >= ROWS_SHOWN) continue;
        fprintf(out, "%s %s\n", weft_column_shown(rows, 0), weft_column_shown(rows, 1));
        /* Where two texts part, with a little before it. */
        const char *one = weft_column_text(rows, 2);
        const char *two = weft_column_text(rows, 3);
        size_t at = 0;
        while (one[at] && one[at] == two[at])
            at++;
        size_t from = at > BEFORE ? at - BEFORE : 0;
        for (size_t i = from; i < at; i++)
            if (one[i] == '\n') from = i + 1; /* a text of lines: the one that differs */
        const char *dots = from ? "..." : "";
        fprintf(out, "  here   %s%s\n", dots, line_part(one + from));
        fprintf(out, "  there  %s%s\n", dots, line_part(two + from));
    }
    WEFT_TRY(weft_database_end(d));
    int64_t here, there;
    WEFT_TRY(weft_database_number(d, 0, &here, "SELECT count(*) FROM here", ""));
    WEFT_TRY(weft_database_number(d, 0, &there, "SELECT count(*) FROM there", ""));
    if (shown > ROWS_SHOWN) fprintf(out, "and %d more rows\n", shown - ROWS_SHOWN);
    *same = shown == 0 && here == there;
    if (here != there)
        fprintf(out, "%lld rows here and %lld there\n", (long long)here, (long long)there);
    return WEFT_OK;
}
