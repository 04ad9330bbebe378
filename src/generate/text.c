/* Prompts and streams of text. Of a stream, bytes wait in `held` until they are whole characters; the last characters of
 * `text` are not given while they could be the beginning of a stop string. */
#include "generate/text.h"

#include "base/text.h"

weft_status weft_prompt_encode(const weft_tokenizer *t, weft_encoder *e, const char *text,
                               size_t bytes, bool begins, const int32_t **tokens, int64_t *count) {
    const char *given = text ? text : "";
    WEFT_TRY(begins ? weft_encode_text(e, given, bytes, tokens, count)
                    : weft_encode(e, given, bytes, false, tokens, count));
    if (*count > 0) return WEFT_OK;
    int32_t length = 0;
    const char *end = weft_tokenizer_token(t, weft_tokenizer_end(t), &length);
    if (!end) return weft_encode(e, "\n", 1, false, tokens, count);
    return weft_encode(e, end, (size_t)length, true, tokens, count);
}

typedef struct {
    char *data;
    size_t bytes, room;
} buffer;

struct weft_stream {
    const weft_tokenizer *tokenizer;
    char **stops;
    int n_stops;
    buffer held;  /* bytes of an unfinished character */
    buffer text;  /* characters */
    size_t given; /* of text */
};

static const char REPLACEMENT[] = "\xef\xbf\xbd";

static weft_status append(buffer *b, const char *from, size_t bytes) {
    if (!weft_grow(&b->data, &b->room, b->bytes + bytes))
        return weft_fail(WEFT_ENOMEM, "stream: no memory for text");
    memcpy(b->data + b->bytes, from, bytes);
    b->bytes += bytes;
    return WEFT_OK;
}

WEFT_ENDED_BY(weft_stream_close, weft_stream)

weft_status weft_stream_open(const weft_tokenizer *t, const char *const *stops, int n_stops,
                             weft_stream **out) {
    *out = NULL;
    WEFT_NEW(weft_stream, s, weft_stream_close, "stream: no memory");
    s->tokenizer = t;
    WEFT_ROOM_AT(s->stops, n_stops + 1, "stream: no memory");
    for (int i = 0; i < n_stops; i++) {
        if (!stops[i][0]) continue;
        s->stops[s->n_stops] = strdup(stops[i]);
        if (!s->stops[s->n_stops++]) return weft_no_memory("stream");
    }
    return weft_hand(&s, out);
}

void weft_stream_close(weft_stream *s) {
    if (!s) return;
    for (int i = 0; s->stops && i < s->n_stops; i++)
        free(s->stops[i]);
    WEFT_FREE(s->stops, s->held.data, s->text.data, s);
}

/* Moves whole characters from held to text; at the end what is left becomes one U+FFFD. */
static weft_status move_characters(weft_stream *s, bool end) {
    size_t at = 0;
    while (at < s->held.bytes) {
        const char *p = s->held.data + at;
        int length = weft_utf8_scan(p, s->held.bytes - at);
        if (length == 0 && !end) break;
        if (length > 0) {
            WEFT_TRY(append(&s->text, s->held.data + at, (size_t)length));
            at += (size_t)length;
            continue;
        }
        WEFT_TRY(append(&s->text, REPLACEMENT, sizeof REPLACEMENT - 1));
        at += length < 0 ? (size_t)-length : s->held.bytes - at;
    }
    s->held.bytes -= at;
    if (at > 0) memmove(s->held.data, s->held.data + at, s->held.bytes);
    return WEFT_OK;
}

/* Where the first stop string begins, in what is not given, that is there whole, or of which the text ends on a part;
 * text.bytes: nowhere. */
static size_t find_stop(const weft_stream *s, bool whole) {
    size_t first = s->text.bytes;
    for (int i = 0; i < s->n_stops; i++) {
        size_t length = strlen(s->stops[i]);
        for (size_t at = s->given; at < first; at++) {
            size_t rest = s->text.bytes - at;
            if ((rest >= length) == whole &&
                memcmp(s->text.data + at, s->stops[i], whole ? length : rest) == 0)
                first = at;
        }
    }
    return first;
}

weft_status weft_stream_put(weft_stream *s, int32_t token, bool *stopped) {
    *stopped = false;
    int32_t count = 0;
    const char *from = weft_tokenizer_token(s->tokenizer, token, &count);
    if (from)
        WEFT_TRY(append(&s->held, from, (size_t)count));
    else
        WEFT_TRY(append(&s->held, REPLACEMENT, sizeof REPLACEMENT - 1));
    WEFT_TRY(move_characters(s, false));
    size_t stop = find_stop(s, true);
    *stopped = stop < s->text.bytes;
    s->given = *stopped ? stop : find_stop(s, false);
    if (*stopped) {
        s->text.bytes = stop;
        s->held.bytes = 0;
    }
    return WEFT_OK;
}

weft_status weft_stream_end(weft_stream *s) {
    WEFT_TRY(move_characters(s, true));
    s->given = s->text.bytes;
    return WEFT_OK;
}

const char *weft_stream_text(const weft_stream *s, size_t *bytes) {
    *bytes = s ? s->given : 0;
    return *bytes ? s->text.data : "";
}
