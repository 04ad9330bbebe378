"""Keeps PyTorch's own matrix products from hanging on aarch64 without SVE.

PyTorch's CUDA builds for aarch64 multiply with NVIDIA's NVPL BLAS. Its version 0.3 picks its kernels by the
processor's model: on a Neoverse V1 they are SVE kernels, even in a virtual machine that hides SVE. A vector
then has length 0, and the product never ends. Where the system offers no SVE, the variable below selects the
kernels for Advanced SIMD. NVPL reads it at its first product, so PyTorch may have been imported before.
"""
import ctypes
import os
import platform

AT_HWCAP = 16
HWCAP_SVE = 1 << 22


def capabilities():
    """What the kernel says that this processor can do: the auxiliary vector's AT_HWCAP."""
    getauxval = ctypes.CDLL(None).getauxval
    getauxval.argtypes, getauxval.restype = [ctypes.c_ulong], ctypes.c_ulong
    return getauxval(AT_HWCAP)


def avoid_sve(environment=os.environ):
    if platform.system() == "Linux" and platform.machine() == "aarch64" and not capabilities() & HWCAP_SVE:
        environment.setdefault("NVPL_BLAS_DEBUG_CPU_TYPE", "1")


avoid_sve()
