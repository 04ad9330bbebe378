"""Linear, softmax and cross-entropy in one, with the z-loss."""

import torch

from attention import logsumexp


def cross_entropy(c):
    n, e, v = c.size("N"), c.size("E"), c.size("V")
    x, w = c.input("x", n, e), c.input("w", v, e)
    targets = c.ids("targets", v + 2, n, cut=v) if c.integer("ignore", 0) else c.ids("targets", v, n)
    logits = torch.einsum("ne,ve->nv", x, w)
    if c.number("softcap", 0):
        logits = c.number("softcap", 0) * torch.tanh(logits / c.number("softcap", 0))
    lse = logsumexp(logits)
    counted = targets >= 0
    picked = logits[torch.arange(n), targets.clamp(min=0)]
    losses = torch.where(counted, lse - picked, 0.0)
    c.output("ce", losses.sum() / (c.number("over", 0) or max(1, int(counted.sum()))))
    detach = c.integer("detach", 0)
    c.output("z", c.number("z", 0) * (lse * lse).mean(), grad=not detach)
    c.output("lse", lse, grad=False)


OPS = {"cross_entropy": cross_entropy}
