/* A peer: another program that is measured in the same run, one JSON request per line, one JSON reply
 * a line. bench/peer.py and bench/peer_train.py say what they can be asked. */
#pragma once

#include "bench/tables.h"

typedef struct bench_peer bench_peer;

/* Starts the command line, by the shell, and greets it. NULL where there is no peer; `why`, of `size`
 * bytes, then has one line on the reason, else the peer's name for itself. The caller ignores
 * SIGPIPE, so that a peer that is gone is an answer and not an end. */
bench_peer *bench_peer_start(const char *command, int threads, char *why, size_t size);
void bench_peer_stop(bench_peer *p);

/* Sends `request`, which it takes over, and waits for the reply: the caller's to json_decref. NULL
 * when the peer answered with an error, or is gone: bench_peer_error says which. One that is gone
 * stays so. */
json_t *bench_peer_ask(bench_peer *p, json_t *request);
const char *bench_peer_error(const bench_peer *p);
bool bench_peer_gone(const bench_peer *p);

/* What was measured of a row, in turns: both sides, and the machine's limit as seconds for 1e9 units. */
typedef struct {
    bench_samples ours, peers, limit;
} bench_sides;
void bench_sides_free(bench_sides *s);

/* Has what was prepared run `repeats` times and adds the times. False on an error. */
bool bench_peer_run(bench_peer *p, int repeats, bench_samples *to);
