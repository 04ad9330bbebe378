"""Models without PyTorch: a checkpoint or a config, with NumPy arrays in and out.

    model = weft.Model("runs/demo/best")
    model.logits([[1, 2, 3]])                      # [1, 3, vocabulary]
    model.loss(tokens, targets)                    # {"loss": ..., "cross_entropy": ..., ...}
    print(model.generate("Once upon", max_tokens=40))

A model is run for one shape at a time by a pass, which holds the plan and the memory for that shape;
the last few passes are kept. Weights are read and written by the names of a checkpoint.
"""
import collections
import ctypes
import functools
import json
import math
import os
import threading
from ctypes import byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64

try:
    import numpy as np
except ImportError:  # PyTorch's side does without
    np = None

from . import _blocks, _door
from ._library import InputError, OfC, check, handle, lib, text, texts

EVAL, TRAIN, LOGITS = 0, 1, 2
PARTS = ("loss", "cross_entropy", "logits_z", "aux_z", "aux_contrastive")
PASSES_KEPT = 4
OPTION_ROOM = 4096


def pointer(t, shape, dtype, kind, name="an array", device="cpu"):
    """Where the numbers of an array (or of a PyTorch tensor on the CPU) are, for C."""
    t = _door.Array(t) if hasattr(t, "ctypes") else t
    (dense,), (at,) = _door.taken([t], [shape], [dtype], device, [name], alignment=1)
    if dense is not t:  # the copy would be gone before C reads it
        raise InputError(f"weft: {name} does not lie densely in memory")
    return ctypes.cast(at, ctypes.POINTER(kind))


def checkpoint_folder(path):
    """The checkpoint that a path stands for: itself, or the best one of a run's folder."""
    path = os.fsdecode(path)
    best = os.path.join(path, "best")
    if not os.path.exists(os.path.join(path, "config.json")) and os.path.isdir(best):
        return best
    return path


def own_tokenizer(folder):
    """The tokenizer in a checkpoint's folder, None where it has none. Whether it has one is looked up when the checkpoint
    is opened, and the path is whole: another working directory later, or a folder that is gone by then, is an error and
    not a model without a tokenizer."""
    path = folder and os.path.abspath(os.path.join(folder, "tokenizer.json"))
    return path if path and os.path.lexists(path) else None


def folder_options(folder):
    """The options in a checkpoint's config.json, as a config writes them."""
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
        return {key.upper(): text(value) for key, value in json.load(file).items()}


def locked(method):
    """A method that reads the model's memory, which another thread does not close meanwhile."""
    @functools.wraps(method)
    def with_lock(self, *given, **named):
        with self._lock:
            return method(self, *given, **named)
    return with_lock


