"""Folders on disk that are whole or not there: some JSON, and named tensors in files of moderate size.

    <place>/meta.json              {"about": what the writer says, "parts": {file: digest}, "digest": of these two}
            state-000.safetensors  tensors
            state-001.safetensors  more of them, where they are many

A folder is written under a hidden name, synced, and renamed: what bears its name was whole once. Digests show damage.
Tensors pass through memory one file at a time, whatever their number.
"""

import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save_file
from torch import Tensor

from pfl_ops.files import file_digest, sync

DRAFT = ".writing-"


class DamagedFile(Exception):
    """A folder is not as it was written; says why, in one line."""


@dataclass(frozen=True)
class Folder:
    """A folder whose meta.json was found whole.

    Attributes:
        place: the folder. about: what its writer said.
        parts: file -> digest, in the order in which they were written.
        digest: of all of this: two folders with the same digest hold the same.
        bytes: its size.
    """

    place: Path
    about: dict[str, Any]
    parts: dict[str, str]
    digest: str
    bytes: int

    def check(self) -> None:
        """Compare all files with their digests.

        Raises:
            DamagedFile: one is missing, or another than was written.
        """
        for name, digest in self.parts.items():
            try:
                found = file_digest(self.place / name)
            except OSError as error:
                raise DamagedFile(_why(error, name)) from error
            if found != digest:
                raise DamagedFile(f"{name} does not match its digest")

    def tensors(self) -> Iterator[dict[str, Tensor]]:
        """Yield the tensors of each file, name -> tensor of any shape.

        Raises:
            DamagedFile: a file can't be read.
        """
        for name in self.parts:
            try:
                yield load((self.place / name).read_bytes())
            except (OSError, SafetensorError) as error:
                raise DamagedFile(_why(error, name)) from error


def write(place: Path, about: Mapping[str, Any], parts: Iterable[dict[str, Tensor]]) -> Folder:
    """Write a folder; one that is there already is replaced.

    Args:
        about: values that JSON has, with text for keys.
        parts: the tensors of each file, of any shape; made one after the other, so that they need never be in memory
            together.
    Raises:
        OSError: the disk is full, or the folder can't be written; what was there before stays.
    """
    folder = place.parent
    draft = folder / f"{DRAFT}{uuid.uuid4().hex[:8]}"
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f"{DRAFT}*"):
        shutil.rmtree(left, ignore_errors=True)
    try:
        draft.mkdir()
        digests: dict[str, str] = {}
        size = 0
        for number, tensors in enumerate(parts):
            file = draft / f"state-{number:03d}.safetensors"
            _save(tensors, file)
            digests[file.name] = file_digest(file)
            size += file.stat().st_size
        kept = {"about": dict(about), "parts": digests}
        digest = _digest(kept)
        text = json.dumps({**kept, "digest": digest})
        (draft / "meta.json").write_text(text, encoding="utf-8")
        for path in [*draft.iterdir(), draft]:
            sync(path)
        if place.exists():
            shutil.rmtree(place)
        draft.rename(place)
        sync(folder)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return Folder(place, kept["about"], digests, digest, size + len(text))


def _save(tensors: dict[str, Tensor], file: Path) -> None:
    """Write tensors to a file without a copy of them in memory; the system's errors are `OSError`s."""
    try:
        save_file(tensors, file)
    except SafetensorError as error:
        if number := re.search(r"\b(?:os error|code:) (\d+)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        raise


def read(place: Path) -> Folder:
    """Read a folder's own description; its files are not looked at.

    Raises:
        DamagedFile: meta.json is missing or damaged.
    """
    try:
        text = (place / "meta.json").read_text(encoding="utf-8")
        kept = json.loads(text)
        digest = kept.pop("digest")
        if _digest(kept) != digest:
            raise DamagedFile("meta.json does not match its digest")
        about, parts = dict(kept["about"]), dict(kept["parts"])
        size = len(text) + sum((place / name).stat().st_size for name in parts)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DamagedFile(_why(error, "meta.json")) from error
    return Folder(place, about, parts, digest, size)


def _digest(kept: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()


def _why(error: Exception, name: str) -> str:
    if isinstance(error, FileNotFoundError):
        return f"{Path(error.filename or name).name} is missing"
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return f"{name}: {why}".splitlines()[0]
