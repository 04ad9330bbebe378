/* Maps for TMA: the driver's function for them, and matrices. */
#include "cuda/tensor/tma_map.cuh"

bool make_tensor_map(CUtensorMap *map, const void *data, int dimensions, const cuuint64_t *size,
                     const cuuint64_t *stride, const cuuint32_t *box) {
    static const cuuint32_t steps[5] = {1, 1, 1, 1, 1};
    /* The driver's own, found through the runtime: nothing is linked with the driver. */
    static const auto encode = [] {
        void *found = NULL;
        cudaDriverEntryPointQueryResult status;
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault,
                                         &status);
        return (decltype(&cuTensorMapEncodeTiled))found;
    }();
    return encode && encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)dimensions,
                            (void *)data, size, stride, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                            box[0] == 64 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

bool make_matrix_map(CUtensorMap *map, const bf16 *data, int64_t rows, int64_t columns, int64_t ld,
                     int box_rows, int box_columns) {
    cuuint64_t size[2] = {(cuuint64_t)columns, (cuuint64_t)rows}, stride[1] = {(cuuint64_t)ld * 2};
    cuuint32_t box[2] = {(cuuint32_t)box_columns, (cuuint32_t)box_rows};
    return make_tensor_map(map, data, 2, size, stride, box);
}