class Model(OfC):
    """`path` is a checkpoint, a run's folder (its best checkpoint), a config file, or None for the
    default config with fresh weights. Options are a config's: Model(N_LAYER=2, N_EMBD=64, N_HEAD=4).
    `device` is "cpu" or "cuda"."""

    def __init__(self, path=None, device="cpu", **options):
        self.handle = None
        self.path = checkpoint_folder(path) if path is not None else None
        if self.path is not None and not os.path.exists(self.path):
            raise FileNotFoundError(f"{self.path}: no such checkpoint or config")
        self.device = device
        self.text = own_tokenizer(self.path)
        self.handle = handle(lib.weft_model_open, os.fsencode(self.path) if self.path else None, texts(options))
        self._passes, self._generations, self._lock = collections.OrderedDict(), [], threading.RLock()
        self._tokenizer = None

    def close(self, close_pass=lib.weft_pass_close, close_generation=lib.weft_generation_close, close_model=lib.weft_model_close):
        """Gives the memory back. The model cannot be used afterwards. (What it calls is looked up here: at exit `lib`
        may be gone before a model is.)"""
        with self._lock:
            if self.handle is None:
                return
            while self._passes:
                close_pass(self._passes.popitem()[1])
            while self._generations:
                close_generation(self._generations.pop())
            close_model(self.handle)
            self.handle = None

    def __del__(self):
        if getattr(self, "_passes", None) is not None:
            self.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _open(self):
        if self.handle is None:
            raise InputError("weft: the model is closed")
        return self.handle

    # What it is.

    @locked
    def option(self, key):
        """An option's value as text: model.option("N_LAYER") is "12"."""
        room = ctypes.create_string_buffer(OPTION_ROOM)
        check(lib.weft_model_option(self._open(), key.upper().encode(), room, OPTION_ROOM))
        return room.value.decode()

    @locked
    def names(self):
        """The names of its tensors, in order."""
        return [lib.weft_model_tensor_name(self._open(), i).decode()
                for i in range(lib.weft_model_tensors(self._open()))]

    @locked
    def shape(self, name):
        shape, ndim = (c_int64 * 4)(), c_int()
        check(lib.weft_model_shape(self._open(), name.encode(), shape, byref(ndim), None))
        return tuple(shape[:ndim.value])

    @property
    def parameters(self):
        """How many parameters it has."""
        return sum(math.prod(self.shape(name)) for name in self.names())

    def __repr__(self):
        if self.handle is None:
            return "weft.Model(closed)"
        head = f"weft.Model({self.path or 'fresh'}: {self.option('ATTENTION')}, {self.option('FFN')}, " \
               f"{self.option('N_LAYER')} layers of width {self.option('N_EMBD')}, {self.parameters:,} parameters)"
        lines, seen = [], set()
        for name in self.names():
            layer = name.split(".")[1] if name.startswith("h.") else None
            kind = name.replace(f"h.{layer}.", "h.*.", 1) if layer else name
            if kind not in seen:
                seen.add(kind)
                lines.append(f"  {kind:<32} {list(self.shape(name))}")
        return "\n".join([head, *lines])

    # Its tensors.

    @property
    def wide(self):
        """Whether its numbers are float64: DTYPE is f64."""
        return self.option("DTYPE") == "f64"

    @locked
    def read_into(self, name, out, dtype, device="cpu"):
        """Puts a tensor's values into dense memory of its shape. `dtype` is the framework's float64 where DTYPE is f64,
        else its float32."""
        function, kind = (lib.weft_model_read_f64, c_double) if self.wide else (lib.weft_model_read, c_float)
        shape = self.shape(name)
        check(function(self._open(), name.encode(), pointer(out, shape, dtype, kind, name, device), math.prod(shape)))

    @locked
    def write_from(self, name, values, dtype, device="cpu"):
        """The other way."""
        function, kind = (lib.weft_model_write_f64, c_double) if self.wide else (lib.weft_model_write, c_float)
        shape = self.shape(name)
        check(function(self._open(), name.encode(), pointer(values, shape, dtype, kind, name, device), math.prod(shape)))

    def read(self, name):
        """A tensor's values: float64 where DTYPE is f64, else float32."""
        kind = np.float64 if self.wide else np.float32
        out = np.empty(self.shape(name), kind)
        self.read_into(name, out, kind)
        return out

    def write(self, name, values):
        """Gives a tensor other values, of its shape."""
        values, kind = np.asarray(values), np.float64 if self.wide else np.float32
        if values.dtype.kind not in "fiub":
            raise InputError(f"weft: {name} takes numbers, not {values.dtype}")
        self.write_from(name, np.require(values, kind, ("C", "A")), kind)

    @locked
    def save(self, folder):
        """Writes a model's folder: config.json, model.safetensors, the tokenizer it came with, and their checksums. It
        takes its name when it is whole. A model's folder is replaced; another, or what a run resumes from, is not."""
        check(lib.weft_save_with_tokenizer(self._open(), None, self.text and os.fsencode(self.text), os.fsencode(folder)))

    # Running it.

    def _pass(self, shape, purpose):
        key = (*shape, purpose)
        if key not in self._passes:
            while len(self._passes) >= PASSES_KEPT:
                lib.weft_pass_close(self._passes.popitem(last=False)[1])
            self._passes[key] = handle(lib.weft_pass_open, _blocks.engine(self.device), self._open(), *key)
        self._passes.move_to_end(key)
        return self._passes[key]

    def _run(self, tokens, targets, purpose):
        tokens = batch_of(tokens, "tokens")
        if targets is not None:
            targets = batch_of(targets, "targets")
            if targets.shape != tokens.shape:
                raise InputError(f"weft: tokens are {tokens.shape}, but targets {targets.shape}")
        a_pass = self._pass(tokens.shape, purpose)
        tokens_at, targets_at = (None if t is None else pointer(t, tokens.shape, np.int32, c_int32) for t in (tokens, targets))
        check(lib.weft_pass_run(a_pass, tokens_at, targets_at, tokens.size, 0))
        return a_pass, tokens.shape

    def logits(self, tokens):
        """tokens [batch, time] (or [time]) → logits [batch, time, vocabulary] (or [time, vocabulary])."""
        one = np.ndim(tokens) == 1
        with self._lock:
            a_pass, shape = self._run(tokens, None, LOGITS)
            function, kind, dtype = ((lib.weft_pass_logits_f64, c_double, np.float64) if self.wide
                                     else (lib.weft_pass_logits, c_float, np.float32))
            out = np.empty((*shape, int(self.option("VOCAB_SIZE"))), dtype)
            check(function(a_pass, pointer(out, out.shape, dtype, kind), out.size))
        return out[0] if one else out

    def loss(self, tokens, targets=None, train=False):
        """The loss by parts. `targets` have the tokens' shape, -1 where none counts; without them
        the tokens are [batch, time + 1], and each tells the next. `train` adds the auxiliary
        losses."""
        if targets is None:
            tokens = batch_of(tokens, "tokens")
            if tokens.shape[1] < 2:
                raise InputError("weft: two tokens are the least: one to read, one to tell")
            tokens, targets = tokens[:, :-1], tokens[:, 1:]
        with self._lock:
            a_pass, _ = self._run(tokens, targets, TRAIN if train else EVAL)
            return {part: self._part(a_pass, part) for part in PARTS}

    @staticmethod
    def _part(a_pass, part):
        out = c_double()
        check(lib.weft_pass_loss(a_pass, part.encode(), byref(out)))
        return out.value

    def gradients(self, tokens, targets):
        """The gradient of the loss by every tensor, of one pass in train mode: {name: array}."""
        with self._lock:
            a_pass, _ = self._run(tokens, targets, TRAIN)
            out = {}
            for name in self.names():
                grad = out[name] = np.empty(self.shape(name), np.float32)
                check(lib.weft_pass_gradient(a_pass, name.encode(), pointer(grad, grad.shape, np.float32, c_float), grad.size))
            return out

    # Text.

    @property
    def tokenizer(self):
        """The checkpoint's tokenizer: .encode(text), .decode(tokens)."""
        if self._tokenizer is None:
            from ._text import Tokenizer
            self._tokenizer = Tokenizer(self.text or self.option("TOKENIZER"))
        return self._tokenizer

    def generate(self, prompt, **options):
        """A text (or a list of tokens) and how it goes on; see weft.generate."""
        from ._generate import generate
        return generate(self, prompt, **options)


def batch_of(values, name):
    """Whole numbers as int32 [batch, time]; one row may come without its dimension."""
    if np is None:
        raise ImportError("weft.Model takes and gives NumPy arrays: pip install numpy")
    values = np.asarray(values)
    if values.ndim == 1:
        values = values[None]
    if values.ndim != 2 or values.size == 0:
        raise InputError(f"weft: {name} must be [batch, time], not {values.shape}")
    if values.dtype.kind not in "iu":
        raise InputError(f"weft: {name} must be whole numbers, not {values.dtype}")
    if values.size and (values.max() > 2**31 - 1 or values.min() < -2**31):
        raise InputError(f"weft: {name} are outside the vocabulary")
    return np.require(values, np.int32, ("C", "A"))
