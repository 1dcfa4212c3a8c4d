"""`reproduce`: published experiments again, through Ray; what is finished already is read, never run again."""

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from pfl_ops import runs
from pfl_ops.errors import PflOpsError, in_a_line
from pfl_ops.federation.loop.estimate import duration, size
from pfl_ops.federation.settings import Execution
from pfl_ops.federation.state.checkpoint import Record
from pfl_ops.jobs import plugins
from pfl_ops.jobs.job import Job, Place
from pfl_ops.jobs.resources import Share, cluster, joining, share
from pfl_ops.jobs.runner import Interrupted, JobEvent, Runner
from pfl_ops.jobs.tracking_queue import TrackingQueue
from pfl_ops.papers import Outcome, Outcomes, ScaleName, Suite
from pfl_ops.papers.exhibits import Curves, Energy
from pfl_ops.papers.outcome import tracked_keys
from pfl_ops.papers.overrides import told
from pfl_ops.recording import FINISHED
from pfl_ops.results import Result
from pfl_ops.tracking import Run, RunInfo, Store, provenance
from pfl_ops.tracking.run import now
from pfl_ops.tuning.asked import Amount, Asked, check_request
from pfl_ops.tuning.deciding import OpenClaim, open_claims
from pfl_ops.tuning.plans import CellRun, Part, Plan
from pfl_ops.tuning.session import StudyInterrupted

if TYPE_CHECKING:
    import pandas as pd

COST = ("cost/train_seconds", "cost/eval_seconds")
TRAFFIC = ("cost/up_bytes", "cost/down_bytes", "cost/clients")
CHANGED = "pfl_ops.set"  # tag of runs with settings that `reproduce --set` changed
EACH = 2.0  # seconds, roughly: a run's own start, and its artifacts


@dataclass(frozen=True)
class Reproduced:
    """A suite, as far as it has been run.

    Attributes:
        part: what was planned of it. scale: its size. outcomes: the finished repetitions of each cell, those of earlier
            sittings included. problems: cell -> why it could not be run. elsewhere: scale -> cells that are finished
            there and not here.
        run: the suite's own run; a report belongs among its artifacts.
    """

    part: Part
    scale: ScaleName
    outcomes: Outcomes
    problems: Mapping[str, str]
    elsewhere: Mapping[str, Outcomes]
    run: Run

    @property
    def suite(self) -> Suite:
        return self.part.suite

    def keep(self, report: Path, metrics: Mapping[str, float]) -> None:
        """Put a report into the suite's run, and numbers that sum it up."""
        self.run.artifact(report, "report")
        self.run.log([Record(0, dict(metrics), now())])


Kind: TypeAlias = Literal["begin", "claim", "start", "round", "end", "failed"]


@dataclass(frozen=True)
class Happened:
    """Something that happened, for who watches.

    Attributes:
        kind: begin (of all), claim (which gets further seeds), start, round, end or failed (of a job).
        job: which. done, wanted: jobs that are over in this sitting, and all that it has to do.
        round: finished rounds. text: what it will take; why a job failed.
    """

    kind: Kind
    done: int
    wanted: int
    job: CellRun | None = None
    round: int = 0
    text: str = ""


OnHappened: TypeAlias = Callable[[Happened], None]
OnSuite: TypeAlias = Callable[[Reproduced], None]


