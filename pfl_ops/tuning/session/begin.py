"""A study before it begins: what it runs with, and every mistake that can be seen before the first trial."""

import os
import shlex
import uuid
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from optuna.storages import BaseStorage
from optuna.study import get_all_study_names

from pfl_ops.config.experiment import Experiment
from pfl_ops.config.fields import show
from pfl_ops.config.identity import CODE, check_shared, code_line, differing_code
from pfl_ops.errors import PflOpsError, check_name
from pfl_ops.federation.settings import Execution
from pfl_ops.redaction import redact_address
from pfl_ops.registry import plugins
from pfl_ops.section import SEED_OFFSET, check_last_seed
from pfl_ops.tracking import WorkFolder
from pfl_ops.tuning.resources.resource_request import ResourceRequest, check_request
from pfl_ops.tuning.session.events import Event, OnEvent
from pfl_ops.tuning.studies import study_database
from pfl_ops.tuning.studies.budget import goes_on
from pfl_ops.tuning.studies.limits import StudyLimits, trials_done
from pfl_ops.tuning.studies.settings import Settings
from pfl_ops.tuning.studies.study_storage import StudyStorage

BENCHMARK = "benchmark"  # in what a study records: the benchmark that it is part of
RUN = "run"  # in what a study records: the name by which its own run in MLflow is found, see `Store.run`'s rerun


@dataclass(frozen=True)
class StudyOptions:
    """The settings that studies run with, whatever they tune; `tune_study.tune` describes them.

    Attributes:
        home: the work folder. studies: where they lie, opened; storage: as it was asked for. data_dir: absolute.
        asked: resources of a trial.
    """

    home: WorkFolder
    studies: BaseStorage
    storage: str | None
    data_dir: str | None
    asked: ResourceRequest
    execution: Execution
    address: str | None
    on_event: OnEvent | None

    @classmethod
    def of(
        cls,
        home: str | Path | None,
        storage: str | None,
        data_dir: str | None,
        asked: ResourceRequest,
        execution: Execution | None,
        address: str | None,
        on_event: OnEvent | None,
    ) -> "StudyOptions":
        """Checked; a database for studies is made if there is none."""
        how = execution or Execution()
        check_request(asked, how.device, address)
        place = WorkFolder.open(home)
        studies = stored(storage, place)
        return cls(place, studies, storage, data_folders(data_dir, address), asked, how, address, on_event)

    def wait(self, name: str, wanted: int, what: str) -> None:
        """Tell who watches what is waited for, at the start of a study or benchmark."""
        if self.on_event:
            self.on_event(Event("wait", name, wanted, text=what))

    def repeated(self, finals: int) -> str:
        """The flags that a command line needs to find a study again, and to test its choice as often."""
        where = f" --storage {shlex.quote(redact_address(self.storage))}" if self.storage else ""
        own = "".join(f" --plugin {path}" for path in plugins().values())
        return where + own + (f" --repetitions {finals}" if finals != 1 else "")


