"""Bars and tables in colours: the numbers that were given, and what was not run as such."""

import re
from itertools import pairwise

import numpy as np
import pytest

from pfl_ops import figures
from pfl_ops.errors import PflOpsError

NAN = float("nan")


def test_bars_are_means_from_zero_with_error_bars():
    axes = figures.bars({"MNIST": {"fliu": [0.4, 0.6], "apfl": 0.3}, "CIFAR": {"fliu": [NAN, 0.2]}}).axes[0]
    heights = [(bar.get_y(), bar.get_height()) for container in axes.containers for bar in _patches(container)]
    np.testing.assert_allclose(heights, [(0, 0.5), (0, 0.2), (0, 0.3)])
    (error,) = [container for container in axes.containers if not _patches(container)]
    (segment,) = error.lines[2][0].get_segments()
    np.testing.assert_allclose(segment[:, 1], [0.5 - np.std([0.4, 0.6], ddof=1), 0.5 + np.std([0.4, 0.6], ddof=1)])
    assert [text.get_text() for text in axes.texts] == ["–"]  # CIFAR, apfl: not run
    assert [text.get_text() for text in axes.get_xticklabels()] == ["MNIST", "CIFAR"]
    assert [text.get_text() for text in axes.get_figure().legends[0].get_texts()] == ["fliu", "apfl"]
    assert axes.get_title(loc="right") == "mean ± standard deviation, n = 1 to 2"


def _patches(container):
    return getattr(container, "patches", [])


def test_heat_writes_each_value_into_its_cell():
    axes, bar = figures.heat([[1, 20], [NAN, 5.5]], ["0 dB", "5 dB"], ["1 MHz", "2 MHz"], label="best τ").axes
    found = {(text.get_position()[1], text.get_position()[0]): text.get_text() for text in axes.texts}
    assert found == {(0, 0): "1", (0, 1): "20", (1, 0): "–", (1, 1): "5.5"}
    assert [text.get_text() for text in axes.get_yticklabels()] == ["0 dB", "5 dB"]
    assert bar.get_ylabel() == "best τ"


def test_bars_have_names_and_errors_within_their_axes():
    """Names of five groups were written over one another; errors of 0.1 ± 0.2 drew an axis to -20 %."""
    groups = {f"two classes a client, group {i}": {"fliu": [0.0, 0.3, 0.0], "apfl": 0.9} for i in range(5)}
    figure = figures.bars(groups)
    axes = figure.axes[0]
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(boxes))
    assert axes.get_ylim()[0] >= -0.01


def test_heat_writes_large_numbers_in_full():
    axes = figures.heat([[1234, 12.34], [99_999, 999.7]], ["0 dB", "5 dB"], ["1 MHz", "2 MHz"]).axes[0]
    assert [text.get_text() for text in axes.texts] == ["1,234", "12.3", "99,999", "1,000"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: figures.bars({}), "no bar has a value"),
        (lambda: figures.bars({"MNIST": {"fliu": [NAN]}}), "no bar has a value"),
        (lambda: figures.bars({"MNIST": {"fliu": [[1, 2]]}}), "'MNIST', 'fliu': a bar's values are [n], got [1, 2]"),
        (lambda: figures.bars({"MNIST": {"fliu": "high"}}), "'MNIST', 'fliu': these are no numbers"),
        (lambda: figures.heat([1, 2], ["a"], ["b"]), "is [rows, columns], got [2]"),
        (lambda: figures.heat([[1, 2]], ["a"], ["b"]), "the table is [1, 2], but there are 1 names of rows and 1 of"),
        (lambda: figures.heat([[NAN]], ["a"], ["b"]), "no cell has a value"),
    ],
)
def test_what_is_refused(call, words):
    with pytest.raises(PflOpsError, match=re.escape(words)):
        call()
