"""Cross-token routing (mathematics 4.2): R over heads, made sparse row by row, and what it carries."""

import torch

from attention import logsumexp, scores


def weights(c):
    """R [B, T, S], a constant; 0 where key j is not visible to query t."""
    b, t, h, kv, dq = (c.size(key) for key in ("B", "T", "H", "KV", "Q"))
    if c.integer("packed", 0):
        qkv = c.input("qkv", b, t, (h + 2 * kv) * dq, scale=2, grad=False).reshape(b, t, h + 2 * kv, dq)
        q, k = qkv[:, :, :h], qkv[:, :, h:h + kv]
    else:
        q = c.input("q", b, t, h, dq, scale=2, grad=False)
        k = c.input("k", b, t, kv, dq, grad=False)
    s = scores(c, q, k, grad=False)
    p = torch.exp(s - logsumexp(s)[..., None])
    c.seen = torch.isfinite(s[:, 0])  # [B, T, S]
    return p.max(1).values if c.word("head", "mean") == "max" else p.mean(1)


def keep_topk(c, r):
    """The k largest visible weights of each row: index lists and what is left of R."""
    k = c.integer("k", 8)
    kept = torch.zeros_like(r)
    best = torch.zeros(*r.shape[:2], k)
    for b in range(r.shape[0]):
        for t in range(r.shape[1]):
            order = sorted(c.seen[b, t].nonzero()[:, 0].tolist(), key=lambda j: (-r[b, t, j].item(), j))
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
    if c.word("mode", "none") == "rms":
        limit = c.number("threshold", 0.5) * torch.sqrt((r * r).sum(-1) / c.seen.sum(-1))
        c.refuse_near("rms", (r - limit[..., None]).abs()[c.seen].min().item())
        r = torch.where(r >= limit[..., None], r, 0.0)
    else:
        c.number("threshold", 0.5)
    if c.integer("normalize", 0):
        r = r / r.sum(-1, keepdim=True)
    return r


def carry(c, r, grad=True):
    h = c.input("h", r.shape[0], r.shape[2], c.size("F"), grad=grad)
    c.output("c", torch.einsum("btj,bjf->btf", r, h))


def route_topk(c):
    kept, best = keep_topk(c, weights(c))
    c.output("w", best, grad=False)
    c.output("dense", kept, grad=False)


def route_gather(c):
    kept = keep_topk(c, weights(c))[0]
    carry(c, kept)
    if c.integer("G", 0):
        second = c.input("second", kept.shape[0], kept.shape[2], c.size("G"))
        c.output("d", torch.einsum("btj,bjf->btf", kept, second))


def route_dense(c):
    carry(c, keep_dense(c, weights(c)))


OPS = {f.__name__: f for f in (route_topk, route_gather, route_dense)}
