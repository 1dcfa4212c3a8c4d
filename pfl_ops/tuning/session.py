"""One sitting of a study: its missing trials, then the test of its choice."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import ray
import torch
from ray import tune
from ray._private import worker as ray_worker

from pfl_ops.data.datasets import load
from pfl_ops.errors import PflOpsError
from pfl_ops.experiment import Experiment
from pfl_ops.federation.diverged import Diverged
from pfl_ops.federation.settings import Execution
from pfl_ops.probe import TooBig
from pfl_ops.probe.memory import release
from pfl_ops.probe.settle import settle
from pfl_ops.spaces import Point
from pfl_ops.tracking import Run, Store, provenance
from pfl_ops.tracking.notes import title, trial_colour, trial_name
from pfl_ops.tracking.views import COLOUR
from pfl_ops.tuning import packing as packings
from pfl_ops.tuning.asked import Asked
from pfl_ops.tuning.driver import Driver, Event, OnEvent, TrialRun
from pfl_ops.tuning.ledger import Ledger, point_of
from pfl_ops.tuning.packing import Kind, Packing
from pfl_ops.tuning.resources import Share, cluster, share
from pfl_ops.tuning.search import StudySearch, asha
from pfl_ops.tuning.settings import Settings
from pfl_ops.tuning.trial import Context, FederationTrial, pack_plugins, simulate

if TYPE_CHECKING:
    from pfl_ops.runs import Result


class StudyInterrupted(PflOpsError):
    """Ctrl-C: the study is on disk and can go on; the message says how."""


def run_final(experiment: Experiment, name: str, session: "Session") -> "Result":
    """Run a test of the chosen configuration, tracked below the study's run."""
    from pfl_ops import runs

    return runs.run(
        experiment,
        home=session.store.home.root,
        data_dir=session.data_dir,
        execution=session.execution,
        progress=False,
        store=session.store,
        parent=session.parent,
        name=name,
        tags={"pfl_ops.kind": "final", "pfl_ops.study": session.ledger.name, **session.settings.tags},
    )


