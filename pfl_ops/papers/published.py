"""The papers' numbers, transcribed: one CSV file an exhibit, beside the suites."""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from pfl_ops.errors import PflOpsError

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
    """The numbers of `published/<name>.csv` by (cell, key of the measure).

    The file's columns are cell, key, value, spread, n, remark; an empty field is none; a line that begins with # is a
    remark on the whole.

    Raises:
        PflOpsError: a line that can't be read, or two numbers for one place; the message has file and line.
    """
    text = files("pfl_ops").joinpath("papers", "published", f"{name}.csv").read_text(encoding="utf-8")
    found: dict[tuple[str, str], Published] = {}
    for line, row in _rows(text, name):
        place = (row["cell"], row["key"])
        if place in found:
            raise PflOpsError(f"published/{name}.csv, line {line}: a second number for {' '.join(place)}")
        try:
            found[place] = Published(
                float(row["value"]) if row["value"] else None,
                float(row["spread"]) if row["spread"] else None,
                int(row["n"]) if row["n"] else None,
                row["remark"] or "",
            )
        except ValueError as error:
            raise PflOpsError(f"published/{name}.csv, line {line}: {error}") from error
    return found


def _rows(text: str, name: str) -> Iterator[tuple[int, dict[str, str]]]:
    lines = [(i, line) for i, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")]
    header = tuple(next(csv.reader([lines[0][1]])))
    if header != COLUMNS:
        raise PflOpsError(f"published/{name}.csv has the columns {','.join(header)}, not {','.join(COLUMNS)}")
    for i, line in lines[1:]:
        fields = next(csv.reader([line]))
        if len(fields) != len(COLUMNS):
            raise PflOpsError(f"published/{name}.csv, line {i}: {len(fields)} fields, not {len(COLUMNS)}")
        yield i, dict(zip(COLUMNS, (field.strip() for field in fields), strict=True))
