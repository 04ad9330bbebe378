"""A part of a model as one PyTorch operator with a gradient.

`weft::part` runs a block forward and returns its outputs, then one tensor of bytes: what the backward
pass reads again. `weft::part_back` is its gradient. Both are registered with shapes for tracing, so
torch.compile and torch.export see them as single nodes. A block is found by part, options and shape.
"""
from typing import List, Sequence

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


def find(device, part, options, shape, first, purpose):
    """The block for x of that shape [batch, time, width]. `options` is one text, one option per line."""
    return _blocks.block(device.type, part, tuple(options.split("\n")), int(shape[0]), int(shape[1]), first, purpose)


def _check(kind, said, given):
    if len(said) != len(given):
        raise ValueError(f"weft: {len(given)} {kind} were given, but the block has {len(said)}: "
                         + ", ".join(t.name for t in said))
    for t, g in zip(said, given):
        if tuple(g.shape) != t.shape or g.dtype != TYPES[t.type]:
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


def _stream(device):
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None


def _pointers(tensors):
    return [None if t is None else t.data_ptr() for t in tensors]


@torch.library.custom_op("weft::part", mutates_args=())
def part(inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor], name: str,
         options: str, first: bool, purpose: int, seed: int) -> List[torch.Tensor]:
    device = inputs[0].device
    block = find(device, name, options, inputs[0].shape, first, purpose)
    _check("inputs", block.inputs, inputs)
    _check("weights", block.weights, weights)
    inputs, weights = _dense(inputs), _dense(weights)
    outputs = _fresh(block.outputs, device)
    saved, saved_at = _bytes(block.saved_bytes, device)
    workspace, workspace_at = _bytes(block.forward_bytes, device)
    block.forward(_pointers(inputs), _pointers(weights), _pointers(outputs), saved_at, workspace_at,
                  _stream(device), seed)
    if device.type == "cuda":
        workspace.record_stream(torch.cuda.current_stream(device))
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
              seed: int) -> List[torch.Tensor]:
    device = saved.device
    block = find(device, name, options, inputs[0].shape, first, purpose)
    inputs, weights, grads, outputs = map(_dense, (inputs, weights, grads, outputs))
    at = -(-saved.data_ptr() // _blocks.ALIGNMENT) * _blocks.ALIGNMENT
    workspace, workspace_at = _bytes(block.backward_bytes, device)
    made = _fresh([t for t in (*block.inputs, *block.weights) if t.gradient], device)
    rest = iter(made)
    grad_inputs = [next(rest) if t.gradient else None for t in block.inputs]
    grad_weights = [next(rest) if t.gradient else None for t in block.weights]
    given = iter(grads)
    grad_outputs = [next(given) if t.gradient else None for t in block.outputs]
    block.backward(_pointers(inputs), _pointers(weights), _pointers(outputs), at, workspace_at,
                   _pointers(grad_outputs), _pointers(grad_inputs), _pointers(grad_weights),
                   _stream(device), seed)
    return made


@part_back.register_fake
def _(grads, inputs, weights, outputs, saved, name, options, first, purpose, seed):
    block = find(saved.device, name, options, inputs[0].shape, first, purpose)
    return [saved.new_empty(t.shape, dtype=TYPES[t.type])
            for t in (*block.inputs, *block.weights) if t.gradient]


def _setup(ctx, inputs, output):
    tensors, weights, ctx.name, ctx.options, ctx.first, ctx.purpose, ctx.seed = inputs
    ctx.counts = len(tensors), len(weights)
    ctx.save_for_backward(*tensors, *weights, *output)


def _backward(ctx, grads):
    kept = ctx.saved_tensors
    n, m = ctx.counts
    tensors, weights, outputs, saved = kept[:n], kept[n:n + m], kept[n + m:-1], kept[-1]
    block = find(saved.device, ctx.name, ctx.options, tensors[0].shape, ctx.first, ctx.purpose)
    given = [torch.zeros_like(o) if g is None else g.to(o.dtype)
             for g, o, t in zip(grads, outputs, block.outputs) if t.gradient]
    made = iter(torch.ops.weft.part_back(given, list(tensors), list(weights), list(outputs), saved,
                                         ctx.name, ctx.options, ctx.first, ctx.purpose, ctx.seed))
    return ([next(made) if t.gradient else None for t in block.inputs],
            [next(made) if t.gradient else None for t in block.weights], None, None, None, None, None)


part.register_autograd(_backward, setup_context=_setup)


def run(name, options, inputs, weights, first=True, train=False, seed=0):
    """A part's outputs, by name. Gradients are prepared where something wants one."""
    device = inputs[0].device
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"weft runs on cpu and cuda, not on {device.type}; move the tensors there")
    for t in (*inputs, *weights):
        if t.device != device:
            raise ValueError(f"weft: tensors lie on {device} and {t.device}; move them to one device")
    wants = torch.is_grad_enabled() and any(t.requires_grad for t in (*inputs, *weights))
    purpose = _blocks.GRADIENT * wants + _blocks.TRAIN * bool(train)
    out = torch.ops.weft.part(list(inputs), list(weights), name, options, first, purpose, seed)
    block = find(device, name, options, inputs[0].shape, first, purpose)
    return {t.name: o for t, o in zip(block.outputs, out)}
