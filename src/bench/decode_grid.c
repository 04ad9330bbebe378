/* The grid is a table of its own, so that two runs of it are of the same rows. */
#include "bench/tables.h"

#include "base/json.h"

#include <math.h>

/* Rows of one model stand together, and those that take the longest at the end. */
static const struct {
    const char *model, *variant; /* a shape, and what is set over it */
    int64_t context, batches[4];
} grid[] = {
    {"gpt2-124m", "dot", 1024, {1, 8, 64, 256}},
    {"gpt2-124m", "dot", 8192, {64}},
    {"gpt2-124m", "dot", 32768, {1, 64}},
    {"gpt2-124m", "w2", 1024, {1, 64}},
    {"gpt2-124m", "w2", 8192, {64}},
    {"gpt2-124m", "w2", 32768, {8}},
    {"gpt2-124m", "mla", 1024, {1, 8, 64, 256}},
    {"gpt2-124m", "mla", 8192, {64}},
    {"gpt2-124m", "mla", 32768, {1, 64}},
    {"gpt2-124m", "mla+gate", 1024, {1, 64}},
    {"gpt2-124m", "mla+gate+cross", 1024, {1, 64}},
    {"gpt2-124m", "mla+gate+cross64", 1024, {1, 64}},
    {"gpt2-124m", "mla+gate+cross64", 8192, {64}},
    {"gpt2-124m", "mla+all", 1024, {1, 64, 256}},
    {"gpt2-124m", "wsffn", 1024, {1}},
    {"gpt2-124m", "wsffn-grouped", 1024, {64}},
    {"gpt2-124m N_HEAD=6", "dot", 1024, {1, 64}},
    {"gpt2-124m N_HEAD=6", "w2", 1024, {1, 64}},
    {"llama-1b", "swiglu", 1024, {1, 8, 64}},
    {"llama-1b", "swiglu", 8192, {64}},
    {"gpt2-355m", "dot", 1024, {1, 64}},
    {"gpt2-355m", "mla", 1024, {1, 64}},
    {"gpt2-355m", "mla+all", 1024, {1, 64}},
    {"gpt2-1558m", "dot", 1024, {1, 64}},
    {"gpt2-1558m", "mla", 1024, {1, 64}},
    {"gpt2-1558m", "mla+all", 1024, {1, 64}},
};

const char *bench_row_name(const bench_decode_row *r, char name[BENCH_ROW_NAME]) {
    snprintf(name, BENCH_ROW_NAME, "%.40s%s%.40s, context %lld, batch %lld",
             r->model ? r->model : "", r->model ? ", " : "", r->variant->name,
             (long long)r->context, (long long)r->batch);
    return name;
}

bool bench_row_same_model(const bench_decode_row *a, const bench_decode_row *b) {
    return a->variant == b->variant && (a->model == b->model || strcmp(a->model, b->model) == 0);
}

weft_status bench_grid_list(const bench_options *o, bench_decode_row *rows, int *n) {
    char name[BENCH_ROW_NAME], shape[32];
    *n = 0;
    if (!rows) return weft_fail(WEFT_ENOMEM, "bench: no memory");
    for (int i = 0; i < WEFT_COUNT(grid); i++) {
        size_t length = strcspn(grid[i].model, " ");
        const char *setting = grid[i].model + length;
        char over[64];
        snprintf(over, sizeof over, "DTYPE=%s%s", o->cuda ? "bf16" : "f32", setting);
        snprintf(shape, sizeof shape, "%.*s", (int)length, grid[i].model);
        bench_config_source source = {.shape = bench_shape_find(shape),
                                      .over = over,
                                      .settings = o->source.settings,
                                      .n_settings = o->source.n_settings};
        for (int k = 0; k < 4 && grid[i].batches[k]; k++) {
            bench_decode_row *r = rows + *n;
            *r = (bench_decode_row){.model = grid[i].model,
                                    .variant = bench_variant_find(grid[i].variant),
                                    .context = grid[i].context,
                                    .batch = grid[i].batches[k]};
            bool small = strncmp(r->model, "gpt2-124m", 9) == 0 && r->context <= 1024;
            if ((!o->cuda && (!small || r->batch > 8)) ||
                (o->rows && !strstr(bench_row_name(r, name), o->rows)))
                continue;
            WEFT_TRY(bench_variant_config(r->variant, &source, &r->config));
            r->config.context = r->context;
            for (bench_decode_row *before = r - 1;
                 before >= rows && bench_row_same_model(before, r); before--)
                if (before->config.context > r->context)
                    r->config.context = before->config.context;
                else
                    before->config.context = r->context;
            ++*n;
        }
    }
    if (*n) return WEFT_OK;
    return WEFT_BAD_INPUT("no row of the grid%s has '%s' in its name", o->cuda ? "" : " on a CPU",
                          o->rows);
}

typedef struct {
    double logs;
    int count;
} mean;

static double mean_of(mean m) {
    return m.count ? exp(m.logs / m.count) : NAN;
}

json_t *bench_grid_summary(const json_t *rows, FILE *to) {
    mean all = {0}, one = {0}, many = {0};
    int below_1 = 0, below_9 = 0;
    double worst = INFINITY;
    const char *worst_name = "";
    EACH_ITEM(each, rows) {
        const json_t *row = each.value;
        double ratio = json_number_value(json_object_get(row, "ratio"));
        json_int_t batch = json_integer_value(json_object_get(row, "batch"));
        if (ratio <= 0) continue;
        mean *of[] = {&all, batch == 1 ? &one : batch == 64 ? &many : NULL};
        for (int k = 0; k < 2; k++)
            if (of[k]) *of[k] = (mean){of[k]->logs + log(ratio), of[k]->count + 1};
        below_1 += ratio < 1;
        below_9 += ratio < 0.9;
        if (ratio >= worst) continue;
        worst = ratio;
        worst_name = json_string_value(json_object_get(row, "name"));
    }
    if (!all.count) return json_null();
    static const char *const words[] = {"rows", "with one sequence", "with 64"};
    const mean means[] = {all, one, many};
    if (to) fputs("\nratio to the peer, geometric mean:", to);
    for (int k = 0; to && k < 3; k++)
        if (means[k].count)
            fprintf(to, "%s %.2f of %d %s", k ? "," : "", mean_of(means[k]), means[k].count,
                    words[k]);
    if (to)
        fprintf(to, "\nworst: %.2f, %s\nbelow 1.0: %d rows, below 0.9: %d\n", worst, worst_name,
                below_1, below_9);
    return weft_json_make("rows:i geometric_mean:f one_sequence:f 64_sequences:f worst_ratio:f "
                          "worst:s below_1:i below_0_9:i",
                          all.count, mean_of(all), mean_of(one), mean_of(many), worst, worst_name,
                          below_1, below_9);
}
