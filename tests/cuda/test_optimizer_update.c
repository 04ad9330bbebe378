/* The optimizer's update on the GPU: the CPU's tests. */
#define ON_GPU
#include "../ops/test_optimizer_update.c" // NOLINT(bugprone-suspicious-include): the same tests
