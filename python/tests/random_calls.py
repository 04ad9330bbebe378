"""python tests/random_calls.py EXAMPLES: the package under tensors, arrays and state that hypothesis draws. Each call gives
the numbers of a formula in plain PyTorch or NumPy, or raises with a sentence and leaves things as they were. test_random.py
runs this in a process of its own, where a crash is a failure: the last line on standard error then is the case."""
import copy
import pathlib
import sys
from collections import Counter

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn.functional import silu

import weft
from weft.torch import AdamWSPAM, SwiGLU

EXAMPLES = int(sys.argv[1]) if len(sys.argv) > 1 else 40
RULES = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None,
                 suppress_health_check=list(HealthCheck))
seen = Counter()
CLOSE = {torch.float64: 1e-10, torch.float32: 2e-5, torch.bfloat16: 5e-2}
FLOATS = torch.float32, torch.float64, torch.bfloat16


def tell(*case):
    print(*case, file=sys.stderr, flush=True)


def attempt(what, call):
    """What a call gives; None where it raised, with a sentence."""
    try:
        out = call()
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        assert len(str(error).split()) > 3, repr(error)
        seen[what, "raised"] += 1
        return None
    seen[what, "worked"] += 1
    return out


def moved(t):
    room = torch.empty(t.numel() + 64, dtype=t.dtype)
    skip = (-room.data_ptr() % 64) // t.element_size() + 1
    return room[skip:skip + t.numel()].view(t.shape).copy_(t.detach())


def strided(t):
    room = torch.full((*t.shape, 2), -7, dtype=torch.float64).to(t.dtype)
    return room[..., 0].copy_(t.detach())


def transposed(t):
    back = tuple(range(t.dim() - 1, -1, -1))
    return t.permute(back).contiguous().permute(back)


FORMS = {"dense": lambda t: t.clone(), "moved": moved, "strided": strided, "transposed": transposed,
         "neg": lambda t: torch._neg_view(-t), "expanded": lambda t: t[:1].expand(t.shape) if t.dim() and t.numel() else t}
PLAIN = "dense", "moved", "strided", "transposed"
shapes = st.lists(st.integers(1, 9), min_size=0, max_size=3).map(tuple) | st.just((0, 3)) | st.just((1030,))


# The optimizer, against AdamW's formula.

class Formula:
    """AdamW in float64 from the tensors that are given."""

    def __init__(self, some):
        self.p = [q.detach().double().clone() for q in some]
        self.m, self.v = ([torch.zeros_like(q) for q in self.p] for _ in range(2))
        self.steps = 0

    def step(self, grads):
        self.steps += 1
        for p, m, v, g in zip(self.p, self.m, self.v, grads):
            g = g.double()
            m.mul_(0.9).add_(0.1 * g)
            v.mul_(0.99).add_(0.01 * g * g)
            p -= 1e-2 * (0.1 * p + m / (1 - 0.9 ** self.steps) / ((v / (1 - 0.99 ** self.steps)).sqrt() + 1e-6))


def change_state(draw, optimizer, formula):
    """Does something to the optimizer's state by load_state_dict, or past it; whether it must still be right."""
    what = draw(st.sampled_from(["shape", "other", "cast", "key", "again", "past", "values"]))
    state = copy.deepcopy(optimizer.state_dict())
    tell("  state:", what)
    if not state["state"]:
        return "right"
    of = draw(st.sampled_from(sorted(state["state"])))
    key = draw(st.sampled_from(sorted(state["state"][of])))
    shape = draw(shapes)
    same = state["state"][of][key].shape == shape
    if what == "cast":
        for i, of_one in state["state"].items():
            for name in of_one:
                if name in ("m", "v"):
                    of_one[name] = of_one[name].double()
    elif what == "shape":
        state["state"][of][key] = torch.ones(shape)
    elif what == "key":
        del state["state"][of][key]
    elif what == "other":
        theirs = torch.optim.AdamW([p for g in optimizer.param_groups for p in g["params"]], lr=0.0)
        attempt("load", theirs.step)
        state = theirs.state_dict()
        same = False
    elif what == "values":
        if "control" in state["state"][of]:
            state["state"][of]["control"][draw(st.integers(0, 111))] = draw(st.floats(width=32))
    elif what == "past":
        p = optimizer.param_groups[0]["params"][of]
        optimizer.state[p][key] = torch.ones(shape, dtype=draw(st.sampled_from(FLOATS)))
        return "anything"
    loaded = attempt("load", lambda: optimizer.load_state_dict(state) or True)
    if what in ("again", "cast"):
        assert loaded, what
        return "right"
    assert what in ("key", "values") or same or not loaded, (what, key)
    return "anything" if loaded else "right"


