"""A part of a weft model as an nn.Module: its weights are parameters, named as in a checkpoint."""
import functools

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from .. import _blocks
from .._library import text
from . import _ops


def drawn_seed():
    """A number by torch's seed, under fake tensors and on any default device too."""
    with _disable_current_modes():
        return int(torch.randint(1 << 31, (), device="cpu"))


def read_tensor(model, name):
    """A tensor of a weft.Model as a PyTorch one, where new tensors are put: `with torch.device(...)`, or a mode
    of fake tensors, may be around."""
    with _disable_current_modes():
        kind = torch.float64 if model.wide else torch.float32
        out = torch.empty(model.shape(name), dtype=kind, device="cpu")
        model.read_into(name, out, kind, out.device)
    wished = torch.empty(0)
    if isinstance(wished, FakeTensor):
        out = wished.fake_mode.from_tensor(out)
    return out.to(wished.device)


def started_weights(options, seed, names):
    """The start that the engine gives a layer's weights, as f32 tensors by name."""
    from .._model import Model
    with Model(**{**options, "N_LAYER": 1, "VOCAB_SIZE": 1, "DTYPE": "f32", "SEED": seed}) as model:
        there = set(model.names())
        return {name: read_tensor(model, f"h.0.{name}" if f"h.0.{name}" in there else name) for name in names}


class Weights(nn.Module):
    """A holder of parameters, so that they have a checkpoint's dotted names."""

    def extra_repr(self):
        return ", ".join(f"{name} {list(p.shape)}" for name, p in self._parameters.items())


def owner_of(module, name, make=False):
    """The module that has the parameter of a dotted name."""
    for step in name.split(".")[:-1]:
        if make and not hasattr(module, step):
            module.add_module(step, Weights())
        module = getattr(module, step)
    return module


