"""Rows of a check: what was checked, how it ended, and what was measured."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from pfl_ops.bench.gpu_check.options import Options

Status: TypeAlias = Literal["passed", "failed", "skipped"]

LONGEST = 150  # characters of the last column
NO_TIME = "time is out"
NO_GPU = "needs a GPU"


@dataclass(frozen=True)
class CheckRow:
    """One line of the report.

    Attributes:
        check: name of the check. name: what of it. status: how it ended.
        reason: why it failed or was skipped, or what limits what it shows; one line.
        figures: name with unit -> what was measured.
    """

    check: str
    name: str
    status: Status
    reason: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


def passed_if(fine: bool, check: str, name: str, reason: str, **figures: float) -> CheckRow:
    """Return a row that passed or failed.

    Args:
        reason: said if it failed.

    >>> passed_if(1 < 2, "arithmetic", "order", "1 is not below 2", difference=1.0).status
    'passed'
    """
    return CheckRow(check, name, "passed" if fine else "failed", "" if fine else reason, figures)


def step(o: Options, check: str, name: str, measure: Callable[[], CheckRow]) -> CheckRow:
    """Return the row of a step; a failed one if it raises, a skipped one if the time is out."""
    if o.left <= 0:
        return CheckRow(check, name, "skipped", NO_TIME)
    o.say(f"{check}: {name}")
    try:
        return measure()
    except Exception as error:
        return CheckRow(check, name, "failed", in_one_line(error))


def in_one_line(error: BaseException) -> str:
    """Return the error's kind and message, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())[:300]


def table(rows: Sequence[CheckRow]) -> str:
    """Return the rows as text: status, check, name, and the reason or the figures.

    >>> print(table([CheckRow("speed", "linear", "passed", figures={"samples_per_second": 123456.0})]))
    passed   speed  linear  samples_per_second 123,456
    """
    widths = [max((len(getattr(row, column)) for row in rows), default=0) for column in ("check", "name")]
    lines = []
    for row in rows:
        figures = ", ".join(f"{name} {number(value)}" for name, value in row.figures.items())
        said = "; ".join(part for part in (row.reason, figures) if part)
        lines.append(f"{row.status:7}  {row.check:{widths[0]}}  {row.name:{widths[1]}}  {_cut(said)}".rstrip())
    return "\n".join(lines)


def number(value: float) -> str:
    """Return a figure with about four digits.

    >>> number(123456.7), number(12.3456), number(1.5e-12), number(0.0)
    ('123,457', '12.35', '1.5e-12', '0')
    """
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def worst(rows: Sequence[CheckRow]) -> Status:
    """Return "failed" if any row failed, "skipped" if none was checked, else "passed".

    >>> worst([CheckRow("a", "b", "skipped"), CheckRow("a", "c", "passed")])
    'passed'
    """
    found = {row.status for row in rows}
    return "failed" if "failed" in found else "passed" if "passed" in found else "skipped"
