/* HTML and Markdown at once.
 *
 * Every text passes one of the two escapes below, so a step named <script> is read as that and run
 * by nobody. Control characters become blanks and bytes that are no UTF-8 become U+FFFD: a text can
 * neither end a table's row nor hide what follows it. The page asks for nothing from elsewhere: its
 * style is in it, its pictures are inline, and there is no script. */
#include "study/report_page.h"

#include "core/folders.h"
#include "core/text.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* By these a report is known, so that nothing else is written over. */
#define HTML_MARK "<meta name=\"generator\" content=\"weft\">"
#define MD_MARK "<!-- weft report -->"

enum { LOOK = 512 };

/* Wide tables scroll in a box of their own, so that the page never does. Pictures are drawn with
 * `ink` and `faint` for colours, which are the page's own, light or dark. */
static const char style[] =
    ":root{color-scheme:light dark;--ink:#1d2329;--soft:#59636e;--paper:#fdfdfc;--box:#f3f4f2;"
    "--line:#d9dcd8;--faint:#c9cdc8;--good:#00694d;--bad:#a63c00}\n"
    "@media(prefers-color-scheme:dark){:root{--ink:#e4e6e3;--soft:#a3aba6;--paper:#16191b;"
    "--box:#202426;--line:#363c3e;--faint:#454c4e;--good:#3fc79b;--bad:#ff9256}}\n"
    "*{box-sizing:border-box}\n"
    "body{margin:0;background:var(--paper);color:var(--ink);font:17px/1.55 system-ui,-apple-system,"
    "'Segoe UI',Roboto,'Noto Sans','DejaVu Sans',sans-serif;overflow-wrap:anywhere}\n"
    "main{max-width:1240px;margin:0 auto;padding:28px 20px 72px}\n"
    "h1{font-size:1.9rem;line-height:1.2;margin:0 0 .5rem;letter-spacing:-.01em}\n"
    "h2{font-size:1.3rem;line-height:1.3;margin:3rem 0 .2rem;padding-top:1rem;"
    "border-top:1px solid var(--line)}\n"
    "h3{font-size:1.12rem;line-height:1.3;margin:2.2rem 0 .2rem}\n"
    "p{margin:.5rem 0;max-width:46rem}\n"
    ".about{color:var(--soft);margin-top:0}\n"
    "ul.list{list-style:none;margin:1rem 0;padding:0}\n"
    "ul.list li{display:grid;grid-template-columns:13.5rem 1fr;gap:.2rem 1rem;padding:.6rem 0;"
    "border-top:1px solid var(--line)}\n"
    "ul.list li:last-child{border-bottom:1px solid var(--line)}\n"
    ".word{font-weight:650}.good{color:var(--good)}.bad{color:var(--bad)}\n"
    ".plain{color:var(--soft)}\n"
    ".good::before{content:'\\25B2\\00A0'}.bad::before{content:'\\25BC\\00A0'}"
    ".plain::before{content:'\\25CB\\00A0'}\n"
    ".scroll{overflow-x:auto;margin:1rem 0;border:1px solid var(--line);border-radius:6px}\n"
    "table{border-collapse:collapse;width:100%;font-size:.84rem;font-variant-numeric:tabular-nums;"
    "overflow-wrap:normal}\n"
    "th,td{padding:.45rem .6rem;text-align:left;vertical-align:top;border-top:1px solid "
    "var(--line);min-width:3rem;max-width:24rem}\n"
    "th{border-top:0;background:var(--box);font-weight:600;vertical-align:bottom}\n"
    "th.n,td.n{text-align:right}td.n,td.k{white-space:nowrap;max-width:none}\n"
    "td.mid{min-width:9rem}td.long{min-width:17rem}\n"
    "td{overflow-wrap:break-word}\n"
    ".pictures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,430px),1fr));"
    "gap:1.2rem 1.6rem;margin:1rem 0}\n"
    "figure{margin:0;max-width:660px}\n"
    "figure svg{display:block;width:100%;height:auto}\n"
    "figcaption{color:var(--soft);font-size:.88rem;line-height:1.45;margin-top:.3rem}\n"
    "figure .none{border:1px dashed var(--faint);border-radius:6px;padding:1.2rem}\n"
    "svg [stroke=ink]{stroke:var(--ink)}svg [fill=ink]{fill:var(--ink)}"
    "svg [color=ink]{color:var(--ink)}\n"
    "svg [stroke=faint]{stroke:var(--faint)}svg [fill=faint]{fill:var(--faint)}"
    "svg [color=faint]{color:var(--faint)}\n"
    "details{margin:1rem 0}summary{cursor:pointer;font-weight:600}\n"
    "pre{overflow-x:auto;background:var(--box);border-radius:6px;padding:1rem;font-size:.82rem;"
    "line-height:1.45;overflow-wrap:normal}\n"
    "@media(max-width:640px){body{font-size:16px}main{padding:20px 14px 48px}"
    "h1{font-size:1.55rem}ul.list li{grid-template-columns:1fr}}\n"
    "@media print{.scroll{overflow:visible}}\n";

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
    switch (c) {
    case '&':
        return "&amp;";
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    default:
        return NULL;
    }
}

