/* Reading sysfs. Its lists are of the form 0-3,8,10-11. A file that is missing or says nothing
 * sensible is no error: a container may hide it, and a processor can go while it is asked for. */
#include "core/topology.h"

#include "base/files.h"
#include "base/log.h"

#include <ctype.h>

/* A page of sysfs is no longer. */
enum { LIST_ROOM = 4096 };

/* The numbers in a file that also are in `among`; none where there is no such file. */
static void read_list(const char *path, const cpu_set_t *among, cpu_set_t *out) {
    char text[LIST_ROOM];
    WEFT_AUTO_FCLOSE FILE *file = fopen(path, "re");
    size_t length = file ? fread(text, 1, sizeof text - 1, file) : 0;
    text[length] = '\0';
    const char *at = text;
    /* Reads numbers, and ranges of them, up to the first that is none; those a set has no room for
     * are left out. */
    CPU_ZERO(out);
    while (isdigit((unsigned char)*at)) {
        char *end;
        long first = strtol(at, &end, 10), last = first;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        for (long i = first; i <= last && i < CPU_SETSIZE; i++)
            CPU_SET((size_t)i, out);
        at = *end == ',' ? end + 1 : end;
    }
    if (among) CPU_AND(out, out, among);
}

static int by_rank(const void *a, const void *b) {
    const weft_processor *p = a, *q = b;
    if (p->sibling != q->sibling) return p->sibling - q->sibling;
    if (p->rank != q->rank) return p->rank - q->rank;
    return p->node - q->node;
}

weft_status weft_topology_read(const char *root, const cpu_set_t *allowed, weft_topology *out) {
    *out = (weft_topology){0};
    WEFT_AUTO(weft_topology_free)
    weft_topology t = {.list = calloc((size_t)CPU_COUNT(allowed) + 1, sizeof *t.list)};
    if (!t.list) return weft_fail(WEFT_ENOMEM, "threads: no memory for a list of processors");
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET((size_t)cpu, allowed)) t.list[t.n++].cpu = cpu;
    cpu_set_t nodes, cpus;
    WEFT_PATH(path, "%s/node/online", root);
    read_list(path, NULL, &nodes);
    for (int node = 0; node < CPU_SETSIZE; node++) {
        if (!CPU_ISSET((size_t)node, &nodes)) continue;
        WEFT_TRY(weft_path(path, "%s/node/node%d/cpulist", root, node));
        read_list(path, allowed, &cpus);
        if (CPU_COUNT(&cpus) == 0) continue; /* memory alone */
        for (int i = 0; i < t.n; i++)
            if (CPU_ISSET((size_t)t.list[i].cpu, &cpus)) t.list[i].node = t.nodes;
        t.nodes++;
    }
    if (t.nodes == 0) t.nodes = 1;
    for (int i = 0; i < t.n; i++) {
        weft_processor *p = &t.list[i];
        WEFT_TRY(weft_path(path, "%s/cpu/cpu%d/topology/thread_siblings_list", root, p->cpu));
        read_list(path, allowed, &cpus);
        p->core = p->cpu;
        for (int cpu = p->cpu - 1; cpu >= 0; cpu--)
            if (CPU_ISSET((size_t)cpu, &cpus)) {
                p->core = cpu;
                p->sibling++;
            }
        for (const weft_processor *q = t.list; q < p;
             q++) /* of its node, each on a core of its own */
            p->rank += q->node == p->node && q->sibling == p->sibling;
        t.cores += p->sibling == 0;
    }
    qsort(t.list, (size_t)t.n, sizeof *t.list, by_rank);
    *out = t;
    t.list = NULL;
    return WEFT_OK;
}

void weft_topology_free(weft_topology *t) {
    free(t->list);
    *t = (weft_topology){0};
}

weft_status weft_pin_wish(weft_pin *out) {
    static const char *const names[] = {"", "none", "nodes", "cores"};
    const char *wish = getenv("WEFT_PIN");
    for (int i = WEFT_PIN_AUTO; i <= WEFT_PIN_CORES; i++)
        if (strcmp(wish ? wish : "", names[i]) == 0) {
            *out = (weft_pin)i;
            return WEFT_OK;
        }
    return WEFT_BAD_INPUT("WEFT_PIN=%s: it is none, nodes or cores", wish);
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
