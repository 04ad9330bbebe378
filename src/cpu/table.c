/* The kernels of one instruction set and one real type, by operation. */
#include "cpu/kernel.h"
#include "ops/list.h"

#define KERNEL_DECLARE(name) extern const weft_kernel KERNEL(name);
WEFT_OPS(KERNEL_DECLARE)

const weft_kernel *const KERNEL(table)[WEFT_OP_COUNT];

#define KERNEL_ENTRY(name) [WEFT_OP_##name] = &KERNEL(name),
const weft_kernel *const KERNEL(table)[WEFT_OP_COUNT] = {WEFT_OPS(KERNEL_ENTRY)};
