"""`reproduce`: published experiments again, through Ray; what is finished already is read, never run again."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from pfl_ops import runs
from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.federation.loop.estimate import distinct_hints, duration, size
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.resources import joining
from pfl_ops.papers import KeptRuns, ScaleName
from pfl_ops.system.scratch import scratch
from pfl_ops.tracking import Store, WorkFolder
from pfl_ops.tracking.runs.store import READER_PATIENCE_SECONDS
from pfl_ops.tuning.resources.resource_request import Amount, ResourceRequest, check_request
from pfl_ops.tuning.session.session import StudyInterrupted
from pfl_ops.tuning.suites.cells import OnCell, OnSuite, Reproduced
from pfl_ops.tuning.suites.plans import CellRun, ReproductionPlan
from pfl_ops.tuning.suites.reproduction import Reproduction

FURTHER = "the planned runs are finished already; undecided claims get more seeds"


@joining
def reproduce(
    plan: ReproductionPlan,
    *,
    cpus_per_cell: Amount = None,
    gpus_per_cell: Amount = None,
    concurrency: int | None = None,
    address: str | None = None,
    home: str | Path | None = None,
    tracking_uri: str | None = None,
    data_dir: str | None = None,
    execution: Execution | None = None,
    dry_run: bool = False,
    hours: float | None = None,
    kept: Mapping[str, KeptRuns] | None = None,
    on_suite: OnSuite | None = None,
    on_event: OnCell | None = None,
) -> list[Reproduced]:
    """Run what a plan lacks, as many cells at once as fit, and gather its suites.

    A run that any suite, `run` or an earlier call has finished (the same experiment hash) is read from the store.
    One that was begun goes on from its checkpoint. A cell that fails does not keep the others from running.

    Args:
        plan: see `plans.plan`; made with the same `data_dir`.
        cpus_per_cell, gpus_per_cell, concurrency: as for `tune`'s trials.
        address: of a Ray cluster to join. home, tracking_uri: work folder, MLflow's address.
        execution: where and how to compute; device and threads follow a cell's share.
        dry_run: tell the estimate, and stop.
        hours: then go on with further seeds for undecided claims, until all are decided or so many hours have passed
            since the last planned run has begun; what runs then ends. See `deciding`. None: the plan's repetitions.
        kept: suite -> repetitions of its cells that files have, with the plan's changes: not run again
            (`papers.results_files.known`).
        on_suite: told of each suite once nothing of it is left to run, its run still open.
        on_event: told of everything.
    Returns:
        all suites, in the plan's order; after a dry run none.
    Raises:
        StudyInterrupted: Ctrl-C; the same call goes on.
    """
    asked = ResourceRequest.of(cpus_per_cell, gpus_per_cell, concurrency, "cell")
    execution = execution or Execution()
    check_request(asked, execution.device, address)
    with ExitStack() as opened:
        if dry_run and not WorkFolder.at(home).root.exists():  # an estimate leaves none behind
            home = opened.enter_context(scratch())
        store = opened.enter_context(Store.open(home, tracking_uri, offline=True))
        reproduction = Reproduction(
            plan, store, data_dir, execution, asked, address, on_suite, on_event, kept=kept or {}, hours=hours
        )
        try:
            if store.reachable:
                store.deliver(READER_PATIENCE_SECONDS)  # what a killed call left may be a finished run
            missing = reproduction.missing()
            if hours is not None:
                reproduction.read_further()
            further = [] if missing or hours is None else reproduction.more()
            takes = FURTHER if further else ""
            if missing:
                takes = _estimate(missing, plan.scale, asked, execution, data_dir)
            reproduction.tell("begin", text=takes)
            if dry_run:
                return []
            for part in plan.parts:
                reproduction.parents[part.suite.name] = opened.enter_context(reproduction.parent(part))
            reproduction.run(missing or further)
        except KeyboardInterrupt:
            raise StudyInterrupted from None
        return [reproduction.complete[part.suite.name] for part in plan.parts]


def _estimate(
    missing: Sequence[CellRun], scale: ScaleName, asked: ResourceRequest, execution: Execution, data_dir: str | None
) -> str:
    """Time and memory for the missing jobs, in words, from a measured round of one job of each kind.

    A kind is a method with a network on a data set; at smoke, where a round says little, a network alone. A job
    that can't be measured leaves that to the next of its kind: why it fails is an event once it is run.

    Raises:
        PflOpsError: not one can be measured; the last reason.
    """
    kinds: dict[tuple[str, ...], list[CellRun]] = {}
    for job in missing:
        e = job.experiment
        more = () if scale == "smoke" else (e.data.label, e.algorithm.name)
        kinds.setdefault((e.model.name, *more), []).append(job)
    at_once, execution = asked.at_once(len(missing), execution.device), asked.estimated(execution)
    whole, largest = 0.0, 0.0
    hints: list[str] = []
    unknown, why = 0, ""
    for jobs in kinds.values():
        for job in jobs:
            try:
                found = runs.estimate(job.experiment, data_dir=data_dir, execution=execution)
            except Exception as error:  # as where it is run
                why = f"{job.suite.name}, cell {job.cell.name}: {in_a_line(error)}"
                continue
            whole += found.of_runs(len(jobs)).seconds
            largest = max(largest, found.memory_mib)
            hints += found.hints
            break
        else:
            unknown += len(jobs)
    if unknown == len(missing):
        raise PflOpsError(why)
    if unknown:
        hints.append(f"without {unknown} of them, of which no round could be measured: {why}")
    count = "1 run" if len(missing) == 1 else f"{len(missing)} runs, {at_once} at once"
    cells = f"{count}, about {duration(whole / at_once)}"
    return "\n".join([f"{cells}, memory {size(largest * at_once)}", *distinct_hints(hints)])
