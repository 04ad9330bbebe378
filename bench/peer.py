"""PyTorch beside weft: the benchmark programs start this and ask for the same rows.

One JSON request per line on standard input, one JSON reply per line on standard output:

    {"do": "hello", "threads": 2}         -> {"name": "PyTorch 2.9.0", "threads": 2}
    {"do": "prepare", "op": "linear", "backward": true, "sizes": {"m": 2048, ...}}
                                          -> {"rms": [...], "form": "..."}
    {"do": "run", "repeats": 3}           -> {"seconds": [...]}
    {"do": "drop"}                        -> {}

A request that cannot be met is answered {"error": "one line"}. Where a function can be written in
several sensible ways (the memory layout of heads, how the mask enters), prepare times each of them
and keeps the fastest, so that the peer is never slow for a reason of ours; `--form NAME` behind the
script's name holds it to one, to see that one's time. `rms` holds the root mean
square of every output and then of every gradient: both sides fill their inputs by the same formula,
so equal numbers mean that the same function was timed.
"""

import math
import sys
import time

from conversation import converse, row_requests, torch

if torch:
    import torch.nn.functional as F

LARGE = 100_000_000  # scores in all heads of a row, beyond which the wasteful forms are not tried
SLOW = 0.25  # seconds
HASH_STEPS = ((16, 0x7FEB352D), (15, 0x846CA68B), (16, None))


def noise(salt, *shape):
    """Numbers in [-1, 1) that src/bench/op_rows.c makes too: a hash of the index."""
    count = math.prod(shape)
    h = (torch.arange(count, dtype=torch.int64) + salt * 0x9E3779B9) & 0xFFFFFFFF
    for shift, factor in HASH_STEPS:
        h = h ^ (h >> shift)
        if factor:
            h = (h * factor) & 0xFFFFFFFF
    return ((h >> 8).to(torch.float32) * 2.0**-23 - 1.0).view(shape)


def causal_mask(t):
    return torch.full((t, t), float("-inf")).triu(1)


# Each of these yields the ways to compute one row: (name, leaves, upstream, function). The leaves are
# what gradients are wanted of, upstream the gradients of the outputs that function(*leaves) lists.


def type_of(s):
    return torch.bfloat16 if s.get("bf16") else torch.float32


def linear(s):
    x, w, b = noise(1, s["m"], s["k"]), noise(2, s["n"], s["k"]), noise(3, s["n"])
    yield "linear", [x, w, b], [noise(9, s["m"], s["n"])], lambda x, w, b: [F.linear(x, w, b)]


def product(s):
    dtype = type_of(s)
    x, w = noise(1, s["m"], s["k"]), noise(2, s["n"], s["k"]) / math.sqrt(s["k"])
    yield "linear", [x.to(dtype), w.to(dtype)], None, lambda x, w: [F.linear(x, w)]


def decode(s):
    """A token through weights that no cache holds together."""
    x = noise(1, s["m"], s["k"])
    weights = [noise(2 + i, s["n"], s["k"]) for i in range(s["copies"])]

    def run(x, *ws):
        for w in ws:
            y = F.linear(x, w)
        return [y]

    yield "linear", [x, *weights], None, run


def heads_first(t):
    """[B, T, H, D] -> [B, H, T, D] in memory of its own."""
    return t.transpose(1, 2).contiguous()


def attention_inputs(s):
    """q, k, v and the gradient of the output, [B, T, heads, width]."""
    b, t, h, kv = s["b"], s["t"], s["h"], s["kv"]
    q, k, v = noise(1, b, t, h, s["dqk"]), noise(2, b, t, kv, s["dqk"]), noise(3, b, t, kv, s["dv"])
    return [x.to(type_of(s)) for x in (q, k, v, noise(9, b, t, h, s["dv"]))]


def attention_dot(s):
    q, k, v, upstream = attention_inputs(s)

    def sdpa(q, k, v):
        return [F.scaled_dot_product_attention(q, k, v, is_causal=True)]

    def sdpa_of_views(q, k, v):
        return [sdpa(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))[0].transpose(1, 2)]

    mask = causal_mask(s["t"]).to(type_of(s))

    def scores(q, k, v):
        """T x T scores in memory, the mask added in their product."""
        scores = torch.baddbmm(mask, (q * s["dqk"] ** -0.5).flatten(0, 1), k.flatten(0, 1).mT)
        return [torch.bmm(scores.softmax(-1), v.flatten(0, 1)).view_as(q)]

    by_head = [heads_first(x) for x in (q, k, v)]
    if s["b"] * s["h"] * s["t"] ** 2 <= LARGE:
        yield "scores", by_head, [heads_first(upstream)], scores
    yield "sdpa [B,H,T,D]", by_head, [heads_first(upstream)], sdpa
    yield "sdpa [B,T,H,D]", [q, k, v], [upstream], sdpa_of_views


