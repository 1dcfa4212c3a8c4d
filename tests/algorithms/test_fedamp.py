from math import exp
from typing import ClassVar

import pytest
import torch

from pfl_ops.algorithms.fedamp import FedAMP
from pfl_ops.algorithms.local import Local
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution, Training
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic_play, ragged_task


def test_three_rounds_by_hand():
    """F_k(w) = ½ (w − b_k)², one full-batch step, η = ½; absolute units, α = ½, σ = 2, λ = ¼, so the pull is ½.

    Clients: b = (0, 6, 3), n = (1, 3, 2); cohorts {0, 1}, {1, 2}, {0, 2}; θ_k = u_k = 2. ξ(x) = ¼ e^{−x/2}.

    Round 1   θ = 1, 4 (u = θ: no pull yet); x = 9: u_0 = 1 + 3 ξ, u_1 = 4 − 3 ξ; the server lacks θ_2
    Round 2   θ_1 = 4 − ½((4 − 6) + ½ (4 − u_1)) = 5 − ¾ ξ(9), θ_2 = 2.5; the server has θ_0 = 1 as well
    Round 3   θ_0 = 1 − ½(1 + ½ (1 − u_0)) with its u_0 of round 1
    """
    _, (first, second, third) = quadratic_play(
        FedAMP(alpha=0.5, sigma=2, lam=0.25, unit="absolute"), [0, 6, 3], [1, 3, 2],
        start=2, rounds=3, cohorts=[[0, 1], [1, 2], [0, 2]],
    )  # fmt: skip

    def xi(a, b):
        return exp(-((a - b) ** 2) / 2) / 4

    u_0, u_1 = 1 + 3 * xi(1, 4), 4 - 3 * xi(1, 4)
    assert first["L2"][:, 0].tolist() == pytest.approx([1, 4])
    assert first["L1"][:, 0].tolist() == pytest.approx([u_0, u_1, 2])
    assert "G" not in first

    t_1, t_2 = 5 - 0.75 * xi(1, 4), 2.5
    u_1 = t_1 + xi(t_1, 1) * (1 - t_1) + xi(t_1, t_2) * (t_2 - t_1)
    u_2 = t_2 + xi(t_2, 1) * (1 - t_2) + xi(t_1, t_2) * (t_1 - t_2)
    assert second["L2"][:, 0].tolist() == pytest.approx([t_1, t_2])
    assert second["L1"][:, 0].tolist() == pytest.approx([u_0, u_1, u_2])
    assert second["state/known"].tolist() == [True, True, True]

    t_0 = 1 - 0.5 * (1 + 0.5 * (1 - u_0))
    t_2 = 2.5 - 0.5 * ((2.5 - 3) + 0.5 * (2.5 - u_2))
    assert third["L2"][:, 0].tolist() == pytest.approx([t_0, t_2])
    u_0 = t_0 + xi(t_0, t_1) * (t_1 - t_0) + xi(t_0, t_2) * (t_2 - t_0)
    assert third["L1"][0].item() == pytest.approx(u_0)


def test_relative_units_by_hand():
    """θ = (0, 3, 4) after one step of η = 1; square distances 9, 16, 1, mean 26/3; ξ_kj = (α/2) e^{−(3/26) x/σ} / σ."""
    _, (only,) = quadratic_play(FedAMP(alpha=0.5, sigma=0.7), [0, 3, 4], [1, 3, 2], start=2, lr=1, rounds=1)

    def xi(x):
        return 0.25 * exp(-x * 3 / 26 / 0.7) / 0.7

    expected = [3 * xi(9) + 4 * xi(16), 3 - 3 * xi(9) + xi(1), 4 - 4 * xi(16) - xi(1)]
    assert only["L1"][:, 0].tolist() == pytest.approx(expected)


def test_relative_weights_do_not_see_how_long_models_are():
    """And for α <= σ they never sum to more than 1, whatever the models: here two are equal and one far away."""
    theta = torch.tensor([[1.0, 2], [1, 2], [40, 2]], dtype=torch.float64)
    x = torch.cdist(theta, theta).square()
    one, other = (FedAMP(alpha=1, sigma=1)._weights(y, torch.arange(3)) for y in (x, 1e6 * x))
    torch.testing.assert_close(one, other)
    assert one.diagonal().tolist() == [0, 0, 0]
    assert one.sum(dim=1).max() <= 1 and one[0, 1] == 0.5


