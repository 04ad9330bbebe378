"""PyTorch's decoding beside weft's: `weft bench decode --peer "python3 bench/peer_decode.py"`.

One JSON request per line on standard input, one JSON reply per line on standard output:

    {"do": "hello", "threads": 2}   -> {"name": "PyTorch 2.9.0", "threads": 2}
    {"do": "prepare", "rows": [requests]}
                                    -> {"compiled": 50}
    {"do": "decode", "config": {"attention": "dot", "n_layer": 12, ...}, "context": 4096, "batch": 1,
     "dtype": "bf16", "device": "cpu"}
                                    -> {"seconds": 0.05, "form": "sdpa"}

`config` is a config.json of weft. `seconds` is the median of a step: one token for each sequence, over caches that are
full up to the context and have the same type as the weights. Random weights. A config that it does not write is
answered {"error": "one line"}.

The model is what one would write for speed in PyTorch. Maps that read the same input are one product. Attention is
scaled_dot_product_attention over a static cache; query heads that share keys are rows of one query. w2's scores are those
of means and deviations beside each other, and its one number per key is an additive mask. mla reads its latent as one key
head that all query heads share, with the maps absorbed; it is timed with scaled_dot_product_attention and with
products and a softmax written out, and the faster one counts. Cross-token, which wants the weights of attention, has them
from the latter. What is linear behind the feed-forward's h is multiplied when the model is made: cross-token keeps
(M W_c) h or its r numbers, and the latent mechanism adds (M W) c^K (docs/internals/mathematics.md has the letters).
WsFFN is SwiGLU here: its losses are training's.

On a GPU ("device": "cuda") one function, a layer, is compiled by torch.compile, the whole step with the choice of the
likeliest token is captured as a CUDA graph, and the graph is replayed; afterwards its memory is given back, for weft's
next row. Compiling is what takes the time: `prepare` has several processes compile the rows side by side, while nothing
is timed, and each row is timed by the process that compiled it.

    python3 bench/peer_decode.py --check

compares its steps, token by token through the cache, with the whole pass of tests/reference/model.py, for every variant
of the grid at a small size, on the CPU in f64.
"""

import argparse
import contextlib
import gc
import json
import math
import os
import queue
import statistics
import subprocess
import sys
import threading
import time

from conversation import converse, torch

if torch:
    import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
WRITTEN = {"attention": ("dot", "w2", "mla"), "ffn": ("gelu", "swiglu", "wsffn"), "position": ("learned", "none", "rope"),
           "norm_placement": ("pre",), "attention_bias": ("auto",), "attention_gate": ("none",), "w2_kernel": ("w2",),
           "ra_mla_score": ("dot",), "ra_mla_mlp_gate_pool": ("token",), "ra_mla_mlp_sparse_mode": ("topk",),
           "ra_mla_mlp_tying_mode": ("tied_transpose",), "rope_scaling": ("none",)}
OFF = ["qk_norm", "window", "softcap_attention", "softcap_logits", "document_mask", "rope_dim", "nope_every", "ffn_bias",
       "parallel_residual", "w2_sigma_dim", "ra_mla_ra_alpha", "ra_mla_use_rope", "ra_mla_joint_kv", "ra_mla_rope_dim",
       "ra_mla_q_rank", "ra_mla_mlp_gate_open", "ra_mla_mlp_alpha_learned", "ra_mla_mlp_route_after_gate", "mup",
       "attention_scale"]
ON = ["causal", "weight_tying", "ra_mla_per_head_q_latent", "ra_mla_per_head_v_up", "ra_mla_mlp_sparse_normalize",
      "ra_mla_mlp_sparse_head_average", "w2_tau_learned"]
ONE = ["kv_share", "ra_mla_latent_heads", "embed_scale"]


def refuse(c):
    wrong = [k for k, words in WRITTEN.items() if c[k] not in words] + [k for k in OFF if c[k]]
    wrong += [k for k in ON if not c[k]] + [k for k in ONE if c[k] != 1]
    if c["attention"] == "mla" and c["position"] == "rope":
        wrong.append("position")
    if c["attention"] != "mla" and c["ra_mla_mlp_cross_token"]:
        wrong.append("ra_mla_mlp_cross_token")
    if wrong:
        raise ValueError("the peer does not write " + ", ".join(f"{k}={c[k]}" for k in wrong))


