"""A part of a model as one PyTorch operator with a gradient.

`weft::part` runs a block forward and returns its outputs, then one tensor of bytes: what the backward
pass reads again. `weft::part_back` is its gradient. Both are registered with shapes for tracing, so
torch.compile and torch.export see them as single nodes. A block is found by part, options and shape;
what Python around the operator needs to know of it (names and types) does not depend on the shape.
"""
import contextlib
import functools
from typing import List, Optional, Sequence

import torch
from torch.autograd import forward_ad

from .. import _blocks, _door
from . import _memory

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64, "i32": torch.int32}
NAMES = {dtype: name for name, dtype in TYPES.items()}
DEVICES = "cpu", "cuda"

_blocks.default_threads = torch.get_num_threads
KINDS = frozenset((torch.Tensor, torch.nn.Parameter))  # of tensors that no one watches


def type_name(dtype):
    """The engine's word for a dtype."""
    if dtype not in (torch.float32, torch.bfloat16, torch.float64):
        raise TypeError(f"weft computes in float32, bfloat16 and (on the CPU) float64, not in {dtype}; "
                        "convert with .to(torch.float32)")
    return NAMES[dtype]


def device_name(device):
    """The name of a device's engine: each GPU has one of its own."""
    name = _device_names.get(device)
    if name is None:
        if device.type != "cpu" and device.index is None:
            return f"cuda:{_current_device()}"
        name = _device_names[device] = "cpu" if device.type == "cpu" else f"cuda:{device.index}"
    return name


_device_names = {}


# What torch.cuda.current_device and current_stream ask, without their objects: a tensor of a GPU is there, so PyTorch
# has been initialised for it.
_current_device = getattr(torch._C, "_cuda_getDevice", lambda: torch.cuda.current_device())
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream)


def is_here(device):
    """Whether a call for that device needs no other GPU to be the current one."""
    return device.type == "cpu" or _current_device() == device.index


def on(device):
    """Makes a GPU the current one, as the engine wants it."""
    return contextlib.nullcontext() if device.type == "cpu" else torch.cuda.device(device)


def find(device, part, options, shape, first, purpose):
    """The block for x of that shape [batch, time, width]. `options` is one text, one option per line."""
    key = device_name(device), part, options, int(shape[0]), int(shape[1]), first, purpose
    block = _blocks.known(key)
    if block is None:
        with on(device):
            block = _blocks.block(*key)
    return block


@torch.compiler.assume_constant_result
def describe(device, part, options, first, purpose):
    """Names and dtypes of the inputs, weights and outputs of a part, whatever the shape of x."""
    return _describe(device, part, options, first, purpose)


@functools.lru_cache(maxsize=1024)
def _describe(device, part, options, first, purpose):
    block = find(torch.device(device), part, options, (1, 1), first, purpose)
    return tuple(tuple((t.name, TYPES[t.type]) for t in some) for some in (block.inputs, block.weights, block.outputs))


class _Layout:
    """What a call of a block compares and makes, as lists that are built once."""

    def __init__(self, block):
        given = [*block.inputs, *block.weights]
        self.n_inputs = len(block.inputs)
        self.shapes, self.dtypes = [t.shape for t in given], [TYPES[t.type] for t in given]
        self.given_names = [t.name for t in given]
        self.weight_dtypes = self.dtypes[len(block.inputs):]
        self.outputs = [(t.shape, TYPES[t.type]) for t in block.outputs]
        # Of the inputs, one that an output is like: making one like another tensor is the fastest way to make one
        inputs = [(t.shape, TYPES[t.type]) for t in block.inputs]
        self.models = [inputs.index(said) if said in inputs else None for said in self.outputs]
        self.trained = [t.gradient for t in given]
        self.gradients = [i for i, t in enumerate(given) if t.gradient]
        self.bytes = [t.bytes for t in given]
        self.kept = [t.read_back for t in (*given, *block.outputs)]
        # What a backward pass is given, one behind the other: what it reads again, what was saved, gradients
        again = [t for t in (*given, *block.outputs) if t.read_back]
        reached = [t for t in block.outputs if t.gradient]
        self.saved = bool(block.saved_bytes)
        self.back_shapes = [t.shape for t in again] + [(block.saved_bytes,)] * self.saved + [t.shape for t in reached]
        self.back_dtypes = ([TYPES[t.type] for t in again] + [torch.uint8] * self.saved
                            + [TYPES[t.type] for t in reached])
        self.back_names = ([t.name for t in again] + ["what the forward pass saved"] * self.saved
                           + [f"the gradient of {t.name}" for t in reached])
        self.n_again = len(again)
        self.fixed = [i for i, t in enumerate(block.outputs) if not t.gradient]
        self.reached = [i for i, t in enumerate(block.outputs) if t.gradient]
        self.names = [t.name for t in block.outputs]
        self.nothing = [0] * len(block.outputs)


