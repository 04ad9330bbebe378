/* What is kept is a list, so that it stays reachable: a leak that a tool finds is another one. */
#include "comm/message.h"

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

/* Stands before the memory of a message. */
typedef union message {
    union message *next;
    max_align_t aligned;
} message;

static message *kept;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void *weft_message_memory(size_t count, size_t size) {
    if (size && count > (SIZE_MAX - sizeof(message)) / size) return NULL;
    char *memory = calloc(1, sizeof(message) + count * size);
    if (memory) memory += sizeof(message);
    return memory;
}

void weft_message_done(void *memory, weft_status status) {
    if (!memory) return;
    message *m = (message *)memory - 1;
    if (status == WEFT_OK) {
        free(m);
        return;
    }
    pthread_mutex_lock(&lock);
    m->next = kept;
    kept = m;
    pthread_mutex_unlock(&lock);
}
