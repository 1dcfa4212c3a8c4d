from typing import ClassVar

import numpy as np
import pytest
import torch
from scipy.optimize import minimize

from pfl_ops.algorithms.fedavg import FedAvg
from pfl_ops.algorithms.scaff_pd import ScaffPD
from pfl_ops.federation.settings import Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic_play, quadratic_task, ragged_task

METHOD = ScaffPD(global_lr=0.5, rho=8, sigma=1 / 16, theta=0.5)
THREE = {"centres": [0, 6, 10], "sizes": [1, 3, 2], "start": 2, "lr": 0.25, "steps": 2}


def test_two_rounds_by_hand():
    """F_k(w) = ½ (w − b_k)², J = 2 full-batch steps, η = ¼, η_g = ½; ρ = 8, σ = 1/16, so ρN + 1/σ = 40; ϑ = ½.

    Clients: b = (0, 6, 10), n = (1, 3, 2), λ = ⅓ each, Θ = 2. A step is y ← y − ¼ ((y − b_k) − (Θ − b_k) + c)
    = y − ¼ (y − Θ + c): all y_k are one, Θ − (¼ + 3/16) c = Θ − 7c/16, and Θ ← Θ − 7c/32.

    Round 1   L = 2, 8, 32 = s (as L^{−1} = L^0).  λ = ⅓ + (s − mean s)/40 = ⅓ + (−12, −6, 18)/40 = (2, 11, 47)/60
              c = 2 − (11·6 + 47·10)/60 = −104/15;  y = 2 + (7/16)(104/15) = 151/30;  Θ ← 2 + (7/32)(104/15) = 211/60
    Round 2   L = ½ (211/60)², ½ (149/60)², ½ (389/60)²;  s = 1.5 L − 0.5 (2, 8, 32)
                = (39721, 3001, 74521)/4800;  (s + 16 λ)/40, shifted to sum 1: λ = (13/60, 41/480, 67/96)
              c = 211/60 − (41/80 + 67/9.6) = −159/40;  Θ ← 211/60 + (7/32)(159/40) = 16843/3840
    """
    _, (first, last) = quadratic_play(METHOD, **THREE)
    assert first["state/losses"].tolist() == pytest.approx([2, 8, 32])
    assert first["state/lam"].tolist() == pytest.approx([1 / 30, 11 / 60, 47 / 60])
    assert first["L2"][:, 0].tolist() == pytest.approx([151 / 30] * 3)
    assert first["G"].item() == first["L1"].item() == pytest.approx(211 / 60)
    assert last["state/lam"].tolist() == pytest.approx([13 / 60, 41 / 480, 67 / 96])
    assert last["L2"][:, 0].tolist() == pytest.approx([10091 / 1920] * 3)
    assert last["G"].item() == pytest.approx(16843 / 3840)


def test_with_a_cohort_by_hand():
    """The same with cohorts {0, 2} and {0, 1}.

    Round 1   L = 2, –, 32: client 1 counts with their mean, s = (2, 17, 32).  λ = ⅓ + (−15, 0, 15)/40: client 0 falls
              under 0, the others share: (0, 5/16, 11/16);  over {0, 2}: (0, 1)
              c = 2 − 10 = −8;  y = 2 + 3.5;  Θ ← 2 + 1.75 = 3.75
    Round 2   L_0 = ½ 3.75² = 225/32, L_1 = ½ 2.25² = 81/32, L_2 is kept:
              s = (1.5·225/32 − ½·2, 81/32, 32)          client 1 is new, so nothing is extrapolated
              (s + 16 λ)/40, shifted: λ = (548, 161, 6971)/7680;  over {0, 1}: (548, 161)/709
              c = 3.75 − 6·161/709 = 6771/2836;  Θ ← 3.75 − (7/32) c = 292923/90752
    """
    _, (first, last) = quadratic_play(METHOD, **THREE, cohorts=[[0, 2], [0, 1]])
    assert first["state/losses"].tolist() == [2, 0, 32] and first["state/seen"].tolist() == [True, False, True]
    assert first["state/lam"].tolist() == pytest.approx([0, 5 / 16, 11 / 16])
    assert first["L2"][:, 0].tolist() == pytest.approx([5.5, 5.5])
    assert first["G"].item() == pytest.approx(3.75)
    assert last["state/losses"].tolist() == pytest.approx([225 / 32, 81 / 32, 32])
    assert last["state/lam"].tolist() == pytest.approx([548 / 7680, 161 / 7680, 6971 / 7680])
    assert last["G"].item() == pytest.approx(292923 / 90752)


