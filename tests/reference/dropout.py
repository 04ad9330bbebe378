"""Dropout: the mask is a pure function of the run and the place."""

import numpy as np
import torch

from case import fnv, units

SEED, ITERATION, SEQUENCE, SITE = 7, 3, 5, fnv("drop")


def dropout(c):
    b, n, p = c.size("B"), c.size("N"), c.number("p", 0.1)
    x = c.input("x", b, n)
    u = np.stack([units(SEED, n, SITE, SEQUENCE + i, ITERATION) for i in range(b)])
    c.output("y", torch.where(torch.from_numpy(u >= p), x / (1 - p) if p < 1 else x, 0.0))


OPS = {"dropout": dropout}
