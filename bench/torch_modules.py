"""weft's modules beside the same function in plain and in compiled PyTorch.

    python bench/torch_modules.py [--device cpu|cuda] [--rows w2,mla,wsffn] [--shapes write-up,GPT-2]
                                     [--forms plain,compiled] [--threads N] [--dtype bfloat16] [--quick] [--json FILE]
                                     [--usage]

Each row is one module at one shape, forward alone and with backward: a time for weft and for each form
of PyTorch, taken in turns in one run (the median of the rounds), the ratio (PyTorch's time over weft's:
above 1, weft is faster), and the memory. On a GPU that is the peak above what is there before the call,
cuBLAS's workspace included; on the CPU the bytes that the forward pass keeps for the backward pass. Forms
of PyTorch:

    plain     the formula as the write-up has it, eager
    compiled  the same through torch.compile
    sdpa      w2 and mla: the best known way to write it, through torch.compile. w2's distance is a dot
              product with one number per key, which scaled_dot_product_attention takes as a mask
    products  the products with the weights and nothing else. Where these are most of the time, the ratio
              of plain and products is what a block without any other cost would reach

WsFFN's peer is a SwiGLU module without its latents; `products` has the product that makes them, which is
a sixth of SwiGLU's arithmetic where a head is half as wide as the model.

--usage prints in place of the tables, for each module and form, what a call takes of the processors and how
many pages of memory the system hands out for it. `python3 bench/table_modules.py` makes the documents' tables of
what is printed here.

float32 on the CPU, bfloat16 on a GPU. The last table is what a call costs beside its work, at a shape of next
to no work: inside the C library, from the C call to its return, which on a GPU does not wait for the kernels;
the same with the kernels; and from Python. In brackets plain PyTorch.
"""
import argparse
import functools
import json
import math
import os
import pathlib
import resource
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))

import torch
from torch import nn
from torch.nn import functional as F

from weft import _blocks
from weft.torch import Config, Part, RotaryEmbedding, W2TransformerBlock, WsFFN, apply_rotary_pos_emb, masked

MIB = 1024.0**2
# name, shape: batch, time, width, heads, feed-forward width
SHAPES = {
    "cpu": {"write-up": (2, 64, 512, 8, 2048), "GPT-2": (1, 1024, 768, 12, 3072)},
    "cuda": {"write-up": (2, 64, 512, 8, 2048), "GPT-2": (16, 1024, 768, 12, 3072)},
}
WSFFN_SHAPES = {
    "cpu": {"write-up": (2, 128, 1024, 8, 4096), "GPT-2": (1, 1024, 768, 8, 3072)},
    "cuda": {"write-up": (2, 128, 1024, 8, 4096), "GPT-2": (16, 1024, 768, 8, 3072)},
}
LATENT = 128
FORMS = ("plain", "compiled", "sdpa", "products")


class Weighted(nn.Module):
    """Plain PyTorch over the weights of one of our modules, by their names in a checkpoint."""

    def __init__(self, core, heads):
        super().__init__()
        self.keys, self.heads = core.names, heads
        self.values = nn.ParameterList(nn.Parameter(w.detach().clone()) for w in core.weights())

    def named(self):
        return dict(zip(self.keys, self.values))


def swiglu(x, p):
    return F.linear(F.silu(F.linear(x, p["ffn.w3.weight"])) * F.linear(x, p["ffn.w1.weight"]), p["ffn.w2.weight"])


class Block(Weighted):
    def forward(self, x):
        p = self.named()
        x = x + self.attention(F.rms_norm(x, x.shape[-1:], p["ln_1.weight"].to(x.dtype), 1e-6), p)
        return x + swiglu(F.rms_norm(x, x.shape[-1:], p["ln_2.weight"].to(x.dtype), 1e-6), p)


