"""Stacks, and what is made of many at once."""

import torch


def stack(c):
    n, rank, m, width = c.size("P"), c.integer("rank", 2), c.size("M"), c.size("N")
    shape = (2, m, width)[3 - rank:]
    tied, every = c.integer("tied", 0), c.word("grad", "all") == "all"
    parts = []
    for i in range(n):
        again = tied and 0 < i == n - 1
        parts.append(parts[0] if again else c.input(f"x{i}", *shape, grad=every or i % 2 == 1))
    c.output("y", torch.stack(parts))


def grams(c):
    m, k, n, g = c.size("M"), c.size("K"), c.size("N"), c.size("G", 0)
    lead = (g,) if g else ()
    x, w = c.input("x", *lead, m, n), c.input("w", *lead, k, n)
    c.output("y", (torch.einsum("...mn,...kn->...mk", x, w) ** 2).sum())


OPS = {f.__name__: f for f in (stack, grams)}
