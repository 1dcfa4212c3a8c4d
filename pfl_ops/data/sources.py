"""Data sets where they lie: looked for in folders, downloaded, and unpacked into the cache."""

import os
from pathlib import Path
from typing import TypeAlias

import numpy as np

from pfl_ops import rng
from pfl_ops.data import cut, shakespeare, store
from pfl_ops.data.npz import DataError, checked, read_npz
from pfl_ops.data.tables import read_table

READERS = {".npz": read_npz, ".csv": read_table, ".parquet": read_table}
"""Ending of a data file -> its reader."""

ARRAY_RULES, TABLE_RULES = 1, 3
"""Versions of the rules by which they read: a file is unpacked again after a change of these."""

OTHER_DATA = "try --dataset digits, which needs no download."
"""Last advice to who lacks a data set."""

Form: TypeAlias = tuple[tuple[int, ...], int]
"""Shape of a sample and number of classes that a named data set must have."""


def folders_of(data_dir: str | None) -> list[Path]:
    """Return the folders to look in, separated as in PATH; None: those of PFL_OPS_DATA. The cache is the last."""
    listed = os.environ.get("PFL_OPS_DATA", "") if data_dir is None else os.fspath(data_dir)
    return [*(Path(part).expanduser() for part in listed.split(os.pathsep) if part), store.cache_folder()]


def file_of_named(name: str, folders: list[Path]) -> Path | None:
    """Return the file of a named data set; None: it has to be downloaded, or was before."""
    return next((file for folder in folders if (file := folder / f"{name}.npz").exists()), None)


def own_file(name: str, folders: list[Path]) -> Path | None:
    """Return a data file of the user's own, from the working directory on; None: it does not exist."""
    path = Path(name).expanduser()
    places = [path, *(() if path.is_absolute() else (folder / path for folder in folders))]
    return next((place for place in places if place.exists() or store.is_pinned(place)), None)


def is_here(name: str, folders: list[Path]) -> bool:
    """True if a named data set, but for shakespeare, needs no download."""
    return name == "digits" or store.has(_download(name)) or file_of_named(name, folders) is not None


def named(name: str, form: Form, folders: list[Path]) -> store.Unpacked:
    """Unpack a named data set, but for shakespeare; it is downloaded if there is no file.

    Raises:
        DataError: it is missing, damaged or of another form.
    """
    if name == "digits":
        return store.unpacked("digits 1", lambda: checked(_digits(), name, *form))
    file = file_of_named(name, folders)
    if file is not None:
        return unpacked_file(file, form)

    def download() -> dict[str, np.ndarray]:
        from pfl_ops.data.download import fetch

        try:
            return checked(fetch(name), name, *form)
        except DataError as error:
            raise DataError(
                f"{name} is not in {' or '.join(map(_short, folders))} and could not be downloaded ({error}).\n"
                f"Put {name}.npz (x_train, y_train, x_test, y_test) there, name its folder with --data-dir, or "
                f"{OTHER_DATA}"
            ) from error

    return store.unpacked(_download(name), download)


def text(roles: shakespeare.Count, records: shakespeare.Count, folders: list[Path]) -> store.Unpacked:
    """Unpack shakespeare.

    Raises:
        DataError: it is missing or damaged.
    """
    files = shakespeare.find(folders)
    if not files:
        raise DataError(
            f"shakespeare is not in {' or '.join(map(_short, folders))}, and is never downloaded.\n"
            f"Put {shakespeare.ROLES_FILE}.xz there, or LEAF's own JSON into shakespeare/ there (all_data*.json, or "
            f"train/ and test/), name its folder with --data-dir, or {OTHER_DATA}"
        )
    stats = [(file.resolve(), file.stat()) for file in files]
    source = f"shakespeare {roles} {records} 1 " + " ".join(f"{file} {_state(stat)}" for file, stat in stats)
    return store.unpacked(source, lambda: shakespeare.arrays(files, roles, records))


def own(name: str, folders: list[Path]) -> tuple[Path, store.Unpacked]:
    """Find and unpack a data file of the user's own.

    Raises:
        DataError: it is missing or damaged, or not of a form that is read here.
    """
    file = own_file(name, folders)
    if file is None:
        places = "" if Path(name).expanduser().is_absolute() else ", ".join(map(_short, [Path.cwd(), *folders]))
        raise DataError(f"data file {name} does not exist" + (f" (looked in {places})" if places else ""))
    return file, unpacked_file(file)


def unpacked_file(path: Path, form: Form | None = None) -> store.Unpacked:
    """Unpack a data file; one of a named data set must have its form.

    Raises:
        DataError: it can't be read, or has another form.
    """
    content = path
    try:
        content = path.resolve()
        if (pinned := store.pinned(content)) is not None:
            return pinned
        stat = content.stat()
    except OSError as error:
        raise DataError(f"{content} cannot be read ({error.strerror})") from error
    if not content.is_file():
        raise DataError(f"{content} is not a file")
    # a store of contents gives files no ending: its links have it
    path = content if content.suffix in READERS else path.absolute()
    read = READERS.get(path.suffix, read_npz)
    shape, n_classes = form or (None, None)
    wanted = "any" if form is None else f"{shape} {n_classes}"
    source = f"file {content} {_state(stat)} {wanted} {TABLE_RULES if read is read_table else ARRAY_RULES}"
    return store.unpacked(source, lambda: checked(read(path), str(path), shape, n_classes))


def _download(name: str) -> str:
    """The source under which a downloaded data set is in the cache."""
    return f"download {name} 1"


def _state(stat: os.stat_result) -> str:
    """Size and times of a file. No program can set the time of change, so that a file which was overwritten and given
    its old time of modification counts as another one."""
    return f"{stat.st_size} {stat.st_mtime_ns} {stat.st_ctime_ns}"


def _digits() -> dict[str, np.ndarray]:
    """scikit-learn's digits (UCI's "Optical Recognition of Handwritten Digits", test part), 8 x 8 of 17 grey levels.

    It comes without a split: one in five of each class is for testing, drawn once for all.
    """
    from sklearn.datasets import load_digits

    found = load_digits()
    x, y = found.images.astype(np.uint8), found.target.astype(np.int64)
    test = cut.stratified(y, round(0.2 * len(y)), rng.generator(0, "digits", "test"))
    train = np.setdiff1d(np.arange(len(y)), test)
    return {"x_train": x[train], "y_train": y[train], "x_test": x[test], "y_test": y[test]}


def _short(folder: Path) -> str:
    """A folder as a user writes it, ~ for home."""
    try:
        return str(Path("~") / folder.relative_to(Path.home()))
    except (ValueError, RuntimeError):
        return str(folder)
