"""The spool, or outbox: what MLflow is to hold of a run, in order, on disk until it has been sent.

A run has one folder here. Everything it logs is first a line of `journal.jsonl`, and the delivery reads the journal, so
a server that is down, or a process that dies, delays a line and never loses it. Lines may be sent twice; MLflow keeps
them once (`sender` says how).

    journal.jsonl   a header, then one entry a line, appended and fsynced (`journal` has the format)
    sent            how many bytes of it have been delivered, and a digest that ties this number to the journal
    files/          files to send, copied and fsynced before their line, removed when delivered (`staged`)
    refused.jsonl   what is not delivered: entries that MLflow refuses, and damaged lines, with the reason
    refused/        the files of these entries
    lock, owner     held while a process records the run; its process id, for messages

Damage. A last line without line end is what a kill leaves of an append that was never acknowledged: it is cut off.
If the header can't be read, the run of these records is unknown: the folder is renamed to `damaged-<key>-<n>`, with
one line in the log. A damaged line after the header goes to `refused.jsonl`, and the lines after it are delivered: each
entry stands alone (metrics carry round and time, tags and status are written again by later lines, params and files
have names), so a missing entry leaves a gap and never makes a later one wrong. The gap is shown: the run gets the tag
`pfl_ops.missing_records`, and a status FINISHED is sent as FAILED, so that no comparison takes the run for a whole one.
The same command then opens the run again, sends all records from its checkpoints, and the tag goes.

A wrong `sent` only causes lines to be sent again. It is written at most once a second, and not at all when everything
is delivered, for then the journal is renamed to `delivered` and the folder removed. A kill in between leaves a folder
without a journal; the next process removes it.
"""

import contextlib
import json
import os
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from pfl_ops.errors import PflOpsError, count
from pfl_ops.files import ends_whole, sync, write_whole
from pfl_ops.tracking.spools import spool_folder, staged
from pfl_ops.tracking.spools.journal import DamagedJournal, Header, JournalEntry, decode, digest, encode, key

AFTER = "after "  # marks the place of lines that are missing


class RunLocked(PflOpsError):
    """Another process records the same run."""


@dataclass(frozen=True)
class Damage:
    """A journal line that can't be delivered.

    Attributes:
        line: its text, as far as it can be read. reason: one line.
    """

    line: str
    reason: str


@dataclass(frozen=True)
class Repetition:
    """A journal line that was there before."""


