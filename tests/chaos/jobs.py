"""Jobs: the commands that are disturbed, the folders that they work in, and their processes."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parents[2]
MARK = "PFL_OPS_CHAOS_CASE"
"""Environment variable that all processes of a case inherit."""
METHODS = ("fedavg", "fliu", "ditto", "scaffold", "apfl", "fedrep")
STATES = ("memory", "file")
TRIALS = 4
PYTHON = [sys.executable]
"""Starts Python."""
COMMAND_SECONDS = 240.0
"""A command that takes longer hangs."""

FIXED = "--dataset digits --device cpu --way loop --threads 1"
RUN_SIZE = "--model mlp --clients 6 --rounds 8 --train-size 300 --participation 0.5"
TRIAL_SIZE = "--model cnn_tiny --clients 10 --rounds 12 --train-size 1000 --workers 1 --state memory"
STUDY = f"--name chaos --trials {TRIALS} --scheduler none --concurrency 2 --cpus-per-trial 1 --search-space space.yaml"
SPACE = """\
training.lr: {float: [1.0e-3, 5.0e-1], log: true}

first:
  - {training.lr: 0.05}
  - {training.lr: 0.1}
  - {training.lr: 0.02}
  - {training.lr: 0.2}
"""


@dataclass(frozen=True)
class Job:
    """A command whose result is the same on each run, bit for bit.

    Attributes:
        name: of its reference. arguments: of `pfl-ops`; those of a first start. trials: of a study; 0: a run.
    """

    name: str
    arguments: tuple[str, ...]
    trials: int = 0


def run_job(method: str, state: str) -> Job:
    """A run of a few seconds; two methods train in two worker processes."""
    workers = "2" if method in ("apfl", "fedrep") else "1"
    line = f"run {method} {FIXED} {RUN_SIZE} --workers {workers} --state {state}"
    return Job(f"run-{method}-{state}", tuple(line.split()))


def tune_job() -> Job:
    """A study of four given points, so that no point depends on the order in which trials end."""
    return Job("tune", tuple(f"tune fedavg {FIXED} {TRIAL_SIZE} {STUDY}".split()), TRIALS)


class Place:
    """The folder of a case: work folder, temporary folder, cache and output.

    Args:
        folder: made anew; removed by `remove`.
        mark: names the case in the environment of its processes.
        template: a work folder to begin with; None: an empty one, and an empty cache.
        cache: the cache to share; used with a template only.
    """

    def __init__(self, folder: Path, mark: str, template: Path | None, cache: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.folder, self.mark = folder, mark
        self.home, self.output = folder / "mlruns", folder / "output.txt"
        self.temporary = Path("/tmp") / f"pc-{os.getpid()}-{mark}"  # short: Ray makes sockets in it
        self.cache = cache if template else folder / "cache"
        self.tracking_uri: str | None = None
        self.forgiven = 0  # characters of the output in which tracebacks are allowed
        folder.mkdir(parents=True)
        shutil.rmtree(self.temporary, ignore_errors=True)
        self.temporary.mkdir(mode=0o700)
        (folder / "space.yaml").write_text(SPACE)
        if template:
            shutil.copytree(template, self.home)

    @property
    def database(self) -> Path:
        """The SQLite file that MLflow's runs are in."""
        return self.home / "mlflow.db"

    def environment(self) -> dict[str, str]:
        """The environment of all processes of the case."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PFL_OPS", "MLFLOW", "RAY"))}
        own = {
            MARK: self.mark, "PFL_OPS_HOME": str(self.home), "PFL_OPS_CACHE": str(self.cache),
            "TMPDIR": str(self.temporary), "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1", "COLUMNS": "120",
            "PFL_OPS_DATA": os.environ.get("PFL_OPS_DATA", ""),
        }  # fmt: skip
        if self.tracking_uri:
            own["MLFLOW_TRACKING_URI"] = self.tracking_uri
        return kept | own

    def start(self, arguments: tuple[str, ...], before: Callable[[], None] | None = None) -> subprocess.Popen[bytes]:
        """Start `pfl-ops`; its output is appended to the case's.

        Args:
            before: called in the new process before the program (to set limits).
        """
        with self.output.open("ab") as output:
            output.write(f"--- pfl-ops {' '.join(arguments)}\n".encode())
            output.flush()
            return subprocess.Popen(
                [*PYTHON, "-c", "from pfl_ops.cli import main; main()", *arguments],
                env=self.environment(), cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True, preexec_fn=before,
            )  # fmt: skip

    def said(self) -> str:
        """All output of the case's commands."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def processes(self) -> list[psutil.Process]:
        """All living processes that inherited the case's mark; its commands are waited for by their owner."""
        return marked(self.mark)

    def kill_all(self) -> None:
        """Kill what is left."""
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)

    def remove(self) -> None:
        """Remove the case's folders."""
        self.kill_all()
        shutil.rmtree(self.temporary, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def marked(mark: str | None) -> list[psutil.Process]:
    """Living processes with that mark in their environment; None: with any mark of this driver's cases."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE:
                has = process.environ().get(MARK)
                if has is not None and mark in (None, has):
                    found.append(process)
        except (psutil.Error, OSError):  # it ended meanwhile, or is another user's
            continue
    return found


def finish(process: subprocess.Popen[bytes], seconds: float = COMMAND_SECONDS) -> int | None:
    """Wait for a command. None: it hangs; it is killed."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[bytes], seconds: float = 120.0) -> bool:
    """Wait until a condition holds; False: the process ended, or the time is over."""
    end = time.monotonic() + seconds
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def sleep_while_running(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Sleep; False: the process ended meanwhile."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


@contextlib.contextmanager
def place(folder: Path, mark: str, template: Path | None, cache: Path) -> Iterator[Place]:
    """A case's folders and processes, gone at the end."""
    made = Place(folder, mark, template, cache)
    try:
        yield made
    finally:
        made.remove()
