"""Checks of results: methods in all ways, a run repeated, scores beside the CPU's."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, nullcontext
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from pfl_ops.algorithms import ALGORITHMS
from pfl_ops.bench.case import Case
from pfl_ops.bench.gpu_check import waits
from pfl_ops.bench.gpu_check.options import Options
from pfl_ops.bench.gpu_check.outcome import NO_GPU, CheckRow, passed_if, step
from pfl_ops.bench.settings import BenchSettings
from pfl_ops.config.experiment import Experiment
from pfl_ops.federation.method.contract import ClientRows, Models
from pfl_ops.federation.settings import Device, Execution, Precision

METHOD_TOLERANCE = 1e-8  # of states and scores in float64: the ways differ in the order of sums
PRECISION_TOLERANCES: dict[Precision, float] = {"float32": 1e-5, "tf32": 1e-2, "bfloat16": 1e-2}
"""Largest difference of a parameter from float64's, after two rounds of a few steps each."""
SCORE_TOLERANCE = 2e-3  # of accuracies in float32: a sample between two classes may change sides

SETTINGS: dict[str, dict[str, Any]] = {
    "linear": {"model.name": "linear"},
    "mlp": {"model.name": "mlp"},
    "mlp, momentum": {"model.name": "mlp", "training.momentum": 0.9, "training.weight_decay": 0.01},
    "mlp, adam": {"model.name": "mlp", "training.optimiser": "adam", "training.lr": 0.001},
    "cnn_tiny, momentum": {"training.momentum": 0.9, "training.weight_decay": 0.01},
    "cnn_tiny, adam": {"training.optimiser": "adam", "training.lr": 0.001},
}
"""FedAvg's settings, beside those of the methods, for each way in which the engine takes a step."""


def methods(o: Options) -> Iterator[CheckRow]:
    """Compare one client at a time, stacks and the CPU for every method; on a GPU, look for steps that wait for it."""
    cases: list[tuple[str, str, dict[str, Any]]] = [(name, name, {}) for name in ALGORITHMS.builtin]
    cases += [(f"fedavg, {settings}", "fedavg", more) for settings, more in SETTINGS.items()]
    for title, name, more in cases:
        found: Counter[str] = Counter()
        row = step(o, "methods", title, partial(_method, o, title, small_experiment(o, name, more), found))
        yield row
        if o.is_gpu and row.figures:
            yield _waits(title, name, found)
    if not o.is_gpu:
        yield CheckRow("waits", "all methods", "skipped", NO_GPU)


def _method(o: Options, title: str, e: Experiment, found: Counter[str]) -> CheckRow:
    """The row of a method; waits in its steps are added to `found`."""
    began = time.monotonic()
    expected = results(e, loop("cpu"))
    with waits.waits_in_steps(found) if o.is_gpu else nullcontext():
        of_loop = results(e, loop(o.device)) if o.is_gpu else expected  # `repeats` runs the same twice
        of_stack = results(e, stacked(o.device))
    differences = [difference(expected, of_loop), difference(of_loop, of_stack)]
    return passed_if(
        max(differences) <= METHOD_TOLERANCE, "methods", title, f"differs by more than {METHOD_TOLERANCE:g}",
        from_cpu=differences[0], stacked_from_loop=differences[1], seconds=time.monotonic() - began,
    )  # fmt: skip


def _waits(title: str, name: str, found: Counter[str]) -> CheckRow:
    """The row of the waits in a method's steps, by "file:line"."""
    unknown = sorted(place for place in found if place.partition(":")[0] != waits.KNOWN.get(name))
    known = sorted(set(found) - set(unknown))
    said = f"steps wait at {', '.join(unknown)}" if unknown else f"known: {', '.join(known)}" if known else ""
    return CheckRow("waits", title, "failed" if unknown else "passed", said, {"waits": found.total()})


def repeats(o: Options) -> Iterator[CheckRow]:
    """Run the same experiment twice in each way, and compare bit for bit."""
    for model, optimiser in product(("mlp", "cnn_tiny"), ("sgd", "adam")):
        for way in (loop(o.device), stacked(o.device)):
            name = f"{model}, {optimiser}, {'loop' if way.way == 'loop' else 'stacked'}"
            yield step(o, "repeats", name, partial(_repeat, o, name, model, optimiser, way))


def _repeat(o: Options, name: str, model: str, optimiser: str, way: Execution) -> CheckRow:
    more = {"model.name": model, "training.optimiser": optimiser, "training.precision": "float32"}
    e = small_experiment(o, "fedavg", more)
    one, other = results(e, way), results(e, way)
    same = all(torch.equal(one[key], other[key]) for key in one if key != "scores")
    return passed_if(same, "repeats", name, "two runs differ", difference=difference(one, other))