class Sizes:
    def __init__(self, c):
        self.width, self.heads, self.latent = c["n_embd"], c["n_head"], c["ra_mla_latent_dim"]
        self.head = c["head_dim"] or self.width // self.heads
        self.groups = c["kv_heads"] or self.heads
        self.hidden = c["n_ffn"] or 4 * self.width
        self.gate = c["ra_mla_mlp_gate_dim"] if c["ra_mla_mlp_attn_gate"] else 0
        self.rank = c["ra_mla_mlp_cross_rank"]
        self.cross = (self.rank or self.width + self.gate) if c["ra_mla_mlp_cross_token"] else 0


def norm_weights(c, name, tensor, width):
    """The gain and the bias, or None."""
    return tensor(f"{name}.weight", width), tensor(f"{name}.bias", width) if c["norm"] == "layernorm" and c["bias"] else None


def make_attention(c, s, tensor, cache):
    """A layer's weights and its caches, of `tensor(name, *shape)` and `cache(*shape)` without the batch and the tokens."""
    out = tensor("attn.out.weight", s.width, s.heads * s.head)
    if c["attention"] == "dot":
        rows = (s.heads + 2 * s.groups) * s.head
        layer = {"in": tensor("attn.qkv.weight", rows, s.width), "k": cache(s.groups, s.head), "v": cache(s.groups, s.head)}
        if c["bias"]:
            layer |= {"in_bias": tensor("attn.qkv.bias", rows), "out_bias": tensor("attn.out.bias", s.width)}
    elif c["attention"] == "w2":
        parts = [tensor("attn.q.weight", s.heads * 2 * s.head, s.width), tensor("attn.k.weight", s.groups * 2 * s.head, s.width),
                 tensor("attn.v.weight", s.groups * s.head, s.width)]
        rate = 1 / (tensor("attn.log_tau", s.heads).exp() + 1e-6)
        layer = {"in": torch.cat(parts), "rate": rate.view(s.groups, -1), "k": cache(s.groups, 2 * s.head),
                 "v": cache(s.groups, s.head), "n": cache(s.groups, 1).squeeze(-1).contiguous()}
    else:
        parts = [tensor("attn.q.weight", s.heads * s.head, s.width), tensor("attn.k_down.weight", s.latent, s.width),
                 tensor("attn.v_down.weight", s.latent, s.width)]
        layer = {"in": torch.cat(parts), "a": tensor("attn.q_latent", s.heads, s.head, s.latent),
                 "u": tensor("attn.v_up", s.heads, s.latent, s.head), "k": cache(1, s.latent), "v": cache(1, s.latent)}
    return layer | {"out": out}


def make_hidden(c, s, tensor, cache):
    """The feed-forward's. Everything that reads h is one matrix, `back`: the output, the gate's first map, what
    cross-token keeps, and what goes to the next layer's latent."""
    if c["ffn"] == "gelu":
        layer = {"fc": tensor("ffn.fc.weight", s.hidden, s.width)}
        back = tensor("ffn.proj.weight", s.width, s.hidden)
        if c["bias"]:
            layer |= {"fc_bias": tensor("ffn.fc.bias", s.hidden), "back_bias": tensor("ffn.proj.bias", s.width)}
    else:
        layer = {"fc": torch.cat([tensor("ffn.w1.weight", s.hidden, s.width), tensor("ffn.w3.weight", s.hidden, s.width)])}
        back = tensor("ffn.w2.weight", s.width, s.hidden)
    if s.gate:
        back = torch.cat([back, tensor("ffn.gate_proj.weight", s.gate, s.hidden)])
        layer["gate"] = tensor("ffn.gate_heads.weight", s.heads, s.gate)
    if s.rank:
        kept = tensor("ffn.cross_down.weight", s.rank, s.hidden)
        layer["up"] = back @ tensor("ffn.cross_up.weight", s.hidden, s.rank)
    elif s.cross:
        kept = back @ tensor("ffn.cross_proj.weight", s.hidden, s.hidden)
    if s.cross:
        back, layer["kept"] = torch.cat([back, kept]), cache(1, s.cross).squeeze(1)
    if c["ra_mla_mlp_latent_recip"]:
        couple = tensor("ffn.couple.weight", s.hidden, s.latent)
        layer["across"] = c["ra_mla_mlp_recip_alpha"] * (back @ couple)
        back = torch.cat([back, couple.T])
    if "back_bias" in layer:
        layer["back_bias"] = F.pad(layer["back_bias"], (0, back.shape[0] - s.width))
    return layer | {"back": back}


