"""PyTorch's decoding beside weft's: `weft bench decode --peer "python3 bench/peer_decode.py"`.

One JSON request per line on standard input, one JSON reply per line on standard output:

    {"do": "hello", "threads": 2}   -> {"name": "PyTorch 2.9.0", "threads": 2}
    {"do": "decode", "attention": "dot", "layers": 12, "heads": 12, "width": 768, "latent": 128,
     "vocab": 50304, "context": 4096, "batch": 1, "dtype": "bf16"}   -> {"seconds": 0.05}

`seconds` is the median of a step: one token for each sequence, over caches that are full up to the
context and have the same type as the weights. Random weights; attention by
scaled_dot_product_attention over a static cache. mla reads its latent as one key head that all query
heads share, with the maps absorbed, as weft does. A variant that it does not write is answered
{"error": "one line"}.
"""

import statistics
import time

from conversation import converse, torch

if torch:
    import torch.nn.functional as F


def make_layer(c, dtype):
    width, heads, latent = c["width"], c["heads"], c["latent"]
    head = width // heads
    new = lambda *shape: (torch.randn(*shape) * 0.02).to(dtype)
    layer = {"out": new(width, width), "fc": new(4 * width, width), "proj": new(width, 4 * width),
             "gains": [torch.ones(width, dtype=dtype) for _ in range(2)]}
    batch, context = c["batch"], c["context"]
    if c["attention"] == "dot":
        layer |= {"qkv": new(3 * width, width), "k": new(batch, heads, context, head),
                  "v": new(batch, heads, context, head)}
    else:
        layer |= {"q": new(width, width), "down": new(2 * latent, width), "a": new(heads, head, latent),
                  "u": new(heads, latent, head), "k": new(batch, 1, context, latent),
                  "v": new(batch, 1, context, latent)}
    return layer


def attend(c, layer, x):
    batch, width, heads, at = c["batch"], c["width"], c["heads"], c["context"] - 1
    head = width // heads
    if c["attention"] == "dot":
        q, k, v = F.linear(x, layer["qkv"]).view(batch, 3, heads, head).unbind(1)
        layer["k"][:, :, at], layer["v"][:, :, at] = k, v
        return F.scaled_dot_product_attention(q.unsqueeze(2), layer["k"], layer["v"]).reshape(batch, width)
    k, v = F.linear(x, layer["down"]).chunk(2, dim=-1)
    layer["k"][:, 0, at], layer["v"][:, 0, at] = k, v
    q = F.linear(x, layer["q"]).view(batch, heads, head)
    q = torch.einsum("bhd,hdl->bhl", q, layer["a"])
    # All heads' queries are rows of one attention over the one key head.
    o = F.scaled_dot_product_attention(q.unsqueeze(1), layer["k"], layer["v"]).squeeze(1)
    return torch.einsum("bhl,hld->bhd", o, layer["u"]).reshape(batch, width)


def step(c, layers, table, token):
    x = table[token]
    width = c["width"]
    for layer in layers:
        y = F.layer_norm(x, (width,), layer["gains"][0])
        x = x + F.linear(attend(c, layer, y), layer["out"])
        y = F.layer_norm(x, (width,), layer["gains"][1])
        x = x + F.linear(F.gelu(F.linear(y, layer["fc"]), approximate="tanh"), layer["proj"])
    return F.linear(x, table)


def decode(c):
    if c["attention"] not in ("dot", "mla"):
        raise ValueError(f"the peer does not write {c['attention']}")
    dtype = torch.bfloat16 if c["dtype"] == "bf16" else torch.float32
    layers = [make_layer(c, dtype) for _ in range(c["layers"])]
    table = (torch.randn(c["vocab"], c["width"]) * 0.02).to(dtype)
    token = torch.zeros(c["batch"], dtype=torch.long)
    times = []
    with torch.inference_mode():
        for i in range(9):
            start = time.perf_counter()
            step(c, layers, table, token)
            if i >= 2:
                times.append(time.perf_counter() - start)
    return {"seconds": statistics.median(times)}


if __name__ == "__main__":
    converse({"decode": decode})
