/* Choosing kernels: the best instruction set that this build has and this processor runs, and the
 * float or double table by the node's types. */
#include "cpu/backend.h"

#include "cpu/matrix.h"
#include "ops/list.h"

#include <sys/mman.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#ifndef HWCAP_ASIMDDP
#define HWCAP_ASIMDDP (1 << 20)
#endif
#ifndef HWCAP2_I8MM
#define HWCAP2_I8MM (1 << 13)
#endif
#ifndef HWCAP2_BF16
#define HWCAP2_BF16 (1 << 14)
#endif
#endif

typedef const weft_kernel *const kernel_table[WEFT_OP_COUNT];

typedef struct {
    const char *name;
    bool (*runs)(void); /* NULL: everywhere */
    weft_matrix matrix; /* that it uses */
    kernel_table *f32;
    double (*work)(int64_t rounds), (*work_bf16)(int64_t rounds); /* cpu/peak.c */
} instruction_set;

#define TABLE_64_(isa) weft_cpu_table_##isa##_64
#define TABLE_64(isa) TABLE_64_(isa)
#define DOUBLE_TABLE TABLE_64(WEFT_ISA_64)
extern kernel_table DOUBLE_TABLE; /* one for all sets: double is for checks */

#define DECLARE_TABLES(isa)                                                                        \
    extern kernel_table weft_cpu_table_##isa##_32;                                                 \
    double weft_cpu_peak_real_##isa##_32(int64_t rounds);                                          \
    double weft_cpu_peak_bf16_##isa##_32(int64_t rounds);
#define BUILT(isa)                                                                                 \
    &weft_cpu_table_##isa##_32, weft_cpu_peak_real_##isa##_32, weft_cpu_peak_bf16_##isa##_32

DECLARE_TABLES(avx512)
DECLARE_TABLES(avx2)
DECLARE_TABLES(sse2)
DECLARE_TABLES(neon)
DECLARE_TABLES(plain)

#if defined(__x86_64__)
static __attribute__((unused)) bool runs_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static __attribute__((unused)) bool runs_avx512(void) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

static __attribute__((unused)) bool runs_avx512_bf16(void) {
    return runs_avx512() && __builtin_cpu_supports("avx512bf16");
}

