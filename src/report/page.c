/* HTML and Markdown at once.
 *
 * Every text passes one of the two escapes below, so a variant named <script> is read as that and run
 * by nobody. Control characters become blanks and bytes that are no UTF-8 become U+FFFD: a text can
 * neither end a table's row nor hide what follows it. Data for the script is JSON in which <, > and &
 * are escaped, so none can end its element. The page asks for nothing from elsewhere: its style and its
 * script are in it, its pictures are inline, and a policy in its head forbids all the rest. */
#include "report/page.h"

#include "base/embed.h"
#include "base/folders.h"
#include "base/json.h"
#include "base/text.h"

#include <ctype.h>
#include <stdarg.h>

WEFT_EMBED("weft_charts_script", "src/report/charts.js");
WEFT_EMBED("weft_report_script", "src/report/page.js");
WEFT_EMBED("weft_charts_style", "src/report/charts.css");

/* By these a report is known, so that nothing else is written over. */
#define HTML_MARK "<meta name=\"generator\" content=\"weft\">"
#define MD_MARK "<!-- weft report -->"

enum { LOOK = 512 };

/* Nothing is loaded or sent, whatever a text holds. */
#define POLICY                                                                                     \
    "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "        \
    "'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'\">"

/* One letter of a text that is neither markup nor a control character; returns its bytes. */
static int put_letter(FILE *out, const char *at) {
    int n = weft_utf8_length(at);
    if (n == 0)
        fputs("\xef\xbf\xbd", out);
    else if (weft_utf8_is_control(at, n))
        fputc(' ', out);
    else
        fwrite(at, 1, (size_t)n, out);
    return n ? n : 1;
}

static const char *html_sign(char c) {
    static const char *const signs[] = {
        ['&'] = "&amp;", ['<'] = "&lt;", ['>'] = "&gt;", ['"'] = "&quot;", ['\''] = "&#39;"};
    return (unsigned char)c <= '>' ? signs[(unsigned char)c] : NULL;
}

static void escape_html(FILE *out, const char *text, bool lines) {
    while (text && *text) {
        const char *sign = lines && *text == '\n' ? "\n" : html_sign(*text);
        if (sign) fputs(sign, out);
        text += sign ? 1 : put_letter(out, text);
    }
}

void weft_html_parts(FILE *out, const char *const *parts) {
    for (int i = 0; parts[i]; i++) {
        if (i % 2)
            escape_html(out, parts[i], false);
        else
            fputs(parts[i], out);
    }
}

json_t *weft_page_json(const char *text) {
    WEFT_AUTO_FREE char *clean = NULL;
    size_t size;
    FILE *out = open_memstream(&clean, &size);
    while (out && *text)
        text += put_letter(out, text);
    if (out) fclose(out);
    return weft_json_text(clean ? clean : "");
}

/* Four blanks before a line make it code in Markdown, whatever is in it. */
static void put_md_code(weft_page *p, const char *text) {
    fputs("\n    ", p->md);
    while (*text) {
        bool ends = *text == '\n';
        if (ends) fputs("\n    ", p->md);
        text += ends ? 1 : put_letter(p->md, text);
    }
    fputs("\n", p->md);
}

/* A formatted text, malloc'd; NULL: no memory. */
#define FORMAT(text, format)                                                                       \
    va_list args;                                                                                  \
    WEFT_AUTO_FREE char *text = NULL;                                                              \
    va_start(args, format);                                                                        \
    if (vasprintf(&text, format, args) < 0) text = NULL;                                           \
    va_end(args)

static void put_html(weft_page *p, const char *before, const char *text, const char *after) {
    weft_html(p->html, before, text ? text : "", after);
}

/* Markdown's own signs get a backslash; those that only mean something at a line's start never
 * stand there. An underscore within a word means nothing. */
static void put_md(weft_page *p, const char *before, const char *text, const char *after) {
    fputs(before, p->md);
    for (const char *at = text; at && *at;) {
        bool within = *at == '_' && at > text && isalnum((unsigned char)at[-1]) &&
                      isalnum((unsigned char)at[1]);
        if (strchr("<>&", *at)) {
            fputs(html_sign(*at++), p->md);
        } else if (strchr("\\`*_[]|~", *at) && !within) {
            fputc('\\', p->md);
            fputc(*at++, p->md);
        } else {
            at += put_letter(p->md, at);
        }
    }
    fputs(after, p->md);
}

struct weft_page_room {
    struct weft_page_room *next;
    max_align_t data[];
};