def test_alone_or_all_alike():
    """One model, or equal ones: no distance to measure by, and u_k is θ_k."""
    for centres in ([5], [5, 5, 5]):
        _, (only,) = quadratic_play(FedAMP(), centres, start=2, rounds=1)
        assert only["L1"][:, 0].tolist() == pytest.approx([3.5] * len(centres))


def test_starting_from_the_mixture():
    """As round 2 by hand above, from u_1 = 4 − 3 ξ: θ_1 = u_1 − ½ (u_1 − 6), without pull."""
    options = {"alpha": 0.5, "sigma": 2, "lam": 0.25, "unit": "absolute"}
    _, (_, second) = quadratic_play(FedAMP(start="mixed", **options), [0, 6], start=2)
    u_1 = 4 - 0.75 * exp(-4.5)
    assert second["L2"][1].item() == pytest.approx((u_1 + 6) / 2)


def test_weights_that_sum_to_more_than_one_are_refused():
    """Three models within a distance of 0.1: 2 α/σ e^{−…} is about 2."""
    with pytest.raises(PflOpsError, match=r"sum to 2 > 1 with alpha 0\.5 and sigma 0\.5; lower algorithm\.alpha"):
        quadratic_play(FedAMP(alpha=0.5, sigma=0.5, unit="absolute"), [1, 1.05, 1.1], rounds=1)
    with pytest.raises(PflOpsError, match="> 1"):
        quadratic_play(FedAMP(alpha=3, sigma=1), [1, 2, 3], rounds=1)


def test_absent_clients_may_have_weights_that_sum_to_more_than_one():
    """Clients 2 and 3 train, 0 and 1 are absent and nearer to each other: with s the difference of the square distances
    a = d_01, b = d_23, and α = s e^{(a + b)/2s}, σ = s, ξ is e^{−½} between 2 and 3, and e^{½} > 1 between 0 and 1.

    The last round is repeated for L2 of the absent ones, whose u_k is dropped: after all training, no error.
    """
    one_core = Execution(device="cpu", way="loop", workers=1, threads=1)

    def run(share, **options):
        experiment = Experiment.of(
            "fedamp", dataset="digits", model="linear", clients=4, rounds=1, participation=share,
            **{"data.train_size": 120, "algorithm.unit": "absolute"}, **options,
        )  # fmt: skip
        simulation = experiment.build(execution=one_core)
        list(simulation.run())
        return simulation

    theta = run(1.0, **{"algorithm.alpha": 1e-9}).state["theta"][torch.arange(4)].double()
    a, b = (theta[0] - theta[1]).square().sum().item(), (theta[2] - theta[3]).square().sum().item()
    options = {"algorithm.sigma": b - a, "algorithm.alpha": (b - a) * exp((a + b) / (b - a) / 2), "algorithm.lam": 0}
    half = run(0.5, **options)
    assert half.state["known"].tolist() == [False, False, True, True] and a < b
    whole = run(1.0, **{"algorithm.alpha": 1e-9, "algorithm.lam": 0})
    assert half.final["final/test/L2/local/mean"] == whole.final["final/test/L2/local/mean"]
    with pytest.raises(PflOpsError, match="> 1"):
        run(1.0, **options)


def test_a_small_sigma_is_local_training():
    """Every ξ underflows, and without pull nothing is left of the others."""
    training = Training(rounds=2, batch_size=3, lr=0.3, precision="float64")
    far, alone = (
        MethodSimulation(ragged_task(), m, training).run([[0, 3], None])
        for m in (FedAMP(alpha=1e-6, sigma=1e-6, lam=0, unit="absolute"), Local())
    )
    torch.testing.assert_close(far[-1]["L1"], alone[-1]["L1"], rtol=0, atol=1e-12)


class TestContract(AlgorithmContract):
    algorithm = FedAMP(alpha=0.5, lam=0.5)
    pairs: ClassVar = {"unit": (FedAMP(alpha=0.1), FedAMP(alpha=0.1, unit="absolute"))}