def layout(block):
    try:
        return block.layout
    except AttributeError:
        block.layout = _Layout(block)
        return block.layout


def _check_counts(block, n_inputs, n_weights):
    for kind, some, count in ("inputs", block.inputs, n_inputs), ("weights", block.weights, n_weights):
        if len(some) != count:
            raise ValueError(f"weft: {count} {kind} were given, but the block has {len(some)}: "
                             + ", ".join(t.name for t in some))


def _bytes(count, device):
    """Memory of that many bytes, and the address in it that a call may use."""
    memory = torch.empty(count + _door.ALIGNMENT, dtype=torch.uint8, device=device)
    return memory, -(-memory.data_ptr() // _door.ALIGNMENT) * _door.ALIGNMENT


def _some_bytes(count, device):
    """The same where it may be none: (None, 0)."""
    return _bytes(count, device) if count else (None, 0)


def _workspace(count, device):
    """_some_bytes for the time of a call."""
    return _memory.workspace(count) if count and device.type == "cpu" else _some_bytes(count, device)


def _saved(count, device):
    """As many bytes and their address, from a forward pass to its backward pass. What is saved begins where the tensor
    does: a hook may bring it again at another place, or from another device."""
    if count >= _memory.LEAST and device.type == "cpu":
        return _memory.saved(count)
    memory, at = _some_bytes(count, device)
    return (memory, at) if memory is None else (memory[at - memory.data_ptr():][:count], at)


def _placed(made):
    """New tensors and their addresses. Most allocators give multiples of 64 bytes."""
    at = [t.data_ptr() for t in made]
    if not _door.are_aligned(at):
        made = [_door.shifted(t) if t.data_ptr() % _door.ALIGNMENT else t for t in made]
        at = [t.data_ptr() for t in made]
    return made, at


def stream_of(device):
    """The address of PyTorch's current stream of a GPU; 0: the default one, or the CPU."""
    return _raw_stream(device.index) if device.type == "cuda" else 0


def _number(seed):
    return 0 if seed is None else int(seed)


def _spread(wanted, values, none=None):
    """The values where one is wanted, `none` elsewhere."""
    rest = iter(values)
    return [next(rest) if w else none for w in wanted]


def _forward(block, given, n_inputs, seed):
    """Runs a block over its inputs and weights: (those as it took them, outputs, what is saved)."""
    device = given[0].device
    if is_here(device):
        return _forward_here(block, given, n_inputs, seed, device)
    with on(device):
        return _forward_here(block, given, n_inputs, seed, device)


def _forward_here(block, given, n_inputs, seed, device):
    said = layout(block)
    if n_inputs != said.n_inputs or len(given) != len(said.shapes):
        _check_counts(block, n_inputs, len(given) - n_inputs)
    taken, at = _door.taken(given, said.shapes, said.dtypes, device, said.given_names)
    outputs, outputs_at = _placed([
        torch.empty(shape, dtype=dtype, device=device) if like is None else torch.empty_like(taken[like])
        for like, (shape, dtype) in zip(said.models, said.outputs)])
    saved, saved_at = _saved(block.saved_bytes, device)
    workspace, workspace_at = _workspace(block.forward_bytes, device)
    block.forward(at + outputs_at, saved_at, workspace_at, stream_of(device), _number(seed))
    return taken, outputs, saved


def _gradients(block, grads, taken, saved, seed):
    """The gradients of a block's inputs and weights that have one. `taken` are its inputs, weights and
    outputs, None where the block does not read them again; `grads` are of the outputs that have one."""
    device = grads[0].device
    if is_here(device):
        return _gradients_here(block, grads, taken, saved, seed, device)
    with on(device):
        return _gradients_here(block, grads, taken, saved, seed, device)


def _new_gradient(said, i, like, device):
    if said.bytes[i] >= _memory.LEAST and device.type == "cpu":
        return _memory.tensor(said.shapes[i], said.dtypes[i], said.bytes[i])
    return torch.empty(said.shapes[i], dtype=said.dtypes[i], device=device) if like is None else torch.empty_like(like)


def _gradients_here(block, grads, taken, saved, seed, device):
    said = layout(block)
    again, n = [t for t, kept in zip(taken, said.kept) if kept], said.n_again
    again, all_at = _door.taken([*again, *([saved] if said.saved else []), *grads], said.back_shapes, said.back_dtypes,
                                device, said.back_names)
    at, saved_at = _spread(said.kept, all_at[:n], 0), all_at[n] if said.saved else 0
    like = _spread(said.kept, again[:n])
    made, made_at = _placed([_new_gradient(said, i, like[i], device) for i in said.gradients])
    grad_outputs = said.nothing[:]
    for i, where in zip(said.reached, all_at[n + said.saved:]):
        grad_outputs[i] = where
    workspace, workspace_at = _workspace(block.backward_bytes, device)
    block.backward(at + grad_outputs + _spread(said.trained, made_at, 0), saved_at, workspace_at, stream_of(device),
                   _number(seed))
    return made


@torch.library.custom_op("weft::part", mutates_args=())
def part(inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], name: str,
         options: str, first: bool, purpose: int, seed: Optional[torch.Tensor]) -> List[torch.Tensor]:
    block = find(inputs[0].device, name, options, inputs[0].shape, first, purpose)
    _, outputs, saved = _forward(block, (*inputs, *weights), len(inputs), seed)
    return [*outputs, inputs[0].new_empty(0, dtype=torch.uint8) if saved is None else saved]


