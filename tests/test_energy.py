"""Energy by hand: small numbers whose logarithms are whole."""

import numpy as np
import pytest

from pfl_ops import results
from pfl_ops.energy import Effort, energy_table, grid, linear, total, transmission
from pfl_ops.errors import PflOpsError


def test_decibel() -> None:
    assert linear([-10, 0, 3, 20]) == pytest.approx([0.1, 1, 1.99526, 100], rel=1e-5)


def test_sending_by_hand() -> None:
    """SNR 3: log2(4) = 2 bits a Hz; 1,000 bits over 50 Hz take 1000 / (50 · 2) = 10 s, at 0.2 W 2 J.

    SNR 1: 1 bit a Hz, twice as long. Decibel mistaken for a ratio, the natural logarithm or log2(SNR) would differ.
    """
    assert transmission(1000, power=0.2, bandwidth=50, snr=3) == pytest.approx(2)
    assert transmission(1000, power=0.2, bandwidth=50, snr=[1, 3, 15]) == pytest.approx([4, 2, 1])
    assert transmission(0, power=0.2, bandwidth=50, snr=3) == 0


def test_the_total_by_hand() -> None:
    """7 rounds of 5 steps of 0.1 J and 2 J of sending: 7 · 2.5."""
    assert total(7, 5, step_energy=0.1, transmission=2.0) == pytest.approx(17.5)


EFFORTS = [Effort(steps=10, rounds=4, bits=100), Effort(steps=1, rounds=20, bits=100), Effort(3, None, 100)]


def test_few_steps_where_sending_is_cheap_and_many_where_it_is_dear() -> None:
    """1 W, 1 J a step; W 10 and 100 Hz. SNR 15 (4 bits a Hz): e_tx 2.5 and 0.25 J; SNR 1: 10 and 1 J.

    τ 1:  20 · (1 + 2.5) = 70,   20 · 1.25 = 25;     20 · 11 = 220, 20 · 2 = 40
    τ 10: 4 · (10 + 2.5) = 50,   4 · 10.25 = 41;     4 · 20 = 80,   4 · 11 = 44
    """
    found = grid(EFFORTS, snr_db=10 * np.log10([15, 1]), bandwidth=[10, 100], power=1, step_energy=1)
    assert found.steps.tolist() == [1, 3, 10] and found.joule.shape == (3, 2, 2)
    assert found.joule[0] == pytest.approx(np.array([[70, 25], [220, 40]]))
    assert found.joule[2] == pytest.approx(np.array([[50, 41], [80, 44]]))
    assert np.isinf(found.joule[1]).all()
    assert found.best.tolist() == [[10, 1], [10, 1]]
    assert found.least == pytest.approx(np.array([[50, 25], [80, 40]]))


def test_a_second_model_in_a_round_counts() -> None:
    one, two = (
        grid([Effort(1, 5, 32.0 * 10 * u)], snr_db=[0], bandwidth=[1e3], power=1, step_energy=0).least for u in (1, 2)
    )
    assert two == pytest.approx(2 * one) and one.item() == pytest.approx(5 * 0.32)


def test_repetitions_are_averaged() -> None:
    efforts = [Effort(2, 4, 10), Effort(2, 6, 10), Effort(5, 1, 10), Effort(5, None, 10)]
    found = grid(efforts, snr_db=[0], bandwidth=[10], power=1, step_energy=1)
    assert found.joule[:, 0, 0] == pytest.approx([5 * 3, np.inf])
    assert found.best.tolist() == [[2]]


def test_none_reached_the_target_and_ties() -> None:
    never = grid([Effort(2, None, 10)], snr_db=[0, 10], bandwidth=[1, 2, 3], power=1, step_energy=1)
    assert never.best.tolist() == [[0] * 3] * 2 and np.isinf(never.least).all()
    free = grid([Effort(2, None, 0)], snr_db=[0], bandwidth=[1], power=1, step_energy=0)
    assert free.best.tolist() == [[0]], "what costs nothing but never gets there is no answer"
    tie = grid([Effort(4, 2, 0), Effort(2, 4, 0)], snr_db=[0], bandwidth=[1], power=1, step_energy=1)
    assert tie.joule[:, 0, 0].tolist() == [8, 8] and tie.best.tolist() == [[2]]


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ({"bandwidth": [10, 0]}, r"bandwidth \(Hz\) must be > 0, got \[\[10.0, 0.0\]\]"),
        ({"power": -1}, r"power \(W\) must be >= 0, got -1.0"),
        ({"step_energy": float("nan")}, r"energy of a local step \(J\) must be >= 0, got nan"),
        ({"snr_db": [-np.inf]}, r"SNR \(a ratio\) must be > 0, got \[\[0.0\]\]"),
        ({"efforts": []}, "energy needs at least one run"),
    ],
)
def test_refusals(wrong: dict[str, object], line: str) -> None:
    given = {"efforts": EFFORTS, "snr_db": [0], "bandwidth": [10], "power": 1, "step_energy": 1, **wrong}
    with pytest.raises(PflOpsError, match=f"^{line}$"):
        grid(**given)  # type: ignore[arg-type]


def test_the_table_of_channels() -> None:
    """τ 5: 2 rounds, τ 1: 10 rounds; 100 bits, 1 W, 1 J a step. 10 Hz at 0 dB: 10 J a sending; 1,000 Hz: 0.1 J.

    τ 5: 2 · 15 = 30 and 2 · 5.1 = 10.2; τ 1: 10 · 11 = 110 and 10 · 1.1 = 11.
    """
    found = energy_table(
        [Effort(5, 2, 100), Effort(1, 10, 100)], snr_db=[0], bandwidth=[10, 1000], power=1, step_energy=1
    )
    assert results.energy_table is energy_table  # the former address
    assert found.columns.tolist() == ["snr_db", "snr", "bandwidth", "steps", "joule", "joule_1", "joule_5"]
    assert found["bandwidth"].tolist() == [10, 1000] and found["snr"].tolist() == [1, 1]
    assert found["steps"].tolist() == [5, 5] and found["joule"].tolist() == pytest.approx([30, 10.2])
    assert found["joule_1"].tolist() == pytest.approx([110, 11])
