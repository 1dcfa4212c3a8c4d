"""A trial: one repetition of the experiment with a point of the space put in, reported round by round.

This runs in Ray's processes, which may live on another machine: everything that it needs travels as plain values.
"""

import contextlib
import gc
import json
import math
import os
import platform
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeAlias

from filelock import FileLock
from ray import tune

from pfl_ops.errors import PflOpsError, in_a_line, nearest
from pfl_ops.federation.diverged import Diverged
from pfl_ops.federation.settings import Execution
from pfl_ops.files import write_whole
from pfl_ops.metrics import summands
from pfl_ops.probe.memory import keep_within
from pfl_ops.registry import file_digest, load_plugin, plugins
from pfl_ops.spaces import Point, decoded
from pfl_ops.tuning.objective import Objective
from pfl_ops.tuning.resources import Share


class Record(Protocol):
    """One finished round, as the engine gives it."""

    @property
    def round(self) -> int: ...
    @property
    def metrics(self) -> Mapping[str, float]: ...
    @property
    def time(self) -> int: ...


@dataclass(frozen=True)
class Reported:
    """A record on its way from a trial to the driver."""

    round: int
    metrics: dict[str, float]
    time: int


class ObjectiveMissing(PflOpsError):
    """A trial was evaluated and the objective was not among the results; no other trial will have it either."""


@dataclass(frozen=True)
class Failure:
    """Cause of a trial's failure, as text.

    Attributes:
        line: one line for the user. hopeless: True if every other trial would fail with it.
        diverged: True if its training diverged: a result, if a bad one.
    """

    line: str
    hopeless: bool = False
    diverged: bool = False

    MARK: ClassVar[str] = "pfl-ops failure "

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        return cls(in_a_line(error), isinstance(error, ObjectiveMissing), isinstance(error, Diverged))

    def __str__(self) -> str:
        """Return a line of ASCII that `found_in` reads."""
        return self.MARK + json.dumps(asdict(self))

    @classmethod
    def found_in(cls, text: str) -> "Failure | None":
        """Return the last failure in a text; None: it holds none."""
        marked = [part for line in text.splitlines() for _, mark, part in [line.partition(cls.MARK)] if mark]
        try:
            told = json.loads(marked[-1])
            return cls(str(told["line"]), told["hopeless"] is True, told["diverged"] is True)
        except (IndexError, ValueError, KeyError, TypeError):
            return None


FAILURE = "failure"  # key of a report: traceback and `Failure` of a trial that raised
LOSSES = "losses"  # key of a report: the training loss of the first and of the last round
SEEN = "samples"  # key of a report: samples that were trained on so far


class TrialFailed(Exception):
    """A trial's error on its way to the driver: its text is a `Failure`. The driver unpickles no error."""


@contextlib.contextmanager
def failing_as_text() -> Iterator[None]:
    """Raise errors as `TrialFailed`, with the traceback of the error in front."""
    try:
        yield
    except Exception as error:
        raise TrialFailed(str(Failure.of(error))) from error


@dataclass(frozen=True)
class Context:
    """What all trials of a study share.

    Attributes:
        experiment: every setting, nested; a trial puts its point into it.
        objective: what is reported. rounds: of a whole trial. full_every: rounds between evaluations of everything.
        home: the work folder, absolute: checkpoints lie there. data_dir: as the driver has it.
        joined: on a cluster, where each machine's own data folder (`PFL_OPS_DATA`) comes first.
        data_digest: SHA-256 of the data set's content.
        execution: where and how to compute. share: what a trial gets.
        plugins: (digest, file, source text) of each plug-in file.
    """

    experiment: dict[str, Any]
    objective: Objective
    rounds: int
    full_every: int
    home: str
    data_dir: str | None
    joined: bool
    data_digest: str
    execution: Execution
    share: Share
    plugins: tuple[tuple[str, str, str], ...] = field(default=())

    @property
    def data_folder(self) -> str | None:
        """Where this machine has its data."""
        return (os.environ.get("PFL_OPS_DATA") if self.joined else None) or self.data_dir


Records: TypeAlias = Callable[[Point, Context], Iterator[Record]]
"""What a trial runs: a module-level function, since it travels. `simulate` is the real one."""


def simulate(point: Point, context: Context) -> Iterator[Record]:
    """The experiment with `point` put in, from the last checkpoint of that very configuration if there is one."""
    load_plugins(context.plugins)
    from pfl_ops import runs
    from pfl_ops.experiment import Experiment

    experiment = Experiment.model_validate(context.experiment).override(point)
    check_data(experiment, context)
    checkpoints = Path(context.home, "checkpoints")
    checkpoints.mkdir(parents=True, exist_ok=True)
    # Two trials may draw the same point: the second waits, and then reads the first one's checkpoint.
    with FileLock(checkpoints / f".{experiment.digest(context.data_folder)}.lock"):
        yield from runs.simulate(
            experiment,
            home=context.home,
            data_dir=context.data_folder,
            execution=context.execution,
            sealed=True,
            stages=context.objective.stages,
        )


