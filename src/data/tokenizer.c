/* A tokenizer's tables: the vocabulary with its index, the merges, the tokens found in a text as
 * they stand; how they are filled, looked up, decoded and saved. All are arrays and open-addressed
 * hash tables that the tokenizer owns; after opening nothing changes them. */
#include "base/json.h"
#include "data/tokenizer_internal.h"

#include "base/text.h"

static weft_status no_memory(const weft_tokenizer *t) {
    return weft_fail(WEFT_ENOMEM, "tokenizer %s: no memory for its tables", t->name);
}

weft_status weft_tokenizer_new(const char *name, weft_tokenizer **out) {
    *out = NULL;
    WEFT_NEW(weft_tokenizer, t, weft_tokenizer_close, "tokenizer %s: no memory", name);
    t->name = strdup(name);
    if (!t->name) return weft_fail(WEFT_ENOMEM, "tokenizer %s: no memory", name);
    t->end = t->begin = -1;
    memset(t->byte_token, 0xFF, sizeof t->byte_token);
    t->unknown_token = -1;
    t->ids_most = TOKENIZER_VOCAB_MAX;
    return weft_hand(&t, out);
}

void weft_tokenizer_close(weft_tokenizer *t) {
    if (!t) return;
    for (int i = 0; i < t->n_added; i++)
        free(t->added[i].text);
    for (int i = 0; i < t->n_steps; i++)
        pcre2_code_free(t->steps[i]);
    for (int i = 0; i < BESIDE_FILES; i++)
        free(t->beside[i]);
    WEFT_FREE(t->added, t->merge_list, t->merges, t->score, t->sorted, t->index, t->pool, t->length,
              t->offset, t->source, t->name, t);
}

/* The slot where these bytes are, or would be. */
static int64_t index_slot(const weft_tokenizer *t, const char *bytes, int64_t length) {
    uint64_t hash = (uint64_t)length;
    for (int64_t i = 0; i < length; i++)
        hash = (hash ^ (uint8_t)bytes[i]) * 0x100000001B3ull;
    int64_t mask = t->index_slots - 1;
    for (int64_t at = (int64_t)(weft_hash_mix(hash) & (uint64_t)mask);; at = (at + 1) & mask) {
        int32_t id = t->index[at];
        if (id < 0) return at;
        if (t->length[id] == length && memcmp(t->pool + t->offset[id], bytes, (size_t)length) == 0)
            return at;
    }
}

int32_t weft_tokenizer_find(const weft_tokenizer *t, const char *bytes, int64_t length) {
    return t->index_slots && length > 0 ? t->index[index_slot(t, bytes, length)] : -1;
}

static bool grow_ids(weft_tokenizer *t, int64_t ids) {
    int64_t room = t->room ? t->room : 1024;
    while (room < ids)
        room *= 2;
    if (room == t->room) return true;
    int64_t *offset = realloc(t->offset, (size_t)room * sizeof *offset);
    if (offset) t->offset = offset;
    int32_t *length = realloc(t->length, (size_t)room * sizeof *length);
    if (length) t->length = length;
    if (!offset || !length) return false;
    memset(t->length + t->room, 0, (size_t)(room - t->room) * sizeof *length);
    t->room = room;
    return true;
}

/* At most half of the slots are in use: there are as many tokens as `room` at most, and twice the
 * slots. */
static bool grow_index(weft_tokenizer *t) {
    if (t->index_slots >= 2 * t->room) return true;
    int32_t *old = t->index, *index = malloc((size_t)(2 * t->room) * sizeof *index);
    int64_t old_slots = t->index_slots;
    if (!index) return false;
    t->index = index;
    t->index_slots = 2 * t->room;
    memset(index, 0xFF, (size_t)t->index_slots * sizeof *index);
    for (int64_t i = 0; i < old_slots; i++)
        if (old[i] >= 0)
            index[index_slot(t, t->pool + t->offset[old[i]], t->length[old[i]])] = old[i];
    free(old);
    return true;
}

