"""The optimizer against the engine's own, and the engine's AdamW against PyTorch's."""
import copy
import math
import pickle
from ctypes import byref, c_double

import numpy as np
import pytest
import torch

import weft
from weft import _blocks
from weft._library import check, handle, lib
from weft.torch import AdamWSPAM, LanguageModel, Muon

SIZES = dict(N_LAYER=2, N_EMBD=32, N_HEAD=4, VOCAB_SIZE=64, CONTEXT=16, SEED=3)
MODELS = {"gpt2": {}, "w2": dict(PRESET="w2"), "ra-mla": dict(PRESET="ra-mla", RA_MLA_LATENT_DIM=16, OPTIMIZER="adamw"),
          "wsffn": dict(PRESET="wsffn", OPTIMIZER="adamw")}
STEPS = 50


def batches():
    rows = np.random.default_rng(7).integers(0, 64, (STEPS, 4, 17))
    return [(row[:, :-1].copy(), row[:, 1:].copy()) for row in rows]


def engine_weights(rate, options, after=None):
    """The engine's own training: the weights after STEPS steps."""
    model = weft.Model(**SIZES, **options)
    engine = _blocks.engine("cpu")
    optimizer = handle(lib.weft_optimizer_open, engine, model.handle, None)
    try:
        for tokens, targets in batches():
            a_pass, _ = model._run(tokens, targets, 1)
            check(lib.weft_optimizer_step(optimizer, a_pass, rate))
            if after:
                after(optimizer)
    finally:
        lib.weft_optimizer_close(optimizer)
    return {name: model.read(name) for name in model.names()}


def without_key_biases(name, values):
    """A bias of keys adds the same to a whole row of scores, so its gradient is zero but for rounding, and
    Adam divides rounding by its own size: there is nothing to compare."""
    if not name.endswith("attn.qkv.bias"):
        return values
    third = len(values) // 3
    return np.concatenate((values[:third], values[2 * third:]))


@pytest.mark.parametrize("dtype, most", [("f32", 1e-5), ("f64", 5e-8)])
@pytest.mark.parametrize("kind", MODELS)
def test_torchs_adamw_trains_as_the_engines(kind, dtype, most):
    """The f64 figure is torch's clipping: it divides by the norm + 1e-6."""
    options = dict(MODELS[kind], DTYPE=dtype, WEIGHT_DECAY=0.1, GRAD_CLIP=1.0)
    want = engine_weights(1e-3, options)
    module = LanguageModel(**SIZES, **options)
    start = {name: p.detach().numpy().copy() for name, p in module.named_parameters()}
    parameters = list(module.parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in parameters if p.dim() >= 2], "weight_decay": 0.1},
                                   {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0}],
                                  lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    for tokens, targets in batches():
        optimizer.zero_grad()
        module(torch.from_numpy(tokens), torch.from_numpy(targets))[1].backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    assert max(np.abs(p.detach().numpy() - start[name]).max() for name, p in module.named_parameters()) > 1e-2
    for name, p in module.named_parameters():
        got, wanted = (without_key_biases(name, v) for v in (p.detach().numpy(), want[name]))
        assert np.abs(got - wanted).max() < most, name


SPAM = dict(WEIGHT_DECAY=0.1, GRAD_CLIP=0.5, OPTIMIZER="adamwspam", SPAM_INTERVAL=20, SPAM_WARMUP_STEPS=8,
            SPAM_SPIKE_THRESHOLD=0.2, SPAM_THETA=5.0, ADAM_BETA2=0.95)
OURS = dict(lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, clip=0.5, interval=20, warmup_steps=8, spike_threshold=0.2, theta=5.0)


def train(module, optimizer, some):
    events = []
    for tokens, targets in some:
        optimizer.zero_grad()
        module(torch.from_numpy(tokens), torch.from_numpy(targets))[1].backward()
        optimizer.step()
        events.append(optimizer.events())
    return events


def test_adamwspam_trains_as_the_engines():
    seen = []

    def note(optimizer):
        out = c_double()
        row = {}
        for what in "spike", "reset", "clipped", "cut":
            check(lib.weft_optimizer_event(optimizer, what.encode(), byref(out)))
            row[what] = out.value
        seen.append(row)

    want = engine_weights(1e-3, dict(PRESET="w2", DTYPE="f64", **SPAM), note)
    module = LanguageModel(PRESET="w2", DTYPE="f64", **SIZES)
    events = train(module, AdamWSPAM(module.parameters(), **OURS), batches())
    assert [{k: e[k] for k in ("spike", "reset", "clipped")} for e in events] == [
        {k: r[k] for k in ("spike", "reset", "clipped")} for r in seen]
    assert sum(r["spike"] for r in seen) and sum(r["reset"] for r in seen) == 2 and sum(r["cut"] for r in seen)
    for name, p in module.named_parameters():
        assert np.abs(p.detach().numpy() - want[name]).max() < 1e-8, name


