"""The store: runs are opened, found and read again. Nothing above this package knows MLflow.

>>> with Store.open() as store:
...     study = store.run("fliu-digits-lsqs-1a2b3c4d", "study", identity="study 1a2b3c4d")
...     run = store.run("fliu-digits-lsqs-1a2b3c4d", "003 fliu lr=0.01", identity=experiment.hash, parent=study)
...     run.log(records)
...     run.finish()
True
"""

import atexit
import contextlib
import hashlib
import logging
import os
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pandas as pd
from mlflow.entities import Run as MlflowRun
from mlflow.exceptions import MlflowException, RestException
from sqlalchemy.exc import SQLAlchemyError

from pfl_ops import tag_names
from pfl_ops.databases import probe
from pfl_ops.errors import PflOpsError
from pfl_ops.redaction import redact
from pfl_ops.system.scratch import scratch
from pfl_ops.tracking.home import TrackingTarget, WorkFolder
from pfl_ops.tracking.runs.run import Run, now
from pfl_ops.tracking.sending import logs
from pfl_ops.tracking.sending.delivery import Delivery, verdict
from pfl_ops.tracking.sending.sender import Sender
from pfl_ops.tracking.spools import outbox, requests
from pfl_ops.tracking.spools.journal import Header, identity_key, key
from pfl_ops.tracking.spools.spool import Spool
from pfl_ops.tracking.target.mlflow_private import download, read_history, read_runs
from pfl_ops.tracking.target.run_info import PARENT, RunInfo
from pfl_ops.tracking.target.schema import other_version

if TYPE_CHECKING:
    from pfl_ops.federation.state.checkpoint import Record

T = TypeVar("T")
log = logging.getLogger("pfl_ops.tracking")

READER_PATIENCE_SECONDS = 5.0
"""Time for which a command that reads waits for records that the target does not take."""


class ServerUnavailable(PflOpsError):
    """The tracking server, or the database's server, does not answer; a later try may succeed."""


@dataclass(frozen=True)
class ResultElsewhere:
    """The run that has a result, though the newest run of its identity is another computation.

    Attributes:
        run_id: MLflow's, of that run. newer: of the newest run that is over, if its result is another one; else "".
        experiment_id: MLflow's.
    """

    run_id: str
    newer: str
    experiment_id: str


