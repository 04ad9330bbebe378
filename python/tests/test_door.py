"""What reaches C from Python: the optimizer's tensors and state, what hooks bring back, arrays and tokens. Wrong ones are
told before C sees an address; right ones give right numbers however they lie in memory."""
import copy
import os
import pathlib
import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks

import weft
from weft import _door
from weft.torch import AdamWSPAM, LanguageModel, MLAttention, Part, SwiGLU, W2Attention

HERE = pathlib.Path(__file__).resolve().parent
SIZES = dict(N_LAYER=1, N_EMBD=8, N_HEAD=1, VOCAB_SIZE=256, CONTEXT=32, TOKENIZER="bytes", SEED=1)


def moved(t, by=1):
    """The same numbers, dense, `by` elements behind an aligned address."""
    room = torch.empty(t.numel() + 64, dtype=t.dtype)
    skip = (-room.data_ptr() % 64) // t.element_size() + by
    return room[skip:skip + t.numel()].view(t.shape).copy_(t.detach())


def strided(t):
    """The same numbers with other memory between them."""
    room = torch.full((*t.shape[:-1], 2 * t.shape[-1]), float("nan"), dtype=t.dtype)
    return room[..., ::2].copy_(t.detach())


def stepped(dtype=torch.float32, shapes=((3, 5), (7,)), **options):
    """Parameters, and an optimizer that has done a step."""
    torch.manual_seed(3)
    some = [torch.randn(s, dtype=dtype).requires_grad_() for s in shapes]
    optimizer = AdamWSPAM(some, lr=1e-2, **options)
    for p in some:
        p.grad = torch.randn_like(p)
    optimizer.step()
    return some, optimizer


def go_on(some, optimizer, steps=2):
    torch.manual_seed(4)
    for _ in range(steps):
        for p in some:
            p.grad = torch.randn(p.shape, dtype=torch.float64).to(p.dtype)
        optimizer.step()
    return [p.detach().clone() for p in some]


# The optimizer's state.

@pytest.mark.parametrize("key", ["m", "v", "v_max", "control", "master"])
@pytest.mark.parametrize("shape", [(1,), (0,), (5, 3), (3, 5, 1), (4000,)])
def test_state_of_another_shape_is_refused_and_changes_nothing(key, shape):
    some, optimizer = stepped(torch.bfloat16)
    twins, twin = stepped(torch.bfloat16)
    state = copy.deepcopy(optimizer.state_dict())
    state["state"][0][key] = torch.zeros(shape)
    with pytest.raises(ValueError, match=f"{key} of parameter 0 is"):
        optimizer.load_state_dict(state)
    assert all(torch.equal(a, b) for a, b in zip(go_on(some, optimizer), go_on(twins, twin)))
    optimizer.state[some[0]][key] = torch.zeros(shape)  # set past load_state_dict
    before = [p.detach().clone() for p in some]
    with pytest.raises(ValueError, match=f"weft: {key} is .*wanted"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(some, before))


def test_state_of_another_model_is_refused():
    _, small = stepped(shapes=((2, 2), (3,)))
    _, large = stepped(shapes=((200, 200), (300,)))
    for one, other in (small, large), (large, small):
        with pytest.raises(ValueError, match="another model"):
            one.load_state_dict(other.state_dict())


