/* scripts/corpus on a small tree of made-up packages: what text comes out of them, what is dropped,
 * what is held out, and that the same packages make the same bytes. */
#include "support/command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { PAGES = 40 };

/* A word of its own for each number. */
static const char *word(int number, char room[16]) {
    static const char *const parts[] = {"ba", "cor", "du", "fen", "gi", "hal", "jo", "kest"};
    uint32_t mixed = (uint32_t)number * 2654435761u;
    snprintf(room, 16, "%s%s%s", parts[mixed >> 29], parts[mixed >> 26 & 7],
             parts[mixed >> 23 & 7]);
    return room;
}

/* English enough to be kept, with other words for each number: no eight in a row are the same. */
static void write_prose(FILE *out, int number) {
    char a[16], b[16], c[16], d[16];
    for (int i = 0; i < 12; i++) {
        int from = (number * 12 + i) * 4;
        fprintf(out, "The %s is in the %s and was not of the %s, so it can be a %s. ",
                word(from, a), word(from + 1, b), word(from + 2, c), word(from + 3, d));
    }
}

static FILE *open_in(const char *package, const char *path) {
    char full[512];
    snprintf(full, sizeof full, "%s", scratch_path("tree/%s/%s", package, path));
    for (char *slash = full + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = 0;
        mkdir(full, 0777);
        *slash = '/';
    }
    FILE *out = fopen(full, "w");
    assert_non_null(out);
    return out;
}

static void write_page(const char *package, const char *path, int number) {
    FILE *out = open_in(package, path);
    fprintf(out,
            "<!DOCTYPE html><html><head><title>Gone</title></head><body>"
            "<nav>Home of all pages</nav><script>var gone = 1;</script><p>Next chapter</p>"
            "<h1>Lamps &amp; rivers %d</h1><p>",
            number);
    write_prose(out, number);
    fprintf(out, "</p><pre>  kept(%d)\n    as it is</pre></body></html>", number);
    fclose(out);
}

static void write_packages(void) {
    char path[64];
    for (int i = 0; i < PAGES; i++) {
        snprintf(path, sizeof path, "usr/share/doc/one/html/page%02d.html", i);
        write_page("one-doc", path, i);
    }
    write_page("one-doc", "usr/share/doc/one/html/page90.html", 3);     /* page03 again */
    write_page("one-doc", "usr/share/doc/one/html/de/page91.html", 91); /* another language */
    FILE *out = open_in("one-doc", "DEBIAN/control");
    fprintf(out, "Package: one-doc\nVersion: 1.2-3\nArchitecture: all\n");
    fclose(out);
    out = open_in("two-doc", "usr/share/man/man1/lamp.1");
    fprintf(out, ".\\\" a comment\n.TH LAMP 1\n.SH NAME\nlamp \\- a \\fBbright\\fR thing\n"
                 ".SH DESCRIPTION\n.B lamp\nburns.\n.PP\n");
    write_prose(out, 200);
    fprintf(out, "\n.TP\n.BR \\-v \", \" \\-\\-verbose\nSay what is done.\n");
    fclose(out);
    out = open_in("two-doc", "usr/share/doc/two/numbers.txt"); /* no prose */
    for (int i = 0; i < 400; i++)
        fprintf(out, "%d %d\n", i, i * i);
    fclose(out);
}

static const char *python(void) {
    const char *name = getenv("PYTHON");
    return name && *name ? name : "python3";
}

static void make_corpus(const char *out, const char *options) {
    char line[2048];
    snprintf(line, sizeof line, "%s scripts/corpus --out %s --jobs 2 %s %s %s >%s 2>&1", python(),
             out, options, scratch_path("tree/one-doc"), scratch_path("tree/two-doc"),
             scratch_path("said"));
    int status = system(line);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
    fail_msg("%s: %s", line, file_read(scratch_path("said"), NULL));
}

static char *read_part(const char *folder, const char *name) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return file_read(path, NULL);
}