static void escape_html(FILE *out, const char *text, bool lines) {
    while (*text) {
        const char *sign = lines && *text == '\n' ? "\n" : html_sign(*text);
        if (sign) fputs(sign, out);
        text += sign ? 1 : put_letter(out, text);
    }
}

void weft_page_escape_html(FILE *out, const char *text) {
    escape_html(out, text, false);
}

/* Markdown's own signs get a backslash; those that only mean something at a line's start never
 * stand there. An underscore within a word means nothing. */
static void escape_md(FILE *out, const char *text) {
    const char *start = text;
    while (*text) {
        bool within = *text == '_' && text > start && isalnum((unsigned char)text[-1]) &&
                      isalnum((unsigned char)text[1]);
        if (*text == '<' || *text == '>' || *text == '&') {
            fputs(*text == '<' ? "&lt;" : *text == '>' ? "&gt;" : "&amp;", out);
            text++;
        } else if (strchr("\\`*_[]|~", *text) && !within) {
            fputc('\\', out);
            fputc(*text++, out);
        } else {
            text += put_letter(out, text);
        }
    }
}

/* A formatted text, or "" without memory; the caller frees what *room says. */
static const char *format_text(char **room, const char *format, va_list args) {
    *room = NULL;
    return vasprintf(room, format, args) < 0 ? (*room = NULL, "") : *room;
}

weft_status weft_page_open(weft_page *p, const char *title) {
    *p = (weft_page){.level = 2};
    p->html = open_memstream(&p->html_text, &p->html_size);
    p->md = open_memstream(&p->md_text, &p->md_size);
    if (!p->html || !p->md) {
        weft_page_free(p);
        return weft_fail(WEFT_ENOMEM, "report: no memory for its text");
    }
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n" HTML_MARK "\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>",
          p->html);
    weft_page_escape_html(p->html, title);
    fprintf(p->html, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<main>\n", style);
    return WEFT_OK;
}

void weft_page_free(weft_page *p) {
    if (p->html) fclose(p->html);
    if (p->md) fclose(p->md);
    free(p->html_text);
    free(p->md_text);
    *p = (weft_page){0};
}

void weft_page_title(weft_page *p, int level, const char *text) {
    fprintf(p->html, "<h%d>", level);
    weft_page_escape_html(p->html, text);
    fprintf(p->html, "</h%d>\n", level);
    fprintf(p->md, "%s%.*s ", ftell(p->md) > 0 ? "\n" : "", level, "######");
    escape_md(p->md, text);
    fputs("\n", p->md);
}

void weft_page_heading(weft_page *p, const char *text, const char *about) {
    weft_page_title(p, p->level, text);
    if (!about) return;
    fputs("<p class=\"about\">", p->html);
    weft_page_escape_html(p->html, about);
    fputs("</p>\n", p->html);
    fputs("\n", p->md);
    escape_md(p->md, about);
    fputs("\n", p->md);
}

void weft_page_say(weft_page *p, const char *format, ...) {
    va_list args;
    char *room;
    va_start(args, format);
    const char *text = format_text(&room, format, args);
    va_end(args);
    fputs("<p>", p->html);
    weft_page_escape_html(p->html, text);
    fputs("</p>\n", p->html);
    fputs("\n", p->md);
    escape_md(p->md, text);
    fputs("\n", p->md);
    free(room);
}

