"""AdamW with spike awareness and momentum reset, and Muon, as PyTorch optimizers on the engine's kernels.

One call updates all parameters of all groups. The gradient norm, which clipping and the detection of
spikes look at, is over all of them. Parameters in bfloat16 are kept in float32 beside (state
"master") and rounded after each step; where someone else has set a parameter since, its value counts.
"""
import collections
import math
from ctypes import byref, sizeof

import torch

from .. import _blocks, _door
from .._library import StepCall, StepGroup, StepTensor, check, handle, lib, whole
from . import _ops

STATE, REPORT = 112, 24
COPY_COUNTS = 2  # WEFT_STEP_COPY_COUNTS
MOMENTS = "m", "v", "v_max", "master"
EVENTS = {"grad_norm": 16, "lr": 17, "warmup": 18, "spike": 19, "clipped": 20, "skipped": 21, "reset": 13}
STEPS_KEPT = 8


def _wide(p):
    """The type of a parameter's moments."""
    return torch.float64 if p.dtype == torch.float64 else torch.float32


class _Step:
    """A weft_step: planned for a list of sizes and options."""

    def __init__(self, device, kind, groups, tensors):
        self.handle = None
        given = (StepGroup * len(groups))(*[StepGroup(sizeof(StepGroup), *g) for g in groups])
        said = (StepTensor * len(tensors))(*[StepTensor(sizeof(StepTensor), *t) for t in tensors])
        self.handle = handle(lib.weft_step_open, _blocks.engine(device), kind.encode(), given, len(groups), said,
                             len(tensors))
        self.bytes = lib.weft_step_bytes(self.handle)

    def __del__(self, close=lib.weft_step_close):
        if getattr(self, "handle", None) is not None:
            close(self.handle)

    def run(self, workspace, stream, lists):
        """`lists`: the addresses of each list of a weft_step_call, by its name."""
        call = StepCall(size=sizeof(StepCall), workspace=workspace, stream=stream)
        for name, at in lists.items():
            setattr(call, name, _blocks.addresses(at))
        check(lib.weft_step_run(self.handle, byref(call)))


class _Lists:
    """The tensors of a step, by the list that they are in. They go through the door together."""

    def __init__(self):
        self.rows, self.places = [], collections.defaultdict(list)

    def add(self, name, t, shape=None, dtype=None, said=None):
        """None: the list has no address there. Else `t`, which must have that shape and type."""
        self.places[name].append(None if t is None else len(self.rows))
        if t is not None:
            self.rows.append((t, shape, dtype, said or name))

    def taken(self, device, optimizer):
        """The addresses by list, and (copy, original) of those that C will write to and that had to be copied."""
        given, shapes, dtypes, names = map(list, zip(*self.rows))
        dense, at = _door.taken(given, shapes, dtypes, device, names)
        read_only = set(self.places["grads"])
        copied = [(new, old) for i, (new, old) in enumerate(zip(dense, given)) if new is not old and i not in read_only]
        for _, old in copied:
            if torch._debug_has_internal_overlap(old) == 1:
                raise RuntimeError(f"{optimizer}: several elements of a parameter, or of its state, lie in one place of memory "
                                   "(an expanded tensor); clone() it")
        return {name: [None if i is None else at[i] for i in places] for name, places in self.places.items()}, copied, dense


def _check_rates(lr, betas, eps, weight_decay):
    if not (0 <= lr < math.inf and 0 <= eps < math.inf and 0 <= weight_decay < math.inf):
        raise ValueError(f"lr {lr}, eps {eps} and weight_decay {weight_decay} must be 0 or more, and finite")
    if not (0 <= betas[0] < 1 and 0 <= betas[1] < 1):
        raise ValueError(f"betas {betas} must be at least 0 and below 1")


