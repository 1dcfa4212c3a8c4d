"""Faults: what is done to a command while it runs. Each function ends with one undisturbed run of the command."""

import contextlib
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.chaos.checks import Verdict, statuses
from tests.chaos.jobs import Job, Place, finish, sleep_while_running, wait_until
from tests.ports import reserved_port

Fault = Callable[["Trouble"], None]
SIGTERM_CODES = (128 + signal.SIGTERM, -signal.SIGTERM)  # a shell shows 143 for both
SMALL_DISK_MIB = 24


@dataclass
class Trouble:
    """A case on its way.

    Attributes:
        job: what is disturbed. place: where. seconds: that the job takes alone; begun: until its work folder is used.
        draws: the case's generator. verdict: what is found.
    """

    job: Job
    place: Place
    seconds: float
    begun: float
    draws: random.Random
    verdict: Verdict

    def start(self, before: Callable[[], None] | None = None) -> subprocess.Popen[bytes]:
        """Start the job's command."""
        return self.place.start(self.job.arguments, before)

    def again(self) -> subprocess.Popen[bytes]:
        """Start the command that goes on: the same, with --resume for a study that has begun."""
        extra = ("--resume",) if self.job.trials and (self.place.home / "studies.db").exists() else ()
        return self.place.start((*self.job.arguments, *extra))

    def moment(self, process: subprocess.Popen[bytes]) -> bool:
        """Wait for a random moment of the job: 1 in 5 from its start, else after it began to use its work folder.

        Returns:
            False if the process ended before.
        """
        if self.draws.random() < 0.2:
            return sleep_while_running(process, self.draws.uniform(0, self.seconds))
        before = self.used()
        wait_until(lambda: self.used() != before, process)
        return sleep_while_running(process, self.draws.uniform(0, max(1.0, self.seconds - self.begun)))

    def used(self) -> tuple[int, int]:
        """Something that changes when a command begins to write: the last change of the checkpoints and outboxes."""
        return changed(self.place.home)

    def end(self, tries: int = 1) -> None:
        """Run the command undisturbed until it ends well."""
        for left in reversed(range(tries)):
            code = finish(self.again())
            if code == 0:
                return
            if not left:
                said = self.place.said().strip().splitlines()
                why = "hangs" if code is None else f"ends with {code}"
                self.verdict.losses.append(f"the resumed command {why}: {said[-1] if said else ''}")


def changed(home: Path) -> tuple[int, int]:
    """Times of the last change of the folders of checkpoints and outboxes [ns]; 0: not there."""
    times = []
    for name in ("checkpoints", "spool"):
        try:
            times.append((home / name).stat().st_mtime_ns)
        except OSError:
            times.append(0)
    return times[0], times[1]


def check_code(trouble: Trouble, code: int | None, allowed: tuple[int, ...]) -> None:
    """A command that was disturbed must end with one of these codes."""
    if code is None:
        trouble.verdict.losses.append("the disturbed command hangs")
    elif code not in allowed:
        trouble.verdict.untidy.append(f"the disturbed command ends with {code}, allowed: {allowed}")


# -- signals -----------------------------------------------------------------------------------------------------------


def sigkill(trouble: Trouble) -> None:
    """Kill the command's first process at one to three random moments."""
    for number in range(trouble.draws.choice([1, 1, 2, 3])):
        process = trouble.start() if number == 0 else trouble.again()
        if trouble.moment(process):
            process.kill()
        elif process.returncode:
            trouble.verdict.losses.append(f"the command ends with {process.returncode} after {number} kills")
        process.wait()
    trouble.end()


def sigkill_worker(trouble: Trouble) -> None:
    """Kill the process of a trial; the study ends without that trial or runs it again, and --resume completes it."""
    process = trouble.start()
    wait_until(lambda: bool(trial_processes(trouble.place)), process)
    sleep_while_running(process, trouble.draws.uniform(0, 4))
    found = trial_processes(trouble.place)
    if found and process.poll() is None:
        with contextlib.suppress(psutil.Error):
            trouble.draws.choice(found).kill()
    else:
        trouble.verdict.remarks.append("no trial process was there")
    check_code(trouble, finish(process), (0,))
    trouble.end()


def trial_processes(place: Place) -> list[psutil.Process]:
    """Ray's processes that run trials."""
    found = []
    for process in place.processes():
        with contextlib.suppress(psutil.Error):
            name = " ".join(process.cmdline())
            if name.startswith("ray::") and not name.startswith("ray::IDLE"):
                found.append(process)
    return sorted(found, key=lambda process: process.pid)


def sigterm(trouble: Trouble) -> None:
    """End the command by SIGTERM: like Ctrl-C, with code 143 and no run left RUNNING."""
    process = trouble.start()
    running = trouble.moment(process)
    if running:
        process.terminate()
    code = finish(process)
    if code == 0:
        trouble.verdict.remarks.append("it had ended before SIGTERM came" if not running else "SIGTERM came at its end")
    # In its first and last moments Python itself handles the signal
    check_code(trouble, code, (*SIGTERM_CODES, 0))
    if "RUNNING" in statuses(trouble.place.database):
        trouble.verdict.untidy.append("a run is RUNNING after SIGTERM")
    trouble.end()


# -- the server --------------------------------------------------------------------------------------------------------


def sigstop_server(trouble: Trouble) -> None:
    """Freeze the MLflow server that the run tracks to for 2 to 20 s, at a random moment."""
    with server(trouble.place) as processes:
        process = trouble.start()
        trouble.moment(process)
        for one in processes():
            one.suspend()
        time.sleep(trouble.draws.uniform(2, 20))
        for one in processes():
            one.resume()
        check_code(trouble, finish(process), (0,))
        trouble.end()


