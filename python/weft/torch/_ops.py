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

from .. import _blocks

TYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64, "i32": torch.int32}
NAMES = {dtype: name for name, dtype in TYPES.items()}


def type_name(dtype):
    """The engine's word for a dtype."""
    if dtype not in (torch.float32, torch.bfloat16, torch.float64):
        raise TypeError(f"weft computes in float32, bfloat16 and (on the CPU) float64, not in {dtype}; "
                        "convert with .to(torch.float32)")
    return NAMES[dtype]


def device_name(device):
    """The name of a device's engine: each GPU has one of its own."""
    if device.type == "cpu":
        return "cpu"
    return f"cuda:{torch.cuda.current_device() if device.index is None else device.index}"


def on(device):
    """Makes a GPU the current one, as the engine wants it."""
    if device.type == "cpu" or torch.cuda.current_device() == device.index:
        return contextlib.nullcontext()
    return torch.cuda.device(device)


def find(device, part, options, shape, first, purpose):
    """The block for x of that shape [batch, time, width]. `options` is one text, one option per line."""
    return _blocks.block(device_name(device), part, options, int(shape[0]), int(shape[1]), first, purpose)


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
        self.given = [*block.inputs, *block.weights]
        self.shapes, self.dtypes = [t.shape for t in self.given], [TYPES[t.type] for t in self.given]
        self.weight_dtypes = self.dtypes[len(block.inputs):]
        self.outputs = [(t.shape, TYPES[t.type]) for t in block.outputs]
        self.trained = [t.gradient for t in self.given]
        self.gradients = [(t.shape, TYPES[t.type]) for t in self.given if t.gradient]
        self.kept = [t.read_back for t in (*self.given, *block.outputs)]
        self.fixed = [i for i, t in enumerate(block.outputs) if not t.gradient]
        self.reached = [i for i, t in enumerate(block.outputs) if t.gradient]
        self.names = [t.name for t in block.outputs]


def layout(block):
    try:
        return block.layout
    except AttributeError:
        block.layout = _Layout(block)
        return block.layout


def _check(block, inputs, weights):
    """That these are the tensors which the block wants."""
    said, given = layout(block), (*inputs, *weights)
    if ([t.shape for t in given] == said.shapes and [t.dtype for t in given] == said.dtypes
            and len(inputs) == len(block.inputs)):
        return
    for kind, some, these in ("inputs", block.inputs, inputs), ("weights", block.weights, weights):
        if len(some) != len(these):
            raise ValueError(f"weft: {len(these)} {kind} were given, but the block has {len(some)}: "
                             + ", ".join(t.name for t in some))
        for t, g in zip(some, these):
            if g.shape != t.shape or g.dtype != TYPES[t.type]:
                raise ValueError(f"weft: {t.name} is {tuple(g.shape)} {g.dtype}, but {t.shape} "
                                 f"{TYPES[t.type]} is wanted")


def _dense(tensors):
    """Contiguous and aligned, with their addresses: a view that begins elsewhere is copied."""
    out, at = [], []
    for t in tensors:
        where = t.data_ptr()
        if where % _blocks.ALIGNMENT or not t.is_contiguous():
            t = t.contiguous()
            t = t.clone() if t.data_ptr() % _blocks.ALIGNMENT else t
            where = t.data_ptr()
        out.append(t)
        at.append(where)
    return out, at


