/* Databases of older versions (tests/record/version-2: made by the last weft that called variants steps):
 * read as they are, merged, gone on with under today's names; refused and left as they were where they are
 * not what that weft made. And a whole study of an older weft (tests/older), stopped within a run, with notes. */
#include "record/database.h"
#include "support/command.h"
#include "support/http.h"
#include "support/older.h"
#include "support/study_run.h"
#include "support/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char config[] = "tests/record/version-2/config";

/* A study's folder with a database of version 2, and a copy of it beside. */
static const char *make_older(void) {
    const char *folder = scratch_path("version-2");
    shell_succeeds(
        "rm -rf '%s' && mkdir '%s' && gzip -dc tests/record/version-2/runs.db.gz >'%s/runs.db'",
        folder, folder, folder);
    shell_succeeds("cp '%s/runs.db' '%s.db'", folder, folder);
    return folder;
}

static void expect_unchanged(const char *folder) {
    shell_succeeds("cmp '%s/runs.db' '%s.db'", folder, folder);
}

TEST(test_it_is_read_as_it_is) {
    const char *folder = make_older();
    char *said;
    command_succeeds(RUN("runs", folder), &said);
    assert_non_null(strstr(said, "variant wide: Twice as wide"));
    assert_non_null(strstr(said, "2 of 4 runs done"));
    free(said);
    json_t *all = command_json(RUN("runs", folder, "--json"));
    const json_t *one = json_array_get(json_object_get(all, "studies"), 0);
    const json_t *variant = json_array_get(json_object_get(one, "steps"), 1);
    const json_t *run = json_array_get(json_object_get(one, "runs"), 3);
    assert_string_equal(json_string_value(json_object_get(variant, "name")), "wide");
    for (int i = 0; i < 2; i++) {
        const char *key = i ? "variant" : "step";
        assert_int_equal(json_integer_value(json_object_get(variant, key)), 1);
        assert_int_equal(json_integer_value(json_object_get(run, key)), 1);
    }
    json_decref(all);
    command_succeeds(RUN("runs", folder, "--compare", "plain", "wide"), NULL);
    command_succeeds(RUN("runs", folder, "--csv", "-"), &said);
    assert_non_null(strstr(said, ",plain,"));
    free(said);
    command_succeeds(RUN("report", folder, "--out", scratch_path("page")), NULL);
    expect_unchanged(folder);
}

/* It ends as a new database of the same study does: names, rows and the words of its tables. */
TEST(test_it_is_gone_on_with) {
    const char *folder = make_older(), *again = scratch_path("again");
    command_succeeds(RUN("study", "--config", config, "--out", folder, "--device", "cpu"), NULL);
    assert_int_equal(study_number(folder, "PRAGMA user_version"), WEFT_SCHEMA_VERSION);
    assert_int_equal(study_number(folder,
                                  "SELECT count(*) FROM runs JOIN variants USING (variant) WHERE"
                                  " status = 'done' AND name IN ('plain', 'wide')"),
                     4);
    assert_int_equal(study_number(folder, "SELECT count(*) FROM sqlite_schema WHERE name ="
                                          " 'steps' OR sql LIKE '%steps%'"),
                     0);
    assert_int_equal(study_number(folder, "SELECT count(DISTINCT run) FROM facts"), 4);
    command_succeeds(RUN("runs", folder), NULL);
    /* Parts of two versions, whichever is the first. */
    char old[256];
    snprintf(old, sizeof old, "%s.db", folder);
    command_succeeds(RUN("runs", "merge", old, folder, "--out", again), NULL);
    /* The first's config has not the options that came since. */
    char take[512];
    snprintf(take, sizeof take,
             "ATTACH '%s/runs.db' AS other; UPDATE study SET config = (SELECT config FROM "
             "other.study)",
             folder);
    study_change(again, take);
    study_same(folder, again);
    command_succeeds(RUN("runs", "merge", folder, old, "--out", scratch_path("turned")), NULL);
    study_same(again, scratch_path("turned"));
}

/* Old and new tell the same of one study. */
TEST(test_versions_are_compared) {
    const char *folder = make_older();
    command_succeeds(RUN("runs", "merge", folder, folder, "--out", scratch_path("new.db")), NULL);
    command_succeeds(RUN("runs", folder, "--diff", scratch_path("new.db")), NULL);
    command_succeeds(RUN("runs", scratch_path("new.db"), "--diff", folder), NULL);
    expect_unchanged(folder);
}

