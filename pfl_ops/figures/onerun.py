"""One run: its accuracy over rounds, and its clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pfl_ops.errors import PflOpsError
from pfl_ops.figures import canvas, style
from pfl_ops.figures.looks import shared_dashes
from pfl_ops.figures.parts import beside, percent_axis, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Records: TypeAlias = Sequence[tuple[int, Mapping[str, float]]]
"""(finished rounds, tracked metrics), in the order of rounds."""

STAGES = ("L1", "L2", "G")
MARKERS = {"L1": "o", "L2": "s", "G": "D"}
VIEWS = ("Acc(L), own data", "Acc(G), pooled data")
BAND = "band: middle 80 % of clients"
MEANINGS = {"L1": "L1, after the update", "L2": "L2, after local training", "G": "G, global model"}


def curves(records: Records, title: str | None = None) -> Figure:
    """Accuracy over rounds by stage: Acc(L), each model on its client's data, beside Acc(G), on the pooled data.

    Lines are means over clients; the band holds the clients between the 10th and the 90th percentile.

    Args:
        records: of one run, with the tracked keys of one split. A line goes through rounds without a value: a key that
            is missing, or is NaN.
        title: above the picture.
    """
    from matplotlib.patches import Patch

    split = _split({name for _, values in records for name in values})
    shades = stage_colours()
    with style.style():
        figure, panels = canvas.percent_panels(8.4, 3.5, title, top=0.3)
        shown: dict[str, Any] = {}
        banded = False
        drawn: list[NDArray[np.float64]] = []
        for axes, view, label in zip(panels, ("local", "global"), VIEWS, strict=True):
            means = {stage: _series(records, f"{split}/{stage}/{view}/mean") for stage in shades}
            means = {stage: series for stage, series in means.items() if len(series[0])}
            dashes = shared_dashes(means)  # L1 and G are one model in methods with one model for all
            drawn += [mean for _, mean in means.values()]
            for stage, (rounds, mean) in means.items():
                start, colour = f"{split}/{stage}/{view}", shades[stage]
                (line,) = axes.plot(
                    rounds, mean, color=colour, linestyle=dashes.get(stage, "-"), markeredgewidth=0, zorder=3,
                    marker=MARKERS[stage] if len(rounds) <= 25 else "",
                )  # fmt: skip
                shown.setdefault(MEANINGS[stage], line)
                low_rounds, low = _series(records, f"{start}/q10")
                high = _series(records, f"{start}/q90")[1]
                if len(low) == len(high) and (low < high).any():
                    axes.fill_between(low_rounds, low, high, color=colour, alpha=0.13, linewidth=0, zorder=2)
                    banded = True
            axes.set_title(label)
            axes.set_xlabel("round")
            whole_numbers(axes)
            axes.margins(x=0.02)
        percent_axis(panels[0], within=drawn)
        panels[0].set_ylabel(f"{'validation' if split == 'val' else 'test'} accuracy")
        if banded:
            shown[BAND] = Patch(color=style.current().faint, alpha=0.3, linewidth=0)
        if shown:
            figure.legend(list(shown.values()), list(shown), loc="lower center", ncols=len(shown))
    return figure


def clients(accuracies: Mapping[str, ArrayLike], ylabel: str = "accuracy") -> Figure:
    """Draw the clients one by one: their accuracies in order, and their spread, by stage.

    Args:
        accuracies: stage -> one accuracy a client [C], NaN for a client without samples; of any number each.
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
    with style.style():
        figure, (left, right) = canvas.percent_panels(7.6, 3.7, None, top=0.12, width_ratios=[2.6, 1])
        shades = stage_colours()
        most = max(map(len, present.values()))
        ranked = {
            stage: ((np.arange(len(values)) + 0.5) / len(values) * 100, values) for stage, values in present.items()
        }
        dashes = shared_dashes(ranked)
        for stage, (ranks, values) in ranked.items():
            colour = shades.get(stage, style.current().faint)
            left.plot(
                ranks, values, color=colour, marker=MARKERS.get(stage, "o") if most <= 60 else "", markeredgewidth=0,
                linestyle=dashes.get(stage, "-"), label=MEANINGS.get(stage, stage),
            )  # fmt: skip
        left.set_xlim(0, 100)
        left.set(xlabel="clients, from worst to best (% of clients)", ylabel=ylabel)
        figure.legend(loc="lower center", ncols=len(present))
        _boxes(right, present)
        percent_axis(left, within=present.values())
    return figure


def stage_colours() -> dict[str, str]:
    """The colour of each stage in the theme of now."""
    return dict(zip(STAGES, style.current().palette, strict=False))


def _boxes(axes: Axes, present: Mapping[str, NDArray[np.float64]]) -> None:
    """Every client as a dot, with the quartiles, the median and the mean."""
    shades = stage_colours()
    for i, (stage, values) in enumerate(present.items()):
        colour = shades.get(stage, style.current().faint)
        axes.plot(
            i + 0.42 * beside(len(values)), values, color=colour, marker="o", markersize=3, markeredgewidth=0,
            linestyle="", alpha=0.4, rasterized=len(values) > 3000,
        )  # fmt: skip
        low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
        axes.fill_between([i - 0.3, i + 0.3], low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot([i - 0.3, i + 0.3], [middle, middle], color=colour, linewidth=2.0)
        axes.plot(i, values.mean(), marker="D", markersize=5, color=style.current().paper, mec=colour, mew=1.3)
    axes.set_xlim(-0.6, len(present) - 0.4)
    axes.set_xticks(range(len(present)), list(present))
    axes.set_xlabel("quartiles, median, mean (◇)")


def _series(records: Records, name: str) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The rounds in which a key has a value, and its values: a line goes through rounds without one."""
    found = [(number, values.get(name, np.nan)) for number, values in records]
    pairs = [(number, value) for number, value in found if np.isfinite(value)]
    return np.array([p[0] for p in pairs], dtype=np.int64), np.array([p[1] for p in pairs], dtype=np.float64)


def _split(names: set[str]) -> str:
    """The split of a run's keys; a run has one."""
    found = [split for split in ("test", "val") if any(name.startswith(f"{split}/") for name in names)]
    if not found:
        raise PflOpsError("these records hold no accuracies (keys val/... or test/...)")
    return found[0]
