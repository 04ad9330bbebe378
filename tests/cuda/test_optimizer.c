/* The optimizer on the GPU: the CPU's tests, in f32. */
#define ON_GPU
#include "../ops/test_optimizer.c" // NOLINT(bugprone-suspicious-include): the same tests