@joining
def reproduce(
    plan: Plan,
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
    on_suite: OnSuite | None = None,
    on_happened: OnHappened | None = None,
) -> list[Reproduced]:
    """Run what a plan lacks, as many cells at once as fit, and gather its suites.

    A run that any suite, `run` or an earlier sitting has finished (the same experiment hash) is read from the store.
    One that was begun goes on from its checkpoint. A cell that fails does not keep the others from running.

    Args:
        plan: see `plans.plan`; made with the same `data_dir`.
        cpus_per_cell, gpus_per_cell, concurrency: as for `tune`'s trials.
        address: of a Ray cluster to join. home, tracking_uri: work folder, MLflow's address.
        execution: where and how to compute; device and threads follow a cell's share.
        dry_run: tell the estimate, and stop.
        hours: then go on with further seeds for undecided claims, until all are decided or so many hours have passed;
            see `deciding`. None: the plan's repetitions alone.
        on_suite: told of each suite once nothing of it is left to run, its run still open.
        on_happened: told of everything.
    Returns:
        all suites, in the plan's order; after a dry run none.
    Raises:
        StudyInterrupted: Ctrl-C; the same call goes on.
    """
    asked = Asked.of(cpus_per_cell, gpus_per_cell, concurrency)
    check_request(asked, (execution or Execution()).device, address)
    with Store.open(home, tracking_uri, offline=True) as store, ExitStack() as opened:
        sitting = Sitting(plan, store, data_dir, execution or Execution(), asked, address, on_suite, on_happened)
        sitting.hours = hours
        try:
            missing = sitting.missing()
            sitting.tell("begin", text=sitting.estimate(missing) if missing else "")
            if dry_run:
                return []
            for part in plan.parts:
                sitting.parents[part.suite.name] = opened.enter_context(sitting.parent(part))
            sitting.run(missing)
        except KeyboardInterrupt:
            raise StudyInterrupted("stopped; the same command goes on where this one was") from None
        return [sitting.complete[part.suite.name] for part in plan.parts]


