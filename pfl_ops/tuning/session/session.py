"""One call that runs a study: its missing trials, the confirmation of its choice, then the test of that."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.early_stop import EarlyStop
from pfl_ops.jobs.job import Job, SharedPaths
from pfl_ops.jobs.resources import ResourceShare, cluster, is_running, share
from pfl_ops.jobs.runner import JobEvent, Runner
from pfl_ops.probe import ProbeOutOfMemory
from pfl_ops.probe.memory import release
from pfl_ops.probe.settle import settle
from pfl_ops.results import Result
from pfl_ops.tracking import Run, Store
from pfl_ops.tuning.resources import packing as packings
from pfl_ops.tuning.resources.packing import Kind, Packing
from pfl_ops.tuning.resources.resource_request import ResourceRequest
from pfl_ops.tuning.session.baselines import Baselines, scales_of
from pfl_ops.tuning.session.children import Children
from pfl_ops.tuning.session.confirm import Confirmation, Confirmations
from pfl_ops.tuning.session.events import Event, OnEvent
from pfl_ops.tuning.session.finals import Finals
from pfl_ops.tuning.session.search import Search
from pfl_ops.tuning.session.trials import Trials
from pfl_ops.tuning.studies.budget import SAVE_EVERY, Clock, ending, goes_on, spent
from pfl_ops.tuning.studies.paired import PairedPruner
from pfl_ops.tuning.studies.parts import Combination
from pfl_ops.tuning.studies.settings import Settings
from pfl_ops.tuning.studies.study_storage import StudyStorage, point_of
from pfl_ops.tuning.studies.tested import PlannedTest, planned_tests, runs_table, tested_experiment


class StudyInterrupted(PflOpsError):
    """Ctrl-C: the study is on disk and can go on; the message says how."""

    def __init__(self, message: str = "stopped; the same command goes on where this one was") -> None:
        super().__init__(message)


@dataclass
class Session:
    """The state of one call that runs a study; `tune_study.tune` describes what is not named here. Paths are absolute.

    Attributes:
        decide: called once the choice is made; returns the experiments of the test runs.
        confirmation: how the choice was confirmed; None: it was not.
        finals: their results, in the order of their seeds. diverged: {seed: how} of those that diverged.
        planned: the test runs of a study in several environments, in the order of the experiments that `decide`
            returns. tested: their scores, see `tested.runs_table`; None: the study has no environments.
        prefix: of the names of test runs. view: key of the saved view of its trials.
    """

    settings: Settings
    study_storage: StudyStorage
    store: Store
    parent: Run
    data_dir: str | None
    execution: Execution
    address: str | None
    on_event: OnEvent | None
    asked: ResourceRequest = field(default_factory=ResourceRequest)
    decide: Callable[["Session"], Sequence[Experiment]] = lambda _: ()
    finals: list[Result] = field(default_factory=list)
    diverged: dict[int, str] = field(default_factory=dict)
    confirmation: Confirmation | None = None
    planned: list[PlannedTest] = field(default_factory=list)
    tested: pd.DataFrame | None = None
    prefix: str = ""
    view: str = "trials"

    # -- trials ------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Run what the study lacks, trials, confirmation and tests.

        Raises:
            KeyboardInterrupt: Ctrl-C came.
            PflOpsError: the objective is not measured by this experiment, no trial has a result, or a run that was to
                confirm the choice has none.
        """
        missing = self.settings.trials - self.study_storage.done()
        if missing > 0 and goes_on(self.settings, self.study_storage):
            self._run_trials(missing)
            return
        confirmations = Confirmations(self, None, self.execution)
        confirmations.plan()
        if confirmations.over:
            self._run_tests(confirmations)
        else:
            self._confirm(confirmations)

    def _run_trials(self, missing: int) -> None:
        """Run trials, and then the confirmation and the tests in the same processes."""
        settings, study_storage = self.settings, self.study_storage
        study_storage.recover()
        with self._ray_for(missing * settings.at_once) as (folder, part, execution):
            self._note_execution(execution)
            rounds = settings.experiment.training.rounds
            search = Search(
                study_storage, settings.space, settings.goal, rounds, settings.experiment.seed, settings.random_start
            )
            clock, paired = Clock(study_storage), settings.scheduler == "paired"
            trials = Trials(
                search,
                missing,
                wanted=settings.trials,
                children=self.children,
                share=part,
                execution=execution,
                on_event=self.on_event,
                is_over=self._budget(clock),
                combination=self.combination,
                pruner=PairedPruner(settings.objective.modes[0] == "max", study_storage) if paired else None,
            )
            scheduler, full_every = None, settings.experiment.evaluation.full_every  # rungs are multiples of it
            if settings.scheduler == "asha" and full_every < rounds:  # else no rung lies before the end
                (metric,), (mode,) = settings.objective.metrics, settings.objective.modes
                scheduler = EarlyStop(metric, mode, rounds, full_every, study_storage.curves().values())
            self.tell("begin")
            confirmations, tests = Confirmations(self, part, execution), Finals(self, part, execution)
            baselines = Baselines(self, part, execution)
            jobs = _Phases(confirmations, tests, trials, clock, baselines, self.check_same)
            self._run_jobs(jobs, folder, part, scheduler=scheduler, is_hopeless=lambda: trials.hopeless is not None)
        baselines.check()
        if trials.hopeless:
            raise trials.hopeless
        self._gather(confirmations, tests)

    def _budget(self, clock: Clock) -> Callable[[], bool]:
        """Return a function that is True once a budget of the search is spent; it records which, and tells it."""
        settings, study_storage, over = self.settings, self.study_storage, False

        def is_over() -> bool:
            nonlocal over
            if not over and (cause := spent(settings, study_storage, clock.seconds)):
                over = True
                clock.save(0.0)
                study_storage.end(cause, getattr(settings, cause))
                if text := ending(settings, study_storage):
                    self.tell("ended", text=text)
            return over

        return is_over

    def _confirm(self, confirmations: Confirmations) -> None:
        """Confirm the choice of a study that has all its trials, and then run the tests in the same processes."""
        with self._ray_for(len(confirmations.waiting)) as (folder, part, execution):
            confirmations.share, confirmations.execution = part, execution
            tests = Finals(self, part, execution)
            self._run_jobs(_Phases(confirmations, tests, check=self.check_same), folder, part)
        self._gather(confirmations, tests)

    def _run_tests(self, confirmations: Confirmations) -> None:
        """Run the tests of a study that has all its trials; a single one needs no Ray, nor do those that are over."""
        tests = Finals(self, None, self.execution)
        tests.begin()
        if len(tests.missing) > 1 or (tests.missing and self.address):
            with self._ray() as folder:
                tests.share = self._share(self._packing(len(tests.missing)), len(tests.missing))
                tests.execution = self._execution(tests.share, None)
                self._run_jobs(_Phases(confirmations, tests, check=self.check_same), folder, tests.share)
        self._gather(confirmations, tests)

    def _run_jobs(self, jobs: "_Phases", folder: Path, part: ResourceShare, **stops: Any) -> None:
        """Run jobs to their ends; `stops`: see `Runner`."""
        place = SharedPaths(str(self.store.home.root), self.data_dir, self.address is not None)
        runner = Runner(place, part.concurrency, jobs.take, queue=jobs.tests.queue, **stops)
        try:
            runner.run(jobs, folder, self.study_storage.name)
        finally:
            jobs.close()

    def _gather(self, confirmations: Confirmations, tests: "Finals") -> None:
        confirmations.check()
        self.confirmation = confirmations.result
        if self.settings.environments:
            self.tested = runs_table(self.planned, tests.outcomes(), self.settings.objective.metrics)
        else:
            self.finals, self.diverged = tests.results()

    def _ray(self) -> AbstractContextManager[Path]:
        if not is_running():
            self.tell("wait", text="starting Ray ...")
        return cluster(self.address)

    @contextmanager
    def _ray_for(self, runs: int) -> Iterator[tuple[Path, ResourceShare, Execution]]:
        """Yield a folder for Ray's files, the share of each job and its execution, while Ray runs."""
        release()  # what an estimate left on the GPU
        packing = self._packing(runs)
        with self._ray() as folder:
            part = self._share(packing, runs)
            yield folder, part, self._execution(part, packing)

    @property
    def combination(self) -> Combination | None:
        """That of the settings, with FedAvg's scores as far as they are recorded."""
        combination = self.settings.combination
        return replace(combination, scales=scales_of(self)) if combination else None

    @property
    def children(self) -> Children:
        """The runs below the study's own."""
        return Children(self)

    # -- what each trial gets ---------------------------------------------------------------------------------------

    def _packing(self, missing: int) -> Packing | None:
        """Return how many trials run at once, where that is to be measured, or was when the study began."""
        kind = self.asked.kind(self.execution.device, self.address)
        kept = None if self.asked.number_given else Packing.recorded(self.study_storage.settings.get("packing"))
        try:
            if kept and kept.kind == (kind or "cpu") and kept.machine == packings.machine(kept.kind):
                packing, begun = kept, " (as this study began)"
            elif kind:
                self.tell("packing", text="packing: trying how many trials to run at once ...")
                packing, begun = self._measure(kind, missing), " (on this machine)" if self.address else ""
            else:
                return None
        except ProbeOutOfMemory:
            raise
        except PflOpsError as error:
            if self.asked.gpus == "auto" or self.asked.cpus == "auto":
                raise
            self.tell("packing", text=f"packing: could not be measured ({error}); a quarter of a GPU a trial")
            return None
        self.study_storage.remember(packing=packing.as_dict())
        self.parent.tags({"pfl_ops.packing": str(packing)})
        self.tell("packing", text=f"packing: {packing}{begun}")
        return packing

    def _measure(self, kind: Kind, missing: int) -> Packing:
        experiment, execution = self.settings.example, self.execution
        layouts = self.asked.layouts(kind, missing)
        stages = self.settings.objective.stages
        return packings.cached(
            packings.key(experiment, execution, layouts),
            lambda: packings.measure(experiment, execution, layouts, data_dir=self.data_dir, stages=stages),
        )

    def _share(self, packing: Packing | None, missing: int) -> ResourceShare:
        cpus, gpus, most = self.asked.cpus, self.asked.gpus, self.asked.concurrency
        if packing:
            cpus, gpus = packing.layout.cpus, packing.layout.gpus
            if packing.kind == "cpu" and not self.address:
                most = min(most or missing, packing.layout.trials)
        elif gpus == "auto":
            gpus = 0.0
        assert cpus != "auto" and gpus != "auto"
        return share(cpus, gpus, most, missing, self.execution.device)

    def _execution(self, part: ResourceShare, packing: Packing | None) -> Execution:
        """Return how trials compute, the same for all of them: whatever can be settled for the whole study is."""
        execution = part.execution(self.execution)
        if not self.settings.has_one_network:
            return execution  # what is fast for one network may be impossible for another
        if packing:
            return packing.execution(execution)
        if part.gpus and not torch.cuda.is_available():
            return execution  # a cluster's GPU: each trial has to see for itself
        return settle(self.settings.example, execution, self.data_dir, gpus=part.gpus)

    def _note_execution(self, execution: Execution) -> None:
        how = {name: getattr(execution, name) for name in ("device", "way", "chunk", "workers", "threads")}
        self.parent.tags({f"pfl_ops.{name}": value for name, value in how.items()})

    def check_same(self) -> None:
        """Refuse a run whose result would not be comparable with those that the study has.

        Raises:
            PflOpsError: the data, or a file of a partition or of weights, are others than when the study began.
        """
        if self.settings.digest(self.data_dir) != self.study_storage.settings["digest"]:
            raise PflOpsError(
                f"study '{self.study_storage.name}' stopped: the data, the partition or the weights were replaced "
                "while it ran; put the former files back and go on with --resume, or choose another --name"
            )

    # -- the choice --------------------------------------------------------------------------------------------------

    def chosen(self, original: Experiment) -> Experiment:
        """The chosen configuration, as its test runs have it, see `tested_experiment`."""
        best = self.study_storage.chosen()
        assert best is not None
        return tested_experiment(self.settings.experiment, point_of(best[1]), original)

    def open_tests(self, chosen: Experiment, repetitions: int) -> list[Experiment]:
        """Record that the test data are opened for the choice; return its repetitions, seeds seed, seed + 1, ..."""
        best = self.study_storage.chosen()
        assert best is not None
        if repetitions:
            seeds = [chosen.seed + i for i in range(repetitions)]
            openings = self.study_storage.open_test(best[0], point_of(best[1]), seeds)
            self.parent.tags({"pfl_ops.test_openings": openings})
        if self.settings.environments:
            self.planned = planned_tests(self.settings, point_of(best[1]), repetitions, self.data_dir)
            return [test.experiment for test in self.planned]
        return [chosen.repetition(i) for i in range(repetitions)]

    def test_name(self, i: int, experiment: Experiment) -> str:
        """Return the name of a test run."""
        where = f" {self.planned[i].label}" if self.planned else ""
        return f"{self.prefix}final-seed{experiment.seed}{where}"

    def tell(self, kind: Any, trial: int | None = None, text: str = "", **rounds: Any) -> None:
        if self.on_event:
            name, done = self.study_storage.name, self.study_storage.done()
            self.on_event(Event(kind, name, self.settings.trials, done, trial=trial, text=text, **rounds))