weft_status weft_tokenizer_add_token(weft_tokenizer *t, int64_t id, const char *bytes,
                                     int64_t length, bool indexed) {
    if (id < 0 || id >= t->ids_most)
        return tokenizer_refuse(
            t, "token number %lld is not from 0 to %lld, which a file of its size may have",
            (long long)id, (long long)t->ids_most - 1);
    if (length <= 0 || length > INT32_MAX)
        return tokenizer_refuse(t, "token %lld has no text", (long long)id);
    if (!grow_ids(t, id + 1) ||
        !weft_grow(&t->pool, &t->pool_room, t->pool_used + (size_t)length) || !grow_index(t))
        return no_memory(t);
    if (t->length[id])
        return tokenizer_refuse(t, "the number %lld is given to two tokens", (long long)id);
    int64_t slot = indexed ? index_slot(t, bytes, length) : -1;
    if (indexed && t->index[slot] >= 0)
        return tokenizer_refuse(t, "tokens %lld and %d have the same bytes", (long long)id,
                                t->index[slot]);
    memcpy(t->pool + t->pool_used, bytes, (size_t)length);
    t->offset[id] = (int64_t)t->pool_used;
    t->length[id] = (int32_t)length;
    t->pool_used += (size_t)length;
    if (indexed) t->index[slot] = (int32_t)id;
    if (id >= t->vocab) t->vocab = id + 1;
    return WEFT_OK;
}

weft_status weft_tokenizer_add_special(weft_tokenizer *t, const char *text, int32_t id,
                                       bool special) {
    if (!weft_grow_list(&t->added, &t->added_room, t->n_added + 1, sizeof *t->added))
        return no_memory(t);
    weft_added *a = &t->added[t->n_added];
    *a = (weft_added){
        .text = strdup(text), .bytes = (int32_t)strlen(text), .id = id, .special = special};
    if (!a->text) return no_memory(t);
    t->n_added++;
    t->added_starts[1][(uint8_t)text[0]] = true;
    if (!special) t->added_starts[0][(uint8_t)text[0]] = true;
    return WEFT_OK;
}

weft_status weft_tokenizer_reserve_merges(weft_tokenizer *t, int64_t n) {
    int64_t slots = 16;
    while (slots < 2 * n + 2)
        slots *= 2;
    WEFT_ROOM_AT(t->merges, slots, "tokenizer %s: no memory", t->name);
    WEFT_ROOM_AT(t->merge_list, n + 1, "tokenizer %s: no memory", t->name);
    for (int64_t i = 0; i < slots; i++)
        t->merges[i] = (weft_merge){.rank = -1};
    t->merge_slots = slots;
    return WEFT_OK;
}

/* A pair that comes again has the later rank, as in Hugging Face's library. */
void weft_tokenizer_add_merge(weft_tokenizer *t, int32_t left, int32_t right, int32_t made) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    uint64_t mask = (uint64_t)t->merge_slots - 1, at = weft_hash_mix(pair) & mask;
    while (t->merges[at].rank >= 0 && t->merges[at].pair != pair)
        at = (at + 1) & mask;
    t->merges[at] = (weft_merge){.pair = pair, .rank = (int32_t)t->n_merges, .made = made};
    t->merge_list[t->n_merges++] = pair;
}

weft_status weft_tokenizer_finish(weft_tokenizer *t) {
    static const char *const ends[] = {"<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>"};
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        if (!t->characters) t->byte_token[b] = weft_tokenizer_find(t, &byte, 1);
        if (t->byte_token[b] < 0 && t->unknown_token < 0)
            return tokenizer_refuse(
                t, "there is no token for the byte 0x%02x; a byte-level BPE has all 256", b);
    }
    for (size_t i = 0; i < sizeof ends / sizeof ends[0] && t->end < 0; i++)
        t->end = weft_tokenizer_special(t, ends[i]);
    return WEFT_OK;
}

weft_status weft_tokenizer_open(const char *name, weft_tokenizer **out) {
    WEFT_AUTO(weft_tokenizer_close_at) weft_tokenizer *t = NULL;
    *out = NULL;
    WEFT_TRY(weft_tokenizer_new(name, &t));
    if (strcmp(name, "none") == 0)
        return WEFT_BAD_INPUT("the model has no tokenizer; its tokens go in and out as "
                              "numbers: weft generate --tokens \"5 6 7\"");
    t->bytes_only = strcmp(name, "bytes") == 0;
    for (int b = 0; t->bytes_only && b < 256; b++) {
        char byte = (char)b;
        WEFT_TRY(weft_tokenizer_add_token(t, b, &byte, 1, true));
    }
    if (t->bytes_only) WEFT_TRY(weft_tokenizer_reserve_merges(t, 0));
    WEFT_TRY(t->bytes_only ? weft_tokenizer_finish(t) : weft_tokenizer_read(t, name));
    return weft_hand(&t, out);
}

