"""Activations."""

import math

import torch


def gelu_tanh(x):
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def sigmoid(x):
    return 1 / (1 + torch.exp(-x))


def softplus_of(x):
    return torch.where(x > 0, x, 0 * x) + torch.log1p(torch.exp(-x.abs()))


def silu_mul(c):
    m, n = c.size("M", 1), c.size("N")
    a, b = c.input("a", m, n), c.input("b", m, n, scale=4)
    c.output("y", b * sigmoid(b) * a)


def gelu_mul(c):
    m, n = c.size("M", 1), c.size("N")
    a, b = c.input("a", m, n), c.input("b", m, n, scale=4)
    c.output("y", gelu_tanh(b) * a)


def sigmoid_mul(c):
    m, n = c.size("M", 1), c.size("N")
    a, b = c.input("a", m, n), c.input("b", m, n, scale=4)
    c.output("y", sigmoid(b) * a)


def softplus(c):
    x = c.input("x", c.size("M", 1), c.size("N"), scale=4)
    start = c.integer("start", 0)
    c.output("y", torch.cat([x[:, :start], softplus_of(x[:, start:]) + c.number("floor", 0)], 1))


def gate_mix(c):
    b, t, h, d = c.size("B"), c.size("T"), c.size("H"), c.size("D")
    alpha = c.number("alpha", 0.1)
    o = c.input("o", b, t, h, d)
    g = c.input("g", b, 1 if c.word("per", "token") == "sequence" else t, h, scale=2)
    c.output("y", o * (1 - alpha + alpha * sigmoid(g))[..., None])


# The operations of one element: what a line of the case `unary` stands for.
UNARY = {"gelu": gelu_tanh, "gelu_erf": lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2, "exp": torch.exp, "tanh": torch.tanh,
         "relu2": lambda x: torch.where(x > 0, x, 0 * x) ** 2}


def unary(f):
    return lambda c: c.output("y", f(c.input("x", c.size("M", 1), c.size("N"), scale=4)))


OPS = {f.__name__: f for f in (silu_mul, softplus, gate_mix, sigmoid_mul, gelu_mul)} | {name: unary(f) for name, f in UNARY.items()}
