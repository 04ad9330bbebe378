/* Texts from files and standard input, in batches that a pool can share out.
 *
 * A plain file is one document; it comes in parts of about a mebibyte where the tokenizer allows
 * that. With a field's name the files are JSON lines, a document each; without one those are whose names end
 * on .jsonl or .ndjson, and the field is "text". Files may be packed (unpack.h); what is no text is refused. A
 * share of the text can be kept apart for validation: of a plain file its end, from a line's start on; of
 * JSON lines, one in so many. */
#pragma once

#include "base/error.h"

typedef struct weft_input weft_input;

typedef struct {
    const char *const *paths; /* "-": standard input */
    int n_paths;
    const char *val_path; /* the one of them whose text is all kept apart; NULL: none */
    const char *field;    /* of JSON lines; NULL: by the file's name */
    double val_share;     /* 0 .. 1 */
    bool cuttable;        /* whether a document may come in parts (weft_tokenizer_cuttable) */
} weft_input_options;

/* A document, or a part of one. */
typedef struct {
    const char *text; /* of JSON lines: the line */
    size_t at,
        bytes;   /* at: where it is in what was read, which may move until the batch is whole */
    bool starts; /* the first part of its document */
    bool val;
    int path;
    int64_t line; /* of JSON lines; from 1 */
} weft_input_unit;

/* The options' arrays are used until closing. */
weft_status weft_input_open(const weft_input_options *options, weft_input **out);
void weft_input_close(weft_input *in);

/* Bytes of all files; 0 where one of them does not say. */
int64_t weft_input_total(const weft_input *in);

/* The next units, of about that many bytes; none at the end. They are valid until the next call. */
weft_status weft_input_next(weft_input *in, size_t want, const weft_input_unit **units,
                            int64_t *count);

/* The text of a unit; `*keep` (malloc'd, or NULL) holds it and is the caller's. For JSON lines this
 * is where a line is parsed, so call it in the tasks. A blank line has no text. */
weft_status weft_input_text(const weft_input *in, const weft_input_unit *unit, char **keep,
                            const char **text, size_t *bytes);
