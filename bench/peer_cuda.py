"""PyTorch's training step on a GPU, for every variant of the seeds: what `weft bench train --device
cuda --shape gpt2-124m --dtype bf16 -o BATCH_SIZE=32` is to be set beside.

    python bench/peer_cuda.py [--variants dot,w2] [--forms sdpa] [--batch 32] [--steps 20] [--json]

GPT-2 124M's shape, bf16 autocast over f32 weights, torch.compile, fused AdamW, random tokens, the
mean of --steps steps after 4. Each variant is written in every way we know to be fast in stock
PyTorch; each way ("form") is timed, and the fastest is the variant's row:

    sdpa     scaled_dot_product_attention. For w2 the key's square is one more column of queries and
             keys; where the attention's weights are wanted too (steps 2 and 3) they are made once
             more, without a gradient.
    flex     FlexAttention with the key's number as a score modification (w2)
    naive    the formula with its T x T matrices, as the seeds write it (steps 2 and 3)
    gram     wsffn's losses from the Gram matrix of its input, so that z never exists
    direct   wsffn's losses from z, as the seed writes it

--check trains two steps of a tiny shape on the CPU in every form and compares the losses: the forms
are the same function.
"""

import argparse
import json
import math
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

GIB = 1024.0**3

VARIANTS = {
    "dot": dict(attention="dot", ffn="gelu"),
    "w2": dict(attention="w2", ffn="gelu"),
    "mla0": dict(attention="mla", ffn="gelu"),
    "mla1": dict(attention="mla", ffn="gelu", gate=True),
    "mla2": dict(attention="mla", ffn="gelu", gate=True, cross=True),
    "mla3": dict(attention="mla", ffn="gelu", gate=True, cross=True, latent=True),
    "swiglu": dict(attention="dot", ffn="swiglu"),
    "wsffn": dict(attention="dot", ffn="wsffn"),
    "wsffn-grouped": dict(attention="dot", ffn="wsffn", grouped=True),
}


def forms_of(v):
    if v.get("cross"):
        return ["sdpa", "naive"]
    if v["attention"] == "w2":
        return ["flex", "sdpa"]
    if v["ffn"] == "wsffn":
        return ["gram", "direct"]
    return ["sdpa"]


class Shape:
    def __init__(self, layers=12, heads=12, width=768, time=1024, vocab=50304, latent=128):
        self.layers, self.heads, self.width, self.time = layers, heads, width, time
        self.vocab, self.latent = vocab, latent
        self.head, self.hidden = width // heads, 4 * width


def weight(*shape, std=0.02):
    return nn.Parameter(torch.randn(*shape) * std)


class Attention(nn.Module):
    """q̂, k̂, v and a number a key, then one softmax: math.md's one form."""

    def __init__(self, s, v, form):
        super().__init__()
        self.s, self.kind, self.form = s, v["attention"], form
        self.weights_wanted = v.get("cross", False)
        e, h, d, l = s.width, s.heads, s.head, s.latent
        if self.kind == "dot":
            self.qkv = nn.Linear(e, 3 * e)
            self.out = nn.Linear(e, e)
        elif self.kind == "w2":
            self.qk = weight(4 * e, e)
            self.v = weight(e, e)
            self.o = weight(e, e)
            self.log_tau = nn.Parameter(torch.full((h,), math.log(2 * math.sqrt(d))))
        else:
            self.q = weight(e, e)
            self.kv_down = weight(2 * l, e)
            self.q_latent = weight(h, d, l, std=0.1)
            self.v_up = weight(h, l, d, std=0.1)
            self.o = weight(e, e)

    def heads_first(self, x, n):
        b, t, _ = x.shape
        return x.view(b, t, n, -1).transpose(1, 2)

    def forward(self, x, received=None):
        """The heads' outputs [B, H, T, D], the latent key, and the routing weights (or None)."""
        s = self.s
        if self.kind == "dot":
            q, k, v = (self.heads_first(y, s.heads) for y in self.qkv(x).split(s.width, dim=2))
            return F.scaled_dot_product_attention(q, k, v, is_causal=True), None, None
        if self.kind == "w2":
            return self.distance(x), None, None
        return self.latent(x, received)

    def distance(self, x):
        s = self.s
        qk = self.heads_first(F.linear(x, self.qk), 2 * s.heads)
        mean, deviation = qk.split(s.head, dim=3)
        both = torch.cat([mean, F.softplus(deviation)], dim=3)
        q, k = both.chunk(2, dim=1)
        v = self.heads_first(F.linear(x, self.v), s.heads)
        inverse = 1 / (self.log_tau.exp() + 1e-6)
        n = -(k.float() ** 2).sum(3) * inverse[None, :, None]
        q = q * (2 * inverse)[None, :, None, None].to(q.dtype)
        if self.form == "flex":
            return FLEX(q, k, v, n, s.time)
        one = torch.ones_like(q[..., :1])
        gap = torch.zeros(*q.shape[:3], 7, dtype=q.dtype, device=q.device)
        q, k = torch.cat([q, one, gap], 3), torch.cat([k, n[..., None].to(k.dtype), gap], 3)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)

    def latent(self, x, received):
        s = self.s
        q = self.heads_first(F.linear(x, self.q), s.heads)
        q = torch.einsum("bhtd,hdl->bhtl", q, self.q_latent.to(q.dtype))
        k, v = F.linear(x, self.kv_down).split(s.latent, dim=2)
        if received is not None:
            k = k + 0.2 * received
        scale = 1 / math.sqrt(s.latent)
        routes = None
        if self.weights_wanted and self.form == "naive":
            p = self.softmax(q, k, scale)
            o = torch.einsum("bhts,bsl->bhtl", p, v)
            routes = p.detach()
        else:
            o = F.scaled_dot_product_attention(q, k[:, None], v[:, None], is_causal=True, scale=scale,
                                               enable_gqa=True)
            if self.weights_wanted:
                with torch.no_grad():
                    routes = self.softmax(q, k, scale)
        return torch.einsum("bhtl,hld->bhtd", o, self.v_up.to(o.dtype)), k, routes

    def softmax(self, q, k, scale):
        t = q.shape[2]
        scores = torch.einsum("bhtl,bsl->bhts", q, k) * scale
        later = torch.ones(t, t, dtype=torch.bool, device=q.device).triu(1)
        return scores.masked_fill(later, float("-inf")).softmax(3).to(q.dtype)

    def project(self, heads):
        b, h, t, d = heads.shape
        flat = heads.transpose(1, 2).reshape(b, t, h * d)
        return self.out(flat) if self.kind == "dot" else F.linear(flat, self.o)


