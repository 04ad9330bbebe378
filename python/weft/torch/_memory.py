"""Memory of calls on the CPU, kept for the next ones.

The system hands out memory page by page and clears each, which takes as long as a pass over it, and PyTorch gives large
pieces back as soon as a tensor is gone. A GPU's allocator keeps memory itself.
"""
import collections
import ctypes
import mmap
import threading
import weakref

import torch

from .._door import ALIGNMENT

WORKSPACE_KEPT = 256 << 20  # bytes of the largest workspace that a thread keeps
LEAST = 1 << 20             # bytes from which it pays to use memory again
KEPT = 1 << 30              # bytes of such memory that waits for its next use

_of_thread = threading.local()


def _first_aligned(memory):
    return -(-memory.data_ptr() // ALIGNMENT) * ALIGNMENT


def workspace(count):
    """A tensor of so many bytes and the address in it that a call may use. A thread has one, for one call at a time."""
    kept = getattr(_of_thread, "workspace", None)
    if kept is None or kept[0].numel() < count + ALIGNMENT:
        memory = torch.empty(count + ALIGNMENT, dtype=torch.uint8)
        kept = memory, _first_aligned(memory)
        if count <= WORKSPACE_KEPT:
            _of_thread.workspace = kept
    return kept


class _Spare:
    """Pieces of memory that no tensor uses, the one that came last at the end. Whoever gives one back may do so in the
    middle of another's call, so each change is a single operation of a deque."""

    def __init__(self):
        self.pieces = collections.deque()

    def take(self, count):
        """One of that size, or None."""
        for _ in range(len(self.pieces)):
            try:
                piece = self.pieces.pop()
            except IndexError:
                return None
            if len(piece) == count:
                return piece
            self.pieces.appendleft(piece)
        return None

    def give(self, piece):
        self.pieces.append(piece)
        while sum(map(len, tuple(self.pieces))) > KEPT:
            try:
                self.pieces.popleft()
            except IndexError:
                return


_spare = _Spare()


def _new_piece(count):
    piece = mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # private: a forked process has its own
    if hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            piece.madvise(mmap.MADV_HUGEPAGE)
        except OSError:  # a kernel without them
            pass
    return piece


def _bytes(count):
    """A tensor of at least so many bytes whose memory is used again when it, and all views of it, are gone."""
    room = -(-count // mmap.PAGESIZE) * mmap.PAGESIZE
    piece = _spare.take(room) or _new_piece(room)
    window = (ctypes.c_char * room).from_buffer(piece)
    weakref.finalize(window, _spare.give, piece).atexit = False
    return torch.frombuffer(window, dtype=torch.uint8)


def saved(count):
    """A tensor of so many bytes, and its address: a page's."""
    memory = _bytes(count)[:count]
    return memory, memory.data_ptr()


def tensor(shape, dtype, count):
    """A new tensor of that many bytes, not filled."""
    return torch.empty(0, dtype=dtype).set_(_bytes(count).untyped_storage(), 0, shape)
