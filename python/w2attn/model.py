"""A causal language model of W2 transformer blocks."""
from torch import nn
from weft.torch import LanguageModel as Engine

from .config import ModelConfig

__all__ = ["LanguageModel", "ModelConfig"]


class LanguageModel(nn.Module):
    """input_ids [B, T] → logits [B, T, vocab_size]; with labels [B, T] (-100 or -1: does not count),
    the loss of telling each next token, and the logits."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = Engine(PRESET="w2", NORM_EPS=config.rms_norm_eps, VOCAB_SIZE=config.vocab_size, N_EMBD=config.hidden_size,
                            N_LAYER=config.num_hidden_layers, N_HEAD=config.num_attention_heads,
                            N_FFN=config.intermediate_size, CONTEXT=config.max_position_embeddings,
                            WEIGHT_TYING=config.tie_word_embeddings)

    def forward(self, input_ids, labels=None):
        if labels is None:
            return self.model(input_ids)
        targets = labels.new_full(labels.shape, -1)
        targets[:, :-1] = labels[:, 1:].clamp_min(-1)
        logits, loss = self.model(input_ids, targets)
        return loss, logits
