/* The CUDA backend: one GPU of this machine. */
#pragma once

#include "core/exec.h"

/* The backend on the first GPU that this build has code for. WEFT_CUDA_DEVICE=N asks for another,
 * WEFT_CUDA_DEVICE=none for none. NULL and an error message that says what is missing: the build,
 * the driver, or the GPU. */
const weft_backend *weft_cuda_backend(void);

/* Before the first call of it, by the processes that share a machine: the one of number `rank` takes
 * that GPU, counted round where there are fewer GPUs than processes. WEFT_CUDA_DEVICE still decides.
 * How many GPUs there are; 0: none, or a build without CUDA. */
int weft_cuda_set_rank(int rank);

/* The same without a GPU, for plans only: it knows the kernels and their workspaces, and nothing of
 * it touches the driver, so that a process that plans may still fork. NULL and an error message in
 * a build without CUDA. */
const weft_backend *weft_cuda_planner(void);

/* The GPU in words, "NVIDIA H200, 139.8 GiB"; "none" where there is none. */
const char *weft_cuda_device_name(void);

/* Bytes that this process has taken from the GPU since its context was made, by the driver's own
 * count; 0 where there is no GPU. */
int64_t weft_cuda_bytes_taken(void);

/* Bytes per second at which a large buffer in the GPU's memory is read, the best of a few reads; 0 where
 * there is no GPU, or no memory for the buffer. */
double weft_cuda_read_rate(void);
