"""The version of the engine's results: everything that decides a number besides settings, data and a method's own code.

The tests hold a table of results, `tests/contract/pinned_results.csv`, one or more of each method and of each part of
the engine, computed in float64 and compared at 1e-10. While the table is the same, results of earlier code are those of
today's. A change that moves a number changes the table, and then needs a new version here: runs of earlier versions are
not taken for new ones.
"""

VERSIONS: tuple[tuple[int, str, str], ...] = (
    (2, "0ab9f86034b219032d5745c0cc8e85977fb6c9b8a8d15694d9b5bfe521d3ad7c", "the first with a table"),
)
"""(version, SHA-256 of the table, what moved): only ever appended to."""

RESULTS_VERSION = VERSIONS[-1][0]
