"""The runner: jobs from a source, on shares of the running Ray, side by side; one kind of event."""

import re
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ray import tune
from ray.tune import PlacementGroupFactory
from ray.tune.experiment import Trial as RayTrial
from ray.tune.schedulers import TrialScheduler
from ray.tune.stopper import Stopper

from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs.job import Job, SharedPaths
from pfl_ops.jobs.process import IDLE, JOB, JobProcess
from pfl_ops.jobs.ray_instance import environment, silent
from pfl_ops.jobs.report import FAILURE, RECORDS, Failure, has_died
from pfl_ops.jobs.searcher import JobSearcher, JobSource
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
