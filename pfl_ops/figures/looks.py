"""The colour, marker and dash of a name: one place for each name, the same in every picture of a report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pfl_ops.errors import PflOpsError
from pfl_ops.figures import style

MARKERS = ("o", "s", "D", "^", "v", "P", "X", "p", "h", "*")
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.8)), (0, (1.2, 1.4)), (0, (5, 1.5, 1.2, 1.5)), (0, (2.5, 1.2)))
REST = "rest"
DASH_LENGTH = 3.0  # line widths, of lines that coincide
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


def shared_dashes(curves: Mapping[str, tuple[NDArray[Any], NDArray[np.float64]]]) -> dict[str, Any]:
    """Dashes for lines that coincide with an earlier one, so that each of them is seen: the first stays solid.

    Two lines coincide if they have the same two or more points wherever both have any.

    Args:
        curves: name -> (x [X], y [X]), by x, in the order in which they are drawn.
    Returns:
        name -> matplotlib's dash, of lines that would hide an earlier one.

    >>> both = np.array([1, 2]), np.array([0.5, 0.6])
    >>> shared_dashes({"fedavg": both, "fedprox": both, "ditto": (both[0], both[1] + 0.1)})
    {'fedprox': (3.0, (3.0, 3.0))}
    """
    groups: list[list[str]] = []
    for name, curve in curves.items():
        for group in groups:
            if all(_coincide(curves[other], curve) for other in group):
                group.append(name)
                break
        else:
            groups.append([name])
    return {
        name: ((len(group) - k) * DASH_LENGTH, (DASH_LENGTH, (len(group) - 1) * DASH_LENGTH))
        for group in groups
        for k, name in enumerate(group)
        if k
    }


def _coincide(
    first: tuple[NDArray[Any], NDArray[np.float64]], second: tuple[NDArray[Any], NDArray[np.float64]]
) -> bool:
    low, high = max(first[0].min(), second[0].min()), min(first[0].max(), second[0].max())
    (x, y), (other_x, other_y) = (
        (x[(low <= x) & (x <= high)], y[(low <= x) & (x <= high)]) for x, y in (first, second)
    )
    return len(x) > 1 and np.array_equal(x, other_x) and bool(np.allclose(y, other_y, rtol=0, atol=1e-9))


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
        colour or palette[i % len(palette)], MARKERS[i % len(MARKERS)], DASHES[turn % len(DASHES)], bool(turn % 2)
    )
