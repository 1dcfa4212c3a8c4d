"""Claims of a suite under changed settings: does the order hold?"""

from collections.abc import Sequence

from pfl_ops.reports.pages.document import Row, Table, TableCell
from pfl_ops.reports.suites.verdicts import STANDINGS, ClaimSummary

NOTE = "Instances whose means are as claimed, which is no test, and the verdict with the number of seeds."


def sensitivity(suite: str, scale: str, columns: Sequence[tuple[str, Sequence[ClaimSummary]]]) -> Table:
    """A row a claim that was run in some column, a column each change.

    Args:
        suite, scale: which. columns: the changes in words ("": none), and the standings of the suite's claims.
    """
    rows = []
    for text in dict.fromkeys(claim.text for _, standings in columns for claim in standings):
        claims = [next((one for one in each if one.text == text), None) for _, each in columns]
        if any(claim is not None and claim.ours != "not run" for claim in claims):
            rows.append(Row.of(text, *map(_entry, claims)))
    heads = ("claim", *(changes or "unchanged" for changes, _ in columns))
    caption = f"{suite} at {scale}: does the order hold under changed settings?"
    return Table.of(f"sensitivity-{suite.replace('/', '-')}-{scale}", caption, heads, rows, [NOTE])


def _entry(claim: ClaimSummary | None) -> TableCell:
    if claim is None or not claim.agrees:
        text = "not judged" if claim is not None and claim.ours == "not judged" else "not run"
        return TableCell(text, mark="missing")
    _, mark = STANDINGS[claim.ours]
    return TableCell(claim.agrees, mark=mark, below=(f"{claim.ours}, n = {claim.n_in_words}",))
