"""PyTorch's decoding beside weft's: `weft bench decode --peer "python3 bench/peer_decode.py"`.

One JSON request per line on standard input, one JSON reply per line on standard output:

    {"do": "hello", "threads": 2}   -> {"name": "PyTorch 2.9.0", "threads": 2}
    {"do": "decode", "attention": "dot", "layers": 12, "heads": 12, "width": 768, "latent": 128,
     "vocab": 50304, "context": 4096, "batch": 1, "dtype": "bf16", "device": "cpu"}
                                    -> {"seconds": 0.05}

`seconds` is the median of a step: one token for each sequence, over caches that are full up to the
context and have the same type as the weights. Random weights; attention by
scaled_dot_product_attention over a static cache. w2's scores are those of means and deviations beside
each other, and its one number per key is an additive mask. mla reads its latent as one key head that
all query heads share, with the maps absorbed, as weft does. On a GPU ("device": "cuda") each layer is
compiled by torch.compile, the whole step with the choice of the likeliest token is captured as a CUDA
graph, and the graph is replayed; afterwards its memory is given back, for weft's next row. A variant that
it does not write is answered {"error": "one line"}.
"""

import gc
import statistics
import time

from conversation import converse, torch

if torch:
    import torch.nn.functional as F


def make_layer(c, dtype, device):
    width, heads, latent = c["width"], c["heads"], c["latent"]
    head, batch, context = width // heads, c["batch"], c["context"]
    new = lambda *shape: torch.randn(*shape, dtype=dtype, device=device) * 0.02
    layer = {"out": new(width, width), "fc": new(4 * width, width), "proj": new(width, 4 * width),
             "gain_1": new(width) + 1, "gain_2": new(width) + 1}
    if c["attention"] == "mla":
        return layer | {"q": new(width, width), "down": new(2 * latent, width), "a": new(heads, head, latent),
                        "u": new(heads, latent, head), "k": new(batch, 1, context, latent),
                        "v": new(batch, 1, context, latent)}
    across = 2 * head if c["attention"] == "w2" else head
    layer |= {"qkv": new(heads * (2 * across + head), width), "k": new(batch, heads, context, across),
              "v": new(batch, heads, context, head)}
    if c["attention"] == "w2":
        layer["n"] = new(batch, heads, 1, context)
    return layer


def attend_heads(layer, x, heads, head, at):
    """dot, and w2: whose second half of a query and a key is a deviation, and keys have a number."""
    batch, w2 = x.shape[0], "n" in layer
    across = layer["k"].shape[-1]
    q, k, v = F.linear(x, layer["qkv"]).split([heads * across, heads * across, heads * head], dim=-1)
    q, k, v = q.view(batch, heads, 1, across), k.view(batch, heads, across), v.view(batch, heads, head)
    if w2:
        q = torch.cat([q[..., :head], F.softplus(q[..., head:])], dim=-1)
        k = torch.cat([k[..., :head], F.softplus(k[..., head:])], dim=-1)
        layer["n"][:, :, 0, at] = -k.square().sum(-1)
    layer["k"][:, :, at], layer["v"][:, :, at] = k, v
    return F.scaled_dot_product_attention(q, layer["k"], layer["v"], attn_mask=layer["n"] if w2 else None)


def attend_latent(layer, x, heads, head, at):
    batch = x.shape[0]
    k, v = F.linear(x, layer["down"]).chunk(2, dim=-1)
    layer["k"][:, 0, at], layer["v"][:, 0, at] = k, v
    q = F.linear(x, layer["q"]).view(batch, heads, head)
    q = torch.einsum("bhd,hdl->bhl", q, layer["a"])
    # All heads' queries are rows of one attention over the one key head.
    o = F.scaled_dot_product_attention(q.unsqueeze(1), layer["k"], layer["v"]).squeeze(1)
    return torch.einsum("bhl,hld->bhd", o, layer["u"])


def run_layer(layer, x, heads, head, at):
    width = x.shape[-1]
    attend = attend_latent if "down" in layer else attend_heads
    y = F.layer_norm(x, (width,), layer["gain_1"])
    x = x + F.linear(attend(layer, y, heads, head, at).reshape(x.shape), layer["out"])
    y = F.layer_norm(x, (width,), layer["gain_2"])
    return x + F.linear(F.gelu(F.linear(y, layer["fc"]), approximate="tanh"), layer["proj"])


def make_step(c, device):
    """A step that puts the likeliest tokens in the place of the last ones."""
    dtype = torch.bfloat16 if c["dtype"] == "bf16" else torch.float32
    layers = [make_layer(c, dtype, device) for _ in range(c["layers"])]
    table = torch.randn(c["vocab"], c["width"], dtype=dtype, device=device) * 0.02
    token = torch.zeros(c["batch"], dtype=torch.long, device=device)
    one = run_layer
    if device == "cuda":
        torch._dynamo.reset()  # a form of the last request is no reason to stop compiling
        one = torch.compile(run_layer, dynamic=False)

    def step():
        x = table[token]
        for layer in layers:
            x = one(layer, x, c["heads"], c["width"] // c["heads"], c["context"] - 1)
        token.copy_(F.linear(x, table).argmax(-1))

    return step


def capture(step):
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def time_steps(c, device):
    times, at_once = [], 1
    with torch.inference_mode():
        step = make_step(c, device)
        if device == "cuda":
            step, at_once = capture(step), 20
            torch.cuda.synchronize()
        for i in range(9):
            start = time.perf_counter()
            for _ in range(at_once):
                step()
            if device == "cuda":
                torch.cuda.synchronize()
            if i >= 2:
                times.append((time.perf_counter() - start) / at_once)
    return statistics.median(times)


def decode(c):
    device = c.get("device", "cpu")
    if c["attention"] not in ("dot", "w2", "mla"):
        raise ValueError(f"the peer does not write {c['attention']}")
    seconds = time_steps(c, device)
    if device == "cuda":
        gc.collect()
        torch.cuda.empty_cache()
    return {"seconds": seconds}


if __name__ == "__main__":
    converse({"decode": decode})
