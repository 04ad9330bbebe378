"""The options of w2attn.model.LanguageModel."""
from dataclasses import dataclass


@dataclass
class ModelConfig:
    vocab_size: int = 32000
    hidden_size: int = 512
    num_hidden_layers: int = 6
    num_attention_heads: int = 8
    intermediate_size: int = 2048
    rms_norm_eps: float = 1e-6
    max_position_embeddings: int = 1024
    tie_word_embeddings: bool = True


__all__ = ["ModelConfig"]
