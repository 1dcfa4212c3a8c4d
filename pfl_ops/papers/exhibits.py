"""The exhibits of a suite: tables in the paper's layout, curves, pictures. Plain data; `reports` draws them.

Cells are chosen by patterns as in claims: "path/*", "*/{fliu,fedavg}", "b01/*/{!fedas}".
"""

import math
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Grid:
    """A table: axes of the suite and "measure", laid out as in the paper.

    Attributes:
        rows, columns, blocks: names of axes, or "measure", from the outside in; a block has a heading across the table.
            Axes that stand nowhere must have one level.
        measures: keys shown; none: all of the suite's.
        cells: which of them.
        caption: above the table.
    """

    rows: tuple[str, ...]
    columns: tuple[str, ...]
    blocks: tuple[str, ...] = ()
    measures: tuple[str, ...] = ()
    cells: str = ""
    caption: str = ""


@dataclass(frozen=True)
class Curves:
    """A tracked value over rounds, mean over repetitions with a band of ± their standard deviation.

    Attributes:
        key: tracked key; ".../below_95" is the number of scored clients that are not above 95 %.
        cells: which; none: all. panel: the axis with a panel for each of its levels; "": one panel.
        percent: whether the value is a share. target: a level to mark, in the value's unit.
        caption: what it shows. ylabel: of the vertical axis.
    """

    key: str
    cells: str = ""
    panel: str = ""
    percent: bool = True
    target: float | None = None
    caption: str = ""
    ylabel: str = ""


@dataclass(frozen=True)
class Over:
    """The last value over a numeric axis: an axis of the suite, or one measure after the other (S-acc over c).

    Attributes:
        x: the axis, whose level titles are numbers; or "measure".
        keys: with "measure": (x, key) in order; else one (ignored, key).
        cells, panel, caption, xlabel, ylabel, percent: as for `Curves`.
    """

    x: str
    keys: tuple[tuple[float, str], ...]
    cells: str = ""
    panel: str = ""
    caption: str = ""
    xlabel: str = ""
    ylabel: str = ""
    percent: bool = True


@dataclass(frozen=True)
class Bars:
    """Values as bars: a group for each level of `group`, a bar for each of the other labels.

    Attributes:
        key: the measure's. group: an axis. cells, caption, ylabel, percent: as for `Curves`.
    """

    key: str
    group: str
    cells: str = ""
    caption: str = ""
    ylabel: str = ""
    percent: bool = True


@dataclass(frozen=True)
class Allocation:
    """The classes of the clients in one cell's partition; it needs the data and no run."""

    cell: str
    caption: str = ""


@dataclass(frozen=True)
class Energy:
    """The number of local steps with least energy to a target, over SNR and bandwidth.

    Attributes:
        steps: the axis of local steps. target: a share. key: the value that must reach it.
        snr_db, bandwidth (Hz), power (W), step_energy (J): of the channel and the device.
    """

    steps: str
    target: float
    key: str
    snr_db: tuple[float, ...]
    bandwidth: tuple[float, ...]
    power: float
    step_energy: float
    caption: str = ""


Exhibit: TypeAlias = Grid | Curves | Over | Bars | Allocation | Energy


def level_number(title: str) -> float | None:
    """Return the number that a level's title stands for; None: there is none.

    >>> [level_number(title) for title in ("0.6", "60 %", "P = 0.6", "few")]
    [0.6, 60.0, 0.6, None]
    """
    try:
        found = float(title.rpartition("=")[2].strip(" %"))
    except ValueError:
        return None
    return found if math.isfinite(found) else None
