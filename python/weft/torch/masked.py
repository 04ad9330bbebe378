"""W2 attention under any mask, in PyTorch's own operations.

The engine's kernels know two masks: none, and the causal triangle. Others (padding, documents packed
into one sequence, prefixes) go through PyTorch's scaled_dot_product_attention. The query's own norm is
the same for every key and drops out of the softmax, so the distance is a dot product and one number
for each key, which joins the mask.
"""
import torch
from torch.nn import functional

from .modules import apply_rotary_pos_emb

EPS = 1e-6


def score_mask(mask, like):
    """A mask as numbers to add to scores, that spreads over [batch, heads, time, time]."""
    if mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=like.dtype, device=mask.device).masked_fill(~mask, float("-inf"))
    elif not mask.is_floating_point():
        raise TypeError(f"attention_mask is {mask.dtype}; it must be bool (True: visible) or numbers to add to the scores")
    if mask.dim() == 2 and mask.shape == like.shape[:2] and mask.shape[0] != mask.shape[1]:
        raise ValueError(f"attention_mask is {tuple(mask.shape)}: a padding mask [batch, time] is given as "
                         "mask[:, None, None, :]")
    if mask.dim() == 3:
        mask = mask[:, None]
    return mask.to(like.dtype)


def attention(x, p, heads, rope, mask):
    """x [B, T, E] → [B, T, E] with the weights p of a W2 attention, by their names in a checkpoint. `rope` are
    the tables of a RotaryEmbedding, or None."""
    batch, time, width = x.shape
    dim = width // heads

    def split(name):
        return functional.linear(x, p[name].to(x.dtype)).view(batch, time, heads, -1).transpose(1, 2)

    q, k, v = split("attn.q.weight"), split("attn.k.weight"), split("attn.v.weight")
    (q, q_sigma), (k, k_sigma) = ((t[..., :dim], functional.softplus(t[..., dim:])) for t in (q, k))
    overlap = "attn.log_tau" not in p
    if overlap:
        q_sigma, k_sigma = q_sigma + 1e-4, k_sigma + 1e-4
        q, k = q * q_sigma.rsqrt(), k * k_sigma.rsqrt()
    if rope is not None:
        q, k = apply_rotary_pos_emb(q, k, *rope)
    if overlap:
        bias = -0.5 * (k.pow(2) + k_sigma.log()).sum(-1)
    else:
        tau = (p["attn.log_tau"].exp() + EPS).to(x.dtype).view(1, heads, 1, 1)
        q, k = torch.cat((q, q_sigma), -1) * (2 / tau), torch.cat((k, k_sigma), -1)
        bias = -k.pow(2).sum(-1) / tau[..., 0]
    o = functional.scaled_dot_product_attention(q, k, v, attn_mask=score_mask(mask, x) + bias[:, :, None, :], scale=1.0)
    return functional.linear(o.transpose(1, 2).reshape(batch, time, width), p["attn.out.weight"].to(x.dtype))


def norm(x, weight, eps):
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def block(x, p, heads, rope, mask, eps):
    """RMSNorm, W2 attention, RMSNorm, SwiGLU, with residual sums."""
    x = x + attention(norm(x, p["ln_1.weight"], eps), p, heads, rope, mask)
    y = norm(x, p["ln_2.weight"], eps)
    hidden = functional.silu(functional.linear(y, p["ffn.w3.weight"].to(x.dtype))) * functional.linear(y, p["ffn.w1.weight"].to(x.dtype))
    return x + functional.linear(hidden, p["ffn.w2.weight"].to(x.dtype))