class _Optimizer(torch.optim.Optimizer):
    """What all of them do: state, checks, and the step on the engine. OPTIONS: the keys of a group."""

    def __init__(self, params, options):
        super().__init__(params, options)
        self._steps, self._reports = collections.OrderedDict(), []

    @property
    def _name(self):
        return type(self).__name__

    def _matrices(self, group, p):
        """Columns, rows and first_rows of a weft_step_tensor; zeros: AdamW's."""
        return 0, 0, 0

    def _moments(self, group, p):
        return ("m",) if self._matrices(group, p)[0] else ("m", "v")

    def __getstate__(self):
        out = super().__getstate__()
        return {k: v for k, v in out.items() if k not in ("_steps", "_reports")}

    def __setstate__(self, state):
        super().__setstate__(state)
        self._steps, self._reports = collections.OrderedDict(), []

    def load_state_dict(self, state_dict):
        """Takes what state_dict() of its kind gave, or raises and stays as it was. Moments become float32 (float64
        beside float64 parameters), whatever they were saved in."""
        before = self.state, self.param_groups
        super().load_state_dict(state_dict)
        try:
            self._take_state(state_dict)
        except Exception:
            self.state, self.param_groups = before
            raise

    def _take_state(self, state_dict):
        missing = [key for group in self.param_groups for key in self.OPTIONS if key not in group]
        order = [i for group in state_dict["param_groups"] for i in group["params"]]
        flat = [(group, p) for group in self.param_groups for p in group["params"]]
        for (group, p), i in zip(flat, order):
            saved = state_dict["state"].get(i, {})
            lacks = missing or [key for key in self._moments(group, p) if saved and key not in saved]
            if lacks:
                raise ValueError(f"{self._name}: this is the state of another optimizer: it has no {lacks[0]!r}"
                                 + (f" beside {', '.join(sorted(map(str, saved)))}" if saved else "")
                                 + f"; load what state_dict() of an optimizer of this kind, {self._name}, gave, or begin without")
            for key in saved:
                if key in MOMENTS or key == "control":
                    self.state[p][key] = self._moment(p, i, key, saved[key])

    def _moment(self, p, i, key, value):
        shape = (STATE,) if key == "control" else p.shape
        if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_complex() or value.shape != shape:
            raise ValueError(f"{self._name}: {key} of parameter {i} is {tuple(getattr(value, 'shape', ()))} "
                             f"{getattr(value, 'dtype', type(value).__name__)}, but {tuple(shape)} is wanted: is it the state of "
                             "another model?")
        return torch.empty(shape, dtype=_wide(p), device=p.device).copy_(value.detach())

    def _slot(self, group, p):
        state = self.state[p]
        for key in self._moments(group, p):
            if key not in state:
                state[key] = torch.zeros(p.shape, dtype=_wide(p), device=p.device)
        if p.dtype == torch.bfloat16 and "master" not in state:
            state["master"] = p.detach().to(torch.float32, memory_format=torch.contiguous_format)
        return state

    def _group_state(self, group, device, kind):
        """The counters of a group live with its first parameter, so that state_dict() carries them."""
        state = self._slot(group, group["params"][0])
        if "control" not in state:
            state["control"] = torch.zeros(STATE, dtype=kind, device=device)
        return state["control"]

    def _collect(self):
        """Parameters with gradients, each with the number of its group."""
        out = []
        for number, group in enumerate(self.param_groups):
            for p in dict.fromkeys(group["params"]):
                if p.grad is None or not p.numel():
                    continue
                if p.grad.layout != torch.strided:
                    raise RuntimeError(f"{self._name}: sparse gradients are not taken; use sparse=False in the embedding")
                if p.grad.is_complex():
                    raise TypeError(f"{self._name}: a gradient is complex, but its parameter is not")
                out.append((number, p))
        return out

    @staticmethod
    def _options(group):
        beta1, beta2 = group["betas"]
        return (beta1, beta2, group["eps"], group["weight_decay"], group["clip"] or 0, group.get("spike_threshold") or 0,
                group.get("theta") or 0, whole(group.get("interval") or 0), whole(group.get("warmup_steps") or 0),
                int(group.get("amsgrad", False)), group.get("momentum", 0))

    def _rate(self, group, kind):
        rate = float(group["lr"])
        if not 0 <= rate <= torch.finfo(kind).max:
            raise ValueError(f"{self._name}: lr is {rate}, but it must be 0 or more, and finite in {kind}; no parameter was changed")
        return torch.tensor(rate, dtype=kind, device="cpu")

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
        if _door.share_memory([p for _, p in chosen]):
            raise RuntimeError(f"{self._name}: two parameters share memory; tie weights by giving one Parameter to both modules")
        wide = {p.dtype == torch.float64 for _, p in chosen}
        if len(wide) > 1:
            raise TypeError(f"{self._name}: float64 parameters beside others; use two optimizers")
        for _, p in chosen:
            _ops.type_name(p.dtype)
        with _ops.on(device):
            self._run(chosen, device, torch.float64 if wide.pop() else torch.float32)
        return loss

    def _run(self, chosen, device, kind):
        used = sorted({number for number, _ in chosen})
        place = {number: i for i, number in enumerate(used)}
        lists, tensors = _Lists(), []
        for number, p in chosen:
            group = self.param_groups[number]
            state, matrices, amsgrad = self._slot(group, p), self._matrices(group, p), group.get("amsgrad")
            if amsgrad and "v_max" not in state:
                state["v_max"] = torch.zeros_like(state["m"])
            half, shape = p.dtype == torch.bfloat16, p.shape
            grad = p.grad.detach()
            if grad.dtype not in (kind, torch.bfloat16):
                grad = grad.to(kind)
            lists.add("params", state["master"] if half else p.detach(), shape, kind, "master" if half else "a parameter")
            lists.add("grads", grad, shape, grad.dtype, "a gradient")
            lists.add("m", state["m"], shape, kind)
            lists.add("v", None if matrices[0] else state["v"], shape, kind)
            lists.add("v_max", state["v_max"] if amsgrad else None, shape, kind)
            lists.add("copies", p.detach() if half else None, shape, torch.bfloat16, "a parameter")
            tensors.append((p.numel(), place[number], int(p.dim() >= 2 or group["decay_vectors"]),
                            int(grad.dtype == torch.bfloat16), COPY_COUNTS if half else 0, *matrices))
        groups = tuple(self._options(self.param_groups[number]) for number in used)
        plan = self._planned(_ops.device_name(device), _ops.NAMES[kind], groups, tuple(tensors))
        reports = [torch.zeros(REPORT, dtype=kind, device=device) for _ in used]
        cuts = [torch.zeros(16, dtype=torch.int32, device=device) for _ in used]
        for n, report, cut in zip(used, reports, cuts):
            group = self.param_groups[n]
            lists.add("rates", self._rate(group, kind).to(device, non_blocking=True), (), kind)
            lists.add("states", self._group_state(group, device, kind), (STATE,), kind, "control")
            lists.add("reports", report, (REPORT,), kind)
            lists.add("cuts", cut, (16,), torch.int32)
        at, copied, held = lists.taken(device, self._name)
        workspace, workspace_at = _ops._bytes(plan.bytes, device)
        for _, p in chosen:
            torch.autograd.graph.increment_version(p)
        plan.run(workspace_at, _ops.stream_of(device), at)
        for new, old in copied:
            old.copy_(new)
        self._reports = list(zip(used, reports, cuts))

    def events(self):
        """What the last step did: grad_norm, lr, warmup, spike, clipped, skipped, reset and cut, of the
        first group; on a GPU this waits for it."""
        if not self._reports:
            return {}
        _, report, cut = self._reports[0]
        values = report.tolist()
        return {**{name: values[i] for name, i in EVENTS.items()}, "cut": int(cut[0])}


