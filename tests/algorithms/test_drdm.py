from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from pfl_ops import Experiment, rng
from pfl_ops.algorithms.drdm import DRDM
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic_play, quadratic_task, ragged_task

THREE = {"centres": [0, 6, 10], "sizes": [1, 3, 2], "start": 2, "steps": 2, "cohorts": [[0, 2, 2, 2], [1, 2]]}


def test_two_rounds_by_hand():
    """F_k(w) = ½ (w − b_k)², τ = 2 full-batch steps, η = ½, α = ½, γ = 1/64, so τγ = 1/32; h: dual.

    Clients: b = (0, 6, 10), n = (1, 3, 2), so λ = (1/6, 1/2, 1/3). Θ = 2. Everyone is in the second cohort (m = N).
    Cohorts {0, 2, 2, 2}, {1, 2}; t' is drawn as 1, 1. A step is w ← w − ½ (w − b_k − g_k + ½ (w − Θ)).

    Round 1   client 0: 2, 1, 1 − ½ (1 + ½ (1 − 2)) = 0.75     client 2: 2, 6, 6 − ½ (6 − 10 + ½ (6 − 2)) = 7
              g_0 = −½ (0.75 − 2) = 5/8, g_2 = −½ (7 − 2) = −5/2     (client 2 was drawn three times, and trained once)
              h = ⅙ (5/8) + ⅓ (−5/2) = −35/48        with the new g and λ before its update
              Θ ← (0.75 + 3·7)/4 + 2·35/48 = 331/48
              Θ' = (1 + 3·6)/4 = 4.75, v = ½ (4.75², 1.25², 5.25²); λ as in DRFA's test: (1/4, 49/192, 95/192)
    Round 2   client 1, g = 0:     331/48, 619/96, then 811/128
              client 2, g = −5/2:  331/48, 691/96, then 931/128
              g_1 = −½ (811/128 − 331/48) = 215/768, g_2 = −5/2 − ½ (931/128 − 331/48) = −2065/768
              h = ¼ (5/8) + (49/192)(215/768) + (95/192)(−2065/768) = −6775/6144     client 0 counts, though away
              Θ ← ½ (811 + 931)/128 + 2·6775/6144 = 27679/3072
              Θ' = ½ (619 + 691)/96 = 655/96; λ + v/32 = (0.9774, 0.2658, 0.6525): (2035, 0, 1037)/3072
    """
    _, (first, last) = quadratic_play(DRDM(alpha=0.5, gamma=1 / 64), **THREE)
    assert first["L2"][:, 0].tolist() == pytest.approx([0.75, 7])
    assert first["state/g"][:, 0].tolist() == pytest.approx([5 / 8, 0, -5 / 2])
    assert first["state/h"].item() == pytest.approx(-35 / 48)
    assert first["G"].item() == first["L1"].item() == pytest.approx(331 / 48)
    assert first["state/lam"].tolist() == pytest.approx([1 / 4, 49 / 192, 95 / 192])
    assert last["L2"][:, 0].tolist() == pytest.approx([811 / 128, 931 / 128])
    assert last["state/g"][:, 0].tolist() == pytest.approx([5 / 8, 215 / 768, -2065 / 768])
    assert last["state/h"].item() == pytest.approx(-6775 / 6144)
    assert last["G"].item() == pytest.approx(27679 / 3072)
    assert last["state/lam"].tolist() == pytest.approx([2035 / 3072, 0, 1037 / 3072])


def test_feddyns_term_by_hand():
    """The same with h: feddyn, over all N = 3, each client of the cohort once.

    Round 1   h = −(½/3)((0.75 − 2) + (7 − 2)) = −5/8        Θ ← 5.4375 + 2·5/8 = 107/16
    Round 2   client 1: 107/16, 203/32, 801/128    client 2: 107/16, 227/32, 921/128
              h = −5/8 − (½/3)((801/128 − 107/16) + (921/128 − 107/16)) = −245/384
              Θ ← ½ (801 + 921)/128 + 2·245/384 = 3073/384
    """
    _, (first, last) = quadratic_play(DRDM(alpha=0.5, gamma=1 / 64, h="feddyn"), **THREE)
    assert first["state/h"].item() == pytest.approx(-5 / 8)
    assert first["G"].item() == pytest.approx(107 / 16)
    assert last["L2"][:, 0].tolist() == pytest.approx([801 / 128, 921 / 128])
    assert last["state/h"].item() == pytest.approx(-245 / 384)
    assert last["G"].item() == pytest.approx(3073 / 384)
    assert last["state/lam"].tolist() == pytest.approx([1985 / 3072, 0, 1087 / 3072])
    assert last["state/g"].mean().item() == pytest.approx(-245 / 384)  # h = (1/N) Σ g_k