@pytest.mark.parametrize("kept", [torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_state_of_another_type_is_converted_as_pytorch_does(dtype, kept):
    some, optimizer = stepped(dtype)
    twins, twin = stepped(dtype)
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    state = copy.deepcopy(optimizer.state_dict())
    for of_one in state["state"].values():
        for key in of_one:
            of_one[key] = of_one[key].to(kept)
    optimizer.load_state_dict(state)
    for p, q in zip(some, twins):
        assert optimizer.state[p].keys() == twin.state[q].keys()
        for key, value in optimizer.state[p].items():
            assert value.dtype == wide
            twin.state[q][key].copy_(twin.state[q][key].to(kept))
    assert all(torch.equal(a, b) for a, b in zip(go_on(some, optimizer), go_on(twins, twin)))


@pytest.mark.parametrize("other", [torch.optim.AdamW, torch.optim.SGD, lambda p: torch.optim.SGD(p, momentum=0.9)])
def test_the_state_of_another_optimizer_is_told(other):
    some, optimizer = stepped()
    theirs = other(some)
    theirs.step()
    with pytest.raises(ValueError, match="state of another optimizer"):
        optimizer.load_state_dict(theirs.state_dict())
    state = theirs.state_dict()
    state["param_groups"] = optimizer.state_dict()["param_groups"]
    if state["state"]:
        with pytest.raises(ValueError, match="another optimizer: it has no 'm'"):
            optimizer.load_state_dict(state)
    optimizer.step()


@pytest.mark.parametrize("wrong", [float("nan"), -1.0, 1e9, float("inf")])
def test_counters_of_any_value_stay_in_their_memory(wrong):
    some, optimizer = stepped()
    state = optimizer.state_dict()
    state["state"][0]["control"][100:102] = wrong
    optimizer.load_state_dict(state)
    assert all(torch.isfinite(p).all() for p in go_on(some, optimizer))


def test_what_pytorchs_adamw_refuses_is_refused():
    some, optimizer = stepped()
    p = some[0]
    kept = p.data
    p.data = torch.randn(4, 5)
    with pytest.raises(ValueError, match="wanted"):
        optimizer.step()
    p.grad = torch.randn(4, 5)
    with pytest.raises(ValueError, match="wanted"):
        optimizer.step()
    p.data, p.grad = kept, torch.randn(3, 5).to_sparse()
    with pytest.raises(RuntimeError, match="sparse"):
        optimizer.step()
    p.grad = torch.randn(3, 5)
    p.data = torch.zeros(1).expand(3, 5)
    with pytest.raises(RuntimeError, match="one place"):
        optimizer.step()
    p.data = kept.double()
    with pytest.raises((TypeError, ValueError)):
        optimizer.step()
    p.data = kept.clone()
    p.data.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="no memory"):
        optimizer.step()
    p.data = kept
    optimizer.step()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("form", [strided, moved, lambda t: t.t().contiguous().t(), lambda t: torch._neg_view(-t.detach())])
def test_parameters_gradients_and_state_may_lie_as_they_like(form, dtype):
    some, optimizer = stepped(dtype, shapes=((6, 9), (5, 4)))
    want = go_on(some, optimizer)
    some, optimizer = stepped(dtype, shapes=((6, 9), (5, 4)))
    torch.manual_seed(4)
    for p in some:
        state = optimizer.state[p]
        for key in state:
            if state[key].dim() == 2:
                state[key] = form(state[key])
        if not form(p).is_neg():
            p.data = form(p)
    for _ in range(2):
        for p in some:
            p.grad = form(torch.randn(p.shape, dtype=torch.float64).to(dtype))
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(some, want))


def test_a_parameter_listed_twice_counts_once():
    some, optimizer = stepped()
    want = go_on(some, optimizer)
    some, optimizer = stepped()
    optimizer.param_groups[0]["params"].append(some[0])
    assert all(torch.equal(a, b) for a, b in zip(go_on(some, optimizer), want))


# Parameters in bf16 and the f32 values beside them.

SETTERS = {
    "fill_": lambda p, v: p.fill_(v), "copy_": lambda p, v: p.copy_(torch.full_like(p, v)),
    ".data": lambda p, v: p.data.fill_(v), "set .data": lambda p, v: setattr(p, "data", torch.full_like(p, v)),
    "one row": lambda p, v: p[1].fill_(v)}


@pytest.mark.parametrize("how", SETTERS)
def test_a_bf16_parameter_that_was_set_counts(how):
    """Against a step of AdamW's formula in f32 from the values that were set, and from the wide ones elsewhere."""
    some, optimizer = stepped(torch.bfloat16, shapes=((40, 50),), amsgrad=False, clip=None, spike_threshold=0, theta=0, interval=0)
    p, state = some[0], optimizer.state[some[0]]
    with torch.no_grad():
        before = p.clone()
        SETTERS[how](p, 3.5)
    start = torch.where(before == p, state["master"], p.float()).double()
    assert (state["master"].double() != start).any() and (how != "one row" or (start == state["master"]).any())
    p.grad = torch.randn_like(p)
    g = p.grad.double()
    m, v = 0.9 * state["m"].double() + 0.1 * g, 0.999 * state["v"].double() + 0.001 * g * g
    want = start - 1e-2 * (0.1 * start + m / (1 - 0.9 ** 2) / ((v / (1 - 0.999 ** 2)).sqrt() + 1e-8))
    optimizer.step()
    assert torch.allclose(state["master"].double(), want, rtol=1e-5, atol=1e-7)
    assert torch.equal(p, state["master"].to(torch.bfloat16))


