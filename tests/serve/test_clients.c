/* The server under clients that others wrote: curl, the openai package, a browser, and the examples of
 * the guide as they stand. */
#include "support/command.h"
#include "support/http.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { MISSING = 77, OUTPUT = 65536 };

static server shared;
static char model[512], url[64];

static int start_shared(void **state) {
    (void)state;
    shared = server_open(model, sizeof model, RUN("--context", "200000", "--sequences", "4"));
    snprintf(url, sizeof url, "http://127.0.0.1:%d", shared.port);
    return 0;
}

static int stop_shared(void **state) {
    (void)state;
    server_close(&shared);
    return 0;
}

/* Runs a line of shell, prints what it printed; its exit status. */
static int run_line(const char *line, char *out) {
    char command[8192];
    size_t got = 0, more;
    snprintf(command, sizeof command, "{ %s\n} 2>&1", line);
    FILE *from = popen(command, "r");
    assert_non_null(from);
    while (got + 1 < OUTPUT && (more = fread(out + got, 1, OUTPUT - 1 - got, from)) > 0)
        got += more;
    out[got] = 0;
    int status = pclose(from);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void skip_where_missing(int status, const char *out) {
    if (status != MISSING && status != 127) return;
    print_message("%s\n", *out ? out : "not installed");
    skip();
}

static bool has(const char *program) {
    char line[128];
    static char out[OUTPUT];
    snprintf(line, sizeof line, "command -v %s", program);
    return run_line(line, out) == 0;
}

/* The Python that make found, or that the user names, which may have the package. */
static const char *python(void) {
    const char *named = getenv("PYTHON");
    return named && *named ? named : "python3";
}

/* The blocks of the guide in one language, with the port of this server. */
static char *guide_blocks(const char *language) {
    char mark[32], *text = file_read("docs/guide/serving.md", NULL), *all = calloc(65536, 1);
    snprintf(mark, sizeof mark, "```%s\n", language);
    for (char *at = text; (at = strstr(at, mark));) {
        at += strlen(mark);
        char *end = strstr(at, "```");
        assert_non_null(end);
        for (char *from = at; from < end; from++) {
            char port[16] = {*from};
            if (strncmp(from, "8000", 4) == 0) {
                snprintf(port, sizeof port, "%d", shared.port);
                from += 3;
            }
            strcat(all, port);
        }
        at = end;
    }
    free(text);
    if (!*all) fail_msg("the guide has no %s", language);
    return all;
}

static void test_the_guides_curl_examples_work(void **state) {
    (void)state;
    static char out[OUTPUT];
    if (!has("curl")) skip_where_missing(MISSING, "curl is not installed");
    char *blocks = guide_blocks("sh");
    char *line = calloc(strlen(blocks) + 64, 1);
    sprintf(line, "set -e\n%s", blocks);
    int status = run_line(line, out);
    if (status != 0 || strstr(out, "\"error\"") || !strstr(out, "\"text_completion\"") ||
        !strstr(out, "data: [DONE]"))
        fail_msg("%s: %s", blocks, out);
    free(line);
    free(blocks);
}

static void test_curl_sees_the_statuses(void **state) {
    (void)state;
    static const struct {
        const char *options, *want;
    } cases[] = {
        {"-s -o /dev/null -w '%%{http_code} %%{content_type}' %s/health", "200 application/json"},
        {"-s -I %s/health | head -n 1 | tr -d '\\r\\n'", "HTTP/1.1 200 OK"},
        {"-s -o /dev/null -w '%%{http_code}' %s/v1/completions -d '{}'", "415"},
        {"-s -o /dev/null -w '%%{http_code}' %s/v1/completions --json '{}'", "400"},
        {"-s -o /dev/null -w '%%{http_code}' -X DELETE %s/v1/completions", "405"},
    };
    static char out[OUTPUT];
    char line[512] = "curl ";
    if (!has("curl")) skip_where_missing(MISSING, "curl is not installed");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        if (strstr(cases[i].options, "--json") &&
            run_line("curl --help all | grep -q -e --json", out))
            continue;
        snprintf(line + 5, sizeof line - 5, cases[i].options, url);
        run_line(line, out);
        assert_string_equal(out, cases[i].want);
    }
}