/* The text of the document that comes from a file of that name; NULL: there is none. The caller
 * frees it. */
static char *find_document(const char *folder, const char *part, const char *from) {
    char *lines = read_part(folder, part), *rest = lines, *line, *found = NULL;
    while ((line = strtok_r(rest, "\n", &rest))) {
        json_t *document = json_loads(line, 0, NULL);
        assert_non_null(document);
        if (strstr(json_string_value(json_object_get(document, "from")), from))
            found = strdup(json_string_value(json_object_get(document, "text")));
        json_decref(document);
    }
    free(lines);
    return found;
}

TEST(test_text_is_drawn_out_of_pages_and_manuals) {
    char *page = find_document(scratch_path("all"), "train.jsonl", "page07.html");
    assert_non_null(page);
    assert_int_equal(strncmp(page, "Lamps & rivers 7\n\nThe ", 22), 0);
    assert_non_null(strstr(page, "\n\n  kept(7)\n    as it is"));
    assert_null(strstr(page, "gone"));
    assert_null(strstr(page, "Home of all"));
    assert_null(strstr(page, "Next chapter")); /* on every page of the package */
    assert_null(strstr(page, "<"));
    free(page);
    char *manual = find_document(scratch_path("all"), "train.jsonl", "lamp.1");
    assert_non_null(manual);
    assert_int_equal(strncmp(manual, "NAME\n\nlamp - a bright thing", 27), 0);
    assert_non_null(strstr(manual, "lamp burns."));
    assert_non_null(strstr(manual, "-v, --verbose\nSay what is done."));
    assert_null(strstr(manual, "comment"));
    free(manual);
}

TEST(test_duplicates_lists_and_other_languages_are_dropped) {
    assert_null(find_document(scratch_path("all"), "train.jsonl", "page90"));
    assert_null(find_document(scratch_path("all"), "train.jsonl", "page91"));
    assert_null(find_document(scratch_path("all"), "train.jsonl", "numbers"));
    char *text = read_part(scratch_path("all"), "manifest.json");
    json_t *manifest = json_loads(text, 0, NULL);
    assert_int_equal(json_integer_value(
                         json_object_get(json_object_get(manifest, "dropped"), "near_duplicates")),
                     1);
    json_t *first = json_array_get(json_object_get(manifest, "packages"), 0);
    assert_string_equal(json_string_value(json_object_get(first, "package")), "one-doc");
    assert_string_equal(json_string_value(json_object_get(first, "version")), "1.2-3");
    assert_int_equal(json_integer_value(json_object_get(first, "kept")), PAGES);
    json_decref(manifest);
    free(text);
}

TEST(test_held_out_documents_are_in_no_training_text) {
    make_corpus(scratch_path("held"), "--val-share 0.2");
    char *val = read_part(scratch_path("held"), "val.jsonl"), *rest = val, *line;
    int held = 0;
    while ((line = strtok_r(rest, "\n", &rest))) {
        json_t *document = json_loads(line, 0, NULL);
        const char *from = json_string_value(json_object_get(document, "from"));
        assert_null(find_document(scratch_path("held"), "train.jsonl", from));
        json_decref(document);
        held++;
    }
    free(val);
    assert_in_range(held, PAGES / 8, PAGES / 3);
}

/* A whole package is held out, but for what the training text has too: page03 of the third package is page03 of the
 * first, and a quarter of its notes is in page05 of the first. */
