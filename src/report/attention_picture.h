/* What one head looks at, as a picture. */
#ifndef WEFT_REPORT_ATTENTION_PICTURE_H
#define WEFT_REPORT_ATTENTION_PICTURE_H

#include <jansson.h>
#include <stddef.h>

/* A head of attention.json (train/samples.h): `rows` of percent for `time` tokens, and each token's
 * deviation as a bar below where `sigma` is not NULL. SVG for a page; the caller frees it. NULL: no
 * memory. */
char *weft_attention_picture(const json_t *rows, const json_t *sigma, size_t time, int style,
                             const char *title);

#endif
