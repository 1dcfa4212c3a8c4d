"""Scaling and rounding: sums to the last unit, entries within one, in bounded time."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pfl_ops.data.balance import TOLERANCE, apportion, raise_small, round_exact, round_on_average, sinkhorn, systematic

few = settings(max_examples=60, derandomize=True, deadline=None)


def margins(rng: np.random.Generator, k: int, c: int) -> tuple[np.ndarray, np.ndarray]:
    """Random integer row and column sums with one total, no row empty, as a real draw would have them."""
    rows = rng.integers(1, 200, k)
    return rows, rng.multinomial(rows.sum(), rng.dirichlet(np.ones(c)))


def test_two_by_two_by_hand() -> None:
    """Scaling keeps the cross ratio: from (1 · 4) / (1 · 1) = 4 and all sums 1, a² / (1 - a)² = 4, so a = 2/3."""
    found = sinkhorn(np.array([[1.0, 1.0], [1.0, 4.0]]), np.array([1, 1]), np.array([1, 1]))
    assert found == pytest.approx(np.array([[2 / 3, 1 / 3], [1 / 3, 2 / 3]]), abs=1e-6)


@pytest.mark.parametrize("alpha", [0.1, 1.0])
def test_it_is_the_scaled_matrix_also_where_the_draws_rows_have_their_sums_already(alpha: float) -> None:
    """K = L: rows of a draw sum to 1 and shall; only the columns are off. Against plain turns, one after another."""
    draw = np.maximum(np.random.default_rng(0).dirichlet(np.full(10, alpha), 10), 1e-12)
    rows, columns = np.full(10, 10), np.arange(1, 20, 2)
    plain = draw.copy()
    for _ in range(20_000):
        plain *= (rows / plain.sum(1))[:, None]
        plain *= columns / plain.sum(0)
    assert sinkhorn(draw, rows, columns) == pytest.approx(plain, abs=1e-4)


@few
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 20), st.sampled_from([0.01, 0.1, 1.0, 10.0]))
def test_sums_hold_before_and_after_rounding(seed: int, k: int, c: int, alpha: float) -> None:
    rng = np.random.default_rng(seed)
    rows, columns = margins(rng, k, c)
    found = sinkhorn(rng.dirichlet(np.full(c, alpha), k), rows, columns)
    unit = c / rows.sum()  # the paper's units
    assert np.abs(found.sum(1) - rows).max() * unit < TOLERANCE
    assert np.abs(found.sum(0) - columns).max() * unit < TOLERANCE
    assert (found >= 0).all()
    counts = round_exact(found, rows, columns, rng)
    assert counts.sum(1).tolist() == rows.tolist()
    assert counts.sum(0).tolist() == columns.tolist()
    assert np.abs(counts - found).max() < 1 + 1e-9
    assert (counts >= 0).all()


@pytest.mark.timeout(60)
def test_a_draw_that_scales_too_slowly_is_capped_and_shared_out() -> None:
    """Two clients that want one class each, and one sample too many of class 0: 900,000 turns."""
    rows, columns = np.array([100_000, 100_000]), np.array([100_001, 99_999])
    found = sinkhorn(np.eye(2), rows, columns)
    counts = round_exact(found, rows, columns)
    assert found.sum(1) == pytest.approx(rows, abs=1e-6) and found.sum(0) == pytest.approx(columns, abs=1e-6)
    assert counts.tolist() == [[100_000, 0], [1, 99_999]]


def test_a_corner_is_left_by_moving_units() -> None:
    """Taking the halves in order leaves row 2 and column 2, whose entry is 0: a unit has to move."""
    half = np.array([[0.5, 0.0, 0.5], [0.0, 0.5, 0.5], [0.5, 0.5, 0.0]])
    counts = round_exact(half, np.ones(3, int), np.ones(3, int))
    assert counts.sum(0).tolist() == counts.sum(1).tolist() == [1, 1, 1]
    assert (counts[half == 0] == 0).all()


def test_large_remainders_come_first() -> None:
    exact = np.array([[2.9, 0.1], [0.1, 2.9]])
    assert round_exact(exact, np.array([3, 3]), np.array([3, 3])).tolist() == [[3, 0], [0, 3]]


def test_whole_entries_but_for_rounding_errors() -> None:
    exact = np.array([[3 - 1e-12, 2 + 1e-12], [1 + 1e-12, 4 - 1e-12]])
    assert round_exact(exact, np.array([5, 5]), np.array([4, 6])).tolist() == [[3, 2], [1, 4]]


def test_impossible_sums_are_refused() -> None:
    with pytest.raises(ValueError, match="1 units have no place"):
        round_exact(np.zeros((1, 1)), np.array([1]), np.array([1]))


@few
@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30), st.integers(0, 5000))
def test_apportion(shares: list[int], total: int) -> None:
    weights = np.array(shares) + (0 if any(shares) else 1)
    units = apportion(weights, total)
    assert units.sum() == total
    assert np.abs(units - weights / weights.sum() * total).max() < 1
    assert (units[weights == 0] == 0).all()


def test_systematic_by_hand() -> None:
    """Parts 8, 1.9 and 0.1 end at 8, 9.9 and 10. A mark at 10 - u, u in {0, 1, ..., 99} / 100, gives the third its
    sample for u < 0.1 alone; u never moves the end of the first."""
    drawn = [systematic(np.array([80, 19, 1]), 10, np.random.default_rng(seed)).tolist() for seed in range(2000)]
    assert {tuple(units) for units in drawn} == {(8, 2, 0), (8, 1, 1)}
    assert np.mean(drawn, axis=0)[2] == pytest.approx(0.1, abs=0.03)


def table_of(k: int, classes: int, seed: int) -> np.ndarray:
    """Parts of whole numbers of units among k rows, skewed, [k, classes]."""
    draws = np.random.default_rng(seed)
    return draws.dirichlet(np.full(k, 0.5), classes).T * draws.integers(0, 12, classes)


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.integers(1, 30), st.integers(1, 9), st.integers(0, 99))
def test_round_on_average_keeps_column_sums(k: int, classes: int, seed: int) -> None:
    matrix = table_of(k, classes, seed)
    found = round_on_average(matrix, np.random.default_rng(seed))
    assert found.sum(0).tolist() == np.rint(matrix.sum(0)).tolist()
    assert np.abs(found - matrix).max() < 1
    whole = np.rint(matrix)
    assert round_on_average(whole, np.random.default_rng(seed)).tolist() == whole.tolist()


def test_round_on_average_is_right_on_average_and_keeps_row_sums_nearly() -> None:
    """1000 draws: means within 5 deviations of at most 0.5 / sqrt(1000). Row sums deviate by less than the square root
    of the sum of the entries' variances p (1 - p), which they have where columns are rounded independently."""
    matrix = table_of(12, 6, 0)
    drawn = np.array([round_on_average(matrix, np.random.default_rng(seed)) for seed in range(1000)])
    assert np.abs(drawn.mean(0) - matrix).max() < 0.08
    p = matrix % 1
    deviation, independent = drawn.sum(2).std(0), np.sqrt((p * (1 - p)).sum(1))
    assert np.sqrt((deviation**2).mean()) < 0.75 * np.sqrt((independent**2).mean())


