"""The jobs of the nursery: each writes one kind of durable file."""

import contextlib
import hashlib
import json
import os
import shutil
import sqlite3
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent / "federation"))

from little import LOOP, simulation, traces

from pfl_ops.algorithms.fliu import FLIU
from pfl_ops.config.experiment import Experiment
from pfl_ops.data import store as cache
from pfl_ops.data.partition_files import Recorded, read_partition, write_partition
from pfl_ops.errors import PflOpsError
from pfl_ops.files import write_whole
from pfl_ops.reports.pages.document import Document, Head, PageSection, Row, Table, TableCell
from pfl_ops.reports.pages.write import write
from pfl_ops.tracking import Store
from pfl_ops.tracking.home import WorkFolder as Home
from pfl_ops.tracking.spools import requests
from pfl_ops.tuning.resources.resource_request import ResourceRequest
from pfl_ops.tuning.session.begin import RUN, PreparedStudy, StudyOptions
from pfl_ops.tuning.studies import study_database
from pfl_ops.tuning.studies import study_storage as study_storages
from pfl_ops.tuning.studies.limits import StudyLimits
from pfl_ops.tuning.studies.settings import Settings
from pfl_ops.tuning.studies.study_storage import StudyStorage


def template(name: str) -> Path:
    """A database without content, mlflow.db or studies.db; made once, in a child."""
    return Path(f"template-{name}").absolute()


def make_template(name: str) -> None:
    """Make that database."""
    folder = template(name).with_suffix("")
    if name == "mlflow.db":
        Store.open(folder, f"sqlite:///{folder}/{name}").close()
    else:
        folder.mkdir()
        study_database.storage(f"sqlite:///{folder}/{name}").engine.dispose()  # type: ignore[attr-defined]
    (folder / name).rename(template(name))


class Job:
    """Something that is killed, and done again.

    Attributes:
        needs: names of the databases that `prepare` copies. statements: kill before SQL statements, not only commits.
    """

    needs: tuple[str, ...] = ()
    statements = False

    def warm(self) -> None:
        """Compute what all children share, once."""

    def prepare(self, folder: Path) -> None:
        """Put there what is there before."""

    def work(self, folder: Path) -> None:
        """Do it, or go on with it."""
        raise NotImplementedError

    def look(self, folder: Path) -> None:
        """Read what a killed process left, as a reader may at that moment; raise if it is neither old nor new."""

    def outcome(self, folder: Path) -> dict[str, Any]:
        """All that the job leaves, but for clocks and random names."""
        raise NotImplementedError


def digest(value: Any) -> str:
    """A text for tensors, bit for bit."""
    if isinstance(value, torch.Tensor):
        data = value.detach().contiguous().numpy().tobytes()
        return f"{value.dtype}{list(value.shape)}{hashlib.sha256(data).hexdigest()}"
    return repr(value)


# -- rounds ------------------------------------------------------------------------------------------------------------


class Rounds(Job):
    """A simulation with a checkpoint each round, and its results.

    Args:
        state: where clients' state is: memory or file.
    """

    def __init__(self, state: str) -> None:
        self.execution = LOOP.model_copy(update={"state": state})

    def work(self, folder: Path) -> None:
        sim = simulation(FLIU(), rounds=4, share=0.5, folder=folder, execution=self.execution)
        for _ in sim.run():
            pass
        found = {**traces(sim), "complaints": sim.complaints}
        folder.with_name("traces.json").write_text(json.dumps({name: digest(value) for name, value in found.items()}))

    def outcome(self, folder: Path) -> dict[str, Any]:
        left = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))
        return {**json.loads(folder.with_name("traces.json").read_text()), "files": left}


# -- records on their way to MLflow ------------------------------------------------------------------------------------


def points(first: int, last: int) -> list[SimpleNamespace]:
    """Rounds with two metrics each; a round always has the same time."""
    return [
        SimpleNamespace(round=t, metrics={"train/loss": 1 / (1 + t), "test/G/acc": t / 7}, time=1_700_000_000_000 + t)
        for t in range(first, last + 1)
    ]


def tracked(home: Path) -> dict[str, Any]:
    """Records that MLflow has of the work folder, read without MLflow."""
    with contextlib.closing(sqlite3.connect(home / "mlflow.db")) as database:
        identities = dict(database.execute("select run_uuid, value from tags where key = 'pfl_ops.identity'"))
        runs = [[identities.get(r), *more] for r, *more in database.execute("select run_uuid, name, status from runs")]
        rows = database.execute("select run_uuid, key, step, value, timestamp from metrics").fetchall()
        params = database.execute("select run_uuid, key, value from params").fetchall()
    paths = [p for p in (home / "artifacts").rglob("[!.]*") if p.is_file()]  # .*: MLflow's copies that a kill left
    files = {p.as_posix().rsplit("/artifacts/")[-1]: hashlib.sha256(p.read_bytes()).hexdigest() for p in paths}
    spool = home / "spool"
    return {
        "runs": sorted(runs), "points": sorted([identities[r], *more] for r, *more in rows), "files": files,
        "params": sorted([identities[r], *more] for r, *more in params),
        "waiting": sorted(p.name for p in spool.glob("*") if p.is_dir()),
    }  # fmt: skip


