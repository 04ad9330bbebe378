/* The run database's tables, in SQLite's language. docs/guide/studies.md tells what each column holds.
 *
 * The view `contents` is what a study says of itself: everything but time, speed, memory, the
 * machine, and the events of starting and going on. It has one text row a fact and an order of its
 * own, so two databases hold the same study where it gives the same rows. */
#ifndef WEFT_RECORD_SCHEMA_H
#define WEFT_RECORD_SCHEMA_H

enum {
    WEFT_SCHEMA_VERSION = 2,
    WEFT_SCHEMA_OLDEST = 1, /* without facts; brought up to date when it is opened to write */
    WEFT_SCHEMA_APPLICATION = 0x77656674 /* "weft": what the file's header says it is */
};

/* Statements that make an empty database; run them in one transaction. */
#define WEFT_SCHEMA                                                                                \
    "PRAGMA application_id = 0x77656674;"                                                          \
    "PRAGMA user_version = 2;" WEFT_SCHEMA_TABLES WEFT_SCHEMA_FACTS WEFT_SCHEMA_VIEW

#define WEFT_SCHEMA_TABLES                                                                         \
    "CREATE TABLE study("                                                                          \
    " id INTEGER PRIMARY KEY CHECK (id = 1),"                                                      \
    " schema INTEGER NOT NULL, name TEXT NOT NULL, config TEXT NOT NULL,"                          \
    " seeds TEXT NOT NULL, learning_rates TEXT NOT NULL, equal TEXT NOT NULL,"                     \
    " score TEXT NOT NULL, tail INTEGER NOT NULL,"                                                 \
    " weft_version TEXT, git_commit TEXT, created TEXT, host TEXT, machine TEXT,"                  \
    " threads INTEGER, device TEXT);"                                                              \
    "CREATE TABLE steps("                                                                          \
    " step INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, baseline INTEGER,"                      \
    " title TEXT NOT NULL, overrides TEXT NOT NULL, repeats INTEGER,"                              \
    " iters INTEGER, tokens INTEGER, parameters INTEGER, flops_per_token REAL,"                    \
    " training_bytes INTEGER, cache_bytes_per_token INTEGER,"                                      \
    " leaks INTEGER NOT NULL DEFAULT 0, seconds_per_iter REAL, error TEXT);"                       \
    "CREATE TABLE runs("                                                                           \
    " run INTEGER PRIMARY KEY, step INTEGER NOT NULL REFERENCES steps(step),"                      \
    " learning_rate REAL NOT NULL, seed INTEGER NOT NULL, folder TEXT NOT NULL,"                   \
    " status TEXT NOT NULL DEFAULT 'waiting'"                                                      \
    " CHECK (status IN ('waiting', 'running', 'done', 'failed', 'diverged')),"                     \
    " why TEXT, config TEXT NOT NULL, iters INTEGER NOT NULL DEFAULT 0,"                           \
    " val_loss REAL, best_val_loss REAL, train_loss REAL, metric TEXT, metric_value REAL,"         \
    " score REAL, skipped INTEGER NOT NULL DEFAULT 0, weights TEXT,"                               \
    " started TEXT, ended TEXT, seconds REAL, tokens_per_s REAL, memory_bytes INTEGER,"            \
    " host TEXT, resumes INTEGER NOT NULL DEFAULT 0,"                                              \
    " UNIQUE (step, learning_rate, seed));"                                                        \
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
#define WEFT_SCHEMA_FACTS                                                                          \
    "CREATE TABLE facts("                                                                          \
    " run INTEGER NOT NULL REFERENCES runs(run), name TEXT NOT NULL, value,"                       \
    " PRIMARY KEY (run, name)) WITHOUT ROWID;"

/* The tables of version 1, for holding one against. */
#define WEFT_SCHEMA_FIRST WEFT_SCHEMA_TABLES WEFT_SCHEMA_VIEW_WITH("")

/* From version 1. */
#define WEFT_SCHEMA_UPDATE                                                                         \
    "PRAGMA user_version = 2; UPDATE study SET schema = 2; DROP VIEW contents;" WEFT_SCHEMA_FACTS  \
        WEFT_SCHEMA_VIEW

/* Parts in their order: study, program, variants, runs, metrics, events. quote() writes a real so that
 * it reads back as the same number. */
#define WEFT_SCHEMA_VIEW                                                                           \
    WEFT_SCHEMA_VIEW_WITH("  UNION ALL SELECT 4, f.run, 1e9, 'facts', r.folder || ' ' || f.name,"  \
                          " quote(f.value)"                                                        \
                          "   FROM facts f JOIN runs r ON r.run = f.run"                           \
                          "   WHERE f.name LIKE 'loss_%' OR f.name LIKE '%_tokens'"                \
                          " OR f.name = 'dataset_hash'")

#define WEFT_SCHEMA_VIEW_WITH(facts)                                                               \
    "CREATE VIEW contents(part, key, value) AS"                                                    \
    " SELECT part, key, value FROM ("                                                              \
    "  SELECT 0 AS place, 0 AS a, 0 AS b, 'study' AS part, name AS key,"                           \
    "   'schema ' || schema || ' seeds ' || seeds || ' learning_rates ' || learning_rates ||"      \
    "   ' equal ' || equal || ' score ' || score || ' tail ' || tail || char(10) || config"        \
    "   AS value FROM study"                                                                       \
    "  UNION ALL SELECT 1, 0, 0, 'program', 'weft',"                                               \
    "   quote(weft_version) || ' ' || quote(git_commit) FROM study"                                \
    "  UNION ALL SELECT 2, step, 0, 'steps', name, 'baseline ' || quote(baseline) ||"              \
    "   ' title ' || quote(title) || ' overrides ' || quote(overrides) || ' repeats ' ||"          \
    "   quote(repeats) || ' iters ' || quote(iters) || ' tokens ' || quote(tokens) ||"             \
    "   ' parameters ' || quote(parameters) || ' flops_per_token ' || quote(flops_per_token) ||"   \
    "   ' cache_bytes_per_token ' || quote(cache_bytes_per_token) || ' leaks ' || leaks ||"        \
    "   ' error ' || quote(error) FROM steps"                                                      \
    "  UNION ALL SELECT 3, run, 0, 'runs', folder, 'step ' || step || ' learning_rate ' ||"        \
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
    "   FROM metrics m JOIN runs r ON r.run = m.run" facts                                         \
    "  UNION ALL SELECT 5, ifnull(e.run, 0), ifnull(e.step, 0), 'events',"                         \
    "   ifnull(r.folder, 'study') || ' ' || ifnull(e.step, '-') || ' ' || e.kind,"                 \
    "   ifnull(e.detail, '') FROM events e LEFT JOIN runs r ON r.run = e.run"                      \
    "   WHERE e.kind NOT IN ('started', 'resumed', 'stopped', 'killed', 'failed'))"                \
    " ORDER BY place, a, b, key, value;"

#endif
