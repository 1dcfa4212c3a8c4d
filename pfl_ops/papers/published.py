"""The papers' numbers, transcribed: one CSV file an exhibit, beside the suites."""

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path

from pfl_ops.errors import LONGEST_PATH, PflOpsError, echo

COLUMNS = ("cell", "key", "value", "spread", "n", "remark")


@dataclass(frozen=True)
class Published:
    """A number that a paper prints.

    Attributes:
        value: in the paper's unit; None: extraction lost it, or the paper prints a dash.
        spread: its ±; None: there is none. n: repetitions behind it; None: not said.
        remark: what is damaged, repaired or doubtful about it.
    """

    value: float | None
    spread: float | None = None
    n: int | None = None
    remark: str = ""


@cache
def load(name: str) -> Mapping[tuple[str, str], Published]:
    """The numbers of `published/<name>.csv` in this package by (cell, key of the measure); see `parse`."""
    text = files("pfl_ops").joinpath("papers", "published", f"{name}.csv").read_text(encoding="utf-8")
    return parse(text, f"published/{name}.csv")


class PublishedFile(Mapping[tuple[str, str], Published]):
    """The numbers of a CSV file of the user's own, read when the first one is asked for.

    A worker process imports a suite's file for the methods in it and reads no number, so that the CSV file has to be
    on the driver's machine only.

    Attributes:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @cached_property
    def _numbers(self) -> Mapping[tuple[str, str], Published]:
        shown = echo(self.path, LONGEST_PATH)
        try:
            text = self.path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise PflOpsError(f"can't read published numbers {shown}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise PflOpsError(f"can't read published numbers {shown}: it is not a text file in UTF-8") from error
        return parse(text, shown)

    def __getitem__(self, place: tuple[str, str]) -> Published:
        return self._numbers[place]

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)


def published_beside(file: str, name: str) -> PublishedFile:
    """Return the published numbers of a CSV file in the folder of a Python file; see `parse` for its columns.

    Args:
        file: the Python file, its `__file__`. name: of the CSV file.
    """
    return PublishedFile(Path(file).with_name(name))


def parse(text: str, source: str) -> Mapping[tuple[str, str], Published]:
    """Return the numbers of a CSV text by (cell, key of the measure).

    The columns are cell, key, value, spread, n, remark; an empty field is none; a line that begins with # is a remark
    on the whole.

    Args:
        source: its name in messages.
    Raises:
        PflOpsError: a line that can't be read, or two numbers for one place; the message has file and line.
    """
    found: dict[tuple[str, str], Published] = {}
    for line, row in _rows(text, source):
        place = (row["cell"], row["key"])
        if place in found:
            raise PflOpsError(f"{source}, line {line}: a second number for {echo(' '.join(place))}")
        try:
            found[place] = _published(row)
        except ValueError as error:
            raise PflOpsError(f"{source}, line {line}: {echo(error)}") from error
    return found


def _published(row: Mapping[str, str]) -> Published:
    value, spread = (float(row[name]) if row[name] else None for name in ("value", "spread"))
    n = int(row["n"]) if row["n"] else None
    if value is not None and not math.isfinite(value):
        raise ValueError(f"{row['value']} is no finite number; an empty field is none")
    if spread is not None and not 0 <= spread < math.inf:
        raise ValueError(f"a spread is 0 or more, got {row['spread']}")
    if n is not None and n < 1:
        raise ValueError(f"n is 1 or more, got {n}")
    return Published(value, spread, n, row["remark"])


def _rows(text: str, source: str) -> Iterator[tuple[int, dict[str, str]]]:
    lines = [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")]
    header = tuple(next(csv.reader([lines[0][1]]))) if lines else ()
    if header != COLUMNS:
        has = f"has the columns {echo(','.join(header))}" if header else "is empty"
        raise PflOpsError(f"{source} {has}; it needs {','.join(COLUMNS)}")
    for i, line in lines[1:]:
        fields = next(csv.reader([line]))
        if len(fields) != len(COLUMNS):
            raise PflOpsError(f"{source}, line {i}: {len(fields)} fields, not {len(COLUMNS)}")
        yield i, dict(zip(COLUMNS, (field.strip() for field in fields), strict=True))
