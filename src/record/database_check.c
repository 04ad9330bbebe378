/* Rules as SQL: each selects a row that breaks it. */
#include "record/database_check.h"

#include "record/schema.h"

#include <stdio.h>
#include <string.h>

enum { SQL_ROOM = 4096, SHOWN = 80 };

typedef struct {
    const char *table, *key; /* what the row is called by */
    const char *column;
    const char *good; /* true of a value that is well */
    const char *must; /* the same in words: "must be ..." */
} rule;

/* A text is read to its end here, so that a longer one than the database's limit shows. */
#define TEXT(column) "(typeof(" column ") = 'text' AND length(" column ") <= 1000000)"
#define TEXT_OR_NULL(column) "(" column " IS NULL OR " TEXT(column) ")"
#define REAL(column) "typeof(" column ") IN ('real', 'null')"
#define COUNT(column) "(typeof(" column ") = 'integer' AND " column " >= 0)"
#define COUNT_OR_NULL(column) "(" column " IS NULL OR " COUNT(column) ")"
#define VARIANT_THERE(column)                                                                      \
    "(typeof(" column ") = 'integer' AND " column " IN (SELECT step FROM steps))"
#define RUN_THERE(column)                                                                          \
    "(typeof(" column ") = 'integer' AND " column " IN (SELECT run FROM runs))"

#define AND_REAL(column) " AND " REAL(column)
/* clang-format off */
#define METRICS_REAL                                                                               \
    AND_REAL("loss") AND_REAL("cross_entropy") AND_REAL("aux_z") AND_REAL("aux_contrastive")       \
    AND_REAL("logits_z") AND_REAL("val_loss") AND_REAL("metric_value") AND_REAL("lr")              \
    AND_REAL("grad_norm") AND_REAL("tokens_per_s")
/* clang-format on */
#define SOME_TEXT "text of at most a million letters"

static const rule rules[] = {
    {"study", "id", "name", TEXT("name"), SOME_TEXT},
    {"study", "id", "config", TEXT("config"), SOME_TEXT},
    {"study", "id", "seeds", TEXT("seeds"), SOME_TEXT},
    {"study", "id", "learning_rates", TEXT("learning_rates"), SOME_TEXT},
    {"study", "id", "equal", "equal IN ('iters', 'tokens', 'flops', 'time', 'parameters')",
     "a word of STUDY_EQUAL"},
    {"study", "id", "score", "score IN ('val_loss', 'train_loss', 'metric')",
     "a word of STUDY_SCORE"},
    {"study", "id", "tail", COUNT("tail") " AND tail <= 1000000000", "a whole number"},
    {"study", "id", "threads", COUNT_OR_NULL("threads"), "a whole number"},
    {"study", "id", "weft_version", TEXT_OR_NULL("weft_version"), SOME_TEXT},
    {"study", "id", "git_commit", TEXT_OR_NULL("git_commit"), SOME_TEXT},
    {"study", "id", "created", TEXT_OR_NULL("created"), SOME_TEXT},
    {"study", "id", "host", TEXT_OR_NULL("host"), SOME_TEXT},
    {"study", "id", "machine", TEXT_OR_NULL("machine"), SOME_TEXT},
    {"study", "id", "device", TEXT_OR_NULL("device"), SOME_TEXT},
    {"steps", "step", "step", "step BETWEEN 0 AND (SELECT count(*) FROM steps) - 1",
     "numbered from 0 without a gap"},
    {"steps", "step", "step", "step < 256", "below 256"},
    {"steps", "step", "name", TEXT("name"), SOME_TEXT},
    {"steps", "step", "title", TEXT("title"), SOME_TEXT},
    {"steps", "step", "overrides", TEXT("overrides"), SOME_TEXT},
    {"steps", "step", "error", TEXT_OR_NULL("error"), SOME_TEXT},
    {"steps", "step", "baseline", "baseline IS NULL OR " VARIANT_THERE("baseline"),
     "the number of a variant"},
    {"steps", "step", "repeats", "repeats IS NULL OR " VARIANT_THERE("repeats"),
     "the number of a variant"},
    {"steps", "step", "iters", COUNT_OR_NULL("iters"), "a whole number"},
    {"steps", "step", "tokens", COUNT_OR_NULL("tokens"), "a whole number"},
    {"steps", "step", "parameters", COUNT_OR_NULL("parameters"), "a whole number"},
    {"steps", "step", "training_bytes", COUNT_OR_NULL("training_bytes"), "a whole number"},
    {"steps", "step", "cache_bytes_per_token", COUNT_OR_NULL("cache_bytes_per_token"),
     "a whole number"},
    {"steps", "step", "flops_per_token", REAL("flops_per_token"), "a number"},
    {"steps", "step", "seconds_per_iter", REAL("seconds_per_iter"), "a number"},
    {"steps", "step", "leaks", "typeof(leaks) = 'integer' AND leaks IN (0, 1)", "0 or 1"},
    {"runs", "run", "run", "run >= 1", "above 0"},
    {"runs", "run", "step", VARIANT_THERE("step"), "the number of a variant"},
    {"runs", "run", "learning_rate",
     "typeof(learning_rate) = 'real' AND learning_rate BETWEEN 0 AND 1000",
     "a number from 0 to 1000"},
    {"runs", "run", "seed", COUNT("seed"), "a whole number from 0 on"},
    {"runs", "run", "folder",
     TEXT("folder") " AND substr(folder, 1, 5) = 'runs/' AND length(CAST(folder AS BLOB)) "
                    "BETWEEN 6"
                    " AND 159 AND instr(substr(folder, 6), '/') = 0 AND substr(folder, 6, 1) "
                    "<> '.'",
     "runs/ and a plain name"},
    {"runs", "run", "status", "status IN ('waiting', 'running', 'done', 'failed', 'diverged')",
     "waiting, running, done, failed or diverged"},
    {"runs", "run", "why", TEXT_OR_NULL("why"), SOME_TEXT},
    {"runs", "run", "config", TEXT("config"), SOME_TEXT},
    {"runs", "run", "metric", TEXT_OR_NULL("metric"), SOME_TEXT},
    {"runs", "run", "weights", TEXT_OR_NULL("weights"), SOME_TEXT},
    {"runs", "run", "started", TEXT_OR_NULL("started"), SOME_TEXT},
    {"runs", "run", "ended", TEXT_OR_NULL("ended"), SOME_TEXT},
    {"runs", "run", "host", TEXT_OR_NULL("host"), SOME_TEXT},
    {"runs", "run", "iters", COUNT("iters"), "a whole number"},
    {"runs", "run", "skipped", COUNT("skipped"), "a whole number"},
    {"runs", "run", "resumes", COUNT("resumes"), "a whole number"},
    {"runs", "run", "memory_bytes", COUNT_OR_NULL("memory_bytes"), "a whole number"},
    {"runs", "run", "val_loss", REAL("val_loss"), "a number"},
    {"runs", "run", "best_val_loss", REAL("best_val_loss"), "a number"},
    {"runs", "run", "train_loss", REAL("train_loss"), "a number"},
    {"runs", "run", "metric_value", REAL("metric_value"), "a number"},
    {"runs", "run", "score", REAL("score"), "a number"},
    {"runs", "run", "seconds", REAL("seconds"), "a number"},
    {"runs", "run", "tokens_per_s", REAL("tokens_per_s"), "a number"},
    {"metrics", "run", "run", RUN_THERE("run"), "the number of a run"},
    /* In one pass, since there are many rows. */
    {"metrics", "run", "step", COUNT("step") METRICS_REAL,
     "a whole number, and the columns beside it numbers"},
    {"events", "id", "run", "run IS NULL OR " RUN_THERE("run"), "the number of a run"},
    {"events", "id", "step", COUNT_OR_NULL("step"), "a whole number"},
    {"events", "id", "kind", TEXT("kind"), SOME_TEXT},
    {"events", "id", "detail", TEXT_OR_NULL("detail"), SOME_TEXT},
    {"events", "id", "at", TEXT_OR_NULL("at"), SOME_TEXT},
    {"facts", "run", "run", RUN_THERE("run"), "the number of a run"},
    {"facts", "run", "name", TEXT("name"), SOME_TEXT},
    {"facts", "run", "value", "typeof(value) IN ('integer', 'real') OR " TEXT_OR_NULL("value"),
     "a number, or " SOME_TEXT},
};

