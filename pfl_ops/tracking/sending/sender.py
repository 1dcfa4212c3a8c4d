"""One spooled entry becomes calls to MLflow, in a way that sending it twice changes nothing.

Runs are found by their tags before they are made. Metrics carry the time of their record, and MLflow keeps one row a
(key, step, time, value); on a run that was there before, steps that it already has are left out. Metrics that are set
as a whole (`Run.set_metrics`) are sent where the last value is another one. Params are sent where absent; tags, files
and the status are simply written again; a model is found by its name before it is made.

Re-runs. A run that is computed again from the start (`--no-resume`, or its checkpoint was deleted) is a new MLflow run
with the same identity, for another execution rounds differently: no run has rounds of two computations. Its tag
`pfl_ops.rerun` tells it from the earlier ones, which get the tag `pfl_ops.superseded` with the id of the new run: those
that are over (finished or diverged) once the new one is over, the others at once; the runs below them get it, too. A
header with `rerun` means that run. A header without it means the newest run that was begun before it: the process that
wrote it could not ask the target.
"""

import math
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, InputTag, LoggedModelOutput, Metric, Param, RunTag
from mlflow.entities import Run as MlflowRun
from mlflow.environment_variables import MLFLOW_HTTP_REQUEST_TIMEOUT
from mlflow.exceptions import MlflowException
from mlflow.models import Model

from pfl_ops import tag_names
from pfl_ops.system.scratch import scratch
from pfl_ops.tracking.descriptions import views
from pfl_ops.tracking.home import TrackingTarget
from pfl_ops.tracking.spools.journal import DamagedJournal, Header, JournalEntry, key
from pfl_ops.tracking.spools.outbox import newest
from pfl_ops.tracking.spools.spool import Spool
from pfl_ops.tracking.spools.staged import check_destination
from pfl_ops.tracking.target.run_info import PARENT
from pfl_ops.tracking.target.schema import connect

if TYPE_CHECKING:
    from pfl_ops.federation.state.checkpoint import Record

T = TypeVar("T")

TRAINED = "train/lr"  # a metric of all rounds after round 0
COSTS = "cost/"  # metrics that differ between computations with equal results
METRICS_AT_ONCE = 1000  # MLflow's limits for one batch
TAGS_AT_ONCE = 100
LONGEST = 6000  # characters of a param's or tag's value
LONGEST_DIGEST = 36
UPLOAD_SECONDS = 300  # a server may first pass a large file on to where it keeps them


