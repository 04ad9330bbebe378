"""Finds libweft and describes its C functions to ctypes.

ctypes.CDLL releases the interpreter lock around every call. The library is looked for in this order:
the file that WEFT_LIBRARY names, the one that was installed with this package, the build folder of a
source tree that this file is part of, and what the system's loader finds.
"""
import ctypes
import operator
import os
import pathlib
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p


class WeftError(Exception):
    """An error that the library reported: the machine's, or a part that this build leaves out."""


class InputError(WeftError, ValueError):
    """What was passed in cannot be used: a shape, a type, an option, a file."""


STATUS = {1: InputError, 2: MemoryError, 3: OSError, 4: WeftError, 5: WeftError}


def whole(value, bits=64):
    """A whole number of so many bits with a sign. ctypes itself would cut a larger one to its last bits."""
    value = operator.index(value)
    if not -1 << bits - 1 <= value < 1 << bits - 1:
        raise InputError(f"weft: {value} has more than {bits} bits")
    return value


def named(value):
    """The bytes of a name, a path or an option. C would read one up to its first NUL."""
    if value is not None and b"\0" in value:
        raise InputError(f"weft: {value!r} has a NUL in it")
    return value


def _checked(kind, look):
    """The type of an argument that is looked at before C sees it."""
    return type(kind.__name__, (), {"from_param": staticmethod(lambda v: v if isinstance(v, kind) else kind(look(v)))})


CHECKED = {c_int64: _checked(c_int64, whole), c_int: _checked(c_int, lambda v: whole(v, 32)),
           c_char_p: _checked(c_char_p, named)}


class OfC:
    """What has a handle of C. A copy would have the same one, and close it a second time."""

    def __reduce__(self):
        raise TypeError(f"weft: a {type(self).__name__} is not copied or pickled; save it, and open what was saved")


class BlockInfo(ctypes.Structure):
    """weft_block_info"""
    _fields_ = [("name", c_char_p), ("type", c_char_p), ("ndim", c_int), ("shape", c_int64 * 4),
                ("count", c_int64), ("bytes", c_int64), ("gradient", c_int), ("read_back", c_int)]


class Call(ctypes.Structure):
    """weft_call"""
    _fields_ = [("size", c_size_t), ("inputs", POINTER(c_void_p)), ("weights", POINTER(c_void_p)),
                ("outputs", POINTER(c_void_p)), ("saved", c_void_p), ("workspace", c_void_p),
                ("stream", c_void_p), ("seed", c_uint64), ("iteration", c_uint32),
                ("sequence", c_uint32), ("grad_outputs", POINTER(c_void_p)),
                ("grad_inputs", POINTER(c_void_p)), ("grad_weights", POINTER(c_void_p))]


class Cost(ctypes.Structure):
    """weft_cost"""
    _fields_ = [(name, c_int64) for name in
                ("parameters", "training_bytes", "weights_bytes", "gradients_bytes",
                 "optimizer_bytes", "activations_bytes", "workspace_bytes",
                 "cache_bytes_per_token")] + [("forward_flops", c_double),
                                              ("backward_flops", c_double)]


class StepGroup(ctypes.Structure):
    """weft_step_group"""
    _fields_ = [("size", c_size_t)] + [(name, c_double) for name in
                ("beta1", "beta2", "eps", "weight_decay", "clip", "spike_threshold", "theta")] + [
                ("reset_interval", c_int64), ("warmup_steps", c_int64), ("amsgrad", c_int), ("momentum", c_double)]


class StepTensor(ctypes.Structure):
    """weft_step_tensor"""
    _fields_ = [("size", c_size_t), ("count", c_int64), ("group", c_int), ("decay", c_int),
                ("bf16_grad", c_int), ("copy", c_int), ("columns", c_int64), ("rows", c_int64), ("first_rows", c_int64)]


class StepCall(ctypes.Structure):
    """weft_step_call"""
    _fields_ = [("size", c_size_t)] + [(name, POINTER(c_void_p)) for name in
                ("rates", "states", "reports", "cuts", "params", "grads", "m", "v", "v_max", "copies")] + [
                ("workspace", c_void_p), ("stream", c_void_p)]


