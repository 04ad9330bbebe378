/* gnuplot as a process. */
#ifndef WEFT_STUDY_PLOT_PROCESS_H
#define WEFT_STUDY_PLOT_PROCESS_H

#include "core/error.h"

/* Runs a script; *output, the caller's to free, is what it wrote. WEFT_EMISSING: no gnuplot. The
 * variable WEFT_GNUPLOT names another program than the gnuplot on the path. */
weft_status weft_gnuplot(const char *script, char **output);

#endif