def test_where_lambda_has_nothing_in_the_cohort():
    """λ is all on client 2, which is away and whose loss is far the largest: p = (¼, ¾) by n_k.

    c = ¼·2 + ¾·(−4) = −2.5,  Θ ← 2 + (7/32)·2.5.
    """
    training = Training(local_epochs=None, local_steps=2, batch_size=None, lr=0.25, precision="float64")
    play = MethodSimulation(quadratic_task([0, 6, 10], [1, 3, 2], start=2), METHOD, training)
    play.state |= {
        "lam": play.state["lam"].new_tensor([0, 0, 1]),
        "losses": play.state["losses"].new_tensor([2, 8, 900]),
        "seen": torch.tensor([True] * 3),
    }
    values = play.round([0, 1])
    assert values["state/lam"].tolist() == [0, 0, 1]
    assert values["G"].item() == pytest.approx(2 + 7 / 32 * 2.5)


@pytest.mark.parametrize("rho", [0.0, 0.2, 2.0])
def test_lambda_is_the_argmax(rho):
    """Of ⟨s, λ⟩ − (ρ/2N) Σ (Nλ_k − 1)² − ‖λ − λ^t‖²/(2σ) on the simplex, against scipy, on random losses."""
    generator, n, sigma, theta = np.random.default_rng(0), 5, 0.3, 0.7
    method = ScaffPD(rho=rho, sigma=sigma, theta=theta)
    on_the_edge = 0
    for _ in range(20):
        before, now, last = generator.dirichlet(np.ones(n)), generator.gamma(2, size=n), generator.gamma(2, size=n)
        s = (1 + theta) * now - theta * last

        def negative(x, s=s, before=before):
            psi = rho / (2 * n) * ((n * x - 1) ** 2).sum()
            return -(s @ x) + psi + ((x - before) ** 2).sum() / (2 * sigma)

        found = minimize(
            negative, np.full(n, 1 / n), bounds=[(0, 1)] * n, constraints={"type": "eq", "fun": lambda x: x.sum() - 1},
            method="SLSQP", options={"ftol": 1e-14, "maxiter": 500},
        )  # fmt: skip
        state = {"lam": torch.from_numpy(before), "losses": torch.from_numpy(last), "seen": torch.tensor([True] * n)}
        lam = method._ascended(state, torch.from_numpy(now), state["seen"])
        assert lam.numpy() == pytest.approx(found.x, abs=1e-6)
        on_the_edge += int((lam == 0).any())
    assert on_the_edge, "no draw has a client without weight"


def test_lambda_stays_on_the_simplex():
    training = Training(rounds=4, local_epochs=None, local_steps=2, batch_size=2, lr=0.1, precision="float64")
    for seed in range(6):
        play = MethodSimulation(ragged_task(seed=seed), ScaffPD(rho=0, sigma=5), training, stack=5, seed=seed)
        for cohort in ([0, 2, 3], [1, 4], None, [2]):
            lam = play.round(cohort)["state/lam"]
            assert lam.min() >= 0 and lam.sum().item() == pytest.approx(1, abs=1e-12)


def test_control_variates():
    """`full`: the gradient of all of a client's data at Θ. `stochastic`: of two of its samples (B = 2), anew a round.

    Θ is the same in two rounds here, so the second gradient differs by its samples alone.
    """
    federation = ragged_task((5, 4, 6))
    training = Training(rounds=2, local_epochs=None, local_steps=1, batch_size=2, lr=0.1, precision="float64")
    play = MethodSimulation(federation, ScaffPD(), training, stack=3)
    index = federation.pool.index

    def slope(k, samples):
        w = play.task.initial.clone().requires_grad_()
        own = index[k][list(samples)]
        play.task.loss(play.task.net, w, federation.pool.x[own], federation.pool.y[own]).mean().backward()
        return w.grad

    exact = torch.stack([slope(k, range(len(index[k]))) for k in range(3)])
    full = ScaffPD(gradient="full")._gradients(play.task.initial, play.at(play.everyone))
    torch.testing.assert_close(full, exact, rtol=0, atol=1e-12)
    rounds = []
    for play.t in range(3):
        rounds.append(play.method._gradients(play.task.initial, play.at(play.everyone)))
        for k, row in enumerate(rounds[-1]):
            pairs = [slope(k, (i, j)) for i in range(len(index[k])) for j in range(i)]
            assert min(float((row - pair).abs().max()) for pair in pairs) < 1e-12
    assert any(not torch.allclose(rounds[0], other) for other in rounds[1:])


