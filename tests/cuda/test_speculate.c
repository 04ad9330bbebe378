/* Speculation on the GPU: the CPU's tests. */
#define ON_GPU
#include "../generate/test_speculate.c" // NOLINT(bugprone-suspicious-include): the same tests
