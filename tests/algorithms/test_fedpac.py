import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

from pfl_ops.algorithms import fedpac
from pfl_ops.algorithms.fedpac import FedPAC, combination
from pfl_ops.data.clients import Pool
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, Federation, MethodSimulation, quadratic_play

SAMPLES = (  # (x, y) of each client
    [(1.0, 0), (2.0, 0), (-1.0, 1)],
    [(3.0, 1), (1.0, 0)],
    [(0.5, 1), (2.0, 1)],
)
A = np.array([1.0, -0.5])
H = np.array([[0.5, 0.2], [-0.3, 0.4]])
LR, HEAD_LR, LAM = 0.25, 0.5, 0.75


def federation(clients):
    """Features f = a x in two dimensions, scores H f: no bias anywhere."""
    network = nn.Module()
    network.body = nn.Sequential(nn.Linear(1, 2, bias=False, dtype=torch.float64))
    network.head = nn.Linear(2, 2, bias=False, dtype=torch.float64)
    with torch.no_grad():
        network.body[0].weight.copy_(torch.from_numpy(A[:, None]))
        network.head.weight.copy_(torch.from_numpy(H))
    x = torch.tensor([[x] for own in clients for x, _ in own], dtype=torch.float64)
    y = torch.tensor([y for own in clients for _, y in own])
    index = list(torch.arange(len(x)).split([len(own) for own in clients]))
    return Federation(network, Pool(x, y, index), 2)


def training(**how):
    return Training(**{"rounds": 3, "batch_size": None, "lr": LR, "precision": "float64", **how})


def miss(a, h, x, y):
    """softmax(H a x) − e_y: the gradient of the cross-entropy with respect to the scores."""
    e = np.exp(h @ a * x)
    return e / e.sum() - np.eye(2)[y]


def head_step(a, h, own):
    """∇_H = mean (p − e_y) fᵀ."""
    return h - HEAD_LR * np.mean([np.outer(miss(a, h, x, y), a * x) for x, y in own], axis=0)


def body_step(a, h, own, centres, lam):
    """∇_f = Hᵀ (p − e_y) + λ (2/D) (f − c_y), D = 2; ∇_a = mean ∇_f x."""
    return a - LR * np.mean([(h.T @ miss(a, h, x, y) + lam * (a * x - centres[y])) * x for x, y in own], axis=0)


def class_means(a, own):
    """μ_c [2, 2]; zero for a class that is not there."""
    return np.array([np.mean([a * x for x, y in own if y == c] or [[0, 0]], axis=0) for c in (0, 1)])


def statistics(a, own):
    """g_c = π_c μ_c, and V = (1/n) (mean ‖f‖² − Σ_c ‖g_c‖²)."""
    n = len(own)
    g = np.array([sum((a * x for x, y in own if y == c), np.zeros(2)) for c in (0, 1)]) / n
    return g, (np.mean([a @ a * x * x for x, _ in own]) - np.sum(g**2)) / n


def combined(i, j, h_i, h_j):
    """Of two: (1 − s)² V_i + s² V_j + s² ‖g_i − g_j‖² is least at α_j = s = V_i / (V_i + V_j + ‖g_i − g_j‖²)."""
    (g_i, v_i), (g_j, v_j) = i, j
    s = v_i / (v_i + v_j + np.sum((g_i - g_j) ** 2))
    return (1 - s) * h_i + s * h_j


def test_two_rounds_by_hand():
    """Clients 0 and 1, then 0 and 2; n = (3, 2, 2), each step of all samples; the formulas above, sample by sample.

    Round 1   no centres; body weights (3/5, 2/5); c̄_0 of three samples, c̄_1 of two.
    Round 2   the pull is to those centres, also for client 2, who was not there; client 1 keeps what it has.
    """
    play = MethodSimulation(federation(SAMPLES), FedPAC(lam=LAM, head_lr=HEAD_LR), training())
    zero, one, two = SAMPLES
    h = [head_step(A, H, own) for own in SAMPLES]
    a0, a1 = (body_step(A, h[k], SAMPLES[k], np.zeros((2, 2)), 0.0) for k in (0, 1))
    a = (3 * a0 + 2 * a1) / 5
    centres = np.array(
        [(2 * class_means(a0, zero)[0] + class_means(a1, one)[0]) / 3,
         (class_means(a0, zero)[1] + class_means(a1, one)[1]) / 2]
    )  # fmt: skip
    stats = [statistics(A, own) for own in (zero, one)]
    h0, h1 = combined(*stats, h[0], h[1]), combined(*stats[::-1], h[1], h[0])

    first = play.round([0, 1])
    assert first["L2"].tolist() == [pytest.approx([*a0, *h[0].flat]), pytest.approx([*a1, *h[1].flat])]
    assert first["L1"].tolist() == [pytest.approx([*a, *head.flat]) for head in (h0, h1, H)]
    assert first["G"].tolist() == pytest.approx([*a, *((h0 + h1 + H) / 3).flat])
    assert first["state/centres"].flatten().tolist() == pytest.approx([*centres.flat])

    last = play.round([0, 2])
    t0, t2 = head_step(a, h0, zero), head_step(a, H, two)
    b0, b2 = body_step(a, t0, zero, centres, LAM), body_step(a, t2, two, centres, LAM)
    stats = [statistics(a, own) for own in (zero, two)]
    assert last["L2"].tolist() == [pytest.approx([*b0, *t0.flat]), pytest.approx([*b2, *t2.flat])]
    heads = combined(*stats, t0, t2), h1, combined(*stats[::-1], t2, t0)
    assert last["L1"].tolist() == [pytest.approx([*(3 * b0 + 2 * b2) / 5, *head.flat]) for head in heads]


