from typing import ClassVar

import pytest
import torch

from pfl_ops.algorithms.descent_direction import common_descent
from pfl_ops.algorithms.fedpg import SFedPG
from pfl_ops.algorithms.solvers import gram
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic_play, quadratic_task


def one_round(method, centres, lr, sizes=None):
    """F_k = ½ ‖w − b_k‖² at Θ = 0, one full-batch step of η: g_k = −b_k, whatever η."""
    play, (only,) = quadratic_play(method, centres, sizes, lr=lr, rounds=1)
    return play, only


def test_one_client_by_hand():
    """d = −g, L(Θ + η d) = (1 − η)² L, so Eq. 9 is (1 − η)² <= 1 − 2 β η: η <= 2 (1 − β).

    From 8·0.3: 2.4, then 1.2, which is taken for β = 0.3 (1.4), and 0.6 for β = 0.45 (1.1). v_k takes the same.
    """
    for beta, eta in ((0.3, 1.2), (0.45, 0.6)):
        _, only = one_round(SFedPG(halvings=3, armijo=beta), [[6.0, -2]], 0.3)
        assert only["G"].tolist() == only["L1"][0].tolist() == pytest.approx([6 * eta, -2 * eta])
        assert only["L2"][0].tolist() == pytest.approx([6 * 0.3, -2 * 0.3])


THREE = [[-1.0, -0.1], [-1.0, -0.1], [1.0, -0.1]]
"""g = (1, 0.1) twice and (−1, 0.1): Qᵀλ = (0, 0.1), mean g = (⅓, 0.1), σ = √109/3 = 3.480; d = (0, −0.1 σ).

L_k(Θ + η d) = ½ (1 + 0.01 (1 − η σ)²): Eq. 9 is η <= 2 (1 − β)/σ = 0.5747 (1 − β), for each of the three.
"""
SIGMA = 109**0.5 / 3


@pytest.mark.parametrize(
    ("options", "lr", "eta"),
    [
        ({"halvings": 2, "armijo": 0.1}, 0.5, 0.5),  # 2, 1, 0.5 <= 0.517; the bound is ¼·0.5·σ = 0.435
        ({"halvings": 2, "armijo": 0.1, "failing": "last"}, 1.0, 1.0),  # 4, 2, 1; 0.5 < ¼·σ = 0.87: the last one tried
        ({"halvings": 3, "armijo": 0.9, "failing": "last"}, 1.0, 0.5),  # down to 0.5, all > 0.0575; 0.25 < σ/8 = 0.435
        ({"halvings": 2, "armijo": 0.1, "bound": "code"}, 1.0, 0.5),  # 0.5 > ¼/σ = 0.072, and 0.5 <= 0.517
        ({"halvings": 2, "armijo": 0.9, "bound": "code"}, 1.0, 0.5),  # down to 0.125; the largest that lowers Σ L_k
        ({"halvings": 2, "armijo": 0.9, "bound": "code", "failing": "last"}, 1.0, 0.125),  # 0.0625 < ¼/σ
        ({"halvings": 0, "armijo": 0.1, "bound": "code"}, 4.0, 2.0),  # 4, 2; 1 < 4/σ; none lowers it: 2 raises it least
    ],
)
def test_where_the_search_ends_by_hand(options, lr, eta):
    _, only = one_round(SFedPG(fair=False, **options), THREE, lr)
    assert only["G"].tolist() == pytest.approx([0, -0.1 * eta * SIGMA])


def unfair(losses):
    return -losses.sum() / losses.norm() / len(losses) ** 0.5


def test_the_step_taken_helps_all_and_twice_it_does_not():
    """Eq. 9 once more, on random federations; in some of them only fairness asks for a shorter step."""
    beta, lr, ended, by_fairness = 0.2, 2**-5, 0, 0
    draws = torch.Generator().manual_seed(0)
    for _ in range(60):
        b = torch.randn(3, 4, dtype=torch.float64, generator=draws) + 2
        losses = b.square().sum(dim=1) / 2
        way = common_descent(gram(-b), losses)
        d, slopes = way.weights @ -b, torch.autograd.functional.jacobian(unfair, losses)
        _, only = one_round(SFedPG(halvings=5, armijo=beta, failing="last"), b.tolist(), lr)
        eta = float(only["G"] @ d / (d @ d))
        torch.testing.assert_close(only["G"], eta * d)

        def helps(step, b=b, d=d, before=losses, slopes=slopes):
            after = (step * d - b).square().sum(dim=1) / 2
            each = bool((after <= before + beta * step * (-b @ d)).all())
            return each, bool(unfair(after) <= unfair(before) + beta * step * ((slopes @ -b) @ d))

        if way.fair is None:
            continue
        if eta < 32 * lr - 1e-9:
            each, fair = helps(2 * eta)
            assert not (each and fair)
            by_fairness += each
        if not all(helps(eta)):
            assert eta / 2 < lr / 32 * way.sigma
            ended += 1
    assert by_fairness > 3 and ended < 10


