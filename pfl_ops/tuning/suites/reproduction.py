"""The runs of one call of `reproduce`: what is missing of a plan, through Ray, and the suites as they end."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from pfl_ops import runs, tag_names
from pfl_ops.config.identity import check_planned
from pfl_ops.errors import count, in_a_line
from pfl_ops.federation.settings import Execution
from pfl_ops.jobs.job import Job, SharedPaths
from pfl_ops.jobs.resources import ResourceShare, cluster
from pfl_ops.jobs.runner import JobEvent, Runner
from pfl_ops.jobs.tracking_queue import TrackingQueue
from pfl_ops.papers import CellResults, Changes, Divergences, KeptRuns, Suite
from pfl_ops.papers.overrides import as_flags
from pfl_ops.papers.suite_run import SuiteRun, altered
from pfl_ops.recording import FINISHED
from pfl_ops.results import Result
from pfl_ops.tracking import Run, Store
from pfl_ops.tracking.runs.finished import read_ahead, result_of
from pfl_ops.tuning.resources.resource_request import ResourceRequest
from pfl_ops.tuning.suites.cells import CellEvent, Kind, OnCell, OnSuite, Reproduced, elsewhere, needed
from pfl_ops.tuning.suites.deciding import MOST_SEEDS, OpenClaim, open_claims
from pfl_ops.tuning.suites.plans import CellRun, Part, ReproductionPlan

MANY = 200
"""Finished runs from which on a line says that they are read. One takes 15 ms, measured on a core of an AMD EPYC with
five keys of 150 rounds."""


@dataclass
class Reproduction:
    """One call of `reproduce`: its plan, what is finished of it, and its events. See there."""

    plan: ReproductionPlan
    store: Store
    data_dir: str | None
    execution: Execution
    asked: ResourceRequest
    address: str | None
    on_suite: OnSuite | None
    on_event: OnCell | None
    parents: dict[str, Run] = field(default_factory=dict)
    outcomes: dict[str, Result] = field(default_factory=dict)  # whole runs, by digest
    rows: dict[tuple[str, str], Result] = field(default_factory=dict)  # from files, by suite and digest
    failures: dict[str, str] = field(default_factory=dict)
    diverged: dict[str, str] = field(default_factory=dict)  # digest -> how, in this call or an earlier one
    complete: dict[str, Reproduced] = field(default_factory=dict)
    finished: dict[str, Result] = field(default_factory=dict)  # by digest
    kept: Mapping[str, KeptRuns] = field(default_factory=dict)  # by suite, from files
    over: int = 0
    wanted: int = 0
    hours: float | None = None
    begun: set[str] = field(default_factory=set)  # digests
    claim: OpenClaim | None = None  # that got the last seeds
    announced: str | None = None  # the text of the claim that was told last

    def missing(self) -> list[CellRun]:
        """Return the jobs that have to be run; what has been run is read.

        If the tracking server does not answer, that is all of them; one that has its checkpoint ends at once.
        """
        known = self.store.runs() if self.store.reachable else []
        found = (
            run
            for run in known
            if run.identity and FINISHED in run.metrics and tag_names.MISSING_RECORDS not in run.tags
        )
        self.finished = {str(run.identity): result_of(run, self.store) for run in found}
        self.diverged = {
            str(run.identity): run.tags[tag_names.DIVERGED]
            for run in known
            if run.status == "FAILED" and tag_names.DIVERGED in run.tags
        }
        jobs = [job for part in self.plan.parts for jobs in part.jobs.values() for job in jobs]
        if (number := len({job.digest for job in jobs} & self.finished.keys())) >= MANY:
            self.tell("read", text=f"{number:,} finished runs are read")
        for job in jobs:
            self._look_up(job)
        unknown = {job.digest for part in self.plan.parts for job in part.wanted if self._known(job) is None}
        missing = [job for job in self.plan.wanted if job.digest in unknown - self.failures.keys()]
        self.wanted = len(missing)
        self.begun = {job.digest for job in missing}
        return missing

    def run(self, cells: Sequence[CellRun]) -> None:
        """Do it, and hand over each suite as soon as nothing of it is left.

        Runs are tracked in a thread, one by one, so that no process waits for that; it also says that they are over.

        Args:
            cells: what is `missing`; if nothing is, the first further seeds (`more`), or none.
        Raises:
            KeyboardInterrupt: Ctrl-C came.
        """
        self._gather()
        cells = list(cells)
        if not cells:
            self.hours = None
            self._gather()
            return
        self.announce()
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

        with cluster(self.address) as folder:
            most = self.wanted if self.hours is None else MOST_SEEDS  # further seeds follow, on all cores
            part = self.asked.share(most, self.execution.device)
            source = _Cells(self, cells, queue, part, part.execution(self.execution))
            place = SharedPaths(str(self.store.home.root), self.data_dir, self.address is not None)
            Runner(place, part.concurrency, take, queue=queue).run(source, folder, "cells")
        for i in range(len(cells)):
            queue.result(i)
        if self.hours is not None:
            self.hours = None
            self._gather()

    def parent(self, part: Part) -> Run:
        """A suite's own run, below which its cells are tracked."""
        suite, scale, given = part.suite, self.plan.scale, altered(part.suite, part.changes)
        tags = {tag_names.KIND: "suite", tag_names.SUITE: suite.name, tag_names.SCALE: scale}
        return self.store.run(
            f"{suite.name.replace('/', '-')}-{scale}",
            " ".join((suite.name, scale, *given)),
            identity=":".join(("suite", suite.name, scale, *given)),
            tags={**tags, **_changes(suite, part.changes)},
        )

    # -- one job -----------------------------------------------------------------------------------------------------

    def _end(self, cell: CellRun, event: JobEvent) -> None:
        """Track a cell's run that is over, and hand over the suites of which nothing is left."""
        diverged = event.failure is not None and event.failure.diverged
        if event.failure and not diverged:
            self._fail(cell, event.failure.line)
        else:
            try:
                self.outcomes[cell.digest] = self._track(cell)
            except Exception as error:  # its checkpoint stays: it is read again in the next call
                if event.failure:
                    self.diverged[cell.digest] = event.failure.line
                self._fail(cell, in_a_line(error))
            else:
                self.over += 1
                self.tell("end", cell)
        self._gather()

    def _fail(self, job: CellRun, reason: str) -> None:
        self.failures[job.digest] = reason
        self.over += 1
        self.tell("failed", job, text=reason)

    def _track(self, job: CellRun) -> Result:
        """The finished run, read from its checkpoint into the store; with other data it would be computed again."""
        check_planned(job.cell.name, job.experiment.digest(self.data_dir), job.digest)
        parent = self.parents[job.suite.name]
        tags = {tag_names.KIND: "cell", tag_names.SUITE: job.suite.name, tag_names.CELL: job.cell.name}
        tags |= {tag_names.SCALE: self.plan.scale, **_changes(job.suite, job.changes)}
        tags |= {tag_names.SUBSTITUTE: job.substitute} if job.substitute else {}
        return runs.run(
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

    # -- what is there -----------------------------------------------------------------------------------------------

    def _look_up(self, job: CellRun) -> None:
        """Take a run's outcome from the store, or where it has none from the suite's results file.

        A file has the measures of its own suite; another suite that shows the run may show others. If it says that the
        run diverged, that is its end, though the store may have a run with this seed that did not: where rounding
        decides, to take the one that finished would be a choice by its luck.
        """
        kept = None if job.substitute else self.kept.get(job.suite.name)
        keys, seed = {measure.key for measure in job.suite.measures}, job.experiment.seed
        if how := kept.diverged.get(job.cell.name, {}).get(seed) if kept else None:
            self.diverged[job.digest] = self.failures[job.digest] = how
            self.outcomes.pop(job.digest, None)  # another suite that shows the run may have been looked up before
        elif job.digest in self.outcomes:
            return
        elif job.digest in self.finished and job.digest not in self.failures:
            run = self.finished[job.digest]
            self.outcomes[job.digest] = read_ahead(self.store, run, self._shown & set(run.metrics))
        else:
            for one in kept.outcomes.get(job.cell.name, ()) if kept else ():
                if one.seed == seed and keys <= set(one.measures or ()):
                    self.rows[job.suite.name, job.digest] = one

    def _known(self, job: CellRun) -> Result | None:
        """The finished run, as far as the job's suite shows it; None: it has to be run."""
        return self.outcomes.get(job.digest) or self.rows.get((job.suite.name, job.digest))

    def _failed(self, job: CellRun) -> bool:
        """True if it failed, and no file has what the job's suite shows of it."""
        return job.digest in self.failures and self._known(job) is None

    @cached_property
    def _shown(self) -> set[str]:
        """The tracked keys of which any suite wants the history: several may show one run."""
        return {key for part in self.plan.parts for key in needed(part.suite)}

    def _gather(self) -> None:
        """Hand over the suites of which nothing is left to run."""
        for part in () if self.hours is not None else self.plan.parts:  # else the next seed may be of any suite
            open_ = (job for job in part.wanted if self._known(job) is None and job.digest not in self.failures)
            if part.suite.name in self.complete or any(open_):
                continue
            failed = {job.cell.name: self.failures[job.digest] for job in part.wanted if self._failed(job)}
            done = Reproduced(
                part.suite,
                self.plan.scale,
                self._outcomes(part),
                part.chosen,
                part.stand_ins,
                {**part.problems, **failed},
                self._diverged(part),
                elsewhere(part, self.plan.scale, self.finished.values()),
                changes=part.changes,
                uncounted=self._uncounted(part),
                part=part,
                run=self.parents[part.suite.name],
            )
            self.complete[part.suite.name] = done
            if self.on_suite is not None:
                self.on_suite(done)

    def _uncounted(self, part: Part) -> int:
        """The number of finished runs of further seeds of a suite's chosen cells that are not among its outcomes."""
        kept, found = self.kept.get(part.suite.name), 0
        for cell in part.chosen:
            in_file = kept if cell not in part.stand_ins else None
            rows = {row.seed for row in in_file.outcomes.get(cell, ())} if in_file else set()
            lost = in_file.diverged.get(cell, {}) if in_file else {}
            number = len(part.jobs.get(cell, ()))
            while 0 < number < MOST_SEEDS:
                job = part.repetition(cell, number, self.data_dir)
                seed = job.experiment.seed
                if seed in lost or not (job.digest in self.finished or seed in rows):
                    break
                found, number = found + 1, number + 1
        return found

    def read_further(self) -> None:
        """Take the further seeds that are over by earlier calls, whichever claims they were run for.

        One that diverged is among them: the mean of the others is too good.
        """
        parts = []
        for part in self.plan.parts:
            for cell in part.jobs:
                while len(part.jobs[cell]) < MOST_SEEDS:
                    job = part.repetition(cell, len(part.jobs[cell]), self.data_dir)
                    self._look_up(job)
                    if self._known(job) is None and job.digest not in self.diverged:
                        break
                    part = part.with_job(job)
            parts.append(part)
        self.plan = replace(self.plan, parts=tuple(parts))

    def more(self) -> list[CellRun]:
        """Return the next seeds for the undecided claim whose decision is expected to cost least; [] if none is open.

        A seed that an earlier call has finished, behind one that is missing, is read.
        """
        while True:
            parts = {part.suite.name: part for part in self.plan.parts}
            several = [(one, part) for part in parts.values() for one in self._open(part)]
            for one, part in sorted(several, key=lambda pair: pair[0].cost):
                wanted = [(cell, i) for cell, i in one.seeds() if i >= len(part.jobs[cell])]
                if wanted:
                    break
            else:
                return []
            number = wanted[0][1]
            new = [part.repetition(cell, i, self.data_dir) for cell, i in wanted if i == number]
            for job in new:
                parts[part.suite.name] = parts[part.suite.name].with_job(job)
                self._look_up(job)
            self.plan = replace(self.plan, parts=tuple(parts.values()))
            over = {*self.failures, *self.begun}
            new = [job for job in new if self._known(job) is None and job.digest not in over]
            if new:
                self.wanted += len(new)
                self.begun |= {job.digest for job in new}
                self.claim = one
                return new

    def announce(self) -> None:
        """Tell the claim that got the last seeds, unless it was told last."""
        one = self.claim
        if one is not None and self.announced != one.claim.text:
            self.announced = one.claim.text
            when = "no number of seeds is expected to decide it"
            if one.needed is not None:
                when = f"about {count(one.needed, 'seed')} of {count(len(one.cells), 'cell')}"
            self.tell("claim", text=f"more seeds for: {one.claim.text} ({one.n} so far, {when})")

    def _open(self, part: Part) -> list[OpenClaim]:
        """The undecided claims of a suite that more seeds may decide."""
        failed = {job.cell.name for jobs in part.jobs.values() for job in jobs if self._failed(job)}
        outcomes = self._outcomes(part)
        run = SuiteRun(part.suite, self.plan.scale, outcomes, stand_ins=part.stand_ins, changes=part.changes)
        cells = set(part.chosen) & set(part.jobs) - failed - set(part.stand_ins)
        suite = part.suite
        pairs = zip(suite.claims, suite.judged(outcomes), strict=True)
        judged = [(claim, verdict) for claim, verdict in pairs if run.is_judged(claim)]
        return open_claims(judged, suite.labels, suite.names, outcomes, cells, suite.first_seed)

    def _outcomes(self, part: Part) -> CellResults:
        found: dict[str, list[Result]] = {}
        for cell, jobs in part.jobs.items():
            stages = part.suite.stages(part.suite.cell(cell))
            done = [replace(one, stages=stages) for job in jobs if (one := self._known(job)) is not None]
            if done:
                found[cell] = done
        return found

    def _diverged(self, part: Part) -> Divergences:
        """The repetitions of a suite's cells that diverged, of cells that are not chosen too, and have no result."""
        found: dict[str, dict[int, str]] = {}
        for cell, jobs in part.jobs.items():
            for job in jobs:
                if job.digest in self.diverged and self._known(job) is None:
                    found.setdefault(cell, {})[job.experiment.seed] = self.diverged[job.digest]
        return found

    def tell(self, kind: Kind, job: CellRun | None = None, round: int = 0, text: str = "") -> None:
        """Tell who watches."""
        if self.on_event is not None:
            self.on_event(CellEvent(kind, self.over, self.wanted, job, round, text))


@dataclass
class _Cells:
    """The source of the jobs of a call: planned cells, then further seeds for undecided claims until time is over.

    The time begins when all planned cells have begun, however long these take.

    Attributes:
        given: number of the cells whose jobs were handed out. end: monotonic seconds; None: the time has not begun.
    """

    call: Reproduction
    cells: list[CellRun]
    queue: TrackingQueue[None]
    share: ResourceShare
    execution: Execution
    given: int = 0
    end: float | None = None

    def next(self) -> Job | None:
        hours = self.call.hours
        if self.given == len(self.cells) and hours is not None and self.end is None:
            self.end = time.monotonic() + 3600 * hours
        if self.given == len(self.cells) and self.end is not None and time.monotonic() < self.end:
            for i in range(self.given):
                if i in self.queue:  # its job has ended: its result counts
                    self.queue.result(i)
            self.cells += self.call.more()
            self.call.announce()
        if self.given == len(self.cells):
            return None
        i, cell = self.given, self.cells[self.given]
        self.given += 1
        data_dir = self.call.data_dir
        return Job.of("cell", cell.name, i, cell.experiment, data_dir, self.execution, self.share, planned=cell.digest)


def _changes(suite: Suite, changes: Changes) -> dict[str, str]:
    """The tags of runs whose settings are other than the suite's own."""
    choices = {tag_names.CHOICES: suite.choices} if suite.choices else {}
    return choices | ({tag_names.CHANGED: ", ".join(as_flags(changes))} if changes else {})