class PlainW2(Block):
    """Every token sees every token; T x T distances, as the write-up has it."""

    def attention(self, x, p):
        batch, time, width = x.shape
        dim = width // self.heads
        q, k, v = (F.linear(x, p[f"attn.{n}.weight"]).view(batch, time, self.heads, -1).transpose(1, 2) for n in "qkv")
        mq, mk = apply_rotary_pos_emb(q[..., :dim], k[..., :dim], *RotaryEmbedding(dim)(x, seq_len=time))
        sq, sk = F.softplus(q[..., dim:]), F.softplus(k[..., dim:])

        def squares(a, b):
            return a.pow(2).sum(-1)[..., :, None] + b.pow(2).sum(-1)[..., None, :] - 2 * a @ b.transpose(-1, -2)

        tau = (p["attn.log_tau"].exp() + 1e-6).to(x.dtype).view(1, -1, 1, 1)
        o = (-(squares(mq, mk) + squares(sq, sk)) / tau).softmax(-1) @ v
        return F.linear(o.transpose(1, 2).reshape(batch, time, width), p["attn.out.weight"])


class FastW2(PlainW2):
    def attention(self, x, p):
        zeros = torch.zeros(1, 1, 1, x.shape[1], dtype=x.dtype, device=x.device)
        rope = RotaryEmbedding(x.shape[-1] // self.heads)(x, seq_len=x.shape[1])
        return masked.attention(x, p, self.heads, rope, zeros)


def causal_softmax(scores):
    later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(later, -math.inf).softmax(-1)


class PlainMLA(Block):
    """Causal, latent keys and values expanded to the heads, T x T scores."""

    def project(self, x, p):
        batch, time, width = x.shape
        q = F.linear(x, p["attn.q.weight"]).view(batch, time, self.heads, -1)
        q = torch.einsum("bthd,hdl->bhtl", q, p["attn.q_latent"])
        return q, *(F.linear(x, p[f"attn.{n}_down.weight"])[:, None] for n in "kv")

    def close(self, o, p):
        o = torch.einsum("bhtl,hld->bthd", o, p["attn.v_up"]).flatten(2)
        return F.linear(o, p["attn.out.weight"])

    def attention(self, x, p):
        q, k, v = self.project(x, p)
        return self.close(causal_softmax(q @ k.transpose(-1, -2) / math.sqrt(LATENT)) @ v, p)


class FastMLA(PlainMLA):
    def attention(self, x, p):
        q, k, v = self.project(x, p)
        k, v = (t.expand(-1, self.heads, -1, -1) for t in (k, v))
        return self.close(F.scaled_dot_product_attention(q, k, v, is_causal=True), p)


class PlainSwiGLU(Weighted):
    def forward(self, x):
        return swiglu(x, self.named())


class Products(Weighted):
    """The products with the weights alone, joined by sums so that each has its gradients."""

    def forward(self, x):
        p = self.named()
        y = swiglu_products(x, p, self.heads)
        if "attn.q_latent" in p:
            q, k, v = PlainMLA.project(self, x, p)
            y = y + PlainMLA.close(self, q + k + v, p)
        elif "attn.q.weight" in p:
            q, k, v = (F.linear(x, p[f"attn.{n}.weight"]) for n in "qkv")
            y = y + sum(half for t in (q, k) for half in t.chunk(2, -1)) + F.linear(v, p["attn.out.weight"])
        return y


def swiglu_products(x, p, heads):
    h = F.linear(x, p["ffn.w1.weight"])
    z = p.get("ffn.z_proj.weight")  # WsFFN's latents, [heads, z, z] of h
    y = F.linear(x, p["ffn.w3.weight"]) + h
    if z is not None:
        y = y + torch.einsum("bthi,hoi->btho", h.unflatten(-1, (heads, -1)), z).flatten(2)
    return F.linear(y, p["ffn.w2.weight"])


def rows(device, wanted, shapes=("write-up", "GPT-2")):
    """(name, shape's name, shape, ours, forms)."""
    for name in wanted:
        for at, shape in (WSFFN_SHAPES if name == "wsffn" else SHAPES)[device].items():
            if at not in shapes:
                continue
            _, _, width, heads, ffn = shape
            if name == "w2":
                config = type("C", (), dict(hidden_size=width, num_attention_heads=heads, intermediate_size=ffn, rms_norm_eps=1e-6))
                ours = W2TransformerBlock(config)
                plain, fast = PlainW2, FastW2
            elif name == "mla":
                ours = Part("layer", ATTENTION="mla", FFN="swiglu", NORM="rmsnorm", POSITION="none", N_EMBD=width, N_HEAD=heads,
                            N_FFN=ffn, RA_MLA_LATENT_DIM=LATENT)
                plain, fast = PlainMLA, FastMLA
            else:
                ours = WsFFN(Config(d_model=width, d_ffn=ffn, n_head=heads, z_proj="grouped"))
                plain, fast = PlainSwiGLU, None
            forms = {"plain": plain, "compiled": plain, "sdpa": fast, "products": Products}
            core = getattr(ours, "core", ours)
            yield name, at, shape, ours, {form: make(core, heads) for form, make in forms.items() if make}


def main_output(out):
    """The loss that a call trains: of WsFFN the auxiliary one too."""
    if isinstance(out, dict):
        return out["y"], None
    return out if isinstance(out, tuple) else (out, None)


@functools.lru_cache(maxsize=None)
def parameters(module):
    """Found once: an optimizer does not search a module for them at each step."""
    return list(module.parameters())


def call(module, x, towards, backward):
    if not backward:
        with torch.no_grad():
            return main_output(module(x))[0]
    x.grad = None
    for p in parameters(module):
        p.grad = None
    y, extra = main_output(module(x))
    tensors, grads = [y], [towards]
    if extra is not None:
        tensors.append(extra)
        grads.append(torch.ones_like(extra))
    torch.autograd.backward(tensors, grads)
    return y


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def timed(device, work, repeats):
    wait(device)
    begin = time.perf_counter()
    for _ in range(repeats):
        work()
    wait(device)
    return (time.perf_counter() - begin) / repeats


def returned(device, work, bursts=200, burst=10):
    """Seconds until a call returns, few enough in a row that a GPU's queue has room; the median."""
    took = []
    for _ in range(bursts):
        wait(device)
        begin = time.perf_counter()
        for _ in range(burst):
            work()
        took.append((time.perf_counter() - begin) / burst)
    wait(device)
    return statistics.median(took)


def memory(device, module, x, towards):
    """MiB: the peak above the state before (GPU), or what is kept for the backward pass (CPU)."""
    if device == "cuda":
        for p in (x, *module.parameters()):
            p.grad = None
        torch.cuda.synchronize()
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        call(module, x, towards, True)
        torch.cuda.synchronize()
        return (torch.cuda.max_memory_allocated() - before) / MIB
    kept, own = {}, {p.untyped_storage().data_ptr() for p in (x, *module.parameters())}

    def pack(t):
        storage = t.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = main_output(module(x))[0]
    del y
    return sum(kept.values()) / MIB


def measure(device, kind, shape, modules, backward, rounds, budget):
    """Median seconds of each, in turns, and each one's largest difference from the first."""
    batch, time_, width = shape[:3]
    torch.manual_seed(0)
    x = torch.randn(batch, time_, width, device=device, dtype=kind, requires_grad=True)
    towards = torch.randn_like(x)
    first = None
    differences, repeats = {}, {}
    for name, module in modules.items():
        y = call(module, x, towards, backward).detach().float()
        first = y if first is None else first
        if name != "products":
            differences[name] = ((y - first).abs().max() / first.abs().max()).item()
        call(module, x, towards, backward)
        once = timed(device, lambda m=module: call(m, x, towards, backward), 2)
        repeats[name] = max(1, min(200, int(budget / rounds / max(once, 1e-6))))
    times = {name: [] for name in modules}
    for _ in range(rounds):
        for name, module in modules.items():
            times[name].append(timed(device, lambda m=module: call(m, x, towards, backward), repeats[name]))
    return {name: statistics.median(t) for name, t in times.items()}, differences, x, towards


def print_usage(device, kind, name, at, shape, modules, backward, budget):
    x = torch.randn(*shape[:3], device=device, dtype=kind, requires_grad=True)
    towards = torch.randn_like(x)
    for form, module in modules.items():
        for _ in range(3):
            call(module, x, towards, backward)
        took, before, end = [], resource.getrusage(resource.RUSAGE_SELF), time.perf_counter() + budget
        while len(took) < 3 or time.perf_counter() < end:
            took.append(timed(device, lambda: call(module, x, towards, backward), 1))
        used, n = resource.getrusage(resource.RUSAGE_SELF), len(took)
        print(f"{name} {at} {'both' if backward else 'forward':<8}{form:<9}median {1e3 * statistics.median(took):8.3f} ms, "
              f"least {1e3 * min(took):8.3f}; a call: {(used.ru_minflt - before.ru_minflt) / n:8.0f} faults, "
              f"user {1e3 * (used.ru_utime - before.ru_utime) / n:8.1f} ms, system {1e3 * (used.ru_stime - before.ru_stime) / n:7.1f} ms",
              flush=True)


def overheads(device, kind):
    """Microseconds of a call at a shape of next to no work, of the fastest of five rounds: inside C until it
    returns and with its kernels, of the whole Python call, and of the same in plain PyTorch."""
    out = []
    for name, module, peer in (
            ("w2 attention", Part("attention", ATTENTION="w2", POSITION="rope", BIAS=False, N_EMBD=16, N_HEAD=1), PlainW2),
            ("swiglu", Part("ffn", FFN="swiglu", N_EMBD=16, N_HEAD=1, N_FFN=16), PlainSwiGLU)):
        module = module.to(device, kind)
        peer = peer(module, 1).to(device, kind)
        plain = (lambda a, m=peer: m.attention(a, m.named())) if name == "w2 attention" else peer
        x = torch.randn(1, 1, 16, device=device, dtype=kind)
        run = Bare(module, x)
        x.requires_grad_()
        towards = torch.randn_like(x)
        ours = lambda a, m=module: m(a)["y"]
        with torch.no_grad():
            forward = [[timed(device, lambda: f(x), 300) for _ in range(5)] for f in (ours, plain)]
        both = [[timed(device, lambda: torch.autograd.backward([f(x)], [towards]), 200) for _ in range(5)] for f in (ours, plain)]
        inside = [[returned(device, run) for _ in range(5)], [timed(device, run, 2000) for _ in range(5)]]
        out.append((name, *(1e6 * min(t) for t in (*inside, *forward, *both))))
    return out


class Bare:
    """The C call alone, its addresses made once."""

    def __init__(self, module, x):
        from weft.torch import _ops
        device = x.device
        self.block = _blocks.block(_ops.device_name(device), module.part, module._text(x.dtype), 1, 1, True, 0)
        self.given = [x, *(w.detach().to(t) for w, t in zip(module.weights(), _ops.layout(self.block).weight_dtypes))]
        at = [t.data_ptr() for t in self.given]
        self.outputs, outputs_at = _ops._placed([torch.empty(shape, dtype=dtype, device=device)
                                                 for shape, dtype in _ops.layout(self.block).outputs])
        self.held = [_ops._bytes(n, device) for n in (self.block.saved_bytes, self.block.forward_bytes)]
        self.frame = self.block.frame()
        self.frame.fill(at + outputs_at, self.held[0][1], self.held[1][1], _ops.stream_of(device), 0)
        self.at = self.frame.at
        from weft._library import check, lib
        check(lib.weft_block_forward(self.block.handle, self.at))
        self.function, self.handle = lib.weft_block_forward, self.block.handle

    def __call__(self):
        self.function(self.handle, self.at)


def make_parser(text):
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=0, help="of both on the CPU; PyTorch's own choice unless given")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="of both")
    parser.add_argument("--json", help="write the rows there too")
    return parser


