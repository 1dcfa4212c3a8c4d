from typing import ClassVar

import pytest
import torch

from pfl_ops.algorithms.fedpg import FedPG
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic_play, quadratic_task

CENTRES = [[10.0, 0], [-5.4, 7.2], [9.0, 8]]
COHORTS = [[0, 1], [0, 2], [0, 2]]


def two_steps(method=None, centres=CENTRES, cohorts=COHORTS, **more):
    """J = 2 full-batch steps of η = ½ on F_k = ½ ‖w − b_k‖²: g_k = (Θ − train(Θ))/½ = 1.5 (Θ − b_k). Θ⁰ = 0."""
    sizes = [1, 3, 2][: len(centres)]
    return quadratic_play(method or FedPG(), centres, sizes, steps=2, rounds=len(cohorts), cohorts=cohorts, **more)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def halfway(*ways):
    """The direction between two, in the plane: the shortest vector of a hull of equally long rows halves the angle of
    the two outermost."""
    return sum(way / way.norm() for way in ways)


def as_long_as(direction, other):
    return direction / direction.norm() * other.norm()


def test_a_round_by_hand():
    """Clients 0 and 1 of three: b = (10, 0), (−5.4, 7.2) = 9·(−0.6, 0.8), so L = 50, 40.5 and g = −1.5 b.

    c_0 : c_1 = −40.5 : 50 with c_0 > 0 (the larger loss), so −∇F ~ 9/10·b_0·… = 40.5·(10, 0) − 50·(−5.4, 7.2)
    ~ (15, −8)/17. Of the ways (1, 0), (−0.6, 0.8), (15, −8)/17 the last two are outermost: d halves their angle,
    (24, 28)/85 ~ (6, 7), as long as mean g = −¾(4.6, 7.2): d = k (6, 7), k = ¾ √73 / √85.
    γ_0: a = d · g_1 = −1.5·18 k, b = (−g_0 − d) · g_1 = 1.5·(1.5·54 + 18 k): γ_0 = 18 k / (81 + 18 k)
    γ_1: a = d · g_0 = −1.5·60 k, b = 1.5·(81 + 60 k):                        γ_1 = 60 k / (81 + 60 k)
    """
    _, (first, *_) = two_steps()
    k = 0.75 * (73 / 85) ** 0.5
    assert first["G"].tolist() == first["state/central"].tolist() == pytest.approx([3 * k, 3.5 * k])
    gamma_0, gamma_1 = 18 * k / (81 + 18 * k), 60 * k / (81 + 60 * k)
    v_0 = [0.5 * ((15 - 6 * k) * gamma_0 + 6 * k), 0.5 * (-7 * k * gamma_0 + 7 * k)]
    v_1 = [0.5 * ((-8.1 - 6 * k) * gamma_1 + 6 * k), 0.5 * ((10.8 - 7 * k) * gamma_1 + 7 * k)]
    assert first["L1"].tolist() == [pytest.approx(v_0), pytest.approx(v_1), [0, 0]]
    assert first["L2"].tolist() == [pytest.approx([7.5, 0]), pytest.approx([-4.05, 5.4])]
    assert first["state/gradients"].tolist() == [pytest.approx([-15, 0]), pytest.approx([8.1, -10.8]), [0, 0]]
    assert first["state/seen"].tolist() == [1, 1, 0]


def test_fairness_weighs_the_losses_before_training():
    """E = 1, B = 1, n = (1, 2), η = ½: J = (1, 2), g_0 = −b_0, g_1 = −(1 − ¼)/½ b_1 = −1.5 b_1, from Θ = 0.

    b as above, L(Θ) = 50, 40.5:  −∇F ~ 40.5·b_0 − 50·1.5·b_1 = (810, −540) ~ (3, −2).  Of the ways (1, 0),
    (−0.6, 0.8), (3, −2)/√13 the last two are outermost: d halves their angle, as long as mean g = −½ (1.9, 10.8).
    After training L would be 50/4 and 40.5/16, and −∇F ~ (15, −16).
    """
    _, (only,) = quadratic_play(FedPG(), CENTRES[:2], [1, 2], rounds=1, local_steps=None, local_epochs=1, batch_size=1)
    assert only["state/gradients"].tolist() == [pytest.approx([-10, 0]), pytest.approx([8.1, -10.8])]
    d = as_long_as(halfway(tensor(-0.6, 0.8), tensor(3, -2)), tensor(0.95, 5.4))
    torch.testing.assert_close(only["G"], d / 2, rtol=1e-9, atol=0)


