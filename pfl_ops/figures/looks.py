"""The colour, marker and dash of a name: one place for each name, the same in every picture of a report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pfl_ops.errors import PflOpsError
from pfl_ops.figures import style

MARKERS = ("o", "s", "D", "^", "v", "P", "X", "p", "h", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.8)), (0, (1.2, 1.4)), (0, (5, 1.5, 1.2, 1.5)), (0, (2.5, 1.2)))
REST = "rest"
SIZES = {"*": 6.5, "P": 5.0, "X": 5.0, "^": 5.0, "v": 5.0, "p": 5.2, "h": 5.2, "D": 4.2}


@dataclass(frozen=True)
class Look:
    """The look of a name. Colour and marker repeat after ten names, the dash (and the hollow marker) then differs."""

    colour: str
    marker: str
    dash: Any
    hollow: bool

    @property
    def size(self) -> float:
        """Points across, so that markers of all shapes look equally large."""
        return SIZES.get(self.marker, 4.6)

    def dots(self) -> dict[str, Any]:
        """Settings of its markers, for `Axes.plot`."""
        paper = style.current().paper
        face, edge = (paper, self.colour) if self.hollow else (self.colour, paper)
        return {
            "marker": self.marker, "markersize": self.size, "markerfacecolor": face, "markeredgecolor": edge,
            "markeredgewidth": 1.0 if self.hollow else 0.6,
        }  # fmt: skip


def colours(names: Iterable[str]) -> dict[str, str]:
    """Fix the look of every name of a report, in this order: give the result to each picture as `colours`.

    Returns:
        name -> slot of the palette, "C0", "C1", ...: a colour, marker and dash in either theme.
    """
    return {name: f"C{i}" for i, name in enumerate(dict.fromkeys(names))}


def looks(names: Iterable[str], chosen: Mapping[str, str] | None = None) -> dict[str, Look]:
    """The look of each name.

    Args:
        names: what is drawn; without `chosen`, slots go by this order.
        chosen: name -> slot ("C3"), any colour of matplotlib's ("#0072B2", "black"), or `REST`, the theme's grey for
            what is not singled out; a name without one takes the first slots that are free.
    Raises:
        PflOpsError: no such colour.
    """
    wanted = dict(chosen or {})
    taken = {int(value[1:]) for value in wanted.values() if _is_slot(value)}
    free = (slot for slot in range(len(taken) + len(wanted) + 1000) if slot not in taken)
    found = {}
    for name in dict.fromkeys(names):
        colour = wanted.get(name)
        if colour == REST:
            found[name] = Look(style.current().rest, "o", DASHES[1], True)
        elif colour and _is_slot(colour):
            found[name] = _slot(int(colour[1:]))
        else:
            found[name] = _slot(next(free), colour)
    return found


def _is_slot(colour: str) -> bool:
    return re.fullmatch(r"C\d{1,4}", colour) is not None


def _slot(i: int, colour: str | None = None) -> Look:
    palette = style.current().palette
    turn = i // len(palette)
    if colour is not None:
        from matplotlib.colors import is_color_like

        if not is_color_like(colour):
            raise PflOpsError(f"'{colour}' is no colour; write a slot of the palette (C0, C1, ...) or #RRGGBB")
    return Look(
        colour or palette[i % len(palette)],
        MARKERS[i % len(MARKERS)],
        DASHES[turn % len(DASHES)],
        bool(turn % 2),
    )
