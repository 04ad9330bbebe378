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
    size_t from, bytes;  /* of text */
    int32_t token;       /* a special one */
    bool lstrip, rstrip; /* of content: blanks before it, and behind it, are left out */
} piece;

/* The parts of a template that has a form for each role, as they are named in it. */
typedef enum { BEGIN, DEFAULT, SYSTEM, FIRST, USER, ASSISTANT, ANSWER, FORMS } form_name;
static const char *const marks[FORMS] = {"{begin}", "{default}",   "{system}", "{first}",
                                         "{user}",  "{assistant}", "{answer}"};

typedef struct {
    bool given;
    int first, end; /* its pieces */
    int content;    /* which of them it is; -1: none */
} form;

struct weft_template {
    const weft_tokenizer *tokenizer;
    char *text; /* with escapes replaced */
    piece pieces[PIECES_MOST];
    int n;
    bool by_role; /* else all messages have the user's form, and begin is the tokenizer's */
    form forms[FORMS];
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

/* To the last piece of the form that begins with piece `first`, where that is text. */
static weft_status add_letter(weft_template *m, size_t at, int first) {
    piece *last = m->n > first ? m->pieces + m->n - 1 : NULL;
    if (!last || last->kind != PIECE_TEXT)
        return add_piece(m, (piece){.kind = PIECE_TEXT, .from = at, .bytes = 1});
    last->bytes++;
    return WEFT_OK;
}

/* Which of the words stands here; -1: none. */
static int find_word(const char *at, const char *const *words, int n) {
    for (int i = 0; i < n; i++)
        if (strncmp(at, words[i], strlen(words[i])) == 0) return i;
    return -1;
}

static weft_status cut_pieces(weft_template *m) {
    enum { WORDS = 5 };
    static const char *const words[WORDS] = {"{role}", "{content}", "{content|trim}",
                                             "{content|lstrip}", "{content|rstrip}"};
    static const piece pieces[WORDS] = {{.kind = PIECE_ROLE},
                                        {.kind = PIECE_CONTENT},
                                        {.kind = PIECE_CONTENT, .lstrip = true, .rstrip = true},
                                        {.kind = PIECE_CONTENT, .lstrip = true},
                                        {.kind = PIECE_CONTENT, .rstrip = true}};
    form *f = &m->forms[USER];
    m->by_role = strncmp(m->text, marks[BEGIN], strlen(marks[BEGIN])) == 0;
    *f = (form){.given = true, .content = -1};
    for (size_t at = 0; m->text[at];) {
        size_t length;
        int word = find_word(m->text + at, words, WORDS);
        int mark = m->by_role ? find_word(m->text + at, marks, FORMS) : -1;
        int32_t token = find_special(m->tokenizer, m->text + at, &length);
        if (mark >= 0) {
            f = &m->forms[mark];
            *f = (form){.given = true, .first = m->n, .end = m->n, .content = -1};
            at += strlen(marks[mark]);
            continue;
        }
        if (token >= 0) {
            WEFT_TRY(add_piece(m, (piece){PIECE_SPECIAL, at, length, token, false, false}));
        } else if (word >= 0) {
            if (word > 0 && f->content >= 0)
                return weft_fail(WEFT_EINPUT,
                                 "CONFIG_CHAT_TEMPLATE must have {content} once, not twice");
            if (word > 0) f->content = m->n;
            length = strlen(words[word]);
            WEFT_TRY(add_piece(m, pieces[word]));
        } else {
            length = 1;
            WEFT_TRY(add_letter(m, at, f->first));
        }
        at += length;
        f->end = m->n;
    }
    return WEFT_OK;
}

static weft_status check_forms(weft_template *m) {
    for (int i = 0; i < FORMS; i++) {
        bool message = i >= SYSTEM && i <= ASSISTANT, has = m->forms[i].content >= 0;
        if (m->forms[i].given && message && !has)
            return weft_fail(WEFT_EINPUT, "CONFIG_CHAT_TEMPLATE must have {content} in it, as in "
                                          "\"{role}: {content}\\n\"");
        if (m->forms[i].given && !message && has)
            return weft_fail(WEFT_EINPUT,
                             "CONFIG_CHAT_TEMPLATE has {content} behind %s, where "
                             "there is no message",
                             marks[i]);
    }
    if (m->by_role && !m->forms[ASSISTANT].given)
        return weft_fail(WEFT_EINPUT, "CONFIG_CHAT_TEMPLATE that begins with {begin} must have "
                                      "{user} and {assistant} in it");
    if (m->by_role) return WEFT_OK;
    m->forms[SYSTEM] = m->forms[ASSISTANT] = m->forms[ANSWER] = m->forms[USER];
    m->forms[ANSWER].end = m->forms[USER].content;
    return WEFT_OK;
}

/* What follows an answer's content up to {role}, without blanks at its end unless it is nothing else. */
static weft_status find_stop(weft_template *m) {
    const form *f = &m->forms[ASSISTANT];
    size_t from = 0, end = 0, all;
    for (int i = f->content + 1; i < f->end && m->pieces[i].kind != PIECE_ROLE; i++) {
        if (i == f->content + 1) from = m->pieces[i].from;
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
    WEFT_TRY(cut_pieces(m));
    WEFT_TRY(check_forms(m));
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
    WEFT_TRY(weft_encode_next(p->encoder, p->count == 0, p->text, p->bytes, &tokens, &count));
    p->bytes = 0;
    return put_tokens(p, tokens, count);
}

static bool is_blank(char letter) {
    return letter && strchr(" \t\n\r\f\v", letter);
}

static weft_status put_content(prompt *p, const piece *part, const weft_message *message) {
    size_t from = 0, end = message->bytes;
    while (part->lstrip && from < end && is_blank(message->content[from]))
        from++;
    while (part->rstrip && from < end && is_blank(message->content[end - 1]))
        end--;
    return put_text(p, message->content + from, end - from);
}

static weft_status put_form(const weft_template *m, prompt *p, const form *f,
                            const weft_message *message) {
    for (int i = f->first; i < f->end; i++) {
        const piece *part = m->pieces + i;
        if (part->kind == PIECE_TEXT) {
            WEFT_TRY(put_text(p, m->text + part->from, part->bytes));
        } else if (part->kind == PIECE_ROLE) {
            WEFT_TRY(put_text(p, message->role, strlen(message->role)));
        } else if (part->kind == PIECE_CONTENT) {
            WEFT_TRY(put_content(p, part, message));
        } else {
            WEFT_TRY(end_text(p));
            WEFT_TRY(put_tokens(p, &part->token, 1));
        }
    }
    return WEFT_OK;
}

static bool is_system(const weft_message *message) {
    return strcmp(message->role, "system") == 0 || strcmp(message->role, "developer") == 0;
}

static weft_status put_message(const weft_template *m, prompt *p, const weft_message *messages,
                               int64_t i) {
    const weft_message *message = messages + i;
    bool system = is_system(message);
    const form *f = &m->forms[system                                                   ? SYSTEM
                              : strcmp(message->role, "assistant") == 0                ? ASSISTANT
                              : m->forms[FIRST].given && i == 1 && is_system(messages) ? FIRST
                                                                                       : USER];
    if (!f->given)
        return weft_fail(WEFT_EINPUT,
                         "this model's chat template has no %s message; put it into "
                         "the first message of the user",
                         message->role);
    if (system && m->by_role && i > 0)
        return weft_fail(WEFT_EINPUT,
                         "this model's chat template has a %s message at the "
                         "beginning alone; it is message %lld here",
                         message->role, (long long)i + 1);
    return put_form(m, p, f, message);
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
    WEFT_TRY(put_tokens(&p, &begin, begin >= 0 && !m->by_role));
    WEFT_TRY(put_form(m, &p, &m->forms[BEGIN], &answer));
    if (count == 0 || !is_system(messages)) WEFT_TRY(put_form(m, &p, &m->forms[DEFAULT], &answer));
    for (int64_t i = 0; i < count; i++)
        WEFT_TRY(put_message(m, &p, messages, i));
    WEFT_TRY(put_form(m, &p, &m->forms[ANSWER], &answer));
    WEFT_TRY(end_text(&p));
    *n_tokens = p.count;
    *tokens = weft_steal(&p.tokens);
    return WEFT_OK;
}
