/* What ends with its scope, whichever way that is left.
 *
 *     WEFT_AUTO_FREE char *text = NULL;
 *     WEFT_TRY(weft_file_read(path, most, &text, &bytes));
 *     return parse(text, bytes);
 *
 * frees the text behind a failure and behind the end alike. WEFT_AUTO(end) calls `end` with the variable's
 * address. What is to live on is taken out of its scope: *out = weft_steal(&text). */
#pragma once

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WEFT_AUTO(end) __attribute__((cleanup(end)))
#define WEFT_AUTO_FREE WEFT_AUTO(weft_end_memory)
#define WEFT_AUTO_CLOSE WEFT_AUTO(weft_end_descriptor)
#define WEFT_AUTO_FCLOSE WEFT_AUTO(weft_end_stream)

/* Makes close_at, for WEFT_AUTO, of a function that ends one `type`. */
#define WEFT_ENDED_BY(close, type)                                                                 \
    static inline void close##_at(type **at) {                                                     \
        close(*at);                                                                                \
    }

/* The pointer at `at`, which is then NULL. */
static inline void *weft_steal(void *at) {
    void *taken, *none = NULL;
    memcpy(&taken, at, sizeof taken);
    memcpy(at, &none, sizeof none);
    return taken;
}

static inline void weft_end_memory(void *at) {
    free(weft_steal(at));
}

/* Frees each of a list; those that are NULL are none. */
#define WEFT_FREE(...)                                                                             \
    weft_free_list((void *[]){__VA_ARGS__}, sizeof((void *[]){__VA_ARGS__}) / sizeof(void *))
static inline void weft_free_list(void *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        free(list[i]);
}

/* -1: it is not open. */
static inline void weft_end_descriptor(const int *descriptor) {
    if (*descriptor >= 0) close(*descriptor);
}

static inline void weft_end_stream(FILE **stream) {
    if (*stream) fclose(*stream);
}

/* Holds a mutex to the end of the scope; once in a scope. */
#define WEFT_LOCK(mutex)                                                                           \
    WEFT_AUTO(weft_end_lock) __attribute__((unused)) pthread_mutex_t *locked_ = weft_lock(mutex)
static inline pthread_mutex_t *weft_lock(pthread_mutex_t *mutex) {
    pthread_mutex_lock(mutex);
    return mutex;
}

static inline void weft_end_lock(pthread_mutex_t **mutex) {
    pthread_mutex_unlock(*mutex);
}

/* Defines result name(const type *of), which tells one field of a type whose fields are its own file's. */
#define WEFT_GETTER(result, name, type, field)                                                     \
    result name(const type *of) {                                                                  \
        return of->field;                                                                          \
    }