@RULES
@given(st.data())
def optimizer_steps(data):
    draw = data.draw
    dtype = draw(st.sampled_from([*FLOATS * 4, torch.float16, torch.complex64]))
    kinds = [draw(shapes) for _ in range(draw(st.integers(1, 3)))]
    form = draw(st.sampled_from([*PLAIN * 3, "expanded"]))
    torch.manual_seed(draw(st.integers(0, 1 << 20)))
    tell("optimizer:", dtype, kinds, form)
    some = [FORMS[form](torch.randn(s, dtype=torch.float64).to(dtype)).requires_grad_() for s in kinds]
    optimizer = AdamWSPAM.adamw(some, lr=1e-2, betas=(0.9, 0.99), eps=1e-6, weight_decay=0.1, decay_vectors=True)
    formula, sure = Formula(some if dtype in FLOATS else []), "right"
    for _ in range(draw(st.integers(2, 4))):
        if draw(st.integers(0, 2)) and sure == "right" and formula.steps:
            sure = change_state(draw, optimizer, formula)
        if form != "expanded" and draw(st.integers(0, 3)) == 0 and sure == "right":
            tell("  set")
            p, at = some[0], draw(st.floats(-2, 2, width=16))
            with torch.no_grad():
                # A value that the parameter shows already is no new one
                held = optimizer.state.get(p, {}).get("master")
                before = p.detach().clone() if held is None else held.to(dtype)
                p.data.fill_(at) if draw(st.booleans()) else p.fill_(at)
            if dtype in FLOATS:
                formula.p[0] = torch.where(p == before, formula.p[0], p.double())
        grads = [torch.randn(s, dtype=torch.float64).to(dtype) for s in kinds]
        of_grad = draw(st.sampled_from([*PLAIN * 2, "neg", "expanded", "sparse"]))
        tell("  gradient:", of_grad)
        for p, g in zip(some, grads):
            p.grad = g.to_sparse() if of_grad == "sparse" else FORMS[of_grad](g)
        dense = [p.grad.to_dense() if of_grad == "sparse" else p.grad for p in some]
        before = [p.detach().clone() for p in some]
        if attempt("step", lambda: optimizer.step() or True) is None:
            assert all(torch.equal(a, b) for a, b in zip(some, before)), "a step that raised changed a parameter"
            assert (sure == "anything" or form == "expanded" or of_grad == "sparse" or dtype not in FLOATS), (form, of_grad)
            continue
        if sure == "right":
            formula.step(dense)
            for p, q in zip(some, formula.p):
                close = CLOSE.get(dtype, 0)  # of other types only empty ones are taken
                assert torch.allclose(p.detach().double(), q, rtol=close, atol=close), (dtype, form, of_grad)
                if dtype == torch.bfloat16 and p.numel():
                    assert torch.allclose(optimizer.state[p]["master"].double(), q, rtol=1e-3, atol=1e-3)


# A module, with what its backward pass saves taken elsewhere, against its formula.

HOOKS = {"none": lambda: saved_tensors_hooks(lambda t: t, lambda t: t), "moved": lambda: saved_tensors_hooks(lambda t: t, moved),
         "strided": lambda: saved_tensors_hooks(lambda t: t, strided), "cpu": save_on_cpu,
         "cut": lambda: saved_tensors_hooks(lambda t: t, lambda t: t[..., 1:]),
         "wider": lambda: saved_tensors_hooks(lambda t: t, lambda t: t.double())}


@RULES
@given(st.data())
def module_calls(data):
    draw = data.draw
    dtype, kept = (draw(st.sampled_from([*FLOATS * 5, torch.float16, torch.int32])) for _ in range(2))
    kept = kept if kept.is_floating_point and draw(st.integers(0, 3)) == 0 and kept in FLOATS else dtype
    width, hidden = draw(st.integers(1, 20)), draw(st.integers(1, 20))
    shape = draw(st.sampled_from([1, 2, 3, 1, 2, 3, 0])), draw(st.integers(1, 6)), width + (draw(st.integers(0, 9)) == 9)
    form, back, hook = draw(st.sampled_from(sorted(FORMS))), draw(st.sampled_from(sorted(FORMS))), draw(st.sampled_from([*HOOKS, *HOOKS][:-2]))
    torch.manual_seed(draw(st.integers(0, 1 << 20)))
    tell("module:", dtype, kept, width, hidden, shape, form, back, hook)
    module = SwiGLU(width, hidden)
    if kept in FLOATS:
        module = module.to(kept)
    w = dict(module.core.named_parameters())
    x = FORMS[form](torch.randn(shape, dtype=torch.float64).to(dtype) if dtype.is_floating_point else torch.ones(shape, dtype=dtype))
    x.requires_grad_(dtype.is_floating_point)

    def call():
        with HOOKS[hook]():
            y = module(x)
        towards = FORMS[back](torch.randn(y.shape, dtype=torch.float64).to(y.dtype))
        return y, towards, torch.autograd.grad(y, [x, *w.values()], towards)

    out = attempt("module", call)
    right = dtype in FLOATS and 0 not in shape and shape[2] == width
    if out is None:
        assert not right or hook in ("cut", "wider"), (dtype, kept, shape, form, back, hook)
        return
    y, towards, got = out
    wide = {name: p.detach().to(dtype).double().requires_grad_() for name, p in w.items()}
    x64 = x.detach().double().requires_grad_()
    want_y = (silu(x64 @ wide["ffn.w3.weight"].T) * (x64 @ wide["ffn.w1.weight"].T)) @ wide["ffn.w2.weight"].T
    want = torch.autograd.grad(want_y, [x64, *wide.values()], towards.double())
    for a, b in zip((y, *got), (want_y, *want)):
        a, b = a.detach(), b.detach()
        scale = max(1.0, float(b.abs().max()))
        close = CLOSE[torch.bfloat16 if torch.bfloat16 in (dtype, a.dtype) else torch.float32 if torch.float32 in (dtype, a.dtype) else dtype]
        assert float((a.double() - b).abs().max()) < close * scale, (dtype, kept, shape, form, back, hook)


