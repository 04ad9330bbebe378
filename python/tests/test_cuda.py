"""The modules on a GPU against themselves on the CPU in float64. Runs without pytest too:
python tests/test_cuda.py"""
import copy
import os
import pathlib
import subprocess
import sys
import threading

try:
    import pytest
except ImportError:
    pytest = None
import torch

if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))

import gpu
import w2attn
from weft.torch import (AdamWSPAM, Config, LanguageModel, MLAttention, Muon, ReciprocalBlock, State, SwiGLU,
                        W2Attention, W2TransformerBlock, WsFFN)

MISSING = gpu.missing()
if pytest is not None:
    pytestmark = pytest.mark.skipif(MISSING is not None, reason=str(MISSING))

B, T, E, H, F = 2, 33, 64, 4, 96


class W2Config:
    hidden_size, num_attention_heads, intermediate_size, rms_norm_eps = E, H, F, 1e-6


MODULES = {
    "w2 attention": (lambda: W2Attention(E, H), lambda m, x: m(x)),
    "w2 attention, causal": (lambda: W2Attention(E, H), lambda m, x: m(x, is_causal=True)),
    "overlap attention, causal": (lambda: W2Attention(E, H, kernel="overlap"), lambda m, x: m(x, is_causal=True)),
    "w2 block": (lambda: W2TransformerBlock(W2Config()), lambda m, x: m(x)),
    "w2 block of the repository's names": (lambda: w2attn.W2TransformerBlock(W2Config()), lambda m, x: m(x, is_causal=True)),
    "mla": (lambda: MLAttention(E, H, latent_dim=16), lambda m, x: m(x)),
    "wsffn": (lambda: WsFFN(Config(d_model=E, d_ffn=F, n_head=4)), lambda m, x: m(x)[0] + m(x)[1]),
    "swiglu": (lambda: SwiGLU(E, F), lambda m, x: m(x)),
    "reciprocal block": (lambda: ReciprocalBlock(E, H, F, latent_dim=16, cross_token=False),
                         lambda m, x: m(x, m(x)[1])[0]),
}


def close(got, want, most):
    return bool(((got.detach().double().cpu() - want).abs().max() / want.abs().max().clamp_min(1e-6)) < most)


def gradients(run, module, x, towards):
    y = run(module, x)
    return y, torch.autograd.grad(y, [x, *module.parameters()], towards, allow_unused=True)


def test_modules_equal_the_cpu_in_f64():
    for name, (make, run) in MODULES.items():
        torch.manual_seed(1)
        module = make()
        x = torch.randn(B, T, E, dtype=torch.float64, requires_grad=True)
        towards = torch.randn(B, T, E, dtype=torch.float64)
        want, wanted = gradients(run, copy.deepcopy(module).double(), x, towards)
        for dtype, most in (torch.float32, 1e-2), (torch.bfloat16, 8e-2):
            ours = copy.deepcopy(module).to("cuda", dtype)
            on = x.detach().to("cuda", dtype).requires_grad_()
            got, grads = gradients(run, ours, on, towards.to("cuda", dtype))
            assert got.dtype == dtype and close(got, want.detach(), most), (name, dtype)
            for i, (a, b) in enumerate(zip(grads, wanted)):
                if b is not None:
                    assert close(a, b, 3 * most), (name, dtype, i)


def test_autocast_and_compile():
    torch.manual_seed(2)
    module = W2TransformerBlock(W2Config()).cuda()
    x = torch.randn(B, T, E, device="cuda", requires_grad=True)
    want = module(x)
    with torch.autocast("cuda", torch.bfloat16):
        got = module(x)
    assert got.dtype == torch.bfloat16 and close(got, want.detach().double().cpu(), 8e-2)
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(x), want)


def test_work_is_on_the_current_stream():
    torch.manual_seed(3)
    module = SwiGLU(E, F).cuda()
    x = torch.randn(B, T, E, device="cuda")
    want = module(x)
    stream, late = torch.cuda.Stream(), torch.zeros_like(x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late.copy_(x)
        got = module(late)
    stream.synchronize()
    assert torch.equal(got, want)


def test_training_loops_repeat_their_calls():
    """Addresses come again at each step, and from the third on calls are replays of captured kernels: the weights end
    on the bits that they have with WEFT_CUDA_GRAPH=0, for two layers of one shape, in both types."""
    code = (
        "import sys; sys.path.insert(0, 'tests'); import torch; from test_cuda import *\n"
        "for dtype in torch.float32, torch.bfloat16:\n"
        "    torch.manual_seed(6); layers = torch.nn.ModuleList([W2TransformerBlock(W2Config()), W2TransformerBlock(W2Config())])\n"
        "    ffn = WsFFN(Config(d_model=E, d_ffn=F, n_head=4, z_proj='grouped')); layers.append(ffn); layers.to('cuda', dtype)\n"
        "    for step in range(8):\n"
        "        x = torch.randn(B, T, E, generator=torch.Generator().manual_seed(step)).to('cuda', dtype)\n"
        "        y, aux = ffn(layers[1](layers[0](x)))\n"
        "        (y.float().square().mean() + aux.float()).backward()\n"
        "        with torch.no_grad():\n"
        "            for p in layers.parameters():\n"
        "                p -= 0.05 * p.grad; p.grad = None\n"
        "    print([float(p.double().sum()).hex() for p in layers.parameters()])\n")
    said = [subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=pathlib.Path(__file__).resolve().parent.parent,
                           env={**os.environ, "WEFT_CUDA_GRAPH": graphs}) for graphs in ("0", "1")]
    assert all(r.returncode == 0 for r in said), said[0].stderr[-2000:] + said[1].stderr[-2000:]
    assert said[0].stdout == said[1].stdout and "nan" not in said[0].stdout and said[0].stdout.count("0x") > 40


