"""The one attention: scores of every kind written out as a [B, H, T, S] tensor."""

import math

import torch

from activation import softplus_of


def alibi_slopes(heads):
    """2^(-8h/H); where H is no power of two, those of the power below, then every other of the power above."""
    power = 2 ** int(math.floor(math.log2(heads)))
    slopes = [2.0 ** (-8.0 * h / power) for h in range(1, power + 1)]
    above = [2.0 ** (-8.0 * h / (2 * power)) for h in range(1, 2 * power + 1)]
    return torch.tensor((slopes + above[0::2])[:heads])


def logsumexp(s):
    """Over the last dimension; entries may be -inf, but not all of a row."""
    top = s.detach().max(-1, keepdim=True).values
    return torch.log(torch.exp(s - top).sum(-1)) + top[..., 0]


def gaussian_of(c, which, x):
    """Means, then deviations softplus(rho), where the case has Gaussians in place of x."""
    if c.word("gaussian", "none") not in (which, "both"):
        return x
    half = x.shape[-1] // 2
    return torch.cat([x[..., :half], softplus_of(x[..., half:])], -1)


def key_numbers(c, k, grad):
    """A number a key [B, KV, S]: the squares of a Gaussian, or an input."""
    if c.word("gaussian", "none") in ("k", "both"):
        return (k * k).sum(-1).permute(0, 2, 1)
    return c.input("n", k.shape[0], k.shape[2], k.shape[1], grad=grad)


def scores(c, q, k, grad=True):
    """s_ij of the one form of attention, with -inf where j is not visible: [B, H, T, S]."""
    b, t, h, width = q.shape
    s_len, kv = k.shape[1], k.shape[2]
    q, k = gaussian_of(c, "q", q), gaussian_of(c, "k", k)
    keys = k
    group = torch.tensor([i * kv // h for i in range(h)])
    k = k[:, :, group]
    kind, scaled = c.word("score", "dot"), c.word("scaled", "const")
    scale = torch.full((h,), 1.0 / math.sqrt(width))
    bias = 0.0
    if kind == "tau":
        n = key_numbers(c, keys, grad)
        tau = torch.exp(c.input("log_tau", h, grad=grad))
        scale = 2.0 / (tau + 1e-6)
        beta = -1.0 / (tau + 1e-6)
    elif kind == "w2":
        tau = 2.0 * math.sqrt(width / 2)
        n = key_numbers(c, keys, grad)
        scale, beta = torch.full((h,), 2.0 / tau), torch.full((h,), -1.0 / tau)
    elif scaled == "head":
        scale = c.input("scale", h, grad=grad)
    if kind == "beta":
        n = key_numbers(c, keys, grad)
        beta = c.input("beta", h, grad=grad)
    if kind in ("beta", "tau", "w2"):
        bias = (beta[None, :, None] * n[:, group])[:, :, None, :]
    raw = torch.einsum("bihd,bjhd->bhij", q, k)
    s = scale[None, :, None, None] * raw + bias
    i = torch.arange(t)[:, None] + (s_len - t)
    j = torch.arange(s_len)[None, :]
    distance = i - j
    pos = c.word("pos", "none")
    if pos == "alibi":
        s = s - alibi_slopes(h)[None, :, None, None] * distance.abs()
    elif pos == "relative":
        r = c.input("r", c.size("R"), grad=grad)
        s = s + r[distance.clamp(min=0)][None, None]
    if c.integer("band", 0):
        inside = (distance >= 0) & (distance <= c.size("W"))
        swapped = c.number("alpha", 0.5) * scale[None, :, None, None] * raw.transpose(2, 3)
        s = s + torch.where(inside, swapped, 0.0)
    if c.number("softcap", 0):
        s = c.number("softcap", 0) * torch.tanh(s / c.number("softcap", 0))
    if c.integer("causal", 1):
        s = s.masked_fill(distance < 0, -math.inf)
    if c.integer("reach", 0):
        s = s.masked_fill(distance >= c.integer("reach", 0), -math.inf)
    if c.integer("documents", 0):
        ends = c.ids("tokens", c.integer("documents", 0), b, t) == 0
        document = ends.long().cumsum(1) - ends.long()  # how many ended before a token
        s = s.masked_fill((document[:, :, None] != document[:, None, :])[:, None], -math.inf)
    return s


def attention(c):
    b, t, h, kv, dq, dv = (c.size(key) for key in ("B", "T", "H", "KV", "Q", "V"))
    if c.integer("packed", 0):
        qkv = c.input("qkv", b, t, (h + 2 * kv) * dq).reshape(b, t, h + 2 * kv, dq)
        q, k, v = qkv[:, :, :h], qkv[:, :, h:h + kv], qkv[:, :, h + kv:]
    else:
        q = c.input("q", b, t, h, dq, scale=c.number("range", 1))
        k = c.input("k", b, t, kv, dq, scale=c.number("range", 1))
        v = c.input("v", b, t, kv, dv)
    s = scores(c, q, k)
    lse = logsumexp(s)
    p = torch.exp(s - lse[..., None])
    group = torch.tensor([i * kv // h for i in range(h)])
    c.output("o", torch.einsum("bhij,bjhd->bihd", p, v[:, :, group]))
    c.output("lse", lse, grad=False)


OPS = {"attention": attention}
