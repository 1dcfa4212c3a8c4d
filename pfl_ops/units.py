"""Units in which tracked values are shown: accuracies, tracked as fractions, in percent; bytes in MiB."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pfl_ops.errors import PflOpsError, format_bytes
from pfl_ops.metric_keys import summands
from pfl_ops.metrics import STATISTICS, WORST_OF_LARGE

MIB = 2**20  # bytes


@dataclass(frozen=True)
class Unit:
    """The unit in which a metric is shown: its name, the factor from the tracked value, and the decimals."""

    name: str = ""
    factor: float = 1.0
    digits: int = 3


PERCENT = Unit("%", 100.0, 1)


def unit_of(metric: str) -> Unit:
    """Return the unit of a metric: percent for accuracies (tracked as fractions), MiB for bytes, else as tracked.

    >>> [unit_of(key).name for key in ("acc", "L2/local/worst", "cost/up_bytes", "train/loss", "method/gamma/mean")]
    ['%', '%', 'MiB', '', '']
    """
    *_, view, last = ("", *metric.split("/"))
    if last == "acc" or (
        last in (*STATISTICS, WORST_OF_LARGE) and (view in ("local", "global") or view.startswith("synthetic_"))
    ):
        return PERCENT
    return Unit("MiB", 1 / MIB) if last.endswith("_bytes") else Unit()


def check_target(target: float, metric: str) -> None:
    """Refuse a target that no value of an accuracy reaches: one in percent.

    >>> check_target(90, "test/L1/local/mean")
    Traceback (most recent call last):
    pfl_ops.errors.PflOpsError: a target of an accuracy is a fraction, 0.9 for 90 %; no test/L1/local/mean reaches 90
    """
    most = 2 if metric.rpartition("/")[2] == "acc" else 1
    if unit_of(metric) == PERCENT and target > most:
        raise PflOpsError(f"a target of an accuracy is a fraction, 0.9 for 90 %; no {metric} reaches {target:g}")


def with_unit(metric: str, value: float, std: float | None = None) -> str:
    """Return a value of a metric in its unit, with its standard deviation if there is one; a dash for NaN.

    >>> with_unit("val/L1/acc", 1.3629, 0.1144)
    '136.3 ± 11.4 %'
    >>> with_unit("train/loss", 0.25)
    '0.250'
    """
    if not math.isfinite(value):
        return "–"
    unit = unit_of(metric)
    numbers = [value] if std is None or not math.isfinite(std) else [value, std]
    text = " ± ".join(f"{number * unit.factor:.{unit.digits}f}" for number in numbers)
    return f"{text} {unit.name}".rstrip()


def part_of(k: int, n: int) -> str:
    """Return what follows a mean over k of n repetitions, those that have a value; "" if all or none have one.

    >>> part_of(4, 7), part_of(7, 7), part_of(0, 7)
    (' (4 of 7)', '', '')
    """
    return f" ({k} of {n})" if 0 < k < n else ""


def mebibytes(number: float) -> str:
    """Return a number of bytes in MiB; one that would be shown as 0.0 MiB in bytes or KiB; a dash for NaN.

    >>> mebibytes(2**20 * 1234.5), mebibytes(2**20 / 10), mebibytes(4_800), mebibytes(0), mebibytes(math.nan)
    ('1,234.5 MiB', '0.1 MiB', '4.69 KiB', '0.0 MiB', '–')
    """
    if not math.isfinite(number):
        return "–"
    return format_bytes(round(number)) if 0 < number < 0.05 * MIB else f"{number / MIB:,.1f} MiB"


def difference_title(metric: str) -> str:
    """Return the heading of the differences: "difference to the first %"; accuracies differ by percentage points."""
    return f"difference to the first {unit_of(metric).name}".rstrip()


def signed(value: float, metric: str) -> str:
    """Return a difference of two values of a metric in its unit, with one decimal more than the values.

    >>> signed(-0.041, "acc"), signed(-1e-17, "acc"), signed(0.25, "train/loss")
    ('−4.10', '±0.00', '+0.2500')
    """
    unit = unit_of(metric)
    return signed_number(value * unit.factor, unit.digits + 1)


def signed_number(value: float, digits: int) -> str:
    """Return a number with its sign: "+0.12", "−0.12"; "±0.00": it is rounded to zero."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text if any(digit in text for digit in "123456789") else f"±{text[1:]}"


def deviation(value: float, metric: str) -> str:
    """Return a deviation or an error of a metric in its unit, percentage points for accuracies.

    >>> deviation(0.006, "val/L1/acc"), deviation(0.25, "train/loss")
    ('0.6 points', '0.250')
    """
    unit = unit_of(metric)
    return f"{value * unit.factor:.{unit.digits}f} {'points' if unit is PERCENT else unit.name}".rstrip()


def heading(metric: str) -> str:
    """Return what heads a column of scores: Acc(L), Acc(G), Acc(L)+Acc(G); any other key as it is tracked."""
    names = {"/local/mean": "Acc(L)", "/global/mean": "Acc(G)", "/acc": "Acc(L)+Acc(G)"}
    return next((name for end, name in names.items() if metric.endswith(end)), metric)


def in_words(values: Mapping[str, float]) -> str:
    """Return scores as people read them: accuracies in percent, their sum under its own name.

    >>> in_words({"val/L1/acc": 1.8777, "val/L1/local/mean": 0.931, "val/L1/global/mean": 0.9467})
    'Acc(L)+Acc(G) 187.8 % (93.1 % + 94.7 %)'
    >>> in_words({"val/G/local/mean": 0.5, "train/loss": 0.25})
    'Acc(L) of G 50.0 %, train/loss 0.250'
    """
    said = []
    shown = {part for name in values for part in summands(name)}
    for name, value in values.items():
        if parts := summands(name):
            both = " + ".join(with_unit(part, values.get(part, math.nan)) for part in parts)
            said.append(f"{heading(name)} {with_unit(name, value)}" + (f" ({both})" if "–" not in both else ""))
        elif name not in shown:
            of = f" of {name.split('/')[1]}" if heading(name) != name else ""
            said.append(f"{heading(name)}{of} {with_unit(name, value)}")
    return ", ".join(said)


def exact(value: object) -> str:
    """A value as `--set` takes it, with all digits.

    >>> exact(0.012345678), exact(None), exact(True)
    ('0.012345678', 'none', 'true')
    """
    return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
