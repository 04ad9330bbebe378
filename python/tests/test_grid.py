"""bench/grid_torch.py: what it times beside weft's modules is the same function."""
import json
import os
import subprocess
import sys

import pytest
import torch

BENCH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench")
sys.path.insert(0, BENCH)
import grid_torch  # noqa: E402
import torch_modules  # noqa: E402


@pytest.mark.parametrize("name", grid_torch.NAMES)
def test_the_plain_form_is_the_same_function(name):
    torch.manual_seed(0)
    results = []
    for module in grid_torch.make(name, (2, 9, 24, 3)):
        module = module.double()
        x = torch.randn(2, 9, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
        y, extra = torch_modules.main_output(module(x))
        (y.square().sum() + (0 if extra is None else extra)).backward()
        results.append((y.detach(), x.grad, sorted(p.grad.double().norm().item() for p in module.parameters() if p.grad is not None)))
    (y, dx, dw), (plain_y, plain_dx, plain_dw) = results
    assert torch.allclose(y, plain_y, atol=1e-7) and torch.allclose(dx, plain_dx, atol=1e-6)
    assert [d for d in dw if d > 1e-9] == pytest.approx([d for d in plain_dw if d > 1e-9], rel=1e-5)


def test_the_table_and_its_summary(tmp_path):
    done = subprocess.run([sys.executable, os.path.join(BENCH, "grid_torch.py"), "--device", "cpu", "--rows", "swiglu,mla", "--shapes",
                           "1x8x16x2,2x4x16x1", "--rounds", "1", "--budget", "0.01", "--json", tmp_path / "grid.json"],
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "grid.json").read_text())["rows"]
    assert [(r["module"], r["shape"]) for r in rows] == [(m, s) for m in ("mla attention", "swiglu") for s in ("1x8x16x2", "2x4x16x1")]
    mean = 1.0
    for r in rows:
        assert r["ratio"] == pytest.approx(r["plain_ms"] / r["weft_ms"])
        mean *= r["ratio"] ** 0.25
    worst = min(rows, key=lambda r: r["ratio"])
    assert done.stdout.splitlines()[-1] == (f"all 4 rows: geometric mean {mean:.2f}; worst: {worst['module']} {worst['shape']}, "
                                            f"{worst['ratio']:.2f}")


def test_the_call_without_python_is_the_same_call():
    module = torch_modules.Part("ffn", FFN="swiglu", N_EMBD=16, N_HEAD=1, N_FFN=16)
    x = torch.randn(1, 1, 16)
    run = torch_modules.Bare(module, x)
    run.outputs[0].zero_()
    run()
    assert torch.equal(run.outputs[0], module(x)["y"])
