"""Worker processes: who computes a client makes no difference, and a worker's misfortune is told in one line."""

import os
import signal
from pathlib import Path

import pytest
import torch

from pfl_ops.errors import PflOpsError
from pfl_ops.experiment import Experiment
from pfl_ops.federation.contract import ClientRows
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.simulate import Simulation
from pfl_ops.federation.workers import PooledTrainer

ONE = Execution(way="loop", threads=1)
TWO = Execution(workers=2, threads=1)


def finished(execution: Execution, algorithm: str = "apfl", **flags: object) -> Simulation:
    experiment = Experiment.of(algorithm, dataset="digits", clients=5, train_size=200, **{"rounds": 2, **flags})
    simulation = experiment.build(execution=execution)
    list(simulation.run())
    if isinstance(simulation.trainer, PooledTrainer):
        simulation.trainer.close()
    return simulation


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["apfl", "ditto", "fedrep"])  # a step of its own; a pull; frozen parts
def test_two_workers_compute_what_one_process_does(algorithm: str) -> None:
    alone, shared = finished(ONE, algorithm), finished(TWO, algorithm)
    assert shared.resolved.workers == 2 and isinstance(shared.trainer, PooledTrainer)
    for name, value in alone.state.items():
        other = shared.state[name]
        a, b = (v[torch.arange(len(v))] if isinstance(v, ClientRows) else v for v in (value, other))
        assert torch.equal(a, b), name
    for one, two in zip(alone.records, shared.records, strict=True):
        told = {key: value for key, value in one.metrics.items() if not key.startswith("cost/")}
        assert {key: two.metrics[key] for key in told} == pytest.approx(told, abs=1e-12)


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
def test_an_error_in_a_worker_is_the_error_of_the_run(tmp_path: Path) -> None:
    from pfl_ops.registry import load_plugin

    (tmp_path / "breaks.py").write_text(BROKEN, encoding="utf-8")
    load_plugin(tmp_path / "breaks.py")
    with pytest.raises(ValueError, match="this step can't"):
        finished(TWO, "breaks")


@pytest.mark.slow
def test_a_worker_that_dies_ends_the_run_with_one_line() -> None:
    simulation = Experiment.of("fedavg", dataset="digits", clients=5, train_size=200, rounds=3).build(execution=TWO)
    rounds = simulation.run()
    next(rounds)
    next(rounds)
    assert isinstance(simulation.trainer, PooledTrainer)
    processes = list(simulation.trainer._processes)
    os.kill(processes[0].pid, signal.SIGKILL)
    processes[0].wait()
    with pytest.raises(PflOpsError, match="a worker process died"):
        list(rounds)
    assert all(process.poll() is not None for process in processes)


@pytest.mark.parametrize("asked", [{"way": "vmap"}, {"chunk": 4}])
def test_workers_where_they_cannot_help_are_refused(asked: dict[str, object]) -> None:
    execution = Execution.model_validate({"workers": 2, **asked})
    with pytest.raises(PflOpsError, match="one client at a time"):
        Experiment.of("fedavg", dataset="digits", clients=5, rounds=1).build(execution=execution)
