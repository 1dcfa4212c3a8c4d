"""The version of the engine's results: everything that decides a number besides settings, data and a method's own code.

The tests hold a table of results, `tests/contract/pinned_results.csv`, one or more of each method and of each part of
the engine, computed in float64 and compared at 1e-10. While the table is the same, results of earlier code are those of
today's. A change that moves a number changes the table, and then needs a new version here: runs of earlier versions are
not taken for new ones.
"""

VERSIONS: tuple[tuple[int, str, str], ...] = (
    (2, "2b3965ce76f1b38545a8b1b96370d9c210a7f48a3aa9df397e838947ab683f8a", "the first with a table"),
)
"""(version, SHA-256 of the table, what moved): only ever appended to."""

RESULTS_VERSION = VERSIONS[-1][0]
