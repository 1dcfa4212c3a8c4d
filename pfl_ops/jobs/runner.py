"""The runner: jobs from a source, on shares of the running Ray, side by side; one kind of event."""

import re
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

from ray import tune
from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial as RayTrial
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher
from ray.tune.stopper import Stopper

from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs.job import Job, SharedPaths
from pfl_ops.jobs.process import IDLE, JOB, JobProcess
from pfl_ops.jobs.ray_instance import environment, silent
from pfl_ops.jobs.report import FAILURE, RECORDS, Failure, has_died
from pfl_ops.jobs.resources import ResourceShare
from pfl_ops.jobs.tracking_queue import TrackingQueue
from pfl_ops.jobs.work import simulate

TRIES = 2  # a process may die for reasons of its own; the second one goes on from the checkpoint
NO_RECORD = {"TUNE_GLOBAL_CHECKPOINT_S": "1e9"}
"""Tune writes its record of all trials, which is never read, at the end only. By default it does so every ten seconds,
which takes the longer the more trials there are; processes that wait for their next job are then ended."""
UNBEGUN = 3  # times that a job may be given a process that is dead by then


@dataclass(frozen=True)
class JobEvent:
    """A change in the state of a job.

    Attributes:
        kind: started (again, if its process died: its rounds so far follow once more), rounds, or ended.
        records: rounds that were finished since the last event.
        report: what its process said last, `report`'s keys and the objective; {}: nothing yet.
        failure: why an ended job has no result; None: it has one. account: Ray's whole account of that.
    """

    kind: Literal["started", "rounds", "ended"]
    job: Job
    records: tuple[Record, ...] = ()
    report: Mapping[str, Any] = field(default_factory=dict)
    failure: Failure | None = None
    account: str = ""


OnJob: TypeAlias = Callable[[JobEvent], None]


class JobSource(Protocol):
    """A maker of jobs."""

    def next(self) -> Job | None:
        """The next job; None: there is none as long as none of those that run has ended."""


class JobSearcher(Searcher):
    """A source as Ray Tune's searcher, which is asked for jobs and told nothing: the runner's callback hears it all.

    Tune ends a process for which there is no trial, and a new one takes seconds to start. So a process for which the
    source has no job, but may have one once another job has ended, gets an idle trial (`IDLE`), which ends as soon as
    there is a job for it.

    Attributes:
        running: Ray's trial -> job, for jobs that were given out and have not ended.
        again: jobs to give out once more, and jobs for which an idle trial was ended.
        finished: True once all jobs were given out and have ended.
        error: which the source raised; it is not asked again. Ray, which asks for jobs, would wrap it.
    """

    def __init__(self, source: JobSource) -> None:
        super().__init__()
        self.source = source
        self.running: dict[str, Job] = {}
        self.again: deque[Job] = deque()
        self.finished = False
        self.error: Exception | None = None
        self._begun: set[str] = set()  # of those that run
        self._idle: set[str] = set()
        self._leaving = 0  # idle trials that were ended, and whose processes have not begun a job yet
        self._processes = 0  # that are alive, as far as known
        self._share: ResourceShare | None = None  # of the last job

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Ray pickles searchers into its own record, which is never read

    # -- Ray's searcher ----------------------------------------------------------------------------------------------

    def suggest(self, trial_id: str) -> Any:
        job = self.again.popleft() if self.again else self._next()
        if job is not None:
            self.running[trial_id] = job
            self._share = job.payload.share
            return {JOB: job.payload}
        if not self.running:
            self.finished = True
            return Searcher.FINISHED
        if len(self._begun) < len(self.running):  # one waits for its process: a free one is for that
            return None
        if len(self._begun) + len(self._idle) >= self._processes:
            return None
        self._idle.add(trial_id)
        return {IDLE: self._share}

    def _next(self) -> Job | None:
        try:
            return None if self.error else self.source.next()
        except Exception as error:
            self.error = error
            return None

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        pass

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: Ray's own record is never read."""
        Path(checkpoint_path).touch()

    def restore(self, checkpoint_path: str) -> None:
        raise NotImplementedError("jobs go on from their own checkpoints")

    # -- the runner's ------------------------------------------------------------------------------------------------

    def is_idle(self, trial_id: str) -> bool:
        """Return True if a trial has no job."""
        return trial_id in self._idle

    def begin(self, trial_id: str) -> None:
        """Note that a trial has its process."""
        if trial_id in self.running:
            self._begun.add(trial_id)
            self._leaving = max(0, self._leaving - 1)
        self._processes = max(self._processes, len(self._begun) + len(self._idle))

    def end(self, trial_id: str, died: bool = False) -> Job | None:
        """Note that a trial is over, and return its job; None: it was an idle one.

        Args:
            died: its process is gone.
        """
        known = trial_id in self._begun or trial_id in self._idle
        self._begun.discard(trial_id)
        self._idle.discard(trial_id)
        if died and known:
            self._processes -= 1
        return self.running.pop(trial_id, None)

    def may_leave(self) -> bool:
        """Return True if an idle trial has to end: there is a job for its process, or there will be none."""
        if self.finished:
            return True
        waiting = len(self.again) + len(self.running) - len(self._begun)
        if waiting <= self._leaving:
            job = self._next()
            if job is None:
                return not self.running
            self.again.append(job)
        self._leaving += 1
        return True


