"""The package of the W2 attention write-up: its names and its state_dicts, on weft's kernels."""
from .attention import StandardAttention, W2Attention
from .block import StandardBlock, W2TransformerBlock
from .config import ModelConfig
from .ffn import FeedForward, RMSNorm
from .model import LanguageModel
from .rope import RotaryEmbedding

__all__ = ["FeedForward", "LanguageModel", "ModelConfig", "RMSNorm", "RotaryEmbedding", "StandardAttention", "StandardBlock",
           "W2Attention", "W2TransformerBlock"]
