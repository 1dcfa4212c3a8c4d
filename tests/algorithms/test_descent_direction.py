"""FedPG's two small problems on random gradients: what its equations promise of every direction that it gives."""

import pytest
import torch

from pfl_ops.algorithms.descent_direction import (
    Direction,
    common_descent,
    fair_gradient,
    largest_drift,
    mean_descent,
    unfairness,
)
from pfl_ops.algorithms.solvers import gram


def tensor(*rows):
    return torch.tensor(rows, dtype=torch.float64)


def gradients(seed):
    """Rows of very different lengths around a common one, 1 to 8 of clients online and up to 5 others, and losses."""
    draws = torch.Generator().manual_seed(seed)
    clients, absent, p = (int(torch.randint(low, high, (), generator=draws)) for low, high in ((1, 9), (0, 6), (2, 13)))
    rows = torch.randn(clients + absent, p, dtype=torch.float64, generator=draws)
    rows = rows * torch.logspace(-1, 2, clients + absent, dtype=torch.float64)[:, None] + 2 * torch.randn(
        p, dtype=torch.float64, generator=draws
    )
    return rows, 0.1 + torch.rand(clients, dtype=torch.float64, generator=draws)


@pytest.mark.parametrize("fair", [True, False])
@pytest.mark.parametrize("scale", ["code", "paper"])
@pytest.mark.parametrize("seed", range(50))
def test_it_descends_for_every_row(seed, scale, fair):
    """d · q <= −σ ‖Qᵀλ‖² for each row q of the Q last solved, which holds every client's gradient and the absent ones';
    and d is as long as the mean gradient. Else 0 is (about) in their hull: the optimum's conditions, seen from outside.
    """
    rows, losses = gradients(seed)
    clients = len(losses)
    way = common_descent(gram(rows), losses, fair=fair, scale=scale)
    d = way.weights @ rows
    if not way.weights.any():
        assert len(rows) >= rows.shape[1], "0 is not in the hull of independent rows"
        return
    q = way.problem @ rows
    shortest = -d / way.sigma
    slack = 1e-9 * way.sigma * shortest.norm() * q.norm(dim=1)
    assert (q @ d <= -way.sigma * shortest @ shortest + slack).all()
    assert float(d.norm()) == pytest.approx(float(rows[:clients].mean(dim=0).norm()))
    assert (rows @ d < 0).all()
    if way.fair is not None:
        assert (way.fair @ rows) @ d < 0


@pytest.mark.parametrize("mean", [True, False])
@pytest.mark.parametrize("seed", range(50))
def test_a_personal_direction_never_ascends_for_another(seed, mean):
    """And γ_k is the largest: of a thousand other γ, none that is larger keeps all d_k · g_j <= 0.

    With d = −mean g (M1), which may ascend for somebody itself, γ_k = 0 where no γ keeps them.
    """
    rows, losses = gradients(seed)
    clients, products = len(losses), gram(rows)
    way = mean_descent(products, losses) if mean else common_descent(products, losses)
    d, g, gamma = way.weights @ rows, rows[:clients], largest_drift(way)
    grid = torch.linspace(0, 1, 1001, dtype=torch.float64)
    for k in range(clients):
        others = torch.arange(clients) != k
        rise = torch.lerp(d, -g[k], grid[:, None]) @ g[others].T / g[others].norm(dim=1)
        fine = (rise <= 1e-12 * d.norm()).all(dim=1)
        assert 0 <= gamma[k] <= 1
        assert not bool(fine[grid > gamma[k] + 1e-9].any())
        if bool(fine.any()):
            drifted = torch.lerp(d, -g[k], gamma[k])
            assert (drifted @ g[others].T <= 1e-9 * drifted.norm() * g[others].norm(dim=1)).all()
        if not mean:
            assert bool(fine[0]), "d itself descends for all"


