/* Choosing what threads are held to. */
#include "core/pin.h"

#include "base/log.h"

#include <stdlib.h>
#include <string.h>

weft_status weft_pin_wish(weft_pin *out) {
    static const char *const names[] = {"", "none", "nodes", "cores"};
    const char *wish = getenv("WEFT_PIN");
    for (int i = WEFT_PIN_AUTO; i <= WEFT_PIN_CORES; i++)
        if (strcmp(wish ? wish : "", names[i]) == 0) {
            *out = (weft_pin)i;
            return WEFT_OK;
        }
    return weft_fail(WEFT_EINPUT, "WEFT_PIN=%s: it is none, nodes or cores", wish);
}

weft_pin weft_pin_choose(weft_pin wish, int threads, const weft_topology *t) {
    bool all = threads >= t->cores;
    if (wish == WEFT_PIN_CORES && (!all || threads > t->n)) {
        weft_log(WEFT_LOG_WARN,
                 "WEFT_PIN=cores: %d threads are not held to %d cores; there must be one for every "
                 "core, and a processor for each ('taskset' gives a process its own)",
                 threads, t->cores);
        return WEFT_PIN_NONE;
    }
    if (threads > t->n || wish == WEFT_PIN_NONE) return WEFT_PIN_NONE;
    if (wish == WEFT_PIN_CORES) return WEFT_PIN_CORES;
    return t->nodes > 1 && (all || wish == WEFT_PIN_NODES) ? WEFT_PIN_NODES : WEFT_PIN_NONE;
}

void weft_pin_place(weft_pin pin, int thread, const weft_topology *t, cpu_set_t *out) {
    const weft_processor *own = &t->list[thread];
    CPU_ZERO(out);
    for (const weft_processor *p = t->list; p < t->list + t->n; p++)
        if (pin == WEFT_PIN_CORES ? p->core == own->core : p->node == own->node)
            CPU_SET((size_t)p->cpu, out);
}