static weft_status refuse(const weft_database *d, const char *what) {
    return weft_fail(WEFT_EINPUT,
                     "%s: %s; it was not written by weft. Move it away, or take another "
                     "folder",
                     weft_database_path(d), what);
}

/* The question's first row, its columns as texts of at most SHOWN letters. */
static weft_status first_row(weft_database *d, const char *sql, bool *there, char *a, char *b) {
    sqlite3_stmt *rows;
    WEFT_TRY(weft_database_ask(d, &rows, sql, ""));
    weft_status status = weft_database_next(d, rows, there);
    if (status == WEFT_OK && *there) {
        snprintf(a, SHOWN + 1, "%s", weft_column_text(rows, 0));
        snprintf(b, SHOWN + 1, "%s", weft_column_text(rows, 1));
    }
    weft_database_end(rows);
    return status;
}

static weft_status check_rule(weft_database *d, const rule *r) {
    char sql[SQL_ROOM], what[SQL_ROOM], key[SHOWN + 1], value[SHOWN + 1];
    bool there;
    snprintf(sql, sizeof sql,
             "SELECT quote(%s), substr(quote(%s), 1, 60) FROM %s WHERE (%s) IS NOT TRUE LIMIT 1",
             r->key, r->column, r->table, r->good);
    WEFT_TRY(first_row(d, sql, &there, key, value));
    if (!there) return WEFT_OK;
    snprintf(what, sizeof what, "in %s with %s %s, %.40s is %s and must be %s", r->table, r->key,
             key, r->column, value, r->must);
    return refuse(d, what);
}

weft_status weft_database_check(weft_database *d, int64_t version) {
    int64_t studies;
    WEFT_TRY(weft_database_number(d, 0, &studies, "SELECT count(*) FROM study", ""));
    if (studies != 1)
        return weft_fail(WEFT_EINPUT, "%s: holds no study yet; 'weft study' puts it there",
                         weft_database_path(d));
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++)
        if (version > 1 || strcmp(rules[i].table, "facts") != 0) WEFT_TRY(check_rule(d, &rules[i]));
    return WEFT_OK;
}

static const char *const tables[] = {WEFT_SCHEMA_FIRST, WEFT_SCHEMA};
const weft_schema weft_runs_schema = {
    "database of runs", WEFT_SCHEMA_APPLICATION, WEFT_SCHEMA_OLDEST, WEFT_SCHEMA_VERSION, tables,
    WEFT_SCHEMA_UPDATE, weft_database_check};