class Part(nn.Module):
    """`part` is "attention", "ffn" or "layer"; the options are those of a weft config.

        layer = Part("layer", ATTENTION="w2", FFN="swiglu", N_EMBD=512, N_HEAD=8)
        y = layer(x)["y"]

    The forward pass returns a dict of what the part makes: "y", and for instance "aux_z". `first`
    False: a layer that takes "gate" and "received" of the one before, in this order, where the options
    make them. `weights` are values to start from, in place of fresh ones; weights that are named in
    `shared` are no parameters of this module, and are given with each call.
    """

    purpose = 0  # what its blocks are opened for beside gradients and training

    def __init__(self, part, first=True, weights=None, shared=(), **options):
        super().__init__()
        self.part, self.first, self.shared = part, first, tuple(shared)
        self._texts, self._owner = {}, None
        self.unread = ()  # weights of outputs that nobody reads: they get no gradient, and so no decay
        self.options = {key.upper(): text(value) for key, value in options.items()}
        seed = drawn_seed() if weights is None else 0
        said = self._describe("cpu", torch.float32, _blocks.GRADIENT | _blocks.TRAIN)
        self.names = [name for name, _ in said[1]]
        self._places = [(name.split(".")[:-1], name.rpartition(".")[2]) for name in self.names]
        self.width, self.dropout = int(self.options["N_EMBD"]), float(self.options.get("DROPOUT", 0))
        if weights is None:
            weights = started_weights(self.options, seed, self.names)
        for name in self.names:
            if name not in self.shared:
                owner_of(self, name, make=True).register_parameter(name.rpartition(".")[2], nn.Parameter(weights[name]))

    def lend(self, owner, names):
        """Its parameters become those of `owner`, under the names that `names` has for its own. Where the owner has
        such a parameter, that one counts; else a matrix becomes that of an nn.Linear."""
        for name in self.names:
            step, _, leaf = names[name].partition(".")
            parameter = getattr(owner_of(self, name), name.rpartition(".")[2])
            if not leaf:
                owner.register_parameter(step, parameter)
            elif not hasattr(owner, step):
                holder = nn.Linear(*parameter.shape[::-1], bias=False, device="meta") if parameter.dim() == 2 else Weights()
                holder.register_parameter(leaf, parameter)
                owner.add_module(step, holder)
        for step in {steps[0] for steps, _ in self._places}:
            delattr(self, step)
        self._places = [(names[name].split(".")[:-1], names[name].rpartition(".")[2]) for name in self.names]
        self._owner = (owner,)  # in a tuple, since a module among the attributes would be a part of this one

    def _text(self, dtype, **changes):
        """The options as one text. They do not change, so it is made once for each type and change."""
        key = (dtype, *changes.items()) if changes else dtype
        text = self._texts.get(key)
        if text is None:
            text = self._texts[key] = self._joined(dtype, changes)
        return text

    def _joined(self, dtype, changes):
        options = {**self.options, **changes, "DTYPE": _ops.type_name(dtype)}
        return "\n".join(f"{key}={value}" for key, value in options.items())

    def _describe(self, device, dtype, purpose):
        return _ops.describe(device, self.part, self._text(dtype), self.first, purpose)

    def weights(self, shared=None, traced=True):
        """The parameters in the order of the block's weights."""
        if not (traced or self.shared or self.unread):
            return self._own_weights()
        root = self._owner[0] if self._owner else self
        found = {name: shared[name] if name in self.shared else getattr(functools.reduce(getattr, steps, root), leaf)
                 for name, (steps, leaf) in zip(self.names, self._places)}
        return [found[name].detach() if name in self.unread else found[name] for name in self.names]

    def _own_weights(self):
        """All of them, past nn.Module's __getattr__, which is slow; a parametrized one is an attribute."""
        out = []
        root = self._owner[0] if self._owner else self
        for steps, leaf in self._places:
            module = root
            for step in steps:
                module = module._modules[step]
            parameter = module._parameters.get(leaf)
            out.append(getattr(module, leaf) if parameter is None else parameter)
        return out

    def check(self, x):
        """Raises what is wrong with x, and says what is wanted."""
        shape = x.shape
        if len(shape) != 3 or shape[2] != self.width:
            raise ValueError(f"weft: x is {tuple(x.shape)}, but [batch, time, {self.width}] is wanted")
        if shape[0] == 0 or shape[1] == 0:
            raise ValueError(f"weft: x is {tuple(x.shape)}: there is nothing to compute; leave the call out where "
                             "a batch or a sequence is empty")
        if x.layout != torch.strided:
            raise ValueError(f"weft: x is {x.layout}; convert with .to_dense()")
        if x.device.type not in _ops.DEVICES:
            _ops.check_devices((x,))

    def forward(self, x, *others, train=None, first=None, shared=None, **changes):
        """`train` and `first` count in place of the module's own; `changes` are options for this call
        that leave the weights what they are, such as CAUSAL="n"."""
        self.check(x)
        device = x.device.type
        if torch.is_autocast_enabled(device):
            x = x.to(torch.get_autocast_dtype(device))
            others = tuple(t.to(x.dtype) if t.is_floating_point() else t for t in others)
        train = self.training if train is None else train
        seed = None
        if train and self.dropout > 0:
            seed = torch.randint(1 << 62, (), device="cpu")
        traced = torch.compiler.is_compiling()
        options = self._joined(x.dtype, changes) if traced else self._text(x.dtype, **changes)
        return _ops.run(self.part, options, (x, *others), self.weights(shared, traced),
                        self.first if first is None else first, self.purpose | _blocks.TRAIN if train else self.purpose,
                        seed, traced)

    def extra_repr(self):
        count = sum(p.numel() for p in self.parameters())
        if len(self.options) > 16:
            return f"{self.part}, {self.options.get('ATTENTION')}, {self.options.get('FFN')}, {count:,} parameters"
        return f"{self.part}, " + ", ".join(f"{k}={v}" for k, v in self.options.items()) + f", {count:,} parameters"
