/* Readers of files that may be anything, each behind one function of bytes.
 *
 * A target writes its bytes where the reader looks for them, in a folder in memory, reads, and uses
 * all of what the reader accepted. A reader may refuse; it may not crash, read past an end, leak or
 * hang, and what it accepts must keep its promise, which FUZZ_PROMISE checks: what was written reads
 * back the same, a text comes back from its tokens.
 *
 * The same functions are run in two ways: `make fuzz` links each with libFuzzer, which looks for new
 * inputs (clang), and `make test` gives them the files of tests/fuzz/inputs and
 * tests/fuzz/regressions (test_regressions.c, any compiler). */
#ifndef WEFT_TESTS_FUZZ_H
#define WEFT_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* FUZZ_TARGET(name): the name of the target's folders, and of its function fuzz_NAME. */
#define FUZZ_TARGETS(FUZZ_TARGET)                                                                  \
    FUZZ_TARGET(config)                                                                            \
    FUZZ_TARGET(config_json)                                                                       \
    FUZZ_TARGET(jsonl)                                                                             \
    FUZZ_TARGET(merges)                                                                            \
    FUZZ_TARGET(metrics)                                                                           \
    FUZZ_TARGET(npy)                                                                               \
    FUZZ_TARGET(regex)                                                                             \
    FUZZ_TARGET(request)                                                                           \
    FUZZ_TARGET(runs_db)                                                                           \
    FUZZ_TARGET(safetensors)                                                                       \
    FUZZ_TARGET(shards)                                                                            \
    FUZZ_TARGET(state_json)                                                                        \
    FUZZ_TARGET(study)                                                                             \
    FUZZ_TARGET(tokenizer_json)

/* Whether the reader took it. */
#define FUZZ_DECLARE(name) bool fuzz_##name(const uint8_t *data, size_t size);
FUZZ_TARGETS(FUZZ_DECLARE)

/* Ends the process with a line that names the promise. */
#define FUZZ_PROMISE(holds, what)                                                                  \
    do {                                                                                           \
        if (!(holds)) fuzz_broken(__FILE__, __LINE__, what);                                       \
    } while (0)
_Noreturn void fuzz_broken(const char *file, int line, const char *what);

/* This process's own folder, in memory where the system has such a place; removed at the end. */
const char *fuzz_folder(void);
/* FOLDER/NAME with these bytes in it; the path is valid until the next call but three. */
const char *fuzz_file(const char *name, const void *data, size_t size);
/* The path alone. */
const char *fuzz_path(const char *name);
/* FOLDER/NAME as a new, empty folder. */
void fuzz_new_folder(const char *name);

/* Bytes of an input, taken from its front. */
typedef struct {
    const uint8_t *data;
    size_t size;
} fuzz_bytes;

/* All up to the next zero byte, which is dropped; the rest where there is none. */
fuzz_bytes fuzz_until_zero(fuzz_bytes *from);
/* One byte; 0 at the end. */
uint8_t fuzz_byte(fuzz_bytes *from);
/* A number of eight bytes, little endian; what is missing is 0. */
int64_t fuzz_number(fuzz_bytes *from);
/* Of so many ways to use what was read, the one that these bytes take; -1: all of them, one after the
 * other, as `make test` does. A fuzzer has so many inputs that each way sees plenty. */
int fuzz_way(const uint8_t *data, size_t size, int ways);
extern bool fuzz_every_way;
/* A malloc'd copy with a zero behind it. */
char *fuzz_text(fuzz_bytes bytes);

/* Reads every byte, so that a bad pointer is noticed. */
void fuzz_touch(const void *data, size_t size);

#endif