void weft_page_list_open(weft_page *p) {
    fputs("<ul class=\"list\">\n", p->html);
    fputs("\n", p->md);
}

void weft_page_item(weft_page *p, const char *kind, const char *word, const char *format, ...) {
    va_list args;
    char *room;
    va_start(args, format);
    const char *text = format_text(&room, format, args);
    va_end(args);
    fprintf(p->html, "<li><span class=\"word %s\">", kind);
    weft_page_escape_html(p->html, word);
    fputs("</span><span>", p->html);
    weft_page_escape_html(p->html, text);
    fputs("</span></li>\n", p->html);
    fputs("- **", p->md);
    escape_md(p->md, word);
    fputs("** ", p->md);
    escape_md(p->md, text);
    fputs("\n", p->md);
    free(room);
}

void weft_page_list_close(weft_page *p) {
    fputs("</ul>\n", p->html);
}

/* A head's first sign tells how its column is set: > numbers, = words that stay on one line. */
static const char *class_of(const char *head) {
    return *head == '>' ? " class=\"n\"" : *head == '=' ? " class=\"k\"" : "";
}

/* Long texts get a wider column than their longest word. */
static const char *cell_class(const char *head, const char *text) {
    size_t length = strlen(text);
    if (*class_of(head)) return class_of(head);
    return length > 32 ? " class=\"long\"" : length > 16 ? " class=\"mid\"" : "";
}

void weft_page_table_open(weft_page *p, const char *const *heads) {
    p->heads = heads;
    p->column = 0;
    fputs("<div class=\"scroll\" tabindex=\"0\">\n<table>\n<thead><tr>", p->html);
    fputs("\n|", p->md);
    for (p->columns = 0; heads[p->columns]; p->columns++) {
        const char *head = heads[p->columns], *name = head + (*class_of(head) != '\0');
        fprintf(p->html, "<th scope=\"col\"%s>", class_of(head));
        weft_page_escape_html(p->html, name);
        fputs("</th>", p->html);
        fputs(" ", p->md);
        escape_md(p->md, name);
        fputs(" |", p->md);
    }
    fputs("</tr></thead>\n<tbody>\n", p->html);
    fputs("\n|", p->md);
    for (int i = 0; i < p->columns; i++)
        fputs(*heads[i] == '>' ? " ---: |" : " --- |", p->md);
    fputs("\n", p->md);
}

void weft_page_cell(weft_page *p, const char *format, ...) {
    va_list args;
    char *room;
    va_start(args, format);
    const char *text = format_text(&room, format, args);
    va_end(args);
    if (p->column == 0) {
        fputs("<tr>", p->html);
        fputs("|", p->md);
    }
    fprintf(p->html, "<td%s>", cell_class(p->heads[p->column], text));
    weft_page_escape_html(p->html, text);
    fputs("</td>", p->html);
    fputs(" ", p->md);
    escape_md(p->md, text);
    fputs(" |", p->md);
    if (++p->column == p->columns) {
        fputs("</tr>\n", p->html);
        fputs("\n", p->md);
        p->column = 0;
    }
    free(room);
}

void weft_page_table_close(weft_page *p) {
    fputs("</tbody>\n</table>\n</div>\n", p->html);
}

void weft_page_pictures_open(weft_page *p) {
    fputs("<div class=\"pictures\">\n", p->html);
    fputs("\n", p->md);
}

void weft_page_picture(weft_page *p, const char *svg, const char *format, ...) {
    va_list args;
    char *room;
    va_start(args, format);
    const char *text = format_text(&room, format, args);
    va_end(args);
    fputs("<figure>\n", p->html);
    if (svg) {
        fputs(svg, p->html);
    } else {
        fputs("<div class=\"none\">", p->html);
        weft_page_escape_html(p->html, weft_error_message());
        fputs("</div>\n", p->html);
    }
    fputs("<figcaption>", p->html);
    weft_page_escape_html(p->html, text);
    fputs("</figcaption>\n</figure>\n", p->html);
    fputs("- ", p->md);
    escape_md(p->md, text);
    fputs(" (picture: in report.html)\n", p->md);
    free(room);
}

