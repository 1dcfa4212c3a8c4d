"""Checks of files and folders that a command line names, before any work: a command that can't write does not start."""

import math
import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from pfl_ops.errors import LONGEST_PATH, PflOpsError, echo
from pfl_ops.files import check_writable


def check_output(flag: str, path: Path | None, endings: Collection[str] = ()) -> None:
    """Refuse a file that could not be written.

    Args:
        flag: for the message. path: the file; none: nothing is checked. endings: the suffixes that it may have.
    Raises:
        PflOpsError: another ending; a folder, pipe or device of that name; or a folder that can not be written.
    """
    if path is None:
        return
    if endings and path.suffix.lower() not in endings:
        raise PflOpsError(f"{flag} takes a file that ends in {' or '.join(endings)}, got '{echo(path, LONGEST_PATH)}'")
    if not path.name:
        raise PflOpsError(f"{flag} needs the name of a file, got '{echo(path, LONGEST_PATH)}'")
    if _exists(flag, path) and not path.is_file():
        raise PflOpsError(f"{flag}: {echo(path, LONGEST_PATH)} is {'a folder' if path.is_dir() else 'no regular file'}")
    check_folder(flag, path.parent)


def check_folder(flag: str, path: Path | None) -> None:
    """Refuse a folder that can neither be written nor made.

    Args:
        flag: for the message. path: the folder; none: nothing is checked.
    Raises:
        PflOpsError: something else has that name or a parent's, or the permission is missing.
    """
    if path is None:
        return
    if _exists(flag, path) and not path.is_dir():
        raise PflOpsError(f"{flag}: {echo(path, LONGEST_PATH)} is no folder")
    check_writable(path, flag, "name another folder")


def check_data_dir(folders: str | None) -> None:
    """Refuse a list of folders, separated as in PATH, of which one does not exist.

    Raises:
        PflOpsError: the message names the first that is missing.
    """
    for folder in (folders or "").split(os.pathsep) if folders is not None else ():
        path = Path(folder).expanduser()
        if not folder or not _exists("--data-dir", path) or not path.is_dir():
            raise PflOpsError(f"--data-dir: no folder '{echo(folder, LONGEST_PATH)}'")


def check_work_folder(address: str | None, variable: str = "") -> None:
    """Refuse to read from a work folder that does not exist, instead of making an empty one.

    Args:
        address: where else is read from; none: the work folder, unless the environment's `variable` names another.
    Raises:
        PflOpsError: the message names the folder.
    """
    folder = Path(os.environ.get("PFL_OPS_HOME") or "mlruns").expanduser().absolute()
    if not address and not (variable and os.environ.get(variable)) and not folder.exists():
        raise PflOpsError(
            f"there is no work folder {echo(folder, LONGEST_PATH)} yet; make runs (pfl-ops run fliu), or name one "
            "by PFL_OPS_HOME"
        )


def one_of(flag: str, given: str | None, allowed: Sequence[Any]) -> Any:
    """Return a word as it is given, None if it is not; refuse others."""
    if given is not None and given not in allowed:
        raise PflOpsError(f"{flag} must be one of {', '.join(allowed)}, got '{echo(given)}'")
    return given


def check_finite(flag: str, value: float | None) -> None:
    """Refuse a number that is NaN or infinite."""
    if value is not None and not math.isfinite(value):
        raise PflOpsError(f"{flag} must be a finite number, got {value}")


def _exists(flag: str, path: Path) -> bool:
    if not str(path).isprintable():
        raise PflOpsError(f"{flag} takes a name without control characters, got '{echo(path, LONGEST_PATH)}'")
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:  # a name that is too long, a null byte
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise PflOpsError(f"{flag}: can't use '{echo(path, LONGEST_PATH)}': {why}") from error
    return True
