"""Several runs as lines: what stands in it is what was given, named, with its spread and its n."""

import re
from itertools import pairwise

import numpy as np
import pytest
from matplotlib.text import Text

from pfl_ops import figures
from pfl_ops.errors import PflOpsError
from pfl_ops.figures import looks
from pfl_ops.figures.bands import summary
from pfl_ops.figures.labels import apart

NAN = float("nan")
ROUNDS = [0, 5, 10]
THREE = np.array([[0.1, 0.5, 0.7], [0.2, 0.6, 0.8], [0.3, 0.4, 0.9]])


def drawn(axes, name):
    (line,) = [line for line in axes.lines if line.get_label() == name]
    return line


def bands(axes, name):
    return [band for band in axes.collections if band.get_label() == name]


def texts(axes):
    return [text.get_text() for text in axes.texts if text.get_text()]


def test_a_line_is_the_mean_and_its_band_the_sample_standard_deviation():
    axes = figures.lines({"fliu": (ROUNDS, THREE), "fedavg": (ROUNDS, THREE - 0.05)}).axes[0]
    np.testing.assert_allclose(drawn(axes, "fliu").get_ydata(), THREE.mean(axis=0))
    (band,) = bands(axes, "fliu")
    corners = band.get_paths()[0].vertices
    for x, mean, std in zip(ROUNDS, THREE.mean(axis=0), THREE.std(axis=0, ddof=1), strict=True):
        heights = corners[corners[:, 0] == x, 1]
        np.testing.assert_allclose([heights.min(), heights.max()], [mean - std, mean + std])
    assert texts(axes) == ["fliu", "fedavg"]
    assert axes.get_title(loc="right") == "mean ± standard deviation, n = 3"


def test_lines_that_coincide_are_all_seen():
    """The second of two lines on one another has gaps as long as its dashes, the third ones of twice that length.

    A line of which another one has a part, and lines with one common point, are as they were.
    """
    shown = {"fedavg": THREE, "fedprox": THREE, "ditto": THREE + 0.01, "feddyn": THREE}
    axes = figures.lines({name: (ROUNDS, values) for name, values in shown.items()}).axes[0]
    dashes = {name: drawn(axes, name).get_linestyle() for name in shown}
    assert dashes == {"fedavg": "-", "fedprox": "--", "ditto": "-", "feddyn": "--"}
    found = looks.shared_dashes({name: (np.array(ROUNDS), values[0]) for name, values in shown.items()})
    assert found == {"fedprox": (6.0, (3.0, 6.0)), "feddyn": (3.0, (3.0, 6.0))}
    assert figures.coinciding({"a": (ROUNDS, THREE), "b": (ROUNDS[1:], THREE[:, 1:])}) == ("b",)
    assert figures.coinciding({"a": (ROUNDS, THREE), "b": ([0, 10], THREE[:, ::2])}) == ()
    assert figures.coinciding({"a": (ROUNDS, THREE), "b": ([10, 20], [0.8, 0.8])}) == ()


def test_one_repetition_has_no_band():
    axes = figures.lines({"fliu": (ROUNDS, THREE[0])}).axes[0]
    assert not bands(axes, "fliu")
    assert axes.get_title(loc="right") == "n = 1"


def test_names_say_their_n_where_it_differs():
    axes = figures.lines(
        {"fliu": (ROUNDS, THREE), "apfl": (ROUNDS, THREE[:1]), "dead": (ROUNDS, [NAN, 0.1, NAN])}
    ).axes[0]
    assert texts(axes) == ["fliu (n = 3)", "apfl (n = 1)", "dead (n = 1)"]
    assert drawn(axes, "dead").get_xdata().tolist() == [5]


def test_what_was_not_measured_is_left_out_of_mean_and_n():
    found = summary("fliu", ([2, 1, 0], [[0.5, NAN, 0.1], [0.7, NAN, NAN], [NAN, NAN, NAN]]))
    assert found.x.tolist() == [0, 2] and found.n == 2
    np.testing.assert_allclose(found.mean, [0.1, 0.6])
    np.testing.assert_allclose(found.std, [0.0, np.std([0.5, 0.7], ddof=1)])


