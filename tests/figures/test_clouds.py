"""Several runs as points: means, the front, every client; and names that can be read."""

import re

import numpy as np
import pytest

from pfl_ops import figures
from pfl_ops.errors import PflOpsError

NAN = float("nan")


def drawn(axes, name):
    (line,) = [line for line in axes.lines if line.get_label() == name]
    return line


def test_scatter_draws_the_front_of_the_means():
    points = {"a": [[0.1, 0.9], [0.3, 0.7]], "b": [0.6, 0.5], "c": [[0.1, 0.7], [0.2, 0.6]]}
    figure = figures.scatter(points)
    axes = figure.axes[0]
    assert [drawn(axes, name).get_xydata().tolist() for name in "abc"] == pytest.approx(
        [pytest.approx(np.array([mean])) for mean in ([0.2, 0.8], [0.6, 0.5], [0.15, 0.65])]
    )
    corners = drawn(axes, "Pareto front of the means").get_xydata()[1:-1]
    np.testing.assert_allclose(corners, [[0.2, 0.8], [0.6, 0.5]])
    weights = {text.get_text(): text.get_fontweight() for text in axes.texts}
    assert weights == {"a (n = 2)": "bold", "b (n = 1)": "bold", "c (n = 2)": "normal"}


def test_scatter_draws_marks_of_the_front_above_others():
    """Marks that lie on one another: "a" is on the front, and "b" would be drawn later."""
    axes = figures.scatter({"a": [0.9, 0.2], "b": [0.899, 0.199]}, legend=False).axes[0]
    assert drawn(axes, "a").get_zorder() > drawn(axes, "b").get_zorder()


def test_marks_that_coincide_are_all_seen():
    """Methods with one model for all have the same scores: one mark hid the others."""
    axes = figures.scatter({"a": [0.5, 0.5], "b": [0.2, 0.2], "c": [0.5, 0.5], "d": [0.5, 0.5]}).axes[0]
    circle, diamond, triangle = (drawn(axes, name).get_markersize() for name in "acd")
    assert circle > 1.3 * diamond > 1.3 * 1.2 * triangle
    order = [line.get_label() for line in axes.lines if line.get_label() in "acd"]
    assert order == ["a", "c", "d"], "the smallest is on top"


def test_scatter_without_names_says_the_range_of_n():
    axes = figures.scatter({"a": [[0.9, 0.2], [0.8, 0.3]], "b": [0.5, 0.5]}, legend=False).axes[0]
    assert axes.get_title(loc="right") == "mean ± standard deviation, n = 1 to 2"


def test_names_of_points_do_not_cover_one_another():
    near = {"above": [0.5, 0.52], "below": [0.5, 0.5], "right": [0.53, 0.51], "far": [0.9, 0.9], "low": [0.1, 0.1]}
    figure = figures.scatter(near)
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 5
    assert not [(i, j) for i, a in enumerate(boxes) for j, b in enumerate(boxes) if i < j and a.overlaps(b)]


def test_where_names_have_no_room_beside_their_points_a_legend_has_them():
    near = {f"method {i}": [0.5 + 0.001 * i, 0.5 - 0.001 * i] for i in range(8)}
    figure = figures.scatter(near | {"far": [0.9, 0.1]})
    assert not figure.axes[0].texts
    assert [text.get_text() for text in figure.legends[-1].get_texts()] == [*near, "far"]


def test_distributions_have_a_row_a_name_with_every_client():
    axes = figures.distributions({"fliu": [0.9, NAN, 0.1, 0.5], "apfl": [[0.2, 0.4]]}).axes[0]
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["fliu", "apfl"]
    assert drawn(axes, "fliu").get_xdata().tolist() == [0.1, 0.5, 0.9]
    assert axes.yaxis_inverted()
    assert axes.get_title(loc="right") == "quartiles, median, mean (◇) of 2 to 3 values"
    alone = figures.distributions({"fliu": [0.9], "apfl": [0.5]}).axes[0]
    assert alone.get_title(loc="right") == "quartiles, median, mean (◇) of 1 value"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: figures.scatter({}), "no points were given"),
        (lambda: figures.scatter({"fliu": [1, 2, 3]}), "'fliu': points are [n, 2], got [1, 3]"),
        (lambda: figures.scatter({"fliu": [[NAN, 1]]}), "'fliu': there is no point to draw"),
        (lambda: figures.distributions({}), "no values were given"),
        (lambda: figures.distributions({"fliu": [NAN]}), "'fliu': there is no value to draw"),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(PflOpsError, match=re.escape(words)):
        call()


def test_points_without_a_legend_have_no_names():
    figure = figures.scatter({"a": [0.1, 0.2], "b": [0.3, 0.1]}, legend=False)
    assert not figure.legends and not [text for text in figure.axes[0].texts if text.get_text()]


def test_a_strip_is_a_row_within_given_limits():
    low = figures.strip([0.2, 0.4, float("nan")], (0.0, 1.0))
    bare = figures.strip([0.2, 0.4], (0.0, 1.0), ticks=False)
    assert low.axes[0].get_xlim() == bare.axes[0].get_xlim() == (0.0, 1.0)
    assert low.get_figheight() > bare.get_figheight()
    assert low.axes[0].get_position().x0 == bare.axes[0].get_position().x0
    with pytest.raises(PflOpsError, match="there is no value to draw"):
        figures.strip([float("nan")], (0.0, 1.0))
