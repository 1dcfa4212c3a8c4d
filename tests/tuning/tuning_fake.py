"""A method and a simulation of it that cost nothing and keep checkpoints as the real one does."""

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pfl_ops.config.experiment import Experiment
from pfl_ops.federation.loop.diverged import Diverged
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs.job import Payload, SharedPaths
from pfl_ops.jobs.work import check
from pfl_ops.registry import load_plugin

FEDAVG = 0.5  # its score in every environment


def toy(rounds: int = 9, **settings: object) -> Experiment:
    """The toy experiment: everything is evaluated in every round, so rungs are 1, 3, 9."""
    load_plugin(Path(__file__).parent / "toy.py")
    return Experiment.of("toy", rounds=rounds, **{"evaluation.global_every": 1, **settings})


def records(payload: Payload, place: SharedPaths) -> Iterator[Record]:
    """val/L1/acc rises to x over the rounds; a checkpoint each round, from which the next attempt goes on."""
    experiment = Experiment.model_validate(payload.experiment)
    toy, rounds = experiment.algorithm, payload.rounds
    if toy.name == "fedavg":  # what a study in environments divides scores by
        toy = SimpleNamespace(x=FEDAVG, behaviour="ok", pause=0.15, own_stage="L1")
    file = Path(place.home, "checkpoints", f"{experiment.digest()[:16]}.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    done = json.loads(file.read_text()) if file.exists() else []
    if toy.behaviour in ("meet", "pair"):  # each test's trials among themselves
        _meet(Path(place.home, f"met-{experiment.seed}"), 4 if toy.behaviour == "meet" else 2)
    for old in done:
        yield Record(**{**old, "metrics": _numbers(old["metrics"])})
    for t in range(len(done), rounds + 1):
        time.sleep(toy.pause)
        if t == rounds:
            _wait_to_end(Path(place.home))
        if toy.behaviour == "raise" and t == 3:
            raise ValueError("loss went\nthrough the roof")
        if toy.behaviour == "diverge" and t == 4:
            raise Diverged(t, 0.4, 12)
        if toy.behaviour == "die" and t == 3:
            os._exit(1)
        if toy.behaviour == "die_once" and t == 3 and not file.with_suffix(".died").exists():
            file.with_suffix(".died").touch()
            os._exit(1)
        score = toy.x * t / rounds
        metrics = {"train/loss": 1 - score, "node": 0.0, "pid": float(os.getpid())}
        if t:  # 10 samples and 6 bytes a round
            metrics |= {"cost/samples_per_second": 20.0, "cost/train_seconds": 0.5}
            metrics |= {"cost/up_bytes": 4.0, "cost/down_bytes": 2.0}
        if t % payload.full_every == 0 and toy.behaviour != "silent":
            metrics[f"val/{toy.own_stage}/acc"] = float("nan") if toy.behaviour == "nan" and t else score
            metrics["val/G/global/mean"] = 1 - toy.x
        record = Record(t, metrics, 1_700_000_000_000 + t)
        done.append({"round": t, "metrics": metrics, "time": record.time})
        new = file.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(done))
        new.replace(file)
        yield record


SEARCH_LUCK = 0.4  # in the last round, of the one with x = 0.5 and a seed that is no new one


def lucky_records(payload: Payload, place: SharedPaths) -> Iterator[Record]:
    """As `records`, with a spread of 0.001 between seeds, and one configuration that is lucky with the first seed."""
    experiment = Experiment.model_validate(payload.experiment)
    toy, seed = experiment.algorithm, experiment.seed
    noise = 0.001 * ((seed * int(100 * toy.x)) % 7) if seed >= 1000 else SEARCH_LUCK * (toy.x == 0.5)
    for record in records(payload, place):
        added = noise * (record.round == payload.rounds)
        scores = {key: value + added if key.endswith("/acc") else value for key, value in record.metrics.items()}
        yield Record(record.round, scores, record.time)