@dataclass
class Session:
    """See `study.tune` for what its attributes mean; `folder`-less ones are absolute.

    Attributes:
        diverged: {seed: how} of test runs that diverged. prefix: of its test runs' names.
        view: key of the saved view of its trials.
    """

    settings: Settings
    ledger: Ledger
    store: Store
    parent: Run
    data_dir: str | None
    execution: Execution
    address: str | None
    on_event: OnEvent | None
    asked: Asked = field(default_factory=Asked)
    finals: "list[Result]" = field(default_factory=list)
    diverged: dict[int, str] = field(default_factory=dict)
    prefix: str = ""
    view: str = "trials"

    # -- trials ------------------------------------------------------------------------------------------------------

    def run_trials(self, missing: int) -> None:
        """Run what the study lacks.

        Raises:
            StudyInterrupted: Ctrl-C came.
            PflOpsError: the objective is not measured by this experiment.
        """
        self.ledger.recover()
        release()  # what an estimate left on the GPU
        packing = self._packing(missing)
        if not ray.is_initialized():
            self._tell("wait", text="starting Ray ...")
        with cluster(self.address) as folder:
            part = self._share(packing, missing)
            context = self._context(part, packing)
            driver = self._pass(folder / "first", missing, context, again=True)
            if driver.unbegun:
                self.ledger.recover()
                driver = self._pass(folder / "second", driver.unbegun, context)

    def _pass(self, folder: Path, missing: int, context: Context, again: bool = False) -> Driver:
        """Run trials until so many have ended.

        Args:
            folder: for Ray's own files. missing: number of trials.
            context: of all trials. again: True if another pass follows for `Driver.unbegun`.
        Raises:
            StudyInterrupted, PflOpsError: see `run_trials`.
        """
        settings, ledger, part = self.settings, self.ledger, context.share
        rounds = settings.experiment.training.rounds
        search = StudySearch(ledger, settings.space, settings.objective, rounds, settings.experiment.seed)
        scheduler = None
        if settings.scheduler == "asha":
            scheduler = asha(settings.objective, rounds, settings.full_every, ledger)
        driver = Driver(search, settings.trials, self.open_run, self.on_event, self.forget, again)
        trainable = tune.with_parameters(FederationTrial, context=context, records=simulate)
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
                storage_path=str(folder),
                verbose=0,
                callbacks=[driver],
                stop=driver,
                checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),  # trials keep their own
                failure_config=tune.FailureConfig(max_failures=1),  # it goes on from its checkpoint
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
        if driver.over + driver.unbegun < missing:
            raise StudyInterrupted
        return driver

    def experiment_at(self, point: Point) -> Experiment:
        """A trial's experiment."""
        return self.settings.experiment.override(point)

    def open_run(self, number: int, point: Point) -> TrialRun:
        """Open the run of a trial; one that was begun before is found again."""
        experiment = self.experiment_at(point)
        digest, group = experiment.digest(self.data_dir), experiment.digest(self.data_dir, seed=False)
        return self.store.run(
            self.parent.experiment,
            trial_name(number, experiment.algorithm.name, point),
            identity=self.trial_identity(number, point),
            parent=self.parent,
            params=experiment.flat,
            tags={
                **provenance(experiment=digest, group=group),
                COLOUR: trial_colour(number),
                "pfl_ops.kind": "trial",
                "pfl_ops.study": self.ledger.name,
                "pfl_ops.method": title(experiment),
                "pfl_ops.own_stage": experiment.algorithm.own_stage,
                "algorithm": experiment.algorithm.name,
                "dataset": experiment.data.label,
                "partition": experiment.partition.kind,
                "model": experiment.model.name,
            },
        )

    def trial_identity(self, number: int, point: Point) -> str:
        """Of a trial's run: two trials of a study may have the same configuration."""
        return f"{self.experiment_at(point).digest(self.data_dir)}:trial-{number:03d}"

    def forget(self, point: Point) -> None:
        """A trial that was stopped early is over: its models would only fill the disk."""
        from pfl_ops import runs

        stages = self.settings.objective.stages
        runs.forget(self.experiment_at(point), home=self.store.home.root, data_dir=self.data_dir, stages=stages)

    # -- what each trial gets ---------------------------------------------------------------------------------------

    def _packing(self, missing: int) -> Packing | None:
        """How many trials run at once, where that is to be measured, or was when the study began."""
        kind = self.asked.kind(self.execution.device, self.address)
        kept = None if self.asked.number_given else Packing.recorded(self.ledger.settings.get("packing"))
        try:
            if kept and kept.kind == (kind or "cpu") and kept.machine == packings.machine(kept.kind):
                packing, begun = kept, " (as this study began)"
            elif kind:
                self._tell("packing", text="packing: trying how many trials to run at once ...")
                packing, begun = self._measure(kind, missing), " (on this machine)" if self.address else ""
            else:
                return None
        except TooBig:
            raise
        except PflOpsError as error:
            if self.asked.gpus == "auto" or self.asked.cpus == "auto":
                raise
            self._tell("packing", text=f"packing: could not be measured ({error}); a quarter of a GPU a trial")
            return None
        self.ledger.remember(packing=packing.as_dict())
        self.parent.tags({"pfl_ops.packing": str(packing)})
        self._tell("packing", text=f"packing: {packing}{begun}")
        return packing

    def _measure(self, kind: Kind, missing: int) -> Packing:
        experiment, execution = self.settings.experiment, self.execution
        layouts = self.asked.layouts(kind, missing)
        stages = self.settings.objective.stages
        return packings.cached(
            packings.key(experiment, execution, layouts),
            lambda: packings.measure(experiment, execution, layouts, data_dir=self.data_dir, stages=stages),
        )

    def _share(self, packing: Packing | None, missing: int) -> Share:
        cpus, gpus, most = self.asked.cpus, self.asked.gpus, self.asked.concurrency
        if packing:
            cpus, gpus = packing.layout.cpus, packing.layout.gpus
            if packing.kind == "cpu" and not self.address:
                most = min(most or missing, packing.layout.trials)
        elif gpus == "auto":
            gpus = 0.0
        assert cpus != "auto" and gpus != "auto"
        return share(1.0 if cpus is None else cpus, gpus, most, missing, self.execution.device)

    def _execution(self, part: Share, packing: Packing | None) -> Execution:
        """How trials compute, the same for all of them: whatever can be settled for the whole study is."""
        execution = self.execution
        if not part.gpus:
            execution = execution.model_copy(update={"device": "cpu"})
        if execution.threads is None:
            execution = execution.model_copy(update={"threads": part.threads})
        if any(parameter.key.startswith("model.") for parameter in self.settings.space.parameters):
            return execution  # what is fast for one network may be impossible for another
        if packing:
            return packing.execution(execution)
        if part.gpus and not torch.cuda.is_available():
            return execution  # a cluster's GPU: each trial has to see for itself
        return settle(self.settings.experiment, execution, self.data_dir)

    def _context(self, part: Share, packing: Packing | None) -> Context:
        experiment, execution = self.settings.experiment, self._execution(part, packing)
        how = {name: getattr(execution, name) for name in ("device", "way", "chunk", "workers", "threads")}
        self.parent.tags({f"pfl_ops.{name}": value for name, value in how.items()})
        dataset = load(experiment.data, data_dir=self.data_dir, sealed=True)  # unpacked once, by the driver
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
        return original.override({**point_of(best[1]), **fixed})

    def run_finals(self, chosen: Experiment, repetitions: int) -> int:
        """Test the chosen configuration with the seeds seed, seed + 1, ...; what is finished already is not run again.

        Returns:
            how often the test data were opened for this study.
        """
        best = self.ledger.chosen()
        assert best is not None
        if repetitions:
            seeds = [chosen.seed + i for i in range(repetitions)]
            openings = self.ledger.open_test(best[0], point_of(best[1]), seeds)
            self.parent.tags({"pfl_ops.test_openings": openings})
        for i in range(repetitions):
            experiment = chosen.repetition(i)
            self._tell("test", trial=i)
            try:
                self.finals.append(run_final(experiment, f"{self.prefix}final-seed{experiment.seed}", self))
            except Diverged as error:
                self.diverged[experiment.seed] = str(error)
            self._tell("final", trial=i)
        return len(self.ledger.openings())

    def _tell(self, kind: str, trial: int | None = None, text: str = "") -> None:
        if self.on_event:
            done = self.ledger.done()
            self.on_event(Event(kind, self.ledger.name, self.settings.trials, done, trial=trial, text=text))  # type: ignore[arg-type]


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
