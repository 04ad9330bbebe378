"""The feed-forward and the norm of W2 transformer blocks."""
from weft.torch import RMSNorm
from weft.torch import SwiGLU as FFN

__all__ = ["FFN", "RMSNorm"]