class FeedForward(nn.Module):
    def __init__(self, s, v, form):
        super().__init__()
        self.s, self.v, self.form = s, v, form
        e, f = s.width, s.hidden
        if v["ffn"] == "gelu":
            self.fc = nn.Linear(e, f)
            self.proj = nn.Linear(f, e)
        else:
            self.w13 = weight(2 * f, e)
            self.w2 = weight(e, f)
        if v["ffn"] == "wsffn":
            self.z = weight(8, f // 8, f // 8) if v.get("grouped") else weight(f, f)
        if v.get("gate"):
            self.gate_proj = weight(64, f)
            self.gate_heads = weight(s.heads, 64)
        if v.get("cross"):
            self.cross = weight(f, f)
        if v.get("latent"):
            self.couple = weight(f, s.latent)

    def forward(self, x, key, routes):
        """y, and what goes to the next layer: the gate, the latent; and the auxiliary loss."""
        gate = sent = aux = None
        if self.v["ffn"] == "gelu":
            h = F.gelu(self.fc(x), approximate="tanh")
        else:
            h1, h2 = F.linear(x, self.w13).chunk(2, dim=2)
            h = F.silu(h2) * h1
            if self.v["ffn"] == "wsffn":
                aux = self.auxiliary(x, h1)
        if self.v.get("latent"):
            sent = F.linear(h, self.couple.t())
            h = h + 0.2 * F.linear(key, self.couple)
        if self.v.get("cross"):
            h = h + 0.3 * F.linear(self.gather(h, routes), self.cross)
        if self.v.get("gate"):
            gate = torch.sigmoid(F.linear(F.linear(h, self.gate_proj), self.gate_heads))
        y = self.proj(h) if self.v["ffn"] == "gelu" else F.linear(h, self.w2)
        return y, gate, sent, aux

    def gather(self, h, routes):
        with torch.no_grad():
            mean = routes.mean(dim=1)
            kept, index = mean.topk(min(8, mean.shape[-1]), dim=2)
            sparse = torch.zeros_like(mean).scatter_(2, index, kept)
            sparse = (sparse / sparse.sum(2, keepdim=True)).to(h.dtype)
        return torch.bmm(sparse, h)

    def auxiliary(self, x, h1):
        b, t, f = h1.shape
        heads, n = 8, b * 8
        if self.form == "gram":
            e = x.shape[2]
            w1 = self.w13[:f].to(x.dtype)
            z = self.z.to(x.dtype)
            q = (torch.bmm(z, w1.view(heads, f // heads, e)).view(f, e) if self.v.get("grouped") else z @ w1)
            flat = x.reshape(b * t, e)
            squares = ((q.t() @ q).float() * (flat.t() @ flat).float()).sum()
            context = F.linear(x.mean(1), q)
        else:
            z = (torch.einsum("btgi,goi->btgo", h1.view(b, t, heads, f // heads), self.z.to(h1.dtype)).reshape(b, t, f)
                 if self.v.get("grouped") else F.linear(h1, self.z))
            squares = (z.float() ** 2).sum()
            context = z.mean(1)
        c = context.float().view(n, f // heads)
        c = c / c.norm(dim=1, keepdim=True).clamp(min=1e-8)
        s = c @ c.t() / 0.07
        contrast = (s.logsumexp(1) - s.diagonal()).mean()
        return 1e-5 * squares / (b * t * heads) + 5e-3 * contrast


class Model(nn.Module):
    def __init__(self, s, v, form):
        super().__init__()
        self.s, self.v = s, v
        self.wte = weight(s.vocab, s.width)
        self.wpe = weight(s.time, s.width)
        self.attention = nn.ModuleList(Attention(s, v, form) for _ in range(s.layers))
        self.ffn = nn.ModuleList(FeedForward(s, v, form) for _ in range(s.layers))
        self.norm1 = nn.ModuleList(nn.LayerNorm(s.width) for _ in range(s.layers))
        self.norm2 = nn.ModuleList(nn.LayerNorm(s.width) for _ in range(s.layers))
        self.norm = nn.LayerNorm(s.width)

    def forward(self, tokens, targets):
        x = F.embedding(tokens, self.wte) + self.wpe[: tokens.shape[1]]
        gate = sent = None
        aux = 0.0
        for a, f, n1, n2 in zip(self.attention, self.ffn, self.norm1, self.norm2):
            heads, key, routes = a(n1(x), sent)
            if gate is not None:
                heads = heads * (0.9 + 0.1 * gate.transpose(1, 2)[..., None])
            x = x + a.project(heads)
            y, gate, sent, loss = f(n2(x), key, routes)
            x = x + y
            if loss is not None:
                aux = aux + loss
        logits = F.linear(self.norm(x), self.wte)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1)) + aux


FLEX = None


def load_flex(compiled, device):
    """FlexAttention, compiled by itself as its documentation asks, with one mask a length."""
    global FLEX
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    flex = torch.compile(flex_attention) if compiled else flex_attention
    masks = {}

    def run(q, k, v, n, time):
        if time not in masks:
            masks[time] = create_block_mask(lambda b, h, i, j: i >= j, None, None, time, time, device=device)
        return flex(q, k, v, score_mod=lambda score, b, h, i, j: score + n[b, h, j], block_mask=masks[time], scale=1.0)

    FLEX = run


def build(name, form, shape, device, compiled):
    torch.manual_seed(1)
    load_flex(False, device)  # inside a compiled model it is compiled with it
    model = Model(shape, VARIANTS[name], form).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=device == "cuda")
    return model, (torch.compile(model) if compiled else model), optimizer


def step_of(model, optimizer, tokens, targets, device):
    def step():
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


def measure(name, form, shape, batch, steps, warm):
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model, compiled, optimizer = build(name, form, shape, "cuda", True)
    tokens = torch.randint(0, shape.vocab, (batch, shape.time + 1), device="cuda")
    step = step_of(compiled, optimizer, tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(), "cuda")
    for _ in range(warm):
        loss = step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        loss = step()
    torch.cuda.synchronize()
    seconds = (time.perf_counter() - start) / steps
    peak = torch.cuda.max_memory_allocated() / GIB
    row = dict(variant=name, form=form, tokens_per_s=batch * shape.time / seconds, gib=peak,
               parameters=sum(p.numel() for p in model.parameters()), loss=float(loss))
    del model, compiled, optimizer, step, loss
    torch._dynamo.reset()
    return row


def check():
    shape = Shape(layers=2, heads=2, width=32, time=24, vocab=64, latent=16)
    bad = 0
    for name, variant in VARIANTS.items():
        losses = {}
        for form in forms_of(variant):
            model, eager, optimizer = build(name, form, shape, "cpu", False)
            torch.manual_seed(2)
            tokens = torch.randint(0, shape.vocab, (3, shape.time + 1))
            step = step_of(eager, optimizer, tokens[:, :-1], tokens[:, 1:], "cpu")
            if form == "flex":  # it has no gradient on the CPU
                with torch.no_grad():
                    losses[form] = [float(eager(tokens[:, :-1], tokens[:, 1:]))]
            else:
                losses[form] = [float(step()) for _ in range(3)]
        first = next(iter(losses.values()))
        worst = max(abs(a - b) for l in losses.values() for a, b in zip(l, first))
        bad += worst > 1e-4
        print(f"{name:14} {worst:.1e}  " + "  ".join(f"{f} {l[-1]:.5f}" for f, l in losses.items()))
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--forms", default="", help="only these forms")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm", type=int, default=4)
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--check", action="store_true", help="the forms are the same function (CPU)")
    args = parser.parse_args()
    if args.check:
        return check()
    torch.set_float32_matmul_precision("high")
    wanted = [f for f in args.forms.split(",") if f]
    for name in args.variants.split(","):
        for form in forms_of(VARIANTS[name]):
            if wanted and form not in wanted:
                continue
            try:
                row = measure(name, form, Shape(), args.batch, args.steps, args.warm)
            except Exception as problem:  # a form that this PyTorch cannot run is no row
                row = dict(variant=name, form=form, error=f"{type(problem).__name__}: {problem}".splitlines()[0])
            if args.json:
                print(json.dumps(row), flush=True)
            elif "error" in row:
                print(f"{name:14} {form:7} {row['error']}", flush=True)
            else:
                print(f"{name:14} {form:7} {row['tokens_per_s']:10,.0f} tok/s {row['gib']:6.1f} GiB  "
                      f"{row['parameters'] / 1e6:.1f} M", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
