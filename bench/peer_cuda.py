"""PyTorch's training step on a GPU, for every variant: what `make bench-cuda` sets
beside our own (bench/table_cuda.py runs both).

    python bench/peer_cuda.py [--variants dot,w2] [--forms all] [--batch 32] [--steps 20] [--json]
    python bench/peer_cuda.py --check       the forms, and those of the grid's parts, are tests/reference's function
                                            (tiny, on the CPU)
    python bench/peer_cuda.py --worker dot:flash      for table_cuda.py: compiles, then waits

GPT-2 124M's shape, bf16 autocast over f32 weights, torch.compile, fused AdamW, random tokens, the
mean of --steps steps after 4. Each variant is written in every way we know to be fast in stock
PyTorch, and the fastest way ("form") is its row. A form's name lists its choices:

    flash cudnn efficient   the backend of scaled_dot_product_attention. w2's number per key is one more
                            column of queries and keys. For flash values are padded to the width of keys, for
                            efficient shared keys are copied to each query head. Where attention's weights are
                            wanted too (steps 2 and 3) they are made once more, without a gradient, from the
                            logsumexp, and the kept ones are found by a threshold.
    flex                    FlexAttention, the key's number as a score modification (w2)
    naive                   the formula with its T x T matrices, as the write-ups have it
    heads                   mla's latent keys and values are mapped to a head's width first, so that its
                            attention is as dot's
    absorbed                mla's matrices per head are multiplied into its projections first
    cheap                   steps 2 and 3: what maps a hidden vector to the stream and to the gate is
                            multiplied into the mechanisms' own matrices, so that rows are gathered
                            after those maps
    direct                  wsffn's losses from z, as the write-up has it; else from the Gram matrix of
                            its input, so that z never exists
    stacked                 the rest of those losses for all layers at once, in batched products; else
                            layer by layer
    padded                  values are padded for cuDNN too, which may not take two widths (DeepSeek's)
    wide                    the stream between the layers stays f32; else it is bf16, as ours is

--shape '{"width": 1600, "heads": 25, ...}' changes what Shape has; positions: learned, rope, or alibi
and relative, which need flex, as window, softcap and documents do. For dot alone: kv (key heads), qk_norm, gate (head
or element, on what attention finds), relu2 (as the activation), documents (which token 0 ends, and attention does
not pass; the mask is made once, before anything is timed), rope_dim (columns that rope rotates), tied (gta), share
(so many layers have the keys and values of the first). kv goes with w2 too. For mla: rank (of the queries), which
makes it DeepSeek's, with rotated (columns beside the latent) and latents (GLA).
"""

import argparse
import json
import math
import os
import random
import sys
import time

import torch
import torch._functorch.config as functorch_config
import torch.nn as nn
import torch.nn.functional as F

from names import current

GIB = 1024.0**3
TOP_K, WSFFN_HEADS = 8, 8
PATIENCE = 120  # seconds to wait for memory

VARIANTS = {
    "dot": dict(attention="dot", ffn="gelu"),
    "w2": dict(attention="w2", ffn="gelu"),
    "mla": dict(attention="mla", ffn="gelu"),
    "mla+gate": dict(attention="mla", ffn="gelu", gate=True),
    "mla+gate+cross": dict(attention="mla", ffn="gelu", gate=True, cross=True),
    "mla+all": dict(attention="mla", ffn="gelu", gate=True, cross=True, latent=True),
    "swiglu": dict(attention="dot", ffn="swiglu"),
    "wsffn": dict(attention="dot", ffn="wsffn"),
    "wsffn-grouped": dict(attention="dot", ffn="wsffn", grouped=True),
}

# The forms that are measured when none are named (on an H200 with PyTorch 2.11 the fastest ones, and
# the write-ups' own way of steps 2, 3 and wsffn), and the rest.
ROUTED, WSFFN = ["cudnn-heads-cheap", "naive"], ["cudnn", "cudnn-stacked", "cudnn-direct"]
FORMS = {"dot": ["cudnn", "flash"], "w2": ["flex"], "mla": ["cudnn-heads"], "mla+gate": ["cudnn-heads"], "mla+gate+cross": ROUTED,
         "mla+all": ROUTED, "swiglu": ["cudnn"], "wsffn": WSFFN, "wsffn-grouped": WSFFN}
LATENT_TOO = ["flash-heads", "cudnn-absorbed", "flash-absorbed", "cudnn", "flash"]
ROUTED_TOO = ["flash-heads-cheap", "cudnn-absorbed-cheap", "flash-absorbed-cheap", "flash-heads", "flash",
              "naive-heads-cheap"]
