"""Generation and records from Python; nothing here needs PyTorch."""
import fcntl
import io
import json
import os
import pty
import sqlite3
import struct
import subprocess
import sys
import termios

import numpy as np
import pytest

import weft

SIZES = dict(N_LAYER=2, N_EMBD=24, N_HEAD=3, VOCAB_SIZE=256, CONTEXT=32, SEED=5)


@pytest.fixture(scope="module")
def model():
    model = weft.Model(**SIZES)
    for name in model.names():  # a start is too even: every token would be likely
        model.write(name, model.read(name) * (8 if name.endswith("weight") and "ln" not in name else 1))
    return model


def greedy(model, tokens, n):
    tokens = list(tokens)
    for _ in range(n):
        tokens.append(int(model.logits(tokens)[-1].argmax()))
    return tokens[-n:]


def test_greedy_text_is_the_likeliest_token_each_time(model):
    want = greedy(model, [104, 105], 12)
    assert model.generate([104, 105], max_tokens=12, temperature=0) == want
    text = weft.generate(model, "hi", max_tokens=12, temperature=0)
    assert text == bytes(want).decode("utf-8", "replace")


def test_streaming_gives_the_same_tokens_and_their_logprobs(model):
    options = dict(max_tokens=10, temperature=0.8, top_k=20, top_p=0.95, min_p=0.01, repetition_penalty=1.1, seed=7)
    whole = model.generate([1, 2, 3], **options)
    tokens, prompt = [], [1, 2, 3]
    for token in model.generate([1, 2, 3], stream=True, **options):
        row = model.logits(prompt + tokens)[-1].astype(np.float64)
        assert token.logprob == pytest.approx(row[token.token] - np.logaddexp.reduce(row), abs=1e-4)
        tokens.append(token.token)
    assert tokens == whole and len(whole) == 10


def test_a_prompt_that_breaks_is_an_error_and_the_others_go_on():
    model = weft.Model(**SIZES, WEIGHT_TYING="n")
    want = model.generate([1, 2], max_tokens=6, temperature=0)
    table = model.read("wte.weight")
    broken = next(t for t in range(256) if t not in [1, 2] + want)
    table[broken] = float("nan")
    model.write("wte.weight", table)
    got = []
    with pytest.raises(weft.InputError, match="not numbers"):
        for token in model.generate([[broken], [1, 2]], stream=True, max_tokens=6, temperature=0):
            assert token.prompt == 1
            got.append(token.token)
    assert got == want


def test_prompts_do_not_influence_each_other(model):
    options = dict(max_tokens=8, seed=3)
    together = model.generate(["ab", "xyz", "q"], **options)
    assert together == [model.generate(p, **options) for p in ("ab", "xyz", "q")]
    samples = model.generate("ab", n=3, **options)
    assert samples[0] == together[0] and len(set(samples)) == 3


def test_an_abandoned_stream_gives_its_memory_back(model):
    for _ in range(3):
        stream = model.generate("ab", stream=True, max_tokens=30)
        next(stream)
        stream.close()


def test_options_that_are_wrong_are_told(model):
    with pytest.raises(TypeError, match="temperatur.*temperature"):
        model.generate("ab", temperatur=1)
    for wrong in dict(temperature=-1), dict(top_p=2), dict(max_tokens=0):
        with pytest.raises(weft.InputError):
            model.generate("ab", **wrong)
    with pytest.raises(weft.InputError, match="empty"):
        model.generate("")
    with pytest.raises(weft.InputError):
        model.generate([999])


def test_tokenizers_decode_what_they_encode():
    tokenizer = weft.Tokenizer("bytes")
    text = "naïve \u4f60\u597d\n"
    assert tokenizer.encode(text) == list(text.encode()) and tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("") == [] and tokenizer.decode([]) == "" and tokenizer.vocabulary == 256
    with pytest.raises(weft.InputError):
        tokenizer.decode([256])
    with pytest.raises((weft.InputError, OSError)):
        weft.Tokenizer("no-such-file.json")


