"""The global norm, and whole trajectories of AdamW, AdamWSPAM and Muon; README.md has the rule of a step and what is kept."""

import math

import torch


def global_norm(c):
    a = c.input("a", c.size("N"), grad=False)
    b = c.input("b", c.size("M"), scale=4, grad=False)
    c.output("y", torch.sqrt((a * a).sum() + (b * b).sum()), grad=False)


def gradients(c, s, shapes):
    scale = c.number("g", 0.1)
    g = {name: c.draw(f"g{s}.{name}", shape, scale) for name, shape in shapes.items()}
    if s <= 3:
        g["w"][-1] = 0
    if c.integer("spikes", 0):
        if s % 17 == 0:
            g = {name: 30 * value for name, value in g.items()}
        if s % 13 == 5:
            for value in g.values():
                value.view(-1)[0] *= 40
    return g


def is_spike(c, history, norm):
    threshold = c.number("threshold", 2)
    last = history[-100:]
    if threshold <= 0 or len(last) < 10:
        return False
    mean = math.fsum(last) / len(last)
    std = math.sqrt(math.fsum((x - mean) ** 2 for x in last) / (len(last) - 1))
    limit = mean + threshold * std
    c.refuse_near("spike detection", abs(norm - limit) / norm)
    return norm > limit


def orthogonalised(g):
    """Muon's X of one matrix. Five rounds of X ← a X + (b A + c A²) X, A = X Xᵀ, move each singular value by the polynomial
    a s + b s³ + c s⁵ and leave its vectors alone: so it is computed here."""
    u, s, v = torch.linalg.svd(g / (torch.linalg.norm(g) + 1e-7), full_matrices=False)
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return (u * s) @ v


def muon_update(m, g, matrices):
    """The new momentum, and what a step of rate 1 subtracts; `matrices` gives each matrix of a tensor, as a view of it."""
    m = 0.95 * m + g
    update = g + 0.95 * m
    for x in matrices(update):
        x.copy_(0.2 * math.sqrt(max(x.shape)) * orthogonalised(x))
    return m, update


def trajectory(c, spam, muon=False):
    steps = c.size("STEPS")
    shapes = {"w": (c.size("R"), c.size("C")), "b": (c.size("N"),)}
    lr, beta1, beta2 = c.number("lr", 0.01), c.number("beta1", 0.9), c.number("beta2", 0.999)
    eps, decay, clip = c.number("eps", 1e-8), c.number("decay", 0.1), c.number("clip", 1)
    amsgrad = c.integer("amsgrad", 1 if spam else 0)
    theta = c.number("theta", 50) if spam else 0
    interval = c.integer("interval", 20) if spam else 0
    warmup = c.integer("warmup", 10) if spam else 0
    first, count = (c.integer("first", 0), c.integer("matrices", 1)) if muon else (0, 1)

    def matrices(w):
        return ([w[:first]] if first else []) + list(w[first:].chunk(count))

    p = {name: c.draw(name, shape, 1.0) for name, shape in shapes.items()}
    m, v, vmax = ({name: torch.zeros(shape) for name, shape in shapes.items()} for _ in range(3))
    history, k, was_reset = [], 0, False
    log = {"norm": [], "scale": [], "events": [], "clipped": []}
    for s in range(1, steps + 1):
        g = gradients(c, s, shapes)
        norm = math.sqrt(sum((x * x).sum().item() for x in g.values()))
        event, clipped, scale = 0, 0, 1.0
        if spam:
            if is_spike(c, history, norm):
                event += 1
                m = {name: x / 2 for name, x in m.items()}
                v = {name: 0.9 * x for name, x in v.items()}
            history.append(norm)
        if clip > 0:
            c.refuse_near("clipping", abs(norm - clip) / clip)
            if norm > clip:
                event += 2
                g = {name: x * (clip / norm) for name, x in g.items()}
        if theta > 0 and k >= 1:
            for name in g:
                limit = theta * v[name] / (1 - beta2**k)
                cut = (limit > 0) & (g[name] ** 2 > limit)
                if (limit > 0).any():
                    c.refuse_near("spike clipping", ((g[name] ** 2 / limit - 1).abs()[limit > 0]).min().item())
                clipped += int(cut.sum())
                g[name] = torch.where(cut, torch.sign(g[name]) * torch.sqrt(limit), g[name])
            event += 4 if clipped else 0
        k += 1
        if was_reset and 0 < k <= warmup:
            scale = max(1e-3, 0.5 * (1 - math.cos(math.pi * k / warmup)))
        for name in g:
            if muon and name == "w":
                m[name], step = muon_update(m[name], g[name], matrices)
                p[name] = p[name] * (1 - lr * decay) - lr * step
                continue
            m[name] = beta1 * m[name] + (1 - beta1) * g[name]
            v[name] = beta2 * v[name] + (1 - beta2) * g[name] ** 2
            second = v[name]
            if amsgrad:
                vmax[name] = torch.where(vmax[name] > v[name], vmax[name], v[name])
                second = vmax[name]
            shrink = 1 - scale * lr * decay if name == "w" else 1.0
            step = m[name] / (1 - beta1**k) / (torch.sqrt(second / (1 - beta2**k)) + eps)
            p[name] = p[name] * shrink - scale * lr * step
        if s in (1, 2, 3, steps) or s % 10 == 0:
            for name in p:
                c.output(f"{name}.{s}", p[name], grad=False)
        if interval > 0 and s % interval == 0:
            event += 8
            m, v, vmax = ({name: torch.zeros(shape) for name, shape in shapes.items()} for _ in range(3))
            k, was_reset = 0, True
        for key, value in (("norm", norm), ("scale", scale), ("events", event), ("clipped", clipped)):
            log[key].append(float(value))
    for name in p:
        c.output(f"{name}.m", m[name], grad=False)
        if not (muon and name == "w"):
            c.output(f"{name}.v", v[name], grad=False)
        if amsgrad:
            c.output(f"{name}.vmax", vmax[name], grad=False)
    for key, values in log.items():
        c.output(key, torch.tensor(values), grad=False)


def adamw(c):
    trajectory(c, spam=False)


def adamwspam(c):
    trajectory(c, spam=True)


def muon(c):
    trajectory(c, spam=False, muon=True)


OPS = {f.__name__: f for f in (global_norm, adamw, adamwspam, muon)}