OTHERS = {"dot": ["flash-wide"], "w2": ["cudnn", "efficient", "flash", "flex-wide"], "mla": LATENT_TOO,
          "mla+gate": LATENT_TOO, "mla+gate+cross": ROUTED_TOO, "mla+all": ROUTED_TOO, "swiglu": ["flash"],
          "wsffn": ["flash"], "wsffn-grouped": ["flash"]}


def forms_of(name, wanted=()):
    every = FORMS[name] + OTHERS.get(name, [])
    if not wanted:
        return FORMS[name]
    return every if "all" in wanted else [f for f in every if f in wanted or f"{name}:{f}" in wanted]


class Shape:
    def __init__(self, layers=12, heads=12, width=768, time=1024, vocab=50304, latent=128, positions="learned", window=0, softcap=0,
                 kv=0, qk_norm=False, gate="", relu2=False, documents=False, rope_dim=0, tied=False, share=1, rank=0, rotated=0, latents=1):
        self.layers, self.heads, self.width, self.time = layers, heads, width, time
        self.vocab, self.latent, self.positions, self.window, self.softcap = vocab, latent, positions, window, softcap
        self.kv, self.qk_norm, self.gate, self.relu2, self.documents = kv or heads, qk_norm, gate, relu2, documents
        self.tied, self.share, self.rank, self.rotated, self.latents = tied, share, rank, rotated, latents
        self.head, self.hidden = width // heads, 4 * width
        self.rope_dim = rope_dim or self.head


def weight(*shape, std=0.02):
    return nn.Parameter(torch.randn(*shape) * std)


def attend(q, k, v, scale, form):
    """Heads are dimension 2 here, as a projection leaves them. A key head may serve a group of queries' or all."""
    group, width = q.shape[2] // k.shape[2], v.shape[3]
    if group > 1 and "efficient" in form:  # it has no groups
        k, v, group = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2), 1
    if width < q.shape[3] and ("flash" in form or "padded" in form):  # flash wants values as wide as keys
        v = F.pad(v, (0, q.shape[3] - width))
    o = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True,
                                       scale=scale, enable_gqa=group > 1)
    return o.transpose(1, 2)[..., :width]


def attend_with_lse(q, k, v, scale, form):
    """The same with heads in dimension 1, and each query's logsumexp [B, H, T]."""
    if not q.is_cuda:
        scores = (q @ k.transpose(2, 3)) * scale
        scores = scores.masked_fill(later(q.shape[2], q.device), float("-inf"))
        return scores.softmax(3) @ v, scores.logsumexp(3)
    if "cudnn" in form:
        o, lse = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, True, False, scale=scale)[:2]
    else:
        o, lse = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, True, False, scale=scale)[:2]
    return o, lse.reshape(q.shape[:3])


def later(t, device):
    return torch.ones(t, t, dtype=torch.bool, device=device).triu(1)


def rotate(x, d):
    """RoPE of the first d columns of [B, T, H, D]: pairs are d/2 apart."""
    x, rest = x[..., :d], x[..., d:]
    t = x.shape[1]
    angle = torch.outer(torch.arange(t, device=x.device), 10000 ** (-torch.arange(0, d, 2, device=x.device) / d))
    cos, sin = angle.cos()[:, None].to(x.dtype), angle.sin()[:, None].to(x.dtype)
    a, b = x.chunk(2, dim=3)
    return torch.cat([a * cos - b * sin, b * cos + a * sin, rest], dim=3)


