"""A line of the case table, and the values that belong to it (see tests/ops/CASES.md).

The inputs of a case are drawn from Philox 4x32-10 with the line as the key, so the C side and this one have the same values
without a file between them. Outputs are PyTorch float64; gradients are PyTorch's autograd of the sum of <y, d_y>.
"""

import runpy
from pathlib import Path

import numpy as np
import torch

runpy.run_path(str(Path(__file__).resolve().parents[2] / "python" / "weft" / "torch" / "_nvpl.py"))

torch.set_default_dtype(torch.float64)

MARGIN = 1e-5


def fnv(text):
    """FNV-1a, 32 bits."""
    h = 0x811C9DC5
    for byte in text.encode():
        h = ((h ^ byte) * 0x01000193) & 0xFFFFFFFF
    return h


def philox(key, c0, c1, c2, c3):
    """Philox 4x32-10 on arrays of counters: uint32 [n, 4]."""
    mask = np.uint64(0xFFFFFFFF)
    shift = np.uint64(32)
    c = [np.asarray(v, dtype=np.uint64) for v in np.broadcast_arrays(c0, c1, c2, c3)]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        a = np.uint64(0xD2511F53) * c[0]
        b = np.uint64(0xCD9E8D57) * c[2]
        c = [(b >> shift) ^ c[1] ^ np.uint64(k0), b & mask, (a >> shift) ^ c[3] ^ np.uint64(k1), a & mask]
        k0 = (k0 + 0x9E3779B9) & 0xFFFFFFFF
        k1 = (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return np.stack(c, axis=-1).astype(np.uint32)


def check_philox():
    """The known answers that are published with Random123."""
    ones = 0xFFFFFFFF
    known = [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ones, ones, ones, ones), (ones, ones), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        ((0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
         (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1)),
    ]
    for counter, key, answer in known:
        got = philox(key[0] | key[1] << 32, *counter)
        assert tuple(int(w) for w in got) == answer, "philox does not give its known answers"
    assert fnv("") == 0x811C9DC5 and fnv("a") == 0xE40C292C and fnv("foobar") == 0xBF9CF968


def units(key, n, site, sequence=0, iteration=0):
    """n numbers in [0, 1): the upper 24 bits of words 0 .. n-1 of a stream."""
    blocks = np.arange((n + 3) // 4, dtype=np.uint64)
    words = philox(key, blocks, sequence, iteration, site).reshape(-1)[:n]
    return (words >> np.uint32(8)).astype(np.float64) / 2.0**24


class Refused(Exception):
    """A case that cannot be held to one answer."""


class Case:
    def __init__(self, line):
        words = line.split()
        self.line = " ".join(words)
        self.name = words[0]
        self.keys = dict(word.split("=", 1) for word in words[1:])
        self.hash = fnv(self.line)
        self.inputs = {}
        self.outputs = {}
        self.asked = {"seed"}

    def size(self, key, default=None):
        self.asked.add(key)
        if key not in self.keys and default is None:
            raise Refused(f"no size {key}")
        return int(self.keys.get(key, default))

    def word(self, key, default):
        self.asked.add(key)
        return self.keys.get(key, default)

    def integer(self, key, default):
        return int(self.word(key, default))

    def number(self, key, default):
        return float(self.word(key, default))

    def draw(self, name, shape, scale):
        n = int(np.prod(shape, dtype=np.int64)) if shape else 1
        values = scale * (2.0 * units(self.hash, n, fnv(name)) - 1.0)
        return torch.from_numpy(values.reshape(shape).copy() if shape else values.reshape(()).copy())

    def input(self, name, *shape, scale=1.0, grad=True):
        x = self.draw(name, shape, scale)
        x.requires_grad_(grad)
        self.inputs[name] = x
        return x

    def ids(self, name, limit, *shape, cut=None):
        n = int(np.prod(shape, dtype=np.int64))
        values = np.floor(units(self.hash, n, fnv(name)) * limit).astype(np.int64)
        if cut is not None:
            values[values >= cut] = -1
        return torch.from_numpy(values.reshape(shape))

    def output(self, name, value, grad=True):
        self.outputs[name] = (value, grad)

    def refuse_near(self, what, distance):
        """Refuses the case where a comparison is too close to call in f32."""
        if distance < MARGIN:
            raise Refused(f"{what}: the two sides of a comparison differ by {distance:.1e} < {MARGIN:g}; "
                          "change the case's shape or add a `seed=` key")

    def results(self):
        """Every value the harness compares, by name."""
        out = {name: value.detach() for name, (value, _) in self.outputs.items()}
        inputs = {name: x for name, x in self.inputs.items() if x.requires_grad}
        loss = torch.zeros(())
        for name, (value, grad) in self.outputs.items():
            if grad and value.requires_grad:
                loss = loss + (value * self.draw("d_" + name, tuple(value.shape), 1.0)).sum()
        if inputs:
            grads = (torch.autograd.grad(loss, list(inputs.values()), allow_unused=True)
                     if loss.requires_grad else [None] * len(inputs))
            for (name, x), grad in zip(inputs.items(), grads):
                out["grad." + name] = torch.zeros_like(x.detach()) if grad is None else grad
        unknown = set(self.keys) - self.asked
        if unknown:
            raise Refused(f"keys that mean nothing here: {', '.join(sorted(unknown))}")
        return {name: value.numpy().astype(np.float64) for name, value in out.items()}
