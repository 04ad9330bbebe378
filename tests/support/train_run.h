/* Runs of `weft train` that are small enough for tests, in the foreground (command.h) or in the
 * background, where they can be sent signals. */
#ifndef WEFT_TESTS_TRAIN_RUN_H
#define WEFT_TESTS_TRAIN_RUN_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

/* Writes a config: two layers, dropout, 3 × 2 micro-batches a step, 12 steps. */
void train_config(const char *path);
/* As the setup of a group: opens a scratch folder with such a config in it. */
int train_setup(void **state);
extern const char *config_path;

/* The lines of a run's metrics.jsonl, and the last of them; the caller lets go of them. */
json_t *train_metrics(const char *run);
json_t *train_last_metrics(const char *run);

/* What a run says of itself at its end, without what time has to do with; the caller lets go of it. */
json_t *train_result(const char *run);

/* Starts the program; its standard error goes to the file `err`. No file may grow past `limit`
 * bytes; 0: no limit. */
pid_t train_start(const char *const *arguments, const char *err, long limit);
/* Skips the test where such a limit would hold for ThreadSanitizer's own memory too. */
void train_need_limit(void);
/* Waits for the end: the exit status, or minus the signal. */
int train_wait(pid_t child);
/* Waits until a file is there and has the text. */
void train_wait_text(const char *path, const char *text);
/* Waits until a run that goes on has written another OUT/last than there is now. */
void train_wait_checkpoint(pid_t child, const char *out);
/* Whether one came; false: the process ended before. */
bool train_sees_checkpoint(pid_t child, const char *out);

/* Expects equal contents of A/NAME and B/NAME. */
void train_same_file(const char *a, const char *b, const char *name);
/* The same of the weights and the optimizer's state in A/last and B/last. */
void train_same_end(const char *a, const char *b);

/* Whether the long form of tests is asked for (make test-long). */
bool train_long(void);

#endif