TEXT, BYTES = "some text\n" * 100, bytes(range(256)) * 64


class Outbox(Job):
    """A study's run and a run below it: records, tags, a staged file and a staged folder, and their end."""

    needs = ("mlflow.db",)

    def prepare(self, folder: Path) -> None:
        shutil.copy(template("mlflow.db"), folder / "mlflow.db")
        (folder / "source").mkdir()
        (folder / "source" / "a.bin").write_bytes(BYTES)

    def work(self, folder: Path) -> None:
        with Store.open(folder, f"sqlite:///{folder}/mlflow.db") as store:
            study = store.run("kills", "study", identity="study")
            run = store.run("kills", "one", identity="one", parent=study, params={"lr": 0.1})
            run.log(points(0, 11))
            run.tags({"color": "blue"})
            run.text(TEXT, "notes/a.txt")
            run.artifact(folder / "source")
            run.log(points(12, 15))
            run.finish()
            study.finish()

    def look(self, folder: Path) -> None:
        """The next delivery is whole: staged files are on the disk before the lines that name them."""
        with Store.open(folder, f"sqlite:///{folder}/mlflow.db") as store:
            assert store.deliver()
        for file in (p for p in (folder / "artifacts").rglob("[!.]*") if p.is_file()):
            assert file.read_bytes() in (TEXT.encode(), BYTES), f"{file} is not whole"

    def outcome(self, folder: Path) -> dict[str, Any]:
        return tracked(folder)


class WorkFolder(Job):
    """A new work folder with both of its databases."""

    statements = True

    def work(self, folder: Path) -> None:
        with Store.open(folder, f"sqlite:///{folder}/mlflow.db") as store:
            store.run("first", "one", identity="one").finish()
        study_database.storage(f"sqlite:///{folder}/studies.db")

    def outcome(self, folder: Path) -> dict[str, Any]:
        with contextlib.closing(sqlite3.connect(folder / "studies.db")) as database:
            tables = database.execute("select name from sqlite_master where type = 'table' order by 1").fetchall()
        return {**tracked(folder), "study tables": tables}


class Request(Job):
    """A request to a courier with copies of two files, which is taken up: here it is only removed."""

    def prepare(self, folder: Path) -> None:
        for name in ("a.bin", "b.bin"):
            (folder / name).write_bytes(BYTES)

    def make(self, folder: Path) -> Home:
        """Leave a request for a run that is over."""
        os.environ["PFL_OPS_CACHE"] = str(folder / "cache")
        home, files = Home(folder), [str(folder / name) for name in ("a.bin", "b.bin")]
        request = requests.Request({}, "0" * 64, None, {}, "kills", "one", {}, {}, files=files)
        with mock.patch.object(requests, "start"):
            requests.RequestedRun(home, request).end(requests.RunEnd("FINISHED", time=1))
        return home

    def work(self, folder: Path) -> None:
        requests.drop_killed(Home(folder), "0" * 64)
        for one in requests.pending(Home(folder)) or requests.pending(self.make(folder)):
            requests.remove(one)

    def look(self, folder: Path) -> None:
        """A courier takes up whole requests alone."""
        os.environ["PFL_OPS_CACHE"] = str(folder / "cache")
        for one in requests.pending(Home(folder)):
            for _, copy in requests.copies(one, requests.read(one)):
                assert copy.read_bytes() == BYTES, f"{copy} is not whole"

    def outcome(self, folder: Path) -> dict[str, Any]:
        """The next run's request removes what a killed process left."""
        there = self.make(folder).requests.iterdir()
        return {"requests": sorted("draft" if path.name.startswith(".") else "whole" for path in there)}


# -- studies -----------------------------------------------------------------------------------------------------------

FIRST = (0.05, 0.1, 0.2)
SPACE = "training.lr: {float: [0.001, 0.5]}\n\nfirst:\n" + "".join(f"  - {{training.lr: {lr}}}\n" for lr in FIRST)


