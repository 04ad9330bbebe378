/* What a step of AdamW or AdamWSPAM does: the decision that weft_adam_control stands for, written once
 * for every backend. optimizer.c has the formulas, optimizer.h the two vectors.
 *
 * Include it with ADAM_REAL defined as the type of the vectors' elements. Under nvcc the functions are
 * the device's too; everything is computed in double. */
#pragma once

#include "base/random.h"
#include "ops/optimizer.h"

#include <math.h>

/* Norms that must be known before one can be a spike. */
enum { ADAM_SPIKE_KNOWN = 10 };

/* A place in the ring, or a count of its norms: 0 where the state, which may have come from a file, says
 * something that is none. */
WEFT_BOTH static inline int adam_ring_number(double said, int most) {
    return said >= 0 && said <= most ? (int)said : 0;
}

/* Whether `norm` stands out from the norms before it. */
WEFT_BOTH static inline bool adam_is_spike(const ADAM_REAL *state, double norm, double threshold) {
    int known = adam_ring_number((double)state[WEFT_ADAM_KNOWN], WEFT_ADAM_HISTORY);
    if (threshold <= 0 || known < ADAM_SPIKE_KNOWN) return false;
    double mean = 0, squares = 0;
    for (int i = 0; i < known; i++)
        mean += (double)state[i];
    mean /= known;
    for (int i = 0; i < known; i++)
        squares += ((double)state[i] - mean) * ((double)state[i] - mean);
    return norm > mean + threshold * sqrt(squares / (known - 1));
}

/* What the learning rate is multiplied by, `age` steps after a reset. */
WEFT_BOTH static inline double adam_warmup_factor(const weft_adam_options *o,
                                                  const ADAM_REAL *state, double age) {
    const double pi = 3.14159265358979323846;
    double steps = (double)o->warmup_steps;
    if (state[WEFT_ADAM_RESETS] == 0 || age > steps) return 1;
    return fmax(1e-3, 0.5 * (1 - cos(pi * age / steps)));
}

/* The whole decision: a norm that is not finite leaves everything as it is. */
WEFT_BOTH static inline void adam_control_step(const weft_adam_options *o, ADAM_REAL norm,
                                               ADAM_REAL lr, ADAM_REAL *state, ADAM_REAL *control) {
    for (int i = 0; i < WEFT_ADAM_CONTROL; i++)
        control[i] = 0;
    control[WEFT_CONTROL_NORM] = norm;
    if (!isfinite(norm)) {
        control[WEFT_CONTROL_SKIPPED] = 1;
        state[WEFT_ADAM_SKIPS] += 1;
        return;
    }
    bool spike = adam_is_spike(state, (double)norm, o->spike_threshold);
    bool clipped = o->clip > 0 && (double)norm > o->clip;
    double before = (double)state[WEFT_ADAM_AGE], age = before + 1;
    bool reset = o->reset_interval > 0 && age >= (double)o->reset_interval;
    double warmup = adam_warmup_factor(o, state, age), used = (double)lr * warmup;
    int next = adam_ring_number((double)state[WEFT_ADAM_NEXT], WEFT_ADAM_HISTORY - 1);
    state[next] = norm;
    state[WEFT_ADAM_NEXT] = (ADAM_REAL)((next + 1) % WEFT_ADAM_HISTORY);
    if (state[WEFT_ADAM_KNOWN] < WEFT_ADAM_HISTORY) state[WEFT_ADAM_KNOWN] += 1;
    control[WEFT_CONTROL_APPLY] = 1;
    control[WEFT_CONTROL_GRAD] = (ADAM_REAL)(clipped ? o->clip / (double)norm : 1);
    control[WEFT_CONTROL_M] = (ADAM_REAL)(spike ? 0.5 : 1);
    control[WEFT_CONTROL_V] = (ADAM_REAL)(spike ? 0.9 : 1);
    control[WEFT_CONTROL_CUT] =
        (ADAM_REAL)(before > 0 ? o->theta / (1 - pow(o->beta2, before)) : 0);
    control[WEFT_CONTROL_BETA1] = (ADAM_REAL)o->beta1;
    control[WEFT_CONTROL_BETA1_REST] = (ADAM_REAL)(1 - o->beta1);
    control[WEFT_CONTROL_BETA2] = (ADAM_REAL)o->beta2;
    control[WEFT_CONTROL_BETA2_REST] = (ADAM_REAL)(1 - o->beta2);
    control[WEFT_CONTROL_STEP] = (ADAM_REAL)(used / (1 - pow(o->beta1, age)));
    control[WEFT_CONTROL_ROOT] = (ADAM_REAL)(1 / sqrt(1 - pow(o->beta2, age)));
    control[WEFT_CONTROL_EPS] = (ADAM_REAL)o->eps;
    control[WEFT_CONTROL_DECAY] = (ADAM_REAL)(used * o->weight_decay);
    control[WEFT_CONTROL_RESET] = reset;
    control[WEFT_CONTROL_LR] = (ADAM_REAL)used;
    control[WEFT_CONTROL_WARMUP] = (ADAM_REAL)warmup;
    control[WEFT_CONTROL_SPIKE] = spike;
    control[WEFT_CONTROL_CLIPPED] = clipped;
    state[WEFT_ADAM_AGE] = (ADAM_REAL)(reset ? 0 : age);
    state[WEFT_ADAM_STEPS] += 1;
    state[WEFT_ADAM_SPIKES] += spike;
    state[WEFT_ADAM_CLIPS] += clipped;
    state[WEFT_ADAM_RESETS] += reset;
}
