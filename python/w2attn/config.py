"""The options of w2attn.LanguageModel."""
from dataclasses import dataclass


@dataclass
class ModelConfig:
    hidden_size: int = 512
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    vocab_size: int = 32000
    max_position_embeddings: int = 1024
    num_hidden_layers: int = 6
    position_embedding_type: str = "rope"  # or "alibi", "relative", "none"
    rms_norm_eps: float = 1e-6
    w2_kernel: str = "w2"  # or "overlap", the score of the repository's code


__all__ = ["ModelConfig"]