def test_n_that_differs_over_places_is_a_range():
    """ "n = 3" was written of a mean over one repetition."""
    some = [[0.1, NAN, 0.3], [0.1, NAN, 0.3], [0.1, 0.2, 0.3]]
    axes = figures.lines({"fliu": (ROUNDS, some)}).axes[0]
    assert axes.get_title(loc="right") == "mean ± standard deviation, n = 1 to 3"
    axes = figures.over({"fliu": (ROUNDS, some), "apfl": (ROUNDS, THREE)}).axes[0]
    assert texts(axes) == ["fliu (n = 1 to 3)", "apfl (n = 3)"]
    figure = figures.panels({"PATH": {"fliu": (ROUNDS, some)}})
    assert "mean ± standard deviation, n = 1 to 3" in [text.get_text() for text in figure.findobj(Text)]


def test_names_stand_apart_beside_the_axes_in_the_order_of_the_ends():
    many = {f"method {i}": (ROUNDS, THREE + 0.001 * i) for i in range(12)}
    figure = figures.lines(many, target=0.8)
    axes = figure.axes[0]
    figure.draw_without_rendering()
    boxes = {text.get_text(): text.get_window_extent() for text in axes.texts if text.get_text()}
    assert set(boxes) == {*many, "target 80 %"}
    assert all(box.x0 > axes.bbox.x1 and box.x1 < figure.bbox.x1 for box in boxes.values())
    heights = sorted((box.y0, box.y1) for box in boxes.values())
    assert all(low[1] < high[0] + 1 for low, high in pairwise(heights))
    assert [name for name in sorted(many, key=lambda name: boxes[name].y0)] == list(many)


def test_where_names_have_no_room_a_legend_stands_below():
    figure = figures.lines({f"method {i}": (ROUNDS, THREE) for i in range(60)})
    assert not texts(figure.axes[0])
    assert len(figure.legends[0].get_texts()) == 60


def test_places_are_moved_as_little_as_possible():
    np.testing.assert_allclose(apart(np.array([0.5, 0.1, 0.5]), 0.1, 0.0, 1.0), [0.45, 0.1, 0.55])
    np.testing.assert_allclose(apart(np.array([1.0, 1.0]), 0.1, 0.0, 1.0), [0.9, 1.0])


def test_panels_share_names_and_looks():
    grid = {"PATH": {"fliu": (ROUNDS, THREE), "apfl": (ROUNDS, THREE)}, "LSQS": {"apfl": (ROUNDS, THREE[:2])}}
    figure = figures.panels(grid, target=0.8)
    left, right = figure.axes
    assert [left.get_title("left"), right.get_title("left")] == ["PATH", "LSQS"]
    assert drawn(left, "apfl").get_color() == drawn(right, "apfl").get_color() != drawn(left, "fliu").get_color()
    assert left.get_ylim() == right.get_ylim()
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["fliu", "apfl"]
    assert legend.get_title().get_text() == "mean ± standard deviation, n = 2 to 3"


def test_over_has_a_mean_with_error_bars_at_each_setting():
    axes = figures.over({"fliu": ([0.1, 1.0, 0.5], THREE)}, xlabel="c").axes[0]
    np.testing.assert_allclose(drawn(axes, "fliu").get_xdata(), [0.1, 0.5, 1.0])
    np.testing.assert_allclose(drawn(axes, "fliu").get_ydata(), THREE.mean(axis=0)[[0, 2, 1]])
    bars = axes.containers[0].lines[2][0].get_segments()
    np.testing.assert_allclose([(bar[1, 1] - bar[0, 1]) / 2 for bar in bars], THREE.std(axis=0, ddof=1)[[0, 2, 1]])
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0.1", "0.5", "1"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: figures.lines({}), "no line was given"),
        (lambda: figures.lines({"fliu": (ROUNDS, [[1, 2]])}), "'fliu': a line is (x [X], values [n, X]), got 3 x and"),
        (lambda: figures.lines({"fliu": (ROUNDS, [[1, 2], [1]])}), "'fliu', values: these are no numbers in rows"),
        (lambda: figures.lines({"fliu": [1, 2, 3]}), "'fliu': a line is"),
        (lambda: figures.lines({"fliu": (ROUNDS, [NAN] * 3)}), "'fliu': there is no value to draw"),
        (lambda: figures.panels({}), "no panel was given"),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(PflOpsError, match=re.escape(words)):
        call()