SEED_STEP = 0.001  # of the score in the last round, from one seed to the next


def records_by_seed(payload: Payload, place: SharedPaths) -> Iterator[Record]:
    """As `records`, with a last score that grows with the seed."""
    seed = Experiment.model_validate(payload.experiment).seed
    for record in records(payload, place):
        added = SEED_STEP * seed * (record.round == payload.rounds)
        scores = {key: value + added if key.endswith("/acc") else value for key, value in record.metrics.items()}
        yield Record(record.round, scores, record.time)


def let_end(home: Path, number: int | None) -> None:
    """Allow so many runs from now on their last round, and let others wait before it; None: all of them."""
    folder = home / "ends"
    shutil.rmtree(folder, ignore_errors=True)
    if number is not None:
        made = home / "ends.new"
        made.mkdir()
        for i in range(number):
            (made / str(i)).touch()
        made.rename(folder)


def _wait_to_end(home: Path) -> None:
    """Take one of the permissions that `let_end` has left."""
    deadline = time.monotonic() + 120
    while (home / "ends").exists():
        for permission in (home / "ends").glob("*"):
            with suppress(FileNotFoundError):  # another run was faster
                permission.unlink()
                return
        if time.monotonic() > deadline:
            raise TimeoutError("no run may end any more")
        time.sleep(0.1)


def _meet(folder: Path, number: int) -> None:
    """Wait until so many trials are here at once."""
    folder.mkdir(exist_ok=True)
    (folder / str(os.getpid())).touch()
    deadline = time.monotonic() + 120
    while len(list(folder.iterdir())) < number:
        if time.monotonic() > deadline:
            raise TimeoutError(f"only {len(list(folder.iterdir()))} of {number} trials run at once")
        time.sleep(0.1)


def records_of_a_node(payload: Payload, place: SharedPaths) -> Iterator[Record]:
    """As `records`, after a look at this machine's data; `node` is the number at the end of their folder's name.

    Three trials wait for one another: else one node could run them all before another is up.
    """
    _meet(Path(place.home, "nodes"), 3)
    check(Experiment.model_validate(payload.experiment), payload, place)
    for record in records(payload, place):
        folder = str(place.data_folder)
        yield Record(record.round, {**record.metrics, "node": float(folder[-1])}, record.time)


def _numbers(metrics: dict[str, float]) -> dict[str, float]:
    return {key: float(value) for key, value in metrics.items()}


@contextmanager
def replaced(records: Callable[..., Any] | None, final: Callable[..., Any] | None) -> Iterator[None]:
    """Replace a study's trials and its test runs; None: they stay."""
    from pfl_ops.jobs import runner  # here, because Ray's processes import this module too
    from pfl_ops.tuning.session import finals

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "simulate", records or runner.simulate)
        patch.setattr(finals, "run_final", final or finals.run_final)
        yield


def tune(*args: Any, records: Callable[..., Any] | None = None, final: Any = None, **settings: Any) -> Any:
    """Call `tuning.tune` with other trials and test runs; unless it is given, nothing is confirmed.

    At most two jobs at once, if it says nothing of shares: each has a process of its own to start.
    """
    from pfl_ops import tuning

    settings = {**_usual(settings), **settings}
    with replaced(records, final):
        return tuning.tune(*args, **settings)


def benchmark(*args: Any, records: Callable[..., Any] | None = None, final: Any = None, **settings: Any) -> Any:
    """Call `tuning.commands.benchmark.benchmark` as `tune` calls `tuning.tune`."""
    from pfl_ops.tuning.commands import benchmark as module

    settings = {**_usual(settings), **settings}
    with replaced(records, final):
        return module.benchmark(*args, **settings)


def _usual(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a study that are not given."""
    shared = {"cpus_per_trial", "gpus_per_trial"} & settings.keys()
    return {"confirm": 0, **({} if shared else {"concurrency": 2})}
