/* Help texts on a terminal of the usual width. */
#ifndef WEFT_CLI_FILLED_H
#define WEFT_CLI_FILLED_H

#include <stdio.h>

/* Writes a help text with no line beyond 79 columns. Lines that follow each other at the margin are one
 * paragraph. A line that begins with two blanks and has text from column 21 on is an option and what it
 * does, which goes on in the lines that are indented below it. Other lines stay as they are. */
void weft_print_filled(FILE *to, const char *text);

#endif
