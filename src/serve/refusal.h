/* A request that is not answered: the HTTP status and the error in OpenAI's shape,
 *
 *     {"error": {"message": ..., "type": ..., "param": ..., "code": ...}}
 *
 * The message says what is wrong and what to do about it. */
#ifndef WEFT_SERVE_REFUSAL_H
#define WEFT_SERVE_REFUSAL_H

#include <stdbool.h>

typedef struct {
    int status;       /* of HTTP; 0: nothing is wrong */
    const char *code; /* "context_length_exceeded"; NULL: none */
    char param[64];   /* the parameter that is wrong; empty: none */
    char message[480];
} weft_refusal;

/* Fills it in and returns false, so that a check ends on `return weft_refuse(...)`. `param` and
 * `code` may be NULL. Bytes of the message that are no UTF-8 become '?'. */
bool weft_refuse(weft_refusal *why, int status, const char *code, const char *param,
                 const char *format, ...) __attribute__((format(printf, 5, 6)));

/* As JSON, malloc'd; NULL: no memory. */
char *weft_refusal_json(const weft_refusal *why);

#endif
