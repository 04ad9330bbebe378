"""Pictures show the numbers of the engine: attention weights against `weft eval --scores`."""
import os
import subprocess

import numpy as np
import pytest
import torch

matplotlib = pytest.importorskip("matplotlib", reason="pictures need matplotlib")
matplotlib.use("Agg")

import weft
from weft import plot
from weft.torch import LanguageModel

SIZES = dict(N_LAYER=2, N_EMBD=24, N_HEAD=3, VOCAB_SIZE=256, CONTEXT=12, SEED=5)
ALL = dict(PRESET="ra-mla", RA_MLA_LATENT_DIM=12, RA_MLA_MLP_SPARSE_K=3)
PROGRAM = os.path.join(os.path.dirname(os.path.realpath(weft.library_path)), "weft")
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]


def shaken(**options):
    model = LanguageModel(**SIZES, **options)
    torch.manual_seed(1)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return model


@pytest.mark.parametrize("options", [{}, dict(PRESET="w2"), ALL], ids=["dot", "w2", "mla"])
def test_attention_is_the_softmax_of_the_engines_scores(options, tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy", reason="reads the scores")
    if not os.path.exists(PROGRAM):
        pytest.skip(f"{PROGRAM} is not there: run make build")
    model = shaken(**options)
    weft.save(model, tmp_path / "m")
    np.save(tmp_path / "t.npy", np.array([TOKENS + [0]], np.int32))
    subprocess.run([PROGRAM, "eval", "--model", tmp_path / "m", "--tokens", tmp_path / "t.npy", "--scores",
                    tmp_path / "s.safetensors"], check=True, capture_output=True)
    scores = safetensors.load_file(tmp_path / "s.safetensors")
    for layer in range(2):
        figure, weights = plot.attention(model, TOKENS, layer=layer)
        raw = next(v for k, v in scores.items() if k.split(".")[1] == str(layer))[0].astype(np.float64)
        raw[:, ~np.tril(np.ones((8, 8), bool))] = -np.inf
        raw = np.exp(raw - raw.max(-1, keepdims=True))
        assert np.abs(weights - raw / raw.sum(-1, keepdims=True)).max() < 1e-5
    assert len(figure.axes) >= 3
    matplotlib.pyplot.close("all")


def test_sigma_gates_and_routes():
    figure, values = plot.sigma(shaken(PRESET="w2"), TOKENS)
    assert values.shape == (2, 2, 3) and (values > 0).all()
    model = shaken(**ALL)
    assert plot.gates(model, TOKENS)[1].shape == (1, 3)
    _, routes = plot.routes(model, "abcdefgh")
    assert routes.shape == (8, 8) and np.allclose(routes.sum(-1), 1) and ((routes > 0).sum(-1) <= 3).all()
    assert (routes[np.triu_indices(8, 1)] == 0).all()
    for wrong in (plot.sigma, plot.gates, plot.routes):
        with pytest.raises(ValueError, match="weft.plot"):
            wrong(shaken(), TOKENS)
    matplotlib.pyplot.close("all")


def test_models_print_their_structure():
    model = shaken(PRESET="w2")
    text = repr(model)
    assert "w2, swiglu, 2 layers of width 24" in text and "weight [48, 24]" in text and "parameters" in text
    with model.engine_model() as engine:
        assert "h.*.attn.q.weight" in repr(engine)