TEST(test_a_package_is_held_out_whole) {
    char path[64], options[600];
    for (int i = 0; i < 6; i++) {
        snprintf(path, sizeof path, "usr/share/doc/three/page%02d.html", i);
        write_page("three-doc", path, i == 3 ? 3 : 500 + i);
    }
    FILE *out = open_in("three-doc", "usr/share/doc/three/notes.txt");
    for (int i = 0; i < 4; i++)
        write_prose(out, i ? 700 + i : 5);
    fclose(out);
    snprintf(options, sizeof options, "--val-share 0 --hold-out three-doc -- %s",
             scratch_path("tree/three-doc"));
    make_corpus(scratch_path("whole"), options);
    for (int i = 0; i < 6; i++) {
        snprintf(path, sizeof path, "three-doc:/usr/share/doc/three/page%02d", i);
        assert_null(find_document(scratch_path("whole"), "train.jsonl", path));
        assert_null(find_document(scratch_path("whole"), "val.jsonl", path));
        char *text = find_document(scratch_path("whole"), "held-out.jsonl", path);
        assert_int_equal(text != NULL, i != 3);
        free(text);
    }
    assert_null(find_document(scratch_path("whole"), "held-out.jsonl", "notes"));
    char *first = find_document(scratch_path("whole"), "train.jsonl", "one-doc:");
    assert_non_null(first);
    free(first);
    char *text = read_part(scratch_path("whole"), "manifest.json");
    json_t *manifest = json_loads(text, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(manifest, "files")), 3);
    assert_string_equal(
        json_string_value(json_array_get(json_object_get(manifest, "held_out_packages"), 0)),
        "three-doc");
    json_decref(manifest);
    free(text);
    /* Nothing is left of what waited on the disk. */
    snprintf(options, sizeof options, "test -z \"$(ls %s | grep texts)\"", scratch_path("whole"));
    assert_int_equal(system(options), 0);
}

/* A package that an interrupted call has read: its text is in the folder where texts wait, and what the package is
 * beside it. One without the latter was cut off in the middle, and is read again. */
TEST(test_a_repeated_call_goes_on) {
    static const char about[] = "[{\"package\": \"one-doc\", \"version\": \"1\", \"files\": 1, "
                                "\"documents\": 1}, 700]";
    mkdir(scratch_path("again"), 0777);
    mkdir(scratch_path("again/texts"), 0777);
    for (int i = 0; i < 2; i++) {
        FILE *out = fopen(scratch_path("again/texts/%s", i ? "1-two-doc" : "0-one-doc"), "w");
        assert_non_null(out);
        fprintf(out, "[\"/read/before\", \"");
        write_prose(out, 900 + i);
        fprintf(out, "\"]\n");
        fclose(out);
    }
    file_write(scratch_path("again/texts/0-one-doc.about"), about, sizeof about - 1);
    make_corpus(scratch_path("again"), "--val-share 0");
    char *first = find_document(scratch_path("again"), "train.jsonl", "one-doc:/read/before"),
         *second = find_document(scratch_path("again"), "train.jsonl", "lamp.1");
    assert_non_null(first);
    assert_non_null(second);
    assert_null(find_document(scratch_path("again"), "train.jsonl", "two-doc:/read/before"));
    assert_null(find_document(scratch_path("again"), "train.jsonl", "page07"));
    free(first);
    free(second);
}

/* Of what apt-cache lists, here one of the test's own: what is named as documentation, and the section doc, but not in
 * another language. */
TEST(test_all_documentation_is_found_by_section_and_name) {
    static const char lists[] = "#!/bin/sh\n"
                                "for p in one-doc:libs guide:doc guide-de:doc four:libs; do\n"
                                "printf 'Package: %s\\nSection: %s\\n\\n' ${p%:*} ${p#*:}\n"
                                "done\n";
    char line[2048];
    if (system("command -v dpkg-deb >/dev/null 2>&1") != 0) {
        printf("dpkg-deb is not on this machine\n");
        skip();
    }
    mkdir(scratch_path("bin"), 0777);
    mkdir(scratch_path("cache"), 0777);
    file_write(scratch_path("bin/apt-cache"), lists, sizeof lists - 1);
    chmod(scratch_path("bin/apt-cache"), 0755);
    snprintf(
        line, sizeof line,
        "dpkg-deb --root-owner-group -b %s %s >/dev/null 2>&1 && cd %s && cp one-doc_1.2-3_all.deb "
        "guide_1_all.deb && cd - >/dev/null && PATH=%s:$PATH %s scripts/corpus "
        "--all-docs --out %s --cache %s --val-share 0 >%s 2>&1",
        scratch_path("tree/one-doc"), scratch_path("cache/one-doc_1.2-3_all.deb"),
        scratch_path("cache"), scratch_path("bin"), python(), scratch_path("docs"),
        scratch_path("cache"), scratch_path("said"));
    if (system(line) != 0) fail_msg("%s", file_read(scratch_path("said"), NULL));
    char *text = read_part(scratch_path("docs"), "manifest.json");
    json_t *manifest = json_loads(text, 0, NULL), *packages = json_object_get(manifest, "packages");
    assert_int_equal(json_array_size(packages), 2); /* the second is the first under another name */
    assert_string_equal(json_string_value(json_object_get(json_array_get(packages, 0), "package")),
                        "one-doc");
    json_decref(manifest);
    free(text);
}

