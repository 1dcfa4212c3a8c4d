"""The runs of a table of trials: every configuration in every environment with every seed, on validation and test data.

The table is for research on tuners: it opens the test data for every configuration, so no choice that is made with it
may be reported as a result on these data. The file says how often (`test_openings`).

Runs lie in a work folder beside the file, FILE.runs: a line in runs.jsonl for each finished one, checkpoints of those
that were cut short. The same command goes on from there. The folder is removed once the file is written. Runs that a
finished file has are not run again, so a table can be extended.
"""

import json
import math
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from filelock import FileLock, Timeout

from pfl_ops import runs
from pfl_ops.errors import LONGEST_PATH, PflOpsError, count, echo
from pfl_ops.federation.settings import Execution
from pfl_ops.files import ends_whole, sync
from pfl_ops.jobs.job import Job, Purpose, SharedPaths
from pfl_ops.jobs.process import bytes_sent, samples_seen
from pfl_ops.jobs.report import SAMPLES, SENT_BYTES
from pfl_ops.jobs.resources import ResourceShare, cluster, share
from pfl_ops.jobs.runner import JobEvent, Runner
from pfl_ops.probe.settle import settle
from pfl_ops.tuning.studies.paired import MEAN_OVER_CLIENTS, by_group
from pfl_ops.tuning.studies.settings import Settings
from pfl_ops.tuning.tables.table_plan import TablePlan, TableRun
from pfl_ops.tuning.tables.trial_table import RunRecord, TrialTable, kept_keys

JOURNAL, LOCK = "runs.jsonl", ".table.lock"  # the work folder has a .lock of its own

BATCH = 1000  # jobs that one call of Ray Tune gets, which keeps something of each of them until its end

OnProgress: TypeAlias = Callable[[int, int, float], None]
"""(finished runs, all runs, seconds since the first of this call began)."""


class TabulationInterrupted(PflOpsError):
    """Ctrl-C: finished runs are on disk, and the same command goes on."""

    exit_code = 130