WEFT_GETTER(int64_t, weft_tokenizer_vocab, weft_tokenizer, vocab)
WEFT_GETTER(int32_t, weft_tokenizer_end, weft_tokenizer, end)
WEFT_GETTER(int32_t, weft_tokenizer_begin, weft_tokenizer, begin)

int32_t weft_tokenizer_first(const weft_tokenizer *t) {
    return t->begin >= 0 ? t->begin : t->end;
}

bool weft_tokenizer_ends(const weft_tokenizer *t, int32_t token) {
    bool ends = token == t->end && token >= 0;
    for (int i = 0; i < t->n_ends; i++)
        ends = ends || token == t->ends[i];
    return ends;
}

int32_t weft_tokenizer_special(const weft_tokenizer *t, const char *text) {
    for (int i = 0; i < t->n_added; i++)
        if (t->added[i].special && strcmp(t->added[i].text, text) == 0) return t->added[i].id;
    return -1;
}

const char *weft_tokenizer_token(const weft_tokenizer *t, int32_t token, int32_t *bytes) {
    if (token < 0 || token >= t->vocab || !t->length[token]) return NULL;
    *bytes = t->length[token];
    return t->pool + t->offset[token];
}

bool weft_tokenizer_cuttable(const weft_tokenizer *t) {
    if (t->bytes_only) return true;
    bool plain = !t->nfc && t->n_steps == 1 && !t->steps[0];
    for (int i = 0; i < t->n_added; i++)
        plain = plain && t->added[i].special;
    return plain;
}

weft_status weft_tokenizer_decode(const weft_tokenizer *t, const int32_t *tokens, int64_t count,
                                  char **text, size_t *bytes) {
    size_t all = 0;
    int32_t n = 0;
    *text = NULL;
    *bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        if (!weft_tokenizer_token(t, tokens[i], &n))
            return tokenizer_refuse(t, "%d is not one of its tokens", tokens[i]);
        all += (size_t)n;
    }
    char *to = malloc(all + 1);
    if (!to) return weft_fail(WEFT_ENOMEM, "tokenizer %s: no memory for %zu bytes", t->name, all);
    *text = to;
    for (int64_t i = 0; i < count; i++) {
        const char *from = weft_tokenizer_token(t, tokens[i], &n);
        memcpy(to, from, (size_t)n);
        to += n;
    }
    *to = 0;
    /* The space that was put before it. */
    bool before = t->space != SPACE_NONE && all && **text == ' ';
    *bytes = all - before;
    if (before) memmove(*text, *text + 1, all);
    return WEFT_OK;
}

/* Byte-level vocabularies are text files, so each of the 256 bytes is written as a character that survives in
 * one: those of Latin-1 that can be seen stand for themselves, the others (0 to 32, 127 to 160, 173), in order,
 * for U+0100 and up (a space is Ġ). */
static bool is_itself(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

enum { HIDDEN = 68 };

weft_status weft_tokenizer_number_bytes(weft_tokenizer *t) {
    int id = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int b = 0; b < 256; b++) {
            char byte = (char)b;
            if (is_itself(b) == (pass == 1)) continue;
            t->byte_token[b] = id;
            WEFT_TRY(weft_tokenizer_add_token(t, id++, &byte, 1, true));
        }
    return WEFT_OK;
}

/* All symbols are below U+0200: one or two bytes of UTF-8. */
int64_t weft_symbols_to_bytes(const char *text, size_t length, char *out) {
    int64_t n = 0;
    for (size_t i = 0; i < length; i++) {
        uint32_t c = (uint8_t)text[i];
        if (c >= 0xC2 && c < 0xC8 && i + 1 < length && (text[i + 1] & 0xC0) == 0x80)
            c = (c & 0x1F) << 6 | ((uint8_t)text[++i] & 0x3F);
        else if (c >= 0x80)
            return -1;
        uint32_t place = c - 0x100;
        if (c < 0x100 && is_itself((int)c))
            out[n++] = (char)c;
        else if (c >= 0x100 && place < HIDDEN)
            out[n++] = (char)(place <= 32 ? place : place < HIDDEN - 1 ? place + 94 : 173);
        else
            return -1;
    }
    return n;
}

