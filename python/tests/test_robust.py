"""Whatever comes in works or raises, nothing leaks, and copies of all kinds compute the same.

Trimmed here; WEFT_TEST_LONG=1 makes it 2,000 random calls and 10,000 calls for the leak."""
import ast
import copy
import io
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import time

import pytest
import torch

from weft.torch import (AdamWSPAM, Config, LanguageModel, MLAttention, ReciprocalBlock, SwiGLU, W2Attention,
                        W2TransformerBlock, WsFFN, _memory, _nvpl)

LONG = bool(os.environ.get("WEFT_TEST_LONG"))
CALLS, REPEATS = (2000, 10000) if LONG else (120, 600)
HERE = pathlib.Path(__file__).resolve().parent


class W2Config:
    hidden_size, num_attention_heads, intermediate_size, rms_norm_eps = 24, 3, 36, 1e-6


# A process of its own: a crash there is a failure here.
RANDOM = r"""
import random, sys
import torch
sys.path.insert(0, "tests")
import gpu
from weft.torch import *

torch.manual_seed(int(sys.argv[2]))
dice = random.Random(int(sys.argv[2]))
MAKERS = [
    lambda w, h: W2Attention(w, h), lambda w, h: MLAttention(w, h, latent_dim=dice.choice([1, 4, 7])),
    lambda w, h: WsFFN(Config(d_model=w, d_ffn=dice.choice([8, 12]), n_head=dice.choice([1, 4]))),
    lambda w, h: SwiGLU(w, dice.choice([1, 5, 16])), lambda w, h: ReciprocalBlock(w, h, 8, latent_dim=4),
    lambda w, h: Part(dice.choice(["attention", "layer", "ffn"]), ATTENTION=dice.choice(["dot", "w2", "mla"]), N_EMBD=w, N_HEAD=h,
                      N_FFN=dice.choice([1, 6]), POSITION=dice.choice(["none", "rope", "alibi"]), RA_MLA_LATENT_DIM=4)]
CUDA = gpu.missing() is None
TYPES = [torch.float32] * 5 + [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.complex64]

def tensor(width):
    kind, form = dice.choice(TYPES), dice.randrange(8)
    b, t = dice.choice([0, 1, 1, 2, 3]), dice.choice([0, 1, 2, 5, 17])
    base = torch.randn(b + 1, 2 * t + 1, 2 * width + 3)
    x = [lambda: base[:b, :t, :width], lambda: base[:b, :2 * t:2, 1:width + 1], lambda: base[:b, :t, :2 * width:2],
         lambda: base[:b, :t, :width].transpose(0, 1).contiguous().transpose(0, 1),
         lambda: base[:1, :1, :width].expand(max(b, 1), max(t, 1), width), lambda: base[:b, :t, :width].flip(1),
         lambda: base[:b, :t, :width + dice.choice([0, 1])], lambda: base[0, :t, :width]][form]()
    x = x.to(kind) if dice.random() < 0.7 else x.clone().to(kind)
    if CUDA and dice.random() < 0.5:
        x = x.to("cuda")
    if dice.random() < 0.05:
        x = x.to("meta")
    if dice.random() < 0.03 and x.dtype == torch.float32:
        x = x.to_sparse()
    if CUDA and x.layout == torch.strided and not x.is_meta and dice.random() < 0.5:
        x = x.cuda() if dice.random() < 0.5 else x.cuda().transpose(0, -1).contiguous().transpose(0, -1)
    return x.detach().requires_grad_(x.is_floating_point() and dice.random() < 0.7)

worked = raised = on_gpu = 0
for i in range(int(sys.argv[1])):
    try:
        heads = dice.choice([1, 2, 3])
        width = dice.choice([1, 2, 6, 12, 12, 12])
        module = dice.choice(MAKERS)(width, heads)
        x = tensor(width)
        if dice.random() < 0.6 and x.is_floating_point():
            module = module.to(x.dtype)
        if CUDA and dice.random() < (0.9 if x.is_cuda else 0.1):
            module = module.cuda()
        if dice.random() < 0.3:
            module.eval()
        options = {}
        if isinstance(module, W2Attention) and dice.random() < 0.5:
            t = x.shape[1] if x.dim() > 1 else 1
            options["attention_mask"] = dice.choice([torch.ones(t, t).tril().bool(), torch.zeros(t + 1, t), torch.randn(1, 1, t, t),
                                                     torch.ones(t, dtype=torch.int32)])
            if x.is_cuda and dice.random() < 0.9:
                options["attention_mask"] = options["attention_mask"].cuda()
        out = module(x, **options)
        parts = list(out.values()) if isinstance(out, dict) else list(out) if isinstance(out, tuple) else [out]
        parts = [p for q in parts for p in (q if isinstance(q, tuple) else [q])]
        loss = sum(p.float().sum() for p in parts if p is not None and p.is_floating_point())
        if loss.requires_grad:
            loss.backward()
        if CUDA:
            torch.cuda.synchronize()
        worked += 1
        on_gpu += x.is_cuda
    except (ValueError, TypeError, RuntimeError, NotImplementedError, MemoryError) as error:
        if not str(error):
            raise AssertionError(f"call {i} raised {error!r} without a word")
        raised += 1
if CUDA:
    torch.cuda.synchronize()
print(worked, raised, on_gpu)
"""


