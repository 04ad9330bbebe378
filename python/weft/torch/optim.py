"""AdamW with spike awareness and momentum reset, as a PyTorch optimizer on the engine's kernel.

One call updates all parameters of all groups. The gradient's norm, which clipping and the detection of
spikes look at, is over all of them. Parameters in bfloat16 are kept in float32 beside (state
"master") and rounded after each step.
"""
import collections
import ctypes
from ctypes import byref, sizeof

import torch

from .. import _blocks
from .._library import StepCall, StepGroup, StepTensor, check, handle, lib
from . import _ops

STATE, REPORT = 112, 24
EVENTS = {"grad_norm": 16, "lr": 17, "warmup": 18, "spike": 19, "clipped": 20, "skipped": 21, "reset": 13}
STEPS_KEPT = 8


class _Step:
    """A weft_step: planned for a list of sizes and options."""

    def __init__(self, device, kind, groups, tensors):
        self.handle = None
        given = (StepGroup * len(groups))(*[StepGroup(sizeof(StepGroup), *g) for g in groups])
        said = (StepTensor * len(tensors))(*[StepTensor(sizeof(StepTensor), *t) for t in tensors])
        self.handle = handle(lib.weft_step_open, _blocks.engine(device), kind.encode(), given, len(groups), said,
                             len(tensors))
        self.bytes = lib.weft_step_bytes(self.handle)

    def __del__(self):
        if getattr(self, "handle", None) is not None:
            lib.weft_step_close(self.handle)

    def run(self, workspace, stream, **lists):
        call = StepCall(size=sizeof(StepCall), workspace=workspace, stream=stream)
        for name, tensors in lists.items():
            setattr(call, name, _blocks.addresses([None if t is None else t.data_ptr() for t in tensors]))
        check(lib.weft_step_run(self.handle, byref(call)))


