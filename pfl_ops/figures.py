"""Partitions, curves and studies as pictures. Knows tables and records, not where they are stored.

Every function returns a `matplotlib.figure.Figure` made without pyplot, so none of them touches global state or needs a
display; `save` writes one, the same bytes for the same picture. matplotlib is imported when the first picture is drawn.

Colours: classes by Paul Tol's "muted" scheme, which stays apart under the common colour blindnesses; more than ten
classes by a perceptually even scale, where the colour tells the neighbourhood of a class, not its number. Stages by
three colours of Okabe and Ito, and by different markers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pfl_ops import metrics
from pfl_ops.errors import PflOpsError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Records = Sequence[tuple[int, Mapping[str, float]]]
"""(finished rounds, tracked metrics), in the order of rounds."""

CLASSES = (
    *("#332288", "#88CCEE", "#44AA99", "#117733", "#999933"),
    *("#DDCC77", "#CC6677", "#882255", "#AA4499", "#BBBBBB"),
)
STAGES = {"L1": "#0072B2", "L2": "#D55E00", "G": "#009E73"}
MARKERS = {"L1": "o", "L2": "s", "G": "D"}
VIEWS = ("Acc(L), own data", "Acc(G), pooled data")
MEANINGS = {"L1": "L1, after the update", "L2": "L2, after local training", "G": "G, global model"}
INK, FAINT, LINE = "#222222", "#767676", "#E2E2E2"

STYLE = {
    "axes.axisbelow": True,
    "axes.edgecolor": FAINT,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.labelcolor": INK,
    "axes.labelsize": 9,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "figure.titlesize": 11,
    "font.family": "DejaVu Sans",  # ships with matplotlib: the same text everywhere
    "font.size": 9,
    "grid.color": LINE,
    "grid.linewidth": 0.6,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "svg.hashsalt": "pfl-ops",
    "text.color": INK,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "xtick.labelsize": 8.5,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    "ytick.labelsize": 8.5,
}


def partition(table: ArrayLike, classes: Sequence[str] | None = None, title: str | None = None) -> Figure:
    """Who holds what: a row a client, its samples as a bar stacked by class (as the FLIU paper's Figures 2 to 4).

    Args:
        table: number of samples of each client and class, int [K, L].
        classes: names of the classes; none: their numbers.
        title: above the picture.
    """
    counts = np.asarray(table)
    if counts.ndim != 2 or not counts.size:
        raise PflOpsError(f"a partition's table is [clients, classes], got shape {counts.shape}")
    n_clients, n_classes = counts.shape
    names = [str(i) for i in range(n_classes)] if classes is None else [str(name) for name in classes]
    if len(names) != n_classes:
        raise PflOpsError(f"the table has {n_classes} classes, but {len(names)} names were given")
    row = float(np.clip(9.0 / n_clients, 0.085, 0.3))  # inches
    height = min(row * n_clients, 14.0)
    with _style():
        from matplotlib.collections import PolyCollection
        from matplotlib.ticker import MaxNLocator

        figure = _figure(7.2, height + 1.15)
        axes = figure.add_subplot()
        colours = _class_colours(n_classes)
        gap = 0.18 if n_clients <= 50 else 0.12 if n_clients <= 200 else 0.0
        boxes, box_classes = _bars(counts, gap)
        few = counts.shape[0] * counts.shape[1] <= 500
        axes.add_collection(
            PolyCollection(
                list(boxes),
                facecolors=[colours[c] for c in box_classes],
                edgecolors="white" if few else "none",
                linewidths=0.6 if few else 0.0,
                antialiaseds=few,  # without edges, smoothing would leave white hairlines between neighbours
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
                    color=FAINT,
                )  # fmt: skip
        axes.grid(True, axis="x")
        axes.grid(False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_yticks(_client_ticks(n_clients))
        axes.set_xlabel("samples")
        axes.set_ylabel("client")
        _class_key(figure, axes, names, colours)
        if title:
            figure.suptitle(title, x=0.01, ha="left")
    return figure


def curves(records: Records, title: str | None = None) -> Figure:
    """Accuracy over rounds by stage: Acc(L), each model on its client's data, beside Acc(G), on the pooled data.

    Lines are means over clients; the band holds the clients between the 10th and the 90th percentile.

    Args:
        records: of one run, with the tracked keys of one split.
        title: above the picture.
    """
    keys = {name for _, values in records for name in values}
    split = _split(keys)
    with _style():
        from matplotlib.ticker import MaxNLocator

        figure = _figure(8.4, 3.5)
        panels = figure.subplots(1, 2, sharey=True)
        shown: dict[str, Any] = {}
        for axes, view, label in zip(panels, ("local", "global"), VIEWS, strict=True):
            for stage, colour in STAGES.items():
                start = f"{split}/{stage}/{view}"
                rounds, mean = _series(records, f"{start}/mean")
                if not len(rounds):
                    continue
                sparse = len(rounds) <= 25
                (line,) = axes.plot(
                    rounds, mean, color=colour, marker=MARKERS[stage] if sparse else "", markeredgewidth=0, zorder=3
                )
                shown.setdefault(stage, line)
                low_rounds, low = _series(records, f"{start}/q10")
                high = _series(records, f"{start}/q90")[1]
                if len(low) == len(high) and (low < high).any():
                    axes.fill_between(low_rounds, low, high, color=colour, alpha=0.13, linewidth=0, zorder=2)
            axes.set_title(label)
            axes.set_xlabel("round")
            axes.xaxis.set_major_locator(MaxNLocator(8, integer=True, steps=[1, 2, 5, 10]))
            axes.margins(x=0.02)
        _percent_axis(panels[0])
        panels[0].set_ylabel(f"{'validation' if split == 'val' else 'test'} accuracy")
        if shown:
            figure.legend(
                list(shown.values()), [MEANINGS[stage] for stage in shown], loc="outside lower center", ncols=len(shown)
            )
        if title:
            figure.suptitle(title, x=0.01, ha="left")
    return figure


def clients(accuracies: Mapping[str, ArrayLike], title: str | None = None, ylabel: str = "accuracy") -> Figure:
    """How the clients fare, one by one: their accuracies in order, and their spread, by stage.

    Args:
        accuracies: stage -> one accuracy a client [C], NaN for a client without samples; of any number each.
        title: above the picture.
        ylabel: what was scored on which data ("test accuracy, own data").
    """
    present = {}
    for stage, given in accuracies.items():
        values = np.asarray(given, dtype=np.float64).reshape(-1)
        values = np.sort(values[~np.isnan(values)])
        if len(values):
            present[stage] = values
    if not present:
        raise PflOpsError("there is no client with an accuracy to draw")
    with _style():
        figure = _figure(7.6, 3.7)
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=[2.6, 1])
        most = max(map(len, present.values()))
        for stage, values in present.items():
            colour = STAGES.get(stage, FAINT)
            ranks = (np.arange(len(values)) + 0.5) / len(values) * 100
            left.plot(
                ranks, values, color=colour, marker=MARKERS.get(stage, "o") if most <= 60 else "", markeredgewidth=0,
                label=MEANINGS.get(stage, stage),
            )  # fmt: skip
        left.set_xlim(0, 100)
        left.set_xlabel("clients, from worst to best (% of clients)")
        left.set_ylabel(ylabel)
        figure.legend(loc="outside lower center", ncols=len(present))
        _percent_axis(left)
        _boxes(right, present)
        if title:
            figure.suptitle(title, x=0.01, ha="left")
    return figure


def pareto(
    points: ArrayLike,
    labels: Sequence[str] | None = None,
    names: tuple[str, str] = VIEWS,
    chosen: int | None = None,
    title: str | None = None,
) -> Figure:
    """The trials of a study with two objectives, both to be maximised, and those that no other trial beats.

    Args:
        points: first and second objective of each trial, [n, 2]; NaN: not drawn.
        labels: a short name for each trial, written at the points of the front; none: its number.
        names: what the two objectives are.
        chosen: row of the trial that was chosen.
        title: above the picture.
    """
    table = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    texts = [str(i) for i in range(len(table))] if labels is None else [str(label) for label in labels]
    front = metrics.pareto(table)
    with _style():
        figure = _figure(5.4, 4.6)
        axes = figure.add_subplot()
        rest = ~front & ~np.isnan(table).any(axis=1)
        axes.scatter(table[rest, 0], table[rest, 1], s=20, color="#BBBBBB", linewidths=0, label="beaten by another")
        order = np.flatnonzero(front)
        order = order[np.argsort(table[order, 0], kind="stable")]
        x, y = table[order].T
        axes.plot(x, y, color=STAGES["L1"], linewidth=1.2, drawstyle="steps-pre", zorder=2)
        axes.scatter(x, y, s=34, color=STAGES["L1"], linewidths=0, zorder=3, label="Pareto front (trial)")
        if chosen is not None:
            ring: Any = {"facecolors": "none", "edgecolors": STAGES["L2"], "linewidths": 1.6}
            axes.scatter(table[chosen, 0], table[chosen, 1], s=130, **ring, zorder=4, label="chosen")
        for i in order.tolist():
            axes.annotate(texts[i], table[i], xytext=(6, 5), textcoords="offset points", fontsize=8, color=INK)
        axes.grid(True, axis="both")
        axes.margins(0.08)
        _percent_axis(axes, "both")
        axes.set_xlabel(names[0])
        axes.set_ylabel(names[1])
        figure.legend(loc="outside lower center", ncols=3, handletextpad=0.3)
        if title:
            figure.suptitle(title, x=0.01, ha="left")
    return figure


def history(
    values: Sequence[float | None],
    states: Sequence[str] | None = None,
    metric: str = "objective",
    maximise: bool = True,
    title: str | None = None,
) -> Figure:
    """A study trial by trial, and the best so far.

    Args:
        values: objective of each trial, its last one for a pruned trial; None or NaN: none (failed, running).
        states: "complete", "pruned", or anything else, of each trial; none: complete where there is a value.
        metric: the objective's name.
        maximise: whether larger is better.
        title: above the picture.
    """
    y = np.array([np.nan if value is None else value for value in values], dtype=np.float64)
    kinds = np.array(["complete"] * len(y) if states is None else [str(state).lower() for state in states], dtype=str)
    done = (kinds == "complete") & ~np.isnan(y)
    with _style():
        from matplotlib.ticker import MaxNLocator

        figure = _figure(6.6, 3.4)
        axes = figure.add_subplot()
        x = np.arange(len(y))
        pruned = (kinds == "pruned") & ~np.isnan(y)
        lost = ~done & ~pruned
        if done.any():
            best = np.maximum.accumulate(y[done]) if maximise else np.minimum.accumulate(y[done])
            axes.step(
                np.append(x[done], len(y) - 0.5), np.append(best, best[-1]), where="post", color=STAGES["L1"],
                label="best so far", zorder=2,
            )  # fmt: skip
        axes.scatter(x[done], y[done], s=26, color=STAGES["L1"], linewidths=0, zorder=3, label="finished")
        if pruned.any():
            axes.scatter(x[pruned], y[pruned], s=26, color=FAINT, marker="x", linewidths=1.2, label="stopped early")
        if lost.any():
            axes.plot(
                x[lost], np.full(int(lost.sum()), 0.015), transform=axes.get_xaxis_transform(), color=STAGES["L2"],
                marker="|", markersize=9, linestyle="", label="without a result",
            )  # fmt: skip
        axes.set_xlim(-0.6, max(len(y), 1) - 0.4)
        axes.xaxis.set_major_locator(MaxNLocator(12, integer=True, steps=[1, 2, 5, 10]))
        if metric.rpartition("/")[2] in {"mean", "worst", "q10", "q50", "q90"}:  # not acc, a sum of two shares
            _percent_axis(axes)
        axes.margins(y=0.1)
        axes.set_xlabel("trial")
        axes.set_ylabel(metric)
        figure.legend(loc="outside lower center", ncols=4, handletextpad=0.5)
        if title:
            figure.suptitle(title, x=0.01, ha="left")
    return figure


def save(figure: Figure, path: str | Path, dpi: int = 150) -> Path:
    """Write a picture as .png or .svg; the same picture gives the same bytes.

    Returns:
        The path written.
    Raises:
        PflOpsError: another ending, or the folder can't be written to.
    """
    path = Path(path)
    # what matplotlib adds of itself: when it was drawn, and by which version
    stamps: dict[str, dict[str, str | None]] = {".png": {"Software": None}, ".svg": {"Date": None, "Creator": None}}
    if path.suffix.lower() not in stamps:
        raise PflOpsError(f"a picture is written as .png or .svg, got '{path.name}'")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _style():
            figure.savefig(path, dpi=dpi, metadata=stamps[path.suffix.lower()])
    except OSError as error:
        raise PflOpsError(f"can't write the picture {path}: {error.strerror or error}") from error
    return path


def _style() -> AbstractContextManager[None]:
    """matplotlib's own defaults and ours, whatever the user's settings are; undone on leaving."""
    import matplotlib

    settings: Any = {name: value for name, value in matplotlib.rcParamsDefault.items() if "backend" not in name}
    return matplotlib.rc_context(settings | STYLE)


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _bars(counts: NDArray[Any], gap: float) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Corners [n, 4, 2] of every bar that is not empty, and their classes [n]."""
    right = counts.cumsum(axis=1)
    rows, classes = np.nonzero(counts)
    x0, x1 = (right - counts)[rows, classes], right[rows, classes]
    y0, y1 = rows - 0.5 + gap / 2, rows + 0.5 - gap / 2
    corners = np.stack([x0, y0, x1, y0, x1, y1, x0, y1], axis=1).astype(np.float64)
    return corners.reshape(-1, 4, 2), classes


def _class_colours(n_classes: int) -> list[Any]:
    if n_classes <= len(CLASSES):
        return list(CLASSES[:n_classes])
    import matplotlib

    return list(matplotlib.colormaps["viridis"](np.linspace(0.0, 1.0, n_classes)))


def _class_key(figure: Figure, axes: Axes, names: Sequence[str], colours: Sequence[Any]) -> None:
    """What the colours mean: squares by name, or a scale of class numbers where there are too many."""
    from matplotlib.patches import Patch

    if len(names) <= len(CLASSES):
        patches = [Patch(facecolor=c, label=name) for c, name in zip(colours, names, strict=True)]
        short = sum(map(len, names)) + 4 * len(names) <= 62
        axes.legend(
            handles=patches,
            title="class",
            title_fontsize=8.5,
            alignment="left",
            loc="lower left" if short else "upper left",
            bbox_to_anchor=(0, 1) if short else (1, 1),
            borderaxespad=0.2,
            borderpad=0.2 if short else 0.6,
            ncols=len(names) if short else 1,
            handlelength=0.9,
            handleheight=0.9,
            columnspacing=1.1,
            handletextpad=0.4,
        )
        return
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    n = len(names)
    scale = ScalarMappable(BoundaryNorm(np.arange(n + 1) - 0.5, n), ListedColormap(colours))
    bar = figure.colorbar(scale, ax=axes, location="top", fraction=0.04, aspect=60, pad=0.01)
    step = next(step for step in (1, 2, 5, 10, 20, 50, n) if n / step <= 14)
    ticks = range(0, n, step)
    bar.set_ticks(list(ticks), labels=[names[i] for i in ticks])
    bar.minorticks_off()
    bar.ax.tick_params(length=0)
    outline: Any = bar.outline
    outline.set_visible(False)
    bar.set_label("class")


def _client_ticks(n: int) -> list[int]:
    step = 1 if n <= 30 else 5 if n <= 60 else 10 if n <= 200 else max(50, n // 1000 * 100)
    return list(range(0, n, step))


def _percent_axis(axes: Axes, which: str = "y") -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for axis in (axes.xaxis, axes.yaxis) if which == "both" else (axes.yaxis,):
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
        axis.set_major_formatter(FuncFormatter(_as_percent))


def _as_percent(share: float, _: int | None = None) -> str:
    return f"{100 * share:.4g} %"


def _boxes(axes: Axes, present: Mapping[str, NDArray[np.float64]]) -> None:
    """Every client as a dot, with the quartiles, the median and the mean."""
    for i, (stage, values) in enumerate(present.items()):
        colour = STAGES.get(stage, FAINT)
        # dots side by side without chance: neighbours in value take turns
        turn = np.arange(len(values)) * 0.6180339887 % 1.0 - 0.5
        axes.plot(
            i + 0.42 * turn, values, color=colour, marker="o", markersize=3, markeredgewidth=0, linestyle="", alpha=0.4,
            rasterized=len(values) > 3000,
        )  # fmt: skip
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        axes.fill_between([i - 0.3, i + 0.3], low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot([i - 0.3, i + 0.3], [middle, middle], color=colour, linewidth=2.0)
        axes.plot(i, values.mean(), marker="D", markersize=5, color="white", mec=colour, mew=1.3)
    axes.set_xlim(-0.6, len(present) - 0.4)
    axes.set_xticks(range(len(present)), list(present))
    axes.set_xlabel("quartiles, median, mean (◇)")


def _series(records: Records, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The rounds in which a key was tracked, and its values there."""
    pairs = [(number, values[name]) for number, values in records if name in values]
    return np.array([p[0] for p in pairs], dtype=np.int64), np.array([p[1] for p in pairs], dtype=np.float64)


def _split(names: set[str]) -> str:
    """The split of a run's keys; a run has one."""
    found = [split for split in ("test", "val") if any(name.startswith(f"{split}/") for name in names)]
    if not found:
        raise PflOpsError("these records hold no accuracies (keys val/... or test/...)")
    return found[0]
