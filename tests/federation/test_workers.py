"""Worker processes: who computes a client makes no difference, and a worker's misfortune is told in one line."""

import gc
import os
import pickle
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import cloudpickle
import numpy as np
import pytest
import torch
from torch import nn

from pfl_ops.algorithms.local import Local
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.execution import processes
from pfl_ops.federation.execution.workers import PooledTrainer, _answers, _train, shared_out
from pfl_ops.federation.loop.simulate import Simulation
from pfl_ops.federation.method.batch import Batch
from pfl_ops.federation.method.checked import MethodError
from pfl_ops.federation.method.contract import ClientRows, Models, Net, Share
from pfl_ops.federation.method.walk import Keys, Length
from pfl_ops.federation.network.cross_entropy import cross_entropy
from pfl_ops.federation.network.optim import Rule
from pfl_ops.federation.scoring import evaluate
from pfl_ops.federation.settings import Execution, Training
from pfl_ops.federation.training.train import Trainer
from pfl_ops.models.base import Network
from pfl_ops.testing import MethodSimulation, ragged_task

ONE = Execution(way="loop", threads=1)
TWO = Execution(way="loop", workers=2, threads=1)


def finished(execution: Execution, algorithm: str = "apfl", folder: Path | None = None, **flags: object) -> Simulation:
    experiment = Experiment.of(algorithm, dataset="digits", clients=5, train_size=200, **{"rounds": 2, **flags})
    simulation = experiment.build(execution=execution, folder=folder)
    list(simulation.run())
    simulation.close()
    return simulation


def same(alone: Simulation, shared: Simulation) -> None:
    """Bit for bit the same state, and the same records but for clocks."""
    for name, value in alone.state.items():
        other = shared.state[name]
        a, b = (v[torch.arange(len(v))] if isinstance(v, ClientRows) else v for v in (value, other))
        assert torch.equal(a, b), name
    for one, two in zip(alone.records, shared.records, strict=True):
        told = {key: value for key, value in one.metrics.items() if not key.startswith("cost/")}
        assert {key: two.metrics[key] for key in told} == pytest.approx(told, abs=1e-12)


# -- who trains whom ---------------------------------------------------------------------------------------------------


def chunks(steps: list[int], size: int) -> list[list[int]]:
    """As a trainer forms them of clients with these numbers of steps."""
    order = sorted(range(len(steps)), key=lambda i: -steps[i])
    return [order[at : at + size] for at in range(0, len(order), size)]


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [1, 2, 3, 20])
@pytest.mark.parametrize("steps", [[5, 3, 9, 3, 3, 0, 9], [4] * 12, [1], []], ids=["ragged", "even", "one", "none"])
def test_processes_form_the_chunks_that_one_would_form(steps: list[int], size: int, workers: int) -> None:
    parts = shared_out(steps, size, workers)
    formed = [[part[i] for i in chunk] for part in parts for chunk in chunks([steps[i] for i in part], size)]
    assert sorted(formed) == sorted(chunks(steps, size)) and len(parts) == workers


def test_work_is_shared_evenly() -> None:
    assert shared_out([5, 1, 4, 2, 3], 1, 2) == [[0, 3, 1], [2, 4]]
    assert shared_out([4] * 8, 2, 2) == [[0, 1, 4, 5], [2, 3, 6, 7]]


@pytest.mark.parametrize(
    "length",
    [Length(), Length(epochs=3), Length(steps=5), Length(batch=2), Length(share=Share(0.3, 0.9)),
     Length(steps=0, share=Share(0, 0.5, redraw=True))],
)  # fmt: skip
def test_steps_are_counted_as_they_are_drawn(length: Length) -> None:
    federation = ragged_task((5, 2, 8, 0, 7, 1))
    trainer = MethodSimulation(federation, Local(), Training(local_epochs=2, batch_size=3, precision="float64")).trainer
    keys = Keys(0, "train", 4)
    drawn = [plan.steps for plan in trainer.plans(range(6), length, keys)]
    assert PooledTrainer(trainer, 2).steps(range(6), length, keys) == drawn


# -- what comes out ----------------------------------------------------------------------------------------------------

RULES = [Rule("sgd", 0.1, momentum=0.9, weight_decay=0.01), Rule("adam", 0.01, weight_decay=0.01)]
WHO = [0, 1, 3, 5, 6]


@pytest.fixture(scope="module", params=[None, 2], ids=["loop", "stacks of 2"])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[Simulation, Simulation]]:
    """One process of one thread, and two that do the same."""
    experiment = Experiment.of("local", dataset="digits", clients=7, train_size=300, model="cnn_tiny", batch_size=7)
    way = {"way": "vmap", "chunk": request.param} if request.param else {"way": "loop"}
    made = [experiment.build(execution=Execution(threads=1, workers=n, **way)) for n in (1, 2)]
    yield made[0], made[1]
    made[1].close()