def make_layer(c, s, tensor, cache):
    norms = {f"norm_{i}": norm_weights(c, f"ln_{i}", tensor, s.width) for i in (1, 2)}
    return make_attention(c, s, tensor, cache) | make_hidden(c, s, tensor, cache) | norms


def normed(c, x, weights):
    gain, bias = weights
    if c["norm"] == "layernorm":
        return F.layer_norm(x, gain.shape, gain, bias, c["norm_eps"] or 1e-5)
    return F.rms_norm(x, gain.shape, gain, c["norm_eps"] or 1e-6)


def rotate(x, turn):
    low, high = x.chunk(2, -1)
    return torch.cat([low * turn[0] - high * turn[1], high * turn[0] + low * turn[1]], -1)


def attend_heads(c, s, layer, x, turn, at):
    """dot, and w2: whose second half of a query and a key is a deviation, and keys have a number."""
    batch, w2, across = x.shape[0], "n" in layer, layer["k"].shape[-1]
    sizes = [s.heads * across, s.groups * across, s.groups * s.head]
    q, k, v = F.linear(x, layer["in"], layer.get("in_bias")).split(sizes, dim=-1)
    q, k = q.view(batch, s.groups, -1, across), k.view(batch, s.groups, across)
    if turn is not None:
        q, k = (torch.cat([rotate(y[..., :s.head], turn), y[..., s.head:]], -1) for y in (q, k))
    mask = None
    if w2:
        q, k = (torch.cat([y[..., :s.head], F.softplus(y[..., s.head:])], -1) for y in (q, k))
        q = q * (2 * layer["rate"]).unsqueeze(-1)
        own = -k.square().sum(-1)
        if layer["rate"].shape[1] == 1:  # a key head for each query head: the mask itself is kept
            layer["n"][:, :, at] = own * layer["rate"].squeeze(-1)
            mask = layer["n"][:, :, None, :at + 1]
        else:
            layer["n"][:, :, at] = own
            mask = layer["n"][:, :, None, :at + 1] * layer["rate"].unsqueeze(-1)
    layer["k"][:, :, at], layer["v"][:, :, at] = k, v.view(batch, s.groups, s.head)
    scale = 1.0 if w2 else s.head ** -0.5
    return F.scaled_dot_product_attention(q, layer["k"][:, :, :at + 1], layer["v"][:, :, :at + 1], attn_mask=mask, scale=scale)


def attend_latent(c, s, layer, x, received, at, written_out):
    """What heads find, the weights [batch, heads, tokens] where they are written out, and the token's own c^K."""
    batch, scale = x.shape[0], s.latent ** -0.5
    q, k, v = F.linear(x, layer["in"]).split([s.heads * s.head, s.latent, s.latent], dim=-1)
    if received is not None:
        k = k + c["ra_mla_mlp_recip_alpha"] * received
    layer["k"][:, 0, at], layer["v"][:, 0, at] = k, v
    q = torch.einsum("bhd,hdl->bhl", q.view(batch, s.heads, s.head), layer["a"])
    keys, values, weights = layer["k"][:, :, :at + 1], layer["v"][:, :, :at + 1], None
    if written_out:
        scores = (q * scale) @ keys.squeeze(1).mT
        weights = scores.softmax(-1, dtype=torch.promote_types(x.dtype, torch.float32))
        o = weights.to(x.dtype) @ values.squeeze(1)
    else:  # all heads' queries are rows of one attention over the one key head
        o = F.scaled_dot_product_attention(q.unsqueeze(1), keys, values, scale=scale).squeeze(1)
    return torch.einsum("bhl,hld->bhd", o, layer["u"]), weights, k


def gather_kept(c, layer, weights, own, at):
    """Of what cross-token keeps, the rows of the tokens with the largest weights, by these."""
    layer["kept"][:, at] = own
    value, index = weights.mean(1).topk(min(c["ra_mla_mlp_sparse_k"], at + 1), -1, sorted=False)
    value = (value / value.sum(-1, keepdim=True)).to(own.dtype)
    rows = layer["kept"].gather(1, index.unsqueeze(-1).expand(-1, -1, own.shape[-1]))
    return (value.unsqueeze(-1) * rows).sum(1)