def test_a_class_that_the_last_cohort_lacked_is_drawn_to_the_clients_own_mean():
    """Client 0 alone, without class 1, then client 1: its f of class 1 is pulled to its own mean under Θ_body."""
    clients = ([(1.0, 0), (2.0, 0)], [(3.0, 1), (1.0, 0), (2.0, 1)])
    play = MethodSimulation(federation(clients), FedPAC(lam=LAM, head_lr=HEAD_LR), training())
    first = play.round([0])
    assert first["state/known"].tolist() == [1, 0] and first["state/centres"][1].tolist() == [0, 0]
    a = first["G"][:2].numpy()
    own = clients[1]
    centres = np.array([first["state/centres"][0].numpy(), class_means(a, own)[1]])
    h = head_step(a, H, own)
    assert play.round([1])["L2"][0, :2].tolist() == pytest.approx(body_step(a, h, own, centres, LAM))


def test_a_class_that_only_an_earlier_cohort_had_has_no_centre():
    """Cohorts {1}, {0}, {1}; client 0 has no class 1. Round 1 makes both centres, round 2 leaves c̄_0 alone.

    In round 3 client 1's class 1 is drawn to its own mean under Θ_body, not to the c̄_1 of round 1; its class 0 to the
    c̄_0 of round 2, client 0's mean. Heads: alone in a cohort, a client keeps its own, α = 1.
    """
    clients = ([(1.0, 0), (2.0, 0)], [(3.0, 1), (1.0, 0), (2.0, 1)])
    play = MethodSimulation(federation(clients), FedPAC(lam=LAM, head_lr=HEAD_LR), training())
    other, own = clients
    h = head_step(A, H, own)
    a_1 = body_step(A, h, own, np.zeros((2, 2)), 0.0)
    h_0 = head_step(a_1, H, other)
    a_2 = body_step(a_1, h_0, other, class_means(a_1, own), LAM)
    h_1 = head_step(a_2, h, own)

    first, second, third = play.run([[1], [0], [1]])
    assert first["state/known"].tolist() == [1, 1] and second["state/known"].tolist() == [1, 0]
    assert second["L2"][0].tolist() == pytest.approx([*a_2, *h_0.flat])
    centres = np.array([class_means(a_2, other)[0], class_means(a_2, own)[1]])
    expected = body_step(a_2, h_1, own, centres, LAM)
    old = body_step(a_2, h_1, own, np.array([centres[0], class_means(a_1, own)[1]]), LAM)
    assert np.abs(expected - old).max() > 1e-3
    assert third["L2"][0].tolist() == pytest.approx([*expected, *h_1.flat])


def test_nothing_is_pulled_in_the_first_round():
    strong, none = (
        MethodSimulation(federation(SAMPLES), FedPAC(lam=lam), training()).run([None, None]) for lam in (5.0, 0.0)
    )
    assert torch.equal(strong[0]["L2"], none[0]["L2"]) and not torch.equal(strong[1]["L2"], none[1]["L2"])


def some_statistics(clients, seed, classes=4, features=3):
    draws = np.random.default_rng(seed)
    g = draws.dirichlet([0.3] * classes, clients)[..., None] * (
        draws.normal(size=(classes, features)) + 0.2 * draws.normal(size=(clients, classes, features))
    )
    return torch.from_numpy(g.reshape(clients, -1)), torch.from_numpy(draws.uniform(0.01, 0.2, clients))


