import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import fork_server
import pytest
from ports import reserved_port

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Record:
    round: int
    metrics: dict[str, float]
    time: int


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PFL_OPS_HOME", "MLFLOW_TRACKING_URI"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def rounds() -> Callable[..., list[Record]]:
    """Records of rounds first..last: two metrics every round, one every fifth, times as on a first recording."""

    def make(first: int, last: int, clock: int = 1_700_000_000_000) -> list[Record]:
        return [
            Record(
                t,
                {"val/L1/local/mean": t / 100, "train/loss": 1 / (1 + t)}
                | ({"val/L1/acc": t / 50} if t % 5 == 0 else {}),
                clock + 1000 * t,
            )
            for t in range(first, last + 1)
        ]

    return make


@pytest.fixture
def python() -> Callable[..., subprocess.Popen[str]]:
    """Start a Python process on some code; it is killed at the end if it still runs.

    With `forked`, by the fork server: `pid` is not the number of the process then.
    """
    started = []

    def start(code: str, *arguments: str, forked: bool = False) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        process = subprocess.Popen(
            [*(fork_server.python() if forked else [sys.executable]), "-c", textwrap.dedent(code), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


class Server:
    """A real `mlflow server` on loopback."""

    def __init__(self, folder: Path, port: int) -> None:
        from pfl_ops.tracking import settle_runs, ui_command

        settle_runs(str(folder))  # makes the database faster than the server would
        self.uri = f"http://127.0.0.1:{port}"
        self.command = lambda: ui_command(str(folder), port=port)
        self.log = folder.with_name("server.log")
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        argv, env = self.command()
        argv[:1], env = fork_server.python(), fork_server.with_children(env)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(argv, env=env, stdout=log, stderr=log, process_group=0)
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=1):
                    return
            except (OSError, urllib.error.URLError):
                time.sleep(0.2)
            if self.process.poll() is not None:
                break
        raise AssertionError(f"the server did not start: {self.log.read_text()[-2000:]}")

    def kill(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None


@pytest.fixture
def stopped_server(tmp_path: Path) -> Iterator[Server]:
    """A server that is not started yet."""
    with reserved_port() as port:
        server = Server(tmp_path / "server", port)
        try:
            yield server
        finally:
            server.kill()


@pytest.fixture
def server(stopped_server: Server) -> Server:
    stopped_server.start()
    return stopped_server
