/* weft init: a fresh checkpoint. */
#include "base/text.h"
#include "cli/args.h"

const char weft_help_init[] =
    "  --config FILE\tthe config; default: every option's own default\n"
    "  --out DIR\twhere the checkpoint goes: config.json, model.safetensors, and state.json with "
    "their checksums\n"
    "  --force\treplace the model's folder that is there, whole\n"
    "  --seed N\trandom seed; default: the config's\n"
    "  --variant NAME|N\ta variant of the study, or 0 to 5 of the ablation\n"
    "  -o KEY=VALUE\toverride a config key; repeatable\n"
    "  --dtype T\tf32, bf16 or f64\n"
    "  --threads N\tdefault: one per processor; the result does not depend on it\n";

static weft_status write_parts(void *context, const char *folder, weft_sum sums[WEFT_PARTS]) {
    return weft_model_save_summed(context, folder, sums);
}

weft_status weft_cmd_init(weft_args *args, int argc, char **argv) {
    const char *out = NULL;
    bool force = false;
    const weft_arg own[] = {
        {"--out", .value = &out, .rule = WEFT_ARG_NEEDED}, {"--force", .flag = &force}, {0}};
    weft_config c;
    WEFT_AUTO(weft_model_destroy_at) weft_model *m = NULL;
    WEFT_AUTO(weft_pool_destroy_at) weft_pool *pool = NULL;
    WEFT_TRY(
        weft_args_parse(args, argc, argv, ARGS_THREADS | ARGS_DTYPE | ARGS_CONFIG, own, NULL, 0));
    if (args->config) WEFT_TRY(weft_args_readable(args->config, NULL));
    weft_may_replace may = WEFT_NEW_MODEL_MAY(force);
    WEFT_TRY(weft_args_config(args, &c));
    WEFT_TRY(weft_new_folder_room(out, may));
    WEFT_TRY(weft_model_create(&c, weft_config_dtype(&c), NULL, &m));
    WEFT_TRY(weft_pool_create(args->threads, &pool));
    WEFT_TRY(weft_model_start(m, (uint64_t)c.seed, pool));
    WEFT_TRY(weft_model_publish(out, may, write_parts, m));
    fprintf(stderr, "%s: %s parameters\n", out, weft_count_text(weft_model_parameter_count(m)));
    return WEFT_OK;
}