def test_random_calls_work_or_raise():
    result = subprocess.run([sys.executable, "-X", "faulthandler", "-c", RANDOM, str(CALLS), "11"], capture_output=True,
                            text=True, cwd=HERE.parent)
    assert result.returncode == 0, result.stderr[-3000:]
    worked, raised, on_gpu = map(int, result.stdout.split())
    print(f"{worked} calls worked ({on_gpu} on a GPU), {raised} raised")
    assert worked + raised == CALLS and worked > CALLS // 5 and raised > CALLS // 20


def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="there is no /proc to look at")
def test_calls_leak_nothing():
    module, x = W2TransformerBlock(W2Config()), torch.randn(2, 9, 24, requires_grad=True)
    optimizer = AdamWSPAM(module.parameters())

    def once():
        module(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(200):
        once()
    before = resident()
    for _ in range(REPEATS):
        once()
    assert resident() - before < 8 << 20


def test_shapes_that_come_and_go_leak_nothing():
    """More shapes than are kept."""
    from weft import _blocks
    module = SwiGLU(8, 8)
    with torch.no_grad():
        for t in range(1, _blocks.BLOCKS_KEPT + 40):
            module(torch.zeros(1, t, 8))
    assert len(_blocks._blocks) <= _blocks.BLOCKS_KEPT
    assert module(torch.zeros(1, 1, 8)).shape == (1, 1, 8)


def test_threads_share_a_module_and_replicas_of_it():
    torch.manual_seed(0)
    module, x = W2TransformerBlock(W2Config()), torch.randn(2, 9, 24)
    replicas = [module, module, copy.deepcopy(module), copy.deepcopy(module)]
    mask = torch.ones(9, 9, dtype=torch.bool).tril()
    want = {False: module(x), True: module(x, attention_mask=mask)}
    wrong = []

    def work(number):
        for i in range(20):
            causal = bool((i + number) % 2)
            got = replicas[number](x, attention_mask=mask if causal else None)
            got.sum().backward()
            if not torch.equal(got, want[causal]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def replica_of(module, shift):
    """As torch.nn.parallel.replicate makes one, whose own form needs several GPUs: modules copied without their
    parameters, and plain tensors with their history in place of those."""
    copies = {m: m._replicate_for_data_parallel() for m in module.modules()}
    for m, twin in copies.items():
        for name, child in m._modules.items():
            twin._modules[name] = copies[child]
        for name, p in m._parameters.items():
            setattr(twin, name, p * 1.0 + shift)
    return copies[module]


def test_replicas_as_dataparallel_makes_them():
    torch.manual_seed(0)
    for module in (W2TransformerBlock(W2Config()), WsFFN(Config(d_model=24, d_ffn=36, n_head=3)),
                   MLAttention(24, 3, latent_dim=4)):
        def first(out):
            return out[0] if isinstance(out, tuple) else out
        x = torch.randn(2, 9, 24)
        want = torch.autograd.grad(first(module(x)).sum(), list(module.parameters()), allow_unused=True)
        same, moved = replica_of(module, 0.0), replica_of(module, 0.05)
        assert not list(same.parameters())
        assert torch.equal(first(same(x)), first(module(x)))
        assert not torch.equal(first(moved(x)), first(module(x)))  # its own tensors are read, not the original's
        got = torch.autograd.grad(first(same(x)).sum(), list(module.parameters()), allow_unused=True)
        assert all(a is None and b is None or torch.equal(a, b) for a, b in zip(got, want))


def test_fake_tensors_have_shapes_and_types():
    from torch._subclasses.fake_tensor import FakeTensorMode
    with FakeTensorMode():
        module, x = W2TransformerBlock(W2Config()), torch.randn(2, 9, 24, requires_grad=True)
        y = module(x)
        grads = torch.autograd.grad(y.sum(), [x, *module.parameters()])
    assert type(y).__name__ == "FakeTensor" and y.shape == (2, 9, 24) and y.dtype == torch.float32
    assert [g.shape for g in grads] == [x.shape, *[p.shape for p in module.parameters()]]


def test_modules_are_made_where_new_tensors_are_put():
    with torch.device("meta"):
        module = W2TransformerBlock(W2Config())
        model = LanguageModel(PRESET="w2", N_LAYER=1, N_EMBD=24, N_HEAD=3, VOCAB_SIZE=50, CONTEXT=12)
    assert {p.device.type for p in (*module.parameters(), *model.parameters())} == {"meta"}
    filled = W2TransformerBlock(W2Config())
    module.to_empty(device="cpu").load_state_dict(filled.state_dict())
    x = torch.randn(2, 9, 24)
    assert torch.equal(module(x), filled(x))


@pytest.mark.parametrize("train", (False, True))
def test_the_operators_pass_pytorchs_own_checks(train):
    """torch.library.opcheck: schema, autograd, fake tensors. Its tracing compares all bytes, and what is saved has gaps
    whose bytes are anything; test_compiled_equals_eager has that."""
    checks = "test_schema", "test_autograd_registration", "test_faketensor"
    from weft import _blocks
    module = WsFFN(Config(d_model=8, d_ffn=8, n_head=2)).core
    text, weights = module._text(torch.float32), [w.detach().clone() for w in module.weights()]
    x = torch.randn(2, 3, 8, requires_grad=train)
    for w in weights:
        w.requires_grad_(train)
    purpose = _blocks.GRADIENT * train + _blocks.TRAIN * train
    torch.library.opcheck(torch.ops.weft.part.default, ([x], weights, "ffn", text, True, purpose, None), test_utils=checks)
    if not train:
        return
    with torch.no_grad():
        *outputs, saved = torch.ops.weft.part([x], weights, "ffn", text, True, purpose, None)
        grads = [torch.randn_like(o) for o in outputs]
        x, weights = x.detach(), [w.detach() for w in weights]
        torch.library.opcheck(torch.ops.weft.part_back.default,
                              (grads, [x], weights, outputs, saved, "ffn", text, True, purpose, None), test_utils=checks)


def test_other_threads_run_during_a_call():
    """The interpreter's lock is released: a call that takes long does not stop a thread that counts."""
    module, x = SwiGLU(512, 2048).double(), torch.randn(1, 256, 512, dtype=torch.float64)
    begun, done, times = threading.Event(), threading.Event(), []

    def call():
        with torch.no_grad():
            module(x)  # planned, and its pages are there
            begun.set()
            times.append(time.perf_counter())
            module(x)
            times.append(time.perf_counter())
            done.set()

    thread = threading.Thread(target=call)
    thread.start()
    begun.wait()
    ticks = []
    while not done.is_set():
        ticks.append(time.perf_counter())
        time.sleep(1e-4)
    thread.join()
    begin, end = times
    third = (end - begin) / 3
    assert any(begin + third < t < end - third for t in ticks), (begin, end, len(ticks))


def test_pytorchs_own_products_end():
    """PyTorch's NVPL BLAS loops for ever where a virtual machine hides a Neoverse V1's SVE."""
    code = "import torch, weft.torch; x = torch.ones(64, 32, dtype=torch.float64); print(float((x @ x.T).sum()))"
    environment = {k: v for k, v in os.environ.items() if k != "NVPL_BLAS_DEBUG_CPU_TYPE"}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE.parent, env=environment,
                            timeout=120)
    assert result.stdout == "131072.0\n", result.stderr


@pytest.mark.parametrize("machine, features, chosen", [("aarch64", 0, "1"), ("aarch64", _nvpl.HWCAP_SVE, None), ("x86_64", 0, None)])
def test_kernels_without_sve_are_chosen_only_where_there_is_none(machine, features, chosen, monkeypatch):
    monkeypatch.setattr(_nvpl.platform, "system", lambda: "Linux")
    monkeypatch.setattr(_nvpl.platform, "machine", lambda: machine)
    monkeypatch.setattr(_nvpl, "capabilities", lambda: features)
    for given in None, "7":
        environment = {} if given is None else {"NVPL_BLAS_DEBUG_CPU_TYPE": given}
        _nvpl.avoid_sve(environment)
        assert environment.get("NVPL_BLAS_DEBUG_CPU_TYPE") == (given or chosen)


def test_a_process_ends_without_a_word():
    """Blocks that are open when the interpreter ends are closed, or left, in silence."""
    code = ("import torch, sys, weft.torch; m = weft.torch.SwiGLU(8, 8); y = m(torch.zeros(1, 1, 8)); "
            "keep = [m, y]; sys.modules['__main__'].keep = keep; from weft._blocks import *")
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE.parent)
    assert result.returncode == 0 and result.stderr == "", result.stderr


