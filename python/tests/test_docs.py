"""The code of docs/guide/pytorch.md runs."""
import pathlib
import re

PAGE = pathlib.Path(__file__).resolve().parent.parent.parent / "docs" / "guide" / "pytorch.md"


def test_the_guides_code_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"(?:^    .*\n|^\n(?=    ))+", PAGE.read_text(), re.M)
    code = "\n".join(line[4:] for block in blocks if not re.search("pip install|from_pretrained", block) for line in block.splitlines())
    assert all(word in code for word in ("Part(", "W2Attention(512", "weft.load", "weft.generate"))
    scope = {}
    exec(code, scope)
    assert scope["y"].shape == scope["x"].shape
