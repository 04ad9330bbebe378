/* Attention's GPU kernels alone: what they compute, and how fast.
 *
 *     attention_cuda check [quick]              plain against a loop in double, tiles against plain
 *     attention_cuda random [SEED [COUNT]]      tiles against plain, at shapes that are drawn
 *     attention_cuda time                       TFLOP/s at T = 1k, 4k, 16k, 32k tokens, 12 heads
 *     attention_cuda time DQK DV KV n|-  T ...  the same of one form
 *     attention_cuda rows [FORM:HEAD:T ...]     the same for programs: see print_row, read_form
 *
 * TFLOP/s counts the products of the definition on the pairs that are seen: two forward, five
 * backward, whatever the kernels do. */
#include "check_cuda.cuh"
#include "cuda/attention/attention.cuh"

#include <string.h>

#include <string>

struct form {
    const char *name;
    int batch, queries, keys, heads, kv_heads, dqk, dv;
    bool bf16, causal, packed, n, scale, beta, log_tau;
    weft_attention_pos pos;
    bool band;
    int window;
    int reach, document; /* document: keys of one; 0: there is one alone */
    float softcap;

    /* The first key that the query at `place` sees. */
    int first_key(int place) const {
        int first = reach ? std::max(0, place + 1 - reach) : 0;
        return document ? std::max(first, place / document * document) : first;
    }
};

/* A number in [0, 1) of each place and seed. */
__device__ static inline float random_number(uint64_t at) {
    at = (at ^ at >> 30) * 0xbf58476d1ce4e5b9ull;
    at = (at ^ at >> 27) * 0x94d049bb133111ebull;
    return (float)((at ^ at >> 31) >> 40) * 0x1p-24f;
}

/* Nearly normal, of variance 1. */
template <typename T>
static __global__ void fill_normal(T *to, int64_t count, uint64_t seed, float spread,
                                   float offset) {
    for (int64_t i = thread_index(); i < count; i += thread_count()) {
        float sum = -2;
        for (uint64_t part = 0; part < 4; part++)
            sum +=
                random_number(((seed << 40) + (uint64_t)i * 4 + part + 1) * 0x9e3779b97f4a7c15ull);
        to[i] = from_float<T>(fmaf(sum * 1.7320508f, spread, offset));
    }
}

/* Numbers on the device; `host` has them after read(). */
struct array {
    std::vector<float> host;
    int64_t count = 0;
    void *device = NULL;
    bool is_bf16 = false;

    size_t bytes() const {
        return (size_t)count * (is_bf16 ? 2 : 4);
    }

    void make(int64_t count_, bool bf16_, double spread, double offset = 0) {
        static uint64_t seed = 0;
        is_bf16 = bf16_;
        count = count_;
        CUDA(cudaMalloc(&device, bytes()));
        seed++;
        if (is_bf16)
            fill_normal<<<grid_for(count, 256), 256>>>((bf16 *)device, count, seed, (float)spread,
                                                       (float)offset);
        else
            fill_normal<<<grid_for(count, 256), 256>>>((float *)device, count, seed, (float)spread,
                                                       (float)offset);
        CUDA(cudaGetLastError());
    }

    /* Room for a result, with NaN in it. */
    void room(int64_t count_, bool bf16_) {
        is_bf16 = bf16_;
        count = count_;
        if (!device) CUDA(cudaMalloc(&device, bytes()));
        poison();
    }

    void poison() {
        CUDA(cudaMemset(device, 0xff, bytes()));
    }

