"""The trials of a study without Ray: its storage is real, its jobs are begun and ended by the test."""

from typing import Any

from fake_run import FakeRun

from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.job import Job
from pfl_ops.jobs.resources import ResourceShare
from pfl_ops.tuning import study_storage as study_storages
from pfl_ops.tuning.search import Search
from pfl_ops.tuning.settings import Settings
from pfl_ops.tuning.study_storage import StudyStorage
from pfl_ops.tuning.trials import Trials


def open_trials(address: str, chosen: Settings, missing: int, wanted: int, **how: Any) -> Any:
    """Return the trials of the study at an address, as a driver opens them that begins or goes on with it.

    Args:
        how: more of `Trials`' arguments; `pruner`: a function of the study's storage.
    Returns:
        `Trials` with `study_storage`, `runs` (number, part -> tracked run), `events` and `forgotten` points.
    """
    study_storage = StudyStorage("s", study_storages.storage(address), chosen.objective, {"digest": "d"})
    study_storage.recover()
    search = Search(study_storage, chosen.space, chosen.objective, 9, 0)
    combination, events, forgotten, runs = chosen.combination, [], [], {}
    assert combination is not None

    def make(number: int, point: Any, part: int) -> Job:
        experiment = chosen.experiment.override({**point, "seed": combination.parts[part].seed})
        return Job.of("trial", "", 2 * number + part, experiment, None, Execution(), ResourceShare(1.0, 0.0, 2))

    def open_run(number: int, point: Any, part: int) -> Any:
        return runs.setdefault((number, part), FakeRun())

    if "pruner" in how:
        how["pruner"] = how["pruner"](study_storage)
    made: Any = Trials(
        search, missing, wanted, make, open_run, events.append, forgotten.append, combination=combination, **how
    )
    made.study_storage, made.runs, made.events, made.forgotten = study_storage, runs, events, forgotten
    return made