@pytest.mark.parametrize("seed", range(10))
def test_the_fair_gradient_is_that_of_f(seed):
    """c_k = ∂F/∂L_k; F does not see a common factor, so Σ c_k L_k = 0."""
    losses = gradients(seed)[1].requires_grad_()
    (expected,) = torch.autograd.grad(unfairness(losses), losses)
    c = fair_gradient(losses.detach())
    torch.testing.assert_close(c, expected, rtol=1e-6, atol=1e-12)
    assert float(c @ losses.detach()) == pytest.approx(0, abs=1e-12)


def test_equal_losses_have_no_fair_gradient():
    for losses in (tensor(0.3).expand(7), tensor(0.1), tensor(0, 0)):
        assert fair_gradient(losses).tolist() == [0] * len(losses)
    rows = tensor([1, 0], [0, 1])
    assert common_descent(gram(rows), tensor(0.7, 0.7)).fair is None


def test_fairness_by_hand():
    """L = (3, 1), ‖L‖² = 10: F = −4/√20, c = (4·3/10 − 1, 4·1/10 − 1)/(√2 √10) = (0.2, −0.6)/√20."""
    losses = tensor(3, 1)
    assert float(unfairness(losses)) == pytest.approx(-4 / 20**0.5)
    assert fair_gradient(losses).tolist() == pytest.approx([0.2 / 20**0.5, -0.6 / 20**0.5])


def test_every_row_counts_alike():
    """However long its gradient, a client turns d as much: rows are scaled to μ. Only d's length sees it."""
    rows, longer = tensor([1, 0], [0, 1]), tensor([3, 0], [0, 1])
    one, other = (common_descent(gram(x), tensor(1, 1)).weights @ x for x in (rows, longer))
    assert one.tolist() == pytest.approx([-0.5, -0.5])  # as long as (½, ½)
    length = (1.5**2 + 0.5**2) ** 0.5
    assert other.tolist() == pytest.approx([-length / 2**0.5] * 2)


def test_scale_of_absent_rows():
    """g = (2, 0), absent (0, 1). `code`: both of length 2, d along −(1, 1). `paper`: the shortest between (2, 0) and
    (0, 1) is ⅕(2, 0) + ⅘(0, 1), d along −(1, 2). Both as long as g.
    """
    rows = tensor([2, 0], [0, 1])
    code, paper = (common_descent(gram(rows), tensor(1), scale=scale).weights @ rows for scale in ("code", "paper"))
    assert code.tolist() == pytest.approx([-(2**0.5), -(2**0.5)])
    assert paper.tolist() == pytest.approx([-2 / 5**0.5, -4 / 5**0.5])


def test_scale_of_the_fair_row():
    """g = (1, 0), (0, 1), L = (3, 1): ∇F = (0.2, −0.6)/√20 is 0.1·√2 long.

    `code`: ∇F as long as the g, along (1, −3)/√10; outermost are it and (0, 1): d halves their angle.
    `paper`: the shortest between (0, 1) and f = ∇F: λ_f = (e·(e − f))/‖e − f‖².
    """
    rows, losses = tensor([1, 0], [0, 1]), tensor(3, 1)
    f = torch.tensor([0.2, -0.6], dtype=torch.float64) / 20**0.5
    e = rows[1]
    for scale, expected in (
        ("code", -(e + f / f.norm())),
        ("paper", -(e + (e @ (e - f)) / ((e - f) @ (e - f)) * (f - e))),
    ):
        d = common_descent(gram(rows), losses, scale=scale).weights @ rows
        torch.testing.assert_close(d, expected / expected.norm() * 0.5**0.5, rtol=1e-9, atol=0)
    assert common_descent(gram(rows), losses, fair=False).weights.tolist() == pytest.approx([-0.5, -0.5])


def test_clients_that_agree_keep_going():
    """g_1 = g_2 and L_1 ≠ L_2: ∇F points along −g, 0 lies between the two; without ∇F d = −g."""
    rows = tensor([3, 4], [3, 4])
    way = common_descent(gram(rows), tensor(1, 2))
    assert (way.weights @ rows).tolist() == pytest.approx([-3, -4])
    assert way.fair is None and len(way.problem) == 2


