"""Requests: runs that their own process only simulates, and that a courier tracks.

    <work folder>/requests/<name>/request.json   everything that tracking needs beside the run's checkpoint
                                  signature      of request.json, by the user's own key
                                  files/         copies of the recorded partition and the weights file
                                  end.json       how the run ended, once it has
                                  owner          lock of the process that simulates
                                  courier        lock of the process that tracks
                                  log            why the courier failed; the last line says it
                           log                   what couriers printed

The process that simulates imports no MLflow. A request stays until its run is in the outbox of the work folder and
delivered. One whose courier was killed is taken up by the next command that reads runs (`settle`).

A request names plug-ins, which are imported. So it is signed; one that came with another user's folder is refused.
"""

import fcntl
import hashlib
import hmac
import json
import logging
import os
import queue
import secrets
import shutil
import subprocess
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

from filelock import FileLock

from pfl_ops.data.store import cache_folder
from pfl_ops.errors import PflOpsError
from pfl_ops.files import alone_in, replacing, sync, write_whole
from pfl_ops.registry import Packed
from pfl_ops.system import child
from pfl_ops.tracking.home import TrackingTarget, WorkFolder

log = logging.getLogger("pfl_ops.tracking")

COURIER = "PFL_OPS_COURIER"
"""Environment variable; "off": a command tracks its runs itself and ends when they are delivered."""
REQUEST, SIGNATURE, END, OWNER, LOCK, LOG = "request.json", "signature", "end.json", "owner", "courier", "log"
FILES = "files"
PROCESS = "process"  # the number of the process that holds LOCK
KEY = "requests.key"  # in the user's cache
PATIENCE_SECONDS = 60.0
LOOK_EVERY_SECONDS = 0.05
SHORT_RUN_SECONDS = 5.0
BEHIND = 10  # niceness of a courier beside a simulation, the command's next repetition too: its seconds are recorded
VARIABLES = ("PFL_OPS_DATA", "PFL_OPS_CACHE")  # environment variables by which a courier finds the data


@dataclass(frozen=True)
class Request:
    """A run that a courier tracks.

    Attributes:
        experiment: every setting, nested. digest: its hash. data_dir: where its data are; None: not given.
        execution: how it is computed. data: the user's data file, and the digest of its content then. plugins: their
            files as they were loaded; modules: what these import. files: of a recorded partition, and of weights, whose
            copies are in the request's folder. All of these may be edited since.
        group: name of its MLflow experiment. name: of the run. params, tags: of the run.
        rerun: see `Store.run`. folder: working folder of the command. variables: environment variables.
    """

    experiment: dict[str, Any]
    digest: str
    data_dir: str | None
    execution: dict[str, Any]
    group: str
    name: str
    params: dict[str, str]
    tags: dict[str, str]
    rerun: str = ""
    data: tuple[str, str] | None = None
    plugins: Sequence[Packed | str] = ()  # a path: in the request of an earlier version
    modules: Sequence[Packed] = ()
    files: Sequence[str] = ()
    folder: str = field(default_factory=os.getcwd)
    variables: dict[str, str] = field(default_factory=lambda: {v: os.environ[v] for v in VARIABLES if v in os.environ})


@dataclass(frozen=True)
class RunEnd:
    """The end of a run.

    Attributes:
        status: FINISHED, FAILED or KILLED. tags: further tags, as why it diverged.
        time: ms since the epoch; None: unknown, its process was killed; or it was over before, and only read.
    """

    status: str
    tags: dict[str, str] = field(default_factory=dict)
    time: int | None = None


def is_possible(home: WorkFolder, tracking_uri: str | None) -> bool:
    """True if a courier may track: into the work folder's own database, unless `PFL_OPS_COURIER` is "off".

    A tracking server may outlive this machine, so a command waits until the server has everything.
    """
    return os.environ.get(COURIER) != "off" and is_own(home, TrackingTarget.of(home, tracking_uri))


def is_own(home: WorkFolder, target: TrackingTarget) -> bool:
    """True if a target is the work folder's own database."""
    return target.uri == f"sqlite:///{home.database}"


