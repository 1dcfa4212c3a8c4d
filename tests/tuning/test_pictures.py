"""Pictures of a study: labels, the ones that it is too small for, and settings of matplotlib that stay as they were."""

import itertools
from types import SimpleNamespace

import matplotlib
import optuna
import pandas as pd
import pytest
from matplotlib import pyplot
from matplotlib.collections import PathCollection
from matplotlib.colors import to_hex
from optuna.trial import TrialState

from pfl_ops import figures
from pfl_ops.cli.benchmark import _shared
from pfl_ops.cli.study_page import page, write_page
from pfl_ops.config.experiment import Experiment
from pfl_ops.display.setting_cards import shared
from pfl_ops.reports.pages.document import Picture
from pfl_ops.tuning import Study
from pfl_ops.tuning.findings.pictures import NAMES, Pictures, in_theme
from pfl_ops.tuning.session.confirm import Confirmation
from pfl_ops.tuning.studies import study_database
from pfl_ops.tuning.studies import study_storage as study_storages
from pfl_ops.tuning.studies.objective import Objective
from pfl_ops.tuning.studies.study_storage import StudyStorage

pytestmark = pytest.mark.real_pictures
ONE = Objective(("val/L1/acc",), ("max",))


@pytest.fixture
def pictures(tmp_path):
    """Pictures of a study with so many complete trials; its value depends on the learning rate alone."""

    def make(complete, *, goal=ONE, only_lr=False, value=lambda lr: -lr):
        study_storage = StudyStorage("s", study_database.storage(str(tmp_path / "s.log")), goal, {"digest": "d"})
        study_storage.study.sampler = optuna.samplers.RandomSampler(seed=0)
        for _ in range(complete):
            trial = study_storage.study.ask()
            adam = not only_lr and trial.suggest_categorical("training.optimiser", ["sgd", "adam"]) == "adam"
            low, high = (1e-4, 0.05) if adam else (1e-3, 0.5)
            lr = trial.suggest_float("training.lr@adam" if adam else "training.lr@sgd", low, high, log=True)
            if not only_lr:
                trial.suggest_int("training.local_epochs", 1, 5)
                if trial.suggest_categorical("algorithm.gamma.kind", ["fixed", "adaptive"]) == "fixed":
                    trial.suggest_float("algorithm.gamma.value", 0, 1)
            study_storage.study.tell(trial, [value(lr)] * len(goal.metrics))
        trial = study_storage.study.ask()
        trial.suggest_float("training.lr@sgd", 1e-3, 0.5, log=True)
        study_storage.study.tell(trial, state=TrialState.PRUNED)
        return Pictures(study_storage, Experiment.of("fliu"), goal)

    return make


@pytest.fixture
def study(pictures):
    """A study of so many trials, confirmed with two new seeds and not tested."""

    def make(complete):
        drawn = pictures(complete)
        values = [trial.values[0] for trial in drawn.complete]
        rows = {"trial": range(complete), "state": "complete", "rounds": 2, "seconds": 1.5, "error": ""}
        table = pd.DataFrame({**rows, ONE.metrics[0]: values, "training.local_epochs": 3})
        best, second = table[ONE.metrics[0]].nlargest(2).index
        again = {int(best): {1000: 0.9, 1001: 0.8}, int(second): {1000: 0.7, 1001: 0.75}}
        confirmed = Confirmation(ONE.metrics[0], True, again, {}, int(best), (1000, 1001), {int(second): 0.4})
        point, value = {"training.local_epochs": 3}, {ONE.metrics[0]: values[best]}
        about = {"confirmation": confirmed, "pictures": drawn, "ended": "the samples were spent"}
        return Study("s", None, ONE, point, int(best), value, Experiment.of("fliu"), table, **about)

    return make


