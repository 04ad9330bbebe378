"""Tests run on the package of this folder, on one thread each: they are small, and machines are shared."""
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
os.environ.setdefault("WEFT_THREADS", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

import weft.torch


def linear_error():
    """Of PyTorch's own f32 products, by which a LanguageModel's head is computed."""
    x, w = torch.randn(64, 32, generator=torch.Generator().manual_seed(1)), torch.ones(64, 32) / 3
    want = torch.nn.functional.linear(x.double(), w.double())
    return float((torch.nn.functional.linear(x, w) - want).abs().max() / want.abs().max())


# Some builds for aarch64 round the factors to bf16 in oneDNN; their other products are exact.
if linear_error() > 1e-5:
    torch.backends.mkldnn.set_flags(False)
assert linear_error() < 1e-5
