/* A topology that is made by hand. */
#include "support/two_nodes.h"

#include <stdlib.h>

/* The k-th processor of the set, from the first again behind the last. */
static int nth_of(const cpu_set_t *set, int k) {
    k %= CPU_COUNT(set);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, set) && k-- == 0) return cpu;
    return 0;
}

weft_status two_nodes_pool(int threads, weft_pool **out) {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) CPU_ZERO(&allowed);
    if (CPU_COUNT(&allowed) == 0) CPU_SET(0, &allowed);
    weft_topology t = {.n = threads, .cores = threads, .nodes = 2};
    t.list = calloc((size_t)threads, sizeof *t.list);
    if (!t.list) return weft_fail(WEFT_ENOMEM, "no memory");
    for (int i = 0; i < threads; i++) {
        int cpu = nth_of(&allowed, i);
        t.list[i] = (weft_processor){.cpu = cpu, .core = cpu, .node = i % 2};
    }
    weft_status status = weft_pool_create_on(threads, WEFT_PIN_AUTO, &t, out);
    weft_topology_free(&t);
    return status;
}