void weft_bytes_to_symbols(const char *bytes, int64_t length, char *out) {
    for (int64_t i = 0; i < length; i++) {
        uint32_t c = (uint8_t)bytes[i];
        if (!is_itself((int)c)) c = 0x100 + (c <= 32 ? c : c <= 160 ? c - 94 : HIDDEN - 1);
        if (c < 0x80) {
            *out++ = (char)c;
        } else {
            *out++ = (char)(0xC0 | c >> 6);
            *out++ = (char)(0x80 | (c & 0x3F));
        }
    }
    *out = 0;
}

/* A token as its file writes it. */
static json_t *token_symbols(const weft_tokenizer *t, int64_t id) {
    WEFT_AUTO_FREE char *text = malloc((size_t)t->length[id] * 2 + 1);
    if (!text) return NULL;
    weft_bytes_to_symbols(t->pool + t->offset[id], t->length[id], text);
    return json_string(text);
}

static json_t *byte_level(bool trim, bool regex) {
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", trim, "use_regex", regex);
}

/* For bytes, BPE without merges in one piece; for a pair of files, what they leave unsaid. */
static char *make_source(const weft_tokenizer *t) {
    json_t *added = json_array();
    for (int i = 0; i < t->n_added; i++)
        json_array_append_new(added, json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id",
                                               t->added[i].id, "content", t->added[i].text,
                                               "single_word", 0, "lstrip", 0, "rstrip", 0,
                                               "normalized", 0, "special", t->added[i].special));
    /* Splitting as the files leave it unsaid: by GPT-2's pattern or another. */
    json_t *splitting = byte_level(true, !t->split && t->n_steps > 0);
    if (t->split)
        splitting = json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence",
                              "pretokenizers", "type", "Split", "pattern", "Regex", t->split,
                              "behavior", "Isolated", "invert", 0, splitting);
    json_t *vocab = json_object(), *merges = json_array();
    for (int64_t id = 0; id < t->vocab; id++) {
        WEFT_AUTO_DECREF json_t *key = t->length[id] ? token_symbols(t, id) : NULL;
        if (key) json_object_set_new(vocab, json_string_value(key), json_integer(id));
    }
    for (int64_t i = 0; i < t->n_merges; i++) {
        WEFT_AUTO_DECREF json_t *left = token_symbols(t, (int64_t)(t->merge_list[i] >> 32)),
                                *right = token_symbols(t, (int64_t)(t->merge_list[i] & 0xFFFFFFFF));
        if (left && right)
            json_array_append_new(
                merges, json_sprintf("%s %s", json_string_value(left), json_string_value(right)));
    }
    json_t *model = json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE",
                              "dropout", "unk_token", "continuing_subword_prefix",
                              "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
                              "ignore_merges", t->whole_words, "vocab", vocab, "merges", merges);
    json_t *all = json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:o}", "version", "1.0",
                            "truncation", "padding", "added_tokens", added, "normalizer",
                            t->nfc ? json_pack("{s:s}", "type", "NFC") : json_null(),
                            "pre_tokenizer", splitting, "post_processor", byte_level(false, true),
                            "decoder", byte_level(true, true), "model", model);
    char *text = all ? json_dumps(all, JSON_INDENT(2)) : NULL;
    json_decref(all);
    return text;
}

/* The file's text; *made is to be freed. */
static weft_status source_of(const weft_tokenizer *t, char **made, const char **text,
                             size_t *bytes) {
    *made = t->source ? NULL : make_source(t);
    if (!t->source && !*made) return no_memory(t);
    *text = t->source ? t->source : *made;
    *bytes = t->source ? t->source_bytes : strlen(*made);
    return WEFT_OK;
}

weft_status weft_tokenizer_save(const weft_tokenizer *t, const char *path, weft_sum *sum) {
    WEFT_AUTO_FREE char *made = NULL;
    const char *text = NULL;
    size_t bytes = 0;
    WEFT_TRY(source_of(t, &made, &text, &bytes));
    WEFT_TRY(weft_file_write(path, text, bytes, sum));
    return weft_tokenizer_save_beside(t, path);
}

weft_status weft_tokenizer_is_saved(const weft_tokenizer *t, const char *path, bool *out) {
    WEFT_AUTO_FREE char *made = NULL, *there = NULL;
    const char *text = NULL;
    size_t bytes = 0, has;
    *out = false;
    WEFT_TRY(source_of(t, &made, &text, &bytes));
    weft_status status = weft_file_read(path, bytes, &there, &has);
    if (status == WEFT_OK) *out = has == bytes && memcmp(there, text, bytes) == 0;
    return status == WEFT_EINPUT ? WEFT_OK : status; /* a longer one is another */
}