@part.register_fake
def _(inputs, weights, name, options, first, purpose, seed):
    block = find(inputs[0].device, name, options, inputs[0].shape, first, purpose)
    outputs = [inputs[0].new_empty(t.shape, dtype=TYPES[t.type]) for t in block.outputs]
    return [*outputs, inputs[0].new_empty(block.saved_bytes, dtype=torch.uint8)]


@torch.library.custom_op("weft::part_back", mutates_args=())
def part_back(grads: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
              weights: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], saved: torch.Tensor,
              name: str, options: str, first: bool, purpose: int,
              seed: Optional[torch.Tensor]) -> List[torch.Tensor]:
    block = find(saved.device, name, options, inputs[0].shape, first, purpose)
    return _gradients(block, grads, (*inputs, *weights, *outputs), saved, seed)


@part_back.register_fake
def _(grads, inputs, weights, outputs, saved, name, options, first, purpose, seed):
    block = find(saved.device, name, options, inputs[0].shape, first, purpose)
    return [saved.new_empty(t.shape, dtype=TYPES[t.type])
            for t in (*block.inputs, *block.weights) if t.gradient]


def _setup(ctx, inputs, output):
    tensors, weights, ctx.name, ctx.options, ctx.first, ctx.purpose, seed = inputs
    ctx.counts = len(tensors), len(weights), seed is not None
    ctx.save_for_backward(*tensors, *weights, *output, *([seed] if seed is not None else []))


def _backward(ctx, grads):
    kept = ctx.saved_tensors
    n, m, seeded = ctx.counts
    seed = kept[-1] if seeded else None
    kept = kept[:-1] if seeded else kept
    tensors, weights, outputs, saved = kept[:n], kept[n:n + m], kept[n + m:-1], kept[-1]
    block = find(saved.device, ctx.name, ctx.options, tensors[0].shape, ctx.first, ctx.purpose)
    given = [torch.zeros_like(o) if g is None else g.to(o.dtype)
             for g, o, t in zip(grads, outputs, block.outputs) if t.gradient]
    made = iter(torch.ops.weft.part_back(given, list(tensors), list(weights), list(outputs), saved,
                                         ctx.name, ctx.options, ctx.first, ctx.purpose, seed))
    return ([next(made) if t.gradient else None for t in block.inputs],
            [next(made) if t.gradient else None for t in block.weights], None, None, None, None, None)


part.register_autograd(_backward, setup_context=_setup)


class _Eager(torch.autograd.Function):
    """The same outside of tracing, with less around it: an operator's own bookkeeping costs more than a
    small block. Keeps only what the backward pass reads again."""

    @staticmethod
    def forward(ctx, block, seed, n_inputs, *tensors):
        taken, outputs, saved = _forward(block, tensors, n_inputs, seed)
        said = layout(block)
        ctx.block, ctx.seed, ctx.n_taken = block, seed, len(said.kept)
        copied = [t for t, own in zip(tensors, taken) if t is not own]
        ctx.save_for_backward(*[t if kept else None for kept, t in zip(said.kept, taken + outputs)], saved, *copied)
        ctx.set_materialize_grads(False)
        if said.fixed:
            ctx.mark_non_differentiable(*[outputs[i] for i in said.fixed])
        return tuple(outputs)

    @staticmethod
    def backward(ctx, *grads):
        kept = ctx.saved_tensors
        if not torch.is_grad_enabled():
            return _Eager.plain(ctx, kept, grads)
        # create_graph=True: the gradients depend on what was saved, and say so if one asks for theirs
        there = [t for t in (*grads, *kept) if t is not None]
        return _Once.apply(ctx, kept, grads, *there)

    @staticmethod
    def plain(ctx, kept, grads):
        block, taken, saved = ctx.block, kept[:ctx.n_taken], kept[ctx.n_taken]
        said, given = layout(block), []
        for i in said.reached:
            g, (shape, dtype) = grads[i], said.outputs[i]
            if g is None:
                device = next(t for t in (*taken, saved, *grads) if t is not None).device
                g = torch.zeros(shape, dtype=dtype, device=device)
            given.append(g if g.dtype is dtype else g.to(dtype))
        made = _gradients(block, given, taken, saved, ctx.seed)
        return (None, None, None, *_spread(said.trained, made))


