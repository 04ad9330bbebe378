/* The two files, as they are. */
#include "study/charts.h"

#include "core/embed.h"

WEFT_EMBED("weft_charts_script", "src/study/charts.js");
WEFT_EMBED("weft_charts_style", "src/study/charts.css");
