"""How exact this PyTorch is."""
import torch


def linear_error():
    """Of PyTorch's own f32 products, by which a LanguageModel's head is computed: some builds for aarch64 round
    the factors to bf16."""
    x, w = torch.randn(64, 32, generator=torch.Generator().manual_seed(1)), torch.ones(64, 32) / 3
    want = torch.nn.functional.linear(x.double(), w.double())
    return float((torch.nn.functional.linear(x, w) - want).abs().max() / want.abs().max())
