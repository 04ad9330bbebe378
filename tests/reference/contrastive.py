"""Cosine InfoNCE."""

import torch

from attention import logsumexp


def infonce(c):
    n, d = c.size("N"), c.size("D")
    tau, factor = c.number("tau", 0.07), c.number("factor", 1)
    x = c.input("x", n, d)
    if n < 2:
        c.output("y", torch.zeros(()))
        return
    length = torch.sqrt((x * x).sum(-1, keepdim=True))
    unit = x / torch.where(length > 1e-8, length, 1e-8)
    s = torch.einsum("id,jd->ij", unit, unit) / tau
    c.output("y", factor * (logsumexp(s) - torch.diagonal(s)).mean())


OPS = {"infonce": infonce}