def attention_w2(s, formula=False):
    b, t, h, dv = s["b"], s["t"], s["h"], s["dv"]
    *leaves, upstream = (heads_first(x) for x in attention_inputs(s))
    leaves.append(noise(4, h) * 0.125 + s["log_tau"])
    mask = causal_mask(t).to(type_of(s))
    hidden = mask < 0

    def rate(log_tau):
        return (1 / (log_tau.exp() + 1e-6)).to(type_of(s)).view(1, h, 1, 1)

    def distances(q, k, v, log_tau):
        """The squares expanded: |q|^2 + |k|^2 - 2qk, one product added to their sum."""
        squares = q.square().sum(-1, keepdim=True) + k.square().sum(-1).unsqueeze(-2)
        d = torch.baddbmm(squares.flatten(0, 1), q.flatten(0, 1), k.flatten(0, 1).mT, alpha=-2)
        scores = (d.view(b, h, t, t) * -rate(log_tau)).masked_fill(hidden, float("-inf"))
        return [scores.softmax(-1) @ v]

    def as_written(q, k, v, log_tau):
        """Means and deviations apart, each square expanded: the formula as it is written."""

        def squares(a, c):
            return a.square().sum(-1, keepdim=True) + c.square().sum(-1).unsqueeze(-2) - 2 * (a @ c.mT)

        (mean_q, dev_q), (mean_k, dev_k) = q.chunk(2, -1), k.chunk(2, -1)
        d = squares(mean_q, mean_k) + squares(dev_q, dev_k)
        scores = (-d * rate(log_tau)).masked_fill(hidden, float("-inf"))
        return [scores.softmax(-1) @ v]

    def key_term(q, k, v, log_tau):
        """Without |q|^2, which the softmax cannot see; the temperature goes into q and the keys."""
        r = rate(log_tau)
        bias = mask - r * k.square().sum(-1).unsqueeze(-2)
        scores = torch.baddbmm(bias.flatten(0, 1), (q * (2 * r)).flatten(0, 1), k.flatten(0, 1).mT)
        return [torch.bmm(scores.softmax(-1), v.flatten(0, 1)).view(b, h, t, dv)]

    def columns(q, k, v, log_tau):
        """The squares as two more columns of q and k: one product, the mask added in it."""
        r = rate(log_tau)
        one = torch.ones(b, h, t, 1, dtype=q.dtype)
        left = torch.cat([q * (2 * r), one, -r * q.square().sum(-1, keepdim=True)], -1)
        right = torch.cat([k, -r * k.square().sum(-1, keepdim=True), one], -1)
        scores = torch.baddbmm(mask, left.flatten(0, 1), right.flatten(0, 1).mT)
        return [torch.bmm(scores.softmax(-1), v.flatten(0, 1)).view(b, h, t, dv)]

    def sdpa(q, k, v, log_tau):
        """The key's square as one more column of q and k, and zeros behind v."""
        r = rate(log_tau)
        left = torch.cat([q * (2 * r), torch.ones(b, h, t, 1, dtype=q.dtype)], -1)
        right = torch.cat([k, -r * k.square().sum(-1, keepdim=True)], -1)
        wide = F.pad(v, (0, left.shape[-1] - dv))
        return [F.scaled_dot_product_attention(left, right, wide, is_causal=True, scale=1.0)[..., :dv]]

    if formula:
        forms = (as_written,)
    elif s.get("bf16"):  # differences of large squares need more digits than bf16 has
        forms = (key_term, columns, sdpa)
    elif b * h * t * t <= LARGE:
        forms = (distances, key_term, columns, sdpa)
    else:  # the form with the most passes over T x T is never the fastest, and would fill memory
        forms = (key_term, columns, sdpa)
    for form in forms:
        yield form.__name__, leaves, [upstream], form


def attention_w2_formula(s):
    return attention_w2(s, formula=True)