class AdamWSPAM(_Optimizer):
    """AdamW, AMSGrad, and in each step: where the gradient norm is a spike (`spike_threshold` standard
    deviations above the mean of the last 100), the moments shrink; the norm is clipped to `clip`
    (None: not); single gradients beyond √(theta · v̂) are cut; every `interval` steps the moments start
    anew, and the rate rises over `warmup_steps`. With amsgrad=False and the others off it is AdamW, except that steps
    are counted for a whole group: a parameter without a gradient in some of them is corrected for as many as the others.

    `decay_vectors` False: weight decay acts on tensors of two or more dimensions only, as weft trains.
    After a step, `events()` tells what it did."""

    OPTIONS = ("lr", "betas", "eps", "weight_decay", "amsgrad", "clip", "spike_threshold", "theta", "interval", "warmup_steps",
               "decay_vectors")

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.1, amsgrad=True, clip=1.0,
                 spike_threshold=2.0, theta=50.0, interval=1000, warmup_steps=1000, decay_vectors=False):
        _check_rates(lr, betas, eps, weight_decay)
        super().__init__(params, dict(lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, clip=clip,
                                      spike_threshold=spike_threshold, theta=theta, interval=interval,
                                      warmup_steps=warmup_steps, decay_vectors=decay_vectors))

    @classmethod
    def adamw(cls, params, **options):
        """Plain AdamW on the same kernel."""
        return cls(params, **{"amsgrad": False, "clip": None, "spike_threshold": 0, "theta": 0, "interval": 0, **options})


