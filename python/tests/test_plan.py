"""The part that needs no PyTorch."""
import pytest

import weft


def test_plan_counts_gpt2():
    assert weft.plan()["parameters"] == 124475904


def test_an_unknown_option_names_the_nearest():
    with pytest.raises(weft.InputError, match="N_LAYER"):
        weft.plan(N_LAYERS=3)
