"""One run: Experiment -> simulation -> records -> tracking, with resume.

A trial's process imports this too, and tracks nothing: what only tracking needs is imported where it is used.
"""

import errno
import gc
import re
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from pfl_ops import metrics
from pfl_ops.arguments import checked
from pfl_ops.errors import PflOpsError
from pfl_ops.experiment import Experiment
from pfl_ops.federation.checkpoint import CheckpointError, Checkpoints, Record
from pfl_ops.federation.diverged import Diverged
from pfl_ops.federation.settings import Execution
from pfl_ops.fields import Tree
from pfl_ops.files import write_whole
from pfl_ops.identity import fingerprint
from pfl_ops.registry import plugins
from pfl_ops.results import Result
from pfl_ops.scratch import scratch
from pfl_ops.tracking.home import Home

if TYPE_CHECKING:
    import pandas as pd

    from pfl_ops.federation.estimate import Estimate
    from pfl_ops.federation.simulate import Simulation
    from pfl_ops.tracking.run import Run
    from pfl_ops.tracking.store import RunInfo, Store

OnRecord = Callable[[Record], None]
OnEstimate = Callable[["Estimate"], None]
MODELS_IN_A_FILE = 256 << 20
DIVERGED = "pfl_ops.diverged"  # tag of a run whose training diverged: at which round, at which client
FINISHED = "pfl_ops/finished"  # the metric that a tracked run has once everything about it is kept


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


def kept_records(
    experiment: Experiment,
    *,
    home: Path | str | None = None,
    data_dir: str | None = None,
    stages: Collection[str] | None = None,
) -> list[Record]:
    """Return the records that `simulate` has on disk; none where it has nothing that can be read."""
    folder = _folder(experiment, home, data_dir, stages)
    try:
        latest = Checkpoints(folder, experiment.digest(data_dir)).latest
    except CheckpointError:
        return []
    return latest.records if latest else []


def is_finished(experiment: Experiment, *, home: Path | str | None = None, data_dir: str | None = None) -> bool:
    """True if `run` has only to read what is on disk."""
    try:
        latest = Checkpoints(_folder(experiment, home, data_dir, None), experiment.digest(data_dir)).latest
    except CheckpointError:
        return False
    return latest is not None and latest.results is not None and latest.results.full


def forget(
    experiment: Experiment,
    *,
    home: Path | str | None = None,
    data_dir: str | None = None,
    stages: Collection[str] | None = None,
) -> None:
    """Remove what `simulate` has kept of a run that nobody will go on with; should somebody, it starts again."""
    shutil.rmtree(_folder(experiment, home, data_dir, stages), ignore_errors=True)


def _folder(
    experiment: Experiment, home: Path | str | None, data_dir: str | None, stages: Collection[str] | None
) -> Path:
    part = "" if stages is None else "-" + "-".join(sorted(stages))
    return Home.open(home).checkpoints / (experiment.digest(data_dir) + part)