def choose_place(options):
    """Sets both sides' threads; the type of numbers, and where it runs in words."""
    if options.threads:
        torch.set_num_threads(options.threads)
    os.environ["WEFT_THREADS"] = str(torch.get_num_threads())
    kind = getattr(torch, options.dtype or ("float32" if options.device == "cpu" else "bfloat16"))
    return kind, torch.cuda.get_device_name() if options.device == "cuda" else f"{torch.get_num_threads()} threads"


def main():
    parser = make_parser(__doc__)
    parser.add_argument("--rows", default="w2,mla,wsffn")
    parser.add_argument("--shapes", default="write-up,GPT-2")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    parser.add_argument("--forms", default=",".join(FORMS), help="of PyTorch; all unless given")
    parser.add_argument("--no-compile", action="store_true", help="leave compiled forms out")
    parser.add_argument("--usage", action="store_true", help="processor time and page faults of a call, in place of the tables")
    options = parser.parse_args()
    device, found = options.device, []
    wanted = [form for form in options.forms.split(",") if not (options.no_compile and form in ("compiled", "sdpa"))]
    kind, where = choose_place(options)
    rounds, budget = (3, 0.3) if options.quick else (7, 2.0)
    print(f"PyTorch {torch.__version__}, {where}, {str(kind).split('.')[1]}")
    if not options.usage:
        print(f"{'module':<7}{'shape':<10}{'pass':<10}{'weft ms':>9}" + "".join(f"{f + ' ms':>13}{'ratio':>7}" for f in FORMS)
              + f"{'weft MiB':>10}{'plain':>8}{'compiled':>9}{'sdpa':>8}")
    for name, at, shape, ours, forms in rows(device, options.rows.split(","), options.shapes.split(",")):
        forms = {form: m for form, m in forms.items() if form in wanted}
        modules = {"weft": ours.to(device, kind), **{f: m.to(device, kind) for f, m in forms.items()}}
        for form in modules:
            if form in ("compiled", "sdpa"):
                torch._dynamo.reset()
                modules[form] = torch.compile(modules[form], dynamic=False)
        for backward in (False, True):
            if options.usage:
                print_usage(device, kind, name, at, shape, modules, backward, budget)
                continue
            times, differences, x, towards = measure(device, kind, shape, modules, backward, rounds, budget)
            worst = max(differences.values())
            if worst > (1e-3 if kind == torch.float32 else 0.1):
                print(f"bench/torch_modules.py: {name}: the outputs differ: {differences}", file=sys.stderr)
                return 1
            sizes = {form: memory(device, m, x, towards) for form, m in modules.items()} if backward else {}
            line = f"{name:<7}{at:<10}{'both' if backward else 'forward':<10}{1e3 * times['weft']:>9.3f}"
            for form in FORMS:
                line += f"{1e3 * times[form]:>13.3f}{times[form] / times['weft']:>7.2f}" if form in times else f"{'-':>13}{'-':>7}"
            for form, room in (("weft", 10), ("plain", 8), ("compiled", 9), ("sdpa", 8)):
                line += f"{sizes[form]:>{room}.1f}" if form in sizes else f"{'-':>{room}}"
            print(line, flush=True)
            found.append({"module": name, "shape": at, "backward": backward, "seconds": times, "mib": sizes, "difference": differences})
    if options.usage:
        return 0
    print(f"\n{'µs of a call without work':<28}{'inside C':>10}{'+ kernels':>11}{'forward':>10}{'(plain)':>9}{'with backward':>15}{'(plain)':>9}")
    for name, inside, kernels, forward, forward_plain, both, both_plain in overheads(device, kind):
        print(f"{name:<28}{inside:>10.1f}{kernels:>11.1f}{forward:>10.1f}{forward_plain:>9.1f}{both:>15.1f}{both_plain:>9.1f}")
        found.append({"overhead": name, "c_us": inside, "c_kernels_us": kernels, "forward_us": forward, "both_us": both,
                      "plain_forward_us": forward_plain, "plain_both_us": both_plain})
    if options.json:
        pathlib.Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
