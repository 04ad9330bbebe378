/* Templates: read once into a list of pieces, which are put together for each conversation. Text is encoded in one go
 * from one special token to the next, so that it becomes the tokens it would have anywhere else. */
#include "serve/request.h"

#include "base/text.h"

enum { PIECES_MOST = 64, SPECIAL_LETTERS = 64 };

typedef enum { PIECE_TEXT, PIECE_ROLE, PIECE_CONTENT, PIECE_SPECIAL } piece_kind;

typedef struct {
    piece_kind kind;
    size_t from, bytes; /* of text */
    int32_t token;      /* a special one */
    unsigned filters;   /* of content: bits by their names */
} piece;

/* What is left out of a content: blanks around it, before it, behind it; what comes before the end of its reasoning;
 * that, and the line ends behind it; line ends before it. */
enum { TRIM, LSTRIP, RSTRIP, CUT, THINK, LINES, FILTERS };
static const char *const filter_names[FILTERS] = {"trim", "lstrip", "rstrip",
                                                  "cut",  "think",  "lines"};

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
        return WEFT_BAD_INPUT("CONFIG_CHAT_TEMPLATE has more than %d parts; shorten it",
                              PIECES_MOST);
    m->pieces[m->n++] = p;
    return WEFT_OK;
}

/* Which of the words stands here; -1: none. */
static int find_word(const char *at, const char *const *words, int n) {
    for (int i = 0; i < n; i++)
        if (strncmp(at, words[i], strlen(words[i])) == 0) return i;
    return -1;
}

/* The length of {content}, with its filters, where that stands here; 0: it does not. */
static size_t read_content(const char *at, piece *out) {
    size_t n = strlen("{content");
    *out = (piece){.kind = PIECE_CONTENT};
    if (strncmp(at, "{content", n) != 0) return 0;
    while (at[n] == '|') {
        int filter = find_word(at + n + 1, filter_names, FILTERS);
        if (filter < 0) return 0;
        out->filters |= 1U << filter;
        n += 1 + strlen(filter_names[filter]);
    }
    return at[n] == '}' ? n + 1 : 0;
}

static weft_status cut_pieces(weft_template *m) {
    static const char role[] = "{role}";
    form *f = &m->forms[USER];
    m->by_role = strncmp(m->text, marks[BEGIN], strlen(marks[BEGIN])) == 0;
    *f = (form){.given = true, .content = -1};
    for (size_t at = 0; m->text[at];) {
        size_t length, whole;
        piece content;
        int mark = m->by_role ? find_word(m->text + at, marks, FORMS) : -1;
        int32_t token = find_special(m->tokenizer, m->text + at, &length);
        if (mark >= 0) {
            f = &m->forms[mark];
            *f = (form){.given = true, .first = m->n, .end = m->n, .content = -1};
            at += strlen(marks[mark]);
            continue;
        }
        if (token >= 0) {
            WEFT_TRY(add_piece(m, (piece){PIECE_SPECIAL, at, length, token, 0}));
        } else if (strncmp(m->text + at, role, sizeof role - 1) == 0) {
            length = sizeof role - 1;
            WEFT_TRY(add_piece(m, (piece){.kind = PIECE_ROLE}));
        } else if ((whole = read_content(m->text + at, &content)) > 0) {
            if (f->content >= 0)
                return WEFT_BAD_INPUT("CONFIG_CHAT_TEMPLATE must have {content} once, not twice");
            f->content = m->n;
            length = whole;
            WEFT_TRY(add_piece(m, content));
        } else { /* a letter, to the form's last piece where that is text */
            piece *last = m->n > f->first ? m->pieces + m->n - 1 : NULL;
            length = 1;
            if (last && last->kind == PIECE_TEXT)
                last->bytes++;
            else
                WEFT_TRY(add_piece(m, (piece){.kind = PIECE_TEXT, .from = at, .bytes = 1}));
        }
        at += length;
        f->end = m->n;
    }
    return WEFT_OK;
}

