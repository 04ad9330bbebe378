/* The tables in SQLite's language, those of older versions, and what must hold of every value. */
#include "record/database.h"

enum { SQL_ROOM = 4096, SHOWN = 80 };

#define STUDY                                                                                      \
    "CREATE TABLE study("                                                                          \
    " id INTEGER PRIMARY KEY CHECK (id = 1),"                                                      \
    " schema INTEGER NOT NULL, name TEXT NOT NULL, config TEXT NOT NULL,"                          \
    " seeds TEXT NOT NULL, learning_rates TEXT NOT NULL, equal TEXT NOT NULL,"                     \
    " score TEXT NOT NULL, tail INTEGER NOT NULL,"                                                 \
    " weft_version TEXT, git_commit TEXT, created TEXT, host TEXT, machine TEXT,"                  \
    " threads INTEGER, device TEXT);"

#define VARIANTS(variants, variant)                                                                \
    "CREATE TABLE " variants "("                                                                   \
    " " variant " INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, baseline INTEGER,"               \
    " title TEXT NOT NULL, overrides TEXT NOT NULL, repeats INTEGER,"                              \
    " iters INTEGER, tokens INTEGER, parameters INTEGER, flops_per_token REAL,"                    \
    " training_bytes INTEGER, cache_bytes_per_token INTEGER,"                                      \
    " leaks INTEGER NOT NULL DEFAULT 0, seconds_per_iter REAL, error TEXT);"                       \
    "CREATE TABLE runs("                                                                           \
    " run INTEGER PRIMARY KEY, " variant " INTEGER NOT NULL REFERENCES " variants "(" variant ")," \
    " learning_rate REAL NOT NULL, seed INTEGER NOT NULL, folder TEXT NOT NULL,"                   \
    " status TEXT NOT NULL DEFAULT 'waiting'"                                                      \
    " CHECK (status IN ('waiting', 'running', 'done', 'failed', 'diverged')),"                     \
    " why TEXT, config TEXT NOT NULL, iters INTEGER NOT NULL DEFAULT 0,"                           \
    " val_loss REAL, best_val_loss REAL, train_loss REAL, metric TEXT, metric_value REAL,"         \
    " score REAL, skipped INTEGER NOT NULL DEFAULT 0, weights TEXT,"                               \
    " started TEXT, ended TEXT, seconds REAL, tokens_per_s REAL, memory_bytes INTEGER,"            \
    " host TEXT, resumes INTEGER NOT NULL DEFAULT 0,"                                              \
    " UNIQUE (" variant ", learning_rate, seed));"

#define METRICS                                                                                    \
    "CREATE TABLE metrics("                                                                        \
    " run INTEGER NOT NULL REFERENCES runs(run), step INTEGER NOT NULL,"                           \
    " loss REAL, cross_entropy REAL, aux_z REAL, aux_contrastive REAL, logits_z REAL,"             \
    " val_loss REAL, metric_value REAL, lr REAL, grad_norm REAL, tokens_per_s REAL,"               \
    " PRIMARY KEY (run, step)) WITHOUT ROWID;"                                                     \
    "CREATE TABLE events("                                                                         \
    " id INTEGER PRIMARY KEY, run INTEGER REFERENCES runs(run), step INTEGER,"                     \
    " kind TEXT NOT NULL, detail TEXT, at TEXT);"                                                  \
    "CREATE INDEX events_run ON events(run, kind);"

/* What a run's record says beside its results, by name. */
#define FACTS                                                                                      \
    "CREATE TABLE facts("                                                                          \
    " run INTEGER NOT NULL REFERENCES runs(run), name TEXT NOT NULL, value,"                       \
    " PRIMARY KEY (run, name)) WITHOUT ROWID;"

/* Parts in their order: study, program, variants, runs, metrics, events. quote() writes a real so that
 * it reads back as the same number. */