def test_a_snapshot_of_the_last_step():
    """t' = τ = 2 (drawn in round 3, t = 2): one tensor is the model and the snapshot; λ as from Θ' = mean θ_k.

    Round 3 alone, everyone: θ_k as in round 1 above, and of client 1 2, 4, 4 − ½ (4 − 6 + ½ (4 − 2)) = 4.5.
    Θ' = (0.75 + 4.5 + 7)/3 = 49/12, v = ½ ((49/12)², (23/12)², (71/12)²), λ = (1/6, 1/2, 1/3) + (v − mean v)/32.
    """
    training = Training(local_epochs=None, local_steps=2, batch_size=None, lr=0.5, precision="float64")
    play = MethodSimulation(quadratic_task([0, 6, 10], [1, 3, 2], start=2), DRDM(alpha=0.5, gamma=1 / 64), training)
    play.t = 2
    assert int(play.at([0]).rng("snapshot").integers(1, 3)) == 2
    values = play.round()
    assert values["L2"][:, 0].tolist() == pytest.approx([0.75, 4.5, 7])
    v = torch.tensor([49, 23, 71], dtype=torch.float64).square() / 288
    expected = torch.tensor([1 / 6, 1 / 2, 1 / 3], dtype=torch.float64) + (v - v.mean()) / 32
    assert values["state/lam"].tolist() == pytest.approx(expected.tolist())


TRIANGLE = [[0, 0], [4, 0], [1, 3], [2, 0]]


def test_where_it_comes_to_rest():
    """On F_k(w) = ½ ‖w − b_k‖², everyone drawn once a round, everyone in the second cohort.

    h: dual     min max F_k is the centre of the smallest circle around the b_k: for (0, 0), (4, 0), (1, 3) the
                circumcentre, x = 2 and 4 + y² = 1 + (y − 3)², so (2, 1); (2, 0) lies within. Σ λ_k (Θ − b_k) = 0 gives
                λ = (1/4, 5/12, 1/3, 0).
    h: feddyn   the mean of the b_k, (7/4, 3/4): neither the robust optimum, nor one weighted by n_k or by λ.
    """
    robust = quadratic_play(DRDM(alpha=1, gamma=1 / 64), TRIANGLE, [4, 1, 2, 3], steps=2, lr=0.3, rounds=60)[0].state
    assert robust["central"].tolist() == pytest.approx([2, 1], abs=1e-4)
    assert robust["lam"].tolist() == pytest.approx([1 / 4, 5 / 12, 1 / 3, 0], abs=1e-4)
    assert robust["h"].abs().max() < 1e-4

    average = DRDM(alpha=1, gamma=1 / 64, h="feddyn")
    state = quadratic_play(average, TRIANGLE, [4, 1, 2, 3], steps=2, lr=0.3, rounds=60)[0].state
    assert state["central"].tolist() == pytest.approx([7 / 4, 3 / 4], abs=1e-4)
    assert state["lam"].max() > 0.45  # λ moves on, to no effect


def test_a_ball_holds_the_local_models_but_not_the_central_one():
    """Radius 5 in the plane, b = (6, 8), (2, 0), Θ = 0, two steps at η = ½, α = ½.

    Client 0: (3, 4), of norm 5, stays; then w − ½ (w − b + ½ w) = (15/4, 5), of norm 6.25, becomes (3, 4).
    Client 1: (1, 0), (5/4, 0), within the ball all the time.
    g = −½ (3, 4), −½ (5/4, 0), h = ½ (g_0 + g_1), Θ = ½ (17/4, 4) + ½ (17/4, 4), of norm 5.8.
    """
    _, (only,) = quadratic_play(DRDM(alpha=0.5, radius=5), [[6, 8], [2, 0]], steps=2, rounds=1)
    assert only["L2"].tolist() == [pytest.approx([3, 4]), pytest.approx([5 / 4, 0])]
    assert only["G"].tolist() == pytest.approx([17 / 4, 4])
    _, (free,) = quadratic_play(DRDM(alpha=0.5), [[6, 8], [2, 0]], steps=2, rounds=1)
    assert free["L2"].tolist() == [pytest.approx([15 / 4, 5]), pytest.approx([5 / 4, 0])]


