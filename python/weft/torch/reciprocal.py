"""The reciprocal mechanisms between attention and feed-forward, as modules.

A layer hands two things to the attention of the next: a gate for its heads, and what is added to the
latent of its keys. Both travel in a State, which the first layer does not have:

    state = None
    for block in blocks:
        x, state = block(x, state)
"""
from typing import NamedTuple, Optional

import torch
from torch import nn

from ._part import Part


class State(NamedTuple):
    """What a layer sends to the next: the gate before its sigmoid, [B, T, heads], and what is added to
    the latent of the keys, [B, T, latent_dim]."""
    gate: Optional[torch.Tensor] = None
    sent: Optional[torch.Tensor] = None


def mechanisms(heads, gate, cross_token, latent_dim, top_k, tying, cross_rank, ffn, ffn_width):
    """The options of a config for these mechanisms. `latent_dim` None: no latent mechanism."""
    return {"N_HEAD": heads, "FFN": ffn, "N_FFN": ffn_width, "RA_MLA_MLP_ATTN_GATE": gate,
            "RA_MLA_MLP_CROSS_TOKEN": cross_token, "RA_MLA_MLP_SPARSE_MODE": "topk", "RA_MLA_MLP_SPARSE_K": top_k,
            "RA_MLA_MLP_CROSS_RANK": cross_rank, "RA_MLA_MLP_LATENT_RECIP": latent_dim is not None,
            "RA_MLA_MLP_TYING_MODE": tying}


def top_routes(attention_weights, k=8, normalize=True):
    """Routes for ReciprocalFFN from the weights of an attention, [B, heads, T, T]: of the mean over
    heads the k largest of each row, as (index, weight), both [B, T, k]. They are constants: no gradient
    flows into the attention."""
    mean = attention_weights.detach().mean(1)
    time = mean.shape[-1]
    weight, index = mean.topk(min(k, time), -1)
    if normalize:
        weight = weight / weight.sum(-1, keepdim=True).clamp_min(torch.finfo(weight.dtype).tiny)
    index = index.masked_fill(weight <= 0, -1)
    if k > time:
        index = nn.functional.pad(index, (0, k - time), value=-1)
        weight = nn.functional.pad(weight, (0, k - time))
    kind = torch.float64 if weight.dtype == torch.float64 else torch.float32
    return index.to(torch.int32).contiguous(), weight.to(kind).contiguous()


class ReciprocalFFN(nn.Module):
    """A feed-forward that hears other tokens along the routes of an attention, and sends a gate to the
    next one: x → (y, State).

    `routes` are (index, weight), see top_routes; they are wanted with `cross_token`. `latent`
    [B, T, latent_dim] is the attention's latent; it is wanted where `latent_dim` is given."""

    def __init__(self, hidden_size, intermediate_size=None, num_attention_heads=12, gate=True, cross_token=True,
                 latent_dim=None, top_k=8, tying="tied_transpose", cross_rank=0, ffn="gelu"):
        super().__init__()
        self.cross_token, self.latent_dim, self.top_k = cross_token, latent_dim, top_k
        self.core = Part("ffn", ATTENTION="dot" if latent_dim is None else "mla", N_EMBD=hidden_size,
                         RA_MLA_LATENT_DIM=latent_dim or 1,
                         **mechanisms(num_attention_heads, gate, cross_token, latent_dim, top_k, tying, cross_rank, ffn,
                                      intermediate_size or 4 * hidden_size))

    def forward(self, x, routes=None, latent=None):
        others = []
        if (latent is None) != (self.latent_dim is None):
            raise ValueError("weft: `latent` goes with latent_dim: give both or neither")
        if latent is not None:
            others.append(latent)
        if self.cross_token:
            if routes is None:
                raise ValueError("weft: cross_token needs routes=(index, weight); weft.torch.top_routes makes them of "
                                 "attention weights")
            kind = torch.float64 if x.dtype == torch.float64 else torch.float32
            others += [routes[0].to(torch.int32), routes[1].to(kind)]
        out = self.core(x, *others)
        return out["y"], State(out.get("gate"), out.get("sent"))


class ReciprocalBlock(nn.Module):
    """A layer of MLA with the reciprocal mechanisms: norm, attention, norm, feed-forward, with residual
    sums; (x, state of the layer before) → (y, State). `state` None: the first layer."""

    def __init__(self, hidden_size, num_attention_heads, intermediate_size=None, latent_dim=128, gate=True,
                 cross_token=True, latent=True, top_k=8, tying="tied_transpose", cross_rank=0, ffn="gelu",
                 norm="layernorm", rope=False):
        super().__init__()
        if hidden_size % num_attention_heads:
            raise ValueError(f"hidden_size {hidden_size} is no multiple of num_attention_heads {num_attention_heads}")
        self.gate, self.latent = gate, latent
        self.core = Part("layer", ATTENTION="mla", POSITION="rope" if rope else "none", NORM=norm, N_EMBD=hidden_size,
                         RA_MLA_LATENT_DIM=latent_dim,
                         **mechanisms(num_attention_heads, gate, cross_token, latent_dim if latent else None, top_k,
                                      tying, cross_rank, ffn, intermediate_size or 4 * hidden_size))

    def forward(self, x, state=None):
        others = []
        if state is not None:
            others = [t for t, wanted in ((state.gate, self.gate), (state.sent, self.latent)) if wanted]
            if any(t is None for t in others):
                raise ValueError("weft: the state is of a layer with other mechanisms")
        out = self.core(x, *others, first=not others)
        return out["y"], State(out.get("gate"), out.get("sent"))