#define CONTENTS(temp, study, variants, variant)                                                   \
    "CREATE " temp "VIEW contents(part, key, value) AS"                                            \
    " SELECT part, key, value FROM ("                                                              \
    "  SELECT 0 AS place, 0 AS a, 0 AS b, 'study' AS part, name AS key,"                           \
    "   " study "seeds ' || seeds || ' learning_rates ' || learning_rates ||"                      \
    "   ' equal ' || equal || ' score ' || score || ' tail ' || tail || char(10) || config"        \
    "   AS value FROM study"                                                                       \
    "  UNION ALL SELECT 1, 0, 0, 'program', 'weft',"                                               \
    "   quote(weft_version) || ' ' || quote(git_commit) FROM study"                                \
    "  UNION ALL SELECT 2, " variant ", 0, '" variants                                             \
    "', name, 'baseline ' || quote(baseline) ||"                                                   \
    "   ' title ' || quote(title) || ' overrides ' || quote(overrides) || ' repeats ' ||"          \
    "   quote(repeats) || ' iters ' || quote(iters) || ' tokens ' || quote(tokens) ||"             \
    "   ' parameters ' || quote(parameters) || ' flops_per_token ' || quote(flops_per_token) ||"   \
    "   ' cache_bytes_per_token ' || quote(cache_bytes_per_token) || ' leaks ' || leaks ||"        \
    "   ' error ' || quote(error) FROM " variants                                                  \
    "  UNION ALL SELECT 3, run, 0, 'runs', folder, '" variant " ' || " variant                     \
    " || ' learning_rate ' ||"                                                                     \
    "   quote(learning_rate) || ' seed ' || seed || ' status ' || status || ' why ' ||"            \
    "   quote(why) || ' iters ' || iters || ' val_loss ' || quote(val_loss) ||"                    \
    "   ' best_val_loss ' || quote(best_val_loss) || ' train_loss ' || quote(train_loss) ||"       \
    "   ' metric ' || quote(metric) || ' metric_value ' || quote(metric_value) || ' score ' ||"    \
    "   quote(score) || ' skipped ' || skipped || ' weights ' || quote(weights) ||"                \
    "   ' config ' || config FROM runs"                                                            \
    "  UNION ALL SELECT 4, m.run, m.step, 'metrics', r.folder || ' ' || m.step,"                   \
    "   'loss ' || quote(m.loss) || ' cross_entropy ' || quote(m.cross_entropy) || ' aux_z ' ||"   \
    "   quote(m.aux_z) || ' aux_contrastive ' || quote(m.aux_contrastive) || ' logits_z ' ||"      \
    "   quote(m.logits_z) || ' val_loss ' || quote(m.val_loss) || ' metric_value ' ||"             \
    "   quote(m.metric_value) || ' lr ' || quote(m.lr) || ' grad_norm ' || quote(m.grad_norm)"     \
    "   FROM metrics m JOIN runs r ON r.run = m.run"                                               \
    "  UNION ALL SELECT 4, f.run, 1e9, 'facts', r.folder || ' ' || f.name, quote(f.value)"         \
    "   FROM facts f JOIN runs r ON r.run = f.run"                                                 \
    "   WHERE f.name LIKE 'loss_%' OR f.name LIKE '%_tokens' OR f.name = 'dataset_hash'"           \
    "  UNION ALL SELECT 5, ifnull(e.run, 0), ifnull(e.step, 0), 'events',"                         \
    "   ifnull(r.folder, 'study') || ' ' || ifnull(e.step, '-') || ' ' || e.kind,"                 \
    "   ifnull(e.detail, '') FROM events e LEFT JOIN runs r ON r.run = e.run"                      \
    "   WHERE e.kind NOT IN ('started', 'resumed', 'stopped', 'killed', 'failed'))"                \
    " ORDER BY place, a, b, key, value;"

/* The tables of today: version 3. `temp`: empty, or "TEMP ". */
#define NEW_VARIANTS VARIANTS("variants", "variant")
#define NEW_CONTENTS(temp) CONTENTS(temp, "'", "variants", "variant")
static const char tables[] =
    "PRAGMA application_id = 0x77656674;"
    "PRAGMA user_version = 3;" STUDY NEW_VARIANTS METRICS FACTS NEW_CONTENTS("");

