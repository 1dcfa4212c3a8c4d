"""Lines of finished runs: their order, and the tests of differences to the first one."""

import math
from dataclasses import replace

import pytest

from pfl_ops.comparison import Line, Test, ordered
from pfl_ops.results import Result
from pfl_ops.statistics import Difference, anytime, paired

ACC = "test/L1/acc"


def line(label: str, scores: dict[int, float], **more: object) -> Line:
    runs = tuple(Result.of_numbers(seed, {f"final/{ACC}": score}) for seed, score in scores.items())
    return Line(label, runs, **more)  # type: ignore[arg-type]


def values(one: Line) -> dict[int, float]:
    return one.values("L1/acc")


FIRST, SECOND, THIRD = {0: 0.5, 1: 0.7, 2: 0.6}, {0: 0.3, 1: 0.8, 2: 0.6}, {0: 0.4, 1: 0.58, 2: 0.49}


def test_lines_are_tested_against_the_first_and_corrected_for_all_pairs() -> None:
    """Means 0.6, 0.567, 0.49. Holm over three pairs: the smallest p, of the third to the first, counts three times."""
    lines = [line("third", THIRD), line("first", FIRST), line("second", SECOND)]
    found = ordered(lines, values, "t")
    assert [one.label for one in found] == ["first", "second", "third"] and found[0].difference is None
    expected = paired(THIRD, FIRST)
    assert found[2].single_p == expected.p and found[2].difference.p == pytest.approx(3 * expected.p)
    assert found[2].difference.difference == expected.difference == pytest.approx(-0.11)
    assert ordered(lines, values, "anytime")[2].single_p == anytime(THIRD, FIRST).p


def test_the_stages_of_a_line_begin_with_its_own() -> None:
    """Stages that have values in one view alone are there, too."""
    last = {"final/test/L1/local/mean": 0.5, "final/test/L2/global/mean": 0.4}
    run = Result.of_numbers(0, last, tags={"pfl_ops.own_stage": "L2"})
    assert Line("a", (run,)).stages == ["L2", "L1"]


@pytest.mark.parametrize(
    ("p", "mean", "tested", "behind"),
    [
        (0.049, -0.1, -0.1, True),
        (0.05, -0.1, -0.1, False),
        (None, -0.1, -0.1, False),
        (0.01, 0.1, 0.1, False),  # told apart on the better side, over common seeds
        (0.01, -0.1, 0.1, False),  # seeds that were not tested turn the mean
        (0.01, 0.1, -0.1, False),
        (0.01, -0.1, math.nan, False),
    ],
)
def test_a_line_is_behind_on_the_losing_side_of_both_means(p, mean, tested, behind) -> None:
    there = line("b", {}, difference=Difference(mean, p=p, tested_difference=tested))
    reverse = line("b", {}, difference=Difference(-mean, p=p, tested_difference=-tested))
    assert there.is_behind(smaller=False) is behind is reverse.is_behind(smaller=True)


def test_an_unfinished_line_has_no_rank_and_a_diverged_one_no_costs() -> None:
    run = Result.of_numbers(0, {f"final/{ACC}": 0.5, "total/cost/up_bytes": 8.0})
    ended = Line("a", (run,))
    assert ended.is_ranked("L1/acc") and ended.values("cost/up_bytes") == {0: 8.0}
    assert not replace(ended, unfinished="running, round 1 of 2").is_ranked("L1/acc")
    assert replace(ended, diverged=("seed 1 diverged",)).values("cost/up_bytes") == {}


def test_without_a_better_side_lines_are_in_the_order_of_labels():
    """As of a learning rate: neither the larger nor the smaller mean (.567, .6, .49) comes first; no pair is tested."""
    found = ordered([line("c", THIRD), line("b", FIRST), line("a", SECOND)], values, "t", ranked=False)
    assert [one.label for one in found] == ["a", "b", "c"]
    assert all(one.difference and one.difference.n and one.difference.p is None for one in found[1:])
    assert all(one.single_p is None for one in found)


def test_where_smaller_is_better_the_smallest_mean_is_first() -> None:
    found = ordered([line("first", FIRST), line("third", THIRD)], values, "t", smaller=True)
    assert [one.label for one in found] == ["third", "first"]


def test_means_that_differ_by_rounding_keep_their_order() -> None:
    """0.1 + 0.2 is larger than 0.3 by 5.6e-17."""
    found = ordered([line("a", {0: 0.3}), line("b", {0: 0.1 + 0.2})], values, "t")
    assert [one.label for one in found] == ["a", "b"]


def test_lines_that_are_not_alike_have_no_p_value_and_do_not_count() -> None:
    """Of three pairs one is left, of the first and the third, whose p is not corrected."""
    lines = [line("first", FIRST), line("second", SECOND), line("third", THIRD)]
    found = ordered(lines, values, "t", alike=lambda a, b: "second" not in (a.label, b.label))
    assert found[1].difference.p is None and found[1].single_p is None and found[1].difference.difference < 0
    assert found[1].difference.low is None and found[1].difference.high is None  # which would be a test as well
    assert found[2].difference.low == paired(THIRD, FIRST).low is not None
    assert found[2].difference.p == found[2].single_p == paired(THIRD, FIRST).p


def test_lines_without_values_come_last_and_are_not_tested() -> None:
    """The seeds that are left of a diverged line are the best of all."""
    lost = line("lost", {0: 0.9, 1: 0.9}, diverged=("seed 2 diverged at round 7",))
    found = ordered([lost, line("second", SECOND), line("first", FIRST)], values, "t")
    assert [one.label for one in found] == ["first", "second", "lost"]
    assert values(lost) == {} and found[2].difference is None and found[1].difference.p is not None


@pytest.mark.parametrize("test", ["t", "anytime"])
def test_results_take_no_pair_out_of_the_family(test: Test) -> None:
    """Three pairs, of which results leave one: the third line's choice was changed, or a seed diverged.

    The p value of the second line was smaller afterwards, by a factor of 3, with the same values."""
    lines = [line("first", FIRST), line("third", THIRD), line("other", SECOND)]
    single = {"t": paired, "anytime": anytime}[test](THIRD, FIRST).p
    expected = pytest.approx(3 * single)
    assert ordered(lines, values, test)[2].difference.p == expected
    changed = ordered(lines, values, test, withdrawn=lambda one: one.label == "other")
    assert changed[1].label == "other" and changed[1].difference.p is changed[1].single_p is None
    assert changed[2].difference.p == expected and changed[2].single_p == single
    lost = line("other", SECOND, diverged=("seed 3 diverged at round 7",))
    assert ordered([*lines[:2], lost], values, test)[1].difference.p == expected
    with_all_lost = ordered([*lines[:2], line("none", {}, diverged=("seed 0 diverged at round 7",))], values, test)
    assert with_all_lost[1].difference.p == single  # it was never tested
    unlike = ordered([*lines[:2], lost], values, test, alike=lambda a, b: "other" not in (a.label, b.label))
    assert unlike[1].difference.p == single
