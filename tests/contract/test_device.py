"""Every method on a device that is not the CPU: no tensor on the wrong device, and no step that waits for the device.

The device is simulated (`simulated_device`): real numbers, and whatever leaves the device is counted. PyTorch's
`FakeTensorMode` ends at the first value that a program looks at, and with device "cuda" it can't run a backward pass
without a driver. The simulation carries for all methods. It does not show that CUDA's kernels work: `make gpu-check`
is for that, on a machine with a GPU.
"""

from contextlib import closing
from typing import Any

import pytest
import torch
from simulated_device import DEVICE, OnDevice, Simulated, Wait, simulated_device
from torch import Tensor

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.algorithms.base import Batch
from pfl_ops.bench.gpu_check.agreement import results
from pfl_ops.bench.gpu_check.waits import KNOWN
from pfl_ops.config.experiment import Experiment
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state.rows import RowStore

WAYS = {
    "loop": Execution(way="loop", threads=1, workers=1),
    "stacked": Execution(way="vmap", chunk=2, threads=1, workers=1),
}
WAITS_IN_STEPS = {name: {Wait("item", f"{file}:step")} for name, file in KNOWN.items()}
"""Methods whose steps wait for the device, and where."""

SHORTER: dict[str, dict[str, Any]] = {"pfedme": {"algorithm.inner_steps": 2}, "fedrep": {"algorithm.head_epochs": 2}}


def experiment(name: str, **more: Any) -> Experiment:
    """Three clients of different sizes, two of them a round, two rounds."""
    return Experiment.of(
        name, dataset="digits", model="cnn_tiny", clients=3, rounds=2, partition="dirichlet", batch_size=8,
        **{"partition.alpha": 0.5, "data.train_size": 40, "training.precision": "float64", "participation.share": 0.67,
           "evaluation.global_every": 1, "evaluation.subset": 10},
    ).override(SHORTER.get(name, {}) | more)  # fmt: skip


def agree(e: Experiment, execution: Execution) -> Simulated:
    """Compare the results of the device with those of the CPU; return what was seen of the device."""
    expected = results(e, execution.model_copy(update={"state": "auto"}))
    with simulated_device() as seen:
        found = results(e, execution)
    assert seen.chunks > 0 and expected.keys() == found.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=1e-10, equal_nan=True, msg=lambda m, n=name: n + m)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ALGORITHMS.builtin)
def test_method_gives_the_cpus_results_on_a_device(name: str, way: str) -> None:
    """State and scores are those of the CPU, and no step but those of `WAITS_IN_STEPS` waits for the device.

    A step reaches from a chunk's first batch to its last: batch, loss, gradient, optimiser, rows of clients that end.
    Waits beside the steps (a cohort's rows, the server's small problems, scores) are a few a round and are allowed.
    """
    seen = agree(experiment(name), WAYS[way])
    assert set(seen.in_steps) == WAITS_IN_STEPS.get(name, set())


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "more",
    [
        {"model.name": "mlp"},
        {"model.name": "mlp", "training.momentum": 0.9, "training.weight_decay": 0.01},
        {"training.optimiser": "adam", "training.lr": 0.001},
        {"training.local_epochs": None, "training.local_steps": 3},
        {"training.momentum": 0.9, "evaluation.synthetic": (20,), "evaluation.clients": 2},
    ],
    ids=["no autograd", "chain", "adam", "steps", "views"],
)
def test_setting_gives_the_cpus_results_on_a_device(more: dict[str, Any], way: str) -> None:
    """As for the methods, for each way in which the engine takes a step, and each view."""
    assert not agree(experiment("fedavg", **more), WAYS[way]).in_steps


def test_scoring_copies_no_model_to_the_host() -> None:
    """FedPer's clients hold models of their own, of P numbers of 8 bytes; scoring copies less than one row at a time.

    Whole rows reach the host as clients' state, which `ClientRows` keeps there, and once as the last global model.
    """
    with simulated_device() as seen:
        e = experiment("fedper")
        with closing(e.build(execution=WAYS["stacked"])) as simulation:
            row = simulation.task.initial.numel() * 8
            for _ in simulation.run():
                pass
    places = {place for place, sizes in seen.to_host.items() if max(sizes) >= row}
    assert any(place.startswith("fingerprint.py") for place in seen.to_host)
    assert {place for place in places if not place.startswith("rows.py")} == {"simulate.py:_round"}
    assert len(seen.to_host["simulate.py:_round"]) == 1


