"""Element-wise sums and the few reductions that compose into losses."""

import torch


def fill(c):
    c.output("y", torch.full((c.size("N"),), c.number("value", 1)), grad=False)


def add(c):
    m, n = c.size("M", 1), c.size("N")
    a = c.input("a", m, n)
    b = c.input("b", n) if c.integer("broadcast", 0) else c.input("b", m, n)
    c.output("y", a + c.number("alpha", 1) * b)


def scale(c):
    c.output("y", c.number("alpha", 1) * c.input("a", c.size("N")))


def dot(c):
    a, b = c.input("a", c.size("N")), c.input("b", c.size("N"))
    c.output("y", (a * b).sum())


def sum_squares(c):
    x = c.input("x", c.size("M", 1), c.size("N"))
    c.output("y", c.number("factor", 1) * (x * x).sum())


def row_squares(c):
    x = c.input("x", c.size("B"), c.size("T"), c.size("H"), c.size("D"))
    part = x[..., c.integer("start", 0):]
    c.output("n", (part * part).sum(-1).permute(0, 2, 1))


OPS = {f.__name__: f for f in (fill, add, scale, dot, sum_squares, row_squares)}
SKIP = {"cast"}