/* A text is made again from its manifest: in the versions that it names, though there is a later one, and with its
 * options. Another text is an error, and so is what is no manifest. */
TEST(test_a_text_is_made_again_by_its_manifest) {
    if (system("command -v dpkg-deb >/dev/null 2>&1") != 0) {
        printf("dpkg-deb is not on this machine\n");
        skip();
    }
    const char *earlier = scratch_path("earlier"), *cache = scratch_path("versions");
    shell_succeeds(
        "cd '%s' && mkdir versions && cp -r tree/one-doc later && "
        "rm later/usr/share/doc/one/html/page0* && sed -i s/1.2-3/2.0/ later/DEBIAN/control && "
        "dpkg-deb --root-owner-group -b tree/one-doc versions/one-doc_1.2-3_all.deb && "
        "dpkg-deb --root-owner-group -b later versions/one-doc_2.0_all.deb",
        scratch_path("."));
    shell_succeeds("%s scripts/corpus --out '%s' --val-share 0.1 --seed 3 "
                   "'%s/one-doc_1.2-3_all.deb' 2>/dev/null",
                   python(), earlier, cache);
    shell_succeeds(
        "%s scripts/corpus --like '%s/manifest.json' --cache '%s' --out '%s' 2>/dev/null", python(),
        earlier, cache, scratch_path("like"));
    file_expect_equal(scratch_path("earlier/manifest.json"), scratch_path("like/manifest.json"));
    shell_succeeds("sed -i s/1.2-3/2.0/ '%s/manifest.json' && ! %s scripts/corpus --like "
                   "'%s/manifest.json' --cache '%s' "
                   "--out '%s' 2>'%s' && grep -q 'the text differs' '%s'",
                   earlier, python(), earlier, cache, scratch_path("unlike"), scratch_path("said"),
                   scratch_path("said"));
    shell_succeeds("echo '{}' >'%s' && ! %s scripts/corpus --like '%s' --out '%s' 2>'%s' && grep "
                   "-q 'no manifest' '%s'",
                   scratch_path("none.json"), python(), scratch_path("none.json"),
                   scratch_path("unlike"), scratch_path("said"), scratch_path("said"));
}

TEST(test_the_same_packages_make_the_same_bytes) {
    make_corpus(scratch_path("again"), "--val-share 0");
    make_corpus(scratch_path("other"), "--val-share 0 --seed 2");
    char *first = read_part(scratch_path("all"), "train.jsonl");
    char *again = read_part(scratch_path("again"), "train.jsonl");
    char *other = read_part(scratch_path("other"), "train.jsonl");
    assert_string_equal(first, again);
    assert_int_not_equal(strcmp(first, other), 0);
    assert_int_equal(strlen(first), strlen(other));
    free(first);
    free(again);
    free(other);
}

