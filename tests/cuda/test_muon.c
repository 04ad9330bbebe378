/* Muon's matrices in batches on the GPU: the CPU's tests, in f32. */
#define ON_GPU
#include "../ops/test_muon.c" // NOLINT(bugprone-suspicious-include): the same tests
