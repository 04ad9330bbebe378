"""Rotary positions under the repository's names."""
import torch
from weft.torch import RotaryEmbedding as Tables
from weft.torch import apply_rotary_pos_emb

__all__ = ["RotaryEmbedding", "apply_rotary_pos_emb"]


class RotaryEmbedding(Tables):
    """Tables are made for any length that is asked for: `max_position_embeddings` sets no limit."""

    def __init__(self, dim, max_position_embeddings=2048, base=10000, device=None):
        super().__init__(dim, base)
        self.max_seq_len_cached = max_position_embeddings
        self.register_buffer("inv_freq", self.base ** (-torch.arange(0, dim, 2, device=device) / dim))