@pytest.mark.parametrize("variants, variant", [("variants", "variant"), ("steps", "step")])
def test_runs_are_records(tmp_path, variants, variant):
    database = sqlite3.connect(tmp_path / "runs.db")
    database.executescript(f"""
        PRAGMA application_id = 0x77656674;
        CREATE TABLE {variants}({variant} INTEGER, name TEXT, title TEXT, parameters INTEGER, flops_per_token REAL, leaks INTEGER);
        CREATE TABLE runs(run INTEGER, {variant} INTEGER, learning_rate REAL, seed INTEGER, folder TEXT, val_loss REAL);
        CREATE TABLE metrics(run INTEGER, step INTEGER, loss REAL);
        INSERT INTO {variants} VALUES (0, 'base', 'Base', 10, 1.0, 0);
        INSERT INTO runs VALUES (1, 0, 0.1, 1, 'a', 2.5), (2, 0, 0.1, 2, 'b', 2.25);
        INSERT INTO metrics VALUES (1, 10, 3.0), (2, 10, 3.5);""")
    database.close()
    rows = weft.runs(tmp_path)
    assert [(r["name"], r["seed"], r["val_loss"]) for r in rows] == [("base", 1, 2.5), ("base", 2, 2.25)]
    assert [(r["variant"], r["step"]) for r in rows] == [(0, 0), (0, 0)]
    assert [(r["folder"], r["step"], r["loss"]) for r in weft.runs(tmp_path / "runs.db", metrics=True)] == [("a", 10, 3.0), ("b", 10, 3.5)]
    pandas = pytest.importorskip("pandas", reason="rows are dicts without pandas")
    assert list(rows.frame()["val_loss"]) == [2.5, 2.25] and isinstance(rows.frame(), pandas.DataFrame)


def test_a_trainings_steps_are_records(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 2.0}) + '\n{"step": 2, "lo')
    assert weft.runs(tmp_path) == [{"step": 1, "loss": 2.0}]
    with pytest.raises(FileNotFoundError, match="runs.db"):
        weft.runs(tmp_path / "nothing")


VARIANTS = "CREATE TABLE variants(variant, name, title, parameters, flops_per_token, leaks); INSERT INTO variants VALUES (0, 'a', '', 1, 1, 0);"


def a_database(path, script):
    path.parent.mkdir(exist_ok=True)
    database = sqlite3.connect(path)
    database.executescript(script)
    database.close()
    return path


@pytest.mark.parametrize("name", ["a?mode=rwc&x=", "a#", "50%41", "a b", os.fsdecode(b"\xff")])
def test_a_path_to_runs_is_no_address(tmp_path, name):
    """SQLite takes an address, in which these signs end the path, or stand for others."""
    a_database(tmp_path / name / "runs.db", "PRAGMA application_id = 0x77656674;" + VARIANTS
               + "CREATE TABLE runs(run, variant); INSERT INTO runs VALUES (1, 0); CREATE TABLE metrics(run, step);")
    assert [r["run"] for r in weft.runs(tmp_path / name)] == [1] == [r["run"] for r in weft.runs(os.fsencode(tmp_path / name))]
    assert os.listdir(tmp_path) == [name]


def test_what_no_study_made_is_not_read(tmp_path):
    """A view over an endless recursion, another program's database, and what is none."""
    ours, runs = "PRAGMA application_id = 0x77656674;", "CREATE TABLE runs(run, variant);"
    metrics = "CREATE TABLE metrics(run, step);"
    endless = "CREATE VIEW {}(run, variant) AS WITH RECURSIVE r(a, b) AS (SELECT 1, 0 UNION ALL SELECT a + 1, 0 FROM r) SELECT * FROM r;"
    for i, script in enumerate((ours + metrics + VARIANTS + endless.format("runs"),
                                ours + metrics + runs + endless.format("variants"),
                                runs + metrics + VARIANTS, "")):
        with pytest.raises(weft.InputError, match="not written by weft"):
            weft.runs(a_database(tmp_path / f"{i}.db", script))
    (tmp_path / "text.db").write_text("x" * 5000)
    with pytest.raises(weft.InputError, match="text.db"):
        weft.runs(tmp_path / "text.db")


