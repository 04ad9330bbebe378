/* Running the program. Its output goes to files and not to pipes, so that however much it writes it
 * never waits for us, and a time limit keeps a hang from taking the whole test with it. */
#include "command.h"

#include "test.h"

#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORDS_MOST = 64, LIMIT_SECONDS = 300, PAUSE_MS = 2 };

/* Texts that are kept to the end of the program. */
static const char *keep_text(char *text) {
    static char **kept;
    static size_t n;
    assert_non_null(text);
    kept = realloc(kept, (n + 1) * sizeof *kept);
    assert_non_null(kept);
    return kept[n++] = text;
}

const char *format_text(const char *format, ...) {
    char *text;
    va_list args;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0) text = NULL;
    va_end(args);
    return keep_text(text);
}

static char *take_file(FILE *file, size_t *count) {
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long size = ftell(file);
    assert_true(size >= 0);
    rewind(file);
    char *bytes = calloc((size_t)size + 1, 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, (size_t)size, file), (size_t)size);
    fclose(file);
    if (count) *count = (size_t)size;
    return bytes;
}

char *file_read(const char *path, size_t *count) {
    FILE *file = fopen(path, "rb");
    if (!file) fail_msg("%s cannot be opened", path);
    return take_file(file, count);
}

json_t *file_json(const char *path) {
    char command[512];
    snprintf(command, sizeof command, "gzip -dc '%s'", path);
    FILE *packed = popen(command, "r");
    assert_non_null(packed);
    json_t *root = json_loadf(packed, JSON_ALLOW_NUL, NULL);
    assert_int_equal(pclose(packed), 0);
    assert_non_null(root);
    return root;
}

const char *hf_path(const char *name) {
    if (access(scratch_path("hf"), F_OK) != 0)
        shell_succeeds("tar -xJf tests/vectors/hf.tar.xz -C '%s'", scratch_path("."));
    return scratch_path("hf/%s", name);
}

void file_expect_equal(const char *a, const char *b) {
    size_t n, m;
    char *x = file_read(a, &n), *y = file_read(b, &m);
    assert_int_equal(n, m);
    assert_memory_equal(x, y, n);
    free(x);
    free(y);
}

void file_write(const char *path, const void *bytes, size_t count) {
    FILE *file = fopen(path, "wb");
    if (!file) fail_msg("%s cannot be made", path);
    if (count) assert_int_equal(fwrite(bytes, 1, count, file), count);
    assert_int_equal(fclose(file), 0);
}

void config_write(const char *path, const char *options) {
    FILE *file = fopen(path, "w");
    if (!file) fail_msg("%s cannot be made", path);
    for (size_t n; *options; options += n + strspn(options + n, " ")) {
        n = strcspn(options, " ");
        fprintf(file, "CONFIG_%.*s\n", (int)n, options);
    }
    assert_int_equal(fclose(file), 0);
}

const char *command_program(void) {
    const char *named = getenv("WEFT");
    return named ? named : "build/weft";
}

void command_words(const char *const *arguments, char **words, int room) {
    int n = 0;
    char *at = strdup(command_program());
    keep_text(at);
    for (char *word; (word = strtok_r(at, " ", &at)) && n < room;)
        words[n++] = word;
    for (; *arguments && n < room; arguments++)
        words[n++] = (char *)(uintptr_t)*arguments;
    assert_true(n < room);
    words[n] = NULL;
}

/* Of each command. */
static bool is_first_run(const char *command) {
    static char seen[16][32];
    static int n;
    for (int i = 0; i < n; i++)
        if (strncmp(seen[i], command, sizeof seen[i] - 1) == 0) return false;
    if (n < 16) snprintf(seen[n++], sizeof seen[0], "%s", command);
    return true;
}

void command_skip_leaks(void) {
    const char *options = getenv("ASAN_OPTIONS");
    setenv("ASAN_OPTIONS", format_text("%s:detect_leaks=0", options ? options : ""), 1);
}

static void start(char **words, FILE *out, FILE *err) {
    int nothing = open("/dev/null", O_RDONLY);
    if (nothing < 0 || dup2(nothing, 0) < 0 || dup2(fileno(out), 1) < 0 || dup2(fileno(err), 2) < 0)
        _exit(126);
    execvp(words[0], words);
    _exit(127);
}

void pause_ms(long milliseconds) {
    const struct timespec pause = {.tv_sec = milliseconds / 1000,
                                   .tv_nsec = milliseconds % 1000 * 1000000L};
    nanosleep(&pause, NULL);
}