def test_the_corrected_step_by_hand():
    """One step on minibatches: θ_k = Θ − η (∇F_k(Θ; ξ) − g_k + c); with all data as the batch θ_k = Θ − η c.

    c = Σ λ_k ∇F_k(Θ), λ as the first round leaves it.
    """
    training = Training(rounds=1, local_epochs=None, local_steps=1, batch_size=None, lr=0.3, precision="float64")
    play = MethodSimulation(ragged_task(), ScaffPD(), training, stack=5)
    slopes = play.at(play.everyone).grad(play.task.initial)
    values = play.round()
    c = values["state/lam"] @ slopes
    torch.testing.assert_close(values["L2"], (play.task.initial - 0.3 * c).expand(5, -1), rtol=0, atol=1e-12)
    torch.testing.assert_close(values["G"], play.task.initial - 0.3 * c, rtol=0, atol=1e-12)


def test_the_gradients_minibatch_is_not_one_of_training():
    """J = 1, B = 2: θ_k = Θ − η (∇F_k(Θ; ξ_k) − g_k + c), c = Σ λ_k g_k, g_k = ∇F_k(Θ; ζ_k).

    FedAvg's clients take the same ξ_k: θ_k − θ_k^avg = η (g_k − c). So g_k is known but for one vector that all clients
    share, and of all pairs of each client's own samples exactly one choice (ζ_0, ζ_1, ζ_2) explains the round. ζ is
    drawn apart from ξ: with ζ_k = ξ_k in every round all θ_k would be Θ − η c.
    """
    federation, lr = ragged_task((5, 4, 6)), 0.1
    training = Training(rounds=3, local_epochs=None, local_steps=1, batch_size=2, lr=lr, precision="float64")
    task = MethodSimulation(federation, FedAvg(), training).task
    x = task.initial

    def slope(samples):
        w = x.clone().requires_grad_()
        task.loss(task.net, w, federation.pool.x[samples], federation.pool.y[samples]).mean().backward()
        return w.grad

    pairs = [[slope(pair) for pair in torch.combinations(own)] for own in federation.pool.index]

    def nearest(k, g):
        gaps = [float((pair - g).abs().max()) for pair in pairs[k]]
        return min(range(len(gaps)), key=gaps.__getitem__), min(gaps)

    same = []
    for t in range(3):
        play, plain = (MethodSimulation(federation, method, training, stack=3) for method in (ScaffPD(), FedAvg()))
        play.t = plain.t = t  # Θ⁰ in another round: other minibatches at the same point
        values, averaged = play.round(), plain.round()
        lam = values["state/lam"]
        found = []
        for first, g_0 in enumerate(pairs[0]):
            c = g_0 - (values["L2"][0] - averaged["L2"][0]) / lr
            g = [c + (values["L2"][k] - averaged["L2"][k]) / lr for k in range(3)]
            others = [nearest(k, g[k]) for k in (1, 2)]
            if max(gap for _, gap in others) < 1e-10 and (lam @ torch.stack(g) - c).abs().max() < 1e-10:
                found.append([first, *(which for which, _ in others)])
        assert len(found) == 1, "no minibatch of each client's own samples explains the round"
        trained = [nearest(k, (x - averaged["L2"][k]) / lr)[0] for k in range(3)]
        same += [one == other for one, other in zip(found[0], trained, strict=True)]
    assert not all(same)


def test_the_server_steps_by_lambda():
    """Minibatches take the θ_k apart: Θ ← Θ − η_g Σ λ_k (Θ − θ_k), λ renormalised over the cohort."""
    training = Training(rounds=1, local_epochs=None, local_steps=4, batch_size=2, lr=0.3, precision="float64")
    for cohort in ([0, 1, 2, 3, 4], [0, 2, 3]):
        play = MethodSimulation(ragged_task(), ScaffPD(global_lr=0.5, rho=0.1, sigma=1), training, stack=5)
        values = play.round(cohort)
        theta, p = values["L2"], values["state/lam"][cohort]
        assert (theta - theta.mean(dim=0)).abs().max() > 0.01 and p.max() / p.min() > 1.2
        expected = play.task.initial - 0.5 * (p / p.sum()) @ (play.task.initial - theta)
        torch.testing.assert_close(values["G"], expected, rtol=0, atol=1e-12)


def test_traffic():
    """Θ and c down, g_k and θ_k up."""
    play, _ = quadratic_play(ScaffPD(), [0, 6], rounds=1)
    r = play.at([0, 1])
    play.method.round(play.state, r)
    assert (r.traffic.up, r.traffic.down) == (2, 2)  # P = 1


class TestContract(AlgorithmContract):
    algorithm = ScaffPD(global_lr=0.5)
    cohorts = ([0, 1, 3], None, [1, 4])  # client 1 has less than a batch
    pairs: ClassVar = {"theta": (ScaffPD(theta=1), ScaffPD(theta=0.5))}
