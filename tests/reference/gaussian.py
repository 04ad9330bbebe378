"""Gaussians as vectors, for the distance and for the overlap score."""

import torch

from activation import softplus_of


def gaussian(c):
    d = c.size("D")
    x = c.input("x", c.size("B"), c.size("T"), c.size("H"), 2 * d, scale=c.number("range", 4))
    y = torch.cat([x[..., :d], softplus_of(x[..., d:])], -1)
    grad = c.word("grad", "both")
    c.output("y", y, grad=grad != "n")
    if c.word("of", "key") == "key":
        c.output("n", (y * y).sum(-1).permute(0, 2, 1), grad=grad != "y")


def overlap(c):
    d = c.size("D")
    x = c.input("x", c.size("B"), c.size("T"), c.size("H"), 2 * d, scale=c.number("range", 4))
    mean, rho = x[..., :d], x[..., d:]
    sigma = softplus_of(rho) + 1e-4
    grad = c.word("grad", "both")
    c.output("y", mean / sigma.sqrt(), grad=grad != "log_sigma")
    c.output("log_sigma", sigma.log().sum(-1).permute(0, 2, 1), grad=grad != "y")


OPS = {"gaussian": gaussian, "overlap": overlap}