def feed_forward(c, s, layer, x, weights, latent, at):
    """The branch's output, and the gates and u of the next layer."""
    if c["ffn"] == "gelu":
        h = F.gelu(F.linear(x, layer["fc"], layer.get("fc_bias")), approximate="tanh")
    else:
        first, second = F.linear(x, layer["fc"]).chunk(2, -1)
        h = F.silu(second) * first
    read = s.width + s.gate
    y, own, u = F.linear(h, layer["back"], layer.get("back_bias")).tensor_split([read, read + s.cross], -1)
    if "across" in layer:
        more, more_own = F.linear(latent, layer["across"]).tensor_split([read], -1)
        y, own = y + more, own + more_own
    if s.cross:
        found = gather_kept(c, layer, weights, own, at)
        y = y + c["ra_mla_mlp_cross_alpha"] * (F.linear(found, layer["up"]) if s.rank else found)
    gate = F.linear(y[:, s.width:], layer["gate"]).sigmoid() if s.gate else None
    return y[:, :s.width], gate, u if "across" in layer else None


def run_layer(c, s, layer, x, gate, received, turn, at, written_out):
    y, weights, latent = normed(c, x, layer["norm_1"]), None, None
    if "a" in layer:
        o, weights, latent = attend_latent(c, s, layer, y, received, at, written_out)
    else:
        o = attend_heads(c, s, layer, y, turn, at)
    o = o.reshape(x.shape[0], s.heads, s.head)
    if gate is not None:
        alpha = c["ra_mla_mlp_gate_alpha"]
        o = o * (1 - alpha + alpha * gate).unsqueeze(-1)
    x = x + F.linear(o.flatten(1), layer["out"], layer.get("out_bias"))
    y, gate, u = feed_forward(c, s, layer, normed(c, x, layer["norm_2"]), weights, latent, at)
    return x + y, gate, u


class Model:
    """A model whose tensors come from `tensor(name, *shape)`, with zeros in the caches unless `fill` has others."""

    def __init__(self, c, batch, context, dtype, device, tensor, fill=None):
        refuse(c)
        fill = fill or (lambda *shape: torch.zeros(*shape, dtype=dtype, device=device))
        cache = lambda heads, width: fill(batch, heads, context, width)
        self.c, self.s, self.layers, self.one = c, Sizes(c), [], run_layer
        for i in range(c["n_layer"]):
            self.layers.append(make_layer(c, self.s, lambda name, *shape: tensor(f"h.{i}.{name}", *shape), cache))
        self.table = tensor("wte.weight", c["vocab_size"], self.s.width)
        self.places = tensor("wpe.weight", c["context"], self.s.width) if c["position"] == "learned" else None
        self.last = norm_weights(c, "ln_f", tensor, self.s.width)
        self.turns = self.angles(context, dtype, device) if c["position"] == "rope" else None

    def angles(self, context, dtype, device):
        """The cosines and sines of every position."""
        half = self.s.head // 2
        rates = self.c["rope_theta"] ** (-torch.arange(half, dtype=torch.float64) / half)
        angle = torch.arange(context, dtype=torch.float64)[:, None] * rates
        return torch.stack([angle.cos(), angle.sin()], 1).to(dtype=dtype, device=device)

    def run(self, token, at, written_out):
        """The logits behind one token for each sequence, at a position."""
        x = self.table[token] if self.places is None else self.table[token] + self.places[at]
        gate = u = None
        turn = None if self.turns is None else self.turns[at]
        for layer in self.layers:
            x, gate, u = self.one(self.c, self.s, layer, x, gate, u, turn, at, written_out)
        return F.linear(normed(self.c, x, self.last), self.table)


def make_random(request, layers=None):
    c, device = dict(request["config"]), request.get("device", "cpu")
    c["n_layer"] = layers or c["n_layer"]
    dtype = torch.bfloat16 if request["dtype"] == "bf16" else torch.float32
    fill = lambda *shape: torch.randn(*shape, dtype=dtype, device=device).mul_(0.02)
    tensor = lambda name, *shape: fill(*shape).add_(1) if len(shape) == 1 and name.endswith("weight") else fill(*shape)
    c["context"] = request["context"]  # positions beyond are not read
    model = Model(c, request["batch"], request["context"], dtype, device, tensor, fill)
    if device == "cuda":
        model.one = compiled()
    return model


COMPILED = []


def compiled():
    """run_layer, compiled for every form of it that is met."""
    if not COMPILED:
        for name in ("recompile_limit", "cache_size_limit", "accumulated_recompile_limit", "accumulated_cache_size_limit"):
            if hasattr(torch._dynamo.config, name):  # a new row is no reason to stop compiling
                setattr(torch._dynamo.config, name, 4096)
        COMPILED.append(torch.compile(run_layer, dynamic=False))
    return COMPILED[0]