/* Those of before: version 2 called variants steps. */
static const char tables_2[] = STUDY VARIANTS("steps", "step")
    METRICS FACTS CONTENTS("", "'schema ' || schema || ' ", "steps", "step");

/* How they are read: temporary views go before the file's tables. Their `*` has the old names too. */
static const char read_2[] =
    "CREATE TEMP VIEW variants AS SELECT step AS variant, * FROM main.steps;"
    "CREATE TEMP VIEW runs AS SELECT step AS variant, * FROM main.runs;" NEW_CONTENTS("TEMP ");

/* How they become today's. Tables are made anew: ALTER TABLE ... RENAME would leave other words in the
 * file than a new database has, and which ones depends on SQLite's version. */
static const char update_2[] =
    "DROP VIEW temp.contents; DROP VIEW temp.runs; DROP VIEW temp.variants;"
    "PRAGMA user_version = 3; UPDATE study SET schema = 3; DROP VIEW contents;"
    "CREATE TEMP TABLE kept AS SELECT * FROM runs; DROP TABLE runs;" NEW_VARIANTS
    "INSERT INTO variants SELECT * FROM steps; DROP TABLE steps;"
    "INSERT INTO runs SELECT * FROM kept; DROP TABLE kept;" NEW_CONTENTS("");

typedef struct {
    const char *table, *key; /* what the row is called by */
    const char *columns;     /* with blanks between them */
    const char *good;        /* true of a value v that is well */
    const char *must;        /* the same in words: "must be ..." */
} rule;

/* A text is read to its end here, so that a longer one than the database's limit shows. */
#define IS_TEXT "(typeof(v) = 'text' AND length(v) <= 1000000)"
#define SOME_TEXT "text of at most a million letters"
#define TEXT IS_TEXT, SOME_TEXT
#define TEXT_OR_NULL "v IS NULL OR " IS_TEXT, SOME_TEXT
#define REAL "typeof(v) IN ('real', 'null')", "a number"
#define IS_COUNT "(typeof(v) = 'integer' AND v >= 0)"
#define COUNT IS_COUNT, "a whole number"
#define COUNT_OR_NULL "v IS NULL OR " IS_COUNT, "a whole number"
#define IS_VARIANT "(typeof(v) = 'integer' AND v IN (SELECT variant FROM variants))"
#define IS_RUN "(typeof(v) = 'integer' AND v IN (SELECT run FROM runs))"
#define AND_REAL(column) " AND typeof(" column ") IN ('real', 'null')"