def alone(code, **environment):
    """What a process of its own prints; it must end well."""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE.parent,
                            env={**os.environ, **environment})
    assert result.returncode == 0, result.stderr
    return result.stdout, result.stderr


def test_profiles_of_blocks_are_printed_at_the_end():
    code = ("import torch, weft.torch; m = weft.torch.SwiGLU(8, 8)\nfor _ in range(3): m(torch.zeros(1, 2, 8)).sum().backward()\n"
            "with torch.no_grad(): m(torch.zeros(1, 3, 8))")
    _, said = alone(code, WEFT_PROFILE="1")
    assert len(re.findall(r"^profile: 3 runs of", said, re.M)) == 1 and len(re.findall(r"^profile: 1 runs of", said, re.M)) == 1
    assert "silu_mul_back" in said
    assert alone(code, WEFT_PROFILE="")[1] == ""


@pytest.mark.parametrize("given, torchs, started", [("", 3, 2), ("4", 3, 3), ("1", 3, 0)])
def test_threads_are_as_many_as_pytorchs_unless_said(given, torchs, started):
    code = (f"import os, torch, weft.torch; torch.set_num_threads({torchs})\n"
            "n = len(os.listdir('/proc/self/task')); weft.torch.SwiGLU(8, 8)(torch.zeros(1, 2, 8)); print(len(os.listdir('/proc/self/task')) - n)")
    assert int(alone(code, WEFT_THREADS=given)[0]) == started


