/* What a study is, before it runs: `weft study --list`. */
#pragma once

#include "study/study.h"

/* Its variants and their costs on standard output, how small a difference it can show and that its runs take so
 * many seconds, one after the other; NaN: that is not known. */
void weft_study_list(const weft_study *s, double seconds, bool json);