class Spool:
    """One run's folder, locked by this process. See the module for its files.

    Args:
        root: the folder of all spools.
        header: whose run it is; a folder that exists already keeps the header that it has.
    Attributes:
        last_op: `op` of the last intact line that is no repetition; None after the header alone.
    Raises:
        RunLocked: another process records the run.
        PflOpsError: the folder can't be written.
    """

    def __init__(self, root: Path, header: Header) -> None:
        self.root = root
        self.folder = root / key(header)
        self.closed = False  # nothing more will be written
        self._mutex = threading.Lock()
        try:
            with spool_folder.roots_lock(root):
                try:
                    self._open(header)
                except DamagedJournal as damage:
                    spool_folder.set_aside(self.folder, str(damage))
                    self._open(header)
        except OSError as error:
            raise _cannot_write(self.folder, error) from error

    # -- opening --------------------------------------------------------------------------------------------------

    def _acquire(self, header: Header) -> FileLock:
        if self.folder.is_symlink() or (self.folder.exists() and not self.folder.is_dir()):
            spool_folder.set_aside(self.folder, "it is no folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        if not spool_folder.is_plain(self.folder):
            spool_folder.set_aside(self.folder, "a file in it is a symbolic link or of another kind")
            self.folder.mkdir()
        lock = FileLock(self.folder / spool_folder.LOCK, timeout=0, thread_local=False)
        try:
            lock.acquire()
        except Timeout:
            raise RunLocked(
                f"run '{header['name']}' is being recorded by another process ({_owner(self.folder)}) "
                f"in {self.root.parent}; wait for it or stop it"
            ) from None
        return lock

    def _open(self, header: Header) -> None:
        self._lock = self._acquire(header)
        try:
            (self.folder / spool_folder.OWNER).write_text(str(os.getpid()))
            found = spool_folder.read_header(self.folder)
            self._journal = (self.folder / spool_folder.JOURNAL).open("ab", buffering=0)
            try:
                self._read(found or self._begin(header))
            except BaseException:
                self._journal.close()
                raise
        except BaseException:
            self._lock.release()
            raise

    def _begin(self, header: Header) -> Header:
        """Write the header of a new journal."""
        (self.folder / spool_folder.DELIVERED).unlink(missing_ok=True)
        self._journal.truncate(0)
        self._size = self._number = 0
        self._torn = False
        self._write(header)
        sync(self.folder)
        sync(self.root)
        return header

    def _read(self, header: Header) -> None:
        self.header = header
        self._torn = False
        lines = self._read_lines()
        self._first = lines[0]
        self._sent = self._read_sent(lines)
        self._marks: dict[int, str] = {}  # end of a line -> what `sent` says of it
        self._saved = time.monotonic()
        self._delivered: list[Any] = []  # `file` of entries whose files are still there
        self._read_refused()
        self._opened = 0  # end of the last delivered line that opens the run: what follows is one recording of it
        self._number = 1
        self.last_op: str | None = None
        end = len(self._first)
        for line in lines[1:]:
            end += len(line)
            with contextlib.suppress(DamagedJournal):
                number, entry = decode(line)
                if number >= self._number:  # else it is a repetition
                    self._number, self.last_op = number + 1, str(entry.get("op"))
                if entry.get("op") == "open" and end <= self._sent and str(end) not in self._refused:
                    self._opened = end
        if (self.folder / staged.FILES).exists():
            pending = [entry for _, entry in self.entries()]
            if not any(isinstance(entry, Damage) for entry in pending):
                names = {entry.get("file") for entry in pending if isinstance(entry, dict)}
                staged.sweep(self.folder, {name for name in names if isinstance(name, str)})

    def _read_lines(self) -> list[bytes]:
        """All whole lines; an unfinished last one is cut off."""
        data = (self.folder / spool_folder.JOURNAL).read_bytes()
        self._size = data.rfind(b"\n") + 1
        if self._size < len(data):
            self._journal.truncate(self._size)
        return _split(data)

    def _read_sent(self, lines: list[bytes]) -> int:
        """The end of the last line that is known to be delivered; the header's end if that is not known."""
        start = len(self._first)
        try:
            text, _, mark = (self.folder / spool_folder.SENT).read_text().partition(" ")
            number = int(text) if len(text) <= 18 else -1
        except (OSError, ValueError):
            return start
        end, last = start, self._first
        for line in lines[1:]:
            if end + len(line) > number:
                break
            end, last = end + len(line), line
        return end if end == number and mark == digest(self._first + last) else start

    def _read_refused(self) -> None:
        """Count what this journal has lost already."""
        self._refused: dict[str, tuple[int, bool]] = {}  # place -> end, damaged
        with contextlib.suppress(OSError):
            for line in _split((self.folder / spool_folder.REFUSED).read_bytes()):
                with contextlib.suppress(ValueError, RecursionError):
                    found = json.loads(line)
                    if isinstance(found, dict) and found.get("journal") == self.header["start"]:
                        place = str(found.get("at"))
                        if re.fullmatch(r"(after )?[0-9]{1,18}", place):
                            end = int(place.removeprefix(AFTER)) + place.startswith(AFTER)
                            self._refused[place] = end, bool(found.get("damaged"))

    # -- writing --------------------------------------------------------------------------------------------------

    def _write(self, content: Header | JournalEntry) -> None:
        data = encode(self._number, content)
        start = self._journal.seek(0, os.SEEK_END)
        try:
            if self._torn:
                start = self._journal.truncate(self._size)
                self._torn = False
            while data:
                data = data[self._journal.write(data) :]
            os.fsync(self._journal.fileno())
        except OSError as error:
            self._torn = True  # cut off now, or else before the next line
            with contextlib.suppress(OSError):
                self._journal.truncate(start)
                self._torn = False
            raise _cannot_write(self.folder, error) from error
        self._number += 1
        self._size = self._journal.seek(0, os.SEEK_END)

    def append(self, entry: JournalEntry) -> None:
        """Add an entry; it is on disk when this returns."""
        with self._mutex:
            self._write(entry)
            self.last_op = str(entry.get("op"))

    def stage(self, name: str) -> Path:
        """A path of that name in a new folder of `files/`: put the file or folder there, then append its entry."""
        with self._mutex:
            return staged.new_slot(self.folder) / name

    def seal(self, path: Path) -> dict[str, Any]:
        """Sync a staged file or folder; return `file`, `size` and `digest` for its entry."""
        return {"file": path.relative_to(self.folder).as_posix(), **staged.seal(path)}

    # -- delivering -----------------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """True if something is yet to be delivered."""
        return self._size > self._sent

    def entries(self) -> Iterator[tuple[int, JournalEntry | Damage | Repetition]]:
        """The entries that are yet to be delivered: (bytes of the journal up to the entry's end, the entry)."""
        with (self.folder / spool_folder.JOURNAL).open("rb") as file:
            last = self._last_sent(file)
            while (line := file.readline()).endswith(b"\n"):
                end = file.tell()
                self._marks[end] = digest(self._first + line)
                try:
                    number, entry = decode(line)
                except DamagedJournal as damage:
                    last = None
                    yield end, Damage(line.decode(errors="backslashreplace").rstrip("\n"), str(damage))
                    continue
                if last is not None and number <= last:
                    yield end, Repetition()
                    continue
                if last is not None and number > last + 1:
                    missing = f"{count(number - last - 1, 'line', 'is')} missing from the journal"
                    yield end - len(line), Damage("", missing)
                last = number
                yield end, entry

    def _last_sent(self, file: BinaryIO) -> int | None:
        """Move to the first line that is not delivered; return the number of the line before, None if unknown."""
        number: int | None = 0
        file.readline()
        while file.tell() < self._sent:
            try:
                number = max(number or 0, decode(file.readline())[0])  # a line may be there twice
            except DamagedJournal:
                number = None
        return number

    def find_file(self, entry: JournalEntry) -> Path | None:
        """The staged file or folder of an entry; None if it is missing.

        Raises:
            DamagedJournal: its path leads out of the spool, or it is not as it was staged.
        """
        return staged.find(self.folder, entry)

    def done(self, end: int, entry: JournalEntry | Damage | Repetition) -> None:
        """An entry has been delivered; `save` puts this on disk."""
        self._sent = end
        if isinstance(entry, dict) and entry.get("op") == "open" and not self.is_refused(end, entry):
            self._opened = end
        if isinstance(entry, dict) and "file" in entry:
            self._delivered.append(entry["file"])

    def save(self, pause: float = 0.0) -> None:
        """Note on disk how much has been delivered, then remove the files that were.

        Args:
            pause: seconds since the last time before which nothing is done.
        """
        now = time.monotonic()
        if now - self._saved < pause:
            return
        self._saved = now
        if self._sent in self._marks:
            write_whole(self.folder / spool_folder.SENT, f"{self._sent} {self._marks[self._sent]}")
            self._marks = {end: mark for end, mark in self._marks.items() if end > self._sent}
        while self._delivered:
            staged.remove(self.folder, self._delivered.pop())

    @property
    def missing(self) -> int:
        """Number of entries since the run was last opened that can't be delivered, for any reason."""
        return sum(end > self._opened for end, _ in self._refused.values())

    @property
    def damaged(self) -> bool:
        """True if one of the `missing` entries was damaged on disk."""
        return any(damaged and end > self._opened for end, damaged in self._refused.values())

    def is_refused(self, end: int, entry: JournalEntry | Damage) -> bool:
        """True if the entry was put away before a kill that came before `save`."""
        return _place(end, entry) in self._refused

    def refuse(self, end: int, entry: JournalEntry | Damage, reason: str, *, damaged: bool) -> bool:
        """Keep an entry that can't be delivered, with its file; False if it has been kept before.

        Args:
            end: as `entries` gave it.
            reason: one line.
            damaged: the entry or its file is not as it was written; False: MLflow does not take it.
        """
        new = not self.is_refused(end, entry)
        if new:
            kept = {"line": entry.line} if isinstance(entry, Damage) else entry
            about = {"reason": reason, "damaged": damaged, "journal": self.header["start"], "at": _place(end, entry)}
            path = self.folder / spool_folder.REFUSED
            with path.open("ab") as file:
                file.write(b"" if ends_whole(path) else b"\n")
                file.write(json.dumps({**kept, **about}).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            sync(self.folder)
            place = _place(end, entry)
            self._refused[place] = end + place.startswith(AFTER), damaged
        self.put_away(entry)
        return new

    def put_away(self, entry: JournalEntry | Damage) -> None:
        """Move the file of a refused entry, if it has one that is not moved yet, to the refused ones."""
        if isinstance(entry, dict) and "file" in entry:
            with contextlib.suppress(DamagedJournal):
                source = staged.locate(self.folder, entry["file"])
                target = self.folder / "refused" / entry["file"]
                if os.path.lexists(source) and not os.path.lexists(target):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    source.rename(target)

    def release(self) -> None:
        """Let go of the run; if all has been delivered, its folder goes too (or keeps only what was refused)."""
        with spool_folder.roots_lock(self.root), self._mutex:
            self._journal.close()
            try:
                if self.closed and not self.pending:
                    spool_folder.remove(self.folder)
            finally:
                self._lock.release()


def _split(data: bytes) -> list[bytes]:
    """Lines with their ends; only \\n ends one."""
    return [line + b"\n" for line in data.split(b"\n")[:-1]] if data else []


def _place(end: int, entry: JournalEntry | Damage) -> str:
    """Name an entry of a journal by its end, and lines that are missing by the end of the line before them."""
    return f"{AFTER}{end}" if isinstance(entry, Damage) and not entry.line else str(end)


def _cannot_write(folder: Path, error: OSError) -> PflOpsError:
    return PflOpsError(f"can't write {folder}: {error.strerror or error}")


def _owner(folder: Path) -> str:
    """The process that records a run, for messages."""
    try:
        text = (folder / spool_folder.OWNER).read_text(errors="replace").strip()
    except OSError:
        text = ""
    return f"pid {text}" if text.isascii() and text.isdigit() else "pid unknown"
