"""A run that is being recorded: everything it is given goes to its spool first."""

import json
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import pandas as pd
import yaml

from pfl_ops.errors import PflOpsError
from pfl_ops.metric_keys import place
from pfl_ops.tracking.descriptions.views import NOTE, View, view_address
from pfl_ops.tracking.descriptions.views import tags as view_tags
from pfl_ops.tracking.sending.delivery import Delivery
from pfl_ops.tracking.spools.journal import DamagedJournal, JournalEntry
from pfl_ops.tracking.spools.spool import Spool
from pfl_ops.tracking.spools.staged import check_destination

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

    from pfl_ops.federation.state.checkpoint import Record
    from pfl_ops.tracking.target.saving import NetworkDescription

ROUNDS_AT_ONCE = 10
POINTS_AT_ONCE = 1000
DPI = 150  # of figures
ROWS_AT_ONCE = 1 << 16  # of a table
SECONDS_AT_MOST = 5.0  # between a record and its sending, when rounds are slow


class Run:
    """One run that is being recorded. Made by `Store.run`.

    No method waits for the target except `finish`; all of them keep what they are given on disk first.
    """

    def __init__(self, spool: Spool, delivery: Delivery) -> None:
        self.spool = spool
        self._delivery = delivery
        self._points: list[list[Any]] = []
        self._rounds = 0
        self._handed_over = False  # any round
        self._flushed = time.monotonic()
        self._end: dict[str, Any] = {}

    @property
    def run_id(self) -> str | None:
        """MLflow's id of the run; None as long as the target was never reached."""
        return self._delivery.sender.known_run(self.spool.header)

    @property
    def name(self) -> str:
        return str(self.spool.header["name"])

    @property
    def experiment(self) -> str:
        """The name of its MLflow experiment."""
        return str(self.spool.header["experiment"])

    @property
    def experiment_id(self) -> str | None:
        """MLflow's id of its experiment; None as long as the target was never reached."""
        return self._delivery.sender.known_experiment(self.experiment)

    def page(self, view: str) -> str | None:
        """The address of a saved view of its experiment on MLflow's page, after the server's; None: unknown."""
        return view_address(self.experiment_id, view) if self.experiment_id else None

    @property
    def finished(self) -> bool:
        """True if it takes no more records."""
        return self.spool.closed

    def log(self, records: "Iterable[Record]") -> None:
        """Log rounds, ten at a time, or every few seconds when rounds are slow."""
        for record in records:
            points = [[key, float(value), int(record.time), int(record.round)] for key, value in record.metrics.items()]
            if len(self._points) + len(points) > POINTS_AT_ONCE:
                self.flush()
            self._points += points
            self._rounds += 1
            if self._rounds >= ROUNDS_AT_ONCE:
                self.flush()
        # The untrained round has no training loss: it waits for the next one, or the loss would be last in the list.
        if time.monotonic() - self._flushed >= SECONDS_AT_MOST and (self._handed_over or self._rounds > 1):
            self.flush()

    def flush(self) -> None:
        """Hand over what `log` has gathered."""
        if self._points:
            # MLflow lists a run's metrics in the order in which a database first got them.
            self.append({"op": "metrics", "points": sorted(self._points, key=lambda point: place(point[0]))})
            self._handed_over = True
        self._points, self._rounds, self._flushed = [], 0, time.monotonic()

    def set_metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Set metrics that a run has once, as a whole: MLflow shows these values, whatever was set before.

        Args:
            step: of the first value; a value that is not the last one's gets a step after that.
            metrics: key -> value; NaN: it has no value, or none any more.
        """
        self.flush()
        points = [[key, float(value), now(), step] for key, value in metrics.items()]
        self.append({"op": "metrics", "points": sorted(points, key=lambda point: place(point[0])), "set": True})

    def tags(self, tags: Mapping[str, object]) -> None:
        """Set tags; a tag that is there is overwritten."""
        self.append({"op": "tags", "tags": {key: str(value) for key, value in tags.items()}})

    def present(self, *, note: str = "", views: Iterable[View] = ()) -> None:
        """Describe its MLflow experiment; what users have written or saved there stays.

        Args:
            note: a description, Markdown. views: for the page's menu "Views".
        """
        tags = {"mlflow.experimentKind": "custom_model_development"}  # the page for training, not the one for chats
        self.append({"op": "experiment", "tags": tags | ({NOTE: note} if note else {}) | view_tags(views)})

    def choose(self, identity: str, *others: str) -> None:
        """Mark the runs of these identities below this one, and no others, with the tag `pfl_ops.chosen`."""
        self.append({"op": "choose", "identity": identity, "others": list(others)})

    def note(self, text: str) -> None:
        """Set its description, which MLflow's page shows on top: Markdown, with `views.RUN` and `views.EXPERIMENT`."""
        self.tags({NOTE: text})

    def params(self, params: Mapping[str, object]) -> None:
        """Set parameters; one that the run already has keeps its value."""
        self.append({"op": "params", "params": {key: str(value) for key, value in params.items()}})

    def artifact(self, path: Path | str, folder: str = "", *, move: bool = False) -> None:
        """Keep a file, or a folder under its own name.

        Args:
            path: the file or folder; it is copied at once and may change afterwards. Hidden entries of a folder are
                left out: a process that was killed, or still writes, has drafts there.
            folder: where in the run's artifacts, "" for the top.
            move: take it away instead of copying.
        """
        path = Path(path)
        if not path.exists():
            raise PflOpsError(f"{path} does not exist, so run '{self.name}' can't keep it")
        self._destination(folder)
        staged = self._stage(path.name)
        if move and not _has_links(path):
            shutil.move(path, staged)
        elif path.is_dir():
            shutil.copytree(path, staged, ignore=shutil.ignore_patterns(".*"))
        else:
            shutil.copy2(path, staged)
        self._artifact(staged, folder)
        if move and path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif move:
            path.unlink(missing_ok=True)

    def contents(self, path: Path, folder: str) -> None:
        """Keep the entries of a folder, without hidden ones, as `artifact` does.

        Args:
            path: the folder. folder: where in the run's artifacts.
        """
        for entry in sorted(path.iterdir()):
            if not entry.name.startswith("."):
                self.artifact(entry, folder)

    def text(self, text: str, name: str) -> None:
        """Keep a text as the artifact `name`, which may have folders."""
        staged, folder = self._place(name)
        staged.write_text(text, encoding="utf-8")
        self._artifact(staged, folder)

    def yaml(self, content: Mapping[str, Any], name: str) -> None:
        """Keep plain data as YAML."""
        self.text(yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True), name)

    def table(self, columns: pd.DataFrame | Mapping[str, Any], name: str) -> None:
        """Keep a table as Parquet, written in parts of `ROWS_AT_ONCE` rows; `name` ends with .parquet."""
        staged, folder = self._place(name)
        pd.DataFrame(columns).to_parquet(staged, index=False, row_group_size=ROWS_AT_ONCE)
        self._artifact(staged, folder)

    def figure(self, figure: "Figure", name: str) -> None:
        """Keep a figure as `figures/<name>.png`."""
        from pfl_ops.figures.files import draw_once
        from pfl_ops.figures.inline import InlineFigure

        staged, folder = self._place(f"figures/{name}.png")
        if isinstance(figure, InlineFigure) or figure.get_layout_engine():  # nothing has to be cut off
            staged.write_bytes(draw_once(figure, "png", DPI))
        else:
            figure.savefig(staged, dpi=DPI, bbox_inches="tight")
        self._artifact(staged, folder)

    def dataset(
        self,
        name: str,
        digest: str,
        source: Mapping[str, Any],
        *,
        schema: Mapping[str, Any] | None = None,
        profile: Mapping[str, Any] | None = None,
        context: str = "training",
    ) -> None:
        """Name a data set, or a partition, as the run's input.

        Args:
            name: as MLflow's page shows it.
            digest: of its content; MLflow keeps the first 36 characters.
            source: how to get it again, plain data.
            schema: its shape and classes, plain data.
            profile: its sizes, plain data.
            context: what it was used for.
        """
        texts = {"source": source, "schema": schema or {}, "profile": profile or {}}
        entry = {"op": "dataset", "name": name, "digest": digest, "source_type": "pfl-ops"}
        entry |= {key: json.dumps(dict(content)) for key, content in texts.items()}
        self.append({**entry, "context": context})

    def model(
        self, state: "Mapping[str, Tensor]", *, step: int = 0, **description: "Unpack[NetworkDescription]"
    ) -> None:
        """Keep a network as an MLflow model that loads without pickle; `runs:/<run id>/model` loads it.

        Args:
            state: every parameter by name, as in the network's state dict. description: see `saving.save_model`.
            step: finished rounds.
        """
        from pfl_ops.tracking.target.saving import save_model  # torch

        staged = self._stage("model")
        save_model(staged, state, **description)
        self.append({"op": "model", **self.spool.seal(staged), "name": "model", "step": step})

    def complete(self) -> None:
        """Say that everything about the run was logged again: a note of earlier lost records goes."""
        self.append({"op": "complete"})

    def ended_at(self, end: int, read: bool = False) -> None:
        """Set when the run ended, ms since the epoch, if that is before `finish`.

        Args:
            read: it was over before, and is only read: the target keeps the end that it has.
        """
        self._end = {"time": end, **({"read": True} if read else {})}

    def finish(self, status: str = "FINISHED", patience: float = 30.0) -> bool:
        """End the run and wait for its delivery.

        Args:
            status: FINISHED, FAILED or KILLED.
            patience: seconds that the target may be down before this gives up; 0 does not wait for a target that is.
        Returns:
            whether everything was delivered; if not, the next process does it.
        """
        if status not in ("FINISHED", "FAILED", "KILLED"):
            raise PflOpsError(f"a run can't end as '{status}'; allowed: FINISHED, FAILED, KILLED")
        self.flush()
        self.append({"op": "finish", "status": status, "time": now(), **self._end})
        self.spool.closed = True
        self._delivery.wake()
        return self._delivery.wait(self.spool, patience)

    def __enter__(self) -> "Run":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if not self.finished:
            self.finish("FINISHED" if kind is None else "KILLED" if kind is KeyboardInterrupt else "FAILED")

    def _check_open(self) -> None:
        if self.finished:
            raise PflOpsError(f"run '{self.name}' is finished and takes no more records")

    def _stage(self, name: str) -> Path:
        self._check_open()
        return self.spool.stage(name)

    def _place(self, name: str) -> tuple[Path, str]:
        folder, _, file = name.rpartition("/")
        destination = self._destination(folder)
        return self._stage(file), destination

    def _destination(self, folder: str) -> str:
        try:
            return check_destination(folder)
        except DamagedJournal as error:
            raise PflOpsError(f"run '{self.name}' can't keep a file: {error}") from None

    def _artifact(self, staged: Path, folder: str) -> None:
        self.append({"op": "artifact", **self.spool.seal(staged), "folder": folder})

    def append(self, entry: JournalEntry) -> None:
        """Put an entry into the journal and tell the delivery."""
        self._check_open()
        self.spool.append(entry)
        self._delivery.wake()


def _has_links(path: Path) -> bool:
    """True if a path is a symbolic link, or has one below it: the target is copied, for the link may break."""
    return path.is_symlink() or (path.is_dir() and any(below.is_symlink() for below in path.rglob("*")))


def now() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
