"""Matrices with given sums: Sinkhorn-Knopp's scaling, and rounding that keeps every sum exact."""

import numpy as np

TOLERANCE = 1e-6  # on row and column sums, in the paper's units: the matrix sums to its number of columns
CELLS_AT_ONCE = 1 << 16  # whose numbers are Python's at once
PAIRINGS = 100  # that many leave two or three entries of a row that are not whole
CELLS_OF_PAIRINGS = 10_000_000  # seconds of pairings at most
STEPS = 1 << 20  # of a uniform random number
FLOOR = 1e-12  # a draw of exactly 0 could never grow, and some sums could never be reached


def sinkhorn(matrix: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the matrix diag(u) · matrix · diag(v) with the given sums, the nearest to `matrix` in KL divergence.

    Rows and columns are scaled in turn until both sums hold within `TOLERANCE`. The number of turns is capped (skewed
    draws would take hundreds of thousands); what is then missing is shared out as a rank-one matrix, so that the sums
    of the result hold in every case.

    Args:
        matrix: the draw, float [K, L], entries >= 0; floored at 1e-12.
        rows: wanted row sums, > 0, [K].
        columns: wanted column sums, >= 0, [L]; their total is that of `rows`.
    Returns:
        float64 [K, L].

    >>> sinkhorn(np.ones((2, 2)), np.array([3, 1]), np.array([2, 2])).round(6).tolist()  # rows · columns / total
    [[1.5, 1.5], [0.5, 0.5]]
    >>> sinkhorn(np.eye(2), rows=np.array([2, 2]), columns=np.array([2, 2])).round(6).tolist()  # zeros stay zeros
    [[2.0, 0.0], [0.0, 2.0]]

    Source: Sinkhorn and Knopp, "Concerning nonnegative matrices and doubly stochastic matrices", 1967; the last step is
        Algorithm 2 of Altschuler, Weed, Rigollet, "Near-linear time approximation algorithms for optimal transport",
        2017.
    """
    p = np.maximum(np.asarray(matrix, dtype=np.float64), FLOOR)
    unit = p.shape[1] / rows.sum()
    r, c = rows * unit, columns * unit
    u, v = np.ones(len(r)), np.ones(len(c))
    turns = min(100_000, 2_000_000_000 // p.size)  # about a second at any size
    for turn in range(turns):
        pv = p @ v
        # after a column step only the rows can be off, and the next row step says by how much
        if turn % 10 == 1 and np.abs(u * pv - r).max() < TOLERANCE:
            break
        u = r / pv
        v = c / (u @ p)
    return _exact(u[:, None] * p * v, r, c) / unit


def _exact(matrix: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Scale down what is too much, then add what is missing as an outer product."""
    matrix = matrix * np.minimum(1, rows / matrix.sum(1))[:, None]
    sums = matrix.sum(0)
    matrix = matrix * np.minimum(1, np.divide(columns, sums, out=np.ones_like(sums), where=sums > 0))
    row_gap, column_gap = np.maximum(rows - matrix.sum(1), 0), np.maximum(columns - matrix.sum(0), 0)
    if row_gap.sum() > 0 and column_gap.sum() > 0:
        matrix = matrix + np.outer(row_gap, column_gap) / column_gap.sum()
    return matrix


def round_exact(
    matrix: np.ndarray, rows: np.ndarray, columns: np.ndarray, rng: np.random.Generator | None = None
) -> np.ndarray:
    """Round to whole numbers with exactly these row and column sums, each within one of its entry.

    Every entry is rounded down; the missing units go to the largest remainders as far as the sums allow, and where that
    ends in a corner, an integral flow through the residual network moves them. One exists, because the entries
    themselves are a fractional one.

    Args:
        matrix: float [K, L] whose sums are `rows` and `columns` but for rounding errors.
        rows: int [K]. columns: int [L], with the same total.
        rng: breaks ties between equal remainders; none: the first.
    Returns:
        int64 [K, L].

    >>> matrix = np.array([[1.5, 1.5], [0.5, 0.5]])
    >>> round_exact(matrix, rows=np.array([3, 1]), columns=np.array([2, 2])).tolist()
    [[2, 1], [0, 1]]
    """
    counts = np.floor(matrix).astype(np.int64)
    remainder = matrix - counts
    need_row, need_column = rows - counts.sum(1), columns - counts.sum(0)
    # an entry that is whole but for a rounding error may have been floored one too low, never too high: no need is
    # negative
    k, c = np.nonzero(remainder > 0)
    tie = rng.random(len(k)) if rng is not None else np.arange(len(k))
    order = np.lexsort((tie, -remainder[k, c]))
    up = np.zeros(matrix.shape, dtype=bool)
    left_row, left_column = need_row.tolist(), need_column.tolist()
    missing = sum(left_row)
    for start in range(0, len(order), CELLS_AT_ONCE):
        if not missing:
            break
        cells = order[start : start + CELLS_AT_ONCE]
        for i, j in zip(k[cells].tolist(), c[cells].tolist(), strict=True):
            if left_row[i] and left_column[j]:
                up[i, j] = True
                left_row[i] -= 1
                left_column[j] -= 1
                missing -= 1
    if missing:
        up ^= _reroute(up, remainder > 0, np.array(left_row), np.array(left_column), missing)
    return counts + up


def _reroute(up: np.ndarray, free: np.ndarray, rows: np.ndarray, columns: np.ndarray, missing: int) -> np.ndarray:
    """Entries to flip so that `rows` and `columns` get their missing units: a maximum flow from rows to columns.

    An entry not yet rounded up may carry a unit from its row to its column, one rounded up may give it back.
    """
    from scipy.sparse import csr_array  # a third of a second to import, seldom needed
    from scipy.sparse.csgraph import maximum_flow

    n_rows, n_columns = up.shape
    source, sink = n_rows + n_columns, n_rows + n_columns + 1
    k, c = np.nonzero(free & ~up)
    back_k, back_c = np.nonzero(up)
    start = np.concatenate([k, back_c + n_rows, np.full(n_rows, source), np.arange(n_columns) + n_rows])
    end = np.concatenate([c + n_rows, back_k, np.arange(n_rows), np.full(n_columns, sink)])
    capacity = np.concatenate([np.ones(len(k) + len(back_k)), rows, columns]).astype(np.int32)
    graph = csr_array((capacity, (start, end)), shape=(sink + 1, sink + 1))
    graph.eliminate_zeros()
    found = maximum_flow(graph, source, sink)
    if found.flow_value != missing:
        raise ValueError(f"the matrix's sums are not the wanted ones: {missing - found.flow_value} units have no place")
    flow = found.flow.tocoo()
    a, b = flow.coords
    used = (flow.data > 0) & (a < source) & (b < source)
    a, b = a[used], b[used]
    flip = np.zeros_like(up)
    forward = a < n_rows
    flip[a[forward], b[forward] - n_rows] = True
    flip[b[~forward], a[~forward] - n_rows] = True
    return flip


def apportion(shares: np.ndarray, total: int, rng: np.random.Generator | None = None) -> np.ndarray:
    """Divide `total` units in proportion to `shares`, whole numbers by largest remainder (Hamilton's method).

    Args:
        shares: >= 0, at least one > 0, [n]; any scale.
        total: units to give.
        rng: breaks ties between equal remainders; none: the first.
    Returns:
        int64 [n] with sum `total`, each within one of its exact part.

    >>> apportion(np.array([5.0, 3.0, 2.0]), 9).tolist()  # 4.5, 2.7, 1.8: the last two have the largest remainders
    [4, 3, 2]
    """
    exact = np.asarray(shares, dtype=np.float64) / np.sum(shares) * total
    units = np.floor(exact).astype(np.int64)
    tie = rng.random(len(units)) if rng is not None else np.arange(len(units))
    # remainders equal but for a rounding error count as ties
    order = np.lexsort((tie, -np.round(exact - units, 9)))
    units[order[: total - int(units.sum())]] += 1
    return units


def systematic(counts: np.ndarray, total: int, rng: np.random.Generator) -> np.ndarray:
    """Divide `total` units in proportion to `counts`, whole numbers that are right on average (systematic sampling).

    Entry i gets floor(a_i + u) − floor(a_{i−1} + u), where a_i is the sum of the exact parts up to i and u is one
    uniform random number for all: its exact part within one, and in expectation. `apportion` is nearer to the exact
    parts, but gives nothing to all that are small.

    Args:
        counts: int >= 0, at least one > 0, [n]. total: units to give. rng: draws u.
    Returns:
        int64 [n] with sum `total`.

    >>> counts = np.array([80, 19, 1])  # exact parts 8, 1.9 and 0.1
    >>> drawn = [systematic(counts, 10, np.random.default_rng(seed)) for seed in range(200)]
    >>> np.mean(drawn, axis=0).round(1).tolist()
    [8.0, 1.9, 0.1]

    Source: Madow and Madow, "On the theory of systematic sampling, I", 1944.
    """
    n = int(counts.sum())
    return np.diff((np.cumsum(counts, dtype=np.int64) * total + rng.integers(n)) // n, prepend=0)


def round_on_average(matrix: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Round each entry up or down, so that it is right on average, and column sums stay as they are (row sums nearly).

    Two rows and two columns at a time: +x and −x in the first row, −x and +x in the second keep all sums. x is the
    longest way up or down on which no entry passes a whole number, up with probability down / (up + down), so that the
    entries' expectations stay. All rows and columns are paired at random `PAIRINGS` times (fewer where there are many
    entries). Entries that are still not whole are rounded systematically within their columns.

    Args:
        matrix: entries >= 0, columns with whole sums, float [K, L]. rng: draws pairs and ways.
    Returns:
        int64 [K, L].

    >>> matrix = np.array([[1.5, 0.5], [0.5, 1.5]])  # both rows and both columns have the sum 2
    >>> np.unique([round_on_average(matrix, np.random.default_rng(seed)) for seed in range(20)], axis=0).tolist()
    [[[1, 1], [1, 1]], [[2, 0], [0, 2]]]

    Source: Cox, "A constructive procedure for unbiased controlled rounding", 1987, with random pairs for its paths.
    """
    whole = np.floor(np.round(matrix, 9))
    part = np.clip(matrix - whole, 0, 1)
    n_rows, n_columns = part.shape
    for _ in range(min(PAIRINGS, CELLS_OF_PAIRINGS // max(part.size, 1))):
        row, other_row = rng.permutation(n_rows)[: n_rows // 2 * 2].reshape(2, -1, 1)
        column, other_column = rng.permutation(n_columns)[: n_columns // 2 * 2].reshape(2, -1)
        a, b = part[row, column], part[row, other_column]
        c, d = part[other_row, column], part[other_row, other_column]
        up = np.minimum(np.minimum(1 - a, b), np.minimum(c, 1 - d))
        down = np.minimum(np.minimum(a, 1 - b), np.minimum(1 - c, d))
        x = np.where(rng.random(a.shape) * (up + down) < down, up, -down)
        part[row, column], part[row, other_column] = a + x, b - x
        part[other_row, column], part[other_row, other_column] = c - x, d + x
    order = rng.permutation(n_rows)
    upto = np.round(np.cumsum(part[order], axis=0), 9)
    u = (rng.integers(STEPS, size=n_columns) + 0.5) / STEPS  # not so near to 0 or 1 that a rounding error counts
    whole[order] += np.diff(np.floor(upto + u), axis=0, prepend=0)
    return whole.astype(np.int64)


def equal_parts(total: int, parts: int) -> np.ndarray:
    """Divide `total` units into parts that are equal within one, the larger ones first, int64 [parts].

    >>> equal_parts(8, 3).tolist()
    [3, 3, 2]
    """
    return total // parts + (np.arange(parts) < total % parts)


def raise_small(sizes: np.ndarray, minimum: float) -> np.ndarray:
    """Raise sizes [n] under `minimum` to it, and scale the others so that the total stays; float64 [n].

    Needs minimum · n <= total.

    >>> raise_small(np.array([1.0, 3.0, 6.0]), minimum=2.0).round(6).tolist()  # 8 left, shared 1 : 2
    [2.0, 2.666667, 5.333333]
    """
    sizes = np.asarray(sizes, dtype=np.float64)
    low = np.zeros(len(sizes), dtype=bool)
    total = sizes.sum()
    raised = sizes
    while (raised[~low] < minimum).any():  # each turn fixes at least one more: at most len(sizes) turns
        low |= raised < minimum
        rest = sizes[~low].sum()
        scale = (total - minimum * low.sum()) / rest if rest > 0 else 0.0
        raised = np.where(low, minimum, sizes * scale)
    return raised