static const rule rules[] = {
    {"study", "id", "name config seeds learning_rates", TEXT},
    {"study", "id", "equal", "v IN ('iters', 'tokens', 'flops', 'time', 'parameters')",
     "a word of STUDY_EQUAL"},
    {"study", "id", "score", "v IN ('val_loss', 'train_loss', 'metric')", "a word of STUDY_SCORE"},
    {"study", "id", "tail", IS_COUNT " AND v <= 1000000000", "a whole number"},
    {"study", "id", "threads", COUNT_OR_NULL},
    {"study", "id", "weft_version git_commit created host machine device", TEXT_OR_NULL},
    {"variants", "variant", "variant", "v BETWEEN 0 AND (SELECT count(*) FROM variants) - 1",
     "numbered from 0 without a gap"},
    {"variants", "variant", "variant", "v < 256", "below 256"},
    {"variants", "variant", "name title overrides", TEXT},
    {"variants", "variant", "error", TEXT_OR_NULL},
    {"variants", "variant", "baseline repeats", "v IS NULL OR " IS_VARIANT,
     "the number of a variant"},
    {"variants", "variant", "iters tokens parameters training_bytes cache_bytes_per_token",
     COUNT_OR_NULL},
    {"variants", "variant", "flops_per_token seconds_per_iter", REAL},
    {"variants", "variant", "leaks", "typeof(v) = 'integer' AND v IN (0, 1)", "0 or 1"},
    {"runs", "run", "run", "v >= 1", "above 0"},
    {"runs", "run", "variant", IS_VARIANT, "the number of a variant"},
    {"runs", "run", "learning_rate", "typeof(v) = 'real' AND v BETWEEN 0 AND 1000",
     "a number from 0 to 1000"},
    {"runs", "run", "seed", IS_COUNT, "a whole number from 0 on"},
    {"runs", "run", "folder",
     IS_TEXT " AND substr(v, 1, 5) = 'runs/' AND length(CAST(v AS BLOB)) BETWEEN 6 AND 159"
             " AND instr(substr(v, 6), '/') = 0 AND substr(v, 6, 1) <> '.'",
     "runs/ and a plain name"},
    {"runs", "run", "status", "v IN ('waiting', 'running', 'done', 'failed', 'diverged')",
     "waiting, running, done, failed or diverged"},
    {"runs", "run", "config", TEXT},
    {"runs", "run", "why metric weights started ended host", TEXT_OR_NULL},
    {"runs", "run", "iters skipped resumes", COUNT},
    {"runs", "run", "memory_bytes", COUNT_OR_NULL},
    {"runs", "run", "val_loss best_val_loss train_loss metric_value score seconds tokens_per_s",
     REAL},
    {"metrics", "run", "run", IS_RUN, "the number of a run"},
    /* In one pass, since there are many rows. */
    {"metrics", "run", "step",
     IS_COUNT AND_REAL("loss") AND_REAL("cross_entropy") AND_REAL("aux_z")
         AND_REAL("aux_contrastive") AND_REAL("logits_z") AND_REAL("val_loss")
             AND_REAL("metric_value") AND_REAL("lr") AND_REAL("grad_norm") AND_REAL("tokens_per_s"),
     "a whole number, and the columns beside it numbers"},
    {"events", "id", "run", "v IS NULL OR " IS_RUN, "the number of a run"},
    {"events", "id", "step", COUNT_OR_NULL},
    {"events", "id", "kind", TEXT},
    {"events", "id", "detail at", TEXT_OR_NULL},
    {"facts", "run", "run", IS_RUN, "the number of a run"},
    {"facts", "run", "name", TEXT},
    {"facts", "run", "value", "v IS NULL OR typeof(v) IN ('integer', 'real') OR " IS_TEXT,
     "a number, or " SOME_TEXT},
};

static weft_status check_values(weft_database *d) {
    int64_t studies;
    WEFT_TRY(weft_database_number(d, 0, &studies, "SELECT count(*) FROM study", ""));
    if (studies != 1)
        return WEFT_BAD_INPUT("%s: holds no study yet; 'weft study' puts it there",
                              weft_database_path(d));
    for (const rule *r = rules; r < rules + WEFT_COUNT(rules); r++) {
        char columns[128], *rest = columns, *column, sql[SQL_ROOM];
        snprintf(columns, sizeof columns, "%s", r->columns);
        while ((column = strsep(&rest, " "))) {
            snprintf(sql, sizeof sql,
                     "SELECT quote(%s), substr(quote(v), 1, 60) FROM (SELECT *, %s AS v FROM %s)"
                     " WHERE (%s) IS NOT TRUE LIMIT 1",
                     r->key, column, r->table, r->good);
            EACH_ROW(rows, d, sql)
                weft_database_break(
                    d, WEFT_BAD_INPUT("%s: in %s with %s %.*s, %.40s is %s and must be %s; it was "
                                      "not written by weft. Move it away, or take another folder",
                                      weft_database_path(d), r->table, r->key, SHOWN,
                                      weft_column_text(rows, 0), column, weft_column_text(rows, 1),
                                      r->must));
            WEFT_TRY(weft_database_end(d));
        }
    }
    return WEFT_OK;
}

static const weft_schema_version versions[] = {{tables_2, read_2, update_2}, {.tables = tables}};
const weft_schema weft_runs_schema = {.what = "database of runs",
                                      .application = 0x77656674,
                                      .oldest = 2,
                                      .newest = WEFT_SCHEMA_VERSION,
                                      .versions = versions,
                                      .check = check_values};
