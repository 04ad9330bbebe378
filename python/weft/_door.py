"""The one door through which memory of Python reaches C.

C trusts the addresses that it is given. So everything that hands one out has it from `taken`, which looks at each
tensor a last time: its shape, type and device must be those that C was told of, and its numbers must be in memory that
is there. What is wrong is raised. What is right but does not lie as C reads it, one number behind the other from a
multiple of ALIGNMENT on, is copied. This file knows no framework: a NumPy array comes as an Array, lists of numbers as
`tokens`.
"""
import ctypes
import operator

from ._library import InputError

ALIGNMENT = 64


def are_aligned(at, alignment=ALIGNMENT):
    bits = 0
    for where in at:
        bits |= where
    return bits % alignment == 0


def taken(given, shapes, dtypes, device, names, alignment=ALIGNMENT):
    """The tensors as C may read and write them, and their addresses. One that is a copy is another object than the
    one that was given: whoever has C write to it copies back."""
    try:
        at = [t.data_ptr() for t in given]
        if ([t.shape for t in given] == shapes and [t.dtype for t in given] == dtypes
                and [t.device for t in given].count(device) == len(given) and 0 not in at and are_aligned(at, alignment)
                and False not in [t.is_contiguous() for t in given] and True not in [t.is_neg() for t in given]):
            return list(given), at
    except (NotImplementedError, RuntimeError):  # one has no memory of its own: it is named below
        pass
    if len(given) != len(shapes):
        raise InputError(f"weft: {len(given)} tensors were given, but {len(shapes)} are wanted: {', '.join(names)}")
    out = [_one(*of_one, device, alignment) for of_one in zip(given, shapes, dtypes, names)]
    return out, [t.data_ptr() for t in out]


def _one(t, shape, dtype, name, device, alignment):
    if t.shape != shape or t.dtype != dtype:
        raise InputError(f"weft: {name} is {tuple(t.shape)} {t.dtype}, but {tuple(shape)} {dtype} is wanted")
    if t.device != device:
        raise InputError(f"weft: {name} lies on {t.device}, but on {device} is wanted; move the tensors to one device")
    try:
        t = t.resolve_neg().contiguous()
        where = t.data_ptr()
    except (NotImplementedError, RuntimeError) as error:
        raise InputError(f"weft: {name} has no plain memory ({getattr(t, 'layout', type(t).__name__)}); give a dense tensor") from error
    if t.numel() and not where:
        raise InputError(f"weft: {name} has no memory: its storage was freed, or is not there yet")
    return shifted(t).copy_(t) if where % alignment else t


def share_memory(tensors):
    """Whether a number of one is a number of another. C writes to all of them at a time, so it would get one of two
    updates, or half of each."""
    at = sorted(((t.data_ptr(), _end(t), i) for i, t in enumerate(tensors) if t.numel() and t.data_ptr()))
    last = 0
    for n, (start, end, i) in enumerate(at):
        if start < last and any(e > start and _meet(tensors[i], tensors[j]) for _, e, j in at[:n]):
            return True
        last = max(last, end)
    return False


def _end(t):
    """Behind its last number."""
    return t.data_ptr() + (sum((n - 1) * step for n, step in zip(t.shape, t.stride())) + 1) * t.element_size()


def _meet(a, b):
    """Whether two that lie in one stretch of memory have a number in common. Columns of one matrix need not."""
    if a.is_contiguous() and b.is_contiguous():
        return True
    first, size = min(a.data_ptr(), b.data_ptr()), a.element_size()
    if b.element_size() != size or (a.data_ptr() - b.data_ptr()) % size:
        return True
    seen = a.detach().new_zeros((max(_end(a), _end(b)) - first) // size)
    seen.as_strided(a.shape, a.stride(), (a.data_ptr() - first) // size).fill_(1)
    return bool(seen.as_strided(b.shape, b.stride(), (b.data_ptr() - first) // size).any())


def shifted(t):
    """A new tensor like that one at an aligned address, whatever the allocator gives."""
    size = t.element_size()
    room = t.new_empty(t.numel() + ALIGNMENT // size)
    skip = (-room.data_ptr() % ALIGNMENT) // size
    return room[skip:skip + t.numel()].view(t.shape)


class Array:
    """A NumPy array as the door sees tensors."""
    device = "cpu"

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, array.dtype

    def data_ptr(self):
        return self.array.ctypes.data

    def is_contiguous(self):
        return self.array.flags.c_contiguous and self.array.flags.aligned

    def is_neg(self):
        return False

    def numel(self):
        return self.array.size

    def resolve_neg(self):
        return self

    def contiguous(self):
        return self if self.is_contiguous() else Array(self.array.copy())


def tokens(values):
    """Whole numbers as C's int32: (the list, how many). ctypes itself would cut them to 32 bits."""
    try:
        values = [operator.index(v) for v in values]
    except TypeError as error:
        raise InputError(f"weft: tokens are whole numbers: {error}") from error
    wrong = next((v for v in values if not -2**31 <= v < 2**31), None)
    if wrong is not None:
        raise InputError(f"weft: token {wrong} is outside any vocabulary")
    return (ctypes.c_int32 * max(len(values), 1))(*values), len(values)
