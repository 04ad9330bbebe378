/* `weft inspect` against the independent reference (tests/reference/make_inspect_vectors.py), on models of
 * tests/model/configs: every number that it prints. And what a user meets: a text, a page, errors. */
#include "support/command.h"
#include "support/html.h"
#include "support/model_case.h"
#include "support/snapshot.h"
#include "support/test.h"
#include "support/token_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static const char VECTORS[] = "tests/vectors/inspect.json.gz";

/* The model and its tokens [B, T+1] as files. */
static void write_case(const char *name, const char *folder, const char *tokens) {
    model_case c;
    model_case_open(&c, name);
    weft_model *m = model_case_weights(&c, WEFT_F64);
    if (weft_model_save(m, folder) != WEFT_OK) fail_msg("%s", weft_error_message());
    int32_t *rows = calloc((size_t)(c.batch * (c.time + 1)), sizeof *rows);
    assert_non_null(rows);
    model_case_token_rows(&c, rows);
    npy_write(tokens, 4, c.batch, c.time + 1, rows);
    free(rows);
    weft_model_destroy(m);
    model_case_close(&c);
}

static void compare_numbers(const char *where, const json_t *got, const json_t *want) {
    if (json_is_null(want)) {
        if (!json_is_null(got))
            fail_msg("%s: %g is told, but there is none", where, json_number_value(got));
        return;
    }
    double a = json_number_value(got), b = json_number_value(want);
    if (!json_is_number(got) || !(fabs(a - b) <= 1e-9 * fmax(1, fabs(b))))
        fail_msg("%s is %.15g, the reference has %.15g", where, a, b);
}

/* All that the reference has, wherever it is. */
static void compare(const char *where, const json_t *got, const json_t *want) {
    char place[240];
    const char *key;
    json_t *inner;
    size_t i;
    if (json_is_object(want)) {
        json_object_foreach((json_t *)(uintptr_t)want, key, inner) {
            snprintf(place, sizeof place, "%.150s.%s", where, key);
            compare(place, json_object_get(got, key), inner);
        }
    } else if (json_is_array(want)) {
        assert_int_equal(json_array_size(got), json_array_size(want));
        json_array_foreach(want, i, inner) {
            snprintf(place, sizeof place, "%.150s.%zu", where, i);
            compare(place, json_array_get(got, i), inner);
        }
    } else {
        compare_numbers(where, got, want);
    }
}

/* The reference has {name: [parameters, weight norm, gradient norm]}. */
static void compare_mechanisms(const char *name, const json_t *got, const json_t *want) {
    size_t i;
    json_t *part;
    assert_int_equal(json_array_size(got), json_object_size(want));
    json_array_foreach(got, i, part) {
        const char *what = json_string_value(json_object_get(part, "name"));
        const json_t *numbers = json_object_get(want, what);
        char place[160];
        if (!numbers) fail_msg("%s: the reference has no mechanism '%s'", name, what);
        snprintf(place, sizeof place, "%s, %s", name, what);
        compare_numbers(place, json_object_get(part, "parameters"), json_array_get(numbers, 0));
        compare_numbers(place, json_object_get(part, "weight_norm"), json_array_get(numbers, 1));
        compare_numbers(place, json_object_get(part, "gradient_norm"), json_array_get(numbers, 2));
    }
}

TEST(test_every_number_is_the_references) {
    json_t *kept = file_json(VECTORS), *want;
    const char *name;
    json_object_foreach(kept, name, want) {
        const char *folder = scratch_path("%s", name), *tokens = scratch_path("tokens.npy");
        write_case(name, folder, tokens);
        json_t *got = command_json(
            RUN("inspect", "--model", folder, "--tokens", tokens, "--dtype", "f64", "--json"));
        compare(name, json_object_get(got, "layers"), json_object_get(want, "layers"));
        compare(name, json_object_get(got, "loss"), json_object_get(want, "loss"));
        compare_mechanisms(name, json_object_get(got, "mechanisms"),
                           json_object_get(want, "mechanisms"));
        json_decref(got);
    }
    json_decref(kept);
}