class JobList:
    """Jobs in their order.

    >>> source = JobList([])
    >>> source.next() is None
    True
    """

    def __init__(self, jobs: list[Job]) -> None:
        self.jobs = deque(jobs)

    def next(self) -> Job | None:
        return self.jobs.popleft() if self.jobs else None


@dataclass
class Runner:
    """Runs jobs in the running Ray.

    Attributes:
        place: what their processes share. concurrency: jobs at once.
        on_job: called with every event, in the calling thread. scheduler: stops trials early; None: nothing does.
        is_hopeless: asked after each end; True: nothing more is started.
        queue: tracks finished jobs; closed before `run` returns. None: nothing is tracked in a thread.
    """

    place: SharedPaths
    concurrency: int
    on_job: OnJob
    scheduler: TrialScheduler | None = None
    is_hopeless: Callable[[], bool] = lambda: False
    queue: TrackingQueue[Any] | None = None

    def run(self, source: JobSource, folder: Path, name: str) -> None:
        """Run all jobs of a source to their ends.

        Args:
            folder: for Ray's own files. name: of this call, for these.
        Raises:
            KeyboardInterrupt: Ctrl-C ended the jobs; what they have finished is on disk.
            Exception: what the source raised, once the jobs that it had given out have ended.
        """
        search = JobSearcher(source)
        driver = _Driver(search, self.on_job, self.is_hopeless)
        trainable = tune.with_parameters(JobProcess, place=self.place, work=simulate)
        tuner = tune.Tuner(
            tune.with_resources(trainable, _resources),
            tune_config=tune.TuneConfig(
                search_alg=search,
                scheduler=self.scheduler,
                num_samples=-1,
                max_concurrent_trials=self.concurrency,
                reuse_actors=True,
                trial_name_creator=lambda trial: trial.trial_id,
                trial_dirname_creator=lambda trial: trial.trial_id,
            ),
            run_config=tune.RunConfig(
                name=name,
                storage_path=str(folder),
                verbose=0,
                callbacks=[driver],
                stop=driver,
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # jobs keep their own
                failure_config=tune.FailureConfig(max_failures=0),  # `_Driver` starts them again
            ),
        )
        with self.queue or nullcontext():
            with silent(), environment(NO_RECORD):
                tuner.fit()
            if not (search.finished or self.is_hopeless()):
                raise KeyboardInterrupt  # Tune ends its jobs at Ctrl-C, and returns
            if search.error is not None:
                raise search.error