@dataclass
class Sitting:
    """One call of `reproduce`; see there."""

    plan: Plan
    store: Store
    data_dir: str | None
    execution: Execution
    asked: Asked
    address: str | None
    on_suite: OnSuite | None
    on_happened: OnHappened | None
    parents: dict[str, Run] = field(default_factory=dict)
    outcomes: dict[str, Outcome] = field(default_factory=dict)  # by digest
    failures: dict[str, str] = field(default_factory=dict)
    complete: dict[str, Reproduced] = field(default_factory=dict)
    finished: dict[str, RunInfo] = field(default_factory=dict)  # by digest
    over: int = 0
    wanted: int = 0
    hours: float | None = None
    begun: set[str] = field(default_factory=set)  # digests
    claim: str | None = None  # that got the last seeds

    def missing(self) -> list[CellRun]:
        """Return the jobs that have to be run; what has been run is read.

        If the tracking server does not answer, that is all of them; one that has its checkpoint ends at once.
        """
        known = self.store.runs() if self.store.reachable else []
        found = (run for run in known if run.identity and FINISHED in run.metrics)
        self.finished = {str(run.identity): run for run in found}
        for job in (job for part in self.plan.parts for jobs in part.jobs.values() for job in jobs):
            if job.digest in self.finished and job.digest not in self.outcomes:
                self.outcomes[job.digest] = self._read(job, self.finished[job.digest])
        missing = [job for job in self.plan.wanted if job.digest not in self.outcomes]
        self.wanted = len(missing)
        self.begun = {job.digest for job in missing}
        return missing

    def run(self, missing: Sequence[CellRun]) -> None:
        """Do it, and hand over each suite as soon as nothing of it is left.

        Runs are tracked in a thread, one by one, so that no process waits for that; it also says that they are over.

        Raises:
            StudyInterrupted: Ctrl-C came.
        """
        self._gather()
        cells = list(missing) or ([] if self.hours is None else self.more())
        if not cells:
            self.hours = None
            self._gather()
            return
        queue: TrackingQueue[None] = TrackingQueue()

        def take(event: JobEvent) -> None:
            cell = cells[event.job.number]
            match event.kind:
                case "started":
                    self.tell("start", cell)
                case "rounds":
                    self.tell("round", cell, round=int(event.report["round"]))
                case "ended":
                    queue.submit(event.job.number, lambda: self._end(cell, event))

        try:
            with cluster(self.address) as folder:
                part, execution = self._share()
                source = _Cells(self, cells, queue, part, execution)
                place = Place(str(self.store.home.root), self.data_dir, self.address is not None, plugins.pack())
                Runner(place, part.concurrency, take, queue=queue).run(source, folder, "cells")
        except Interrupted:
            raise KeyboardInterrupt from None
        for i in range(len(cells)):
            queue.result(i)
        if self.hours is not None:
            self.hours = None
            self._gather()

    def estimate(self, missing: Sequence[CellRun]) -> str:
        """Time and memory for the missing jobs, in words, from a measured round of one job of each kind.

        A kind is a method with a network on a data set; at smoke, where a round says little, a network alone. A job
        that can't be measured leaves that to the next of its kind: why it fails is told when it is run.

        Raises:
            PflOpsError: not one can be measured; the last reason.
        """
        kinds: dict[tuple[str, ...], list[CellRun]] = {}
        for job in missing:
            e = job.experiment
            more = () if self.plan.scale == "smoke" else (e.data.label, e.algorithm.name)
            kinds.setdefault((e.model.name, *more), []).append(job)
        at_once = min(len(missing), self.asked.concurrency or max(1, int((os.cpu_count() or 1) / self._cpus)))
        execution = self.execution.model_copy(update={"threads": self.execution.threads or max(1, int(self._cpus))})
        whole, largest = 0.0, 0.0
        hints: list[str] = []
        unknown, why = 0, ""
        for jobs in kinds.values():
            for job in jobs:
                try:
                    found = runs.estimate(job.experiment, data_dir=self.data_dir, execution=execution)
                except Exception as error:  # as where it is run
                    why = in_a_line(error)
                    continue
                whole += (found.seconds + EACH) * len(jobs)
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
        once = {hint.partition(" (")[0]: hint for hint in hints}  # alike but for a figure in brackets
        return "\n".join([f"{cells}, memory {size(largest * at_once)}", *once.values()])

    def parent(self, part: Part) -> Run:
        """A suite's own run, below which its cells are tracked."""
        suite, scale, changes = part.suite, self.plan.scale, told(part.changes)
        return self.store.run(
            f"{suite.name.replace('/', '-')}-{scale}",
            " ".join((suite.name, scale, *changes)),
            identity=":".join(("suite", suite.name, scale, *changes)),
            tags={
                "pfl_ops.kind": "suite",
                "pfl_ops.suite": suite.name,
                "pfl_ops.scale": scale,
                **({CHANGED: ", ".join(changes)} if changes else {}),
            },
        )

    # -- one job -----------------------------------------------------------------------------------------------------

    @property
    def _cpus(self) -> float:
        return self.asked.cpus if isinstance(self.asked.cpus, float) else 1.0

    def _share(self) -> tuple[Share, Execution]:
        """What each cell gets, and how it computes."""
        gpus = self.asked.gpus if isinstance(self.asked.gpus, float) else None
        part = share(self._cpus, gpus, self.asked.concurrency, self.wanted, self.execution.device)
        execution = self.execution.model_copy(update={} if part.gpus else {"device": "cpu"})
        if execution.threads is None:
            execution = execution.model_copy(update={"threads": part.threads})
        return part, execution

    def _end(self, cell: CellRun, event: JobEvent) -> None:
        """Track a cell's run that is over, and hand over the suites of which nothing is left."""
        diverged = event.failure is not None and event.failure.diverged
        if event.failure and not diverged:
            self._fail(cell, event.failure.line)
        else:
            try:
                self.outcomes[cell.digest] = self._track(cell)
            except Exception as error:  # its checkpoint stays: it is read again in the next sitting
                self._fail(cell, in_a_line(error))
            else:
                self.over += 1
                self.tell("end", cell)
        self._gather()

    def _fail(self, job: CellRun, reason: str) -> None:
        self.failures[job.digest] = reason
        self.over += 1
        self.tell("failed", job, text=reason)

    def _track(self, job: CellRun) -> Outcome:
        """The finished run, read from its checkpoint into the store."""
        parent = self.parents[job.suite.name]
        tags = {
            "pfl_ops.kind": "cell",
            "pfl_ops.suite": job.suite.name,
            "pfl_ops.cell": job.cell.name,
            "pfl_ops.scale": self.plan.scale,
            **({"pfl_ops.stand_in": job.stand_in} if job.stand_in else {}),
            **({CHANGED: ", ".join(told(job.changes))} if job.changes else {}),
        }
        result = runs.run(
            job.experiment,
            store=self.store,
            parent=parent,
            name=job.name,
            data_dir=self.data_dir,
            execution=self.execution,
            progress=False,
            tags=tags,
            computed=True,
        )
        return outcome(result, parent.experiment_id, self._here)

    @cached_property
    def _here(self) -> dict[str, str]:
        """Versions and machine, as every run of this sitting has them."""
        return provenance()

    # -- what is there -----------------------------------------------------------------------------------------------

    def _read(self, job: CellRun, info: RunInfo) -> Outcome:
        history = self.store.history(info.run_id, keys=sorted(self._shown & set(info.metrics)))
        return Outcome(
            job.experiment.seed, info.metrics, history, info.run_id, info.experiment_id, seconds(history), info.tags
        )

    @cached_property
    def _shown(self) -> set[str]:
        """The tracked keys of which any suite wants the history: several may show one run."""
        return {key for part in self.plan.parts for key in needed(part.suite)}

    def _gather(self) -> None:
        """Hand over the suites of which nothing is left to run."""
        for part in () if self.hours is not None else self.plan.parts:  # else the next seed may be of any suite
            over = {**self.outcomes, **self.failures}
            if part.suite.name in self.complete or any(job.digest not in over for job in part.wanted):
                continue
            failed = {job.cell.name: self.failures[job.digest] for job in part.wanted if job.digest in self.failures}
            done = Reproduced(
                part,
                self.plan.scale,
                self._outcomes(part),
                {**part.problems, **failed},
                self._elsewhere(part),
                self.parents[part.suite.name],
            )
            self.complete[part.suite.name] = done
            if self.on_suite is not None:
                self.on_suite(done)

    def more(self) -> list[CellRun]:
        """Return the next seeds for the undecided claim whose decision is expected to cost least; [] if none is open.

        Seeds that an earlier call has finished are read.
        """
        while True:
            parts = {part.suite.name: part for part in self.plan.parts}
            several = [(one, part) for part in parts.values() for one in self._open(part)]
            read = False
            for one, part in sorted(several, key=lambda pair: pair[0].cost):
                wanted = [(cell, i) for cell, i in one.seeds() if i >= len(part.jobs[cell])]
                if not wanted:
                    continue
                number = wanted[0][1]
                new = [part.repetition(cell, i, self.data_dir) for cell, i in wanted if i == number]
                for job in new:
                    parts[part.suite.name] = parts[part.suite.name].with_job(job)
                    if job.digest in self.finished and job.digest not in self.outcomes:
                        self.outcomes[job.digest] = self._read(job, self.finished[job.digest])
                self.plan = replace(self.plan, parts=tuple(parts.values()))
                new = [job for job in new if job.digest not in {*self.outcomes, *self.failures, *self.begun}]
                if new:
                    self.wanted += len(new)
                    self.begun |= {job.digest for job in new}
                    self._announce(one)
                    return new
                read = True
                break
            if not read:
                return []

    def _announce(self, one: OpenClaim) -> None:
        if self.claim != one.claim.text:
            self.claim = one.claim.text
            when = "no number of seeds is expected to decide it" if one.needed is None else f"about {one.needed} seeds"
            self.tell("claim", text=f"more seeds for: {one.claim.text} ({one.n} so far, {when})")

    def _open(self, part: Part) -> list[OpenClaim]:
        """The undecided claims of a suite that more seeds may decide."""
        failed = {job.cell.name for jobs in part.jobs.values() for job in jobs if job.digest in self.failures}
        cells = set(part.chosen) & set(part.jobs) - failed - set(part.stand_ins)
        outcomes = self._outcomes(part)
        labels = {axis: list(levels) for axis, levels in part.suite.axes.items()}
        return open_claims(
            part.suite.claims, part.suite.judged(outcomes), labels, outcomes, cells, part.suite.first_seed
        )

    def _outcomes(self, part: Part) -> Outcomes:
        found: dict[str, list[Outcome]] = {}
        for cell, jobs in part.jobs.items():
            stages = part.suite.stages(part.suite.cell(cell))
            done = [replace(self.outcomes[job.digest], stages=stages) for job in jobs if job.digest in self.outcomes]
            if done:
                found[cell] = done
        return found

    def _elsewhere(self, part: Part) -> dict[str, Outcomes]:
        """Cells that are finished at another scale, as far as their runs say so.

        Of several runs with one seed it is the newest: the suite was changed since the others. Runs with settings that
        a user changed are no part of it; for a part with changed settings there is none.
        """
        if part.changes:
            return {}
        found: dict[str, dict[str, dict[int, Outcome]]] = {}
        cells = {cell.name: part.suite.stages(cell) for cell in part.suite.cells}
        for info in self.finished.values():
            scale, cell = info.tags.get("pfl_ops.scale", ""), info.tags.get("pfl_ops.cell", "")
            here = info.tags.get("pfl_ops.suite") == part.suite.name and cell in cells
            if here and scale != self.plan.scale and not {"pfl_ops.stand_in", CHANGED} & set(info.tags):
                one = Outcome(int(info.params.get("seed", 0)), info.metrics, None, info.run_id, info.experiment_id)
                found.setdefault(scale, {}).setdefault(cell, {})[one.seed] = replace(one, stages=cells[cell])
        return {scale: {cell: list(each.values()) for cell, each in of.items()} for scale, of in found.items()}

    def tell(self, kind: Kind, job: CellRun | None = None, round: int = 0, text: str = "") -> None:
        """Tell who watches."""
        if self.on_happened is not None:
            self.on_happened(Happened(kind, self.over, self.wanted, job, round, text))