def _bytes(count, device):
    """Memory of that many bytes, and the address in it that a call may use."""
    memory = torch.empty(count + _blocks.ALIGNMENT, dtype=torch.uint8, device=device)
    return memory, -(-memory.data_ptr() // _blocks.ALIGNMENT) * _blocks.ALIGNMENT


def _fresh(said, device):
    """New tensors for what a block makes, and their addresses. The allocators give 64 bytes or more."""
    out, at = [], []
    for shape, dtype in said:
        made = torch.empty(shape, dtype=dtype, device=device)
        if made.data_ptr() % _blocks.ALIGNMENT:
            size = made.element_size()
            room = torch.empty(made.numel() + _blocks.ALIGNMENT // size, dtype=dtype, device=device)
            skip = (-room.data_ptr() % _blocks.ALIGNMENT) // size
            made = room[skip:skip + made.numel()].view(shape)
        out.append(made)
        at.append(made.data_ptr())
    return out, at


def stream_of(device):
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None


def _number(seed):
    return 0 if seed is None else int(seed)


def _spread(wanted, values):
    """The values where one is wanted, None elsewhere."""
    rest = iter(values)
    return [next(rest) if w else None for w in wanted]


def _forward(block, inputs, weights, seed):
    """Runs a block: (inputs and weights as it took them, outputs, what is saved)."""
    device, n = inputs[0].device, len(block.inputs)
    _check(block, inputs, weights)
    with on(device):
        taken, at = _dense((*inputs, *weights))
        outputs, outputs_at = _fresh(layout(block).outputs, device)
        saved, saved_at = _bytes(block.saved_bytes, device)
        workspace, workspace_at = _bytes(block.forward_bytes, device)
        block.forward(at[:n], at[n:], outputs_at, saved_at, workspace_at, stream_of(device), _number(seed))
    return taken, outputs, saved


def _gradients(block, grads, taken, saved, seed):
    """The gradients of a block's inputs and weights that have one. `taken` are its inputs, weights and
    outputs, None where the block does not read them again; `grads` are of the outputs that have one."""
    device, n, m = saved.device, len(block.inputs), len(block.inputs) + len(block.weights)
    said = layout(block)
    with on(device):
        saved_at = -(-saved.data_ptr() // _blocks.ALIGNMENT) * _blocks.ALIGNMENT
        workspace, workspace_at = _bytes(block.backward_bytes, device)
        made, made_at = _fresh(said.gradients, device)
        made_at = _spread(said.trained, made_at)
        grads, grads_at = _dense(grads)
        at = [None if t is None else t.data_ptr() for t in taken]
        grad_outputs = [None] * len(block.outputs)
        for i, where in zip(said.reached, grads_at):
            grad_outputs[i] = where
        block.backward(at[:n], at[n:m], at[m:], saved_at, workspace_at, grad_outputs, made_at[:n], made_at[n:],
                       stream_of(device), _number(seed))
    return made


@torch.library.custom_op("weft::part", mutates_args=())
def part(inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], name: str,
         options: str, first: bool, purpose: int, seed: Optional[torch.Tensor]) -> List[torch.Tensor]:
    with on(inputs[0].device):
        block = find(inputs[0].device, name, options, inputs[0].shape, first, purpose)
    _, outputs, saved = _forward(block, inputs, weights, seed)
    return [*outputs, saved]


@part.register_fake
def _(inputs, weights, name, options, first, purpose, seed):
    block = find(inputs[0].device, name, options, inputs[0].shape, first, purpose)
    outputs = [inputs[0].new_empty(t.shape, dtype=TYPES[t.type]) for t in block.outputs]
    return [*outputs, inputs[0].new_empty(block.saved_bytes + _blocks.ALIGNMENT, dtype=torch.uint8)]


@torch.library.custom_op("weft::part_back", mutates_args=())
def part_back(grads: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
              weights: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], saved: torch.Tensor,
              name: str, options: str, first: bool, purpose: int,
              seed: Optional[torch.Tensor]) -> List[torch.Tensor]:
    with on(saved.device):
        block = find(saved.device, name, options, inputs[0].shape, first, purpose)
    return _gradients(block, grads, _dense((*inputs, *weights, *outputs))[0], saved, seed)


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
        taken, outputs, saved = _forward(block, tensors[:n_inputs], tensors[n_inputs:], seed)
        said = layout(block)
        ctx.block, ctx.seed = block, seed
        ctx.save_for_backward(*[t if kept else None for kept, t in zip(said.kept, (*taken, *outputs))], saved)
        ctx.set_materialize_grads(False)
        if said.fixed:
            ctx.mark_non_differentiable(*[outputs[i] for i in said.fixed])
        return tuple(outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads):
        block, (*taken, saved) = ctx.block, ctx.saved_tensors
        said, given = layout(block), []
        for i in said.reached:
            g, (shape, dtype) = grads[i], said.outputs[i]
            given.append(torch.zeros(shape, dtype=dtype, device=saved.device) if g is None else
                         g if g.dtype == dtype else g.to(dtype))
        made = _gradients(block, given, taken, saved, ctx.seed)
        return (None, None, None, *_spread(said.trained, made))


def _is_traced(tensors):
    """Whether something looks on that must see an operator: tracing, a mode, a transform, a subclass."""
    return (torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() > 0
            or torch._C._functorch.peek_interpreter_stack() is not None
            or any(type(t) is not torch.Tensor and type(t) is not torch.nn.Parameter for t in tensors))


def check_devices(tensors):
    """The one device that all of them lie on, which must be one that weft runs on."""
    device = tensors[0].device
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"weft runs on cpu and cuda, not on {device.type}; move the tensors there")
    for t in tensors:
        if t.device != device:
            raise ValueError(f"weft: tensors lie on {device} and {t.device}; move them to one device")
    return device


def run(name, options, inputs, weights, first=True, train=False, seed=None):
    """A part's outputs, by name. `weights` may have other types than the block's, and are converted.
    Gradients are prepared where something wants one."""
    device = check_devices((*inputs, *weights))
    if device.type == "cuda" and inputs[0].dtype == torch.float64:
        raise TypeError("weft computes in float64 on the CPU only; convert with .to(torch.float32), or move to the CPU")
    wants = torch.is_grad_enabled() and any([t.requires_grad for t in (*inputs, *weights)])
    purpose = _blocks.GRADIENT * wants + _blocks.TRAIN * bool(train)
    if _is_traced((*inputs, *weights)):
        return _run_traced(device, name, options, inputs, weights, first, purpose, seed)
    with on(device):
        block = find(device, name, options, inputs[0].shape, first, purpose)
    dtypes = layout(block).weight_dtypes
    weights = [w if w.dtype == t else w.to(t) for w, t in zip(weights, dtypes)] if len(dtypes) == len(weights) else weights
    if wants:
        out = _Eager.apply(block, seed, len(inputs), *inputs, *weights)
    else:
        out = _forward(block, inputs, weights, seed)[1]
    return dict(zip(layout(block).names, out))


def _run_traced(device, name, options, inputs, weights, first, purpose, seed):
    _, said, outputs = describe(device_name(device), name, options, first, purpose)
    if len(said) != len(weights):
        raise ValueError(f"weft: {len(weights)} weights were given, but the block has {len(said)}")
    weights = [w.to(t) for w, (_, t) in zip(weights, said)]
    out = torch.ops.weft.part(list(inputs), weights, name, options, first, purpose, seed)
    return {name: o for (name, _), o in zip(outputs, out)}
