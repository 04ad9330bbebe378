/* Runs that follow each other on the GPU, captured and replayed, against single kernels: the CPU's tests. */
#define ON_GPU
#include "../generate/test_device_sampling.c" // NOLINT(bugprone-suspicious-include): the same tests