    void read() {
        host.resize((size_t)count);
        if (!is_bf16) {
            CUDA(cudaMemcpy(host.data(), device, bytes(), cudaMemcpyDeviceToHost));
            return;
        }
        std::vector<uint16_t> bits(host.size());
        CUDA(cudaMemcpy(bits.data(), device, bytes(), cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < host.size(); i++)
            host[i] = weft_bf16_to_float(bits[i]);
    }

    void release() {
        if (device) CUDA(cudaFree(device));
        device = NULL;
    }
};

enum { Q, K, V, D_O, N, SCALE, BETA, LOG_TAU, REL, INPUTS };
enum { O, LSE, DQ, DK, DV, DN, DSCALE, DBETA, DLOG_TAU, DREL, OUTPUTS };
static const char *const names[] = {"o",  "lse",    "dq",    "dk",       "dv",
                                    "dn", "dscale", "dbeta", "dlog_tau", "drel"};

struct problem {
    form f;
    array in[INPUTS], out[OUTPUTS], first, workspace, grads; /* packed: grads holds dq, dk, dv */
    attention_problem p = {};
    attention_gradients g = {};
};

static head_rows rows_of(void *data, int64_t positions, int64_t heads, int64_t width) {
    return {data, positions * heads * width, heads * width, width};
}

static void make(problem &x, const form &f) {
    x.f = f;
    int64_t B = f.batch, T = f.queries, S = f.keys, H = f.heads, KV = f.kv_heads;
    attention_problem &p = x.p;
    p.batch = f.batch, p.queries = f.queries, p.keys = f.keys;
    p.heads = f.heads, p.kv_heads = f.kv_heads, p.dqk = f.dqk, p.dv = f.dv;
    p.is_bf16 = f.bf16, p.causal = f.causal, p.pos = f.pos, p.band = f.band, p.window = f.window;
    p.band_alpha = 0.7f;
    p.reach = f.reach, p.softcap = f.softcap;
    p.scale_value = 1.0f / sqrtf((float)f.dqk);
    if (f.packed) {
        int64_t parts = H + 2 * KV, D = f.dqk;
        x.in[Q].make(B * T * parts * D, f.bf16, 1);
        p.q = rows_of(x.in[Q].device, T, parts, D);
        p.k = p.v = p.q;
        p.k.data = (char *)p.q.data + H * D * (f.bf16 ? 2 : 4);
        p.v.data = (char *)p.q.data + (H + KV) * D * (f.bf16 ? 2 : 4);
    } else {
        x.in[Q].make(B * T * H * f.dqk, f.bf16, 1);
        x.in[K].make(B * S * KV * f.dqk, f.bf16, 1);
        x.in[V].make(B * S * KV * f.dv, f.bf16, 1);
        p.q = rows_of(x.in[Q].device, T, H, f.dqk);
        p.k = rows_of(x.in[K].device, S, KV, f.dqk);
        p.v = rows_of(x.in[V].device, S, KV, f.dv);
    }
    x.in[D_O].make(B * T * H * f.dv, f.bf16, 1);
    x.g.d_o = rows_of(x.in[D_O].device, T, H, f.dv);
    if (f.n) x.in[N].make(B * KV * S, false, 1, 3);
    if (f.scale) x.in[SCALE].make(H, false, 0.05, -0.1);
    if (f.beta) x.in[BETA].make(H, false, 0.5);
    if (f.log_tau) x.in[LOG_TAU].make(H, false, 0.3, log(2 * sqrt((double)f.dqk / 2)));
    if (f.pos == WEFT_POS_RELATIVE) x.in[REL].make(S + 5, false, 1);
    p.n = (float *)x.in[N].device, p.scale = (float *)x.in[SCALE].device;
    p.beta = (float *)x.in[BETA].device, p.log_tau = (float *)x.in[LOG_TAU].device;
    p.rel = (float *)x.in[REL].device, p.distances = (int)x.in[REL].count;
    if (f.document) {
        std::vector<int32_t> first((size_t)(B * T));
        for (int64_t e = 0; e < B * T; e++)
            first[(size_t)e] = (int)(e % T) / f.document * f.document;
        CUDA(cudaMalloc(&x.first.device, first.size() * 4));
        CUDA(cudaMemcpy(x.first.device, first.data(), first.size() * 4, cudaMemcpyHostToDevice));
        p.first = (int32_t *)x.first.device;
    }
    int64_t bytes = attention_plain_back_workspace(p, true, p.rel != NULL);
    if (attention_fits_flash(p)) bytes = std::max(bytes, flash_backward_workspace(p));
    x.workspace.room(bytes / 4 + 1, false);
    x.g.workspace = x.workspace.device;
}

/* Poisons the results. */
static void make_room(problem &x) {
    const form &f = x.f;
    int64_t B = f.batch, T = f.queries, S = f.keys, H = f.heads, KV = f.kv_heads;
    attention_problem &p = x.p;
    attention_gradients &g = x.g;
    x.out[O].room(B * T * H * f.dv, f.bf16);
    x.out[LSE].room(B * H * T, false);
    p.o = rows_of(x.out[O].device, T, H, f.dv);
    p.lse = (float *)x.out[LSE].device;
    if (f.packed) {
        x.out[DQ].room(x.in[Q].count, f.bf16);
        g.dq = p.q, g.dk = p.k, g.dv = p.v;
        int64_t move = (char *)x.out[DQ].device - (char *)x.in[Q].device;
        g.dq.data = (char *)p.q.data + move;
        g.dk.data = (char *)p.k.data + move;
        g.dv.data = (char *)p.v.data + move;
    } else {
        x.out[DQ].room(B * T * H * f.dqk, f.bf16);
        x.out[DK].room(B * S * KV * f.dqk, f.bf16);
        x.out[DV].room(B * S * KV * f.dv, f.bf16);
        g.dq = rows_of(x.out[DQ].device, T, H, f.dqk);
        g.dk = rows_of(x.out[DK].device, S, KV, f.dqk);
        g.dv = rows_of(x.out[DV].device, S, KV, f.dv);
    }
    if (f.n) x.out[DN].room(B * KV * S, false);
    if (f.scale) x.out[DSCALE].room(H, false);
    if (f.beta) x.out[DBETA].room(H, false);
    if (f.log_tau) x.out[DLOG_TAU].room(H, false);
    if (p.rel) x.out[DREL].room(p.distances, false);
    g.dn = (float *)x.out[DN].device, g.dscale = (float *)x.out[DSCALE].device;
    g.dbeta = (float *)x.out[DBETA].device, g.dlog_tau = (float *)x.out[DLOG_TAU].device;
    g.drel = (float *)x.out[DREL].device;
}

static void release(problem &x) {
    for (array &a : x.in)
        a.release();
    for (array &a : x.out)
        a.release();
    x.first.release();
    x.workspace.release();
}

typedef std::vector<std::vector<double>> results;

static results run(problem &x, bool tiles) {
    make_room(x);
    x.workspace.poison();
    if (tiles) {
        flash_forward(x.p, 0);
        flash_backward(x.p, x.g, 0);
    } else {
        attention_plain(x.p, 0);
        attention_plain_back(x.p, x.g, 0);
    }
    CUDA(cudaGetLastError());
    CUDA(cudaDeviceSynchronize());
    results all(OUTPUTS);
    for (int i = 0; i < OUTPUTS; i++) {
        if (!x.out[i].device) continue;
        x.out[i].read();
        all[(size_t)i].assign(x.out[i].host.begin(), x.out[i].host.end());
    }
    return all;
}

/* The definition, pair by pair, in double. o and lse are its own; D is made from its own o. */
struct reference {
    problem &x;
    const form &f;
    int64_t B, T, S, H, KV;
    results squares; /* of the terms of the numbers that are sums over a head's pairs */

