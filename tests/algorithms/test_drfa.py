from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from pfl_ops import Experiment, rng
from pfl_ops.algorithms.drfa import DRFA
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic_play, quadratic_task, ragged_task

COHORTS = [[0, 2, 2, 2], [1, 2], [0, 1, 1]]


def snapshots(play, tau, rounds):
    """The t' that the server draws."""
    found = []
    for play.t in range(rounds):
        found.append(int(play.at([0]).rng("snapshot").integers(1, tau + 1)))
    return found


def test_three_rounds_by_hand():
    """F_k(w) = ½ (w − b_k)², τ = 2 full-batch steps, η = ½: w − b_k halves at each. γ = 1/64, so τγ = 1/32.

    Clients: b = (0, 6, 10), n = (1, 3, 2), so λ = (1/6, 1/2, 1/3). Θ = 2. Everyone is in the second cohort (m = N).
    Cohorts {0, 2, 2, 2}, {1, 2}, {0, 1, 1}; t' is drawn as 1, 1, 2.

    Round 1   θ = 0.5, 8         Θ ← (0.5 + 3·8)/4 = 6.125             a client that was drawn three times counts so
              θ' = 1, 6          Θ' = (1 + 3·6)/4 = 4.75               after one step
              v = ½ (4.75², 1.25², 5.25²) = (361, 25, 441)/32
              λ + v/32 = (0.5192, 0.5244, 0.7640), sum 1.8076; each less 0.2692: (1/4, 49/192, 95/192)
    Round 2   θ = 193/32, 289/32   Θ ← 241/32      θ' = 97/16, 129/16   Θ' = 113/16
              v = ½ ((113/16)², (17/16)², (47/16)²)
              λ + v/32 = (1.0294, 0.2728, 0.6296): less 0.3295, where client 1 falls under 0: (1075, 0, 461)/1536
    Round 3   θ = 241/128, 817/128   Θ = Θ' = (241 + 2·817)/384 = 625/128   the snapshot is of the last step
              v = ½ ((625/128)², (143/128)², (655/128)²),  λ = (8375, 0, 3913)/12288
    """
    method = DRFA(gamma=1 / 64)
    play, (first, second, third) = quadratic_play(
        method, [0, 6, 10], [1, 3, 2], start=2, steps=2, rounds=3, cohorts=COHORTS
    )
    assert snapshots(play, 2, 3) == [1, 1, 2]
    assert first["L2"][:, 0].tolist() == pytest.approx([0.5, 8])
    assert first["G"].item() == first["L1"].item() == pytest.approx(6.125)
    assert first["state/lam"].tolist() == pytest.approx([1 / 4, 49 / 192, 95 / 192])
    assert second["L2"][:, 0].tolist() == pytest.approx([193 / 32, 289 / 32])
    assert second["G"].item() == pytest.approx(241 / 32)
    assert second["state/lam"].tolist() == pytest.approx([1075 / 1536, 0, 461 / 1536])
    assert third["G"].item() == pytest.approx(625 / 128)
    assert third["state/lam"].tolist() == pytest.approx([8375 / 12288, 0, 3913 / 12288])


def test_the_snapshot_is_anywhere_from_1_to_tau():
    play, _ = quadratic_play(DRFA(), [0, 6], steps=3)
    assert set(snapshots(play, 3, 30)) == {1, 2, 3}


def test_gamma_decays():
    """One step, so Θ' = Θ. b = (0, 6), Θ = 2: θ = 1, 4, Θ = 2.5, v = (3.125, 6.125), difference 3.

    λ moves by ½ γ·3 from each to each: (½, ½) to ½ ∓ 1.5 γ. Round 2: θ = 1.25, 4.25, Θ = 2.75, v = (121, 169)/32,
    difference 1.5, at γ/2.
    """
    _, (first, second) = quadratic_play(DRFA(gamma=0.1, gamma_decay=0.5), [0, 6], start=2)
    assert first["state/lam"].tolist() == pytest.approx([0.35, 0.65])
    assert second["state/lam"].tolist() == pytest.approx([0.35 - 0.0375, 0.65 + 0.0375])


def test_a_uniform_cohort_is_weighted_by_lambda():
    """Θ ← Θ + Σ λ_k (N/m)(θ_k − Θ): b = (0, 6, 10), n = (1, 3, 2), Θ = 2, one step: θ = 1, 6 of clients 0, 2.

    2 + (3/2)(⅙(1 − 2) + ⅓(6 − 2)) = 3.75: weights ¼ and ½, which do not sum to 1. Θ' is the plain mean, 3.5, so
    v = ½ (3.5², 2.5², 6.5²), and λ + v/64, shifted to sum 1, has no entry under 0.
    """
    _, (only,) = quadratic_play(
        DRFA(sampling="uniform", gamma=1 / 64), [0, 6, 10], [1, 3, 2], start=2, rounds=1, cohorts=[[0, 2]]
    )
    assert only["G"].item() == pytest.approx(3.75)
    v = np.array([3.5**2, 2.5**2, 6.5**2]) / 2
    assert only["state/lam"].tolist() == pytest.approx([1 / 6, 1 / 2, 1 / 3] + (v - v.mean()) / 64)