/* A .deb reads as the folder that it was made from. */
TEST(test_a_package_file_reads_as_its_folder) {
    char line[2048];
    if (system("command -v dpkg-deb >/dev/null 2>&1") != 0) {
        printf("dpkg-deb is not on this machine\n");
        skip();
    }
    snprintf(line, sizeof line, "dpkg-deb --root-owner-group -b %s %s >/dev/null 2>&1",
             scratch_path("tree/one-doc"), scratch_path("one-doc_1.2-3_all.deb"));
    assert_int_equal(system(line), 0);
    for (int i = 0; i < 2; i++) {
        snprintf(line, sizeof line, "%s scripts/corpus --val-share 0 --out %s %s >/dev/null 2>&1",
                 python(), scratch_path(i ? "packed" : "folder"),
                 scratch_path(i ? "one-doc_1.2-3_all.deb" : "tree/one-doc"));
        assert_int_equal(system(line), 0);
    }
    char *folder = read_part(scratch_path("folder"), "train.jsonl");
    char *packed = read_part(scratch_path("packed"), "train.jsonl");
    assert_string_equal(folder, packed);
    free(folder);
    free(packed);
}

/* What `weft train --json` says of one step on a folder of shards with this manifest beside them; the caller frees it. */
static json_t *train_with_manifest(const char *data, const char *manifest, const char *run) {
    char path[512], option[600], *said;
    snprintf(path, sizeof path, "%s/manifest.json", data);
    file_write(path, manifest, strlen(manifest));
    snprintf(option, sizeof option, "DATASET=%s", data);
    file_write(scratch_path("config"), "CONFIG_N_LAYER=1\nCONFIG_N_EMBD=8\nCONFIG_N_HEAD=1\n", 49);
    command_succeeds(RUN("train", "--config", scratch_path("config"), "--out",
                         scratch_path("%s", run), "-o", option, "-o", "VOCAB_SIZE=256", "-o",
                         "CONTEXT=16", "-o", "STEPS=1", "-o", "BATCH_SIZE=1", "-o",
                         "EVAL_SAMPLES=1", "-o", "SAVE_CHECKPOINT=n", "--json"),
                     &said);
    json_t *result = json_loads(said, 0, NULL);
    free(said);
    return result;
}

static const char *fact_of(const json_t *result, const char *name) {
    return json_string_value(json_object_get(json_object_get(result, "facts"), name));
}

TEST(test_it_becomes_a_dataset_with_its_hash_in_the_record) {
    char train[512], val[512];
    const char *data = scratch_path("data/set"); /* the parent is made too */
    make_corpus(scratch_path("held2"), "--val-share 0.2");
    snprintf(train, sizeof train, "%s/train.jsonl", scratch_path("held2"));
    snprintf(val, sizeof val, "%s/val.jsonl", scratch_path("held2"));
    json_t *t = command_json(
        RUN("tokenize", "--jsonl", "text", "--out", data, train, "--val", val, "--json"));
    assert_true(json_integer_value(json_object_get(t, "val_tokens")) > 1000);
    json_int_t tokens = json_integer_value(json_object_get(t, "train_tokens"));
    json_decref(t);
    char *manifest = read_part(scratch_path("held2"), "manifest.json");
    json_t *result = train_with_manifest(data, manifest, "run"),
           *about = json_loads(manifest, 0, NULL);
    assert_string_equal(fact_of(result, "dataset_hash"),
                        json_string_value(json_object_get(about, "hash")));
    assert_string_equal(fact_of(result, "dataset_packages"), "one-doc 1.2-3, two-doc ");
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(result, "facts"), "train_tokens")),
        tokens);
    json_decref(result);
    /* More of them than a record has room for are counted. */
    json_t *packages = json_object_get(about, "packages");
    for (int i = 2; i < 6000; i++)
        json_array_append(packages, json_array_get(packages, 0));
    char *long_manifest = json_dumps(about, 0);
    result = train_with_manifest(data, long_manifest, "run2");
    assert_string_equal(fact_of(result, "dataset_packages"), "6000 packages");
    json_decref(result);
    json_decref(about);
    free(manifest);
    free(long_manifest);
}

static int make_all(void **state) {
    (void)state;
    scratch_open();
    write_packages();
    make_corpus(scratch_path("all"), "--val-share 0");
    return 0;
}

RUN_TESTS(make_all, scratch_teardown)
