"""A source of jobs as Ray Tune's searcher; processes without a job are kept until there is one."""

from collections import deque
from pathlib import Path
from typing import Any, Protocol

from ray.tune.search import Searcher

from pfl_ops.jobs.job import Job
from pfl_ops.jobs.process import IDLE, JOB
from pfl_ops.jobs.resources import ResourceShare


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