void *weft_page_room(weft_page *p, size_t bytes) {
    struct weft_page_room *room = calloc(1, sizeof *room + bytes);
    if (!room) return NULL;
    room->next = p->rooms;
    p->rooms = room;
    return room->data;
}

char *weft_page_keep(weft_page *p, const char *format, ...) {
    FORMAT(text, format);
    char *kept = text ? weft_page_room(p, strlen(text) + 1) : NULL;
    if (kept) strcpy(kept, text);
    return kept;
}

weft_status weft_page_open(weft_page *p, const char *title) {
    *p = (weft_page){.level = 2};
    p->html = open_memstream(&p->html_text, &p->html_size);
    p->md = open_memstream(&p->md_text, &p->md_size);
    p->words = open_memstream(&p->words_text, &p->words_size);
    p->names = open_memstream(&p->names_text, &p->names_size);
    p->charts = json_array();
    p->svgs = json_array();
    if (!p->html || !p->md || !p->words || !p->names || !p->charts || !p->svgs)
        return weft_fail(WEFT_ENOMEM, "report: no memory for its text");
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n" HTML_MARK "\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n" POLICY "\n",
          p->html);
    put_html(p, "<title>", title, "</title>\n<style>\n");
    fprintf(p->html, "%s%s</style>\n</head>\n<body>\n<div class=\"page\">\n", weft_page_style,
            weft_charts_style);
    fflush(p->html);
    p->contents = p->html_size;
    fputs("<main>\n", p->html);
    return WEFT_OK;
}

void weft_page_free(weft_page *p) {
    if (p->html) fclose(p->html);
    if (p->md) fclose(p->md);
    if (p->words) fclose(p->words);
    if (p->names) fclose(p->names);
    WEFT_FREE(p->html_text, p->md_text, p->words_text, p->names_text, p->kinds);
    json_decref(p->svgs);
    json_decref(p->charts);
    for (struct weft_page_room *next, *room = p->rooms; room; room = next) {
        next = room->next;
        free(room);
    }
    *p = (weft_page){0};
}

static void end_heads(weft_page *p) {
    if (!p->heading) return;
    p->heading = false;
    fputs("</tr></thead>\n<tbody>\n", p->html);
    fputs("\n|", p->md);
    for (int i = 0; i < p->columns; i++)
        fputs(p->kinds[i] == '>' ? " ---: |" : " --- |", p->md);
    fputs("\n", p->md);
}

/* Ends the list, the table or the group that is open. */
static void end_element(weft_page *p) {
    end_heads(p);
    if (p->end) fputs(p->end, p->html);
    p->end = NULL;
}

static void begin_section(weft_page *p, const char *text) {
    end_element(p);
    if (p->folded) fputs("</details>\n", p->html);
    p->folded = false;
    snprintf(p->section, sizeof p->section, "%s", text);
}

static void put_title(weft_page *p, const char *text) {
    fprintf(p->html, "<h%d class=\"title\">", p->level + 1);
    put_html(p, "", text, "");
    fprintf(p->html, "</h%d>", p->level + 1);
}

/* The id of a part, made from its heading, by which the contents link to it. */
static void put_id(weft_page *p, const char *text) {
    char id[96] = "", link[100];
    size_t n = 0;
    for (; *text && n < 80; text++) {
        if (isalnum((unsigned char)*text))
            id[n++] = (char)tolower((unsigned char)*text);
        else if (n && id[n - 1] != '-')
            id[n++] = '-';
    }
    bool known = fflush(p->names) == 0 && p->names_text;
    for (int k = 2; known && snprintf(link, sizeof link, "#%s\"", id) > 0; k++) {
        known = strstr(p->names_text, link);
        if (known) snprintf(id + n, sizeof id - n, "-%d", k);
    }
    fprintf(p->html, " id=\"%s\"", id);
    weft_html(p->names, "<li><a href=\"#", id, "\">", p->section, "</a></li>\n");
}

void weft_page_title(weft_page *p, int level, const char *text) {
    begin_section(p, text);
    fprintf(p->html, "<h%d", level);
    if (level == 2) put_id(p, text);
    put_html(p, ">", text, "");
    fprintf(p->html, "</h%d>\n", level);
    fprintf(p->md, "%s%.*s", ftell(p->md) > 0 ? "\n" : "", level, "######");
    put_md(p, " ", text, "\n");
}

void weft_page_heading(weft_page *p, const char *text, const char *about) {
    weft_page_title(p, p->level, text);
    if (about) weft_page_line(p, "about", "%s", about);
}

