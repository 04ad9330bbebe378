/* Cases of the activations. */
#include "cases.h"
#include "ops/activation.h"

#define UNARY(X, name, value, reads, gradient)                                                     \
    static void build_##name(test_case *c) {                                                       \
        int64_t shape[] = {case_size(c, "M"), case_size(c, "N")};                                  \
        weft_tensor *x = case_input(c, "x", CASE_DIFF, 4, 2, shape);                               \
        case_output(c, "y", CASE_DIFF, weft_##name(case_graph(c), x));                             \
    }
WEFT_UNARY_OPS(UNARY, )

#define PRODUCT(name)                                                                              \
    static void build_##name(test_case *c) {                                                       \
        int64_t shape[] = {case_size(c, "M"), case_size(c, "N")};                                  \
        weft_tensor *a = case_input(c, "a", CASE_DIFF, 1, 2, shape);                               \
        weft_tensor *b = case_input(c, "b", CASE_DIFF, 4, 2, shape);                               \
        case_output(c, "y", CASE_DIFF, weft_##name(case_graph(c), a, b));                          \
    }
PRODUCT(silu_mul)
PRODUCT(gelu_mul)
PRODUCT(sigmoid_mul)

static void build_softplus(test_case *c) {
    int64_t shape[] = {case_size(c, "M"), case_size(c, "N")};
    weft_tensor *x = case_input(c, "x", CASE_DIFF, 4, 2, shape);
    weft_tensor *y =
        weft_softplus(case_graph(c), x, case_int(c, "start", 0), case_number(c, "floor", 0));
    case_output(c, "y", CASE_DIFF, y);
}

static void build_gate_mix(test_case *c) {
    int64_t shape[] = {case_size(c, "B"), case_size(c, "T"), case_size(c, "H"), case_size(c, "D")};
    int64_t gates = case_is(c, "per", "sequence", "token") ? 1 : shape[1];
    weft_tensor *o = case_input(c, "o", CASE_DIFF, 1, 4, shape);
    weft_tensor *gate = case_input(c, "g", CASE_DIFF, 2, 3, (int64_t[]){shape[0], gates, shape[2]});
    double alpha = case_number(c, "alpha", 0.1);
    case_output(c, "y", CASE_DIFF, weft_gate_mix(case_graph(c), o, gate, alpha));
}

#define BUILDER(X, name, value, reads, gradient) {#name, build_##name},
const case_builder cases_activation[] = {
    WEFT_UNARY_OPS(BUILDER, ){"silu_mul", build_silu_mul},
    {"gelu_mul", build_gelu_mul},
    {"sigmoid_mul", build_sigmoid_mul},
    {"softplus", build_softplus},
    {"gate_mix", build_gate_mix},
    {NULL, NULL},
};
