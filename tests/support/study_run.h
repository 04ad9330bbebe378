/* Studies that are small enough for tests, and what their databases hold. */
#ifndef WEFT_TESTS_STUDY_RUN_H
#define WEFT_TESTS_STUDY_RUN_H

#include <stdint.h>
#include <sys/types.h>

/* Writes a config: one layer, 8 steps, the ablation's steps 2 and 4 with two seeds and two rates. */
void study_config(const char *path);

enum { STUDY_ROOM = 256 };
/* Opens the scratch folder and runs that study in it to its end: its config and its folder. `more`:
 * arguments, which end on NULL; NULL: none. */
void study_whole(char config[STUDY_ROOM], char folder[STUDY_ROOM], const char *const *more);

/* The first column of the first row of a question to DIR/runs.db; 0 and "" where there is none. The
 * text is the caller's to free. */
int64_t study_number(const char *folder, const char *sql);
double study_real(const char *folder, const char *sql);
char *study_text(const char *folder, const char *sql);

/* Runs a statement that changes DIR/runs.db. */
void study_change(const char *folder, const char *sql);

/* Expects that `weft runs A --diff B` finds no difference. */
void study_same(const char *a, const char *b);

/* The run's process of a study that goes on in the background, waited for; 0: the study ended, or
 * this system does not tell. */
pid_t study_child(pid_t study);
/* Waits until so many runs of a study that goes on are in its database as done. */
void study_wait_done(pid_t study, const char *folder, int64_t runs);

#endif
