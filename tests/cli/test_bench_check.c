/* `make bench-check`: bench/check.py finds what is worse than its floor, in all three tables. */
#include "support/command.h"
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

static int shell(const char *line) {
    int status = system(line);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Runs the check on a measurement; returns its exit status, and what it said in `said`. */
static int check(const char *measured, char **said) {
    if (shell("python3 -c 1 2>/dev/null") != 0) {
        printf("no python3 here\n");
        skip();
    }
    char line[2048];
    file_write(scratch_path("measured.json"), measured, strlen(measured));
    snprintf(line, sizeof line, "python3 bench/check.py '%s' >'%s' 2>&1",
             scratch_path("measured.json"), scratch_path("said"));
    int status = shell(line);
    *said = file_read(scratch_path("said"), NULL);
    return status;
}

TEST(test_a_ratio_under_its_floor_is_named) {
    static const struct {
        const char *measured, *says;
        int status;
    } cases[] = {
        {"{\"limits\": {}, \"memory\": [], \"rows\": [{\"group\": \"attention\", "
         "\"row\": \"dot 64/64 T=1024\", \"pass\": \"forward\", \"ratio\": 0.5}]}",
         "ops, attention dot 64/64 T=1024 forward: ratio is 0.500", 1},
        {"{\"limits\": {}, \"rows\": [], \"memory\": ["
         "{\"op\": \"attention_dot\", \"tokens\": 10, \"arena_bytes\": 100}, "
         "{\"op\": \"attention_dot\", \"tokens\": 100, \"arena_bytes\": 9000}]}",
         "bytes_growth is 9.000, at most 1.1", 1},
        {"{\"shape\": {}, \"rows\": [{\"variant\": \"dot\", \"ratio\": 9, \"peak_of_plan\": 1.5}]}",
         "train, dot: peak_of_plan is 1.500, at most 1.02", 1},
        {"{\"limits\": {}, \"attention\": {}, \"rows\": [{\"variant\": \"w2\", \"ratio\": 9, "
         "\"ours\": {\"gib\": 99}}]}",
         "gpu, w2: gib is 99.000", 1},
        /* a variant's old name */
        {"{\"limits\": {}, \"attention\": {}, \"rows\": [{\"variant\": \"step2\", \"ratio\": "
         "0.5}]}",
         "gpu, mla+gate+cross: ratio is 0.500", 1},
        {"{\"shape\": {}, \"rows\": [{\"variant\": \"dot\", \"ratio\": 9, \"peak_of_plan\": 1}]}",
         "2 values, 0 worse", 0},
        {"{\"shape\": {}, \"rows\": []}", "nothing to compare", 2},
        {"no JSON", "bench-check: ", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *said;
        int status = check(cases[i].measured, &said);
        if (status != cases[i].status || !strstr(said, cases[i].says))
            fail_msg("case %zu ended %d and said: %s", i, status, said);
        free(said);
    }
}

RUN_TESTS(scratch_setup, scratch_teardown)