def precisions(o: Options) -> Iterator[CheckRow]:
    """Train in each precision in both ways, and compare the models with those of float64."""
    for model, precision in product(("mlp", "cnn_tiny"), PRECISION_TOLERANCES):
        for way in (loop(o.device), stacked(o.device)):
            name = f"{model}, {precision}, {'loop' if way.way == 'loop' else 'stacked'}"
            if precision == "tf32" and not o.is_gpu:
                yield CheckRow("precisions", name, "skipped", NO_GPU)
                continue
            yield step(o, "precisions", name, partial(_precision, o, name, model, precision, way))


def _precision(o: Options, name: str, model: str, precision: Precision, way: Execution) -> CheckRow:
    e = small_experiment(o, "fedavg", {"model.name": model})
    exact, found = results(e, way), results(e.override({"training.precision": precision}), way)
    distance, allowed = difference({"central": exact["central"]}, found), PRECISION_TOLERANCES[precision]
    return passed_if(
        distance <= allowed, "precisions", name, f"differs by more than {allowed:g}", from_float64=distance
    )


def scores(o: Options) -> Iterator[CheckRow]:
    """Score models that all differ on the device and on the CPU, and compare their mean accuracies."""
    for network, batch in o.sizes.networks.items():
        yield step(o, "scores", network, partial(_scores, o, network, batch))


def _scores(o: Options, network: str, batch: int) -> CheckRow:
    clients, images = min(o.sizes.models, 10), min(o.sizes.images, 500)
    found = {}
    for device in {"cpu": None, o.device: None}:
        settings = BenchSettings(
            model=(network,), batch=(batch,), dataset="mnist", clients=clients, steps=1, device=device,
            evaluate_models=clients, evaluate_images=images,
        )  # fmt: skip
        case = Case(settings, network, batch, o.data_dir)
        e = case.experiment("float32", clients)
        with closing(e.build(data_dir=o.data_dir, execution=loop(device), final=False)) as simulation:
            models = Models(case.models, torch.arange(clients))
            found[device] = simulation.scorer.score([models], pooled=True)
    one, other = found["cpu"], found[o.device]
    assert one.pooled is not None and other.pooled is not None
    local, pooled = (float(abs(a - b).mean()) for a, b in ((one.local, other.local), (one.pooled, other.pooled)))
    return passed_if(
        max(local, pooled) <= SCORE_TOLERANCE, "scores", network, f"differ by more than {SCORE_TOLERANCE:g}",
        local_difference=local, pooled_difference=pooled, pooled_mean=float(other.pooled.mean()),
    )  # fmt: skip


# -- a small experiment, and its results -------------------------------------------------------------------------------


def small_experiment(o: Options, name: str, more: Mapping[str, Any]) -> Experiment:
    """Four clients of different sizes, three of them a round, two rounds, float64; `more`: further settings."""
    shorter: dict[str, dict[str, Any]] = {
        "pfedme": {"algorithm.inner_steps": 2},
        "fedrep": {"algorithm.head_epochs": 2},
    }
    return Experiment.of(
        name, dataset=o.small, model="cnn_tiny", clients=4, rounds=2, partition="dirichlet", alpha=0.5, batch_size=8,
        precision="float64", participation=0.75,
    ).override({"evaluation.global_every": 1, **shorter.get(name, {}), **more})  # fmt: skip


def loop(device: Device) -> Execution:
    """One client at a time."""
    return Execution(device=device, way="loop", workers=1, threads=1)


def stacked(device: Device) -> Execution:
    """Stacks of three."""
    return Execution(device=device, way="vmap", chunk=3, workers=1, threads=1)


def results(e: Experiment, execution: Execution) -> dict[str, Tensor]:
    """The last state by name, all rows, and the final scores; on the host."""
    with closing(e.build(execution=execution)) as simulation:
        for _ in simulation.run():
            pass
        everyone = torch.arange(simulation.task.n_clients)
        state = {k: v[everyone] if isinstance(v, ClientRows) else v for k, v in simulation.state.items()}
        scored = [value for key, value in simulation.final.items() if "cost/" not in key]
    found = {name: value.detach().cpu() for name, value in state.items()}
    return found | {"scores": torch.tensor(scored, dtype=torch.float64)}


def difference(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    """The largest absolute difference of two results; infinite if only one of them is a number."""
    largest = 0.0
    for name, value in one.items():
        a, b = value.double(), other[name].double()
        if not torch.equal(a.isnan(), b.isnan()):
            return float("inf")
        largest = max(largest, float((a - b).nan_to_num(0.0).abs().max()) if a.numel() else 0.0)
    return largest
