#include "base/embed.h"

WEFT_EMBED("weft_page_style", "src/base/page.css");
