"""Generation and records from Python; nothing here needs PyTorch."""
import json
import sqlite3

import numpy as np
import pytest

import weft

SIZES = dict(N_LAYER=2, N_EMBD=24, N_HEAD=3, VOCAB_SIZE=256, GPT2_BLOCK_SIZE=32, SEED=5)


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


def test_runs_are_records(tmp_path):
    database = sqlite3.connect(tmp_path / "runs.db")
    database.executescript("""
        CREATE TABLE steps(step INTEGER, name TEXT, title TEXT, parameters INTEGER, flops_per_token REAL, leaks INTEGER);
        CREATE TABLE runs(run INTEGER, step INTEGER, learning_rate REAL, seed INTEGER, folder TEXT, val_loss REAL);
        CREATE TABLE metrics(run INTEGER, step INTEGER, loss REAL);
        INSERT INTO steps VALUES (0, 'base', 'Base', 10, 1.0, 0);
        INSERT INTO runs VALUES (1, 0, 0.1, 1, 'a', 2.5), (2, 0, 0.1, 2, 'b', 2.25);
        INSERT INTO metrics VALUES (1, 10, 3.0), (2, 10, 3.5);""")
    database.close()
    rows = weft.runs(tmp_path)
    assert [(r["name"], r["seed"], r["val_loss"]) for r in rows] == [("base", 1, 2.5), ("base", 2, 2.25)]
    assert [(r["folder"], r["step"], r["loss"]) for r in weft.runs(tmp_path / "runs.db", metrics=True)] == [("a", 10, 3.0), ("b", 10, 3.5)]
    pandas = pytest.importorskip("pandas", reason="rows are dicts without pandas")
    assert list(rows.frame()["val_loss"]) == [2.5, 2.25] and isinstance(rows.frame(), pandas.DataFrame)


def test_a_trainings_steps_are_records(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss": 2.0}) + '\n{"step": 2, "lo')
    assert weft.runs(tmp_path) == [{"step": 1, "loss": 2.0}]
    with pytest.raises(FileNotFoundError, match="runs.db"):
        weft.runs(tmp_path / "nothing")
