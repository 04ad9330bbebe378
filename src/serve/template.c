/* Templates: read once into a list of pieces, which are put together for each conversation. Text is
 * encoded in one go from one special token to the next, so that it becomes the tokens it would have
 * anywhere else. */
#include "serve/template.h"
#include "base/getter.h"
#include "base/scope.h"

#include "base/text.h"

#include <stdlib.h>
#include <string.h>

enum { PIECES_MOST = 64, SPECIAL_LETTERS = 64 };

typedef enum { PIECE_TEXT, PIECE_ROLE, PIECE_CONTENT, PIECE_SPECIAL } piece_kind;

typedef struct {
    piece_kind kind;
    size_t from, bytes; /* of text */
    int32_t token;      /* a special one */
} piece;

struct weft_template {
    const weft_tokenizer *tokenizer;
    char *text; /* with escapes replaced */
    piece pieces[PIECES_MOST];
    int n;
    int content; /* which piece it is */
    char *stop;
};

static weft_status no_memory(void) {
    return weft_fail(WEFT_ENOMEM, "chat template: no memory");
}

/* The longest special token whose name begins here; -1: none. */
static int32_t find_special(const weft_tokenizer *t, const char *at, size_t *length) {
    char name[SPECIAL_LETTERS + 1];
    size_t most = strnlen(at, SPECIAL_LETTERS);
    for (*length = most; *length > 0; (*length)--) {
        memcpy(name, at, *length);
        name[*length] = 0;
        int32_t token = weft_tokenizer_special(t, name);
        if (token >= 0) return token;
    }
    return -1;
}

static weft_status add_piece(weft_template *m, piece p) {
    if (m->n == PIECES_MOST)
        return weft_fail(WEFT_EINPUT, "CONFIG_CHAT_TEMPLATE has more than %d parts; shorten it",
                         PIECES_MOST);
    m->pieces[m->n++] = p;
    return WEFT_OK;
}

static weft_status add_letter(weft_template *m, size_t at) {
    piece *last = m->n ? m->pieces + m->n - 1 : NULL;
    if (!last || last->kind != PIECE_TEXT) return add_piece(m, (piece){PIECE_TEXT, at, 1, -1});
    last->bytes++;
    return WEFT_OK;
}

static weft_status cut_pieces(weft_template *m, const weft_tokenizer *t) {
    static const char role[] = "{role}", content[] = "{content}";
    m->content = -1;
    for (size_t at = 0; m->text[at];) {
        size_t length = 1;
        int32_t token = find_special(t, m->text + at, &length);
        if (token >= 0) {
            WEFT_TRY(add_piece(m, (piece){PIECE_SPECIAL, at, length, token}));
            at += length;
        } else if (strncmp(m->text + at, role, sizeof role - 1) == 0) {
            WEFT_TRY(add_piece(m, (piece){.kind = PIECE_ROLE}));
            at += sizeof role - 1;
        } else if (strncmp(m->text + at, content, sizeof content - 1) == 0) {
            if (m->content >= 0)
                return weft_fail(WEFT_EINPUT,
                                 "CONFIG_CHAT_TEMPLATE must have {content} once, not twice");
            m->content = m->n;
            WEFT_TRY(add_piece(m, (piece){.kind = PIECE_CONTENT}));
            at += sizeof content - 1;
        } else {
            WEFT_TRY(add_letter(m, at++));
        }
    }
    if (m->content >= 0) return WEFT_OK;
    return weft_fail(WEFT_EINPUT, "CONFIG_CHAT_TEMPLATE must have {content} in it, as in "
                                  "\"{role}: {content}\\n\"");
}

/* What follows the content up to {role}, without blanks at its end unless it is nothing else. */
static weft_status find_stop(weft_template *m) {
    size_t from = 0, end = 0, all;
    for (int i = m->content + 1; i < m->n && m->pieces[i].kind != PIECE_ROLE; i++) {
        if (i == m->content + 1) from = m->pieces[i].from;
        end = m->pieces[i].from + m->pieces[i].bytes;
    }
    all = end;
    while (end > from && strchr(" \t\n", m->text[end - 1]))
        end--;
    if (end == from) end = all;
    if (end == from) return WEFT_OK;
    m->stop = strndup(m->text + from, end - from);
    return m->stop ? WEFT_OK : no_memory();
}

