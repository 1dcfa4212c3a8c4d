from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from pydantic import ValidationError

from pfl_ops.algorithms.fliu import FLIU
from pfl_ops.algorithms.schedules import (
    Adaptive,
    Cosine,
    Exponential,
    Feedback,
    Fixed,
    Linear,
    Range,
    RoundSchedule,
    Schedule,
    SizePower,
    adaptive,
)
from pfl_ops.data.clients import Pool
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.method.contract import Share
from pfl_ops.federation.method.walk import Keys
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, Federation, MethodSimulation, quadratic_play, quadratic_task

SIZES = torch.tensor([1, 3, 4, 12])  # n = 20, n/K = 5


def test_two_rounds_by_hand():
    """F_k(w) = ½ (w − b_k)², one full-batch step a round, η = ½, γ = ¼.

    Clients: b = (0, 6), n = (1, 3). θ_k = 2 at the start.

    Round 1   θ = 2 − ½(2 − 0), 2 − ½(2 − 6)        = 1, 4              Θ ← 2.5 (plain: 3.25 by n_k)
              θ ← ¼·1 + ¾·2.5, ¼·4 + ¾·2.5          = 2.125, 2.875
    Round 2   θ = 2.125 − ½·2.125, 2.875 + ½·3.125  = 1.0625, 4.4375    Θ ← 2.75     (each from its own, not from Θ)
              θ ← ¼·1.0625 + ¾·2.75                 = 2.328125
              θ ← ¼·4.4375 + ¾·2.75                 = 3.171875
    """
    play, (first, last) = quadratic_play(FLIU(gamma=Fixed(value=0.25)), [0, 6], [1, 3], start=2)
    assert first["L1"][:, 0].tolist() == pytest.approx([2.125, 2.875])
    assert last["L2"][:, 0].tolist() == pytest.approx([1.0625, 4.4375])
    assert last["L1"][:, 0].tolist() == pytest.approx([2.328125, 3.171875])
    assert play.state["central"].item() == last["G"].item() == pytest.approx(2.75)


def test_a_gamma_for_every_client_and_round():
    """Sizes 1, 3, 4, 12 (n/K = 5): adaptive γ = 0.1, 0.25, 0.25, 0.5, and the cohort's are theirs, not the first ones.

    Client 1 stays away. b = 0 for all, Θ⁰ = 8, η = ½: all of the cohort have θ = 4 = Θ, so mix what client 3 knows:
    in round 2 clients 1 and 3: θ = 4 (from 8), 2 (from 4); Θ ← 3; θ ← 0.25·4 + 0.75·3 = 3.25, 0.5·2 + 0.5·3 = 2.5.
    """
    _, (_, last) = quadratic_play(FLIU(), [0] * 4, SIZES.tolist(), start=8, cohorts=[[0, 2, 3], [1, 3]])
    assert last["L1"][:, 0].tolist() == pytest.approx([4, 3.25, 4, 2.5])
    assert last["note/gamma"].tolist() == [0.25, 0.5]


def test_the_round_reaches_the_schedule():
    """γ = 0, then 1: after round 2 every client keeps its own; from Θ = 2.5 they are 1.25, 4.25."""
    _, (first, last) = quadratic_play(FLIU(gamma=Linear(start=0, end=1)), [0, 6], start=2)
    assert first["L1"][:, 0].tolist() == pytest.approx([2.5, 2.5])
    assert last["L1"][:, 0].tolist() == pytest.approx([1.25, 4.25])


# -- schedules --------------------------------------------------------------------------------------------------------


def test_adaptive_by_equation_4():
    """K = 50, n = 1000, n/K = 20: strictly above 200, 100, 20 and 10."""
    sizes = torch.tensor([201, 200, 101, 100, 21, 20, 11, 10, 1, 15, *[8] * 40])
    assert len(sizes) == 50 and int(sizes.sum()) == 1000
    assert adaptive(sizes)[:9].tolist() == [0.9, 0.75, 0.75, 0.5, 0.5, 0.25, 0.25, 0.1, 0.1]


@pytest.mark.parametrize(("sizes", "first"), [([101, *[1] * 24], 0.9), ([100, *[7] * 14, 2], 0.75), ([5, 5, 5], 0.25)])
def test_adaptive_steps(sizes, first):
    """101·25 > 10·125; 100·16 > 5·200 and not > 10·200; equal sizes: n_k K = n is not above n, but above n/2."""
    assert adaptive(torch.tensor(sizes))[0] == first


def test_range_stretches_the_adaptive_steps():
    """γ_adaptive = 0.1, 0.25, 0.25, 0.5; low + (γ − 0.1)·0.4/0.8 from 0.1."""
    assert Range(low=0.1, high=0.5)(SIZES, 0, 5).tolist() == pytest.approx([0.1, 0.175, 0.175, 0.3])
    assert Range(low=0.0, high=1.0)(torch.tensor([101, *[1] * 24]), 0, 5)[0] == 1