def test_only_wefts_own_threads_are_held():
    """WEFT_PIN=cores holds the workers; PyTorch's threads, and those started later, may run anywhere."""
    code = ("import os, threading, torch, weft.torch\n"
            "every, before = os.sched_getaffinity(0), set(os.listdir('/proc/self/task'))\n"
            "weft.torch.SwiGLU(8, 8)(torch.zeros(1, 2, 8)); later = []\n"
            "own = [t for t in set(os.listdir('/proc/self/task')) - before if os.sched_getaffinity(int(t)) != every]\n"
            "t = threading.Thread(target=lambda: later.append(os.sched_getaffinity(0))); t.start(); t.join()\n"
            "print(len(own), os.sched_getaffinity(0) == every == later[0], *(os.sched_getaffinity(int(t)) == every for t in before))")
    processors = len(os.sched_getaffinity(0))
    held, *free = alone(code, WEFT_PIN="cores", WEFT_THREADS=str(processors))[0].split()
    assert free and set(free) == {"True"}
    assert int(held) <= processors - 1
    siblings = pathlib.Path("/sys/devices/system/cpu/cpu0/topology/thread_siblings_list")
    if siblings.exists() and siblings.read_text().strip().isdigit() and processors > 1:  # no two on a core
        assert int(held) == processors - 1


def test_a_wrong_number_of_threads_is_told():
    code = "import torch, weft.torch\ntry: weft.torch.SwiGLU(8, 8)(torch.zeros(1, 2, 8))\nexcept ValueError as e: print(e)"
    assert "WEFT_THREADS" in alone(code, WEFT_THREADS="two")[0]