def test_apportion_by_hand() -> None:
    """7 by 1 : 2 : 3 is 1.17, 2.33, 3.5: one unit is left, and the half has the largest remainder."""
    assert apportion(np.array([1, 2, 3]), 7).tolist() == [1, 2, 4]


@few
@given(st.lists(st.floats(0, 100), min_size=1, max_size=30), st.integers(1, 5))
def test_small_sizes_are_raised_and_the_total_stays(sizes: list[float], minimum: int) -> None:
    total = max(sum(sizes), minimum * len(sizes)) + 1
    before = np.array(sizes) + (total - sum(sizes)) / len(sizes)
    after = raise_small(before, minimum)
    assert after.sum() == pytest.approx(total)
    assert after.min() >= minimum - 1e-9
    assert (np.diff(after[np.argsort(before)]) >= -1e-9).all()  # the order stays


def test_raise_small_by_hand() -> None:
    """(1, 2, 17), at least 3: two are raised to 3, the third pays: 20 - 6 = 14."""
    assert raise_small(np.array([1.0, 2.0, 17.0]), 3) == pytest.approx([3, 3, 14])


def test_raising_can_push_others_under() -> None:
    """(1, 3.1, 3.2, 4.7), at least 3: the others share 9 of 11, and then the second and third are under 3 as well."""
    assert raise_small(np.array([1.0, 3.1, 3.2, 4.7]), 3) == pytest.approx([3, 3, 3, 3])