def test_range_up_to_1_is_never_refused_for_rounding():
    """0.11 + 0.8 · (0.89 / 0.8) is 1 + 2e-16 in float64, which was refused as outside [0, 1]."""
    lows = [low / 100 for low in range(101)]
    assert all(Range(low=low, high=1.0)(torch.tensor([101, *[1] * 24]), 0, 5)[0] <= 1 for low in lows)
    assert Range(low=0.11, high=1.0)(torch.tensor([101, *[1] * 24]), 0, 5)[0] == 1


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        (Fixed(value=0.3), [0.3, 0.3, 0.3]),
        (Linear(start=0.2, end=0.8), [0.2, 0.35, 0.8]),
        (Cosine(start=0.2, end=0.8), [0.2, 0.8 - 0.6 * (1 + 2**-0.5) / 2, 0.8]),
        (Exponential(start=0.2, end=0.8), [0.2, 0.2 * 4**0.25, 0.8]),
    ],
    ids=lambda value: value.kind if isinstance(value, Schedule) else "",
)
def test_over_the_rounds(schedule, values):
    """T = 5: s = 0, ¼, 1 in rounds 0, 1, 4. With T = 1 it is the start."""
    assert [schedule(SIZES, t, 5)[0].item() for t in (0, 1, 4)] == pytest.approx(values)
    assert schedule(SIZES, 0, 1)[3].item() == pytest.approx(values[0])
    assert schedule(SIZES, 0, 5).shape == (4,)


def test_size_power():
    """n_k K/n = 0.2, 0.6, 0.8, 2.4; ¼ (·)², clipped to [0.05, 1]: 0.01 → 0.05, 0.09, 0.16, 1.44 → 1."""
    schedule = SizePower(scale=0.25, power=2, low=0.05, high=1)
    assert schedule(SIZES, 0, 5).tolist() == pytest.approx([0.05, 0.09, 0.16, 1])
    assert SizePower(scale=0.25, power=0)(SIZES, 0, 5).tolist() == [0.25] * 4


def test_feedback_by_hand():
    """F_k(w) = ½ (w − b_k)² on every sample, so on both parts of the data; η = ½, a = 0.2, b = 0.5.

    Clients: b = (0, 6), n = (2, 3). θ_k = 2 at the start.

    Round 1   θ = 1, 4, Θ = 2.5;  2 F(Θ) = 2.5², 3.5²;  2 F(θ) = 1², 2²
              g = (6.25 − 1)/(6.25 + 1), (12.25 − 4)/(12.25 + 4) = 21/29, 33/65
    """
    _, (first, _) = quadratic_play(FLIU(gamma=Feedback(base=0.2, slope=0.5)), [0, 6], [2, 3], start=2)
    gain = [21 / 29, 33 / 65]
    assert first["note/gain"].tolist() == pytest.approx(gain)
    assert first["note/gamma"].tolist() == pytest.approx([0.2 + 0.5 * g for g in gain])
    assert first["L1"][:, 0].tolist() == pytest.approx(
        [2.5 + (0.2 + 0.5 * g) * (theta - 2.5) for g, theta in zip(gain, (1, 4), strict=True)]
    )


def test_feedback_without_a_slope_is_fixed():
    schedules = Feedback(base=0.4, slope=0), Fixed(value=0.4)
    with_feedback, fixed = (quadratic_play(FLIU(gamma=g), [0, 6], [2, 3])[1][1]["L1"] for g in schedules)
    torch.testing.assert_close(with_feedback, fixed)


@pytest.mark.parametrize(("base", "slope", "gamma"), [(0.9, 5.0, 1.0), (0.1, -5.0, 0.0)])
def test_feedback_stays_within_0_1(base, slope, gamma):
    _, (only,) = quadratic_play(FLIU(gamma=Feedback(base=base, slope=slope)), [0, 6], [2, 2], start=2, rounds=1)
    assert only["note/gamma"].tolist() == [gamma, gamma]


def test_feedback_trains_on_one_part_and_judges_on_the_other():
    """Two clients of five and two samples, four and one to train on (h = 0.2, and both parts have at least one).

    η = 1: θ_k is the mean of its own samples; F_k is on the other one.
    """
    x = torch.tensor([1.0, 2, 4, 8, 16, 30, 50], dtype=torch.float64)[:, None]
    task = quadratic_task([0.0])
    pool = Pool(x, torch.zeros(7, dtype=torch.int64), [torch.arange(5), torch.arange(5, 7)])
    federation = Federation(task.network, pool, 1, task.loss)
    method = FLIU(gamma=Feedback(held_share=0.2))
    play = MethodSimulation(federation, method, Training(rounds=1, batch_size=None, lr=1, precision="float64"))
    values = play.round()
    held = [x[k * 5 + play.trainer.positions(k, Share(0.8, 1), Keys(0, "train", 0))] for k in (0, 1)]
    assert [len(h) for h in held] == [1, 1]
    b = [h.item() for h in held]
    theta = [(31 - b[0]) / 4, 80 - b[1]]
    central = sum(theta) / 2
    assert values["L2"][:, 0].tolist() == pytest.approx(theta)
    own, shared = ([(w - c) ** 2 for w, c in zip(ws, b, strict=True)] for ws in (theta, [central] * 2))
    gain = [(s - o) / (s + o) for o, s in zip(own, shared, strict=True)]
    assert values["note/gain"].tolist() == pytest.approx(gain)


