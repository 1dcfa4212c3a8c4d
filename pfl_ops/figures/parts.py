"""Parts of several pictures: axes of shares and rounds, remarks, a legend below."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pfl_ops.figures import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure


LETTER = 0.075  # inches: the mean width of a letter of a legend
ROW = 0.18  # inches: the height of a legend's row


def wrapped(name: str, width: int) -> str:
    """Break a name into lines of at most so many letters."""
    return "\n".join(textwrap.wrap(name, max(width, 8))) or name


def percent_axis(axes: Axes, which: str = "y", most: int = 6, within: Iterable[NDArray[np.float64]] = ()) -> None:
    """Shares as percents on the axis "x" or "y", with at most so many steps.

    Args:
        within: the values drawn: where all are in 0 to 1, bands and margins do not stretch the axis farther.
    """
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10]))
    axis.set_major_formatter(FuncFormatter(partial(_tick_text, axis)))
    seen = np.concatenate([np.ravel(v) for v in within] or [np.empty(0)])
    seen = seen[np.isfinite(seen)]
    if not len(seen) or seen.min() < 0 or seen.max() > 1:
        return
    low, high = axes.get_ylim() if which == "y" else axes.get_xlim()
    limits = max(low, -0.01 if seen.min() < 0.05 else 0.0), min(high, 1.01)
    axes.set_ylim(*limits) if which == "y" else axes.set_xlim(*limits)


def as_percent(share: float) -> str:
    """0.975 -> "97.5 %"."""
    return f"{100 * share:.4g} %"


def _tick_text(axis: Axis, share: float, _: int | None = None) -> str:
    """A share at a tick as percents, with the decimals by which neighbouring ticks differ: "97.5 %", "99.992 %"."""
    low, high = sorted(axis.get_view_interval())
    ticks = [tick for tick in axis.get_majorticklocs() if low <= tick <= high]
    steps = np.diff(ticks)
    decimals = 2 if not len(steps) else max(2, 1 - math.floor(math.log10(100 * steps.min())))
    number = f"{round(100 * share, decimals) + 0.0:.{decimals}f}".rstrip("0").rstrip(".")
    return f"{number.replace('-', '−')} %"


def whole_numbers(axes: Axes, most: int = 8, which: str = "x") -> None:
    """Ticks of the axis "x" or "y" at whole numbers: rounds, trials."""
    from matplotlib.ticker import MaxNLocator

    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_major_locator(MaxNLocator(most, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def remark(axes: Axes, text: str) -> None:
    """A short remark above the axes, at their right, in the faint ink."""
    if text:
        axes.set_title(text, loc="right", fontsize=8, color=style.current().faint)


def beside(n: int) -> NDArray[np.float64]:
    """Place n dots across a strip from -0.5 to 0.5, without chance: neighbours in value take turns."""
    strip: NDArray[np.float64] = np.arange(n, dtype=np.float64) * 0.6180339887 % 1.0 - 0.5
    return strip


def key_below(figure: Figure, handles: Sequence[Any], names: Sequence[str], title: str = "") -> None:
    """A legend below all axes, in as few even rows as the width allows; the figure becomes higher by these rows."""
    width, height = figure.get_size_inches()
    texts = [wrapped(name, int((width - 0.8) / LETTER)) for name in names]
    longest = max((len(line) for text in texts for line in text.splitlines()), default=1)
    columns = max(1, min(len(names), int(width / (LETTER * longest + 0.55))))
    rows = -(-len(names) // columns)
    lines = rows * max((text.count("\n") + 1 for text in texts), default=1)
    figure.set_size_inches(width, height + ROW * (lines + bool(title)))
    figure.legend(
        list(handles), texts, loc="outside lower center", ncols=-(-len(names) // rows), handlelength=2.4,
        columnspacing=1.4, title=title or None, title_fontproperties={"size": 8},
    )  # fmt: skip
