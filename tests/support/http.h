/* A server that a test started, and clients of it. */
#ifndef WEFT_TESTS_HTTP_H
#define WEFT_TESTS_HTTP_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

typedef struct {
    pid_t pid;
    int port;
} server;

/* In a build that cannot serve: runs one test that is skipped and says why, and returns true. */
bool server_tests_are_skipped(void);

/* A run's folder, "tiny" in the test's scratch folder, with a model of random weights: single bytes,
 * positions without an end, some thousand tokens in a second. */
void server_model(char *path, size_t room);

/* Runs `weft serve --port 0` with these arguments, which end on NULL, and waits until it listens. */
server server_start(const char *const *arguments);
/* The same of another command: "watch". */
server server_start_as(const char *command, const char *const *arguments);
/* A scratch folder with a server_model in it, `room` bytes for its path, and a server of that model on
 * one thread with these arguments too; and the end of both. */
server server_open(char *model, size_t room, const char *const *arguments);
void server_close(server *s);
/* Sends SIGTERM and expects that it ends with status 0 within five minutes. */
void server_stop(server *s);
/* Its exit status; -1: a signal ended it, or it had to be killed after `seconds`. */
int server_wait(server *s, double seconds);

typedef struct {
    int status; /* 0: the connection ended without an answer */
    char *head; /* ended by a zero, as is the body */
    char *body; /* without the marks of chunks */
    size_t bytes;
} answer;

int client_connect(int port);
/* Sends all; false: the other side closed. */
bool client_send(int socket, const void *bytes, size_t count);
/* The head of a POST with a body of so many bytes of JSON. */
int client_head(char *out, size_t room, const char *path, size_t bytes);
/* A connection on which a request for completions was sent; its answer is still to be read. */
int client_post(int port, const char *body);
/* Reads one answer to its end. Waits for `seconds` at most. */
answer client_read(int socket, double seconds);
void answer_free(answer *a);

/* One exchange on a connection of its own. `headers` are whole lines, NULL: none. */
answer http_get(int port, const char *path, const char *headers);
answer http_post(int port, const char *path, const char *headers, const void *body, size_t bytes);
/* A POST of JSON whose answer is expected to have that status and to be JSON. */
json_t *http_json(int port, const char *path, const char *body, int status);

/* The same of completions, with status 200 and a body made as printf makes it. */
json_t *http_complete(int port, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A POST that is answered by events, joined. */
json_t *http_stream(int port, const char *path, const char *body);

/* A number of /metrics; -1: there is none of that name. */
double http_metric(int port, const char *name);
/* Waits until it has that value. */
void http_wait_metric(int port, const char *name, double want);

/* A choice of an answer; NULL: it has none of that number. */
json_t *answer_choice(const json_t *whole, size_t i);
/* The answer that events of a stream make together, in the shape of one that comes whole: each choice's texts
 * and lists joined, and the usage where it is told. NULL: they do not end in [DONE], or one is an error. */
json_t *events_join(const char *events);

/* What `weft generate --json` makes of a model with these options, which end on NULL. */
json_t *generate_json(const char *model, const char *const *options);
/* Whether a choice of completions with return_token_ids has the text, tokens and end that were made there. */
bool choice_is(const json_t *c, const json_t *made);

#endif
