/* The rate at which the GPU's memory is read. */
#ifndef WEFT_CUDA_READ_H
#define WEFT_CUDA_READ_H

/* Bytes per second of a large buffer, the best of a few reads; 0 where there is no GPU, or no memory for
 * the buffer. */
double weft_cuda_read_rate(void);

#endif