def forms_of(c):
    """The ways to attend that are timed, and whether each writes the weights of attention out."""
    if c["ra_mla_mlp_cross_token"]:
        return {"products": True}
    return {"sdpa": False, "products": True} if c["attention"] == "mla" else {"sdpa": False}


def make_step(model, request, written_out):
    """A step that puts the likeliest tokens in the place of the last ones."""
    token = torch.zeros(request["batch"], dtype=torch.long, device=request.get("device", "cpu"))
    return lambda: token.copy_(model.run(token, request["context"] - 1, written_out).argmax(-1))


def capture(step):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def time_step(step, device):
    """The median of nine turns; on a GPU a turn is as many steps as take a thirtieth of a second."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times, at_once = [], 1
    if device == "cuda":
        step = capture(step)
    for i in range(-3, 9):
        wait()
        start = time.perf_counter()
        for _ in range(at_once):
            step()
        wait()
        taken = (time.perf_counter() - start) / at_once
        if i >= 0:
            times.append(taken)
        elif device == "cuda":
            at_once = max(1, min(200, int(0.03 / taken)))
    return statistics.median(times)


@contextlib.contextmanager
def given_back(request):
    """Memory that was taken inside is the GPU's again."""
    try:
        with torch.inference_mode():
            yield
    finally:
        if request.get("device") == "cuda":
            gc.collect()
            torch.cuda.empty_cache()


def time_forms(request):
    model, device = make_random(request), request.get("device", "cpu")
    forms = forms_of(model.c)
    times = {name: time_step(make_step(model, request, written_out), device) for name, written_out in forms.items()}
    best = min(times, key=times.get)
    return {"seconds": times[best], "form": best, "forms": times}


def compile_forms(request):
    model = make_random(request, layers=min(2, request["config"]["n_layer"]))  # the first layer, and any other
    for written_out in forms_of(model.c).values():
        make_step(model, request, written_out)()
    torch.cuda.synchronize()


def decode(request):
    refuse(request["config"])
    with given_back(request):
        return time_forms(request)


def compile_row(request):
    refuse(request["config"])
    with given_back(request):
        compile_forms(request)
    return {}


