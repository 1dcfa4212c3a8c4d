"""Recording of a run: its tags, and everything that is kept of it once it is over.

Either the simulating process tracks (`StoreRecorder`), or it leaves a request to a courier (`CourierRecorder`).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from pfl_ops import metrics, tag_names
from pfl_ops.config.experiment import Experiment
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.metric_keys import totals
from pfl_ops.registry import plugin_source, plugins
from pfl_ops.system.scratch import scratch
from pfl_ops.tracking.spools.requests import RequestedRun, RunEnd

if TYPE_CHECKING:
    from pfl_ops.federation.loop.simulate import Simulation
    from pfl_ops.tracking.runs.run import Run
    from pfl_ops.tracking.target.run_info import RunInfo

MODELS_IN_A_FILE = 256 << 20
FINISHED = "pfl_ops/finished"  # the metric that a tracked run has once everything about it is kept


class Recorder:
    """Recording of nothing: the run is read from its checkpoint, and MLflow has its result.

    Args:
        run_id: MLflow's; None: not known here. page: MLflow's page of its like, behind the server's address.
    """

    def __init__(self, run_id: str | None = None, page: str | None = None) -> None:
        self._run_id, self._page = run_id, page

    @property
    def run_id(self) -> str | None:
        return self._run_id

    @property
    def page(self) -> str | None:
        return self._page

    def log(self, record: Record) -> None:
        """Record a round."""

    def keep(self, experiment: Experiment, simulation: "Simulation") -> None:
        """Keep everything of a run whose last round is over."""

    def end(self, status: str, tags: Mapping[str, str]) -> None:
        """End the run: FINISHED, FAILED or KILLED."""


class StoreRecorder(Recorder):
    """Recording by this process.

    Args:
        run: the open run. kind: of run, see `provenance.described`. is_kept: True if it has everything already.
    """

    def __init__(self, run: "Run", kind: str, is_kept: bool) -> None:
        self.run, self.kind, self.is_kept = run, kind, is_kept

    @property
    def run_id(self) -> str | None:
        return self.run.run_id

    @property
    def page(self) -> str | None:
        from pfl_ops.tracking.descriptions.questions import methods_key

        return self.run.page(methods_key(self.kind))

    def log(self, record: Record) -> None:
        self.run.log([record])

    def keep(self, experiment: Experiment, simulation: "Simulation") -> None:
        if not self.is_kept:
            keep(experiment, simulation, self.run)
            present(experiment, simulation, self.run, self.kind)
            self.run.complete()

    def end(self, status: str, tags: Mapping[str, str]) -> None:
        if tags:
            self.run.tags(tags)
        self.run.finish(status, **({} if status == "FINISHED" else {"patience": 2.0}))


class CourierRecorder(Recorder):
    """Recording by a courier, from the run's checkpoint.

    Args:
        requested: the request. page: where `pfl-ops ui` will show the run beside its like.
    """

    def __init__(self, requested: RequestedRun, page: str) -> None:
        super().__init__(page=page)
        self.requested, self._read = requested, False

    def log(self, record: Record) -> None:
        self.requested.log(record.round, record.metrics, record.time)

    def keep(self, experiment: Experiment, simulation: "Simulation") -> None:
        self._read = simulation.read

    def end(self, status: str, tags: Mapping[str, str]) -> None:
        self.requested.end(RunEnd(status, dict(tags), None if self._read else time.time_ns() // 1_000_000))


def is_kept(found: "list[RunInfo]", run_id: str | None) -> bool:
    """True if one of these tracked runs has this id, and everything that `keep` gives it.

    The same experiment may be tracked elsewhere: a study's test is another run than one that was asked for by itself.

    Args:
        run_id: None: the server does not answer.
    """

    return any(
        run.run_id == run_id and FINISHED in run.metrics and tag_names.MISSING_RECORDS not in run.tags for run in found
    )


def run_tags(experiment: Experiment, simulation: "Simulation", digest: str, data_dir: str | None) -> dict[str, str]:
    """Return the tags of a run: where it came from and how it is computed."""
    from pfl_ops.federation.loop import engine
    from pfl_ops.tracking.descriptions.notes import line
    from pfl_ops.tracking.provenance import described, provenance

    resolved, group = simulation.resolved, experiment.digest(data_dir, seed=False)
    return {
        **provenance(
            experiment=digest, group=group, partition=simulation.clients.partition_digest, device=resolved.device
        ),
        **described(experiment, "run"),
        "pfl_ops.engine": engine.digest(),
        tag_names.METHOD: line(experiment, group),
        "pfl_ops.way": resolved.way,
        "pfl_ops.chunk": str(resolved.chunk),
        tag_names.THREADS: str(resolved.threads),
        tag_names.WORKERS: str(resolved.workers),
        "pfl_ops.precision": resolved.precision,
        "pfl_ops.kernels": resolved.kernels,
        "pfl_ops.state": simulation.state_place,
        tag_names.CLIENTS: str(simulation.task.n_clients),
        **execution_changes(simulation),
    }


def execution_changes(simulation: "Simulation") -> dict[str, str]:
    """Return the tag of a run whose execution was chosen again: the executions, each with its first round."""
    taken = simulation.executions.taken
    told = "; ".join(f"from round {first + 1}: {resolved}" for first, resolved in taken)
    return {"pfl_ops.executions": told} if len(taken) > 1 else {}


def keep(experiment: Experiment, simulation: "Simulation", tracked: "Run") -> None:
    """Keep final scores, configuration, partition, tables, figures and models of a finished run."""
    from pfl_ops import figures
    from pfl_ops.data.partition_files import write_partition
    from pfl_ops.tracking.descriptions.questions import scores

    last, stage = simulation.records[-1], experiment.algorithm.own_stage
    score = scores(simulation.final, experiment.evaluation.split, stage)
    total = totals(record.metrics for record in simulation.records)
    tracked.log([Record(last.round, {**simulation.final, **score, **total}, last.time)])
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
    tracked.figure(figures.curves(_accuracies(simulation)), "accuracy")
    if by_stage := _by_stage(simulation.client_table):
        data = "test" if experiment.evaluation.split == "test" else "validation"
        tracked.figure(figures.clients(by_stage, ylabel=f"{data} accuracy, own data"), "clients")
    with scratch() as folder:
        tracked.artifact(write_partition(folder / "partition", clients.recorded), move=True)
        for path in models(simulation, folder):
            tracked.artifact(path, "models", move=True)
    model = simulation.global_model()
    if model is not None:
        own = {key: value for key, value in model.items() if key.startswith(("body.", "head."))}
        is_own = type(experiment.model).__module__.startswith("pfl_ops_plugin")
        with scratch() as folder:
            tracked.model(
                own,
                network=experiment.model.model_dump(),
                shape=clients.shape,
                n_classes=clients.n_classes,
                mean=clients.mean.tolist(),
                std=clients.std.tolist(),
                plugins=_plugins_as_loaded(folder) if is_own else [],
                step=last.round,
            )
    tracked.flush()
    if simulation.diverged is None:  # its numbers are no results
        tracked.log([Record(last.round, {FINISHED: 1.0}, last.time)])  # after all the rest: a run with it has it all


def _accuracies(simulation: "Simulation") -> Sequence[tuple[int, Mapping[str, float]]]:
    """Rounds with their metrics; the last round alone, as it was scored in full, if no other one has an accuracy."""
    rounds = [(record.round, record.metrics) for record in simulation.records]
    if any(key.startswith(("val/", "test/")) for _, values in rounds for key in values):
        return rounds
    return [(rounds[-1][0], {key.removeprefix("final/"): value for key, value in simulation.final.items()})]


def _plugins_as_loaded(folder: Path) -> list[Path]:
    """Write the plug-in files as they were when they were loaded: one that was edited since is not what was trained."""
    written = []
    for digest, path in plugins().items():
        copy = folder / digest / path.name
        copy.parent.mkdir()
        copy.write_bytes(plugin_source(digest))
        written.append(copy)
    return written


def present(experiment: Experiment, simulation: "Simulation", tracked: "Run", kind: str) -> None:
    """Set how MLflow's page shows the run beside its like."""
    from pfl_ops.tracking.descriptions import notes, questions

    keys = {key for record in simulation.records for key in record.metrics} | simulation.final.keys()
    view = questions.methods(kind, keys)
    note = notes.comparison(f"{experiment.data.label}, {experiment.partition.kind}") if kind == "run" else ""
    tracked.present(note=note, views=[view])
    tracked.note(notes.run(view.key))


def _by_stage(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Local accuracies by stage, in the order of the stages; no stage without any: no scored client has a sample."""
    found = {stage: columns["local"][columns["stage"] == stage] for stage in metrics.STAGES if columns}
    return {stage: values for stage, values in found.items() if not np.isnan(values).all()}


def models(simulation: "Simulation", folder: Path) -> Iterator[Path]:
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
            for name, value in simulation.named(personal, row).items()
        }
        file = folder / ("personal.safetensors" if len(parts) == 1 else f"personal-{number:03d}.safetensors")
        save_file(named, file)
        yield file