weft_status weft_template_open(const char *text, const weft_tokenizer *t, weft_template **out) {
    *out = NULL;
    WEFT_NEW(weft_template, m, weft_template_close, "chat template: no memory");
    m->tokenizer = t;
    m->text = strdup(text);
    if (!m->text) return weft_no_memory("chat template");
    char *to = m->text;
    for (const char *from = m->text; *from; from++) {
        char next = *from == '\\' ? from[1] : 0;
        bool known = next == 'n' || next == 't' || next == '\\';
        if (known) from++;
        *to++ = !known ? *from : next == 'n' ? '\n' : next == 't' ? '\t' : '\\';
    }
    *to = 0;
    WEFT_TRY(cut_pieces(m));
    for (int i = 0; i < FORMS; i++) {
        bool message = i >= SYSTEM && i <= ASSISTANT, has = m->forms[i].content >= 0;
        if (m->forms[i].given && message && !has)
            return WEFT_BAD_INPUT("CONFIG_CHAT_TEMPLATE must have {content} in it, as in "
                                  "\"{role}: {content}\\n\"");
        if (m->forms[i].given && !message && has)
            return WEFT_BAD_INPUT("CONFIG_CHAT_TEMPLATE has {content} behind %s, where "
                                  "there is no message",
                                  marks[i]);
    }
    if (m->by_role && !m->forms[ASSISTANT].given)
        return WEFT_BAD_INPUT("CONFIG_CHAT_TEMPLATE that begins with {begin} must have "
                              "{user} and {assistant} in it");
    if (!m->by_role) {
        m->forms[SYSTEM] = m->forms[ASSISTANT] = m->forms[ANSWER] = m->forms[USER];
        m->forms[ANSWER].end = m->forms[USER].content;
    }
    /* What follows an answer's content up to {role}, without blanks at its end unless it is
     * nothing else. */
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
    if (end != from) {
        m->stop = strndup(m->text + from, end - from);
        WEFT_TRY(m->stop ? WEFT_OK : weft_no_memory("chat template"));
    }
    return weft_hand(&m, out);
}

void weft_template_close(weft_template *m) {
    if (!m) return;
    WEFT_FREE(m->text, m->stop, m);
}

WEFT_GETTER(const char *, weft_template_stop, weft_template, stop)

typedef struct {
    weft_encoder *encoder;
    char *text; /* since the last special token */
    size_t bytes, room;
    int32_t *tokens;
    int64_t count, tokens_room;
} prompt;

static weft_status put_text(prompt *p, const char *text, size_t bytes) {
    if (!weft_grow(&p->text, &p->room, p->bytes + bytes)) return weft_no_memory("chat template");
    if (bytes) memcpy(p->text + p->bytes, text, bytes);
    p->bytes += bytes;
    return WEFT_OK;
}

static weft_status put_tokens(prompt *p, const int32_t *tokens, int64_t count) {
    if (count <= 0) return WEFT_OK;
    if (!weft_grow_list(&p->tokens, &p->tokens_room, p->count + count, sizeof *p->tokens))
        return weft_no_memory("chat template");
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

static weft_status put_content(prompt *p, unsigned filters, const weft_message *message) {
    static const char thought[] = "</think>";
    const char *text = message->content, *end = text + message->bytes, *found = NULL;
    bool cuts = filters & (1U << CUT | 1U << THINK);
    while (cuts && text < end &&
           (found = memmem(text, (size_t)(end - text), thought, strlen(thought))))
        text = found + strlen(thought);
    bool cut = text > message->content;
    while (((cut && filters & 1U << THINK) || filters & 1U << LINES) && text < end && *text == '\n')
        text++;
    while (filters & (1U << TRIM | 1U << LSTRIP) && text < end && is_blank(*text))
        text++;
    while (filters & (1U << TRIM | 1U << RSTRIP) && text < end && is_blank(end[-1]))
        end--;
    return put_text(p, text, (size_t)(end - text));
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
            WEFT_TRY(put_content(p, part->filters, message));
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

static void end_prompt(prompt *p) {
    WEFT_FREE(p->text, p->tokens);
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
    for (int64_t i = 0; i < count; i++) {
        const weft_message *message = messages + i;
        bool system = is_system(message);
        const form *f = &m->forms[system                                    ? SYSTEM
                                  : strcmp(message->role, "assistant") == 0 ? ASSISTANT
                                  : m->forms[FIRST].given && i == 1 && is_system(messages) ? FIRST
                                                                                           : USER];
        if (!f->given)
            return WEFT_BAD_INPUT("this model's chat template has no %s message; put it into "
                                  "the first message of the user",
                                  message->role);
        if (system && m->by_role && i > 0)
            return WEFT_BAD_INPUT("this model's chat template has a %s message at the "
                                  "beginning alone; it is message %lld here",
                                  message->role, (long long)i + 1);
        WEFT_TRY(put_form(m, &p, f, message));
    }
    WEFT_TRY(put_form(m, &p, &m->forms[ANSWER], &answer));
    WEFT_TRY(end_text(&p));
    *n_tokens = p.count;
    return weft_hand(&p.tokens, tokens);
}
