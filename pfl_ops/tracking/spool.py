"""The spool: what MLflow is to hold of a run, in order, on disk until it has been sent.

A run has one folder here. Everything it logs is first a line of `journal.jsonl`, and the delivery reads the journal, so
a server that is down, or a process that dies, delays a line and never loses it. Lines may be sent twice; MLflow keeps
them once (`sender` says how).

    journal.jsonl   a header, then one entry a line, appended and fsynced
    sent            how many bytes of it have been delivered
    files/          files to send, copied when logged, removed when delivered
    refused.jsonl   entries that MLflow will never take, with its reason
    lock            held while a process records the run
"""

import contextlib
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from pfl_ops.errors import PflOpsError

Header = dict[str, Any]
"""target, experiment, name, identity, parent (its header, or None), start [ms]."""

Entry = dict[str, Any]
"""`op` and what it needs."""


class Busy(PflOpsError):
    """Another process records the same run."""


def key(header: Header) -> str:
    """The name of a run's folder: the same run in the same place has the same one."""
    parent = key(header["parent"]) if header["parent"] else ""
    text = "\x1f".join([header["target"], header["experiment"], header["identity"], parent])
    return hashlib.sha256(text.encode()).hexdigest()[:24]


class Spool:
    """One run's folder, locked by this process. See the module for its files.

    Args:
        root: the folder of all spools.
        header: whose run it is; a folder that exists already keeps the header that it has.
    Raises:
        Busy: another process records the run.
    """

    def __init__(self, root: Path, header: Header) -> None:
        self.root = root
        self.folder = root / key(header)
        self.closed = False  # nothing more will be written
        self._mutex = threading.Lock()
        with self._roots_lock():
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = FileLock(self.folder / "lock", timeout=0, thread_local=False)
            try:
                self._lock.acquire()
            except Timeout:
                raise Busy(
                    f"run '{header['name']}' is being recorded by another process ({_owner(self.folder)}) "
                    f"in {root.parent}; wait for it or stop it"
                ) from None
            (self.folder / "owner").write_text(str(os.getpid()))
        self._journal = (self.folder / "journal.jsonl").open("ab", buffering=0)
        if self._mend() == 0:
            self._write(header)
        found = read_header(self.folder)
        assert found is not None
        self.header: Header = found
        self._sent = max(self._read_sent(), self._header_bytes())

    def _roots_lock(self) -> FileLock:
        """Held while a folder is made or removed, so that nobody locks a file in a folder that vanishes."""
        return FileLock(self.root / ".lock", timeout=60)

    def _mend(self) -> int:
        """Cut off a last line that a kill left unfinished; returns the bytes that stay."""
        data = (self.folder / "journal.jsonl").read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            self._journal.truncate(whole)
        return whole

    def _read_sent(self) -> int:
        try:
            return int((self.folder / "sent").read_text())
        except (OSError, ValueError):
            return 0

    def _header_bytes(self) -> int:
        with (self.folder / "journal.jsonl").open("rb") as file:
            return len(file.readline())

    def _write(self, entry: Entry) -> None:
        data = json.dumps(entry).encode() + b"\n"
        start = self._journal.seek(0, os.SEEK_END)
        try:
            while data:
                data = data[self._journal.write(data) :]
            os.fsync(self._journal.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self._journal.truncate(start)
            raise PflOpsError(f"can't write {self.folder}: {error.strerror}") from error

    def append(self, entry: Entry) -> None:
        """Add an entry; it is on disk when this returns."""
        with self._mutex:
            self._write(entry)

    def stage(self, name: str) -> Path:
        """A path of that name in a new folder of `files/`: put the file or folder there, then append its entry."""
        with self._mutex:
            files = self.folder / "files"
            files.mkdir(exist_ok=True)
            number = 1 + max((int(f.name) for f in files.iterdir()), default=0)
            slot = files / f"{number:06d}"
            slot.mkdir()
        return slot / name

    def relative(self, path: Path) -> str:
        """A staged path as an entry's `file`."""
        return path.relative_to(self.folder).as_posix()

    @property
    def pending(self) -> bool:
        """Whether something is yet to be delivered."""
        return (self.folder / "journal.jsonl").stat().st_size > self._sent

    def entries(self) -> Iterator[tuple[int, Entry]]:
        """What is yet to be delivered: (bytes of the journal up to the entry's end, the entry)."""
        with (self.folder / "journal.jsonl").open("rb") as file:
            file.seek(self._sent)
            while (line := file.readline()).endswith(b"\n"):
                try:
                    entry = json.loads(line)
                except ValueError:  # a disk's mistake; the delivery puts it away as refused
                    entry = {"op": "damaged", "line": line.decode(errors="replace")}
                yield file.tell(), entry

    def last(self) -> Entry:
        """The journal's last line."""
        return json.loads((self.folder / "journal.jsonl").read_bytes().splitlines()[-1])

    def done(self, end: int, entry: Entry) -> None:
        """An entry has been delivered; its file is removed."""
        if "file" in entry:
            shutil.rmtree((self.folder / entry["file"]).parent, ignore_errors=True)
        self._sent = end
        (self.folder / "sent").write_text(str(end))

    def refuse(self, entry: Entry, reason: str) -> None:
        """Keep an entry that MLflow will never take, with its file."""
        if "file" in entry:
            kept = self.folder / "refused" / entry["file"]
            kept.parent.mkdir(parents=True, exist_ok=True)
            if (self.folder / entry["file"]).exists():
                (self.folder / entry["file"]).replace(kept)
        with (self.folder / "refused.jsonl").open("a") as file:
            file.write(json.dumps({**entry, "reason": reason}) + "\n")

    def release(self) -> None:
        """Let go of the run; if all has been delivered, its folder goes too (or keeps only what was refused)."""
        with self._roots_lock(), self._mutex:
            finished = self.closed and not self.pending
            self._journal.close()
            if finished and not (self.folder / "refused.jsonl").exists():
                shutil.rmtree(self.folder, ignore_errors=True)
            elif finished:
                for name in ("journal.jsonl", "sent"):
                    (self.folder / name).unlink(missing_ok=True)
            self._lock.release()


def read_header(folder: Path) -> Header | None:
    """The header of a spool folder; None if there is no whole one."""
    try:
        with (folder / "journal.jsonl").open("rb") as file:
            line = file.readline()
        return json.loads(line) if line.endswith(b"\n") else None
    except (OSError, ValueError):
        return None


def _owner(folder: Path) -> str:
    try:
        return f"pid {(folder / 'owner').read_text()}"
    except OSError:
        return "pid unknown"
