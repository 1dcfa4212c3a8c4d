"""Folders of spools: their files by name, their header, and what happens to a folder as a whole."""

import logging
import os
import shutil
import stat
from pathlib import Path

from filelock import FileLock

from pfl_ops.files import sync
from pfl_ops.tracking.spools import staged
from pfl_ops.tracking.spools.journal import DamagedJournal, Header, decode_header, key

log = logging.getLogger("pfl_ops.tracking")

JOURNAL, SENT, REFUSED, LOCK, OWNER = "journal.jsonl", "sent", "refused.jsonl", "lock", "owner"
DELIVERED = "delivered"  # the journal, renamed, while the folder is removed
ASIDE = "damaged-"  # prefix of folders that were set aside


def read_header(folder: Path) -> Header | None:
    """The header of a spool folder; None if there is no journal, or a kill has left its header unfinished.

    Raises:
        DamagedJournal: the header is not as it was written, or is another run's.
        OSError: the disk or its permissions.
    """
    try:
        with (folder / JOURNAL).open("rb") as file:
            line = file.readline()
    except FileNotFoundError:
        return None
    if not line.endswith(b"\n"):
        if line.strip(b"\0") and not _is_beginning(line):
            raise DamagedJournal("the header is not as it was written")
        if (folder / SENT).exists() or staged.are_there(folder):
            raise DamagedJournal("the header is cut off")  # lines after it were written once
        return None
    try:
        header = decode_header(line)
        found = key(header)
    except (ValueError, RecursionError) as error:
        raise DamagedJournal("the header is not valid") from error
    if found != folder.name:
        raise DamagedJournal("the header is another run's")
    return header


def set_aside(folder: Path, reason: str) -> Path:
    """Rename a spool folder that can't be read, and say so in one line.

    Raises:
        OSError: the folder can't be renamed.
    """
    number = 1
    while os.path.lexists(place := folder.with_name(f"{ASIDE}{folder.name}-{number}")):
        number += 1
    folder.rename(place)
    sync(place.parent)
    log.warning(
        f"the outbox of a run is damaged ({reason}) and was set aside as {place}; repeat the run's command: "
        "it sends what MLflow does not have from the checkpoints"
    )
    return place


def remove(folder: Path) -> None:
    """Remove a spool that is delivered; what was refused stays.

    The journal is renamed first: a kill in the middle leaves a folder that says that nothing of it is to be sent.
    """
    if (folder / JOURNAL).exists():
        (folder / JOURNAL).replace(folder / DELIVERED)
        sync(folder)
    (folder / SENT).unlink(missing_ok=True)
    shutil.rmtree(folder / staged.FILES, ignore_errors=True)
    if staged.are_there(folder):  # too few file handles, say: the next start removes them
        return
    (folder / DELIVERED).unlink(missing_ok=True)
    if not (folder / REFUSED).exists():
        shutil.rmtree(folder, ignore_errors=True)


def roots_lock(root: Path) -> FileLock:
    """Lock for making or removing a folder: no other process then locks a file in a folder that vanishes."""
    return FileLock(root / ".lock", timeout=60)


def is_plain(folder: Path) -> bool:
    """True if a spool folder and its own files are what they should be, not links, pipes or devices."""
    return (
        not folder.is_symlink()
        and all(is_regular(folder / name) for name in (JOURNAL, SENT, REFUSED, LOCK, OWNER))
        and not any((folder / name).is_symlink() for name in (staged.FILES, "refused"))
        and all((folder / name).is_dir() for name in (staged.FILES, "refused") if (folder / name).exists())
    )


def is_regular(path: Path) -> bool:
    """True for a plain file, and for a path where nothing is."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:
        return True


def _is_beginning(line: bytes) -> bool:
    """True if the bytes may be the beginning of a header."""
    head, _, rest = line.rstrip(b"\0").partition(b" ")
    return len(head) <= 16 and all(c in b"0123456789abcdef" for c in head) and b"0 {".startswith(rest[:3])
