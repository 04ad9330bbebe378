/* A study that costs next to nothing to plan, whatever its config says beside its variants. */
#ifndef WEFT_TESTS_FUZZ_SMALL_STUDY_H
#define WEFT_TESTS_FUZZ_SMALL_STUDY_H

#include "study/study.h"

/* Opens the study of a config file, sizes and data being those of a small one. */
weft_status small_study(const char *file, weft_study **out);

#endif
