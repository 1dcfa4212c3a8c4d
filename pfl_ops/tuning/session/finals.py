"""The test runs of a study's choice."""

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from pfl_ops import runs, tag_names
from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.loop.diverged import Diverged
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.job import Job
from pfl_ops.jobs.resources import ResourceShare, most_cpus
from pfl_ops.jobs.runner import JobEvent
from pfl_ops.jobs.tracking_queue import TrackingQueue
from pfl_ops.tuning.studies.study_storage import longest_run

if TYPE_CHECKING:
    from pfl_ops.results import Result
    from pfl_ops.tuning.session.session import Session

LONG = 60.0  # seconds of the chosen trial from which its tests share all of the machine


def run_final(experiment: Experiment, name: str, session: "Session", computed: bool) -> "Result":
    """Track a test run of the chosen configuration below the study's run, from its checkpoint if a job left one.

    Args:
        computed: True if a job of this call did.
    Raises:
        PflOpsError: the data were replaced: it would be computed again, on others.
    """
    session.check_same()
    return runs.run(
        experiment,
        home=session.store.home.root,
        data_dir=session.data_dir,
        execution=session.execution,
        progress=False,
        store=session.store,
        parent=session.parent,
        name=name,
        tags={tag_names.KIND: "final", tag_names.STUDY: session.study_storage.name, **session.settings.tags},
        computed=computed,
    )


class Finals:
    """The test runs of a study's choice: a source of jobs, and the queue that tracks them.

    Args:
        session: the study's. share, execution: of each job; `begin` may give a job more.

    Attributes:
        queue: tracks finished test runs.
    """

    def __init__(self, session: "Session", share: ResourceShare | None, execution: Execution) -> None:
        self.session, self.share, self.execution = session, share, execution
        self.experiments: list[Experiment] = []
        self.missing: deque[int] = deque()
        self.begun = False
        self._error: Exception | None = None
        self.queue: TrackingQueue[Result] = TrackingQueue()

    def begin(self) -> None:
        """Decide what is tested; what is finished already is read."""
        self.begun, session = True, self.session
        self.experiments = list(session.decide(session))
        for i, experiment in enumerate(self.experiments):
            if runs.is_finished(experiment, home=session.store.home.root, data_dir=session.data_dir):
                self._track(i, computed=False)
                session.tell("final", i, "was over before: read")
            else:
                self.missing.append(i)
        if self.share is not None and self.missing:
            self._widen(self.share)

    def _widen(self, part: ResourceShare) -> None:
        """Let the tests of long trials have all that the trials had together, where they are fewer."""
        best = self.session.study_storage.chosen()
        seconds = longest_run(best[1]) if best else 0.0
        times = part.concurrency // len(self.missing)
        if times > 1 and not part.gpus and seconds > LONG:
            self.share = replace(part, cpus=max(part.cpus, min(part.cpus * times, most_cpus())))
            self.execution = self.share.execution(self.session.execution)

    def next(self) -> Job | None:
        try:
            if not self.begun:
                self.begin()
        except Exception as error:  # Ray, which asks for jobs, would wrap it
            self._error = error
        if not self.missing:
            return None
        i, session = self.missing.popleft(), self.session
        assert self.share is not None
        return Job.of("test", f"test run {i + 1}", i, self.experiments[i], session.data_dir, self.execution, self.share)

    def take(self, event: JobEvent) -> None:
        """Note what happened to a test's job."""
        i, rounds = event.job.number, event.job.payload.rounds
        match event.kind:
            case "started":
                self.session.tell("test", i)
            case "rounds":
                self.session.tell("rounds", i, round=int(event.report["round"]), rounds=rounds)
            case "ended":
                if event.failure and event.failure.died:
                    self.queue.fail(i, PflOpsError(f"test run {i + 1}: {event.failure.line}"))
                else:  # one that raised raises again where it is tracked, as itself
                    self._track(i, computed=True)
                self.session.tell("final", i)

    def results(self) -> "tuple[list[Result], dict[int, str]]":
        """Return the results in the order of the seeds, and {seed: how} of those that diverged.

        Raises:
            Exception: what one of the runs raised.
        """
        pairs = list(zip(self.outcomes(), self.experiments, strict=True))
        diverged = {experiment.seed: one for one, experiment in pairs if isinstance(one, str)}
        return [one for one, _ in pairs if not isinstance(one, str)], diverged

    def outcomes(self) -> "list[Result | str]":
        """Return the result of each test run, or how it diverged, in their order.

        Raises:
            Exception: what one of the runs raised.
        """
        if self._error:
            raise self._error
        found: list[Result | str] = []
        self.queue.close()
        for i in range(len(self.experiments)):
            try:
                found.append(self.queue.result(i) if i in self.queue else self._run_here(i))
            except Diverged as error:
                found.append(str(error))
        return found

    def _run_here(self, i: int) -> "Result":
        """Run one in this process."""
        self.session.tell("test", i)
        try:
            return run_final(self.experiments[i], self._name(i), self.session, True)
        finally:
            self.session.tell("final", i)

    def _track(self, i: int, computed: bool) -> None:
        self.queue.submit(i, lambda: run_final(self.experiments[i], self._name(i), self.session, computed))

    def _name(self, i: int) -> str:
        return self.session.test_name(i, self.experiments[i])
