"""A part of a weft model as an nn.Module: its weights are parameters, named as in a checkpoint."""
import ctypes

import torch
from torch import nn

from .. import _blocks
from .._library import check, handle, lib, text, texts
from . import _ops


def started_weights(options, seed, names):
    """The start that the engine gives a layer's weights, as f32 tensors by name."""
    small = [*options, "N_LAYER=1", "VOCAB_SIZE=1", "DTYPE=f32", f"SEED={seed}"]
    model = handle(lib.weft_model_open, None, texts(small))
    try:
        out = {}
        for name in names:
            full = f"h.0.{name}"
            shape, ndim, count = (ctypes.c_int64 * 4)(), ctypes.c_int(), ctypes.c_int64()
            if lib.weft_model_shape(model, full.encode(), shape, ctypes.byref(ndim), ctypes.byref(count)):
                full = name
                check(lib.weft_model_shape(model, full.encode(), shape, ctypes.byref(ndim), ctypes.byref(count)))
            values = torch.empty(count.value)
            check(lib.weft_model_read(model, full.encode(),
                                      ctypes.cast(values.data_ptr(), ctypes.POINTER(ctypes.c_float)), count))
            out[name] = values.view(tuple(shape[:ndim.value]))
        return out
    finally:
        lib.weft_model_close(model)


class Part(nn.Module):
    """`part` is "attention", "ffn" or "layer"; the options are those of a weft config.

        layer = Part("layer", ATTENTION="w2", FFN="swiglu", N_EMBD=512, N_HEAD=8)
        y = layer(x)["y"]

    The forward pass returns a dict of what the part makes: "y", and for instance "aux_z".
    """

    def __init__(self, part, first=True, **options):
        super().__init__()
        self.part, self.first = part, first
        self.options = {key.upper(): text(value) for key, value in options.items()}
        seed = int(torch.randint(1 << 31, ()))
        block = self._block("cpu", torch.float32, 1, 1, _blocks.GRADIENT | _blocks.TRAIN)
        self.names = [t.name for t in block.weights]
        started = started_weights(self._texts(), seed, self.names)
        for name in self.names:
            self._owner(name, make=True).register_parameter(name.rpartition(".")[2],
                                                            nn.Parameter(started[name]))

    def _texts(self, dtype=None):
        words = [f"{key}={value}" for key, value in self.options.items()]
        return tuple(words + ([f"DTYPE={_ops.type_name(dtype)}"] if dtype else []))

    def _block(self, device, dtype, batch, time, purpose):
        return _blocks.block(device, self.part, self._texts(dtype), batch, time, self.first, purpose)

    def _owner(self, name, make=False):
        module = self
        for step in name.split(".")[:-1]:
            if make and not hasattr(module, step):
                module.add_module(step, nn.Module())
            module = getattr(module, step)
        return module

    def weights(self):
        """The parameters in the order of the block's weights."""
        return [getattr(self._owner(name), name.rpartition(".")[2]) for name in self.names]

    def forward(self, x, *others):
        if x.dim() != 3 or x.shape[-1] != int(self.options["N_EMBD"]):
            raise ValueError(f"weft: x is {tuple(x.shape)}, but [batch, time, {self.options['N_EMBD']}] is wanted")
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        options = "\n".join(self._texts(x.dtype))
        purpose = _blocks.GRADIENT | (_blocks.TRAIN if self.training else 0)
        block = _ops.find(x.device, self.part, options, x.shape, self.first, purpose)
        weights = [w.to(_ops.TYPES[t.type]) for w, t in zip(self.weights(), self._select(block))]
        return _ops.run(self.part, options, [x, *others], weights, self.first, self.training)

    def _select(self, block):
        if len(block.weights) != len(self.names):
            raise ValueError("weft: evaluation reads other weights than training does")
        return block.weights

    def extra_repr(self):
        count = sum(p.numel() for p in self.parameters())
        return f"{self.part}, " + ", ".join(f"{k}={v}" for k, v in self.options.items()) + f", {count:,} parameters"