def attention_mla(s):
    b, t, h, dqk, dv = s["b"], s["t"], s["h"], s["dqk"], s["dv"]
    q, k, v, upstream = attention_inputs(s)
    by_head, upstream_by_head = heads_first(q), heads_first(upstream)
    k, v = k.squeeze(2), v.squeeze(2)
    scale = dqk**-0.5
    mask = causal_mask(t).to(type_of(s))

    def broadcast(q, k, v):
        """The key head broadcast over the query heads."""
        scores = (q * scale) @ k.unsqueeze(1).mT + mask
        return [scores.softmax(-1) @ v.unsqueeze(1)]

    def rows(mask):
        """All heads' queries as the rows of one product per sequence."""

        def run(q, k, v):
            scores = torch.baddbmm(mask, q.flatten(1, 2), k.mT, alpha=scale)
            return [torch.bmm(scores.softmax(-1), v).view(q.shape[:3] + (dv,))]

        return run

    def sdpa(q, k, v):
        every = (k.unsqueeze(1).expand(-1, h, -1, -1), v.unsqueeze(1).expand(-1, h, -1, -1))
        return [F.scaled_dot_product_attention(q, *every, is_causal=True)]

    yield "sdpa", [by_head, k, v], [upstream_by_head], sdpa
    if b * h * t * t <= LARGE:
        yield "broadcast", [by_head, k, v], [upstream_by_head], broadcast
    tokens = mask.unsqueeze(1).expand(t, h, t).reshape(h * t, t)
    yield "rows of tokens", [q, k, v], [upstream], rows(tokens)
    del tokens
    heads = mask.expand(h, t, t).reshape(h * t, t)
    yield "rows of heads", [by_head, k, v], [upstream_by_head], rows(heads)


def layernorm(s):
    m, e = s["m"], s["e"]

    def layer(x, r, w, b):
        t = x + r
        return [F.layer_norm(t, (e,), w, b, 1e-5), t]

    leaves = [noise(1, m, e), noise(2, m, e), noise(3, e), noise(4, e)]
    yield "layer_norm", leaves, [noise(9, m, e), noise(10, m, e)], layer


def rmsnorm(s):
    m, e = s["m"], s["e"]

    def rms_norm(x, r, w):
        t = x + r
        return [F.rms_norm(t, (e,), w, 1e-6), t]

    def by_hand(x, r, w):
        t = x + r
        return [t * torch.rsqrt(t.square().mean(-1, keepdim=True) + 1e-6) * w, t]

    leaves, upstream = [noise(1, m, e), noise(2, m, e), noise(3, e)], [noise(9, m, e), noise(10, m, e)]
    for form in (rms_norm, by_hand):
        yield form.__name__, leaves, upstream, form


def adamw(s):
    """A step of PyTorch's fused optimizer; the weights are updated in place."""
    weights = noise(1, s["m"], s["e"])
    weights.grad = noise(2, s["m"], s["e"])
    optimizer = torch.optim.AdamW([weights], lr=1e-3, weight_decay=0.01, fused=True)

    def step():
        optimizer.step()
        return [weights]

    yield "fused", [], None, step


def cross_entropy(s):
    m, e, v = s["m"], s["e"], s["v"]
    x, w = noise(1, m, e), noise(2, v, e) * 0.0625
    targets = ((noise(3, m) + 1) * (0.5 * v)).to(torch.int64).clamp(0, v - 1)

    def loss(x, w):
        return [F.cross_entropy(F.linear(x, w), targets)]

    yield "linear, cross_entropy", [x, w], None, loss


OPS = {
    "linear": linear,
    "product": product,
    "decode": decode,
    "attention_dot": attention_dot,
    "attention_w2": attention_w2,
    "attention_w2_formula": attention_w2_formula,
    "attention_mla": attention_mla,
    "layernorm": layernorm,
    "rmsnorm": rmsnorm,
    "adamw": adamw,
    "cross_entropy": cross_entropy,
}


class Row:
    """One prepared row: its leaves and the function that is timed."""

    def __init__(self, leaves, upstream, function, backward):
        self.leaves, self.upstream, self.function = leaves, upstream, function
        self.backward = backward

    def run(self):
        if not self.backward:
            with torch.no_grad():
                return self.function(*self.leaves)
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_() for x in self.leaves]
            outputs = self.function(*leaves)
            return outputs, torch.autograd.grad(outputs, leaves, self.upstream)

    def timed(self):
        start = time.perf_counter()
        result = self.run()
        seconds = time.perf_counter() - start
        del result
        return seconds

    def rms(self):
        result = self.run()
        values = [*result[0], *result[1]] if self.backward else result
        return [x.float().square().mean().sqrt().item() for x in values]


def prepare(request, form):
    best = None
    for name, leaves, upstream, function in OPS[request["op"]](request["sizes"]):
        if form and name != form:
            continue
        row = Row(leaves, upstream, function, request["backward"])
        seconds = row.timed()
        if seconds < SLOW:  # else its first run, which warms up, says enough
            seconds = min(row.timed() for _ in range(2))
        if best is None or seconds < best[0]:
            best = (seconds, name, row)
    if best is None:
        raise ValueError(f"{request['op']} has no form '{form}'")
    return best[2], {"form": best[1], "rms": best[2].rms()}


if __name__ == "__main__":
    chosen = sys.argv[sys.argv.index("--form") + 1] if "--form" in sys.argv[:-1] else None
    converse(row_requests(lambda request: prepare(request, chosen)))
