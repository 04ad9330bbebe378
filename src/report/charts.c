/* The two files, as they are. */
#include "report/charts.h"

#include "base/embed.h"

WEFT_EMBED("weft_charts_script", "src/report/charts.js");
WEFT_EMBED("weft_charts_style", "src/report/charts.css");