def round_with_a_step_beyond_the_ball():
    """Radius 5, b = (4, 0), Θ = 0, λ = (½, ½), two steps at η = 3/2, α = ½, τγ = 1/32; t' is drawn as 1.

    Client 0: 0 − 3/2 (0 − 4) = 6, projected 5; then 5 − 3/2 ((5 − 4) + ½ (5 − 0)) = −1/4, inside the ball.
    Client 1: stays at 0, its own optimum and Θ.
    """
    training = Training(local_epochs=None, local_steps=2, batch_size=None, lr=1.5, precision="float64")
    play = MethodSimulation(quadratic_task([4, 0]), DRDM(alpha=0.5, gamma=1 / 64, radius=5), training)
    assert int(play.at([0, 1]).rng("snapshot").integers(1, 3)) == 1
    return play.round()


def test_each_local_step_is_projected_by_hand():
    """θ_0 = −1/4; with a projection after the last step only it would be 6 − 3/2 ((6 − 4) + ½·6) = −3/2.

    g_0 = −½ (−1/4) = 1/8, h = ½·1/8 = 1/16, Θ = ½ (−1/4 + 0) − 2/16 = −1/4.
    """
    values = round_with_a_step_beyond_the_ball()
    assert values["L2"][:, 0].tolist() == pytest.approx([-1 / 4, 0])
    assert values["state/g"][:, 0].tolist() == pytest.approx([1 / 8, 0])
    assert values["G"].item() == pytest.approx(-1 / 4)


def test_the_snapshot_is_projected_by_hand():
    """Θ' = ½ (5 + 0) = 5/2, v = ½ ((3/2)², (5/2)²) = (9/8, 25/8), λ = ½ + (v − mean v)/32 = ½ ∓ 1/32.

    Before the projection θ'_0 is 6: then Θ' = 3, v = (1/2, 9/2) and λ = ½ ∓ 1/16.
    """
    values = round_with_a_step_beyond_the_ball()
    assert values["state/lam"].tolist() == pytest.approx([15 / 32, 17 / 32])


@pytest.mark.parametrize("h", ["dual", "feddyn"])
def test_lambda_stays_on_the_simplex_and_h_is_what_it_says(h):
    training = Training(rounds=4, local_epochs=None, local_steps=2, batch_size=2, lr=0.1, precision="float64")
    for seed in range(3):
        play = MethodSimulation(ragged_task(seed=seed), DRDM(gamma=0.5, alpha=0.3, h=h), training, stack=5, seed=seed)
        play.trainer.task = replace(play.task, cohort_size=3)
        for play.t in range(4):
            before = play.state["lam"]
            drawn = play.method.cohort(play.state, play.trainer.task, rng.generator(seed, "cohort", play.t))
            values = play.round(drawn.tolist())
            lam, weights = values["state/lam"], before if h == "dual" else torch.full_like(before, 1 / 5)
            assert len(drawn) == 3 and bool((before[drawn] > 0).all())
            assert lam.min() >= 0 and lam.sum().item() == pytest.approx(1, abs=1e-12)
            torch.testing.assert_close(values["state/h"], weights @ values["state/g"], rtol=0, atol=1e-12)


def test_traffic():
    """P = 1: Θ down, θ_k and θ'_k up; and Θ' to the second cohort's three clients, shared by two."""
    play, _ = quadratic_play(DRDM(), [0, 6, 10], rounds=1)
    r = play.at([0, 2, 2])
    play.method.round(play.state, r)
    assert (r.traffic.up, r.traffic.down) == (2, 1 + 3 / 2)


def test_epochs_and_drawn_participation_are_refused():
    assert Experiment.of("drdm", dataset="digits").training.local_steps == 5
    with pytest.raises(PflOpsError, match=r"drdm needs training\.local_steps set.*snapshot"):
        Experiment.of("drdm", **{"training.local_epochs": 1})
    with pytest.raises(PflOpsError, match=r"participation\.kind=uniform.*drawn by λ.*dirichlet"):
        Experiment.of("drdm", **{"participation.kind": "dirichlet"})


class TestContract(AlgorithmContract):
    algorithm = DRDM(gamma=0.05)
    pairs: ClassVar = {"radius": (DRDM(), DRDM(radius=0.5))}