@contextlib.contextmanager
def server(place: Place) -> Iterator[Callable[[], list[psutil.Process]]]:
    """An `mlflow server` on the case's database, on loopback; yields a function that lists its processes."""
    with reserved_port() as port:
        yield from _served(place, port)


def _served(place: Place, port: int) -> Iterator[Callable[[], list[psutil.Process]]]:
    environment = place.environment() | {
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }
    arguments = ["--backend-store-uri", f"sqlite:///{place.database}", "--workers", "1", "--host", "127.0.0.1"]
    arguments += ["--artifacts-destination", str(place.home / "artifacts"), "--port", str(port)]
    with (place.folder / "server.txt").open("ab") as output:
        first = subprocess.Popen(
            [sys.executable, "-m", "mlflow", "server", *arguments],
            env=environment, cwd=place.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
            start_new_session=True,
        )  # fmt: skip

    def processes() -> list[psutil.Process]:
        try:
            top = psutil.Process(first.pid)
            return [top, *top.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def answers() -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    try:
        if not wait_until(answers, first, 90):
            raise RuntimeError("the MLflow server did not start: " + (place.folder / "server.txt").read_text()[-500:])
        place.tracking_uri = f"http://127.0.0.1:{port}"
        yield processes
    finally:
        for one in reversed(processes()):
            with contextlib.suppress(psutil.Error):
                one.kill()
        first.wait()


# -- limits ------------------------------------------------------------------------------------------------------------


def limit_memory(trouble: Trouble) -> None:
    """Lower RLIMIT_AS: from the start, or at a random moment to little more than is used."""
    if trouble.draws.random() < 0.5:
        limit = int(trouble.draws.uniform(1.0, 3.0) * 2**30)
        process = trouble.start(lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    else:
        process = trouble.start()
        if trouble.moment(process):
            with contextlib.suppress(psutil.Error):
                limit = psutil.Process(process.pid).memory_info().vms + trouble.draws.randint(0, 64) * 2**20
                psutil.Process(process.pid).rlimit(psutil.RLIMIT_AS, (limit, limit))
    starved(trouble, process)


def limit_files(trouble: Trouble) -> None:
    """Lower RLIMIT_NOFILE: from the start, or at a random moment to what is open, and up to 3 more."""
    if trouble.draws.random() < 0.3:
        limit = trouble.draws.randint(8, 40)
        process = trouble.start(lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit)))
    else:
        process = trouble.start()
        if trouble.moment(process):
            with contextlib.suppress(psutil.Error):
                limit = psutil.Process(process.pid).num_fds() + trouble.draws.randint(0, 3)
                psutil.Process(process.pid).rlimit(psutil.RLIMIT_NOFILE, (limit, limit))
    starved(trouble, process)


def starved(trouble: Trouble, process: subprocess.Popen[bytes]) -> None:
    """Any end of a starved process is allowed but a hang; what it printed is a remark. Then the run goes on."""
    code = finish(process)
    if code is None:
        trouble.verdict.losses.append("the starved command hangs")
    said = trouble.place.said()
    if "Traceback (most recent call last)" in said:
        trouble.verdict.remarks.append(f"a starved process ended with {code} and a traceback")
        trouble.place.forgiven = len(said)
    trouble.end()


def full_disk(trouble: Trouble) -> None:
    """Fill the disk of the work folder at a random moment until the command has ended; then make room.

    As root the work folder is a small tmpfs, which is filled. Else RLIMIT_FSIZE becomes 0 at that moment: no file
    can grow, the error is "file too large".
    """
    home = trouble.place.home
    with small_disk(home) as mounted:
        process = trouble.start()
        filler = home / "filler"
        if trouble.moment(process):
            if mounted:
                fill(filler)
            else:
                with contextlib.suppress(psutil.Error):
                    psutil.Process(process.pid).rlimit(psutil.RLIMIT_FSIZE, (0, 0))
        code = finish(process)
        check_code(trouble, code, (0, 2))
        filler.unlink(missing_ok=True)
        trouble.end()


def fill(filler: Path) -> None:
    """Write a file until the disk is full."""
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**12))


@contextlib.contextmanager
def small_disk(home: Path) -> Iterator[bool]:
    """Put a tmpfs on the work folder; False: this user can't mount."""
    if os.getuid() != 0:
        home.mkdir(exist_ok=True)
        yield False
        return
    kept = home.with_name("kept")
    if home.exists():
        home.rename(kept)
    home.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK_MIB}m", "tmpfs", str(home)], capture_output=True
    )
    if kept.exists():
        subprocess.run(["cp", "-a", f"{kept}/.", str(home)], check=True)
    try:
        yield done.returncode == 0
    finally:
        if done.returncode == 0:
            after = home.with_name("after")
            subprocess.run(["cp", "-a", str(home), str(after)], check=True)
            subprocess.run(["umount", "-l", str(home)], check=True)
            home.rmdir()
            after.rename(home)


FAULTS: dict[str, tuple[Fault, int]] = {
    "sigkill-run": (sigkill, 100),
    "sigkill-tune": (sigkill, 20),
    "sigkill-worker": (sigkill_worker, 20),
    "sigterm-run": (sigterm, 10),
    "sigterm-tune": (sigterm, 5),
    "sigstop-server": (sigstop_server, 10),
    "limit-memory": (limit_memory, 10),
    "limit-files": (limit_files, 10),
    "full-disk": (full_disk, 10),
}
"""Fault -> (function, number of cases at CHAOS_N=100)."""
