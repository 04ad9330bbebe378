"""Engines and blocks: parts of weft's models as two functions over foreign memory.

One engine per device serves the whole process. A block knows the names, types and shapes of its
inputs, weights and outputs. The blocks that were used last are kept open; others are closed when
nothing uses them any more. This file knows addresses only, no framework.
"""
import atexit
import collections
import ctypes
import os
import struct
import threading
from ctypes import byref, c_void_p, sizeof

from ._library import BlockInfo, Call, check, handle, lib, texts

INPUTS, WEIGHTS, OUTPUTS = 0, 1, 2
GRADIENT, TRAIN, ONE_LOSS = 1, 2, 8
SAVED, FORWARD, BACKWARD = 0, 1, 2

# Looked up once: a library's attributes are slow to find, and at exit they go before a block does
_forward, _backward, _close = lib.weft_block_forward, lib.weft_block_backward, lib.weft_block_close

_lock = threading.Lock()
_engines = {}
_blocks = collections.OrderedDict()
BLOCKS_KEPT = 256


# How many threads the CPU's engine takes where WEFT_THREADS is not set; 0: one per processor
default_threads = lambda: 0


def threads_wanted():
    given = os.environ.get("WEFT_THREADS", "").strip()
    if given and not given.isdecimal():
        raise ValueError(f"WEFT_THREADS is {given!r}; set a number of threads, or 0 for one per processor")
    return int(given) if given else default_threads()


def engine(device):
    """The engine of "cpu", "cuda" or "cuda:0". WEFT_THREADS sets how many threads the CPU's has. The
    caller makes a GPU the current one."""
    found = _engines.get(device)
    if found is None:
        with _lock:
            if device not in _engines:
                _engines[device] = handle(lib.weft_engine_open, threads_wanted(), device.split(":")[0].encode())
            found = _engines[device]
    return found


class Tensor:
    """What a block says of one of its tensors."""

    def __init__(self, info):
        self.name, self.type = info.name.decode(), info.type.decode()
        self.shape = tuple(info.shape[:info.ndim])
        self.bytes, self.gradient, self.read_back = info.bytes, bool(info.gradient), bool(info.read_back)


class Block:
    """A part of a model ("attention", "ffn", "layer") planned for a batch and a time."""

    def __init__(self, device, part, options, batch, time, first, purpose):
        self.handle = handle(lib.weft_block_open_part, engine(device), part.encode(), texts(options),
                             batch, time, int(first), purpose)
        self.inputs, self.weights, self.outputs = map(self._list, (INPUTS, WEIGHTS, OUTPUTS))
        self.saved_bytes, self.forward_bytes, self.backward_bytes = (
            lib.weft_block_bytes(self.handle, what) for what in (SAVED, FORWARD, BACKWARD))
        self._frames = []

    def __del__(self, close=_close):
        if getattr(self, "handle", None) is not None:
            close(self.handle)

    def _list(self, which):
        tensors, info = [], BlockInfo()
        for i in range(lib.weft_block_count(self.handle, which)):
            check(lib.weft_block_tensor(self.handle, which, i, byref(info), sizeof(info)))
            tensors.append(Tensor(info))
        return tensors

    def frame(self):
        """A weft_call with its lists, to be filled. A thread takes one, and gives it back."""
        try:
            return self._frames.pop()
        except IndexError:
            return Frame(len(self.inputs), len(self.weights), len(self.outputs))

    def forward(self, at, saved, workspace, stream=None, seed=0):
        """Runs it. `at`: the addresses of inputs, weights and outputs in one list."""
        frame = self.frame()
        frame.fill(at, saved, workspace, stream, seed)
        status = _forward(self.handle, frame.at)
        self._frames.append(frame)
        if status:
            check(status)

    def backward(self, at, saved, workspace, stream=None, seed=0):
        """`at`: behind those of forward the addresses of the gradients of outputs, inputs and weights. 0 stands
        for what the pass does not use."""
        frame = self.frame()
        frame.fill_back(at, saved, workspace, stream, seed)
        status = _backward(self.handle, frame.at)
        self._frames.append(frame)
        if status:
            check(status)

    def check(self):
        """Raises the first value that a call could not use, as far as it is known by now."""
        check(lib.weft_block_check(self.handle))


class Frame:
    """A weft_call and the addresses that it points to, which two writes fill. ctypes objects are slow to make and
    to convert to, so a block keeps frames, and the addresses are packed as one list."""

    def __init__(self, inputs, weights, outputs):
        given = inputs + weights + outputs
        self.addresses = (ctypes.c_uint64 * max(2 * given, 1))()
        self.call = Call(size=sizeof(Call))
        at = ctypes.addressof(self.addresses)
        for name, count in (("inputs", inputs), ("weights", weights), ("outputs", outputs), ("grad_outputs", outputs),
                            ("grad_inputs", inputs), ("grad_weights", weights)):
            setattr(self.call, name, ctypes.cast(at, ctypes.POINTER(c_void_p)))
            at += sizeof(c_void_p) * count
        self._pack, self._pack_back = struct.Struct(f"{given}Q").pack_into, struct.Struct(f"{2 * given}Q").pack_into
        self.at = byref(self.call)

    def fill(self, at, saved, workspace, stream, seed):
        self._pack(self.addresses, 0, *at)
        _pack_call(self.call, CALL_AT, saved, workspace, stream or 0, seed)

    def fill_back(self, at, saved, workspace, stream, seed):
        self._pack_back(self.addresses, 0, *at)
        _pack_call(self.call, CALL_AT, saved, workspace, stream or 0, seed)


# saved, workspace, stream and seed lie one behind the other in a weft_call
CALL_AT, _pack_call = Call.saved.offset, struct.Struct("4Q").pack_into


def addresses(values):
    return ctypes.cast((c_void_p * max(len(values), 1))(*values), ctypes.POINTER(c_void_p))


def known(key):
    """The block of these arguments of `block`, where it is open."""
    found = _blocks.get(key)
    if found is not None and len(_blocks) == BLOCKS_KEPT:
        with _lock:
            if key in _blocks:
                _blocks.move_to_end(key)
    return found


def block(*key):
    """The block for a device, part, options, batch, time, first and purpose, opened once in a process. `options`
    is one text, one option per line."""
    found = known(key)
    if found is None:
        device, part, options, *rest = key
        made = Block(device, part, options.split("\n"), *rest)
        with _lock:
            found = _blocks.setdefault(key, made)
            while len(_blocks) > BLOCKS_KEPT:
                _blocks.popitem(last=False)
    return found


def _print_profiles(close=lib.weft_engine_close):
    """A profile is printed when its block goes, and blocks go with their engine."""
    Block.__del__ = lambda self: None
    _blocks.clear()
    while _engines:
        close(_engines.popitem()[1])


if os.environ.get("WEFT_PROFILE"):
    atexit.register(_print_profiles)
