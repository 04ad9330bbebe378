/* Weights that are not numbers, on the GPU: the CPU's tests. */
#define ON_GPU
#include "../ops/test_not_numbers.c" // NOLINT(bugprone-suspicious-include): the same tests
