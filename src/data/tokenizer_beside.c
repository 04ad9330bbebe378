/* What lies beside a tokenizer's file in a folder of Hugging Face's. The four files are kept as they are
 * and written wherever the tokenizer is; weft itself takes from them which tokens end generation, and
 * which tokens a pair of files without a tokenizer.json leaves out. */
#include "base/json.h"
#include "data/tokenizer_internal.h"

enum { BESIDE_MOST = 1 << 24 };

static const char *const names[BESIDE_FILES] = {
    [BESIDE_GENERATION] = "generation_config.json",
    [BESIDE_CONFIG] = "tokenizer_config.json",
    [BESIDE_SPECIALS] = "special_tokens_map.json",
    [BESIDE_CHAT] = "chat_template.jinja",
};

/* DIR/NAME as text; NULL where there is none. */
static weft_status read_optional(const char *dir, const char *name, char **out) {
    bool there;
    size_t bytes;
    *out = NULL;
    WEFT_PATH(path, "%s/%s", dir, name);
    WEFT_TRY(weft_path_there(path, &there));
    return there ? weft_file_read(path, BESIDE_MOST, out, &bytes) : WEFT_OK;
}

/* The model's config.json, where it is one of theirs; NULL: there is none. What is no JSON is somebody
 * else's. */
static weft_status read_model_config(const char *dir, json_t **out) {
    WEFT_AUTO_FREE char *text = NULL;
    *out = NULL;
    WEFT_TRY(read_optional(dir, "config.json", &text));
    if (text) *out = weft_json_read(text, strlen(text), 0, NULL);
    if (!json_is_string(json_object_get(*out, "model_type"))) json_decref(weft_steal(out));
    return WEFT_OK;
}

static void take_end(weft_tokenizer *t, const json_t *number) {
    json_int_t id = json_integer_value(number);
    if (json_is_integer(number) && id >= 0 && id < INT32_MAX && t->n_ends < TOKENIZER_ENDS_MAX)
        t->ends[t->n_ends++] = (int32_t)id;
}

weft_status weft_tokenizer_read_beside(weft_tokenizer *t, const char *dir) {
    WEFT_AUTO_DECREF json_t *root = NULL;
    for (int i = 0; i < BESIDE_FILES; i++)
        WEFT_TRY(read_optional(dir, names[i], &t->beside[i]));
    if (!t->beside[BESIDE_GENERATION]) { /* config.json says what would be in it */
        static const char *const keys[] = {"bos_token_id", "eos_token_id", "pad_token_id"};
        WEFT_AUTO_DECREF json_t *config = NULL, *made = json_object();
        WEFT_TRY(read_model_config(dir, &config));
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
            json_t *value = json_object_get(config, keys[i]);
            if (value && !json_is_null(value)) json_object_set(made, keys[i], value);
        }
        if (json_object_size(made) == 0) return WEFT_OK; /* nor does that */
        json_object_set_new(made, "_from_model_config", json_true());
        t->beside[BESIDE_GENERATION] = json_dumps(made, JSON_INDENT(2));
    }
    const char *text = t->beside[BESIDE_GENERATION];
    if (!text) return WEFT_OK;
    WEFT_TRY(weft_json_parse(t, text, strlen(text), &root));
    const json_t *ends = json_object_get(root, "eos_token_id");
    take_end(t, ends);
    EACH_ITEM(end, ends)
        take_end(t, end.value);
    return WEFT_OK;
}

weft_status weft_tokenizer_save_beside(const weft_tokenizer *t, const char *path) {
    const char *slash = strrchr(path, '/');
    char file[WEFT_PATH_MAX];
    for (int i = 0; i < BESIDE_FILES; i++) {
        if (!t->beside[i]) continue;
        WEFT_TRY(weft_path(file, "%.*s%s", slash ? (int)(slash - path + 1) : 0, path, names[i]));
        WEFT_TRY(weft_file_write(file, t->beside[i], strlen(t->beside[i]), NULL));
    }
    return WEFT_OK;
}

/* tokenizer_config.json; NULL: there is none. Its model_max_length may be a number beyond 64 bits. */
static json_t *parse_config(const weft_tokenizer *t) {
    const char *text = t->beside[BESIDE_CONFIG];
    return text ? weft_json_read(text, strlen(text), JSON_DECODE_INT_AS_REAL, NULL) : NULL;
}

bool weft_tokenizer_is_beside(const char *name) {
    bool is = false;
    for (int i = 0; i < BESIDE_FILES; i++)
        is = is || strcmp(name, names[i]) == 0;
    return is;
}

WEFT_GETTER(const char *, weft_tokenizer_generation, weft_tokenizer, beside[BESIDE_GENERATION])

/* A file of its own; or in tokenizer_config.json, as a text, or as a list of them by name. */
weft_status weft_tokenizer_chat(const weft_tokenizer *t, char **out) {
    const char *text = t->beside[BESIDE_CHAT];
    WEFT_AUTO_DECREF json_t *root = text ? NULL : parse_config(t);
    const json_t *chat = json_object_get(root, "chat_template");
    *out = NULL;
    if (!text) text = json_string_value(chat);
    EACH_ITEM(one, chat)
        if (!text && strcmp(weft_json_text_of(one.value, "name"), "default") == 0)
            text = json_string_value(json_object_get(one.value, "template"));
    if (!text) return WEFT_OK;
    *out = strdup(text);
    return *out ? WEFT_OK : weft_fail(WEFT_ENOMEM, "tokenizer %s: no memory", t->name);
}

weft_status weft_tokenizer_complete_pair(weft_tokenizer *t, const char *dir) {
    static const char qwen2[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                                " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    WEFT_AUTO_DECREF json_t *config = NULL;
    WEFT_TRY(read_model_config(dir, &config));
    const char *type = json_string_value(json_object_get(config, "model_type"));
    if (!type || strcmp(type, "gpt2") == 0) return weft_tokenizer_add_pattern(t, NULL);
    if (strcmp(type, "qwen2") != 0 && strcmp(type, "qwen3") != 0)
        return tokenizer_refuse(t,
                                "vocab.json and merges.txt do not say how a \"%.40s\" splits text; "
                                "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR), of "
                                "transformers, writes a tokenizer.json, which does",
                                type);
    t->split = qwen2;
    WEFT_TRY(weft_tokenizer_set_nfc(t));
    /* {"151643": {"content": "<|endoftext|>", "special": true, ...}, ...} */
    WEFT_AUTO_DECREF json_t *root = parse_config(t);
    EACH_MEMBER(token, json_object_get(root, "added_tokens_decoder")) {
        const char *content = json_string_value(json_object_get(token.value, "content"));
        if (content && weft_tokenizer_special(t, content) >= 0) continue;
        char *rest;
        long id = strtol(token.key, &rest, 10);
        WEFT_TRY(weft_tokenizer_read_added(t, token.value, *rest ? -1 : id));
    }
    return weft_tokenizer_add_pattern(t, qwen2);
}