@pytest.mark.parametrize(("own", "shared", "gain"), [(float("inf"), 1, -1), (1, float("inf"), 1), (3, 1, -0.5)])
def test_feedback_with_an_infinite_loss_is_the_limit(own, shared, gain):
    """(F(Θ) − F(θ))/(F(Θ) + F(θ)) → ∓1; both infinite: 0. γ = 0.5 + 0.25 g."""
    noted = {}
    losses = {"theta": torch.tensor([float(own), float("inf")]), "central": torch.tensor([float(shared), float("inf")])}
    r = SimpleNamespace(losses=lambda w, share: losses[w], note=noted.__setitem__)
    gamma = Feedback(base=0.5, slope=0.25).of_cohort(r, "theta", "central")
    assert noted["gain"].tolist() == [gain, 0] and gamma.tolist() == [0.5 + 0.25 * gain, 0.5]


def test_feedback_of_a_client_that_can_hold_nothing_out():
    """One sample, or no loss of either model (b = 2, where all start): γ = a."""
    _, (only,) = quadratic_play(FLIU(gamma=Feedback(base=0.3)), [0, 4], [1, 2], start=2, rounds=1)
    assert only["note/gamma"][0].item() == pytest.approx(0.3) and only["note/gamma"][1] > 0.3
    _, (only,) = quadratic_play(FLIU(gamma=Feedback(base=0.3)), [2, 2], [2, 2], start=2, rounds=1)
    assert only["note/gamma"].tolist() == pytest.approx([0.3, 0.3])


def test_a_value_outside_0_1_names_the_schedule():
    class Wild(RoundSchedule):
        kind: str = "wild"

        def _values(self, sizes, s):
            return torch.tensor([0.5, 0.5, 1.25, float("nan")])

    with pytest.raises(PflOpsError, match=r"gamma schedule 'wild' gives 1.25 for client 2, outside \[0, 1\]"):
        Wild()(SIZES, 0, 5)
    with pytest.raises(ValidationError, match="value"):
        Fixed(value=1.5)
    with pytest.raises(ValidationError, match=r"gamma schedule 'range' needs low <= high, got 0\.6 and 0\.5"):
        Range(low=0.6, high=0.5)
    with pytest.raises(ValidationError, match="size_power"):
        SizePower(low=0.6, high=0.5)


def test_an_experiment_names_its_schedule():
    from pfl_ops import Experiment

    default = Experiment.of("fliu")
    assert default.algorithm == FLIU(gamma=Adaptive())
    assert (default.training.optimiser, default.training.lr) == ("adam", 0.001)
    ranged = default.override({"algorithm.gamma.kind": "range", "algorithm.gamma.high": 0.7})
    assert ranged.algorithm == FLIU(gamma=Range(high=0.7))
    with pytest.raises(PflOpsError, match=r"algorithm\.gamma\.high"):
        ranged.override({"algorithm.gamma.high": 1.7})
    with pytest.raises(PflOpsError, match="cosine"):
        default.override({"algorithm.gamma.kind": "cosinus"})


class TestContract(AlgorithmContract):
    algorithm = FLIU()
    pairs: ClassVar = {"gamma": (FLIU(), FLIU(gamma=Linear()))}


class TestContractWithFeedback(AlgorithmContract):
    algorithm = FLIU(gamma=Feedback())
    pairs: ClassVar = {"gamma": tuple(FLIU(gamma=Feedback(held_share=h)) for h in (0.1, 0.5))}


@pytest.mark.parametrize("schedule", [Fixed, Adaptive, Range, Linear, Cosine, Exponential, SizePower])
def test_every_number_of_a_schedule_changes_something(schedule):
    """Round 1 of 3 (s = ½), sizes of all five steps: each field moved by 0.05 moves some γ."""
    sizes = torch.tensor([601, 180, 60, 20, *[1] * 21])
    base = schedule()
    for name in set(schedule.model_fields) - {"kind"}:
        moved = schedule(**{name: getattr(base, name) + (-0.05 if getattr(base, name) >= 0.5 else 0.05)})
        assert not torch.equal(base(sizes, 1, 3), moved(sizes, 1, 3)), name