    explicit reference(problem &problem_)
        : x(problem_), f(problem_.f), B(f.batch), T(f.queries), S(f.keys), H(f.heads),
          KV(f.kv_heads) {
        for (array &a : x.in)
            if (a.device) a.read();
    }

    int64_t at(int which, int64_t b, int64_t position, int64_t head) const {
        int64_t parts = H + 2 * KV, width = which == V || which == D_O ? f.dv : f.dqk;
        if (f.packed && which <= V) {
            int64_t before = which == Q ? 0 : which == K ? H : H + KV;
            return ((b * T + position) * parts + before + head) * f.dqk;
        }
        int64_t heads = which == K || which == V ? KV : H;
        int64_t positions = which == K || which == V ? S : T;
        return ((b * positions + position) * heads + head) * width;
    }

    double get(int which, int64_t b, int64_t position, int64_t head, int64_t c) const {
        return (double)x.in[f.packed && which <= V ? Q : which]
            .host[(size_t)(at(which, b, position, head) + c)];
    }

    double product(int a, int64_t i, int64_t ha, int e, int64_t j, int64_t he, int64_t b,
                   int64_t width) const {
        double sum = 0;
        for (int64_t c = 0; c < width; c++)
            sum += get(a, b, i, ha, c) * get(e, b, j, he, c);
        return sum;
    }

    results run() {
        results r(OUTPUTS);
        int64_t packed = (int64_t)x.in[Q].host.size();
        r[O].resize((size_t)(B * T * H * f.dv));
        r[LSE].resize((size_t)(B * H * T));
        r[DQ].resize((size_t)packed);
        if (!f.packed) r[DK].resize(x.in[K].host.size()), r[DV].resize(x.in[V].host.size());
        r[DN].resize(x.in[N].host.size());
        r[DSCALE].resize(x.in[SCALE].host.size());
        r[DBETA].resize(x.in[BETA].host.size());
        r[DLOG_TAU].resize(x.in[LOG_TAU].host.size());
        r[DREL].resize(x.in[REL].host.size());
        squares.assign(OUTPUTS, {});
        for (int i = DSCALE; i < OUTPUTS; i++)
            squares[(size_t)i].resize(r[(size_t)i].size());
        for (int64_t b = 0; b < B; b++)
            for (int64_t h = 0; h < H; h++)
                work_head(r, b, h);
        return r;
    }

    void add_term(results &r, int which, int64_t at, double term) {
        r[(size_t)which][(size_t)at] += term;
        squares[(size_t)which][(size_t)at] += term * term;
    }