def test_a_study_has_a_page_with_its_tables_and_pictures(study, tmp_path):
    one = study(12)
    html = write_page(one, tmp_path / "reports" / "s").read_text(encoding="utf-8")
    text = (tmp_path / "reports" / "s" / "report.md").read_text(encoding="utf-8")
    assert "Study s" in html and "the samples were spent" in text and "not separated" in text
    assert f"| \\*{one.trial:03d} | 90.0 % | 80.0 % |" in text
    assert "| training.local\\_epochs | 3 |" in text
    trials = pd.read_csv(tmp_path / "reports" / "s" / "tables" / "trials.csv")
    assert trials["trial"].tolist() == list(range(12))
    drawn = {path.stem for path in (tmp_path / "reports" / "s" / "figures").glob("*.svg")}
    assert drawn == {*NAMES, "trials"}
    for label in ("lr η", "local_epochs E"):  # a panel each, beside the whole picture in its file
        assert f">{label}<" in html
    svg = html.split("Share of the complete trials")[1]  # from its description to its caption
    assert "<path" in svg and "var(--" in svg, "its inks are those of the page's theme"


def test_a_page_says_which_pictures_are_missing(study, tmp_path):
    one = study(3)
    assert [picture.name for picture in page(one).each(Picture)] == ["trials", "timeline"]
    text = write_page(one, tmp_path).with_name("report.md").read_text(encoding="utf-8")
    assert "3 complete trials, it takes 5" in text


def test_a_page_says_how_all_trials_train(study, tmp_path):
    """FLIU's recommended optimiser is held; the local epochs vary."""
    text = write_page(study(3), tmp_path).with_name("report.md").read_text(encoding="utf-8")
    [line] = [line for line in text.splitlines() if "optimiser adam" in line]
    assert "batch\\_size 50" in line and "epochs" not in line


def test_a_page_of_given_clients_names_no_number():
    """A data set's own clients (`natural`) are as many as it has."""
    assert shared(Experiment.of("fliu", dataset="digits", clients=7))["partition"].startswith("lsqs, 7 clients: ")
    assert shared(Experiment.of("fliu", partition="natural"))["partition"].startswith("natural, clients as given")


def test_settings_without_a_value_that_have_one_by_default_are_named():
    """Of full batches and steps in place of epochs."""
    told = shared(Experiment.of("fedavg", dataset="digits", batch_size=None, local_steps=3))["training"]
    assert told.startswith("20 rounds: local_epochs none, local_steps 3, batch_size none, ") and "weights" not in told


def test_pages_say_held_settings_of_data_and_participation():
    """α and the cohort's size decide the result; the learning rate varies, and the methods differ in the optimiser."""
    held = {"dataset": "digits", "partition": "dirichlet", "alpha": 0.3, "participation": 0.2, "data.scaling": "half"}
    experiments = [Experiment.of(name, **held, optimiser=how) for name, how in (("ditto", "sgd"), ("fedavg", "adam"))]
    studies = {
        e.algorithm.name: SimpleNamespace(experiment=e, table=pd.DataFrame({"training.lr": []})) for e in experiments
    }
    told = _shared(SimpleNamespace(studies=studies, tests=pd.DataFrame({"seed": [0, 1, 0, 1]})))
    assert told["data"].startswith("digits, ") and "scaling half" in told["data"]
    assert "alpha 0.3" in told["partition"] and "share 0.2" in told["participation"]
    assert told["training"].startswith("20 rounds: local_epochs 1, batch_size 50, lr_decay 1.0, ")
    assert told["seeds"] == "0, 1" and "method" not in told


def test_labels_have_symbols_and_join_the_ranges_of_one_path(pictures):
    """η under SGD in [0.001, 0.5] and under Adam in [0.0001, 0.05] is one axis, [0.0001, 0.5]."""
    found = pictures(12)
    assert found.names == {
        "training.optimiser": "optimiser",
        "training.lr@sgd": "lr η",
        "training.lr@adam": "lr η",
        "training.local_epochs": "local_epochs E",
        "algorithm.gamma.kind": "gamma.kind γ",
        "algorithm.gamma.value": "gamma.value γ",
    }
    kinds = {trial.distributions["lr η"] for trial in found.complete}
    assert kinds == {optuna.distributions.FloatDistribution(1e-4, 0.5, log=True)}