void weft_page_fold(weft_page *p, const char *text, const char *about) {
    begin_section(p, text);
    p->folded = true;
    fputs("<details class=\"fold\"", p->html);
    if (p->level == 2) put_id(p, text);
    put_html(p, "><summary>", text, "</summary>\n");
    fprintf(p->md, "\n%.*s", p->level, "######");
    put_md(p, " ", text, "\n");
    if (about) weft_page_line(p, "about", "%s", about);
}

void weft_page_subtitle(weft_page *p, const char *text) {
    end_element(p);
    put_title(p, text);
    fputs("\n", p->html);
    put_md(p, "\n**", text, "**\n");
}

void weft_page_line(weft_page *p, const char *kind, const char *format, ...) {
    FORMAT(text, format);
    bool answer = strcmp(kind, "answer") == 0;
    p->answers = p->answers || (answer && p->level == 2);
    p->asks = p->asks || strcmp(kind, "question") == 0;
    end_element(p);
    fprintf(p->html, *kind ? "<p class=\"%s\">" : "<p>%s", kind);
    put_html(p, "", text, "</p>\n");
    put_md(p, answer ? "\n**" : "\n", text, answer ? "**\n" : "\n");
}

const char *weft_page_words(weft_page *p) {
    fputc('\0', p->words); /* what an earlier, longer text left stands behind it */
    bool cut = fflush(p->words) != 0;
    rewind(p->words);
    p->cut = p->cut || cut;
    return cut ? "" : p->words_text;
}

void weft_page_item_md(weft_page *p, const char *word, const char *text) {
    put_md(p, "- **", word, "** ");
    put_md(p, "", text, "\n");
}

void weft_page_command(weft_page *p, const char *format, ...) {
    FORMAT(text, format);
    end_element(p);
    put_html(p, "<div class=\"copy\"><code tabindex=\"0\">", text,
             "</code><button type=\"button\">Copy</button></div>\n");
    put_md_code(p, text ? text : "");
}

/* How a column of a kind is set; long texts get a wider one than their longest word. */
static const char *class_of(char kind, size_t length) {
    if (kind != ' ') return kind == '>' ? " class=\"n\"" : " class=\"k\"";
    return length > 32 ? " class=\"long\"" : length > 16 ? " class=\"mid\"" : "";
}

void weft_page_table_open(weft_page *p, const char *heads) {
    end_element(p);
    p->end = "</tbody>\n</table>\n</div>\n";
    p->column = p->columns = 0;
    p->heading = true;
    fprintf(p->html, "<div class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"Table %d: ",
            ++p->tables);
    put_html(p, "", p->section, "\">\n<table>\n<thead><tr>");
    fputs("\n|", p->md);
    for (size_t n; *heads; heads += n + (heads[n] == '|')) {
        n = strcspn(heads, "|");
        weft_page_head(p, "%.*s", (int)n, heads);
    }
}

void weft_page_head(weft_page *p, const char *format, ...) {
    FORMAT(text, format);
    if (text && weft_grow(&p->kinds, &p->kinds_room, (size_t)p->columns + 1)) {
        char kind = *text == '>' || *text == '=' ? *text : ' ';
        const char *name = text + (kind != ' ');
        fprintf(p->html, "<th scope=\"col\"%s>", class_of(kind, 0));
        put_html(p, "", name, "</th>");
        put_md(p, " ", name, " |");
        p->kinds[p->columns++] = kind;
    }
}

void weft_page_cell(weft_page *p, const char *format, ...) {
    FORMAT(text, format);
    end_heads(p);
    bool first = p->column == 0, last = p->column + 1 >= p->columns;
    char kind = p->columns ? p->kinds[p->column] : ' ';
    fprintf(p->html, "%s<td%s>", first ? "<tr>" : "", class_of(kind, text ? strlen(text) : 0));
    put_html(p, "", text, last ? "</td></tr>\n" : "</td>");
    put_md(p, first ? "| " : " ", text, last ? " |\n" : " |");
    p->column = last ? 0 : p->column + 1;
}

void weft_page_cells_of(weft_page *p, const char *const *texts) {
    for (; *texts; texts++)
        weft_page_cell(p, "%s", *texts);
}

void weft_page_pictures_open(weft_page *p, json_t *spec) {
    end_element(p);
    p->end = "</div></div>\n";
    fputs("<div", p->html);
    if (spec && json_array_append_new(p->charts, spec) == 0)
        fprintf(p->html, " data-charts=\"%zu\"", json_array_size(p->charts) - 1);
    fputs("><div class=\"pictures\">\n", p->html);
    fputs("\n", p->md);
}

