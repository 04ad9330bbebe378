#include "cli/filled.h"

#include <stdbool.h>
#include <string.h>

enum { WIDTH = 79, BODY = 21, USAGE = 7 };

typedef struct {
    FILE *to;
    int column;      /* where the next character goes */
    int first, hang; /* where the first word goes, and the lines after it begin */
    bool open;       /* a paragraph or an option is being written */
    bool fresh;      /* and none of its words yet */
} filler;

/* Columns of `length` bytes: characters of UTF-8. */
static int columns(const char *text, size_t length) {
    int n = 0;
    for (size_t i = 0; i < length; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

static void indent(filler *f, int column) {
    for (; f->column < column; f->column++)
        fputc(' ', f->to);
}

static void end(filler *f) {
    if (f->column > 0) fputc('\n', f->to);
    f->column = f->hang = 0;
    f->open = false;
}

static void begin(filler *f, int first, int hang) {
    f->first = first;
    f->hang = hang;
    f->open = f->fresh = true;
}

static void break_line(filler *f) {
    fputc('\n', f->to);
    f->column = 0;
}

static void add_word(filler *f, const char *word, size_t n) {
    int wide = columns(word, n);
    if (f->fresh) {
        indent(f, f->first);
    } else if (f->column + 1 + wide > WIDTH) {
        break_line(f);
        indent(f, f->hang);
    } else {
        indent(f, f->column + 1);
    }
    fwrite(word, 1, n, f->to);
    f->column += wide;
    f->fresh = false;
}

static void add_words(filler *f, const char *text, size_t length) {
    for (size_t at = strspn(text, " "); at < length; at += strspn(text + at, " ")) {
        size_t n = strcspn(text + at, " \n");
        add_word(f, text + at, n);
        at += n;
    }
}

static void begin_option(filler *f, const char *line, size_t length) {
    bool named = length > BODY && line[BODY - 1] == ' ' && line[BODY] != ' ';
    size_t head = named ? BODY - 1 : length;
    while (head > 0 && line[head - 1] == ' ')
        head--;
    fwrite(line, 1, head, f->to);
    f->column = columns(line, head);
    begin(f, BODY, BODY);
    if (f->column >= BODY) break_line(f); /* what it does begins on a line of its own */
    if (named) add_words(f, line + BODY, length - BODY);
}

static void add_line(filler *f, const char *line, size_t length) {
    size_t blanks = strspn(line, " ");
    bool option =
        blanks == 2 &&
        (line[2] == '-' || (length > BODY && line[BODY - 1] == ' ' && line[BODY - 2] == ' '));
    if (length == 0) {
        end(f);
        fputc('\n', f->to);
    } else if (f->open && f->hang == BODY && blanks >= BODY - 1) {
        add_words(f, line, length);
    } else if (option) {
        end(f);
        begin_option(f, line, length);
    } else if (blanks == 0) {
        if (f->hang == BODY) end(f);
        if (!f->open) begin(f, 0, strncmp(line, "usage: ", USAGE) == 0 ? USAGE : 0);
        add_words(f, line, length);
    } else {
        end(f);
        fprintf(f->to, "%.*s\n", (int)length, line);
    }
}

void weft_print_filled(FILE *to, const char *text) {
    filler f = {.to = to};
    while (*text) {
        size_t length = strcspn(text, "\n");
        add_line(&f, text, length);
        text += length + (text[length] == '\n');
    }
    end(&f);
}
