/* The two sides and the limit alternate, a few tens of milliseconds each, so that whatever else the
 * machine does falls on all of them; medians are reported. Before it is timed a row's results are
 * compared with the peer's. */
#include "base/clock.h"
#include "base/json.h"
#include "bench/tables.h"
#include "core/program.h"
#include "cpu/backend.h"
#include "model/builder.h"

#include <math.h>

/* Numbers of a row agree with the peer's to this part: they are sums in another order. In bf16 what lies
 * between is rounded too, at other places. */
#define TOLERANCE 1e-3
#define BF16_TOLERANCE 5e-2

enum { MAX_RMS = BENCH_MAX_OUTPUTS + BENCH_MAX_LEAVES };

typedef struct {
    const bench_options *opt;
    weft_pool *pool;
    const weft_backend *backend;
    bench_limits *limits;
    bench_peer *peer;
    char peer_name[320];
    bench_table table;
    json_t *rows, *memory;
    int *differing; /* rows whose numbers are not the peer's */
} bench;

typedef struct {
    bench_sides sides;
    bool peer;
    char form[64]; /* how the peer wrote the function */
    double units;  /* floating-point operations or bytes of a run */
    int runs;      /* things a run does: a decode row's weights */
} measured;

static int repeats_for(double round, double seconds) {
    double n = round / (seconds > 1e-7 ? seconds : 1e-7);
    return n < 1 ? 1 : n > 1000 ? 1000 : (int)n;
}

/* Asks the peer for the row, and whether it computes the same numbers. */
static bool prepare_peer(bench *b, const bench_row *row, const bench_graph *g, weft_exec *x,
                         measured *m) {
    WEFT_AUTO_DECREF json_t *reply =
        bench_peer_ask(b->peer, weft_json_make("do:s op:s backward:b sizes:o", "prepare", row->op,
                                               g->backward, bench_row_sizes(row)));
    if (!reply) {
        fprintf(stderr, "%s: no peer: %s\n", row->label, bench_peer_error(b->peer));
        return false;
    }
    snprintf(m->form, sizeof m->form, "%s", weft_json_text_of(reply, "form"));
    double rms[MAX_RMS];
    int count = bench_graph_rms(g, x, rms);
    const json_t *theirs = json_object_get(reply, "rms");
    bool same = (int)json_array_size(theirs) == count;
    double tolerance = row->sizes.bf16 ? BF16_TOLERANCE : TOLERANCE;
    for (int i = 0; same && i < count; i++) {
        double other = json_number_value(json_array_get(theirs, (size_t)i));
        same = fabs(rms[i] - other) <= tolerance * fabs(other);
        if (!same)
            fprintf(stderr, "%s: value %d differs: %.6g here, %.6g there\n", row->label, i, rms[i],
                    other);
    }
    *b->differing += !same;
    return true;
}

static weft_status alternate_sides(bench *b, const bench_row *row, weft_exec *x, measured *m) {
    /* Rounds of so many seconds, until the least rounds and all seconds are reached, or the most rounds. */
    bool quick = b->opt->quick;
    double seconds = quick ? 0.02 : 0.05, all = row->longer ? 8.0 : 4.0;
    if (quick) all = row->longer ? 2.0 : 0.8;
    int least = quick ? 3 : 5, most = quick ? 9 : 25;
    WEFT_AUTO(bench_samples_free) bench_samples first = {0}, first_peer = {0};
    weft_status status = bench_time(x, 2, &first);
    if (m->peer) m->peer = bench_peer_run(b->peer, 1, &first_peer);
    int ours = repeats_for(seconds, bench_median(&first));
    int peers = repeats_for(seconds, bench_median(&first_peer));
    double start = weft_clock();
    for (int round = 0; !status && round < most; round++) {
        if (round >= least && weft_clock() - start > all) break;
        bench_pause();
        status = bench_time(x, ours, &m->sides.ours);
        double rate = row->traffic[0] > 0 ? bench_limit_gbytes(b->limits)
                                          : bench_limit_gflops(b->limits, row->sizes.bf16);
        bench_samples_add(&m->sides.limit, 1 / rate);
        if (m->peer) m->peer = bench_peer_run(b->peer, peers, &m->sides.peers);
    }
    return status;
}

