"""The table of claims under changed settings."""

from pfl_ops.reports.suites.sensitivity import sensitivity
from pfl_ops.reports.suites.verdicts import ClaimSummary


def claim(text: str, ours: str, agrees: str = "", n: int = 0) -> ClaimSummary:
    return ClaimSummary(text, derived=False, paper="holds", ours=ours, n=n, agrees=agrees)


def test_each_column_says_what_is_known_of_a_claim() -> None:
    """A claim that was run in no column has no row; the second one was added to the suite later."""
    plain = [claim("first", "holds", "2 of 2", 5), claim("third", "not run")]
    changed = [claim("first", "not run"), claim("third", "not run"), claim("second", "not judged")]
    table = sensitivity("toy/table1", "small", [("", plain), ("training.lr=0.3", changed)])
    (heads,) = table.head
    assert [head.text for head in heads] == ["claim", "unchanged", "training.lr=0.3"]
    texts = {row.entries[0].text: [entry.text for entry in row.entries[1:]] for row in table.rows}
    assert texts == {"first": ["2 of 2", "not run"], "second": ["not run", "not judged"]}
    first = table.rows[0].entries[1]
    assert (first.mark, first.below) == ("good", ("holds, n = 5",))
