/* Schedules. Each one falls over a stretch of steps at the end of the run: cosine over all that
 * follow the warm-up, wsd over the last fifth, constant over none. */
#include "train/schedule.h"

#include <math.h>

/* How far step is into a stretch that ends with the run: 0 before it, 1 in the last step. */
static double part_done(const weft_config *c, int64_t first, int64_t step) {
    int64_t steps = c->steps - first;
    if (step < first || steps < 1) return 0;
    if (step >= c->steps) return 1;
    return (double)(step - first + 1) / (double)steps;
}

double weft_schedule_rate(const weft_config *c, int64_t step) {
    double high = c->learning_rate, low = fmin(c->min_lr, high);
    int64_t warmup = c->warmup_steps;
    if (step < warmup) return high * (double)(step + 1) / (double)warmup;
    if (!c->decay_lr || c->lr_schedule == WEFT_SCHEDULE_CONSTANT) return high;
    if (c->lr_schedule == WEFT_SCHEDULE_WSD) {
        int64_t fall = (c->steps + 4) / 5, first = c->steps - fall;
        return high - (high - low) * part_done(c, first > warmup ? first : warmup, step);
    }
    return low + (high - low) * 0.5 * (1 + cos(M_PI * part_done(c, warmup, step)));
}
