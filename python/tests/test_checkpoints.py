"""weft.load and weft.save against the engine's own model, and weft.Model against both."""
import filecmp
import json
import os
import subprocess

import numpy as np
import pytest
import torch

import weft
from weft.torch import LanguageModel

SIZES = dict(N_LAYER=3, N_EMBD=24, N_HEAD=3, VOCAB_SIZE=50, CONTEXT=12, SEED=5)
MECHANISMS = dict(ATTENTION="mla", RA_MLA_LATENT_DIM=12, RA_MLA_MLP_ATTN_GATE=True, RA_MLA_MLP_CROSS_TOKEN=True,
                  RA_MLA_MLP_LATENT_RECIP=True, WEIGHT_TYING=False)
KINDS = {
    "gpt2": {},
    "w2 and wsffn": dict(ATTENTION="w2", POSITION="rope", NORM="rmsnorm", FFN="wsffn", WSFFN_N_HEAD=4, LAMBDA_LOGITS_Z=1e-3),
    "mla with all mechanisms": MECHANISMS,
    "coupling scalars": dict(MECHANISMS, RA_MLA_MLP_TYING_MODE="per_head_scalar", RA_MLA_MLP_SPARSE_MODE="rms"),
    "learned weights, open gates": dict(MECHANISMS, RA_MLA_MLP_ALPHA_LEARNED=True, RA_MLA_MLP_GATE_OPEN=3, RA_MLA_MLP_LATENT_DETACH=True),
    "gated routes, few deviations": dict(ATTENTION="w2", W2_SIGMA_DIM=3, POSITION="rope", RA_MLA_MLP_ATTN_GATE=True,
                                         RA_MLA_MLP_CROSS_TOKEN=True, RA_MLA_MLP_ROUTE_AFTER_GATE=True),
    "post-norm": dict(POSITION="relative", NORM_PLACEMENT="post", KV_HEADS=1),
    "llama's kind": dict(POSITION="rope", ROPE_THETA=500.0, NORM="rmsnorm", NORM_EPS=1e-3, FFN="swiglu", BIAS=False,
                         ATTENTION_BIAS="qkv", KV_HEADS=1),
    "smollm3's kind": dict(POSITION="rope", NORM="rmsnorm", FFN="swiglu", FFN_BIAS=True, BIAS=False, NOPE_EVERY=2),
    "olmo 2's kind": dict(POSITION="rope", NORM="rmsnorm", NORM_PLACEMENT="reordered", FFN="swiglu", BIAS=False, QK_NORM=True,
                          QK_NORM_WHOLE=True),
    "gemma 2's kind": dict(POSITION="rope", NORM="rmsnorm", NORM_PLACEMENT="both", FFN="geglu", BIAS=False, EMBED_SCALE=5.0, WINDOW=3,
                           WINDOW_EVERY=2, ATTENTION_SCALE=0.2, SOFTCAP_ATTENTION=4.0, SOFTCAP_LOGITS=2.0),
    "gemma 3's kind": dict(POSITION="rope", NORM="rmsnorm", NORM_PLACEMENT="both", FFN="geglu", BIAS=False, WINDOW=3, WINDOW_EVERY=2,
                           QK_NORM=True, ROPE_THETA=500.0, ROPE_SCALING="linear", ROPE_FACTOR=4, ROPE_LOCAL_THETA=50.0),
    "neox's kind": dict(POSITION="rope", FFN="gelu_erf", PARALLEL_RESIDUAL=True),
    "preset, bf16": dict(PRESET="w2", DTYPE="bf16"),
    "preset, f64": dict(PRESET="ra-mla", DTYPE="f64"),
    "preset, normed queries": dict(PRESET="modern", ATTENTION_GATE="element", DTYPE="f64"),
}
TOKENS = np.random.default_rng(0).integers(0, 50, (2, 9))
TARGETS = np.random.default_rng(1).integers(0, 50, (2, 9))
TARGETS[0, 3] = -1
PROGRAM = os.path.join(os.path.dirname(os.path.realpath(weft.library_path)), "weft")


@pytest.fixture(params=KINDS)
def kind(request, tmp_path):
    model = weft.Model(**SIZES, **KINDS[request.param])
    model.save(tmp_path / "a")
    return request.param, model, tmp_path


def test_loading_and_saving_changes_no_byte(kind):
    _, _, folder = kind
    weft.save(weft.load(folder / "a"), folder / "b")
    for name in "model.safetensors", "config.json":
        assert filecmp.cmp(folder / "a" / name, folder / "b" / name, shallow=False), name