def estimate(experiment: Experiment, *, data_dir: str | None = None, execution: Execution | None = None) -> "Estimate":
    """What a run will take, from one measured round of a few clients; writes nothing."""
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
) -> Result:
    """Simulate one repetition, tracked; a run that was begun goes on, a finished one is read.

    Args:
        experiment: its first repetition is run (seed; `experiment.repetition(i)` gives the others).
        home: the work folder; none: `PFL_OPS_HOME`, else ./mlruns. tracking_uri: none: the work folder's own store.
        data_dir: where the data lie. execution: where and how to compute.
        resume: go on from checkpoints; False: throw them away and start again, in a new MLflow run; an earlier one
            stays and is marked superseded.
        on_record: called with each record, those read from a checkpoint included.
        on_estimate: called with what the run will take, from a measured round of a few clients, before the first round;
            not for a run that is read.
        progress: show a progress bar; None: in a notebook and in a terminal, unless `on_record` is given. True: also
            elsewhere, as a line a round on standard error.
        store, parent, name, tags: for callers that track more than one run.
        computed: for callers that have just computed the run elsewhere: what is there is no earlier result.
    Raises:
        Diverged: a loss or parameter was not finite; earlier rounds are kept, the tracked run is FAILED.
        PflOpsError: data missing, impossible settings, or the same run is going on in another process.

    >>> result = run(Experiment.of("fliu", dataset="digits", model="linear", clients=4, rounds=2), progress=False)
    >>> result
    Result(fliu-digits-lsqs seed 0, 2 rounds, L1 Acc(L) ... %, Acc(G) ... %)
    >>> result.rounds["test/L1/global/mean"].isna().tolist()  # every fifth round, and the last one
    [False, True, False]
    """
    import pandas as pd

    from pfl_ops.display.progress import watching
    from pfl_ops.tracking import earlier
    from pfl_ops.tracking.notes import experiment_name, title
    from pfl_ops.tracking.questions import METHODS
    from pfl_ops.tracking.store import Store

    experiment = experiment if experiment.repetitions == 1 else experiment.repetition(0)
    tree = experiment.identity(data_dir)
    digest = fingerprint(tree)
    new = store is None and not Home.at(home).root.exists()
    place = store.home if store else Home.open(home)
    folder = place.checkpoints / digest
    with _alone(folder, experiment.label), ExitStack() as opened:
        mark = folder.with_name(f".{folder.name}{f'-{parent.spool.folder.name}' if parent else ''}.rerun")
        resume = resume and not mark.exists()
        with _leaving_none(place if new else None):
            simulation = experiment.build(data_dir=data_dir, execution=execution, folder=folder, resume=resume)
            opened.callback(simulation.close)
            if on_estimate is not None and not simulation.read:
                on_estimate(_measured(simulation))
        if store is None:
            store = opened.enter_context(closing(Store.open(home, tracking_uri, offline=True)))
        tell = opened.enter_context(watching(experiment, on_record, progress))
        rerun = "" if resume else _rerun(mark)
        before = earlier.find(store, tree)
        tracked = store.run(
            str(parent.spool.header["experiment"]) if parent else experiment_name(experiment),
            name or f"{title(experiment)} seed{experiment.seed}",
            identity=digest,
            parent=parent,
            params=experiment.flat,
            tags={
                **_tags(experiment, simulation, digest, data_dir),
                **earlier.tags(tree),
                **(tags or {}),
            },
            rerun=rerun,
        )
        kind = (tags or {}).get("pfl_ops.kind", "run")
        done = resume and _is_done(before, digest, parent)
        with _told(tracked), closing(simulation):
            for record in simulation.run():
                mark.unlink(missing_ok=True)  # the old checkpoints are gone
                tracked.log([record])
                tell(record)
            if not done:
                _keep(experiment, simulation, tracked)
                _present(experiment, simulation, tracked, kind)
                tracked.complete()
            if simulation.diverged:
                raise simulation.diverged
        tracked.finish("FINISHED")
        result = Result(
            run_id=tracked.run_id,
            experiment=experiment,
            rounds=table(simulation.records),
            final=simulation.final,
            clients=pd.DataFrame(simulation.client_table),
            folder=folder,
            complaints=simulation.complaints,
            hints=simulation.hints,
            data_dir=data_dir,
            page=tracked.page(METHODS.get(kind, METHODS["run"])[0]),
            origin=_origin(tracked.run_id, simulation, before, tree, computed),
        )
    del simulation
    gc.collect()  # all clients' models, which would else wait in a cycle while the next run makes its own
    return result


@contextmanager
def _leaving_none(place: Home | None) -> Iterator[None]:
    """Remove a work folder that was made for a run which never began; None: there was one before."""
    try:
        yield
    except BaseException:
        if place is not None:
            place.leave()
        raise


def _measured(simulation: "Simulation") -> "Estimate":
    """What a run will take, from the simulation that then runs: a measured round changes none of its state."""
    from pfl_ops.federation.estimate import estimate as measured

    return measured(simulation)


def table(records: list[Record]) -> "pd.DataFrame":
    """Records as a table: indexed by round, a column a tracked key, empty where a round was not evaluated."""
    import pandas as pd

    frame = pd.DataFrame([{"round": r.round, **r.metrics} for r in records])
    return frame.set_index("round")