@dataclass(frozen=True)
class PreparedStudy:
    """A study before it begins.

    Attributes:
        experiment: as the user described it. settings: as trials have it.
        name: the study's. finals: test runs of the chosen configuration.
        benchmark: the one that the study is part of; "": none.
    """

    experiment: Experiment
    settings: Settings
    name: str
    finals: int
    benchmark: str = ""

    def __post_init__(self) -> None:
        """Before the first trial, refuse a seed from which the last seed of the study is none, and code without a file.

        The code is what other processes have to know.
        """
        check_shared(self.settings.experiment)
        seed, settings = self.settings.experiment.seed, self.settings
        check_last_seed(seed, settings.seeds_per_trial, "seeds per trial")
        check_last_seed(seed, settings.confirm, f"seeds of the confirmation, from seed + {SEED_OFFSET} on", SEED_OFFSET)
        check_last_seed(seed, self.finals, "test runs")

    @property
    def method(self) -> str:
        return self.experiment.algorithm.name

    def wanting(self, study_storage: StudyStorage, limits: StudyLimits) -> "PreparedStudy":
        """With the limits that are wanted now, and those that the study remembers where none are.

        It remembers them, and the number of test runs.
        """
        plan = self.limited(study_storage, limits)
        study_storage.remember(**asdict(plan.settings.limits), finals=self.finals)
        return plan

    def limited(self, study_storage: StudyStorage, limits: StudyLimits) -> "PreparedStudy":
        """With the limits that are wanted now, and those that the study remembers where none are."""
        settings = self.settings.as_recorded(study_storage.settings).limited(limits)
        return replace(self, settings=replace(settings, finals=self.finals))

    def found(self, studies: BaseStorage, data_dir: str | None, resume: bool) -> StudyStorage | None:
        """Return the study that `begin` would go on with; None: it would make a new one. Nothing is written.

        Raises:
            PflOpsError: as for `begin`.
        """
        if not resume and self.name not in get_all_study_names(studies):
            return None
        study_storage = StudyStorage(self.name, studies)
        study_storage.check_own()
        if not study_storage.settings:
            return None  # a kill came before anything was recorded
        self._check_same(study_storage, data_dir, resume)
        return study_storage

    def begin(self, options: StudyOptions, resume: bool) -> StudyStorage:
        """The study on disk: a new one with its first points queued, or one that may be gone on with.

        Raises:
            PflOpsError: it exists, and was begun with other settings, for another benchmark, or `resume` was not said.
        """
        digest = self.settings.digest(options.data_dir)
        code = code_line(self.settings.experiment.identity(options.data_dir))
        record = {**self.settings.as_dict(), "digest": digest, CODE: code, BENCHMARK: self.benchmark}
        record[RUN] = uuid.uuid4().hex
        study_storage = StudyStorage(self.name, options.studies, self.settings.objective, record, resume)
        if not study_storage.new:
            self._check_same(study_storage, options.data_dir, resume)
        space = self.settings.space
        study_storage.enqueue([space.encoded(point) for point in space.first])
        return study_storage

    def _check_same(self, study_storage: StudyStorage, data_dir: str | None, resume: bool) -> None:
        if (theirs := study_storage.settings.get(BENCHMARK, "")) != self.benchmark:
            part = f"is part of benchmark '{theirs}'; go on with that one: --name {theirs} --resume"
            alone = "exists and is no part of a benchmark; choose another --name"
            raise PflOpsError(f"study '{self.name}' {part if theirs else alone}")
        if study_storage.settings["digest"] != self.settings.digest(data_dir):
            code = code_line(self.settings.experiment.identity(data_dir))
            differs = self.settings.difference(Settings.from_dict(study_storage.settings))
            other = f"settings (now {differs})" if differs else "code or data"
            if not differs and (parts := differing_code(code, study_storage.settings.get(CODE, ""))):
                other = f"code ({parts}), so its trials are not comparable with new ones"
            raise PflOpsError(f"study '{self.name}' was begun with other {other}; choose another --name")
        limits = replace(self.settings.limits, terminate=self.settings.terminate or None)
        wanted = self.settings.as_recorded(study_storage.settings).limited(limits)
        unfinished = study_storage.done() < wanted.trials and goes_on(wanted, study_storage)
        if unfinished and study_storage.begun() and not resume:
            raise PflOpsError(
                f"study '{self.name}' exists, {trials_done(study_storage.done(), wanted.trials)} have a result; "
                "go on with --resume, or choose another --name"
            )


def check(finals: int | None, name: str | None) -> None:
    """Refuse a number of test runs and a name that can't be; None: as recorded.

    Raises:
        PflOpsError: fewer than no test runs, or a name that can't be a file's.
    """
    if finals is not None and finals < 0:
        raise PflOpsError(f"final repetitions must be >= 0, got {show(finals)}")
    if name is not None:
        check_name("study", name)


def stored(storage: str | None, place: WorkFolder) -> BaseStorage:
    """Return the storage of studies: at an address (`study_database.storage`), else studies.db in the work folder."""
    return study_database.storage(storage or f"sqlite:///{place.studies}")


def readable(storage: str | None, home: str | Path | None = None) -> BaseStorage:
    """Return the storage of studies to read it; no file is made, see `study_database.existing`."""
    return study_database.existing(storage or f"sqlite:///{WorkFolder.at(home).studies}")


def existing(name: str, studies: BaseStorage) -> StudyStorage:
    """Return a study that exists.

    Raises:
        PflOpsError: there is no such study, or it was killed before its settings were recorded.
    """
    found = StudyStorage(name, studies)
    if "digest" not in found.settings:
        raise PflOpsError(
            f"study '{name}' was stopped before its settings were recorded; begin it again: the whole command line, "
            "without --resume"
        )
    return found


def recorded_settings(name: str, studies: BaseStorage) -> Settings:
    """Return the settings of a study that exists; errors as for `existing`."""
    return Settings.from_dict(existing(name, studies).settings)


def data_folders(folders: str | None, address: str | None) -> str | None:
    """Return the data folders as other processes find them; none given: those of PFL_OPS_DATA, except on a cluster."""
    folders = folders or (None if address else os.environ.get("PFL_OPS_DATA"))
    if not folders:
        return None
    return os.pathsep.join(str(Path(folder).expanduser().absolute()) for folder in folders.split(os.pathsep) if folder)