class Attention(nn.Module):
    """Queries, keys, values and one number per key, then one softmax: the one form of attention."""

    def __init__(self, s, v, form, mask, receives):
        """`receives`: it has the keys and values of a layer below."""
        super().__init__()
        self.s, self.kind, self.form, self.mask = s, v["attention"], form, mask
        self.weights_wanted = v.get("cross", False)
        e, h, d, l = s.width, s.heads, s.head, s.latent
        if self.kind == "dot":
            self.made = [h * d] + ([] if receives else [s.kv * d, d // 2] if s.tied else [2 * s.kv * d])
            self.qkv = nn.Linear(e, sum(self.made), bias=not s.tied)
            self.out = nn.Linear(e, e, bias=not s.tied)
            if s.qk_norm:
                self.gains = nn.Parameter(torch.ones(2, d))
            if s.gate:
                self.gate = weight(h if s.gate == "head" else e, e)
            if s.positions == "relative":
                self.bias = weight(h, s.time)
        elif self.kind == "w2":
            self.qk = weight(2 * (h + s.kv) * d, e)
            self.v = weight(s.kv * d, e)
            self.o = weight(e, e)
            self.log_tau = nn.Parameter(torch.full((h,), math.log(2 * math.sqrt(d))))
        elif s.rank:  # every map of x is one product, and so are those of a rank and of a latent
            self.down = weight(s.rank + s.latents * l + s.rotated, e)
            self.rank_gain, self.latent_gain = nn.Parameter(torch.ones(s.rank)), nn.Parameter(torch.ones(l))
            self.q = weight(h * (d + s.rotated), s.rank)
            self.kv_up = weight(s.latents, h // s.latents * 2 * d, l, std=0.1)
            self.o = weight(e, e)
        else:
            self.q = weight(e, e)
            self.kv_down = weight(2 * l, e)
            self.q_latent = weight(h, d, l, std=0.1)
            self.v_up = weight(h, l, d, std=0.1)
            self.o = weight(e, e)

    def forward(self, x, received, gate):
        """y, the latent key (dot: keys and values), and the routing weights [B, T, T] (or None)."""
        s = self.s
        b, t, e = x.shape
        key = routes = None
        if self.kind == "dot":
            q, k, v = self.heads(self.qkv(x), received)
            o = self.changed(q, k, v) if self.mask is not None else attend(q, k, v, None, self.form)
            if s.gate:
                o = o * torch.sigmoid(F.linear(x, self.gate)).view(b, t, s.heads, -1)
            return self.out(o.reshape(b, t, e)), (k, v), routes
        if s.rank:
            return F.linear(self.joint(x).reshape(b, t, e), self.o), key, routes
        if self.kind == "w2":
            return F.linear(self.distance(x).reshape(b, t, e), self.o), key, routes
        o, key, routes = self.latent(x, received)
        if gate is not None:
            o = o * (0.9 + 0.1 * gate[..., None])
        return self.project(o), key, routes

    def heads(self, made, received):
        """Queries, keys and values of dot, and of gta."""
        s, (b, t, _) = self.s, made.shape
        if s.tied:
            q, v, shared = (y.view(b, t, -1, y.shape[2] // n) for y, n in zip(made.split(self.made, dim=2), (s.heads, s.kv, 1)))
            half = s.head // 2
            q = torch.cat([q[..., :half], rotate(q[..., half:], half)], 3)
            return q, torch.cat([v[..., :half], rotate(shared, half).expand(b, t, s.kv, half)], 3), v

        def finish(y, which):
            if s.qk_norm:
                y = F.rms_norm(y, (s.head,), self.gains[which].to(y.dtype), 1e-6)
            return rotate(y, s.rope_dim) if s.positions == "rope" else y

        made = made.view(b, t, -1, s.head)
        q, k, v = (made, *received) if received else made.split([s.heads, s.kv, s.kv], dim=2)
        return finish(q, 0), k if received else finish(k, 1), v

    def joint(self, x):
        """DeepSeek's attention: keys of a head's width beside one rotated key for all."""
        s, (b, t, _) = self.s, x.shape
        low, c, shared = F.linear(x, self.down).split([s.rank, s.latents * s.latent, s.rotated], dim=2)
        low = F.rms_norm(low, (s.rank,), self.rank_gain.to(low.dtype), 1e-6)
        c = F.rms_norm(c.reshape(b, t, s.latents, s.latent), (s.latent,), self.latent_gain.to(c.dtype), 1e-6)
        q, turned = F.linear(low, self.q).view(b, t, s.heads, -1).split([s.head, s.rotated], dim=3)
        k, v = torch.einsum("btgl,gol->btgo", c, self.kv_up).reshape(b, t, s.heads, 2 * s.head).chunk(2, dim=3)
        q = torch.cat([q, rotate(turned, s.rotated)], 3)
        k = torch.cat([k, rotate(shared[:, :, None], s.rotated).expand(b, t, s.heads, s.rotated)], 3)
        return attend(q, k, v, None, self.form)

    def distance(self, x):
        s = self.s
        b, t, _ = x.shape
        qk = F.linear(x, self.qk).view(b, t, s.heads + s.kv, 2 * s.head)
        mean, deviation = qk.split(s.head, dim=3)
        q, k = torch.cat([mean, F.softplus(deviation).to(mean.dtype)], dim=3).split([s.heads, s.kv], dim=2)
        v = F.linear(x, self.v).view(b, t, s.kv, s.head)
        inverse = 1 / (self.log_tau.exp() + 1e-6)
        n = -(k.float() ** 2).sum(3, keepdim=True)
        q = q * (2 * inverse)[:, None].to(q.dtype)
        if "flex" in self.form:
            return self.flex(q, k, v, (n * inverse.view(s.kv, -1)).flatten(2).transpose(1, 2))
        q = torch.cat([q, inverse[:, None].to(q.dtype).expand(b, t, -1, 1), torch.zeros_like(q[..., :7])], 3)
        k = torch.cat([k, n.to(k.dtype), torch.zeros_like(k[..., :7])], 3)
        return attend(q, k, v, 1.0, self.form)

    def flex(self, q, k, v, n):
        def add_number(score, b, h, i, j):
            return score + n[b, h, j]

        return self.attend_by(add_number, q, k, v, 1.0)

    def changed(self, q, k, v):
        """Scores with ALiBi's slopes, with a learned number per head and distance, capped, or as they are."""
        heads, cap = self.s.heads, self.s.softcap

        def hold_down(score, b, h, i, j):
            return cap * torch.tanh(score / cap)

        def add_slope(score, b, h, i, j):
            return score - torch.exp2(-8.0 * (h + 1) / heads) * (i - j)

        def add_bias(score, b, h, i, j):
            return score + self.bias[h, i - j]

        changes = dict(relative=add_bias, alibi=add_slope)
        return self.attend_by(changes.get(self.s.positions, hold_down if cap else None), q, k, v, None)

    def attend_by(self, change, q, k, v, scale):
        from torch.nn.attention.flex_attention import flex_attention

        o = flex_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), score_mod=change,
                           block_mask=self.mask, scale=scale, enable_gqa=q.shape[2] != k.shape[2],
                           kernel_options=dict(BLOCK_M=64, BLOCK_N=64, num_stages=2) if self.s.positions == "relative" else None)
        return o.transpose(1, 2)

    def latent(self, x, received):
        """The heads' outputs [B, T, H, d or l], the latent key, the routing weights."""
        s = self.s
        b, t, e = x.shape
        c, v = F.linear(x, self.kv_down).split(s.latent, dim=2)
        if received is not None:
            c = c + (0.2 * received).to(c.dtype)
        q, k, v = self.by_head(x, c, v) if "heads" in self.form else self.in_latent(x, c, v)
        scale = 1 / math.sqrt(s.latent)
        if not self.weights_wanted:
            return attend(q, k, v, scale, self.form), c, None
        q, k, v = (y.transpose(1, 2) for y in (q, k, v))
        if "naive" in self.form:
            scores = (torch.matmul(q, k.transpose(2, 3)) * scale).masked_fill(later(t, x.device), float("-inf"))
            p = scores.softmax(3).to(q.dtype)
            return torch.matmul(p, v).transpose(1, 2), c, p.detach().mean(dim=1)
        o, lse = attend_with_lse(q, k, v, scale, self.form)
        with torch.no_grad():
            scores = torch.matmul(q, k.transpose(2, 3)).float() * scale
            routes = (scores - lse[..., None]).exp().mean(1).masked_fill(later(t, x.device), 0)
        return o.transpose(1, 2), c, routes

    def by_head(self, x, c, v):
        s = self.s
        q = F.linear(x, self.q)
        k = F.linear(c, self.q_latent.reshape(-1, s.latent))
        v = F.linear(v, self.v_up.transpose(1, 2).reshape(-1, s.latent))
        return (y.view(*x.shape[:2], s.heads, s.head) for y in (q, k, v))

    def in_latent(self, x, c, v):
        s = self.s
        b, t, e = x.shape
        if "absorbed" in self.form:
            merged = torch.bmm(self.q_latent.transpose(1, 2), self.q.view(s.heads, s.head, e))
            q = F.linear(x, merged.reshape(-1, e)).view(b, t, s.heads, s.latent)
        else:
            q = F.linear(x, self.q).view(b * t, s.heads, s.head).transpose(0, 1)
            q = torch.bmm(q, self.q_latent.to(q.dtype)).view(s.heads, b, t, s.latent).permute(1, 2, 0, 3)
        return q, c[:, :, None], v[:, :, None]

    def project(self, o):
        s = self.s
        b, t, h, l = o.shape
        if "heads" in self.form:
            return F.linear(o.reshape(b, t, -1), self.o)
        if "absorbed" in self.form:
            out = self.o.view(-1, h, s.head).permute(1, 2, 0)
            merged = torch.bmm(self.v_up, out).reshape(h * l, -1)
            return o.reshape(b, t, h * l) @ merged.to(o.dtype)
        heads = torch.bmm(o.reshape(b * t, h, l).transpose(0, 1), self.v_up.to(o.dtype))
        return F.linear(heads.transpose(0, 1).reshape(b, t, -1), self.o)


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
            side = f // WSFFN_HEADS
            self.z = weight(WSFFN_HEADS, side, side) if v.get("grouped") else weight(f, f)
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
            h = F.relu(self.fc(x)).square() if self.s.relu2 else F.gelu(self.fc(x), approximate="tanh")
        else:
            h1, h2 = F.linear(x, self.w13).chunk(2, dim=2)
            h = F.silu(h2) * h1
            if self.v["ffn"] == "wsffn":
                aux = self.auxiliary(x, h1)
        if "cheap" in self.form:
            return *self.mechanisms(h, key, routes), aux
        if self.v.get("latent"):
            sent = F.linear(h, self.couple.t())
            h = h + 0.2 * F.linear(key, self.couple)
        if self.v.get("cross"):
            h = h + 0.3 * F.linear(torch.bmm(self.keep_largest(routes).to(h.dtype), h), self.cross)
        if self.v.get("gate"):
            gate = torch.sigmoid(F.linear(F.linear(h, self.gate_proj), self.gate_heads))
        y = self.proj(h) if self.v["ffn"] == "gelu" else F.linear(h, self.w2)
        return y, gate, sent, aux

    def mechanisms(self, h, key, routes):
        """y, gate and sent with every map of a hidden vector in one product: M and M W_c of M(h + W_c R h)
        = M h + R (M W_c h), and of the latent's share M W c."""
        maps = torch.cat([self.proj.weight, self.gate_proj]).to(h.dtype)
        maps = torch.cat([maps, maps @ self.cross.to(h.dtype)])
        both, sent = F.linear(h, maps), None
        if self.v.get("latent"):
            sent = F.linear(h, self.couple.t())
            both = both + 0.2 * F.linear(key, maps @ self.couple.to(h.dtype))
        here, there = both.chunk(2, dim=2)
        out = here + 0.3 * torch.bmm(self.keep_largest(routes).to(h.dtype), there)
        y, gate = out.split([self.s.width, self.gate_proj.shape[0]], dim=2)
        return y + self.proj.bias.to(h.dtype), torch.sigmoid(F.linear(gate, self.gate_heads)), sent

    @torch.no_grad()
    def keep_largest(self, mean):
        """The TOP_K largest of each row, to a sum of one; elsewhere zero."""
        if "naive" in self.form:
            kept, index = mean.topk(min(TOP_K, mean.shape[-1]), dim=2)
            sparse = torch.zeros_like(mean).scatter_(2, index, kept)
        else:
            least = mean.amax(2, keepdim=True)
            for _ in range(TOP_K - 1):
                least = mean.masked_fill(mean >= least, -1).amax(2, keepdim=True)
            sparse = mean.masked_fill(mean < least, 0)
        return sparse / sparse.sum(2, keepdim=True)

    def auxiliary(self, x, h1):
        b, t, f = h1.shape
        heads, grouped = WSFFN_HEADS, self.v.get("grouped")
        if "stacked" in self.form:
            flat = x.to(h1.dtype).reshape(b * t, -1)
            return flat.t() @ flat, x.to(h1.dtype).mean(1)
        if "direct" in self.form:
            z = (torch.einsum("btgi,goi->btgo", h1.view(b, t, heads, f // heads), self.z.to(h1.dtype)).reshape(b, t, f)
                 if grouped else F.linear(h1, self.z))
            squares = (z.float() ** 2).sum()
            context = z.mean(1)
        else:
            e = x.shape[2]
            x = x.to(h1.dtype)
            w1, z = self.w13[:f].to(x.dtype), self.z.to(x.dtype)
            q = torch.bmm(z, w1.view(heads, f // heads, e)).view(f, e) if grouped else z @ w1
            flat = x.reshape(b * t, e)
            squares = ((q.t() @ q).float() * (flat.t() @ flat).float()).sum()
            context = F.linear(x.mean(1), q)
        return 1e-5 * squares / (b * t * heads) + 5e-3 * contrast(context.view(1, b * heads, f // heads))


def contrast(context):
    """The sum of the losses of [layers, rows, width]."""
    c = context.float()
    c = c / c.norm(dim=2, keepdim=True).clamp(min=1e-8)
    s = torch.bmm(c, c.transpose(1, 2)) / 0.07
    return (s.logsumexp(2) - s.diagonal(dim1=1, dim2=2)).mean(1).sum()


class Model(nn.Module):
    def __init__(self, s, v, form, mask):
        super().__init__()
        self.s, self.v, self.form = s, v, form
        self.wte = weight(s.vocab, s.width)
        self.wpe = weight(s.time, s.width) if s.positions == "learned" else None
        self.attention = nn.ModuleList(Attention(s, v, form, mask, i % s.share > 0) for i in range(s.layers))
        self.ffn = nn.ModuleList(FeedForward(s, v, form) for _ in range(s.layers))
        self.norm1 = nn.ModuleList(nn.LayerNorm(s.width) for _ in range(s.layers))
        self.norm2 = nn.ModuleList(nn.LayerNorm(s.width) for _ in range(s.layers))
        self.norm = nn.LayerNorm(s.width)

    def forward(self, tokens, targets):
        x = F.embedding(tokens, self.wte)
        if self.wpe is not None:
            x = x + self.wpe[: tokens.shape[1]]
        if torch.is_autocast_enabled(x.device.type) and "wide" not in self.form:
            x = x.bfloat16()
        gate = sent = key = None
        aux, left = 0.0, []
        for i, (a, f, n1, n2) in enumerate(zip(self.attention, self.ffn, self.norm1, self.norm2)):
            y, key, routes = a(n1(x.float()), key if i % self.s.share else sent, gate)
            x = x + y
            y, gate, sent, loss = f(n2(x.float()), key, routes)
            x = x + y
            if "stacked" in self.form:
                left.append(loss)
            elif loss is not None:
                aux = aux + loss
        if left:
            aux = self.auxiliary(left, *tokens.shape)
        logits = F.linear(self.norm(x.float()), self.wte)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.reshape(-1)) + aux


    def auxiliary(self, left, b, t):
        """wsffn's losses of all layers, from each one's Gram matrix and mean over time."""
        gram, mean = (torch.stack(x) for x in zip(*left))
        n, f, heads = len(left), self.s.hidden, WSFFN_HEADS
        w1 = torch.stack([x.w13[:f].to(gram.dtype) for x in self.ffn])
        z = torch.stack([x.z.to(gram.dtype) for x in self.ffn])
        if self.v.get("grouped"):
            w1, z = w1.view(n * heads, f // heads, -1), z.view(n * heads, f // heads, -1)
        q = torch.bmm(z, w1).view(n, f, -1)
        squares = (torch.bmm(q.transpose(1, 2), q).float() * gram.float()).sum()
        context = torch.bmm(mean, q.transpose(1, 2)).view(n, b * heads, f // heads)
        return 1e-5 * squares / (b * t * heads) + 5e-3 * contrast(context)


def choose_backend(form):
    """One backend, or an error: a form is what its name says."""
    cuda = torch.backends.cuda
    cuda.enable_cudnn_sdp("cudnn" in form)
    cuda.enable_flash_sdp("flash" in form)
    cuda.enable_mem_efficient_sdp("efficient" in form)
    cuda.enable_math_sdp(not any(f in form for f in ("cudnn", "flash", "efficient")))


def build(name, form, shape, device, tokens=None):
    """`tokens`: what documents are found in."""
    torch.manual_seed(1)
    parts, mask = form.split("-"), None
    if "flex" in parts:
        from torch.nn.attention.flex_attention import create_block_mask

        def is_seen(b, h, i, j):
            seen = (i >= j) & (i - j < (shape.window or shape.time))
            return seen & (document[b, i] == document[b, j]) if shape.documents else seen

        if shape.documents:
            document = (tokens == 0).cumsum(1) - (tokens == 0).long()
        mask = create_block_mask(is_seen, len(tokens) if shape.documents else None, None, shape.time, shape.time, device=device)
    if device == "cuda":
        choose_backend(parts)
    with torch.device(device):
        model = Model(shape, VARIANTS[name], parts, mask)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=device == "cuda")
    return model, optimizer


def step_of(model, optimizer, tokens, targets, device):
    def step():
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    return step


class Trial:
    """A variant in one form, compiled and warm on the GPU."""

    def __init__(self, name, form, shape, batch, warm):
        torch.set_float32_matmul_precision("high")
        # Both passes are compiled before the first runs, so that nothing is held meanwhile.
        if hasattr(functorch_config, "force_non_lazy_backward_lowering"):
            functorch_config.force_non_lazy_backward_lowering = True
        self.name, self.form, self.shape, self.batch = name, form, shape, batch
        started = time.perf_counter()
        tokens = torch.randint(0, self.shape.vocab, (batch, self.shape.time + 1), device="cuda")
        self.model, self.optimizer = build(name, form, self.shape, "cuda", tokens[:, :-1])
        self.step = step_of(torch.compile(self.model), self.optimizer, tokens[:, :-1].contiguous(),
                            tokens[:, 1:].contiguous(), "cuda")
        self.warm_up(warm)
        self.prepared = time.perf_counter() - started

    def warm_up(self, steps):
        """Compiles. Others may do the same on this GPU: it waits where they leave no memory."""
        until = time.perf_counter() + PATIENCE
        while steps > 0:
            try:
                self.step()
                steps -= 1
            except torch.OutOfMemoryError:
                if time.perf_counter() > until:
                    raise
                self.optimizer.zero_grad(set_to_none=True)
                torch.cuda.empty_cache()
                time.sleep(random.uniform(0.5, 2))
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def measure(self, steps, warm, settle):
        for _ in range(warm):
            self.step()
        torch.cuda.synchronize()
        start = time.perf_counter()
        while time.perf_counter() - start < settle:
            self.step()
            torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        for _ in range(steps):
            loss = self.step()
        torch.cuda.synchronize()
        seconds = (time.perf_counter() - start) / steps
        peak = torch.cuda.max_memory_allocated() / GIB
        torch.cuda.empty_cache()  # it waits, and others are to have the memory
        return dict(variant=self.name, form=self.form, tokens_per_s=self.batch * self.shape.time / seconds,
                    seconds=seconds, gib=peak, loss=float(loss),
                    parameters=sum(p.numel() for p in self.model.parameters()), prepared=self.prepared)


def explain(name, form, problem):
    text = f"{type(problem).__name__}: {problem}".strip().splitlines()
    return dict(variant=name, form=form, error=next((line for line in text if line.strip()), "?")[:300])


def serve(job, shape, batch, steps, warm, settle):
    """Compiles, says so, and measures once for each line that is read."""
    name, form = job.split(":")
    try:
        trial = Trial(name, form, shape, batch, warm)
    except Exception as problem:  # a form that this PyTorch cannot run is no row
        print(json.dumps(explain(name, form, problem)), flush=True)
        return 1
    print(json.dumps(dict(variant=name, form=form, ready=trial.prepared)), flush=True)
    for _ in sys.stdin:
        print(json.dumps(trial.measure(steps, warm, settle)), flush=True)
    return 0


def pieces(s, module, name, p):
    """A parameter under weft's names, cut where one product here makes what weft has apart."""
    base, end = name.partition(".")[0], name.partition(".")[2] or "weight"
    if name == "kv_up":
        up = p.view(s.heads, 2 * s.head, s.latent)
        return dict(q_latent=up[:, : s.head], v_up=up[:, s.head :].transpose(1, 2))
    if name in ("q_latent", "v_up", "log_tau", "weight", "bias"):
        return {name: p}
    if name == "q" and s.rank:
        q, turned = p.view(s.heads, -1, s.rank).split([s.head, s.rotated], dim=1)
        return {"q.weight": q.flatten(0, 1), "q_rope.weight": turned.flatten(0, 1)}
    if name == "gains":
        return {"q_norm.weight": p[0], "k_norm.weight": p[1]}
    cuts = dict(w13=("w1 w3", s.hidden), kv_down=("k_down v_down", s.latent), qk=("q k", [2 * s.width, 2 * s.kv * s.head]),
                down=("q_down k_down k_rope", [s.rank, s.latents * s.latent, s.rotated]))
    if base == "qkv" and (s.tied or len(module.made) == 1):
        cuts["qkv"] = "q kv k_rope", module.made
    whole = dict(o="out", gate="out_gate", z="z_proj", cross="cross_proj", rank_gain="q_down_norm", latent_gain="latent_norm")
    names, sizes = cuts.get(base, (whole.get(base, base), len(p)))
    return {f"{n}.{end}": part for n, part in zip(names.split(), p.split(sizes))}


def reference(row, model, tokens, targets):
    """The loss by tests/reference/model.py, f64, of the same parameters. The row's options are those that weft is given."""
    import grid_cuda
    from model import loss_parts
    from model_config import KEYS, check_config, parse_value

    torch.set_default_dtype(torch.float32)  # they set another
    s, v = model.s, model.v
    config = {key: default for key, (_, default) in KEYS.items()} | dict(
        ATTENTION=v["attention"], FFN=v["ffn"], NORM="layernorm", DROPOUT=0.0, WSFFN_Z_PROJ="grouped" if v.get("grouped") else "dense",
        **{f"RA_MLA_MLP_{key}": bool(v.get(word)) for key, word in dict(ATTN_GATE="gate", CROSS_TOKEN="cross", LATENT_RECIP="latent").items()})
    for word in grid_cuda.options_of(row)[1::2]:
        key, value = word.split("=")
        config[key] = parse_value(key, value)
    check_config(config)
    found = {} if model.wpe is None else {"wpe.weight": model.wpe}
    found |= {"wte.weight": model.wte, "ln_f.weight": model.norm.weight, "ln_f.bias": model.norm.bias}
    for branch, modules in dict(ln_1=model.norm1, attn=model.attention, ln_2=model.norm2, ffn=model.ffn).items():
        for i, m in enumerate(modules):
            for name, p in m.named_parameters():
                found |= {f"h.{i}.{branch}.{n}": part for n, part in pieces(s, m, name, p).items()}
    return loss_parts(config, {n: p.double() for n, p in found.items()}, tokens, targets)["loss"]


def check():
    """Losses and gradients of every form and of the formulas, with weights large enough that each part is felt."""
    import grid_cuda

    sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "reference"))
    rows = [grid_cuda.step("", name, 16, 32, 24, vocab=64, latent=16, layers=2, batch=3, forms=forms_of(name, ["all"])) for name in VARIANTS]
    small = dict(layers=2, time=24, vocab=16, latent=16)
    for row in grid_cuda.list_parts():
        less = {key: few for key, few in dict(rotated=8, rope_dim=8, rank=24).items() if key in row["shape"]}
        rows.append(row | dict(batch=3, shape=row["shape"] | small | less | dict(width=16 * row["shape"]["heads"])))
    bad = 0
    for row in rows:
        first, worst, losses, shape = None, 0.0, [], Shape(**row["shape"])
        for form in ["reference"] + row["forms"]:
            torch.manual_seed(2)
            tokens = torch.randint(0, shape.vocab, (3, shape.time + 1))
            model, _ = build(row["variant"], form, shape, "cpu", tokens[:, :-1])
            torch.manual_seed(3)
            with torch.no_grad():
                for p in model.parameters():
                    p.mul_(3).add_(0.5 * shape.width**-0.5 * torch.randn_like(p))
            with torch.set_grad_enabled("flex" not in form):  # it has no gradient on the CPU
                inputs = tokens[:, :-1], tokens[:, 1:]
                loss = reference(row, model, *inputs) if form == "reference" else model(*inputs)
            if loss.requires_grad:
                loss.backward()
            grads = {n: torch.zeros(1) if p.grad is None else p.grad for n, p in model.named_parameters()}
            first = first or (loss.detach(), grads)
            losses.append(f"{form} {loss.item():.5f}")
            worst = max(worst, abs(loss.item() - first[0].item()))
            if loss.requires_grad:
                worst = max([worst] + [float((grads[n] - g).norm() / g.norm().clamp(min=1e-6)) for n, g in first[1].items()])
        bad += not worst < 1e-3
        print(f"{grid_cuda.name_of(row) if row['part'] else row['variant']:60} {worst:.1e}  " + "  ".join(losses), flush=True)
    return 1 if bad else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--forms", default="", help="only these forms; all: every one")
    parser.add_argument("--shape", type=json.loads, default={}, help="an object; see Shape")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm", type=int, default=4)
    parser.add_argument("--settle", type=float, default=0, help="seconds of steps before those that are measured")
    parser.add_argument("--json", action="store_true", help="one object per line")
    parser.add_argument("--check", action="store_true", help="the forms are the same function (CPU)")
    parser.add_argument("--worker", metavar="VARIANT:FORM", help="compile, then measure a line of input at a time")
    parser.add_argument("--list", action="store_true", help="VARIANT:FORM a line, nothing is run")
    args = parser.parse_args()
    shape, wanted = Shape(**args.shape), [f for f in args.forms.split(",") if f]
    jobs = [(name, form) for name in map(current, args.variants.split(",")) for form in forms_of(name, wanted)]
    if args.list:
        print("\n".join(f"{name}:{form}" for name, form in jobs))
        return 0
    if args.check:
        return check()
    if args.worker:
        return serve(args.worker, shape, args.batch, args.steps, args.warm, args.settle)
    for name, form in jobs:
        try:
            row = Trial(name, form, shape, args.batch, args.warm).measure(args.steps, args.warm, args.settle)
        except Exception as problem:  # a form that this PyTorch cannot run is no row
            row = explain(name, form, problem)
        torch._dynamo.reset()
        if args.json:
            print(json.dumps(row), flush=True)
        elif "error" in row:
            print(f"{name:14} {form:16} {row['error']}", flush=True)
        else:
            print(f"{name:14} {form:16} {row['tokens_per_s']:10,.0f} tok/s {row['gib']:6.1f} GiB  "
                  f"{row['parameters'] / 1e6:.1f} M", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
