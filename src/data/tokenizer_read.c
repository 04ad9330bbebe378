/* The files a tokenizer is read from: which ones a name means, and GPT-2's pair of them.
 *
 * vocab.bpe is a line a merge, "left right", best first; encoder.json gives every token its number.
 * A Hugging Face tokenizer.json (tokenizer_json.c) holds both and how to split. Whatever is in a
 * file is checked before it is used: numbers twice, merges of tokens that do not exist, bytes
 * without a token. */
#include "base/json.h"
#include "data/tokenizer_internal.h"

#include <errno.h>
#include <sys/stat.h>

static const char END_OF_TEXT[] = "<|endoftext|>";

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

int64_t weft_token_bytes(const weft_tokenizer *t, const char *text, size_t length, char *out) {
    if (!t->characters) return weft_symbols_to_bytes(text, length, out);
    return (int64_t)weft_spaces_from_marks(text, length, out);
}

/* The byte of "<0x0A>"; -1: it is another token. */
static int byte_of(const weft_tokenizer *t, const char *text) {
    unsigned byte;
    int end = 0;
    bool is = t->characters && strlen(text) == 6 && sscanf(text, "<0x%2X>%n", &byte, &end) == 1;
    return is && end == 6 ? (int)byte : -1;
}

weft_status weft_vocab_from_json(weft_tokenizer *t, const json_t *vocab) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)vocab, key, value) {
        size_t length = strlen(key);
        if (!json_is_integer(value))
            return tokenizer_refuse(t, "the number of token \"%.40s\" is no number", key);
        WEFT_AUTO_FREE char *bytes = malloc(length + 1);
        if (!bytes) return weft_fail(WEFT_ENOMEM, "tokenizer %s: no memory", t->name);
        int64_t n = weft_token_bytes(t, key, length, bytes);
        int byte = byte_of(t, key);
        if (byte >= 0) {
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

weft_status weft_merge_from_text(weft_tokenizer *t, const char *left, size_t left_length,
                                 const char *right, size_t right_length) {
    long long number = (long long)t->n_merges + 1;
    WEFT_AUTO_FREE char *bytes = malloc(left_length + right_length + 1);
    if (!bytes) return weft_fail(WEFT_ENOMEM, "tokenizer %s: no memory", t->name);
    int64_t l = weft_token_bytes(t, left, left_length, bytes), r = -1;
    if (l > 0) r = weft_token_bytes(t, right, right_length, bytes + l);
    int32_t a = -1, b = -1, made = -1;
    if (r > 0) {
        a = weft_tokenizer_find(t, bytes, l);
        b = weft_tokenizer_find(t, bytes + l, r);
        made = weft_tokenizer_find(t, bytes, l + r);
    }
    if (l <= 0 || r <= 0)
        return tokenizer_refuse(t, "merge %lld is not two byte-level tokens", number);
    if (a < 0 || b < 0 || made < 0)
        return tokenizer_refuse(t, "merge %lld has or makes a token that is not in the vocabulary",
                                number);
    weft_tokenizer_add_merge(t, a, b, made);
    return WEFT_OK;
}

/* Calls for each line of merges: with `vocab`, as GPT-2 numbers them, the token it makes is added
 * first. */
static weft_status read_merge_line(weft_tokenizer *t, const char *line, size_t length,
                                   bool numbering) {
    const char *space = memchr(line, ' ', length);
    if (!space)
        return tokenizer_refuse(t, "merge %lld is not two tokens and a space",
                                (long long)t->n_merges + 1);
    size_t l = (size_t)(space - line), r = length - l - 1;
    if (numbering) {
        WEFT_AUTO_FREE char *bytes = malloc(length);
        if (!bytes) return weft_fail(WEFT_ENOMEM, "tokenizer %s: no memory", t->name);
        int64_t a = weft_symbols_to_bytes(line, l, bytes), b = -1;
        if (a > 0) b = weft_symbols_to_bytes(space + 1, r, bytes + a);
        if (b > 0) WEFT_TRY(weft_tokenizer_add_token(t, t->vocab, bytes, a + b, true));
    }
    return weft_merge_from_text(t, line, l, space + 1, r);
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
        if (length && !head) WEFT_TRY(read_merge_line(t, text + at, length, numbering));
        at = next;
    }
    return WEFT_OK;
}

static weft_status read_gpt2(weft_tokenizer *t, const char *encoder, const char *merges,
                             size_t merges_bytes) {
    if (encoder) {
        WEFT_AUTO_DECREF json_t *vocab = NULL;
        WEFT_TRY(weft_json_parse(t, encoder, strlen(encoder), &vocab));
        WEFT_TRY(weft_vocab_from_json(t, vocab));
    } else {
        WEFT_TRY(weft_tokenizer_number_bytes(t));
    }
    WEFT_TRY(read_merges(t, merges, merges_bytes, !encoder));
    int32_t end = weft_tokenizer_find(t, END_OF_TEXT, sizeof END_OF_TEXT - 1);
    if (end < 0) {
        end = (int32_t)t->vocab;
        WEFT_TRY(weft_tokenizer_add_token(t, end, END_OF_TEXT, sizeof END_OF_TEXT - 1, true));
    }
    return weft_tokenizer_add_special(t, END_OF_TEXT, end, true);
}

/* DIR/NAME, if there is such a file. */
static bool find_in(const char *dir, const char *name, char path[WEFT_PATH_MAX]) {
    struct stat is;
    return weft_path(path, "%s/%s", dir, name) == WEFT_OK && stat(path, &is) == 0 &&
           S_ISREG(is.st_mode);
}

static weft_status read_pair(weft_tokenizer *t, const char *dir, const char *encoder_path,
                             const char *merges_path) {
    WEFT_AUTO_FREE char *encoder = NULL, *merges = NULL;
    size_t bytes = 0;
    if (*encoder_path) WEFT_TRY(read_file(t, encoder_path, &encoder, &bytes));
    WEFT_TRY(read_file(t, merges_path, &merges, &bytes));
    WEFT_TRY(read_gpt2(t, encoder, merges, bytes));
    WEFT_TRY(weft_tokenizer_complete_pair(t, dir));
    return weft_tokenizer_finish(t);
}

static weft_status read_json_file(weft_tokenizer *t, const char *path, bool *flat) {
    WEFT_TRY(read_file(t, path, &t->source, &t->source_bytes));
    WEFT_AUTO_DECREF json_t *root = NULL;
    WEFT_TRY(weft_json_parse(t, t->source, t->source_bytes, &root));
    /* An encoder.json is tokens and numbers and nothing else. */
    *flat = !json_is_object(json_object_get(root, "model"));
    if (!*flat) return weft_tokenizer_from_json(t, root);
    free(weft_steal(&t->source));
    return WEFT_OK;
}

static weft_status read_folder(weft_tokenizer *t, const char *dir) {
    char vocab[WEFT_PATH_MAX], merges[WEFT_PATH_MAX];
    bool flat = false;
    if (find_in(dir, "tokenizer.json", vocab)) {
        WEFT_TRY(read_json_file(t, vocab, &flat));
        if (!flat) return WEFT_OK;
        return weft_fail(WEFT_EINPUT, "tokenizer %s: has no \"model\"", vocab);
    }
    if (!find_in(dir, "vocab.bpe", merges) && !find_in(dir, "merges.txt", merges))
        return weft_fail(WEFT_EINPUT,
                         "tokenizer %s: the folder has no tokenizer.json, vocab.bpe or merges.txt",
                         dir);
    if (!find_in(dir, "encoder.json", vocab) && !find_in(dir, "vocab.json", vocab)) *vocab = 0;
    return read_pair(t, dir, vocab, merges);
}

static weft_status read_named(weft_tokenizer *t, const char *dir, const char *path) {
    char beside[WEFT_PATH_MAX];
    size_t length = strlen(path);
    if (length < 5 || strcmp(path + length - 5, ".json") != 0) {
        if (!find_in(dir, "encoder.json", beside) && !find_in(dir, "vocab.json", beside))
            *beside = 0;
        return read_pair(t, dir, beside, path);
    }
    bool flat = false;
    WEFT_TRY(read_json_file(t, path, &flat));
    if (!flat) return WEFT_OK;
    if (find_in(dir, "vocab.bpe", beside) || find_in(dir, "merges.txt", beside))
        return read_pair(t, dir, path, beside);
    return weft_fail(WEFT_EINPUT,
                     "tokenizer %s: has no \"model\", and there is no vocab.bpe beside it", path);
}

weft_status weft_tokenizer_read(weft_tokenizer *t, const char *path) {
    struct stat is;
    if (stat(path, &is) != 0)
        return weft_fail(WEFT_EINPUT, "tokenizer %s: %s; it is 'bytes', a file or a folder", path,
                         strerror(errno));
    const char *slash = strrchr(path, '/');
    char dir[WEFT_PATH_MAX];
    bool folder = S_ISDIR(is.st_mode);
    if (folder)
        snprintf(dir, sizeof dir, "%s", path);
    else
        snprintf(dir, sizeof dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    WEFT_TRY(weft_tokenizer_read_beside(t, dir));
    return folder ? read_folder(t, dir) : read_named(t, dir, path);
}