void weft_page_picture_md(weft_page *p, const char *svg, const char *caption) {
    bool kept = svg && json_array_append_new(p->svgs, weft_json_text(svg)) == 0;
    put_md(p, kept ? "\n![" : "\n", caption, "");
    if (kept) fprintf(p->md, "](report-%zu.svg)", json_array_size(p->svgs));
    fputs("\n", p->md);
}

void weft_page_picture(weft_page *p, const char *svg, const char *caption) {
    fputs("<figure>\n", p->html);
    if (svg)
        fputs(svg, p->html);
    else
        put_html(p, "<div class=\"none\">", weft_error_message(), "</div>\n");
    put_html(p, "<figcaption>", caption, "</figcaption>\n</figure>\n");
}

void weft_page_text(weft_page *p, const char *title, const char *given, const char *text) {
    static const char end[] = "</div>\n";
    if (p->end != end) { /* else it is one more of those that are open */
        end_element(p);
        p->end = end;
        fputs("<div class=\"samples\">\n", p->html);
    }
    fputs("<article>", p->html);
    put_title(p, title);
    fputs("<p><mark>", p->html);
    escape_html(p->html, given, true);
    fputs("</mark>", p->html);
    escape_html(p->html, text, true);
    fputs("</p></article>\n", p->html);
    put_md(p, "\n- **", title, "**: ");
    put_md(p, "", given, "");
    put_md(p, "", text, "\n");
}

void weft_page_folded(weft_page *p, const char *summary, const char *text) {
    end_element(p);
    put_html(p, "<details><summary>", summary, "</summary>\n<pre tabindex=\"0\">");
    escape_html(p->html, text, true);
    fputs("</pre></details>\n", p->html);
    put_md(p, "\n", summary, "\n");
    put_md_code(p, text);
}

/* Whether a mark is in the first or the last bytes. */
static weft_status has_mark(const char *path, bool *there, bool *ours) {
    char text[2 * LOOK + 1] = "";
    WEFT_AUTO_FCLOSE FILE *file = NULL;
    weft_kind kind;
    WEFT_TRY(weft_path_kind(path, &kind));
    *there = kind != WEFT_KIND_NOTHING;
    *ours = false;
    if (kind != WEFT_KIND_FILE) return WEFT_OK;
    WEFT_TRY(weft_file_open_stream(path, &file));
    size_t n = fread(text, 1, LOOK, file);
    if (n == LOOK && fseek(file, -LOOK, SEEK_END) == 0) n += fread(text + n, 1, LOOK, file);
    for (size_t i = 0; i < n; i++)
        if (!text[i]) text[i] = ' ';
    *ours = strstr(text, HTML_MARK) || strstr(text, MD_MARK);
    return WEFT_OK;
}

/* An error where something else than a report's part is in its place. */
static weft_status check_place(const char *folder, const char *name) {
    bool there, ours;
    WEFT_PATH(path, "%s/%s", folder, name);
    WEFT_TRY(has_mark(path, &there, &ours));
    if (!there || ours) return WEFT_OK;
    return WEFT_BAD_INPUT(
        "%s: is there already and no report of weft's; move it away, or let 'weft "
        "report' write over it with --force",
        path);
}

weft_status weft_page_vacant(const char *folder, bool force) {
    if (force) return WEFT_OK;
    WEFT_TRY(check_place(folder, "report.html"));
    return check_place(folder, "report.md");
}

/* A picture by itself brings what the page's style gives it there. */
static weft_status write_pictures(const weft_page *p, const char *folder) {
    static const char head[] = "<svg xmlns=\"http://www.w3.org/2000/svg\" ",
                      style[] =
                          MD_MARK "<style>[fill=ink]{fill:#1d2329}[stroke=ink]{stroke:#1d2329}"
                                  "[stroke=faint]{stroke:#c9cdc8}[fill=faint]{fill:#c9cdc8}"
                                  "@media(prefers-color-scheme:dark){[fill=ink]{fill:#e4e6e3}"
                                  "[stroke=ink]{stroke:#e4e6e3}[stroke=faint]{stroke:#454c4e}"
                                  "[fill=faint]{fill:#454c4e}}</style>";
    EACH_ITEM(svg, p->svgs) {
        WEFT_AUTO_FREE char *text = NULL;
        const char *from = json_string_value(svg.value), *rest = from + strcspn(from, " ") + 1;
        int tag = (int)strcspn(rest, ">") + 1;
        WEFT_PATH(path, "%s/report-%zu.svg", folder, svg.n);
        if (rest[tag - 1] != '>') return WEFT_BAD_INPUT("report: a picture is no SVG");
        int n = asprintf(&text, "%s%.*s%s%s", head, tag, rest, style, rest + tag);
        if (n < 0) return weft_fail(WEFT_ENOMEM, "report: no memory for its pictures");
        WEFT_TRY(weft_file_write(path, text, (size_t)n, NULL));
    }
    return WEFT_OK;
}