class StudyBegins(Job):
    """`tune` up to its first trial: the study, its settings and its first points."""

    needs = ("studies.db",)

    def warm(self) -> None:
        space = Path("space.yaml")
        space.write_text(SPACE)
        self.experiment = Experiment.of("fedavg", dataset="digits", model="linear", clients=4, rounds=2)
        self.settings = Settings.of(self.experiment, space, StudyLimits(trials=len(FIRST)))
        self.settings.digest(None)  # unpacks the data

    def prepare(self, folder: Path) -> None:
        shutil.copy(template("studies.db"), folder / "studies.db")

    def work(self, folder: Path) -> None:
        means = StudyOptions.of(folder, None, None, ResourceRequest(), None, None, None)
        PreparedStudy(self.experiment, self.settings, "killed", 1).begin(means, resume=False)

    def outcome(self, folder: Path) -> dict[str, Any]:
        found = StudyStorage("killed", study_database.storage(f"sqlite:///{folder}/studies.db"))
        queued = [t.system_attrs.get("fixed_params") for _, t in found.trials()]
        settings = {**found.settings, RUN: len(found.settings[RUN])}  # its name is drawn by each search
        return {"settings": settings, "queued": queued, "studies": list(study_storages.recorded(found.store))}


def visible(folder: Path) -> list[str]:
    """Files without the drafts that a kill left under hidden names, and without locks."""
    paths = [p.relative_to(folder) for p in folder.rglob("*") if p.is_file() and p.suffix != ".lock"]
    return [path.as_posix() for path in paths if not any(part.startswith(".") for part in path.parts)]


# -- single files and folders ------------------------------------------------------------------------------------------


class Cache(Job):
    """A data set is unpacked."""

    def work(self, folder: Path) -> None:
        os.environ["PFL_OPS_CACHE"] = str(folder)
        draws = np.random.default_rng(0)
        x = draws.integers(0, 256, (40, 4, 4, 1)).astype(np.uint8)
        y = np.arange(40) % 3
        arrays = {"x_train": x[:30], "y_train": y[:30], "x_test": x[30:], "y_test": y[30:]}
        found = cache.unpacked("somewhere", lambda: arrays)
        for name, array in arrays.items():
            assert np.array_equal(found.array(name), array), name

    def look(self, folder: Path) -> None:
        os.environ["PFL_OPS_CACHE"] = str(folder)
        cache.has("somewhere")

    def outcome(self, folder: Path) -> dict[str, Any]:
        return {"files": sorted(visible(folder))}


def recorded(shift: int) -> Recorded:
    """A partition of 20 samples over two clients."""
    train = [np.arange(shift, 10 + shift), np.arange(10 + shift, 20 + shift)]
    return Recorded(train, None, np.array([[5, 5], [5, 5]]), {"scheme": "lsqs", "seed": shift, "data": "digits"})


class Partition(Job):
    """A recorded partition replaces another one."""

    def prepare(self, folder: Path) -> None:
        write_partition(folder / "partition", recorded(0))

    def work(self, folder: Path) -> None:
        write_partition(folder / "partition", recorded(1))

    def look(self, folder: Path) -> None:
        """Between its two files it is refused in words; else it is the old or the new one."""
        with contextlib.suppress(PflOpsError):
            assert read_partition(folder / "partition").digest in (recorded(0).digest, recorded(1).digest)

    def outcome(self, folder: Path) -> dict[str, Any]:
        found = read_partition(folder / "partition")
        return {"digest": found.digest, "seed": found.about["seed"]}


def document(title: str) -> Document:
    """A report with a table of a hundred rows."""
    rows = tuple(Row((TableCell(str(n)), TableCell(str(n * n), float(n * n)))) for n in range(100))
    table = Table("numbers", "Squares", ((Head("n"), Head("square")),), rows)
    return Document("squares", title, "", (PageSection("Numbers", (table,)),))


class Page(Job):
    """A report replaces another one."""

    def prepare(self, folder: Path) -> None:
        write(document("old"), folder)

    def work(self, folder: Path) -> None:
        write(document("new"), folder)

    def look(self, folder: Path) -> None:
        for name, end in (("index.html", "</html>"), ("report.md", ""), ("tables/numbers.tex", "}")):
            assert (folder / name).read_text().rstrip().endswith(end), name

    def outcome(self, folder: Path) -> dict[str, Any]:
        return {name: (folder / name).read_text() for name in visible(folder)}


class SingleFile(Job):
    """One file is replaced."""

    def prepare(self, folder: Path) -> None:
        (folder / "a.json").write_text("old" * 10_000)

    def work(self, folder: Path) -> None:
        write_whole(folder / "a.json", "new" * 10_000)

    def look(self, folder: Path) -> None:
        assert (folder / "a.json").read_text() in ("old" * 10_000, "new" * 10_000)

    def outcome(self, folder: Path) -> dict[str, Any]:
        return {"text": hashlib.sha256((folder / "a.json").read_bytes()).hexdigest()}


JOBS: dict[str, Job] = {
    "rounds-memory": Rounds("memory"),
    "rounds-file": Rounds("file"),
    "outbox": Outbox(),
    "request": Request(),
    "work-folder": WorkFolder(),
    "study-begins": StudyBegins(),
    "cache": Cache(),
    "partition": Partition(),
    "page": Page(),
    "single-file": SingleFile(),
}