def test_a_thread_keeps_its_workspace(monkeypatch):
    monkeypatch.setattr(_memory, "_of_thread", threading.local())
    m, x = SwiGLU(64, 128), torch.randn(2, 40, 64, requires_grad=True)
    run = lambda: torch.autograd.grad(m(x).sum(), [x, *m.parameters()])
    want, kept, others = run(), _memory._of_thread.workspace, []
    with torch.inference_mode():
        m(x)
    got = run()
    assert _memory._of_thread.workspace is kept and all(torch.equal(a, b) for a, b in zip(want, got))
    other = threading.Thread(target=lambda: others.extend([run(), _memory._of_thread.workspace]))
    other.start()
    other.join()
    assert others[1][1] != kept[1] and all(torch.equal(a, b) for a, b in zip(want, others[0]))
    monkeypatch.setattr(_memory, "_of_thread", threading.local())
    monkeypatch.setattr(_memory, "WORKSPACE_KEPT", 100)
    assert all(torch.equal(a, b) for a, b in zip(want, run())) and not hasattr(_memory._of_thread, "workspace")


def test_what_was_saved_is_used_again_when_it_is_free(monkeypatch):
    spare = _memory._Spare()
    monkeypatch.setattr(_memory, "_spare", spare)
    one, at = _memory.saved(3 << 20)
    other = _memory.saved(3 << 20)[1]
    view = one[5:9]
    del one
    assert at != other and at % 64 == 0 and len(spare.pieces) == 1  # the other's tensor is gone, the view keeps this one
    del view
    assert len(spare.pieces) == 2
    assert _memory.saved(2 << 20)[1] not in (at, other) and {_memory.saved(3 << 20)[1] for _ in range(2)} <= {at, other}
    monkeypatch.setattr(_memory, "KEPT", 4 << 20)
    del_all = [_memory.saved(3 << 20) for _ in range(3)]
    del del_all
    assert len(spare.pieces) == 1


def test_gradients_from_memory_used_again(monkeypatch):
    """Graphs that live at the same time, are kept for a second pass, or end unused."""
    monkeypatch.setattr(_memory, "LEAST", 1)
    m, xs = SwiGLU(24, 40), [torch.randn(2, 9, 24, requires_grad=True) for _ in range(4)]
    want = [torch.autograd.grad(m(x).sum(), x)[0] for x in xs]
    for _ in range(3):
        graphs = [m(x).sum() for x in xs]
        m(xs[0])
        for keep in True, False:
            for x, y, w in zip(xs, graphs, want):
                assert torch.equal(torch.autograd.grad(y, x, retain_graph=keep)[0], w)


def test_gradients_are_tensors_like_others(monkeypatch):
    """Kept, added to, copied and stepped with: their memory is nobody else's while they are there."""
    monkeypatch.setattr(_memory, "LEAST", 1)
    m, x = SwiGLU(24, 40), torch.randn(2, 9, 24)
    weights, held = list(m.parameters()), []
    for i in range(3):
        m.zero_grad()
        m(x * (i + 1)).sum().backward()
        held.append(([w.grad for w in weights], [w.grad.clone() for w in weights]))
    assert all(torch.equal(a, b) for one, other in held for a, b in zip(one, other))
    once = [w.grad.clone() for w in weights]
    m(x * 3).sum().backward()
    assert all(torch.equal(w.grad, 2 * a) for w, a in zip(weights, once))
    stored = io.BytesIO()
    torch.save([w.grad for w in weights], stored)
    stored.seek(0)
    for some in torch.load(stored), copy.deepcopy([w.grad for w in weights]):
        assert all(torch.equal(w.grad, a) for w, a in zip(weights, some))
    before = [w.detach().clone() for w in weights]
    torch.optim.SGD(weights, lr=0.5).step()
    assert all(torch.allclose(w, b - 0.5 * w.grad) for w, b in zip(weights, before))
    assert not any(w.grad._is_view() or w.grad.data_ptr() % 64 for w in weights)