int command_patience(void) {
    const char *times = getenv("PATIENCE");
    long n = times ? strtol(times, NULL, 10) : 1;
    return n > 1 && n < 1000 ? (int)n : 1;
}

static int wait_for(pid_t child) {
    const long limit = 1000L * LIMIT_SECONDS * command_patience();
    int status;
    for (long waited = 0; waitpid(child, &status, WNOHANG) == 0; waited += PAUSE_MS) {
        if (waited >= limit) kill(child, SIGKILL);
        pause_ms(PAUSE_MS);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

command_result command_run(const char *const *arguments) {
    char *words[WORDS_MOST];
    command_result r = {0};
    FILE *out = tmpfile(), *err = tmpfile();
    assert_non_null(out);
    assert_non_null(err);
    for (size_t i = 0, at = 0; arguments[i] && at < sizeof r.line; i++)
        at += (size_t)snprintf(r.line + at, sizeof r.line - at, " %s", arguments[i]);
    command_words(arguments, words, WORDS_MOST);
    bool first = is_first_run(arguments[0] ? arguments[0] : "");
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0 && !first) command_skip_leaks();
    if (child == 0) start(words, out, err);
    r.status = wait_for(child);
    r.out = take_file(out, NULL);
    r.err = take_file(err, NULL);
    return r;
}

double real_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_number(value)) fail_msg("'%s' is missing or no number", key);
    return json_number_value(value);
}

long long integer_of(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value)) fail_msg("'%s' is missing or no whole number", key);
    return json_integer_value(value);
}

void command_free(command_result *r) {
    free(r->out);
    free(r->err);
}

void command_succeeds(const char *const *arguments, char **out) {
    WEFT_AUTO(command_free) command_result r = command_run(arguments);
    if (r.status != 0) fail_msg("weft%s ended on %d: %s", r.line, r.status, r.err);
    if (out) {
        *out = r.out;
        r.out = NULL;
    }
}

char *command_output(const char *const *arguments) {
    char *out;
    command_succeeds(arguments, &out);
    return out;
}

json_t *command_json(const char *const *arguments) {
    command_result r = command_run(arguments);
    if (r.status != 0) fail_msg("weft%s ended on %d: %s", r.line, r.status, r.err);
    if (*r.err) fail_msg("weft%s wrote to standard error: %s", r.line, r.err);
    json_error_t error;
    json_t *object = json_loads(r.out, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(object)) fail_msg("weft%s: %s in: %s", r.line, error.text, r.out);
    command_free(&r);
    return object;
}

void command_fails(int status, const char *const *arguments, const char *const *words) {
    WEFT_AUTO(command_free) command_result r = command_run(arguments);
    if (r.status != status)
        fail_msg("weft%s ended on %d, not %d: %s%s", r.line, r.status, status, r.out, r.err);
    if (*r.out) fail_msg("weft%s wrote to standard output: %s", r.line, r.out);
    const char *end = strchr(r.err, '\n');
    if (!end || end[1] || strncmp(r.err, "weft", 4) != 0)
        fail_msg("weft%s: not one line of error: '%s'", r.line, r.err);
    for (; *words; words++)
        if (!strstr(r.err, *words)) fail_msg("weft%s does not say '%s': %s", r.line, *words, r.err);
}

static char scratch[64];

void scratch_open(void) {
    /* In memory where there is such a place: some tests write thousands of files. */
    snprintf(scratch, sizeof scratch, "/dev/shm/weft-test-XXXXXX");
    if (mkdtemp(scratch)) return;
    snprintf(scratch, sizeof scratch, "/tmp/weft-test-XXXXXX");
    assert_non_null(mkdtemp(scratch));
}

static int remove_one(const char *path, const struct stat *is, int kind, struct FTW *at) {
    (void)is;
    (void)kind;
    (void)at;
    return remove(path);
}

void scratch_close(void) {
    nftw(scratch, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

void shell_succeeds(const char *format, ...) {
    char line[2000];
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    if (system(line) != 0) fail_msg("%s", line); /* NOLINT */
}

int scratch_setup(void **state) {
    (void)state;
    scratch_open();
    return 0;
}

int scratch_teardown(void **state) {
    (void)state;
    scratch_close();
    return 0;
}

const char *scratch_path(const char *format, ...) {
    char *name, *path;
    va_list args;
    va_start(args, format);
    if (vasprintf(&name, format, args) < 0) name = NULL;
    va_end(args);
    if (asprintf(&path, "%s/%s", scratch, name) < 0) path = NULL;
    free(name);
    return keep_text(path);
}
