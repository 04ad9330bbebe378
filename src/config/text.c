/* The options as text for people and for Kconfig, from the same table as everything else.
 *
 * Words and numbers with a point are string symbols there, since Kconfig has no other type for
 * them; the program's own table checks them. An option that matters only sometimes says so in its
 * help and is not hidden: Kconfig drops a hidden option's value, and a study's step may be what
 * makes it matter. */
#include "config/config.h"

#include "base/files.h"
#include "base/text.h"

#include <strings.h>

enum { TEXT_WIDTH = 73 };

/* Prints text folded at words, each line after `indent`. */
static void write_folded(FILE *out, const char *indent, const char *text) {
    while (*text) {
        size_t length = strlen(text);
        if (length > TEXT_WIDTH) {
            length = TEXT_WIDTH;
            while (length > 0 && text[length] != ' ')
                length--;
        }
        fprintf(out, "%s%.*s\n", indent, (int)length, text);
        text += length;
        while (*text == ' ')
            text++;
    }
}

/* As Kconfig quotes: a backslash before a quote and before a backslash. */
static void write_quoted(FILE *out, const char *text, const char *end) {
    fputc('"', out);
    for (; text < end; text++) {
        if (*text == '"' || *text == '\\') fputc('\\', out);
        fputc(*text, out);
    }
    fputs("\"\n", out);
}

static void write_value(FILE *out, const weft_option *o, const char *value) {
    if (o->type == WEFT_OPT_BOOL || o->type == WEFT_OPT_INT)
        fprintf(out, "%s\n", value);
    else
        write_quoted(out, value, value + strlen(value));
}

static void write_range(FILE *out, const char *indent, const weft_option *o) {
    char words[256], where[256];
    if (o->type == WEFT_OPT_WORD)
        fprintf(out, "%sOne of: %s.\n", indent, weft_option_words(o, words, sizeof words));
    if (o->type == WEFT_OPT_NUMBER)
        fprintf(out, "%sA number from %g to %g.\n", indent, o->min, o->max);
    if (!*o->depends) return;
    snprintf(where, sizeof where, "Matters where %s.", o->depends);
    write_folded(out, indent, where);
}

void weft_config_write_kconfig(FILE *out) {
    const char *group = "";
    fprintf(out, "# Made by `weft help config --kconfig` from the program's table of options.\n"
                 "mainmenu \"weft\"\n");
    for (const weft_option *o = weft_options(NULL); o->key; o++) {
        if (strcmp(group, o->group) != 0) {
            if (*group) fprintf(out, "\nendmenu\n");
            fprintf(out, "\nmenu \"%s\"\n", o->group);
            group = o->group;
        }
        fprintf(out, "\nconfig %s\n", o->key);
        static const char *const types[] = {[WEFT_OPT_BOOL] = "bool", [WEFT_OPT_INT] = "int"};
        bool plain = o->type == WEFT_OPT_BOOL || o->type == WEFT_OPT_INT;
        fprintf(out, "\t%s ", plain ? types[o->type] : "string");
        const char *end = o->help; /* a menu shows its first phrase */
        while (*end && !(*end == '.' && (end[1] == ' ' || !end[1])) && *end != ';' && *end != ':')
            end++;
        write_quoted(out, o->help, end);
        fprintf(out, "\tdefault ");
        write_value(out, o, o->fallback);
        if (o->type == WEFT_OPT_INT) fprintf(out, "\trange %.0f %.0f\n", o->min, o->max);
        fprintf(out, "\thelp\n");
        write_folded(out, "\t  ", o->help);
        write_range(out, "\t  ", o);
    }
    if (*group) fprintf(out, "\nendmenu\n");
}

/* The key with its default, what it does, its range or words, and when it matters. */
static void write_option(FILE *out, int indent, const weft_option *o) {
    char deeper[16];
    snprintf(deeper, sizeof deeper, "%*s", indent + 4, "");
    fprintf(out, "%*sCONFIG_%s=%s\n", indent, "", o->key, *o->fallback ? o->fallback : "\"\"");
    write_folded(out, deeper, o->help);
    if (o->type == WEFT_OPT_INT)
        fprintf(out, "%sA whole number from %.0f to %.0f.\n", deeper, o->min, o->max);
    write_range(out, deeper, o);
}

void weft_option_explain(const weft_option *o, FILE *out) {
    write_option(out, 0, o);
    if (o->type == WEFT_OPT_BOOL) fputs("    y or n.\n", out);
    if (o->type == WEFT_OPT_TEXT) fputs("    A text.\n", out);
    fprintf(out, "    The default is %s.\n", *o->fallback ? o->fallback : "empty");
    for (const weft_alias *a = weft_aliases; a->old; a++)
        if (strcmp(a->key, o->key) == 0)
            fprintf(out, "    CONFIG_%s, its old name, is read too.\n", a->old);
}

bool weft_config_write_help(FILE *out, const char *word) {
    const char *group = "";
    for (const weft_option *o = weft_options(NULL); o->key; o++) {
        bool about = !word || strcasestr(o->key, word) || strcasestr(o->help, word) ||
                     (strncasecmp(word, "CONFIG_", 7) == 0 && strcasestr(o->key, word + 7));
        if (!about) continue;
        if (strcmp(group, o->group) != 0) {
            fprintf(out, "%s%s\n", *group ? "\n" : "", o->group);
            group = o->group;
        }
        write_option(out, 2, o);
    }
    return *group;
}

/* `but`, where it is not NULL: without what it has too. */
static weft_status save(const weft_config *c, const weft_config *but, const char *head,
                        bool (*wanted)(const weft_option *o), const char *path) {
    WEFT_AUTO_FREE char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);
    if (out) fputs(head, out);
    for (const weft_option *o = weft_options(NULL); out && o->key; o++) {
        char value[WEFT_TEXT_MAX];
        if ((but && weft_option_same(c, but, o)) || (wanted && !wanted(o))) continue;
        weft_config_format(c, o, value, sizeof value);
        fprintf(out, "CONFIG_%s=", o->key);
        write_value(out, o, value);
    }
    if (!out || !weft_memory_end(out, &text)) return weft_no_memory(path);
    return weft_file_write(path, text, bytes, NULL);
}

weft_status weft_config_save(const weft_config *c, const char *path) {
    return save(c, NULL, "", NULL, path);
}

weft_status weft_config_save_changes(const weft_config *c, const char *head,
                                     bool (*wanted)(const weft_option *o), const char *path) {
    weft_config plain;
    weft_config_defaults(&plain);
    return save(c, &plain, head, wanted, path);
}
