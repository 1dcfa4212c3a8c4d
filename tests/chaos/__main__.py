"""Run the cases, two at a time; print the table. See the package."""

import concurrent.futures
import dataclasses
import hashlib
import json
import math
import os
import random
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from tests.chaos import checks, table
from tests.chaos.checks import Outcome, Verdict
from tests.chaos.faults import FAULTS, Trouble, changed
from tests.chaos.jobs import METHODS, REPOSITORY, STATES, Job, finish, marked, place, run_job, tune_job

AT_ONCE = 2
FRESH_SHARE = 0.15
"""Share of cases that begin in an empty folder with an empty cache: databases and data are made while faults come."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One fault at one job. number: seeds its generator."""

    fault: str
    number: int
    job: Job

    @property
    def id(self) -> str:
        return f"{self.fault}-{self.number:03d}"


def plan(scale: float, faults: list[str]) -> list[Case]:
    """All cases in a fixed random order; methods and states take turns.

    Args:
        scale: of the number of cases; each fault has at least one.
    """
    runs = [run_job(method, state) for state in STATES for method in METHODS]
    found = []
    for fault in faults:
        tuned = fault.endswith(("tune", "worker"))
        for number in range(max(1, math.ceil(FAULTS[fault][1] * scale))):
            found.append(Case(fault, number, tune_job() if tuned else runs[number % len(runs)]))
    random.Random(0).shuffle(found)
    return found


class Chaos:
    """All cases of one driver.

    Args:
        folder: CHAOS_DIR.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(parents=True, exist_ok=True)
        self.results = folder / "results.jsonl"
        self.cache, self.template = folder / "cache", folder / "template"
        self.code = code_digest()
        self.references: dict[str, tuple[Outcome, float, float]] = {}
        self.stop = threading.Event()
        self.mutex = threading.Lock()

    def done(self) -> list[dict[str, Any]]:
        """Results of this code."""
        lines = self.results.read_text().splitlines() if self.results.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [result for result in found if result["code"] == self.code]

    def prepare(self, jobs: list[Job]) -> None:
        """Make the template of a work folder and the reference of each job, unless they are there."""
        if not (self.template / "mlflow.db").exists():
            with place(self.folder / "work" / "template", "template", None, self.cache) as there:
                code = "from pfl_ops.tracking import Store; Store.open().close()"
                subprocess.run([sys.executable, "-c", code], env=there.environment(), cwd=there.folder, check=True)
                there.home.rename(self.template)
        for job in jobs:
            self.references[job.name] = self._reference(job)

    def _reference(self, job: Job) -> tuple[Outcome, float, float]:
        """(its outcome, seconds, seconds until it began to use the work folder)."""
        folder = self.folder / "references" / self.code
        outcome, times = folder / f"{job.name}.json", folder / f"{job.name}.times.json"
        if not times.exists():
            folder.mkdir(parents=True, exist_ok=True)
            print(f"reference {job.name}", flush=True)
            with place(self.folder / "work" / job.name, job.name, self.template, self.cache) as there:
                before, began, begun = changed(there.home), time.monotonic(), 0.0
                process = there.start(job.arguments)
                while process.poll() is None and changed(there.home) == before:
                    time.sleep(0.01)
                begun = time.monotonic() - began
                if finish(process) != 0:
                    raise SystemExit(f"{job.name} fails without any fault:\n{there.said()}")
                seconds = time.monotonic() - began
                found = checks.read(there)
                wrong = Verdict()
                checks.compare(found, found, wrong)
                if not wrong.survived or {s for all_ in found.statuses.values() for s in all_} != {"FINISHED"}:
                    raise SystemExit(f"{job.name} without any fault: {wrong.losses} {found.statuses}")
                found.save(outcome)
            times.write_text(json.dumps([seconds, begun]))
        seconds, begun = json.loads(times.read_text())
        return Outcome.load(outcome), seconds, begun

    def run(self, case: Case) -> dict[str, Any] | None:
        """Run a case and keep its result; None: the driver is being stopped."""
        if self.stop.is_set():
            return None
        began = time.monotonic()
        draws, verdict = random.Random(f"{case.id} {case.job.name}"), Verdict()
        fresh = draws.random() < FRESH_SHARE and case.fault != "sigstop-server"
        reference, seconds, begun = self.references[case.job.name]
        with place(self.folder / "work" / case.id, case.id, None if fresh else self.template, self.cache) as there:
            try:
                FAULTS[case.fault][0](Trouble(case.job, there, seconds, begun, draws, verdict))
                checks.compare(checks.read(there), reference, verdict)
                checks.leftovers(there, verdict)
            except Exception as error:
                verdict.losses.append(f"{type(error).__name__}: {error}")
                there.output.open("a").write("\n--- the driver\n" + traceback.format_exc())
            if self.stop.is_set():
                return None
            if not verdict.survived:
                kept = self.folder / "failed" / case.id
                kept.mkdir(parents=True, exist_ok=True)
                (kept / "output.txt").write_text(there.said())
        result = {
            "id": case.id, "fault": case.fault, "job": case.job.name, "fresh": fresh, "code": self.code,
            "survived": verdict.survived, **dataclasses.asdict(verdict), "seconds": round(time.monotonic() - began, 1),
        }  # fmt: skip
        with self.mutex, self.results.open("a") as file:
            file.write(json.dumps(result) + "\n")
        return result


def code_digest() -> str:
    """A digest of the package: results of other code do not count."""
    digest = hashlib.sha256()
    for file in sorted((REPOSITORY / "pfl_ops").rglob("*.py")):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def main(arguments: list[str]) -> int:
    """Run all cases that have no result yet. Returns the exit code."""
    scale = float(os.environ.get("CHAOS_N", "100")) / 100
    if "--list" in arguments:
        print("\n".join(f"{name:16} {max(1, math.ceil(n * scale)):4}" for name, (_, n) in FAULTS.items()))
        return 0
    unknown = [name for name in arguments if name not in FAULTS]
    if unknown:
        print(f"no fault named {unknown[0]!r}; there are: {', '.join(FAULTS)}", file=sys.stderr)
        return 2
    cases = plan(scale, arguments or list(FAULTS))
    chaos = Chaos(Path(os.environ.get("CHAOS_DIR") or ".chaos").absolute())
    ids = {case.id for case in cases}
    there = {result["id"] for result in chaos.done()}
    missing = [case for case in cases if case.id not in there]
    print(f"{len(cases)} cases, {len(cases) - len(missing)} of them done; results in {chaos.results}", flush=True)
    try:
        chaos.prepare(list({case.job.name: case.job for case in missing}.values()))
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            try:
                for number, future in enumerate(
                    concurrent.futures.as_completed([pool.submit(chaos.run, case) for case in missing]), 1
                ):
                    result = future.result()
                    assert result is not None
                    said = "ok" if result["survived"] else "; ".join([*result["losses"], *result["untidy"]])
                    progress = f"{number} of {len(missing)}  {result['id']}  {result['job']}"
                    print(f"{progress}  {result['seconds']:.0f} s  {said}", flush=True)
            except KeyboardInterrupt:
                chaos.stop.set()
                for process in marked(None):
                    process.kill()
                raise
    except KeyboardInterrupt:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130
    results = [result for result in chaos.done() if result["id"] in ids]
    print("\n" + table.text(results))
    return 0 if all(result["survived"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
