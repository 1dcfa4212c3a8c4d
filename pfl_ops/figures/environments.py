"""Data environments: who holds what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pfl_ops.errors import PflOpsError
from pfl_ops.figures import canvas, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


ROWS = 2_000
"""Clients that have a row each: a page's height in pixels."""
QUANTILES = 1_001


def partition(table: ArrayLike, title: str | None = None) -> Figure:
    """Draw the clients' data, a row a client: its samples, stacked by class (as the FLIU paper's Figures 2 to 4).

    More than `ROWS` clients have no row that can be seen; they are drawn as a summary, see `_summary`.

    Args:
        table: number of samples of each client and class, int [K, L].
        title: above the picture.
    """
    counts = np.asarray(table)
    if counts.ndim != 2 or not counts.size:
        raise PflOpsError(f"a partition's table is [clients, classes], got shape {counts.shape}")
    n_clients, n_classes = counts.shape
    if n_clients > ROWS:
        return _summary(counts, title)
    row = float(np.clip(9.0 / n_clients, 0.085, 0.3))  # inches
    height = min(row * n_clients, 14.0)
    shades = style.current()
    with style.style():
        from matplotlib.collections import PolyCollection
        from matplotlib.ticker import MaxNLocator

        figure, axes = canvas.single(7.2, height + 1.15)
        colours = _class_colours(n_classes)
        gap = 0.18 if n_clients <= 50 else 0.12 if n_clients <= 200 else 0.0
        boxes, box_classes = _bars(counts, gap)
        few = counts.shape[0] * counts.shape[1] <= 500
        axes.add_collection(
            PolyCollection(
                list(boxes),
                facecolors=[colours[c] for c in box_classes],
                edgecolors=shades.paper if few else "none",
                linewidths=0.6 if few else 0.0,
                antialiaseds=few,  # without edges, smoothing would leave hairlines between neighbours
                rasterized=len(boxes) > 3000,  # keeps an SVG of a thousand clients small
            )
        )
        totals = counts.sum(axis=1)
        longest = max(int(totals.max()), 1)
        numbered = n_clients <= 30
        axes.set_xlim(0, longest * (1.09 if numbered else 1.02))
        axes.set_ylim(n_clients - 0.5, -0.5)
        if numbered:
            for k, total in enumerate(totals.tolist()):
                axes.annotate(
                    f"{total:,}", (total, k), xytext=(4, 0), textcoords="offset points", va="center", fontsize=7.5,
                    color=shades.faint,
                )  # fmt: skip
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_yticks(_client_ticks(n_clients))
        axes.set(xlabel="samples", ylabel="client")
        _class_key(figure, axes, colours)
        canvas.headline(figure, title)
    return figure


def _summary(counts: NDArray[Any], title: str | None) -> Figure:
    """Draw the distributions, over clients, of the number of samples and of the largest class's share of them.

    Each is a line through `QUANTILES` quantiles, however many clients there are.

    Args:
        counts: number of samples of each client and class, int [K, L].
        title: above the picture.
    """
    samples = counts.sum(axis=1)
    share = 100 * counts.max(axis=1)[samples > 0] / samples[samples > 0]
    shades = style.current()
    with style.style():
        figure = canvas.blank(7.6, 3.4)
        for axes, values, label, colour in zip(
            figure.subplots(1, 2), (samples, share), ("samples", "largest class, % of samples"), shades.palette,
            strict=False,
        ):  # fmt: skip
            canvas.fix_ticks(axes)
            at = np.linspace(0, 1, QUANTILES)
            axes.plot(100 * at, np.quantile(values, at) if len(values) else np.zeros(QUANTILES), color=colour)
            axes.set_xlim(0, 100)
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter("{x:,.0f}")
            axes.set(xlabel=f"{len(counts):,} clients, from least to most (%)", ylabel=label)
        canvas.headline(figure, title)
    return figure


def _bars(counts: NDArray[Any], gap: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Corners [n, 4, 2] of every bar that is not empty, and their classes [n]."""
    right = counts.cumsum(axis=1)
    rows, classes = np.nonzero(counts)
    x0, x1 = (right - counts)[rows, classes], right[rows, classes]
    y0, y1 = rows - 0.5 + gap / 2, rows + 0.5 - gap / 2
    corners = np.stack([x0, y0, x1, y0, x1, y1, x0, y1], axis=1).astype(np.float64)
    return corners.reshape(-1, 4, 2), classes


def _class_colours(n_classes: int) -> list[Any]:
    classes = style.current().classes
    if n_classes <= len(classes):
        return list(classes[:n_classes])
    import matplotlib

    return list(matplotlib.colormaps["viridis"](np.linspace(0.0, 1.0, n_classes)))


def _class_key(figure: Figure, axes: Axes, colours: Sequence[Any]) -> None:
    """Explain the colours: squares with the numbers of the classes, or a scale of these where there are too many."""
    from matplotlib.patches import Patch

    n = len(colours)
    if n <= len(style.CLASSES):
        axes.legend(
            handles=[Patch(facecolor=colour, label=str(i)) for i, colour in enumerate(colours)],
            title="class", title_fontsize=8.5, alignment="left", loc="lower left", bbox_to_anchor=(0, 1), ncols=n,
            borderaxespad=0.2, borderpad=0.2, handlelength=0.9, handleheight=0.9, columnspacing=1.1, handletextpad=0.4,
        )  # fmt: skip
        return
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    scale = ScalarMappable(BoundaryNorm(np.arange(n + 1) - 0.5, n), ListedColormap(colours))
    bar = figure.colorbar(scale, ax=axes, location="top", fraction=0.04, aspect=60, pad=0.01)
    step = next(step for step in (1, 2, 5, 10, 20, 50, n) if n / step <= 14)
    ticks = range(0, n, step)
    bar.set_ticks(list(ticks), labels=[str(i) for i in ticks])
    bar.minorticks_off()
    bar.ax.tick_params(length=0)
    outline: Any = bar.outline
    outline.set_visible(False)
    bar.set_label("class")


def _client_ticks(n: int) -> list[int]:
    step = 1 if n <= 30 else 5 if n <= 60 else 10 if n <= 200 else max(50, n // 1000 * 100)
    return list(range(0, n, step))
