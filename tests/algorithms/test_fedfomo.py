from typing import ClassVar

import numpy as np
import pytest
import torch

from pfl_ops import rng
from pfl_ops.algorithms.fedfomo import FedFomo, _distances
from pfl_ops.data.clients import Pool
from pfl_ops.federation.method.contract import Share
from pfl_ops.federation.method.walk import Keys
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, Federation, MethodSimulation, quadratic_play, quadratic_task


def test_two_rounds_by_hand():
    """F_k(w) = ½ (w − b_k)² on every sample, so on both parts of the data; one full-batch step a round, η = ½.

    Clients: b = (0, 6, 10), n = (5, 9, 2), each a candidate of each (M = 3). θ_k = 2 at the start.

    Round 1   θ = 1, 4, 6 (uploaded; G = 11/3, plain). From θ^old = 2, distances 1, 2, 4:
              client 0, F^old = 2:   w = (2 − ½)/1, (2 − 8)/2, (2 − 18)/4        = 1.5, −3, −4   its own alone: 1
              client 1, F^old = 8:   w = (8 − 12.5)/1, (8 − 2)/2, (8 − 0)/4      = −4.5, 3, 2    2 + 0.6·2 + 0.4·4 = 4.8
              client 2, F^old = 32:  w = (32 − 40.5)/1, (32 − 18)/2, (32 − 8)/4  = −8.5, 7, 6    (7·4 + 6·6)/13 = 64/13
    Round 2   θ^old = 1, 4.8, 64/13, so θ = ½, 5.4, 97/13.
              client 0: its own only: ½.   client 1: 97/13 is worse than 4.8: its own, 5.4.
              client 2, F^old = ½(66/13)²: w_1 = (F^old − ½·4.6²)/(5.4 − 64/13), w_2 = (F^old − ½(33/13)²)/(33/13).
    """
    play, (first, last) = quadratic_play(FedFomo(candidates=3), [0, 6, 10], [5, 9, 2], start=2)
    assert first["L2"][:, 0].tolist() == pytest.approx([1, 4, 6])
    assert first["G"].item() == pytest.approx(11 / 3)
    assert first["L1"][:, 0].tolist() == pytest.approx([1, 4.8, 64 / 13])
    affinity = first["state/affinity"]
    assert affinity.tolist() == [pytest.approx(row) for row in ([1.5, -3, -4], [-4.5, 3, 2], [-8.5, 7, 6])]

    old = 0.5 * (66 / 13) ** 2
    w_1 = (old - 0.5 * 4.6**2) / (5.4 - 64 / 13)
    w_2 = (old - 0.5 * (33 / 13) ** 2) / (33 / 13)
    assert last["L2"][:, 0].tolist() == pytest.approx([0.5, 5.4, 97 / 13])
    assert last["L1"][:, 0].tolist() == pytest.approx([0.5, 5.4, (5.4 * w_1 + 97 / 13 * w_2) / (w_1 + w_2)])
    assert last["state/affinity"][2, 1:].tolist() == pytest.approx([7 + w_1, 6 + w_2])
    assert play.state["affinity"].base.tolist() == [0, 0, 0]


def test_none_better_keeps_the_old_model():
    """η = 3 overshoots: |θ_k − b_k| = 2 |θ^old − b_k|, and the other's model is no better; L2 is the trained one."""
    _, (only,) = quadratic_play(FedFomo(), [0, 4], start=2, lr=3, rounds=1, sizes=[2, 2])
    assert only["L2"][:, 0].tolist() == pytest.approx([-4, 8])
    assert only["L1"][:, 0].tolist() == [2, 2]


def test_negative_weights_of_the_authors_code():
    """`test_two_rounds_by_hand`'s first round with w / |Σ w| and no clipping: 2 + Σ w_kj (θ_j − 2) / |Σ w|.

    client 0: w = 1.5, −3, −4, |Σ| = 5.5:  2 + (−1.5 − 6 − 16)/5.5
    client 1: w = −4.5, 3, 2, |Σ| = ½:     2 + (4.5 + 6 + 8)/½ = 39
    client 2: w = −8.5, 7, 6, |Σ| = 4.5:   2 + (8.5 + 14 + 24)/4.5
    """
    method = FedFomo(candidates=3, normalise="absolute")
    _, (only,) = quadratic_play(method, [0, 6, 10], [5, 9, 2], start=2, rounds=1)
    assert only["L1"][:, 0].tolist() == pytest.approx([2 - 23.5 / 5.5, 39, 2 + 46.5 / 4.5])


