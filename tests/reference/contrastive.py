"""Cosine InfoNCE."""

import torch

from attention import logsumexp


def infonce(c):
    n, d = c.size("N"), c.size("D")
    tau, factor = c.number("tau", 0.07), c.number("factor", 1)
    losses = c.size("L", 0)
    x = c.input("x", losses, n, d) if losses else c.input("x", n, d)
    group = c.size("group", 0)
    if n < (4 if group else 2):
        c.output("y", torch.zeros(()))
        return
    length = torch.sqrt((x * x).sum(-1, keepdim=True))
    unit = x / torch.where(length > 1e-8, length, 1e-8)
    anchors, positives = unit, unit
    if group:
        pairs = unit.reshape(*unit.shape[:-2], n // (2 * group), 2, group, d)
        anchors, positives = (pairs[..., which, :, :].flatten(-3, -2) for which in (0, 1))
    s = torch.einsum("...id,...jd->...ij", anchors, positives) / tau
    own = torch.diagonal(s, dim1=-2, dim2=-1)
    c.output("y", factor * (logsumexp(s) - own).mean(-1).sum())


OPS = {"infonce": infonce}