def ways_of(central, first, second):
    """−g_k of two clients, and −∇F, from Θ."""
    b = torch.tensor(CENTRES, dtype=torch.float64)[[first, second]]
    g = 1.5 * (central - b)
    losses = (central - b).square().sum(dim=1) / 2
    norm = losses.norm()
    c = ((losses.sum() * losses) / norm**2 - 1) / (2**0.5 * norm)
    return -g[0], -g[1], -(c @ g)


def degrees(*ways):
    return [torch.atan2(way[1], way[0]).rad2deg().item() for way in ways]


def test_absent_clients_by_hand():
    """Round 2, clients 0 and 2: M = 3 seen, τ = 3/2, so client 1 of round t − 1 counts, with its g of round 1.

    From Θ of round 1 the ways of 0, 2, ∇F and client 1 stand at −17°, 39°, 105°, 127°: d halves the outermost.
    In round 3 (0 and 2 again) client 1 was last seen in t − 2 < t − τ; of −57°, 14° and −140° d halves the last two.
    """
    _, (first, second, third) = two_steps()
    way_0, way_2, way_f = ways_of(first["G"], 0, 2)
    old = -first["state/gradients"][1]
    assert degrees(way_0, way_2, way_f, old) == pytest.approx([-17, 39, 105, 127], abs=1)
    d = as_long_as(halfway(way_0, old), (way_0 + way_2) / 2)
    torch.testing.assert_close(second["G"], first["G"] + d / 2, rtol=1e-9, atol=0)
    assert second["state/seen"].tolist() == [2, 1, 2]
    assert torch.equal(second["L1"][1], first["L1"][1]), "an absent client holds its model"

    way_0, way_2, way_f = ways_of(second["G"], 0, 2)
    assert degrees(way_0, way_2, way_f) == pytest.approx([-57, 14, -140], abs=1)
    d = as_long_as(halfway(way_2, way_f), (way_0 + way_2) / 2)
    torch.testing.assert_close(third["G"], second["G"] + d / 2, rtol=1e-9, atol=0)


def test_tau_counts_clients_seen_so_far():
    """One client a round, 0, 1, 1. At t = 3 client 0 of t = 0 no more counts beside client 1 (M = 2, τ = 2), but does
    beside client 2, which makes M = 3 and τ = 3.
    """
    play, _ = two_steps(cohorts=[[0], [1], [1]])

    def missing(method, cohort):
        return method._missing(play.state["seen"], play.at(cohort)).tolist()

    assert missing(FedPG(), [1]) == []
    assert missing(FedPG(), [2]) == [0, 1]
    assert missing(FedPG(), [0, 2]) == [1]  # τ = 3/2
    assert missing(FedPG(absent=False), [2]) == []


# -- options ----------------------------------------------------------------------------------------------------------


def test_m1_goes_along_the_mean():
    """Θ ← mean θ_k, unweighted; and from b = (6, 0), (−3, 0) it ascends for client 1: d = −mean g = (2.25, 0).

    For client 0 no γ keeps d_0 · g_1 <= 0: 0. For client 1 −g_1 = (−4.5, 0), and 2.25 − 6.75 γ >= 0: ⅓, which stops it.
    """
    _, (first, *_) = two_steps(FedPG(direction="mean"))
    assert first["G"].tolist() == pytest.approx([(7.5 - 4.05) / 2, 2.7])
    _, (only,) = two_steps(FedPG(direction="mean"), [[6.0, 0], [-3.0, 0]], [None])
    assert only["L1"].tolist() == [pytest.approx([1.125, 0]), pytest.approx([0, 0])]


def test_m2_does_without_fairness():
    """The outermost of two are the two: d along (1, 0) + (−0.6, 0.8) = (0.4, 0.8)."""
    _, (first, *_) = two_steps(FedPG(fair=False))
    expected = as_long_as(tensor(0.4, 0.8), tensor(3.45, 5.4)) / 2
    torch.testing.assert_close(first["G"], expected, rtol=1e-9, atol=0)


