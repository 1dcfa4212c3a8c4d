"""The trials of a study without Ray: its storage is real, its jobs are begun and ended by the test."""

from types import SimpleNamespace
from typing import Any

from fake_run import FakeRun

from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.job import Job
from pfl_ops.jobs.resources import ResourceShare
from pfl_ops.tuning.session.search import Search
from pfl_ops.tuning.session.trials import Trials
from pfl_ops.tuning.studies import study_database
from pfl_ops.tuning.studies.settings import Settings
from pfl_ops.tuning.studies.study_storage import StudyStorage


class FakeChildren:
    """The runs of a study's trials, without MLflow and checkpoints.

    Attributes:
        runs: (number, part) -> tracked run. forgotten: points. clients_of: (number, part) -> table of clients.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.runs, self.forgotten = settings, {}, []
        self.clients_of: Any = lambda number, part: {}

    def trial(self, number: int, point: Any, part: int = 0) -> Any:
        seeds = [one.seed for one in self.settings.combination.parts] if self.settings.combination else [0]
        experiment = self.settings.experiment.override({**point, "seed": seeds[part]})

        def job(number: int, execution: Execution, share: ResourceShare, metrics: tuple[str, ...]) -> Job:
            return Job.of("trial", f"trial {number:03d}", number, experiment, None, execution, share, metrics)

        return SimpleNamespace(
            job=job,
            open=lambda: self.runs.setdefault((number, part), FakeRun()),
            clients=lambda: self.clients_of(number, part),
        )

    def forget(self, point: Any) -> None:
        self.forgotten.append(point)


def open_trials(address: str, chosen: Settings, missing: int, wanted: int, **how: Any) -> Any:
    """Return the trials of the study at an address, as a driver opens them that begins or goes on with it.

    Args:
        how: more of `Trials`' arguments; `pruner`: a function of the study's storage; `clients_of`: (number, part) ->
            the table of clients.
    Returns:
        `Trials` with `study_storage`, `runs` (number, part -> tracked run), `events` and `forgotten` points.
    """
    study_storage = StudyStorage("s", study_database.storage(address), chosen.objective, {"digest": "d"})
    study_storage.recover()
    search = Search(study_storage, chosen.space, chosen.objective, 9, 0)
    events, children = [], FakeChildren(chosen)
    if "pruner" in how:
        how["pruner"] = how["pruner"](study_storage)
    if "clients_of" in how:
        children.clients_of = how.pop("clients_of")
    made: Any = Trials(
        search, missing, wanted, children, ResourceShare(1.0, 0.0, 2), Execution(), events.append,
        combination=chosen.combination, **how,
    )  # fmt: skip
    made.study_storage, made.runs, made.events, made.forgotten = (
        study_storage,
        children.runs,
        events,
        children.forgotten,
    )
    return made