def test_a_panel_has_lines_and_limits_and_no_names():
    figure = figures.panel({"fliu": (ROUNDS, THREE)}, (2.5, 1.75), limits=(0.0, 1.0))
    (axes,) = figure.axes
    np.testing.assert_allclose(drawn(axes, "fliu").get_ydata(), THREE.mean(axis=0))
    assert axes.get_ylim() == (0.0, 1.0) and not texts(axes) and not figure.legends
    assert not axes.get_title("left") and not axes.get_title("right")
    figure.draw_without_rendering()
    box = axes.get_tightbbox()
    assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= figure.bbox.x1 and box.y1 <= figure.bbox.y1


def test_a_legend_makes_the_figure_higher_and_breaks_long_names():
    """Axes of one height, whatever stands below; 60 names of 120 letters stay within the width."""
    heights = []
    for n in (1, 60):
        figure = figures.panels(
            {"PATH": {f"method {i} {'with a long setting ' * 6}": (ROUNDS, THREE) for i in range(n)}}
        )
        figure.draw_without_rendering()
        heights.append(figure.axes[0].bbox.height)
        box = figure.legends[0].get_window_extent()
        assert box.x0 >= 0 and box.x1 <= figure.bbox.x1
    assert heights[1] > 0.8 * heights[0]


def test_panels_with_one_axis_show_the_values_of_all():
    """The first panel's values, up to 0.3, must not limit the second one's, up to 0.9."""
    grid = {"low": {"fliu": (ROUNDS, [0.1, 0.2, 0.3])}, "high": {"fliu": (ROUNDS, [0.5, 0.8, 0.9])}}
    for axes in figures.panels(grid).axes:
        low, high = axes.get_ylim()
        assert low < 0.1 and 0.9 < high <= 1.01


@pytest.mark.parametrize("target", [0.95, 0.001])
def test_a_target_beyond_the_values_is_within_the_axes(target):
    """The curves stay between 0.4 and 0.6."""
    series = {"fliu": (ROUNDS, [0.4, 0.5, 0.6])}
    drawings = (
        figures.lines(series, target=target),
        figures.panels({"one": series, "two": series}, target=target),
    )
    for figure in drawings:
        for axes in figure.axes:
            low, high = axes.get_ylim()
            assert low < target < high


def test_marks_stand_where_they_are_in_the_colour_of_their_line():
    series = {"fliu": (ROUNDS, THREE[0]), "fedavg": (ROUNDS, THREE[1])}
    marks = {"fliu": [(10.0, 0.95), (5.0, 0.05)]}
    for axes in (
        figures.lines(series, marks=marks).axes[0],
        figures.panels({"one": series}, marks={"one": marks}).axes[0],
    ):
        drawn_marks = drawn(axes, "_fliu")
        assert drawn_marks.get_xydata().tolist() == [[10.0, 0.95], [5.0, 0.05]]
        assert drawn_marks.get_color() == drawn(axes, "fliu").get_color()
        assert drawn_marks.get_marker() == "x" and drawn_marks.get_linestyle() == "None"
        low, high = axes.get_ylim()
        assert low <= 0.05 and high >= 0.95
        assert not [line for line in axes.lines if line.get_label() == "_fedavg"]


def test_places_below_one_have_ticks_too():
    """Bytes of a small federation in MiB: whole numbers alone would leave the tick 0."""
    axes = figures.panel({"fedavg": ([0, 0.004, 0.008], [0.1, 0.5, 0.6])}, (4.6, 2.7), "MiB").axes[0]
    low, high = axes.get_xlim()
    assert [round(tick, 4) for tick in axes.get_xticks() if low <= tick <= high] == [0, 0.002, 0.004, 0.006, 0.008]


@pytest.mark.parametrize(
    ("settings", "scale", "labels"),
    [
        ([0.1, 0.5, 1], "linear", ["0.1", "0.5", "1"]),
        ([1, 2, 5, 10, 50, 200], "log", ["1", "2", "5", "10", "50", "200"]),
        ([1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 100, 1000], "log", ["1e-05", "0.0001", "0.001", "0.01", "0.1", "1"]),
        ([0, 0.001, 0.01, 1], "linear", ["0", "", "", "1"]),
    ],
)
def test_over_settings_that_lie_close_can_be_told_apart(settings, scale, labels):
    """On a linear axis the numbers of 1, 2, 5 and 10 among settings to 200 were written over one another."""
    axes = figures.over({"fliu": (settings, [0.5] * len(settings))}, xlabel="τ").axes[0]
    assert axes.get_xscale() == scale
    assert [label.get_text() for label in axes.get_xticklabels()][: len(labels)] == labels
