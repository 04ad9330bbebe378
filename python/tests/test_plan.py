"""The part that needs no PyTorch."""
import pytest

import weft


def test_plan_counts_gpt2():
    assert weft.plan()["parameters"] == 124475904


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(weft.InputError, match="N_LAYER"):
        weft.plan(N_LAYERS=3)


def test_a_preset_goes_below_what_is_set():
    named = dict(ATTENTION="w2", FFN="swiglu", POSITION="rope", NORM="rmsnorm", BIAS=False, N_LAYER=2)
    assert weft.plan(PRESET="w2", N_LAYER=2)["parameters"] == weft.plan(**named)["parameters"]
    assert weft.plan(FFN="gelu", PRESET="w2", N_LAYER=2)["parameters"] == weft.plan(**{**named, "FFN": "gelu"})["parameters"]
