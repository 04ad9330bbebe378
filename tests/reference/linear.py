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


def gram(c):
    x = c.input("x", c.size("M"), c.size("N"))
    c.output("y", x.T @ x)


def batched(c):
    product(c, (c.size("G"),))


def grouped(c):
    m, g, k, n = c.size("M"), c.size("G"), c.size("K"), c.size("N")
    tb = c.integer("tb", 0)
    x = c.input("x", m, g, k)
    w = c.input("w", g, *((n, k) if tb else (k, n)))
    c.output("y", torch.einsum("mgk,gnk->mgn" if tb else "mgk,gkn->mgn", x, w))


def added(c):
    m, k, n = c.size("M"), c.size("K"), c.size("N")
    form, ta, tb = c.word("form", "linear"), c.integer("ta", 0), c.integer("tb", 0)
    lead = (c.size("G"),) if form in ("batched", "grouped") else ()
    g = "g" if lead else ""
    if form == "grouped":
        a, left, out = c.input("a", m, *lead, k), "mgk", "mgn"
    else:
        a = c.input("a", *lead, *((k, m) if ta else (m, k)))
        left, out = f"{g}{'km' if ta else 'mk'}", f"{g}mn"
    transposed = tb or form == "linear"
    b = c.input("b", *lead, *((n, k) if transposed else (k, n)))
    y = torch.einsum(f"{left},{g}{'nk' if transposed else 'kn'}->{out}", a, b)
    if form == "linear" and c.integer("bias", 0):
        y = y + c.input("bias", n)
    y = c.number("scale", 1) * y
    where, alpha = c.word("add", "none"), c.number("alpha", 1)
    if where != "none":
        z = c.input("c", *y.shape)
        if c.integer("late", 0):
            z = gelu_tanh(z)
        y = y + alpha * z if where == "behind" else z + alpha * y
    c.output("y", y)


def summed(c):
    m, n = c.size("M"), c.size("N")
    alpha = c.number("alpha", 1)
    y = torch.zeros(m, n, dtype=torch.float64)
    for i in range(c.integer("terms", 2)):
        k = c.size("K") + i * c.size("P")
        plain = i % 2 == 1
        split = c.integer("split", 0) and not plain
        a = c.input(f"a{i}", *((2, m // 2, k) if split else (m, k))).reshape(m, k)
        b = c.input(f"b{i}", *((k, n) if plain else (n, k)))
        y = y + (alpha if i else 1) * torch.einsum("mk,kn->mn" if plain else "mk,nk->mn", a, b)
        if i == 0 and c.integer("bias", 0):
            y = y + c.input("bias", n)
    y = c.number("scale", 1) * y
    if c.integer("add", 0):
        y = y + c.input("c", m, n)
    c.output("y", y)


def fan(c):
    m, k, n, p = c.size("M"), c.size("K"), c.size("N"), c.size("P")
    x, w = c.input("x", m, k), c.input("w", n, k)
    h = torch.einsum("mk,nk->mn", x, w)
    if c.integer("bias", 0):
        h = h + c.input("b", n)
    if c.word("act", "none") == "gelu":
        h = gelu_tanh(h)
    for i in range(c.integer("terms", 1)):
        plain = c.integer("mixed", 0) and i % 2 == 1
        if i == 0 or not c.integer("tied", 0):
            u = c.input(f"u{i}", *((n, p) if plain else (p, n)))
        c.output(f"y{i}", torch.einsum("mn,np->mp" if plain else "mn,pn->mp", h, u))


OPS = {f.__name__: f for f in (linear, matmul, gram, batched, grouped, added, summed, fan)}
