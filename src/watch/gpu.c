/* NVML by name. Its interface has been stable since version 2 of these functions; what is used of it is
 * declared here. WEFT_NVML names another library, for tests. */
#include "watch/gpu.h"

#include "base/json.h"

#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GPUS_MOST = 64, NAME_ROOM = 96, CLOCK_SM = 1 };

typedef struct {
    unsigned long long total, free, used;
} nvml_memory;

typedef struct {
    unsigned gpu, memory;
} nvml_utilization;

typedef struct nvml_device nvml_device;

/* The functions, in the order of their names below. */
typedef struct {
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *count);
    int (*handle)(unsigned index, nvml_device **out);
    int (*name)(nvml_device *d, char *out, unsigned room);
    int (*power)(nvml_device *d, unsigned *milliwatts);
    int (*clock)(nvml_device *d, int which, unsigned *mhz);
    int (*memory)(nvml_device *d, nvml_memory *out);
    int (*utilization)(nvml_device *d, nvml_utilization *out);
} functions;

static const char *const names[] = {"nvmlInit_v2",
                                    "nvmlShutdown",
                                    "nvmlDeviceGetCount_v2",
                                    "nvmlDeviceGetHandleByIndex_v2",
                                    "nvmlDeviceGetName",
                                    "nvmlDeviceGetPowerUsage",
                                    "nvmlDeviceGetClockInfo",
                                    "nvmlDeviceGetMemoryInfo",
                                    "nvmlDeviceGetUtilizationRates"};
enum { FUNCTIONS = sizeof names / sizeof names[0] };
_Static_assert(sizeof(functions) == FUNCTIONS * sizeof(void *), "one name for each function");

struct weft_gpus {
    void *library;
    functions f;
    nvml_device *devices[GPUS_MOST];
    unsigned n;
};

static bool load(weft_gpus *g) {
    const char *path = getenv("WEFT_NVML");
    void *found[FUNCTIONS];
    g->library = dlopen(path ? path : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    for (int i = 0; g->library && i < FUNCTIONS; i++)
        if (!(found[i] = dlsym(g->library, names[i]))) return false;
    if (!g->library) return false;
    memcpy(&g->f, found, sizeof g->f);
    return true;
}

weft_gpus *weft_gpus_open(void) {
    weft_gpus *g = calloc(1, sizeof *g);
    unsigned count = 0;
    if (!g) return NULL;
    if (load(g) && g->f.init() == 0) {
        if (g->f.count(&count) != 0) count = 0;
        for (unsigned i = 0; i < count && g->n < GPUS_MOST; i++)
            if (g->f.handle(i, &g->devices[g->n]) == 0) g->n++;
        if (g->n) return g;
        g->f.shutdown();
    }
    if (g->library) dlclose(g->library);
    free(g);
    return NULL;
}

void weft_gpus_close(weft_gpus *g) {
    if (!g) return;
    g->f.shutdown();
    dlclose(g->library);
    free(g);
}

static json_t *gpu_json(const weft_gpus *g, nvml_device *d) {
    char name[NAME_ROOM] = "";
    unsigned milliwatts = 0, mhz = 0;
    nvml_memory memory = {0};
    nvml_utilization use = {0};
    if (g->f.name(d, name, sizeof name) != 0) snprintf(name, sizeof name, "GPU");
    bool power = g->f.power(d, &milliwatts) == 0, clock = g->f.clock(d, CLOCK_SM, &mhz) == 0;
    bool room = g->f.memory(d, &memory) == 0, used = g->f.utilization(d, &use) == 0;
    return json_pack("{s:o, s:o, s:o, s:o, s:o, s:o}", "name", weft_json_text(name), "watts",
                     weft_json_number(power ? milliwatts / 1000.0 : NAN), "mhz",
                     weft_json_number(clock ? (double)mhz : NAN), "used_bytes",
                     weft_json_number(room ? (double)memory.used : NAN), "bytes",
                     weft_json_number(room ? (double)memory.total : NAN), "percent",
                     weft_json_number(used ? (double)use.gpu : NAN));
}

json_t *weft_gpus_json(const weft_gpus *g) {
    json_t *list = json_array();
    for (unsigned i = 0; g && list && i < g->n; i++)
        json_array_append_new(list, gpu_json(g, g->devices[i]));
    return list;
}
