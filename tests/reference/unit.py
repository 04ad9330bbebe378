"""Vectors scaled to length 1."""

import torch


def unit(c):
    b, t, h, d = c.size("B"), c.size("T"), c.size("H"), c.size("D")
    heads = c.integer("heads", h)
    x = c.input("x", b, t, h, d, scale=c.number("scale", 1))
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(1e-8)
    c.output("y", torch.cat([(x / length)[:, :, :heads], x[:, :, heads:]], 2))


OPS = {"unit": unit}
