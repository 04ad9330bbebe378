/* The variants of a study: what each one changes in the config, and what it is compared with.
 *
 * A config gets its values from the defaults, the file, the variant, the overrides of the command line,
 * later over earlier. So a variant is kept as what it sets, and a variant's config is read anew from its
 * source, not patched. */
#pragma once

#include "base/files.h"
#include "config/config.h"

enum { WEFT_VARIANT_NAME = 64, WEFT_VARIANT_TITLE = 160, WEFT_VARIANTS_MAX = 256 };

/* What is behind the blanks that a text begins with. */
static inline const char *weft_skip_blanks(const char *at) {
    return at + strspn(at, " \t\n\v\f\r");
}

/* Where a config comes from. */
typedef struct {
    const char *file; /* NULL: the defaults */
    const weft_override *overrides;
    int n_overrides;
} weft_source;

typedef struct {
    const weft_option *option;
    char *value;
} weft_setting;

typedef struct {
    char name[WEFT_VARIANT_NAME];
    char title[WEFT_VARIANT_TITLE]; /* its label: given, or made from what it sets */
    char base[WEFT_VARIANT_NAME];   /* of `vs BASE`; empty: not given */
    int baseline;                   /* the variant it is compared with; -1: none */
    int repeats;                    /* the variant it repeats; -1: none */
    weft_setting *sets;
    int n_sets;
} weft_variant;

typedef struct {
    weft_variant *list;
    int n;
} weft_variants;

/* A sweep: options that take several values each, as CONFIG_STUDY_SWEEP writes them (study/sweep.c).
 *
 *   KEY=0.1,0.3,1 × KEY=8,32      every pair: a grid
 *   KEY=log(1e-4..1e-2)           a range, uniform in the logarithm; 0..1 is uniform
 *
 * The parts are separated by ×, x or *, between blanks. A range is drawn from, so it needs a number of
 * points (STUDY_SWEEP_POINTS); with one, a grid is drawn from too. Draws follow from the study's seed
 * alone. */
enum { WEFT_SWEEP_AXES = 8, WEFT_SWEEP_VALUE = 128 };

typedef struct {
    char text[WEFT_SWEEP_AXES][WEFT_SWEEP_VALUE]; /* the value on each axis */
} weft_sweep_point;

typedef struct {
    const weft_option *option[WEFT_SWEEP_AXES];
    int axes;
    weft_sweep_point *points;
    int n;
} weft_sweep;

/* `points`: how many to draw; 0: the whole grid, of at most `most`. `where` is for messages. */
weft_status weft_sweep_read(const char *text, int points, int most, uint64_t seed,
                            const char *where, weft_sweep *out);
void weft_sweep_free(weft_sweep *s);

/* The variants that a config asks for: RA_MLA_ABLATION_STEPS, STUDY_VARIANTS, or one variant named `name`
 * with nothing set; with STUDY_SWEEP, each of them at every point of the sweep. `where` is the config's file, for messages. Keys are known and settable by a
 * variant; values are looked at when the variant is applied. */
weft_status weft_variants_parse(const weft_config *base, const char *where, const char *name,
                                weft_variants *out);
void weft_variants_free(weft_variants *s);
/* By name; -1: none, and an error that names the nearest one. */
int weft_variants_find(const weft_variants *s, const char *name);

bool weft_variant_sets(const weft_variant *v, const weft_option *option);
/* Whether a variant's title says more than its name and what it sets, "KEY=VALUE KEY=VALUE", do. */
bool weft_variant_labelled(const char *title, const char *name, const char *sets);

/* Whether the config lists variants, and whether they go by name. The ablation's go by number. */
bool weft_variants_listed(const weft_config *base);
bool weft_variants_by_name(const weft_config *base);

/* Step `number` of the ablation alone, whatever the config lists; `out` is the caller's as above. */
weft_status weft_variants_ablation(const weft_config *base, int number, weft_variants *out);

/* A variant's config: file, variant (NULL: none), overrides. Not checked as a whole. */
weft_status weft_source_read(const weft_source *s, const weft_variant *variant, weft_config *c);

/* A config's file that is named study, as `weft new` writes it, has a folder of its own. False: it is named
 * otherwise. */
bool weft_study_own_folder(const char *file, char folder[WEFT_PATH_MAX]);

/* A study's name from its config's file: the last part of the path, or its own folder's, letters that a
 * variant's name may not have left out; "study" for .config and where nothing is left. */
void weft_study_name(const char *file, char *name, size_t room);
