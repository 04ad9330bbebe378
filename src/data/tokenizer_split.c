/* Cutting a text into the pieces within which tokens are merged.
 *
 * GPT-2's pattern
 *
 *     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *
 * has a scanner of its own here: one look at each character's kind (letter, number, space, other)
 * in a table that PCRE2 fills once a process, so the Unicode version is PCRE2's. Other patterns are
 * run by PCRE2, translated first where its dialect differs from the one they are written in: there
 * \s is Unicode's White_Space, without U+180E which PCRE2 adds, and \w has marks and connectors. */
#include "base/text.h"
#include "data/tokenizer_internal.h"

#ifdef WEFT_HAVE_UTF8PROC
#include <utf8proc.h>
#endif

enum { KIND_OTHER, KIND_LETTER, KIND_NUMBER, KIND_SPACE };
enum { CODE_POINTS = 0x110000, PATTERN_MOST = 1 << 16 };

static uint8_t kinds[CODE_POINTS];
static bool kinds_ready;

/* White_Space, as a character class has it. */
#define SPACES                                                                                     \
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}"       \
    "\\x{3000}"
#define NO_SPACES                                                                                  \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}!-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{1fff}"      \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"                 \
    "\\x{3001}-\\x{10ffff}"
#define WORD "\\p{L}\\p{M}\\p{N}\\p{Pc}"

/* Bytes of the character that starts with this byte, in valid UTF-8. */
static inline size_t char_bytes(uint8_t first) {
    return first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
}

static inline uint32_t char_at(const uint8_t *s) {
    if (s[0] < 0x80) return s[0];
    if (s[0] < 0xE0) return (uint32_t)(s[0] & 0x1F) << 6 | (s[1] & 0x3F);
    if (s[0] < 0xF0)
        return (uint32_t)(s[0] & 0x0F) << 12 | (uint32_t)(s[1] & 0x3F) << 6 | (s[2] & 0x3F);
    return (uint32_t)(s[0] & 0x07) << 18 | (uint32_t)(s[1] & 0x3F) << 12 |
           (uint32_t)(s[2] & 0x3F) << 6 | (s[3] & 0x3F);
}

/* Marks the characters of `text`, every one in order, that a pattern X+ finds. */
static bool mark_kind(const uint8_t *text, size_t bytes, const char *pattern, uint8_t kind) {
    int error;
    PCRE2_SIZE at = 0;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP, &error, &at, NULL);
    if (!code) return false;
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    int found = match ? 1 : 0;
    for (at = 0; found > 0;) {
        found = pcre2_match(code, text, bytes, at, PCRE2_NO_UTF_CHECK, match, NULL);
        if (found <= 0) break;
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(match);
        for (at = span[0]; at < span[1]; at += char_bytes(text[at]))
            kinds[char_at(text + at)] = kind;
    }
    bool done = match && found == PCRE2_ERROR_NOMATCH;
    pcre2_match_data_free(match);
    pcre2_code_free(code);
    return done;
}

static void build_kinds(void) {
    uint8_t *text = malloc((size_t)CODE_POINTS * 4);
    size_t bytes = 0;
    if (!text) return;
    for (uint32_t c = 0; c < CODE_POINTS; c++) { /* every character there is, as UTF-8 */
        static const uint8_t heads[] = {0, 0, 0xC0, 0xE0, 0xF0};
        size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        uint32_t rest = c;
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        for (size_t i = n - 1; i > 0; i--, rest >>= 6)
            text[bytes + i] = (uint8_t)(0x80 | (rest & 0x3F));
        text[bytes] = (uint8_t)(heads[n] | rest);
        bytes += n;
    }
    kinds_ready = mark_kind(text, bytes, "\\p{L}+", KIND_LETTER) &&
                  mark_kind(text, bytes, "\\p{N}+", KIND_NUMBER) &&
                  mark_kind(text, bytes, "[" SPACES "]+", KIND_SPACE);
    free(text);
}

weft_status weft_gpt2_prepare(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, build_kinds);
    if (!kinds_ready)
        return weft_fail(WEFT_EMISSING, "tokenizer: PCRE2 at hand has no Unicode properties, or "
                                        "there is no memory for them");
    return WEFT_OK;
}

/* Where the run of that kind which may start at `at` ends. */
static inline size_t run_end(const uint8_t *s, size_t at, size_t n, uint8_t kind) {
    while (at < n) {
        if (s[at] < 0x80) {
            if (kinds[s[at]] != kind) break;
            at++;
        } else {
            if (kinds[char_at(s + at)] != kind) break;
            at += char_bytes(s[at]);
        }
    }
    return at;
}

size_t weft_gpt2_piece(const char *text, size_t bytes) {
    const uint8_t *s = (const uint8_t *)text;
    if (s[0] == '\'' && bytes > 1) { /* 's 't 'm 'd 're 've 'll */
        if (s[1] == 's' || s[1] == 't' || s[1] == 'm' || s[1] == 'd') return 2;
        bool two = s[1] == 'r' || s[1] == 'v' || s[1] == 'l';
        if (two && bytes > 2 && s[2] == (s[1] == 'l' ? 'l' : 'e')) return 3;
    }
    size_t start = s[0] == ' ' && bytes > 1;
    uint8_t kind = kinds[char_at(s + start)];
    if (kind != KIND_SPACE) return run_end(s, start + char_bytes(s[start]), bytes, kind);
    /* A run of spaces, up to the end or all but the last of them: that one is left to what follows. */
    size_t end = run_end(s, 0, bytes, KIND_SPACE);
    if (end == bytes) return end;
    size_t last = end - 1;
    while ((s[last] & 0xC0) == 0x80)
        last--;
    return last > 0 ? last : end;
}

