"""Rotary positions."""

import torch


def rope(c):
    b, t, h, d = c.size("B"), c.size("T"), c.size("H"), c.size("D")
    width, heads, offset = c.integer("width", d), c.integer("heads", h), c.integer("offset", 0)
    x = c.input("x", b, t, h, d)
    half = width // 2
    i = torch.arange(half)
    position = torch.arange(t) + offset + c.integer("start", 0)
    theta = position[:, None].double() * 10000.0 ** (-2.0 * i / width)
    cos, sin = torch.cos(theta)[None, :, None], torch.sin(theta)[None, :, None]
    low, high, rest = x[..., :half], x[..., half:width], x[..., width:]
    rotated = torch.cat([low * cos - high * sin, high * cos + low * sin, rest], -1)
    c.output("y", torch.cat([rotated[:, :, :heads], x[:, :, heads:]], 2))


OPS = {"rope": rope}