class _Once(torch.autograd.Function):
    """Gradients that cannot be differentiated again, but are functions of what they were made of."""

    @staticmethod
    def forward(ctx, eager, kept, grads, *there):
        return _Eager.plain(eager, kept, grads)

    @staticmethod
    def backward(ctx, *grads):
        raise RuntimeError("weft's modules have no second derivatives: their gradients cannot be differentiated again")


def _is_watched():
    """Whether something looks on that must see an operator: a mode, a transform, a tracer."""
    return (torch._C._len_torch_dispatch_stack() > 0 or torch._C._functorch.peek_interpreter_stack() is not None
            or torch._C._is_tracing())


def _refuse_transforms(given):
    """Derivatives that are not there: PyTorch itself would give 0 for some of them in silence."""
    if forward_ad._current_level >= 0 and any(forward_ad.unpack_dual(t).tangent is not None for t in given):
        raise NotImplementedError("weft's modules have no forward-mode derivatives; use backward, or torch.autograd.grad")
    kinds = torch._C._functorch.TransformType
    for transform in torch._C._functorch.get_interpreter_stack() or ():
        if transform.key() in (kinds.Vmap, kinds.Grad, kinds.Jvp):
            raise NotImplementedError(f"weft's modules do not run inside torch.func's transforms (here {transform.key().name.lower()}); "
                                      "call them on a batch, and use backward, or torch.autograd.grad")


def check_devices(tensors):
    """The one device that all of them lie on, which must be one that weft runs on."""
    device = tensors[0].device
    if device.type not in DEVICES:
        raise ValueError(f"weft runs on cpu and cuda, not on {device.type}; move the tensors there")
    for t in tensors:
        if t.device != device:
            raise ValueError(f"weft: tensors lie on {device} and {t.device}; move them to one device")
    return device


def run(name, options, inputs, weights, first=True, purpose=0, seed=None, traced=False):
    """A part's outputs, by name. `weights` may have other types than the block's, and are converted.
    Gradients are prepared where something wants one."""
    given = (*inputs, *weights)
    device = given[0].device
    if [t.device for t in given].count(device) != len(given) or device.type not in DEVICES:
        check_devices(given)
    if given[0].dtype is torch.float64 and device.type != "cpu":
        raise TypeError("weft computes in float64 on the CPU only; convert with .to(torch.float32), or move to the CPU")
    wants = torch.is_grad_enabled() and True in [t.requires_grad for t in given]
    if wants:
        purpose |= _blocks.GRADIENT
    if not traced and (forward_ad._current_level >= 0 or torch._C._functorch.peek_interpreter_stack() is not None):
        _refuse_transforms(given)
    if traced or not KINDS.issuperset(map(type, given)) or _is_watched():
        return _run_traced(device, name, options, inputs, weights, first, purpose, seed)
    block = find(device, name, options, given[0].shape, first, purpose)
    said, n = layout(block), len(inputs)
    if [w.dtype for w in given[n:]] != said.weight_dtypes and len(said.weight_dtypes) == len(weights):
        given = (*inputs, *[w.to(t) for w, t in zip(weights, said.weight_dtypes)])
    out = _Eager.apply(block, seed, n, *given) if wants else _forward(block, given, n, seed)[1]
    return dict(zip(said.names, out))


def _run_traced(device, name, options, inputs, weights, first, purpose, seed):
    _, said, outputs = describe(device_name(device), name, options, first, purpose)
    if len(said) != len(weights):
        raise ValueError(f"weft: {len(weights)} weights were given, but the block has {len(said)}")
    weights = [w.to(t) for w, (_, t) in zip(weights, said)]
    out = torch.ops.weft.part(list(inputs), weights, name, options, first, purpose, seed)
    return {name: o for (name, _), o in zip(outputs, out)}
