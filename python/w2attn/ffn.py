"""The feed-forward and the norm of the blocks."""
from weft.torch import RMSNorm, SwiGLU

__all__ = ["FeedForward", "RMSNorm"]

NAMES = {"ffn.w1.weight": "up_proj.weight", "ffn.w2.weight": "down_proj.weight", "ffn.w3.weight": "gate_proj.weight"}


class FeedForward(SwiGLU):
    """SwiGLU of an object with hidden_size and intermediate_size."""

    def __init__(self, config):
        super().__init__(config.hidden_size, config.intermediate_size)
        self.core.lend(self, NAMES)