@dataclass
class _Phases:
    """The source of a study's jobs: FedAvg in environments, trials if some are missing, confirmations, then tests.

    Attributes:
        clock: of the search; it counts from the start of the first run until the last trial has ended.
        check: called before each job; raises if the study can't go on.
    """

    confirmations: Confirmations
    tests: Finals
    trials: Trials | None = None
    clock: Clock | None = None
    baselines: Baselines | None = None
    check: Callable[[], None] = lambda: None

    def next(self) -> Job | None:
        self.check()
        if self.baselines is not None:
            job = self.baselines.next()
            if job is not None or not self.baselines.over:
                return job
            if self.trials is not None:
                self.trials.combination = self.baselines.session.combination
            self.baselines = None
        if self.trials is not None:
            job = self.trials.next()
            if job is not None or self.trials.running or self.trials.hopeless:
                return job
            self.stop_clock()
        job = self.confirmations.next()
        if job is not None or not self.confirmations.over:
            return job
        return self.tests.next()

    def _is_stopped(self) -> bool:
        """Return True if the study can't go on."""
        try:
            self.check()
        except PflOpsError:
            return True
        return False

    def close(self) -> None:
        """Let go of the runs that are still open, and record the time of the search."""
        self.stop_clock()
        for phase in (self.baselines, self.trials, self.confirmations):
            if phase is not None:
                phase.close()

    def stop_clock(self) -> None:
        """Record the time of the search, which is over."""
        if self.clock is not None:
            self.clock.save(0.0)
            self.clock = None

    def take(self, event: JobEvent) -> None:
        """Note what happened to a job; one that failed beside replaced data is cut short: `next` ends the study."""
        if event.kind == "ended" and event.failure and not event.failure.diverged and self._is_stopped():
            return
        if self.clock is not None:
            if event.kind == "started":
                self.clock.start()
            self.clock.save(0.0 if event.kind == "ended" else SAVE_EVERY)
        match event.job.purpose:
            case "trial":
                assert self.trials is not None
                self.trials.take(event)
            case "baseline":
                assert self.baselines is not None
                self.baselines.take(event)
            case "confirmation":
                self.confirmations.take(event)
            case _:
                self.tests.take(event)