def test_absolute_weights_step_away_where_none_is_better():
    """`test_none_better_keeps_the_old_model` with w / |Σ w|: client 0 has θ = −4 and 8, w = −1 and −5, −1/6 and −5/6:
    2 − (−6)/6 − 5 · 6/6 = −2, not θ^old = 2; client 1 likewise 6. With `fallback: trained` they keep −4 and 8."""
    for fallback, kept in (("old", [-2, 6]), ("trained", [-4, 8])):
        method = FedFomo(normalise="absolute", fallback=fallback)
        _, (only,) = quadratic_play(method, [0, 4], start=2, lr=3, rounds=1, sizes=[2, 2])
        assert only["L1"][:, 0].tolist() == pytest.approx(kept)


def test_where_none_is_better_a_library_keeps_the_trained_model():
    _, (only,) = quadratic_play(FedFomo(fallback="trained"), [0, 4], start=2, lr=3, rounds=1, sizes=[2, 2])
    assert only["L1"][:, 0].tolist() == pytest.approx([-4, 8])
    mixed, plain = (
        quadratic_play(FedFomo(candidates=3, fallback=f), [0, 6, 10], [5, 9, 2], start=2, rounds=1)[1][0]["L1"]
        for f in ("trained", "old")
    )
    torch.testing.assert_close(mixed, plain)


def test_only_models_of_this_round_are_mixed():
    """Client 2 has what client 1 wants, but is away: 1 keeps its own step, 2 + ½·4 = 4."""
    _, (only,) = quadratic_play(FedFomo(), [0, 6, 6], [2, 2, 2], start=2, rounds=1, cohorts=[[0, 1]])
    assert only["L1"][:, 0].tolist() == pytest.approx([1, 4, 2])
    assert only["state/affinity"][1].tolist() == pytest.approx([-4.5, 3, 0])


def test_it_trains_on_one_part_and_judges_on_the_other():
    """One client, five samples, four to train on: θ = their mean (η = 1), w = (F^val(0) − F^val(θ))/θ on the fifth."""
    x = torch.tensor([1.0, 2, 4, 8, 16], dtype=torch.float64)[:, None]
    task = quadratic_task([0.0])
    federation = Federation(task.network, Pool(x, torch.zeros(5, dtype=torch.int64), [torch.arange(5)]), 1, task.loss)
    play = MethodSimulation(federation, FedFomo(), Training(rounds=1, batch_size=None, lr=1, precision="float64"))
    values = play.round()
    fifth = play.trainer.positions(0, Share(0.8, 1), Keys(0, "train", 0))
    assert len(fifth) == 1
    b = x[fifth[0]].item()
    theta = (31 - b) / 4
    assert values["L2"].item() == pytest.approx(theta)
    assert values["state/affinity"].item() == pytest.approx((b**2 / 2 - (theta - b) ** 2 / 2) / theta)


def test_a_client_with_one_sample_has_none_to_judge_on():
    _, (only,) = quadratic_play(FedFomo(), [0, 6], [1, 4], start=2, rounds=1)
    assert only["L1"][:, 0].tolist() == pytest.approx([2, 4])
    assert only["state/affinity"][0].tolist() == [0, 0]


def test_distances_are_euclidean():
    theta, old = torch.tensor([[3.0, 4], [0, 0]]), torch.tensor([[0.0, 0], [6, 8]])
    assert _distances(theta, torch.tensor([[0, 1], [1, 0]]), old).tolist() == [[5, 0], [10, 5]]
    assert _distances(theta, torch.tensor([[0, 1], [1, 0]]), old, "l1").tolist() == [[7, 0], [14, 7]]


# -- candidates -------------------------------------------------------------------------------------------------------


