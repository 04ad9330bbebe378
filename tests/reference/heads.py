"""What heads share: repeated vectors, columns put together, and rows pooled or spread head by head."""

import torch


def head_repeat(c):
    x = c.input("x", c.size("B"), c.size("T"), 1, c.size("L"))
    c.output("y", x.expand(-1, -1, c.size("H"), -1))


def head_columns(c):
    heads, slots, count = c.size("H"), c.integer("slots", 1), c.size("N")
    x = c.input("x", c.size("B"), c.size("T"), c.size("X"), c.size("L"))
    z = c.input("z", c.size("B"), c.size("T"), c.integer("Z", 0), c.size("M")) if c.integer("Z", 0) else None
    made = []
    for h in range(heads):
        slot = h * slots // heads
        row = [torch.zeros_like(x[:, :, 0, 0])] * c.size("W")
        for i in range(count):
            row[c.integer("to", 0) + slot * c.integer("to_step", 0) + i] = \
                x[:, :, h * c.size("X") // heads, c.integer("from", 0) + slot * c.integer("from_step", 0) + i]
        for i in range(c.size("M") if z is not None else 0):
            row[c.integer("at", 0) + i] = z[:, :, h * c.integer("Z", 0) // heads, i]
        made.append(torch.stack(row, -1))
    c.output("y", torch.stack(made, 2))


def rows(c, name, width):
    """The rows, the scale, and the columns h·F/H + l·r + m as an index [H, L/H, r]."""
    f, l, heads, rank = c.size("F"), c.size("L"), c.size("H"), c.integer("rank", 2)
    lead = [c.size("M")] if rank >= 2 else []
    lead = ([c.size("B")] if rank >= 3 else []) + lead
    lead = [1] * (rank - 1 - len(lead)) + lead
    grad = c.word("grad", "both")
    scale = c.input("scale", heads, grad=grad != "rows")
    x = c.input(name, *lead, width, grad=grad != "scale")
    h, i, m = (torch.arange(n) for n in (heads, l // heads, f // l))
    return x, scale, h[:, None, None] * (f // heads) + i[:, None] * (f // l) + m


def head_pool(c):
    x, scale, column = rows(c, "x", c.size("F"))
    u = scale[:, None] * x[..., column].mean(-1)
    c.output("u", u.reshape(*x.shape[:-1], c.size("L")))


def head_spread(c):
    f, l, heads = c.size("F"), c.size("L"), c.size("H")
    x, scale, column = rows(c, "c", l)
    value = scale[:, None] * x.reshape(*x.shape[:-1], heads, l // heads)
    value = value[..., None].expand(*value.shape, f // l)
    e = torch.zeros(*x.shape[:-1], f)
    e[..., column] = value
    c.output("e", e)


def head_transpose(c):
    x = c.input("x", c.size("H"), c.size("M"), c.size("N"))
    c.output("y", x.transpose(1, 2))


OPS = {f.__name__: f for f in (head_repeat, head_columns, head_pool, head_spread, head_transpose)}
