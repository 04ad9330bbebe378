/* The page, in one piece. */
#include "serve/page.h"

const char weft_page[] = "<!doctype html><title>weft</title>";