class RequestedRun:
    """A request, and the courier that tracks its run while it is simulated.

    Args:
        home: the work folder.
    Raises:
        PflOpsError: the folder can't be written.
    """

    def __init__(self, home: WorkFolder, request: Request) -> None:
        name = f"{time.time_ns():019d}-{request.digest[:12]}-{uuid.uuid4().hex[:8]}"
        self.folder, draft = home.requests / name, home.requests / f".{name}"
        self._owner = FileLock(draft / OWNER)
        try:
            with alone_in(home.requests):
                for left in home.requests.glob(".*"):
                    if not is_locked(left / OWNER):  # its process was killed while it wrote or removed it
                        shutil.rmtree(left, ignore_errors=True)
                draft.mkdir(parents=True)
                self._owner.acquire(timeout=0)
            for path, copy in copies(draft, request):
                copy.parent.mkdir(exist_ok=True)
                shutil.copyfile(path, copy)
            text = json.dumps(asdict(request))
            (draft / SIGNATURE).write_text(_signature(text))
            (draft / REQUEST).write_text(text)
            for path in [*draft.rglob("*"), draft]:
                sync(path)
            draft.rename(self.folder)  # the lock stays: it is on the open file
        except BaseException as error:  # Ctrl-C and SIGTERM too
            shutil.rmtree(draft, ignore_errors=True)
            if not isinstance(error, OSError):
                raise
            raise PflOpsError(f"can't write {self.folder}: {error.strerror}") from error
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._begun, self._has_courier = time.monotonic(), False

    def log(self, round_: int, metrics: Mapping[str, float], time_: int) -> None:
        """Pass a round on to the courier, without waiting; the checkpoint has it too.

        A run of a few seconds gets its courier at its end: while it starts, it takes a core.
        """
        self._lines.put(json.dumps({"round": round_, "metrics": dict(metrics), "time": time_}))
        if self._has_courier or time.monotonic() - self._begun < SHORT_RUN_SECONDS:
            return
        self._has_courier = True
        with suppress(OSError):  # without one, the next command starts it
            pipe = start([self.folder], stdin=subprocess.PIPE, niceness=BEHIND).stdin
            assert pipe is not None
            threading.Thread(target=_write, args=(self._lines, pipe), name="pfl-ops records", daemon=True).start()

    def end(self, end: RunEnd) -> None:
        """Note how the run ended; the courier does the rest.

        Raises:
            OSError: the disk is full; the run then counts as killed.
        """
        try:
            write_whole(self.folder / END, json.dumps(asdict(end)))  # before the courier's input ends
        finally:
            self._lines.put(None)
            _release(self._owner)
            if not self._has_courier:
                with suppress(OSError):
                    start([self.folder], niceness=BEHIND)


def _write(lines: "queue.SimpleQueue[str | None]", pipe: IO[bytes]) -> None:
    """Write lines into a pipe until None comes; a courier that is gone needs none."""
    with suppress(OSError), pipe:
        while (line := lines.get()) is not None:
            pipe.write(line.encode() + b"\n")
            pipe.flush()


