"""Means over time, and moments."""

import torch


def running_mean(c):
    b, t, n = c.size("B"), c.size("T"), c.size("N")
    x = c.input("x", b, t, n)
    seen = torch.tril(torch.ones(b, t, t))
    if c.integer("documents", 0):
        ends = (c.ids("tokens", c.integer("documents", 0), b, t) == 0).long()
        document = ends.cumsum(1) - ends
        seen = seen * (document[:, :, None] == document[:, None, :])
    c.output("y", torch.einsum("bts,bsn->btn", seen / seen.sum(-1, keepdim=True), x))


def time_mean(c):
    c.output("y", c.input("x", c.size("B"), c.size("T"), c.size("N")).mean(1, keepdim=True))


def moments(c):
    x, w = c.input("x", c.size("B"), c.size("T"), c.size("N")), c.input("w", c.size("K"), c.size("N"))
    c.output("y", (torch.einsum("btn,kn->btk", x, w) ** 2).sum())
    c.output("sum", x.sum(1, keepdim=True))


OPS = {f.__name__: f for f in (running_mean, time_mean, moments)}
