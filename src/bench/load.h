/* Load for a server of OpenAI's interface: requests that are sent when they are due, whether those before them were
 * answered or not (an open loop), and when each token of their streams came. One thread polls all of them. */
#pragma once

#include "bench/tables.h"

typedef struct {
    double due;           /* on weft_clock */
    int64_t prompt, most; /* tokens of its prompt, and most of its text */
    /* What came of it. */
    int status; /* of HTTP; 0: there was no answer, or not all of it */
    bool ended;
    int64_t tokens;
    double first, last; /* when its first and its last token came, on weft_clock */
    /* The connection's own: */
    int socket; /* 0: it was not sent yet, or has ended */
    bool body;
    char *in;
    size_t bytes, room;
} bench_request;

typedef struct {
    const char *host;
    int port;
    int64_t vocab; /* prompts are tokens below this, drawn from the seed and the round */
    uint64_t seed;
    uint32_t round; /* with another, a server knows no prompt from before */
    bench_request *requests;
    int64_t count;
    bench_samples
        *between; /* takes the seconds between tokens, of all requests; NULL: nobody does */
} bench_load;

/* Sends what is due, and waits until something comes or the next is due, a tenth of a second at most. */
weft_status bench_load_turn(bench_load *l);
/* Gives a request up where it is. */
void bench_request_end(bench_request *r);