/* Writes what weft generate makes to a file of the scratch folder. */
static void write_expected(const char *name) {
    char *out;
    command_succeeds(RUN("generate", "--model", model, "--prompt", "Once", "--seed", "5",
                         "--max-tokens", "24", "--logprobs", "2", "--json"),
                     &out);
    file_write(scratch_path("%s", name), out, strlen(out));
    free(out);
}

static void test_the_openai_package_works(void **state) {
    (void)state;
    static char out[OUTPUT];
    char line[2048];
    write_expected("expected.json");
    snprintf(line, sizeof line, "'%s' tests/serve/clients.py %s '%s'", python(), url,
             scratch_path("expected.json"));
    int status = run_line(line, out);
    skip_where_missing(status, out);
    if (status != 0) fail_msg("%s", out);
    char *blocks = guide_blocks("python");
    file_write(scratch_path("guide.py"), blocks, strlen(blocks));
    snprintf(line, sizeof line, "'%s' '%s'", python(), scratch_path("guide.py"));
    if (run_line(line, out) != 0 || strstr(out, "Traceback")) fail_msg("%s: %s", blocks, out);
    free(blocks);
}

/* Two quotes that the shell takes for one text. */
static void quote(char *to, const char *text) {
    *to++ = '\'';
    for (; *text; text++) {
        if (*text == '\'') {
            strcpy(to, "'\\''");
            to += 4;
        } else {
            *to++ = *text;
        }
    }
    strcpy(to, "'");
}

/* Drives the page of a server; `texts` is what each of its models makes of "Once" with seed 31. `own`, a server that was
 * started for this, is stopped. */
static void drive_page(const char *at, const char *texts, server *own) {
    static char out[OUTPUT];
    char line[8192];
    snprintf(line, sizeof line, "python3 tests/serve/page.py %s '%s' Once 31 %s", at,
             scratch_path("."), texts);
    int status = run_line(line, out);
    if (own) server_stop(own);
    skip_where_missing(status, out);
    if (status != 0) fail_msg("%s", out);
}

/* Appends what weft generate makes with seed 31, quoted. */
static void add_text(const char *folder, char *texts) {
    json_t *made =
        generate_json(folder, SAYS("--prompt", "Once", "--seed", "31", "--max-tokens", "24"));
    const char *text = json_string_value(json_object_get(made, "text"));
    assert_non_null(text);
    strcat(texts, " ");
    quote(texts + strlen(texts), text);
    json_decref(made);
}

static void test_the_page_works_in_a_browser(void **state) {
    (void)state;
    char texts[1024] = "";
    add_text(model, texts);
    drive_page(url, texts, NULL);
}

static void test_the_page_shows_two_models_side_by_side(void **state) {
    (void)state;
    char texts[2048] = "", other[512], config[512], at[64];
    snprintf(other, sizeof other, "%s", scratch_path("other"));
    snprintf(config, sizeof config, "%s", scratch_path("tiny.config"));
    command_succeeds(RUN("init", "--config", config, "--out", other, "--seed", "2"), NULL);
    server s = server_start(RUN("--model", model, "--beside", other, "--threads", "1", "--context",
                                "64", "--sequences", "2"));
    snprintf(at, sizeof at, "http://127.0.0.1:%d", s.port);
    add_text(model, texts);
    add_text(other, texts);
    drive_page(at, texts, &s);
}

int main(void) {
    if (server_tests_are_skipped()) return 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_guides_curl_examples_work),
        cmocka_unit_test(test_curl_sees_the_statuses),
        cmocka_unit_test(test_the_openai_package_works),
        cmocka_unit_test(test_the_page_works_in_a_browser),
        cmocka_unit_test(test_the_page_shows_two_models_side_by_side),
    };
    return cmocka_run_group_tests(tests, start_shared, stop_shared);
}
