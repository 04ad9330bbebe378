/* The tables of runs and of their lines as CSV, read back by Python. */
#include "report/report.h"
#include "support/command.h"
#include "support/study_database.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>

#define TITLE "a \"quoted\", long\ntitle"

/* The header once, then the rows of the database, twice: every field is what the database has. */
static const char reader[] =
    "import csv, sqlite3, sys\n"
    "rows = list(csv.DictReader(open(sys.argv[2], newline='')))\n"
    "db = sqlite3.connect(sys.argv[1])\n"
    "db.row_factory = sqlite3.Row\n"
    "wanted = db.execute(sys.argv[3]).fetchall() * 2\n"
    "assert len(rows) == len(wanted) > 2, len(rows)\n"
    "for row, of in zip(rows, wanted):\n"
    "    assert None not in row and row['study'] == 'listed', row\n"
    "    for key in of.keys():\n"
    "        value = row[key]\n"
    "        value = float(value) if type(of[key]) is float else value\n"
    "        assert value == (of[key] if type(of[key]) is float else str(of[key] or '')), (key, "
    "value)\n"
    "assert open(sys.argv[2], 'rb').read().count(b'\\r\\n') == len(rows) + 1\n";

static void expect_rows(const char *path, bool metrics, const char *sql) {
    const char *csv = scratch_path("table.csv"), *script = scratch_path("reader.py");
    const char *paths[] = {path, path};
    FILE *out = fopen(csv, "w");
    assert_non_null(out);
    assert_int_equal(weft_listing_csv(paths, 2, metrics, out), WEFT_OK);
    assert_int_equal(fclose(out), 0);
    file_write(script, reader, sizeof reader - 1);
    shell_succeeds("python3 '%s' '%s' '%s' \"%s\"", script, path, csv, sql);
}

TEST(test_tables_of_runs_and_lines_are_read_back) {
    char path[512];
    snprintf(path, sizeof path, "%s", scratch_path("runs.db"));
    sqlite3 *db = study_open(path, "listed", "val_loss");
    study_variant(db, 0, "plain", "", -1, -1);
    study_variant(db, 1, "other", TITLE, 0, -1);
    study_run(db, 0, 1e-3, 1, 2.0625, "a");
    study_run(db, 1, 3e-3, 2, 1.9, "b");
    study_run_ended(db, 1, 1e-2, 2, "diverged", "NaN");
    study_close(db);
    expect_rows(path, false,
                "SELECT run, v.name AS step, title, learning_rate, seed, folder, status, score,"
                " started, r.tokens_per_s, memory_bytes, parameters"
                " FROM runs r JOIN variants v USING (variant) ORDER BY run");
    expect_rows(path, true,
                "SELECT m.run, v.name, learning_rate, m.step, m.loss, m.val_loss, m.lr"
                " FROM metrics m JOIN runs r ON r.run = m.run JOIN variants v USING (variant)"
                " ORDER BY m.run, m.step");
}

RUN_TESTS(scratch_setup, scratch_teardown)
