/* The page from its files, which stay HTML, JavaScript and CSS. */
#include "watch/live_page.h"

#include "base/embed.h"
#include "report/charts.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

WEFT_EMBED("weft_live_body", "src/watch/live.html");
WEFT_EMBED("weft_live_script", "src/watch/live.js");
WEFT_EMBED("weft_live_style", "src/watch/live.css");

extern const char weft_live_body[], weft_live_script[], weft_live_style[];

char *weft_live_page(void) {
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (!out) return NULL;
    fprintf(out,
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
            "<link rel=\"icon\" href=\"data:,\">\n"
            "<title>weft watch</title>\n<style>\n%s%s</style></head>\n<body>\n%s"
            "<script>\n%s</script>\n<script>\n%s</script>\n</body></html>\n",
            weft_charts_style, weft_live_style, weft_live_body, weft_charts_script,
            weft_live_script);
    bool bad = ferror(out) != 0;
    if (fclose(out) == 0 && !bad) return text;
    free(text);
    return NULL;
}