def test_clients_draw_snapshots_of_their_own():
    """τ = 3: after 0 or 1 steps each (its own t' in {1, 2}, the model before that step), so θ' = 2 or half way to b_k.

    λ tells which: with θ'_k, θ'_j of the two of the cohort, Θ' is their mean and v = ½ (Θ' − b)².
    """
    b = np.array([0.0, 6, 10])
    training = Training(local_epochs=None, local_steps=3, batch_size=None, lr=0.5, precision="float64")
    seen = set()
    for t in range(8):
        play = MethodSimulation(quadratic_task(b.tolist(), start=2), DRFA(snapshot="own", gamma=1 / 256), training)
        play.t = t
        at = play.at([0]).rng("snapshot").integers(0, 2, 3)
        theta = b + (2 - b) * 0.5**at
        v = (theta[[0, 2]].mean() - b) ** 2 / 2
        lam = play.round([0, 2])["state/lam"]
        expected = 1 / 3 + 3 * (v - v.mean()) / 256
        assert expected.min() > 0
        assert lam.tolist() == pytest.approx(expected)
        seen.add((int(at[0]), int(at[2])))
    assert len(seen) > 2, "all clients of a round have one t'"


def test_a_floor_lifts_the_first_that_is_low():
    """As round 2 above: (1075, 0, 461)/1536 has a 0, which becomes 0.05, and all is divided by 1.05."""
    _, rounds = quadratic_play(
        DRFA(gamma=1 / 64, floor=0.05), [0, 6, 10], [1, 3, 2], start=2, steps=2, cohorts=COHORTS[:2]
    )
    assert rounds[0]["state/lam"].tolist() == pytest.approx([1 / 4, 49 / 192, 95 / 192])
    expected = np.array([1075 / 1536, 0.05, 461 / 1536]) / 1.05
    assert rounds[1]["state/lam"].tolist() == pytest.approx(expected)
    low = torch.tensor([0.0, 0.02, 0.98])
    assert DRFA(floor=0.05)._floored(low).tolist() == pytest.approx((np.array([0.05, 0.02, 0.98]) / 1.05).tolist())


@pytest.mark.parametrize("gamma", [0.001, 0.1, 10.0])
def test_lambda_stays_on_the_simplex(gamma):
    training = Training(rounds=5, local_epochs=None, local_steps=2, batch_size=2, lr=0.3, precision="float64")
    for seed in range(4):
        play = MethodSimulation(ragged_task(seed=seed), DRFA(gamma=gamma), training, stack=5, seed=seed)
        play.trainer.task = replace(play.task, cohort_size=3)
        for play.t in range(5):
            drawn = play.method.cohort(play.state, play.trainer.task, rng.generator(seed, "cohort", play.t))
            assert len(drawn) == 3
            lam = play.round(drawn.tolist())["state/lam"]
            assert lam.min() >= 0 and lam.sum().item() == pytest.approx(1, abs=1e-12)


def test_its_cohorts():
    """By λ with replacement; as the authors' code uniformly and without."""
    play, _ = quadratic_play(DRFA(), [0, 6, 10], [1, 1, 8], rounds=1)
    state = {"lam": torch.tensor([0.0, 0.1, 0.9])}
    for t in range(20):
        clients = DRFA().cohort(state, play.task, rng.generator(0, "cohort", t)).tolist()
        assert len(clients) == 3 and set(clients) <= {1, 2}
        clients = DRFA(sampling="uniform").cohort(state, play.task, rng.generator(0, "cohort", t)).tolist()
        assert sorted(clients) == [0, 1, 2]


def test_a_whole_run_draws_by_lambda():
    """Digits, 8 clients, cohorts of 4: λ follows the losses, and the run is the same twice."""
    e = Experiment.of("drfa", dataset="digits", model="linear", clients=8, rounds=4, **{"participation.share": 0.5})
    states = []
    for _ in range(2):
        simulation = e.build(stages=(), final=False)
        assert len(list(simulation.run())) == 5
        states.append(simulation.state["lam"])
    assert torch.equal(*states)
    start = simulation.task.sizes / simulation.task.sizes.sum()
    assert (states[0] - start).abs().max() > 1e-3 and states[0].sum().item() == pytest.approx(1)


def test_traffic():
    """P = 1: Θ down, θ_k and θ'_k up; and Θ' to the second cohort's three clients, shared by two."""
    play, _ = quadratic_play(DRFA(), [0, 6, 10], rounds=1)
    r = play.at([0, 2, 2])
    play.method.round(play.state, r)
    assert (r.traffic.up, r.traffic.down) == (2, 1 + 3 / 2)


def test_what_it_cannot_do_is_refused():
    with pytest.raises(PflOpsError, match=r"drfa needs training\.local_steps set.*snapshot"):
        Experiment.of("drfa", **{"training.local_epochs": 1})
    with pytest.raises(PflOpsError, match=r"participation\.kind=uniform.*drawn by λ.*dirichlet"):
        Experiment.of("drfa", **{"participation.kind": "dirichlet"})
    with pytest.raises(PflOpsError, match=r"snapshot=own needs training\.local_steps >= 2, got 1"):
        quadratic_play(DRFA(snapshot="own"), [0, 6], rounds=1)


class TestContract(AlgorithmContract):
    algorithm = DRFA(gamma=0.05, gamma_decay=0.9)
    pairs: ClassVar = {"floor": (DRFA(gamma=1), DRFA(gamma=1, floor=0.1))}
