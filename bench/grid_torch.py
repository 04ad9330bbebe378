"""Every module of weft.torch beside the same function in plain PyTorch, over a grid of shapes.

    python bench/grid_torch.py [--device cpu|cuda] [--rows w2,mla] [--shapes 2x64x512x8,...] [--compiled]
                               [--threads N] [--dtype bfloat16] [--rounds N] [--budget SECONDS] [--json FILE]

A row is a module at a shape (batch x time x width x heads; a feed-forward is four times as wide), forward and backward: the
median over rounds in which both take turns, and the ratio, PyTorch's time over weft's: above 1, weft is faster. Below the table
are the geometric mean of each module and of all rows, and the worst row. `off` is the largest difference of the outputs
over the largest output. PyTorch runs eager; --compiled gives its forms to torch.compile. float32 on the CPU, bfloat16 on
a GPU.
"""
import json
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

import torch
from torch import nn
from torch.nn import functional as F
from torch_modules import PlainMLA, PlainSwiGLU, PlainW2, Weighted, causal_softmax, choose_place, make_parser, measure

from weft.torch import (Config, MLAttention, ReciprocalBlock, ReciprocalFFN, RotaryEmbedding, SwiGLU, W2Attention,
                        W2TransformerBlock, WsFFN, masked, top_routes)

LATENT, TOP_K = 128, 8
SHAPES = {
    "cpu": "1x64x128x4,4x64x256x4,2x64x512x8,1x256x256x4,1x512x512x8,1x1024x256x4",
    "cuda": "2x64x512x8,64x128x256x4,8x512x512x8,16x1024x768x12,4x2048x1024x16,1x4096x1024x16",
}


class AttentionAlone(Weighted):
    """The attention of one of torch_modules' blocks."""

    def __init__(self, core, heads, block):
        super().__init__(core, heads)
        self.block, self.project, self.close = block, lambda x, p: block.project(self, x, p), lambda o, p: block.close(self, o, p)

    def forward(self, x):
        return self.block.attention(self, x, self.named())