def pieces(things: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """The sequence in parts of at most `size`."""
    for start in range(0, len(things), size):
        yield things[start : start + size]


class Sender:
    """Sends entries of spools to one MLflow target.

    Args:
        target: where to.
    """

    def __init__(self, target: TrackingTarget) -> None:
        self.target = target
        self._client: MlflowClient | None = None
        self._mutex = threading.RLock()
        self._experiments: dict[str, str] = {}
        self._runs: dict[str, str] = {}
        self._made: set[str] = set()  # ids of runs that were not there before
        self._reruns: set[str] = set()  # ids of runs that were computed again
        self._known: dict[str, dict[str, set[int]] | None] = {}  # run id -> metric -> steps it has; None: don't care

    @property
    def client(self) -> MlflowClient:
        """MLflow's client; a database's tables are made when it is first asked for."""
        with self._mutex:
            if self._client is None:
                self._client = connect(self.target)
            return self._client

    def experiment_id(self, name: str) -> str:
        """The MLflow experiment of that name: made, or brought back from the bin, if need be."""
        with self._mutex:
            if name not in self._experiments:
                self._experiments[name] = self._find_or_make_experiment(name)
            return self._experiments[name]

    def _find_or_make_experiment(self, name: str) -> str:
        found = self.client.get_experiment_by_name(name)
        if found is None:
            artifacts = self.target.artifacts
            place = str(artifacts / re.sub(r"[^\w+=-]+", "_", name)) if artifacts else None
            try:
                return str(self.client.create_experiment(name, artifact_location=place))
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            found = self.client.get_experiment_by_name(name)  # another process was faster
            assert found is not None
        if found.lifecycle_stage == "deleted":
            self.client.restore_experiment(found.experiment_id)
        return str(found.experiment_id)

    def run_id(self, header: Header) -> str:
        """The run of that header: found by identity and parent, else made (its parents too)."""
        with self._mutex:
            name = key(header)
            if name not in self._runs:
                experiment = self.experiment_id(header["experiment"])
                parent = self.run_id(header["parent"]) if header["parent"] else None
                there = self.search(experiment, header["identity"], parent)
                found = _meant(header, there)
                if found is not None:
                    self._note_run(name, found)
                else:
                    rerun = header.get("rerun", "")
                    tags = {tag_names.IDENTITY: header["identity"]} | ({PARENT: parent} if parent else {})
                    tags |= {tag_names.RERUN: rerun} if rerun else {}
                    made = self.client.create_run(experiment, header["start"], tags, header["name"])
                    self._note_run(name, made)
                    self._made.add(self._runs[name])
                    self._mark_superseded([made, *there])
            return self._runs[name]

    def _note_run(self, name: str, run: MlflowRun) -> None:
        """Keep the id of a header's run; `name`: the header's key."""
        run_id = self._runs.setdefault(name, run.info.run_id)
        if tag_names.RERUN in run.data.tags:
            self._reruns.add(run_id)

    def last_start(self, header: Header) -> int:
        """Return when the newest run of that header's identity was begun, ms since the epoch; 0: there is none."""
        with self._mutex:
            return max((run.info.start_time for run in self._same_runs(header)), default=0)

    def _same_runs(self, header: Header) -> list[MlflowRun]:
        """Return the runs of that header's identity under its parent, the newest first."""
        experiment = self.experiment_id(header["experiment"])
        parent = self.run_id(header["parent"]) if header["parent"] else None
        return self.search(experiment, header["identity"], parent)

    def _newest(self, header: Header) -> MlflowRun | None:
        """Return the newest run of that header's identity."""
        return max(self._same_runs(header), key=_age, default=None)

    def has_other_rounds(self, header: Header, records: "Callable[[], Sequence[Record]]") -> bool:
        """True if the newest run of that header's identity has rounds of another computation than these records.

        Args:
            records: called if there is such a run.
        """
        with self._mutex:
            newest = self._newest(header)
        return newest is not None and not self._has_rounds(newest, records())

    def _has_rounds(self, run: MlflowRun, records: "Sequence[Record]") -> bool:
        """True if a run has rounds of the computation of these records, or none yet.

        The time of a round's record tells computations apart.
        """
        known = run.data.metrics
        keys = (key for record in records for key in record.metrics)  # the start has none if no stage has models then
        key = next((key for key in keys if key in known), None)
        if key is None:
            return TRAINED not in known
        points = self.client.get_metric_history(run.info.run_id, key)
        return not {(p.step, p.timestamp) for p in points}.isdisjoint((r.round, r.time) for r in records)

    def result_elsewhere(self, header: Header, records: "Sequence[Record]") -> tuple[str, str] | None:
        """Return the id of a run that has the result of these records, if the newest run is another computation.

        Args:
            records: those of a run that is over.
        Returns:
            the id, and that of the newest run that is over, if this has another result; else "". None: the newest run
            has these rounds, or no run that is over has their result.
        """
        with self._mutex:
            there = sorted(self._same_runs(header), key=_age, reverse=True)
            if not there or (TRAINED in there[0].data.metrics and self._has_rounds(there[0], records)):
                return None
            over = [run for run in there if has_result(run)]
            found = next((run for run in over if _has_values(run, records) or self._has_rounds(run, records)), None)
            if found is None:
                return None
            return found.info.run_id, "" if _has_values(over[0], records) else over[0].info.run_id

    def newest_rerun(self, header: Header) -> str:
        """Return `rerun` of the newest run of that header's identity; "" if it was never computed again."""
        with self._mutex:
            newest = self._newest(header)
            if newest is None:
                return ""
            rerun = str(newest.data.tags.get(tag_names.RERUN, ""))
            self._note_run(key({**header, "rerun": rerun}), newest)
            return rerun

    def _mark_superseded(self, runs: Sequence[MlflowRun]) -> None:
        """Tag the runs of an identity that a later re-run replaces; one that has the tag keeps it.

        A run that is over is replaced by one that is over: the result stays until there is another.
        """
        newest = newest_over = ""
        for run in sorted(runs, key=_age, reverse=True):
            over = is_over(run)
            replacement = newest_over if over else newest
            if replacement and tag_names.SUPERSEDED not in run.data.tags:
                self._supersede_with_children(run, replacement)
            if tag_names.RERUN in run.data.tags:
                newest = newest or run.info.run_id
                newest_over = newest_over or (run.info.run_id if over else "")

    def _supersede_with_children(self, run: MlflowRun, replacement: str) -> None:
        """Tag a run, and the runs below it: those of a study go with it."""
        below = f"tags.`{PARENT}` = '{run.info.run_id}'"
        for child in self.client.search_runs([run.info.experiment_id], below, max_results=50_000):
            if tag_names.SUPERSEDED not in child.data.tags:
                self.client.set_tag(child.info.run_id, tag_names.SUPERSEDED, replacement)
        self.client.set_tag(run.info.run_id, tag_names.SUPERSEDED, replacement)

    def answers(self) -> bool:
        """True if the target answers a small question: an error is then the entry's own."""
        try:
            self.client.search_experiments(max_results=1)
        except Exception:
            return False
        return True

    def known_experiment(self, name: str) -> str | None:
        """The id of the MLflow experiment of that name, if it has been found or made."""
        return self._experiments.get(name)

    def known_run(self, header: Header) -> str | None:
        """The id of that header's run, if it has been found or made."""
        return self._runs.get(key(header))

    def search(self, experiment: str, identity: str, parent: str | None) -> list[MlflowRun]:
        """Runs of that identity under that parent (None: at the top), the newest first."""
        where = f"tags.`{tag_names.IDENTITY}` = '{identity}'" + (f" and tags.`{PARENT}` = '{parent}'" if parent else "")
        found = self.client.search_runs([experiment], where, order_by=["attributes.start_time DESC"])
        return [run for run in found if run.data.tags.get(PARENT) == parent]

    def send(self, spool: Spool, entry: JournalEntry) -> None:
        """Send one entry. Whatever MLflow raises comes through."""
        run_id = self.run_id(spool.header)
        getattr(self, f"_{entry['op']}")(run_id, spool, entry)

    def _open(self, run_id: str, spool: Spool, entry: JournalEntry) -> None:
        if run_id in self._made and run_id not in self._known:
            self._known[run_id] = None  # new and opened for the first time: every step is missing
            return
        keeps = entry.get("read") and has_result(self.client.get_run(run_id))
        self.client.update_run(run_id, status=None if keeps else "RUNNING", name=entry["name"])
        self._known[run_id] = {}

    def _supersede(self, run_id: str, spool: Spool, entry: JournalEntry) -> None:
        self._mark_superseded(self._same_runs(spool.header))

    def _complete(self, run_id: str, spool: Spool, entry: JournalEntry) -> None:
        """All records were sent again: what an earlier outbox lost is there now."""
        if not spool.missing:
            there = self.client.get_run(run_id).data.tags.keys()
            for tag in {tag_names.MISSING_RECORDS, tag_names.REFUSED_RECORDS} & there:
                self.client.delete_tag(run_id, tag)

    def _finish(self, run_id: str, spool: Spool, entry: JournalEntry) -> None:
        killed, read = entry["status"] == "KILLED", entry.get("read")
        there = self.client.get_run(run_id) if killed or read else None
        if there is not None and killed and has_result(there):
            return  # it was only read
        before = there.info.end_time if there is not None and read else None
        self.client.set_terminated(run_id, entry["status"], before or entry["time"])
        if run_id in self._reruns:
            self._mark_superseded(self._same_runs(spool.header))

    def _tags(self, run_id: str, spool: Spool, entry: JournalEntry) -> None:
        texts = self._with_ids(entry["tags"], self.experiment_id(spool.header["experiment"]), run_id)
        tags = [RunTag(name, value[:LONGEST]) for name, value in texts.items()]
        for some in pieces(tags, TAGS_AT_ONCE):
            self.client.log_batch(run_id, tags=some)

    def _experiment(self, run_id: str, spool: Spool, entry: JournalEntry) -> None:
        experiment = self.experiment_id(spool.header["experiment"])
        there = self.client.get_experiment(experiment).tags
        for name, value in views.missing(there, self._with_ids(entry["tags"], experiment, run_id)).items():
            self.client.set_experiment_tag(experiment, name, value)

    @staticmethod
    def _with_ids(tags: Mapping[str, str], experiment_id: str, run_id: str) -> dict[str, str]:
        """Return tags with MLflow's ids in their description."""
        known = dict(tags)
        if views.NOTE in known:
            known[views.NOTE] = known[views.NOTE].replace(views.EXPERIMENT, experiment_id).replace(views.RUN, run_id)
        return known

    def _choose(self, run_id: str, spool: Spool, entry: JournalEntry) -> None:
        experiment = self.experiment_id(spool.header["experiment"])
        identities = [entry["identity"], *entry.get("others", ())]
        for before in self.client.search_runs(
            [experiment], f"tags.`{PARENT}` = '{run_id}' and tags.`{tag_names.CHOSEN}` = 'yes'", max_results=50_000
        ):
            if before.data.tags[tag_names.IDENTITY] not in identities:
                self.client.delete_tag(before.info.run_id, tag_names.CHOSEN)
        for identity in identities:
            found = self.search(experiment, identity, run_id)
            chosen = [run.info.run_id for run in found if tag_names.SUPERSEDED not in run.data.tags]
            if not chosen:  # recorded while the target was down: this entry is sent before the entries of that run
                child = {**spool.header, "identity": identity, "parent": spool.header}
                header = newest(spool.root, child)
                chosen = [self.run_id(header)] if header else []
            for child_id in chosen:
                self.client.set_tag(child_id, tag_names.CHOSEN, "yes")

    def _params(self, run_id: str, spool: Spool, entry: JournalEntry) -> None:
        there = self.client.get_run(run_id).data.params
        params = [Param(name, value[:LONGEST]) for name, value in entry["params"].items() if name not in there]
        for some in pieces(params, TAGS_AT_ONCE):
            self.client.log_batch(run_id, params=some)

    def _metrics(self, run_id: str, spool: Spool, entry: JournalEntry) -> None:
        points = [Metric(*point) for point in entry["points"]]
        known = None if entry.get("set") else self._known.setdefault(run_id, {})
        if entry.get("set"):
            points = list(self._changed(run_id, points))
        elif known is not None:
            self._read_steps(run_id, known, {point.key for point in points} - known.keys())
            points = [point for point in points if point.step not in known[point.key]]
        for some in pieces(points, METRICS_AT_ONCE):
            self.client.log_batch(run_id, metrics=some)
        if known is not None:
            for point in points:
                known[point.key].add(point.step)

    def _read_steps(self, run_id: str, known: dict[str, set[int]], keys: set[str]) -> None:
        """Read the steps at which a run has points of these metrics; MLflow is asked for each that the run has."""
        there = self.client.get_run(run_id).data.metrics if len(keys) > 1 else keys
        for name in keys:
            history = self.client.get_metric_history(run_id, name) if name in there else []
            known[name] = {point.step for point in history}

    def _changed(self, run_id: str, points: Iterable[Metric]) -> Iterator[Metric]:
        """The points with other values than the last ones, at later steps: MLflow shows the value of the last step."""
        for point in points:
            history = self.client.get_metric_history(run_id, point.key)
            last = max(history, key=lambda p: (p.step, p.timestamp), default=None)
            if last is None:
                if not math.isnan(point.value):
                    yield point
            elif point.value != last.value and not (math.isnan(point.value) and math.isnan(last.value)):
                yield Metric(point.key, point.value, point.timestamp, max(point.step, last.step + 1))

    def _artifact(self, run_id: str, spool: Spool, entry: JournalEntry) -> None:
        path, destination = spool.find_file(entry), check_destination(entry["folder"])
        if path is None:
            self._check_delivered(run_id, entry)
            return
        with _long_timeout():
            if path.is_dir():
                folder = "/".join(part for part in (destination, path.name) if part)
                self.client.log_artifacts(run_id, str(path), folder)
            else:
                self.client.log_artifact(run_id, str(path), destination or None)

    def _check_delivered(self, run_id: str, entry: JournalEntry) -> None:
        """Look in the target for an artifact whose staged file is gone: a kill came between delivery and its note.

        Raises:
            DamagedJournal: the target does not have it, or has one of another size.
        """
        name = entry["file"].rpartition("/")[2]
        wanted = "/".join(part for part in (entry["folder"], name) if part)
        for found in self.client.list_artifacts(run_id, entry["folder"] or None):
            if found.path == wanted and (found.is_dir or entry.get("size") in (None, found.file_size)):
                return
        raise DamagedJournal(f"the staged file {name!r} is missing")

    def _dataset(self, run_id: str, spool: Spool, entry: JournalEntry) -> None:
        fields = {name: entry[name] for name in ("name", "source_type", "source", "schema", "profile")}
        dataset = Dataset(digest=entry["digest"][:LONGEST_DIGEST], **fields)
        tags = [InputTag("mlflow.data.context", entry["context"])]
        self.client.log_inputs(run_id, datasets=[DatasetInput(dataset, tags)])

    def _model(self, run_id: str, spool: Spool, entry: JournalEntry) -> None:
        path, name = spool.find_file(entry), entry["name"]
        run = self.client.get_run(run_id)
        experiment = run.info.experiment_id
        there = self.client.search_logged_models([experiment], f"source_run_id = '{run_id}'")
        model = next((model for model in there if model.name == name), None)
        if model is not None and model.status == "READY":
            return
        if path is None:
            raise DamagedJournal(f"the staged model {name!r} is missing")
        if model is None:
            model = self.client.create_logged_model(experiment, name=name, source_run_id=run_id, params=run.data.params)
        if model.model_id not in {output.model_id for output in run.outputs.model_outputs}:
            self.client.log_outputs(run_id, [LoggedModelOutput(model.model_id, step=entry["step"])])
        with scratch() as made, _long_timeout():
            copy = made / "model"  # the staged files stay as they were written: they may be sent again
            shutil.copytree(path, copy, copy_function=_link)
            (copy / "MLmodel").unlink()
            description = Model.load(str(path))
            description.run_id = run_id
            description.model_id = description.model_uuid = model.model_id
            description.artifact_path = model.artifact_location
            description.save(str(copy / "MLmodel"))
            self.client.log_model_artifacts(model.model_id, str(copy))
        self.client.finalize_logged_model(model.model_id, "READY")


def is_over(run: MlflowRun) -> bool:
    """True if a run has its result: it is finished, or its training diverged."""
    return run.info.status == "FINISHED" or (run.info.status == "FAILED" and tag_names.DIVERGED in run.data.tags)


def has_result(run: MlflowRun) -> bool:
    """True if a run is over, and its outbox has lost none of its records."""
    return is_over(run) and tag_names.MISSING_RECORDS not in run.data.tags


def _meant(header: Header, runs: Sequence[MlflowRun]) -> MlflowRun | None:
    """The run of a header among those of its identity, the newest first; None if it is not there."""
    rerun = header.get("rerun", "")
    for run in runs:
        tag = run.data.tags.get(tag_names.RERUN, "")
        if tag == rerun or (not rerun and run.info.start_time <= header["start"]):
            return run
    return None


def _has_values(run: MlflowRun, records: "Sequence[Record]") -> bool:
    """True if the last value of each metric of these records is the run's, apart from costs."""
    known = run.data.metrics
    ours = {key: value for record in records for key, value in record.metrics.items() if not key.startswith(COSTS)}
    return all(
        known.get(key) == value or (math.isnan(value) and math.isnan(known.get(key, 0))) for key, value in ours.items()
    )


def _age(run: MlflowRun) -> tuple[bool, int]:
    """Sort runs of an identity by age: re-runs are newer than the first run."""
    return tag_names.RERUN in run.data.tags, run.info.start_time


def _link(source: str, target: str) -> None:
    """Link a file, or copy it where links can't be made."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


@contextmanager
def _long_timeout() -> Iterator[None]:
    """Uploads may take minutes; only the delivery's thread makes them."""
    usual: Any = MLFLOW_HTTP_REQUEST_TIMEOUT.get()
    MLFLOW_HTTP_REQUEST_TIMEOUT.set(max(UPLOAD_SECONDS, usual))
    try:
        yield
    finally:
        MLFLOW_HTTP_REQUEST_TIMEOUT.set(usual)
