"""One run: Experiment -> simulation -> records -> tracking, with resume.

A trial's process imports this too, and tracks nothing: what only tracking needs is imported where it is used.
"""

import errno
import logging
import re
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypedDict, Unpack

from filelock import FileLock, Timeout

from pfl_ops import tag_names
from pfl_ops.config.arguments import checked
from pfl_ops.config.experiment import Experiment
from pfl_ops.config.fields import Tree
from pfl_ops.config.identity import check_shared, fingerprint
from pfl_ops.data import partition_files
from pfl_ops.data.datasets import load
from pfl_ops.databases import tables
from pfl_ops.errors import PflOpsError
from pfl_ops.federation.loop.diverged import Diverged
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state.checkpoint import Checkpoint, CheckpointError, Checkpoints, Record, Table
from pfl_ops.files import write_whole
from pfl_ops.recording import CourierRecorder, Recorder, StoreRecorder, execution_changes, is_kept, run_tags
from pfl_ops.registry import packed_modules, packed_plugins
from pfl_ops.results import Result
from pfl_ops.run_on_disk import RunOnDisk
from pfl_ops.tracking.descriptions.notes import experiment_name, title
from pfl_ops.tracking.home import WorkFolder
from pfl_ops.tracking.page.short import short_address
from pfl_ops.tracking.spools.requests import Request, RequestedRun, pending

if TYPE_CHECKING:
    import pandas as pd

    from pfl_ops.federation.loop.estimate import Estimate
    from pfl_ops.federation.loop.simulate import Simulation
    from pfl_ops.tracking.runs.run import Run
    from pfl_ops.tracking.runs.store import Store

log = logging.getLogger("pfl_ops.tracking")

OnRecord: TypeAlias = Callable[[Record], None]
OnEstimate: TypeAlias = Callable[["Estimate"], None]


def simulate(
    experiment: Experiment,
    *,
    home: Path | str | None = None,
    data_dir: str | None = None,
    execution: Execution | None = None,
    sealed: bool = False,
    stages: Collection[str] | None = None,
    final: bool = False,
) -> Iterator[Record]:
    """Records of one run, checkpointed under <home>/checkpoints; nothing is tracked.

    Args:
        sealed: insist that no test data can be reached: the experiment must be scored on validation data.
        stages: the stages to score; a trial asks for those of its objective.
        final: end with the full evaluation, so that `run` has only to read what this leaves behind, and to track it.
    """
    if sealed and experiment.evaluation.split != "validation":
        raise PflOpsError("a tuning trial is scored on evaluation.split=validation; test data stay closed")
    folder = _folder(experiment, home, data_dir, stages)
    with _alone(folder, experiment.label) if final else nullcontext():
        simulation = experiment.build(data_dir=data_dir, execution=execution, folder=folder, stages=stages, final=final)
        with closing(simulation):
            yield from simulation.run()
        if simulation.diverged:
            raise simulation.diverged


class KeptPlace(TypedDict, total=False):
    """The arguments of `simulate` that say where its checkpoints lie."""

    home: Path | str | None
    data_dir: str | None
    stages: Collection[str] | None


def kept_records(experiment: Experiment, **place: Unpack[KeptPlace]) -> list[Record]:
    """Return the records that `simulate` has on disk; none where it has nothing that can be read."""
    return _records(_folder(experiment, **place), experiment.digest(place.get("data_dir")))


def kept_clients(experiment: Experiment, **place: Unpack[KeptPlace]) -> Table:
    """Return the table of clients of a finished run that `simulate` has on disk; {}: there is none."""
    latest = _latest(_folder(experiment, **place), experiment.digest(place.get("data_dir")))
    return latest.clients() if latest else {}


def records_of(home: WorkFolder, digest: str) -> list[Record]:
    """Return the records that `run` has on disk of the experiment with this hash."""
    return _records(home.checkpoints / digest, digest)


def _records(folder: Path, digest: str) -> list[Record]:
    latest = _latest(folder, digest)
    return latest.records if latest else []


def _latest(folder: Path, digest: str) -> Checkpoint | None:
    """Return the last checkpoint of a run; None: there is none that can be read."""
    try:
        return Checkpoints(folder, digest).latest
    except CheckpointError:
        return None


def is_finished(experiment: Experiment, *, home: Path | str | None = None, data_dir: str | None = None) -> bool:
    """True if `run` has only to read what is on disk."""
    latest = _latest(_folder(experiment, home, data_dir), experiment.digest(data_dir))
    return latest is not None and latest.results is not None and latest.results.full