TEST(test_what_that_weft_did_not_make_is_refused) {
    static const struct {
        const char *sql, *word;
    } wrong[] = {{"CREATE TABLE variants(variant)", "it has the table 'variants'"},
                 {"DROP VIEW contents", "'contents' is missing"},
                 {"ALTER TABLE runs RENAME COLUMN step TO variant", "is missing, or another"},
                 {"PRAGMA user_version = 3", "is missing, or another"},
                 {"PRAGMA user_version = 1", "version 1, and this weft knows versions 2 to 3"},
                 {"PRAGMA user_version = 4", "version 4, and this weft knows versions 2 to 3"},
                 {"UPDATE runs SET step = 9 WHERE run = 1", "variant is 9"},
                 {"UPDATE steps SET leaks = 7", "leaks is 7"}};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        const char *folder = make_older();
        study_change(folder, wrong[i].sql);
        shell_succeeds("cp '%s/runs.db' '%s.db'", folder, folder);
        command_fails(2, RUN("runs", folder), SAYS(wrong[i].word));
        command_fails(2, RUN("study", "--config", config, "--out", folder, "--device", "cpu"),
                      SAYS(wrong[i].word));
        expect_unchanged(folder);
    }
}

/* It is refused before anything is written. */
TEST(test_a_study_of_another_config_leaves_it) {
    const char *folder = make_older();
    command_fails(2, RUN("study", "--config", config, "--out", folder, "-o", "STEPS=5"),
                  SAYS("CONFIG_STEPS was 4"));
    command_fails(2,
                  RUN("study", "--config", config, "--out", folder, "-o",
                      "STUDY_VARIANTS=plain; wide 'Twice as wide': N_FFN=65"),
                  SAYS("CONFIG_STUDY_VARIANTS was"));
    expect_unchanged(folder);
}

#ifdef WEFT_HAVE_MICROHTTPD
/* The live page tells the note that the page of then kept, and keeps another beside it. */
static void watch_study(const char *folder) {
    server watch = server_start_as("watch", RUN(folder));
    for (int i = 0; i < 2; i++) {
        answer a = http_get(watch.port, "/api/runs", NULL);
        json_t *news = json_loads(a.body, 0, NULL), *run;
        size_t at;
        int noted = 0, id = 0;
        answer_free(&a);
        assert_int_equal(json_array_size(json_object_get(news, "runs")), 3);
        json_array_foreach(json_object_get(news, "runs"), at, run) {
            const char *note = json_string_value(json_object_get(run, "note")),
                       *tags = json_string_value(json_object_get(run, "tags"));
            if (note && strcmp(note, "it's <b>good</b>") == 0 && strcmp(tags, "keep") == 0)
                noted++;
            else
                id = (int)json_integer_value(json_object_get(run, "id"));
        }
        assert_int_equal(noted, 1 + i);
        json_decref(news);
        char body[128];
        snprintf(body, sizeof body, "{\"id\":%d,\"note\":\"it's <b>good</b>\",\"tags\":\"keep\"}",
                 id);
        if (i == 0) json_decref(http_json(watch.port, "/api/note", body, 200));
    }
    server_stop(&watch);
}
#endif

/* It ends as it did when the older weft went on with it: two runs were done, the third was cut off behind a
 * checkpoint, the fourth not begun. */
TEST(test_a_whole_study_is_gone_on_with) {
    const char *folder = scratch_path("study");
    char *said;
    command_succeeds(RUN("runs", folder), &said);
    assert_non_null(strstr(said, "2 of 4 runs done"));
    free(said);
    command_succeeds(RUN("report", folder, "--out", scratch_path("page")), NULL);
#ifdef WEFT_HAVE_MICROHTTPD
    watch_study(folder);
#endif
    command_succeeds(RUN("study", "--config", scratch_path("study/study.config"), "--out", folder,
                         "--device", "cpu", "--threads", "1"),
                     NULL);
    assert_int_equal(study_number(folder, "SELECT resumes FROM runs WHERE run = 3"), 1);
    json_t *all = command_json(RUN("runs", folder, "--json")), *run,
           *was = json_load_file(scratch_path("study/end.json"), 0, NULL);
    size_t at;
    assert_int_equal(json_object_size(was), 4);
    json_array_foreach(json_object_get(json_array_get(json_object_get(all, "studies"), 0), "runs"),
                       at, run) {
        static const char *const keys[] = {"status", "iters", "val_loss", "weights"};
        const json_t *kept =
            json_object_get(was, json_string_value(json_object_get(run, "folder")));
        for (size_t k = 0; k < 4; k++) {
            const json_t *is = json_object_get(run, keys[k]), *then = json_array_get(kept, k);
            bool same = k < 2 || older_bits() ? json_equal(is, then)
                        : k == 2 ? fabs(json_number_value(is) - json_number_value(then)) < 1e-2
                                 : true;
            if (!same) fail_msg("run %zu: %s is another than it was", at + 1, keys[k]);
        }
    }
    json_decref(all);
    json_decref(was);
}

RUN_TESTS(older_setup, scratch_teardown)
