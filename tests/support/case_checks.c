/* The checks of a case: against the reference, against finite differences, against itself.
 *
 * The arena is filled with NaN before every run, so an output or a gradient that a kernel does not
 * write, or makes from memory it must not read, shows in all of them. */
#include "case_checks.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

__attribute__((format(printf, 2, 3))) static bool say(char *why, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(why, CASE_WHY, format, args);
    va_end(args);
    return false;
}

static test_case *open_and_run(const case_ref *k, const case_setup *setup, char *why) {
    test_case *c = case_open(k->line, k->builder, setup);
    if (c && case_run(c) == WEFT_OK) return c;
    say(why, "%s: %s", weft_dtype_name(setup->dtype), weft_error_message());
    case_close(c);
    return NULL;
}

/* The largest |a - b|, where a NaN counts as infinitely far. */
static double max_gap(const double *a, const double *b, int64_t n, int64_t *where) {
    double gap = 0;
    *where = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs(a[i] - b[i]);
        if (!(d <= gap)) {
            gap = isnan(d) ? INFINITY : d;
            *where = i;
        }
    }
    return gap;
}

static double max_abs(const double *a, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, fabs(a[i]));
    return most;
}

static bool compare(const char *what, const char *name, const double *got, const double *want,
                    int64_t n, double tolerance, char *why) {
    int64_t i;
    double gap = max_gap(got, want, n, &i);
    if (gap <= tolerance) return true;
    return say(why, "%s: %s[%lld of %lld] is %.9g, expected %.9g: differs by %.3g > %.3g", what,
               name, (long long)i, (long long)n, got[i], want[i], gap, tolerance);
}

static bool same_shape(const case_result *r, const vector *ref) {
    if (r->slot->index) return r->count == ref->count;
    bool same = r->like->ndim == ref->ndim;
    for (int d = 0; same && d < ref->ndim; d++)
        same = r->like->shape[d] == ref->shape[d];
    return same;
}

/* A run in f64 against what is kept. */
static bool compare_kept(const case_ref *k, test_case *c, char *why) {
    int n = case_result_count(c), kept = vectors_begin(k->kept, NULL, "%08x/", k->line->hash);
    if (n != kept)
        return say(why,
                   "the case has %d results, the reference keeps %d (after a change of the "
                   "table: make vectors)",
                   n, kept);
    for (int i = 0; i < n; i++) {
        case_result r = case_result_at(c, i);
        const vector *ref = vectors_find(k->kept, "%08x/%s", k->line->hash, r.name);
        if (!ref) return say(why, "%s: the reference keeps none", r.name);
        if (!same_shape(&r, ref))
            return say(why, "%s: %s here, but another shape in the reference", r.name,
                       weft_tensor_describe(r.like));
        double *values = case_result_values(c, &r);
        if (!values) return say(why, "%s: cannot be read: %s", r.name, weft_error_message());
        double gap = vector_gap(ref, values), size = vector_norm(values, r.count);
        free(values);
        if (!(gap <= 1e-12 * fmax(1, size)))
            return say(why,
                       "%s: a sum of its values is off by %.3g, of a norm of %.3g "
                       "(tests/reference/make_vectors.py %s "
                       "--show %08x prints what they should be)",
                       r.name, gap, size, k->family, k->line->hash);
    }
    return true;
}

/* The case in f64, which is what the reference has. */
static test_case *open_exact(const case_ref *k, char *why) {
    if (!k->kept) {
        say(why, "there is no vector file of %s: make vectors", k->family);
        return NULL;
    }
    test_case *c = open_and_run(k, &(case_setup){.dtype = WEFT_F64}, why);
    if (c && compare_kept(k, c, why)) return c;
    case_close(c);
    return NULL;
}

/* Each result within `tolerance` of its largest value, or of `least`; gradients that times `grad`. */
static bool compare_runs(test_case *c, test_case *exact, double tolerance, double grad,
                         double least, char *why) {
    bool good = true;
    for (int i = 0; good && i < case_result_count(exact); i++) {
        case_result r = case_result_at(exact, i), h = case_result_at(c, i);
        double *want = case_result_values(exact, &r), *got = case_result_values(c, &h);
        if (!want || !got)
            good = say(why, "%s: cannot be read", r.name);
        else
            good = compare(weft_dtype_name(c->dtype), r.name, got, want, r.count,
                           (r.is_grad ? grad : 1) * tolerance * fmax(max_abs(want, r.count), least),
                           why);
        free(want);
        free(got);
    }
    return good;
}

/* A cast is its own reference: the value as the type holds it. */
static bool compare_cast(test_case *c, char *why) {
    for (int i = 0; i < case_result_count(c); i++) {
        case_result r = case_result_at(c, i);
        const case_slot *from = r.is_grad ? &c->upstream[0] : &c->input[0];
        double *want = calloc((size_t)r.count, sizeof *want);
        for (int64_t k = 0; k < r.count; k++)
            want[k] = case_round(r.like->dtype, from->values[k]);
        double *got = case_result_values(c, &r);
        bool good = compare("cast", r.name, got, want, r.count, 0, why);
        free(want);
        free(got);
        if (!good) return false;
    }
    return true;
}

