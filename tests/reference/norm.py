"""LayerNorm and RMSNorm, with the residual added before."""

import torch


def norm(c):
    m, e = c.size("M"), c.size("E")
    residual = c.integer("residual", 0)

    def term(name):
        if c.word("linear", "no") != name:
            return c.input(name, m, e)
        k = c.size("K")
        return c.input("u", m, k) @ c.input("v", e, k).T + c.input("a", e)

    s = term("x")
    if residual:
        s = s + term("r")
    w = c.input("w", e)
    if c.word("kind", "layernorm") == "layernorm":
        mean = s.mean(-1, keepdim=True)
        var = ((s - mean) ** 2).mean(-1, keepdim=True)
        y = (s - mean) / torch.sqrt(var + 1e-5) * w
        if c.integer("bias", 1):
            y = y + c.input("b", e)
    else:
        c.integer("bias", 0)
        y = s / torch.sqrt((s * s).mean(-1, keepdim=True) + 1e-6) * w
    c.output("y", y)
    if residual:
        c.output("s", s)


def norm_heads(c):
    b, t, h, d = c.size("B"), c.size("T"), c.size("H"), c.size("D")
    heads, following = c.integer("heads", h), c.integer("next", 0)
    x = c.input("x", b, t, h, d, scale=c.number("scale", 1))
    y = x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-6)
    parts = [y[:, :, :heads] * c.input("w", d)]
    if following:
        parts.append(y[:, :, heads:heads + following] * c.input("v", d))
    c.output("y", torch.cat(parts + [x[:, :, heads + following:]], 2))


OPS = {"norm": norm, "norm_heads": norm_heads}