def test_one_step_equals_the_engines_bits():
    """With the engine's own gradients there is nothing left to differ."""
    model = weft.Model(**SIZES, PRESET="w2", **SPAM)
    module = LanguageModel(PRESET="w2", **SIZES)
    ours = AdamWSPAM(module.parameters(), **OURS)
    theirs = handle(lib.weft_optimizer_open, _blocks.engine("cpu"), model.handle, None)
    try:
        for tokens, targets in batches()[:5]:
            a_pass, _ = model._run(tokens, targets, 1)
            for name, gradient in model.gradients(tokens, targets).items():
                p = module
                for step in name.split("."):
                    p = p[int(step)] if step.isdigit() else getattr(p, step)
                p.grad = torch.from_numpy(gradient)
            a_pass, _ = model._run(tokens, targets, 1)
            check(lib.weft_optimizer_step(theirs, a_pass, 1e-3))
            ours.step()
            for name, p in module.named_parameters():
                assert np.array_equal(p.detach().numpy(), model.read(name)), name
    finally:
        lib.weft_optimizer_close(theirs)


def test_a_saved_state_goes_on_with_equal_bits():
    torch.manual_seed(0)
    module = LanguageModel(PRESET="w2", **SIZES)
    optimizer = AdamWSPAM(module.parameters(), **OURS)
    train(module, optimizer, batches()[:15])
    other = copy.deepcopy(module)
    again = AdamWSPAM(other.parameters(), lr=0.5)
    again.load_state_dict(pickle.loads(pickle.dumps(optimizer.state_dict())))
    train(module, optimizer, batches()[15:30])
    train(other, again, batches()[15:30])
    for a, b in zip(module.parameters(), other.parameters()):
        assert torch.equal(a, b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_groups_have_options_of_their_own(dtype):
    """Plain AdamW, with groups, views and a missing gradient, beside torch.optim.AdamW."""
    torch.manual_seed(1)

    def make():
        torch.manual_seed(2)
        big = torch.randn(7, 5, dtype=dtype)
        return [torch.randn(3, 4, dtype=dtype), torch.randn(6, dtype=dtype), big.t().clone()[1:], torch.randn(2, 2, dtype=dtype)]

    mine, theirs = [[p.requires_grad_() for p in make()] for _ in range(2)]
    groups = [dict(lr=1e-2, weight_decay=0.3, betas=(0.8, 0.9)), dict(lr=3e-3, weight_decay=0.0, eps=1e-6)]
    ours = AdamWSPAM.adamw([{"params": mine[:2], **groups[0]}, {"params": mine[2:], **groups[1]}], decay_vectors=True)
    wide = [p.detach().to(torch.float64 if dtype == torch.float64 else torch.float32).requires_grad_() for p in theirs]
    other = torch.optim.AdamW([{"params": wide[:2], **groups[0]}, {"params": wide[2:], **groups[1]}])
    for i in range(12):
        for k, (a, b) in enumerate(zip(mine, wide)):
            grad = torch.randn(a.shape, dtype=torch.float64).to(dtype)
            a.grad = None if k == 3 and i % 2 else grad
            b.grad = None if k == 3 and i % 2 else grad.to(b.dtype)
        ours.step()
        other.step()
    # torch counts steps for each parameter, AdamWSPAM for each group: the fourth is left out.
    for a, b in zip(mine[:3], wide[:3]):
        assert torch.allclose(a.to(b.dtype), b, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-6)
        if dtype == torch.bfloat16:
            assert torch.allclose(ours.state[a]["master"], b, rtol=1e-5, atol=1e-6)


def test_what_is_wrong_is_told():
    p = torch.randn(3, requires_grad=True)
    with pytest.raises(ValueError, match="betas"):
        AdamWSPAM([p], betas=(0.9, 1.0))
    with pytest.raises(ValueError, match="lr"):
        AdamWSPAM([p], lr=-1)
    half = torch.randn(3, dtype=torch.float16, requires_grad=True)
    half.grad = torch.ones_like(half)
    with pytest.raises(TypeError, match="float32"):
        AdamWSPAM([half]).step()
    optimizer = AdamWSPAM([p])
    optimizer.step()
    before = p.detach().clone()
    p.grad = torch.tensor([1.0, float("nan"), 2.0])
    optimizer.step()
    assert torch.equal(p, before) and optimizer.events()["skipped"] == 1


@pytest.mark.parametrize("lr", [math.nan, math.inf, -1.0])
def test_a_rate_that_is_no_number_changes_nothing(lr):
    p = torch.nn.Parameter(torch.ones(4))
    p.grad = torch.ones(4)
    with pytest.raises(ValueError, match="lr"):
        AdamWSPAM([p], lr=lr)
    optimizer = AdamWSPAM([p], lr=0.1)
    optimizer.param_groups[0]["lr"] = lr  # as a schedule sets it
    with pytest.raises(ValueError, match="lr"):
        optimizer.step()
    assert torch.equal(p, torch.ones(4))


@pytest.mark.parametrize("key, value", [("warmup_steps", 1 << 70), ("interval", 1 << 64), ("betas", (0.9,))])
def test_options_are_not_cut_or_shifted(key, value):
    p = torch.nn.Parameter(torch.ones(4))
    p.grad = torch.ones(4)
    optimizer = AdamWSPAM([p], lr=0.1)
    optimizer.param_groups[0][key] = value
    with pytest.raises(ValueError):
        optimizer.step()
    assert torch.equal(p, torch.ones(4))


@pytest.mark.parametrize("first, second", [((0, 64), (0, 64)), ((0, 64), (63, 127)), ((1, 65), (1, 65))])
def test_parameters_that_share_memory_are_refused(first, second):
    """They are updated at a time: one update would be lost."""
    memory = torch.ones(128)
    both = [torch.nn.Parameter(memory[slice(*part)]) for part in (first, second)]
    for p in both:
        p.grad = torch.ones_like(p)
    with pytest.raises(RuntimeError, match="share memory"):
        AdamWSPAM(both, lr=0.1).step()
    assert torch.equal(memory, torch.ones(128))
    beside = [torch.nn.Parameter(memory[:64]), torch.nn.Parameter(memory[64:])]
    for p in beside:
        p.grad = torch.ones_like(p)
    AdamWSPAM.adamw(beside, lr=0.1, weight_decay=0).step()
    assert torch.allclose(memory, torch.full((128,), 0.9))


@pytest.mark.parametrize("views", [lambda m: (m[:, :4], m[:, 2:]), lambda m: (m[:4, :4], m[:4, :4].t()), lambda m: (m, m[::2]),
                                   lambda m: (m[:, :2], m[:, 4:], m[:, 1:3])])
def test_views_that_have_numbers_in_common_are_refused(views):
    """Those that do not lie densely are copied, and of two copies that come back one is lost."""
    ps = [torch.nn.Parameter(v) for v in views(torch.randn(6, 6))]
    before = [p.detach().clone() for p in ps]
    optimizer = AdamWSPAM(ps)
    for p in ps:
        p.grad = torch.ones_like(p)
    with pytest.raises(RuntimeError, match="share memory"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, ps))