class Store:
    """Runs in one MLflow target, and the work folder that goes with them. Made by `Store.open`."""

    def __init__(self, home: WorkFolder, target: TrackingTarget, offline: bool = False) -> None:
        self.home = home
        self.target = target
        self._live: dict[str, Run] = {}  # spool folder -> the run last opened there
        self._open = True
        self._pid = os.getpid()
        self._downloads = contextlib.ExitStack()  # temporary folders
        self._sender = Sender(target)
        logs.open_log(home.root)
        try:
            down = not self._answers(offline)
            self._delivery = Delivery(self._sender, home.spool, down)
            self._adopt()
            if line := outbox.left_behind(home.spool, target.label):
                log.warning(line)
        except BaseException:
            logs.close_log(home.root)
            raise
        atexit.register(self.close, patience=5.0)

    @classmethod
    def open(cls, home: Path | str | None = None, tracking_uri: str | None = None, *, offline: bool = False) -> "Store":
        """The store of a work folder; what earlier processes left in its spool is sent.

        It waits for the couriers of runs that are over (see `requests`).

        Args:
            home: work folder; none: `PFL_OPS_HOME`, else ./mlruns.
            tracking_uri: none: `MLFLOW_TRACKING_URI`, else SQLite in the work folder.
            offline: go on if the target does not answer: what is recorded waits on disk, and what was left is sent in
                the background. For callers that record; one that reads needs the target, and what was left first.
        Raises:
            PflOpsError: the folder can't be written, or the address can't be used.
            ServerUnavailable: the target does not answer, and `offline` is False.
        """
        target = TrackingTarget.of(WorkFolder.at(home), tracking_uri)  # a wrong address leaves no work folder
        place = WorkFolder.open(home)
        if requests.is_own(place, target):
            requests.settle(place)
        store = cls(place, target, offline)
        if not offline:
            store._delivery.wait(patience=READER_PATIENCE_SECONDS)  # if it is in vain, `close` says so
        return store

    def _answers(self, offline: bool) -> bool:
        """True if the target answers; a database's tables are made. If it does not: False if `offline`, else raise."""
        try:
            with self._asking():
                client = self._sender.client
                if self.target.server:
                    client.search_experiments(max_results=1)
        except ServerUnavailable:
            if not offline:
                raise
            log.warning(
                f"the tracking server {self.target.label} does not answer: records wait in {self.home.spool} and are "
                "sent by the next pfl-ops command that uses it"
            )
            return False
        return True

    @property
    def reachable(self) -> bool:
        """True unless the target was found down at the last try."""
        return not self._delivery.down

    @property
    def is_open(self) -> bool:
        """True until it is closed."""
        return self._open

    def run(
        self,
        experiment: str,
        name: str,
        *,
        identity: str,
        tags: Mapping[str, object] | None = None,
        params: Mapping[str, object] | None = None,
        parent: Run | None = None,
        rerun: str = "",
        start: int | None = None,
        read: bool = False,
    ) -> Run:
        """Open a run. One with the same identity and parent is found again, and gets only what it misses.

        Args:
            experiment: MLflow experiment, made if need be.
            name: the run's name.
            identity: what makes it this run and no other: the experiment's hash.
            tags: see `provenance`.
            params: the experiment's resolved values; nested names with dots.
            parent: the study that it belongs to.
            rerun: a name of this computation, to open a new MLflow run; earlier ones of that identity are marked
                superseded, finished ones once it is finished. The same name finds its run again; none: the newest run.
            start: of a new run, ms since the epoch; None: now.
            read: it is only read. If the target has its result, its status stays, also if reading is interrupted.
        Raises:
            RunLocked: another process is recording this run.
        """
        header = self._header(experiment, name, identity, parent) | ({} if start is None else {"start": start})
        if rerun:
            outbox.check_idle(self.home.spool, header, self._delivery.spools)
            header["start"] = max(header["start"], self._last_start(header) + 1)  # the clock may have been set back
        rerun = rerun or self._newest_rerun(header)
        header |= {"rerun": rerun} if rerun else {}
        folder = key(header)
        if folder not in self._live or self._live[folder].finished:
            spool = self._delivery.take(folder) or Spool(self.home.spool, header)
            self._make_known(spool)
            self._live[folder] = Run(spool, self._delivery)
            self._delivery.add(spool)
        run = self._live[folder]
        if rerun:
            run.append({"op": "supersede"})
        run.append({"op": "open", "name": name, **({"read": True} if read else {})})
        if tags:
            run.tags(tags)
        if params:
            run.params(params)
        return run

    def _header(self, experiment: str, name: str, identity: str, parent: Run | None) -> Header:
        return {
            "target": self.target.label,
            "experiment": experiment,
            "name": name,
            "identity": _plain(identity),
            "parent": parent.spool.header if parent else None,
            "start": now(),
        }

    def rerun_of(
        self, experiment: str, identity: str, records: "Callable[[], Sequence[Record]]", parent: Run | None = None
    ) -> str:
        """Return a new name for `run`'s `rerun` if the run of that identity has rounds of another computation; else "".

        If the target does not answer, a computation that begins with round 0 gets a name.

        Args:
            experiment, identity, parent: see `run`.
            records: returns those of the rounds that its checkpoint has; none: it begins with round 0.
        """
        header = self._header(experiment, "", identity, parent)
        self._wait_for_earlier(header)
        has_other = self._ask(lambda: self._sender.has_other_rounds(header, records), None)
        return uuid.uuid4().hex if has_other or (has_other is None and not records()) else ""

    def result_elsewhere(
        self, experiment: str, identity: str, records: "Sequence[Record]", parent: Run | None = None
    ) -> ResultElsewhere | None:
        """Return the run that has the result of these records, if the newest run of that identity does not have them.

        Two work folders on one target may have computed the same run, and take turns reading it.

        Args:
            experiment, identity, parent: see `run`. records: of a run that is over.
        Returns:
            None also while that identity is being recorded in this store.
        """
        header = self._header(experiment, "", identity, parent)
        recording = any(
            identity_key(run.spool.header) == identity_key(header) and not run.finished for run in self._live.values()
        )
        self._wait_for_earlier(header)

        def found() -> ResultElsewhere | None:
            there = self._sender.result_elsewhere(header, records)
            return ResultElsewhere(*there, self._sender.experiment_id(experiment)) if there else None

        return None if recording else self._ask(found, None)

    def _wait_for_earlier(self, header: Header) -> None:
        """Wait until the target has what was recorded before of a run and its re-runs."""
        for spool in list(self._delivery.spools.values()):
            if identity_key(spool.header) == identity_key(header):
                self._delivery.wait(spool)

    def _newest_rerun(self, header: Header) -> str:
        """Return `rerun` of a run's newest outbox, else of its newest run in MLflow; "" if it has none."""
        there = outbox.newest(self.home.spool, header)
        if there is not None:
            return str(there.get("rerun", ""))
        return self._ask(lambda: self._sender.newest_rerun(header), "")

    def _last_start(self, header: Header) -> int:
        """Return when a run or its newest re-run was begun, ms since the epoch; 0: none is known."""
        there = outbox.newest(self.home.spool, header)
        last = int(there["start"]) if there is not None else 0
        return max(last, self._ask(lambda: self._sender.last_start(header), 0))

    def _ask(self, question: Callable[[], T], otherwise: T) -> T:
        """Return the target's answer to a question, or another value without one."""
        if not self._delivery.down:
            with contextlib.suppress(Exception):  # an outage, or a refusal that `_make_known` meets again
                return question()
        return otherwise

    def _make_known(self, spool: Spool) -> None:
        """Find or make the run now, so that the caller has an id to show; without an answer, the delivery does it."""
        if self._delivery.down:
            return
        try:
            self._sender.run_id(spool.header)
        except Exception as error:
            if verdict(error) == "never":
                spool.closed = True
                if spool.folder.name not in self._delivery.spools:
                    spool.release()
                raise PflOpsError(f"MLflow refuses run '{spool.header['name']}': {error}") from error

    def deliver(self, patience: float = 30.0) -> bool:
        """Send what earlier processes left in the spool for this target; returns whether all of it was."""
        self._adopt()
        return self._delivery.delivered(patience)

    def _adopt(self) -> None:
        """Take over the spools of processes that are gone; a run without an end was killed."""
        for spool in outbox.adopt(self.home.spool, self.target.label, self._delivery.spools):
            self._delivery.add(spool)

    def find(self, identity: str, *, experiment: str | None = None, parent: Run | str | None = None) -> RunInfo | None:
        """The run of that identity: a finished one if there is, else the newest; superseded ones are ignored.

        Args:
            experiment: only in this MLflow experiment; none: in all.
            parent: only below this run (or its id); none: anywhere.
        """
        parent_id = parent.run_id if isinstance(parent, Run) else parent
        where = f"tags.`{tag_names.IDENTITY}` = '{_plain(identity)}'"
        if parent is not None:
            where += f" and tags.`{PARENT}` = '{parent_id}'"
        with self._asking():
            found = [
                run for run in self._search(self._places(experiment), where) if tag_names.SUPERSEDED not in run.tags
            ]
        return min(found, key=lambda run: (run.status != "FINISHED", -run.start), default=None)

    def runs(
        self,
        experiment: str | None = None,
        *,
        parent: Run | str | None = None,
        where: str | None = None,
        superseded: bool = False,
    ) -> list[RunInfo]:
        """All runs of an MLflow experiment (none: of all), oldest first.

        Args:
            parent: only those below it.
            where: only those that MLflow's search finds: "params.`training.lr` = '0.05' and metrics.`train/loss` < 1".
            superseded: also those that were computed anew by a later run.
        Raises:
            PflOpsError: MLflow can't read `where`, or does not answer.
        """
        parent_id = parent.run_id if isinstance(parent, Run) else parent
        below = f"tags.`{PARENT}` = '{parent_id}'" if parent is not None else ""
        with self._asking():
            places = self._places(experiment)
            if where or self.target.server:
                found = self._search(places, " and ".join(filter(None, (below, where))))
            else:
                found = read_runs(self.target.uri, places)
        known = (run for run in found if superseded or tag_names.SUPERSEDED not in run.tags)
        return [run for run in known if parent_id in (None, run.parent)]

    def experiments(self) -> list[str]:
        """The names of all MLflow experiments."""
        with self._asking():
            return sorted(experiment.name for experiment in self._pages(self._sender.client.search_experiments))

    def _places(self, experiment: str | None) -> dict[str, str]:
        """Return MLflow experiments by id: that of this name, or none; without a name all."""
        found = self._pages(self._sender.client.search_experiments)
        return {place.experiment_id: place.name for place in found if experiment in (None, place.name)}

    def _search(self, places: Mapping[str, str], where: str) -> list[RunInfo]:
        """Return the runs in experiments (id -> name) that MLflow's search finds, oldest first."""
        if not places:
            return []
        found = self._pages(
            lambda page_token: self._sender.client.search_runs(
                list(places), where, order_by=["attributes.start_time ASC"], page_token=page_token
            )
        )
        return [_info(run, places[run.info.experiment_id]) for run in found]

    def history(self, run_id: str, keys: Iterable[str] | None = None) -> pd.DataFrame:
        """Metrics of a run: one row a round, one column a metric, NaN where a round has no value.

        Args:
            keys: which; none: all. A server is asked once for each, so a few of many are read that much faster. One
                that the run does not have gives a column without values.
        """
        with self._asking():
            wanted = sorted(self._sender.client.get_run(run_id).data.metrics if keys is None else set(keys))
            columns: dict[str, dict[int, float]] = {key: {} for key in wanted}
            if self.target.server:
                for key in wanted:
                    points = self._sender.client.get_metric_history(run_id, key)
                    columns[key] = {point.step: point.value for point in points}
            else:
                for key, step, value in read_history(self.target.uri, run_id, wanted):
                    columns[key][step] = value
        return pd.DataFrame(columns, dtype=float).sort_index().rename_axis("round")

    def download(self, run: RunInfo | str, path: str, to: Path | str | None = None) -> Path:
        """Return the local path of a run's artifact, file or folder.

        Args:
            run: or its id, by which MLflow has to find it once more.
            path: where it is in the run's artifacts.
            to: folder that it is put into; none: a temporary one, which goes when the store is closed.
        Raises:
            PflOpsError: no such run or artifact, or no answer.
        """
        into = Path(to) if to else self._downloads.enter_context(scratch())
        into.mkdir(parents=True, exist_ok=True)
        with self._asking():
            place = self._sender.client.get_run(run).info.artifact_uri if isinstance(run, str) else run.artifacts
            try:
                return Path(download(place, path, str(into), self.target.uri))
            except Exception as error:
                name = run if isinstance(run, str) else run.run_id
                raise PflOpsError(f"run {name} has no artifact '{path}' that can be read ({error})") from error

    def close(self, patience: float = 30.0) -> bool:
        """Wait for what is being sent, then let go of everything; returns whether all was delivered."""
        if not self._open or os.getpid() != self._pid:
            return True
        self._open = False
        atexit.unregister(self.close)
        for run in self._live.values():
            if not run.finished:
                run.finish("KILLED", patience=0)
        try:
            return self._delivery.delivered(patience)
        finally:
            self._delivery.stop()
            logs.close_log(self.home.root)
            self._downloads.close()

    def __enter__(self) -> "Store":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Turn MLflow's errors into ours."""
        try:
            yield
        except ConnectionError as error:
            raise ServerUnavailable(redact(str(error))) from error
        except MlflowException as error:
            reason = redact(str(error).strip().splitlines()[0][:300])
            if "Detected out-of-date database schema" in str(error):
                raise other_version(self.target) from error
            if error.error_code in ("INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE") and self.target.server:
                raise self._unavailable(error, reason) from error
            raise PflOpsError(f"{self.target.label}: {reason}") from error
        except SQLAlchemyError as error:
            reason = redact(str(error).strip().splitlines()[0][:300])
            raise PflOpsError(f"the database {self.target.label} can't be used ({reason})") from error

    def _unavailable(self, error: MlflowException, reason: str) -> PflOpsError:
        """Tell a server that is down from an address that will never work."""
        message = f"the tracking server {self.target.label} does not answer ({reason})"
        answered = isinstance(error, RestException) and error.error_code == "INTERNAL_ERROR"
        if answered or "SSLError" in str(error):
            return PflOpsError(message)
        with contextlib.suppress(ConnectionError):
            probe(self.target.uri)  # raises if no such host exists
        return ServerUnavailable(message)

    @staticmethod
    def _pages(search: Any) -> Iterator[Any]:
        token = None
        while True:
            page = search(page_token=token)
            yield from page
            token = page.token
            if not token:
                return


def _plain(identity: str) -> str:
    """An identity that MLflow's search can quote."""
    return identity if re.fullmatch(r"[\w.:/@+ -]{1,200}", identity) else hashlib.sha256(identity.encode()).hexdigest()


def _info(run: MlflowRun, experiment: str) -> RunInfo:
    info, data = run.info, run.data
    return RunInfo(
        run_id=info.run_id,
        name=info.run_name,
        experiment=experiment,
        status=info.status,
        tags=dict(data.tags),
        params=dict(data.params),
        metrics=dict(data.metrics),
        start=info.start_time,
        end=info.end_time,
        experiment_id=info.experiment_id,
        artifacts=info.artifact_uri,
    )