/* The tiles' state is large, so the kernel wants to be asked before a process uses them. */
static __attribute__((unused)) bool runs_amx(void) {
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    unsigned eax, ebx, ecx, edx, amx = 7u << 22; /* AMX-BF16, -TILE and -INT8 */
    if (!runs_avx512_bf16() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
    return (edx & amx) == amx && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#elif defined(__aarch64__)
static __attribute__((unused)) bool runs_bfmmla(void) {
    return WEFT_ARM_TARGETS && (getauxval(AT_HWCAP2) & HWCAP2_BF16);
}
#endif

/* Best first; the last runs everywhere. */
static const instruction_set sets[] = {
#if defined(WEFT_HAVE_ISA_avx512)
    {"amx", runs_amx, WEFT_MATRIX_AMX, BUILT(avx512)},
    {"avx512-bf16", runs_avx512_bf16, WEFT_MATRIX_AVX512_BF16, BUILT(avx512)},
    {"avx512", runs_avx512, WEFT_MATRIX_NONE, BUILT(avx512)},
#endif
#if defined(WEFT_HAVE_ISA_avx2)
    {"avx2", runs_avx2, WEFT_MATRIX_NONE, BUILT(avx2)},
#endif
#if defined(WEFT_HAVE_ISA_sse2)
    {"sse2", NULL, WEFT_MATRIX_NONE, BUILT(sse2)},
#endif
#if defined(WEFT_HAVE_ISA_neon)
    {"neon-bf16", runs_bfmmla, WEFT_MATRIX_BFMMLA, BUILT(neon)},
    {"neon", NULL, WEFT_MATRIX_NONE, BUILT(neon)},
#endif
#if defined(WEFT_HAVE_ISA_plain)
    {"plain", NULL, WEFT_MATRIX_NONE, BUILT(plain)},
#endif
};

static const instruction_set *chosen;
static bool held_to_it;          /* by WEFT_CPU */
static char chosen_message[512]; /* why it is NULL */

static void choose_instruction_set(void) {
    const char *asked = getenv("WEFT_CPU");
    size_t count = sizeof sets / sizeof sets[0];
    held_to_it = asked && *asked;
    for (size_t i = 0; i < count && !chosen; i++) {
        bool named = !held_to_it || strcmp(asked, sets[i].name) == 0;
        if (named && (!sets[i].runs || sets[i].runs())) chosen = &sets[i];
    }
    if (chosen) return;
    snprintf(chosen_message, sizeof chosen_message,
             "WEFT_CPU=%s: not in this build, or this processor does not run it", asked);
}

static const weft_kernel *cpu_kernel(const weft_node *n) {
    for (int i = 0; i < n->n_in + n->n_out; i++) {
        const weft_tensor *t = i < n->n_in ? n->in[i] : n->out[i - n->n_in];
        if (t && t->dtype == WEFT_F64) return DOUBLE_TABLE[n->op->id];
    }
    return (*chosen->f32)[n->op->id];
}

/* Pages come zeroed from the system, and go back to it. */
static void *cpu_alloc(int64_t bytes) {
    void *memory =
        mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return NULL;
    madvise(memory, (size_t)bytes, MADV_HUGEPAGE);
    return memory;
}

static void cpu_release(void *memory, int64_t bytes) {
    munmap(memory, (size_t)bytes);
}

static weft_status cpu_copy(void *to, const void *from, int64_t bytes) {
    memcpy(to, from, (size_t)bytes);
    return WEFT_OK;
}

/* A limit set on the process's group (a container) counts as the machine's memory. */
static int64_t cpu_memory(void) {
    int64_t pages = sysconf(_SC_PHYS_PAGES), size = sysconf(_SC_PAGE_SIZE);
    int64_t physical = pages > 0 && size > 0 ? pages * size : 0;
    long long limit = 0;
    WEFT_AUTO_FCLOSE FILE *file = fopen("/sys/fs/cgroup/memory.max", "r");
    bool limited = file && fscanf(file, "%lld", &limit) == 1 && limit > 0;
    return limited && limit < physical ? limit : physical;
}

static const weft_backend cpu = {
    .name = "cpu",
    .kernel = cpu_kernel,
    .alloc = cpu_alloc,
    .release = cpu_release,
    .upload = cpu_copy,
    .download = cpu_copy,
    .memory = cpu_memory,
};

const weft_backend *weft_cpu_backend(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose_instruction_set);
    if (chosen) return &cpu;
    WEFT_BAD_INPUT("%s", chosen_message);
    return NULL;
}

const char *weft_cpu_isa(void) {
    return weft_cpu_backend() ? chosen->name : "none";
}

const char *weft_cpu_isa_at(int i, bool *runs) {
    if (i < 0 || (size_t)i >= sizeof sets / sizeof sets[0]) return NULL;
    *runs = !sets[i].runs || sets[i].runs();
    return sets[i].name;
}

double weft_cpu_work(bool bf16, int64_t rounds) {
    if (!chosen) return 0;
    return bf16 ? chosen->work_bf16(rounds) : chosen->work(rounds);
}

weft_matrix weft_cpu_matrix(void) {
    return chosen ? chosen->matrix : WEFT_MATRIX_NONE;
}

static inline bool may_use_integers(void) {
    return chosen && (!held_to_it || chosen->matrix != WEFT_MATRIX_NONE);
}

bool weft_cpu_dots_i8(void) {
#if defined(__aarch64__)
    return WEFT_ARM_TARGETS && may_use_integers() && (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(WEFT_HAVE_ISA_avx512)
    return may_use_integers() && chosen->f32 == &weft_cpu_table_avx512_32 &&
           __builtin_cpu_supports("avx512vnni");
#else
    return false;
#endif
}

bool weft_cpu_tiles_i8(void) {
#if defined(__aarch64__)
    return WEFT_ARM_TARGETS && may_use_integers() && (getauxval(AT_HWCAP2) & HWCAP2_I8MM) != 0;
#else
    return false;
#endif
}