class _Driver(tune.Callback, Stopper):
    """Ray's callback: it runs in the driver and turns what Ray says into events; idle trials have none."""

    def __init__(self, search: JobSearcher, on_job: OnJob, is_hopeless: Callable[[], bool]) -> None:
        self.search, self.on_job, self.is_hopeless = search, on_job, is_hopeless
        self.begun: set[str] = set()
        self.deaths: dict[tuple[str, int], list[int]] = {}  # of a job's process: before the job began, and later

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Ray pickles callbacks into its own record, which is never read

    # -- Ray's callback: parameter names must be exactly these -------------------------------------------------------

    def on_trial_start(self, iteration: int, trials: list[RayTrial], trial: RayTrial, **info: Any) -> None:
        self.begun.add(trial.trial_id)
        self.search.begin(trial.trial_id)
        if not self.search.is_idle(trial.trial_id):
            self.on_job(JobEvent("started", self.search.running[trial.trial_id]))

    def on_trial_result(
        self, iteration: int, trials: list[RayTrial], trial: RayTrial, result: dict[str, Any], **info: Any
    ) -> None:
        if self.search.is_idle(trial.trial_id):
            return
        records = tuple(result.pop(RECORDS, ()))
        over = bool(result.get("done"))
        self.on_job(JobEvent("rounds", self.search.running[trial.trial_id], records, {**result, "done": over}))

    def on_trial_complete(self, iteration: int, trials: list[RayTrial], trial: RayTrial, **info: Any) -> None:
        if self.search.is_idle(trial.trial_id):
            self.search.end(trial.trial_id)
            return
        account = str(trial.last_result.get(FAILURE, ""))
        self._end(trial, Failure.in_account(account) if account else None, account)

    def on_trial_error(self, iteration: int, trials: list[RayTrial], trial: RayTrial, **info: Any) -> None:
        trial.run_metadata.pickled_error_filename = None  # else Ray unpickles it for its own table of results
        if self.search.is_idle(trial.trial_id):
            self.search.end(trial.trial_id, died=True)
            return
        account = _account(trial)
        if has_died(account) and self._may_try_again(trial):
            job = self.search.end(trial.trial_id, died=True)
            assert job is not None
            self.search.again.append(job)
            return
        self._end(trial, Failure.in_account(account), account)

    # -- Ray's stopper -----------------------------------------------------------------------------------------------

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return self.search.is_idle(trial_id) and self.search.may_leave()

    def stop_all(self) -> bool:
        return self.is_hopeless()

    # -- ours --------------------------------------------------------------------------------------------------------

    def _may_try_again(self, trial: RayTrial) -> bool:
        """Return True if a job whose process died gets another one.

        It may have been given a process that another job had used and that was dead by then: that is no try.
        """
        job = self.search.running[trial.trial_id]
        deaths = self.deaths.setdefault((job.purpose, job.number), [0, 0])
        begun = trial.trial_id in self.begun
        deaths[begun] += 1
        return deaths[begun] < (TRIES if begun else UNBEGUN)

    def _end(self, trial: RayTrial, failure: Failure | None, account: str) -> None:
        job = self.search.end(trial.trial_id, died=has_died(account))
        assert job is not None
        self.on_job(JobEvent("ended", job, report=trial.last_result or {}, failure=failure, account=account))


def _resources(config: Mapping[str, Any]) -> PlacementGroupFactory:
    """A job's share, or that of an idle trial; Ray also asks with no configuration at all."""
    if JOB not in config and IDLE not in config:
        return PlacementGroupFactory([{"CPU": 1.0}])
    share = config[JOB].share if JOB in config else config[IDLE]
    return PlacementGroupFactory([{"CPU": share.cpus, **({"GPU": share.gpus} if share.gpus else {})}])


def _account(trial: RayTrial) -> str:
    """Ray's whole account of a failure, colours removed."""
    text = Path(trial.error_file).read_text(encoding="utf-8") if trial.error_file else ""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
