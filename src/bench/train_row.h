/* One row of the training table: whole training steps of a config (forward, backward, clipping,
 * AdamW), and what they took. */
#pragma once

#include "bench/peer.h"

typedef struct {
    const weft_config *config;
    int threads;       /* 0: one a processor */
    int steps;         /* measured, on each side */
    double settle;     /* seconds of steps before those */
    double step_flops; /* of a step, as planned */
    bool profile;      /* print where the time goes, to standard error */
    bench_peer *peer;  /* NULL: none */
    bool eager;        /* the peer compiles nothing */
} bench_train_job;

/* Runs the job in a process of its own, since a peak of memory is a process's, and gives what came
 * of it, the caller's to json_decref; NULL and an error when it failed. Keys:
 *
 *   seconds, spread, samples   of a step: the median
 *   mean_seconds               on a GPU: the mean of a step and what lies between two of them
 *   device_seconds, draw_seconds, open_seconds, first_step_seconds
 *                              what it took to find the device, draw the weights, open the training
 *                              pass, and take the first step
 *   of_limit                   the rate of step_flops against multiply-adds in registers on every thread
 *                              (bench/limits.h), of the kind of its dtype, measured in the same rounds
 *   peak_bytes                 the most memory that training added; 0: the system does not tell
 *   losses                     of the first steps
 *   peer_seconds, peer_spread, peer_form, peer_forms, peer_losses, differs
 *                              with a peer. differs: its losses are not ours
 *   peer_error                 one line on why the peer has no numbers
 *   peer_gone                  whether its process has ended */
json_t *bench_train_run(const bench_train_job *job);