def test_m3_does_not_drift():
    _, (first, *_) = two_steps(FedPG(drift=False, gamma=0.6))
    assert torch.equal(first["L1"][:2], first["G"].expand(2, -1))


def test_m4_forgets_who_is_absent():
    _, (first, second, _) = two_steps(FedPG(absent=False))
    way_0, way_2, way_f = ways_of(first["G"], 0, 2)
    d = as_long_as(halfway(way_0, way_f), (way_0 + way_2) / 2)
    torch.testing.assert_close(second["G"], first["G"] + d / 2, rtol=1e-9, atol=0)


def test_a_fixed_gamma_is_the_least_drift():
    """Those above it keep their own: γ_0 = 0.135, γ_1 = 0.341 (by hand above) become 0.2 and 0.341."""
    _, (plain, *_) = two_steps()
    _, (first, *_) = two_steps(FedPG(gamma=0.2))
    eta_d = first["G"]
    assert torch.equal(first["L1"][1], plain["L1"][1])
    torch.testing.assert_close(first["L1"][0], eta_d + 0.2 * (first["L2"][0] - eta_d), rtol=1e-9, atol=0)


def test_full_gradients():
    """g_k = Θ − b_k whatever J: round 1 is that by hand with ⅔ of its g and so of d; nobody trains, so no L2."""
    _, (first, *_) = two_steps(FedPG(gradient="full"))
    k = (73 / 85) ** 0.5 / 2
    assert first["G"].tolist() == pytest.approx([3 * k, 3.5 * k])
    assert "L2" not in first
    assert first["state/gradients"][:2].tolist() == [pytest.approx([-10, 0]), pytest.approx([5.4, -7.2])]


def test_the_rate_is_the_rounds():
    """With decay round 2 divides by η_1 = ¼: g = (1 − (1 − ¼)²)/¼ (Θ − b) = 1.75 (Θ − b)."""
    _, (first, second, _) = two_steps(lr_decay=0.5)
    expected = 1.75 * (first["G"] - torch.tensor(CENTRES[2]))
    torch.testing.assert_close(second["state/gradients"][2], expected, rtol=1e-9, atol=0)


def test_without_gradients_everything_stays():
    """All clients are where they are best; then one is, and stays there: v_k = Θ, while Θ goes to the other's."""
    _, (only,) = two_steps(centres=[[0.0, 0], [0.0, 0]], cohorts=[None])
    assert only["G"].tolist() == [0, 0] and only["L1"].tolist() == [[0, 0], [0, 0]]
    _, (only,) = two_steps(centres=[[0.0, 0], [4.0, 0]], cohorts=[None])
    assert only["G"].tolist() == pytest.approx([3, 0])
    assert only["L1"].tolist() == [[0, 0], pytest.approx([3, 0])]


def test_traffic():
    """P = 2: a gradient and a loss up; d and γ_k down, and Θ for those that were not there the round before."""
    play = MethodSimulation(quadratic_task(CENTRES), FedPG(), Training(batch_size=None, precision="float64"))
    sent = []
    for cohort in ([0, 1], [0, 1], [0, 2], [1, 2]):
        r = play.at(cohort)
        play.method.round(play.state, r)
        play.round(cohort)
        sent.append((r.traffic.up, r.traffic.down))
    assert sent == [(3, 5), (3, 3), (3, 4), (3, 4)]


def test_an_experiment_with_momentum_or_adam_is_refused():
    from pfl_ops import Experiment

    assert Experiment.of("fedpg").algorithm == FedPG()
    for changes in ({"training.momentum": 0.9}, {"training.optimiser": "adam"}):
        with pytest.raises(PflOpsError, match=r"fedpg needs training\.optimiser=sgd"):
            Experiment.of("fedpg", **changes)


class TestContract(AlgorithmContract):
    algorithm = FedPG(gamma=0.05)
    pairs: ClassVar = {"gamma": (FedPG(), FedPG(gamma=0.7)), "scale": (FedPG(scale="code"), FedPG(scale="paper"))}