def test_a_process_with_an_open_graph_ends_without_a_word():
    code = "import torch, weft.torch; m = weft.torch.SwiGLU(256, 1024); y = m(torch.randn(1, 512, 256)); z = [y, y.sum()]"
    assert alone(code) == ("", "")


def test_exported_models_compute_the_same():
    torch.manual_seed(0)
    for module, x in ((W2TransformerBlock(W2Config()).eval(), torch.randn(2, 9, 24)),
                      (LanguageModel(PRESET="w2", N_LAYER=2, N_EMBD=24, N_HEAD=3, VOCAB_SIZE=50, CONTEXT=12),
                       torch.randint(50, (2, 9)))):
        program = torch.export.export(module, (x,))
        assert torch.allclose(program.module()(x), module(x), atol=1e-6)
        file = io.BytesIO()
        torch.export.save(program, file)
        file.seek(0)
        assert torch.allclose(torch.export.load(file).module()(x), module(x), atol=1e-6)


def test_gradients_are_not_differentiated_twice():
    """An error, also where the gradient of the output needs none, x is a view, and a missing path would count as 0."""
    module = SwiGLU(8, 8)
    for make in (lambda: torch.randn(1, 3, 8), lambda: torch.randn(1, 8, 3).transpose(1, 2)):
        x = make().requires_grad_()
        want = torch.autograd.grad(module(x).sum(), x)[0]
        grad, = torch.autograd.grad(module(x).sum(), x, create_graph=True)
        assert torch.equal(grad, want)
        with pytest.raises(RuntimeError, match="second derivatives"):
            grad.sum().backward()
        for f in (lambda a: module(a).sum(), lambda a: module(a).pow(2).sum()):
            with pytest.raises(RuntimeError, match="second derivatives"):
                torch.autograd.functional.hessian(f, make())


def test_derivatives_by_other_ways_are_refused():
    module, x, v = SwiGLU(8, 8), torch.randn(1, 3, 8), torch.randn(1, 3, 8)
    for transform in (lambda: torch.func.jvp(module, (x,), (v,)), lambda: torch.func.grad(lambda a: module(a).sum())(x),
                      lambda: torch.vmap(module)(torch.stack((x, v)))):
        with pytest.raises(NotImplementedError, match="no forward-mode|inside torch.func"):
            transform()
    for around in torch.enable_grad, torch.no_grad:
        with around(), torch.autograd.forward_ad.dual_level():
            with pytest.raises(NotImplementedError, match="forward-mode"):
                module(torch.autograd.forward_ad.make_dual(x, v))
            assert module(x).shape == x.shape


@pytest.mark.filterwarnings("ignore")
def test_traced_by_torch_jit_computes_the_same():
    module, x = W2TransformerBlock(W2Config()), torch.randn(2, 9, 24)
    with torch.no_grad():
        traced, other = torch.jit.trace(module, (x,)), torch.randn(2, 9, 24)
        assert torch.equal(traced(other), module(other))


def test_forked_processes_compute_on():
    """As a DataLoader's workers do: the threads of the first process are not there."""
    code = ("import os, signal, torch, weft.torch; m = weft.torch.SwiGLU(64, 640); x = torch.randn(2, 300, 64, requires_grad=True); held = m(x).sum()\n"
            "run = lambda: torch.autograd.grad(m(x).sum(), x)[0]\nwant = run()\npids = []\n"
            "for _ in range(3):\n pids.append(os.fork())\n if not pids[-1]: signal.alarm(600); os._exit(0 if torch.equal(run(), want) and torch.equal(torch.autograd.grad(held, x)[0], want) else 1)\n"
            "print([os.waitpid(p, 0)[1] for p in pids], torch.equal(run(), want), torch.equal(torch.autograd.grad(held, x)[0], want))")
    assert alone(code, WEFT_THREADS="3")[0].strip() == "[0, 0, 0] True True"


def test_checkpointed_layers_compute_the_same():
    torch.manual_seed(0)
    module, x = W2TransformerBlock(W2Config()), torch.randn(2, 9, 24, requires_grad=True)
    want = torch.autograd.grad(module(x).sum(), x)[0]
    y = torch.utils.checkpoint.checkpoint(module, x, use_reentrant=False)
    assert torch.equal(torch.autograd.grad(y.sum(), x)[0], want)