TEXTS = POINTER(c_char_p)
FUNCTIONS = {
    "weft_version": (c_char_p, []),
    "weft_error_message": (c_char_p, []),
    "weft_engine_open": (c_int, [c_int, c_char_p, POINTER(c_void_p)]),
    "weft_engine_close": (None, [c_void_p]),
    "weft_engine_device": (c_char_p, [c_void_p]),
    "weft_model_open": (c_int, [c_char_p, TEXTS, POINTER(c_void_p)]),
    "weft_model_close": (None, [c_void_p]),
    "weft_model_option": (c_int, [c_void_p, c_char_p, c_void_p, c_size_t]),
    "weft_save_with_tokenizer": (c_int, [c_void_p, c_void_p, c_char_p, c_char_p]),
    "weft_model_tensors": (c_int64, [c_void_p]),
    "weft_model_tensor_name": (c_char_p, [c_void_p, c_int64]),
    "weft_model_shape": (c_int, [c_void_p, c_char_p, c_int64 * 4, POINTER(c_int), POINTER(c_int64)]),
    "weft_model_read": (c_int, [c_void_p, c_char_p, POINTER(c_float), c_int64]),
    "weft_model_read_f64": (c_int, [c_void_p, c_char_p, POINTER(c_double), c_int64]),
    "weft_model_write": (c_int, [c_void_p, c_char_p, POINTER(c_float), c_int64]),
    "weft_model_write_f64": (c_int, [c_void_p, c_char_p, POINTER(c_double), c_int64]),
    "weft_estimate": (c_int, [c_char_p, TEXTS, c_int, POINTER(Cost), c_size_t]),
    "weft_pass_open": (c_int, [c_void_p, c_void_p, c_int64, c_int64, c_int, POINTER(c_void_p)]),
    "weft_pass_close": (None, [c_void_p]),
    "weft_pass_run": (c_int, [c_void_p, POINTER(c_int32), POINTER(c_int32), c_int64, c_uint32]),
    "weft_pass_loss": (c_int, [c_void_p, c_char_p, POINTER(c_double)]),
    "weft_pass_logits": (c_int, [c_void_p, POINTER(c_float), c_int64]),
    "weft_pass_logits_f64": (c_int, [c_void_p, POINTER(c_double), c_int64]),
    "weft_pass_gradient": (c_int, [c_void_p, c_char_p, POINTER(c_float), c_int64]),
    "weft_optimizer_open": (c_int, [c_void_p, c_void_p, c_char_p, POINTER(c_void_p)]),
    "weft_optimizer_close": (None, [c_void_p]),
    "weft_optimizer_step": (c_int, [c_void_p, c_void_p, c_double]),
    "weft_optimizer_event": (c_int, [c_void_p, c_char_p, POINTER(c_double)]),
    "weft_block_open_part": (c_int, [c_void_p, c_char_p, TEXTS, c_int64, c_int64, c_int, c_int,
                                     POINTER(c_void_p)]),
    "weft_block_close": (None, [c_void_p]),
    "weft_block_count": (c_int, [c_void_p, c_int]),
    "weft_block_tensor": (c_int, [c_void_p, c_int, c_int, POINTER(BlockInfo), c_size_t]),
    "weft_block_bytes": (c_int64, [c_void_p, c_int]),
    "weft_block_forward": (c_int, [c_void_p, POINTER(Call)]),
    "weft_block_backward": (c_int, [c_void_p, POINTER(Call)]),
    "weft_block_check": (c_int, [c_void_p]),
    "weft_generation_open": (c_int, [c_void_p, c_void_p, c_int64, c_int64, POINTER(c_void_p)]),
    "weft_generation_close": (None, [c_void_p]),
    "weft_generation_add": (c_int, [c_void_p, POINTER(c_int32), c_int64, TEXTS, POINTER(c_int64)]),
    "weft_generation_step": (c_int, [c_void_p, POINTER(c_int)]),
    "weft_generation_take": (c_int64, [c_void_p, c_int64, POINTER(c_int32), POINTER(c_float), c_int64,
                                       POINTER(c_int)]),
    "weft_generation_remove": (None, [c_void_p, c_int64]),
    "weft_text_open": (c_int, [c_char_p, POINTER(c_void_p)]),
    "weft_text_close": (None, [c_void_p]),
    "weft_text_vocabulary": (c_int64, [c_void_p]),
    "weft_text_end": (c_int32, [c_void_p]),
    "weft_text_encode": (c_int, [c_void_p, c_void_p, c_size_t, c_int, POINTER(c_int32), c_int64,
                                 POINTER(c_int64)]),
    "weft_text_decode": (c_int, [c_void_p, POINTER(c_int32), c_int64, c_void_p, c_size_t,
                                 POINTER(c_size_t)]),
    "weft_step_open": (c_int, [c_void_p, c_char_p, POINTER(StepGroup), c_int, POINTER(StepTensor),
                               c_int, POINTER(c_void_p)]),
    "weft_step_close": (None, [c_void_p]),
    "weft_step_bytes": (c_int64, [c_void_p]),
    "weft_step_run": (c_int, [c_void_p, POINTER(StepCall)]),
}


def candidates():
    here = pathlib.Path(__file__).resolve().parent
    if os.environ.get("WEFT_LIBRARY"):
        yield os.environ["WEFT_LIBRARY"]
        return
    for path in here / "_lib" / "libweft.so", here.parent.parent / "build" / "libweft.so":
        if path.exists():
            yield str(path)
    yield "libweft.so.0"


def load():
    tried = []
    for path in candidates():
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            tried.append(f"{path}: {error}")
            continue
        for name, (result, arguments) in FUNCTIONS.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, [CHECKED.get(kind, kind) for kind in arguments]
        return library, path
    raise ImportError("weft: libweft was not found. In a source tree run `make build`, or name the "
                      "file with WEFT_LIBRARY. Tried: " + "; ".join(tried))


lib, library_path = load()


def check(status):
    """Raises what a weft_status stands for."""
    if status:
        raise STATUS.get(status, WeftError)(lib.weft_error_message().decode(errors="replace"))


def texts(options):
    """A NULL-ended list of "KEY=VALUE" for C from a dict or a list of such texts."""
    if options is None:
        return None
    if isinstance(options, dict):
        options = [f"{key.upper()}={text(value)}" for key, value in options.items()]
    encoded = [named(option.encode()) for option in options]
    return (c_char_p * (len(encoded) + 1))(*encoded, None)


def text(value):
    """An option's value as a config writes it."""
    if isinstance(value, bool):
        return "y" if value else "n"
    return float.__repr__(value) if isinstance(value, float) else str(value)  # NumPy's own has its type's name in it


def handle(function, *arguments):
    """What an opening function hands out."""
    out = c_void_p()
    check(function(*arguments, byref(out)))
    return out