def test_loaded_weights_of_a_bf16_model_count():
    torch.manual_seed(0)
    module, other = (SwiGLU(8, 16).to(torch.bfloat16) for _ in range(2))
    optimizer = AdamWSPAM(module.parameters(), lr=1e-4)
    x = torch.randn(2, 4, 8, dtype=torch.bfloat16)

    def step():
        optimizer.zero_grad()
        module(x).sum().backward()
        optimizer.step()

    step()
    module.load_state_dict(other.state_dict())
    step()
    for p, q in zip(module.parameters(), other.parameters()):
        assert (p - q).abs().max() < 1e-2
    masters = [optimizer.state[p]["master"].clone() for p in module.parameters()]
    assert any((m != m.to(torch.bfloat16)).any() for m in masters)  # what bf16 does not hold is kept between steps
    again = AdamWSPAM(other.parameters())
    other.load_state_dict(module.state_dict())
    again.load_state_dict(optimizer.state_dict())
    step()
    other(x).sum().backward()
    again.step()
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), other.parameters()))


def test_parameters_that_become_bf16_go_on():
    some, optimizer = stepped()
    for p in some:
        p.grad = None
        p.data = p.data.to(torch.bfloat16)
    go_on(some, optimizer)
    assert all(torch.equal(p, optimizer.state[p]["master"].to(torch.bfloat16)) for p in some)


# What a backward pass gets back from hooks.

MODULES = {"w2": lambda: W2Attention(12, 3), "mla": lambda: MLAttention(12, 3, latent_dim=5), "swiglu": lambda: SwiGLU(12, 20),
           "layer": lambda: Part("layer", ATTENTION="dot", N_EMBD=12, N_HEAD=3, N_FFN=20)}


def gradients(module, x):
    y = module(x)
    y = y["y"] if isinstance(y, dict) else y
    return torch.autograd.grad((y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)).sum(), [x, *module.parameters()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", MODULES)
def test_saved_tensors_may_come_back_elsewhere(kind, dtype):
    torch.manual_seed(0)
    module = MODULES[kind]().to(dtype)
    x = torch.randn(2, 7, 12, dtype=dtype, requires_grad=True)
    want = gradients(module, x)
    ways = [saved_tensors_hooks(lambda t: t, lambda t, by=by: moved(t, by)) for by in (1, 3, 16)]
    ways += [saved_tensors_hooks(lambda t: t.numpy(force=True).copy() if t.dtype != torch.bfloat16 else t.clone(),
                                 lambda t: t if isinstance(t, torch.Tensor) else torch.from_numpy(t)),
             saved_tensors_hooks(lambda t: t, lambda t: strided(t.to(torch.float64)).to(t.dtype) if t.dim() else t), save_on_cpu()]
    for way in ways:
        with way:
            got = gradients(module, x)
        assert all(torch.equal(a, b) for a, b in zip(got, want))


def test_saved_tensors_of_another_shape_or_type_are_told():
    module, x = SwiGLU(12, 20), torch.randn(2, 7, 12, requires_grad=True)
    for change in (lambda t: t[..., :-1], lambda t: t.double() if t.is_floating_point() else t.int(), lambda t: t.to("meta")):
        with saved_tensors_hooks(lambda t: t, change):
            y = module(x).sum()
        with pytest.raises(ValueError, match="wanted"):
            y.backward()


def test_saved_bytes_of_the_operator_may_come_back_elsewhere():
    """As a compiled graph passes them: weft::part_back itself."""
    from weft import _blocks
    torch.manual_seed(0)
    module = W2Attention(12, 3).core
    text, weights = module._text(torch.float32), [w.detach() for w in module.weights()]
    call = "attention", text, True, _blocks.GRADIENT | _blocks.TRAIN, None
    x = torch.randn(2, 7, 12)
    *outputs, saved = torch.ops.weft.part([x], weights, *call)
    grads = [torch.randn_like(o) for o in outputs]
    want = torch.ops.weft.part_back(grads, [x], weights, outputs, saved, *call)
    for by in 1, 17, 32:
        got = torch.ops.weft.part_back([moved(g) for g in grads], [moved(x)], [moved(w) for w in weights],
                                       [moved(o) for o in outputs], moved(saved, by), *call)
        assert all(torch.equal(a, b) for a, b in zip(got, want))


def test_a_tensor_whose_sign_is_a_flag_is_read_with_it():
    """PyTorch negates such views when they are read, not in memory."""
    module, x = SwiGLU(12, 20), torch.randn(1, 3, 12)
    assert torch.equal(module(torch._neg_view(x)), module(-x))
    y = module(x.requires_grad_())
    want = torch.autograd.grad(y, x, -torch.ones_like(y), retain_graph=True)[0]
    assert torch.equal(torch.autograd.grad(y, x, torch._neg_view(torch.ones_like(y)))[0], want)


def test_freed_memory_is_told():
    module, x = SwiGLU(12, 20), torch.randn(1, 3, 12)
    next(module.parameters()).data.untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="no memory"):
        module(x)