WEFT_ENDED_BY(weft_template_close, weft_template)

weft_status weft_template_open(const char *text, const weft_tokenizer *t, weft_template **out) {
    *out = NULL;
    WEFT_AUTO(weft_template_close_at) weft_template *m = calloc(1, sizeof *m);
    if (!m) return no_memory();
    m->tokenizer = t;
    m->text = strdup(text);
    if (!m->text) return no_memory();
    char *to = m->text;
    for (const char *from = m->text; *from; from++) {
        char next = *from == '\\' ? from[1] : 0;
        bool known = next == 'n' || next == 't' || next == '\\';
        if (known) from++;
        *to++ = !known ? *from : next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
    }
    *to = 0;
    WEFT_TRY(cut_pieces(m, t));
    WEFT_TRY(find_stop(m));
    *out = weft_steal(&m);
    return WEFT_OK;
}

void weft_template_close(weft_template *m) {
    if (!m) return;
    free(m->text);
    free(m->stop);
    free(m);
}

WEFT_GETTER(const char *, weft_template_stop, weft_template, stop)

/* A prompt as it is put together. */
typedef struct {
    weft_encoder *encoder;
    char *text; /* since the last special token */
    size_t bytes, room;
    int32_t *tokens;
    int64_t count, tokens_room;
} prompt;

static weft_status put_text(prompt *p, const char *text, size_t bytes) {
    if (!weft_grow(&p->text, &p->room, p->bytes + bytes)) return no_memory();
    if (bytes) memcpy(p->text + p->bytes, text, bytes);
    p->bytes += bytes;
    return WEFT_OK;
}

static weft_status put_tokens(prompt *p, const int32_t *tokens, int64_t count) {
    if (count <= 0) return WEFT_OK;
    if (!weft_grow_list(&p->tokens, &p->tokens_room, p->count + count, sizeof *p->tokens))
        return no_memory();
    memcpy(p->tokens + p->count, tokens, (size_t)count * sizeof *tokens);
    p->count += count;
    return WEFT_OK;
}

static weft_status end_text(prompt *p) {
    const int32_t *tokens;
    int64_t count;
    if (p->bytes == 0) return WEFT_OK;
    WEFT_TRY(weft_encode(p->encoder, p->text, p->bytes, false, &tokens, &count));
    p->bytes = 0;
    return put_tokens(p, tokens, count);
}

/* The first `n` pieces for a message. */
static weft_status put_message(const weft_template *m, prompt *p, const weft_message *message,
                               int n) {
    for (int i = 0; i < n; i++) {
        const piece *part = m->pieces + i;
        if (part->kind == PIECE_TEXT) {
            WEFT_TRY(put_text(p, m->text + part->from, part->bytes));
        } else if (part->kind == PIECE_ROLE) {
            WEFT_TRY(put_text(p, message->role, strlen(message->role)));
        } else if (part->kind == PIECE_CONTENT) {
            WEFT_TRY(put_text(p, message->content, message->bytes));
        } else {
            WEFT_TRY(end_text(p));
            WEFT_TRY(put_tokens(p, &part->token, 1));
        }
    }
    return WEFT_OK;
}

static void end_prompt(prompt *p) {
    free(p->text);
    free(p->tokens);
}

weft_status weft_template_encode(const weft_template *m, weft_encoder *e,
                                 const weft_message *messages, int64_t count, int32_t **tokens,
                                 int64_t *n_tokens) {
    const weft_message answer = {.role = "assistant"};
    WEFT_AUTO(end_prompt) prompt p = {.encoder = e};
    int32_t begin = weft_tokenizer_begin(m->tokenizer);
    *tokens = NULL;
    WEFT_TRY(put_tokens(&p, &begin, begin >= 0));
    for (int64_t i = 0; i < count; i++)
        WEFT_TRY(put_message(m, &p, messages + i, m->n));
    WEFT_TRY(put_message(m, &p, &answer, m->content));
    WEFT_TRY(end_text(&p));
    *n_tokens = p.count;
    *tokens = weft_steal(&p.tokens);
    return WEFT_OK;
}