def test_importance_finds_the_parameter_that_decides(pictures):
    """The value is −η. gamma.value γ exists in some trials alone: it is left out, and the picture says so."""
    found = pictures(30)
    assert found.drawable == NAMES and str(found) == ""
    table = found.importance.set_index("parameter")
    assert table["fanova"].idxmax() == "lr η" and table["fanova"]["lr η"] > 0.5
    assert table.sum().tolist() == pytest.approx([1, 1]) and "gamma.value γ" not in table.index
    figure = found.draw("importance_fanova")
    [axes] = figure.axes
    assert axes.get_xlabel() == "importance (fANOVA), 30 complete trials"
    assert figure.get_suptitle() == "Not in all trials, so without: gamma.value γ"
    assert {tick.get_text() for tick in axes.get_yticklabels()} == set(table.index)


def test_pictures_are_drawn_and_leave_matplotlib_as_it_was(pictures):
    before, opened = dict(matplotlib.rcParams), pyplot.get_fignums()
    found = pictures(12)
    drawn = dict(found.each())
    assert list(drawn) == list(NAMES) and found.skipped == {}
    assert dict(matplotlib.rcParams) == before and pyplot.get_fignums() == opened
    contour = drawn["contour"].axes[0]
    assert {contour.get_xlabel(), contour.get_ylabel()} == {"lr η", "local_epochs E"}
    assert drawn["parallel_coordinate"].axes[0].get_xticklabels()[0].get_text() == "Acc(L)+Acc(G)"
    assert len(drawn["timeline"].axes[0].patches) == 13


def shown(axis):
    """The labels of its ticks."""
    return [text.get_text() for text in axis.get_ticklabels()]


def test_a_trial_has_one_colour_in_the_slices_of_all_parameters(pictures):
    """γ's value exists in some trials alone: its slice had the whole range of colours for these, unlike the bar."""
    found = pictures(12)
    drawn = [found.draw("slice"), *(draw() for draw in found.slices().values())]
    there = [artist for figure in drawn for axes in figure.axes for artist in axes.collections]
    dots = [one for one in there if isinstance(one, PathCollection) and one.get_array() is not None]
    assert len(dots) == 10 and {artist.get_clim() for artist in dots} == {(0, 11)}


@pytest.mark.parametrize(("modes", "best"), [(("max",), -1), (("min",), 0)])
def test_values_have_the_colours_of_the_theme(pictures, modes, best):
    """The best line is the strongest one on a light and on a dark page, and no line has the colour of the page."""
    found = pictures(12, goal=Objective(ONE.metrics, modes))
    figure, contour = found.draw("parallel_coordinate"), found.draw("contour")
    for theme in ("light", "dark"):
        with figures.theme(theme) as shades:
            axes, bar = in_theme(figure).axes[:2]
            (lines,) = axes.collections
            assert shown(bar.yaxis)[0].endswith(" %")
            ends = [to_hex(lines.to_rgba(value)).upper() for value in lines.get_clim()]
            assert ends[best] == shades.ramp[-1].upper() and ends[-1 - best] == shades.ramp[1].upper()
            (filled,) = (a for a in in_theme(contour).axes[0].collections if getattr(a, "filled", False))
            assert to_hex(filled.get_cmap()(1.0 if best else 0.0)).upper() == shades.ramp[-1].upper()


def test_timeline_of_a_trial_that_diverged_says_fail(tmp_path):
    """Optuna has it as PRUNED, which would say that it was stopped early."""
    study_storage = StudyStorage("s", study_database.storage(str(tmp_path / "s.log")), ONE, {"digest": "d"})
    for state in (TrialState.COMPLETE, TrialState.PRUNED, TrialState.PRUNED):
        trial = study_storage.study.ask()
        trial.suggest_float("training.lr", 0.0, 1.0)
        trial.report(0.9, 1)
        if trial.number == 2:
            trial.set_user_attr(study_storages.DIVERGED, True)
        study_storage.study.tell(trial, 0.5 if state is TrialState.COMPLETE else None, state=state)
    axes = Pictures(study_storage, Experiment.of("fliu"), ONE).draw("timeline").axes[0]
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {"COMPLETE", "PRUNED", "FAIL"}


