/* The machine in words, for records of what was run on it. */
#ifndef WEFT_BASE_MACHINE_H
#define WEFT_BASE_MACHINE_H

#include <stddef.h>

/* "x86_64 Linux 6.1.0, 16 processors". */
void weft_machine_text(char *text, size_t room);

#endif
