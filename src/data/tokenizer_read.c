/* The files a tokenizer is read from. Whatever is in one is checked before it is used: numbers twice, merges of
 * tokens that do not exist, bytes without a token.
 *
 * GPT-2's pair: vocab.bpe is a line a merge, "left right", best first; encoder.json gives every token its number.
 *
 * A Hugging Face tokenizer.json holds both and how to split: a pipeline of normalizer, splitting steps, model, added
 * tokens. What is taken is byte-level BPE, without a normalizer or with NFC, and SentencePiece's BPE and Unigram.
 * Where these fall back to bytes no byte of a text in composed form is lost, and decoding gives it back; Unigram may
 * have a token for unknown characters in place of that. All else is refused by its name, rather than read as
 * something it is not. Of the post-processor, which puts tokens around a text, the one that begins it is
 * taken; weft_encode_text puts it there. */
#include "base/json.h"
#include "data/tokenizer_internal.h"

#include <errno.h>

weft_status weft_json_parse(const weft_tokenizer *t, const char *text, size_t bytes, json_t **out) {
    json_error_t error;
    *out = weft_json_read(text, bytes, JSON_REJECT_DUPLICATES, &error);
    if (!*out) return tokenizer_refuse(t, "line %d is no JSON: %.80s", error.line, error.text);
    if (json_is_object(*out)) return WEFT_OK;
    json_decref(weft_steal(out));
    return tokenizer_refuse(t, "is no JSON object");
}

/* The bytes that a token's text in a file stands for, to `out` (as long as text); -1: it stands for none. */
static int64_t token_bytes(const weft_tokenizer *t, const char *text, size_t length, char *out) {
    if (!t->characters) return weft_symbols_to_bytes(text, length, out);
    return (int64_t)weft_spaces_from_marks(text, length, out);
}

/* Adds the tokens of {"symbols": number, ...}. */
static weft_status add_vocab(weft_tokenizer *t, const json_t *vocab) {
    EACH_MEMBER(token, vocab) {
        const char *key = token.key;
        const json_t *value = token.value;
        size_t length = strlen(key);
        if (!json_is_integer(value))
            return tokenizer_refuse(t, "the number of token \"%.40s\" is no number", key);
        WEFT_ROOM(char, bytes, length + 1, "tokenizer %s: no memory", t->name);
        int64_t n = token_bytes(t, key, length, bytes);
        unsigned byte;
        int end = 0;
        /* "<0x-1>" has a number too, which is no byte's. */
        if (t->characters && length == 6 && sscanf(key, "<0x%2X>%n", &byte, &end) == 1 &&
            end == 6 && byte < 256) {
            t->byte_token[byte] = (int32_t)json_integer_value(value);
            bytes[0] = (char)byte;
            WEFT_TRY(weft_tokenizer_add_token(t, json_integer_value(value), bytes, 1, false));
            continue;
        }
        /* A name with characters that stand for no byte means itself. */
        WEFT_TRY(weft_tokenizer_add_token(t, json_integer_value(value), n < 0 ? key : bytes,
                                          n < 0 ? (int64_t)length : n, n >= 0));
    }
    return WEFT_OK;
}

/* Adds the next merge; `numbering`: as GPT-2 numbers them, the token that it makes first. */
static weft_status add_merge(weft_tokenizer *t, const char *left, size_t left_length,
                             const char *right, size_t right_length, bool numbering) {
    long long number = (long long)t->n_merges + 1;
    WEFT_ROOM(char, bytes, left_length + right_length + 1, "tokenizer %s: no memory", t->name);
    int64_t l = token_bytes(t, left, left_length, bytes), r = -1;
    if (l > 0) r = token_bytes(t, right, right_length, bytes + l);
    if (r <= 0) return tokenizer_refuse(t, "merge %lld is not two byte-level tokens", number);
    if (numbering) WEFT_TRY(weft_tokenizer_add_token(t, t->vocab, bytes, l + r, true));
    int32_t a = weft_tokenizer_find(t, bytes, l), b = weft_tokenizer_find(t, bytes + l, r);
    int32_t made = weft_tokenizer_find(t, bytes, l + r);
    if (a < 0 || b < 0 || made < 0)
        return tokenizer_refuse(t, "merge %lld has or makes a token that is not in the vocabulary",
                                number);
    weft_tokenizer_add_merge(t, a, b, made);
    return WEFT_OK;
}