#define SMALL                                                                                      \
    "-o", "N_LAYER=2", "-o", "N_EMBD=16", "-o", "N_HEAD=2", "-o", "VOCAB_SIZE=256", "-o",          \
        "CONTEXT=32"

static const char *make_text(void) {
    const char *path = scratch_path("text");
    char words[900];
    for (size_t i = 0; i < sizeof words; i++)
        words[i] = "to be <or> not & to be, "[i % 24];
    file_write(path, words, sizeof words);
    return path;
}

static const char *make_model(const char *name, const char *kind, const char *ffn) {
    const char *model = scratch_path("%s", name);
    command_succeeds(RUN("init", "--force", SMALL, "-o", kind, "-o", ffn, "-o",
                         "RA_MLA_MLP_ATTN_GATE=y", "-o", "DROPOUT=0.5", "--out", model),
                     NULL);
    return model;
}

static int64_t whole(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

TEST(test_a_text_is_read_in_windows) {
    const char *model = make_model("mla", "ATTENTION=mla", "FFN=gelu"), *text = make_text();
    json_t *all = command_json(RUN("inspect", model, "--text", text, "--json"));
    assert_int_equal(whole(all, "windows"), 8);
    assert_int_equal(whole(all, "context"), 32);
    assert_int_equal(whole(all, "tokens"), 256);
    json_t *few = command_json(RUN("inspect", model, "--text", text, "--windows", "3", "--context",
                                   "20", "--no-gradients", "--json"));
    assert_int_equal(whole(few, "tokens"), 60);
    snapshot_expect_keys("inspect.json", all);
    assert_int_equal(json_array_size(json_object_get(few, "mechanisms")), 0);
    assert_true(json_array_size(json_object_get(all, "mechanisms")) > 3);
    /* Dropout of the config is not in it. */
    json_t *again = command_json(RUN("inspect", model, "--text", text, "--json"));
    assert_true(json_equal(all, again));
    json_decref(all);
    json_decref(few);
    json_decref(again);
}

/* A gate that is not a number lies in no tenth. */
TEST(test_weights_that_are_not_numbers_are_looked_at) {
    const char *folder = make_model("nan", "ATTENTION=mla", "FFN=gelu");
    weft_model *m;
    if (weft_model_load(folder, WEFT_F32, &m) != WEFT_OK) fail_msg("%s", weft_error_message());
    weft_weight *w = weft_model_find(m, "h.0.ffn.gate_heads.weight");
    assert_non_null(w);
    float nan = NAN;
    memcpy(w->data, &nan, sizeof nan); /* of the first of two heads */
    if (weft_model_save(m, folder) != WEFT_OK) fail_msg("%s", weft_error_message());
    weft_model_destroy(m);
    json_t *all = command_json(
        RUN("inspect", folder, "--text", make_text(), "--unchecked", "--no-gradients", "--json"));
    const json_t *heads =
        json_object_get(json_array_get(json_object_get(all, "layers"), 1), "heads");
    for (size_t h = 0; h < 2; h++) {
        const json_t *head = json_array_get(heads, h), *gates = json_object_get(head, "gates");
        json_int_t n = 0;
        for (size_t k = 0; k < json_array_size(gates); k++)
            n += json_integer_value(json_array_get(gates, k));
        assert_int_equal(n, h ? 256 : 0);
        assert_true(json_is_null(json_object_get(head, "gate")) == (h == 0));
    }
    json_decref(all);
}

static int count(const char *text, const char *word) {
    int n = 0;
    for (; (text = strstr(text, word)); text += strlen(word))
        n++;
    return n;
}

TEST(test_tables_and_pictures_show_what_the_model_has) {
    const char *text = make_text(), *page = scratch_path("page.html");
    const char *w2 = make_model("w2", "ATTENTION=w2", "FFN=wsffn");
    const char *mla = make_model("mla", "ATTENTION=mla", "FFN=gelu");
    char *out;
    command_succeeds(RUN("inspect", w2, "--text", text, "--out", page), &out);
    assert_null(strchr(out, '{')); /* words, and no object behind them */
    snapshot_expect("inspect-w2", out);
    assert_non_null(strstr(out, "moved: weight that moves"));
    assert_non_null(
        strstr(out, "\nlayer   head 1  head 2\n    1 ")); /* as the page and reports count */
    assert_non_null(strstr(out, "z-heads:"));
    assert_null(strstr(out, "latents:"));
    free(out);
    char *html = file_read(page, NULL);
    html_expect_well_formed(html);
    /* A button for each token of the first window, deviations of both layers, and a grid for each number. */
    assert_int_equal(count(html, "class=\"tk\""), 32);
    assert_int_equal(count(html, "\"sigma\":"), 2);
    assert_non_null(strstr(html, "spread_k"));
    assert_non_null(strstr(html, "histogram of the gates"));
    assert_non_null(strstr(html, "<title>1, 1: "));
    assert_non_null(strstr(html, ">&lt;</button>"));
    assert_non_null(strstr(html, "\\u003c"));
    assert_null(strstr(html, "<or>"));
    free(html);
    /* A page of weft's is written over, another file is not. */
    command_succeeds(RUN("inspect", mla, "--text", text, "--out", page), &out);
    assert_non_null(strstr(out, "latents:"));
    assert_null(strstr(out, "moved:"));
    snapshot_expect("inspect-mla", out);
    free(out);
    command_fails(2, RUN("inspect", mla, "--text", text, "--out", text),
                  SAYS("there already", "--force"));
}

TEST(test_the_page_shows_where_heads_look) {
    const char *page = scratch_path("looks.html"),
               *w2 = make_model("w2", "ATTENTION=w2", "FFN=gelu");
    char line[2048];
    command_succeeds(RUN("inspect", w2, "--text", make_text(), "--out", page), NULL);
    snprintf(line, sizeof line, "python3 tests/inspect/page.py '%s' '%s'", page, scratch_path("."));
    int status = system(line); /* NOLINT */
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 127) skip();
    assert_int_equal(WEXITSTATUS(status), 0);
    const char *cross = make_model("cross", "RA_MLA_MLP_CROSS_TOKEN=y", "POSITION=alibi");
    command_succeeds(RUN("inspect", cross, "--text", make_text(), "--out", page), NULL);
    char *html = file_read(page, NULL);
    assert_int_equal(count(html, "\"routes\":"), 2);
    assert_int_equal(count(html, "\"gates\":"), 1); /* the first layer has none */
    free(html);
    assert_int_equal(system(line), 0); /* NOLINT */
}

TEST(test_wrong_usage_is_told) {
    const char *model = make_model("mla", "ATTENTION=mla", "FFN=gelu"), *text = make_text();
    command_fails(2, RUN("inspect", "--text", text), SAYS("weft inspect DIR --text FILE"));
    command_fails(2, RUN("inspect", model), SAYS("--text", "--tokens"));
    command_fails(2, RUN("inspect", model, "--text", text, "--tokens", text), SAYS("one of them"));
    command_fails(2, RUN("inspect", model, "--text", scratch_path("none")), SAYS("none"));
    command_fails(2, RUN("inspect", scratch_path("none"), "--text", text), SAYS("none"));
    command_fails(2, RUN("inspect", model, "--text", text, "--context", "33"),
                  SAYS("--context 33", "32 tokens"));
    command_fails(2, RUN("inspect", model, "--text", text, "--windows", "0"), SAYS("--windows"));
}

RUN_TESTS(scratch_setup, scratch_teardown)
