"""The reciprocal mechanisms in a pretrained GPT-2 of the package transformers, put there in place.

What is added starts at zero: the maps that bring it back into the model are zero, so the logits stay what they were
to the last bit, and training finds out what the mechanisms are worth. The gate's factor is 1 - α + 2α sigmoid, that
of docs/internals/mathematics.md with the gate doubled, so that a gate of ½, its start, is a factor of 1.
"""
import torch
from torch import nn

from .reciprocal import top_routes


class Reciprocal(nn.Module):
    """What one layer hears of other tokens and tells the attention of the next. Its maps have the names that a
    checkpoint gives them."""

    def __init__(self, hidden, heads, last, gate, cross_token, top_k, cross_rank, gate_dim, gate_alpha, cross_alpha, like):
        super().__init__()
        self.heads, self.top_k, self.gate_alpha, self.cross_alpha = heads, top_k, gate_alpha, cross_alpha
        self.routes = self.sent = None
        if cross_token and cross_rank:
            self.cross_down, self.cross_proj = self._map(hidden, cross_rank, like), self._map(cross_rank, hidden, like, zero=True)
        elif cross_token:
            self.cross_proj = self._map(hidden, hidden, like, zero=True)
        if gate and not last:
            self.gate_proj, self.gate_heads = self._map(hidden, gate_dim, like), self._map(gate_dim, heads, like, zero=True)

    @staticmethod
    def _map(width, out, like, zero=False):
        made = nn.Linear(width, out, bias=False, device=like.device, dtype=like.dtype)
        nn.init.zeros_(made.weight) if zero else nn.init.normal_(made.weight, std=0.02)
        return made

    def take_routes(self, attention, given, made):
        weights = made[1]
        if weights is None:
            raise ValueError('weft: cross_token reads attention weights: model.set_attn_implementation("eager")')
        if weights.shape[-1] != weights.shape[-2]:
            raise ValueError("weft: a patched GPT-2 keeps no cache of the feed-forward: generate with use_cache=False")
        self.routes = top_routes(weights, self.top_k)

    def hear(self, projection, given):
        """h + α W_c Σ_j R'_tj h_j, and the gate for the next layer from it."""
        h = given[0]
        if hasattr(self, "cross_proj"):
            index, weight = self.routes
            heard = self.cross_down(h) if hasattr(self, "cross_down") else h
            rows = torch.arange(h.shape[0], device=h.device)[:, None, None]
            kept = weight.to(h.dtype).masked_fill(index < 0, 0)
            heard = (heard[rows, index.clamp_min(0).long()] * kept[..., None]).sum(2)
            h, self.routes = h + self.cross_alpha * self.cross_proj(heard), None
        if hasattr(self, "gate_proj"):
            self.sent = self.gate_heads(self.gate_proj(h)).sigmoid()
        return (h, *given[1:])

    def turn_heads(self, projection, given):
        """What the heads found, times what this layer, the one before, sent."""
        factor, self.sent = (1 - self.gate_alpha) + 2 * self.gate_alpha * self.sent, None
        found = given[0].unflatten(-1, (self.heads, -1))
        return ((found * factor[..., None]).flatten(-2), *given[1:])


def patch_gpt2(model, gate=True, cross_token=True, top_k=8, cross_rank=0, gate_dim=64, gate_alpha=0.1, cross_alpha=0.3):
    """Puts the gate and the cross-token mechanism into `model`, a GPT-2 of transformers, and returns it. The new
    parameters are those whose names have ".reciprocal." in them. Cross-token reads attention weights, so attention
    becomes transformers' "eager" one; with 0 < `cross_rank` its matrix is a product of two of this rank. Generation
    is without a cache."""
    if not (gate or cross_token):
        raise ValueError("weft: patch_gpt2 with neither gate nor cross_token would change nothing")
    base = getattr(model, "transformer", model)
    blocks = getattr(base, "h", None)
    if blocks is None or not all(hasattr(b, "mlp") and hasattr(b.mlp, "c_proj") and hasattr(b, "attn") for b in blocks):
        raise TypeError(f"weft: patch_gpt2 wants a GPT-2 of transformers, not {type(model).__name__}")
    if any(hasattr(b, "reciprocal") for b in blocks):
        raise ValueError("weft: this model is patched already")
    if any(getattr(m, "gradient_checkpointing", False) for m in model.modules()):
        raise ValueError("weft: layers hand gates to each other, which gradient checkpointing would lose: disable it")
    if cross_token:
        model.set_attn_implementation("eager")
    for owner in (model.config, getattr(model, "generation_config", None)):
        if owner is not None:
            owner.use_cache = False
    before = None
    for i, block in enumerate(blocks):
        weight = block.mlp.c_proj.weight
        block.reciprocal = Reciprocal(weight.shape[0], block.attn.num_heads, i + 1 == len(blocks), gate, cross_token, top_k,
                                      cross_rank, gate_dim, gate_alpha, cross_alpha, weight)
        if cross_token:
            block.attn.register_forward_hook(block.reciprocal.take_routes)
        block.mlp.c_proj.register_forward_pre_hook(block.reciprocal.hear)
        if gate and before is not None:
            block.attn.c_proj.register_forward_pre_hook(before.turn_heads)
        before = block.reciprocal
    return model
