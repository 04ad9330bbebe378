"""weft for Python. weft.torch has the PyTorch modules; this module needs no torch.

    weft.plan(ATTENTION="mla", N_LAYER=6)["parameters"]
"""
from ctypes import byref, sizeof

from ._library import Cost, InputError, WeftError, check, lib, library_path, texts

__all__ = ["InputError", "WeftError", "library_path", "plan", "version"]


def version():
    return lib.weft_version().decode()


def plan(path=None, **options):
    """What a config costs: parameters, bytes and operations, as a dict. `path` is a config or a
    checkpoint; options are a config's, weft.plan(ATTENTION="w2", N_EMBD=512)."""
    cost = Cost()
    check(lib.weft_estimate(path.encode() if path else None, texts(options), 0, byref(cost), sizeof(cost)))
    return {name: getattr(cost, name) for name, _ in cost._fields_}