def test_where_clients_only_disagree_nothing_moves():
    """g_1 = −2 g_2: Pareto-stationary, d = 0 exactly; and no client may drift, for that would hurt the other."""
    rows = tensor([2, 2], [-1, -1])
    way = common_descent(gram(rows), tensor(1, 2))
    assert way.weights.tolist() == [0, 0]
    assert largest_drift(way).tolist() == [0, 0]
    three = tensor([1, 0, 0], [0, 1, 0], [-1, -1, 0])
    assert common_descent(gram(three), tensor(1, 2, 3)).weights.tolist() == [0, 0, 0]


def test_gradients_of_length_zero_are_left_out_with_their_losses():
    """Client 1 has none: μ, mean g and F are those of clients 0 and 2; an absent row of zeros goes too."""
    rows = tensor([1, 0], [0, 0], [0, 2], [0, 0])
    way = common_descent(gram(rows), tensor(3, 100, 1))
    alone = common_descent(gram(rows[[0, 2]]), tensor(3, 1))
    torch.testing.assert_close(way.weights[[0, 2]], alone.weights, rtol=1e-12, atol=0)
    assert way.weights[[1, 3]].tolist() == [0, 0] and way.kept.tolist() == [True, False, True]
    assert mean_descent(gram(rows), tensor(3, 100, 1)).weights.tolist() == [-0.5, 0, -0.5, 0]
    assert largest_drift(way)[1] == 1  # drifts to where it is best: it stays at Θ
    short = tensor([2, 0], [0, 0], [0, 1])  # μ beside an absent row that is not scaled to it
    paper = common_descent(gram(short), tensor(3, 100), scale="paper").weights @ short
    assert paper.tolist() == pytest.approx([-2 / 5**0.5, -4 / 5**0.5])


def test_no_gradient_at_all():
    way = common_descent(torch.zeros(3, 3, dtype=torch.float64), tensor(1, 2))
    assert way.weights.tolist() == [0, 0, 0] and not way.kept.any()
    assert mean_descent(torch.zeros(3, 3, dtype=torch.float64), tensor(1, 2)).weights.tolist() == [0, 0, 0]


def test_drift_by_hand():
    """d = (1, 1) = −g_2, g_1 = (−1, ½), g_2 = (−1, −1), g_3 = (2, −3): a = d · g = (−½, −2, −1).

    k = 1: −g_1 − d = (0, −1.5), b_2 = 1.5, b_3 = 4.5: least of 2/1.5, 1/4.5: 2/9; without client 3: 4/3, so 1
    k = 2: −g_2 − d = 0: 1
    k = 3: −g_3 − d = (−3, 2), b_1 = 4, b_2 = 1: least of ½/4, 2/1: 1/8
    """
    rows = tensor([-1, 0.5], [-1, -1], [2, -3])
    for clients, expected in ((2, [1, 1]), (3, [2 / 9, 1, 1 / 8])):
        way = Direction(gram(rows), torch.ones(clients), tensor(0, -1, 0), torch.zeros(0, 3))
        assert largest_drift(way).tolist() == pytest.approx(expected)


def test_where_no_drift_fits_there_is_none():
    """d = (1, 0), −g_1 = (0, 1): g_2 = (1, −¼) asks for γ >= 0.8, g_3 = (−1, 4) for γ <= 0.2; without g_3: 1."""
    rows = tensor([0, -1], [1, -0.25], [-1, 4], [1, 0])
    way = Direction(gram(rows), torch.ones(3), tensor(0, 0, 0, 1), torch.zeros(0, 4))
    assert largest_drift(way)[0] == 0
    alone = Direction(gram(rows[[0, 1, 3]]), torch.ones(2), tensor(0, 0, 1), torch.zeros(0, 3))
    assert largest_drift(alone)[0] == 1