def test_replays_are_on_the_current_stream():
    torch.manual_seed(3)
    module = SwiGLU(E, F).cuda()
    x = torch.randn(B, T, E, device="cuda")
    with torch.no_grad():
        want = module(x)
        late, stream = torch.zeros_like(x), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(4):
                late.zero_()
                torch.cuda._sleep(20_000_000)
                late.copy_(x)
                got = module(late)
                stream.synchronize()
                assert torch.equal(got, want)
                del got


def test_two_threads_repeat_their_calls():
    """Each with its own tensors and stream, the module shared."""
    torch.manual_seed(7)
    module = W2Attention(E, H).cuda().bfloat16().eval()
    inputs = [torch.randn(B, T, E, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    with torch.no_grad():
        want = [module(x) for x in inputs]
    torch.cuda.synchronize()
    wrong = []

    def work(number):
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                got = module(inputs[number])
                torch.cuda.current_stream().synchronize()
                if not torch.equal(got, want[number]):
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_modules_are_made_on_the_gpu():
    with torch.device("cuda"):
        module = SwiGLU(E, F)
    assert all(p.is_cuda for p in module.parameters())
    assert torch.isfinite(module(torch.randn(B, T, E, device="cuda"))).all()


def test_a_call_can_be_captured():
    torch.manual_seed(4)
    module = W2Attention(E, H).cuda().bfloat16().eval()
    x = torch.randn(B, T, E, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            module(x)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = module(x)
        x.copy_(torch.randn_like(x))
        graph.replay()
        assert torch.equal(y, module(x))


def raises(kind, word, work):
    try:
        work()
    except kind as error:
        assert word in str(error), str(error)
    else:
        raise AssertionError(f"{kind.__name__} was not raised")


def test_wrong_types_and_devices_are_told():
    module = SwiGLU(E, F).cuda()
    raises(TypeError, "float64 on the CPU only", lambda: copy.deepcopy(module).double()(torch.randn(B, T, E, device="cuda", dtype=torch.float64)))
    raises(ValueError, "move them to one device", lambda: module(torch.randn(B, T, E)))
    raises(TypeError, "float32", lambda: module(torch.randn(B, T, E, device="cuda").half()))


def test_a_model_trains_as_on_the_cpu():
    options = dict(PRESET="w2", N_LAYER=2, N_EMBD=E, N_HEAD=H, VOCAB_SIZE=64, CONTEXT=T, SEED=3)
    tokens = torch.randint(64, (B, T + 1), generator=torch.Generator().manual_seed(1))
    losses = {}
    for device in "cpu", "cuda":
        model = LanguageModel(**options).to(device)
        optimizer = AdamWSPAM(model.parameters(), lr=1e-2, clip=0.5)
        at = tokens.to(device)
        losses[device] = []
        for _ in range(8):
            optimizer.zero_grad()
            loss = model(at[:, :-1], at[:, 1:])[1]
            loss.backward()
            optimizer.step()
            losses[device].append(loss.item())
        assert optimizer.events()["clipped"] in (0, 1)
    assert losses["cuda"][-1] < losses["cuda"][0] - 0.5
    assert all(abs(a - b) < 2e-2 * a for a, b in zip(losses["cpu"], losses["cuda"])), losses


def test_one_optimizer_step_equals_the_cpu():
    torch.manual_seed(5)
    shapes = [(64, 33), (7,), (5, 4, 3)]
    start, grads = [torch.randn(s) for s in shapes], [[torch.randn(s) for s in shapes] for _ in range(4)]
    for kind, most in (AdamWSPAM, 1e-6), (Muon, 2e-3):  # Muon's products are bf16 on the GPU
        ends = {}
        for device in "cpu", "cuda":
            params = [p.clone().to(device).requires_grad_() for p in start]
            optimizer = kind([{"params": params[:1]}, {"params": params[1:], "lr": 3e-3}], lr=1e-2)
            for some in grads:
                for p, g in zip(params, some):
                    p.grad = g.to(device)
                optimizer.step()
            ends[device] = [p.detach().cpu() for p in params]
        for a, b in zip(ends["cpu"], ends["cuda"]):
            assert torch.allclose(a, b, atol=most)


def test_calls_keep_no_memory():
    module = W2TransformerBlock(W2Config()).cuda()
    x = torch.randn(B, T, E, device="cuda")

    def once():
        module(x).sum().backward()
        module.zero_grad(set_to_none=True)

    for _ in range(5):
        once()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(300):
        once()
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


if __name__ == "__main__":
    if MISSING:
        print(f"skipped: {MISSING}")
        raise SystemExit(0)
    failed = 0
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            try:
                test()
                print(f"ok    {name}")
            except Exception:
                import traceback
                traceback.print_exc()
                print(f"FAIL  {name}")
                failed += 1
    print(f"{failed} failed")
    raise SystemExit(failed != 0)
