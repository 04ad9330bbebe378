/* What generation costs with the trained models (EVAL_DECODE): tokens per second and the cache, by variant. */
#include "report/sections.h"

#include <math.h>

static bool has_decode(const weft_report_data *d, int variant) {
    return d->variants[variant].repeats < 0 &&
           isfinite(weft_report_fact_mean(d, variant, "decode_tokens_per_s_1"));
}

weft_status weft_report_decode(weft_page *p, const weft_report_data *d) {
    static const char *const rows[][2] = {
        {"decode_tokens_per_s_1", "tokens per second, one sequence"},
        {"decode_tokens_per_s_8", "tokens per second, eight sequences"},
        {"decode_cache_bytes_per_token", "cache bytes per token"}};
    if (weft_report_count(d, has_decode) == 0) return WEFT_OK;
    weft_page_heading(p, "Generation",
                      "How fast the trained models make text behind a full context, as weft bench "
                      "decode measures it, and what they keep of each token: the mean over seeds. "
                      "Runs that shared the machine with others were slower.");
    weft_report_open_table(p, d, "number", has_decode);
    for (int i = 0; i < 3; i++) {
        weft_page_cell(p, "%s", rows[i][1]);
        for (int k = 0; k < d->n_variants; k++)
            if (has_decode(d, k))
                weft_page_cell(p, "%s",
                               weft_say_number(round(weft_report_fact_mean(d, k, rows[i][0]))));
    }
    return WEFT_OK;
}
