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
    return contextlib.nullcontext() if device.type == "cpu" else torch.cuda.device(device)


@functools.lru_cache(maxsize=512)
def _split(options):
    return tuple(options.split("\n"))


def find(device, part, options, shape, first, purpose):
    """The block for x of that shape [batch, time, width]. `options` is one text, one option per line."""
    return _blocks.block(device_name(device), part, _split(options), int(shape[0]), int(shape[1]), first, purpose)


@torch.compiler.assume_constant_result
def describe(device, part, options, first, purpose):
    """Names and dtypes of the inputs, weights and outputs of a part, whatever the shape of x."""
    return _describe(device, part, options, first, purpose)


@functools.lru_cache(maxsize=1024)
def _describe(device, part, options, first, purpose):
    block = find(torch.device(device), part, options, (1, 1), first, purpose)
    return tuple(tuple((t.name, TYPES[t.type]) for t in some) for some in (block.inputs, block.weights, block.outputs))


def _check(kind, said, given):
    if len(said) != len(given):
        raise ValueError(f"weft: {len(given)} {kind} were given, but the block has {len(said)}: "
                         + ", ".join(t.name for t in said))
    for t, g in zip(said, given):
        if g.shape != t.shape or g.dtype != TYPES[t.type]:
            raise ValueError(f"weft: {t.name} is {tuple(g.shape)} {g.dtype}, but {t.shape} "
                             f"{TYPES[t.type]} is wanted")


def _dense(tensors):
    """Contiguous and aligned: a view that begins elsewhere is copied."""
    out = []
    for t in tensors:
        t = t.contiguous()
        out.append(t.clone() if t.data_ptr() % _blocks.ALIGNMENT else t)
    return out


def _bytes(count, device):
    """Memory of that many bytes, and the address in it that a call may use."""
    memory = torch.empty(count + _blocks.ALIGNMENT, dtype=torch.uint8, device=device)
    return memory, -(-memory.data_ptr() // _blocks.ALIGNMENT) * _blocks.ALIGNMENT


def _fresh(said, device):
    """New tensors for what a block makes. Each is aligned: the allocators give 64 bytes or more."""
    out = []
    for t in said:
        made = torch.empty(t.shape, dtype=TYPES[t.type], device=device)
        if made.data_ptr() % _blocks.ALIGNMENT:
            size = made.element_size()
            room = torch.empty(made.numel() + _blocks.ALIGNMENT // size, dtype=made.dtype, device=device)
            skip = (-room.data_ptr() % _blocks.ALIGNMENT) // size
            made = room[skip:skip + made.numel()].view(t.shape)
        out.append(made)
    return out


def stream_of(device):
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None


def _pointers(tensors):
    return [None if t is None else t.data_ptr() for t in tensors]


def _number(seed):
    return 0 if seed is None else int(seed)


def _forward(inputs, weights, name, options, first, purpose, seed):
    """Runs a block: (block, inputs and weights as it took them, outputs, what is saved)."""
    device = inputs[0].device
    with on(device):
        block = find(device, name, options, inputs[0].shape, first, purpose)
        _check("inputs", block.inputs, inputs)
        _check("weights", block.weights, weights)
        inputs, weights = _dense(inputs), _dense(weights)
        outputs = _fresh(block.outputs, device)
        saved, saved_at = _bytes(block.saved_bytes, device)
        workspace, workspace_at = _bytes(block.forward_bytes, device)
        block.forward(_pointers(inputs), _pointers(weights), _pointers(outputs), saved_at, workspace_at,
                      stream_of(device), _number(seed))
    return block, inputs, weights, outputs, saved


def _gradients(block, grads, inputs, weights, outputs, saved, seed):
    """The gradients of a block's inputs and weights that have one. What the block does not read again
    may be None; `grads` are of the outputs that have one."""
    device = saved.device
    with on(device):
        at = -(-saved.data_ptr() // _blocks.ALIGNMENT) * _blocks.ALIGNMENT
        workspace, workspace_at = _bytes(block.backward_bytes, device)
        made = _fresh([t for t in (*block.inputs, *block.weights) if t.gradient], device)
        rest = iter(made)
        grad_inputs = [next(rest) if t.gradient else None for t in block.inputs]
        grad_weights = [next(rest) if t.gradient else None for t in block.weights]
        grads = _dense(grads)
        given = iter(grads)
        grad_outputs = [next(given) if t.gradient else None for t in block.outputs]
        block.backward(_pointers(inputs), _pointers(weights), _pointers(outputs), at, workspace_at,
                       _pointers(grad_outputs), _pointers(grad_inputs), _pointers(grad_weights),
                       stream_of(device), _number(seed))
    return made


@torch.library.custom_op("weft::part", mutates_args=())
def part(inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], name: str,
         options: str, first: bool, purpose: int, seed: Optional[torch.Tensor]) -> List[torch.Tensor]:
    _, _, _, outputs, saved = _forward(inputs, weights, name, options, first, purpose, seed)
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
    return _gradients(block, grads, *map(_dense, (inputs, weights, outputs)), saved, seed)


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
    def forward(ctx, name, options, first, purpose, seed, n_inputs, *tensors):
        block, inputs, weights, outputs, saved = _forward(tensors[:n_inputs], tensors[n_inputs:], name, options, first,
                                                          purpose, seed)
        ctx.block, ctx.seed = block, seed
        ctx.like = [(o.shape, o.dtype) for o in outputs]
        kept = [t if said.read_back else None for said, t in
                zip((*block.inputs, *block.weights, *block.outputs), (*inputs, *weights, *outputs))]
        ctx.save_for_backward(*kept, saved)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(o for o, said in zip(outputs, block.outputs) if not said.gradient))
        return tuple(outputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, *grads):
        block, (*kept, saved) = ctx.block, ctx.saved_tensors
        n, m = len(block.inputs), len(block.weights)
        given = [torch.zeros(shape, dtype=dtype, device=saved.device) if g is None else g.to(dtype)
                 for g, (shape, dtype), said in zip(grads, ctx.like, block.outputs) if said.gradient]
        made = iter(_gradients(block, given, kept[:n], kept[n:n + m], kept[n + m:], saved, ctx.seed))
        return (None,) * 6 + tuple(next(made) if said.gradient else None for said in (*block.inputs, *block.weights))


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
    wants = torch.is_grad_enabled() and any(t.requires_grad for t in (*inputs, *weights))
    purpose = _blocks.GRADIENT * wants + _blocks.TRAIN * bool(train)
    _, said, outputs = describe(device_name(device), name, options, first, purpose)
    if len(said) != len(weights):
        raise ValueError(f"weft: {len(weights)} weights were given, but the block has {len(said)}")
    weights = [w.to(t) for w, (_, t) in zip(weights, said)]
    if _is_traced((*inputs, *weights)):
        out = torch.ops.weft.part(list(inputs), weights, name, options, first, purpose, seed)
    elif wants:
        out = _Eager.apply(name, options, first, purpose, seed, len(inputs), *inputs, *weights)
    else:
        out = _forward(inputs, weights, name, options, first, purpose, seed)[3]
    return {name: o for (name, _), o in zip(outputs, out)}