def forget(experiment: Experiment, **place: Unpack[KeptPlace]) -> None:
    """Remove what `simulate` has kept of a run that is given up; if it is started again, it begins with round 1."""
    shutil.rmtree(_folder(experiment, **place), ignore_errors=True)


def _folder(
    experiment: Experiment,
    home: Path | str | None = None,
    data_dir: str | None = None,
    stages: Collection[str] | None = None,
) -> Path:
    part = "" if stages is None else "-" + "-".join(sorted(stages))
    return WorkFolder.open(home).checkpoints / (experiment.digest(data_dir) + part)


def estimate(experiment: Experiment, *, data_dir: str | None = None, execution: Execution | None = None) -> "Estimate":
    """Return what a run takes, from one measured round of a few clients; nothing is written."""
    with closing(experiment.build(data_dir=data_dir, execution=execution)) as simulation:
        return _measured(simulation)


@checked
def run(
    experiment: Experiment,
    *,
    home: Path | str | None = None,
    tracking_uri: str | None = None,
    data_dir: str | None = None,
    execution: Execution | None = None,
    resume: bool = True,
    on_record: OnRecord | None = None,
    on_estimate: OnEstimate | None = None,
    progress: bool | None = None,
    store: "Store | None" = None,
    parent: "Run | None" = None,
    name: str | None = None,
    tags: Mapping[str, str] | None = None,
    computed: bool = False,
    wait: bool = True,
) -> Result:
    """Simulate one repetition, tracked; a run that was begun goes on, a finished one is read.

    Args:
        experiment: of one repetition; `experiment.repetition(i)` gives one of several.
        home: the work folder; none: `PFL_OPS_HOME`, else ./mlruns.
        tracking_uri: MLflow's address; none: `MLFLOW_TRACKING_URI`, else the database of the work folder.
        data_dir: where the data lie. execution: where and how to compute.
        resume: go on from checkpoints; False: throw them away and start again, in a new MLflow run; an earlier one
            stays, and is marked superseded once the new one is over.
        on_record: called with each record, those read from a checkpoint included.
        on_estimate: called with what the run will take, from a measured round of a few clients, before the first round;
            not for a run that is read.
        progress: show a progress bar; None: in a notebook and in a terminal, unless `on_record` is given. True: also
            elsewhere, as a line a round on standard error.
        store, parent, name, tags: for callers that track more than one run.
        computed: for callers that have just computed the run elsewhere: what is there is no earlier result.
        wait: return once the run is tracked. False: return once it is on disk; a process of its own tracks it into the
            work folder's database meanwhile, and `Store.open` waits for that. `run_id` is then None. With another
            target, `PFL_OPS_COURIER=off`, or code that a script or notebook defines, this waits all the same.
    Raises:
        Diverged: a loss or parameter was not finite; earlier rounds are kept, the tracked run is FAILED.
        PflOpsError: several repetitions, data missing, impossible settings, or the same run is going on in another
            process.

    >>> result = run(Experiment.of("fliu", dataset="digits", model="linear", clients=4, rounds=2), progress=False)
    >>> result
    Result(fliu-digits-lsqs seed 0, 2 rounds, L1 Acc(L) ... %, Acc(G) ... %)
    >>> result.rounds["test/L1/global/mean"].isna().tolist()  # every fifth round, and the last one
    [False, True, False]
    """
    import pandas as pd

    from pfl_ops.display import live
    from pfl_ops.display.progress import RunProgress
    from pfl_ops.tracking.runs import earlier
    from pfl_ops.tracking.spools import outbox, requests

    if (n := experiment.repetitions) > 1:
        raise PflOpsError(
            f"run() simulates one repetition, and this experiment has {n}; run each: "
            f"[run(experiment.repetition(i)) for i in range({n})]"
        )
    experiment = experiment.renewed()
    tree = experiment.identity(data_dir)
    digest = fingerprint(tree)
    new = store is None and not WorkFolder.at(home).root.exists()
    place = store.home if store else WorkFolder.open(home)
    apart = not wait and store is None and requests.is_possible(place, tracking_uri) and _is_shared(experiment)
    folder = place.checkpoints / digest
    if not computed:
        requests.settle(place, digest)
    with _alone(folder, experiment.label, patience=10.0 if computed else 0.0), ExitStack() as opened:
        mark = folder.with_name(f".{folder.name}{f'-{parent.spool.folder.name}' if parent else ''}.rerun")
        resume = resume and not mark.exists()
        with _leaving_none(place if new else None, folder):
            simulation = experiment.build(
                data_dir=data_dir, execution=execution, folder=folder, resume=resume, adapt=True
            )
            opened.callback(simulation.close)
            if on_estimate is not None and not simulation.read:
                on_estimate(_measured(simulation))
        tags = {**run_tags(experiment, simulation, digest, data_dir), **earlier.tags(tree), **(tags or {})}
        rerun = "" if resume else _rerun(mark)
        requests.drop_killed(place, digest)
        if apart:
            if line := outbox.left_behind(place.spool, f"sqlite:///{place.database}"):
                log.warning(line)  # the courier, which opens the store, can't be heard
            recorder: Recorder = _requested(experiment, tree, place, data_dir, execution, name, tags, rerun)
        else:
            from pfl_ops.tracking.runs.store import Store

            store = store or opened.enter_context(closing(Store.open(home, tracking_uri, offline=True)))
            recorder = _opened(experiment, tree, simulation, store, parent, name, tags, rerun, computed)
        tell = opened.enter_context(live.watching(partial(RunProgress.of, experiment), on_record, progress))
        with _ending(recorder, simulation.read), closing(simulation):
            for record in simulation.run():
                mark.unlink(missing_ok=True)  # the old checkpoints are gone
                recorder.log(record)
                if tell:
                    tell(record)
            recorder.keep(experiment, simulation)
            if simulation.diverged:
                raise simulation.diverged.again()  # another one: its traceback has the simulation
        changed = execution_changes(simulation)
        recorder.end("FINISHED", changed)
        clients = pd.DataFrame(simulation.client_table)
        result = RunOnDisk(experiment, table(simulation.records), clients, folder, data_dir, tree).result(
            simulation.final,
            {**tags, **changed},
            run_id=recorder.run_id,
            name=name or _name(experiment),
            place=_place(experiment, parent),
            experiment_id=parent.experiment_id if parent else None,
            parent=parent.run_id if parent else None,
            complaints=simulation.complaints,
            hints=simulation.hints,
            page=recorder.page,
            origin=_origin(simulation, place, tree, computed),
        )
    return result