static weft_status measure_row(bench *b, const bench_row *row, bool backward, measured *m) {
    WEFT_AUTO(bench_graph_free) bench_graph g = {0};
    WEFT_AUTO(weft_exec_destroy_at) weft_exec *x = NULL;
    WEFT_TRY(bench_graph_build(row, backward, &g));
    WEFT_TRY(weft_exec_create(g.graph, b->backend, b->pool, NULL, &x));
    WEFT_TRY(bench_graph_fill(&g, x));
    WEFT_TRY(weft_exec_run(x, &(weft_run){.seed = 1}));
    int64_t traffic = row->traffic[backward];
    m->units = traffic > 0 ? (double)traffic : flops_of(g.graph, 0, NULL);
    m->runs = row->sizes.copies ? (int)row->sizes.copies : 1;
    m->peer = b->peer && prepare_peer(b, row, &g, x, m);
    weft_status status = alternate_sides(b, row, x, m);
    if (b->peer) json_decref(bench_peer_ask(b->peer, weft_json_make("do:s", "drop")));
    return status;
}

static void report_row(bench *b, const bench_row *row, bool backward, const measured *m) {
    double seconds = bench_median(&m->sides.ours), peers = bench_median(&m->sides.peers);
    double rate = m->units / seconds * 1e-9, part = rate * bench_median(&m->sides.limit);
    double ratio = m->peer ? peers / seconds : 0;
    const char *pass = backward ? "forward+backward" : "forward";
    bool bytes = row->traffic[0] > 0;
    bench_cells(&b->table, "%s|%s|%s|%.3f|%.0f%%|%.1f %s|%.0f%%|%.3f|%.0f%%|%.2f|%s", row->group,
                row->label, backward ? "fwd+bwd" : "fwd", 1e3 * seconds / m->runs,
                100 * bench_spread(&m->sides.ours), rate, bytes ? "GB/s   " : "GFLOP/s", 100 * part,
                m->peer ? 1e3 * peers / m->runs : NAN,
                m->peer ? 100 * bench_spread(&m->sides.peers) : NAN, m->peer ? ratio : NAN,
                m->peer ? m->form : "-");
    json_t *j = weft_json_make(
        "group:s row:s pass:s sizes:o seconds:f spread:f samples:i rate:f unit:s of_limit:f",
        row->group, row->label, pass, bench_row_sizes(row), seconds / m->runs,
        bench_spread(&m->sides.ours), (int)m->sides.ours.count, rate, bytes ? "GB/s" : "GFLOP/s",
        part);
    if (m->peer)
        weft_json_add(j, "peer_seconds:f peer_spread:f peer_form:s ratio:f", peers / m->runs,
                      bench_spread(&m->sides.peers), m->form, ratio);
    json_array_append_new(b->rows, j);
}

static bool chosen(const bench *b, const char *group, const char *label) {
    return !b->opt->rows || strstr(group, b->opt->rows) || strstr(label, b->opt->rows);
}

/* The bytes that a training step of attention needs for T tokens of one sequence: inputs, output,
 * gradients, and everything between. Planned, not run. */
static weft_status report_memory(bench *b) {
    static const int64_t tokens[] = {1024, 4096, 16384};
    if (!chosen(b, "memory", "attention")) return WEFT_OK;
    if (b->opt->table) fputc('\n', b->opt->table);
    bench_table_start(&b->table, b->opt->table,
                      "memory, fwd+bwd:-18|T:6|arena MB:9|bytes/token:11");
    for (int i = 0; i < bench_op_row_count; i++) {
        const bench_row *row = &bench_op_rows[i];
        if (strcmp(row->group, "attention") != 0 || row->sizes.t != tokens[0] || row->sizes.bf16)
            continue;
        if (i > 0 && memcmp(&row->sizes, &row[-1].sizes, sizeof row->sizes) == 0)
            continue; /* the same graph again, for another peer */
        for (int k = 0; k < 3; k++) {
            bench_row longer = *row;
            longer.sizes.b = 1;
            longer.sizes.t = tokens[k];
            WEFT_AUTO(bench_graph_free) bench_graph g = {0};
            WEFT_AUTO(weft_plan_destroy_at) weft_plan *plan = NULL;
            WEFT_TRY(bench_graph_build(&longer, true, &g));
            WEFT_TRY(weft_program_make(g.graph, b->backend, weft_pool_size(b->pool),
                                       &(weft_program_options){.complete = true}, &plan));
            int64_t bytes = plan->arena_bytes;
            bench_cells(&b->table, "%s|%lld|%.1f|%.0f", row->op, (long long)tokens[k],
                        1e-6 * (double)bytes, (double)bytes / (double)tokens[k]);
            weft_json_append(b->memory, "op:s tokens:I arena_bytes:I", row->op, tokens[k], bytes);
        }
    }
    return WEFT_OK;
}

