"""The code of docs/guide/pytorch.md runs."""
import pathlib
import re

PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "guide" / "pytorch.md"


def test_the_guides_code_runs():
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", PAGE.read_text(), re.M)
    code = "\n".join(line[4:] for block in blocks if "pip install" not in block for line in block.splitlines())
    assert code.count("Part(") == 1 and "W2Attention(512" in code
    scope = {}
    exec(code, scope)
    assert scope["y"].shape == scope["x"].shape
