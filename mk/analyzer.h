/* Read before every source by clang-tidy alone. The analyzer sees one file at a time, so it does not
 * know that weft_fail returns the status it was given, and would follow every failure as if it had
 * been a success. */
#ifndef WEFT_MK_ANALYZER_H
#define WEFT_MK_ANALYZER_H

#include "base/error.h"

#define weft_fail(status, ...) (weft_fail(status, __VA_ARGS__), (status))

#endif