# Arrays and tokens.

model = weft.Model(N_LAYER=1, N_EMBD=6, N_HEAD=1, VOCAB_SIZE=256, CONTEXT=8, TOKENIZER="bytes", SEED=1)
model64 = weft.Model(N_LAYER=1, N_EMBD=6, N_HEAD=1, VOCAB_SIZE=256, CONTEXT=8, TOKENIZER="bytes", SEED=1, DTYPE="f64")
KINDS = ["<f4", ">f4", "<f8", ">f8", "<f2", "<i4", ">i8", "<u2", "|u1", "|b1", "<c8", "|O", "<U3"]


def laid(draw, a):
    a = np.array(a)
    how = draw(st.sampled_from(["dense", "fortran", "strided", "reversed", "read-only", "odd", "wide"]))
    if how == "fortran":
        return np.asfortranarray(a)
    if how == "strided" and a.ndim:
        return np.repeat(a, 2, -1)[..., ::2]
    if how == "reversed" and a.ndim:
        return a[::-1].copy()[::-1]
    if how == "read-only":
        a = a.copy()
        a.flags.writeable = False
    if how == "odd" and a.dtype.kind in "fiu":
        room = np.zeros(a.nbytes + 1, np.uint8)[1:].view(a.dtype).reshape(a.shape)
        room[...] = a
        return room
    return np.broadcast_to(a[:1], a.shape) if how == "wide" and a.ndim and a.size else a


@RULES
@given(st.data())
def arrays(data):
    draw = data.draw
    one = draw(st.sampled_from([model, model64]))
    kind = draw(st.sampled_from(KINDS))
    name = draw(st.sampled_from([*one.names(), "nothing"]))
    shape = one.shape(name) if name != "nothing" and draw(st.integers(0, 3)) else draw(shapes)
    numbers = np.random.default_rng(draw(st.integers(0, 99))).integers(-3, 4, shape)
    values = laid(draw, np.asarray(numbers).astype(kind))
    tell("array:", one.option("DTYPE"), name, kind, shape, values.flags.c_contiguous)
    before = None if name == "nothing" else one.read(name)
    if attempt("write", lambda: one.write(name, values) or True):
        assert values.shape == one.shape(name) and np.array_equal(one.read(name), values.astype(np.float64))
    elif before is not None:
        assert np.array_equal(one.read(name), before) and (values.shape != before.shape or values.dtype.kind not in "fiub")
    if before is not None:
        one.write(name, before)


@RULES
@given(st.data())
def tokens(data):
    draw = data.draw
    kind = draw(st.sampled_from(["<i4", ">i8", "<i8", "<u2", "|u1", *KINDS]))
    shape = draw(st.tuples(st.integers(1, 3), st.integers(1, 8)) | shapes)
    add = draw(st.sampled_from([0, 0, 0, 250, -1, 2**32, 2**31]))
    try:
        values = laid(draw, np.array(np.random.default_rng(1).integers(0, 9, shape) + add).astype(kind))
    except OverflowError:
        return
    tell("tokens:", kind, shape, add)
    out = attempt("tokens", lambda: model.logits(values))
    plain = values.astype(object)
    if out is not None:
        assert values.dtype.kind in "iu" and all(0 <= int(t) < 256 for t in plain.flat)
        assert np.array_equal(out, model.logits(np.array(plain.tolist(), np.int64)))
    flat = list(values.flat)
    text = attempt("decode", lambda: model.tokenizer.decode_bytes(flat))
    if text is not None:
        assert text == bytes(int(t) for t in flat)


for run in optimizer_steps, module_calls, arrays, tokens:
    run()
print(*(f"{what} {how} {count}" for (what, how), count in sorted(seen.items())), sep="\n")
