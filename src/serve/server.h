/* The server: OpenAI's interface over HTTP, by libmicrohttpd.
 *
 * One thread speaks HTTP with all clients (epoll), one makes text (worker.h), one watches for clients
 * that are slow or gone (http.h). A connection whose answer is being made is suspended and
 * costs nothing until the worker has something for it. */
#pragma once

#include "data/tokenizer.h"
#include "generate/generator.h"

typedef struct weft_server weft_server;

typedef struct {
    const char *host; /* to listen on */
    int port;         /* 0: any that is free */
    const char *key;  /* that clients must send; NULL: none */
    int64_t body_bytes, connections;
    int64_t max_tokens;       /* of a text; 0: the context's */
    int64_t sequences, queue; /* that run at once: the generator's; and that may wait */
    double request_seconds;   /* in which a request must come in */
    double answer_seconds;    /* in which it must be answered */
} weft_server_options;

/* A model that is served: generator and encoder are the server's alone meanwhile, the tokenizer may be shared. */
typedef struct {
    const char *name;
    const char *chat_template; /* CONFIG_CHAT_TEMPLATE */
    weft_generator *generator;
    const weft_tokenizer *tokenizer;
    weft_encoder *encoder;
} weft_served_model;

enum { WEFT_SERVED_MOST = 2 };

/* Starts it; only builds with libmicrohttpd (WEFT_HAVE_MICROHTTPD) have it. What is given must outlive it. A request names one of the models, or
 * means the first. */
weft_status weft_server_open(const weft_server_options *o, const weft_served_model *models, int n,
                             weft_server **out);
int weft_server_port(const weft_server *s);

/* Takes no more connections and refuses new requests; what runs goes on. */
void weft_server_drain(weft_server *s);
/* How many answers are still being made or sent. */
int64_t weft_server_busy(weft_server *s);
void weft_server_close(weft_server *s);
WEFT_ENDED_BY(weft_server_close, weft_server)