static bool is_cast(const case_ref *k) {
    return !strcmp(k->line->name, "cast");
}

static bool check_cast(const case_ref *k, weft_dtype dtype, char *why) {
    test_case *c = open_and_run(k, &(case_setup){.dtype = dtype}, why);
    bool good = c && compare_cast(c, why);
    case_close(c);
    return good;
}

bool check_vectors_f64(const case_ref *k, char *why) {
    if (is_cast(k)) return check_cast(k, WEFT_F64, why);
    test_case *c = open_exact(k, why);
    bool good = c != NULL;
    case_close(c);
    return good;
}

bool check_vectors_f32(const case_ref *k, char *why) {
    if (is_cast(k)) return check_cast(k, WEFT_F32, why);
    test_case *exact = open_exact(k, why);
    test_case *c = exact ? open_and_run(k, &(case_setup){.dtype = WEFT_F32}, why) : NULL;
    bool good = c && compare_runs(c, exact, 4e-6 * c->loosen, 2.5, 1, why);
    case_close(exact);
    case_close(c);
    return good;
}

/* Finite differences. */

enum { MOST_ELEMENTS = 24 };
static const double step = 3e-4;

/* The derivative along `direction` from loss(x ± h), loss(x ± 2h): error of order h⁴. */
static bool difference(test_case *c, case_slot *x, const double *start, const double *direction,
                       double *out) {
    static const double place[] = {-2, -1, 1, 2}, weight[] = {1, -8, 8, -1};
    int64_t n = weft_tensor_count(x->tensor);
    *out = 0;
    for (int p = 0; p < 4; p++) {
        for (int64_t i = 0; i < n; i++)
            x->values[i] = start[i] + place[p] * step * direction[i];
        if (case_write(c, x) != WEFT_OK || case_run(c) != WEFT_OK) return false;
        *out += weight[p] * case_loss(c, NULL) / (12 * step);
    }
    memcpy(x->values, start, (size_t)n * sizeof *start);
    return case_write(c, x) == WEFT_OK;
}

/* One direction: a unit vector along element `i`, or through all elements where i < 0. */
static bool check_direction(test_case *c, case_slot *x, const double *start, const double *grad,
                            int64_t i, double magnitude, char *why) {
    int64_t n = weft_tensor_count(x->tensor);
    double *direction = calloc((size_t)n, sizeof *direction);
    double length = 0, want = 0, norm = 0, got = 0;
    if (i >= 0) {
        direction[i] = 1;
    } else {
        case_draw(c->line->hash, "direction", 1, n, direction);
        for (int64_t k = 0; k < n; k++)
            length += direction[k] * direction[k];
        for (int64_t k = 0; k < n; k++)
            direction[k] /= sqrt(length);
    }
    for (int64_t k = 0; k < n; k++) {
        want += grad[k] * direction[k];
        norm += grad[k] * grad[k];
    }
    double size = i >= 0 ? max_abs(grad, n) : sqrt(norm);
    double tolerance = 1e-8 * size + 1e-11 * (1 + magnitude);
    bool good = difference(c, x, start, direction, &got);
    free(direction);
    if (!good) return say(why, "%s", weft_error_message());
    if (fabs(got - want) <= tolerance) return true;
    return say(why, "grad.%s %s %lld of %lld: gradient %.9g, finite difference %.9g", x->name,
               i >= 0 ? "element" : "along a direction,", (long long)(i < 0 ? n : i), (long long)n,
               want, got);
}

/* All of one input: a direction, and up to `most` elements. */
static bool check_input(test_case *c, case_slot *x, const double *grad, double magnitude, int most,
                        char *why) {
    int64_t n = weft_tensor_count(x->tensor);
    double *start = calloc((size_t)n, sizeof *start);
    memcpy(start, x->values, (size_t)n * sizeof *start);
    bool good = check_direction(c, x, start, grad, -1, magnitude, why);
    for (int64_t e = 0; good && e < n && e < most; e++) {
        int64_t i = n <= most ? e : (int64_t)(case_unit(c->line->hash, "element", e) * (double)n);
        good = check_direction(c, x, start, grad, i, magnitude, why);
    }
    free(start);
    return good;
}

/* Every input, from the output `only_output` or from all. */
static bool compare_differences(const case_ref *k, int only_output, int most, char *why) {
    case_setup setup = {.dtype = WEFT_F64, .only_output = only_output};
    test_case *back = open_and_run(k, &setup, why);
    setup.forward_only = true;
    test_case *c = back ? open_and_run(k, &setup, why) : NULL;
    bool good = c != NULL;
    double magnitude = 0;
    if (good) case_loss(c, &magnitude);
    for (int r = back ? back->n_outputs : 0; good && r < case_result_count(back); r++) {
        case_result result = case_result_at(back, r);
        case_slot *x = &c->input[result.slot - back->input];
        double *grad = case_result_values(back, &result);
        good = grad && check_input(c, x, grad, magnitude, most, why);
        free(grad);
    }
    case_close(back);
    case_close(c);
    return good;
}

