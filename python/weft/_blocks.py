"""Engines and blocks: parts of weft's models as two functions over foreign memory.

One engine per device serves the whole process. A block knows the names, types and shapes of its
inputs, weights and outputs. The blocks that were used last are kept open; others are closed when
nothing uses them any more. This file knows addresses only, no framework.
"""
import collections
import ctypes
import os
import threading
from ctypes import byref, c_void_p, sizeof

from ._library import BlockInfo, Call, check, handle, lib, texts

INPUTS, WEIGHTS, OUTPUTS = 0, 1, 2
GRADIENT, TRAIN = 1, 2
SAVED, FORWARD, BACKWARD = 0, 1, 2
ALIGNMENT = 64

_lock = threading.Lock()
_engines = {}
_blocks = collections.OrderedDict()
BLOCKS_KEPT = 256


def engine(device):
    """The engine of "cpu", "cuda" or "cuda:0". WEFT_THREADS sets how many threads the CPU's has. The
    caller makes a GPU the current one."""
    found = _engines.get(device)
    if found is None:
        with _lock:
            if device not in _engines:
                threads = int(os.environ.get("WEFT_THREADS", "0"))
                _engines[device] = handle(lib.weft_engine_open, threads, device.split(":")[0].encode())
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

    def __del__(self):
        if getattr(self, "handle", None) is not None:
            lib.weft_block_close(self.handle)

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

    def forward(self, inputs, weights, outputs, saved, workspace, stream=None, seed=0):
        """Runs it; every argument is an address or a list of them, None where there is none."""
        frame = self.frame()
        frame.fill(inputs, weights, outputs, saved, workspace, stream, seed)
        status = lib.weft_block_forward(self.handle, frame.at)
        self._frames.append(frame)
        if status:
            check(status)

    def backward(self, inputs, weights, outputs, saved, workspace, grad_outputs, grad_inputs,
                 grad_weights, stream=None, seed=0):
        frame = self.frame()
        frame.fill(inputs, weights, outputs, saved, workspace, stream, seed)
        frame.grad_outputs[:], frame.grad_inputs[:], frame.grad_weights[:] = grad_outputs, grad_inputs, grad_weights
        status = lib.weft_block_backward(self.handle, frame.at)
        self._frames.append(frame)
        if status:
            check(status)

    def check(self):
        """Raises the first value that a call could not use, as far as it is known by now."""
        check(lib.weft_block_check(self.handle))


class Frame:
    """A weft_call and the lists that it points to. ctypes objects are slow to make, so a block keeps them."""

    def __init__(self, inputs, weights, outputs):
        self.inputs, self.weights, self.outputs = (c_void_p * inputs)(), (c_void_p * weights)(), (c_void_p * outputs)()
        self.grad_outputs, self.grad_inputs, self.grad_weights = (
            (c_void_p * outputs)(), (c_void_p * inputs)(), (c_void_p * weights)())
        self.call = Call(size=sizeof(Call))
        for name in "inputs", "weights", "outputs", "grad_outputs", "grad_inputs", "grad_weights":
            setattr(self.call, name, ctypes.cast(getattr(self, name), ctypes.POINTER(c_void_p)))
        self.at = byref(self.call)

    def fill(self, inputs, weights, outputs, saved, workspace, stream, seed):
        self.inputs[:], self.weights[:], self.outputs[:] = inputs, weights, outputs
        call = self.call
        call.saved, call.workspace, call.stream, call.seed = saved, workspace, stream, seed


def addresses(values):
    return ctypes.cast((c_void_p * max(len(values), 1))(*values), ctypes.POINTER(c_void_p))


def block(device, part, options, batch, time, first, purpose):
    """The block of these arguments, opened once in a process. `options` is one text, one option per line."""
    key = device, part, options, batch, time, first, purpose
    found = _blocks.get(key)
    if found is None:
        made = Block(device, part, options.split("\n"), batch, time, first, purpose)
        with _lock:
            found = _blocks.setdefault(key, made)
            while len(_blocks) > BLOCKS_KEPT:
                _blocks.popitem(last=False)
    elif len(_blocks) == BLOCKS_KEPT:
        with _lock:
            if key in _blocks:
                _blocks.move_to_end(key)
    return found