def test_a_saved_folder_is_whole_and_bound_by_checksums(tmp_path):
    """Nothing is left of what was there, the tokenizer goes along, and a part of another model is refused."""
    model = weft.Model(**SIZES)
    model.save(tmp_path / "a")
    (tmp_path / "a" / "tokenizer.json").write_text('{"version": "1.0"}')
    module = weft.load(tmp_path / "a")
    for saver in lambda to: weft.save(module, to), weft.Model(tmp_path / "a").save:
        saver(tmp_path / "deep" / "b")
        parts = {p.name for p in (tmp_path / "deep" / "b").iterdir()}
        assert {"config.json", "model.safetensors", "tokenizer.json", "state.json"} <= parts
        assert [p.name for p in (tmp_path / "deep").iterdir()] == ["b"]  # nothing is left beside
    weft.save(weft.load(tmp_path / "deep" / "b"), tmp_path / "deep" / "b")  # over the folder that it came from
    assert (tmp_path / "deep" / "b" / "tokenizer.json").exists()
    model.save(tmp_path / "deep" / "b")
    assert not (tmp_path / "deep" / "b" / "tokenizer.json").exists()
    weights = (tmp_path / "a" / "model.safetensors").read_bytes()
    (tmp_path / "a" / "model.safetensors").write_bytes(weights[:-1] + bytes([weights[-1] ^ 1]))
    with pytest.raises(ValueError, match="model.safetensors"):
        weft.Model(tmp_path / "a")


def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff


def test_what_a_run_resumes_from_and_other_peoples_folders_are_not_replaced(tmp_path):
    run = tmp_path / "run" / "last"
    weft.Model(**SIZES).save(run)
    state = {**json.loads((run / "state.json").read_text()), "iteration": 7}
    del state["state_crc32c"]
    text = json.dumps(state, indent=2, sort_keys=True)[:-2]
    (run / "state.json").write_text(f'{text},\n  "state_crc32c": "{crc32c(text.encode()):08x}"\n}}\n')
    (run / "optimizer.safetensors").write_bytes(b"moments")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "notes.txt").write_text("keep")
    before = {p: p.read_bytes() for folder in (run, mine) for p in folder.iterdir()}
    (tmp_path / "link").symlink_to(mine)
    for folder in run, mine, tmp_path / "link":
        for saver in lambda to: weft.save(LanguageModel(**SIZES), to), weft.Model(**SIZES).save:
            with pytest.raises((ValueError, OSError), match=folder.name):
                saver(folder)
    assert {p: p.read_bytes() for folder in (run, mine) for p in folder.iterdir()} == before


def test_a_loaded_model_computes_what_the_engine_does(kind):
    name, model, folder = kind
    module = weft.load(folder / "a")
    tokens, targets = torch.from_numpy(TOKENS), torch.from_numpy(TARGETS)
    close = 2e-3 if "bf16" in name else 2e-6
    want, got = model.loss(TOKENS, TARGETS, train=True), module.losses(tokens, targets)
    for part in got:
        assert abs(want[part] - got[part].item()) < close, part
    assert sum(want[p] for p in want if p != "loss") == pytest.approx(want["loss"], abs=close)
    got["loss"].backward()
    for tensor, gradient in model.gradients(TOKENS, TARGETS).items():
        ours = dict(module.named_parameters())[tensor].grad
        ours = np.zeros_like(gradient) if ours is None else ours.float().numpy()
        assert np.abs(ours - gradient).max() < (2e-2 if "bf16" in name else 2e-6), tensor
    module.eval()
    assert np.abs(model.logits(TOKENS) - module(tokens).detach().double().numpy()).max() < close
    assert model.loss(TOKENS, TARGETS)["loss"] == pytest.approx(module(tokens, targets)[1].item(), abs=close)


def test_weft_eval_reads_what_was_saved(tmp_path):
    if not os.path.exists(PROGRAM):
        pytest.skip(f"{PROGRAM} is not there: run make build")
    torch.manual_seed(4)
    module = LanguageModel(ATTENTION="w2", POSITION="rope", **{k: v for k, v in SIZES.items() if k != "SEED"})
    with torch.no_grad():
        for p in module.parameters():
            p.add_(0.1 * torch.randn_like(p))
    weft.save(module, tmp_path / "m")
    np.save(tmp_path / "tokens.npy", np.concatenate([TOKENS, TARGETS[:, -1:]], 1).astype(np.int32))
    out = subprocess.run([PROGRAM, "eval", "--model", tmp_path / "m", "--tokens", tmp_path / "tokens.npy", "--json"],
                         capture_output=True, text=True, check=True).stdout
    import json
    targets = np.concatenate([TOKENS[:, 1:], TARGETS[:, -1:]], 1)
    want = module.eval()(torch.from_numpy(TOKENS), torch.from_numpy(targets))[1].item()
    assert json.loads(out)["loss"] == pytest.approx(want, abs=1e-5)


