/* A study's config: lists of variants, seeds and rates. Sizes are held small, so that a plan is quick. */
#include "fuzz/fuzz.h"
#include "fuzz/small_study.h"

#include <string.h>

enum { VARIANTS_MOST = 16 }; /* each is planned */

/* Not too many for a short run of the target. */
static bool is_short(const char *path) {
    weft_config c;
    weft_variants variants;
    weft_config_defaults(&c);
    if (weft_config_read(&c, path) != WEFT_OK) return false;
    if (weft_variants_parse(&c, path, "study", &variants) != WEFT_OK) return false;
    bool fits = variants.n <= VARIANTS_MOST;
    for (int i = 0; i < variants.n; i++)
        FUZZ_PROMISE(weft_variants_find(&variants, variants.list[i].name) == i,
                     "a variant is found by its name");
    weft_variants_free(&variants);
    return fits;
}

bool fuzz_study(const uint8_t *data, size_t size) {
    const char *path = fuzz_file("study.config", data, size);
    weft_study *s;
    char text[WEFT_STUDY_LINE];
    weft_config c;
    if (!is_short(path) || small_study(path, &s) != WEFT_OK) return false;
    for (int i = 0; i < s->variants.n; i++) {
        weft_study_overrides(s, i, text, sizeof text);
        weft_study_run_config(s, i, weft_study_rate(s, i, weft_study_variant_rates(s) - 1),
                              weft_study_seed(s, 0), &c);
        FUZZ_PROMISE(*s->built[i].error || weft_study_tokens(s, i) >= 0, "tokens are counted");
    }
    weft_study_seeds_text(s, text, sizeof text);
    weft_study_rates_text(s, text, sizeof text);
    FUZZ_PROMISE(weft_study_variant_runs(s, 0) > 0, "a variant has a run");
    weft_study_close(s);
    return true;
}