def test_fairness_is_asked_for_only_while_it_is_a_row():
    """b = 2, 3 on a line: both gradients point one way and ∇F the other, so that it was dropped; d = 2.5.

    Eq. 9 for the losses is η <= 2 (1 − β) b/d, 1.6 (1 − β) for client 0: of 4·0.2 the first is taken, Θ = 2. There F
    has risen, from −6.5/√48.5 to −1/√2 (L = 0, ½), and would at any shorter step.
    """
    _, only = one_round(SFedPG(halvings=2, armijo=0.1), [[2.0], [3.0]], 0.2)
    assert only["G"].tolist() == pytest.approx([2])


def test_clients_without_a_gradient_do_not_limit_the_step():
    """Client 0 is at its optimum, b = Θ = 0: g_0 = 0, and every step raises L_0 from 0. Eq. 9 asks the others only.

    One other client, b = 4, whose ∇F is zero (C = 1): as in the first test, of 2.4 and 1.2 the second is taken,
    for (1 − η)² <= 1 − 2·0.3 η up to η = 1.4. With a condition on client 0 no step passes.
    """
    _, only = one_round(SFedPG(halvings=3, armijo=0.3), [[0.0], [4.0]], 0.3)
    assert only["G"].tolist() == pytest.approx([4 * 1.2])


def test_fairness_leaves_out_clients_without_a_gradient():
    """Client 0 at its optimum, b_1 = (5, 0), b_2 = 6·(0.6, 0.8), Θ = 0: L = 0, 12.5, 18, g = −b.

    −∇F ~ 12.5 b_2 − 18 b_1 ~ (−0.6, 0.8). Of the ways (1, 0), (0.6, 0.8), (−0.6, 0.8) the first and the last are
    outermost: d halves their angle, as long as mean g = −(4.3, 2.4): d = k (1, 2), k = √(24.25/5). The search tries
    4·⅛ = ½, then ¼, with L_1 = 12.5 − 5 k η + 12.125 η² and L_2 = 18 − 13.2 k η + 12.125 η²:

        each: L_1 <= 12.5 − 5 k β η up to η = 0.908 (1 − β), 0.82 for β = 0.1, and L_2 even farther
        F = −0.984 at 0, −0.978 at ½, −0.999 at ¼: ½ is refused, for fairness alone, and ¼ is taken

    Over three clients F would fall from −0.80 to −0.92 at ½, for L_0 = 12.125 η² comes closer to the others.
    """
    k = 4.85**0.5

    def losses(eta):
        return torch.tensor(
            [12.125 * eta**2, 12.5 - 5 * k * eta + 12.125 * eta**2, 18 - 13.2 * k * eta + 12.125 * eta**2],
            dtype=torch.float64,
        )

    assert [float(unfair(losses(eta)[1:])) for eta in (0, 0.5, 0.25)] == pytest.approx(
        [-0.984, -0.978, -0.999], abs=1e-3
    )
    assert [float(unfair(losses(eta))) for eta in (0, 0.5)] == pytest.approx([-0.80, -0.92], abs=1e-2)
    _, only = one_round(SFedPG(halvings=2, armijo=0.1), [[0.0, 0], [5.0, 0], [3.6, 4.8]], 0.125)
    assert only["G"].tolist() == pytest.approx([k / 4, k / 2])


def sent(method, centres, lr):
    """The bytes that a client of round 1 sends and receives."""
    play = MethodSimulation(quadratic_task(centres), method, Training(batch_size=None, lr=lr, precision="float64"))
    r = play.at(play.everyone)
    play.method.round(play.state, r)
    return [r.traffic.up, r.traffic.down]


def test_traffic():
    """As fedpg, Θ and d down, and a number each way for each step tried: two in the example by hand, P = 2."""
    assert sent(SFedPG(halvings=3, armijo=0.3), [[6.0, -2]], 0.3) == [2 + 1 + 2, 4 + 1 + 2]


def test_no_direction_needs_no_search():
    """Clients that only disagree: Θ stays, and nothing is tried."""
    _, only = one_round(SFedPG(), [[2.0], [-1.0]], 0.5)
    assert only["G"].tolist() == [0]
    assert sent(SFedPG(), [[2.0], [-1.0]], 0.5) == [1 + 1, 2 + 1]


class TestContract(AlgorithmContract):
    algorithm = SFedPG(gamma=0.05, halvings=2)
    pairs: ClassVar = {
        "gamma": (SFedPG(), SFedPG(gamma=0.7)),
        "scale": (SFedPG(scale="code"), SFedPG(scale="paper")),
        "armijo": (SFedPG(armijo=0.05), SFedPG(armijo=0.95)),
        "bound": (SFedPG(armijo=0.9, failing="last"), SFedPG(armijo=0.9, failing="last", bound="code")),
        "failing": (SFedPG(armijo=0.9), SFedPG(armijo=0.9, failing="last")),
    }
