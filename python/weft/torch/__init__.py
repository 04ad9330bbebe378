"""weft's architectures as PyTorch modules: see docs/guide/pytorch.md in the source tree."""
from ._part import Part
from .modules import (Config, MLAttention, RMSNorm, RotaryEmbedding, W2Attention, W2TransformerBlock, WsFFN,
                      apply_rotary_pos_emb)

__all__ = ["Config", "MLAttention", "Part", "RMSNorm", "RotaryEmbedding", "W2Attention", "W2TransformerBlock",
           "WsFFN", "apply_rotary_pos_emb"]