def problem(g, variance, i):
    """diag V + D of client i, as it is defined: D_jl = ⟨g_i − g_j, g_i − g_l⟩."""
    away = (g[i] - g).numpy()
    return np.diag(variance.numpy()) + away @ away.T


@pytest.mark.parametrize("seed", range(3))
def test_combinations_are_the_optima(seed, monkeypatch):
    """Against scipy's SLSQP, and by the conditions of the optimum: Qα = ν where α > 0, Qα >= ν elsewhere."""
    monkeypatch.setattr(fedpac, "LEAST", 0.0)
    g, variance = some_statistics(8, seed)
    found = combination(g, variance).numpy()
    for i, alpha in enumerate(found):
        q = problem(g, variance, i)
        assert alpha.sum() == pytest.approx(1) and (alpha >= 0).all()
        slope = q @ alpha
        level = alpha @ slope
        assert (slope >= level - 1e-10).all() and slope[alpha > 1e-9] == pytest.approx(level, abs=1e-10)
        other = minimize(
            lambda a, q=q: a @ q @ a, np.full(8, 1 / 8), jac=lambda a, q=q: 2 * q @ a, bounds=[(0, 1)] * 8,
            constraints={"type": "eq", "fun": lambda a: a.sum() - 1}, options={"ftol": 1e-14}, method="SLSQP",
        )  # fmt: skip
        assert alpha == pytest.approx(other.x, abs=1e-5) and level <= other.fun + 1e-12
    assert (found > 0.05).sum() > 8, "every client kept to itself: nothing was combined"


def test_who_is_nothing_like_another_keeps_its_own_head_and_who_is_the_same_shares():
    """V = (1, 1, 1); 0 and 1 have the same features: half and half; 2 is 1000 away: 1 of 10⁶ counts as nothing."""
    g = torch.tensor([[0.0], [0.0], [1000.0]], dtype=torch.float64)
    alpha = combination(g, torch.ones(3, dtype=torch.float64))
    assert alpha.tolist() == [pytest.approx([0.5, 0.5, 0]), pytest.approx([0.5, 0.5, 0]), [0, 0, 1]]
    assert alpha[0, 2] == 0


def test_a_problem_without_a_solution_leaves_the_own_head():
    g, variance = some_statistics(3, 0)
    assert torch.equal(combination(g * torch.nan, variance), torch.eye(3, dtype=torch.float64))


@pytest.mark.parametrize(("optimiser", "momentum"), [("sgd", 0.9), ("adam", 0.0)])
def test_the_heads_epochs_are_sgd_with_the_experiments_momentum_and_decay(optimiser, momentum):
    """Two full-batch epochs of η_h on the head alone, by PyTorch; no momentum beside Adam."""
    training = Training(
        rounds=1, local_epochs=1, batch_size=None, lr=LR, optimiser=optimiser, momentum=momentum, weight_decay=0.1,
        precision="float64",
    )  # fmt: skip
    play = MethodSimulation(federation(SAMPLES), FedPAC(head_lr=HEAD_LR, head_epochs=2, combine=False), training)
    heads = play.round()["state/head"]
    for k, own in enumerate(SAMPLES):
        head = torch.from_numpy(H.copy()).requires_grad_()
        f, y = torch.tensor([[x] for x, _ in own]).double() * torch.from_numpy(A), torch.tensor([y for _, y in own])
        sgd = torch.optim.SGD([head], lr=HEAD_LR, momentum=momentum, weight_decay=0.1)
        for _ in range(2):
            sgd.zero_grad()
            torch.nn.functional.cross_entropy(f @ head.T, y).backward()
            sgd.step()
        torch.testing.assert_close(heads[k], head.detach().flatten(), rtol=0, atol=1e-12)


def test_a_network_without_a_body_is_refused():
    with pytest.raises(PflOpsError, match="fedpac shares the body of a network, and this one has no body"):
        quadratic_play(FedPAC(), [0, 6])


@pytest.mark.parametrize(
    ("combine", "up", "down"), [(True, 6 + 4 + 4 + 1, 6 + 4), (False, 2 + 4, 2 + 4)], ids=["combined", "own heads"]
)
def test_what_is_sent(combine, up, down):
    """P = 6, 2 of it the body's; 2 x 2 numbers for each of g, class means and centres; V is one. Heads that stay at
    home need neither g nor V."""
    play = MethodSimulation(federation(SAMPLES), FedPAC(combine=combine), training())
    r = play.at([0, 1])
    play.method.round(play.state, r)
    assert (r.traffic.up, r.traffic.down) == (up, down)


class TestContract(AlgorithmContract):
    algorithm = FedPAC()
