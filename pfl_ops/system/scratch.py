"""Temporary folders that do not stay: removed at their end, or by a later process where their own was killed."""

import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

PREFIX = "pfl-ops-"
OWNER = ".owner"
"""Name of the file in each folder that the owner holds locked; the system unlocks it when the owner dies."""


@contextlib.contextmanager
def scratch(parent: Path | str | None = None) -> Iterator[Path]:
    """Yield a new temporary folder that only this user can enter; remove it at the end.

    Folders of this kind that killed processes left in the same place are removed first.

    Args:
        parent: where to make it; none: the system's temporary folder.
    Raises:
        OSError: the folder can't be made there.
    """
    where = Path(parent or tempfile.gettempdir())
    sweep(where)
    folder, lock = _make(where)
    try:
        yield folder
    finally:
        _remove(folder)
        lock.release()


def sweep(parent: Path) -> None:
    """Remove the temporary folders in `parent` whose owner is dead and which no process names on its command line.

    Touched are only real folders of this user, closed to all others, with a file that `scratch` makes. Links are not
    followed. A folder that can't be removed stays, without an error: the next sweep tries again.
    """
    with contextlib.suppress(OSError):
        for entry in list(os.scandir(parent)):
            if entry.name.startswith(PREFIX) and _private(entry.path) and os.path.lexists(Path(entry.path, OWNER)):
                _remove_stale(Path(entry.path))


def _make(parent: Path) -> tuple[Path, FileLock]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = FileLock(folder / OWNER)
        with contextlib.suppress(OSError):
            lock.acquire()
            if (folder / OWNER).exists():
                return folder, lock
        if parent.is_dir() and not folder.exists():
            continue  # another process swept the folder before it was locked
        raise OSError(f"cannot lock {folder / OWNER}")


def _private(path: str) -> bool:
    """True if the path is a folder, not a link, that belongs to this user and is closed to all others."""
    found = os.lstat(path)
    return stat.S_ISDIR(found.st_mode) and stat.S_IMODE(found.st_mode) == 0o700 and found.st_uid == os.geteuid()


def _remove_stale(folder: Path) -> None:
    lock = FileLock(folder / OWNER)
    try:
        lock.acquire(blocking=False)
    except (Timeout, OSError):
        return
    try:
        if not _named_by_a_process(folder):
            _remove(folder)
    finally:
        lock.release()


def _remove(folder: Path) -> None:
    """Remove a folder, its owner's file last: a folder without one is never swept."""
    for entry in list(os.scandir(folder)):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path, ignore_errors=True)
        elif entry.name != OWNER:
            with contextlib.suppress(OSError):
                os.unlink(entry.path)
    shutil.rmtree(folder, ignore_errors=True)


def _named_by_a_process(folder: Path) -> bool:
    """True if the command line of a process holds the folder's name: a helper of Ray may outlive its driver."""
    import psutil

    return any(
        folder.name in argument
        for process in psutil.process_iter(["cmdline"])
        for argument in process.info["cmdline"] or ()
    )
