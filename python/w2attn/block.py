"""Transformer blocks: norm, attention, norm, feed-forward, with residual sums. A W2 block is one call of weft's kernels
with the weights of its parts."""
from torch import nn
from weft.torch import W2TransformerBlock as Layer

from .attention import NAMES, Positioned, StandardAttention, W2Attention, position_type
from .ffn import NAMES as FFN_NAMES
from .ffn import FeedForward, RMSNorm

__all__ = ["StandardBlock", "W2TransformerBlock"]


def add_parts(block, config, attention):
    eps = getattr(config, "rms_norm_eps", 1e-6)
    block.hidden_size = config.hidden_size
    block.input_layernorm, block.attention = RMSNorm(config.hidden_size, eps), attention
    block.post_attention_layernorm, block.mlp = RMSNorm(config.hidden_size, eps), FeedForward(config)


class W2TransformerBlock(Positioned, Layer):
    def __init__(self, config):
        Layer.__init__(self, config, position_type(config) == "rope")
        add_parts(self, config, W2Attention(config))
        self.core.lend(self, {"ln_1.weight": "input_layernorm.weight", "ln_2.weight": "post_attention_layernorm.weight",
                              **{ours: f"attention.{theirs}" for ours, theirs in NAMES.items()},
                              **{ours: f"mlp.{theirs}" for ours, theirs in FFN_NAMES.items()}})

    def positions(self):
        return self.attention


class StandardBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        add_parts(self, config, StandardAttention(config))

    def forward(self, hidden_states, rotary_emb_outputs=None, attention_mask=None, is_causal=False):
        x = hidden_states + self.attention(self.input_layernorm(hidden_states), rotary_emb_outputs, attention_mask, is_causal)
        return x + self.mlp(self.post_attention_layernorm(x))