class AdamWSPAM(torch.optim.Optimizer):
    """AdamW, AMSGrad, and in each step: where the gradient's norm is a spike (`spike_threshold` standard
    deviations above the mean of the last 100), the moments shrink; the norm is clipped to `clip`
    (None: not); single gradients beyond √(theta · v̂) are cut; every `interval` steps the moments start
    anew, and the rate rises over `warmup_steps`. With amsgrad=False and the others off it is AdamW.

    `decay_vectors` False: weight decay acts on tensors of two or more dimensions only, as weft trains.
    After a step, `events()` tells what it did."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1, amsgrad=True, clip=1.0,
                 spike_threshold=2.0, theta=50.0, interval=1000, warmup_steps=1000, decay_vectors=False):
        if lr < 0 or eps < 0 or weight_decay < 0:
            raise ValueError(f"lr {lr}, eps {eps} and weight_decay {weight_decay} must be 0 or more")
        if not (0 <= betas[0] < 1 and 0 <= betas[1] < 1):
            raise ValueError(f"betas {betas} must be at least 0 and below 1")
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, clip=clip,
                                      spike_threshold=spike_threshold, theta=theta, interval=interval,
                                      warmup_steps=warmup_steps, decay_vectors=decay_vectors))
        self._steps, self._reports = collections.OrderedDict(), []

    @classmethod
    def adamw(cls, params, **options):
        """Plain AdamW on the same kernel."""
        return cls(params, **{"amsgrad": False, "clip": None, "spike_threshold": 0, "theta": 0, "interval": 0, **options})

    def __getstate__(self):
        out = super().__getstate__()
        return {k: v for k, v in out.items() if k not in ("_steps", "_reports")}

    def __setstate__(self, state):
        super().__setstate__(state)
        self._steps, self._reports = collections.OrderedDict(), []

    def load_state_dict(self, state_dict):
        """Moments stay in the type they were saved in: the parameters' own may be bfloat16."""
        super().load_state_dict(state_dict)
        saved = state_dict["state"]
        flat = [p for group in self.param_groups for p in group["params"]]
        order = [i for group in state_dict["param_groups"] for i in group["params"]]
        for p, i in zip(flat, order):
            for key, value in saved.get(i, {}).items():
                if isinstance(value, torch.Tensor):
                    self.state[p][key] = value.detach().clone().to(p.device)

    def _slot(self, p):
        state = self.state[p]
        if not state:
            kind = torch.float64 if p.dtype == torch.float64 else torch.float32
            state["m"], state["v"] = (torch.zeros(p.shape, dtype=kind, device=p.device) for _ in range(2))
            if p.dtype == torch.bfloat16:
                state["master"] = p.detach().to(torch.float32)
        return state

    def _group_state(self, group, device, kind):
        """The counters of a group live with its first parameter, so that state_dict() carries them."""
        state = self._slot(group["params"][0])
        if "control" not in state:
            state["control"] = torch.zeros(STATE, dtype=kind, device=device)
        return state["control"]

    def _collect(self):
        """Parameters with gradients, each with the number of its group."""
        out = []
        for number, group in enumerate(self.param_groups):
            for p in group["params"]:
                if p.grad is None or not p.numel():
                    continue
                if p.grad.is_sparse:
                    raise RuntimeError("AdamWSPAM: sparse gradients are not taken; use sparse=False in the embedding")
                out.append((number, p))
        return out

    @staticmethod
    def _options(group):
        return (*group["betas"], group["eps"], group["weight_decay"], group["clip"] or 0, group["spike_threshold"] or 0,
                group["theta"] or 0, group["interval"] or 0, group["warmup_steps"] or 0, int(group["amsgrad"]))

    def _planned(self, device, kind, groups, tensors):
        key = device, kind, groups, tensors
        if key not in self._steps:
            while len(self._steps) >= STEPS_KEPT:
                self._steps.popitem(last=False)
            self._steps[key] = _Step(*key)
        return self._steps[key]

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        chosen = self._collect()
        if not chosen:
            return loss
        device = _ops.check_devices([p for _, p in chosen])
        wide = {p.dtype == torch.float64 for _, p in chosen}
        if len(wide) > 1:
            raise TypeError("AdamWSPAM: float64 parameters beside others; use two optimizers")
        for _, p in chosen:
            _ops.type_name(p.dtype)
        with _ops.on(device):
            self._run(chosen, device, torch.float64 if wide.pop() else torch.float32)
        return loss

    def _run(self, chosen, device, kind):
        used = sorted({number for number, _ in chosen})
        place = {number: i for i, number in enumerate(used)}
        slots, tensors, lists = [], [], collections.defaultdict(list)
        for number, p in chosen:
            group, state = self.param_groups[number], self._slot(p)
            if group["amsgrad"] and "v_max" not in state:
                state["v_max"] = torch.zeros_like(state["m"])
            half = p.dtype == torch.bfloat16
            param = p.detach() if not half else state["master"]
            grad = p.grad.detach()
            if grad.dtype not in (kind, torch.bfloat16):
                grad = grad.to(kind)
            held = {"params": param, "grads": grad, "m": state["m"], "v": state["v"],
                    "v_max": state.get("v_max") if group["amsgrad"] else None, "copies": p.detach() if half else None}
            held = {name: self._aligned(t) for name, t in held.items()}
            for name, (t, _) in held.items():
                lists[name].append(t)
            slots.append([(t, original) for name, (t, original) in held.items() if name != "grads" and original is not None])
            tensors.append((p.numel(), place[number], int(p.dim() >= 2 or group["decay_vectors"]),
                            int(grad.dtype == torch.bfloat16), int(half)))
        groups = tuple(self._options(self.param_groups[number]) for number in used)
        plan = self._planned(_ops.device_name(device), _ops.NAMES[kind], groups, tuple(tensors))
        rates = [torch.tensor(float(self.param_groups[n]["lr"]), dtype=kind).to(device, non_blocking=True) for n in used]
        states = [self._group_state(self.param_groups[n], device, kind) for n in used]
        reports = [torch.zeros(REPORT, dtype=kind, device=device) for _ in used]
        cuts = [torch.zeros(16, dtype=torch.int32, device=device) for _ in used]
        workspace, at = _ops._bytes(plan.bytes, device)
        plan.run(at, _ops.stream_of(device), rates=rates, states=states, reports=reports, cuts=cuts, **lists)
        for copied in slots:
            for t, original in copied:
                original.copy_(t.view(original.shape))
        for _, p in chosen:
            torch.autograd.graph.increment_version(p)
        self._reports = list(zip(used, reports, cuts))

    @staticmethod
    def _aligned(t):
        """The tensor as the kernel takes it, and the original where a copy had to be made."""
        if t is None:
            return None, None
        if t.is_contiguous() and t.data_ptr() % _blocks.ALIGNMENT == 0:
            return t, None
        return t.clone(memory_format=torch.contiguous_format), t

    def events(self):
        """What the last step did: grad_norm, lr, warmup, spike, clipped, skipped, reset and cut, of the
        first group; on a GPU this waits for it."""
        if not self._reports:
            return {}
        _, report, cut = self._reports[0]
        values = report.tolist()
        return {**{name: values[i] for name, i in EVENTS.items()}, "cut": int(cut[0])}