def test_lines_that_are_no_records_are_left_out(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n\xff\xfe\n' + b"[" * 100000 + b'\n[1, 2]\n5\n{"step": 2}\n')
    assert weft.runs(tmp_path) == [{"step": 1}, {"step": 2}]
    (tmp_path / "metrics.jsonl").unlink()
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(weft.InputError, match="not a file"):  # and is not waited for
        weft.runs(tmp_path)


def test_a_checkpoints_name_may_be_any(tmp_path):
    folder = os.path.join(tmp_path, os.fsdecode(b"m\xff"))
    with weft.Model(N_LAYER=1, N_EMBD=16, N_HEAD=2, VOCAB_SIZE=16, LEARNING_RATE=np.float64(0.5)) as model:
        assert model.option("LEARNING_RATE") == "0.5"
        model.save(folder)
    for path in folder, os.fsencode(folder):
        with weft.Model(path) as model:
            assert model.option("N_EMBD") == "16"
            assert len(model.generate([1, 2], max_tokens=np.int64(2), temperature=np.float64(0.5))) == 2
    with open(os.path.join(folder, "config.json"), "w") as file:
        file.write("{")
    with pytest.raises(weft.InputError, match="config.json"):
        weft.Model(folder)
    with pytest.raises((weft.InputError, OSError), match="no"):
        weft.Tokenizer(folder + "/no")


def said_on_a_terminal(code, **environment):
    """What a program writes to standard error where that is a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 30, 100, 0, 0))
    env = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "WEFT_LOG": "", "PYTHONPATH": os.pathsep.join(sys.path),
           **environment}
    child = subprocess.Popen([sys.executable, "-c", code], stderr=theirs, stdout=subprocess.PIPE, env=env)
    os.close(theirs)
    said = b""
    while True:
        try:
            more = os.read(ours, 4096)
        except OSError:  # the other end is closed
            break
        if not more:
            break
        said += more
    os.close(ours)
    out = child.communicate()[0]
    assert child.returncode == 0, said
    return said.decode(), out.decode()


WITHOUT_TQDM = "sys.modules['tqdm'] = sys.modules['tqdm.auto'] = None"


def generating(first, delay, options=""):
    return (f"import sys; {first}\nimport weft; from weft import _progress; _progress.DELAY = {delay}\n"
            f"m = weft.Model(**{SIZES!r})\n"
            f"print(len(weft.generate(m, [1, 2], n=2, max_tokens=20, temperature=0{options})))")


@pytest.mark.parametrize("without", ["", WITHOUT_TQDM], ids=["tqdm", "without"])
def test_a_terminal_sees_how_far_a_long_call_is(without):
    said, out = said_on_a_terminal(generating(without, 0))
    assert "generate" in said and "/40" in said and out.strip() == "2"
    assert said.replace("\x1b[K", "").rstrip(" ").endswith("\r")  # the line is gone at the end
    if without:
        assert "generate [" in said and "tokens/s" in said and " left" in said


def test_nothing_is_shown_elsewhere():
    assert said_on_a_terminal(generating(WITHOUT_TQDM, 60))[0] == ""  # over before anyone wonders
    assert said_on_a_terminal(generating(WITHOUT_TQDM, 0, ", progress=False"))[0] == ""
    assert said_on_a_terminal(generating(WITHOUT_TQDM, 0), WEFT_LOG="warn")[0] == ""
    quiet = subprocess.run([sys.executable, "-c", generating(WITHOUT_TQDM, 0)], capture_output=True, text=True,
                           env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert quiet.returncode == 0 and quiet.stderr == ""
    wished = subprocess.run([sys.executable, "-c", generating(WITHOUT_TQDM, 0, ", progress=True")], capture_output=True,
                            text=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert "/40" in wished.stderr


def test_the_line_tells_place_rate_and_time_left():
    from weft._progress import Line
    file, now = io.StringIO(), [0.0]
    line = Line("generate", "token", 200, file, lambda: now[0])
    now[0] = 0.4
    line.update(10)
    assert file.getvalue() == ""
    now[0] = 5.0
    line.update(40)
    assert "50/200, 10.0 tokens/s, 15s left" in file.getvalue()
    assert line.text(5.0, 99) == "generate [" + "=" * 9 + ">" + " " * 30 + "] 50/200, 10.0 tokens/s, 15s left"
    assert line.text(5.0, 40) == "generate 50/200, 10.0 tokens/s, 15s left"[:40]
    assert "2m30s left" in line.text(50.0, 99) and "1h23m left" in line.text(1666.0, 99)
    line.close()
    assert file.getvalue().endswith("\r\033[K")
