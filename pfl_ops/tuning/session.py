"""One sitting of a study: its missing trials, then the test of its choice."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from ray import tune
from ray._private import worker as ray_worker

from pfl_ops.data.datasets import load
from pfl_ops.errors import PflOpsError
from pfl_ops.experiment import Experiment
from pfl_ops.federation.settings import Execution
from pfl_ops.spaces import Point
from pfl_ops.tracking import Run, Store, provenance
from pfl_ops.tuning.driver import Driver, Event, OnEvent, TrialRun
from pfl_ops.tuning.ledger import Ledger
from pfl_ops.tuning.resources import Share, cluster, share
from pfl_ops.tuning.search import StudySearch, asha
from pfl_ops.tuning.settings import Settings
from pfl_ops.tuning.trial import Context, FederationTrial, Records, pack_plugins, simulate

if TYPE_CHECKING:
    from pfl_ops.runs import Result


class StudyInterrupted(PflOpsError):
    """Ctrl-C: the study is on disk and can go on; the message says how."""


class Final(Protocol):
    """A test run of the chosen configuration."""

    def __call__(self, experiment: Experiment, name: str, session: "Session") -> "Result": ...


def run_final(experiment: Experiment, name: str, session: "Session") -> "Result":
    """The real one: a tracked run below the study's."""
    from pfl_ops import runs

    return runs.run(
        experiment,
        home=session.store.home.root,
        data_dir=session.data_dir,
        execution=session.execution,
        store=session.store,
        parent=session.parent,
        name=name,
    )


@dataclass
class Session:
    """See `study.tune` for what its attributes mean; `folder`-less ones are absolute."""

    settings: Settings
    ledger: Ledger
    store: Store
    parent: Run
    data_dir: str | None
    execution: Execution
    address: str | None
    on_event: OnEvent | None
    records: Records = simulate
    final: Final = run_final
    cpus_per_trial: float = 1
    gpus_per_trial: float | None = None
    concurrency: int | None = None
    finals: "list[Result]" = field(default_factory=list)

    # -- trials ------------------------------------------------------------------------------------------------------

    def run_trials(self, missing: int) -> None:
        """Run what the study lacks.

        Raises:
            StudyInterrupted: Ctrl-C came.
            PflOpsError: the objective is not measured by this experiment.
        """
        settings, ledger = self.settings, self.ledger
        rounds = settings.experiment.training.rounds
        ledger.recover()
        with cluster(self.address) as folder:
            part = share(self.cpus_per_trial, self.gpus_per_trial, self.concurrency, missing, self.execution.device)
            search = StudySearch(ledger, settings.space, settings.objective, rounds, settings.experiment.seed)
            scheduler = None
            if settings.scheduler == "asha":
                scheduler = asha(settings.objective, rounds, settings.full_every, ledger)
            driver = Driver(search, settings.trials, self._open_run, self.on_event)
            trainable = tune.with_parameters(FederationTrial, context=self._context(part), records=self.records)
            tuner = tune.Tuner(
                tune.with_resources(trainable, {"cpu": part.cpus, "gpu": part.gpus}),
                tune_config=tune.TuneConfig(
                    search_alg=search,
                    scheduler=scheduler,
                    num_samples=missing,
                    max_concurrent_trials=part.concurrency,
                    reuse_actors=True,
                    trial_name_creator=lambda trial: trial.trial_id,
                    trial_dirname_creator=lambda trial: trial.trial_id,
                ),
                run_config=tune.RunConfig(
                    name=ledger.name,
                    storage_path=str(folder / "tune"),
                    verbose=0,
                    callbacks=[driver],
                    stop=driver,
                    checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # trials keep their own
                    failure_config=tune.FailureConfig(max_failures=0),
                ),
            )
            self._tell("begin")
            with _silent():
                try:
                    tuner.fit()
                finally:
                    driver.close()
        if driver.hopeless:
            raise driver.hopeless
        if driver.over < missing:
            raise StudyInterrupted

    def experiment_at(self, point: Point) -> Experiment:
        """A trial's experiment."""
        return self.settings.experiment.override(point)

    def _open_run(self, number: int, point: Point) -> TrialRun:
        experiment = self.experiment_at(point)
        digest, group = experiment.digest(self.data_dir), experiment.digest(self.data_dir, seed=False)
        return self.store.run(
            self.ledger.name,
            f"trial-{number:03d}",
            identity=f"{digest}:trial-{number:03d}",  # two trials of a study may have the same configuration
            parent=self.parent,
            params=experiment.flat,
            tags={**provenance(experiment=digest, group=group), "pfl_ops.study": self.ledger.name},
        )

    def _context(self, part: Share) -> Context:
        experiment, execution = self.settings.experiment, self.execution
        dataset = load(experiment.data, data_dir=self.data_dir, sealed=True)  # unpacked once, by the driver
        if not part.gpus:
            execution = execution.model_copy(update={"device": "cpu"})
        if execution.threads is None:
            execution = execution.model_copy(update={"threads": part.threads})
        return Context(
            experiment.resolved,
            self.settings.objective,
            experiment.training.rounds,
            self.settings.full_every,
            str(self.store.home.root),
            self.data_dir,
            self.address is not None,
            dataset.digest,
            execution,
            part,
            pack_plugins(),
        )

    # -- the choice --------------------------------------------------------------------------------------------------

    def chosen(self, original: Experiment) -> Experiment:
        """The chosen configuration, as its test runs have it: training and validation data together, scored on test."""
        best = self.ledger.chosen()
        assert best is not None
        fixed = {"evaluation.split": "test", "partition.seed": self.settings.experiment.partition.seed}
        return original.override({**best[1].params, **fixed})

    def run_finals(self, chosen: Experiment, repetitions: int) -> int:
        """Test the chosen configuration with the seeds seed, seed + 1, ...; what is finished already is not run again.

        Returns:
            how often the test data were opened for this study.
        """
        best = self.ledger.chosen()
        assert best is not None
        if repetitions:
            seeds = [chosen.seed + i for i in range(repetitions)]
            openings = self.ledger.open_test(best[0], best[1].params, seeds)
            self.parent.tags({"pfl_ops.test_openings": openings})
        for i in range(repetitions):
            experiment = chosen.repetition(i)
            self._tell("test", trial=i)
            self.finals.append(self.final(experiment, f"final-seed{experiment.seed}", self))
            self._tell("final", trial=i)
        return len(self.ledger.openings())

    def _tell(self, kind: str, trial: int | None = None) -> None:
        if self.on_event:
            done = self.ledger.done()
            self.on_event(Event(kind, self.ledger.name, self.settings.trials, done, trial=trial))  # type: ignore[arg-type]


@contextmanager
def _silent() -> Iterator[None]:
    """Keep Ray's own messages (how Tune would resume, tracebacks, deaths of processes) out of the terminal.

    The study records what they say. The last kind goes to standard output, whatever Ray is told: by a private printer.
    """
    logger = logging.getLogger("ray.tune")
    level, printer = logger.level, getattr(ray_worker, "print_to_stdstream", None)
    logger.setLevel(logging.CRITICAL)
    ray_worker.print_to_stdstream = lambda *_, **__: None
    try:
        yield
    finally:
        logger.setLevel(level)
        ray_worker.print_to_stdstream = printer