# Arrays, tokens, models.

def test_arrays_of_all_kinds_are_taken_or_refused():
    model = weft.Model(**SIZES)
    name = "wte.weight"
    values = np.random.default_rng(0).standard_normal(model.shape(name)).astype(np.float32)
    fixed = values.copy()
    fixed.flags.writeable = False
    odd = np.frombuffer(bytearray(values.nbytes + 1), np.uint8)[1:].view(np.float32).reshape(values.shape)
    odd[:] = values
    for same in (values, fixed, odd, values.astype(">f4"), values.astype(np.float64), np.asfortranarray(values),
                 np.repeat(values, 2, 1)[:, ::2], values.tolist()):
        model.write(name, np.zeros_like(values))
        model.write(name, same)
        assert np.array_equal(model.read(name), values)
    for wrong in (values[:-1], values[0], values.T, values[:0], values[None], 1.0, values.astype(complex), values.astype(str),
                  values.astype(object), [[1.0], [1.0, 2.0]]):
        with pytest.raises(ValueError):
            model.write(name, wrong)
    assert np.array_equal(model.read(name), values)
    tokens = np.arange(12).reshape(2, 6)
    want = model.logits(tokens)
    for same in tokens.astype(">i2"), np.asfortranarray(tokens.astype(np.uint64)), np.repeat(tokens, 2, 1)[:, ::2], tokens.tolist():
        assert np.array_equal(model.logits(same), want)
    for wrong in tokens[:0], tokens[:, :0], tokens + 2**32, tokens.astype(float), tokens > 3, tokens[None], np.int64(3), -tokens - 1:
        with pytest.raises(ValueError):
            model.logits(wrong)
    with pytest.raises(ValueError):
        model.loss(tokens, tokens[:, :5])


def test_tokens_are_neither_cut_nor_rounded():
    model = weft.Model(**SIZES)
    assert model.generate([97, np.int64(98), torch.tensor(99)], max_tokens=1) == model.generate([97, 98, 99], max_tokens=1)
    for wrong in [2**32 + 97], [97.5], [-2**31 - 1], ["a", 3], [None]:
        with pytest.raises(ValueError, match="token"):
            model.generate([97, *wrong], max_tokens=1)
        with pytest.raises(ValueError, match="token"):
            model.tokenizer.decode(wrong)


def test_a_stream_ends_with_its_model():
    model = weft.Model(**SIZES)
    stream = model.generate("abc", stream=True, max_tokens=20)
    next(stream)
    model.close()
    with pytest.raises(weft.InputError, match="closed"):
        list(stream)


def test_parameters_of_another_shape_are_not_saved(tmp_path):
    model = LanguageModel(**SIZES)
    model.wte.weight = torch.nn.Parameter(torch.zeros(3, 8))
    with pytest.raises(ValueError, match="wte.weight is"):
        weft.save(model, tmp_path / "m")
    assert not (tmp_path / "m").exists()


