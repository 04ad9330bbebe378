"""`weft eval --suite` against the class for lm-evaluation-harness, and both against NumPy."""
import json
import os
import subprocess
import sys
import urllib.request
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("lm_eval", reason="lm-evaluation-harness is not installed")

import weft

PROGRAM = os.path.join(os.path.dirname(os.path.realpath(weft.library_path)), "weft")
QUESTIONS = [
    {"context": "The sky is", "choices": [" blue", " a long answer", " g"], "answer": 0},
    {"context": "Two and two make ", "choices": ["four", "five and more", "x", "yy"], "answer": 2},
    {"context": "A context that is much longer than the model can read at once, so it is cut. Q:", "choices": [" yes", " no"], "answer": 1},
    {"context": "na\u00efve", "choices": ["t\u00e9", "!"], "answer": 1},
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suite")
    model = weft.Model(N_LAYER=2, N_EMBD=24, N_HEAD=3, VOCAB_SIZE=256, CONTEXT=40, SEED=5)
    for name in model.names():
        model.write(name, model.read(name) * (6 if name.endswith("weight") and "ln" not in name else 1))
    model.save(folder / "m")
    (folder / "q.jsonl").write_text("\n".join(json.dumps(q) for q in QUESTIONS) + "\n\n")
    return folder


def request(*args):
    return SimpleNamespace(args=args)


def by_hand(model, context, choice):
    """Byte by byte: blanks at the context's end are the choice's."""
    kept = context.rstrip()
    whole = list((context + choice).encode())
    told = len(whole) - len(kept.encode())
    whole = whole[-41:]
    rows = model.logits(whole[:-1]).astype(np.float64)
    rows -= np.logaddexp.reduce(rows, -1)[:, None]
    return sum(rows[i - 1, whole[i]] for i in range(len(whole) - told, len(whole)))


def test_likelihoods_equal_those_by_hand(folder):
    from weft.lm_eval import Weft
    lm = Weft(model=str(folder / "m"), batch_size=3)
    pairs = [(q["context"], c) for q in QUESTIONS for c in q["choices"]]
    got = lm.loglikelihood([request(*pair) for pair in pairs], disable_tqdm=True)
    for (context, choice), (score, _) in zip(pairs, got):
        assert score == pytest.approx(by_hand(lm.model, context, choice), abs=1e-4)


def test_progress_is_shown_where_tqdm_can_be_imported(folder, monkeypatch):
    from weft.lm_eval import Weft
    lm, seen = Weft(model=str(folder / "m"), batch_size=3), []

    class Bar:
        def __init__(self, *args, total=None, disable=False, **_):
            self.disable = disable
            seen.append(total)

        def update(self, n=1):
            seen.append(n)

        def close(self):
            pass

    pairs = [request(q["context"], c) for q in QUESTIONS for c in q["choices"]]
    monkeypatch.setitem(sys.modules, "tqdm", SimpleNamespace(tqdm=Bar))
    want = lm.loglikelihood(pairs)
    assert seen[0] == len(pairs) == sum(seen[1:])
    monkeypatch.setitem(sys.modules, "tqdm", None)  # importing it fails
    assert lm.loglikelihood(pairs) == want


def test_the_command_scores_as_the_harness(folder):
    if not os.path.exists(PROGRAM):
        pytest.skip(f"{PROGRAM} is not there: run make build")
    import lm_eval
    from lm_eval.api.task import ConfigurableTask
    from lm_eval.tasks import TaskManager
    from weft.lm_eval import Weft
    config = {"task": "made_here", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(folder / "q.jsonl")}},
              "test_split": "test", "output_type": "multiple_choice", "doc_to_text": "{{context}}", "target_delimiter": "",
              "doc_to_choice": "{{choices}}", "doc_to_target": "answer",
              "metric_list": [{"metric": m, "aggregation": "mean", "higher_is_better": True} for m in ("acc", "acc_norm")]}
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    os.environ["HF_DATASETS_CACHE"] = str(folder / "cache")
    try:
        task = ConfigurableTask(config=config)
    except Exception as error:
        pytest.skip(f"the harness could not make a task of a local file: {error}")
    results = lm_eval.evaluate(Weft(model=str(folder / "m")), {"made_here": task}, bootstrap_iters=0)["results"]["made_here"]
    run = [PROGRAM, "eval", "--model", folder / "m", "--suite", folder / "q.jsonl", "--json", "--details", folder / "d.jsonl"]
    ours = json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
    assert ours["questions"] == 4
    assert ours["acc"] == pytest.approx(results["acc,none"]) and ours["acc_norm"] == pytest.approx(results["acc_norm,none"])
    model = weft.Model(folder / "m")
    for question, line in zip(QUESTIONS, (folder / "d.jsonl").read_text().splitlines()):
        row = json.loads(line)
        want = [by_hand(model, question["context"], c) for c in question["choices"]]
        assert row["loglikelihoods"] == pytest.approx(want, abs=1e-4)
        assert row["chosen"] == int(np.argmax(want)) and row["answer"] == question["answer"]
        assert row["chosen_norm"] == int(np.argmax([w / len(c) for w, c in zip(want, question["choices"])]))


def test_the_harness_over_http_scores_as_by_the_class(folder):
    """Its own request and its own reading of the answer, for texts that fit the context."""
    if not os.path.exists(PROGRAM):
        pytest.skip(f"{PROGRAM} is not there: run make build")
    completions = pytest.importorskip("lm_eval.models.openai_completions").LocalCompletionsAPI
    from weft.lm_eval import Weft
    pairs = [(q["context"], c) for q in QUESTIONS for c in q["choices"] if len(q["context"]) < 30]
    encoded = [(list(context.encode()), list(choice.encode())) for context, choice in pairs]
    want = Weft(model=str(folder / "m"))._loglikelihood_tokens(
        [(pair, *tokens) for pair, tokens in zip(pairs, encoded)], disable_tqdm=True)
    with subprocess.Popen([PROGRAM, "serve", "--model", folder / "m", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True) as server:
        try:
            line = server.stdout.readline()
            if not line:
                pytest.skip("this build cannot serve")
            where = json.loads(line)
            payload = completions._create_payload(SimpleNamespace(model=where["model"]), [a + b for a, b in encoded])
            call = urllib.request.Request("http://127.0.0.1:%d/v1/completions" % where["port"], json.dumps(payload).encode(),
                                          {"Content-Type": "application/json"})
            with urllib.request.urlopen(call, timeout=60) as answer:
                got = completions.parse_logprobs(json.load(answer), ctxlens=[len(a) for a, _ in encoded])
        finally:
            server.terminate()
    assert len(got) == len(want)
    for (score, greedy), (told, likeliest) in zip(want, got):
        assert told == pytest.approx(score, abs=1e-4) and likeliest == greedy


def test_generation_ends_where_it_is_told(folder):
    from weft.lm_eval import Weft
    lm = Weft(model=str(folder / "m"))
    whole, = lm.generate_until([request("ab", {"until": [], "max_gen_toks": 12})], disable_tqdm=True)
    assert whole == lm.model.generate("ab", max_tokens=12, temperature=0)
    stop = whole[2]
    short, = lm.generate_until([request("ab", {"until": [stop], "max_gen_toks": 12})], disable_tqdm=True)
    assert short == whole[:whole.index(stop)]