class Muon(_Optimizer):
    """Momentum that is orthogonalised by five Newton-Schulz steps, for parameters of two or more dimensions: each matrix of the
    last two. Others, and those of groups with muon=False, where embeddings and the head belong, are AdamW's at the same rate:

        Muon([{"params": layers}, {"params": [*embedding.parameters(), *head.parameters()], "muon": False}], lr=1e-3)

    `split`: the rows of each matrix of a group's parameters where one holds several, (e, e, e) of queries, keys and values; all
    of them, or all but the first, must be equal. The norm of all gradients is clipped to `clip` (None: not). Steps are scaled by
    0.2 √max(rows, columns), so that AdamW's rates serve; weight decay is decoupled and acts on two or more dimensions.
    After a step, `events()` tells what it did."""

    OPTIONS = "lr", "momentum", "betas", "eps", "weight_decay", "clip", "decay_vectors", "muon", "split"

    def __init__(self, params, lr=1e-3, momentum=0.95, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, clip=1.0,
                 decay_vectors=False, muon=True, split=None):
        _check_rates(lr, betas, eps, weight_decay)
        if not 0 <= momentum < 1:
            raise ValueError(f"momentum {momentum} must be at least 0 and below 1")
        super().__init__(params, dict(lr=lr, momentum=momentum, betas=betas, eps=eps, weight_decay=weight_decay, clip=clip,
                                      decay_vectors=decay_vectors, muon=muon, split=split))

    @classmethod
    def for_model(cls, model, **options):
        """Of a LanguageModel: the matrices of its layers, queries, keys and values apart; all else by AdamW, as weft trains."""
        whole_ones, joint, rest = [], {}, []
        for name, p in model.named_parameters():
            if not name.startswith("h.") or p.dim() < 2:
                rest.append(p)
            elif name.endswith(".attn.qkv.weight"):
                queries = model.get_parameter(name.replace("qkv", "out")).shape[1]
                joint.setdefault((queries, *2 * [(p.shape[0] - queries) // 2]), []).append(p)
            else:
                whole_ones.append(p)
        groups = [{"params": whole_ones}, {"params": rest, "muon": False}] + [
            {"params": some, "split": split} for split, some in joint.items()]
        return cls([group for group in groups if group["params"]], **options)

    def _matrices(self, group, p):
        if not group["muon"] or p.dim() < 2:
            return 0, 0, 0
        split = group["split"]
        if split is None:
            return p.shape[-1], p.shape[-2], 0
        first, *others = map(whole, split)
        if p.dim() != 2 or sum(split) != p.shape[0] or min(split) < 1 or len(set(others)) > 1:
            raise ValueError(f"Muon: split {tuple(split)} does not go with a parameter of {tuple(p.shape)}: its rows are to be "
                             "shared out, and all matrices but the first must have equally many")
        return p.shape[1], others[0] if others else 0, first
