"""Matrix products."""

import torch

from activation import gelu_tanh


def linear(c):
    m, k, n = c.size("M"), c.size("K"), c.size("N")
    x, w = c.input("x", m, k), c.input("w", n, k)
    y = torch.einsum("mk,nk->mn", x, w)
    if c.integer("bias", 0):
        y = y + c.input("b", n)
    c.output("y", gelu_tanh(y) if c.word("act", "none") == "gelu" else y)


def product(c, lead):
    m, k, n = c.size("M"), c.size("K"), c.size("N")
    ta, tb = c.integer("ta", 0), c.integer("tb", 0)
    a = c.input("a", *lead, *((k, m) if ta else (m, k)))
    b = c.input("b", *lead, *((n, k) if tb else (k, n)))
    g = "g" if lead else ""
    form = f"{g}{'km' if ta else 'mk'},{g}{'nk' if tb else 'kn'}->{g}mn"
    c.output("y", torch.einsum(form, a, b))


def matmul(c):
    product(c, ())


def batched(c):
    product(c, (c.size("G"),))


def grouped(c):
    m, g, k, n = c.size("M"), c.size("G"), c.size("K"), c.size("N")
    tb = c.integer("tb", 0)
    x = c.input("x", m, g, k)
    w = c.input("w", g, *((n, k) if tb else (k, n)))
    c.output("y", torch.einsum("mgk,gnk->mgn" if tb else "mgk,gkn->mgn", x, w))


OPS = {f.__name__: f for f in (linear, matmul, batched, grouped)}
