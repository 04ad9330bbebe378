/* Decoding on the GPU: the CPU's tests, in f32. */
#define ON_GPU
#include "../generate/test_decode.c" // NOLINT(bugprone-suspicious-include): the same tests