class Helper:
    """Another process of this program, which compiles rows and times them when it is told to."""

    def __init__(self):
        environment = dict(os.environ, TORCHINDUCTOR_COMPILE_THREADS="1", PYTHONWARNINGS="ignore")
        self.process = subprocess.Popen([sys.executable, os.path.abspath(__file__)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True, env=environment)

    def ask(self, request):
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
            while line and not line.startswith("{"):  # what a library says
                line = self.process.stdout.readline()
        except OSError:
            line = ""
        return json.loads(line) if line else {"error": "the process that compiled it is gone"}


OWNERS = {}  # a row's helper, by what the row is


def key_of(request):
    return json.dumps({k: v for k, v in request.items() if k != "do"}, sort_keys=True)


def compile_rows(rows):
    """A thread of it for each helper."""
    helper = Helper()
    helper.ask({"do": "hello", "threads": 1})
    while True:
        try:
            row = rows.get_nowait()
        except queue.Empty:
            return
        reply = helper.ask(dict(row, do="compile"))
        if "error" in reply:
            print(f"compiling: {reply['error']}", file=sys.stderr, flush=True)
        OWNERS[key_of(row)] = helper


def prepare(request):
    rows, asked = queue.Queue(), [row for row in request["rows"] if row.get("device") == "cuda"]
    # Large ones first, so that none begins when the others end.
    for row in sorted(asked, key=lambda row: -len(forms_of(row["config"])) * row["config"]["n_embd"]):
        rows.put(row)
    most, start = min(len(asked), max(1, (os.cpu_count() or 1) - 2)), time.perf_counter()
    threads = [threading.Thread(target=compile_rows, args=(rows,)) for _ in range(most)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if asked:
        print(f"PyTorch: {len(asked)} rows compiled by {most} processes in {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
    return {"compiled": len(OWNERS)}


def answer_decode(request):
    helper = OWNERS.get(key_of(request))
    return helper.ask(request) if helper else decode(request)


# What --check compares: the forms of the grid at sizes that divide nothing by chance.
CHECKED = {
    "dot": {}, "dot, heads of 16": dict(N_HEAD=3, N_EMBD=48), "dot, wide heads": dict(HEAD_DIM=24), "dot, no biases": dict(BIAS=False),
    "w2": dict(ATTENTION="w2"), "w2, rope, shared keys": dict(ATTENTION="w2", POSITION="rope", KV_HEADS=2),
    "mla": dict(ATTENTION="mla"), "mla+gate": dict(ATTENTION="mla", RA_MLA_MLP_ATTN_GATE=True),
    "mla+gate+cross": dict(ATTENTION="mla", RA_MLA_MLP_ATTN_GATE=True, RA_MLA_MLP_CROSS_TOKEN=True),
    "mla+gate+cross64": dict(ATTENTION="mla", RA_MLA_MLP_ATTN_GATE=True, RA_MLA_MLP_CROSS_TOKEN=True, RA_MLA_MLP_CROSS_RANK=6),
    "mla+all": dict(ATTENTION="mla", RA_MLA_MLP_ATTN_GATE=True, RA_MLA_MLP_CROSS_TOKEN=True, RA_MLA_MLP_LATENT_RECIP=True),
    "mla+all, rank": dict(ATTENTION="mla", RA_MLA_MLP_ATTN_GATE=True, RA_MLA_MLP_CROSS_TOKEN=True, RA_MLA_MLP_LATENT_RECIP=True,
                          RA_MLA_MLP_CROSS_RANK=6),
    "mla+all, swiglu": dict(ATTENTION="mla", FFN="swiglu", RA_MLA_MLP_ATTN_GATE=True, RA_MLA_MLP_CROSS_TOKEN=True,
                            RA_MLA_MLP_LATENT_RECIP=True),
    "wsffn": dict(FFN="wsffn"), "wsffn-grouped": dict(FFN="wsffn", WSFFN_Z_PROJ="grouped"),
    "llama": dict(FFN="swiglu", NORM="rmsnorm", POSITION="rope", KV_HEADS=2, BIAS=False, N_FFN=72, ROPE_THETA=500000.0),
}


def compare(name, more):
    """The largest difference of a logit between steps through the cache and the reference's whole pass."""
    import model as reference
    import model_config
    config = {key: default for key, (_, default) in model_config.KEYS.items()}
    config |= dict(ATTENTION="dot", FFN="gelu", POSITION="learned", NORM="layernorm", N_LAYER=3, N_HEAD=4, N_EMBD=32,
                   VOCAB_SIZE=40, CONTEXT=20, BATCH_SIZE=2, DROPOUT=0.0, RA_MLA_LATENT_DIM=10, RA_MLA_MLP_GATE_DIM=7,
                   RA_MLA_MLP_ATTN_GATE=False, RA_MLA_MLP_CROSS_TOKEN=False, RA_MLA_MLP_LATENT_RECIP=False) | more
    c = {key.lower(): value for key, value in config.items()}
    model_config.check_config(config)
    torch.manual_seed(len(name))
    draw = lambda shape: torch.randn(shape, dtype=torch.float64) * shape[-1] ** -0.5 if len(shape) > 1 else 1 + torch.randn(shape, dtype=torch.float64) / 3
    params = {name: draw(shape) for name, shape in model_config.parameter_shapes(config).items()}
    unread = {name for name in params if "z_proj" not in name}

    def tensor(name, *shape):
        unread.discard(name)
        return params[name].view(shape)

    ids = torch.randint(config["VOCAB_SIZE"], (config["BATCH_SIZE"], config["CONTEXT"]))
    whole = reference.forward(config, params, ids, reference.Constants())[0]
    worst = 0.0
    for written_out in forms_of(c).values():
        own = Model(c, *ids.shape, torch.float64, "cpu", tensor)
        steps = torch.stack([own.run(ids[:, t], t, written_out) for t in range(ids.shape[1])], 1)
        worst = max(worst, (steps - whole).abs().max().item())
    return worst if not unread else math.inf


def check():
    sys.dont_write_bytecode = True
    sys.path.append(os.path.join(HERE, "..", "tests", "reference"))
    failed = 0
    with torch.inference_mode():
        for name, more in CHECKED.items():
            worst = compare(name, more)
            failed += not worst < 1e-10
            print(f"{name}: {'the same' if worst < 1e-10 else 'ANOTHER FUNCTION'}, logits differ by {worst:.1e}", flush=True)
    return 1 if failed else 0


def main():
    options = argparse.ArgumentParser(description="PyTorch's side of weft bench decode")
    options.add_argument("--check", action="store_true", help="compare its models with tests/reference, on the CPU")
    if options.parse_args().check:
        return check() if torch else "PyTorch cannot be imported"
    converse({"decode": answer_decode, "compile": compile_row, "prepare": prepare})
    return 0


if __name__ == "__main__":
    sys.exit(main())