/* Length of the valid character at s; 0 if there is none. */
static size_t valid_char(const uint8_t *s, size_t n) {
    int length = s[0] < 0x80 ? 1 : weft_utf8_scan((const char *)s, n);
    return length > 0 ? (size_t)length : 0;
}

size_t weft_utf8_valid(const char *text, size_t bytes) {
    const uint8_t *s = (const uint8_t *)text;
    size_t at = 0;
    while (at < bytes) {
        uint64_t eight;
        if (at + 8 <= bytes) {
            memcpy(&eight, s + at, 8);
            if (!(eight & 0x8080808080808080ull)) {
                at += 8;
                continue;
            }
        }
        size_t length = valid_char(s + at, bytes - at);
        if (!length) break;
        at += length;
    }
    return at;
}

size_t weft_spaces_from_marks(const char *text, size_t bytes, char *out) {
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++) {
        bool mark = i + 2 < bytes && memcmp(text + i, "\xe2\x96\x81", 3) == 0;
        out[n++] = mark ? ' ' : text[i];
        i += mark ? 2 : 0;
    }
    return n;
}

size_t weft_utf8_invalid(const char *text, size_t bytes) {
    size_t at = 0;
    while (at < bytes && !valid_char((const uint8_t *)text + at, bytes - at))
        at++;
    return at;
}

typedef struct {
    char *text;
    size_t used;
} pattern_text;

static void put(pattern_text *p, const char *words) {
    size_t n = strlen(words);
    memcpy(p->text + p->used, words, n);
    p->used += n;
}

/* The escape \c in PCRE2's words; false where they have none. */
static bool translate_escape(pattern_text *p, char c, bool in_class) {
    const char *words = c == 's' ? SPACES : c == 'S' ? NO_SPACES : c == 'w' ? WORD : NULL;
    if (strchr("bBhH", c) || (c == 'W' && in_class)) return false; /* another meaning there */
    if (words) {
        put(p, in_class ? "" : "[");
        put(p, words);
        put(p, in_class ? "" : "]");
    } else if (c == 'W') {
        put(p, "[^" WORD "]");
    } else {
        p->text[p->used++] = '\\';
        p->text[p->used++] = c;
    }
    return true;
}

/* NULL: translated; otherwise what it has that PCRE2 takes for something else. */
static const char *translate(const char *s, pattern_text *p) {
    bool in_class = false;
    size_t opened = 0;
    for (size_t i = 0; s[i]; i++) {
        if (s[i] == '\\' && s[i + 1]) {
            if (!translate_escape(p, s[++i], in_class)) return "an escape \\b, \\h or [\\W]";
            continue;
        }
        if (!in_class && s[i] == '[') {
            in_class = true;
            opened = i + (s[i + 1] == '^');
        } else if (in_class && s[i] == '[' && s[i + 1] != ':') {
            return "a class within a class";
        } else if (in_class && s[i] == '&' && s[i + 1] == '&') {
            return "an intersection of classes";
        } else if (in_class && s[i] == '[') { /* [:alpha:] goes through whole */
            const char *end = strstr(s + i, ":]");
            if (!end) return "an open class";
            while (s + i < end + 1)
                p->text[p->used++] = s[i++];
        } else if (in_class && s[i] == ']' && i > opened + 1) {
            in_class = false;
        }
        p->text[p->used++] = s[i];
    }
    p->text[p->used] = 0;
    return NULL;
}

weft_status weft_split_compile(const char *pattern, const char *where, pcre2_code **out) {
    *out = NULL;
    if (strlen(pattern) > PATTERN_MOST)
        return WEFT_BAD_INPUT("%s: the pattern is longer than %d bytes", where, PATTERN_MOST);
    /* An escape of two letters becomes this much at most. */
    WEFT_ROOM(char, text, strlen(pattern) / 2 * (sizeof NO_SPACES + 2) + strlen(pattern) + 1,
              "%s: no memory for the pattern", where);
    const char *refused = translate(pattern, &(pattern_text){text, 0});
    if (refused)
        return WEFT_BAD_INPUT("%s: the pattern has %s, which is not supported", where, refused);
    int error = 0;
    PCRE2_SIZE at = 0;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return weft_fail(WEFT_ENOMEM, "%s: no memory for the pattern", where);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    /* There, ^ and $ are at every line. */
    *out = pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                         &at, context);
    pcre2_compile_context_free(context);
    if (!*out) {
        PCRE2_UCHAR why[128];
        pcre2_get_error_message(error, why, sizeof why);
        return WEFT_BAD_INPUT("%s: the pattern cannot be used: %s", where, (char *)why);
    }
    pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
    return WEFT_OK;
}

#ifdef WEFT_HAVE_UTF8PROC
weft_status weft_compose(const char *text, size_t bytes, char **out, size_t *out_bytes) {
    utf8proc_uint8_t *made = NULL;
    utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes,
                                           &made, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    *out = (char *)made;
    *out_bytes = length > 0 ? (size_t)length : 0;
    if (length >= 0) return WEFT_OK;
    return weft_fail(length == UTF8PROC_ERROR_NOMEM ? WEFT_ENOMEM : WEFT_EINPUT,
                     "tokenizer: a text cannot be composed: %s", utf8proc_errmsg(length));
}
#else
weft_status weft_compose(const char *text, size_t bytes, char **out, size_t *out_bytes) {
    (void)text;
    (void)bytes;
    *out = NULL;
    *out_bytes = 0;
    return weft_fail(WEFT_EMISSING,
                     "the normalizer \"NFC\" needs utf8proc, and weft was built without "
                     "it; run scripts/setup optional, then make configure");
}
#endif
