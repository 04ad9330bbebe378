#include "study_run.h"

#include "command.h"
#include "test.h"
#include "train_run.h"

#include <signal.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WAITS = 30000, BUSY_MS = 10000 };

void study_config(const char *path) {
    config_write(path, "ATTENTION=mla FFN=swiglu POSITION=rope N_LAYER=1 N_HEAD=2 N_EMBD=16 "
                       "RA_MLA_LATENT_DIM=8 RA_MLA_MLP_GATE_DIM=8 VOCAB_SIZE=256 CONTEXT=16 "
                       "DROPOUT=0.1 OPTIMIZER=adamwspam SPAM_INTERVAL=5 SPAM_WARMUP_STEPS=4 "
                       "BATCH_SIZE=2 STEPS=8 WARMUP_STEPS=3 EVAL_INTERVAL=4 EVAL_SAMPLES=2 "
                       "LOG_INTERVAL=1 CHECKPOINT_INTERVAL=3 SAVE_CHECKPOINT=n "
                       "RA_MLA_ABLATION_STEPS=2,4 STUDY_SEEDS=2 STUDY_TAIL=5 "
                       "STUDY_LEARNING_RATES=1e-3,1e-2");
}

void study_whole(char config[STUDY_ROOM], char folder[STUDY_ROOM], const char *const *more) {
    const char *arguments[16] = {"study", "--config", config, "--out", folder};
    scratch_open();
    snprintf(config, STUDY_ROOM, "%s", scratch_path("config"));
    snprintf(folder, STUDY_ROOM, "%s", scratch_path("whole"));
    study_config(config);
    for (int i = 5; more && *more; more++, i++) {
        assert_true(i < 15);
        arguments[i] = *more;
    }
    command_succeeds(arguments, NULL);
}

/* A question's first row; NULL: there is none, or no database yet. */
static sqlite3_stmt *ask(const char *folder, const char *sql, sqlite3 **db) {
    sqlite3_stmt *rows = NULL;
    const char *path = format_text("%s/runs.db", folder);
    if (sqlite3_open_v2(path, db, SQLITE_OPEN_READONLY, NULL) != SQLITE_OK) return NULL;
    sqlite3_busy_timeout(*db, BUSY_MS);
    if (sqlite3_prepare_v2(*db, sql, -1, &rows, NULL) != SQLITE_OK) return NULL;
    if (sqlite3_step(rows) == SQLITE_ROW) return rows;
    sqlite3_finalize(rows);
    return NULL;
}

static void end(sqlite3_stmt *rows, sqlite3 *db) {
    sqlite3_finalize(rows);
    sqlite3_close(db);
}

int64_t study_number(const char *folder, const char *sql) {
    sqlite3 *db;
    sqlite3_stmt *rows = ask(folder, sql, &db);
    int64_t value = rows ? sqlite3_column_int64(rows, 0) : 0;
    end(rows, db);
    return value;
}

void study_change(const char *folder, const char *sql) {
    sqlite3 *db;
    const char *path = format_text("%s/runs.db", folder);
    assert_int_equal(sqlite3_open_v2(path, &db, SQLITE_OPEN_READWRITE, NULL), SQLITE_OK);
    sqlite3_busy_timeout(db, BUSY_MS);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    sqlite3_close(db);
}

double study_real(const char *folder, const char *sql) {
    sqlite3 *db;
    sqlite3_stmt *rows = ask(folder, sql, &db);
    double value = rows ? sqlite3_column_double(rows, 0) : 0;
    end(rows, db);
    return value;
}

char *study_text(const char *folder, const char *sql) {
    sqlite3 *db;
    sqlite3_stmt *rows = ask(folder, sql, &db);
    const char *text = rows ? (const char *)sqlite3_column_text(rows, 0) : NULL;
    char *copy = strdup(text ? text : "");
    end(rows, db);
    assert_non_null(copy);
    return copy;
}

void study_same(const char *a, const char *b) {
    WEFT_AUTO(command_free) command_result r = command_run(RUN("runs", a, "--diff", b));
    if (r.status != 0) fail_msg("%s%s", r.out, r.err);
}

/* Whether a child has ended; it can be waited for afterwards. kill finds a process that ended, too. */
static bool has_ended(pid_t child) {
    siginfo_t info = {0};
    return waitid(P_PID, (id_t)child, &info, WEXITED | WNOHANG | WNOWAIT) != 0 ||
           info.si_pid == child;
}

pid_t study_child(pid_t study) {
    const char *path = format_text("/proc/%d/task/%d/children", (int)study, (int)study);
    if (access(path, R_OK) != 0) return 0;
    for (int i = 0; i < WAITS && !has_ended(study); i++) {
        int child = 0;
        FILE *file = fopen(path, "r");
        if (file && fscanf(file, "%d", &child) != 1) child = 0;
        if (file) fclose(file);
        if (child > 0) return child;
        pause_ms(1);
    }
    return 0;
}

void study_wait_done(pid_t study, const char *folder, int64_t runs) {
    for (int i = 0; i < WAITS && !has_ended(study); i++) {
        if (study_number(folder, "SELECT count(*) FROM runs WHERE status = 'done'") >= runs) return;
        pause_ms(5);
    }
}