def test_a_run_folder_stands_for_its_best(tmp_path):
    weft.Model(**SIZES).save(tmp_path / "run" / "best")
    assert weft.Model(tmp_path / "run").path.endswith("best")
    assert sum(p.numel() for p in weft.load(tmp_path / "run").parameters()) == weft.Model(tmp_path / "run").parameters


def test_what_is_wrong_is_told(tmp_path):
    model = weft.Model(**SIZES)
    with pytest.raises(FileNotFoundError, match="nowhere"):
        weft.Model(tmp_path / "nowhere")
    with pytest.raises(weft.InputError, match="vocabulary"):
        model.logits([[50]])
    with pytest.raises(weft.InputError, match="whole numbers"):
        model.logits([[0.5]])
    with pytest.raises(weft.InputError, match=r"\(2, 9\).*\(2, 8\)"):
        model.loss(TOKENS, TARGETS[:, :8])
    with pytest.raises(weft.InputError, match="wte.weight"):
        model.read("wte.weigth")
    model.close()
    with pytest.raises(weft.InputError, match="closed"):
        model.logits([[1]])
    module = LanguageModel(**SIZES)
    with pytest.raises(ValueError, match="CONTEXT is 12"):
        module(torch.zeros(1, 13, dtype=torch.long))
    with pytest.raises(ValueError, match="batch, time"):
        module(torch.zeros(1, 3))


def test_dropout_draws_anew_and_from_torchs_seed():
    module = LanguageModel(DROPOUT=0.3, **SIZES)
    tokens = torch.from_numpy(TOKENS)
    torch.manual_seed(1)
    first, second = module(tokens), module(tokens)
    torch.manual_seed(1)
    assert torch.equal(first, module(tokens)) and not torch.equal(first, second)
    assert torch.equal(module.eval()(tokens), module(tokens))
    towards = torch.randn_like(first)
    module.train()
    torch.manual_seed(2)
    a = torch.autograd.grad(module(tokens), module.wte.weight, towards)[0]
    torch.manual_seed(2)
    assert torch.equal(a, torch.autograd.grad(module(tokens), module.wte.weight, towards)[0])


def test_a_tokenizer_is_kept_or_missed(tmp_path, monkeypatch):
    """The working directory changes, and the checkpoint goes, after it was opened."""
    def opened():
        return weft.Model("source"), weft.torch.LanguageModel.load("source")
    monkeypatch.chdir(tmp_path)
    with weft.Model(N_LAYER=1, N_EMBD=16, N_HEAD=2, VOCAB_SIZE=258) as model:
        model.save("source")
    vocabulary = {**{chr(c): i for i, c in enumerate([*range(33, 127), *range(161, 173), *range(174, 256)])},
                  **{chr(256 + i): 188 + i for i in range(68)}, "ab": 256}
    (tmp_path / "source" / "tokenizer.json").write_text(json.dumps({
        "model": {"type": "BPE", "vocab": vocabulary, "merges": ["a b"]}, "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False}, "decoder": {"type": "ByteLevel"}}))
    model, module = opened()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    for i, one in enumerate((model, module)):
        one.save(f"copy{i}")
        assert weft.Tokenizer(f"copy{i}").encode("ab") == [256]
    assert model.tokenizer.encode("ab") == [256]
    monkeypatch.chdir(tmp_path)
    model, module = opened()
    os.rename("source", "gone")
    for one in model, module:
        with pytest.raises((weft.InputError, OSError), match="tokenizer.json"):
            one.save("lost")
        assert not os.path.exists("lost")
    with pytest.raises((weft.InputError, OSError), match="tokenizer.json"):
        model.tokenizer


@pytest.mark.parametrize("preset", ("gpt2", "w2", "wsffn", "ra-mla", "modern"))
def test_a_preset_has_all_its_tensors(preset):
    with weft.Model(**SIZES, PRESET=preset) as model:
        names = sorted(model.names())
    assert sorted(name for name, _ in LanguageModel(**SIZES, PRESET=preset).named_parameters()) == names


def test_losses_of_z_that_cannot_be_are_refused_by_name():
    options = dict(SIZES, FFN="wsffn", WSFFN_N_HEAD=4)
    with pytest.raises(weft.InputError, match="WSFFN_Z_LOGITS=0.5 .* set it to 0"):
        LanguageModel(**options, WSFFN_Z_LOGITS=0.5)
    model = LanguageModel(**options, WSFFN_POSITIVE="half")
    tokens, targets = torch.from_numpy(TOKENS), torch.from_numpy(TARGETS)
    with pytest.raises(weft.InputError, match="9 tokens have no halves"):
        model.losses(tokens, targets)
    assert model.losses(tokens[:, :8], targets[:, :8])["aux_contrastive"] > 0
