"""The package under what hypothesis draws, in a process of its own. WEFT_TEST_LONG=1: 5,000 examples of each kind."""
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = 5000 if os.environ.get("WEFT_TEST_LONG") else 60


def test_random_state_shapes_and_types_give_right_numbers_or_raise():
    pytest.importorskip("hypothesis", reason="hypothesis cannot be imported: pip install hypothesis")
    result = subprocess.run([sys.executable, "-X", "faulthandler", HERE / "random_calls.py", str(EXAMPLES)], capture_output=True,
                            text=True, cwd=HERE.parent)
    assert result.returncode == 0, result.stderr[-4000:]
    print(result.stdout)
    counts = {tuple(line.split()[:2]): int(line.split()[2]) for line in result.stdout.splitlines()}
    for what in "load", "step", "module", "write", "tokens", "decode":  # both ways are taken
        for how in "worked", "raised":
            assert counts.get((what, how), 0) >= EXAMPLES // 12, result.stdout