static void end_bench(bench *b) {
    bench_peer_stop(b->peer);
    bench_limits_destroy(b->limits);
    weft_pool_destroy(b->pool);
    json_decref(b->rows);
    json_decref(b->memory);
}

weft_status bench_op_table(const bench_options *o, int *differing) {
    WEFT_AUTO(end_bench)
    bench run = {.opt = o, .rows = json_array(), .memory = json_array(), .differing = differing};
    bench *b = &run;
    *differing = 0;
    b->backend = weft_cpu_backend();
    if (!b->backend) return WEFT_EMISSING;
    WEFT_TRY(weft_pool_create(o->threads, &b->pool));
    WEFT_TRY(bench_limits_create(b->pool, true, &b->limits));
    snprintf(b->peer_name, sizeof b->peer_name, "none");
    if (o->peer)
        b->peer =
            bench_peer_start(o->peer, weft_pool_size(b->pool), b->peer_name, sizeof b->peer_name);
    /* What the machine can do when it is let: the best of a few measurements. */
    double gflops = 0, bf16_gflops = 0, gbytes = 0;
    for (int i = 0; i < 6; i++) {
        gflops = fmax(gflops, bench_limit_gflops(b->limits, false));
        bf16_gflops = fmax(bf16_gflops, bench_limit_gflops(b->limits, true));
        gbytes = fmax(gbytes, bench_limit_gbytes(b->limits));
    }
    const char *isa = weft_cpu_isa();
    if (o->table)
        fprintf(o->table,
                "weft %s, %s, threads: %d\n"
                "limits of %s on all threads: %.1f GFLOP/s in f32 and %.1f in bf16 (multiply-adds "
                "in registers alone), %.1f GB/s (a copy of 256 MiB, read + written)\n"
                "peer: %s%s\n"
                "of limit: against the limit measured in the same rounds. ratio: PyTorch's time / "
                "ours.\n\n",
                weft_version(), isa, weft_pool_size(b->pool), isa, gflops, bf16_gflops, gbytes,
                b->peer_name, b->peer ? ", as many threads" : "; its columns say -");
    bench_table_start(&b->table, o->table,
                      "operation:-13|row:-23|pass:-7|ms:9|±:4|rate:14|of limit:8|PyTorch ms:10|±:4|"
                      "ratio:6|PyTorch's form:-21");
    for (int i = 0; i < bench_op_row_count; i++) {
        const bench_row *row = &bench_op_rows[i];
        if (!chosen(b, row->group, row->label) || (b->opt->quick && !row->quick)) continue;
        for (int backward = 0; backward < (row->forward_only ? 1 : 2); backward++) {
            measured m = {0};
            weft_status status = measure_row(b, row, backward, &m);
            if (!status) report_row(b, row, backward, &m);
            bench_sides_free(&m.sides);
            WEFT_TRY(status);
        }
    }
    WEFT_TRY(report_memory(b));
    if (!o->json) return WEFT_OK;
    json_t *most = weft_json_make("gflops:f bf16_gflops:f gbytes:f", gflops, bf16_gflops, gbytes);
    json_t *all = weft_json_make(
        "version:s isa:s threads:i peer:s quick:b limits:o rows:O memory:O", weft_version(),
        weft_cpu_isa(), weft_pool_size(b->pool), b->peer_name, o->quick, most, b->rows, b->memory);
    return bench_write_json(o->json, all);
}