def _opened(
    experiment: Experiment, identity: Tree, simulation: "Simulation", store: "Store", parent: "Run | None",
    name: str | None, tags: Mapping[str, str], rerun: str, computed: bool,
) -> Recorder:  # fmt: skip
    """Open the tracked run in a store; a new one if the one that is there has rounds of another computation.

    A run that is over is not recorded again if the store has its result, under whichever computation.
    """
    from pfl_ops.tracking.descriptions.questions import methods_key
    from pfl_ops.tracking.descriptions.views import view_address
    from pfl_ops.tracking.runs import earlier

    digest, place, records = fingerprint(identity), _place(experiment, parent), simulation.records
    if (simulation.read or simulation.diverged) and not rerun:
        found = store.result_elsewhere(place, digest, records, parent)
        if found is not None:
            if found.newer:
                log.warning(
                    "MLflow has another result of %s, computed later elsewhere (MLflow run %s); the one read here is "
                    "superseded (MLflow run %s), and --no-resume computes it anew",
                    name or _name(experiment),
                    found.newer,
                    found.run_id,
                )
            return Recorder(found.run_id, view_address(found.experiment_id, methods_key(tags[tag_names.KIND])))
    rerun = rerun or store.rerun_of(place, digest, lambda: records, parent)
    before = earlier.find(store, identity)
    run = store.run(
        place,
        name or _name(experiment),
        identity=digest,
        parent=parent,
        params=experiment.flat,
        tags=tags,
        rerun=rerun,
        start=records[0].time if records else None,
        read=simulation.read,
    )
    if simulation.read and not computed:
        run.ended_at(records[-1].time, read=True)
    return StoreRecorder(run, tags[tag_names.KIND], not rerun and is_kept(before, run.run_id))


def _place(experiment: Experiment, parent: "Run | None") -> str:
    """The name of the MLflow experiment that a run goes to."""
    return parent.experiment if parent else experiment_name(experiment)


def _name(experiment: Experiment) -> str:
    return f"{title(experiment)} seed{experiment.seed}"


def _requested(
    experiment: Experiment, identity: Tree, home: WorkFolder, data_dir: str | None, execution: Execution | None,
    name: str | None, tags: Mapping[str, str], rerun: str,
) -> Recorder:  # fmt: skip
    """Leave the tracking of a run to a courier.

    Raises:
        PflOpsError: the work folder's database is no database; the courier could not say so here.
    """
    if home.database.exists():
        tables(home.database)
    how = (execution or Execution()).model_copy(update={"device": "cpu"})  # it reads, and computes nothing
    source = load(experiment.data, data_dir=data_dir).source
    request = Request(
        experiment=experiment.resolved,
        digest=fingerprint(identity),
        data_dir=data_dir,
        data=None if source is None else (str(source.resolve()), identity["data"]["digest"]),
        execution=how.model_dump(mode="json"),
        group=experiment_name(experiment),
        name=name or _name(experiment),
        params={path: str(value) for path, value in experiment.flat.items()},
        tags=dict(tags),
        rerun=rerun,
        plugins=packed_plugins(),
        modules=packed_modules(),
        files=_own_files(experiment.resolved),
    )
    return CourierRecorder(RequestedRun(home, request), short_address("experiment", request.group))