def test_columns_of_one_matrix_are_taken():
    matrix = torch.zeros(4, 6)
    ps = [torch.nn.Parameter(v) for v in (matrix[:, :2], matrix[:, 2:5], matrix[:, 5:])]
    for p in ps:
        p.grad = torch.ones_like(p)
    AdamWSPAM.adamw(ps, lr=0.1, weight_decay=0).step()
    assert torch.allclose(matrix, torch.full((4, 6), -0.1))


def test_a_rate_must_be_finite_in_its_type():
    for dtype, rate in (torch.float32, 1e39), (torch.bfloat16, 1e39):
        p = torch.nn.Parameter(torch.ones(3, dtype=dtype))
        optimizer = AdamWSPAM([p], lr=rate)
        p.grad = torch.ones_like(p)
        with pytest.raises(ValueError, match="finite"):
            optimizer.step()
        assert torch.equal(p, torch.ones_like(p))


def test_a_step_is_on_its_parameters_device():
    p = torch.nn.Parameter(torch.ones(3))
    optimizer = AdamWSPAM.adamw([p], lr=0.5, weight_decay=0)
    p.grad = torch.ones_like(p)
    with torch.device("meta"):
        optimizer.step()
    assert torch.allclose(p, torch.full((3,), 0.5))


def newton_schulz(g):
    """As Muon's authors write it, of one matrix."""
    x = g / (g.norm() + 1e-7)
    x = x.T if g.shape[0] > g.shape[1] else x
    for _ in range(5):
        a = x @ x.T
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x.T if g.shape[0] > g.shape[1] else x