def test_the_best_by_affinity_come_first():
    affinity = torch.tensor([[1.0, 5, 7, 6], [9, 1, 8, 2], [0, 1, 2, 3], [-1, -3, -2, 1]])
    who = FedFomo(candidates=3)._draw(affinity, 0.0, rng.generator(0, "test"))
    assert who.tolist() == [[0, 2, 3], [1, 0, 2], [2, 3, 1], [3, 0, 2]]  # itself first, however low


def test_ties_are_drawn_at_random():
    """In the first round P is the identity: every other client is picked about as often."""
    generator = rng.generator(0, "test")
    draws = [FedFomo(candidates=2)._draw(torch.eye(5), 0.0, generator)[0, 1].item() for _ in range(400)]
    assert np.bincount(draws, minlength=5)[1:].min() > 70 and 0 not in draws


def test_exploring():
    """With probability ε a place goes to anyone: of 400, the best of four (affinity 9) gets 1 − ε + ε/4."""
    generator, affinity = rng.generator(0, "test"), torch.tensor([[1.0, 9, 8, 7, 6]])
    draws = [FedFomo(candidates=2)._draw(affinity, 0.4, generator)[0, 1].item() for _ in range(400)]
    assert draws.count(1) == pytest.approx(400 * 0.7, abs=30)
    assert min(draws.count(j) for j in (2, 3, 4)) > 20


def test_exploring_fades(monkeypatch):
    """max(0, 0.3 − 0.05 t), t from 0."""
    seen = []
    draw = FedFomo._draw
    monkeypatch.setattr(FedFomo, "_draw", lambda self, p, e, g: (seen.append(e), draw(self, p, e, g))[1])
    quadratic_play(FedFomo(), [0, 6], rounds=8)
    assert seen == pytest.approx([0.3, 0.25, 0.2, 0.15, 0.1, 0.05, 0, 0])


def test_affinity_starts_as_the_identity(monkeypatch):
    """If no client has been judged, a client's own entry is 1, the others' 0; and it is the cohort's part of P."""
    seen = []
    monkeypatch.setattr(
        FedFomo, "_draw", lambda self, p, e, g: (seen.append(p.clone()), torch.tensor([[0, 1], [1, 0]]))[1]
    )
    quadratic_play(FedFomo(), [0, 6, 4], [2] * 3, start=2, cohorts=[[0, 1], [1, 2]])
    assert seen[0].tolist() == [[1, 0], [0, 1]]
    assert seen[1].tolist() == [[1 + 3, 0], [0, 1]]  # client 1 has judged itself: (8 − 2)/2


def test_traffic():
    """One model up; of M = 3 candidates two come from others, of a cohort of two only one."""
    play, _ = quadratic_play(FedFomo(candidates=3), [0, 6, 3, 4], [2] * 4, rounds=1)
    for cohort, down in (([0, 1, 2, 3], 2), ([0, 1], 1)):
        r = play.at(cohort)
        play.method.round(play.state, r)
        assert (r.traffic.up, r.traffic.down) == (1, down)


def test_a_server_that_sends_the_own_model_too_sends_one_more():
    """All M = 3 candidates come from the server, of a cohort of two both; nothing that is computed changes."""
    clients, sizes = [0, 6, 10], [5, 9, 2]
    play, scores = quadratic_play(FedFomo(candidates=3, own="sent"), clients, sizes, start=2)
    for cohort, down in (([0, 1, 2], 3), ([0, 1], 2)):
        r = play.at(cohort)
        play.method.round(play.state, r)
        assert (r.traffic.up, r.traffic.down) == (1, down)
    _, kept = quadratic_play(FedFomo(candidates=3), clients, sizes, start=2)
    for one, other in zip(scores, kept, strict=True):
        assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


class TestContract(AlgorithmContract):
    algorithm = FedFomo(candidates=3, explore=0.5)
    pairs: ClassVar = {
        "fallback": tuple(FedFomo(candidates=1, fallback=f) for f in ("old", "trained")),
        "explore_decay": tuple(FedFomo(candidates=2, explore=1, explore_decay=decay) for decay in (0, 1)),
    }
