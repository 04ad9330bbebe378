"""Cross-token routing (math.md 4.2): R over heads, made sparse row by row, and what it carries."""

import torch

from attention import logsumexp, scores


def weights(c):
    """R [B, T, T], a constant; 0 where j > t."""
    b, t, h, kv, dq = (c.size(key) for key in ("B", "T", "H", "KV", "Q"))
    q = c.input("q", b, t, h, dq, scale=2, grad=False)
    k = c.input("k", b, t, kv, dq, grad=False)
    s = scores(c, q, k, grad=False)
    p = torch.exp(s - logsumexp(s)[..., None])
    return p.max(1).values if c.word("head", "mean") == "max" else p.mean(1)


def keep_topk(c, r):
    """The k largest visible weights of each row: index lists and what is left of R."""
    k = c.integer("k", 8)
    kept = torch.zeros_like(r)
    best = torch.zeros(*r.shape[:2], k)
    for b in range(r.shape[0]):
        for t in range(r.shape[1]):
            order = sorted(range(t + 1), key=lambda j: (-r[b, t, j].item(), j))
            if len(order) > k:
                c.refuse_near(f"top-k at b={b} t={t}", (r[b, t, order[k - 1]] - r[b, t, order[k]]).item())
            for place, j in enumerate(order[:k]):
                kept[b, t, j] = r[b, t, j]
                best[b, t, place] = r[b, t, j]
    if c.integer("normalize", 0):
        total = kept.sum(-1, keepdim=True)
        kept, best = kept / total, best / total
    return kept, best


def keep_dense(c, r):
    """All, or those at least `threshold` of the root of the mean square over the visible columns."""
    seen = torch.tril(torch.ones(r.shape[1], r.shape[1], dtype=torch.bool))
    if c.word("mode", "none") == "rms":
        count = torch.arange(1, r.shape[1] + 1).double()
        limit = c.number("threshold", 0.5) * torch.sqrt((r * r).sum(-1) / count)
        c.refuse_near("rms", (r - limit[..., None]).abs()[:, seen].min().item())
        r = torch.where(r >= limit[..., None], r, 0.0)
    else:
        c.number("threshold", 0.5)
    if c.integer("normalize", 0):
        r = r / r.sum(-1, keepdim=True)
    return r


def carry(c, r):
    h = c.input("h", c.size("B"), c.size("T"), c.size("F"))
    c.output("c", torch.einsum("btj,bjf->btf", r, h))


def route_topk(c):
    kept, best = keep_topk(c, weights(c))
    c.output("w", best, grad=False)
    c.output("dense", kept, grad=False)


def route_gather(c):
    carry(c, keep_topk(c, weights(c))[0])


def route_dense(c):
    carry(c, keep_dense(c, weights(c)))


OPS = {f.__name__: f for f in (route_topk, route_gather, route_dense)}
