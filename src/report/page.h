/* A page that is written twice at once, as HTML and as Markdown: headings, paragraphs, lists, tables,
 * pictures. Callers give plain text; whatever is in it, it comes out as text in both. A list, a table or a group of
 * pictures ends where something else begins. */
#pragma once

#include "base/error.h"

#include <jansson.h>

/* The script and the style of pages with charts, as they are in charts.js and charts.css, for a page to
 * hold whole: this one, and the live page of runs. charts.js tells how a page calls it. */
extern const char weft_charts_script[], weft_charts_style[];
extern const char weft_report_script[]; /* page.js: what is a report's alone */

typedef struct {
    FILE *html, *md;
    FILE *words; /* to put a text or a picture together in; see weft_page_words */
    char *html_text, *md_text, *words_text;
    size_t html_size, md_size, words_size;
    int level;           /* of a section's heading: 2, or 3 where each study is a section */
    char section[160];   /* its heading, by which a screen reader names the tables in it */
    int tables;          /* so far */
    int columns, column; /* of the open table */
    char *kinds;         /* of its columns: '>', '=' or ' ' */
    size_t kinds_room;
    const char *end; /* of the list, table or group that is open, in HTML; NULL: none is */
    bool heading;    /* its heads are not all there */
    bool cut;        /* memory ran out in `words` */
    bool folded;     /* a section that begins folded is open */
    bool answers;    /* it has an answer, and no second one */
    bool asks;       /* and a question */
    size_t contents; /* where they stand in the HTML, once it is whole */
    FILE *names;     /* of the parts, as links to them */
    char *names_text;
    size_t names_size;
    int pictures;   /* so far: makes the ids in them unlike */
    json_t *svgs;   /* the pictures, for files beside the Markdown */
    json_t *charts; /* what charts.js draws: one object for each group of pictures */
    struct weft_page_room *rooms;
} weft_page;

#define PRINTF(a, b) __attribute__((format(printf, a, b)))

/* Zeroed memory, and a text, that last as long as the page. NULL: no memory. */
void *weft_page_room(weft_page *p, size_t bytes);
char *weft_page_keep(weft_page *p, const char *format, ...) PRINTF(2, 3);

weft_status weft_page_open(weft_page *p, const char *title);
/* Writes folder/report.html, folder/report.md and its pictures, folder/report-1.svg and so on, making
 * the folder where it is missing. */
weft_status weft_page_write(weft_page *p, const char *folder, bool force);
/* An error where one of the two is there and no report of weft's, unless `force`. */
weft_status weft_page_vacant(const char *folder, bool force);
/* Writes the HTML alone, as a file of that name; as above, nothing but a page of weft's is written over
 * unless `force`. */
weft_status weft_page_write_html(weft_page *p, const char *path, bool force);
void weft_page_free(weft_page *p);

/* The one plain sentence under a heading is what `about` is for; NULL: none. */
void weft_page_title(weft_page *p, int level, const char *text);
void weft_page_heading(weft_page *p, const char *text, const char *about);
/* A heading whose section is folded until the reader opens it. */
void weft_page_fold(weft_page *p, const char *text, const char *about);
/* A title within a section. */
void weft_page_subtitle(weft_page *p, const char *text);
/* What was written to `words` since the last call, to be used before the next is written. */
const char *weft_page_words(weft_page *p);
/* A paragraph; one of another kind: "facts", "question", "answer" (bold in Markdown), "caveat" or "about". */
#define weft_page_say(p, ...) weft_page_line(p, "", __VA_ARGS__)
void weft_page_line(weft_page *p, const char *kind, const char *format, ...) PRINTF(3, 4);

/* An item of a list that begins with a word that stands out, for the Markdown alone. */
void weft_page_item_md(weft_page *p, const char *word, const char *text);

/* A command, with a button that copies it. */
void weft_page_command(weft_page *p, const char *format, ...) PRINTF(2, 3);

/* A table: heads, of which the first are given with '|' between them, then cells, row by row. A head that begins
 * with '>' is of numbers, with '=' of words that stay on one line. */
void weft_page_table_open(weft_page *p, const char *heads);
void weft_page_head(weft_page *p, const char *format, ...) PRINTF(2, 3);
void weft_page_cell(weft_page *p, const char *format, ...) PRINTF(2, 3);
/* Several at once, as they are. */
#define weft_page_cells(p, ...) weft_page_cells_of(p, (const char *const[]){__VA_ARGS__, NULL})
void weft_page_cells_of(weft_page *p, const char *const *texts);

/* Pictures of one section, beside each other where there is room. `spec` is what charts.js draws in
 * their place where scripts run (the page takes it over); NULL: they stay as they are. */
void weft_page_pictures_open(weft_page *p, json_t *spec);
/* `svg` goes into the HTML as it is, and into a file that the Markdown shows; where it is NULL the
 * caption is followed by what weft_error_message() says of it. */
void weft_page_picture(weft_page *p, const char *svg, const char *caption);
/* A small picture of many, for the HTML alone. */
void weft_page_thumbnail(weft_page *p, const char *svg, const char *caption);
/* A picture for the Markdown alone, of what the HTML shows otherwise. */
void weft_page_picture_md(weft_page *p, const char *svg, const char *caption);

/* Texts side by side, each with its title; what was given to the model stands out from what it wrote. */
void weft_page_text(weft_page *p, const char *title, const char *given, const char *text);

/* Text as it is, folded away. */
void weft_page_folded(weft_page *p, const char *summary, const char *text);

/* Data for a script, which finds it by this id: seven digits of a number. */
weft_status weft_page_put_json(weft_page *p, const char *id, const json_t *data);

/* Markup and text in turn; the text comes out as HTML shows it. */
#define weft_html(out, ...) weft_html_parts(out, (const char *const[]){__VA_ARGS__, NULL})
void weft_html_parts(FILE *out, const char *const *parts);
/* The text in JSON, without what HTML would show as a blank or U+FFFD. */
json_t *weft_page_json(const char *text);
