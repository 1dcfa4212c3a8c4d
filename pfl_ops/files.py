"""Whole files on disk: written aside, synced, renamed. A kill or a full disk leaves the old file or the new one."""

import contextlib
import fcntl
import hashlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from pfl_ops.errors import PflOpsError

_copies: dict[Path, Path] = {}  # a file of the user's own -> the one that this process reads in its place
_KERNEL = Path("/proc")  # the kernel says that root may write there, and then refuses


@contextlib.contextmanager
def replacing(path: Path | str) -> Iterator[Path]:
    """Yield a hidden path beside `path`; when the block ends, sync that file and rename it to `path`.

    If the block raises, the hidden file is removed and `path` stays as it was.

    Args:
        path: the file to make or to replace. Its folder must exist.
    Yields:
        the path to write to, with the same suffix (some writers choose their format by it).
    Raises:
        OSError: the folder can't be written, or the disk is full.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder, "a.txt")) as draft:
    ...         _ = draft.write_text("whole")
    ...     Path(folder, "a.txt").read_text()
    'whole'
    """
    path = Path(path)
    draft = path.with_name(f".{path.stem}-{uuid.uuid4().hex[:8]}{path.suffix}")
    try:
        yield draft
        sync(draft)
        os.replace(draft, path)
        sync(path.parent)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def write_whole(path: Path | str, content: str | bytes) -> None:
    """Write a file so that a reader finds the old content or the new one, never a part.

    Args:
        path: the file to make or to replace. Its folder must exist.
        content: text (written as UTF-8) or bytes.
    Raises:
        OSError: as for `replacing`.
    """
    with replacing(path) as draft:
        draft.write_bytes(content.encode() if isinstance(content, str) else content)


@contextlib.contextmanager
def alone_in(folder: Path | str) -> Iterator[None]:
    """Hold a folder until the block ends; wait for another process or thread that holds it.

    For files that are read, changed and written again. The lock is on the folder itself, so that no lock file stays.
    Where the file system has no such locks, or the folder can't be made, nothing is held. A thread that holds a folder
    must not ask for it again.

    Args:
        folder: made if it is missing, and removed again if the block raises and has left it empty.
    """
    folder = Path(folder)
    made = [missing for missing in (folder, *folder.parents) if not missing.exists()]
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError):
            is_held = False
            while not is_held:
                folder.mkdir(parents=True, exist_ok=True)
                handle = os.open(folder, os.O_RDONLY)
                held.callback(os.close, handle)  # releases the lock
                fcntl.flock(handle, fcntl.LOCK_EX)
                # a holder whose block raised has removed the folder that it had made
                is_held = folder.exists() and os.path.samestat(folder.stat(), os.fstat(handle))
        try:
            yield
        except BaseException:
            for missing in made:
                with contextlib.suppress(OSError):
                    missing.rmdir()  # made for nothing; one that has entries stays
            raise


def pin(path: Path, copy: Path) -> None:
    """Read a copy in place of a file of the user's own, in this process: it may be edited or gone since."""
    _copies[path] = copy


def as_pinned(path: Path) -> Path:
    """Return the copy that is read in place of a file; the path itself: there is none."""
    return _copies.get(path, path)


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def ends_whole(path: Path) -> bool:
    """True if a file is empty or ends with a line end: a kill may leave a last line unfinished."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
        return file.read() in (b"", b"\n")


def check_writable(path: Path | str, name: str, advice: str) -> None:
    """Check that a folder or a file could be made or written, without making it.

    Args:
        path: the folder or the file; its parents may be missing too.
        name: what it is, and advice: what to do, for the message.
    Raises:
        PflOpsError: something in its place, or its nearest existing parent, can't be written.

    >>> check_writable("/proc/none/x", "the report's folder", "name another")
    Traceback (most recent call last):
    pfl_ops.errors.PflOpsError: the report's folder /proc/none/x can't be written (/proc is not writable); name another
    """
    path = Path(path).expanduser().absolute()
    there = next((place for place in (path, *path.parents) if os.path.lexists(place)), path)
    if there != path and not there.is_dir():
        why = f"{there} is not a folder"
    elif not os.access(there, os.W_OK | (os.X_OK if there.is_dir() else 0)) or _KERNEL in (there, *there.parents):
        why = f"{there} is not writable"
    else:
        return
    raise PflOpsError(f"{name} {path} can't be written ({why}); {advice}")


def write_named(path: Path | str, content: str | bytes) -> Path:
    """Write a file that a user named, whole or not at all; its folder is made if it is missing.

    A link's target is replaced, not the link; an old file's permissions stay; a device or a pipe is written to.

    Args:
        path: the file. content: text (written as UTF-8) or bytes.
    Returns:
        the path.
    Raises:
        PflOpsError: it can't be written; what was there is as it was.
    """
    named = Path(path)
    data = content.encode() if isinstance(content, str) else content
    made: list[Path] = []
    try:
        target = named.resolve() if named.is_symlink() else named
        if target.exists() and not target.is_file() and not target.is_dir():
            target.write_bytes(data)
            return named
        made = [folder for folder in target.parents if not folder.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as draft:
            draft.write_bytes(data)
            if target.exists():
                shutil.copymode(target, draft)
    except OSError as error:
        for folder in made:
            with contextlib.suppress(OSError):
                folder.rmdir()  # made for nothing; one that has entries by now stays
        raise PflOpsError(f"can't write {path}: {error.strerror or error}") from error
    return named


def sync(path: Path | str) -> None:
    """Wait until a file's content, or a folder's list of names, is on the disk.

    Raises:
        OSError: the path does not exist, or the disk failed.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
