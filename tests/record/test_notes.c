/* Notes of runs: kept whole, and in nothing that weft did not make. What lies under their name and
 * beside it is input. */
#include "record/watched.h"
#include "support/command.h"
#include "support/study_database.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TABLE                                                                                      \
    "CREATE TABLE notes(run TEXT PRIMARY KEY, note TEXT NOT NULL, tags TEXT NOT NULL) WITHOUT "    \
    "ROWID"

static char folder[256], database[300];

/* A new notes.db by these statements. */
static void make(const char *sql) {
    sqlite3 *db;
    shell_succeeds("rm -rf '%s' && mkdir '%s'", folder, folder);
    assert_int_equal(sqlite3_open(database, &db), SQLITE_OK);
    study_sql(db, "%s", sql);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

/* It is refused in a line that says so, when it is there at the start and when the first note comes;
 * and the file `kept` is as it was. */
static void expect_refused(const char *word, const char *kept) {
    weft_notes *notes;
    size_t n, m;
    char *before = file_read(kept, &n);
    alarm(60 * (unsigned)command_patience());
    assert_int_equal(weft_notes_open(folder, &notes), WEFT_EINPUT);
    alarm(0);
    if (!strstr(weft_error_message(), word) || !strstr(weft_error_message(), "notes.db"))
        fail_msg("'%s' does not say '%s'", weft_error_message(), word);
    char *after = file_read(kept, &m);
    assert_int_equal(n, m);
    assert_memory_equal(before, after, n);
    free(before);
    free(after);
}

TEST(test_what_is_not_wefts_is_refused_and_left_alone) {
    static const struct {
        const char *sql, *word;
    } cases[] = {
        {"CREATE TABLE mine(x); INSERT INTO mine VALUES(1)", "another program"},
        {TABLE, "another program"},
        {"PRAGMA application_id = 0x77656674; " TABLE, "another program"},
        {"PRAGMA application_id = 0x77656e6f; PRAGMA user_version = 3; " TABLE, "version 3"},
        {"PRAGMA application_id = 0x77656e6f; CREATE VIEW notes AS WITH RECURSIVE c(x) AS (SELECT 1"
         " UNION ALL SELECT x + 1 FROM c) SELECT x AS run, x AS note, x AS tags FROM c WHERE x < 0",
         "'notes' is missing, or another"},
        {"PRAGMA application_id = 0x77656e6f; " TABLE "; CREATE TRIGGER t AFTER INSERT ON notes"
         " BEGIN DELETE FROM notes; END",
         "trigger 't'"},
        {"PRAGMA application_id = 0x77656e6f; " TABLE "; CREATE VIEW v AS SELECT 1", "view 'v'"},
        {"PRAGMA application_id = 0x77656e6f; " TABLE "; CREATE TABLE more(x)", "table 'more'"},
        {"PRAGMA application_id = 0x77656e6f; " TABLE
         "; INSERT INTO notes VALUES('a', x'00ff', '')",
         "no text"},
        {"PRAGMA application_id = 0x77656e6f; " TABLE
         "; INSERT INTO notes VALUES('a', printf('%.70000c', 'x'), '')",
         "no text"},
        {"PRAGMA application_id = 0x77656e6f; PRAGMA journal_mode = WAL; " TABLE,
         "write-ahead log"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        make(cases[i].sql);
        expect_refused(cases[i].word, database);
    }
    file_write(database,
               "dear diary, this is no database of any kind, and a hundred bytes long, "
               "or nearly, which it must not be taken for at all",
               115);
    expect_refused("is no database of notes", database);
}

TEST(test_a_link_is_not_written_through) {
    char victim[256];
    snprintf(victim, sizeof victim, "%s", scratch_path("victim.db"));
    make("CREATE TABLE mine(x)");
    shell_succeeds("mv '%s' '%s' && ln -s '%s' '%s'", database, victim, victim, database);
    expect_refused("is a link", victim);
    /* Nor is a file made where one leads that leads nowhere, or put in its place with the first note. */
    weft_notes *notes;
    shell_succeeds("rm '%s'", database);
    assert_int_equal(weft_notes_open(folder, &notes), WEFT_OK);
    shell_succeeds("ln -s '%s' '%s'", scratch_path("nowhere"), database);
    assert_int_equal(weft_notes_set(notes, folder, "a", "b"), WEFT_EINPUT);
    assert_int_not_equal(access(scratch_path("nowhere"), F_OK), 0);
    weft_notes_close(notes);
    shell_succeeds("rm '%s' && mkfifo '%s'", database, database);
    alarm(60 * (unsigned)command_patience());
    assert_int_equal(weft_notes_open(folder, &notes), WEFT_EINPUT);
    alarm(0);
}

TEST(test_a_journal_that_names_another_file_is_refused) {
    char victim[256];
    snprintf(victim, sizeof victim, "%s", scratch_path("precious"));
    file_write(victim, "precious", 8);
    make("PRAGMA page_size = 4096; PRAGMA application_id = 0x77656e6f; " TABLE);
    study_journal(database, victim);
    expect_refused("names another file", victim);
}

static void expect_note(weft_notes *notes, const char *run, const char *note) {
    char *got, *tags;
    weft_notes_get(notes, run, &got, &tags);
    assert_non_null(got);
    assert_string_equal(got, note);
    free(got);
    free(tags);
}

TEST(test_a_note_comes_back_whole_or_is_refused) {
    static char note[WEFT_NOTE_MOST + 2];
    weft_notes *notes;
    shell_succeeds("rm -rf '%s' && mkdir '%s'", folder, folder);
    assert_int_equal(weft_notes_open(folder, &notes), WEFT_OK);
    for (size_t n = 4094; n < 4099; n++) {
        memset(note, 'x', n);
        assert_int_equal(weft_notes_set(notes, folder, note, "tag"), WEFT_OK);
        expect_note(notes, folder, note);
    }
    memset(note, 'y', WEFT_NOTE_MOST);
    assert_int_equal(weft_notes_set(notes, folder, note, "tag"), WEFT_OK);
    note[WEFT_NOTE_MOST] = 'z';
    assert_int_equal(weft_notes_set(notes, folder, note, "tag"), WEFT_EINPUT);
    assert_int_equal(weft_notes_set(notes, folder, "short", note), WEFT_EINPUT);
    note[WEFT_NOTE_MOST] = '\0';
    weft_notes_close(notes);
    assert_int_equal(weft_notes_open(folder, &notes), WEFT_OK);
    expect_note(notes, folder, note);
    weft_notes_close(notes);
}

static int open_scratch(void **state) {
    (void)state;
    scratch_open();
    snprintf(folder, sizeof folder, "%s", scratch_path("watched"));
    snprintf(database, sizeof database, "%s/notes.db", folder);
    return 0;
}

RUN_TESTS(open_scratch, scratch_teardown)