def test_texts_of_a_picture_do_not_overlap(pictures):
    """Labels of axes, and labels of values on the x axis; those of the parallel coordinates are tilted boxes."""
    found = pictures(12)
    for name in ("importance_fanova", "importance_ped_anova", "slice", "contour", "edf", "timeline"):
        figure = found.draw(name)
        figure.draw_without_rendering()
        titles = [text for axes in figure.axes for text in (axes.xaxis.label, axes.yaxis.label) if text.get_text()]
        boxes = [text.get_window_extent() for text in titles]
        assert all(figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1 for box in boxes), name
        assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i]), name
        for axes in figure.axes if name != "timeline" else ():  # its times are tilted
            ticks = [text for text in axes.get_xticklabels() if text.get_text()]
            low, high = sorted(axes.get_xlim())
            shown = [t.get_window_extent() for t in ticks if low <= t.get_position()[0] <= high]
            assert not any(a.overlaps(b) for a, b in itertools.pairwise(shown)), name


def test_all_pictures_of_one_parameter_are_drawn(pictures):
    """A bar of colours stands beside a single plot."""
    found = pictures(12, only_lr=True)
    assert [name for name, _ in found.each()] == ["slice", "edf", "timeline"]


@pytest.mark.parametrize(
    ("complete", "how", "drawn", "told"),
    [
        (0, {}, ["timeline"], "0 complete trials, it takes 10; no picture slice, parallel_coordinate, edf: 0 complete"),
        (1, {}, ["timeline"], "1 complete trial, it takes 10"),
        (6, {}, ["slice", "parallel_coordinate", "edf", "timeline"], "contour: 6 complete trials, it takes 10"),
        (12, {"only_lr": True}, ["slice", "edf", "timeline"], "contour, parallel_coordinate: one parameter"),
        (12, {"value": lambda lr: 0.5}, ["timeline"], "all complete trials have the same value"),
        (12, {"goal": Objective(("val/L1/acc", "train/loss"), ("max", "min"))}, ["timeline"], "several objectives"),
    ],
)
def test_pictures_that_a_study_is_too_small_for_are_told_in_one_line(pictures, complete, how, drawn, told):
    found = pictures(complete, **how)
    assert list(found.drawable) == drawn and told in str(found) and "\n" not in str(found)


def test_picture_that_fails_is_skipped_with_its_error(pictures, monkeypatch):
    def broken(self, plots):
        raise ValueError("too\nthin")

    found = pictures(6)
    monkeypatch.setattr(Pictures, "_slice", broken)
    assert [name for name, _ in found.each()] == ["parallel_coordinate", "edf", "timeline"]
    assert "no picture slice: ValueError: too thin" in str(found)


def test_axes_have_percents_and_whole_numbers(pictures):
    """Optuna's have 0.9 for an accuracy of 90 %, and 2.5 local epochs; trial 2.5 beside a bar of colours."""
    drawn = pictures(12)
    contour = drawn.draw("contour")
    contour.draw_without_rendering()
    axes, bar = contour.axes
    epochs = axes.xaxis if "epochs" in axes.get_xlabel() else axes.yaxis
    assert all(text.isdigit() for text in shown(epochs)) and all(text.endswith(" %") for text in shown(bar.yaxis))
    parallel = drawn.draw("parallel_coordinate")
    assert parallel.axes[0].get_ylabel() == "" and shown(parallel.axes[0].yaxis)[0].endswith(" %")
    one = drawn.slices()["local_epochs E"]()
    assert all(text.isdigit() for text in shown(one.axes[0].xaxis)) and shown(one.axes[0].yaxis)[0].endswith(" %")