class PlainMuon:
    """Muon and AdamW by PyTorch's operations, in float64. `matrices`: the matrices of each parameter, as a function; None: AdamW."""

    def __init__(self, params, matrices):
        self.p = [p.detach().double().clone() for p in params]
        self.matrices, self.t = matrices, 0
        self.m, self.v = ([torch.zeros_like(p) for p in self.p] for _ in range(2))

    def step(self, grads, lr, decay, clip, beta=0.95, betas=(0.9, 0.95), eps=1e-8):
        grads = [g.double() for g in grads]
        self.t += 1
        norm = math.sqrt(sum((g**2).sum().item() for g in grads))
        for i, g in enumerate(grads):
            g = g * min(1.0, clip / norm)
            p, m = self.p[i], self.m[i]
            if self.matrices[i]:
                m.mul_(beta).add_(g)
                update = g + beta * m
                for x in self.matrices[i](update):
                    x.copy_(0.2 * math.sqrt(max(x.shape)) * newton_schulz(x))
            else:
                m.mul_(betas[0]).add_(g, alpha=1 - betas[0])
                self.v[i].mul_(betas[1]).add_(g**2, alpha=1 - betas[1])
                update = m / (1 - betas[0]**self.t) / ((self.v[i] / (1 - betas[1]**self.t)).sqrt() + eps)
            p.mul_(1 - lr * decay * (p.dim() >= 2)).sub_(lr * update)


@pytest.mark.parametrize("dtype, most", [(torch.float64, 1e-13), (torch.float32, 1e-5), (torch.bfloat16, 1e-5)])
def test_muon_steps_as_in_plain_pytorch(dtype, most):
    torch.manual_seed(5)
    wide, tall, heads, joint, table, gain = some = [
        torch.nn.Parameter(torch.randn(shape).to(dtype)) for shape in ((6, 9), (40, 7), (3, 5, 4), (12, 8), (11, 6), (9,))]
    optimizer = Muon([{"params": [wide, tall, heads, gain]}, {"params": [joint], "split": (6, 3, 3)},
                      {"params": [table], "muon": False}], lr=2e-2, clip=5.0)
    plain = PlainMuon(some, [lambda x: [x], lambda x: [x], lambda x: x, lambda x: x.split((6, 3, 3)), None, None])
    for _ in range(50):
        for p in some:
            p.grad = torch.randn(p.shape).to(dtype)
        optimizer.step()
        assert optimizer.events()["clipped"] == 1
        plain.step([p.grad for p in some], 2e-2, 0.1, 5.0)
    for p, want in zip(some, plain.p):
        held = optimizer.state[p]["master"] if dtype == torch.bfloat16 else p
        assert (held.double() - want).abs().max() < most
        assert ("v" in optimizer.state[p]) == (p is table or p is gain)
        if dtype == torch.bfloat16:
            assert torch.equal(p, held.to(dtype))


@pytest.mark.parametrize("kind", MODELS)
def test_muon_trains_as_the_engines(kind):
    options = dict(MODELS[kind], DTYPE="f64", OPTIMIZER="muon", **(dict(KV_HEADS=2) if kind == "gpt2" else {}))
    want = engine_weights(1e-2, options)
    module = LanguageModel(**SIZES, **options)
    train(module, Muon.for_model(module, lr=1e-2), batches())
    for name, p in module.named_parameters():
        if not name.endswith("attn.qkv.bias"):  # of keys: see without_key_biases
            assert np.abs(p.detach().numpy() - want[name]).max() < 1e-8, name


def test_muons_saved_state_goes_on_with_equal_bits():
    module = LanguageModel(**SIZES)
    optimizer = Muon.for_model(module)
    train(module, optimizer, batches()[:5])
    other = copy.deepcopy(module)
    again = Muon.for_model(other, lr=0.5, momentum=0.1)
    again.load_state_dict(pickle.loads(pickle.dumps(optimizer.state_dict())))
    train(module, optimizer, batches()[5:10])
    train(other, again, batches()[5:10])
    for a, b in zip(module.parameters(), other.parameters()):
        assert torch.equal(a, b)


def test_what_is_wrong_with_muon_is_told():
    p = torch.nn.Parameter(torch.randn(12, 4))
    p.grad = torch.randn(12, 4)
    before = p.detach().clone()
    for split in (4, 4, 5), (6, 2, 4), (12, 0), (13, -1):
        with pytest.raises(ValueError, match="split"):
            Muon([p], split=split).step()
    with pytest.raises(ValueError, match="momentum"):
        Muon([p], momentum=1.0)
    with pytest.raises(ValueError, match="lr"):
        Muon([p], lr=-1.0)
    ours, theirs = Muon([p]), AdamWSPAM([p])
    for a, b, name in (ours, theirs, "Muon"), (theirs, ours, "AdamWSPAM"):
        with pytest.raises(ValueError, match=f"{name}: this is the state of another optimizer"):
            a.load_state_dict(b.state_dict())
    assert torch.equal(p, before)
    ours.step()
    wrong = copy.deepcopy(ours.state_dict())
    wrong["state"][0]["m"] = torch.zeros(4, 12)
    with pytest.raises(ValueError, match="Muon: m of parameter 0"):
        ours.load_state_dict(wrong)
