from weft.torch import W2Attention

__all__ = ["W2Attention"]
