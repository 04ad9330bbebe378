"""PyTorch's training step beside weft's: `weft bench train --peer "python bench/peer_train.py"`.

One JSON request per line on standard input, one JSON reply per line on standard output:

    {"do": "hello", "threads": 2}        -> {"name": "PyTorch 2.9.0, eager", "threads": 2}
    {"do": "prepare", "model": FOLDER, "tokens": [[...], ...], "rate": 6e-4, "steps": 2, "eager": false}
                                         -> {"losses": [...], "form": "sdpa", "forms": {"sdpa": 1.2, ...}}
    {"do": "run", "repeats": 3}          -> {"seconds": [...]}
    {"do": "drop"}                       -> {}

A request that cannot be met is answered {"error": "one line"}. FOLDER holds config.json and
model.safetensors; tokens are [B, T+1]. `losses` are those of the first steps on these weights and
tokens: equal losses before and after an update mean that the same function, its gradients and the
same optimizer are timed. With "eager" nothing is compiled, whatever the options say.

Every variant is what one would write for eager PyTorch: fused AdamW, cross_entropy on whole logits,
and up to four forms, each timed, the fastest kept: `expanded`, the formula with its T x T matrices;
`sdpa`, the same brought to scaled_dot_product_attention (for w2 the key's square becomes one more column;
where the attention's weights are wanted too they are made once more, without a gradient); `cheap`,
that with the algebra that weft has: mla by head, cross-token behind the maps that read h, WsFFN's losses
from a Gram matrix; and `cheap-expanded`, that algebra with T x T matrices, which is the fastest where
scaled_dot_product_attention is slow. `--form NAME` takes one of them. With `--compile` the fastest is compiled too
(torch.compile), and the faster of both kept. The compiler's files then lie in a temporary folder, unless
TORCHINDUCTOR_CACHE_DIR names one: processes that were held to different instruction sets and shared it were seen to
abort. Weights in bf16 are trained as PyTorch does it: kept in f32, with the
forward pass under bf16 autocast.
"""

import argparse
import json
import math
import os
import sys
import tempfile
import time

from conversation import converse, row_requests, torch

if torch:
    import torch.nn.functional as F

FORMS = ("expanded", "sdpa", "cheap", "cheap-expanded")