class FederationTrial(tune.Trainable):
    """Ray's side of a trial: each step runs on to the next round in which every objective was evaluated."""

    def setup(self, config: dict[str, Any], context: Context | None = None, records: Records | None = None) -> None:
        assert context is not None and records is not None
        self.context, self.make = context, records
        self.losses: tuple[float, ...] = ()
        self.samples = 0
        with failing_as_text():
            prepare(context)
            self.records = self.make(decoded(config), context)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """Another trial in the same process: nothing of the last one stays."""
        with failing_as_text():
            self.cleanup()
            self.losses, self.samples = (), 0
            prepare(self.context)
            self.records = self.make(decoded(new_config), self.context)
        return True

    def step(self) -> dict[str, Any]:
        """Return the next report, or the trial's failure as its last one.

        An error is reported and not raised: Ray starts a trial again that raises, as one whose process died.
        """
        since: list[Reported] = []
        try:
            return self._step(since)
        except Exception as error:
            values = dict.fromkeys(self.context.objective.metrics, math.nan)
            account = "".join(traceback.format_exception(error)) + str(Failure.of(error))
            last = since[-1].round if since else self.iteration
            more = {SEEN: self.samples, "records": since, FAILURE: account, "done": True}
            return {"round": last, **values, **more}

    def _step(self, since: list[Reported]) -> dict[str, Any]:
        metrics = self.context.objective.metrics
        for record in self.records:
            since.append(Reported(record.round, dict(record.metrics), record.time))
            if "train/loss" in record.metrics:
                self.losses = (*self.losses[:1], float(record.metrics["train/loss"]))
            self.samples += _seen(record.metrics)
            if all(metric in record.metrics for metric in metrics):
                values = {metric: float(record.metrics[metric]) for metric in metrics}
                last = record.round >= self.context.rounds
                if last:
                    self.cleanup(to_the_end=True)
                over = last or not all(map(math.isfinite, values.values()))
                parts = [part for metric in metrics for part in summands(metric) if part in record.metrics]
                values |= {part: float(record.metrics[part]) for part in parts}
                more = {LOSSES: self.losses, SEEN: self.samples, "records": since, "done": over}
                return {"round": record.round, **values, **more}
            self._expect(record)
        raise RuntimeError(f"the simulation ended after {since[-1].round if since else 'no'} rounds")

    def _expect(self, record: Record) -> None:
        """Fail at the first full evaluation without the objective rather than after the last round."""
        full = record.round >= self.context.rounds or (record.round and record.round % self.context.full_every == 0)
        if full:
            missing = next(m for m in self.context.objective.metrics if m not in record.metrics)
            close = nearest(missing, record.metrics)
            raise ObjectiveMissing(
                f"'{missing}' is not measured in this experiment (round {record.round} has no such value)"
                + (f"; did you mean '{close}'?" if close else "")
            )

    def cleanup(self, to_the_end: bool = False) -> None:
        for _ in self.records if to_the_end else ():  # the simulation closes its checkpoint
            pass
        close = getattr(getattr(self, "records", None), "close", None)
        if close is not None:  # a generator: it lets go of its locks and files
            close()
        self.records = iter(())
        gc.collect()


def _seen(values: Mapping[str, float]) -> int:
    """Samples on which gradients were taken in a round, each time counted."""
    return round(values.get("cost/samples_per_second", 0.0) * values.get("cost/train_seconds", 0.0))


def prepare(context: Context) -> None:
    """Put this process within its share, as the processes are in which a packing is measured."""
    keep_within(context.execution.threads or context.share.threads, context.share.gpus)


def check_data(experiment: Any, context: Context) -> None:
    """Refuse another machine's data set of the same name and other content."""
    from pfl_ops.data.datasets import load

    found = load(experiment.data, data_dir=context.data_folder, sealed=True).digest
    if found != context.data_digest:
        raise PflOpsError(
            f"{experiment.data.name} on {platform.node()} ({context.data_folder or 'the default data folder'}) "
            f"is not the driver's: digest {found[:12]}, expected {context.data_digest[:12]}"
        )


def pack_plugins() -> tuple[tuple[str, str, str], ...]:
    """The plug-in files loaded in this process, with their source: another machine may not have them."""
    return tuple((digest, str(path), path.read_bytes().decode()) for digest, path in plugins().items())


def load_plugins(packed: tuple[tuple[str, str, str], ...]) -> None:
    """Load what `pack_plugins` packed: from the same file if it is here and unchanged, else from the text.

    The text is kept in the cache folder, under its digest: a process that is killed leaves no further copy.
    """
    from pfl_ops.data.store import cache_folder

    for digest, name, source in packed:
        if digest in plugins():
            continue
        path = Path(name)
        if not _has(path, digest):
            path = cache_folder() / "plugins" / digest / path.name
            if not _has(path, digest):
                path.parent.mkdir(parents=True, exist_ok=True)
                write_whole(path, source)
        load_plugin(path)


def _has(path: Path, digest: str) -> bool:
    return path.is_file() and file_digest(path) == digest
