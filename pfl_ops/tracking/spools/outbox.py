"""The outbox of a work folder: the spools that earlier processes left, and the re-runs of a run."""

import contextlib
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from filelock import FileLock, Timeout

from pfl_ops.errors import PflOpsError
from pfl_ops.tracking.home import WorkFolder
from pfl_ops.tracking.spools import spool_folder, staged
from pfl_ops.tracking.spools.journal import DamagedJournal, Header, identity_key, key
from pfl_ops.tracking.spools.spool import RunLocked, Spool

log = logging.getLogger("pfl_ops.tracking")

KEY = re.compile("[0-9a-f]{24}")  # names of spool folders


def adopt(root: Path, target: str, known: Collection[str]) -> Iterator[Spool]:
    """Take over the spools of processes that are gone; a run without an end was killed.

    Nothing here raises: a spool that can't be used is named in one line of the log, and the next one is tried.

    Args:
        root: the folder of all spools.
        target: label of the target whose spools are wanted.
        known: names of folders that this process has open.
    """
    for folder in sorted(root.iterdir()):
        if folder.name in known or folder.name.startswith((".", spool_folder.ASIDE)):
            continue
        try:
            spool = _adopted(root, folder, target)
        except RunLocked:
            continue
        except (PflOpsError, OSError) as error:
            log.warning("the records in %s can't be sent (%s)", folder, error)
            continue
        if spool is not None:
            yield spool


def _adopted(root: Path, folder: Path, target: str) -> Spool | None:
    if not folder.is_symlink() and not folder.is_dir():
        return None
    reason = "" if spool_folder.is_plain(folder) else "it, or a file in it, is a symbolic link or of another kind"
    try:
        header = None if reason else spool_folder.read_header(folder)
    except DamagedJournal as damage:
        header, reason = None, str(damage)
    if header is None:
        with spool_folder.roots_lock(root):
            _clear_away(folder, reason)
        return None
    if header["target"] != target:
        return None
    modified = (folder / spool_folder.JOURNAL).stat().st_mtime
    spool = Spool(root, header)
    if spool.last_op != "finish":
        try:
            spool.append({"op": "finish", "status": "KILLED", "time": int(modified * 1000)})
        except PflOpsError:
            spool.release()
            raise
    spool.closed = True
    return spool


def _clear_away(folder: Path, reason: str) -> None:
    """Set a spool that can't be used aside, or remove it if there is nothing in it to send.

    Args:
        reason: why it can't be used; "": it has no header.
    """
    if not reason and ((folder / spool_folder.JOURNAL).exists() or not KEY.fullmatch(folder.name)):
        return
    with unused(folder):
        if not reason and staged.are_there(folder) and not (folder / spool_folder.DELIVERED).exists():
            reason = "its journal is missing"
        if reason:
            spool_folder.set_aside(folder, reason)
        else:
            spool_folder.remove(folder)  # a kill stopped `release`, or the making of the folder


def left_behind(root: Path, target: str) -> str:
    """Return one line on records for the database of another work folder; "": there are none.

    This folder was moved or copied before they were delivered: no command uses that address here.

    Args:
        root: the folder of all spools. target: label of the target in use.
    """
    own = WorkFolder(root.parent).database
    found: dict[Path, str] = {}
    for folder, header in _readable(root):
        place = str(header["target"])
        elsewhere = place.startswith("sqlite:///") and place not in (target, f"sqlite:///{own}")
        if elsewhere and place.endswith(f"/{own.name}"):
            with contextlib.suppress(OSError, PflOpsError), unused(folder):
                found[folder] = place
    if not found:
        return ""
    runs = f"a run wait in {next(iter(found))}" if len(found) == 1 else f"{len(found)} runs wait in {root}"
    return (
        f"records of {runs} for {', '.join(sorted(set(found.values())))}: was this work folder moved or copied? Repeat "
        f"the commands of these runs, which record them here, and delete {'it' if len(found) == 1 else 'the folders'}"
    )


def newest(root: Path, header: Header) -> Header | None:
    """Return the header of the newest spool of a run or its re-runs; None if there is none on disk."""
    return max(_same_run(root, header), key=lambda other: int(other["start"]), default=None)


def check_idle(root: Path, header: Header, known: Mapping[str, Spool]) -> None:
    """Check that neither a run nor a re-run of it is being recorded.

    Args:
        known: spools that this process has open.
    Raises:
        RunLocked: one is.
    """
    for other in _same_run(root, header):
        spool = known.get(key(other))
        if spool is None:
            with unused(root / key(other)):
                pass
        elif not spool.closed:
            raise RunLocked(f"run '{other['name']}' is being recorded; finish it before it is computed anew")


def _same_run(root: Path, header: Header) -> Iterator[Header]:
    return (other for _, other in _readable(root) if identity_key(other) == identity_key(header))


def _readable(root: Path) -> Iterator[tuple[Path, Header]]:
    """Spool folders, each with its header; those whose header can't be read are left out."""
    for folder in sorted(root.iterdir()) if root.is_dir() else ():
        with contextlib.suppress(DamagedJournal, OSError):
            is_spool = KEY.fullmatch(folder.name) and folder.is_dir() and spool_folder.is_plain(folder)
            if is_spool and (header := spool_folder.read_header(folder)):
                yield folder, header


@contextlib.contextmanager
def unused(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder that no process uses.

    Raises:
        RunLocked: another process has it.
    """
    lock = FileLock(folder / spool_folder.LOCK, timeout=0, thread_local=False)
    if folder.is_symlink() or not spool_folder.is_regular(folder / spool_folder.LOCK):
        yield
        return
    try:
        lock.acquire()
    except Timeout:
        raise RunLocked(f"the run in {folder} is being recorded by another process; wait for it or stop it") from None
    try:
        yield
    finally:
        lock.release()