class PlainOverlap(Weighted):
    def forward(self, x):
        rope = RotaryEmbedding(x.shape[-1] // self.heads)(x, seq_len=x.shape[1])
        return masked.attention(x, self.named(), self.heads, rope, torch.zeros(1, 1, 1, x.shape[1], dtype=x.dtype, device=x.device))


class PlainWsFFN(Weighted):
    def __init__(self, core, config):
        super().__init__(core, config.n_head)
        self.config = config

    def forward(self, x):
        p, c = self.named(), self.config
        h = F.linear(x, p["ffn.w1.weight"])
        y = F.linear(F.silu(F.linear(x, p["ffn.w3.weight"])) * h, p["ffn.w2.weight"])
        z = F.linear(h, p["ffn.z_proj.weight"]).unflatten(-1, (c.n_head, -1)).float()
        unit = F.normalize(z.mean(1).flatten(0, 1), dim=-1, eps=1e-8)
        scores = unit @ unit.T / c.tau
        return y, c.lambda_z * z.square().sum(-1).mean() + c.lambda_c * (scores.logsumexp(-1) - scores.diagonal()).mean()


def cross_token(h, routes, weight):
    index, share = routes
    rows = torch.arange(h.shape[0], device=h.device)[:, None, None]
    kept = share.masked_fill(index < 0, 0).to(h.dtype)
    return h + 0.3 * F.linear((h[rows, index.clamp_min(0).long()] * kept[..., None]).sum(2), weight)


class PlainReciprocalFFN(Weighted):
    """GELU that hears others along routes; its gate is not read, as in weft's timing."""

    def forward(self, x, routes):
        p = self.named()
        h = F.gelu(F.linear(x, p["ffn.fc.weight"], p["ffn.fc.bias"].to(x.dtype)), approximate="tanh")
        h = cross_token(h, routes, p["ffn.cross_proj.weight"])
        gate = F.linear(F.linear(h, p["ffn.gate_proj.weight"]), p["ffn.gate_heads.weight"])
        return F.linear(h, p["ffn.proj.weight"], p["ffn.proj.bias"].to(x.dtype)), gate


class PlainReciprocalBlock(Weighted):
    """A first layer: MLA, and GELU with all three mechanisms."""

    def forward(self, x):
        p = self.named()

        def norm(x, name):
            return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"].to(x.dtype), p[f"{name}.bias"].to(x.dtype), 1e-5)
        q, k, v = PlainMLA.project(self, norm(x, "ln_1"), p)
        weights = causal_softmax(q @ k.transpose(-1, -2) / math.sqrt(LATENT))
        x = x + PlainMLA.close(self, weights @ v, p)
        h = F.gelu(F.linear(norm(x, "ln_2"), p["ffn.fc.weight"], p["ffn.fc.bias"].to(x.dtype)), approximate="tanh")
        sent = 0.2 * h @ p["ffn.couple.weight"]
        h = h + 0.2 * F.linear(k[:, 0], p["ffn.couple.weight"])
        h = cross_token(h, top_routes(weights, TOP_K), p["ffn.cross_proj.weight"])
        gate = F.linear(F.linear(h, p["ffn.gate_proj.weight"]), p["ffn.gate_heads.weight"])
        return x + F.linear(h, p["ffn.proj.weight"], p["ffn.proj.bias"].to(x.dtype)), (gate, sent)


class First(nn.Module):
    """The tensor that the next layer's x is, of a module that makes more; `routes` go to one that wants them."""

    def __init__(self, module, routes=None):
        super().__init__()
        self.module, self.routes = module, routes

    def forward(self, x):
        return (self.module(x) if self.routes is None else self.module(x, self.routes))[0]


def make(name, shape):
    """A module of weft's and its plain form with the same weights."""
    batch, time, width, heads = shape
    if name in ("w2 attention", "overlap attention"):
        ours = W2Attention(width, heads, kernel="w2" if name == "w2 attention" else "overlap")
        return ours, AttentionAlone(ours.core, heads, PlainW2) if name == "w2 attention" else PlainOverlap(ours.core, heads)
    if name == "w2 block":
        config = type("C", (), dict(hidden_size=width, num_attention_heads=heads, intermediate_size=4 * width))
        ours = W2TransformerBlock(config)
        return ours, PlainW2(ours.core, heads)
    if name == "mla attention":
        ours = MLAttention(width, heads, latent_dim=LATENT)
        return ours, AttentionAlone(ours.core, heads, PlainMLA)
    if name == "swiglu":
        ours = SwiGLU(width, 4 * width)
        return ours, PlainSwiGLU(ours.core, heads)
    if name == "wsffn":
        ours = WsFFN(Config(d_model=width, d_ffn=4 * width, n_head=8))
        return ours, PlainWsFFN(ours.core, ours.config)
    if name == "reciprocal ffn":
        ours = ReciprocalFFN(width, num_attention_heads=heads, top_k=TOP_K)
        routes = top_routes(causal_softmax(torch.randn(batch, 1, time, time)), TOP_K)
        return First(ours, routes), First(PlainReciprocalFFN(ours.core, heads), routes)
    ours = ReciprocalBlock(width, heads, latent_dim=LATENT, top_k=TOP_K)
    return First(ours), First(PlainReciprocalBlock(ours.core, heads))


NAMES = ("w2 attention", "overlap attention", "w2 block", "mla attention", "swiglu", "wsffn", "reciprocal ffn", "reciprocal block")


def time_row(name, shape, device, kind, compiled, rounds, budget):
    torch.manual_seed(0)
    ours, plain = (module.to(device, kind) for module in make(name, shape))
    for module in (ours, plain):
        if isinstance(module, First) and module.routes is not None:
            module.routes = tuple(t.to(device) for t in module.routes)
    if compiled:
        torch._dynamo.reset()
        plain = torch.compile(plain, dynamic=False)
    times, off, _, _ = measure(device, kind, shape, {"weft": ours, "plain": plain}, True, rounds, budget)
    return {"module": name, "shape": "x".join(map(str, shape)), "weft_ms": 1e3 * times["weft"], "plain_ms": 1e3 * times["plain"],
            "ratio": times["plain"] / times["weft"], "off": off["plain"]}


def geometric_mean(rows):
    return math.exp(sum(math.log(r["ratio"]) for r in rows) / len(rows))


def print_summary(rows):
    for name in dict.fromkeys(r["module"] for r in rows):
        of = [r for r in rows if r["module"] == name]
        print(f"{name:<19}geometric mean {geometric_mean(of):6.2f}, least {min(r['ratio'] for r in of):6.2f}")
    worst = min(rows, key=lambda r: r["ratio"])
    print(f"all {len(rows)} rows: geometric mean {geometric_mean(rows):.2f}; worst: {worst['module']} {worst['shape']}, {worst['ratio']:.2f}")


def main():
    parser = make_parser(__doc__)
    parser.add_argument("--rows", default="", help="modules whose names contain one of these words; all unless given")
    parser.add_argument("--shapes", default="", help="batch x time x width x heads, with commas between")
    parser.add_argument("--compiled", action="store_true", help="plain PyTorch through torch.compile")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--budget", type=float, default=0.5, help="seconds for each form of a row")
    options = parser.parse_args()
    device, (kind, where) = options.device, choose_place(options)
    words = options.rows.split(",")
    names = [name for name in NAMES if any(word in name for word in words)]
    if not names:
        parser.error(f"no module has '{options.rows}' in its name; there are {', '.join(NAMES)}")
    shapes = [tuple(map(int, text.split("x"))) for text in (options.shapes or SHAPES[device]).split(",")]
    print(f"PyTorch {torch.__version__}{', compiled' if options.compiled else ''}, {where}, {str(kind).split('.')[1]}, forward and backward")
    print(f"{'module':<19}{'shape':<17}{'weft ms':>10}{'plain ms':>10}{'ratio':>7}{'off':>9}")
    rows = []
    for name in names:
        for shape in shapes:
            row = time_row(name, shape, device, kind, options.compiled, options.rounds, options.budget)
            rows.append(row)
            print(f"{name:<19}{row['shape']:<17}{row['weft_ms']:>10.3f}{row['plain_ms']:>10.3f}{row['ratio']:>7.2f}{row['off']:>9.0e}", flush=True)
    print()
    print_summary(rows)
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps({"torch": torch.__version__, "device": where, "dtype": str(kind).split(".")[1],
                                                          "compiled": options.compiled, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
