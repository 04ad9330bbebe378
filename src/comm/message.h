/* Memory for messages. After a fault the library that sends them may still read and write what it was
 * given, so memory of a message that failed is not freed: it is kept until the process ends, which a
 * fault ends soon. */
#ifndef WEFT_COMM_MESSAGE_H
#define WEFT_COMM_MESSAGE_H

#include "base/error.h"

#include <stddef.h>

/* Zeros; NULL: there is no memory. */
void *weft_message_memory(size_t count, size_t size);
/* `status` is what became of the messages. NULL is allowed. */
void weft_message_done(void *memory, weft_status status);

#endif
