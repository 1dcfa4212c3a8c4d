"""The version of the engine's results: everything that decides a number besides settings, data and a method's own code.

The tests hold a table of results, `tests/contract/pinned_results.csv`, one or more of each method and of each part of
the engine, computed in float64 and compared at 1e-10. While the table is the same, results of earlier code are those of
today's. A change that moves a number changes the table, and then needs a new version here: runs of earlier versions are
not taken for new ones. A row that is added, of a new method, moves no number: the newest version keeps its number and
takes the digest of the longer table. So it does where another part of the identity distinguishes the runs of all moved
rows: the best rounds of methods that are judged at L2 (`config.identity.BEST_ROUND`), a pull under Adam, which has no
row (`config.identity.PULL`), and the test data of clients (`config.identity.HELD_OUT`).
"""

VERSIONS: tuple[tuple[int, str, str], ...] = (
    (2, "88b9d818d9c7f57dac182b0ff4d3dffcce18d8db57fcba47f80ffe54d8cbd90e", "the first with a table"),
)
"""(version, SHA-256 of the table, what moved): only appended to; rows that are added replace the newest digest."""

RESULTS_VERSION = VERSIONS[-1][0]

SAMPLING_VERSION = "2"
"""The version of the rules by which uneven data are cut to size, held out, and drawn for evaluation.

It enters the identity of runs on such data alone: files, text, many classes of which a sample is drawn. For all others
the rules give what they always gave, and finished runs keep their hashes. 2: rare classes are drawn for evaluation with
the probability of all other samples, large strata are cut by one common factor, and windows of a text are held out from
the end of each role.
"""