bool check_differences(const case_ref *k, char *why) {
    return is_cast(k) || compare_differences(k, 0, MOST_ELEMENTS, why);
}

/* The gradient of differentiable input `i` (from 0), made alone, against the one of `all`. */
static bool compare_alone(const case_ref *k, test_case *all, int i, char *why) {
    test_case *one = open_and_run(k, &(case_setup){.dtype = WEFT_F64, .only_input = i + 1}, why);
    if (!one) return false;
    case_result ra = case_result_at(all, all->n_outputs + i);
    case_result ro = case_result_at(one, one->n_outputs);
    double *want = case_result_values(all, &ra), *got = case_result_values(one, &ro);
    bool good = want && got &&
                compare("alone", ra.name, got, want, ra.count,
                        1e-12 * fmax(1, max_abs(want, ra.count)), why);
    free(want);
    free(got);
    case_close(one);
    return good;
}

bool check_alone(const case_ref *k, char *why) {
    test_case *all = open_and_run(k, &(case_setup){.dtype = WEFT_F64}, why);
    bool good = all != NULL;
    for (int i = 0; good && all->diff_inputs > 1 && i < all->diff_inputs; i++)
        good = compare_alone(k, all, i, why);
    for (int i = 0; good && all->diff_outputs > 1 && i < all->diff_outputs; i++)
        good = compare_differences(k, i + 1, 4, why);
    case_close(all);
    return good;
}

/* bf16 storage. */

bool check_bf16(const case_ref *k, char *why) {
    if (is_cast(k)) return check_cast(k, WEFT_BF16, why);
    test_case *half = open_and_run(k, &(case_setup){.dtype = WEFT_BF16}, why);
    test_case *c =
        half ? open_and_run(k, &(case_setup){.dtype = WEFT_F64, .values_of = half}, why) : NULL;
    bool good = c && compare_runs(half, c, 0x1p-7, half->loosen, 0x1p-13, why);
    case_close(half);
    case_close(c);
    return good;
}

/* Equal bits. */

static bool same_bits(test_case *a, test_case *b, const char *what, char *why) {
    bool good = true;
    int n = b->forward_only ? b->n_outputs : case_result_count(b);
    for (int i = 0; good && i < n; i++) {
        case_result ra = case_result_at(a, i), rb = case_result_at(b, i);
        int64_t na = 0, nb = 0;
        void *ma = case_result_bytes(a, &ra, &na), *mb = case_result_bytes(b, &rb, &nb);
        if (!ma || !mb || na != nb || memcmp(ma, mb, (size_t)na) != 0)
            good = say(why, "%s, %s: other bits %s", weft_dtype_name(a->dtype), ra.name, what);
        free(ma);
        free(mb);
    }
    return good;
}

/* Runs `other` and compares it with the run of `first`. */
static bool compare_setup(const case_ref *k, test_case *first, const case_setup *setup,
                          const char *what, char *why) {
    test_case *other = open_and_run(k, setup, why);
    bool good = other && same_bits(first, other, what, why);
    case_close(other);
    return good;
}

bool check_threads(const case_ref *k, char *why) {
    static const weft_dtype types[] = {WEFT_F32, WEFT_BF16};
    bool good = true;
    for (int t = 0; good && t < 2; t++) {
        test_case *one = open_and_run(k, &(case_setup){.dtype = types[t]}, why);
        good = one &&
               compare_setup(k, one, &(case_setup){.dtype = types[t], .threads = 2},
                             "with 2 threads", why) &&
               compare_setup(k, one, &(case_setup){.dtype = types[t], .threads = 3},
                             "with 3 threads", why) &&
               compare_setup(k, one, &(case_setup){.dtype = types[t], .threads = 16},
                             "with 16 threads", why);
        if (good && case_run(one) != WEFT_OK) good = say(why, "%s", weft_error_message());
        good =
            good && compare_setup(k, one, &(case_setup){.dtype = types[t]}, "in a second run", why);
        case_close(one);
    }
    return good;
}

bool check_plan(const case_ref *k, char *why) {
    static const weft_dtype types[] = {WEFT_F32, WEFT_F64, WEFT_BF16};
    bool good = true;
    for (int t = 0; good && t < 3; t++) {
        test_case *one = open_and_run(k, &(case_setup){.dtype = types[t]}, why);
        good = one &&
               compare_setup(k, one, &(case_setup){.dtype = types[t], .no_reuse = true},
                             "without reuse of memory", why) &&
               compare_setup(k, one, &(case_setup){.dtype = types[t], .forward_only = true},
                             "without gradient nodes", why);
        case_close(one);
    }
    return good;
}

bool check_allocations(const case_ref *k, int64_t (*count)(void), char *why) {
    test_case *c = open_and_run(k, &(case_setup){.dtype = WEFT_F32, .threads = 2}, why);
    if (!c) return false;
    bool good = case_run(c) == WEFT_OK;
    int64_t before = count();
    good = good && case_run(c) == WEFT_OK;
    int64_t made = count() - before;
    case_close(c);
    if (!good) return say(why, "%s", weft_error_message());
    return made == 0 ? true : say(why, "a run made %lld allocations", (long long)made);
}