class _Cells:
    """The source of the jobs of a call: planned cells, then further seeds for undecided claims until time is over."""

    def __init__(
        self, sitting: Sitting, cells: list[CellRun], queue: TrackingQueue[None], share: Share, execution: Execution
    ) -> None:
        self.sitting, self.cells, self.queue, self.share, self.execution = sitting, cells, queue, share, execution
        self.given = 0
        self.end = math.inf if sitting.hours is None else time.monotonic() + 3600 * sitting.hours

    def next(self) -> Job | None:
        if self.given == len(self.cells) and self.sitting.hours is not None and time.monotonic() < self.end:
            for i in range(self.given):
                if i in self.queue:  # its job has ended: its result counts
                    self.queue.result(i)
            self.cells += self.sitting.more()
        if self.given == len(self.cells):
            return None
        i, cell = self.given, self.cells[self.given]
        self.given += 1
        return Job.of("cell", cell.name, i, cell.experiment, self.sitting.data_dir, self.execution, self.share)


def needed(suite: Suite) -> set[str]:
    """The tracked keys of which a report of the suite wants the history."""
    asked = [measure.key for measure in suite.measures]
    asked += [f"{exhibit.key}@0" for exhibit in suite.exhibits if isinstance(exhibit, Curves | Energy)]
    meanings = {tuple(suite.stages(cell).items()) for cell in suite.cells}
    tracked = {tracked for key in asked for stages in meanings for tracked in tracked_keys(key, dict(stages))}
    return {*tracked, *COST, *TRAFFIC}


def outcome(result: Result, experiment_id: str | None = None, tags: Mapping[str, str] | None = None) -> Outcome:
    """A finished run as a report wants it; `tags`: its versions and machine."""
    last = {str(key): float(column.dropna().iloc[-1]) for key, column in result.rounds.items() if column.notna().any()}
    return Outcome(
        result.experiment.seed,
        {**last, **result.final},
        result.rounds,
        result.run_id,
        experiment_id,
        seconds(result.rounds),
        tags or {},
    )


def seconds(history: "pd.DataFrame") -> float:
    """What a run took, in training and evaluation."""
    return float(sum(history[key].sum() for key in COST if key in history))