def test_everything_goes_through_the_door():
    """No other file hands an address to C."""
    for path in (HERE.parent / "weft").rglob("*.py"):
        if path.name not in ("_door.py", "_memory.py"):
            code = path.read_text()
            assert ".ctypes.data" not in code and "data_as(" not in code, path
            # Of memory that is made on the spot
            assert code.count("data_ptr()") <= (5 if path.name == "_ops.py" else 0), path
    assert _door.taken([], [], [], None, []) == ([], [])


def test_a_process_ends_without_a_word():
    """An optimizer, a model, a tokenizer and a pending stream, kept by a cycle until the interpreter itself goes."""
    code = ("import sys, torch, weft\nfrom weft.torch import AdamWSPAM, SwiGLU\n"
            "m = SwiGLU(8, 8); o = AdamWSPAM(m.parameters()); m(torch.randn(1, 2, 8)).sum().backward(); o.step()\n"
            f"model = weft.Model(**{SIZES!r}); stream = model.generate('abc', stream=True); next(stream); model.logits([[1]])\n"
            "class Late:\n    def __del__(self, keep=[o, model, model.tokenizer, stream]): keep.clear()\n"
            "late = Late(); late.own = late\n"
            "import weft._library, weft._model, weft.torch.optim\n"
            "for name in [n for n in sys.modules if n.startswith('weft')]: vars(sys.modules[name]).update(lib=None)")
    for profile in "", "1":
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE.parent,
                                env={**os.environ, "WEFT_PROFILE": profile})
        assert result.returncode == 0 and "Exception" not in result.stderr and "Error" not in result.stderr, result.stderr
        assert profile or result.stderr == ""


def test_names_are_not_cut_at_a_nul(tmp_path):
    """C reads a name up to its first NUL: the model would be written where nobody said."""
    model = weft.Model(**SIZES)
    with pytest.raises(Exception, match="NUL"):
        model.save(f"{tmp_path}/model\0.kept")
    assert not list(tmp_path.iterdir())
    with pytest.raises(Exception, match="NUL"):
        weft.Model(**{**SIZES, "TOKENIZER": "bytes\0else"})
    assert model.tokenizer.decode(model.tokenizer.encode("a\0b")) == "a\0b"


def test_numbers_are_not_cut_to_their_last_bits():
    model = weft.Model(**SIZES)
    for context in 1 << 64, (1 << 64) + 32, -(1 << 63) - 1:
        with pytest.raises(Exception, match="more than 64 bits"):
            weft.generate(model, "a", context=context, max_tokens=1)


def test_what_has_a_handle_of_c_is_not_copied():
    """Both would close it."""
    model = weft.Model(**SIZES)
    for one in model, model.tokenizer:
        for copied in copy.copy, copy.deepcopy, pickle.dumps:
            with pytest.raises(TypeError, match="not copied or pickled"):
                copied(one)
    assert len(weft.generate(model, [1], max_tokens=2)) == 2


CLOSED = """
import sys, threading, weft
for turn in range(40):
    model = weft.Model(N_LAYER=1, N_EMBD=8, N_HEAD=1, VOCAB_SIZE=256, CONTEXT=32, TOKENIZER="bytes")
    def go():
        try:
            model.generate("hello", max_tokens=25)
            model.save(sys.argv[1])
            model.logits([[1, 2, 3]])
        except weft.InputError as error:
            assert "closed" in str(error), error
    threads = [threading.Thread(target=go) for _ in range(3)]
    for thread in threads:
        thread.start()
    model.close()
    for thread in threads:
        thread.join()
print("closed")
"""


def test_a_model_is_closed_while_other_threads_use_it(tmp_path):
    done = subprocess.run([sys.executable, "-c", CLOSED, str(tmp_path / "model")], cwd=HERE.parent, capture_output=True, text=True,
                          timeout=300)
    assert done.stdout == "closed\n" and done.returncode == 0 and not done.stderr, done


@pytest.mark.parametrize("key", ["top_k", "seed", "sample", "max_tokens", "end_token"])
def test_counts_are_whole_numbers(key):
    with pytest.raises(weft.InputError, match="whole number"):
        weft.generate(weft.Model(**SIZES), [1], **{"max_tokens": 2, key: 1.5})