def read_safetensors(path):
    """The tensors of a file as f32, by name, and whether some are bf16: a length, a header in JSON, then the bytes."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        data = bytearray(file.read())
    types = {"F32": torch.float32, "BF16": torch.bfloat16}
    tensors, narrow = {}, False
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in types:
            raise ValueError(f"{name} is {entry['dtype']}; the peer reads F32 and BF16")
        dtype, (first, last) = types[entry["dtype"]], entry["data_offsets"]
        flat = torch.frombuffer(data, dtype=dtype, offset=first, count=(last - first) // dtype.itemsize)
        tensors[name] = flat.reshape(entry["shape"]).to(torch.float32, copy=True)
        narrow |= entry["dtype"] == "BF16"
    return tensors, narrow


def refuse(c):
    for key, value in (("causal", False), ("norm_placement", "post"), ("norm_placement", "reordered"),
                       ("norm_placement", "both"), ("ffn", "geglu"), ("position", "alibi"), ("position", "relative"),
                       ("w2_kernel", "overlap") if c["attention"] == "w2" else (None, None)):
        if key and c[key] == value:
            raise ValueError(f"the peer does not write {key}={value}")
    if c["dropout"] > 0 or c["ra_mla_ra_alpha"] > 0 or c["optimizer"] != "adamw":
        raise ValueError("the peer writes no dropout, no reciprocal scoring and no optimizer but adamw")


def goes_by_head(c):
    """Whether mla's latent can be mapped to each head's keys and values: nothing rotates or squares it."""
    rotated = c["ra_mla_use_rope"] or c["position"] == "rope" or c["ra_mla_score"] == "w2"
    return c["attention"] == "mla" and not rotated and c["ra_mla_per_head_q_latent"] and c["ra_mla_per_head_v_up"]


def crosses_behind(c):
    """Whether cross-token can gather what the maps made of h: W_c is of full rank."""
    return c["ra_mla_mlp_cross_token"] and not c["ra_mla_mlp_cross_rank"]


def forms_of(c, wanted):
    has_cheap = goes_by_head(c) or crosses_behind(c) or (c["ffn"] == "wsffn" and c["wsffn_aux_loss"])
    return [f for f in wanted if not f.startswith("cheap") or has_cheap] or list(wanted)


class Model:
    def __init__(self, config, tensors, form):
        refuse(config)
        self.c, self.cheap, self.expanded = config, form.startswith("cheap"), form.endswith("expanded")
        self.p = {name: torch.nn.Parameter(value.clone()) for name, value in tensors.items()}
        self.layers = []
        for i in range(config["n_layer"]):
            start = f"h.{i}."
            self.layers.append({n[len(start):]: t for n, t in self.p.items() if n.startswith(start)})
        t = config["context"]
        self.mask = torch.full((t, t), float("-inf")).triu(1)
        self.rotation = {}

    def norm(self, x, p, name):
        shape, weight = (x.shape[-1],), p[f"{name}.weight"]
        if self.c["norm"] == "layernorm":
            return F.layer_norm(x, shape, weight, p.get(f"{name}.bias"), 1e-5)
        return F.rms_norm(x, shape, weight, 1e-6)

    def rope(self, x):
        """Rotates the pairs (i, i + width/2) of [B, H, T, width]."""
        t, width = x.shape[-2:]
        if (t, width) not in self.rotation:
            rate = 10000.0 ** (-2.0 * torch.arange(width // 2, dtype=torch.float64) / width)
            angle = torch.arange(t, dtype=torch.float64)[:, None] * rate
            self.rotation[t, width] = angle.cos().float(), angle.sin().float()
        cos, sin = self.rotation[t, width]
        low, high = x.chunk(2, -1)
        return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)

    def heads(self, x, n):
        """[B, T, n·width] -> [B, n, T, width]."""
        return x.view(*x.shape[:2], n, -1).transpose(1, 2)

    def attend(self, q, k, v, scale, bias=None):
        """o [B, H, T, dv] and, where cross-token wants them, the weights [B, H, T, T]. q [B, H, T, d];
        k, v [B, H or 1, T, d]; bias [B, H, T]: a number per key."""
        wanted = self.c["ra_mla_mlp_cross_token"]
        t, h = q.shape[2], q.shape[1]
        mask = self.mask[:t, :t]

        def weights():
            added = mask if bias is None else mask + bias.unsqueeze(-2)
            return ((q * scale) @ k.mT + added).softmax(-1)

        if self.expanded:
            p = weights()
            return p @ v, p.detach() if wanted else None
        width = v.shape[-1]
        k_all, v_all, q_all = k.expand(-1, h, -1, -1), v.expand(-1, h, -1, -1), q
        if bias is not None:
            q_all = torch.cat([q * scale, torch.ones_like(q[..., :1])], -1)
            k_all = torch.cat([k_all, bias.unsqueeze(-1)], -1)
            v_all = F.pad(v_all, (0, k_all.shape[-1] - width))
            scale_all = 1.0
        else:
            scale_all = scale
        o = F.scaled_dot_product_attention(q_all, k_all, v_all, is_causal=True, scale=scale_all)[..., :width]
        with torch.no_grad():
            return o, weights() if wanted else None

    def attend_w2(self, p, q, k, v):
        """q, k are [mean, rho] along the last dimension."""
        (mq, rq), (mk, rk) = q.chunk(2, -1), k.chunk(2, -1)
        if self.rotates():
            mq, mk = self.rope(mq), self.rope(mk)
        q, k = torch.cat([mq, F.softplus(rq)], -1), torch.cat([mk, F.softplus(rk)], -1)
        if self.c["w2_tau_learned"]:
            tau = p["attn.log_tau"].exp()
        else:
            tau = torch.full((self.c["n_head"],), self.c["w2_tau"] or 2 * math.sqrt(mq.shape[-1]))
        rate = 1 / (tau + 1e-6)
        return self.attend(q * (2 * rate).view(-1, 1, 1), k, v, 1.0, -rate.view(-1, 1) * k.square().sum(-1))

    def rotates(self):
        latent = self.c["attention"] == "mla" and self.c["ra_mla_use_rope"]
        return latent or self.c["position"] == "rope"

    def dot(self, p, x):
        """dot, and cosine: q and k of length 1 over a temperature for each head."""
        h, kv = self.c["n_head"], self.c["kv_heads"] or self.c["n_head"]
        packed = F.linear(x, p["attn.qkv.weight"], p.get("attn.qkv.bias"))
        q, k, v = self.heads(packed, h + 2 * kv).split((h, kv, kv), 1)
        cosine = self.c["attention"] == "cosine"
        if cosine:
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        if self.rotates():
            q, k = self.rope(q), self.rope(k)
        if kv < h:
            k, v = (y.repeat_interleave(h // kv, 1) for y in (k, v))
        if cosine:
            return *self.attend(q * torch.exp(-p["attn.log_tau"]).view(-1, 1, 1), k, v, 1.0), None
        return *self.attend(q, k, v, q.shape[-1] ** -0.5), None

    def w2(self, p, x):
        q, k, v = (self.heads(F.linear(x, p[f"attn.{n}.weight"]), self.c["n_head"]) for n in "qkv")
        return *self.attend_w2(p, q, k, v), None

    def mla(self, p, x, received):
        c, h = self.c, self.c["n_head"]
        latent = F.linear(x, p["attn.k_down.weight"])
        if received is not None:
            latent = latent + c["ra_mla_mlp_recip_alpha"] * received
        values = latent if c["ra_mla_joint_kv"] else F.linear(x, p["attn.v_down.weight"])
        q = F.linear(x, p["attn.q.weight"])
        if self.cheap and goes_by_head(c):
            width = latent.shape[-1]
            k = F.linear(latent, p["attn.q_latent"].reshape(-1, width))
            v = F.linear(values, p["attn.v_up"].mT.reshape(-1, width))
            o, weights = self.attend(self.heads(q, h), self.heads(k, h), self.heads(v, h), width ** -0.5)
            return o, weights, latent
        if c["ra_mla_per_head_q_latent"]:
            q = self.heads(q, h) @ p["attn.q_latent"]
        else:
            q = (q @ p["attn.q_latent"]).unsqueeze(1).expand(-1, h, -1, -1)
        k, v = latent.unsqueeze(1), values.unsqueeze(1)
        if c["ra_mla_score"] == "w2":
            o, weights = self.attend_w2(p, q, k, v)
        else:
            if self.rotates():
                q, k = self.rope(q), self.rope(k)
            o, weights = self.attend(q, k, v, q.shape[-1] ** -0.5)
        return o @ p["attn.v_up"], weights, latent

    def attention(self, p, x, gate, received):
        kind = self.c["attention"]
        o, weights, latent = self.mla(p, x, received) if kind == "mla" else (self.w2 if kind == "w2" else self.dot)(p, x)
        if gate is not None:
            alpha = self.c["ra_mla_mlp_gate_alpha"]
            o = o * (1 - alpha + alpha * gate.transpose(1, 2).unsqueeze(-1))
        o = o.transpose(1, 2).reshape(x.shape)
        return F.linear(o, p["attn.out.weight"], p.get("attn.out.bias")), weights, latent

    def routes(self, weights):
        """R [B, T, T], sparse, as a constant."""
        c = self.c
        with torch.no_grad():
            r = weights.mean(1) if c["ra_mla_mlp_sparse_head_average"] else weights.amax(1)
            t = r.shape[-1]
            if c["ra_mla_mlp_sparse_mode"] == "topk":
                value, index = r.topk(min(c["ra_mla_mlp_sparse_k"], t), -1)
                r = torch.zeros_like(r).scatter_(-1, index, value)
            elif c["ra_mla_mlp_sparse_mode"] == "rms":
                seen = torch.arange(1, t + 1).view(t, 1)
                limit = c["ra_mla_mlp_sparse_rms_threshold"] * (r.square().sum(-1, keepdim=True) / seen).sqrt()
                r = r * (r >= limit)
            return r / r.sum(-1, keepdim=True) if c["ra_mla_mlp_sparse_normalize"] else r

    def exchange(self, p, h, latent):
        """u for the next layer's latent, and e for this layer's h."""
        c, mode = self.c, self.c["ra_mla_mlp_tying_mode"]
        if mode == "tied_transpose":
            return h @ p["ffn.couple.weight"], F.linear(latent, p["ffn.couple.weight"])
        if mode == "untied":
            u = F.linear(F.linear(h, p["ffn.mlp_down.weight"]), p["ffn.mlp_to_attn.weight"])
            return u, F.linear(latent, p["ffn.attn_to_mlp.weight"])
        n, wide, narrow = c["n_head"], h.shape[-1], latent.shape[-1]
        u = h.view(*h.shape[:2], n, narrow // n, wide // narrow).mean(-1) * self.p["couple.mlp_to_attn"].view(n, 1)
        e = latent.view(*latent.shape[:2], n, -1) * self.p["couple.attn_to_mlp"].view(n, 1)
        return u.flatten(2), e.flatten(2).repeat_interleave(wide // narrow, -1)

    def wsffn_losses(self, p, x, h1):
        c, n = self.c, self.c["wsffn_n_head"]
        w = p["ffn.z_proj.weight"]
        if self.cheap:
            w1 = p["ffn.w1.weight"]
            q = w @ w1 if w.ndim == 2 else (w @ w1.view(n, -1, w1.shape[-1])).flatten(0, 1)
            rows = x.flatten(0, 1)
            loss = c["wsffn_lambda_z"] * ((q @ (rows.mT @ rows)) * q).sum() / (rows.shape[0] * n)
            return self.contrast(F.linear(x.mean(1), q).view(x.shape[0] * n, -1), loss)
        if c["wsffn_z_proj"] == "dense":
            z = F.linear(h1, w).view(*h1.shape[:2], n, -1)
        else:
            z = (h1.view(-1, n, h1.shape[-1] // n).transpose(0, 1) @ w.mT).transpose(0, 1).view(*h1.shape[:2], n, -1)
        loss = c["wsffn_lambda_z"] * z.square().sum(-1).mean()
        return self.contrast(z.mean(1).flatten(0, 1), loss)

    def contrast(self, context, loss):
        """The loss with InfoNCE of the context vectors added."""
        c, unit = self.c, F.normalize(context, dim=-1, eps=1e-8)
        if unit.shape[0] < 2:
            return loss
        scores = unit @ unit.T / c["wsffn_tau"]
        return loss + c["wsffn_lambda_c"] * F.cross_entropy(scores, torch.arange(scores.shape[0]))

    def feed_forward(self, p, x, weights, latent):
        """The branch's output, the next layer's gate and u, and the auxiliary loss."""
        c, gate, u, loss = self.c, None, None, 0.0
        if c["ffn"] == "gelu":
            h = F.gelu(F.linear(x, p["ffn.fc.weight"], p.get("ffn.fc.bias")), approximate="tanh")
        else:
            h1 = F.linear(x, p["ffn.w1.weight"])
            h = F.silu(F.linear(x, p["ffn.w3.weight"])) * h1
            if c["ffn"] == "wsffn" and c["wsffn_aux_loss"]:
                loss = self.wsffn_losses(p, x, h1)
        if c["ra_mla_mlp_latent_recip"]:
            u, e = self.exchange(p, h, latent)
            h = h + c["ra_mla_mlp_recip_alpha"] * e
        behind, routes, cross = self.cheap and crosses_behind(c), None, None
        if behind:
            routes, cross = self.routes(weights), p["ffn.cross_proj.weight"]
        elif c["ra_mla_mlp_cross_token"]:
            carried = self.routes(weights) @ h
            if c["ra_mla_mlp_cross_rank"]:
                added = F.linear(F.linear(carried, p["ffn.cross_down.weight"]), p["ffn.cross_up.weight"])
            else:
                added = F.linear(carried, p["ffn.cross_proj.weight"])
            h = h + c["ra_mla_mlp_cross_alpha"] * added

        def read(name, bias=None):
            """A map of h, with what cross-token adds."""
            y = F.linear(h, p[name], bias)
            if not behind:
                return y
            return y + routes @ F.linear(h, c["ra_mla_mlp_cross_alpha"] * (p[name] @ cross))

        if c["ra_mla_mlp_attn_gate"]:
            a = read("ffn.gate_proj.weight")
            if c["ra_mla_mlp_gate_pool"] == "cummean":
                a = a.cumsum(1) / torch.arange(1, a.shape[1] + 1).view(-1, 1)
            elif c["ra_mla_mlp_gate_pool"] == "sequence":
                a = a.mean(1, keepdim=True)
            gate = F.linear(a, p["ffn.gate_heads.weight"]).sigmoid()
        if c["ffn"] == "gelu":
            return read("ffn.proj.weight", p.get("ffn.proj.bias")), gate, u, loss
        return read("ffn.w2.weight"), gate, u, loss

    def loss(self, tokens, targets):
        x = F.embedding(tokens, self.p["wte.weight"])
        if self.c["position"] == "learned":
            x = x + self.p["wpe.weight"][: x.shape[1]]
        gate = u = None
        extra = 0.0
        for p in self.layers:
            y, weights, latent = self.attention(p, self.norm(x, p, "ln_1"), gate, u)
            x = x + y
            y, gate, u, loss = self.feed_forward(p, self.norm(x, p, "ln_2"), weights, latent)
            x = x + y
            extra = extra + loss
        x = self.norm(x, self.p, "ln_f")
        head = self.p["wte.weight"] if self.c["weight_tying"] else self.p["lm_head.weight"]
        logits = F.linear(x, head).flatten(0, 1)
        if self.c["lambda_logits_z"] > 0:
            lse = logits.logsumexp(-1)
            if self.c["logits_z_detach"]:
                lse = lse.detach()
            extra = extra + self.c["lambda_logits_z"] * lse.square().mean()
        return F.cross_entropy(logits, targets.flatten()) + extra


class Training:
    """A model, its optimizer and its batch: what is timed."""

    def __init__(self, config, tensors, tokens, rate, form, narrow):
        self.model, self.clip, self.narrow = Model(config, tensors, form), config["grad_clip"], narrow
        self.loss = self.model.loss
        self.tokens, self.targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
        self.parameters = list(self.model.p.values())
        groups = [{"params": [p for p in self.parameters if (p.ndim >= 2) == decays],
                   "weight_decay": config["weight_decay"] if decays else 0.0} for decays in (True, False)]
        options = {"lr": rate, "betas": (config["adam_beta1"], config["adam_beta2"]), "eps": config["adam_eps"]}
        groups = [g for g in groups if g["params"]]
        try:
            self.optimizer = torch.optim.AdamW(groups, fused=True, **options)
        except (RuntimeError, TypeError):  # an older PyTorch has no fused one on CPUs
            self.optimizer = torch.optim.AdamW(groups, **options)

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.narrow):
            loss = self.loss(self.tokens, self.targets)
        loss.backward()
        if self.clip > 0:
            torch.nn.utils.clip_grad_norm_(self.parameters, self.clip)
        self.optimizer.step()
        return loss.item()

    def timed(self):
        start = time.perf_counter()
        self.step()
        return time.perf_counter() - start


def keep_compiled(training, form, times):
    """The name of the form, compiled if that is faster; a compiler that fails is told and left out."""
    eager = min(training.timed() for _ in range(2))
    torch.compiler.reset()  # else it gives up after a few rows, whose models are one function to it
    training.loss = torch.compile(training.model.loss, dynamic=False)
    try:
        training.step()
        times[form + " compiled"] = min(training.timed() for _ in range(2))
    except Exception as problem:  # no C++ compiler, an operation that it does not take, ...
        print(f"torch.compile: {type(problem).__name__}: {problem}".splitlines()[0], file=sys.stderr)
        times[form + " compiled"] = math.inf
    if times[form + " compiled"] < eager:
        return form + " compiled"
    training.loss = training.model.loss
    return form


def prepare(request, forms, compiles):
    with open(os.path.join(request["model"], "config.json")) as file:
        config = json.load(file)
    tensors, narrow = read_safetensors(os.path.join(request["model"], "model.safetensors"))
    tokens = torch.tensor(request["tokens"], dtype=torch.int64)
    best, times, forms = None, {}, forms_of(config, forms)
    for form in forms:
        training = Training(config, tensors, tokens, request["rate"], form, narrow)
        losses = [training.step() for _ in range(request["steps"])]
        times[form] = training.timed() if len(forms) > 1 else 0.0
        if best is None or times[form] < times[best[0]]:
            best = (form, training, losses)
        del training
    form, training, losses = best
    if compiles and not request.get("eager"):
        form = keep_compiled(training, form, times)
    return training, {"losses": losses, "form": form, "forms": {k: v for k, v in times.items() if v < math.inf}}


def main():
    options = argparse.ArgumentParser(description="PyTorch's side of weft bench train")
    options.add_argument("--form", choices=FORMS, help="the form of attention; without it, the fastest one")
    options.add_argument("--compile", action="store_true", help="compile the fastest form too, and keep the faster")
    options = options.parse_args()
    forms = (options.form,) if options.form else FORMS
    how = ", the faster of eager and compiled" if options.compile else ", eager"
    with tempfile.TemporaryDirectory(prefix="weft-bench-", ignore_cleanup_errors=True) as folder:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", folder)
        converse(row_requests(lambda request: prepare(request, forms, options.compile)), how)


if __name__ == "__main__":
    main()
