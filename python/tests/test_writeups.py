"""The write-ups' own code, unchanged. Its texts are not part of this repository: WEFT_WRITEUPS names their folder."""
import os
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
FOLDER = pathlib.Path(os.environ.get("WEFT_WRITEUPS", HERE.parent.parent.parent / "shared" / "seeds"))


def run(code):
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=HERE.parent)
    assert result.returncode == 0, result.stderr
    return result.stdout


def snippet(name, word):
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{path.name} is not there; name its folder with WEFT_WRITEUPS")
    return next(c for c in re.findall(r"```python\n(.*?)```", path.read_text(), re.S) if word in c)


def test_w2_quick_start():
    assert "Output Shape: torch.Size([2, 64, 512])" in run(snippet("w2attn.md", "W2TransformerBlock(config)"))


def test_wsffn_demonstration():
    out = run(snippet("wsffn.md", "from WsFFN import"))
    assert out.rstrip().endswith("Output: Logits tensor of shape torch.Size([2, 128, 32000])")
    assert len([line for line in out.splitlines() if line.strip()]) == 5


@pytest.mark.parametrize("command", [["-m", "w2attn.verify"], [str(HERE / "verify.py")]])
def test_verification_prints_four_passed(command):
    result = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=HERE.parent)
    lines = result.stdout.splitlines()
    assert lines[0] == "Running Verification Tests..." and [line[-6:] for line in lines[1:]] == ["PASSED"] * 4
