"""The runs below a study's own in MLflow: trials, configurations with new seeds, and FedAvg in environments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from pfl_ops import runs, tag_names
from pfl_ops.config.experiment import Experiment
from pfl_ops.config.identity import fingerprint
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state.checkpoint import Record, Table
from pfl_ops.jobs.job import Job, Purpose
from pfl_ops.jobs.resources import ResourceShare
from pfl_ops.spaces import Point
from pfl_ops.tracking import Run, provenance
from pfl_ops.tracking.descriptions.notes import title, trial_colour, trial_name
from pfl_ops.tracking.descriptions.views import COLOUR
from pfl_ops.tracking.provenance import described
from pfl_ops.tracking.runs.earlier import code_tags
from pfl_ops.tuning.studies.environments import BASELINE, baseline, baseline_objective
from pfl_ops.tuning.studies.parts import TrialPart

if TYPE_CHECKING:
    from pfl_ops.tuning.session.session import Session


@dataclass(frozen=True)
class ChildRun:
    """A run on validation data below a study's.

    Attributes:
        session: of the study. experiment: what is run. stages: those to score.
        purpose: of its job. label: of its job, for messages. name: in MLflow.
        mark: tells it from the study's other runs of the same experiment; "": its purpose does.
        tags: beside those that all runs of a study have.
    """

    session: "Session"
    experiment: Experiment
    purpose: Purpose
    label: str
    name: str
    stages: tuple[str, ...]
    mark: str = ""
    tags: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def identity(self) -> str:
        """By it a run that was begun before is found again."""
        return f"{self.experiment.digest(self.session.data_dir)}:{self.mark or self.purpose}"

    def open(self, is_over: bool = False) -> Run:
        """Open it in MLflow, or find it there.

        Args:
            is_over: True if the study has it as over, so that MLflow's rounds are its own.
        """
        session, experiment = self.session, self.experiment
        tree = experiment.identity(session.data_dir)
        kind = "trial" if self.purpose == "trial" else "confirmation"  # which is compared only if it is named
        place, parent = session.parent.experiment, session.parent
        rerun = "" if is_over else session.store.rerun_of(place, self.identity, self.records, parent)
        return session.store.run(
            place,
            self.name,
            identity=self.identity,
            parent=parent,
            rerun=rerun,
            params=experiment.flat,
            tags={
                **provenance(experiment=fingerprint(tree), group=fingerprint(tree, without=("seed",))),
                **code_tags(tree),
                **described(experiment, kind),
                tag_names.STUDY: session.study_storage.name,
                tag_names.METHOD: title(experiment),
                **self.tags,
            },
        )

    def job(self, number: int, execution: Execution, share: ResourceShare, metrics: tuple[str, ...] = ()) -> Job:
        """Return its job; `metrics`: what each report has to hold."""
        where, full_every = self.session.data_dir, self.session.settings.experiment.evaluation.full_every
        return Job.of(
            self.purpose, self.label, number, self.experiment, where, execution, share, metrics, self.stages, full_every
        )

    @property
    def _checkpoint(self) -> dict[str, Any]:
        """Its place, for functions of `runs`."""
        return {"home": self.session.store.home.root, "data_dir": self.session.data_dir, "stages": self.stages}

    def records(self) -> list[Record]:
        """The rounds in its checkpoint."""
        return runs.kept_records(self.experiment, **self._checkpoint)

    def clients(self) -> Table:
        """The table of clients in its checkpoint, once it is over."""
        return runs.kept_clients(self.experiment, **self._checkpoint)

    def forget(self) -> None:
        """Remove its checkpoint: its models would only fill the disk."""
        runs.forget(self.experiment, **self._checkpoint)


@dataclass(frozen=True)
class Children:
    """The runs below that of a session's study."""

    session: "Session"

    def trial(self, number: int, point: Point, part: int = 0) -> ChildRun:
        """The run of a trial, or of one of its parts, by its index.

        Its mark has the trial's number: two trials of a study may have the same configuration.
        """
        settings = self.session.settings
        experiment, label, tags = settings.experiment.override(point), "", {COLOUR: trial_colour(number)}
        if settings.combination is not None:
            one = settings.combination.parts[part]
            experiment, label = self._experiment(point, one), str(one)
            tags |= {tag_names.TRIAL: f"trial-{number:03d}", **_tags(one)}
        return ChildRun(
            self.session,
            experiment,
            purpose="trial",
            label=f"trial {number:03d}",
            name=trial_name(number, experiment.algorithm.name, point, label),
            mark=f"trial-{number:03d}",
            stages=settings.objective.stages,
            tags=tags,
        )

    def confirmation(self, number: int, point: Point, part: TrialPart) -> ChildRun:
        """The run of a trial's configuration with another seed."""
        return ChildRun(
            self.session,
            self._experiment(point, part),
            purpose="confirmation",
            label=f"confirmation of trial {number:03d}, {part}",
            name=f"{self.session.prefix}confirm-{number:03d}-seed{part.seed} {part.environment}".rstrip(),
            stages=self.session.settings.objective.stages,
            tags={COLOUR: trial_colour(number), "pfl_ops.confirms": f"trial-{number:03d}", **_tags(part)},
        )

    def baseline(self, part: TrialPart) -> ChildRun:
        """The run of FedAvg in an environment."""
        return ChildRun(
            self.session,
            baseline(self._experiment({}, part)),
            purpose="baseline",
            label=f"FedAvg in {part}",
            name=f"{self.session.prefix}baseline-seed{part.seed} {part.environment}",
            stages=baseline_objective(self.session.settings.objective).stages,
            tags={"pfl_ops.baseline": BASELINE, **_tags(part)},
        )

    def forget(self, point: Point) -> None:
        """Remove the checkpoints of a trial that is over without a value."""
        for part in range(self.session.settings.n_parts):
            self.trial(0, point, part).forget()

    def _experiment(self, point: Point, part: TrialPart) -> Experiment:
        """A configuration's experiment in an environment, with a seed."""
        settings = self.session.settings
        return settings.environment(part.environment).of(settings.experiment).override({**point, "seed": part.seed})


def _tags(part: TrialPart) -> dict[str, str]:
    return {tag_names.ENVIRONMENT: part.environment} if part.environment else {}
