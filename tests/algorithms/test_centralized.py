from copy import deepcopy

import pytest
import torch
from torch.nn import functional as F

from pfl_ops import rng
from pfl_ops.algorithms.centralized import Centralized
from pfl_ops.federation.settings import Training
from pfl_ops.federation.training import plan
from pfl_ops.testing import AlgorithmContract, MethodSimulation, quadratic_play, ragged_task


def test_three_rounds_by_hand():
    """F(w) = ½ (w − b)² + const with b the mean of all samples, one full-batch step a round, momentum ¼.

    Clients: b = (0, 6, 10), n = (1, 3, 4), so b = 58/8 = 7.25, whoever takes part. Θ = 2; T = 3, so the cosine gives
    1, ¾, ¼; η = ½ with decay ½: ½, 3/16, 1/32. With d = Θ − b, m ← ¼ m + d and d ← d − η m:

    Round 1   m = −5.25                            d = −5.25 + 2.625                         = −2.625
    Round 2   m = −1.3125 − 2.625                  d = −2.625 + 3/16·3.9375                  = −1.88671875
    Round 3   m = −0.984375 − 1.88671875           d = −1.88671875 + 1/32·2.87109375         = −1.7969970703125
    """
    play, rounds = quadratic_play(
        Centralized(), [0, 6, 10], [1, 3, 4], start=2, rounds=3, momentum=0.25, lr_decay=0.5,
        cohorts=[[0, 1], [1], [0, 2]],
    )  # fmt: skip
    found = [values["G"].item() for values in rounds]
    assert found == pytest.approx([7.25 - 2.625, 7.25 - 1.88671875, 7.25 - 1.7969970703125])
    assert play.state["w"].item() == found[-1]
    assert play.state["first"].item() == pytest.approx(-2.87109375) and play.state["count"] == 3


def test_constant_schedule():
    """As above, but η = ½, ¼: d = −2.625, then −2.625 + ¼·3.9375."""
    _, (_, last) = quadratic_play(
        Centralized(schedule="constant"), [0, 6, 10], [1, 3, 4], start=2, rounds=2, momentum=0.25, lr_decay=0.5
    )
    assert last["G"].item() == pytest.approx(7.25 - 2.625 + 0.25 * 3.9375)


@pytest.mark.parametrize("stack", [None, 5])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
def test_it_is_plain_pytorch_on_the_pooled_data(optimiser, stack):
    """One optimiser and one scheduler of PyTorch's for all rounds, over the same batches of all 25 samples."""
    federation = ragged_task()
    momentum = 0.9 if optimiser == "sgd" else 0.0
    training = Training(
        rounds=4, local_epochs=2, batch_size=4, optimiser=optimiser, lr=0.05, momentum=momentum, weight_decay=0.01,
        precision="float64",
    )  # fmt: skip
    play = MethodSimulation(federation, Centralized(), training, stack=stack)

    network = deepcopy(federation.network)
    if optimiser == "sgd":
        plain = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01)
    else:
        plain = torch.optim.Adam(network.parameters(), lr=0.05, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(plain, T_max=4)
    x, y = federation.pool.x, federation.pool.y
    for t in range(4):
        batches = plan.draw(25, batch=4, epochs=2, steps=None, rng=rng.generator(0, "train", t, 0, "", 0))
        for first, last in zip(batches.bounds[:-1], batches.bounds[1:], strict=True):
            samples = torch.from_numpy(batches.order[first:last])
            plain.zero_grad()
            F.cross_entropy(network.head(network.body(x[samples])), y[samples]).backward()
            plain.step()
        scheduler.step()
        play.round([t])
        found = play.task.layout.export(play.state["w"])
        for name, expected in network.named_parameters():
            torch.testing.assert_close(found[name], expected.detach(), rtol=0, atol=1e-12)


def test_there_are_no_clients_models_and_nothing_is_sent():
    play, (only,) = quadratic_play(Centralized(), [0, 6], rounds=1)
    assert play.personal() is None and "L2" not in only
    r = play.at([0])
    play.method.round(play.state, r)
    assert (r.traffic.up, r.traffic.down) == (0, 0)


def test_the_rate_that_is_tracked_is_the_cosines():
    from pfl_ops import Experiment
    from pfl_ops.federation.settings import Execution

    e = Experiment.of("centralized", dataset="digits", model="linear", clients=4, rounds=3, lr=0.4,
                      **{"data.train_size": 100, "participation.share": 0.5})  # fmt: skip
    simulation = e.build(execution=Execution(device="cpu", way="loop", threads=1, workers=1), stages=("G",))
    rates = [record.metrics["train/lr"] for record in simulation.run() if record.round]
    assert rates == pytest.approx([0.4, 0.3, 0.1])


class TestContract(AlgorithmContract):
    algorithm = Centralized()