def test_the_package_is_written_for_python_3_9():
    """Its syntax; running it there is the next test's."""
    files = [path for folder in ("weft", "WsFFN", "w2attn") for path in (HERE.parent / folder).rglob("*.py")]
    assert len(files) > 20
    for path in [*files, HERE.parent / "setup.py"]:
        ast.parse(path.read_text(), str(path), feature_version=(3, 9))


def test_installing_builds_the_library_or_says_why_not(tmp_path):
    """setup.py in trees of its own, whose Makefile stands in for ours: what it found is in the version."""
    pytest.importorskip("setuptools", reason="there is no setuptools here; pip brings its own")
    import weft

    def version(tree, makefile, **environment):
        (tree / "python").mkdir(parents=True)
        shutil.copy(HERE.parent / "setup.py", tree / "python")
        if makefile is not None:
            (tree / "include" / "weft").mkdir(parents=True)
            shutil.copy(HERE.parent.parent / "include" / "weft" / "weft.h", tree / "include" / "weft")
            (tree / "Makefile").write_text(makefile)
        environment = {**{k: v for k, v in os.environ.items() if k != "WEFT_LIBRARY"}, **environment}
        return subprocess.run([sys.executable, "setup.py", "--version"], capture_output=True, text=True, cwd=tree / "python",
                              env=environment)

    built = version(tmp_path / "a", f"build:\n\tmkdir -p build && cp '{weft.library_path}' build/libweft.so\n")
    assert re.search(r"^0\.1\.0\+(cpu|cuda)$", built.stdout, re.M), built.stderr[-500:]
    assert (tmp_path / "a" / "build" / "libweft.so").exists()
    failed = version(tmp_path / "b", "build:\n\t@echo no compiler here; exit 2\n")
    assert failed.returncode and "cannot be built" in failed.stderr and "no compiler here" in failed.stderr
    alone = version(tmp_path / "c", None)
    assert alone.returncode and "no source tree around this folder" in alone.stderr
    wrong = version(tmp_path / "d", "build:\n", WEFT_LIBRARY="/nowhere/libweft.so")
    assert wrong.returncode and "there is no such file" in wrong.stderr


# WEFT_PYTHONS names further interpreters, separated by colons.
PYTHONS = [name for name in ("python3.9", "python3.10", "python3.11", "python3.12", "python3.13",
                             *os.environ.get("WEFT_PYTHONS", "").split(":")) if shutil.which(name)]


@pytest.mark.skipif(not LONG, reason="WEFT_TEST_LONG=1 builds a wheel and installs it")
@pytest.mark.parametrize("python", PYTHONS)
def test_the_wheel_installs_into_a_clean_environment(python, tmp_path):
    source = tmp_path / "python"
    shutil.copytree(HERE.parent, source, ignore=shutil.ignore_patterns("build", "*.egg-info", "_lib", "__pycache__"))
    import weft
    made = subprocess.run([python, "-m", "venv", "--without-pip", tmp_path / "venv"], capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"{python} makes no virtual environment: {made.stderr.strip()[-200:]}")
    own = tmp_path / "venv" / "bin" / "python"
    environment = {**os.environ, "WEFT_LIBRARY": weft.library_path}
    built = subprocess.run([sys.executable, "-m", "pip", "--python", own, "install", source], capture_output=True, text=True,
                           env=environment)
    if "Could not find a version" in built.stderr or "Temporary failure" in built.stderr or "no such option" in built.stderr:
        pytest.skip("pip cannot fetch setuptools here, or is older than 22.3")
    assert built.returncode == 0, built.stderr[-2000:]
    assert re.search(r"Successfully installed weft-[0-9.]+\+(cpu|cuda)$", built.stdout.strip()), built.stdout[-500:]
    environment.pop("WEFT_LIBRARY")
    environment.pop("PYTHONPATH", None)
    said = subprocess.run([own, "-c", "import weft; print(weft.library_path); print(weft.plan()['parameters'])"],
                          capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert said.stdout.split()[1] == "124475904" and "site-packages" in said.stdout, said.stderr
    said = subprocess.run([own, "-m", "weft"], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert re.fullmatch(r"weft [0-9.]+: cpu.*; .*cuda.*; .*libweft.so\n", said.stdout), said.stdout + said.stderr