@dataclass
class Tabulation:
    """One call of `tabulate`.

    Attributes:
        plan, path, data_dir, execution, concurrency, on_progress: see `tabulate`.
        finished: what is known of each run. failed: why others have none. executions: by the settings' identity.
        begun: when it was, by `time.monotonic`.
    """

    plan: TablePlan
    path: Path
    data_dir: str | None
    execution: Execution
    concurrency: int | None
    on_progress: OnProgress | None
    finished: dict[TableRun, RunRecord] = field(default_factory=dict)
    failed: dict[TableRun, str] = field(default_factory=dict)
    executions: dict[int, Execution] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)

    @property
    def folder(self) -> Path:
        """The work folder of its runs."""
        return self.path.with_name(f"{self.path.name}.runs").absolute()

    @cached_property
    def hashes(self) -> dict[TableRun, str]:
        """The hash of each run."""
        return {run: run.experiment.digest(self.data_dir) for run in self.plan.runs}

    def read(self) -> list[tuple[TableRun, str]]:
        """Take what is finished, of the file and of the work folder; return the runs that are missing, with hashes.

        Raises:
            PflOpsError: the file holds runs that the plan lacks, or is no table.
        """
        kept = self._kept() if self.path.exists() else {}  # first: thousands of hashes take seconds
        hashes = self.hashes.items()
        known = {(digest, ""): record for digest, record in kept.items()} | _journal(self.folder / JOURNAL)
        found = {run: known.get((digest, run.metric)) or known.get((digest, "")) for run, digest in hashes}
        self.finished = {run: record for run, record in found.items() if record and _has(record, run.metric)}
        return [(run, digest) for run, digest in hashes if run not in self.finished]

    def _kept(self) -> dict[str, RunRecord]:
        """The runs in the file, which must all be of this plan."""
        table, here = TrialTable.read(self.path), self.plan.methods
        kept = table.records()
        others = len(kept.keys() - set(self.hashes.values()))
        if others or any(about["metric"] != here[name]["metric"] for name, about in table.methods.items()):
            what = f"{count(others, 'run')} that {'is' if others == 1 else 'are'}" if others else "scores that are"
            raise PflOpsError(
                f"{echo(self.path, LONGEST_PATH)} has {what} not of this table (other settings, data or "
                "code, or more seeds or configurations); name another --out"
            )
        return kept

    def make(self) -> TrialTable:
        """Run what is missing, write the file, and remove the work folder.

        Raises:
            TabulationInterrupted: Ctrl-C came. PflOpsError: another process makes this table, it can't be written, or a
                run failed.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            with FileLock(self.folder / LOCK, timeout=0):
                if missing := self.read():  # again: another process may have finished runs before this one had the lock
                    self._run(missing)
                table = self.plan.table(self.finished)
                table.write(self.path)
                sync(self.path)
                shutil.rmtree(self.folder, ignore_errors=True)
        except Timeout:
            raise PflOpsError(f"another process makes {echo(self.path, LONGEST_PATH)}; wait for it") from None
        return table

    def clear(self) -> None:
        """Remove the work folder, unless another process extends the table."""
        with suppress(Timeout, OSError), FileLock(self.folder / LOCK, timeout=0):
            shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, missing: Sequence[tuple[TableRun, str]]) -> None:
        """Run what is missing.

        Raises:
            TabulationInterrupted: Ctrl-C came. PflOpsError: a run failed.
        """
        try:
            with cluster(None) as folder, (self.folder / JOURNAL).open("a", encoding="utf-8") as journal:
                if not ends_whole(self.folder / JOURNAL):  # a kill left a line unfinished
                    journal.write("\n")
                part = share(None, None, self.concurrency, len(missing), self.execution.device)
                place = SharedPaths(str(self.folder), self.data_dir, False)
                self.begun = time.monotonic()
                for first in range(0, len(missing), BATCH):
                    source = _Source(self, missing[first : first + BATCH], part, journal)
                    Runner(place, part.concurrency, source.take).run(source, folder, f"table-{first}")
        except KeyboardInterrupt:
            done, wanted = len(self.finished), len(self.plan.runs)
            raise TabulationInterrupted(
                f"stopped: {done} of {count(wanted, 'run')} are finished in {self.folder}; the same command goes on"
            ) from None
        if self.failed:
            run, why = next(iter(self.failed.items()))
            raise PflOpsError(
                f"{len(self.failed)} of {len(self.plan.runs)} runs failed, the first: {run}: {why}; the same command "
                "runs them again"
            )


class _Source:
    """The jobs of the missing runs, and what is done with what happens to them."""

    def __init__(
        self, call: Tabulation, missing: Sequence[tuple[TableRun, str]], part: ResourceShare, journal: Any
    ) -> None:
        self.call, self.missing, self.part, self.journal = call, missing, part, journal
        self.given = 0
        self.records: dict[int, dict[int, Mapping[str, float]]] = {}

    def next(self) -> Job | None:
        if self.given == len(self.missing):
            return None
        number, (run, digest) = self.given, self.missing[self.given]
        purpose: Purpose = "trial" if run.split == "validation" else "test"
        where, execution = self.call.data_dir, self._execution(run.settings)
        job = Job.of(
            purpose, str(run), number, run.experiment, where, execution, self.part, stages=run.stages, planned=digest
        )
        self.given += 1
        self.records[number] = {}
        return job

    def take(self, event: JobEvent) -> None:
        number = event.job.number
        if event.kind == "rounds":
            self.records[number].update({record.round: record.metrics for record in event.records})
        elif event.kind == "ended":
            self._end(*self.missing[number], self.records.pop(number), event)

    def _end(self, run: TableRun, digest: str, records: Mapping[int, Mapping[str, float]], event: JobEvent) -> None:
        call = self.call
        if event.failure and not event.failure.diverged:
            call.failed[run] = event.failure.line
            return
        found = record_of(run.metric, digest, records, event.failure.line if event.failure else "", event.report)
        if run.stages is not None and not found.error and MEAN_OVER_CLIENTS.fullmatch(run.metric):
            clients = runs.kept_clients(run.experiment, home=call.folder, data_dir=call.data_dir, stages=run.stages)
            found = replace(found, groups=by_group(clients, run.metric))
        self.journal.write(json.dumps({**asdict(found), "metric": run.metric}) + "\n")
        self.journal.flush()
        os.fsync(self.journal.fileno())
        call.finished[run] = found
        runs.forget(run.experiment, home=call.folder, data_dir=call.data_dir, stages=run.stages)
        if call.on_progress is not None:
            call.on_progress(len(call.finished), len(call.plan.runs), time.monotonic() - call.begun)

    def _execution(self, settings: Settings) -> Execution:
        """Return how the runs of a method compute: what can be settled for all of them is."""
        key = id(settings)
        executions = self.call.executions
        if key not in executions:
            execution = self.part.execution(self.call.execution)
            if settings.has_one_network:
                execution = settle(settings.example, execution, self.call.data_dir, gpus=self.part.gpus)
            executions[key] = execution
        return executions[key]


def record_of(
    metric: str,
    digest: str,
    records: Mapping[int, Mapping[str, float]],
    error: str = "",
    report: Mapping[str, Any] | None = None,
) -> RunRecord:
    """Return a run as a table keeps it: the rounds in which a metric was evaluated, with the cost so far.

    Args:
        records: round -> tracked values. error: of a run that diverged. report: the last one of its job. If that counts
            samples of a round without a record, the one that diverged, this round is the last one here.
    """
    keys = (*kept_keys(metric), *(("train/loss",) if metric.startswith("val/") else ()))
    rounds: list[dict[str, float]] = []
    samples, sent = 0, 0.0
    for number in sorted(records):
        values = records[number]
        samples += samples_seen(values)
        sent += bytes_sent(values)
        if metric in values or number == max(records):
            scores = {key: values[key] for key in keys if key in values}
            finite = {key: float(value) for key, value in scores.items() if math.isfinite(value)}
            rounds.append({"round": number, SAMPLES: samples, SENT_BYTES: sent, **finite})
    told = report or {}
    if error and told.get(SAMPLES, 0) > samples:
        diverged = max(records, default=0) + 1
        rounds.append({"round": diverged, SAMPLES: int(told[SAMPLES]), SENT_BYTES: float(told[SENT_BYTES])})
    if not error and metric not in (rounds[-1] if rounds else {}):
        error = f"{metric} has no finite value after the last round"
    return RunRecord(digest, tuple(rounds), error)


def _has(record: RunRecord, metric: str) -> bool:
    """True if a record is the whole run, as far as a metric is concerned."""
    return bool(record.error or (record.rounds and metric in record.rounds[-1]))


def _journal(path: Path) -> dict[tuple[str, str], RunRecord]:
    """The finished runs in a work folder, by hash and metric; a line that a kill left unfinished is left out.

    An interrupted call with another metric has other rounds, other groups, and errors of its own. Lines of earlier
    versions have no metric.
    """
    found: dict[tuple[str, str], RunRecord] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            one = json.loads(line)
            record = RunRecord(one["hash"], tuple(one["rounds"]), one["error"], one.get("groups", {}))
            found[record.hash, one.get("metric", "")] = record
        except (ValueError, KeyError, TypeError):
            continue
    return found


def missing_runs(plan: TablePlan, path: Path | str, data_dir: str | None = None) -> list[TableRun]:
    """Return the runs that `tabulate` would run; nothing is written.

    Raises:
        PflOpsError: the file is another table, or none.
    """
    return [run for run, _ in Tabulation(plan, Path(path), data_dir, Execution(), None, None).read()]


def tabulate(
    plan: TablePlan,
    path: Path | str,
    *,
    data_dir: str | None = None,
    execution: Execution | None = None,
    concurrency: int | None = None,
    on_progress: OnProgress | None = None,
) -> TrialTable:
    """Run what a table lacks, and write it.

    Args:
        plan: its runs. path: the Parquet file. data_dir, execution: as for `runs.run`. concurrency: runs at once.
        on_progress: told of each finished run.
    Raises:
        TabulationInterrupted: Ctrl-C; the same call goes on.
        PflOpsError: the file is another table, can't be written, or a run failed.
    """
    path = Path(path)
    call = Tabulation(plan, path, data_dir, execution or Execution(), concurrency, on_progress)
    if call.read() or not path.exists():
        return call.make()
    if call.folder.exists():
        call.clear()
    return plan.table(call.finished)
