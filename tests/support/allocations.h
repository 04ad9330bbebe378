/* Counts allocations, and lets one fail: the program that includes this has a malloc of its own, which stands before
 * the C library's. Where that cannot be (a sanitizer owns it, or another C library), COUNTS_ALLOCATIONS is
 * not defined. For one file of a program. */
#ifndef WEFT_TESTS_ALLOCATIONS_H
#define WEFT_TESTS_ALLOCATIONS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) ||                         \
    __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#endif

#if defined(__GLIBC__) && !defined(SANITIZED)
#define COUNTS_ALLOCATIONS 1

static atomic_int_least64_t allocations, live; /* live: those that were not freed */
/* Which allocation of this thread fails, counted from now on; 0: none does, or it has. */
static _Thread_local int64_t failing;

extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t align, size_t size);
extern void __libc_free(void *memory);

static inline void *note_allocation(void *memory) {
    if (memory) atomic_fetch_add_explicit(&live, 1, memory_order_relaxed);
    return memory;
}

static inline int fails_now(void) {
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    return failing > 0 && --failing == 0;
}

/* The C library calls these too, as strdup does. */
#pragma GCC visibility push(default)
void *malloc(size_t size) {
    return fails_now() ? NULL : note_allocation(__libc_malloc(size));
}

void *calloc(size_t n, size_t size) {
    return fails_now() ? NULL : note_allocation(__libc_calloc(n, size));
}

void *realloc(void *memory, size_t size) {
    if (fails_now()) return NULL;
    return memory ? __libc_realloc(memory, size) : note_allocation(__libc_malloc(size));
}

void *aligned_alloc(size_t align, size_t size) {
    return fails_now() ? NULL : note_allocation(__libc_memalign(align, size));
}

int posix_memalign(void **out, size_t align, size_t size) {
    *out = aligned_alloc(align, size);
    return *out ? 0 : 12;
}

void free(void *memory) {
    if (memory) atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
    __libc_free(memory);
}
#pragma GCC visibility pop

static inline int64_t count_allocations(void) {
    return atomic_load(&allocations);
}
#endif

#endif
