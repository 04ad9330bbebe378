"""A causal language model of W2 blocks or of standard ones."""
from torch import nn
from torch.nn import functional

from .block import StandardBlock, W2TransformerBlock
from .config import ModelConfig
from .rope import RotaryEmbedding

__all__ = ["LanguageModel", "ModelConfig"]

BLOCKS = {"standard": StandardBlock, "w2": W2TransformerBlock}


class LanguageModel(nn.Module):
    """input_ids [B, T] → logits [B, T, vocab_size]; with return_embeddings what the head reads; with labels [B, T]
    (below 0: does not count) the loss of telling each next token, and the logits."""

    def __init__(self, config, block_type="standard"):
        super().__init__()
        if block_type not in BLOCKS:
            raise ValueError(f"block_type is {block_type!r}; it must be one of {', '.join(BLOCKS)}")
        self.config, self.block_type = config, block_type
        self.embed = nn.Embedding(config.vocab_size, config.hidden_size)
        self.rotary = RotaryEmbedding(config.hidden_size // config.num_attention_heads)
        self.layers = nn.ModuleList(BLOCKS[block_type](config) for _ in range(config.num_hidden_layers))
        self.final_norm = nn.LayerNorm(config.hidden_size)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def forward(self, input_ids, return_embeddings=False, labels=None):
        x = self.embed(input_ids)
        tables = self.rotary(x, seq_len=input_ids.shape[1])
        for layer in self.layers:
            x = layer(x, tables, is_causal=True)
        x = self.final_norm(x)
        if return_embeddings:
            return x
        logits = self.lm_head(x)
        if labels is None:
            return logits
        return functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten().clamp_min(-1), ignore_index=-1), logits