def step(m: dict[str, torch.Tensor], b: Batch) -> dict[str, torch.Tensor]:
    return {"w": b.descend("w", m["w"], m["scale"][:, None] * b.grad(m["w"]))}


def meta_step(m: dict[str, torch.Tensor], b: Batch, other: Batch) -> dict[str, torch.Tensor]:
    g = b.grad(m["w"])
    return {"w": b.descend("w", m["w"], g - 0.1 * other.hvp(m["w"], g))}


def squared(net: Net, w: torch.Tensor, x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return scale * net(w, x).square().sum(dim=1)


def every_verb(trainer: Trainer, rule: Rule) -> list[torch.Tensor]:
    """Rows from one start or one each; with terms, frozen columns, a loss and a step of one's own."""
    how, central = (Length(), Keys(0, "train", 0), rule), trainer.task.initial
    each = central + 0.1 * torch.randn(len(WHO), len(central), generator=torch.Generator().manual_seed(0))
    scale = torch.linspace(0.5, 1.5, len(WHO))
    trainer.meter.clear()
    return [
        trainer.train(WHO, central, *how),
        trainer.train(WHO, each, *how, shift=0.01 * each, pull=(scale, central)),
        trainer.train(WHO, each, *how, pull=(0.3, each.flip(0)), only=trainer.task.layout.head),
        trainer.train(WHO, central, *how, loss=squared, ctx={"scale": scale}),
        trainer.walk(WHO, {"w": each, "scale": scale}, step, *how)["w"],
        trainer.walk(WHO, {"w": each}, meta_step, Length(steps=3, batches=2), *how[1:])["w"],
        *trainer.sweep(WHO, each, squared, how[1], share=Share(0.2, 0.7), ctx={"scale": scale}, batch=16),
        *trainer.sweep(WHO[:1], central, cross_entropy, how[1]),
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
def test_every_verb_gives_the_rows_of_one_process(rule: Rule, pair: tuple[Simulation, Simulation]) -> None:
    alone, shared = (simulation.trainer for simulation in pair)
    assert isinstance(shared, PooledTrainer) and not isinstance(alone, PooledTrainer)
    assert len({plan.steps for plan in alone.plans(WHO, Length(), Keys(0, "train", 0))}) > 2, "ragged clients"
    for one, two in zip(every_verb(alone, rule), every_verb(shared, rule), strict=True):
        assert torch.equal(one, two)
    assert alone.meter.by_stream == shared.meter.by_stream
    assert alone.meter.mean == pytest.approx(shared.meter.mean, abs=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_models_answer_as_they_answer_one_process(
    pair: tuple[Simulation, Simulation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shared out by models, and by samples where there are too few of them; in batches of ten."""
    monkeypatch.setattr(evaluate, "BATCH", 10)
    central = pair[0].task.initial
    each = central + 0.1 * torch.randn(7, len(central), generator=torch.Generator().manual_seed(0))
    for models in (Models(each, torch.arange(7)), Models(each[2:3], torch.tensor([4])), Models(central)):
        one, two = (simulation.scorer.score([models], pooled=True, full=True) for simulation in pair)
        np.testing.assert_array_equal(one.local, two.local)
        np.testing.assert_array_equal(one.pooled, two.pooled)
        assert np.isfinite(one.pooled).any()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_processes_started_by_an_evaluation_train_with_dropout(pair: tuple[Simulation, Simulation]) -> None:
    """They get a copy of the network while it answers, dropout off; it learns with dropout all the same."""
    network = Network({"flat": nn.Flatten(), "drop": nn.Dropout(0.5)}, n_features=64, n_classes=10)
    trainer = Trainer(
        replace(pair[0].task, net=Net(network), layout=Net(network).layout), pair[0].feed, RULES[0], Length(steps=2),
        None, draws=True,
    )  # fmt: skip
    start, keys, outs = torch.zeros(650), Keys(0, "train", 0), {"rows": torch.zeros(3, 650)}
    given = {"clients": [0, 1, 2], "start": start, "ctx": {}, "shift": None, "pull": None, "keys": keys}
    with trainer.passes.answering():
        held = pickle.loads(cloudpickle.dumps({"trainer": trainer}))
    _train(held, [0, 1, 2], **given, fixed={}, length=Length(), rule=RULES[0], outs=outs)
    assert outs["rows"].equal(trainer.train([0, 1, 2], start, Length(), keys, RULES[0]))


def test_process_without_samples_asks_no_model(pair: tuple[Simulation, Simulation]) -> None:
    """A network of a user may refuse a batch of no samples, as `x.view(len(x), -1)` does."""
    models = Models(torch.zeros(1, pair[0].task.layout.size))
    scorer = mock.Mock(**{"_answers.side_effect": AssertionError})
    _answers({"scorer": scorer}, ((0, 1), (4, 4)), models, torch.arange(4), {"right": torch.zeros(1, 4)})


@pytest.mark.parametrize(
    ("algorithm", "how"),  # a step of its own; a pull; frozen parts
    [("apfl", {"way": "vmap", "chunk": 2}), ("ditto", {"way": "loop"}), ("fedrep", {"way": "vmap", "chunk": 2})],
)
def test_two_workers_compute_what_one_process_does(
    algorithm: str, how: dict[str, object], request: pytest.FixtureRequest
) -> None:
    """The first pair of processes is started as a user's is, the others are forks."""
    if algorithm != "apfl":
        request.getfixturevalue("forked_children")
    alone = finished(Execution.model_validate({"threads": 1, "workers": 1, **how}), algorithm)
    shared = finished(Execution.model_validate({"threads": 1, "workers": 2, **how}), algorithm)
    assert shared.resolved.workers == 2 and isinstance(shared.trainer, PooledTrainer)
    assert shared.resolved.stack == alone.resolved.stack == how.get("chunk")
    same(alone, shared)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_a_resumed_run_keeps_its_workers(tmp_path: Path) -> None:
    experiment = Experiment.of("apfl", dataset="digits", clients=5, train_size=200, rounds=2)
    begun = experiment.build(execution=TWO, folder=tmp_path)
    rounds, resolved = begun.run(), begun.resolved
    assert [next(rounds).round, next(rounds).round] == [0, 1]
    assert isinstance(begun.trainer, PooledTrainer)
    processes = list(begun.trainer.processes.running)
    assert len(processes) == 2 and all(process.alive for process in processes)
    del begun, rounds
    gc.collect()
    assert not any(process.alive for process in processes), "none outlives its trainer"
    resumed = finished(Execution(), folder=tmp_path)
    assert resumed.resumed_from == 1 and resumed.resolved == resolved and resolved.workers == 2
    same(finished(ONE), resumed)


# -- misfortunes -------------------------------------------------------------------------------------------------------

BROKEN = """
from pfl_ops.algorithms.base import Algorithm, register

@register("breaks")
class Breaks(Algorithm):
    def init(self, task):
        return {"central": task.initial}

    def round(self, s, r):
        def step(m, b):
            raise ValueError("this step can't")
        r.walk({"w": s["central"].expand(len(r.cohort), -1)}, step)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_an_error_in_a_worker_is_the_error_of_the_run(tmp_path: Path) -> None:
    from pfl_ops.registry import load_plugin

    (tmp_path / "breaks.py").write_text(BROKEN, encoding="utf-8")
    load_plugin(tmp_path / "breaks.py")
    with pytest.raises(
        MethodError, match=r"^method 'breaks' failed in round 1: ValueError: this step can't \(breaks\.py:11\)$"
    ) as caught:
        finished(TWO, "breaks")
    assert isinstance(caught.value.__cause__, ValueError)
    shown = [line.strip() for line in caught.value.details.splitlines()]
    assert [line.rpartition(" in ")[2] for line in shown if line.startswith("File ")] == ["round", "step"]
    assert 'raise ValueError("this step can\'t")' in shown


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_a_worker_that_dies_ends_the_run_with_one_line() -> None:
    simulation = Experiment.of("fedavg", dataset="digits", clients=5, train_size=200, rounds=3).build(execution=TWO)
    rounds = simulation.run()
    next(rounds)
    next(rounds)
    assert isinstance(simulation.trainer, PooledTrainer)
    processes = list(simulation.trainer.processes.running)
    os.kill(processes[0].pid, signal.SIGKILL)
    while processes[0].alive:
        time.sleep(0.01)
    with pytest.raises(PflOpsError, match="a worker process died"):
        list(rounds)
    assert not any(process.alive for process in processes)


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_workers_end_after_an_error_of_any_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the next job would read the answers that were left from this one."""
    workers = processes.Processes(2, {"x": 1})
    workers.start()
    running = list(workers.running)
    monkeypatch.setattr(running[0], "answer", lambda: (_ for _ in ()).throw(PflOpsError("no plug-in")))
    with pytest.raises(PflOpsError, match="no plug-in"):
        workers.ask(_nothing, [1, 2], {}, {})
    assert not workers.running and not any(one.alive for one in running)
    assert workers.ask(_nothing, [3, 4], {}, {})[0] == [3, 4]
    with pytest.raises(SystemExit):  # else the worker died, as if memory were short
        workers.ask(_leave, [1, 2], {}, {})
    workers.close()


def _leave(held: dict[str, int], part: int, outs: dict[str, torch.Tensor]) -> None:
    raise SystemExit(0)


def _nothing(held: dict[str, int], part: int, outs: dict[str, torch.Tensor]) -> int:
    return part