def _is_shared(experiment: Experiment) -> bool:
    """True if a courier can import the code of an experiment, with the values that it has here."""
    with suppress(PflOpsError):
        check_shared(experiment)
        return True
    return False


def _own_files(settings: Tree) -> list[str]:
    """Return the files of a recorded partition, and that of weights, as the settings of an experiment name them."""
    partition, weights = settings["partition"], settings["model"]["weights"]
    files = [Path(weights).expanduser()] if weights else []
    if partition["kind"] == "file":
        files += [partition_files.folder_of(partition["path"]) / name for name in partition_files.FILES]
    return [str(file) for file in files]


@contextmanager
def _leaving_none(place: WorkFolder | None, folder: Path) -> Iterator[None]:
    """Remove a work folder that was made for a run which never began.

    Args:
        place: None: there was one before. folder: the run's.
    """
    try:
        yield
    except BaseException:
        if place is not None:
            place.leave(own=_lock_file(folder))
        raise


def _measured(simulation: "Simulation") -> "Estimate":
    """Return what a run takes, from the simulation that then runs: a measured round changes none of its state."""
    from pfl_ops.federation.loop.estimate import estimate as measured

    return measured(simulation)


def table(records: list[Record]) -> "pd.DataFrame":
    """Records as a table: indexed by round, a column a tracked key, empty where a round was not evaluated."""
    import pandas as pd

    frame = pd.DataFrame([{"round": r.round, **r.metrics} for r in records])
    return frame.set_index("round")


def _lock_file(folder: Path) -> Path:
    return folder.parent / f".{folder.name}.lock"


@contextmanager
def _alone(folder: Path, label: str, patience: float = 0.0) -> Iterator[None]:
    """Keep other processes from the same run; wait for one so many seconds."""
    folder.parent.mkdir(parents=True, exist_ok=True)  # a command that failed may have left the work folder meanwhile
    try:
        held = FileLock(_lock_file(folder)).acquire(timeout=patience)
    except Timeout:
        over = pending(WorkFolder(folder.parents[1]), folder.name)
        now = "is over, and another process still tracks it in MLflow" if over else "is going on in another process"
        raise PflOpsError(f"this run ({label}, {folder.name[:12]}) {now}") from None
    with held:
        yield


def _rerun(mark: Path) -> str:
    """Return the name of a re-run, and keep it on disk until the old checkpoints are gone.

    A process that is killed before that leaves the mark, and the next one starts again in the same MLflow run.

    Raises:
        PflOpsError: the disk is full.
    """
    with suppress(OSError, ValueError):
        if re.fullmatch("[0-9a-f]{32}", found := mark.read_text()):
            return found
    rerun = uuid.uuid4().hex
    try:
        write_whole(mark, rerun)
    except OSError as error:
        raise PflOpsError(f"can't write {mark}: {error.strerror}") from error
    return rerun


@contextmanager
def _ending(recorder: Recorder, read: bool) -> Iterator[None]:
    """Whatever stops a run, the records so far are tracked and its status says how it ended.

    Args:
        read: the run was over before: what stops its reading is no failure of the run.
    """
    try:
        yield
    except BaseException as error:
        with suppress(PflOpsError, OSError):  # what stopped the run may stop this too: a full disk
            stopped = isinstance(error, KeyboardInterrupt) or (read and not isinstance(error, Diverged))
            status = "KILLED" if stopped else "FAILED"
            recorder.end(status, {tag_names.DIVERGED: str(error)} if isinstance(error, Diverged) else {})
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PflOpsError(
                f"the disk is full ({error}); make room, and the same command goes on from the last checkpoint"
            ) from error
        raise


def _origin(simulation: "Simulation", home: WorkFolder, identity: Tree, computed: bool) -> str:
    """Return `Result.origin`, and note the run for the origin of later ones."""
    from pfl_ops.tracking.runs import earlier

    digest, time = fingerprint(identity), simulation.records[-1].time
    others = earlier.note(home, identity, digest, time)
    if simulation.read and not computed:
        return earlier.describe_read(digest, time, simulation.same_engine)
    return others if computed or simulation.resumed_from is None else ""
