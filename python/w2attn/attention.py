"""W2 attention, and the dot-product attention it is compared with. `config` is any object with hidden_size and
num_attention_heads; position_embedding_type ("rope", "alibi", "relative" or "none"), rope_theta and w2_kernel ("w2", or
"overlap", the score of the repository's code) count where it has them.

Rotary positions and none run on weft's kernels; ALiBi and relative positions run on PyTorch's attention, as other masks do.
"""
import torch
from torch import nn
from torch.nn import functional
from weft.torch import apply_rotary_pos_emb
from weft.torch.masked import score_mask
from weft.torch.modules import BASE, W2

__all__ = ["StandardAttention", "W2Attention"]

# Their names for the weights, by weft's
NAMES = {f"attn.{ours}.weight": f"{theirs}_proj.weight" for ours, theirs in zip(("q", "k", "v", "out"), "qkvo")}
NAMES["attn.log_tau"] = "log_tau"


def position_type(config):
    kind = getattr(config, "position_embedding_type", "rope")
    if kind not in ("rope", "alibi", "relative", "none"):
        raise ValueError(f"position_embedding_type is {kind!r}; it must be rope, alibi, relative or none")
    return kind


def alibi_slopes(heads):
    """2^(-8h/H) for h = 1 … H; where H is no power of two, those of the next lower one, then every second of the next higher."""
    whole = 1 << (heads.bit_length() - 1)
    return torch.tensor([2.0 ** (-8 * h / whole) for h in range(1, whole + 1)]
                        + [2.0 ** (-4 * h / whole) for h in range(1, 2 * (heads - whole), 2)])


def position_bias(attention, x):
    """What positions add to the scores, for ALiBi and relative ones; else None."""
    at = torch.arange(x.shape[1], device=x.device)
    ahead = at[:, None] - at
    if hasattr(attention, "alibi_slopes"):
        return attention.alibi_slopes.to(x.dtype).view(1, -1, 1, 1) * -ahead.abs()
    if hasattr(attention, "relative_embedding"):
        table = attention.relative_embedding.weight
        most = table.shape[0] // 2
        return table[(ahead + most).clamp(0, 2 * most), 0].to(x.dtype)[None, None]
    return None


class Positioned(W2):
    """W2 attention or its block, whose positions are those of `self.positions()`, a W2Attention."""

    def forward(self, hidden_states, rotary_emb_outputs=None, attention_mask=None, is_causal=False):
        bias = position_bias(self.positions(), hidden_states)
        if bias is None:
            return super().forward(hidden_states, rotary_emb_outputs, attention_mask, is_causal)
        self.core.check(hidden_states)
        if attention_mask is not None:
            bias = bias + score_mask(attention_mask, hidden_states)
        return self._masked(hidden_states, self._both(bias, hidden_states) if is_causal else bias, self.base)


class W2Attention(Positioned):
    def __init__(self, config):
        kind = position_type(config)
        super().__init__("attention", config.hidden_size, config.num_attention_heads, kind == "rope",
                         getattr(config, "rope_theta", BASE), getattr(config, "w2_kernel", "w2"))
        self.config, self.hidden_size, self.num_heads, self.pe_type = config, config.hidden_size, self.heads, kind
        self.core.lend(self, NAMES)
        if kind == "alibi":
            self.register_buffer("alibi_slopes", alibi_slopes(self.heads))
        elif kind == "relative":
            self.relative_embedding = nn.Embedding(2 * config.max_position_embeddings + 1, 1)

    def positions(self):
        return self


class StandardAttention(nn.Module):
    """Dot-product attention on PyTorch's own kernels. As in the repository it has no relative positions: with
    "relative" it does not know the order."""

    def __init__(self, config):
        super().__init__()
        self.hidden_size, self.num_heads = config.hidden_size, config.num_attention_heads
        self.head_dim, self.pe_type = self.hidden_size // self.num_heads, position_type(config)
        for name in "qkvo":
            self.add_module(f"{name}_proj", nn.Linear(self.hidden_size, self.hidden_size, bias=False))
        if self.pe_type == "alibi":
            self.register_buffer("alibi_slopes", alibi_slopes(self.num_heads))

    def forward(self, hidden_states, rotary_emb_outputs=None, attention_mask=None, is_causal=False):
        q, k, v = (made(hidden_states).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                   for made in (self.q_proj, self.k_proj, self.v_proj))
        if self.pe_type == "rope":
            q, k = apply_rotary_pos_emb(q, k, *rotary_emb_outputs)
        mask = position_bias(self, hidden_states)
        if attention_mask is not None:
            given = score_mask(attention_mask, hidden_states)
            mask = given if mask is None else mask + given
        if is_causal and mask is not None:
            mask = mask.masked_fill(mask.new_ones(mask.shape[-2:]).bool().triu(1), float("-inf"))
        found = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal and mask is None)
        return self.o_proj(found.transpose(1, 2).flatten(-2))
