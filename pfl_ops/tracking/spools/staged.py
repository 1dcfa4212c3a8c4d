"""Staged files: what an entry sends lies in `files/<number>/<name>` of its spool, synced and with its digest.

An entry names its file by that path. Any other path is refused, and so is a symbolic link anywhere below `files/`:
nothing outside the spool is read or removed, whatever a journal says.
"""

import hashlib
import os
import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pfl_ops.files import file_digest, sync
from pfl_ops.tracking.spools.journal import DamagedJournal, JournalEntry

FILES = "files"
SLOT = re.compile(r"[0-9]{6,18}")


def new_slot(folder: Path) -> Path:
    """Make the next numbered folder below `files/`.

    Args:
        folder: of the spool.
    """
    files = folder / FILES
    if not files.is_dir():
        files.mkdir()
        sync(folder)
    number = 1 + max((int(f.name) for f in files.iterdir() if SLOT.fullmatch(f.name)), default=0)
    slot = files / f"{number:06d}"
    slot.mkdir()
    return slot


def locate(folder: Path, file: Any) -> Path:
    """Return the path that an entry's `file` names; it need not exist.

    Raises:
        DamagedJournal: it is not `files/<number>/<name>`, or a symbolic link leads to it.
    """
    parts = file.split("/") if isinstance(file, str) else []
    if len(parts) != 3 or parts[0] != FILES or not SLOT.fullmatch(parts[1]) or parts[2] in ("", ".", ".."):
        raise DamagedJournal(f"the file {str(file)[:100]!r} is not in the outbox")
    if "\0" in file or any((folder / FILES / part).is_symlink() for part in ("", parts[1])):
        raise DamagedJournal(f"the file {file[:100]!r} is not in the outbox")
    return folder.joinpath(*parts)


def find(folder: Path, entry: JournalEntry) -> Path | None:
    """Return the staged file or folder of an entry; None if it is missing.

    Raises:
        DamagedJournal: it is not inside the spool, has a symbolic link in it, or differs from what was staged.
    """
    path = locate(folder, entry.get("file"))
    if not os.path.lexists(path):
        return None
    size, found = fingerprint(path)
    if entry.get("digest") is not None and (size, found) != (entry.get("size"), entry["digest"]):
        raise DamagedJournal(f"the staged file {path.name!r} is not as it was written")
    return path


def seal(path: Path) -> dict[str, Any]:
    """Sync a staged file or folder; return its `size` [bytes] and `digest` for the entry."""
    for file in _files(path):
        sync(file)
    below = [p for p in path.rglob("*") if p.is_dir()] if path.is_dir() else []
    for folder in [*below, *([path] if path.is_dir() else []), path.parent, path.parent.parent]:
        sync(folder)
    size, found = fingerprint(path)
    return {"size": size, "digest": found}


def fingerprint(path: Path) -> tuple[int, str]:
    """Return size [bytes] and SHA-256 of a file, or of a folder's files and their names.

    Raises:
        DamagedJournal: there is a symbolic link, a pipe or a device in it.
    """
    if not path.is_dir() or path.is_symlink():
        (path,) = _files(path)
        return path.stat().st_size, file_digest(path)
    size, whole = 0, hashlib.sha256()
    for file in sorted(_files(path)):
        size += file.stat().st_size
        whole.update(f"{file.relative_to(path).as_posix()}\0{file_digest(file)}\0".encode(errors="surrogateescape"))
    return size, whole.hexdigest()


def remove(folder: Path, file: Any) -> None:
    """Remove an entry's staged file with its slot; a path outside the spool is left alone."""
    try:
        slot = locate(folder, file).parent
    except DamagedJournal:
        return
    shutil.rmtree(slot, ignore_errors=True)


def are_there(folder: Path) -> bool:
    """True if a spool has staged files."""
    files = folder / FILES
    return files.is_dir() and not files.is_symlink() and any(files.iterdir())


def sweep(folder: Path, wanted: set[str]) -> None:
    """Remove slots that no entry names: left by a kill between staging and journal, or after delivery.

    Args:
        folder: of the spool.
        wanted: the `file` of each entry that is yet to be delivered.
    """
    if not are_there(folder):
        return
    kept = {"/".join(file.split("/")[:2]) for file in wanted}
    for slot in list((folder / FILES).iterdir()):
        if SLOT.fullmatch(slot.name) and f"{FILES}/{slot.name}" not in kept and not slot.is_symlink():
            shutil.rmtree(slot, ignore_errors=True)


def check_destination(folder: str) -> str:
    """Return a folder of a run's artifacts.

    Raises:
        DamagedJournal: it leads out of them.
    """
    if folder.startswith("/") or "\\" in folder or "\0" in folder or ".." in folder.split("/"):
        raise DamagedJournal(f"the destination {folder[:100]!r} is not a folder among a run's artifacts")
    return folder


def _files(path: Path) -> Iterator[Path]:
    """All files of a path.

    Raises:
        DamagedJournal: there is a symbolic link, a pipe or a device.
    """
    mode = path.lstat().st_mode
    if stat.S_ISREG(mode):
        yield path
    elif stat.S_ISDIR(mode):
        for below in path.iterdir():
            yield from _files(below)
    else:
        raise DamagedJournal(f"the staged file {path.name!r} is a symbolic link or no plain file")