@contextmanager
def _alone(folder: Path, label: str) -> Iterator[None]:
    """Two processes never work on the same run."""
    lock = FileLock(folder.parent / f".{folder.name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise PflOpsError(f"this run ({label}, {folder.name[:12]}) is going on in another process") from None
    try:
        yield
    finally:
        lock.release()


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


def _is_done(before: "list[RunInfo]", digest: str, parent: "Run | None") -> bool:
    """Whether the tracked run has all that `_keep` gives it; a server that does not answer has not said so.

    The same experiment may be tracked elsewhere: a study's test is another run than one that was asked for by itself.
    """
    from pfl_ops.tracking.sender import MISSING

    above = parent.run_id if parent else None
    return any(
        run.identity == digest and run.parent == above and FINISHED in run.metrics and MISSING not in run.tags
        for run in before
    )


def _origin(
    run_id: str | None, simulation: "Simulation", before: "list[RunInfo]", identity: Tree, computed: bool
) -> str:
    """Return `Result.origin`."""
    from pfl_ops.tracking import earlier

    if simulation.read and not computed:
        return earlier.describe_read(run_id, simulation.records[-1].time, simulation.same_engine)
    return earlier.describe_other_code(before, identity) if computed or simulation.resumed_from is None else ""


@contextmanager
def _told(tracked: "Run") -> Iterator[None]:
    """Whatever stops a run, the records so far are tracked and its status says how it ended."""
    try:
        yield
    except BaseException as error:
        with suppress(PflOpsError, OSError):  # what stopped the run may stop this too: a full disk
            if isinstance(error, Diverged):
                tracked.tags({DIVERGED: str(error)})
            tracked.finish("KILLED" if isinstance(error, KeyboardInterrupt) else "FAILED", patience=2)
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PflOpsError(
                f"the disk is full ({error}); make room, and the same command goes on from the last checkpoint"
            ) from error
        raise


def _tags(experiment: Experiment, simulation: "Simulation", digest: str, data_dir: str | None) -> dict[str, str]:
    from pfl_ops.federation import engine
    from pfl_ops.tracking.notes import line
    from pfl_ops.tracking.provenance import described, provenance

    resolved, group = simulation.resolved, experiment.digest(data_dir, seed=False)
    return {
        **provenance(
            experiment=digest,
            group=group,
            partition=simulation.clients.partition_digest,
            device=resolved.device,
        ),
        **described(experiment, "run"),
        "pfl_ops.engine": engine.digest(),
        "pfl_ops.method": line(experiment, group),
        "pfl_ops.way": resolved.way,
        "pfl_ops.chunk": str(resolved.chunk),
        "pfl_ops.threads": str(resolved.threads),
        "pfl_ops.workers": str(resolved.workers),
        "pfl_ops.precision": resolved.precision,
        "pfl_ops.state": simulation.state_place,
    }


def _keep(experiment: Experiment, simulation: "Simulation", tracked: "Run") -> None:
    """What stays of a finished run: final scores, configuration, partition, tables, figures, models."""
    from pfl_ops import figures
    from pfl_ops.data.recorded import write_partition
    from pfl_ops.tracking.questions import scores

    last, stage = simulation.records[-1], experiment.algorithm.own_stage
    score = scores(simulation.final, experiment.evaluation.split, stage)
    tracked.log([Record(last.round, {**simulation.final, **score}, last.time)])
    tracked.text(experiment.to_yaml(), "config.yaml")
    clients = simulation.clients
    tracked.dataset(
        experiment.data.name,
        clients.partition_digest,
        {"data": clients.data_digest, "partition": clients.recorded.about},
        profile={"clients": len(clients.table), "samples": int(clients.table.sum())},
        schema={"shape": list(clients.shape), "classes": clients.n_classes},
    )
    tracked.table(simulation.client_table, "clients.parquet")
    tracked.figure(figures.partition(clients.table, title=experiment.label), "partition")
    tracked.figure(figures.curves([(r.round, r.metrics) for r in simulation.records]), "accuracy")
    tracked.figure(figures.clients(_by_stage(simulation.client_table)), "clients")
    with scratch() as folder:
        tracked.artifact(write_partition(folder / "partition", clients.recorded), move=True)
        for path in _models(simulation, folder):
            tracked.artifact(path, "models", move=True)
    model = simulation.global_model()
    if model is not None:
        own = {key: value for key, value in model.items() if key.startswith(("body.", "head."))}
        outside = list(plugins().values()) if type(experiment.model).__module__.startswith("pfl_ops_plugin") else []
        tracked.model(
            own,
            network=experiment.model.model_dump(),
            shape=clients.shape,
            n_classes=clients.n_classes,
            mean=clients.mean.tolist(),
            std=clients.std.tolist(),
            plugins=outside,
            step=last.round,
        )
    tracked.flush()
    if simulation.diverged is None:  # its numbers are no results
        tracked.log([Record(last.round, {FINISHED: 1.0}, last.time)])  # after all the rest: a run with it has it all


def _present(experiment: Experiment, simulation: "Simulation", tracked: "Run", kind: str) -> None:
    """How MLflow's page shows the run beside its like."""
    from pfl_ops.tracking import notes, questions

    keys = {key for record in simulation.records for key in record.metrics} | simulation.final.keys()
    view = questions.methods(kind, experiment.evaluation.split, keys)
    note = notes.comparison(f"{experiment.data.label}, {experiment.partition.kind}") if kind == "run" else ""
    tracked.present(note=note, views=[view])
    tracked.note(notes.run(view.key))


def _by_stage(columns: Mapping[str, list[Any]]) -> dict[str, list[float]]:
    """Local accuracies by stage, in the order of the stages."""
    found: dict[str, list[float]] = {stage: [] for stage in metrics.STAGES if stage in columns.get("stage", [])}
    for stage, value in zip(columns.get("stage", []), columns.get("local", []), strict=True):
        found[stage].append(value)
    return found


def _models(simulation: "Simulation", folder: Path) -> Iterator[Path]:
    """The last global model, and the clients' own where they are not all the same: client-007/head.weight, …

    Clients that never took part are left out. The others are in one file, or in several of about `MODELS_IN_A_FILE`
    bytes: they need not fit into memory.
    """
    from safetensors.torch import save_file

    model = simulation.global_model()
    if model is not None:
        save_file(model, folder / "global.safetensors")
        yield folder / "global.safetensors"
    clients = simulation.participants
    one = simulation.personal_models(clients[:1])
    if one is None or one.clients is None:
        return
    parts = clients.split(max(1, MODELS_IN_A_FILE // (one.params.numel() * one.params.element_size())))
    for number, some in enumerate(parts):
        personal = simulation.personal_models(some)
        assert personal is not None
        named = {
            f"client-{k:03d}/{name}": value
            for row, k in enumerate(some.tolist())
            for name, value in personal.named(simulation.task.layout, row).items()
        }
        file = folder / ("personal.safetensors" if len(parts) == 1 else f"personal-{number:03d}.safetensors")
        save_file(named, file)
        yield file