def start(folders: Sequence[Path], stdin: int = subprocess.DEVNULL, niceness: int = 0) -> "subprocess.Popen[bytes]":
    """Start a courier for some requests, in a session of its own: Ctrl-C in a terminal does not reach it."""
    folders[0].parent.mkdir(exist_ok=True)
    with (folders[0].parent / LOG).open("ab") as messages:
        process = subprocess.Popen(
            child.lasting_command("pfl_ops.courier.track", niceness, *map(str, folders)),
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=messages,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
    threading.Thread(target=process.wait, name="pfl-ops courier", daemon=True).start()  # no zombie stays
    return process


def read(folder: Path) -> Request:
    """Return a request.

    Raises:
        PflOpsError: it is not as this user wrote it.
    """
    try:
        text = (folder / REQUEST).read_text()
        signature = (folder / SIGNATURE).read_text()
        if not hmac.compare_digest(signature.encode(), _signature(text).encode()):
            raise ValueError("another user or machine made it, or it was changed; the run's own command makes it anew")
        return Request(**json.loads(text))
    except (OSError, ValueError, TypeError) as error:
        raise PflOpsError(f"the request {folder} can't be read ({error})") from error


def _signature(text: str) -> str:
    """Return the signature of a text, by a key that only this user can read; it is made with the first request."""
    file = cache_folder() / KEY
    try:
        key = file.read_bytes()
    except FileNotFoundError:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(file.with_suffix(".lock")):
            if not file.exists():
                with replacing(file) as draft:
                    draft.touch(mode=0o600)
                    draft.write_bytes(secrets.token_bytes(32))
            key = file.read_bytes()
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def copies(folder: Path, request: Request) -> list[tuple[Path, Path]]:
    """Return the files of a request and where, in its folder, their copies are."""
    return [(Path(file), folder / FILES / f"{n}-{Path(file).name}") for n, file in enumerate(request.files)]


def read_end(folder: Path) -> RunEnd:
    """Return how a run ended that no process simulates any more; without a word of its process it was killed."""
    try:
        return RunEnd(**json.loads((folder / END).read_text()))
    except (OSError, ValueError, TypeError):
        return RunEnd("KILLED")


def begun(folder: Path) -> int:
    """Return when the run of a request was begun, ms since the epoch."""
    return int(folder.name.partition("-")[0]) // 1_000_000


def pending(home: WorkFolder, digest: str = "") -> list[Path]:
    """Return the requests of runs that are over, oldest first.

    Args:
        digest: of one experiment; "": of all.
    """
    if not home.requests.is_dir():
        return []
    named = (folder for folder in sorted(home.requests.iterdir()) if not folder.name.startswith("."))
    mine = (folder for folder in named if not digest or folder.name.split("-")[1:2] == [digest[:12]])
    return [folder for folder in mine if (folder / REQUEST).exists() and not is_locked(folder / OWNER)]


def remove(folder: Path) -> None:
    """Remove a request; at no moment is it there in part."""
    gone = folder.with_name(f".{folder.name}-{uuid.uuid4().hex[:8]}")
    with suppress(OSError):
        folder.rename(gone)
        shutil.rmtree(gone)


def is_locked(file: Path) -> bool:
    """True if a process holds that lock.

    A look is a shared lock, so that two looks at once do not take each other for the holder. It is free again at once:
    who takes the lock waits for a moment.
    """
    try:
        with file.open("rb") as look:
            fcntl.flock(look, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # there is no such file
        return False
    return False


def settle(home: WorkFolder, digest: str = "", patience: float = PATIENCE_SECONDS) -> None:
    """Wait until the runs that are over are tracked; what no courier tracks, a new one does.

    Args:
        digest: only of this experiment, which goes on now: killed runs are left to `drop_killed`. "": of all.
        patience: seconds without an end of any.
    """
    waiting = [folder for folder in pending(home, digest) if not (digest and _is_killed(folder))]
    if not waiting:
        return
    left = [folder for folder in waiting if not is_locked(folder / LOCK)]
    started = start(left) if left else None
    last, queued = time.monotonic(), pending(home)  # those of other experiments may have their turn before
    slow = set(queued)
    while waiting:
        slow -= {folder for folder in slow if _hurried(folder)}
        still = [folder for folder in queued if folder.exists()]
        if len(still) < len(queued):
            last = time.monotonic()
        queued, waiting = still, [folder for folder in waiting if folder.exists()]
        ended = started is None or started.poll() is not None
        if (ended and not any(is_locked(f / LOCK) for f in waiting)) or time.monotonic() - last > patience:
            break
        time.sleep(LOOK_EVERY_SECONDS)
    going_on = started is not None and started.poll() is None
    for folder in pending(home, digest):
        if is_locked(folder / LOCK) or (going_on and folder in left):
            log.warning(_lacking(folder, "another process still tracks it"))
    for line in problems(home, digest, silent=not going_on):
        log.warning(line)


def _hurried(folder: Path) -> bool:
    """Give the courier that tracks a request the priority of this process, which waits for it; False: none is known.

    On a machine whose cores are all in use one of low priority took longer than `PATIENCE_SECONDS`. The number of one
    that was killed may be another process's by now: it counts only while the lock is held.
    """
    if not is_locked(folder / LOCK):
        return False
    with suppress(OSError, ValueError):
        child.restore_priority(int((folder / PROCESS).read_text()))
        return True
    return False


def drop_killed(home: WorkFolder, digest: str) -> None:
    """Remove the requests of killed runs of an experiment that goes on: its rounds are tracked with the others."""
    for folder in pending(home, digest):
        if _is_killed(folder):
            remove(folder)


def _is_killed(folder: Path) -> bool:
    """True if the run was killed, and no courier is at work."""
    return not (folder / END).exists() and not is_locked(folder / LOCK)


def problems(home: WorkFolder, digest: str = "", silent: bool = False) -> list[str]:
    """Return a line for each request whose courier has failed.

    Args:
        digest: only of this experiment; "": of all. silent: also where the courier gave no reason.
    """
    found = []
    for folder in pending(home, digest):
        why = _last_line(folder / LOG) or (f"its courier ended early, see {home.requests / LOG}" if silent else "")
        if why and not is_locked(folder / LOCK):
            found.append(f"{_lacking(folder, why)}; the next command tries again (to give it up, remove {folder})")
    return found


def _lacking(folder: Path, why: str) -> str:
    """Say which run MLflow lacks, and why."""
    with suppress(PflOpsError):
        return f"run '{read(folder).name}' is not in MLflow yet: {why}"
    return why


def _last_line(file: Path) -> str:
    try:
        lines = file.read_text(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1][:300] if lines else ""


def _release(lock: FileLock) -> None:
    """Let go of a lock and leave its file, which may be gone with its folder."""
    with suppress(OSError):
        lock.release()