void weft_page_pictures_close(weft_page *p) {
    fputs("</div>\n", p->html);
}

/* Four blanks before a line make it code in Markdown, whatever is in it. */
void weft_page_folded(weft_page *p, const char *summary, const char *text) {
    fputs("<details><summary>", p->html);
    weft_page_escape_html(p->html, summary);
    fputs("</summary>\n<pre>", p->html);
    escape_html(p->html, text, true);
    fputs("</pre></details>\n", p->html);
    fputs("\n", p->md);
    escape_md(p->md, summary);
    fputs("\n\n    ", p->md);
    while (*text) {
        bool ends = *text == '\n';
        if (ends) fputs("\n    ", p->md);
        text += ends ? 1 : put_letter(p->md, text);
    }
    fputs("\n", p->md);
}

/* Whether a mark, or the one of before there were marks, is in the first or the last bytes. */
static weft_status has_mark(const char *path, bool *there, bool *ours) {
    char text[2 * LOOK + 1] = "";
    FILE *file;
    weft_kind kind;
    WEFT_TRY(weft_path_kind(path, &kind));
    *there = kind != WEFT_KIND_NOTHING;
    *ours = false;
    if (kind != WEFT_KIND_FILE) return WEFT_OK;
    WEFT_TRY(weft_file_open_stream(path, &file));
    size_t n = fread(text, 1, LOOK, file);
    if (n == LOOK && fseek(file, -LOOK, SEEK_END) == 0) n += fread(text + n, 1, LOOK, file);
    fclose(file);
    for (size_t i = 0; i < n; i++)
        if (!text[i]) text[i] = ' ';
    *ours = strstr(text, HTML_MARK) || strstr(text, MD_MARK) || strstr(text, "<title>weft: ");
    return WEFT_OK;
}

weft_status weft_page_vacant(const char *folder, bool force) {
    static const char *const names[] = {"report.html", "report.md"};
    bool there[2], ours[2];
    char path[WEFT_PATH_MAX];
    for (int i = 0; i < 2; i++) {
        WEFT_TRY(weft_path(path, "%s/%s", folder, names[i]));
        WEFT_TRY(has_mark(path, &there[i], &ours[i]));
        /* Older ones in Markdown have no mark; they lie beside their page. */
        if (force || !there[i] || ours[i] || (i == 1 && ours[0])) continue;
        return weft_fail(WEFT_EINPUT,
                         "%s: is there already and no report of weft's; move it away, or let 'weft "
                         "report' write over it with --force",
                         path);
    }
    return WEFT_OK;
}

/* Both are written beside the old ones and renamed once they are whole: a reader never sees half a
 * report, and a full disk costs no old one. */
static weft_status write_both(const weft_page *p, const char *folder) {
    char html[WEFT_PATH_MAX], md[WEFT_PATH_MAX];
    weft_new_file first, second;
    WEFT_TRY(weft_path(html, "%s/report.html", folder));
    WEFT_TRY(weft_path(md, "%s/report.md", folder));
    WEFT_TRY(weft_new_file_begin(&first, html));
    weft_status status = weft_new_file_begin(&second, md);
    if (status != WEFT_OK) return weft_new_file_end(&first, status);
    status = weft_new_file_put(&first, p->html_text, (int64_t)p->html_size);
    if (status == WEFT_OK) status = weft_new_file_put(&second, p->md_text, (int64_t)p->md_size);
    status = weft_new_file_end(&first, status);
    return weft_new_file_end(&second, status);
}

weft_status weft_page_write(weft_page *p, const char *folder, bool force) {
    fputs("</main>\n</body>\n</html>\n", p->html);
    fputs("\n" MD_MARK "\n", p->md);
    if (fflush(p->html) != 0 || fflush(p->md) != 0 || ferror(p->html) || ferror(p->md))
        return weft_fail(WEFT_ENOMEM, "report: no memory for its text");
    WEFT_TRY(weft_folder_make_one(folder));
    WEFT_TRY(weft_page_vacant(folder, force));
    return write_both(p, folder);
}
