"""weft for Python.

    model = weft.Model("runs/demo/best")              # NumPy in and out
    weft.generate(model, "Once upon", max_tokens=40)
    weft.plan(ATTENTION="mla", N_LAYER=6)["parameters"]
    weft.runs("out")                                   # a study's runs, one record each

    module = weft.load("runs/demo/best")              # a PyTorch module; weft.save writes it again

weft.torch has the PyTorch modules; nothing else here needs torch.
"""
from ctypes import byref, sizeof

from ._library import Cost, InputError, WeftError, check, lib, library_path, texts

__all__ = ["InputError", "Model", "Tokenizer", "WeftError", "generate", "library_path", "load", "plan", "runs", "save",
           "version"]

# What needs NumPy or PyTorch is imported when it is used.
_LATER = {"Model": "_model", "Tokenizer": "_text", "generate": "_generate", "runs": "_runs"}


def __getattr__(name):
    import importlib
    if name in _LATER:
        return getattr(importlib.import_module(f".{_LATER[name]}", __name__), name)
    if name in ("torch", "plot", "lm_eval"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module 'weft' has no attribute {name!r}")


def version():
    return lib.weft_version().decode()


def plan(path=None, **options):
    """What a config costs: parameters, bytes and operations, as a dict. `path` is a config or a
    checkpoint; options are a config's, weft.plan(ATTENTION="w2", N_EMBD=512)."""
    cost = Cost()
    check(lib.weft_estimate(path.encode() if path else None, texts(options), 0, byref(cost), sizeof(cost)))
    return {name: getattr(cost, name) for name, _ in cost._fields_}


def load(path, **options):
    """A checkpoint as a weft.torch.LanguageModel, with the very numbers of its tensors. Options change
    what training and evaluation do, as `weft eval -o` does."""
    from .torch import LanguageModel
    return LanguageModel.load(path, **options)


def save(module, folder):
    """A weft.torch.LanguageModel as a checkpoint that weft's commands read."""
    module.save(folder)