@pytest.mark.parametrize("name", ["fliu", "scaffold", "fedas"])
def test_rows_on_the_device_give_the_same_and_stay_there(name: str) -> None:
    """They are read, written and averaged there; the last global model alone is copied to the host."""
    seen = agree(experiment(name), Execution(way="vmap", chunk=2, threads=1, workers=1, state="device"))
    for place in [place for place in seen.to_host if place.startswith("agreement.py:")]:  # the comparison itself
        del seen.to_host[place]
    row = min(seen.to_host["simulate.py:_round"])
    assert {place for place, sizes in seen.to_host.items() if max(sizes) >= row} == {"simulate.py:_round"}
    copies = {wait for wait in seen.waits if wait.place.startswith(("rows.py", "matrix.py"))}
    assert copies <= {("to device", "matrix.py:read")}  # the clients' numbers


def test_rows_on_the_device_come_back_from_a_checkpoint() -> None:
    """Its pieces are the host's, the mean's sum among them; a fresh state takes them to the device."""
    with simulated_device():
        rows, again = (RowStore("device")(torch.tensor([1.0, 2.0]).to(DEVICE), 4) for _ in range(2))
        rows.write(torch.tensor([2, 0]), torch.tensor([[5.0, 6], [7, 8]]).to(DEVICE))
        assert rows.mean().tolist() == [3.5, 4.5]
        for piece in rows.pieces(limit=1000, all_rows=True):
            assert all(type(tensor) is Tensor for tensor in piece.values())
            again.take(piece)
        assert again.on_device and again[torch.arange(4)].tolist() == [[7, 8], [1, 2], [5, 6], [1, 2]]
        assert again.mean().tolist() == [3.5, 4.5]


# -- the simulation sees what it is for --------------------------------------------------------------------------------


def test_wait_in_a_step_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method whose step looks at a number waits once a step of each client."""
    method = ALGORITHMS.get("apfl")
    taken, steps = method.step, []

    def step(self: Any, m: dict[str, Tensor], b: Batch) -> dict[str, Tensor]:
        steps.append(float(m["alpha"].sum()))
        return taken(self, m, b)

    monkeypatch.setattr(method, "step", step)
    with simulated_device() as seen:
        results(experiment("apfl"), WAYS["loop"])
    assert {wait.kind: count for wait, count in seen.in_steps.items()} == {"item": len(steps)}
    assert steps


def test_tensors_of_two_devices_are_refused() -> None:
    with simulated_device():
        rows = torch.ones(2, 3).to(DEVICE)
        for wrong in (lambda: rows + torch.ones(3), lambda: torch.ones(5)[torch.tensor([1], device=DEVICE)]):
            with pytest.raises(RuntimeError, match="of the simulated device and of the CPU"):
                wrong()
        assert (rows + torch.tensor(1.0)).tolist() == [[2.0] * 3] * 2  # a number may be anywhere, as with CUDA
        assert rows[torch.tensor([1])].tolist() == [[1.0] * 3]  # and so may indices


def test_numpy_of_a_device_tensor_is_refused() -> None:
    with simulated_device():
        rows = torch.ones(2, 3).to(DEVICE)
        with pytest.raises(TypeError, match=r"use \.cpu"):
            rows.numpy()
        assert type(rows.cpu()) is Tensor and rows.cpu().numpy().sum() == 6


@pytest.mark.parametrize(
    ("kind", "look"),
    [
        ("item", lambda rows: bool(rows.any())),
        ("item", lambda rows: rows.max().item()),
        ("to host", lambda rows: rows.cpu()),
        ("to host", lambda rows: rows.tolist()),
        ("nonzero", lambda rows: rows.nonzero()),
        ("mask as an index", lambda rows: rows[rows > 0]),
        ("to device", lambda rows: rows + torch.ones(2, 3).to(rows)),
        ("index of the host", lambda rows: rows[torch.tensor([1])]),
    ],
)
def test_wait_has_its_kind(kind: str, look: Any) -> None:
    with simulated_device() as seen:
        rows = OnDevice(torch.ones(2, 3))
        look(rows)
    assert [wait.kind for wait in seen.waits] == [kind]


def test_value_behind_a_mask_waits_for_nothing() -> None:
    """CUDA fills one value by the mask itself; it has no need to know how many there are."""
    with simulated_device() as seen:
        rows = OnDevice(torch.ones(2, 3))
        rows[rows > 0] = 5.0
        assert rows.host.sum() == 30
    assert not seen.waits
