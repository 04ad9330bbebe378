/* Models that none of Hugging Face's own classes computes: the folder brings the class along, in plain PyTorch,
 * and its config.json says so (auto_map). Tensors keep weft's names, and the options are in "weft":
 * all that say what a model computes, each of which the class knows. */
#include "base/embed.h"
#include "base/json.h"
#include "convert/hf.h"

WEFT_EMBED("weft_hf_configuration", "src/convert/configuration_weft.py");
WEFT_EMBED("weft_hf_modeling", "src/convert/modeling_weft.py");
extern const char weft_hf_configuration[], weft_hf_modeling[];

weft_status weft_hf_own_config(const weft_config *c, json_t **out) {
    WEFT_AUTO_DECREF json_t *all = weft_config_to_json(c), *ours = json_object();
    for (const weft_option *o = weft_options(NULL); o->key; o++) {
        char key[64];
        if (o->owner != WEFT_OWNER_MODEL) continue;
        weft_option_json_key(o, key, sizeof key);
        json_object_set(ours, key, json_object_get(all, key));
    }
    /* A path of this machine. */
    json_object_set_new(ours, "tokenizer", json_string("bytes"));
    *out = json_pack("{s:s, s:[s], s:{s:s, s:s}, s:O}", "model_type", "weft", "architectures",
                     "WeftForCausalLM", "auto_map", "AutoConfig", "configuration_weft.WeftConfig",
                     "AutoModelForCausalLM", "modeling_weft.WeftForCausalLM", "weft", ours);
    return *out ? WEFT_OK : weft_fail(WEFT_ENOMEM, "convert: no memory for config.json");
}

static weft_status write_text(const char *folder, const char *name, const char *text) {
    WEFT_PATH(path, "%s/%s", folder, name);
    return weft_file_write(path, text, strlen(text), NULL);
}

weft_status weft_hf_own_write(const weft_model *m, const char *folder, weft_sum sums[WEFT_PARTS]) {
    WEFT_TRY(weft_model_save_summed(m, folder, sums));
    WEFT_TRY(write_text(folder, "configuration_weft.py", weft_hf_configuration));
    return write_text(folder, "modeling_weft.py", weft_hf_modeling);
}