    void work_head(results &r, int64_t b, int64_t h) {
        int64_t kv = h * KV / H;
        double scale = (double)x.p.scale_value, beta = 0, tau = 0, slope = 0;
        if (f.scale) scale = (double)x.in[SCALE].host[(size_t)h];
        if (f.beta) beta = (double)x.in[BETA].host[(size_t)h];
        if (f.log_tau) {
            tau = exp((double)x.in[LOG_TAU].host[(size_t)h]);
            scale = 2 / (tau + 1e-6), beta = -1 / (tau + 1e-6);
        }
        int64_t power = 1;
        while (power * 2 <= H)
            power *= 2;
        slope = h < power ? exp2(-8.0 * (double)(h + 1) / (double)power)
                          : exp2(-4.0 * (double)(2 * (h - power) + 1) / (double)power);
        double alpha = (double)x.p.band_alpha;
        std::vector<double> &dk = f.packed ? r[DQ] : r[DK], &dv = f.packed ? r[DQ] : r[DV];
        for (int64_t i = 0; i < T; i++) {
            int64_t end = f.causal ? std::min(S, i + 1) : S;
            std::vector<double> raw((size_t)end), s((size_t)end), pos((size_t)end);
            double top = -INFINITY, sum = 0, total = 0;
            int64_t first = f.first_key((int)i);
            std::fill(s.begin(), s.end(), -INFINITY);
            for (int64_t j = first; j < end; j++) {
                size_t u = (size_t)j;
                int64_t distance = i - j;
                raw[u] = product(Q, i, h, K, j, kv, b, f.dqk);
                if (f.band && distance <= f.window)
                    raw[u] += alpha * product(Q, j, h, K, i, kv, b, f.dqk);
                if (f.pos == WEFT_POS_ALIBI) pos[u] = -slope * fabs((double)distance);
                if (f.pos == WEFT_POS_RELATIVE) pos[u] = (double)x.in[REL].host[(size_t)distance];
                s[u] = scale * raw[u] + pos[u];
                if (f.n) s[u] += beta * (double)x.in[N].host[(size_t)((b * KV + kv) * S + j)];
                if (f.softcap > 0) s[u] = (double)f.softcap * tanh(s[u] / (double)f.softcap);
                top = std::max(top, s[u]);
            }
            for (double v : s)
                sum += exp(v - top);
            double lse = top + log(sum);
            r[LSE][(size_t)((b * H + h) * T + i)] = lse;
            for (int64_t c = 0; c < f.dv; c++) {
                double o = 0;
                for (int64_t j = 0; j < end; j++)
                    o += exp(s[(size_t)j] - lse) * get(V, b, j, kv, c);
                r[O][(size_t)(at(D_O, b, i, h) + c)] = o;
                total += o * get(D_O, b, i, h, c);
            }
            for (int64_t j = first; j < end; j++) {
                size_t u = (size_t)j;
                double p = exp(s[u] - lse);
                double ds = p * (product(D_O, i, h, V, j, kv, b, f.dv) - total);
                if (f.softcap > 0) ds *= 1 - s[u] / (double)f.softcap * (s[u] / (double)f.softcap);
                for (int64_t c = 0; c < f.dv; c++)
                    dv[(size_t)(at(V, b, j, kv) + c)] += p * get(D_O, b, i, h, c);
                for (int64_t c = 0; c < f.dqk; c++) {
                    r[DQ][(size_t)(at(Q, b, i, h) + c)] += scale * ds * get(K, b, j, kv, c);
                    dk[(size_t)(at(K, b, j, kv) + c)] += scale * ds * get(Q, b, i, h, c);
                    if (!f.band || i - j > f.window) continue;
                    double band = alpha * scale * ds;
                    r[DQ][(size_t)(at(Q, b, j, h) + c)] += band * get(K, b, i, kv, c);
                    dk[(size_t)(at(K, b, i, kv) + c)] += band * get(Q, b, j, h, c);
                }
                size_t key = (size_t)((b * KV + kv) * S + j);
                if (f.n) r[DN][key] += beta * ds;
                if (f.scale) add_term(r, DSCALE, h, ds * raw[u]);
                if (f.beta) add_term(r, DBETA, h, ds * (double)x.in[N].host[key]);
                if (f.log_tau) add_term(r, DLOG_TAU, h, -tau / (tau + 1e-6) * ds * (s[u] - pos[u]));
                if (f.pos == WEFT_POS_RELATIVE) add_term(r, DREL, i - j, ds);
            }
        }
    }
};

/* ‖a − b‖ / ‖b‖; what is not finite counts as infinite. `squares`, where there are any: of the terms
 * that the numbers of b are sums of, whose size is taken in the place of b's. */
static double distance(const std::vector<double> &a, const std::vector<double> &b,
                       const std::vector<double> &squares) {
    double up = 0, down = 0;
    for (size_t i = 0; i < a.size(); i++) {
        if (!std::isfinite(a[i])) return INFINITY;
        up += (a[i] - b[i]) * (a[i] - b[i]);
        down += squares.empty() ? b[i] * b[i] : squares[i];
    }
    return sqrt(up / (down > 0 ? down : 1));
}

static int compare(const char *what, const form &f, const results &a, const results &b,
                   const double *limits, const results &squares = results(OUTPUTS)) {
    int bad = 0;
    std::string line;
    for (int i = 0; i < OUTPUTS; i++) {
        if (a[(size_t)i].empty()) continue;
        double far = distance(a[(size_t)i], b[(size_t)i], squares[(size_t)i]);
        bool over = !(far <= limits[i]);
        char text[64];
        snprintf(text, sizeof text, " %s %.1e%s", names[i], far, over ? "!" : "");
        line += text;
        bad += over;
    }
    printf("%-5s %-16s%s%s\n", bad ? "BAD" : "ok", what, f.name, line.c_str());
    return bad;
}

/* By output, in the order of `names`. Numbers per head are sums over all its pairs, of either sign:
 * how much of them is left when they have cancelled is chance, and what the terms' rounding leaves
 * (⟨do, o⟩ is made from o as stored, in bf16) is not less for it. So beside the reference they are
 * held to the size that a sum of such terms has with signs at random; two kernels, of which neither
 * knows it, to each other's size. */
static const double limits_f32[] = {2e-6, 2e-6, 5e-6, 5e-6, 5e-6, 2e-5, 2e-4, 2e-4, 2e-4, 2e-4};
static const double limits_bf16[] = {5e-3, 1e-4, 2e-2, 2e-2, 1e-2, 3e-2, 2e-2, 2e-2, 2e-2, 2e-2};
static const double limits_pair[] = {5e-3, 1e-4, 2e-2, 2e-2, 1e-2, 3e-2, 5e-2, 5e-2, 5e-2, 5e-2};

static int check_small(const form &f) {
    problem x;
    make(x, f);
    reference definition(x);
    results r = definition.run();
    int bad = compare("plain/double", f, run(x, false), r, f.bf16 ? limits_bf16 : limits_f32,
                      definition.squares);
    if (attention_fits_flash(x.p)) {
        results a = run(x, true);
        bad += compare("tiles/double", f, a, r, limits_bf16, definition.squares);
    }
    release(x);
    return bad;
}

static int check_large(const form &f) {
    problem x;
    make(x, f);
    results plain = run(x, false), a = run(x, true);
    int bad = compare("tiles/plain", f, a, plain, limits_pair);
    for (int again = 0; again < 3; again++)
        if (run(x, true) != a) {
            printf("BAD   bits differ between runs: %s\n", f.name);
            bad++;
        }
    release(x);
    return bad;
}

/* The rows before `cut` do not change when keys, values and numbers from there on do. */
static int check_causality(problem &x, const results &a) {
    const form &f = x.f;
    int64_t cut = f.queries / 2;
    if (!f.causal || f.packed) return 0;
    for (int64_t b = 0; b < f.batch; b++) {
        auto change = [&](const head_rows &rows) {
            size_t bytes = (size_t)(f.keys - cut) * (size_t)rows.row * 2;
            CUDA(
                cudaMemset((char *)rows.data + (b * rows.batch + cut * rows.row) * 2, 0x3c, bytes));
        };
        change(x.p.k);
        change(x.p.v);
        for (int64_t kv = 0; f.n && kv < f.kv_heads; kv++)
            CUDA(cudaMemset((float *)x.in[N].device + (b * f.kv_heads + kv) * f.keys + cut, 0,
                            (size_t)(f.keys - cut) * 4));
    }
    results c = run(x, true);
    int64_t row = (int64_t)f.heads * f.dv;
    for (int64_t b = 0; b < f.batch; b++)
        for (int64_t e = b * f.queries * row; e < (b * f.queries + cut) * row; e++)
            if (a[O][(size_t)e] != c[O][(size_t)e]) {
                printf("BAD   rows see what comes after them: %s\n", f.name);
                return 1;
            }
    return 0;
}

/* The last sequence alone gives the bits that it has among the others. */
static int check_alone(problem &x, const results &a) {
    const form &f = x.f;
    int64_t b = f.batch - 1;
    if (b == 0 || f.packed) return 0;
    make_room(x);
    attention_problem p = x.p;
    attention_gradients g = x.g;
    for (head_rows *rows : {&p.q, &p.k, &p.v, &p.o, &g.d_o, &g.dq, &g.dk, &g.dv})
        rows->data = (bf16 *)rows->data + b * rows->batch;
    p.batch = 1;
    p.lse += b * f.heads * f.queries;
    if (p.n) p.n += b * f.kv_heads * f.keys;
    if (g.dn) g.dn += b * f.kv_heads * f.keys;
    if (p.first) p.first += b * f.queries;
    flash_forward(p, 0);
    flash_backward(p, g, 0);
    CUDA(cudaGetLastError());
    CUDA(cudaDeviceSynchronize());
    /* How a shared key head's sums are divided follows from the batch as well. */
    int last = f.heads == f.kv_heads ? DN : DQ;
    for (int i = O; i <= last; i++) {
        if (!x.out[i].device) continue;
        x.out[i].read();
        size_t from = (size_t)(x.out[i].count / f.batch * b), count = x.out[i].host.size();
        for (size_t e = from; e < count; e++)
            if ((double)x.out[i].host[e] != a[(size_t)i][e]) {
                printf("BAD   %s of a sequence alone: %s\n", names[i], f.name);
                return 1;
            }
    }
    return 0;
}

/* Shapes that the tensor cores take, drawn at random: against the plain kernel; the same bits twice and
 * for a sequence alone; nothing seen from behind. */
static int check_random(unsigned seed, int count) {
    printf("seed %u\n", seed);
    uint64_t state = seed * 0x9e3779b97f4a7c15ull + 1;
    auto draw = [&](int below) {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return (int)((state >> 33) % (uint64_t)below);
    };
    int bad = 0, tried = 0;
    while (tried < count) {
        form f = {};
        int head = 8 * (2 + draw(31));
        bool w2 = draw(2) == 1;
        f.dqk = w2 ? 2 * head : head;
        f.dv = draw(8) == 0 ? 8 * (1 + draw(head / 8)) : head;
        f.batch = 1 + draw(3);
        f.queries = f.keys = 1 + draw(draw(3) == 0 ? 1100 : 300);
        f.heads = 1 + draw(5);
        f.kv_heads = draw(2) ? f.heads : 1 + draw(f.heads);
        f.bf16 = true;
        f.causal = draw(4) != 0;
        f.n = w2 || draw(4) == 0;
        f.log_tau = w2;
        f.scale = !w2 && draw(4) == 0;
        f.beta = f.n && !w2;
        f.packed = f.dqk == f.dv && draw(2) == 1;
        f.pos = (weft_attention_pos)(f.causal ? draw(3) : 0);
        if (!f.packed && !f.causal && draw(3) == 0) f.keys += draw(200);
        /* A query that sees one key has no gradient to compare. */
        if (f.causal && draw(3) == 0) f.reach = 2 + draw(f.queries);
        if (f.causal && draw(3) == 0) f.document = 1 + draw(200);
        if (!f.n && f.pos == WEFT_POS_NONE && f.dqk == f.dv && draw(3) == 0)
            f.softcap = (float)(1 + draw(5));
        char name[200];
        snprintf(name, sizeof name,
                 "(%d,%d) reach %d document %d cap %g B %d T %d S %d H %d/%d%s%s%s%s%s", f.dqk,
                 f.dv, f.reach, f.document, (double)f.softcap, f.batch, f.queries, f.keys, f.heads,
                 f.kv_heads, f.causal ? "" : " open", f.packed ? " packed" : "",
                 w2       ? " w2"
                 : f.beta ? " n"
                          : "",
                 f.scale ? " scale" : "",
                 f.pos == WEFT_POS_ALIBI      ? " alibi"
                 : f.pos == WEFT_POS_RELATIVE ? " relative"
                                              : "");
        f.name = name;
        if ((int64_t)f.batch * f.heads * f.queries * f.keys > 3000000) continue;
        tried++;
        problem x;
        make(x, f);
        if (!attention_fits_flash(x.p)) {
            printf("BAD   not for the tensor cores: %s\n", name);
            bad++;
        } else {
            results plain = run(x, false), a = run(x, true);
            int off = compare("tiles/plain", f, a, plain, limits_pair);
            if (run(x, true) != a) {
                printf("BAD   bits differ between runs: %s\n", name);
                off++;
            }
            off += check_alone(x, a);
            bad += off + check_causality(x, a);
        }
        release(x);
    }
    printf(bad ? "%d outputs are off\n" : "%d shapes agree\n", bad ? bad : tried);
    return bad != 0;
}

static int check(bool quick) {
    const weft_attention_pos none = WEFT_POS_NONE, alibi = WEFT_POS_ALIBI, rel = WEFT_POS_RELATIVE;
    /* name; B T S H KV dqk dv; bf16 causal packed n scale beta log_tau; pos band window */
    const form small[] = {
        {"dot f32", 2, 37, 37, 3, 3, 20, 20, 0, 1, 1, 0, 0, 0, 0, none, 0, 0},
        {"dot f32 open", 2, 37, 45, 4, 2, 20, 12, 0, 0, 0, 0, 0, 0, 0, none, 0, 0},
        {"n f32", 2, 70, 70, 3, 2, 33, 130, 0, 1, 0, 1, 1, 1, 0, none, 0, 0},
        {"w2 f32 alibi", 2, 70, 70, 3, 1, 140, 17, 0, 1, 0, 1, 0, 0, 1, alibi, 0, 0},
        {"w2 f32 open alibi", 2, 40, 50, 3, 3, 16, 17, 0, 0, 0, 1, 0, 0, 1, alibi, 0, 0},
        {"relative f32", 2, 77, 77, 4, 2, 16, 16, 0, 1, 0, 0, 1, 0, 0, rel, 0, 0},
        {"band f32", 2, 81, 81, 4, 1, 24, 16, 0, 1, 0, 1, 1, 1, 0, none, 1, 40},
        {"dot bf16", 2, 100, 100, 3, 3, 64, 64, 1, 1, 1, 0, 0, 0, 0, none, 0, 0},
        {"dot bf16 32", 2, 130, 130, 3, 3, 32, 32, 1, 1, 1, 0, 0, 0, 0, none, 0, 0},
        {"dot bf16 96", 2, 130, 130, 3, 3, 96, 96, 1, 1, 1, 0, 0, 0, 0, none, 0, 0},
        {"w2 bf16", 2, 200, 200, 3, 3, 128, 64, 1, 1, 0, 1, 0, 0, 1, none, 0, 0},
        {"w2 bf16 alibi", 2, 200, 200, 3, 3, 128, 64, 1, 1, 0, 1, 0, 0, 1, alibi, 0, 0},
        {"mla bf16", 2, 130, 130, 4, 1, 128, 128, 1, 1, 0, 0, 0, 0, 0, none, 0, 0},
        {"n bf16 open", 2, 70, 150, 4, 2, 64, 64, 1, 0, 0, 1, 1, 1, 0, none, 0, 0},
        {"n bf16", 2, 250, 250, 4, 2, 64, 64, 1, 1, 0, 1, 1, 1, 0, none, 0, 0},
        {"groups uneven", 2, 70, 70, 5, 3, 32, 32, 1, 1, 0, 1, 0, 0, 1, none, 0, 0},
        {"relative 64", 2, 130, 130, 3, 3, 64, 64, 1, 1, 1, 0, 0, 0, 0, rel, 0, 0},
        {"relative w2", 2, 140, 140, 4, 2, 128, 64, 1, 1, 0, 1, 0, 0, 1, rel, 0, 0},
        {"relative 96", 1, 400, 400, 1, 1, 96, 96, 1, 1, 1, 0, 0, 0, 0, rel, 0, 0},
        {"dot 16", 2, 70, 70, 3, 3, 16, 16, 1, 1, 1, 0, 0, 0, 0, none, 0, 0},
        {"dot 80", 2, 130, 130, 2, 2, 80, 80, 1, 1, 1, 0, 0, 0, 0, none, 0, 0},
        {"dot 192", 1, 150, 150, 2, 2, 192, 192, 1, 1, 1, 0, 0, 0, 0, none, 0, 0},
        {"dot 256", 1, 150, 150, 2, 2, 256, 256, 1, 1, 1, 0, 0, 0, 0, none, 0, 0},
        {"dot 200 alibi", 1, 100, 100, 2, 1, 200, 200, 1, 1, 0, 0, 0, 0, 0, alibi, 0, 0},
        {"w2 16", 1, 130, 130, 2, 2, 32, 16, 1, 1, 0, 1, 0, 0, 1, none, 0, 0},
        {"w2 32", 1, 130, 130, 2, 2, 64, 32, 1, 1, 0, 1, 0, 0, 1, none, 0, 0},
        {"w2 48", 1, 130, 130, 2, 2, 96, 48, 1, 1, 0, 1, 0, 0, 1, none, 0, 0},
        {"w2 96", 1, 130, 130, 2, 2, 192, 96, 1, 1, 0, 1, 0, 0, 1, none, 0, 0},
        {"w2 128", 1, 150, 150, 2, 2, 256, 128, 1, 1, 0, 1, 0, 0, 1, none, 0, 0},
        {"w2 192", 1, 100, 100, 2, 2, 384, 192, 1, 1, 0, 1, 0, 0, 1, none, 0, 0},
        {"w2 256", 1, 100, 100, 2, 2, 512, 256, 1, 1, 0, 1, 0, 0, 1, none, 0, 0},
        {"w2 256 groups", 1, 90, 90, 4, 2, 512, 256, 1, 1, 0, 1, 1, 1, 0, none, 0, 0},
        {"window f32", 2, 90, 90, 3, 1, 20, 20, 0, 1, 0, 0, 1, 0, 0, rel, 0, 0, 37},
        {"documents f32", 2, 90, 90, 3, 1, 20, 20, 0, 1, 0, 1, 0, 0, 1, none, 0, 0, 0, 31},
        {"capped f32", 2, 90, 90, 3, 1, 20, 20, 0, 1, 0, 0, 1, 0, 0, alibi, 1, 9, 40, 0, 2},
        {"window", 2, 300, 300, 3, 3, 64, 64, 1, 1, 1, 0, 0, 0, 0, none, 0, 0, 100},
        {"window 96 relative", 1, 260, 260, 2, 2, 96, 96, 1, 1, 1, 0, 0, 0, 0, rel, 0, 0, 70},
        {"window w2", 2, 240, 240, 4, 2, 128, 64, 1, 1, 0, 1, 0, 0, 1, none, 0, 0, 90},
        {"window 256", 1, 260, 260, 2, 2, 256, 256, 1, 1, 1, 0, 0, 0, 0, none, 0, 0, 90},
        {"documents", 2, 300, 300, 3, 3, 64, 64, 1, 1, 1, 0, 0, 0, 0, none, 0, 0, 0, 110},
        {"documents w2", 1, 200, 200, 2, 1, 512, 256, 1, 1, 0, 1, 0, 0, 1, none, 0, 0, 0, 45},
        {"capped", 2, 200, 200, 3, 3, 64, 64, 1, 1, 1, 0, 0, 0, 0, none, 0, 0, 0, 0, 1},
        {"capped scale", 2, 200, 200, 4, 1, 128, 128, 1, 1, 0, 0, 1, 0, 0, none, 0, 0, 90, 70, 1},
    };
    const form large[] = {
        {"32 T 1000", 2, 1000, 1000, 6, 6, 32, 32, 1, 1, 1, 0, 0, 0, 0, none, 0, 0},
        {"64 T 1024", 2, 1024, 1024, 12, 12, 64, 64, 1, 1, 1, 0, 0, 0, 0, none, 0, 0},
        {"64 T 1337 open", 2, 1337, 999, 4, 4, 64, 64, 1, 0, 0, 0, 0, 0, 0, none, 0, 0},
        {"64 T 1024 alibi", 2, 1024, 1024, 6, 2, 64, 64, 1, 1, 0, 0, 0, 0, 0, alibi, 0, 0},
        {"96 T 1025", 2, 1025, 1025, 4, 4, 96, 96, 1, 1, 1, 0, 0, 0, 0, none, 0, 0},
        {"96 n T 511", 2, 511, 511, 4, 4, 96, 96, 1, 1, 0, 1, 0, 0, 1, none, 0, 0},
        {"w2 T 1024", 2, 1024, 1024, 12, 12, 128, 64, 1, 1, 0, 1, 0, 0, 1, none, 0, 0},
        {"w2 T 2000", 1, 2000, 2000, 4, 4, 128, 64, 1, 1, 0, 1, 1, 1, 0, none, 0, 0},
        {"mla T 1024", 2, 1024, 1024, 12, 1, 128, 128, 1, 1, 0, 0, 0, 0, 0, none, 0, 0},
        {"mla w2 T 1024", 2, 1024, 1024, 12, 1, 128, 128, 1, 1, 0, 1, 0, 0, 1, none, 0, 0},
        {"128 T 700", 2, 700, 700, 3, 3, 128, 128, 1, 1, 1, 0, 0, 0, 0, none, 0, 0},
        {"192 T 1000", 1, 1000, 1000, 4, 4, 192, 192, 1, 1, 1, 0, 0, 0, 0, none, 0, 0},
        {"256 T 1000", 1, 1000, 1000, 4, 4, 256, 256, 1, 1, 1, 0, 0, 0, 0, none, 0, 0},
        {"w2 96 T 1000", 1, 1000, 1000, 4, 4, 192, 96, 1, 1, 0, 1, 0, 0, 1, none, 0, 0},
        {"w2 128 T 1000", 1, 1000, 1000, 4, 4, 256, 128, 1, 1, 0, 1, 0, 0, 1, none, 0, 0},
        {"w2 192 T 1000", 1, 1000, 1000, 4, 4, 384, 192, 1, 1, 0, 1, 0, 0, 1, none, 0, 0},
        {"w2 256 T 1000", 1, 1000, 1000, 4, 4, 512, 256, 1, 1, 0, 1, 0, 0, 1, none, 0, 0},
        {"relative T 1000", 2, 1000, 1000, 4, 4, 64, 64, 1, 1, 1, 0, 0, 0, 0, rel, 0, 0},
    };
    int bad = 0;
    for (const form &f : small)
        bad += check_small(f);
    for (const form &f : large)
        if (!quick) bad += check_large(f);
    printf(bad ? "%d outputs are off\n" : "all outputs agree\n", bad);
    return bad != 0;
}

/* What was measured of a form: seconds, and the products counted. */
struct timing {
    double forward, back, by_keys, by_queries;
    double forward_products, back_products;
};

static timing time_form(const form &f) {
    problem x;
    make(x, f);
    make_room(x);
    double pairs = 0;
    for (int i = 0; i < f.queries; i++)
        pairs += (double)f.batch * f.heads * (i + 1 - f.first_key(i));
    timing t;
    t.forward_products = 2 * pairs * (f.dqk + f.dv);
    t.back_products = 2 * pairs * (3 * f.dqk + 2 * f.dv);
    auto seconds_of = [](auto call) { return measure(2, 9, 1, call) / 1e3; };
    t.forward = seconds_of([&] { flash_forward(x.p, 0); });
    t.back = seconds_of([&] { flash_backward(x.p, x.g, 0); });
    attention_gradients keys = x.g, queries = x.g;
    keys.dq.data = NULL;
    queries.dk.data = queries.dv.data = NULL;
    queries.dn = queries.dlog_tau = NULL;
    keys.drel = queries.drel = NULL;
    t.by_keys = seconds_of([&] { flash_backward(x.p, keys, 0); });
    t.by_queries = seconds_of([&] { flash_backward(x.p, queries, 0); });
    release(x);
    return t;
}

static void print_head() {
    printf("form          T  fwd ms  TFLOP/s   back ms TFLOP/s    keys ms queries ms\n");
}

static void print_line(const form &f) {
    timing t = time_form(f);
    printf("%-8s %6d %8.3f %7.0f %9.3f %7.0f   %8.3f %9.3f\n", f.name, f.queries, t.forward * 1e3,
           t.forward_products / t.forward / 1e12, t.back * 1e3, t.back_products / t.back / 1e12,
           t.by_keys * 1e3, t.by_queries * 1e3);
    fflush(stdout);
}

/* Tabs between: form, B, T, H, KV, dqk, dv, forward ms, TFLOP/s, backward ms, TFLOP/s. */
static void print_row(const form &f) {
    timing t = time_form(f);
    printf("%s\t%d\t%d\t%d\t%d\t%d\t%d\t%.4f\t%.1f\t%.4f\t%.1f\n", f.name, f.batch, f.queries,
           f.heads, f.kv_heads, f.dqk, f.dv, t.forward * 1e3, t.forward_products / t.forward / 1e12,
           t.back * 1e3, t.back_products / t.back / 1e12);
    fflush(stdout);
}

/* 32k tokens, 12 heads, causal; packed where q, k and v are alike. */
static form make_form(const char *name, int T, int dqk, int dv, int kv, bool w2) {
    form f = {};
    f.name = name;
    f.batch = 32768 / T;
    f.queries = f.keys = T;
    f.heads = 12;
    f.kv_heads = kv;
    f.dqk = dqk;
    f.dv = dv;
    f.bf16 = f.causal = true;
    f.packed = dqk == dv && kv == 12 && !w2;
    f.n = f.log_tau = w2;
    return f;
}

template <typename F> static void for_each_form(F print) {
    static const int lengths[] = {1024, 4096, 16384};
    for (int T : lengths)
        print(make_form("dot", T, 64, 64, 12, false));
    for (int T : lengths)
        print(make_form("w2", T, 128, 64, 12, true));
    for (int T : lengths)
        print(make_form("mla", T, 128, 128, 1, false));
    print(make_form("dot 32", 1024, 32, 32, 12, false));
    print(make_form("dot 96", 1024, 96, 96, 12, false));
    print(make_form("dot 128", 1024, 128, 128, 12, false));
}

/* "dot:80:1024", "w2:128:4096", "mla:128:16384", "rel:64:1024", "win:64:4096", "doc:64:4096", "cap:64:1024":
 * dot products, W2, one key head for all queries, relative positions, a window and documents of an eighth of
 * the sequence, a soft-cap; the size of a head; tokens. */
static bool read_form(const char *text, form *f) {
    char name[8];
    int head, T;
    if (sscanf(text, "%7[a-z0-9]:%d:%d", name, &head, &T) != 3 || head < 1 || T < 1 || T > 32768)
        return false;
    bool w2 = !strcmp(name, "w2");
    *f = make_form(text, T, w2 ? 2 * head : head, head, strcmp(name, "mla") ? 12 : 1, w2);
    if (!strcmp(name, "rel")) f->pos = WEFT_POS_RELATIVE;
    if (!strcmp(name, "win")) f->reach = std::max(1, T / 8);
    if (!strcmp(name, "doc")) f->document = std::max(1, T / 8);
    if (!strcmp(name, "cap")) f->softcap = 50;
    return true;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "time";
    if (weft_cuda_device_open() != WEFT_OK) {
        printf("skipped: attention: %s\n", weft_error_message());
        return 0;
    }
    if (!strcmp(what, "check")) return check(argc > 2);
    if (!strcmp(what, "random"))
        return check_random(argc > 2 ? (unsigned)atoi(argv[2]) : 1, argc > 3 ? atoi(argv[3]) : 60);
    if (!strcmp(what, "rows")) {
        if (argc == 2) for_each_form(print_row);
        for (int i = 2; i < argc; i++) {
            form f;
            if (!read_form(argv[i], &f)) {
                fprintf(stderr, "attention_cuda: '%s' is not FORM:HEAD:TOKENS\n", argv[i]);
                return 2;
            }
            print_row(f);
        }
        return 0;
    }
    print_head();
    if (strcmp(what, "time")) {
        fprintf(stderr, "attention_cuda: %s is none of check, random, time, rows\n", what);
        return 2;
    }
    if (argc <= 6) {
        for_each_form(print_line);
        return 0;
    }
    for (int i = 6; i < argc; i++)
        print_line(make_form("", atoi(argv[i]), atoi(argv[2]), atoi(argv[3]), atoi(argv[4]),
                             !strcmp(argv[5], "n")));
    return 0;
}
