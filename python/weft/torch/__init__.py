"""weft's architectures as PyTorch modules: see docs/guide/pytorch.md in the source tree."""
from . import _nvpl  # before the first product
from ._part import Part
from .language_model import LanguageModel
from .modules import (Config, MLAttention, RMSNorm, RotaryEmbedding, SwiGLU, W2Attention, W2TransformerBlock, WsFFN,
                      apply_rotary_pos_emb)
from .optim import AdamWSPAM, Muon
from .patch import patch_gpt2
from .reciprocal import ReciprocalBlock, ReciprocalFFN, State, top_routes

__all__ = ["AdamWSPAM", "Config", "LanguageModel", "MLAttention", "Muon", "Part", "RMSNorm", "ReciprocalBlock", "ReciprocalFFN",
           "RotaryEmbedding", "State", "SwiGLU", "W2Attention", "W2TransformerBlock", "WsFFN", "apply_rotary_pos_emb",
           "patch_gpt2", "top_routes"]
