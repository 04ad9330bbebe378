/* Tensor maps: tensors as TMA sees them. The driver makes the maps on the host; a kernel gets them with
 * its other arguments, so a captured graph has them too. Elements are bf16; a box's rows are swizzled
 * as tiles are (tile.cuh): over 128 bytes where it is 64 columns wide, over 64 where 32. */
#pragma once

#include "cuda/kernel.cuh"

#include <cuda.h>

/* Sizes and the box in elements, the columns first; distances of all dimensions but those in bytes.
 * False: the driver refused, or has no maps. */
bool make_tensor_map(CUtensorMap *map, const void *data, int dimensions, const cuuint64_t *size,
                     const cuuint64_t *stride, const cuuint32_t *box);

/* Of a matrix whose rows are ld elements apart. */
bool make_matrix_map(CUtensorMap *map, const bf16 *data, int64_t rows, int64_t columns, int64_t ld,
                     int box_rows, int box_columns);
