"""Reports: what was measured as pages, tables and pictures.

Its rooms; each imports only those below it:

    comparison     runs side by side
    leaderboards   benchmarks and studies; beside `comparison`
    suites         a paper's tables and figures, ours beside theirs; beside `comparison`
    numbers        names, units and numbers of comparisons and leaderboards
    pages          a report as plain data, and what it looks like

None of these reads a store: they are given what they show.
"""
