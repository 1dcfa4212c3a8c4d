"""Units in which values are shown: cases that have no example in the docstrings."""

import math

import pytest

from pfl_ops import units
from pfl_ops.errors import PflOpsError


@pytest.mark.parametrize(
    ("metric", "value", "std", "text"),
    [
        ("val/L1/acc", math.nan, None, "–"),
        ("test/L1/local/worst_min10", 0.5, None, "50.0 %"),
        ("test/L1/synthetic_50/mean", 0.5, None, "50.0 %"),
        ("test/L1/local/rho_95", 12.0, None, "12.000"),
        ("test/L1/local/mean", 0.5, math.nan, "50.0 %"),
        ("cost/up_bytes", 2.0**20, 2.0**19, "1.000 ± 0.500 MiB"),
    ],
)
def test_a_value_in_its_unit(metric, value, std, text):
    assert units.with_unit(metric, value, std) == text


def test_one_summand_alone_is_not_shown():
    assert units.in_words({"val/L1/acc": 1.5, "val/L1/local/mean": 0.9}) == "Acc(L)+Acc(G) 150.0 %"


def test_targets_are_fractions():
    """Acc(L) + Acc(G) is at most 2, every other accuracy 1; a loss may have any target."""
    for most, metric in ((2, "test/L1/acc"), (1, "test/L1/local/mean")):
        units.check_target(most, metric)
        with pytest.raises(PflOpsError, match=f"no {metric} reaches {most + 0.1}"):
            units.check_target(most + 0.1, metric)
    units.check_target(90, "train/loss")
