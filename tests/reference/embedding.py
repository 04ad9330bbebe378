"""Token and position embedding."""

import torch


def embed(c):
    b, t, v, e = c.size("B"), c.size("T"), c.size("V"), c.size("E")
    ids = c.ids("ids", v, b, t)
    wte = c.input("wte", v, e)
    y = wte[ids]
    if c.word("position", "none") == "learned":
        wpe = c.input("wpe", c.size("P"), e)
        c.integer("runtime", 0)  # the same offset, given when the graph runs
        y = y + wpe[torch.arange(t) + c.integer("offset", 0)][None]
    c.output("y", y)
    if c.integer("tied", 0):
        c.output("z", c.input("u", c.size("M"), e) @ wte.T)


OPS = {"embed": embed}