static weft_status refuse(const weft_tokenizer *t, const char *what, const char *value) {
    return tokenizer_refuse(t,
                            "%s \"%.40s\" is not supported; byte-level BPE is, and SentencePiece's "
                            "BPE with byte_fallback and Unigram",
                            what, value);
}

weft_status weft_tokenizer_add_pattern(weft_tokenizer *t, const char *pattern) {
    if (t->n_steps == TOKENIZER_STEPS_MAX)
        return tokenizer_refuse(t, "more than %d splitting steps", TOKENIZER_STEPS_MAX);
    char where[256];
    snprintf(where, sizeof where, "tokenizer %.200s", t->name);
    /* GPT-2's own, by either way to write it. */
    bool gpt2 = !pattern ||
                strcmp(pattern, "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                                "\\s+(?!\\S)|\\s+") == 0 ||
                strcmp(pattern, "'(?:[sdmt]|ll|ve|re)| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                                "\\s+(?!\\S)|\\s+") == 0;
    WEFT_TRY(gpt2 ? weft_gpt2_prepare()
                  : weft_split_compile(pattern, where, &t->steps[t->n_steps]));
    t->n_steps++;
    return WEFT_OK;
}

static weft_status read_step(weft_tokenizer *t, const json_t *step, bool *byte_level) {
    const char *type = weft_json_text_of(step, "type");
    if (*byte_level) return tokenizer_refuse(t, "a splitting step \"%.40s\" after ByteLevel", type);
    if (strcmp(type, "ByteLevel") == 0) {
        if (json_is_true(json_object_get(step, "add_prefix_space")))
            return refuse(t, "ByteLevel with", "add_prefix_space");
        *byte_level = true;
        bool plain = json_is_false(json_object_get(step, "use_regex"));
        return plain ? WEFT_OK : weft_tokenizer_add_pattern(t, NULL);
    }
    if (strcmp(type, "Digits") == 0)
        return weft_tokenizer_add_pattern(
            t, json_is_true(json_object_get(step, "individual_digits")) ? "\\p{N}" : "\\p{N}+");
    if (strcmp(type, "Split") != 0) return refuse(t, "the pre_tokenizer", type);
    /* Matches and what is between them must all be kept. With "Removed" and "invert" only what the
     * pattern does not match would go; such patterns match everything, and what they miss is kept. */
    const char *behavior = weft_json_text_of(step, "behavior");
    bool invert = json_is_true(json_object_get(step, "invert"));
    if (strcmp(behavior, "Isolated") != 0 && !(invert && strcmp(behavior, "Removed") == 0))
        return refuse(t, "a Split with behavior", behavior);
    const json_t *pattern = json_object_get(step, "pattern");
    const char *regex = weft_json_text_of(pattern, "Regex");
    const char *literal = weft_json_text_of(pattern, "String");
    if (*regex) return weft_tokenizer_add_pattern(t, regex);
    if (!*literal) return tokenizer_refuse(t, "a Split has no pattern");
    WEFT_ROOM(char, escaped, 2 * strlen(literal) + 1, "tokenizer %s: no memory", t->name);
    char *to = escaped;
    for (; *literal; literal++) {
        if ((*literal & 0x80) == 0 && strchr("\\^$.|?*+()[]{}&", *literal)) *to++ = '\\';
        *to++ = *literal;
    }
    *to = 0;
    return weft_tokenizer_add_pattern(t, escaped);
}

static weft_status read_steps(weft_tokenizer *t, const json_t *root) {
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    bool byte_level = false;
    if (strcmp(weft_json_text_of(pre, "type"), "Sequence") == 0) {
        EACH_ITEM(step, json_object_get(pre, "pretokenizers"))
            WEFT_TRY(read_step(t, step.value, &byte_level));
    } else if (json_is_object(pre)) {
        WEFT_TRY(read_step(t, pre, &byte_level));
    }
    if (byte_level) return WEFT_OK;
    return tokenizer_refuse(t,
                            "has no ByteLevel pre_tokenizer; byte-level BPE is what is supported");
}

static bool is_set(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    if (json_is_string(value)) return *json_string_value(value);
    if (json_is_number(value)) return json_number_value(value) != 0;
    return json_is_true(value);
}

/* [["piece", score], ...], by number. */
static weft_status read_unigram(weft_tokenizer *t, const json_t *model) {
    const json_t *list = json_object_get(model, "vocab");
    size_t n = json_array_size(list);
    double least = 0;
    WEFT_AUTO_DECREF json_t *vocab = json_object();
    const json_t *unknown = json_object_get(model, "unk_id");
    bool named = json_is_integer(unknown) && json_integer_value(unknown) >= 0 &&
                 (size_t)json_integer_value(unknown) < n;
    if (!is_set(model, "byte_fallback")) {
        if (!named) return refuse(t, "without byte_fallback and unk_id the model", "Unigram");
        t->unknown_token = (int32_t)json_integer_value(unknown);
    }
    t->score = calloc(n ? n : 1, sizeof *t->score);
    if (!vocab || !t->score) return weft_fail(WEFT_ENOMEM, "tokenizer %s: no memory", t->name);
    for (size_t i = 0; i < n; i++) {
        const char *piece = json_string_value(json_array_get(json_array_get(list, i), 0));
        const json_t *score = json_array_get(json_array_get(list, i), 1);
        if (!piece || !json_is_number(score) || json_object_get(vocab, piece))
            return tokenizer_refuse(t, "entry %zu of its vocab is no piece of its own with a score",
                                    i);
        if (strlen(piece) > TOKENIZER_PIECE_MAX) return refuse(t, "a piece as long as", piece);
        json_object_set_new(vocab, piece, json_integer((json_int_t)i));
        t->score[i] = json_number_value(score);
        least = i == 0 || t->score[i] < least ? t->score[i] : least;
    }
    t->unknown = least - 10; /* as their library has it */
    WEFT_TRY(add_vocab(t, vocab));
    return weft_tokenizer_reserve_merges(t, 0);
}

static weft_status read_model(weft_tokenizer *t, const json_t *model) {
    static const char *const others[] = {"dropout", "continuing_subword_prefix",
                                         "end_of_word_suffix"};
    const char *type = weft_json_text_of(model, "type");
    const json_t *vocab = json_object_get(model, "vocab"),
                 *merges = json_object_get(model, "merges");
    if (strcmp(type, "Unigram") == 0) return read_unigram(t, model);
    if (*type && strcmp(type, "BPE") != 0) return refuse(t, "the model", type);
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (is_set(model, others[i])) return refuse(t, "a model with", others[i]);
    if (!json_is_object(vocab) || !json_is_array(merges))
        return tokenizer_refuse(t, "its model has no vocab or no merges");
    t->whole_words = is_set(model, "ignore_merges");
    WEFT_TRY(add_vocab(t, vocab));
    WEFT_TRY(weft_tokenizer_reserve_merges(t, (int64_t)json_array_size(merges)));
    EACH_ITEM(merge, merges) {
        const char *left = json_string_value(json_array_get(merge.value, 0));
        const char *right = json_string_value(json_array_get(merge.value, 1));
        const char *text = json_string_value(merge.value), *space = text ? strchr(text, ' ') : NULL;
        bool pair = json_array_size(merge.value) == 2 && left && right;
        if (!pair && !space)
            return tokenizer_refuse(t, "merge %lld is not two tokens", (long long)t->n_merges + 1);
        size_t length = pair ? strlen(left) : (size_t)(space - text);
        if (!pair) right = space + 1;
        WEFT_TRY(add_merge(t, pair ? left : text, length, right, strlen(right), false));
    }
    return WEFT_OK;
}

weft_status weft_tokenizer_read_added(weft_tokenizer *t, const json_t *token, int64_t id) {
    static const char *const others[] = {"single_word", "lstrip", "rstrip"};
    const char *text = weft_json_text_of(token, "content");
    if (!*text || id < 0) return tokenizer_refuse(t, "an added token has no content or no id");
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
        if (is_set(token, others[i])) return refuse(t, "an added token with", others[i]);
    WEFT_AUTO_FREE char *own = strdup(text);
    if (!own) return weft_fail(WEFT_ENOMEM, "tokenizer %s: no memory", t->name);
    int64_t length = (int64_t)strlen(text);
    if (t->characters) length = token_bytes(t, text, (size_t)length, own);
    int32_t bytes = 0;
    const char *known = id < t->vocab ? weft_tokenizer_token(t, (int32_t)id, &bytes) : NULL;
    if (!known)
        WEFT_TRY(weft_tokenizer_add_token(t, id, own, length, false));
    else if (bytes != length || memcmp(known, own, (size_t)bytes) != 0)
        return tokenizer_refuse(t, "the number %lld is given to two tokens", (long long)id);
    return weft_tokenizer_add_special(t, text, (int32_t)id, is_set(token, "special"));
}

weft_status weft_tokenizer_set_nfc(weft_tokenizer *t) {
    WEFT_AUTO_FREE char *nothing = NULL;
    size_t bytes;
    t->nfc = true;
    if (weft_compose("", 0, &nothing, &bytes) == WEFT_OK) return WEFT_OK;
    return weft_fail(WEFT_EMISSING, "tokenizer %s: %s", t->name, weft_error_message());
}

static bool is_mark(const char *text) {
    return strcmp(text, "\xe2\x96\x81") == 0;
}

/* NFC; and for SentencePiece's BPE, a space before the text, and spaces as U+2581. */
static weft_status read_normalizer(weft_tokenizer *t, const json_t *normalizer) {
    const char *type = weft_json_text_of(normalizer, "type");
    if (!json_is_object(normalizer)) return WEFT_OK;
    if (strcmp(type, "NFC") == 0) return weft_tokenizer_set_nfc(t);
    if (t->characters && strcmp(type, "Prepend") == 0 &&
        is_mark(weft_json_text_of(normalizer, "prepend"))) {
        t->space = SPACE_ALWAYS;
        return WEFT_OK;
    }
    if (t->characters && strcmp(type, "Replace") == 0 &&
        is_mark(weft_json_text_of(normalizer, "content")) &&
        strcmp(weft_json_text_of(json_object_get(normalizer, "pattern"), "String"), " ") == 0)
        return WEFT_OK;
    if (strcmp(type, "Sequence") != 0) return refuse(t, "the normalizer", type);
    EACH_ITEM(one, json_object_get(normalizer, "normalizers"))
        WEFT_TRY(read_normalizer(t, one.value));
    return WEFT_OK;
}

/* What SentencePiece's have in place of splitting: nothing, or Metaspace, which may split Unigram's text before spaces. */
static weft_status read_metaspace(weft_tokenizer *t, const json_t *root) {
    const json_t *pre = json_object_get(root, "pre_tokenizer");
    const json_t *normalizer = json_object_get(root, "normalizer");
    const char *type = weft_json_text_of(pre, "type"),
               *scheme = weft_json_text_of(pre, "prepend_scheme");
    if (!json_is_object(pre)) {
        if (json_is_object(normalizer)) return WEFT_OK;
        return refuse(t, "a model with", "byte_fallback");
    }
    /* Gemma's splits at spaces behind a normalizer that has left none: Replace alone. */
    if (strcmp(weft_json_text_of(normalizer, "type"), "Replace") == 0 &&
        strcmp(type, "Split") == 0 &&
        strcmp(weft_json_text_of(json_object_get(pre, "pattern"), "String"), " ") == 0)
        return WEFT_OK;
    bool split = !json_is_false(json_object_get(pre, "split"));
    if (strcmp(type, "Metaspace") != 0 || !is_mark(weft_json_text_of(pre, "replacement")) ||
        (split && !t->score))
        return refuse(t, "with byte_fallback the pre_tokenizer", type);
    if (split) WEFT_TRY(weft_tokenizer_add_pattern(t, " [^ ]*|[^ ]+"));
    t->space = strcmp(scheme, "never") == 0   ? SPACE_NONE
               : strcmp(scheme, "first") == 0 ? SPACE_MISSING_FIRST
                                              : SPACE_MISSING;
    return WEFT_OK;
}

/* A template's text may have one special token before it and none behind. */
static weft_status read_processor(weft_tokenizer *t, const json_t *processor) {
    const char *type = weft_json_text_of(processor, "type");
    const json_t *list = json_object_get(processor, "processors");
    for (size_t i = 0; strcmp(type, "Sequence") == 0 && i < json_array_size(list); i++)
        WEFT_TRY(read_processor(t, json_array_get(list, i)));
    list = json_object_get(processor, "single");
    for (size_t i = 0; strcmp(type, "TemplateProcessing") == 0 && i < json_array_size(list); i++) {
        const char *name =
            weft_json_text_of(json_object_get(json_array_get(list, i), "SpecialToken"), "id");
        int32_t id = weft_tokenizer_special(t, name);
        if (!*name) continue;
        if (i > 0 || id < 0) return refuse(t, "a post_processor that adds", name);
        t->begin = id;
    }
    return WEFT_OK;
}

static int by_bytes(const void *a, const void *b, void *of) {
    const weft_tokenizer *t = of;
    int32_t left = *(const int32_t *)a, right = *(const int32_t *)b;
    int32_t n = t->length[left] < t->length[right] ? t->length[left] : t->length[right];
    int order = memcmp(t->pool + t->offset[left], t->pool + t->offset[right], (size_t)n);
    return order ? order : (t->length[left] > n) - (t->length[right] > n);
}

static weft_status read_json(weft_tokenizer *t, const json_t *root) {
    const json_t *model = json_object_get(root, "model");
    const char *version = weft_json_text_of(root, "version");
    if (*version && strcmp(version, "1.0") != 0)
        return tokenizer_refuse(t, "of version %.40s, and this weft knows 1.0", version);
    t->characters =
        is_set(model, "byte_fallback") || strcmp(weft_json_text_of(model, "type"), "Unigram") == 0;
    WEFT_TRY(read_normalizer(t, json_object_get(root, "normalizer")));
    WEFT_TRY(read_model(t, model));
    WEFT_TRY(t->characters ? read_metaspace(t, root) : read_steps(t, root));
    EACH_ITEM(token, json_object_get(root, "added_tokens")) {
        const json_t *id = json_object_get(token.value, "id");
        WEFT_TRY(weft_tokenizer_read_added(t, token.value,
                                           json_is_integer(id) ? json_integer_value(id) : -1));
    }
    /* All but those that stand for a byte, and added ones: what these are called is text like any other. */
    if (t->score) {
        WEFT_ROOM(bool, added, t->vocab + 1, "tokenizer %s: no memory", t->name);
        WEFT_ROOM_AT(t->sorted, t->vocab + 1, "tokenizer %s: no memory", t->name);
        for (int i = 0; i < t->n_added; i++)
            added[t->added[i].id] = true;
        for (int64_t id = 0; id < t->vocab; id++) {
            int32_t length = t->length[id];
            bool found = length && weft_tokenizer_find(t, t->pool + t->offset[id], length) == id;
            if (found && !added[id]) t->sorted[t->n_sorted++] = (int32_t)id;
        }
        qsort_r(t->sorted, (size_t)t->n_sorted, sizeof *t->sorted, by_bytes, t);
    }
    WEFT_TRY(read_processor(t, json_object_get(root, "post_processor")));
    return weft_tokenizer_finish(t);
}

/* A token takes more than one byte of a file, whatever its format; a pair of files adds up. */
static weft_status read_file(weft_tokenizer *t, const char *path, char **text, size_t *bytes) {
    errno = 0;
    weft_status status = weft_file_read(path, TOKENIZER_FILE_MAX, text, bytes);
    if (status == WEFT_OK) {
        bool first = t->ids_most == TOKENIZER_VOCAB_MAX;
        int64_t most = (first ? TOKENIZER_IDS_FREE : t->ids_most) + (int64_t)*bytes;
        t->ids_most = most < TOKENIZER_VOCAB_MAX ? most : TOKENIZER_VOCAB_MAX;
        return WEFT_OK;
    }
    return weft_fail(errno == ENOENT ? WEFT_EINPUT : status, "tokenizer %s", weft_error_message());
}

static weft_status read_merges(weft_tokenizer *t, const char *text, size_t bytes, bool numbering) {
    int64_t lines = 0;
    for (size_t i = 3; i < bytes; i++) /* a merge has three letters at least */
        lines += text[i] == '\n' && text[i - 1] != '\n' && text[i - 2] != '\n';
    WEFT_TRY(weft_tokenizer_reserve_merges(t, lines + 1));
    for (size_t at = 0; at < bytes;) {
        const char *end = memchr(text + at, '\n', bytes - at);
        size_t length = end ? (size_t)(end - (text + at)) : bytes - at, next = at + length + 1;
        if (length && text[at + length - 1] == '\r') length--;
        bool head = at == 0 && length >= 8 && memcmp(text, "#version", 8) == 0;
        const char *line = text + at, *space = memchr(line, ' ', length);
        at = next;
        if (!length || head) continue;
        if (!space)
            return tokenizer_refuse(t, "merge %lld is not two tokens and a space",
                                    (long long)t->n_merges + 1);
        size_t left = (size_t)(space - line);
        WEFT_TRY(add_merge(t, line, left, space + 1, length - left - 1, numbering));
    }
    return WEFT_OK;
}

static bool find_in(const char *dir, const char *name, char path[WEFT_PATH_MAX]) {
    struct stat is;
    return weft_path(path, "%s/%s", dir, name) == WEFT_OK && stat(path, &is) == 0 &&
           S_ISREG(is.st_mode);
}

/* A file that is NULL is looked for in the folder. */
static weft_status read_pair(weft_tokenizer *t, const char *dir, const char *encoder_path,
                             const char *merges_path) {
    char path[WEFT_PATH_MAX], beside[WEFT_PATH_MAX];
    WEFT_AUTO_FREE char *encoder = NULL, *merges = NULL;
    size_t bytes = 0;
    if (!merges_path && (find_in(dir, "vocab.bpe", path) || find_in(dir, "merges.txt", path)))
        merges_path = path;
    if (!merges_path && encoder_path)
        return WEFT_BAD_INPUT("tokenizer %s: has no \"model\", and there is no vocab.bpe beside it",
                              encoder_path);
    if (!merges_path)
        return WEFT_BAD_INPUT(
            "tokenizer %s: the folder has no tokenizer.json, vocab.bpe or merges.txt", dir);
    if (!encoder_path &&
        (find_in(dir, "encoder.json", beside) || find_in(dir, "vocab.json", beside)))
        encoder_path = beside;
    if (encoder_path) WEFT_TRY(read_file(t, encoder_path, &encoder, &bytes));
    WEFT_TRY(read_file(t, merges_path, &merges, &bytes));
    if (encoder) {
        WEFT_AUTO_DECREF json_t *vocab = NULL;
        WEFT_TRY(weft_json_parse(t, encoder, strlen(encoder), &vocab));
        WEFT_TRY(add_vocab(t, vocab));
    } else {
        WEFT_TRY(weft_tokenizer_number_bytes(t));
    }
    WEFT_TRY(read_merges(t, merges, bytes, !encoder));
    static const char end_of_text[] = "<|endoftext|>";
    int32_t end = weft_tokenizer_find(t, end_of_text, sizeof end_of_text - 1);
    if (end < 0) {
        end = (int32_t)t->vocab;
        WEFT_TRY(weft_tokenizer_add_token(t, end, end_of_text, sizeof end_of_text - 1, true));
    }
    WEFT_TRY(weft_tokenizer_add_special(t, end_of_text, end, true));
    WEFT_TRY(weft_tokenizer_complete_pair(t, dir));
    return weft_tokenizer_finish(t);
}

weft_status weft_tokenizer_read(weft_tokenizer *t, const char *path) {
    struct stat is;
    if (stat(path, &is) != 0)
        return WEFT_BAD_INPUT("tokenizer %s: %s; it is 'bytes', a file or a folder", path,
                              strerror(errno));
    const char *slash = strrchr(path, '/');
    char dir[WEFT_PATH_MAX], inside[WEFT_PATH_MAX];
    bool folder = S_ISDIR(is.st_mode);
    if (folder)
        snprintf(dir, sizeof dir, "%s", path);
    else
        snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    WEFT_TRY(weft_tokenizer_read_beside(t, dir));
    const char *file = !folder ? path : find_in(dir, "tokenizer.json", inside) ? inside : NULL;
    size_t length = file ? strlen(file) : 0;
    if (length < 5 || strcmp(file + length - 5, ".json") != 0) return read_pair(t, dir, NULL, file);
    WEFT_TRY(read_file(t, file, &t->source, &t->source_bytes));
    WEFT_AUTO_DECREF json_t *root = NULL;
    WEFT_TRY(weft_json_parse(t, t->source, t->source_bytes, &root));
    if (json_is_object(json_object_get(root, "model"))) return read_json(t, root);
    /* An encoder.json is tokens and numbers and nothing else. */
    free(weft_steal(&t->source));
    if (folder) return WEFT_BAD_INPUT("tokenizer %s: has no \"model\"", file);
    return read_pair(t, dir, file, NULL);
}
