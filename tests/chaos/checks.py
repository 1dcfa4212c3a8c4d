"""Checks: the databases and folders of a finished case, read without pfl-ops, beside those of its reference."""

import contextlib
import json
import sqlite3
import time
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.chaos.jobs import Place

TIMINGS = ("cost/", "total/cost/")
"""Beginnings of the keys of metrics that differ between two runs."""
PROCESS_PATIENCE_SECONDS = 20.0
COURIER_PATIENCE_SECONDS = 120.0
"""A courier starts as a process of its own and brings a whole run, while two cases compute."""


@dataclass
class Outcome:
    """A work folder at the end of a case.

    Attributes:
        points: "identity key step" -> value in hexadecimal, without timings. doubled: points with more than one row.
        statuses: identity -> the status of each of its runs. files: "identity path" of each artifact.
        trials: of a study, "params" -> objective values of finished trials, in hexadecimal.
        doubled_trials: parameters that finished more than once. waiting: folders with undelivered records.
    """

    points: dict[str, str] = field(default_factory=dict)
    doubled: list[str] = field(default_factory=list)
    statuses: dict[str, list[str]] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    trials: dict[str, str] = field(default_factory=dict)
    doubled_trials: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)

    def save(self, file: Path) -> None:
        """Write a reference."""
        file.write_text(json.dumps(asdict(self)))

    @classmethod
    def load(cls, file: Path) -> "Outcome":
        """Read a reference."""
        return cls(**json.loads(file.read_text()))


@dataclass
class Verdict:
    """The comparison of a case with its reference.

    Attributes:
        lost, doubled: numbers of points. losses: what else is wrong with the results, one line each.
        untidy: results are right, but something was left behind or printed.
        remarks: not wrong.
    """

    lost: int = 0
    doubled: int = 0
    losses: list[str] = field(default_factory=list)
    untidy: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    @property
    def survived(self) -> bool:
        """True if nothing was lost or doubled and nothing was left behind."""
        return not (self.lost or self.doubled or self.losses or self.untidy)


def read(place: Place) -> Outcome:
    """Read a case's databases and folders, once its couriers have brought their runs.

    Raises:
        sqlite3.Error: a database is missing or damaged.
    """
    found = Outcome()
    began, requests = time.monotonic(), place.home / "requests"
    while any(requests.glob("*/")) and time.monotonic() - began < COURIER_PATIENCE_SECONDS:
        time.sleep(0.1)
    with contextlib.closing(_open(place.database)) as database:
        runs = _runs(database)
        for run, identity in runs.items():
            status, place_of_files = database.execute(
                "select status, artifact_uri from runs where run_uuid = ?", [run]
            ).fetchone()
            found.statuses.setdefault(identity, []).append(status)
            local = str(place_of_files).replace("mlflow-artifacts:", str(place.home / "artifacts"))
            folder = Path(local.removeprefix("file://"))
            if folder.is_absolute() and folder.is_dir():
                found.files += [f"{identity} {p.relative_to(folder)}" for p in folder.rglob("*") if p.is_file()]
        rows = database.execute("select run_uuid, key, step, value, is_nan from metrics")
        points = [
            (f"{runs[run]} {key} {step}", "nan" if nan else float(value).hex())
            for run, key, step, value, nan in rows
            if run in runs and not key.startswith(TIMINGS)
        ]
    found.points = dict(points)
    found.doubled = sorted(name for name, count in Counter(name for name, _ in points).items() if count > 1)
    studies = place.home / "studies.db"
    if studies.exists():
        with contextlib.closing(_open(studies)) as database:
            trials = _trials(database)
        found.trials = dict(trials)
        found.doubled_trials = sorted(name for name, count in Counter(name for name, _ in trials).items() if count > 1)
    spool = place.home / "spool"
    found.waiting = sorted(p.name for p in spool.glob("*") if p.is_dir()) if spool.is_dir() else []
    return found


