"""Pictures of a study by Optuna's own plots: importance, slices, contour, parallel coordinates, timeline, EDF.

Labels are the fields' paths without their section, with the paper's symbols. matplotlib's and scikit-learn's parts are
imported when a picture is drawn; matplotlib's settings are left as they were.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from textwrap import fill
from typing import TYPE_CHECKING, Any

import optuna
import pandas as pd
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from pfl_ops.config.experiment import Experiment
from pfl_ops.errors import by_key, count, in_a_line
from pfl_ops.spaces import decoded
from pfl_ops.spaces.space import VARIANT
from pfl_ops.tuning.studies.objective import Objective
from pfl_ops.tuning.studies.study_storage import DIVERGED, StudyStorage
from pfl_ops.units import PERCENT, heading, unit_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FEWEST = 5  # complete trials of a picture of parameters
FEWEST_OF_A_MODEL = 10  # complete trials of importance and contour, which fit a model or interpolate
MOST_AXES = 10  # parameters in one picture; more would not be readable
TREES = 32  # of fANOVA's forest
LINE = 80  # characters of a line of text above a picture

IMPORTANCE = {"fanova": "fANOVA", "ped_anova": "PED-ANOVA, of the best tenth"}
NAMES = ("importance_fanova", "importance_ped_anova", "slice", "contour", "parallel_coordinate", "edf", "timeline")


class Pictures:
    """The pictures of a study, drawn on demand.

    Args:
        study_storage: the study. experiment: as its trials have it. goal: what it optimises.
    Attributes:
        skipped: name of a picture -> cause, of those that the study is too small for.
        importance: parameter, fanova, ped_anova: shares that sum to 1; empty: not known.
    """

    def __init__(self, study_storage: StudyStorage, experiment: Experiment, goal: Objective) -> None:
        self.goal = goal
        self.trials = [trial for _, trial in study_storage.trials() if trial.state.is_finished()]
        self.names = labels(self.trials, experiment)
        self.study = _renamed(self.trials, self.names, study_storage.study.directions)
        self.complete = self.study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
        self.varied = _varied(self.complete)
        self.skipped = {name: why for name in NAMES if (why := self._unfit(name))}
        self._importance: dict[str, dict[str, float]] = {}

    @property
    def drawable(self) -> tuple[str, ...]:
        """Names of the pictures that the study is large enough for."""
        return tuple(name for name in NAMES if name not in self.skipped)

    def __str__(self) -> str:
        """The pictures that are not drawn, in one line; "": all are."""
        causes = by_key((why, name) for name, why in self.skipped.items())
        return "; ".join(f"no picture {', '.join(names)}: {why}" for why, names in causes.items())

    @property
    def importance(self) -> pd.DataFrame:
        columns = {kind: self._shares(kind) for kind in IMPORTANCE if f"importance_{kind}" in self.drawable}
        if not columns:
            return pd.DataFrame(columns=["parameter", *IMPORTANCE])
        return pd.DataFrame(columns).rename_axis("parameter").reset_index()

    def draw(self, name: str) -> "Figure":
        """Draw one of `drawable`."""
        with _plots() as plots:
            if name.startswith("importance"):
                return self._bars(name.removeprefix("importance_"))
            return in_theme(self._with_units(getattr(self, f"_{name}")(plots)))

    def slices(self) -> "dict[str, Callable[[], Figure]]":
        """Return what draws the slice of each parameter, by its label."""
        return {name: partial(self._one_slice, name) for name in self.varied[:MOST_AXES]}

    def _one_slice(self, name: str) -> "Figure":
        with _plots() as plots:
            figure = _figure_of(plots.plot_slice(self.study, params=[name], target_name=self._goal))
            figure.set_size_inches(3.6, 3.2)
            self._with_units(figure)
            for one in figure.axes:
                _turn_words(one)
                one.set_title("")
            figure.axes[0].set(xlabel="", ylabel="")
            self._colour_by_trial(figure)
            figure.tight_layout()
            return in_theme(figure)

    def each(self) -> "Iterator[tuple[str, Figure]]":
        """Draw all; one that fails is skipped, with the error as its cause."""
        for name in self.drawable:
            try:
                figure = self.draw(name)
                figure.draw_without_rendering()
            except Exception as error:  # a picture must not cost a study its result
                self.skipped[name] = in_a_line(error)
            else:
                yield name, figure

    # -- the pictures ------------------------------------------------------------------------------------------------

    def _bars(self, kind: str) -> "Figure":
        from pfl_ops.figures import canvas, style

        shares = sorted(self._shares(kind).items(), key=lambda pair: pair[1])
        with style.style():
            figure, axes = canvas.single(6.4, 1.1 + 0.36 * len(shares))
            bars = axes.barh([name for name, _ in shares], [share for _, share in shares], color=style.current().rest)
            axes.bar_label(bars, [f"{share:.2f}" for _, share in shares], padding=3)
            axes.set_xlim(0, 1.12 * max((share for _, share in shares), default=1.0) or 1.0)
            rest = [name for name in self.varied if name not in dict(shares)]
            axes.set_xlabel(f"importance ({IMPORTANCE[kind]}), {len(self.complete)} complete trials")
            if rest:
                canvas.headline(figure, fill(f"Not in all trials, so without: {', '.join(rest)}", LINE))
        return figure

    def _slice(self, plots: Any) -> "Figure":
        shown = self.varied[:MOST_AXES]
        axes = plots.plot_slice(self.study, params=shown, target_name=self._goal)
        figure = _figure_of(axes)
        figure.set_size_inches(2.2 + 2.6 * len(shown), 4)
        for one in figure.axes:
            _turn_words(one)
        self._colour_by_trial(figure)
        figure.suptitle("")
        figure.set_layout_engine("constrained" if len(shown) > 1 else "tight")  # one plot's bar needs the latter
        return figure

    def _contour(self, plots: Any) -> "Figure":
        """The two most important numbers; a choice has nothing between its values."""
        shares = self._shares("fanova")
        first, second = sorted(self._numbers(), key=lambda name: -shares.get(name, 0.0))[:2]
        figure = _figure_of(plots.plot_contour(self.study, params=[first, second], target_name=self._goal))
        figure.set_size_inches(6.6, 4.8)
        figure.axes[0].set_title("")
        strongest_best = "Blues" if self.goal.modes[0] == "max" else "Blues_r"  # Optuna has it the other way round
        for artist in figure.axes[0].collections:
            if artist.get_array() is not None:
                artist.set_cmap(strongest_best)
        return figure

    def _parallel_coordinate(self, plots: Any) -> "Figure":
        shown = self.varied[:MOST_AXES]
        figure = _figure_of(plots.plot_parallel_coordinate(self.study, params=shown, target_name=self._goal))
        figure.set_size_inches(3 + 1.4 * len(shown), 5.2)
        figure.subplots_adjust(left=0.12, bottom=0.2)
        figure.axes[0].set_title("")
        for axes, name in zip(figure.axes, (self._goal, "", *sorted(shown)), strict=True):
            if name in (self._goal, *self._common()):  # others have marks for trials without a value
                self._set_units(axes, "y", name)
        figure.axes[0].set_xticks(range(len(shown) + 1), [self._goal, *sorted(shown)], rotation=20, ha="right")
        for one in figure.axes:
            for tick in one.get_yticklabels():
                tick.set_bbox({"edgecolor": "none", "alpha": 0.7, "pad": 0.6})
        return figure

    def _edf(self, plots: Any) -> "Figure":
        axes = plots.plot_edf(self.study, target_name=self._goal)
        axes.set_title("")
        axes.set_ylabel("share of the complete trials")
        return _figure_of(axes)

    def _timeline(self, plots: Any) -> "Figure":
        axes = plots.plot_timeline(self.study)
        axes.set_title("")
        axes.set_xlabel("time")
        figure = _figure_of(axes)
        figure.set_size_inches(7.5, max(3.0, min(9.0, 1.5 + 0.2 * len(self.trials))))
        figure.tight_layout()
        return figure

    # -- parts -------------------------------------------------------------------------------------------------------

    def _colour_by_trial(self, figure: "Figure") -> None:
        """Give a trial one colour in the slices of all parameters, that of the bar.

        Optuna spreads the colours of each slice over the trials that have the parameter.
        """
        numbers = [trial.number for trial in self.complete]
        for axes in figure.axes:
            for artist in axes.collections:
                if artist.get_array() is not None:
                    artist.set_clim(min(numbers), max(numbers))

    @property
    def _goal(self) -> str:
        return heading(self.goal.metrics[0])

    def _with_units(self, figure: "Figure") -> "Figure":
        """Set the units of all axes by their labels, see `_set_units`."""
        for axes in figure.axes:
            self._set_units(axes, "x", axes.get_xlabel())
            self._set_units(axes, "y", axes.get_ylabel())
        return figure

    def _set_units(self, axes: Any, which: str, name: str) -> None:
        """Set percents for accuracies, whole numbers for trials and whole parameters; Optuna has fractions."""
        from pfl_ops.figures.parts import percent_axis, whole_numbers

        kinds = _distributions(self.complete)
        scale = axes.get_xscale() if which == "x" else axes.get_yscale()
        if name == self._goal and unit_of(self.goal.metrics[0]) == PERCENT:
            percent_axis(axes, which)
        elif scale == "linear" and (name == "Trial" or isinstance(kinds.get(name), IntDistribution)):
            whole_numbers(axes, 6, which)

    def _unfit(self, name: str) -> str:
        """The cause why a picture is not drawn; "": there is none."""
        if name == "timeline":
            return "" if self.trials else "no trial has ended"
        if not self.goal.single:
            return "there are several objectives"
        models = name == "contour" or name.startswith("importance")
        least = FEWEST_OF_A_MODEL if models else FEWEST
        if len(self.complete) < least:
            return f"{count(len(self.complete), 'complete trial')}, it takes {least}"
        if len({trial.values[0] for trial in self.complete}) < 2:
            return "all complete trials have the same value"
        if name == "edf":
            return ""
        if not self.varied:
            return "no parameter varies"
        if len(self.varied) < 2 and name != "slice":
            return "one parameter"
        if name == "contour" and len(self._numbers()) < 2:
            return "fewer than two numbers vary in all trials"
        if name.startswith("importance") and len(self._common()) < 2:
            return "fewer than two parameters vary in all trials"
        return ""

    def _common(self) -> list[str]:
        """Parameters that vary and that every complete trial has, over one range."""
        space = optuna.search_space.intersection_search_space(self.complete)
        return [name for name in self.varied if name in space]

    def _numbers(self) -> list[str]:
        kinds = _distributions(self.complete)
        return [n for n in self._common() if not isinstance(kinds[n], optuna.distributions.CategoricalDistribution)]

    def _shares(self, kind: str) -> dict[str, float]:
        if kind not in self._importance:
            from optuna.importance import FanovaImportanceEvaluator, PedAnovaImportanceEvaluator, get_param_importances

            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fanova = FanovaImportanceEvaluator(n_trees=TREES, seed=0)
                evaluator = fanova if kind == "fanova" else PedAnovaImportanceEvaluator()
                self._importance[kind] = get_param_importances(self.study, evaluator=evaluator, params=self._common())
        return self._importance[kind]


def labels(trials: Sequence[FrozenTrial], experiment: Experiment) -> dict[str, str]:
    """Return Optuna's name of each parameter -> a short label: "lr η", "gamma.kind".

    A path stands without its first part, unless two would be the same then. The ranges that a path has under different
    conditions have one label if they are numbers on one scale, else one each: "lr η (sgd)".
    """
    kinds = _distributions(trials)
    symbols: dict[str, str] = {}
    for trial in trials:
        if any(name.partition(VARIANT)[0] not in symbols for name in trial.params):
            symbols |= {field.path: field.symbol for field in experiment.override(decoded(trial.params)).fields()}
    paths_of_all = dict.fromkeys(name.partition(VARIANT)[0] for name in kinds)
    ends = by_key((path.partition(".")[2] or path, path) for path in paths_of_all)
    found = {}
    for end, paths in ends.items():
        for path in paths:
            variants = [name for name in kinds if name.partition(VARIANT)[0] == path]
            text = " ".join(filter(None, (end if len(paths) == 1 else path, symbols.get(path, ""))))
            apart = len({_scale(kinds[name]) for name in variants}) > 1 or _scale(kinds[variants[0]]) is None
            for name in variants:
                found[name] = f"{text} ({name.partition(VARIANT)[2]})" if apart and len(variants) > 1 else text
    return found


def _distributions(trials: Sequence[FrozenTrial]) -> dict[str, BaseDistribution]:
    """Return the distribution of each parameter that some trial has, by its name."""
    return {name: kind for trial in trials for name, kind in trial.distributions.items()}


def _scale(kind: BaseDistribution) -> tuple[str, bool] | None:
    """Return the kind of number and if its scale is logarithmic; None: it is a choice, or has steps."""
    if isinstance(kind, FloatDistribution) and kind.step is None:
        return "float", kind.log
    return ("int", kind.log) if isinstance(kind, IntDistribution) and kind.step == 1 else None


def _joined(kinds: Sequence[BaseDistribution]) -> BaseDistribution:
    """Return the range from the lowest to the highest end of ranges on one scale."""
    first = kinds[0]
    if isinstance(first, FloatDistribution | IntDistribution) and any(kind != first for kind in kinds):
        low, high = min(kind.low for kind in kinds), max(kind.high for kind in kinds)  # type: ignore[attr-defined]
        return type(first)(low, high, log=first.log)
    return first


def _renamed(
    trials: Sequence[FrozenTrial], names: Mapping[str, str], directions: Sequence[StudyDirection]
) -> optuna.Study:
    """A study in memory of the same trials, with other names for its parameters; those that diverged have failed."""
    study = optuna.create_study(directions=directions)
    ranges = by_key((names[name], kind) for trial in trials for name, kind in trial.distributions.items())
    whole = {label: _joined(kinds) for label, kinds in ranges.items()}
    for trial in trials:
        renamed = copy(trial)
        renamed.params = {names[name]: value for name, value in trial.params.items()}
        renamed.distributions = {names[name]: whole[names[name]] for name in trial.distributions}
        if DIVERGED in trial.user_attrs:
            renamed.state, renamed.values = TrialState.FAIL, None
        study.add_trial(renamed)
    return study


def _varied(trials: list[FrozenTrial]) -> list[str]:
    """Parameters with more than one value, in the order of the space."""
    values = by_key((name, value) for trial in trials for name, value in trial.params.items())
    return [name for name, known in values.items() if len(set(known)) > 1]


def _figure_of(axes: Any) -> "Figure":
    figure: Figure = (axes if hasattr(axes, "figure") else axes.flat[0]).figure
    return figure


def in_theme(figure: "Figure") -> "Figure":
    """Give one of Optuna's pictures the inks of the theme that is in force, and return it.

    Colours of values go from the theme's faint one to its strongest one: Optuna's go from white, which a light page
    does not show, to a dark blue, which is least visible on a dark page. A picture may be inked again, for another
    theme: it need not be drawn for each.
    """
    from matplotlib.colors import LinearSegmentedColormap

    from pfl_ops.figures import style

    theme = style.current()
    ramp = LinearSegmentedColormap.from_list("ramp", theme.ramp[1:])
    ticks = [
        (axis, axis.get_major_locator(), axis.get_major_formatter())
        for axes in figure.axes
        for axis in (axes.xaxis, axes.yaxis)
    ]
    for artist in [artist for axes in figure.axes for artist in axes.collections]:
        if artist.get_array() is not None:
            is_reversed = artist.get_cmap().name.endswith("_r")  # a small value is the strongest one
            artist.set_cmap(ramp.reversed() if is_reversed else ramp)
    for axis, locator, formatter in ticks:  # a bar of colours that is drawn again loses the units that it was given
        axis.set_major_locator(locator)
        axis.set_major_formatter(formatter)
    figure.set_facecolor(theme.paper)
    for axes in figure.axes:
        axes.set_facecolor(theme.paper)
        axes.tick_params(which="both", colors=theme.ink)
        for line in (*axes.get_xgridlines(), *axes.get_ygridlines()):
            line.set_color(theme.line)
        for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
            label.set(color=theme.ink, fontsize=style.NORMAL)
        for spine in axes.spines.values():
            spine.set_edgecolor(theme.faint)
        for tick in axes.get_yticklabels():
            if ground := tick.get_bbox_patch():
                ground.set_facecolor(theme.paper)
        if legend := axes.get_legend():
            legend.get_frame().set(facecolor=theme.paper, edgecolor=theme.line)
            for text in legend.get_texts():
                text.set_color(theme.ink)
    return figure


def _turn_words(axes: Any) -> None:
    """Turn the labels of values on the x axis upright where they are words, without quotation marks."""
    ticks = [tick.get_text() for tick in axes.get_xticklabels()]
    if any(text.startswith("'") for text in ticks):
        axes.set_xticks(axes.get_xticks(), [text.strip("'") for text in ticks], rotation=90)


@contextmanager
def _plots() -> Iterator[Any]:
    """Optuna's plots by matplotlib; its settings and open figures are as before, afterwards."""
    import matplotlib
    from matplotlib import pyplot

    before = set(pyplot.get_fignums())
    with warnings.catch_warnings(), matplotlib.rc_context():
        warnings.simplefilter("ignore")  # plots are experimental, and some remark on a few trials
        import optuna.visualization.matplotlib as plots

        try:
            yield plots
        finally:
            for number in set(pyplot.get_fignums()) - before:
                pyplot.close(number)
