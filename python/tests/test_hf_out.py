"""Models that leave weft with a class of their own: modeling_weft.py against the engine."""
import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

import weft

pytest.importorskip("transformers")
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CONFIGS = sorted((ROOT / "tests" / "model" / "configs").glob("*.config"))
PROGRAM = os.path.join(os.path.dirname(os.path.realpath(weft.library_path)), "weft")


def load(name):
    """A file of src/convert as a module of a package, as transformers loads it."""
    spec = importlib.util.spec_from_file_location(f"weft_hf.{name}", ROOT / "src" / "convert" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


sys.modules["weft_hf"] = type(sys)("weft_hf")
sys.modules["weft_hf"].__path__ = []
configuration, modeling = load("configuration_weft"), load("modeling_weft")


def options_of(path):
    options = {}
    for line in path.read_text().splitlines():
        given = re.fullmatch(r"CONFIG_(\w+)=(.*)", line) or re.fullmatch(r"# CONFIG_(\w+) is not set()", line)
        if given and given[1] != "BATCH_SIZE":
            options[given[1]] = given[2].strip('"') or "n"
    return options


def drawn(model, size=0.4):
    """Random weights, none of them at its start. `size` large: mechanisms show."""
    dice = np.random.default_rng(3)
    for name in model.names():
        near = 1.0 if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight", "_norm.weight")) else 0.0
        model.write(name, near + size * dice.standard_normal(model.shape(name)))
    return model


def class_of(model):
    """The engine's model as the class computes it, in float64."""
    def value(key, default):
        text = model.option(key.upper())
        return text == "y" if isinstance(default, bool) else type(default)(text)
    config = configuration.WeftConfig(weft={key: value(key, default) for key, default in configuration.OPTIONS.items()})
    made = modeling.WeftForCausalLM(config).double()
    made.load_state_dict({name: torch.from_numpy(np.array(model.read(name))) for name in model.names()})
    return made


def test_the_class_knows_every_option_of_a_model():
    """Its defaults are the table's; the groups of a model stand before that of its training."""
    table = (ROOT / "Kconfig").read_text().split('menu "Training"')[0]
    found = re.findall(r'^config (\w+)\n\t(\w+).*\n\tdefault (.*)$', table, re.M)
    assert [key.lower() for key, _, _ in found] == sorted(configuration.OPTIONS, key=[key.lower() for key, _, _ in found].index)
    for key, kind, text in found:
        default = configuration.OPTIONS[key.lower()]
        assert (text == "y" if kind == "bool" else type(default)(text.strip('"'))) == default, key


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_the_class_computes_the_engines_logits(path):
    options = options_of(path)
    with drawn(weft.Model(**{**options, "DTYPE": "f64", "DROPOUT": 0})) as model:
        made = class_of(model)
        context, vocab = int(model.option("CONTEXT")), int(model.option("VOCAB_SIZE"))
        tokens = np.random.default_rng(5).integers(0, vocab, (2, min(context, 9)))
        want = torch.from_numpy(model.logits(tokens))
        ids = torch.from_numpy(tokens)
        with torch.no_grad():
            assert torch.allclose(made.eval()(ids).logits, want, rtol=1e-9, atol=1e-9)
            if made.can_keep() and ids.shape[1] > 3:  # the same, some tokens at a time
                first = made(ids[:, :2], use_cache=True)
                rest = [made(part, past_key_values=first.past_key_values).logits for part in ids[:, 2:].split((1, ids.shape[1] - 3), 1)]
                assert torch.allclose(torch.cat((first.logits, *rest), 1), want, rtol=1e-9, atol=1e-9)
            targets = np.full_like(tokens, -1)
            targets[:, :-1] = tokens[:, 1:]
            if ids.shape[1] > 1 and model.option("WSFFN_POSITIVE") != "dropout":  # whose masks are torch's own
                loss = made.train()(ids, labels=ids).loss.item()
                assert loss == pytest.approx(float(model.loss(tokens, targets, train=True)["loss"]), rel=1e-9)


PADDED = ("step-3", "mix-mla-w2-qk-norm", "gate-cummean", "cross-rms-plain-max-rank3", "dot-alibi-h3", "dot-relative", "dot-learned",
          "mix-w2-kv-qk-norm-gate-cross", "dot-qk-norm-gqa-rope", "document-learned-restart", "gate-cummean-documents",
          "window-mla-band-gate", "share-mla-deepseek-gla")


@pytest.mark.parametrize("name", PADDED)
def test_padding_on_either_side_changes_nothing(name):
    with drawn(weft.Model(**{**options_of(ROOT / "tests" / "model" / "configs" / f"{name}.config"), "DTYPE": "f64"})) as model:
        made, context, vocab = class_of(model).eval(), int(model.option("CONTEXT")), int(model.option("VOCAB_SIZE"))
    ids = torch.from_numpy(np.random.default_rng(6).integers(0, vocab, (2, context)))
    length = context - 2
    with torch.no_grad():
        want = made(ids[:, :length]).logits
        mask = torch.ones_like(ids)
        mask[:, length:] = 0
        assert torch.allclose(made(ids, attention_mask=mask).logits[:, :length], want, atol=1e-9)
        turned = torch.cat((ids[:, length:], ids[:, :length]), 1)
        assert torch.allclose(made(turned, attention_mask=mask.flip(1)).logits[:, 2:], want, atol=1e-9)


SCRIPT = """
import sys, json, torch, transformers, numpy as np, weft
from transformers import AutoModelForCausalLM
for ours, theirs, back in zip(*[iter(sys.argv[1:])] * 3):
    model = AutoModelForCausalLM.from_pretrained(theirs, trust_remote_code=True)
    assert type(model).__name__ == "WeftForCausalLM" and not model.training and model.dtype == torch.float32
    tokens = torch.arange(2 * 12).view(2, 12) * 5 % 50
    with weft.Model(ours) as engine, torch.no_grad():
        assert np.abs(model(tokens).logits.numpy() - engine.logits(tokens.numpy())).max() < 1e-5
        read = []
        watch = model.wte.register_forward_hook(lambda module, given, made: read.append(given[0].shape[1]))
        greedy = model.generate(tokens[:1, 1:5], max_new_tokens=8, do_sample=False, pad_token_id=0)[0, 4:].tolist()
        want = engine.generate(tokens[0, 1:5].tolist(), max_tokens=8, temperature=0)
        watch.remove()
        assert greedy == want and read == [4] + [1] * 7, (greedy, want, read)
        for beams in (1, 3):  # rows of unequal length, with the cache and without
            rows, mask = tokens[:, 1:6].clone(), torch.ones(2, 5, dtype=torch.long)
            mask[0, :2] = 0
            given = dict(attention_mask=mask, max_new_tokens=6, do_sample=False, num_beams=beams, pad_token_id=0)
            assert torch.equal(model.generate(rows, **given), model.generate(rows, use_cache=False, **given))
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(tokens, labels=tokens).loss.backward()
    optimizer.step()
    model.save_pretrained(back)
    print(json.dumps({name: float(value.double().sum()) for name, value in model.state_dict().items()}))
"""
KINDS = {"w2": {}, "ra-mla": dict(RA_MLA_LATENT_DIM=12, RA_MLA_MLP_TYING_MODE="per_head_scalar"),
         "wsffn": dict(WSFFN_N_HEAD=4, KV_SHARE=2, WINDOW=5, DOCUMENT_MASK=True, DOCUMENT_TOKEN=10)}


def convert(*given):
    subprocess.run([PROGRAM, "convert", *given], check=True, capture_output=True)


def test_a_model_goes_out_and_comes_back(tmp_path):
    """Of every kind, with its greedy text, a step of training by others, and back."""
    if not os.path.exists(PROGRAM):
        pytest.skip(f"{PROGRAM} is not there: run make build")
    folders = {kind: [tmp_path / f"{kind}.{name}" for name in ("ours", "theirs", "back")] for kind in KINDS}
    for kind, (ours, theirs, _) in folders.items():
        with weft.Model(PRESET=kind, N_LAYER=2, N_EMBD=24, N_HEAD=3, VOCAB_SIZE=50, CONTEXT=16, SEED=1, **KINDS[kind]) as model:
            drawn(model, 0.1).save(ours)
        convert("--model", ours, "--to-hf", "--out", theirs)
        convert("--model", ours, "--to-hf", "--out", theirs, "--force")
    env = {**os.environ, "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "python")}
    done = subprocess.run([sys.executable, "-c", SCRIPT, *sum(folders.values(), [])], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    for (_, _, back), line in zip(folders.values(), done.stdout.splitlines()):
        trained = json.loads(line)
        convert("--model", back, "--out", tmp_path / "again", "--force")
        with weft.Model(tmp_path / "again") as model:
            assert set(trained) == set(model.names())
            for name, value in trained.items():
                assert float(np.array(model.read(name), dtype=np.float64).sum()) == pytest.approx(value, abs=1e-9), name