weft_status weft_page_put_json(weft_page *p, const char *id, const json_t *data) {
    WEFT_AUTO_FREE char *text =
        json_dumps(data, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(7));
    if (!text) return weft_fail(WEFT_ENOMEM, "report: no memory for its charts");
    fprintf(p->html, "<script type=\"application/json\" id=\"%s\">", id);
    for (const char *at = text; *at; at++) {
        if (strchr("<>&", *at))
            fprintf(p->html, "\\u%04x", (unsigned)*at);
        else
            fputc(*at, p->html);
    }
    fputs("</script>\n", p->html);
    return WEFT_OK;
}

static weft_status finish(weft_page *p) {
    begin_section(p, "");
    fputs("</main>\n</div>\n", p->html);
    WEFT_TRY(weft_page_put_json(p, "weft-charts", p->charts));
    fprintf(p->html, "<script>\n%s%s</script>\n", weft_charts_script, weft_report_script);
    fputs("</body>\n</html>\n", p->html);
    fputs("\n" MD_MARK "\n", p->md);
    if (p->cut || fflush(p->html) != 0 || fflush(p->md) != 0 || ferror(p->html) || ferror(p->md) ||
        fflush(p->names) != 0)
        return weft_fail(WEFT_ENOMEM, "report: no memory for its text");
    /* The contents come first, where the keyboard looks for them, and are known last. */
    char *whole;
    if (!p->names_size) return WEFT_OK;
    int n = asprintf(&whole,
                     "%.*s<nav class=\"contents\" aria-label=\"Contents\">\n<ol>\n<li><a "
                     "href=\"#\">%s</a></li>\n%s</ol>\n"
                     "<div id=\"controls\"></div>\n</nav>\n%s",
                     (int)p->contents, p->html_text,
                     p->answers ? (p->asks ? "Answer" : "Summary") : "Top", p->names_text,
                     p->html_text + p->contents);
    if (n < 0) return weft_fail(WEFT_ENOMEM, "report: no memory for its text");
    fclose(p->html);
    free(p->html_text);
    p->html = NULL;
    p->html_text = whole;
    p->html_size = (size_t)n;
    return WEFT_OK;
}

weft_status weft_page_write_html(weft_page *p, const char *path, bool force) {
    bool there, ours;
    WEFT_TRY(finish(p));
    WEFT_TRY(has_mark(path, &there, &ours));
    if (there && !ours) WEFT_TRY(weft_file_vacant(path, force));
    return weft_file_write(path, p->html_text, p->html_size, NULL);
}

weft_status weft_page_write(weft_page *p, const char *folder, bool force) {
    WEFT_TRY(finish(p));
    WEFT_TRY(weft_folder_make(folder));
    WEFT_TRY(weft_page_vacant(folder, force));
    for (size_t i = 0; i < json_array_size(p->svgs) && !force; i++) {
        WEFT_PATH(name, "report-%zu.svg", i + 1);
        WEFT_TRY(check_place(folder, name));
    }
    /* Both are written beside the old ones and renamed once they are whole: a reader never sees half a
     * report, and a full disk costs no old one. */
    weft_new_file first, second;
    WEFT_PATH(path, "%s/report.html", folder);
    WEFT_TRY(weft_new_file_begin(&first, path));
    weft_status status = weft_path(path, "%s/report.md", folder);
    if (status == WEFT_OK) status = weft_new_file_begin(&second, path);
    if (status != WEFT_OK) return weft_new_file_end(&first, status);
    status = weft_new_file_put(&first, p->html_text, (int64_t)p->html_size);
    if (status == WEFT_OK) status = weft_new_file_put(&second, p->md_text, (int64_t)p->md_size);
    if (status == WEFT_OK) status = write_pictures(p, folder);
    status = weft_new_file_end(&first, status);
    return weft_new_file_end(&second, status);
}
