"""Whole runs in Ray's processes, as many at once as fit. They only compute; what happens is told to the driver."""

import gc
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

import ray
from ray.exceptions import OutOfMemoryError, RayActorError, RayTaskError

from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.federation.settings import Execution
from pfl_ops.probe.memory import keep_within
from pfl_ops.tuning.resources import Share
from pfl_ops.tuning.trial import Reported, load_plugins

T = TypeVar("T")

TRIES = 2  # a process may die for reasons of its own; the second one goes on from the checkpoint


@dataclass(frozen=True)
class Place:
    """What all workers share.

    Attributes:
        home: the work folder, absolute.
        data_dir: as the driver has it; none on a cluster, where each machine has its own.
        execution: where and how to compute. share: what a worker gets. plugins: as `trial.pack_plugins` packs them.
    """

    home: str
    data_dir: str | None
    execution: Execution
    share: Share
    plugins: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class Started(Generic[T]):
    """A job begins."""

    job: T


@dataclass(frozen=True)
class Progress(Generic[T]):
    """A job has finished a round."""

    job: T
    record: Reported


@dataclass(frozen=True)
class Done(Generic[T]):
    """A job has come to its end."""

    job: T


@dataclass(frozen=True)
class Failed(Generic[T]):
    """A job can't be done. `reason`: in one line."""

    job: T
    reason: str


Happening: TypeAlias = Started[T] | Progress[T] | Done[T] | Failed[T]
Payload: TypeAlias = tuple[dict[str, Any], str]
"""An experiment, every setting nested, and its digest as the driver has it."""
Work: TypeAlias = Callable[[Payload, Place], Iterator[Reported]]
"""What a worker does: a module-level function, since it travels. `simulate` is the real one."""


def simulate(payload: Payload, place: Place) -> Iterator[Reported]:
    """The whole run, its full last evaluation included, from the last checkpoint if there is one."""
    from pfl_ops import runs
    from pfl_ops.experiment import Experiment

    tree, digest = payload
    experiment = Experiment.model_validate(tree)
    if experiment.digest(place.data_dir) != digest:
        raise PflOpsError(f"{experiment.data.name} on this machine is not the driver's (other content)")
    for record in runs.simulate(
        experiment, home=place.home, data_dir=place.data_dir, execution=place.execution, final=True
    ):
        yield Reported(record.round, dict(record.metrics), record.time)


class Worker:
    """A process that works through jobs one by one."""

    def __init__(self, place: Place, work: Work) -> None:
        load_plugins(place.plugins)
        keep_within(place.execution.threads or place.share.threads, place.share.gpus)
        self.place, self.work = place, work

    def run(self, payload: Payload) -> Iterator[Reported]:
        try:
            yield from self.work(payload, self.place)
        finally:
            gc.collect()  # all clients' models, which would else wait in a cycle while the next run makes its own


@dataclass
class _Running(Generic[T]):
    job: T
    worker: Any
    tries: int


@dataclass
class Pool(Generic[T]):
    """Workers in the running Ray, and the jobs that they do.

    Attributes:
        place: what they share. payload: of a job. work: what a worker does with it.
    """

    place: Place
    payload: Callable[[T], Payload]
    work: Work = simulate
    running: dict[Any, _Running[T]] = field(default_factory=dict)  # stream of results -> what it comes from

    def through(self, jobs: Sequence[T]) -> Generator[Happening[T], None, None]:
        """Do the jobs in their order, and tell what happens; a worker has its next job before the last one is told of.

        Closing the iterator ends the workers; rounds that they have finished are on disk.
        """
        waiting = deque((job, 1) for job in jobs)
        try:
            for _ in range(min(self.place.share.concurrency, len(waiting))):
                yield self._give(self._worker(), *waiting.popleft())
            while self.running:
                (stream,), _ = ray.wait(list(self.running), num_returns=1, fetch_local=False)
                now = self.running[stream]
                happened, alive = self._next(stream, now)
                if isinstance(happened, Progress):
                    yield happened
                    continue
                del self.running[stream]
                if happened is None:
                    waiting.appendleft((now.job, now.tries + 1))
                if waiting:
                    yield self._give(now.worker if alive else self._worker(), *waiting.popleft())
                if happened is not None:
                    yield happened
        finally:
            for now in self.running.values():
                ray.kill(now.worker)
            self.running.clear()

    def _worker(self) -> Any:
        share = self.place.share
        actor = ray.remote(num_cpus=share.cpus, num_gpus=share.gpus, max_restarts=0)(Worker)
        return actor.remote(self.place, self.work)

    def _give(self, worker: Any, job: T, tries: int) -> Started[T]:
        stream = worker.run.options(num_returns="streaming").remote(self.payload(job))
        self.running[stream] = _Running(job, worker, tries)
        return Started(job)

    def _next(self, stream: Any, now: _Running[T]) -> tuple[Happening[T] | None, bool]:
        """What a stream says next, and whether its worker can go on; None: it died, and the job is tried again."""
        try:
            return Progress(now.job, ray.get(next(stream))), True
        except StopIteration:
            return Done(now.job), True
        except (RayActorError, OutOfMemoryError):  # the latter where Ray itself ended the process
            if now.tries < TRIES:
                return None, False
            return Failed(
                now.job, "its process died twice, perhaps for lack of memory (fewer at once: --concurrency)"
            ), False
        except RayTaskError as error:
            cause = error.cause if isinstance(error.cause, BaseException) else error
            return Failed(now.job, in_a_line(cause)), True
