"""Values of two settings: grouped bars, and a table in colours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from pfl_ops.errors import PflOpsError
from pfl_ops.figures import canvas, style
from pfl_ops.figures.bands import moments, numbers, repetitions
from pfl_ops.figures.looks import looks
from pfl_ops.figures.parts import LETTER, key_below, percent_axis, remark, wrapped

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def bars(
    values: Mapping[str, Mapping[str, ArrayLike]],
    ylabel: str = "accuracy",
    percent: bool = True,
    colours: Mapping[str, str] | None = None,
) -> Figure:
    """Groups of bars from zero: means over n repetitions, with ± the standard deviation where n > 1.

    Args:
        values: group -> name -> values of the repetitions [n], or one; none or NaN: not run, marked by a dash.
    Raises:
        PflOpsError: there is no value, or not one row of values a bar.
    """
    names = list(dict.fromkeys(name for group in values.values() for name in group))
    cells = {}
    for group, row in values.items():
        for name, given in row.items():
            cell = numbers(given, f"'{group}', '{name}'")
            if cell.ndim > 1:
                raise PflOpsError(f"'{group}', '{name}': a bar's values are [n], got {list(cell.shape)}")
            cell = cell.reshape(-1)[np.isfinite(cell.reshape(-1))]
            if len(cell):
                cells[group, name] = cell
    if not cells:
        raise PflOpsError("there is nothing to draw: no bar has a value")
    seen = looks(names, colours)
    shades = style.current()
    width = 0.82 / len(names)
    with style.style():
        from matplotlib.patches import Patch

        inches = float(np.clip(1.4 + len(values) * (0.5 + 0.2 * len(names)), 4.2, 11.0))
        figure, axes = canvas.single(inches, 3.9)
        for j, name in enumerate(names):
            places = np.arange(len(values)) + (j - (len(names) - 1) / 2) * width
            look = seen[name]
            for place, group in zip(places.tolist(), values, strict=True):
                if (group, name) not in cells:
                    axes.text(place, 0, "–", ha="center", va="bottom", color=shades.faint)
                    continue
                mean, std = moments(cells[group, name])
                axes.bar(
                    place, mean, width * 0.9, color=look.colour, edgecolor=shades.paper, linewidth=0.6, label=name,
                    hatch="////" if look.hollow else None, zorder=2,
                )  # fmt: skip
                if std > 0:
                    axes.errorbar(place, mean, std, fmt="none", ecolor=shades.ink, elinewidth=1.0, capsize=2, zorder=3)
        axes.axhline(0, color=shades.faint, linewidth=0.8)
        letters = int(0.9 * (inches - 1.0) / len(values) / LETTER)
        axes.set_xticks(range(len(values)), [wrapped(group, letters) for group in values])
        axes.tick_params(axis="x", length=0)
        axes.set_xlim(-0.6, len(values) - 0.4)
        if percent:
            percent_axis(axes, within=[cell.mean(keepdims=True) for cell in cells.values()])
        axes.set_ylabel(ylabel)
        counts = [len(cell) for cell in cells.values()]
        remark(axes, repetitions({"": (min(counts), max(counts))})[0])
        patches = [
            Patch(facecolor=look.colour, edgecolor=shades.paper, hatch="////" if look.hollow else None)
            for look in seen.values()
        ]
        key_below(figure, patches, names)
    return figure


def heat(
    table: ArrayLike, rows: Sequence[str], columns: Sequence[str], xlabel: str = "", ylabel: str = "", label: str = ""
) -> Figure:
    """A table in colours, each cell with its value: e.g. the best τ over SNR and bandwidth.

    Args:
        table: [A, B]; NaN: not run, left empty with a dash.
        rows, columns: names of the A rows, from the top, and of the B columns.
        label: what the colours mean.
    Raises:
        PflOpsError: the shapes do not fit, or there is no value.
    """
    cells = numbers(table, "a table in colours")
    if cells.ndim != 2 or not cells.size:
        raise PflOpsError(f"a table in colours is [rows, columns], got {list(cells.shape)}")
    if cells.shape != (len(rows), len(columns)):
        raise PflOpsError(
            f"the table is {list(cells.shape)}, but there are {len(rows)} names of rows and {len(columns)} of columns"
        )
    there = np.isfinite(cells)
    if not there.any():
        raise PflOpsError("there is nothing to draw: no cell has a value")
    shades = style.current()
    with style.style():
        from matplotlib.colors import LinearSegmentedColormap

        width = float(np.clip(2.1 + 0.72 * len(columns), 3.6, 11.0))
        figure, axes = canvas.single(width, float(np.clip(1.3 + 0.42 * len(rows), 2.2, 11.0)))
        picture = axes.imshow(
            np.ma.masked_invalid(cells),
            cmap=LinearSegmentedColormap.from_list("ramp", shades.ramp),
            aspect="auto",
            interpolation="nearest",
        )
        for i, j in np.ndindex(*cells.shape):
            if not there[i, j]:
                axes.text(j, i, "–", ha="center", va="center", color=shades.faint)
                continue
            red, green, blue, _ = picture.cmap(picture.norm(cells[i, j]))
            dark = 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.5
            text = f"{cells[i, j]:,.0f}" if abs(cells[i, j]) >= 999.5 else f"{cells[i, j]:.3g}"
            axes.text(j, i, text, ha="center", va="center", color="#FFFFFF" if dark else "#111111", fontsize=8)
        axes.set_xticks(range(len(columns)), [str(name) for name in columns])
        axes.set_yticks(range(len(rows)), [str(name) for name in rows])
        axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
        axes.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
        axes.grid(False)
        axes.grid(True, which="minor", axis="both", color=shades.paper, linewidth=1.5)
        axes.tick_params(which="both", length=0)
        axes.spines[:].set_visible(False)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        bar = figure.colorbar(picture, ax=axes, fraction=0.05, pad=0.02)
        canvas.fix_ticks(bar.ax)
        bar.ax.grid(False)
        bar.outline.set_visible(False)
        bar.set_label(label)
    return figure
