"""Gated linear layers."""

import torch

from activation import sigmoid


def gated(c):
    m, k, n = c.size("M"), c.size("K"), c.size("N")
    grad = c.word("grad", "all") == "all"
    x, v, w = (c.input(name, rows, k, grad=grad) for name, rows in (("x", m), ("v", n), ("w", n)))
    gate, up = torch.einsum("mk,nk->mn", x, v), torch.einsum("mk,nk->mn", x, w)
    y = gate * sigmoid(gate) * up
    p = c.integer("down", 0)
    if not p:
        c.output("y", y, grad=grad)
        return
    for i in range(c.integer("terms", 1)):
        c.output(f"z{i}", torch.einsum("mn,pn->mp", y, c.input(f"u{i}", p, n, grad=grad)), grad=grad)


OPS = {"gated": gated}