def statuses(database: Path) -> set[str]:
    """All statuses of runs in MLflow's database; none where it has no tables yet."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(_open(database)) as found:
        return {status for (status,) in found.execute("select status from runs")}
    return set()


def _open(file: Path) -> sqlite3.Connection:
    """A database for reading."""
    return sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True, timeout=30)


def _runs(database: sqlite3.Connection) -> dict[str, str]:
    """Identity of each run that was not deleted, by its MLflow id."""
    return dict(
        database.execute(
            "select runs.run_uuid, tags.value from runs join tags on runs.run_uuid = tags.run_uuid "
            "where tags.key = 'pfl_ops.identity' and runs.lifecycle_stage = 'active'"
        ).fetchall()
    )


def _trials(database: sqlite3.Connection) -> list[tuple[str, str]]:
    """(parameters, values) of finished trials."""
    found = []
    for (trial,) in database.execute("select trial_id from trials where state in ('COMPLETE', 'PRUNED')"):
        params = database.execute(
            "select param_name, param_value from trial_params where trial_id = ? order by 1", [trial]
        )
        values = database.execute("select value from trial_values where trial_id = ? order by objective", [trial])
        named = " ".join(f"{name}={float(value).hex()}" for name, value in params)
        found.append((named, " ".join(float(value).hex() for (value,) in values)))
    return found


def compare(found: Outcome, reference: Outcome, verdict: Verdict) -> None:
    """Add to the verdict all that differs."""
    missing = reference.points.keys() - found.points.keys()
    extra = found.points.keys() - reference.points.keys()
    other = [
        name for name in reference.points.keys() & found.points.keys() if found.points[name] != reference.points[name]
    ]
    verdict.lost += len(missing)
    verdict.doubled += len(found.doubled)
    for what, names in (("missing", missing), ("doubled", found.doubled)):
        if names:
            verdict.losses.append(f"{len(names)} points {what}: {_few(names)}")
    for what, names in (("not in the reference", extra), ("with another value", other)):
        if names:
            verdict.losses.append(f"{len(names)} points {what}: {_few(names)}")
    wrong = [name for name, expected in reference.statuses.items() if found.statuses.get(name) != expected]
    if wrong:
        verdict.losses.append(
            f"{len(wrong)} runs missing or with another status: {_few(wrong)} "
            f"({[found.statuses.get(name) for name in wrong]})"
        )
    more = found.statuses.keys() - reference.statuses.keys()
    if more:
        verdict.losses.append(f"{len(more)} runs too many: {_few(more)} ({[found.statuses[m] for m in more]})")
    gone = {name for name in reference.files if name not in set(found.files)}
    if gone:
        verdict.losses.append(f"{len(gone)} artifacts missing: {_few(gone)}")
    if found.trials != reference.trials:
        verdict.losses.append(f"{len(found.trials)} finished trials, not the {len(reference.trials)} of the reference")
    if found.doubled_trials:
        verdict.losses.append(f"trials finished twice: {_few(found.doubled_trials)}")
    if found.waiting:
        verdict.losses.append(f"{len(found.waiting)} outboxes were not delivered")


def leftovers(place: Place, verdict: Verdict) -> None:
    """Add processes, temporary folders and drafts that are left, and what the commands printed."""
    began = time.monotonic()
    while (left := place.processes()) and time.monotonic() - began < PROCESS_PATIENCE_SECONDS:
        time.sleep(0.25)
    waited = time.monotonic() - began
    if left:
        verdict.untidy.append(f"{len(left)} processes left after {waited:.0f} s: {_few(map(_name, left))}")
    elif waited > 1:
        verdict.remarks.append(f"last process gone after {waited:.0f} s")
    temporary = sorted(p.name for p in place.temporary.iterdir())
    if temporary:
        ours = any(name.startswith(("pfl-", ".")) for name in temporary)  # else a library's, which only it could sweep
        (verdict.untidy if ours else verdict.remarks).append(f"{len(temporary)} temporary files: {_few(temporary)}")
    drafts = [p.name for p in place.home.rglob(".*") if p.name.startswith((".writing-", ".new-"))]
    if drafts:
        verdict.untidy.append(f"drafts left: {_few(drafts)}")
    _, traceback, after = place.said()[place.forgiven :].partition("Traceback (most recent call last)")
    if traceback:
        last = next((line for line in after.splitlines()[1:] if line and not line.startswith(" ")), "")
        verdict.untidy.append(f"traceback: {last[:200]}")


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[-80:]
    except psutil.Error:
        return "gone"


def _few(names: Any) -> str:
    """At most three names."""
    listed = sorted(str(name)[-70:] for name in names)
    return ", ".join(listed[:3]) + (", ..." if len(listed) > 3 else "")
